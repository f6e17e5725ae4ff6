"""Parties that fail or lie: what one client costs the others, and what a server cannot make a client do."""

from __future__ import annotations

from fedsyn.front.testing.bench import Bench, equal_arrays
from fedsyn.front.testing.checks.ledgers import ledgers_hold
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.faults import GARBAGE_KINDS, garble, vanish
from fedsyn.front.testing.harness import Outcome, execute, finished

# Clients that fail -------------------------------------------------------------------------------------------------


def check_everybody_answers(bench: Bench) -> None:
    """In an ordinary run every client answers every request, whatever its rows are and if it has none."""
    base = bench.base()
    for record in base.strategy.records:
        for partition, reason in record.dropped.items():
            raise AssertionError(f"client {partition} is dropped from an ordinary run: {reason}{base.cause}")


def check_failing_client(bench: Bench) -> None:
    """A client that raises at every message costs only itself; without any client left the run says so."""
    if bench.contract.central:
        outcome = execute(bench.config(), bench.federation, raising=[0])
        assert outcome.error is not None, "a run whose only client always fails must end with an error"
        return
    outcome = finished(execute(bench.config(), bench.federation, raising=[1]))
    assert 1 not in outcome.strategy.clients, "a client that never answered counts as joined"
    assert outcome.strategy.records[0].notes, "a client that could not join is not recorded"
    ledgers_hold(outcome)


def check_vanishing_client(bench: Bench) -> None:
    """A client that answers no more after some replies is recorded as dropped, and the run ends."""
    for after in _before_the_end(bench, 1, 2, 3):
        outcome = execute(bench.config(), bench.federation, faults={0: vanish(after)})
        _survived(bench, outcome, f"client 0 gone after {after} replies")


def _before_the_end(bench: Bench, *replies: int) -> list[int]:
    """Those numbers of replies after which the ordinary run asks client 0 again."""
    asked = bench.replies_of(0)
    found = [after for after in replies if after < asked]
    if not found:
        raise Skipped(f"clients are asked {asked} time(s) only")
    return found


def check_everyone_vanishes(bench: Bench) -> None:
    """When all clients are gone, the run ends with what it has, or with an error of fedsyn's own."""
    for after in _before_the_end(bench, 1, 2):
        gone = dict.fromkeys(range(len(bench.federation.parts)), vanish(after))
        outcome = execute(bench.config(), bench.federation, faults=gone)
        if outcome.strategy.ledger.releases:
            ledgers_hold(outcome)


def check_malformed_client(bench: Bench) -> None:
    """Whatever nonsense a client replies, it is dropped: the run goes on as if that reply had not come."""
    for after in _before_the_end(bench, 1, 2):
        missing = execute(bench.config(), bench.federation, faults={0: vanish(after)})
        for kind in range(GARBAGE_KINDS if after == 1 else 1):
            outcome = execute(bench.config(), bench.federation, faults={0: garble(after, kind)})
            what = f"client 0 replying nonsense (kind {kind}) after {after} replies"
            _survived(bench, outcome, what)
            assert equal_arrays(outcome.arrays, missing.arrays), f"{what} changes the result of the others"


def _survived(bench: Bench, outcome: Outcome, what: str) -> None:
    if not bench.contract.central:
        assert outcome.error is None, f"{what}: the run failed: {outcome.error}"
    assert 0 in outcome.dropped, f"{what} is not recorded as dropped"
    if outcome.strategy.ledger.releases:
        ledgers_hold(outcome)
