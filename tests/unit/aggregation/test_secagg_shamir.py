"""Secret sharing and the primitives beneath the secure sum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.aggregation.secagg import shamir, wire
from fedsyn.crypto import primitives
from fedsyn.crypto.primitives import Identity
from fedsyn.errors import ConfigError, ProtocolError

secrets = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


@st.composite
def sharings(draw):
    points = draw(st.lists(st.integers(1, 10_000), min_size=1, max_size=40, unique=True))
    threshold = draw(st.integers(1, len(points)))
    chosen = draw(st.permutations(range(len(points))))[:threshold]
    return draw(secrets), threshold, points, chosen


@settings(max_examples=60, deadline=None)
@given(sharings())
def test_any_t_shares_give_the_secret(case) -> None:
    secret, threshold, points, chosen = case
    shares = shamir.split(secret, threshold, points)
    assert all(len(share) == shamir.SHARE for share in shares)
    assert shamir.join(tuple(points[i] for i in chosen), [shares[i] for i in chosen]) == secret


@settings(max_examples=40, deadline=None)
@given(sharings(), st.integers(0, shamir.PRIME - 1))
def test_fewer_than_t_shares_fit_every_secret(case, other: int) -> None:
    """t - 1 shares and ANY value at 0 lie on a polynomial: whatever the next share were, it would be consistent."""
    secret, threshold, points, chosen = case
    if threshold == 1 or len(points) == 40:
        return
    shares = shamir.split(secret, threshold, points)
    known = [points[i] for i in chosen[:-1]]
    values = [int.from_bytes(shares[i], "little") for i in chosen[:-1]]
    target = points[chosen[-1]]
    # The polynomial through (0, other) and the known shares, at the missing holder's point.
    nodes, heights = [0, *known], [other, *values]
    value = 0
    for j, node in enumerate(nodes):
        weight = heights[j]
        for m, another in enumerate(nodes):
            if m != j:
                weight = weight * (target - another) * pow(node - another, -1, shamir.PRIME) % shamir.PRIME
        value += weight
    share = (value % shamir.PRIME).to_bytes(shamir.SHARE, "little")
    opened = shamir.join((*known, target), [*(shares[i] for i in chosen[:-1]), share])
    assert opened == (other.to_bytes(33, "little")[:32] if other < 2**256 else None)


def test_shares_of_one_secret_are_fresh_and_uniform() -> None:
    """A share of a fixed secret is uniform: chi-square over the 16 values of its top nibble, 4,000 sharings.

    False alarm once in 10^6 runs: 56.5 is that quantile of chi-square with 15 degrees of freedom.
    """
    nibbles = np.zeros(16)
    for _ in range(4000):
        nibbles[shamir.split(bytes(32), 2, [1])[0][31] >> 4] += 1
    assert ((nibbles - 250) ** 2 / 250).sum() < 56.5
    first, second = shamir.split(b"s" * 32, 3, [1, 2]), shamir.split(b"s" * 32, 3, [1, 2])
    assert not set(first) & set(second)


def test_prime_is_prime_and_wrong_shares_are_noticed() -> None:
    assert all(pow(base, shamir.PRIME - 1, shamir.PRIME) == 1 for base in range(2, 60))
    shares = shamir.split(b"s" * 32, 3, [1, 2, 3])
    assert shamir.join((1, 2, 3), [shares[1], shares[0], shares[2]]) != b"s" * 32
    assert shamir.join((1,), [(2**256).to_bytes(33, "little")]) is None
    for points in itertools.combinations(range(1, 7), 3):
        weights = shamir.coefficients_at_zero(points)
        assert sum(weights) % shamir.PRIME == 1  # a constant polynomial
        assert sum(w * p for w, p in zip(weights, points, strict=True)) % shamir.PRIME == 0  # p(x) = x


@pytest.mark.parametrize("count", range(2, 90))
def test_whichever_single_share_is_wrong_a_window_avoids_it(count: int) -> None:
    for size in range(1, count):
        tried = [set(np.arange(start, start + size) % count) for start in shamir.windows(count, size)]
        assert all(any(share not in window for window in tried) for share in range(count))
        assert len(tried) == (count if count <= 64 else -(-count // (count - size)))
    assert shamir.windows(count, count) == [0] and shamir.windows(count, count + 1) == []


# ---- primitives ------------------------------------------------------------------------------------------------------


def test_masks_are_the_chacha20_stream_and_cancel() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    rng = np.random.default_rng(0)
    for length in (1, 2, 8191, 8192, 8193, 20_001):
        key = rng.bytes(32)
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * length))
        vector = np.zeros(length, np.uint64)
        primitives.apply_masks(vector, [key], [])
        np.testing.assert_array_equal(vector, np.frombuffer(stream, "<u8"))
        others = [rng.bytes(32) for _ in range(3)]
        primitives.apply_masks(vector, others, [others[1], key, others[2], others[0]])
        assert not vector.any()


def test_first_words_of_the_zero_key_are_those_of_rfc_8439() -> None:
    """RFC 8439, appendix A.1, test vector 1: the key stream of the zero key begins 76 b8 e0 ad a0 f1 3d 90."""
    assert primitives.key_stream(bytes(32), 8).hex() == "76b8e0ada0f13d90"


def test_derived_keys_differ_by_every_ingredient() -> None:
    base = {"secret": b"s" * 32, "digest": b"d" * 32, "purpose": b"p", "ids": (1, 2), "publics": (b"a" * 32, b"b" * 32)}
    changes = [{}, {"secret": b"t" * 32}, {"digest": b"e" * 32}, {"purpose": b"q"}, {"ids": (2, 1)}, {"ids": (1,)}]
    changes += [{"publics": (b"b" * 32, b"a" * 32)}, {"publics": ()}]
    assert len({primitives.derive(**{**base, **change}) for change in changes}) == len(changes)


def test_sealed_messages_open_for_their_purpose_only() -> None:
    sealed = primitives.seal(b"k" * 32, b"message", b"bound")
    assert primitives.unseal(b"k" * 32, sealed, b"bound") == b"message"
    assert primitives.unseal(b"K" * 32, sealed, b"bound") is None
    assert primitives.unseal(b"k" * 32, sealed, b"other") is None
    assert primitives.unseal(b"k" * 32, bytes([sealed[0] ^ 1]) + sealed[1:], b"bound") is None


def test_key_agreement_is_symmetric_and_refuses_low_order_keys() -> None:
    a, b = primitives.KeyPair(), primitives.KeyPair()
    assert a.agree(b.public) == b.agree(a.public)
    assert primitives.KeyPair(a.secret).public == a.public
    assert primitives.KeyPair(a.secret, a.public).agree(b.public) == b.agree(a.public)
    for value in primitives._LOW_ORDER:
        raw = value.to_bytes(32, "little")
        assert not primitives.usable_public_key(raw)
        with pytest.raises(ProtocolError, match="low order"):
            a.agree(raw)
    for _ in range(50):
        assert primitives.usable_public_key(primitives.KeyPair().public)


def test_identities() -> None:
    identity = Identity.generate()
    again = Identity(identity.to_bytes())
    assert again.public == identity.public and len(identity.public) == 32
    assert identity.public != Identity.generate().public
    assert Identity.derived(b"a").public == Identity.derived(b"a").public != Identity.derived(b"b").public
    assert primitives.signed_by(identity.public, again.sign(b"m"), b"m")
    assert not primitives.signed_by(identity.public, again.sign(b"m"), b"n")
    assert not primitives.signed_by(b"short", again.sign(b"m"), b"m")
    assert not primitives.signed_by(identity.public, b"", b"m")
    with pytest.raises(ConfigError, match="32 bytes"):
        Identity(b"short")


def test_bitmaps() -> None:
    for size in (1, 7, 8, 9, 100):
        flags = np.random.default_rng(size).random(size) < 0.5
        np.testing.assert_array_equal(wire.read_flags(wire.write_flags(flags), size), flags)
    for bad in (np.array([1], np.uint8), np.zeros(2, np.uint8), np.zeros(1, bool), [0], None):
        with pytest.raises(ProtocolError):
            wire.read_flags(bad, 5)
