"""Conformance checks of every run.

A run must stay within its ledgers, survive a client that fails, and make a table of the schema.

The result is the same for the same seed, whatever the order of replies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.front.testing.bench import Bench, Nodes, equal_arrays, under
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.faults import GARBAGE_KINDS, garble, vanish
from fedsyn.front.testing.harness import Outcome, execute, finished
from fedsyn.privacy import Ledger, Release
from fedsyn.privacy.release import UNKNOWN_SAMPLER, of_the_worst

# Ledgers: no more than the budget, every release by its name, all noise that is drawn ---------------------------------


def check_ledger(bench: Bench) -> None:
    """Requires ledgers within budget that agree with each other.

    The ledgers of server and clients name every release.
    """
    base = bench.base()
    ledgers_hold(base)
    total = base.strategy.ledger.spent_rho
    for partition, ledger in sorted(base.ledgers.items()):
        assert ledger.spent_rho <= total * (1 + 1e-9), (
            f"client {partition} released rho = {ledger.spent_rho:.6g}, but the server's ledger accounts for "
            f"{total:.6g} only"
        )


def ledgers_hold(outcome: Outcome) -> None:
    """Asserts that no client's ledger exceeds the server's.

    The server's ledger speaks for the row that is worst off.
    """
    ledger = outcome.strategy.ledger
    ledger_holds(ledger, outcome.config, "the server's ledger")
    assert ledger.releases, "the server's ledger is empty: a run that releases nothing cannot learn anything"
    # What the server accounts for bounds what each client releases, name by name.
    accounted, promised = _rho_by_name(ledger.releases), _sensitivity_by_name(ledger.releases)
    for partition, client_ledger in sorted(outcome.ledgers.items()):
        ledger_holds(client_ledger, outcome.config, f"the ledger of client {partition}")
        # A promise is for a sum that the others' replies decide upon; what a client drew itself has left it.
        drawn = [release for release in client_ledger.releases if release.noise_by == client_ledger.noise_by]
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


def _rho_by_name(releases: Sequence[Release]) -> dict[str, float]:
    named: dict[str, list[Release]] = {}
    for release in releases:
        named.setdefault(release.name, []).append(release)
    return {name: of_the_worst(group, [release.rho for release in group]) for name, group in named.items()}


def _sensitivity_by_name(releases: Sequence[Release]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for release in releases:
        largest[release.name] = max(release.sensitivity, largest.get(release.name, 0.0))
    return largest


def ledger_holds(ledger: Ledger, config: RunConfig, whose: str) -> None:
    """Asserts that a ledger is within the budget of the run.

    Its releases must have names and samplers.
    """
    for release in ledger.releases:
        assert release.name.strip(), f"{whose} has a release without a name"
        assert release.sampler != UNKNOWN_SAMPLER, f"{whose}: '{release.name}' does not say where noise is from"
    privacy = config.privacy
    assert ledger.epsilon(privacy.delta) <= privacy.epsilon * (1 + 1e-9), (
        f"{whose} exceeds epsilon = {privacy.epsilon:g} at delta = {privacy.delta:g}"
    )


def check_noise_comes_through_the_ledger(bench: Bench) -> None:
    """Requires that no noise is drawn outside a ledger entry.

    No stream of noise may be drawn twice.
    """
    problems = list(dict.fromkeys(bench.base().tape.problems))
    assert not problems, "; ".join(problems)


# Clients that fail -------------------------------------------------------------------------------------------------


def check_everybody_answers(bench: Bench) -> None:
    """Requires that every client answers every request.

    It must in an ordinary run, whatever its rows are and if it has none.
    """
    base = bench.base()
    for record in base.strategy.records:
        for partition, reason in record.dropped.items():
            raise AssertionError(f"client {partition} is dropped from an ordinary run: {reason}") from base.cause


def check_failing_client(bench: Bench) -> None:
    """Requires that a failing client costs only itself.

    It raises at every message. Without any client left, the run must say so.
    """
    if bench.contract.central:
        outcome = execute(bench.config(), bench.federation, raising=[0])
        assert outcome.error is not None, "a run whose only client always fails must end with an error"
        return
    outcome = finished(execute(bench.config(), bench.federation, raising=[1]))
    assert 1 not in outcome.strategy.clients, "a client that never answered counts as joined"
    assert outcome.strategy.records[0].not_joined, "a client that could not join is not recorded"
    ledgers_hold(outcome)


def check_vanishing_client(bench: Bench) -> None:
    """Requires that a vanished client is dropped, and the run ends.

    The client answers no more after some replies. It must be recorded as dropped.
    """
    for after in _before_the_end(bench, 1, 2, 3):
        outcome = execute(bench.config(), bench.federation, faults={0: vanish(after)})
        _survived(bench, outcome, f"client 0 gone after {after} replies")


def _before_the_end(bench: Bench, *replies: int) -> list[int]:
    """Returns the reply counts after which client 0 is asked again.

    They are those among `replies` for which the ordinary run does so. Raises `Skipped` if there are
    none.
    """
    requests = bench.replies_of(0)
    counts = [after for after in replies if after < requests]
    if not counts:
        raise Skipped(f"clients are asked {requests} time(s) only")
    return counts


def check_everyone_vanishes(bench: Bench) -> None:
    """Requires an orderly end when all clients are gone.

    The run ends with what it has, or with an error of fedsyn's own.
    """
    for after in _before_the_end(bench, 1, 2):
        gone = dict.fromkeys(range(len(bench.federation.parts)), vanish(after))
        outcome = execute(bench.config(), bench.federation, faults=gone)
        if outcome.strategy.ledger.releases:
            ledgers_hold(outcome)


def check_malformed_client(bench: Bench) -> None:
    """Requires that a client that replies nonsense is dropped.

    The run must go on as if that reply had not come.
    """
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


# Results -----------------------------------------------------------------------------------------------------------


def check_reproducible(bench: Bench) -> None:
    """Requires equal results for equal seeds, bit for bit.

    Results are the synthetic table and the model. Another seed must give other noise.
    """
    base = bench.base()
    same(base, finished(execute(bench.config(), bench.federation)), "the same seed, run twice,")
    other = finished(execute(bench.config(runtime={"seed": 1}), bench.federation))
    assert noise_of(base) != noise_of(other), "two seeds give the same noise"


@under("as configured", "sampled cohorts", "local noise")
def check_order_of_replies(bench: Bench, nodes: Nodes) -> None:
    """Requires equal results for any order of work and replies."""
    bench.require_several()
    straight = bench.base(**nodes)
    turned = finished(execute(straight.config, bench.federation, reverse=True))
    same(straight, turned, "another order of replies")


def same(one: Outcome, two: Outcome, what: str) -> None:
    assert equal_arrays(one.arrays, two.arrays), f"{what} gives another model"
    assert np.array_equal(one.synthetic, two.synthetic), f"{what} gives another synthetic table"
    releases = [[release.to_dict() for release in o.strategy.ledger.releases] for o in (one, two)]
    assert releases[0] == releases[1], f"{what} gives another ledger"


def noise_of(outcome: Outcome) -> list[bytes]:
    """Returns the outputs of every release that carries Gaussian noise."""
    draws = [draw for party in sorted(outcome.tape.draws) for draw in outcome.tape.draws[party]]
    outputs = [draw.output for draw in draws if draw.kind == "gaussian"]
    return [np.asarray(a).tobytes() for out in outputs for a in (out if isinstance(out, list) else [out])]


def check_synthetic_table(bench: Bench) -> None:
    """Requires a synthetic table of the schema.

    It must have the schema's columns and values, and the right number of rows.
    """
    base = bench.base()
    model, schema = base.strategy.model, bench.table.schema
    assert model is not None
    shape = np.array(schema.domain.shape)
    assert base.synthetic.shape == (max(1, round(model.total)), len(shape)), "the model samples fewer or more rows"
    assert abs(model.total - bench.federation.rows) <= 0.5, (
        f"row counts are public and sum to {bench.federation.rows}, the model's total is {model.total:g}"
    )
    assert np.all(base.synthetic >= 0) and np.all(base.synthetic < shape), "synthetic codes leave the domain"
    frame = schema.decode(base.synthetic, np.random.default_rng(0))
    assert list(frame.columns) == list(schema.order), "the synthetic table has other columns than the schema"
    assert list(frame.dtypes) == list(bench.table.frame.dtypes), "the synthetic table has other types than the schema's"
    unlisted = np.array([column.size - 1 if column.unlisted else -1 for column in schema.columns.values()])
    written = (schema.encode(frame) == base.synthetic) | (base.synthetic == unlisted)  # which gets another value
    assert written.all(), "the synthetic table does not encode to its own codes"
    broken = {text: rows for text, rows in schema.violations(frame).items() if rows}
    assert not broken, f"the synthetic table breaks constraints of the schema: {broken}"
    for name in schema.domain:
        marginal = model.project((name,))
        assert np.all(np.isfinite(marginal)) and np.all(marginal >= 0), (
            f"the model's marginal of '{name}' is not a marginal"
        )
        assert np.isclose(marginal.sum(), model.total), f"the model's marginal of '{name}' does not sum to its total"
    more = finished(execute(bench.config(synthesis={"rows": 7}), bench.federation))
    assert len(more.synthetic) == 7, "synthesis.rows is not the number of synthetic rows"
