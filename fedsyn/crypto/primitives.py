"""Cryptography of a secure sum: keys, masks, sealed shares, signatures.

Everything random comes from the operating system. All keys are derived with HKDF-SHA256, salted with a digest of the
public facts of a sum or setup and bound to a purpose, both parties and their public keys: no key serves two purposes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsyn.errors import ConfigError, ProtocolError

KEY = 32  # bytes of every key, public or secret
TAG = 16  # bytes that sealing adds
SIGNATURE = 64  # bytes
_NONCE12, _NONCE16 = bytes(12), bytes(16)  # every key below serves one message or one stream
_FIELD = 2**255 - 19
_CHUNK = 1 << 16  # bytes of key stream made at once: they stay in the processor's cache
_STREAMS = 1024  # key streams open at once

Roster = Mapping[int, bytes]
"""Partition -> pinned Ed25519 public key (32 bytes)."""


class Identity:
    """A client's long-lived Ed25519 key pair.

    Other clients know it by the public key (threat `malicious`).
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY:
            raise ConfigError(f"a client's identity key must have {KEY} bytes")
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Identity:
        """Returns a new identity, from the operating system's generator."""
        return cls(os.urandom(KEY))

    @classmethod
    def derived(cls, seed: bytes) -> Identity:
        """Returns an identity that follows from the seed, for simulations only."""
        return cls(HKDF(hashes.SHA256(), KEY, None, b"fedsyn identity of a simulation").derive(seed))

    def to_bytes(self) -> bytes:
        """Returns the secret key: keep it to yourself."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def signed_by(public: bytes, signature: bytes, message: bytes) -> bool:
    """Returns whether the owner of the Ed25519 key `public` signed `message`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class KeyPair:
    """One X25519 key pair.

    To restore one, pass its public key too: deriving it costs as much as a use.
    """

    def __init__(self, secret: bytes | None = None, public: bytes | None = None) -> None:
        self._key = X25519PrivateKey.generate() if secret is None else X25519PrivateKey.from_private_bytes(secret)
        self.public: bytes = self._key.public_key().public_bytes_raw() if public is None else public

    @property
    def secret(self) -> bytes:
        return self._key.private_bytes_raw()

    def agree(self, peer: bytes) -> bytes:
        """Returns the secret shared with the owner of `peer`.

        Raises ProtocolError for a key of small order.
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:  # the all-zero secret of a key of low order
            raise ProtocolError("a public key is of low order") from None


# Coordinates of the points of order 1, 2, 4 and 8 on the curve and its twist (Bernstein's list), below the prime.
_LOW_ORDER = frozenset(
    [
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _FIELD - 1,
    ]
)


def usable_public_key(raw: bytes) -> bool:
    """Returns whether 32 bytes are a usable X25519 public key.

    They must be its one canonical form, and not of low order.
    """
    value = int.from_bytes(raw, "little")
    return value < _FIELD and value not in _LOW_ORDER


def derive(secret: bytes, digest: bytes, purpose: bytes, ids: Iterable[int], publics: Iterable[bytes] = ()) -> bytes:
    """Derives a 32-byte key from `secret`.

    It serves one purpose of one sum, between the parties `ids` with the keys `publics`.
    """
    numbers = [*ids]
    info = purpose + b"\0" + struct.pack(f"<{len(numbers)}q", *numbers) + b"".join(publics)
    return HKDF(hashes.SHA256(), KEY, digest, info).derive(secret)


def key_stream(key: bytes, length: int) -> bytes:
    """Returns the first `length` bytes of a key's ChaCha20 stream.

    The key must serve nothing else.
    """
    return Cipher(algorithms.ChaCha20(key, _NONCE16), None).encryptor().update(bytes(length))


def apply_masks(vector: npt.NDArray[np.uint64], plus: Iterable[bytes], minus: Iterable[bytes]) -> None:
    """Adds the masks of `plus` to `vector`, and subtracts those of `minus`.

    It works in place and modulo 2^64. A key's mask is its ChaCha20 stream read as little-endian 64-bit words: uniform
    in the whole ring.
    """
    jobs = [(np.add, key) for key in plus] + [(np.subtract, key) for key in minus]
    size = min(_CHUNK, 8 * len(vector))
    zeros, buffer = memoryview(bytes(size)), bytearray(size)
    words = np.frombuffer(buffer, "<u8")
    for first in range(0, len(jobs), _STREAMS):
        streams = [
            (operation, Cipher(algorithms.ChaCha20(key, _NONCE16), None).encryptor())
            for operation, key in jobs[first : first + _STREAMS]
        ]
        for start in range(0, len(vector), _CHUNK // 8):
            part = vector[start : start + _CHUNK // 8]
            for operation, stream in streams:
                stream.update_into(zeros[: 8 * len(part)], buffer)
                operation(part, words[: len(part)], out=part)


def seal(key: bytes, message: bytes, bound: bytes) -> bytes:
    """Encrypts and authenticates `message`, together with `bound`.

    The key must serve no other message.
    """
    return ChaCha20Poly1305(key).encrypt(_NONCE12, message, bound)


def unseal(key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    """Returns the sealed message, or None if it is not authentic.

    Authentic is what was sealed under this key, together with `bound`.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE12, sealed, bound)
    except InvalidTag:
        return None
