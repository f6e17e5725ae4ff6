"""Where cells lie in the slots of ciphertexts, noise that is used once, and the noise that clients deal beforehand."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.crypto.fhe.slots import NoiseRanges, Piece, SlotLayout, planes_of
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, RunError
from fedsyn.privacy import DistributedNoise
from fedsyn.privacy.distributed import FINEST, MOST, ROUNDING, pool_share


@st.composite
def layouts(draw: st.DrawFn) -> SlotLayout:
    """One ciphertext with copies, or several."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    domain = Domain(tuple("abcde"[: len(shape)]), tuple(shape))
    every = [q for k in (1, 2, 3) for q in combinations(domain.attributes, k)]
    cliques = draw(st.lists(st.sampled_from(every), min_size=1, max_size=8, unique=True))
    return SlotLayout(cliques, domain, 2 ** draw(st.integers(0, 9)))


def cells_of(layout: SlotLayout) -> dict[Clique, np.ndarray]:
    """A number of its own for every cell, from 1."""
    sizes = [layout.domain.size(q) for q in layout.cliques]
    numbers = np.split(np.arange(1, sum(sizes) + 1), np.cumsum(sizes)[:-1])
    return dict(zip(layout.cliques, numbers, strict=True))


# Where cells lie -----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(layout=layouts())
def test_every_cell_has_one_slot_in_every_copy(layout: SlotLayout) -> None:
    cells = cells_of(layout)
    vector = layout.vector(cells)
    assert len(vector) == layout.copies * layout.length and ceil(len(vector) / layout.slots) == layout.ciphertexts
    assert layout.copies == 1 or len(vector) <= layout.slots
    first = vector[: layout.length]
    assert sorted(first[first > 0].tolist()) == [*range(1, sum(map(len, cells.values())) + 1)]
    assert np.array_equal(vector, np.tile(first, layout.copies))
    for clique, numbers in cells.items():
        start, stop = layout.range_of(clique)
        assert first[start:stop].tolist() == numbers.tolist() and 0 <= start < stop <= layout.length


@settings(max_examples=100, deadline=None)
@given(layout=layouts())
def test_as_many_copies_as_fit(layout: SlotLayout) -> None:
    assert layout.copies == max(1, layout.slots // layout.length)
    assert layout.length == sum(layout.domain.size(q) for q in layout.cliques)


@settings(max_examples=100, deadline=None)
@given(layout=layouts(), seed=st.integers(0, 1000))
def test_runs_join_neighbours_and_keep_the_order_of_cells(layout: SlotLayout, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(layout.cliques))[: seed % len(layout.cliques) + 1]
    asked = [layout.cliques[i] for i in order]
    expected = [slot for clique in asked for slot in range(*layout.range_of(clique))]
    found: dict[int, int] = {}
    runs = layout.runs(asked)
    for start, stop, first in runs:
        found |= {first + i: slot for i, slot in enumerate(range(start, stop))}
    assert [found[i] for i in range(len(expected))] == expected
    assert all(one[1] != other[0] for one, other in pairwise(runs))


def test_a_clique_that_is_not_stored_has_no_range_and_one_that_is_named_twice_has_one() -> None:
    layout = SlotLayout([("a",), ("a",), ("b",)], Domain(("a", "b"), (3, 4)), 16)
    assert layout.cliques == (("a",), ("b",)) and layout.length == 7
    with pytest.raises(KeyError):
        layout.range_of(("a", "b"))


# Noise that is used once ---------------------------------------------------------------------------------------------


def noise_slots(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.plane, slot) for piece in pieces for slot in range(piece.start, piece.stop)]


def check_pieces(layout: SlotLayout, vector: np.ndarray, asked: list[Clique], pieces: list[Piece]) -> None:
    """The pieces are exactly the asked cells, in their order, of some copies."""
    cells, found = cells_of(layout), np.zeros(sum(layout.domain.size(q) for q in asked), np.int64)
    for piece in pieces:
        assert 0 <= piece.start < piece.stop <= layout.slots and 0 <= piece.index < layout.ciphertexts
        stored = vector[piece.index * layout.slots + piece.start : piece.index * layout.slots + piece.stop]
        assert not found[piece.first : piece.first + len(stored)].any()
        found[piece.first : piece.first + len(stored)] = stored
    assert found.tolist() == np.concatenate([cells[clique] for clique in asked]).tolist()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), layout=layouts(), openings=st.integers(1, 12))
