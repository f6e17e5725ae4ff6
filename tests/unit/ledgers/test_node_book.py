"""A holder's ledger for life: limits that no server, restart or clock moves; charged before noise, counted once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsyn.errors import BudgetExceeded, ConfigError, LedgerDamaged, NodeError, RunError, Unable
from fedsyn.ledgers.chain import Head
from fedsyn.ledgers.limits import CHOICE, DAY, LifetimeLimits
from fedsyn.ledgers.node_ledger import NodeLedger, RunAccount, init_ledger
from fedsyn.ledgers.node_lines import NodeLines
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    Ledger,
    PrivacyBudget,
    Release,
    accountant_for,
    zcdp_epsilon,
)
from fedsyn.privacy.conversion import gaussian_epsilon
from fedsyn.privacy.statement import UNIT
from fedsyn.privacy.unit import ROW
from fedsyn.wire.refusals import refusal_of
from support.lifetime_ledgers import ONE, facts, noted_at_first, share

FOUR = PrivacyBudget(4.0, 1e-6)


class Clock:
    def __init__(self) -> None:
        self.time = 1e9

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For hundreds of files of which it does not matter whether they would survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def book(path: Path, clock: Clock) -> Callable[..., NodeLedger]:
    """`book(lifetime, per_period, per_run)`: the ledger opened anew; made by the first call."""

    def opened(
        lifetime: PrivacyBudget = FOUR,
        per_period: tuple[PrivacyBudget, float] | None = None,
        per_run: PrivacyBudget | None = None,
    ) -> NodeLedger:
        if not path.exists():
            init_ledger(path, clock)
        return NodeLedger(path, LifetimeLimits(per_run, per_period, lifetime), now=clock)

    return opened


def ledger_of(account: RunAccount, kind: str = "gaussian", budget: PrivacyBudget = ONE) -> Ledger:
    """What a client half makes of an account (`TableClient._ledger`)."""
    ledger = Ledger(budget, accountant_for(kind, budget), noise_by="client", record=account.charge)
    ledger.reenter(account.releases)
    return ledger


def spend(book: NodeLedger, run: str, *parts: float, kind: str = "gaussian", budget: PrivacyBudget = ONE) -> None:
    """A run that answers one request for each part of its budget, and ends."""
    for number, part in enumerate(parts):
        account = book.account(run, facts(kind, budget), f"{run}-{number}")
        rho = accountant_for(kind, budget).capacity * part * (0.5 if kind == "gaussian" else 1.0)
        account.charge(Release("measure", number, GAUSSIAN, sigma=1 / math.sqrt(2 * rho)))
        account.answered(number + 1)
    book.end(run)


# Limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "zcdp"])
def test_a_lifetime_of_one_takes_a_run_of_one_and_refuses_the_second(
    book: Callable[..., NodeLedger], kind: str
) -> None:
    ours = book(ONE)
    spend(ours, "first", 0.25, 0.75, kind=kind)
    assert 1 - 1e-6 < ours.epsilon <= 1.0
    before = ours.path.read_bytes()
    with pytest.raises(BudgetExceeded) as caught:
        ours.account("second", facts(kind))
    assert (
        refusal_of(caught.value).sentence
        == str(caught.value)
        == (
            "the holder's limit for life is epsilon = 1 at delta = 1e-06; spent: epsilon = 1; this run asks for "
            "epsilon = 1 at delta = 1e-06; nothing was released"
        )
    )
    assert ours.path.read_bytes() == before
    with pytest.raises(BudgetExceeded):
        book(ONE).account("second", facts(kind))


def test_the_limit_of_one_run_counts_by_the_runs_own_accountant(book: Callable[..., NodeLedger]) -> None:
    ours = book(FOUR, per_run=ONE)
    for kind in ("gaussian", "zcdp"):
        with pytest.raises(
            BudgetExceeded, match="limit for one run is epsilon = 1 at delta = 1e-06, and this run asks"
        ):
            ours.account("large", facts(kind, PrivacyBudget(1.001, 1e-6)))
        with pytest.raises(BudgetExceeded, match="limit for one run"):
            ours.account("large", facts(kind, PrivacyBudget(1.0, 2e-6)))
        ours.account(kind, facts(kind))
    assert list(ours.runs) == ["gaussian", "zcdp"]


def test_a_period_frees_what_is_older_and_a_life_nothing(book: Callable[..., NodeLedger], clock: Clock) -> None:
    ours = book(PrivacyBudget(1.8, 1e-6), (ONE, 90))
    spend(ours, "first", 1.0)
    clock.time += 89 * DAY
    with pytest.raises(BudgetExceeded, match=r"limit for any 90 days is epsilon = 1 at .*; spent: epsilon = 1; this"):
        ours.account("second", facts())
    clock.time += 2 * DAY
    spend(ours, "second", 1.0)
    spent = ours.epsilon
    assert spent == pytest.approx(gaussian_epsilon(math.sqrt(2) * ONE.mu, 1e-6)) and spent < 1.8
    clock.time += 1000 * DAY
    with pytest.raises(BudgetExceeded, match=r"limit for life is epsilon = 1.8"):
        ours.account("third", facts())


def test_a_clock_that_jumps_back_frees_nothing_early(book: Callable[..., NodeLedger], clock: Clock) -> None:
    ours = book(FOUR, (ONE, 10))
    clock.time += 100 * DAY
    ours.account("first", facts()).charge(share(0.9))
    clock.time -= 50 * DAY  # entries of the future count
    account = ours.account("first", facts())
    account.charge(share(0.1))
    times = [entry["time"] for entry in ours.lines.entries]
    assert times == sorted(times), "an entry is never earlier than one before it"
    ours.end("first")
    for day in (50, 55, 59):
        clock.time = 1e9 + (day + 50) * DAY
        with pytest.raises(BudgetExceeded):
            ours.account("second", facts())
    clock.time = 1e9 + 111 * DAY
    ours.account("second", facts())


def test_the_limits_own_delta_is_used(book: Callable[..., NodeLedger]) -> None:
    ours = book(PrivacyBudget(1.0, 1e-7))
    with pytest.raises(BudgetExceeded, match="this run asks for epsilon = 1 at delta = 1e-06"):
        ours.account("first", facts())
    spend(ours, "second", 1.0, budget=PrivacyBudget(1.0, 1e-7))
    assert ours.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2 * ours.spent), 1e-7))


def test_runs_under_way_keep_what_they_announced_for_a_day(book: Callable[..., NodeLedger], clock: Clock) -> None:
    ours = book(PrivacyBudget(1.2, 1e-6))
    first = ours.account("first", facts())
    first.charge(share(0.1))
    with pytest.raises(BudgetExceeded, match=r"spent: epsilon = 0.2\d+ \(1 with what runs under way may still spend\)"):
        ours.account("second", facts())
    clock.time += 1.01 * DAY
    second = ours.account("second", facts())
    first.charge(share(0.9))  # back again: every charge is checked by itself
    with pytest.raises(BudgetExceeded, match=r"limit for life is epsilon = 1\.2"):
        second.charge(share(0.9))
    second.charge(share(0.1))
    assert ours.epsilon <= 1.2


def test_a_run_that_ended_keeps_nothing(book: Callable[..., NodeLedger]) -> None:
    ours = book(PrivacyBudget(1.2, 1e-6))
    spend(ours, "first", 0.1)
    ours.end("first")
    ours.end("unknown")
    ours.account("second", facts())
    assert [entry["entry"] for entry in ours.lines.entries].count("end") == 1


def test_two_runs_at_once_in_two_processes_cannot_overrun(book: Callable[..., NodeLedger], clock: Clock) -> None:
    one, other = book(PrivacyBudget(1.2, 1e-6)), book(PrivacyBudget(1.2, 1e-6))
    first = one.account("first", facts())
    clock.time += 2 * DAY
    second = other.account("second", facts())
    taken = 0
    for number in range(40):
        account, name = ((first, "first"), (second, "second"))[number % 2]
        try:
            account.charge(share(0.05, round=number))
            taken += 1
        except BudgetExceeded:
            break
    limit = PrivacyBudget(1.2, 1e-6)
    assert taken == math.floor(limit.mu**2 / (0.05 * ONE.mu**2)) and name
    assert book(limit).epsilon <= 1.2


def test_a_run_charges_no_more_than_it_announced(book: Callable[..., NodeLedger]) -> None:
    account = book().account("first", facts())
    account.charge(share(0.6))
    with pytest.raises(BudgetExceeded, match=r"costs rho = .* more than is left of what its run announced") as over:
        account.charge(share(0.5))
    assert "rho" not in refusal_of(over.value).sentence
    with pytest.raises(BudgetExceeded, match="may charge no such thing"):
        account.charge(Release("select", 1, EXPONENTIAL, epsilon=0.001))
    account.charge(share(0.4))


def test_no_run_goes_on_for_ever(book: Callable[..., NodeLedger], monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases that cost next to nothing would fill the disk all the same."""
    monkeypatch.setattr("fedsyn.ledgers.node_ledger.MOST", 3)
    account = book().account("run", facts(), "q")
    for number in range(3):
        account.charge(share(1e-9, round=number))
    with pytest.raises(BudgetExceeded, match="has charged 3 releases"):
        account.charge(share(1e-9, round=4))
    account.answered(3)
    with pytest.raises(NodeError, match="has asked this node 3 times"):
        book().account("run", facts(), "another")


