"""Tables that rest on disk encrypted.

They are read block by block into memory, and never written back in the clear.

A sealed file (`rows.csv.sealed`) is a header and blocks of 64 KiB, each encrypted and authenticated by AES-256-GCM
(`cryptography`). Its key is derived from the holder's and 32 random bytes of the header (HKDF-SHA256), so no two files
share one and the nonces can count the blocks. The nonce of the last block says that it is the last, and every block
authenticates the header (STREAM: Hoang, Reyhanitabar, Rogaway & Vizár 2015): a block that is changed, moved, dropped or
added, also at the end, or taken from another file, is noticed before a byte of it is used.

    fedsyn-sealed-1\\n | 32 bytes of salt | block 0 | block 1 | ... | last block (may be empty)

Not age's format: its Python library opens a file from the beginning to the end alone, and what reads Parquet and Excel
wants any place of it, without a copy in the clear.

What the file still shows: how long the table is, and when it was written. Opened rows are in the memory of the process
that reads them, which a core dump or swap space could write to disk: switch both off where that matters.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fedsyn.errors import ConfigError, DataError

#: Ends the name of a sealed file, after the ending of what is in it.
SEALED = ".sealed"
KEY = 32
_MAGIC = b"fedsyn-sealed-1\n"
_SALT, _BLOCK, _TAG = 32, 1 << 16, 16
_HEADER = len(_MAGIC) + _SALT


def is_sealed(path: Path) -> bool:
    return path.suffix.lower() == SEALED


def plain_name(path: Path) -> Path:
    """Returns a file's name without the ending of sealed files.

    It is the name of what is in the file.
    """
    return path.with_suffix("") if is_sealed(path) else path


def key_of(text: str) -> bytes:
    """Decodes the key that a file holds as 64 hex digits.

    The key may be of any kind. Raises ValueError if the text is not one.
    """
    key = bytes.fromhex(text.strip())
    if len(key) != KEY:
        raise ValueError(f"expected {KEY} bytes, got {len(key)}")
    return key


def read_key(path: Path) -> bytes:
    """Reads a holder's key from a file.

    The file holds 64 hex digits. It may also be one that systemd puts into /run/credentials.

    Raises:
        ConfigError: if there is no such file, or no key in it.
    """
    try:
        return key_of(path.read_text(encoding="ascii"))
    except OSError as error:
        raise ConfigError(f"key: cannot read {path} ({error.strerror})") from None
    except ValueError:
        raise ConfigError(
            f"key: {path} holds no key: expected {2 * KEY} hex digits, as 'fedsyn node seal' writes them"
        ) from None


def _cipher(key: bytes, salt: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), KEY, salt, b"fedsyn sealed file").derive(key))


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def sealed_blocks(plain: io.BufferedReader, key: bytes) -> Iterator[bytes]:
    """Yields a sealed file's bytes, piece by piece.

    `plain` is buffered, and so gives whole blocks until its end.
    """
    salt = os.urandom(_SALT)
    cipher, header = _cipher(key, salt), _MAGIC + salt
    yield header
    number, block = 0, plain.read(_BLOCK)
    while True:
        after = plain.read(_BLOCK)
        yield cipher.encrypt(_nonce(number, not after), block, header)
        if not after:
            return
        number, block = number + 1, after


class SealedFile(io.RawIOBase):
    """Content of a sealed file, readable from any place.

    Only one block of it is in memory at a time.

    Args:
        path: of the file.
        key: the holder's.

    Raises:
        DataError: no sealed file, sealed under another key, or changed or cut since.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        super().__init__()
        self._path = path
        try:
            self._file = path.open("rb")
            header, size = self._file.read(_HEADER), os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        if not header.startswith(_MAGIC) or len(header) < _HEADER:
            raise DataError(f"{path} is not a sealed file; 'fedsyn node seal' writes one")
        self._header, self._cipher = header, _cipher(key, header[len(_MAGIC) :])
        self._last, rest = divmod(max(0, size - _HEADER - 1), _BLOCK + _TAG)
        self._place, self._number, self._block = 0, -1, b""
        if size < _HEADER + _TAG or rest + 1 < _TAG:
            raise self._changed()
        self.length = self._last * _BLOCK + len(self._opened(self._last))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.length}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        number, start = divmod(self._place, _BLOCK)
        if self._place >= self.length:
            return 0
        piece = self._opened(number)[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._place += len(piece)
        return len(piece)

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
        self._block = b""
        super().close()

    def _opened(self, number: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        if number != self._number:
            self._file.seek(_HEADER + number * (_BLOCK + _TAG))
            sealed = self._file.read(_BLOCK + _TAG)
            try:
                self._block = self._cipher.decrypt(_nonce(number, number == self._last), sealed, self._header)
            except (InvalidTag, ValueError):
                raise self._changed() from None
            self._number = number
        return self._block

    def _changed(self) -> DataError:
        return DataError(f"{self._path} cannot be opened: it was sealed under another key, or was changed or cut since")


def open_sealed(path: Path, key: bytes) -> BinaryIO:
    """Opens the content of a sealed file, as a file.

    Raises DataError as `SealedFile`, also while it is read.
    """
    return io.BufferedReader(SealedFile(path, key), _BLOCK)


def seal_bytes(plain: bytes, key: bytes, about: bytes) -> bytes:
    """Returns a small file's bytes, sealed.

    `about` says which file it is, and must be the same to open it.
    """
    nonce, salt = os.urandom(12), os.urandom(_SALT)
    sealed: bytes = _cipher(key, salt).encrypt(nonce, plain, _MAGIC + about)
    return salt + nonce + sealed


def unseal_bytes(sealed: bytes, key: bytes, about: bytes) -> bytes:
    """The inverse of `seal_bytes`; ValueError for anything else."""
    from cryptography.exceptions import InvalidTag

    salt, nonce, rest = sealed[:_SALT], sealed[_SALT : _SALT + 12], sealed[_SALT + 12 :]
    try:
        plain: bytes = _cipher(key, salt).decrypt(nonce, rest, _MAGIC + about)
    except InvalidTag:
        raise ValueError("sealed under another key, or changed") from None
    return plain
