"""Microsoft SEAL's BFV behind bytes and NumPy arrays.

This module alone knows TenSEAL (extra `fhe`). It knows nothing of tables, marginals or noise of privacy, and a secret
key never becomes bytes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.fhe.parameters import Parameters
from fedsyn.errors import ConfigError, ProtocolError, refuse
from fedsyn.version import installing

Integers = npt.NDArray[np.int64]
_MISSING = f"aggregation.protocol: fhe needs TenSEAL: {installing('fhe')}"
_HEADER = struct.Struct("<HBBBBHQ")  # SEAL's: magic, size of the header, version, version, compression, -, size


def sealapi() -> Any:
    """Returns TenSEAL's binding of SEAL; a ConfigError says what to install."""
    try:
        import tenseal.sealapi as api
    except ImportError:
        raise ConfigError(_MISSING) from None
    return api


@dataclass(frozen=True)
class PublicKeys:
    """Keys that the key holder gives away.

    Attributes:
        public: for those who encrypt.
        relinearise: for products.
    """

    public: bytes
    relinearise: bytes


class Ring:
    """SEAL's objects of one set of parameters, without any key; use `ring_of`."""

    def __init__(self, parameters: Parameters) -> None:
        self.api, self.parameters = sealapi(), parameters
        api, n = self.api, parameters.degree
        chosen = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
        chosen.set_poly_modulus_degree(n)
        primes = api.CoeffModulus.Create(n, list(parameters.primes))
        chosen.set_coeff_modulus(primes)
        plain = api.PlainModulus.Batching(n, parameters.plain_bits)
        chosen.set_plain_modulus(plain)
        self.modulus = int(plain.value())
        self.primes = [int(prime.value()) for prime in primes]
        self.context = api.SEALContext(chosen, True, api.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            raise ConfigError("the parameters of the ciphertexts are not secure")
        self.evaluator = api.Evaluator(self.context)
        self.encoder = api.BatchEncoder(self.context)
        data = self.context.first_context_data()
        while len(data.parms().coeff_modulus()) > parameters.answer_primes:
            data = data.next_context_data()
        self.answer_level = data.parms_id()

    # Bytes ------------------------------------------------------------------------------------------------------------

    def to_bytes(self, thing: Any) -> bytes:
        with _file() as name:
            thing.save(str(name))
            return name.read_bytes()

    def read(self, kind: str, raw: bytes | memoryview) -> Any:
        """Reads an object of SEAL's from untrusted bytes.

        Raises ProtocolError if they are not one for this ring.
        """
        thing = getattr(self.api, kind)()
        with _file() as name:
            name.write_bytes(raw)
            try:
                thing.load(self.context, str(name))
            except (RuntimeError, ValueError, IndexError, OverflowError, MemoryError):
                raise ProtocolError(f"the bytes of a {kind} are damaged, or made for other parameters") from None
        return thing

    def ciphertext(self, raw: bytes | memoryview, *, at_top: bool = False) -> Any:
        """Reads a ciphertext of two parts from untrusted bytes.

        It raises ProtocolError for anything else. `at_top`: it must be at a fresh one's level.
        """
        refuse(len(raw) > self.parameters.bytes + 4096, "a ciphertext is larger than its parameters allow")
        read = self.read("Ciphertext", raw)
        level = self.context.first_parms_id() if at_top else self.answer_level
        kind = read.size() == 2 and read.parms_id() == level and not read.is_ntt_form()
        refuse(not kind or read.is_transparent(), "a ciphertext is not of the kind that was asked for")
        return read

    # Plain numbers ----------------------------------------------------------------------------------------------------

    def encoded(self, values: npt.NDArray[Any]) -> Any:
        """Returns up to `slots` integers as a plaintext."""
        plain = self.api.Plaintext()
        self.encoder.encode(np.asarray(values, np.int64).tolist(), plain)
        return plain

    def constant(self, factor: int) -> Any:
        return self.api.Plaintext(f"{factor:X}")

    def copied(self, ciphertext: Any) -> Any:
        copy = self.api.Ciphertext()
        self.evaluator.mod_switch_to(ciphertext, ciphertext.parms_id(), copy)
        return copy

    # What a key holder must not see ---------------------------------------------------------------------------------

    def flooded(self, ciphertext: Any, encryptor: Any) -> Any:
        """Returns the ciphertext at the level of answers, with its noise drowned.

        A fresh zero is added first, which re-randomises it (`fhe.parameters`).
        """
        evaluator, answer = self.evaluator, self.api.Ciphertext()
        evaluator.mod_switch_to(ciphertext, self.answer_level, answer)
        zero = self.api.Ciphertext()
        encryptor.encrypt_zero(self.answer_level, zero)
        evaluator.add_inplace(answer, zero)
        evaluator.add_inplace(answer, self._flood())
        return answer

    def _flood(self) -> Any:
        """Returns a ciphertext of nothing but noise.

        It is (e, 0), with e uniform in [-2^bits, 2^bits) in every coefficient.
        """
        bits, n = self.parameters.flood_bits, self.parameters.degree
        primes = self.primes[: self.parameters.answer_primes]
        limbs = np.frombuffer(os.urandom(n * (bits // 8 + 1)), np.uint8).reshape(bits // 8 + 1, n).astype(np.uint64)
        limbs[0] >>= np.uint64(7 - bits % 8)  # bits + 1 bits in all
        parts = np.zeros((2, len(primes), n), np.uint64)
        for place, prime in enumerate(primes):
            residue = parts[0, place]
            for limb in limbs:  # prime < 2^55
                residue[:] = ((residue << np.uint64(8)) | limb) % np.uint64(prime)
            residue[:] = (residue + np.uint64(prime - pow(2, bits, prime))) % np.uint64(prime)
        body = struct.pack("<4QBQQQdQ", *self.answer_level, 0, 2, n, len(primes), 1.0, 1)
        data = struct.pack("<Q", parts.size) + parts.tobytes()
        head = self._header
        inner = _HEADER.pack(*head, _HEADER.size + len(data)) + data
        whole = _HEADER.pack(*head, _HEADER.size + len(body) + len(inner)) + body + inner
        return self.read("Ciphertext", whole)

    @property
    def _header(self) -> tuple[int, int, int, int, int, int]:
        """SEAL's header as this version writes it, without compression."""
        magic, size, major, minor, _, rest, _ = _HEADER.unpack(self.to_bytes(self.api.Plaintext("1"))[: _HEADER.size])
        return magic, size, major, minor, 0, rest


@lru_cache(maxsize=8)
def ring_of(parameters: Parameters) -> Ring:
    """Returns the process's one ring, whose tables take a moment to make."""
    return Ring(parameters)


class SecretKeys:
    """The key holder's keys; only `public` can be written or sent."""

    def __init__(self, parameters: Parameters) -> None:
        self.ring = ring = ring_of(parameters)
        api = ring.api
        generator = api.KeyGenerator(ring.context)
        self._decryptor = api.Decryptor(ring.context, generator.secret_key())
        self.public = self._published(generator)

    def _published(self, generator: Any) -> PublicKeys:
        """Returns the public keys of a key generator."""
        public, relinearise = self.ring.api.PublicKey(), self.ring.api.RelinKeys()
        generator.create_public_key(public)
        generator.create_relin_keys(relinearise)
        return PublicKeys(self.ring.to_bytes(public), self.ring.to_bytes(relinearise))

    def decrypted(self, ciphertext: Any) -> npt.NDArray[Any]:
        """Returns residues below the plain modulus, (slots,) uint64."""
        plain = self.ring.api.Plaintext()
        self._decryptor.decrypt(ciphertext, plain)
        return np.array(self.ring.encoder.decode_uint64(plain), np.uint64)

    def room(self, ciphertext: Any) -> int:
        """Returns bits of noise that a ciphertext could still take; for tests."""
        return int(self._decryptor.invariant_noise_budget(ciphertext))


class Encryptor:
    """An encrypting party.

    It is a data holder, or the computation when it needs a fresh zero.
    """

    def __init__(self, parameters: Parameters, public: bytes) -> None:
        self.ring = ring_of(parameters)
        self.inner = self.ring.api.Encryptor(self.ring.context, self.ring.read("PublicKey", public))

    def encrypted(self, values: npt.NDArray[Any]) -> Any:
        """Encrypts up to `slots` numbers as one ciphertext."""
        ciphertext = self.ring.api.Ciphertext()
        self.inner.encrypt(self.ring.encoded(values), ciphertext)
        return ciphertext

    def to_bytes(self, vector: npt.NDArray[Any]) -> list[bytes]:
        """Encrypts a vector in as many ciphertexts as it takes."""
        slots = self.ring.parameters.slots
        return [self.ring.to_bytes(self.encrypted(vector[i : i + slots])) for i in range(0, len(vector), slots)]


@lru_cache(maxsize=2)
def encryptor_of(parameters: Parameters, public: bytes) -> Encryptor:
    """Returns the process's encryptor: a simulation's clients share the key."""
    return Encryptor(parameters, public)


@contextlib.contextmanager
def _file() -> Iterator[Path]:
    """Yields a file, in memory where the system can.

    SEAL's binding knows files only. None of them holds a secret key.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("fedsyn")
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "thing"


def added(ring: Ring, one: Sequence[Any] | None, other: Sequence[Any]) -> list[Any]:
    """Adds ciphertext by ciphertext, in place of `one`; None counts as nothing."""
    if one is None:
        return list(other)
    for mine, theirs in zip(one, other, strict=True):
        ring.evaluator.add_inplace(mine, theirs)
    return list(one)
