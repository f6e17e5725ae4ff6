"""The keys of a party and of an operator: made once, never overwritten, readable by their owner alone.

A party's folder holds `tls.key` and `certificate.pem`, by which others know it; `seal.key`, with which it opens what
clients seal to it; and `card.yaml`, the public half of both, for everybody else. An operator's folder holds the first
two. Certificates are self-signed: there is no authority, each side accepts exactly the certificates that it pinned.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsyn import yamlio
from fedsyn.aggregation.secagg.primitives import KEY, KeyPair
from fedsyn.config import parse_options
from fedsyn.errors import ConfigError
from fedsyn.parties.policy import load_card
from fedsyn.settings import PartyNode

TLS_KEY, CERTIFICATE, SEAL_KEY, CARD = "tls.key", "certificate.pem", "seal.key", "card.yaml"
_YEARS = 10


@dataclass(frozen=True)
class Credentials:
    """One side's TLS key and certificate, both PEM."""

    key: str
    certificate: str


def split_address(address: str) -> tuple[str, int]:
    """host and port; ConfigError if it is none."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"address: expected HOST:PORT with a port from 1 to 65535, found '{address}'")
    return host, int(port)


def new_party(folder: Path, name: str, address: str) -> PartyNode:
    """Makes a party's folder; its card.

    Raises:
        ConfigError: one of the files is there already, or the folder cannot be written.
    """
    host, _ = split_address(address)
    credentials, pair = _new_credentials(name, host), KeyPair()
    options = {"name": name, "address": address, "key": pair.public.hex(), "certificate": credentials.certificate}
    card: PartyNode = parse_options(PartyNode, options, "party keygen")
    public = yamlio.dumps(card.model_dump())
    _write(folder, {SEAL_KEY: pair.secret.hex() + "\n", **_files(credentials), CARD: public})
    return card


def new_operator(folder: Path, name: str) -> None:
    """Makes an operator's folder: the key by which parties know the server that gives orders."""
    _write(folder, _files(_new_credentials(name, "operator")))


def load_credentials(folder: Path) -> Credentials:
    """The TLS key and certificate of a folder; ConfigError if they are missing, readable by others, or no pair."""
    credentials = Credentials(_read_secret(folder / TLS_KEY), _read(folder / CERTIFICATE))
    try:
        certificate = x509.load_pem_x509_certificate(credentials.certificate.encode())
        key = serialization.load_pem_private_key(credentials.key.encode(), None)
        fits = key.public_key() == certificate.public_key()
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise ConfigError(f"{folder}: {TLS_KEY} and {CERTIFICATE} are not what 'fedsyn party keygen' wrote")
    return credentials


def load_party(folder: Path) -> tuple[PartyNode, Credentials, KeyPair]:
    """Everything of a party's folder; ConfigError if its files do not belong together."""
    if not (folder / CARD).is_file():
        raise ConfigError(
            f"{folder} is not the folder of a party's keys: it has no {CARD}; make one: fedsyn party keygen {folder} "
            "--name NAME --address HOST:PORT"
        )
    card, credentials = load_card(folder / CARD), load_credentials(folder)
    try:
        secret = bytes.fromhex(_read_secret(folder / SEAL_KEY).strip())
        pair = KeyPair(secret) if len(secret) == KEY else None
    except ValueError:
        pair = None
    if pair is None or card.key != pair.public.hex() or card.certificate.strip() != credentials.certificate.strip():
        raise ConfigError(f"{folder}: {CARD} is not the card of {SEAL_KEY} and {CERTIFICATE}")
    return card, credentials, pair


def certificate_of(path: Path) -> str:
    """A PEM certificate from a file; ConfigError if it holds none."""
    if not path.is_file():
        raise ConfigError(
            f"operators: no such file: {path}; it is the {CERTIFICATE} that the operator gives to the parties, and its "
            "name is relative to this party's file"
        )
    text = _read(path)
    try:
        x509.load_pem_x509_certificate(text.encode())
    except ValueError:
        raise ConfigError(f"{path}: expected a certificate, the operator's {CERTIFICATE}") from None
    return text


def signer(credentials: Credentials) -> Callable[[bytes], bytes]:
    """Signs with the key of a certificate (ECDSA over P-256, SHA-256)."""
    key = serialization.load_pem_private_key(credentials.key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    private = key
    return lambda message: private.sign(message, ec.ECDSA(hashes.SHA256()))


def is_signed(certificate: str, signature: bytes, message: bytes) -> bool:
    """Whether the key of this certificate has signed a message."""
    try:
        key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def host_in(certificate: str) -> str:
    """The name that a certificate is for. Which one it is protects nobody: the certificate itself is pinned."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate.encode())
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return str(next(iter(names)).value)
    except (ValueError, x509.ExtensionNotFound, StopIteration):
        raise ConfigError("a party's certificate is none that 'fedsyn party keygen' wrote") from None


def _new_credentials(name: str, host: str) -> Credentials:
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise ConfigError("--name: expected 1 to 64 printable characters")
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName([general_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(purposes, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Credentials(*pem_of(key, certificate))


def pem_of(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> tuple[str, str]:
    """A private key and a certificate as texts of their files."""
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return secret.decode(), certificate.public_bytes(pem).decode()


def general_name(host: str) -> x509.GeneralName:
    """A host name or an IP address as certificates name them; ConfigError if it is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"address: '{host}' is no host name") from None


def _files(credentials: Credentials) -> dict[str, str]:
    return {TLS_KEY: credentials.key, CERTIFICATE: credentials.certificate}


def _write(folder: Path, files: dict[str, str]) -> None:
    """Writes new files, keys for their owner alone; nothing at all if one of them exists."""
    for name in files:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} exists: a key is never overwritten; choose another folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in files.items():
            mode = 0o600 if name.endswith(".key") else 0o644
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}; make it: fedsyn party keygen {path.parent} ...") from None
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"cannot read {path}") from None


def _read_secret(path: Path) -> str:
    text = _read(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}")
    return text