def test_planes_are_enough_for_every_order_and_no_slot_is_used_twice(
    data: st.DataObject, layout: SlotLayout, openings: int
) -> None:
    """Adversarial orders: always the same clique, two in turn, the largest, anything; the first opening anywhere."""
    first = list(layout.cliques[: data.draw(st.integers(1, len(layout.cliques)))])
    largest = max(layout.cliques, key=layout.domain.size)
    one, other = (data.draw(st.sampled_from(layout.cliques)) for _ in range(2))
    orders: dict[str, list[Clique]] = {
        "same": [one] * openings,
        "alternating": [(one, other)[i % 2] for i in range(openings)],
        "largest": [largest] * openings,
        "any": data.draw(st.lists(st.sampled_from(layout.cliques), min_size=openings, max_size=openings)),
    }
    asked = [[clique] for clique in orders[data.draw(st.sampled_from(sorted(orders)))]]
    asked[data.draw(st.integers(0, openings - 1))] = first
    ranges, vector, seen = NoiseRanges(layout, openings, first), layout.vector(cells_of(layout)), set()
    assert ranges.planes == planes_of(layout, openings, first)
    for cliques in asked:
        pieces = ranges.reserve(cliques)
        check_pieces(layout, vector, cliques, pieces)
        slots = noise_slots(pieces)
        assert len(set(slots)) == len(slots) and not seen & set(slots)
        assert all(0 <= plane < ranges.planes for plane, _ in slots)
        # A client draws noise for the copies alone, where there are some: no piece lies behind them.
        assert layout.ciphertexts > 1 or all(slot < layout.copies * layout.length for _, slot in slots)
        seen |= set(slots)
    assert ranges.used == len(seen)


@pytest.mark.parametrize("slots", [8, 16, 64])
def test_what_is_used_up_is_refused(slots: int) -> None:
    """Twelve cells, in two ciphertexts or in one with as many copies as fit."""
    layout = SlotLayout([("a",), ("a", "b")], Domain(("a", "b"), (3, 3)), slots)
    ranges, count = NoiseRanges(layout, 3, [("a",)]), 0
    with pytest.raises(RunError, match="used up"):
        for _ in range(1000):
            ranges.reserve([("a", "b")])
            count += 1
    assert 3 <= count <= ranges.planes * layout.copies
    used = ranges.used
    with pytest.raises(RunError, match="used up"):
        ranges.reserve([("a", "b")])
    assert layout.ciphertexts > 1 or ranges.used == used == 9 * count


def test_fewer_planes_would_not_do_with_copies() -> None:
    layout = SlotLayout([("a",), ("b",)], Domain(("a", "b"), (3, 4)), 16)
    assert (layout.copies, planes_of(layout, 4, [("a",)]), planes_of(layout, 5, [("a",)])) == (2, 2, 3)
    ranges = NoiseRanges(layout, 4, [("a",)])
    for _ in range(4):
        ranges.reserve([("b",)])
    with pytest.raises(RunError):
        ranges.reserve([("b",)])
    ranges.reserve([("a",)])  # whose slots nothing was opened with


# The paper's counter -------------------------------------------------------------------------------------------------


def printed_counter(noise: np.ndarray, counts: dict[Clique, np.ndarray], chosen: list[Clique]) -> list[np.ndarray]:
    """FHAIM's Protocol 3: line 6 adds one number of the noise vector to each cell, line 7 advances by |w|."""
    counter, opened = 0, []
    for clique in chosen:
        opened.append(counts[clique] + noise[counter : counter + len(counts[clique])])
        counter += len(clique)
    return opened


def test_the_papers_counter_shows_exact_counts_and_ours_cannot() -> None:
    """Advancing by the number of attributes, two openings of one marginal differ by known shifts of the same noise.

    With counts c and noise v, the openings are c_i + v_i and c_i + v_(i+2): sums along i and i+2 telescope, so each
    difference of the second opening's cell i and the first one's cell i+2 is c_i - c_(i+2), without any noise.
    """
    rng, clique = np.random.default_rng(0), ("a", "b")
    layout = SlotLayout([clique, ("a",)], Domain(("a", "b"), (3, 4)), 64)
    counts = {clique: rng.integers(0, 50, 12), ("a",): rng.integers(0, 50, 3)}
    noise = np.rint(rng.normal(0.0, 1000.0, 100)).astype(np.int64)
    one, other = printed_counter(noise, counts, [clique, clique])
    exact = counts[clique]
    assert np.array_equal(other[:-2] - one[2:], exact[:-2] - exact[2:])
    # Ours, with the same noise in every plane's slots: no number of it is in two openings.
    ranges, vector = NoiseRanges(layout, 2, [clique]), layout.vector(counts)
    planes = rng.permutation(ranges.planes * layout.slots).reshape(ranges.planes, layout.slots)  # names of numbers
    used = []
    for _ in range(2):
        (piece,) = ranges.reserve([clique])
        assert np.array_equal(vector[piece.start : piece.stop], exact)
        used.append(set(planes[piece.plane, piece.start : piece.stop].tolist()))
    assert not used[0] & used[1] and len(used[0]) == len(used[1]) == 12


