"""Keys and certificates of TLS.

An authority signs its SuperLink's; parties and operators sign their own.

Of a federation's authority holders know the certificate alone, so the SuperLink's key can be replaced (`fedsyn deploy
rotate-keys --link`) without a word to anybody. The CA's key is needed for that and for nothing else: it may be kept
elsewhere. Parties and operators have no authority: each side accepts exactly the certificates that it pinned.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsyn.errors import ConfigError
from fedsyn.settings import digits_to_compare, host_of

CA_YEARS, LINK_DAYS, PINNED_YEARS = 20, 825, 10
#: Names under which the SuperLink's own machine calls it.
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Credentials:
    """A TLS key and its certificate, both PEM."""

    key: str
    certificate: str

    @property
    def is_pair(self) -> bool:
        """Returns whether the key belongs to the certificate."""
        try:
            return _key_of(self).public_key() == _loaded(self.certificate).public_key()
        except (ValueError, TypeError):
            return False


def new_authority(name: str) -> Credentials:
    """Makes a CA's key and certificate."""
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return _issued(key, f"{name} CA", 365 * CA_YEARS, [names], hashes.SHA384(), signs_certificates=True)


def new_link(authority: Credentials, name: str, hosts: Sequence[str]) -> Credentials:
    """Makes a SuperLink's key and certificate for these hosts.

    They hold for this machine's own names, too.

    Raises:
        ConfigError: if a host is neither a name nor an IP address, or the authority's key is not its certificate's.
    """
    if not authority.is_pair or not isinstance(ca_key := _key_of(authority), ec.EllipticCurvePrivateKey):
        raise ConfigError("ca.key and ca.crt are not what 'fedsyn deploy init' wrote")
    key = ec.generate_private_key(ec.SECP384R1())
    extensions = [
        x509.SubjectAlternativeName([general_name(host) for host in dict.fromkeys([*hosts, *LOCAL])]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    ]
    issuer = _loaded(authority.certificate).subject, ca_key
    return _issued(key, f"{name} SuperLink", LINK_DAYS, extensions, hashes.SHA384(), issuer)


def new_pinned(name: str, host: str) -> Credentials:
    """Makes a party's or an operator's key and self-signed certificate.

    Raises:
        ConfigError: if the name is not 1 to 64 printable characters, or `host` is neither a name nor an IP address.
    """
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise ConfigError("--name: expected 1 to 64 printable characters")
    extensions = [
        x509.SubjectAlternativeName([general_name(host)]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
    ]
    return _issued(ec.generate_private_key(ec.SECP256R1()), name, 365 * PINNED_YEARS, extensions, hashes.SHA256())


# What a certificate says ----------------------------------------------------------------------------------------------


def is_certificate(text: str) -> bool:
    """Returns whether a text is a certificate in PEM."""
    try:
        _loaded(text)
    except ValueError:
        return False
    return True


def fingerprint(certificate: str) -> str:
    """Returns 80 bits of a certificate's digest, for people to compare."""
    return digits_to_compare(_loaded(certificate).public_bytes(serialization.Encoding.DER))


def expiry_of(certificate: str) -> float:
    """Returns when a certificate ends, seconds since 1970."""
    return _loaded(certificate).not_valid_after_utc.timestamp()


def days_left(certificate: str) -> float:
    """Returns the days until a certificate ends; negative if it has ended."""
    return (expiry_of(certificate) - datetime.datetime.now(datetime.UTC).timestamp()) / 86400


def name_of(certificate: str) -> str:
    """Returns the name that `fedsyn party keygen` was given."""
    return str(_loaded(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def host_in(certificate: str) -> str:
    """Returns the host that a certificate is for.

    The host protects nobody: the certificate itself is pinned.
    """
    try:
        names = _loaded(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return str(next(iter(names)).value)
    except (ValueError, x509.ExtensionNotFound, StopIteration):
        raise ConfigError("expected a party's certificate, as 'fedsyn party keygen' writes it") from None


def signer(credentials: Credentials) -> Callable[[bytes], bytes]:
    """Returns a function that signs with a certificate's key.

    ECDSA over P-256, SHA-256.
    """
    key = _key_of(credentials)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    private = key
    return lambda message: private.sign(message, ec.ECDSA(hashes.SHA256()))


def is_signed(certificate: str, signature: bytes, message: bytes) -> bool:
    """Returns whether this certificate's key signed a message."""
    try:
        key = _loaded(certificate).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


# Hosts ----------------------------------------------------------------------------------------------------------------


def split_address(address: str) -> tuple[str, int]:
    """Splits HOST:PORT. Raises ConfigError if a text is not of that form."""
    try:
        host = host_of(address)
    except ValueError as error:
        raise ConfigError(f"address: {error}, found '{address}'") from None
    return host.removeprefix("[").removesuffix("]"), int(address.rpartition(":")[2])


def require_host(host: str) -> None:
    """Raises ConfigError unless others can reach this host or address."""
    try:
        if ipaddress.ip_address(host).is_unspecified:
            raise ConfigError(f"--operator-host: nobody can reach {host}; give the name that the holders use")
    except ValueError:
        if any(mark in host for mark in ":/ @") or not host:
            raise ConfigError(
                f"--operator-host: expected a host name or an IP without a port, found '{host}'"
            ) from None
    general_name(host)


def general_name(host: str) -> x509.GeneralName:
    """Returns a host name or IP address as certificates name it.

    Raises ConfigError if it is neither.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"address: expected a host name or an IP address, found '{host}'") from None


# Inside ---------------------------------------------------------------------------------------------------------------


def _loaded(certificate: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.encode())


def _key_of(credentials: Credentials) -> PrivateKeyTypes:
    return serialization.load_pem_private_key(credentials.key.encode(), None)


def _issued(
    key: ec.EllipticCurvePrivateKey,
    name: str,
    days: float,
    extensions: Sequence[x509.ExtensionType],
    digest: hashes.SHA256 | hashes.SHA384,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    *,
    signs_certificates: bool = False,
) -> Credentials:
    """Returns a key and its certificate.

    The issuer signs it; without an issuer it signs itself.
    """
    now, ca = datetime.datetime.now(datetime.UTC), signs_certificates
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issued_by, signing = issuer or (subject, key)
    usage = x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    begin, end = now - datetime.timedelta(days=1), now + datetime.timedelta(days=days)
    builder = (
        x509.CertificateBuilder(issued_by, subject, key.public_key(), x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Credentials(secret.decode(), builder.sign(signing, digest).public_bytes(pem).decode())
