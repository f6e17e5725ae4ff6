"""The adapter of SEAL: bytes that anybody may have sent, what a flood is, and that a secret key stays where it is."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import fedsyn.crypto.fhe
from fedsyn.crypto.fhe.parameters import Parameters, bfv_for_store
from fedsyn.crypto.fhe.seal import (
    _HEADER,
    Encryptor,
    PublicKeys,
    Ring,
    SecretKeys,
    added,
    encryptor_of,
    ring_of,
    sealapi,
)
from fedsyn.errors import ConfigError, ProtocolError

pytest.importorskip("tenseal")

STORE = bfv_for_store(3)
#: Smaller than any that a run has.
SMALL = Parameters(8192, (53, 53, 53, 54), 3, 94, 60)
#: Each p-value is wrong under a true null once in 10^6; this file computes 15 of them.
ALARM = 1e-6


@dataclass(frozen=True)
class Keyed:
    secret: SecretKeys
    encryptor: Encryptor

    @classmethod
    def of(cls, parameters: Parameters) -> Keyed:
        secret = SecretKeys(parameters)
        return cls(secret, Encryptor(parameters, secret.public.public))

    @property
    def ring(self) -> Ring:
        return self.secret.ring

    def encrypted(self, *values: float) -> Any:
        return self.encryptor.encrypted(np.array(values))

    def flooded(self, ciphertext: Any) -> Any:
        return self.ring.flooded(ciphertext, self.encryptor.inner)


@pytest.fixture(scope="module")
def store() -> Keyed:
    return Keyed.of(STORE)


# Bytes there and back ------------------------------------------------------------------------------------------------


def test_integers_come_back(store: Keyed) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(-(2**58), 2**58, STORE.slots)
    (raw,) = store.encryptor.to_bytes(values)
    read = store.secret.decrypted(store.ring.ciphertext(raw, at_top=True))
    assert read.dtype == np.uint64 and read.tolist() == (values % store.ring.modulus).tolist()


def test_a_long_vector_takes_several_ciphertexts(store: Keyed) -> None:
    vector = np.arange(2 * STORE.slots + 5)
    pieces = store.encryptor.to_bytes(vector)
    read = [store.secret.decrypted(store.ring.ciphertext(raw, at_top=True)) for raw in pieces]
    assert len(read) == 3 and np.array_equal(np.concatenate(read)[: len(vector)], vector)
    assert not read[2][5:].any()


def test_encryption_is_not_deterministic_and_an_encryptor_is_kept(store: Keyed) -> None:
    one, other = (store.encryptor.to_bytes(np.arange(4)) for _ in range(2))
    assert one != other
    public = store.secret.public.public
    assert encryptor_of(STORE, public) is encryptor_of(STORE, bytes(public)) and ring_of(STORE) is store.ring


def test_public_keys_from_bytes_work_elsewhere(store: Keyed) -> None:
    """Keys made, written and read; a product under the read keys is what the secret one decrypts."""
    ring = Ring(STORE)  # as another process would have it
    relinearise = ring.read("RelinKeys", store.secret.public.relinearise)
    ciphertext, square = Encryptor(STORE, store.secret.public.public).encrypted(np.arange(9)), ring.api.Ciphertext()
    ring.evaluator.square(ciphertext, square)
    ring.evaluator.relinearize_inplace(square, relinearise)
    assert store.secret.decrypted(square)[:9].tolist() == [k * k for k in range(9)]


def test_sums_are_formed_in_place_of_the_first(store: Keyed) -> None:
    batches = [[store.encrypted(k, 2), store.encrypted(3, -k)] for k in (1, 5, 7)]
    total = None
    for batch in batches:
        total = added(store.ring, total, batch)
    assert total is not None and total[0] is batches[0][0]
    read = [store.secret.decrypted(one)[:2].tolist() for one in total]
    assert read == [[13, 6], [9, store.ring.modulus - 13]]
    with pytest.raises(ValueError, match="zip"):
        added(store.ring, total, total[:1])


def test_a_copy_is_a_copy(store: Keyed) -> None:
    one = store.encrypted(4)
    other = store.ring.copied(one)
    store.ring.evaluator.add_inplace(other, other)
    assert (store.secret.decrypted(one)[0], store.secret.decrypted(other)[0]) == (4, 8)


def test_tenseal_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tenseal.sealapi", None)
    with pytest.raises(ConfigError, match=r"fedsyn-.*\[fhe\]"):
        sealapi()


# Bytes that are no ciphertext ----------------------------------------------------------------------------------------


def raw_of(ring: Ring, ciphertext: Any, parts: np.ndarray, **lies: Any) -> bytes:
    """A ciphertext as SEAL writes it without compression, with what its fields should not say."""
    size, primes, n = parts.shape
    said = {"form": ciphertext.is_ntt_form(), "size": size, "n": n, "primes": primes, "scale": ciphertext.scale}
    said |= {"correction": 1} | lies
    body = struct.pack("<4QBQQQdQ", *ciphertext.parms_id(), *said.values())
    data = struct.pack("<Q", parts.size) + np.asarray(parts, np.uint64).tobytes()
    head = ring._header
    inner = _HEADER.pack(*head, _HEADER.size + len(data)) + data
    return _HEADER.pack(*head, _HEADER.size + len(body) + len(inner)) + body + inner


def residues(ciphertext: Any) -> np.ndarray:
    """(parts, primes, n)."""
    shape = (ciphertext.size(), ciphertext.coeff_modulus_size(), ciphertext.poly_modulus_degree())
    return np.array([ciphertext[i] for i in range(prod(shape))], np.uint64).reshape(shape)


def refused(keyed: Keyed, raw: bytes, *, at_top: bool = True) -> str:
    with pytest.raises(ProtocolError) as error:
        keyed.ring.ciphertext(raw, at_top=at_top)
    message = str(error.value)
    assert "\n" not in message and len(message) < 120 and message.count(".") == 0
    return message


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: bytes(1000),
        lambda raw: raw[:10],
        lambda raw: raw[:16],
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw[1:],
        lambda raw: raw[:400] + bytes(64) + raw[464:],
        lambda raw: raw[:8] + struct.pack("<Q", 2**62) + raw[16:],
        lambda raw: raw + bytes(STORE.bytes),
        lambda raw: raw * 2,
    ],
)
def test_damaged_truncated_and_oversized_bytes_are_refused(store: Keyed, damage: Callable[[bytes], bytes]) -> None:
    refused(store, damage(store.ring.to_bytes(store.encrypted(1, 2))))


def test_flipped_bytes_are_refused_or_another_ciphertext(store: Keyed) -> None:
    """Never anything else: no crash, no other error, no other level."""
    raw, rng, outcomes = store.ring.to_bytes(store.encrypted(1, 2)), np.random.default_rng(0), []
    places = [*range(0, 130, 3), *rng.integers(130, len(raw), 30).tolist()]
    for place in places:
        changed = bytearray(raw)
        changed[place] ^= int(rng.integers(1, 256))
        try:
            read = store.ring.ciphertext(bytes(changed), at_top=True)
        except ProtocolError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("")
            assert read.size() == 2 and read.parms_id() == store.ring.context.first_parms_id()
    assert len(set(outcomes)) >= 2


@pytest.mark.parametrize(
    "lies",
    [
        {"size": 2**40},
        {"size": 17},
        {"size": 3},
        {"size": 1},
        {"size": 0},
        {"n": 2 * STORE.degree},
        {"n": 2**60},
        {"primes": 1},
        {"primes": 2**33},
        {"form": 1},
        {"scale": 5.0},
        {"scale": float("nan")},
        {"correction": 7},
    ],
)
def test_a_header_that_lies_is_refused(store: Keyed, lies: dict[str, Any]) -> None:
    ciphertext = store.encrypted(1)
    parts = np.ones((2, len(store.ring.primes) - 1, STORE.degree), np.uint64)
    assert store.ring.ciphertext(raw_of(store.ring, ciphertext, parts), at_top=True).size() == 2
    refused(store, raw_of(store.ring, ciphertext, parts, **lies))


def test_coefficients_beyond_their_prime_are_refused(store: Keyed) -> None:
    ciphertext = store.encrypted(1)
    parts = np.ones((2, len(store.ring.primes) - 1, STORE.degree), np.uint64)
    for place, prime in enumerate(store.ring.primes[:-1]):
        for value in (prime, 2**64 - 1):
            changed = parts.copy()
            changed[1, place, 17] = value
            refused(store, raw_of(store.ring, ciphertext, changed))


def test_a_ciphertext_that_hides_nothing_is_refused(store: Keyed) -> None:
    """Its second part is 0, so that anybody reads it. SEAL computes no such result: it raises an error of its own, in
    the middle of a run, at the first product with one."""
    ciphertext = store.encrypted(1)
    parts = np.zeros((2, len(store.ring.primes) - 1, STORE.degree), np.uint64)
    parts[0] = 1
    refused(store, raw_of(store.ring, ciphertext, parts))


def test_other_things_of_seals_are_refused(store: Keyed) -> None:
    ring, keys = store.ring, store.secret.public
    things = [keys.public, keys.relinearise, ring.to_bytes(ring.encoded(np.arange(4)))]
    for raw in things:
        refused(store, raw)
    for kind in ("PublicKey", "RelinKeys", "GaloisKeys"):
        for raw in (b"", ring.to_bytes(store.encrypted(1)), things[2], keys.public[:-1]):
            with pytest.raises(ProtocolError, match=kind):
                ring.read(kind, raw)
    for kind, raw in (("PublicKey", keys.relinearise), ("RelinKeys", keys.public), ("GaloisKeys", keys.public)):
        with pytest.raises(ProtocolError, match=kind):
            ring.read(kind, raw)


@pytest.mark.parametrize(
    "other",
    [replace(STORE, primes=(46,) * 7 + (47,)), bfv_for_store(10**12), SMALL, replace(STORE, plain_bits=45)],
    ids=["other primes", "many clients", "sums", "another t"],
)
def test_ciphertexts_of_other_parameters_are_refused(store: Keyed, other: Parameters) -> None:
    foreign = Keyed.of(other)
    refused(store, foreign.ring.to_bytes(foreign.encrypted(1)))
    with pytest.raises(ProtocolError, match="PublicKey"):
        Encryptor(STORE, foreign.secret.public.public)


def test_ciphertexts_of_three_parts_are_refused(store: Keyed) -> None:
    ring, square, lower = store.ring, store.ring.api.Ciphertext(), store.ring.api.Ciphertext()
    ring.evaluator.square(store.encrypted(3), square)
    assert square.size() == 3
    refused(store, ring.to_bytes(square))
    ring.evaluator.mod_switch_to(square, ring.answer_level, lower)
    assert len(ring.to_bytes(lower)) < STORE.bytes  # it is not its length that it is refused for
    assert refused(store, ring.to_bytes(lower), at_top=False) == "a ciphertext is not of the kind that was asked for"


def test_ciphertexts_of_other_levels_are_refused(store: Keyed) -> None:
    """Fresh ones where answers go, answers where fresh ones come from, and what lies between in both."""
    ring, fresh = store.ring, store.encrypted(1, 2)
    middle = ring.api.Ciphertext()
    ring.evaluator.mod_switch_to_next(fresh, middle)
    answer = store.flooded(fresh)
    kinds = {"fresh": fresh, "middle": middle, "answer": answer}
    accepted = {(kind, top): False for kind in kinds for top in (True, False)}
    for (kind, top), _ in accepted.items():
        raw = ring.to_bytes(kinds[kind])
        if (kind, top) in {("fresh", True), ("answer", False)}:
            ring.ciphertext(raw, at_top=top)
        else:
            refused(store, raw, at_top=top)


def test_the_other_form_is_refused(store: Keyed) -> None:
    fresh = store.encrypted(1)
    store.ring.evaluator.transform_to_ntt_inplace(fresh)
    refused(store, store.ring.to_bytes(fresh))


# The flood -----------------------------------------------------------------------------------------------------------


def flood_of(ring: Ring) -> list[int]:
    """The coefficients of a flood, as integers around 0; read from its residues, without any key."""
    flood = ring._flood()
    parts, primes = residues(flood), ring.primes[: flood.coeff_modulus_size()]
    assert flood.parms_id() == ring.answer_level and flood.size() == 2 and not flood.is_ntt_form()
    assert not parts[1].any()
    q = prod(primes)
    factors = [q // prime * pow(q // prime, -1, prime) for prime in primes]
    whole = sum(parts[0, j].astype(object) * factor for j, factor in enumerate(factors)) % q
    return [int(value) - q if value > q // 2 else int(value) for value in whole]


@pytest.mark.parametrize("parameters", [STORE, SMALL, bfv_for_store(10**6)], ids=["store", "small", "large"])
def test_the_flood_is_uniform_between_its_bounds(parameters: Parameters) -> None:
    """Kolmogorov-Smirnov of all coefficients, and chi-square of their lowest 8 bits and of sums of neighbours."""
    bits = parameters.flood_bits
    values = flood_of(ring_of(parameters))
    assert min(values) >= -(2**bits) and max(values) < 2**bits and len(values) == parameters.degree
    assert scipy.stats.kstest([v / 2**bits for v in values], "uniform", (-1, 2)).pvalue > ALARM
    low = np.bincount([v % 256 for v in values], minlength=256)
    assert scipy.stats.chisquare(low).pvalue > ALARM
    pairs = [(a + b) % 2 ** (bits + 1) >> (bits - 5) for a, b in zip(values[::2], values[1::2], strict=True)]
    assert scipy.stats.chisquare(np.bincount(pairs, minlength=64)).pvalue > ALARM


@pytest.mark.parametrize("bits", [77, 80, 87, 88, 100])
def test_a_flood_has_as_many_bits_as_it_is_asked_for(bits: int) -> None:
    """Also where bytes are whole."""
    values = flood_of(ring_of(replace(STORE, flood_bits=bits)))
    assert min(values) >= -(2**bits) and max(values) < 2**bits
    assert max(max(values), -min(values)) > 0.99 * 2**bits  # 16,384 of them: false once in 10^71


@pytest.mark.parametrize(("byte", "value"), [(0x00, -1), (0xFF, 1)])
def test_the_bounds_of_the_flood_are_met(byte: int, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsyn.crypto.fhe.seal.os.urandom", lambda size: bytes([byte]) * size)
    bits = STORE.flood_bits
    assert set(flood_of(ring_of(STORE))) == {-(2**bits) if value < 0 else 2**bits - 1}


def test_a_flooded_ciphertext_decrypts_the_same_under_noise_that_is_the_floods(store: Keyed) -> None:
    """Of a fresh ciphertext, a sum and a square: 60 bits of noise apart before it, and one bit at most after it."""
    values = np.random.default_rng(3).integers(0, 2**59, STORE.slots)
    fresh = store.encryptor.encrypted(values)
    total, square = store.ring.copied(fresh), store.ring.api.Ciphertext()
    for _ in range(20):
        store.ring.evaluator.add_inplace(total, fresh)
    store.ring.evaluator.square(fresh, square)
    kinds = [fresh, total, square]
    before, after = [store.secret.room(one) for one in kinds], []
    for one in kinds:
        expected = store.secret.decrypted(one)
        answer = store.flooded(one)
        assert np.array_equal(store.secret.decrypted(answer), expected)
        q = prod(store.ring.primes[: STORE.answer_primes]).bit_length()
        after.append(q - 1 - store.secret.room(answer) - store.ring.modulus.bit_length())
    assert max(before) - min(before) > 60
    assert max(after) - min(after) <= 1 and abs(after[0] - STORE.flood_bits) <= 1


def test_a_flooded_ciphertext_is_a_new_one(store: Keyed) -> None:
    """Its second part, which no flood touches, is that of a fresh zero added: uniform, whatever went in."""
    fresh, level = store.encrypted(5), store.ring.answer_level
    lower = store.ring.api.Ciphertext()
    store.ring.evaluator.mod_switch_to(fresh, level, lower)
    one, other = store.flooded(fresh), store.flooded(fresh)
    seconds = [residues(each)[1, 0].astype(np.int64) for each in (lower, one, other)]
    prime = store.ring.primes[0]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        difference = (seconds[a] - seconds[b]) % prime
        assert scipy.stats.kstest(difference / prime, "uniform").pvalue > ALARM


# The secret key ------------------------------------------------------------------------------------------------------

SOURCES = {path.name: path.read_text() for path in Path(fedsyn.crypto.fhe.__path__[0]).glob("*.py")}


def test_one_line_writes_things_of_seals_and_one_names_the_secret_key() -> None:
    saves = [(name, line.strip()) for name, text in SOURCES.items() for line in text.splitlines() if ".save(" in line]
    assert saves == [("seal.py", "thing.save(str(name))")]
    secrets = [line.strip() for text in SOURCES.values() for line in text.splitlines() if "secret_key(" in line]
    assert secrets == ["self._decryptor = api.Decryptor(ring.context, generator.secret_key())"]
    assert not any(re.search(r"\bSecretKey\b", text) for text in SOURCES.values())


def test_only_public_things_are_written_while_keys_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    to_bytes = Ring.to_bytes

    def noted(self: Ring, thing: Any) -> bytes:
        written.append(type(thing).__name__)
        return to_bytes(self, thing)

    monkeypatch.setattr(Ring, "to_bytes", noted)
    SecretKeys(STORE)
    assert written == ["PublicKey", "RelinKeys"]
    assert [field.name for field in fields(PublicKeys)] == ["public", "relinearise"]


def test_nothing_that_a_key_holder_has_gives_its_secret_key_away(store: Keyed) -> None:
    """No attribute is one, none can be written, and no method returns anything but numbers."""
    api = sealapi()
    held = {name: value for owner in (store.secret, store.ring) for name, value in vars(owner).items()}
    assert not any(isinstance(value, api.SecretKey | api.KeyGenerator) for value in held.values())
    assert not hasattr(held["_decryptor"], "save") and not hasattr(held["_decryptor"], "secret_key")
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(store.secret)
    for kind in (SecretKeys, Ring):
        (body,) = (
            n for n in ast.parse(SOURCES["seal.py"]).body if isinstance(n, ast.ClassDef) and n.name == kind.__name__
        )
        methods = {n.name: ast.unparse(n.returns) for n in body.body if isinstance(n, ast.FunctionDef) and n.returns}
        returned = {name: kinds for name, kinds in methods.items() if "bytes" in kinds}
        assert returned == ({} if kind is SecretKeys else {"to_bytes": "bytes"})
    with pytest.raises(ProtocolError):
        store.ring.read("SecretKey", store.secret.public.public)
