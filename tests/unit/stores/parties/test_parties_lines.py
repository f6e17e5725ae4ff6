"""What a service keeps of what others send it: bounded, in order, and gone when a run is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, get_type_hints

import numpy as np
import pytest

from fedsyn.crypto.mpc.dealing import ServerShare
from fedsyn.crypto.mpc.network import PartyGone
from fedsyn.errors import ProtocolError
from fedsyn.stores.parties import messages
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, OpenOrder, TotalOrder
from fedsyn.stores.parties.lines import FRAME, LOST, Inbox, Inboxes, cut, joined
from fedsyn.stores.parties.sealing import DealPart
from support.parties_bench import Bench, announced, mpc_config

WHO = "party 'b' (h:1)"
DEALS = dict[int, DealPart]


def never() -> None:
    raise AssertionError("nobody hangs up here")


# Frames --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME])
def test_messages_of_any_length_are_cut_and_joined(length: int) -> None:
    message = np.random.default_rng(0).bytes(length)
    frames = list(cut(message))
    assert len(frames) == max(1, -(-length // FRAME)) and max(map(len, frames)) <= FRAME + 1
    assert joined(iter(frames), FRAME * 4) == message
    assert list(cut(memoryview(message))) == frames
    inboxes = Inboxes(1 << 24)
    inbox = inboxes.adopt("t", WHO)
    inboxes.fill(iter(frames), "t", WHO, never)
    assert inbox.get(1.0) == message


def test_a_request_beyond_the_limit_is_not_read_to_its_end() -> None:
    read = []

    def endless() -> Iterator[bytes]:
        while True:
            read.append(1)
            yield b"\0" + bytes(1000)

    with pytest.raises(ProtocolError, match="longer than this party's policy allows"):
        joined(endless(), 10_000)
    assert len(read) < 12


@pytest.mark.parametrize("frames", [[], [b""], [b"\0abc"], [b"\7"], [b"\2"]])
def test_malformed_requests(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="a message is malformed"):
        joined(iter(frames), 1000)


# Inboxes -------------------------------------------------------------------------------------------------------------


def test_messages_come_in_order_and_then_the_reason() -> None:
    inboxes = Inboxes(1000)
    inbox = inboxes.adopt("t", WHO)
    inboxes.fill(iter([b"\1one", b"\0t", b"\1wo", b"\2", b"\1never"]), "t", WHO, never)
    assert [inbox.get(1.0), inbox.get(1.0)] == [b"one", b"two"]
    for _ in range(2):
        with pytest.raises(PartyGone, match="has ended the run"):
            inbox.get(1.0)


def test_a_line_that_breaks_says_so() -> None:
    def breaks() -> Iterator[bytes]:
        yield b"\1one"
        raise ConnectionError("secret")

    inboxes = Inboxes(1000)
    inbox = inboxes.adopt("t", WHO)
    inboxes.fill(breaks(), "t", WHO, never)
    assert inbox.get(1.0) == b"one"
    with pytest.raises(PartyGone, match=rf"^party 'b' \(h:1\) {LOST}$"):
        inbox.get(1.0)


def test_who_waits_too_long_is_told_for_whom() -> None:
    with pytest.raises(PartyGone, match=rf"^party 'b' \(h:1\) {LOST}$"):
        Inbox(WHO, 10).get(0.01)


@pytest.mark.parametrize("frame", [b"\1" + bytes(600), b"\1", b"\0", b"\0" + bytes(FRAME + 1), b"\7x"])
def test_what_waits_is_bounded_even_if_it_is_nothing(frame: bytes) -> None:
    """Messages count beside their own bytes, and so do parts of one that never ends."""
    inboxes = Inboxes(2000)
    inbox = inboxes.adopt("t", WHO)
    frames = iter([frame] * 100)
    inboxes.fill(itertools.takewhile(lambda _: inbox.ended is None, frames), "t", WHO, never)
    assert next(frames, None) is not None and "more than it could have to" in str(inbox.ended)


def test_a_run_that_nobody_knows_gets_a_few_kilobytes() -> None:
    inboxes = Inboxes(1 << 30)
    inboxes.fill(iter([b"\1" + bytes(1 << 15)]), "t", WHO, never)
    with pytest.raises(PartyGone, match="more than it could have to"):
        inboxes.adopt("t", WHO).get(1.0)
    inboxes.fill(iter([b"\1" + bytes(48)]), "u", WHO, never)
    assert len(inboxes.adopt("u", WHO).get(1.0)) == 48


def test_many_unknown_runs_push_out_each_other_and_no_run_that_is_known() -> None:
    inboxes, hung_up = Inboxes(1000), []
    known = inboxes.adopt("known", WHO)
    inboxes.fill(iter([b"\1x"]), "other", "party 'c'", never)
    for index in range(20):
        inboxes.fill(iter([b"\1x"]), str(index), WHO, lambda index=index: hung_up.append(index))
    assert known.ended is None and len(inboxes._found) == 1 + 8 + 1
    assert hung_up == list(range(12))


def test_two_lines_of_one_run_end_it() -> None:
    inboxes = Inboxes(1000)
    inbox = inboxes.adopt("t", WHO)
    inbox.take(never)
    inboxes.fill(iter([b"\1forged"]), "t", WHO, never)
    with pytest.raises(PartyGone, match="two lines"):
        inbox.get(1.0)


def test_a_run_that_is_over_hangs_up_its_lines() -> None:
    inboxes, hung_up = Inboxes(1000), []
    for who in (WHO, "party 'c'"):
        inboxes.adopt("t", who).take(lambda: hung_up.append(1))
    inboxes.adopt("u", WHO).take(never)
    inboxes.forget("t")
    inboxes.forget("t")
    assert len(hung_up) == 2 and len(inboxes._found) == 1


# Messages ------------------------------------------------------------------------------------------------------------


def test_orders_and_announcements_come_back_as_they_were() -> None:
    bench = Bench()
    bench.deal()
    for order in (bench.opening(), bench.choice(), bench.choice(norm="squared_l2")):
        raw = messages.pack(type(order), order)
        read = messages.unpack(type(order), raw)
        assert messages.pack(type(order), read) == raw and type(read) is type(order)
    raw = messages.pack(Announcement, bench.announcement)
    again = messages.unpack(Announcement, raw)
    assert again == bench.announcement and messages.pack(Announcement, again) == raw


def test_deals_and_shares_come_back_as_they_were() -> None:
    parts = {3: DealPart(b"p" * 32, b"box", b""), 1: DealPart(b"q" * 32, b"b", b"c" * 80)}
    assert messages.unpack(DEALS, messages.pack(DEALS, parts)) == parts
    share = ServerShare(np.arange(5, dtype=np.uint64), b"d" * 32)
    read = messages.unpack(ServerShare, messages.pack(ServerShare, share))
    assert np.array_equal(read.own, share.own) and read.next_digest == share.next_digest


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (tuple[()], ()),
        (tuple[int, str, bool], (1, "a", True)),
        (tuple[float, ...], (0.1, -1e300, 5e-324, 2.0)),
        (list[bytes], [b"", b"x" * 9]),
        (dict[int, str], {2: "two", 0: "none"}),
        (OpenOrder | None, None),
        (OpenOrder | None, OpenOrder(0, "measure", 1, 2.0, (("a", "b"),))),
    ],
)
def test_values_come_back_as_they_were_and_as_no_other_type(kind: Any, value: Any) -> None:
    raw = messages.pack(kind, value)
    read = messages.unpack(kind, raw)
    assert read == value and type(read) is type(value)
    for other in (int, str, ChooseOrder, tuple[int, int, int], dict[int, bytes], tuple[float, str]):
        if value not in ((), [], {}):
            with pytest.raises(ProtocolError, match="a message is malformed"):
                messages.unpack(other, raw)


def test_every_cut_and_flipped_byte_is_read_or_refused() -> None:
    """Whatever arrives: a message of the same kind, or one fixed sentence; nothing else is ever raised."""
    bench = Bench()
    bench.deal([0])
    rng = np.random.default_rng(1)
    for kind, value in (
        (OpenOrder, bench.opening()),
        (ChooseOrder, bench.choice()),
        (DEALS, {0: DealPart.of(bench.sealed(0), 1)}),
        (Announcement, announced(mpc_config())),
    ):
        raw = messages.pack(kind, value)
        head = min(len(raw), 400)
        for at in [*range(0, head, 7), *range(len(raw) - 9, len(raw))]:
            changed = bytearray(raw)
            changed[at] ^= int(rng.integers(1, 256))
            for message in (raw[:at], bytes(changed), raw + b"x"):
                refused_or_read(kind, message)


def refused_or_read(kind: Any, message: bytes) -> None:
    try:
        messages.unpack(kind, message)
    except ProtocolError as error:
        assert len(str(error)) < 100


@pytest.mark.parametrize("partitions", [[0, 0], [-1], [True], ["0"], [2**31], [None]])
def test_deals_of_nobody_in_particular(partitions: list[Any]) -> None:
    part = {"public": None, "box": None, "correction": None}
    facts = [[partition, part] for partition in partitions]
    with pytest.raises(ProtocolError, match="malformed"):
        messages.unpack(DEALS, messages.message_of(facts, [b""] * 3 * len(facts)))
    for facts in ({"0": part}, [0], [[0, part, 1]], None):
        with pytest.raises(ProtocolError, match="malformed"):
            messages.unpack(DEALS, messages.message_of(facts, [b""] * 3))


def test_huge_numbers_and_depths_are_malformed() -> None:
    deep = b'{"facts": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for raw in (deep, b'{"facts": {"number": ' + b"9" * 10_000 + b"}}"):
        with pytest.raises(ProtocolError, match="a message is malformed"):
            messages.parts_of(len(raw).to_bytes(4, "little") + raw)
    facts, blobs = messages.parts_of(messages.pack(Announcement, announced(mpc_config())))
    changes = ({"rho": "0x1p+99999"}, {"rho": 1}, {"minimum": "x"}, {"minimum": 1.0}, {"config": {}}, {"more": 1})
    shape = {"domain": {**facts["domain"], "shape": [10**30] * 99}}
    for change in (*changes, shape):
        with pytest.raises(ProtocolError, match="malformed"):
            messages.unpack(Announcement, messages.message_of(facts | change, blobs))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_number_of_a_message_is_infinite_or_none(number: float) -> None:
    """JSON's reader takes NaN, which is neither below a limit nor above it."""
    total = TotalOrder(0, "one-way", 1, 4.0, 1.0, 1, 40, 4)
    bench = Bench()
    bench.deal()
    for order in (bench.opening(), bench.choice(), total, bench.announcement):
        hints = get_type_hints(type(order))
        floats = [field.name for field in fields(order) if hints[field.name] is float]
        assert floats
        facts, blobs = messages.parts_of(messages.pack(type(order), order))
        for name in floats:
            with pytest.raises(ProtocolError, match="a message is malformed"):
                messages.unpack(type(order), messages.message_of({**facts, name: number}, blobs))


def test_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(messages, "STORE_VERSION", messages.STORE_VERSION + 1)
        raw = messages.pack(Announcement, announced(mpc_config()))
    with pytest.raises(ProtocolError, match="speak different versions"):
        messages.unpack(Announcement, raw)


def test_digests_tell_apart_what_concatenation_does_not() -> None:
    assert messages.digest_of(b"ab", b"c") != messages.digest_of(b"a", b"bc")
    one = announced(mpc_config())
    assert messages.pack(Announcement, one) != messages.pack(Announcement, replace(one, minimum=2))
