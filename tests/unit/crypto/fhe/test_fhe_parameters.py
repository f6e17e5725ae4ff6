"""Parameters of ciphertexts: what is derived for their noise holds for what is measured, and SEAL finds them secure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log2, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.crypto.fhe.bfv import BfvComputation, uniform
from fedsyn.crypto.fhe.parameters import (
    LARGEST,
    MOST_ANSWERS,
    MOST_BITS,
    MOST_FACTOR,
    PLAIN_BITS,
    STATISTICAL_BITS,
    Parameters,
    bfv_for_store,
    fresh_noise,
    product_noise,
)
from fedsyn.crypto.fhe.seal import Encryptor, Ring, SecretKeys, ring_of, sealapi
from fedsyn.errors import ConfigError

pytest.importorskip("tenseal")

CLIENTS = 200
SETS = {
    "store": bfv_for_store(CLIENTS),
    "store of a thousand million": bfv_for_store(10**9),
    "columns": bfv_for_store(2, 2**10),
}


# What the numbers promise --------------------------------------------------------------------------------------------


def flood_of(parameters: Parameters, noise: float) -> bool:
    """Whether F >= V n A 2^40, in integers."""
    return 2**parameters.flood_bits >= Fraction(noise) * parameters.degree * MOST_ANSWERS * 2**STATISTICAL_BITS


@settings(max_examples=200, deadline=None)
@given(clients=st.integers(1, 10**9), products=st.sampled_from([0, 1, 2**10]))
def test_no_parameters_have_more_bits_than_the_standard_allows(clients: int, products: int) -> None:
    store = bfv_for_store(clients, products)
    assert sum(store.primes) <= MOST_BITS[store.degree]
    assert store.primes[-1] == max(store.primes) <= 60  # SEAL: the special prime is the largest one
    assert 1 <= store.answer_primes <= len(store.primes) - 1
    assert store.plain_bits == PLAIN_BITS and store.slots == store.degree
    fresh, n = fresh_noise(store.degree), store.degree
    assert flood_of(store, 2 * fresh + n + 1)


@pytest.mark.parametrize("name", SETS)
def test_seal_accepts_every_set_as_secure(name: str) -> None:
    api, parameters = sealapi(), SETS[name]
    ring = ring_of(parameters)
    data = ring.context.key_context_data()
    assert ring.context.parameters_set() and data.qualifiers().sec_level == api.SEC_LEVEL_TYPE.TC128
    assert data.total_coeff_modulus_bit_count() <= MOST_BITS[parameters.degree]
    assert api.CoeffModulus.MaxBitCount(parameters.degree, api.SEC_LEVEL_TYPE.TC128) == MOST_BITS[parameters.degree]
    assert [prime.bit_length() for prime in ring.primes] == list(parameters.primes)
    assert ring.modulus.bit_length() == parameters.plain_bits
    assert ring.modulus // 2 > LARGEST - 1


def test_more_bits_than_that_are_refused() -> None:
    parameters = SETS["store"]
    more = replace(parameters, primes=(54,) * (MOST_BITS[parameters.degree] // 54) + (55,))
    with pytest.raises(ConfigError, match="not secure"):
        Ring(more)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="clients does not fit"):
        bfv_for_store(10**260)


@pytest.mark.parametrize("name", SETS)
def test_a_fresh_ciphertext_has_the_bytes_that_are_promised_at_most(name: str) -> None:
    """Of uniform coefficients, that compress least."""
    parameters = SETS[name]
    ring, api = ring_of(parameters), sealapi()
    public = api.PublicKey()
    api.KeyGenerator(ring.context).create_public_key(public)
    raw = Encryptor(parameters, ring.to_bytes(public)).to_bytes(np.arange(parameters.slots))
    assert len(raw) == 1 and 0.5 * parameters.bytes < len(raw[0]) <= parameters.bytes


# Measured noise ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keyed:
    """Keys of one set of parameters, and what works with them."""

    secret: SecretKeys
    computation: Any
    encryptor: Encryptor

    @classmethod
    def of(cls, parameters: Parameters) -> Keyed:
        secret = SecretKeys(parameters)
        return cls(secret, BfvComputation(parameters, secret.public), Encryptor(parameters, secret.public.public))

    @property
    def ring(self) -> Ring:
        return self.secret.ring

    def noise(self, ciphertext: Any) -> float:
        """log2 of a bound on |v|, at most a bit too large: room is bits(q) - bits(max |t v|) - 1, rounded down."""
        q = prod(self.ring.primes[: ciphertext.coeff_modulus_size()])
        room = self.secret.room(ciphertext)
        assert room > 0
        return q.bit_length() - 1 - room - log2(self.ring.modulus)

    def added(self, ciphertext: Any, times: int) -> Any:
        """The same ciphertext so many times: noise that adds up in one direction, worse than that of any clients."""
        total = self.ring.copied(ciphertext)
        for _ in range(times - 1):
            self.ring.evaluator.add_inplace(total, ciphertext)
        return total

    def flooded(self, ciphertext: Any) -> Any:
        return self.ring.flooded(ciphertext, self.encryptor.inner)

    def reads(self, ciphertext: Any) -> np.ndarray:
        return self.secret.decrypted(ciphertext)


@pytest.fixture(scope="module")
def store() -> Keyed:
    return Keyed.of(SETS["store"])


def full(keyed: Keyed) -> np.ndarray:
    """Uniform residues in every slot: the largest coefficients."""
    return uniform(keyed.ring.modulus, keyed.ring.parameters.slots).astype(np.int64)


def flooded_noise(keyed: Keyed, before: float) -> float:
    """log2 of F + V, V what was there before."""
    return log2(2.0**keyed.ring.parameters.flood_bits + 2.0**before)


@pytest.mark.parametrize("clients", [1, 2, CLIENTS])
def test_sums_of_fresh_ciphertexts_have_the_noise_that_was_derived(store: Keyed, clients: int) -> None:
    """Of padded numbers: every slot is uniform modulo t. What takes the pads off is one fresh ciphertext more."""
    n, values = store.ring.parameters.degree, full(store)
    fresh = store.encryptor.encrypted(values)
    assert store.noise(fresh) <= log2(fresh_noise(n))
    total = store.added(fresh, clients)
    assert store.noise(total) <= log2(clients * fresh_noise(n))
    minus = [-(clients * int(value)) % store.ring.modulus for value in values]
    store.ring.evaluator.add_inplace(total, store.encryptor.encrypted(np.array(minus, np.int64)))
    assert store.noise(total) <= log2((clients + 1) * fresh_noise(n)) <= log2(2 * clients * fresh_noise(n))
    assert not store.reads(total).any()


@pytest.mark.parametrize("clients", [1, CLIENTS])
@pytest.mark.parametrize("factor", [1, MOST_FACTOR])
def test_a_score_of_a_store_has_the_noise_that_was_derived(store: Keyed, clients: int, factor: int) -> None:
    """Sum, public factor, model, square, flood: each within its own line of the derivation."""
    n, ring, values = store.ring.parameters.degree, store.ring, full(store)
    fresh = fresh_noise(n)
    total = store.added(store.encryptor.encrypted(values), clients)
    assert store.noise(total) <= log2(clients * fresh)
    far = ring.api.Ciphertext()
    ring.evaluator.multiply_plain(total, ring.constant(factor), far)
    ring.evaluator.sub_plain_inplace(far, ring.encoded(full(store)))
    assert store.noise(far) <= log2(factor * clients * fresh + 1)
    square = store.computation.squares(total, full(store), factor)
    derived = log2(product_noise(n, factor * (2 * clients * fresh + 1)))
    assert derived - 40 < store.noise(square) <= derived  # the bound is not idle either
    answer = store.flooded(square)
    assert store.noise(answer) <= flooded_noise(store, log2(2 * fresh + n + 2)) + 1
    assert np.array_equal(store.reads(answer), store.reads(square))


@pytest.mark.parametrize(("clients", "products"), [(1, 0), (200, 0), (10**9, 0), (2, 1024)])
def test_the_level_of_answers_brings_every_noise_down_to_what_the_flood_drowns(clients: int, products: int) -> None:
    """v q'/q + n + 1 and a fresh zero's noise are at most the V that F was made for: F >= V n A 2^40.

    With the real q and q'. Primes are whole, so that q' has more bits than a number under its flood needs, and it is
    q' that noise is carried down to.
    """
    parameters = bfv_for_store(clients, products)
    n, ring = parameters.degree, ring_of(parameters)
    fresh = fresh_noise(n)
    noise = product_noise(n, MOST_FACTOR * (2 * clients * fresh + 1))
    noise = max(noise, products * product_noise(n, fresh))
    dropped = prod(ring.primes[parameters.answer_primes : -1])
    assert flood_of(parameters, noise / dropped + n + 1 + fresh)


@pytest.mark.parametrize("factor", [1, 2**20, MOST_FACTOR])
def test_the_measured_noise_of_an_answer_is_drowned_whatever_the_factor(store: Keyed, factor: int) -> None:
    """What one noise is before the flood decides what the flood must be: it is 2^60 times larger, or it tells on it."""
    total = store.added(store.encryptor.encrypted(full(store)), CLIENTS)
    square, lower = store.computation.squares(total, full(store), factor), store.ring.api.Ciphertext()
    store.ring.evaluator.mod_switch_to(square, store.ring.answer_level, lower)
    n = store.ring.parameters.degree
    assert store.noise(lower) <= log2(fresh_noise(n) + n + 1)
    assert flood_of(store.ring.parameters, 2.0 ** store.noise(lower))


def test_an_opening_of_a_store_has_the_noise_that_was_derived(store: Keyed) -> None:
    n, ring = store.ring.parameters.degree, store.ring
    counts, plane = (store.added(store.encryptor.encrypted(full(store)), CLIENTS) for _ in range(2))
    noisy = ring.api.Ciphertext()
    ring.evaluator.multiply_plain(counts, ring.constant(MOST_FACTOR), noisy)
    ring.evaluator.add_inplace(noisy, plane)
    assert store.noise(noisy) <= log2(MOST_FACTOR * (2 * CLIENTS * fresh_noise(n) + 1))
    assert np.array_equal(store.reads(store.flooded(noisy)), store.reads(noisy))


@pytest.fixture(params=[0x00, 0xFF], ids=["least", "largest"])
def extreme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Every coefficient of the flood is -F, or F - 1."""
    monkeypatch.setattr("fedsyn.crypto.fhe.seal.os.urandom", lambda size: bytes([request.param]) * size)
    return request.param


@pytest.mark.parametrize("name", ["store", "store of a thousand million"])
def test_the_worst_flood_leaves_the_message(name: str, extreme: int) -> None:
    keyed = Keyed.of(SETS[name])
    values = np.random.default_rng(1).integers(-LARGEST, LARGEST, keyed.ring.parameters.slots)
    answer = keyed.flooded(keyed.encryptor.encrypted(values))
    assert keyed.secret.room(answer) >= 1
    assert keyed.reads(answer).tolist() == (values % keyed.ring.modulus).tolist()
    assert keyed.noise(answer) >= keyed.ring.parameters.flood_bits - 0.01
