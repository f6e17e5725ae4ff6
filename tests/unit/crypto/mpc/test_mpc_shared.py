"""Sharing without messages: dealing, linear operations, bit planes, and putting together."""

from __future__ import annotations

import numpy as np
import pytest

from fedsyn.crypto.mpc.dealing import KeyStream, ServerShare, deal, digest, received, reconstruct
from fedsyn.crypto.mpc.shared import Shared, concatenate, packed, segment_sums, to_planes, unpacked, words
from fedsyn.errors import ProtocolError

RNG = np.random.default_rng(3)


def parts_of(values: np.ndarray, random: bytes | None = None) -> list[Shared]:
    """Each party's part of a dealt vector."""
    dealt = deal(values, random or RNG.bytes(64))
    return [received(i, dealt.seeds_of(i), dealt.correction if i else None, len(values)) for i in range(3)]


def whole(parts: list[Shared]) -> np.ndarray:
    """The value behind three parts, whose copies agree."""
    for i in range(3):
        assert np.array_equal(parts[i].next, parts[(i + 1) % 3].own)
    return (parts[0].own + parts[1].own + parts[2].own).view(np.int64)


EDGES = np.array([0, 1, -1, 2**63 - 1, -(2**63), 12345, -9876543210], np.int64)


def test_dealt_parts_agree_and_sum_to_the_vector() -> None:
    assert np.array_equal(whole(parts_of(EDGES)), EDGES)
    assert np.array_equal(whole(parts_of(np.zeros(0, np.int64))), [])


def test_linear_operations_are_those_of_numpy() -> None:
    x, y = EDGES, RNG.integers(-(2**62), 2**62, len(EDGES))
    xs, ys = parts_of(x), parts_of(y)
    public = np.array([3, -1, 0, 2**40, 5, -7, 2**62])
    both = list(zip(xs, ys, strict=True))
    with np.errstate(over="ignore"):
        assert np.array_equal(whole([a + b for a, b in both]), x + y)
        assert np.array_equal(whole([a - b for a, b in both]), x - y)
        assert np.array_equal(whole([a * public for a in xs]), x * public)
        assert np.array_equal(whole([a + public for a in xs]), x + public)
        assert np.array_equal(whole([a - 5 for a in xs]), x - 5)
        assert np.array_equal(whole([a.sum(0) for a in xs]), [x.sum()])
    assert np.array_equal(whole([a[2:5] for a in xs]), x[2:5])
    assert np.array_equal(whole([a[3] for a in xs]), x[3:4])
    assert np.array_equal(whole([concatenate([a, b]) for a, b in both]), np.concatenate([x, y]))
    bits = [a.own ^ b.own for a, b in both]
    assert np.array_equal((xs[0] ^ ys[0]).own, bits[0])
    flipped = [a ^ 6 for a in xs]
    assert np.array_equal(
        flipped[0].own ^ flipped[1].own ^ flipped[2].own, xs[0].own ^ xs[1].own ^ xs[2].own ^ words(6)
    )


def test_only_public_integers_enter() -> None:
    with pytest.raises(TypeError, match="integers"):
        parts_of(EDGES)[0] * 0.5


def test_segments_may_be_empty() -> None:
    x, starts = np.arange(1, 11), np.array([0, 0, 3, 3, 10, 10])
    assert np.array_equal(whole([a.segment_sums(starts) for a in parts_of(x)]), [0, 6, 0, 49, 0, 0])
    assert np.array_equal(segment_sums(words(x[:0]), np.array([0, 0])), [0, 0])
    for wrong in ([1, 3], [0, 5, 3], [0, 11]):
        with pytest.raises(ValueError, match="segments"):
            segment_sums(words(x), np.array(wrong))


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 28, 63, 64])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 200])
def test_planes_hold_one_bit_of_each_value(bits: int, length: int) -> None:
    values = RNG.integers(0, 2**64, length, dtype=np.uint64)
    planes = to_planes(values, bits)
    assert planes.shape == (bits, -(-length // 64))
    for j in range(bits):
        column = values >> np.uint64(j) & np.uint64(1)
        assert np.array_equal(unpacked(planes[j], length), column)
        assert np.array_equal(packed(column), planes[j])  # also: zeros behind the last value


def test_one_slot_alone_is_a_sharing_of_itself() -> None:
    parts = parts_of(EDGES)
    for k in range(3):
        alone = [part.only(k) for part in parts]
        assert np.array_equal(whole(alone).view(np.uint64), parts[k].own)
        assert np.array_equal(alone[0].own ^ alone[1].own ^ alone[2].own, parts[k].own)
    assert np.array_equal(whole([p.only(0, 2) + p.only(1) for p in parts]), EDGES)


def test_a_stream_is_the_same_however_it_is_read() -> None:
    whole_stream = KeyStream(b"k" * 32).words(20_000)
    stream = KeyStream(b"k" * 32)
    assert np.array_equal(np.concatenate([stream.words(n) for n in (0, 1, 8191, 11_808)]), whole_stream)
    # RFC 8439, 2.3.2 with key, nonce and counter 0: the first block of appendix A.1, test vector 1.
    assert KeyStream(bytes(32)).words(1).tobytes().hex() == "76b8e0ada0f13d90"
    with pytest.raises(ValueError, match="2\\^38"):
        KeyStream(bytes(32)).words(2**36)
    with pytest.raises(ValueError, match="32 bytes"):
        KeyStream(bytes(31))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_client_that_sends_another_form_is_refused(index: int) -> None:
    dealt = deal(EDGES, bytes(range(64)))
    seeds, correction = dealt.seeds_of(index), dealt.correction if index else None
    other = None if index else dealt.correction
    n = len(EDGES)
    hostile = [
        (seeds[1:], correction),
        (seeds + seeds, correction),
        ([s[1:] for s in seeds], correction),
        (seeds, other),
    ]
    if correction is not None:
        hostile += [(seeds, correction[1:]), (seeds, correction.view(np.int64)), (seeds, correction.reshape(1, -1))]
    for wrong in hostile:
        with pytest.raises(ProtocolError, match=f"party {index} needs|a correction has {n} words"):
            received(index, *wrong, n)
    with pytest.raises(ValueError, match="64 random bytes"):
        deal(EDGES, bytes(63))


def test_a_server_puts_together_and_names_who_disagrees() -> None:
    parts = parts_of(EDGES)
    shares = [ServerShare(part.own, digest(part.next)) for part in parts]
    assert np.array_equal(reconstruct(shares), EDGES)
    for liar in range(3):
        before, after = (liar - 1) % 3, (liar + 1) % 3
        own = shares[liar].own.copy()
        own[4] ^= np.uint64(1)
        changed = {
            f"parties {before} and {liar} disagree": ServerShare(own, shares[liar].next_digest),
            f"parties {liar} and {after} disagree": ServerShare(shares[liar].own, bytes(32)),
            "equal length": ServerShare(own[1:], shares[liar].next_digest),
        }
        for message, share in changed.items():
            with pytest.raises(ProtocolError, match=message):
                reconstruct([share if i == liar else shares[i] for i in range(3)])
    with pytest.raises(ProtocolError, match="three parties"):
        reconstruct(shares[:2])
