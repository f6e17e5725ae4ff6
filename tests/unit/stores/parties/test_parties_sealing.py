"""A sealed deal opens for its run, client and party alone; one that fits nobody costs its client only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsyn.crypto.mpc.dealing import Dealt, deal, received
from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.crypto.primitives import KeyPair
from fedsyn.errors import ProtocolError
from fedsyn.stores.parties import sealing
from fedsyn.stores.parties.interface import SealedDeal
from fedsyn.stores.parties.sealing import DealFacts, DealPart, Fault, RefusedDeal, open_deal, seal_deal
from support.parties_bench import CLIENTS, CODES, RHO, Bench, mpc_config

RUN, OTHER = bytes(range(32)), bytes(range(1, 33))
PAIRS = [KeyPair() for _ in range(PARTIES)]
KEYS = [pair.public for pair in PAIRS]
VECTOR = np.array([0, 1, -1, 2**62, -(2**63), 17, 5], np.int64)
L = len(VECTOR)


def sealed(**changes: Any) -> SealedDeal:
    facts = {"vector": VECTOR, "run": RUN, "keys": KEYS, "partition": 3, "rho": 0.25, "rows": 7} | changes
    return seal_deal(facts.pop("vector"), facts.pop("run"), facts.pop("keys"), facts.pop("partition"), **facts)


def opened(one: SealedDeal, index: int, **changes: Any) -> Any:
    facts = {"run": RUN, "index": index, "pair": PAIRS[index], "partition": 3, "length": L} | changes
    return open_deal(DealPart.of(one, index), **facts)


def fault(one: SealedDeal, index: int, **changes: Any) -> Fault:
    with pytest.raises(RefusedDeal) as caught:
        opened(one, index, **changes)
    return caught.value.fault


# One deal ------------------------------------------------------------------------------------------------------------


def test_the_parties_get_the_vector_and_each_of_them_two_slots() -> None:
    deal = sealed()
    found = [opened(deal, index) for index in range(PARTIES)]
    shared = [part.shared(index, L) for index, part in enumerate(found)]
    assert all(np.array_equal(shared[i].next, shared[(i + 1) % 3].own) for i in range(3))
    assert np.array_equal((shared[0].own + shared[1].own + shared[2].own).view(np.int64), VECTOR)
    assert all(part.facts == DealFacts(0.25, 7) for part in found)
    assert all(found[i].marks[1] == found[(i + 1) % 3].marks[0] for i in range(3))
    assert len({mark for part in found for mark in part.marks}) == 3


def test_two_deals_of_one_vector_have_nothing_in_common() -> None:
    one, two = sealed(), sealed()
    assert not set(one.to_parts()) & set(two.to_parts())
    assert one.correction[:64] != two.correction[:64]


def test_the_correction_travels_once_and_the_boxes_are_small() -> None:
    deal = sealed(vector=np.zeros(10_000, np.int64))
    assert len(deal.correction) == 80_000 + 16
    assert max(map(len, deal.boxes)) < 150 and DealPart.of(deal, 0).correction == b""


@pytest.mark.parametrize("index", range(PARTIES))
@pytest.mark.parametrize("change", [{"run": OTHER}, {"partition": 4}, {"pair": KeyPair()}])
def test_a_deal_for_another_run_client_or_party_does_not_open(index: int, change: dict[str, Any]) -> None:
    assert fault(sealed(), index, **change) == Fault.BOX


@pytest.mark.parametrize("index", range(PARTIES))
def test_a_box_opens_in_no_other_place(index: int) -> None:
    """Not even if one party had two places: the place is authenticated as well as the key."""
    deal = sealed()
    other = (index + 1) % PARTIES
    moved = replace(deal, boxes=(deal.boxes[other],) * 3)
    assert fault(moved, index) == Fault.BOX
    assert fault(moved, index, pair=PAIRS[other]) == Fault.BOX


@pytest.mark.parametrize("index", range(PARTIES))
def test_any_changed_byte_of_a_box_is_noticed(index: int) -> None:
    deal = sealed()
    for at in range(len(deal.boxes[index])):
        box = bytearray(deal.boxes[index])
        box[at] ^= 1
        assert fault(replace(deal, boxes=(bytes(box),) * 3), index) in (Fault.BOX, Fault.MALFORMED)


@pytest.mark.parametrize("facts", [{"rho": 0.5}, {"rho": 0.2}, {"rows": 8}])
def test_a_server_cannot_change_what_a_client_promised(facts: dict[str, Any]) -> None:
    deal = sealed()
    told = DealFacts(**({"rho": 0.25, "rows": 7} | facts)).to_bytes()
    boxes = tuple(told + box[len(told) :] for box in deal.boxes)
    assert [fault(replace(deal, boxes=boxes), index) for index in range(3)] == [Fault.BOX] * 3


@pytest.mark.parametrize("index", range(PARTIES))
@pytest.mark.parametrize("length", [0, 15, 16, 47, 60, 2000])
def test_truncated_and_long_boxes(index: int, length: int) -> None:
    deal = sealed()
    box = (deal.boxes[index] * 20)[:length]
    assert fault(replace(deal, boxes=(box,) * 3), index) in (Fault.BOX, Fault.MALFORMED)


@pytest.mark.parametrize("public", [b"", bytes(32), bytes(31), b"\1" + bytes(31)])
def test_a_key_that_is_none_is_malformed(public: bytes) -> None:
    assert fault(replace(sealed(), public=public), 0) == Fault.MALFORMED


@pytest.mark.parametrize("index", [1, 2])
def test_the_correction_belongs_to_its_deal(index: int) -> None:
    deal, other = sealed(), sealed()
    flipped = bytes([deal.correction[0] ^ 1]) + deal.correction[1:]
    for correction in (b"", deal.correction[:-1], deal.correction + b"\0", other.correction, flipped):
        assert fault(replace(deal, correction=correction), index) == Fault.CORRECTION
    assert fault(deal, index, length=L + 1) == Fault.CORRECTION
    opened(replace(deal, correction=b""), 0)  # party 0 has none


def test_one_key_and_two_corrections_are_found() -> None:
    """A client and a server together: two dense parts under one key, one for each party; the box names the digest."""
    pair = KeyPair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "KeyPair", lambda: pair)
        patch.setattr(sealing.os, "urandom", lambda length: b"k" * length)
        one, two = sealed(), sealed(vector=VECTOR + 1)
    assert one.correction != two.correction
    opened(one, 1)
    assert fault(replace(one, correction=two.correction), 2) == Fault.CORRECTION


@pytest.mark.parametrize("rho", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_malformed(rho: float) -> None:
    assert fault(sealed(rho=rho), 0) == Fault.MALFORMED


@pytest.mark.parametrize("rows", [-1, 2**40])
def test_row_counts_that_are_none_are_malformed(rows: int) -> None:
    assert fault(sealed(rows=rows), 0) == Fault.MALFORMED


@pytest.mark.parametrize("keys", [KEYS[:2], [KEYS[0], KEYS[0], KEYS[1]], [bytes(32), *KEYS[1:]], [b"", *KEYS[1:]]])
def test_a_client_seals_to_three_different_usable_keys(keys: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="three parties with three different, usable keys"):
        sealed(keys=keys)


def test_one_partys_part_looks_random() -> None:
    """Two slots of a zero vector: no word in common, and both other slots of it are needed for the third."""
    deal = sealed(vector=np.zeros(1000, np.int64))
    for index in range(PARTIES):
        part = opened(deal, index, length=1000)
        mine = received(index, part.seeds, part.correction, 1000)
        assert not (mine.own == 0).any() and not (mine.own + mine.next == 0).any()


# Many deals, three parties -------------------------------------------------------------------------------------------

SEAL = "its deal was not sealed for this run, this client and this party, or it is damaged"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda bench: bench.sealed(0, run=OTHER), f"party 0: {SEAL}"),
        (lambda bench: bench.sealed(1), f"party 0: {SEAL}"),
        (lambda bench: bench.sealed(0, keys=KEYS), f"party 0: {SEAL}"),
        (lambda bench: bench.sealed(0, vector=np.zeros(3, np.int64)), "party 1: the dense part of its deal"),
        (lambda bench: bench.sealed(0, rho=-1.0), "party 0: its deal is malformed"),
        (lambda bench: mixed(bench, box=0, rho=2 * RHO), "told the parties different budgets or row counts"),
        (lambda bench: mixed(bench, box=0, rho=RHO), "dealt shares to the parties that do not fit together"),
        (lambda bench: mixed(bench, box=1, rho=RHO), "party 1: the dense part of its deal"),
        (lambda bench: mixed(bench, box=2, rho=2 * RHO), "party 2: the dense part of its deal"),
    ],
)
def test_an_inconsistent_client_is_refused_and_the_others_go_on(change: Callable[[Bench], Any], said: str) -> None:
    bench = Bench()
    bad = change(bench)
    bench.codes |= {k: CODES[k::CLIENTS] for k in (1, 3)}
    refused = bench.parties.deal({0: bad, 1: bench.sealed(1), 3: bench.sealed(3)})
    assert refused.keys() == {0} and said in refused[0]
    order = bench.opening()
    assert np.array_equal(bench.parties.open(order), bench.expected_opening(order))
    assert bench.parties.deal({0: bench.sealed(0)}) == {}, "nothing of the refused deal stayed"


def mixed(bench: Bench, box: int, rho: float) -> SealedDeal:
    """A client that seals one thing for one party, and another for the other two, under one key of its own."""
    pair = KeyPair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "KeyPair", lambda: pair)
        one, two = bench.sealed(0), bench.sealed(0, rho=rho)
    first, second, third = (two.boxes[i] if i == box else one.boxes[i] for i in range(PARTIES))
    return SealedDeal(pair.public, (first, second, third), one.correction)


class TwoFaced(Dealt):
    """Tells party 1 another seed of slot 1 than party 0: all boxes are in order, only marks can tell."""

    def seeds_of(self, index: int) -> tuple[bytes, ...]:
        return (bytes(32),) if index == 1 else super().seeds_of(index)


def test_a_seed_that_differs_between_its_holders_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "deal", lambda *given: TwoFaced(*vars(deal(*given)).values()))
        bad = bench.sealed(0)
    refused = bench.parties.deal({0: bad, 1: bench.sealed(1)})
    assert refused == {0: "party 0: it dealt shares to the parties that do not fit together"}


def test_a_client_deals_once() -> None:
    bench = Bench()
    bench.deal([0, 1])
    assert bench.parties.deal({0: bench.sealed(0), 2: bench.sealed(2)}) == {
        0: "party 0: it has dealt in this run already"
    }


def test_a_deal_of_an_earlier_run_is_worth_nothing() -> None:
    bench = Bench()
    old = bench.sealed(0)
    bench.parties.end()
    bench.run = bench.parties.begin(bench.announcement)
    assert bench.parties.deal({0: old}) == {0: f"party 0: {SEAL}"}


def test_equal_announcements_are_two_runs() -> None:
    one, two = Bench(), Bench()
    assert one.announcement == two.announcement and one.run != two.run


def test_private_runs_keep_no_row_counts() -> None:
    bench = Bench(mpc_config(privacy={"client_sizes": "private"}))
    bench.deal([0, 1])
    assert bench.parties.halves[0]._begun.public_rows is None
    public = Bench()
    public.deal([0, 1])
    assert public.parties.halves[2]._begun.public_rows == len(CODES[0::CLIENTS]) + len(CODES[1::CLIENTS])
