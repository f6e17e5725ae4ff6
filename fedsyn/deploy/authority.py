"""The federation's own authority: one CA, one certificate for the SuperLink. Holders know the CA's certificate alone.

So the SuperLink's key can be made anew (`fedsyn deploy rotate-keys --link`) without a word to anybody. The CA's key
is needed for that and for nothing else: it may be kept elsewhere.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsyn.errors import ConfigError
from fedsyn.parties.keys import Credentials, general_name, pem_of

CA_YEARS, LINK_DAYS = 20, 825
#: Names under which the SuperLink's own machine calls it.
LOCAL = ("localhost", "127.0.0.1", "::1")


def new_authority(name: str) -> Credentials:
    """A CA's key and certificate."""
    key, subject = ec.generate_private_key(ec.SECP384R1()), _named(f"{name} CA")
    usage = _usage(signs_certificates=True)
    builder = _builder(subject, subject, key.public_key(), datetime.timedelta(days=365 * CA_YEARS))
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Credentials(*pem_of(key, certificate))


def new_link(authority: Credentials, name: str, hosts: Sequence[str]) -> Credentials:
    """A key and a certificate for a SuperLink at these hosts, and at this machine's own names.

    Raises:
        ConfigError: a host is none, or the authority's files are no pair.
    """
    try:
        ca = x509.load_pem_x509_certificate(authority.certificate.encode())
        ca_key = serialization.load_pem_private_key(authority.key.encode(), None)
    except (ValueError, TypeError):
        ca_key = None
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca_key.public_key() != ca.public_key():
        raise ConfigError("ca.key and ca.crt are not what 'fedsyn deploy init' wrote")
    key = ec.generate_private_key(ec.SECP384R1())
    names = [general_name(host) for host in dict.fromkeys([*hosts, *LOCAL])]
    builder = _builder(_named(f"{name} SuperLink"), ca.subject, key.public_key(), datetime.timedelta(days=LINK_DAYS))
    certificate = (
        builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    return Credentials(*pem_of(key, certificate))


def fingerprint(certificate: str) -> str:
    """What two people read to each other: 80 bits of a digest of a certificate."""
    loaded = x509.load_pem_x509_certificate(certificate.encode())
    digest = hashlib.sha256(loaded.public_bytes(serialization.Encoding.DER)).hexdigest()[:20]
    return "-".join(digest[i : i + 4] for i in range(0, 20, 4))


def days_left(certificate: str) -> float:
    """Days until a certificate ends; negative if it has ended."""
    loaded = x509.load_pem_x509_certificate(certificate.encode())
    return (loaded.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400


def require_host(host: str) -> None:
    """ConfigError if this is neither a host name nor an IP address that others can reach."""
    try:
        if ipaddress.ip_address(host).is_unspecified:
            raise ConfigError(f"--operator-host: nobody can reach {host}; give the name that the holders use")
    except ValueError:
        if any(mark in host for mark in ":/ @") or not host:
            raise ConfigError(
                f"--operator-host: expected a host name or an IP without a port, found '{host}'"
            ) from None
    general_name(host)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    yes = signs_certificates
    return x509.KeyUsage(
        digital_signature=not yes,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=yes,
        crl_sign=yes,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - datetime.timedelta(days=1), now + valid
    )
