"""What reaches the server of a secure sum looks like noise: masked vectors of all-zero contributions are uniform."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

from support.committee_parties import Parties, setup_of

# Each p-value below is wrong under a true null once in 10^6; about 20 are computed: a false alarm in 50,000 runs.
ALARM = 1e-6


def byte_p_value(data: bytes) -> float:
    """Chi-square test that the bytes are uniform on 0..255."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return float(scipy.stats.chisquare(counts).pvalue)


def worst_bit_p_value(words: np.ndarray) -> float:
    """Two-sided test of each of the 64 bit positions for fairness; the smallest p-value times 64."""
    bits = np.unpackbits(words.view(np.uint8).reshape(len(words), 8), axis=1).sum(axis=0)
    tails = 2 * scipy.stats.norm.sf(np.abs(2.0 * bits - len(words)) / np.sqrt(len(words)))
    return float(min(1.0, 64 * tails.min()))


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_masked_vectors_of_zeros_are_uniform(threat: str) -> None:
    """20 clients, 5,000 entries each: 800,000 bytes. Also their pairwise sums: no mask is shared unseen."""
    parties = Parties(setup_of(20, threat=threat))
    parties.vector = lambda partition, length: np.zeros(length, np.uint64)  # type: ignore[method-assign]
    parties.establish()
    total, _ = parties.sum(parties.facts(length=5000), {"masked": [6]})
    masked = [reply[0] for stage, _, reply in parties.messages if stage == "masked"]
    assert len(masked) == 19
    everything = np.concatenate(masked)
    assert byte_p_value(everything.tobytes()) > ALARM
    assert worst_bit_p_value(everything) > ALARM
    differences = np.concatenate([a - b for a, b in itertools.pairwise(masked)])
    sums = np.concatenate([a + b for a, b in itertools.pairwise(masked)])
    assert byte_p_value(differences.tobytes()) > ALARM
    assert byte_p_value(sums.tobytes()) > ALARM
    assert len(np.unique(everything)) == len(everything)  # a repeat among 95,000 words: once in 4 * 10^9
    assert byte_p_value(sum(masked[:18], np.zeros(5000, np.uint64)).tobytes()) > ALARM  # all but one
    assert not total.any()


def test_sealed_shares_are_uniform() -> None:
    """One setup of 40 clients, ten members: 16 epochs times 90 shares of 49 bytes."""
    parties = Parties(setup_of(40))
    parties.establish()
    sealed = b"".join(reply[1].tobytes() for stage, _, reply in parties.messages if stage == "deal")
    assert byte_p_value(sealed) > ALARM


def test_the_tests_of_uniformity_see_small_faults() -> None:
    """20 x 5,000 words with one bit that is set in 51% of them, or masks of only 60 bits: alarm."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    assert byte_p_value(words.tobytes()) > ALARM
    assert worst_bit_p_value(words) > ALARM
    biased = words | (rng.random(100_000) < 0.03).astype(np.uint64)
    assert worst_bit_p_value(biased) < ALARM
    assert byte_p_value((words >> np.uint64(4)).tobytes()) < ALARM