def test_refusals_tell_an_operator_public_facts_only(book: Callable[..., NodeLedger], path: Path) -> None:
    ours = book(PrivacyBudget(1.2, 1e-6), (ONE, 3), ONE)
    secret = ours.account("a-name-of-another-operator", facts())
    secret.charge(share(0.5))
    for budget in (ONE, FOUR):
        with pytest.raises(BudgetExceeded) as caught:
            ours.account("mine", facts(budget=budget))
        said = str(caught.value)
        assert str(path) not in said and "another-operator" not in said and "\n" not in said


# Kinds ---------------------------------------------------------------------------------------------------------------


def test_the_first_run_decides_the_filter(book: Callable[..., NodeLedger], tmp_path: Path, clock: Clock) -> None:
    ours = book(FOUR)
    spend(ours, "gaussian", 1.0)
    rho = ONE.mu**2 / 2
    assert ours.kind == "gaussian" and ours.epsilon == pytest.approx(gaussian_epsilon(ONE.mu, 1e-6))
    account = ours.account("choices", facts("zcdp"), "q")
    account.charge(choice := Release("select", 1, EXPONENTIAL, epsilon=0.2))
    assert ours.spent == pytest.approx(rho + choice.rho)
    total = 2 * (rho + CHOICE * choice.rho)
    assert ours.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(total), 1e-6))
    init_ledger(tmp_path / "other", clock)
    other = NodeLedger(tmp_path / "other", LifetimeLimits(None, None, FOUR), now=clock)
    other.account("choices", facts("zcdp"), "q").charge(choice)
    spend(other, "gaussian", 1.0)
    assert other.kind == "zcdp" and other.epsilon == pytest.approx(zcdp_epsilon(rho + choice.rho, 1e-6))


