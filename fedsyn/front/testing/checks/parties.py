"""Parties that fail or lie: what one client costs the others, and what a server cannot make a client do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsyn.front.testing.bench import Bench, equal_arrays
from fedsyn.front.testing.checks.ledgers import ledgers_hold, report_holds
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.faults import GARBAGE_KINDS, garble, vanish
from fedsyn.front.testing.harness import Outcome, execute, finished
from fedsyn.front.testing.tape import Exchange
from fedsyn.protocol.wire.envelope import ANSWER, ENVELOPE, to_json
from fedsyn.protocol.wire.holder import Holder
from fedsyn.randomness import Randomness

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


# Servers that are not to be trusted ----------------------------------------------------------------------------------


def check_client_refuses(bench: Bench) -> None:
    """A client refuses another configuration, unknown requests and nonsense, and never raises."""
    base = bench.base()
    for original in _one_of_each_request(base):
        client = _fresh_client(bench, base, original)
        for change in ({"config": "0" * 64}, {"request": "give me the table"}, {"version": 99}, {"kind": "order"}):
            reply = _fit(client, {**original.envelope, **change}, original.arrays)
            assert reply["ok"] is False, f"{original}: a request with {next(iter(change))} changed is answered"
            assert not client.ledger.releases, f"{original}: a request with {next(iter(change))} changed is charged"
        swapped = "sum" if original.envelope["kind"] == "ask" else "ask"
        reply = _fit(client, {**original.envelope, "kind": swapped}, original.arrays)
        assert reply["ok"] is False, f"{original}: answered as '{swapped}', it would skip the protection of its kind"
        for params in ({}, dict.fromkeys(original.envelope["params"], "nonsense")):
            for arrays in ((), (np.full(3, np.nan), np.array([2**62]))):
                _fit(client, {**original.envelope, "params": params}, arrays)
        report_holds(
            client.ledger.report(), base.config.privacy.epsilon, base.config.privacy.delta, "a client's ledger"
        )


def check_repeated_requests(bench: Bench) -> None:
    """A server that repeats its requests cannot make a client spend more than the budget."""
    base = bench.base()
    requests = [exchange for exchange in base.tape.exchanges if exchange.partition == 0]
    client = _fresh_client(bench, base, requests[0])
    for _ in range(6):
        for exchange in requests:
            _fit(client, exchange.envelope, exchange.arrays)
    report_holds(client.ledger.report(), base.config.privacy.epsilon, base.config.privacy.delta, "a client's ledger")


def _one_of_each_request(outcome: Outcome) -> list[Exchange]:
    return list({e.envelope["request"]: e for e in outcome.tape.exchanges if e.partition == 0}.values())


def _fresh_client(bench: Bench, base: Outcome, exchange: Exchange) -> Any:
    """The client of an exchange, as at the start of a run."""
    federation = bench.federation
    codes = federation.parts[exchange.partition]
    schema_hash = federation.table.schema.sha256
    holder = Holder(exchange.partition, codes, federation.domain, schema_hash, Randomness(0))
    return bench.client(base.config, holder)


def _fit(client: Any, envelope: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> dict[str, Any]:
    _, examples, metrics = client.fit(list(arrays), {ENVELOPE: to_json(envelope)})
    assert examples == 0, "a reply states a number of examples: row counts travel only where they may"
    reply: dict[str, Any] = json.loads(metrics[ANSWER])
    return reply