# Noise that was dealt before its size was known ----------------------------------------------------------------------

facts = {"count": 1, "length": 100}


@settings(max_examples=60, deadline=None)
@given(
    exponent=st.floats(-9.0, 6.5),
    honest=st.integers(1, 10_000),
    corrupted=st.integers(0, 500),
    most=st.integers(8, 40).map(lambda bits: 2**bits - bits % 3),
)
def test_a_pools_resolution_is_the_largest_that_its_noise_stands_for(
    exponent: float, honest: int, corrupted: int, most: int
) -> None:
    """H s² >= (γσ)² + r², in rational numbers; γ + 2 would break it, unless the integers have no more room."""
    sigma, fewest = 10.0**exponent, honest + corrupted
    try:
        noise = DistributedNoise.of_pool(
            sigma, asked=fewest + 1, fewest=fewest, corrupted=corrupted, most=most, **facts
        )
    except ConfigError:
        least = min(most, float(Fraction(2**30) / Fraction(sigma)))
        assert least < 1.001 or least * sigma < FINEST * 1.001  # where nothing could be planned
        return
    gamma, share = noise.resolution, Fraction(noise.share)
    budget = honest * share**2 - Fraction(ROUNDING) ** 2
    assert (gamma * Fraction(sigma)) ** 2 <= budget
    assert gamma == most or ((gamma + 2) * Fraction(sigma)) ** 2 > budget
    assert isinstance(gamma, int) and 1 <= gamma <= most and gamma * sigma >= FINEST
    assert noise.share == pool_share(honest) and noise.honest == honest and noise.sensitivity == 1.0
    assert noise.sigma_of(fewest) >= sigma and 0.0 < noise.extra_rho < 1e-12


def test_a_pool_is_charged_what_shares_of_that_size_are() -> None:
    """The same excess as of a plan whose sigma gives the pool's share: the proof asks for no more."""
    pool = DistributedNoise.of_pool(100.0, asked=9, fewest=8, corrupted=2, most=MOST, **facts)
    other = DistributedNoise.of(2.0**30, sensitivity=1.0, asked=9, fewest=8, corrupted=2, **facts)
    assert other.share == pytest.approx(pool.share, rel=1e-9)
    assert pool.extra_rho == other.extra_rho
    long = DistributedNoise.of_pool(100.0, asked=9, fewest=8, corrupted=2, most=MOST, count=1, length=1000)
    assert long.extra_rho == pytest.approx(10 * pool.extra_rho, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 2.0**31}, "cannot be made from what the clients dealt"),
        ({"sigma": 2.0**30}, "cannot be made"),  # r² is left out of it
        ({"sigma": 1.0, "most": 127}, "cannot be made"),
        # States what should hold: it is an error of division, with rows of 2^57 and more that clients have published.
        ({"most": 0}, "cannot be made"),
        ({"corrupted": 5}, "no honest share"),
        ({"corrupted": 7}, "no honest share"),
    ],
)
def test_a_pool_that_cannot_stand_for_the_noise_is_refused(change: dict[str, float], message: str) -> None:
    given = {"sigma": 10.0, "asked": 6, "fewest": 5, "corrupted": 1, "most": MOST, **facts} | change
    with pytest.raises(ConfigError, match=message):
        DistributedNoise.of_pool(given.pop("sigma"), **given)


def test_a_share_of_the_pool() -> None:
    for honest in (1, 2, 3, 100, 12_345):
        assert honest * Fraction(pool_share(honest)) ** 2 == pytest.approx(2.0**60, rel=1e-14)
    for honest in (0, -3):
        with pytest.raises(ConfigError, match="no honest share"):
            pool_share(honest)


def test_cells_of_an_example() -> None:
    domain = Domain(("a", "b", "c"), (3, 5, 2))
    layout = SlotLayout([("a",), ("b",), ("a", "b"), ("c",)], domain, 64)
    assert [layout.range_of(q) for q in layout.cliques] == [(0, 3), (3, 8), (8, 23), (23, 25)]
    assert (layout.length, layout.copies, layout.ciphertexts) == (25, 2, 1)
    assert prod(domain.shape_of(("a", "b"))) == 15