def test_a_run_of_choices_announces_them_at_their_worst_under_a_gaussian_filter(
    book: Callable[..., NodeLedger],
) -> None:
    limit = PrivacyBudget(1.15, 1e-6)
    ours = book(limit)
    ours.account("gaussian", facts(budget=PrivacyBudget(0.01, 1e-6)))
    assert CHOICE * ONE.rho > limit.mu**2 / 2 > ONE.rho
    with pytest.raises(BudgetExceeded, match="limit for life"):
        ours.account("choices", facts("zcdp"))


# Restarts ------------------------------------------------------------------------------------------------------------


def test_a_runs_ledger_is_rebuilt_bit_for_bit(book: Callable[..., NodeLedger]) -> None:
    account = book().account("first", facts("zcdp"), "q1")
    ledger = ledger_of(account, "zcdp")
    ledger.charge(Release("one-way", 0, GAUSSIAN, 1.0, sigma=0.1 + 1 / 3 + 30, count=14, replaced=math.sqrt(2)))
    ledger.charge(
        Release(
            "sélect\n", 3, EXPONENTIAL, 1.0, epsilon=1e-3 / 7, count=2, argument="why",
            noise_by="the clients, a share each", sampler="x",
        )
    )  # fmt: skip
    ledger.promise(Release("sum", 2, GAUSSIAN, 2.0, sigma=31.7, extra=1e-9 / 3, noise_by="server"))
    account.answered(1)
    again = ledger_of(book().account("first", facts("zcdp"), "q2"), "zcdp")
    assert again.to_dict() == ledger.to_dict() and again.spent == ledger.spent
    assert again.releases == ledger.releases and book().spent == ledger.spent_rho


