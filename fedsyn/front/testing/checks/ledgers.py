"""What ledgers must hold: budgets by a second account, every release by its name, and all noise that is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsyn.capabilities import MPC, SECAGG
from fedsyn.front.testing.accounting import rho_of_entries, within_budget
from fedsyn.front.testing.bench import SETTINGS, Bench
from fedsyn.front.testing.checks.results import noise_of, same
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.harness import Outcome, execute, finished
from fedsyn.front.testing.tape import SERVER
from fedsyn.protocol.wire.envelope import SumSpec
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL


def check_ledger(bench: Bench) -> None:
    """Ledgers of server and clients are within budget by a second account, and name every release."""
    base = bench.base()
    ledgers_hold(base)
    total = rho_of_entries(base.strategy.ledger.report()["releases"])
    for partition, ledger in sorted(base.ledgers.items()):
        spent = rho_of_entries(ledger.report()["releases"])
        assert spent <= total * (1 + 1e-9), (
            f"client {partition} released rho = {spent:.6g}, but the server's ledger accounts for {total:.6g} only"
        )


def ledgers_hold(outcome: Outcome) -> None:
    """The server's ledger speaks for the row that is worst off, so no client's ledger may exceed it."""
    privacy = outcome.config.privacy
    report = outcome.strategy.ledger.report()
    report_holds(report, privacy.epsilon, privacy.delta, "the server's ledger")
    assert report["releases"], "the server's ledger is empty: a run that releases nothing cannot learn anything"
    accounted, promised = _rho_by_name(report["releases"]), _sensitivity_by_name(report["releases"])
    for partition, ledger in sorted(outcome.ledgers.items()):
        own = ledger.report()
        report_holds(own, privacy.epsilon, privacy.delta, f"the ledger of client {partition}")
        # A promise is for a sum that the others' replies decide upon; what a client drew itself has left it.
        drawn = [entry for entry in own["releases"] if entry["noise_by"] == own["kept_by"]]
        for name, spent in _rho_by_name(drawn).items():
            held = accounted.get(name, 0.0)
            assert spent <= held * (1 + 1e-9), (
                f"client {partition} released rho = {spent:.6g} as '{name}', the server's ledger has {held:.6g} for it"
            )
        for name, sensitivity in _sensitivity_by_name(drawn).items():
            assert sensitivity <= promised[name] * (1 + 1e-9), (
                f"client {partition} released '{name}' of sensitivity {sensitivity:.6g}, the server's ledger says "
                f"{promised[name]:.6g}"
            )


def _rho_by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(entry["name"] for entry in entries)
    return {name: rho_of_entries(entry for entry in entries if entry["name"] == name) for name in names}


def _sensitivity_by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in entries:
        found[entry["name"]] = max(entry["sensitivity"], found.get(entry["name"], 0.0))
    return found


def report_holds(report: Mapping[str, Any], epsilon: float, delta: float, whose: str) -> None:
    for entry in report["releases"]:
        assert str(entry.get("name", "")).strip(), f"{whose} has a release without a name"
        assert entry.get("sampler", "unknown") != "unknown", (
            f"{whose}: '{entry['name']}' does not say where noise is from"
        )
    assert within_budget(report, epsilon, delta), f"{whose} exceeds epsilon = {epsilon:g} at delta = {delta:g}"
    again = rho_of_entries(report["releases"])
    assert abs(report["rho"] - again) <= 1e-9 * max(1.0, again), f"{whose} reports a total that its entries do not have"
    assert report["epsilon"] <= epsilon * (1 + 1e-9), f"{whose} reports epsilon = {report['epsilon']:.6g} > {epsilon:g}"


def check_noise_comes_through_the_ledger(bench: Bench) -> None:
    """No noise is drawn outside a ledger entry, and no stream of noise is drawn twice."""
    problems = list(dict.fromkeys(bench.base().tape.problems))
    assert not problems, "; ".join(problems)


# Where noise comes from --------------------------------------------------------------------------------------------


def check_private_without_a_seed(bench: Bench) -> None:
    """Without a seed all noise comes from the operating system and the ledger says private; with one it does not."""
    seeded = bench.base().strategy.ledger
    assert not seeded.private and SEEDED_LABEL in seeded.caveats, "a seeded run is not labelled as not private"
    runs = [finished(execute(bench.config(runtime={"seed": None}), bench.federation)) for _ in range(2)]
    declared = [bench.contract.not_private] if bench.contract.not_private else []
    for outcome in runs:
        for release in outcome.strategy.ledger.releases:
            assert release.sampler != SEEDED_LABEL, f"release '{release.name}' is seeded in a run without a seed"
        statement = outcome.strategy.ledger.statement
        assert statement is not None and statement.sampler == OS_LABEL, "the statement names another sampler"
        for ledger in outcome.ledgers.values():
            assert ledger.private, "a client's ledger is not private in a run without a seed"
        ledgers_hold(outcome)
        caveats = list(outcome.strategy.ledger.caveats)
        assert caveats == declared, (
            f"a run without a seed is labelled {caveats or 'private'}, its contract declares {declared or 'private'}"
        )
    assert noise_of(runs[0]) != noise_of(runs[1]), "two runs without a seed draw the same noise"


def check_private_sizes(bench: Bench) -> None:
    """`client_sizes: private` works, and the sizes are paid for."""
    outcome = bench.base(**SETTINGS["private sizes"])
    ledgers_hold(outcome)
    paid = [r for r in outcome.strategy.ledger.releases if r.name == "sizes"]
    assert len(paid) == 1 and paid[0].rho > 0, "private sizes are not in the server's ledger"
    assert outcome.ledgers.keys() == set(range(len(bench.federation.parts))), "a client has no ledger"
    for partition, ledger in outcome.ledgers.items():
        own = [r for r in ledger.releases if r.name == "sizes"]
        assert sum(r.count for r in own) == 1, f"client {partition} did not pay for its size exactly once"
    assert not outcome.tape.problems, "; ".join(outcome.tape.problems)


def check_participations(bench: Bench) -> None:
    """`federation.max_participations` works: nobody takes part in more rounds, the ledger is that of the worst off."""
    if len(bench.federation.parts) < 2:
        raise Skipped("the mechanism has one data holder")
    outcome = bench.base(**SETTINGS["one round a client"])
    ledgers_hold(outcome)
    rounds: dict[int, set[int]] = {}
    for exchange in outcome.tape.exchanges:
        record = bench.client.requests[exchange.envelope["request"]]
        if record.takes_part and exchange.reply["ok"]:
            rounds.setdefault(exchange.partition, set()).add(exchange.envelope["round"])
    assert rounds, "nobody took part in a round"
    for partition, seen in sorted(rounds.items()):
        assert len(seen) == 1, f"client {partition} took part in the rounds {sorted(seen)}, and may in one"
    refused = [f"{k}: {why}" for record in outcome.strategy.records for k, why in record.dropped.items()]
    assert not refused, f"a client refuses what it is asked: {refused[0]}"


def check_local_noise(bench: Bench) -> None:
    """`noise: local` works: the clients draw the noise of every sum, and their ledgers hold it."""
    _others_draw(bench.base(**SETTINGS["local noise"]), "local")


def check_distributed_noise(bench: Bench) -> None:
    """`noise: distributed` works: the server draws none, and a secure sum or store opens the same, bit for bit."""
    simulated = bench.base(**SETTINGS["distributed noise"])
    protocol = (MPC if bench.contract.store else SECAGG).name
    secure = bench.base(aggregation={"noise": "distributed", "protocol": protocol})
    for outcome in (simulated, secure):
        _others_draw(outcome, "distributed")
    same(simulated, secure, f"protocol {protocol} in place of its simulation")
    if len(bench.federation.parts) > 1:
        _masked_only(secure)


def _others_draw(outcome: Outcome, noise: str) -> None:
    ledgers_hold(outcome)
    drawn = [draw.name for draw in outcome.tape.draws.get(SERVER, [])]
    assert not drawn, f"with {noise} noise the server drew noise of its own: {', '.join(sorted(set(drawn)))}"
    # The parties of a store have ledgers of their own, which no tape watches.
    problems = [] if outcome.config.aggregation.capabilities.parties_draw else outcome.tape.problems
    assert not problems, "; ".join(problems)


def _masked_only(outcome: Outcome) -> None:
    """Checks that only masked vectors, and sums of all contributors' masks, are as long as a secure sum."""
    for exchange in outcome.tape.exchanges:
        if exchange.envelope["kind"] == "sum" and exchange.envelope["stage"]["name"] not in ("masked", "unmask"):
            spec = SumSpec.read(exchange.envelope["sum"])
            longest = max((array.size for array in exchange.reply_arrays if array.dtype.itemsize == 8), default=0)
            assert longest < max(2, spec.length), f"{exchange}: a vector of the sum leaves a client without a mask"