def test_every_entry_says_what_an_ethics_board_asks(book: Callable[..., NodeLedger], path: Path, clock: Clock) -> None:
    ours = book()
    account = ours.account("first", facts(), "digest")
    account.charge(share(0.25))
    account.answered(7)
    first, begun, charged, answered = (json.loads(line) for line in path.read_bytes().splitlines())
    assert first.keys() >= {"id", "time"} and begun["unit"] == UNIT
    assert begun["adjacency"] == ROW.adjacency("private")
    assert (begun["epsilon"], begun["delta"], begun["accountant"]) == (1.0, 1e-6, "gaussian")
    assert {"run": "first", "configuration": "c" * 64, "mechanism": "sketch_aim", "time": clock.time}.items() <= (
        charged.items()
    )
    release = charged["release"]
    assert {"name", "round", "sigma", "count", "sensitivity", "rho"} <= set(release)
    assert charged["rho"] == release["rho"] == share(0.25).rho == pytest.approx(ONE.mu**2 / 8)
    assert answered["numbers"] == [0] and answered["memory"] == 7 and ours.runs["first"].memory == 7


def test_a_charge_is_on_the_disk_before_it_returns(book: Callable[..., NodeLedger], monkeypatch: Any) -> None:
    ours = book()
    account, synced = ours.account("first", facts(), "q"), []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (real(file), synced.append(ours.path.read_bytes())))
    for step in (lambda: account.charge(share(0.1)), account.answered):
        before = len(synced)
        step()
        assert len(synced) == before + 1 and synced[-1] == ours.path.read_bytes()


# Attempts ------------------------------------------------------------------------------------------------------------


def test_a_charge_whose_reply_did_not_leave_pays_for_the_next_attempt(book: Callable[..., NodeLedger]) -> None:
    first = book().account("run", facts(), "q")
    first.charge(share(0.5))
    first.charge(share(0.3, round=2))
    again = book().account("run", facts(), "q")  # the process was killed
    assert again.releases == ()
    ledger = ledger_of(again)
    ledger.charge(share(0.5))
    ledger.charge(share(0.3, round=2))
    again.answered(1)
    assert book().spent == math.fsum([share(0.5).rho, share(0.3).rho])
    third = book().account("run", facts(), "q")  # the same request, but this time a reply may have left
    assert len(third.releases) == 2
    with pytest.raises(BudgetExceeded):
        third.charge(share(0.5))
    third.charge(share(0.2))
    assert book().epsilon == pytest.approx(1.0)


def test_it_pays_for_no_other_request_and_no_other_release(book: Callable[..., NodeLedger]) -> None:
    book().account("run", facts(), "q").charge(share(0.2))
    other = book().account("run", facts(), "another")
    assert len(other.releases) == 1
    other.charge(share(0.2))
    unnamed = book().account("run", facts())
    assert len(unnamed.releases) == 2
    same = book().account("run", facts(), "q")
    same.charge(share(0.2, round=2))
    assert book().spent == pytest.approx(3 * share(0.2).rho)
    nameless = book().account("run", facts())
    nameless.charge(share(0.1))
    book().account("run", facts()).charge(share(0.1))
    assert book().spent == pytest.approx(3 * share(0.2).rho + 2 * share(0.1).rho)


def test_of_two_attempts_at_once_one_reply_leaves(book: Callable[..., NodeLedger]) -> None:
    slow = book().account("run", facts(), "q")
    slow.charge(share(0.5))
    fast = book().account("run", facts(), "q")
    fast.charge(share(0.5))
    with pytest.raises(RunError, match="another process of this node answers this request"):
        slow.answered(1)
    fast.answered(1)
    with pytest.raises(RunError):
        slow.answered(1)
    late = book().account("run", facts(), "q")
    assert not late.repeats(slow.attempt) and late.repeats(fast.attempt) and not late.repeats(None)
    assert book().spent == share(0.5).rho


def test_a_kept_reply_leaves_late_and_settles_its_charge(book: Callable[..., NodeLedger]) -> None:
    killed = book().account("run", facts(), "q")
    killed.charge(share(0.5))  # killed after its memory was saved
    again = book().account("run", facts(), "q")
    before = len(book().lines.entries)
    assert again.repeats(killed.attempt, 3) and again.repeats(killed.attempt, 3)
    ours = book()
    assert len(ours.lines.entries) == before + 1 and ours.runs["run"].memory == 3
    assert ours.account("run", facts(), "q").releases == (share(0.5),)


def test_a_request_that_costs_and_keeps_nothing_writes_nothing(book: Callable[..., NodeLedger]) -> None:
    ours = book()
    account = ours.account("run", facts(), "join")
    before = ours.path.read_bytes()
    account.answered()
    assert account.repeats(account.attempt) and ours.path.read_bytes() == before


def test_a_memory_is_noted_also_where_the_reply_cost_nothing(book: Callable[..., NodeLedger]) -> None:
    """Or an older one would be taken, and what it forgot (that a sum was opened, for one) done twice."""
    slow, fast = (book().account("run", facts(), "unmask") for _ in range(2))
    fast.answered(1)
    assert book().runs["run"].memory == 1
    with pytest.raises(RunError, match="another process of this node answers this request"):
        slow.answered(1)
    assert book().account("run", facts(), "unmask").repeats(fast.attempt, 1)
    late = book().account("run", facts(), "unmask")
    assert late.repeats(fast.attempt, 2) and book().runs["run"].memory == 2


def test_a_ledger_is_held_to_the_head_that_a_memory_kept(book: Callable[..., NodeLedger], path: Path) -> None:
    ours = book()
    account = ours.account("run", facts(), "q")
    old = path.read_bytes(), path.with_name(path.name + ".seen").read_bytes()
    account.charge(share(0.1))
    head = account.head
    account.answered(1)
    ours.require(head)
    ours.require(None)
    path.write_bytes(old[0])
    path.with_name(path.name + ".seen").write_bytes(old[1])
    with pytest.raises(LedgerDamaged, match="older than what this node has seen"):
        book().require(head)


def test_a_ledger_without_the_note_of_it_may_be_older_and_is_refused(
    book: Callable[..., NodeLedger], path: Path
) -> None:
    account = book().account("run", facts(), "q")
    account.charge(share(0.1))
    older = path.read_bytes()
    account.charge(share(0.2))
    path.write_bytes(older)
    path.with_name(path.name + ".seen").unlink()
    with pytest.raises(LedgerDamaged, match=r"ledger\.jsonl\.seen is missing, so .* may be an older copy"):
        book()


def test_a_part_taken_over_is_enough_to_hold_a_reply_back(book: Callable[..., NodeLedger]) -> None:
    slow = book().account("run", facts(), "q")
    slow.charge(share(0.3))
    slow.charge(share(0.2))
    book().account("run", facts(), "q").charge(share(0.3))  # killed before it charges the second one
    with pytest.raises(RunError):
        slow.answered(1)
    last = book().account("run", facts(), "q")
    last.charge(share(0.3))
    last.charge(share(0.2))
    last.answered(1)
    assert book().spent == math.fsum([share(0.3).rho, share(0.2).rho])


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "../x", "a b", "é", "x" * 101, ".hidden", "a\n"])
def test_a_run_has_a_plain_name(book: Callable[..., NodeLedger], name: str) -> None:
    ours = book()
    with pytest.raises(NodeError, match="a name of letters, digits"):
        ours.account(name, facts())
    assert not ours.runs


@pytest.mark.parametrize(
    "changed",
    [{"configuration": "d"}, {"schema": "t"}, {"budget": FOUR}, {"accountant": "zcdp"}, {"client_sizes": "public"}],
)
def test_a_run_keeps_what_it_is(book: Callable[..., NodeLedger], changed: dict[str, Any]) -> None:
    ours = book()
    ours.account("run", facts())
    with pytest.raises(NodeError, match="another run of this name"):
        ours.account("run", facts(**changed) if "accountant" not in changed else facts("zcdp"))


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_missing_ledger_is_no_fresh_start(path: Path) -> None:
    limits = LifetimeLimits(None, None, ONE)
    with pytest.raises(
        ConfigError, match=r"is missing; a lost ledger is not a fresh start: .* fedsyn node init-ledger"
    ):
        NodeLedger(path, limits)
    init_ledger(path)
    with pytest.raises(ConfigError, match="there is one already"):
        init_ledger(path)
    NodeLedger(path, limits)
    path.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        NodeLedger(path, limits)
    with pytest.raises(ConfigError, match="says that there was one: restore it"):
        init_ledger(path)
    assert not path.exists()


def test_a_ledger_that_goes_away_under_way_is_refused(book: Callable[..., NodeLedger], path: Path) -> None:
    account = book().account("run", facts())
    path.unlink()
    with pytest.raises(RunError, match="cannot be opened"):
        account.charge(share(0.1))
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"\n", b'{"format": 1'])
def test_a_ledger_without_a_first_line_is_damaged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged):
        NodeLedger(path, LifetimeLimits(None, None, ONE))


def test_an_older_copy_of_the_ledger_alone_is_noticed(book: Callable[..., NodeLedger], path: Path) -> None:
    spend(book(), "first", 0.5)
    old = path.read_bytes()
    ours = book()
    ours.account("second", facts())
    new = path.read_bytes()
    path.write_bytes(old)
    with pytest.raises(LedgerDamaged, match="older than what this node has seen"):
        book()
    path.write_bytes(new)
    account = book().account("second", facts(), "q")
    account.charge(share(0.1))
    account.answered(1)
    path.write_bytes(new)
    with pytest.raises(LedgerDamaged, match="older than what this node has seen"):
        book()
    path.with_name(path.name + ".seen").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read; restore it with its ledger"):
        book()


def test_an_account_of_another_process_is_seen_after_refresh(book: Callable[..., NodeLedger]) -> None:
    parent = book()
    book().account("run", facts()).charge(share(0.5))
    assert parent.spent == 0.0
    parent.refresh()
    assert parent.spent == share(0.5).rho and parent.runs["run"].spent == share(0.5).rho


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("call", ["write", "fsync", "open"])
@pytest.mark.parametrize("code", [28, 30, 5])
def test_a_disk_that_refuses_is_a_refusal(
    book: Callable[..., NodeLedger], path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, cut: bool
) -> None:
    """ENOSPC, EROFS, EIO: nothing is released; the line is taken back, and what may be left of it counts."""
    account = book().account("run", facts(), "q")
    real = getattr(os, call)

    def refusing(target: Any, *rest: Any) -> Any:
        if call == "open" and str(target) != str(path):
            return real(target, *rest)
        if call == "write":
            real(target, rest[0][:200])
        raise OSError(code, os.strerror(code))

    def never(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refusing)
        if not cut:
            patch.setattr(os, "ftruncate", never)
        with pytest.raises(Unable, match="nothing was released"):
            account.charge(share(0.5))
    again = book()
    expected = 0.0 if call == "open" or cut else share(0.5).rho
    assert again.spent == expected and account._ledger.spent >= 0
    account._ledger.refresh()
    assert account._ledger.spent == expected


# Torn lines ----------------------------------------------------------------------------------------------------------


def whole_ledger(book: Callable[..., NodeLedger], path: Path) -> list[bytes]:
    """One of every kind of line, in two runs."""
    ours = book()
    small = PrivacyBudget(0.5, 1e-6)
    ours.account("small", facts(budget=small), "q").charge(share(0.1, small))
    ours.account("run", facts(), "q").charge(share(0.3))
    again = ours.account("run", facts(), "q")
    again.charge(share(0.3))
    again.answered(1)
    again.charge(share(0.2, round=2))
    ours.end("run")
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 13])
def test_a_line_torn_anywhere_counts_as_what_it_says_or_at_its_worst(
    book: Callable[..., NodeLedger], path: Path, step: int
) -> None:
    """Every line, cut at every byte (every 13th by default): never less than its charge,
    and exactly that where the line can be read."""
    lines = whole_ledger(book, path)
    noted_at_first(path)
    seen = path.with_name(path.name + ".seen")
    first = seen.read_bytes()
    kinds = [json.loads(line)["entry"] for line in lines]
    assert set(kinds) == {"open", "begin", "charge", "again", "answered", "end"}
    for number in range(1, len(lines)):
        seen.write_bytes(first)
        path.write_bytes(b"".join(lines[:number]))
        before = book()
        spent, worst = before.spent, max((run.rest.rho for run in before.lines.open_runs().values()), default=0.0)
        rho = json.loads(lines[number]).get("rho", 0.0) if kinds[number] == "charge" else 0.0
        counted = set()
        for cut in range(1, len(lines[number]) - 1, step):
            seen.write_bytes(first)
            path.write_bytes(b"".join(lines[:number]) + lines[number][:cut])
            ours = book()
            more = ours.spent - spent
            assert more >= rho * (1 - 1e-12)
            counted.add(round(more, 12))
            legible_name = b'"entry": "' + kinds[number].encode() + b'", "' in lines[number][:cut]
            if kinds[number] != "charge" and legible_name:
                assert more == 0.0, "it released nothing"
            again = book()
            assert again.spent == ours.spent and not again.lines.torn
        assert counted <= {round(x, 12) for x in (0.0, rho, worst)}


def test_a_run_goes_on_after_a_torn_line_that_says_what_it_was(book: Callable[..., NodeLedger], path: Path) -> None:
    lines = whole_ledger(book, path)
    last = max(i for i, line in enumerate(lines) if json.loads(line)["entry"] == "charge")
    path.write_bytes(b"".join(lines[:last]) + lines[last][:-40])
    ours = book()
    assert ours.runs["run"].torn == share(0.2).rho and not ours.runs["run"].closed
    ours.account("run", facts(), "next").charge(share(0.5, round=3))
    assert ours.runs["run"].spent == pytest.approx(ONE.mu**2 / 2)


def test_no_run_under_way_goes_on_after_one_that_says_nothing(book: Callable[..., NodeLedger], path: Path) -> None:
    lines = whole_ledger(book, path)
    noted_at_first(path)
    path.write_bytes(b"".join(lines[:-2]) + b"\x00" * 100)
    ours = book()
    assert ours.runs["run"].closed and ours.runs["small"].closed
    assert ours.spent == pytest.approx(ONE.mu**2 / 2 + share(0.1, PrivacyBudget(0.5, 1e-6)).rho), "the larger rest"
    for name, budget in (("run", ONE), ("small", PrivacyBudget(0.5, 1e-6))):
        with pytest.raises(BudgetExceeded, match="may charge no such thing any more"):
            ours.account(name, facts(budget=budget)).charge(share(0.01))
    ours.account("next", facts()).charge(share(0.5))


# What an edited ledger could claim -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        {"entry": "charge", "run": "unknown", "rho": 1.0},
        {"entry": "again", "run": "run", "number": 0, "request": "q", "attempt": "x"},
        {"entry": "again", "run": "run", "number": 9, "request": "q", "attempt": "x"},
        {"entry": "answered", "run": "run", "numbers": [-1], "attempt": "x", "memory": 1},
        {"entry": "answered", "run": "run", "numbers": [0], "attempt": "x", "memory": 1},
        {"entry": "begin", "run": "run"},
        {"entry": "open", "id": "x"},
        {"entry": "torn", "runs": {"unknown": 0.1}, "closed": []},
        {"entry": "torn", "runs": {"run": -0.1}, "closed": []},
        {"entry": "end", "run": "unknown"},
        {"entry": "gift", "run": "run"},
        {"entry": "end", "run": "run", "time": 5},
    ],
)
def test_an_entry_that_makes_no_sense_is_damage_however_well_it_is_chained(
    book: Callable[..., NodeLedger], path: Path, clock: Clock, entry: dict[str, Any]
) -> None:
    whole_ledger(book, path)
    lines = NodeLines()
    lines.read(path.read_bytes(), path)
    whole = {"format": 1, "time": clock.time, **entry, "follows": lines.head}
    with path.open("ab") as file:
        file.write(json.dumps(whole).encode() + b"\n")
    with pytest.raises(LedgerDamaged, match=f"at line {len(lines.entries) + 1}"):
        book()


def test_a_charge_that_names_less_than_its_release_costs_is_damage(book: Callable[..., NodeLedger], path: Path) -> None:
    lines = whole_ledger(book, path)
    at = next(i for i, line in enumerate(lines) if json.loads(line)["entry"] == "charge")
    for changed in ({"rho": 0.0}, {"rho": 1e-4}, {"rho": float("nan")}, {"number": 1}):
        path.write_bytes(b"".join(lines[:at]) + json.dumps(json.loads(lines[at]) | changed).encode() + b"\n")
        with pytest.raises(LedgerDamaged):
            book()


def test_a_head_names_entries(book: Callable[..., NodeLedger]) -> None:
    ours = book()
    assert ours.lines.where == Head(1, ours.lines.head)
