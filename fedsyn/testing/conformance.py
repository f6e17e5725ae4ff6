"""`check_mechanism`: what every mechanism must keep, whatever it computes, on tables that are awkward in one way each.

    from fedsyn.testing import check_mechanism
    check_mechanism("my_mechanism")

runs the registered mechanism in the in-process engine and raises one AssertionError that lists every failed check.
`mechanism_checks` yields the same checks one by one, for a test framework to parametrize over. Each check is a
function of a `Bench` below; its docstring says what must hold.

The two strongest checks replay a run on other rows with the ledgers' outputs held fixed. What then still differs has
come past the ledger (`check_released_values_only`); how far the values that enter the ledger differ for one row more
or less is their sensitivity (`check_sensitivity`). They look at one run: a failure is a proof, a pass is evidence.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, FedsynError
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL
from fedsyn.registry import client_class, strategy_class
from fedsyn.testing import harness
from fedsyn.testing.accounting import rho_of_entries, within_budget
from fedsyn.testing.harness import SERVER, Draw, Federation, Outcome, config_of, execute, federation_of, finished
from fedsyn.testing.schemas import AwkwardTable, awkward_names, awkward_table

Tables = Iterable[str | AwkwardTable] | None
STATEMENT_TITLES = (
    "Unit",
    "Public",
    "Trusted not to collude",
    "The server sees",
    "A client sees",
    "Cost of each release",
    "Sampler",
)


# Entry points ------------------------------------------------------------------------------------------------------


def check_mechanism(name: str, *, tables: Tables = None, options: Mapping[str, Any] | None = None) -> None:
    """Runs every conformance check of a registered mechanism.

    Args:
        name: the mechanism's registered name.
        tables: names of awkward tables, or tables; all awkward tables when omitted.
        options: the mechanism's options; its own defaults, but only 2 `rounds`, when omitted.

    Raises:
        AssertionError: one or more checks failed; the message lists all of them.
        ConfigError: no such mechanism, or options that it refuses.
    """
    failures: dict[tuple[str, str], list[str]] = {}  # checks that fail for one reason make one line
    for check in mechanism_checks(name, tables=tables, options=options):
        try:
            check()
        except Exception as error:  # also what a mechanism throws by mistake is a finding
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            failures.setdefault((check.bench.table.name, f"{kind}{error}"), []).append(check.name)
    if failures:
        lines = [f"  {table}: {', '.join(checks)}: {reason}" for (table, reason), checks in failures.items()]
        total = sum(len(checks) for checks in failures.values())
        raise AssertionError(f"mechanism '{name}' fails {total} conformance check(s):\n" + "\n".join(lines))


def mechanism_checks(
    name: str, *, tables: Tables = None, options: Mapping[str, Any] | None = None
) -> Iterator[ConformanceCheck]:
    """The single checks of `check_mechanism`, each a callable that raises AssertionError.

    Checks of one table share its runs, so they are fastest one after the other in one process.
    """
    strategy_class(name), client_class(name)
    given = awkward_names() if tables is None else tables
    all_tables = [awkward_table(table) if isinstance(table, str) else table for table in given]
    for number, table in enumerate(all_tables):
        bench = Bench(name, table, options)
        for run in _PER_TABLE + (_ONCE if number == 0 else ()):
            yield ConformanceCheck(run.__name__.removeprefix("check_"), bench, run)


@dataclass(frozen=True)
class ConformanceCheck:
    """One check on one table. `str` is 'table: check'."""

    name: str
    bench: Bench
    run: Callable[[Bench], None]

    def __call__(self) -> None:
        self.run(self.bench)

    def __str__(self) -> str:
        return f"{self.bench.table.name}: {self.name}"


@dataclass
class Bench:
    """A mechanism on one table, and the runs that several checks look at."""

    name: str
    table: AwkwardTable
    options: Mapping[str, Any] | None
    _runs: dict[str, Outcome] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.strategy = strategy_class(self.name)
        self.federation = federation_of(self.table, self.strategy.central)

    def config(self, **nodes: Any) -> RunConfig:
        return config_of(self.name, len(self.federation.parts), self.options, **nodes)

    def base(self, **nodes: Any) -> Outcome:
        """The ordinary run (seed 0, noise by the server, public sizes), or that of another configuration; run once."""
        key = json.dumps(nodes, sort_keys=True)
        if key not in self._runs:
            self._runs[key] = execute(self.config(**nodes), self.federation)
        return finished(self._runs[key])

    def supported(self, **nodes: Any) -> RunConfig | None:
        """The configuration, or None if the mechanism's own `check` refuses it: that is an answer too."""
        try:
            return self.config(**nodes)
        except ConfigError:
            return None


# Ledgers -----------------------------------------------------------------------------------------------------------


def check_ledger(bench: Bench) -> None:
    """Ledgers of server and clients are within budget by a second account, and name every release."""
    base = bench.base()
    _ledgers_hold(base)
    total = rho_of_entries(base.strategy.ledger.report()["releases"])
    for partition, ledger in sorted(base.ledgers.items()):
        spent = rho_of_entries(ledger.report()["releases"])
        assert spent <= total * (1 + 1e-9), (
            f"client {partition} released rho = {spent:.6g}, but the server's ledger accounts for {total:.6g} only"
        )


def _ledgers_hold(outcome: Outcome) -> None:
    """The server's ledger speaks for the row that is worst off, so no client's ledger may exceed it."""
    privacy = outcome.config.privacy
    report = outcome.strategy.ledger.report()
    _report_holds(report, privacy.epsilon, privacy.delta, "the server's ledger")
    assert report["releases"], "the server's ledger is empty: a run that releases nothing cannot learn anything"
    accounted = _rho_by_name(report["releases"])
    for partition, ledger in sorted(outcome.ledgers.items()):
        own = ledger.report()
        _report_holds(own, privacy.epsilon, privacy.delta, f"the ledger of client {partition}")
        # A promise is for a sum that the others' replies decide upon; what a client drew itself has left it.
        drawn = [entry for entry in own["releases"] if entry["noise_by"] == own["noise_by"]]
        for name, spent in _rho_by_name(drawn).items():
            held = accounted.get(name, 0.0)
            assert spent <= held * (1 + 1e-9), (
                f"client {partition} released rho = {spent:.6g} as '{name}', the server's ledger has {held:.6g} for it"
            )


def _rho_by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(entry["name"] for entry in entries)
    return {name: rho_of_entries(entry for entry in entries if entry["name"] == name) for name in names}


def _report_holds(report: Mapping[str, Any], epsilon: float, delta: float, whose: str) -> None:
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


# Reproducibility ---------------------------------------------------------------------------------------------------


def check_reproducible(bench: Bench) -> None:
    """The same seed gives the same synthetic table and model, bit for bit; another seed gives other noise."""
    base = bench.base()
    _same(base, finished(execute(bench.config(), bench.federation)), "the same seed, run twice,")
    other = finished(execute(bench.config(runtime={"seed": 1}), bench.federation))
    assert _gaussian_outputs(base) != _gaussian_outputs(other), "two seeds give the same noise"


def check_order_of_replies(bench: Bench) -> None:
    """The order in which clients work and replies arrive changes nothing."""
    for nodes in ({}, {"federation": {"participation": 0.6}}, {"aggregation": {"noise": "local"}}):
        config = bench.supported(**nodes)
        if config is not None:
            straight = bench.base(**nodes)
            turned = finished(execute(config, bench.federation, reverse=True))
            _same(straight, turned, f"another order of replies ({nodes or 'as configured'})")


def _same(one: Outcome, two: Outcome, what: str) -> None:
    assert _equal_arrays(one.arrays, two.arrays), f"{what} gives another model"
    assert np.array_equal(one.synthetic, two.synthetic), f"{what} gives another synthetic table"
    releases = [[release.to_dict() for release in o.strategy.ledger.releases] for o in (one, two)]
    assert releases[0] == releases[1], f"{what} gives another ledger"


def _equal_arrays(one: Mapping[str, np.ndarray], two: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(one[key].tobytes() == two[key].tobytes() for key in one)


def _gaussian_outputs(outcome: Outcome) -> list[bytes]:
    draws = [draw for party in sorted(outcome.tape.draws) for draw in outcome.tape.draws[party]]
    outputs = [draw.output for draw in draws if draw.kind == "gaussian"]
    return [np.asarray(a).tobytes() for out in outputs for a in (out if isinstance(out, list) else [out])]


# Clients that fail -------------------------------------------------------------------------------------------------


def check_failing_client(bench: Bench) -> None:
    """A client that raises at every message costs only itself; without any client left the run says so."""
    if bench.strategy.central:
        outcome = execute(bench.config(), bench.federation, raising=[0])
        assert outcome.error is not None, "a run whose only client always fails must end with an error"
        return
    outcome = finished(execute(bench.config(), bench.federation, raising=[1]))
    assert 1 not in outcome.strategy.clients, "a client that never answered counts as joined"
    assert outcome.strategy.records[0].notes, "a client that could not join is not recorded"
    _ledgers_hold(outcome)


def check_vanishing_client(bench: Bench) -> None:
    """A client that answers no more after some replies is recorded as dropped, and the run ends."""
    for after in (1, 2, 3):
        outcome = execute(bench.config(), bench.federation, faults={0: harness.vanish(after)})
        _survived(bench, outcome, f"client 0 gone after {after} replies")
        vanished = len([e for e in outcome.tape.exchanges if e.partition == 0]) > after
        assert not vanished or 0 in outcome.dropped, f"client 0 gone after {after} replies is not recorded as dropped"


def check_everyone_vanishes(bench: Bench) -> None:
    """When all clients are gone, the run ends with what it has, or with an error of fedsyn's own."""
    for after in (1, 2):
        gone = dict.fromkeys(range(len(bench.federation.parts)), harness.vanish(after))
        outcome = execute(bench.config(), bench.federation, faults=gone)
        if outcome.strategy.ledger.releases:
            _ledgers_hold(outcome)


def check_malformed_client(bench: Bench) -> None:
    """Whatever nonsense a client replies, it is dropped: the run goes on as if that reply had not come."""
    faults = [(2, 0), *((1, kind) for kind in range(harness.GARBAGE_KINDS))]
    missing = {after: execute(bench.config(), bench.federation, faults={0: harness.vanish(after)}) for after in (1, 2)}
    for after, kind in faults:
        outcome = execute(bench.config(), bench.federation, faults={0: harness.garble(after, kind)})
        what = f"client 0 replying nonsense (kind {kind}) after {after} replies"
        _survived(bench, outcome, what)
        talked = len([e for e in outcome.tape.exchanges if e.partition == 0]) > after
        assert not talked or 0 in outcome.dropped, f"{what} is not recorded as dropped"
        assert _equal_arrays(outcome.arrays, missing[after].arrays), f"{what} changes the result of the others"


def _survived(bench: Bench, outcome: Outcome, what: str) -> None:
    if not bench.strategy.central:
        assert outcome.error is None, f"{what}: the run failed: {outcome.error}"
    if outcome.strategy.ledger.releases:
        _ledgers_hold(outcome)


# The synthetic table -----------------------------------------------------------------------------------------------


def check_synthetic_table(bench: Bench) -> None:
    """The synthetic table has the schema's columns and values and the right number of rows."""
    base = bench.base()
    model, schema = base.strategy.model, bench.table.schema
    assert model is not None
    shape = np.array(schema.domain.shape)
    assert base.synthetic.shape == (max(1, round(model.total)), len(shape)), "the model samples another number of rows"
    assert abs(model.total - bench.federation.rows) <= 0.5, (
        f"row counts are public and sum to {bench.federation.rows}, the model's total is {model.total:g}"
    )
    assert np.all(base.synthetic >= 0) and np.all(base.synthetic < shape), "synthetic codes leave the domain"
    frame = schema.decode(base.synthetic, np.random.default_rng(0))
    assert list(frame.columns) == list(schema.columns), "the synthetic table has other columns than the schema"
    assert list(frame.dtypes) == list(bench.table.frame.dtypes), "the synthetic table has other types than the schema's"
    assert np.array_equal(schema.encode(frame), base.synthetic), "the synthetic table does not encode to its own codes"
    for name in schema.domain:
        marginal = model.project((name,))
        assert np.all(np.isfinite(marginal)) and np.all(marginal >= 0), (
            f"the model's marginal of '{name}' is no marginal"
        )
        assert np.isclose(marginal.sum(), model.total), f"the model's marginal of '{name}' does not sum to its total"
    more = finished(execute(bench.config(synthesis={"rows": 7}), bench.federation))
    assert len(more.synthetic) == 7, "synthesis.rows is not the number of synthetic rows"


# Where noise comes from --------------------------------------------------------------------------------------------


def check_private_without_a_seed(bench: Bench) -> None:
    """Without a seed all noise comes from the operating system and the ledger says private; with one it does not."""
    seeded = bench.base().strategy.ledger
    assert not seeded.private and SEEDED_LABEL in seeded.caveats, "a seeded run is not labelled as not private"
    runs = [finished(execute(bench.config(runtime={"seed": None}), bench.federation)) for _ in range(2)]
    for outcome in runs:
        for release in outcome.strategy.ledger.releases:
            assert release.sampler != SEEDED_LABEL, f"release '{release.name}' is seeded in a run without a seed"
        statement = outcome.strategy.ledger.statement
        assert statement is not None and statement.sampler == OS_LABEL, "the statement names another sampler"
        for ledger in outcome.ledgers.values():
            assert ledger.private, "a client's ledger is not private in a run without a seed"
        _ledgers_hold(outcome)
    caveats = runs[0].strategy.ledger.caveats
    assert not caveats or not _declared_private(bench), f"a run without a seed is not private: {'; '.join(caveats)}"
    assert _gaussian_outputs(runs[0]) != _gaussian_outputs(runs[1]), "two runs without a seed draw the same noise"


def _declared_private(bench: Bench) -> bool:
    """Baselines that read exact data say so in every ledger; of them only the rest is checked."""
    return not [caveat for caveat in bench.base().strategy.ledger.caveats if caveat != SEEDED_LABEL]


def check_private_sizes(bench: Bench) -> None:
    """`client_sizes: private` works, and the sizes are paid for."""
    nodes = {"privacy": {"client_sizes": "private"}}
    if bench.supported(**nodes) is None:
        return
    outcome = bench.base(**nodes)
    _ledgers_hold(outcome)
    paid = [r for r in outcome.strategy.ledger.releases if r.name == "sizes"]
    assert len(paid) == 1 and paid[0].rho > 0, "private sizes are not in the server's ledger"
    for partition, ledger in outcome.ledgers.items():
        own = [r for r in ledger.releases if r.name == "sizes"]
        assert sum(r.count for r in own) == 1, f"client {partition} did not pay for its size exactly once"
    assert not outcome.tape.problems, "; ".join(outcome.tape.problems)


def check_local_noise(bench: Bench) -> None:
    """`noise: local` works: the clients draw the noise of every sum, and their ledgers hold it."""
    nodes = {"aggregation": {"noise": "local"}}
    if bench.supported(**nodes) is None:
        return
    outcome = bench.base(**nodes)
    _ledgers_hold(outcome)
    drawn = [draw.name for draw in outcome.tape.draws.get(SERVER, [])]
    assert not drawn, f"with local noise the server still drew noise of its own: {', '.join(sorted(set(drawn)))}"
    assert not outcome.tape.problems, "; ".join(outcome.tape.problems)


# Replays on other rows ---------------------------------------------------------------------------------------------


def check_released_values_only(bench: Bench) -> None:
    """Replies to an `Ask`, requests and the model depend on the rows through what the ledgers released, only."""
    if not _declared_private(bench):
        return
    for nodes in _replayed_nodes():
        config = bench.supported(**nodes)
        if config is not None:
            first = bench.base(**nodes)
            again = execute(config, bench.federation.other_rows(), script=first.tape.draws)
            _post_processed(config, first, again, "other rows")


def check_sensitivity(bench: Bench) -> None:
    """One row changes what enters a ledger by no more than the entry says.

    With public sizes a row is exchanged for another (twice the sensitivity); with private ones it is added or removed.
    """
    if not _declared_private(bench):
        return
    for nodes in _replayed_nodes():
        config = bench.supported(**nodes)
        if config is None:
            continue
        private = config.privacy.client_sizes == "private"
        first = bench.base(**nodes)
        for what, neighbour in _neighbours(bench.federation, private):
            again = execute(config, neighbour, script=first.tape.draws)
            _post_processed(config, first, again, what)
            for party in sorted(first.tape.draws):
                for one, two in zip(first.tape.draws[party], again.tape.draws.get(party, []), strict=True):
                    _moved_at_most(one, two, 1.0 if private else 2.0, f"{party}, {what}")


def _replayed_nodes() -> list[dict[str, Any]]:
    return [
        {},
        {"privacy": {"client_sizes": "private"}},
        {"privacy": {"client_sizes": "private"}, "aggregation": {"noise": "local"}},
    ]


def _neighbours(federation: Federation, private: bool) -> Iterator[tuple[str, Federation]]:
    """Federations that differ in one row: of the client with most rows, and of the one with none."""
    shape = np.array(federation.domain.shape)
    last = len(federation.parts) - 1
    for row_name, row in (("the last cell", shape - 1), ("the first cell", shape * 0)):
        new = row[None, :].astype(federation.parts[0].dtype)
        part = federation.parts[0]
        if private:
            yield f"a row in {row_name} added to client 0", federation.with_part(0, np.concatenate([part, new]))
            grown = np.concatenate([federation.parts[last], new])
            yield f"a row in {row_name} added to client {last}", federation.with_part(last, grown)
        else:
            yield f"a row of client 0 moved to {row_name}", federation.with_part(0, np.concatenate([part[1:], new]))
    if private:
        yield "a row of client 0 removed", federation.with_part(0, federation.parts[0][1:])


def _post_processed(config: RunConfig, first: Outcome, again: Outcome, what: str) -> None:
    """Asserts that a replay on other rows shows the same outside of the ledgers."""
    assert not again.tape.problems, f"{what}, with every release held fixed: {again.tape.problems[0]}"
    pairs = (_by_client(first), _by_client(again))
    assert pairs[0].keys() == pairs[1].keys() and all(len(pairs[0][k]) == len(pairs[1][k]) for k in pairs[0]), (
        f"{what}, with every release held fixed, lead to another number of requests"
    )
    exact = config.aggregation.noise == "server"  # then a contribution to a sum is exact, and protected by the sum
    for partition in pairs[0]:
        for one, two in zip(pairs[0][partition], pairs[1][partition], strict=True):
            same = one.envelope == two.envelope and _equal(one.arrays, two.arrays)
            assert same, f"{what}, with every release held fixed, change the request {one}"
            if one.envelope["kind"] == "sum" and exact:
                assert one.reply["ok"] == two.reply["ok"], f"{what} decide whether {one} is answered"
                continue
            same = one.reply == two.reply and _equal(one.reply_arrays, two.reply_arrays)
            assert same, (
                f"{what}, with every release held fixed, change the reply to {one}: it shows more than it released"
            )
    assert _equal_arrays(first.arrays, again.arrays), f"{what}, with every release held fixed, change the model"


def _by_client(outcome: Outcome) -> dict[int, list[harness.Exchange]]:
    grouped: dict[int, list[harness.Exchange]] = {}
    for exchange in outcome.tape.exchanges:
        grouped.setdefault(exchange.partition, []).append(exchange)
    return grouped


def _equal(one: Sequence[np.ndarray], two: Sequence[np.ndarray]) -> bool:
    pairs = zip(one, two, strict=False)
    return len(one) == len(two) and all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _moved_at_most(one: Draw, two: Draw, factor: float, where: str) -> None:
    """Asserts that the inputs of two releases differ by at most `factor` times what the entry allows."""
    what = f"'{one.name}' of round {one.round} ({where})"
    allowed = factor * one.sensitivity * (1 + 1e-9)
    if one.kind == "exponential":
        with np.errstate(invalid="ignore"):
            moved = np.nan_to_num(np.abs(one.inputs[0] - two.inputs[0]), nan=0.0)  # -inf stays -inf
        slack = 1e-9 * float(np.max(np.abs(one.inputs[0][np.isfinite(one.inputs[0])]), initial=1.0))
        assert moved.max() <= allowed + slack, (
            f"{what}: one row moves a score by {moved.max():.6g}, the ledger says {one.sensitivity:.6g}"
        )
        return
    moves = [float(np.linalg.norm((a - b).astype(np.float64))) for a, b in zip(one.inputs, two.inputs, strict=True)]
    touched = sum(move > 1e-9 for move in moves)
    assert max(moves) <= allowed + 1e-9, (
        f"{what}: one row moves an array by {max(moves):.6g}, the ledger says {one.sensitivity:.6g}"
    )
    assert touched <= factor * one.count, f"{what}: one row touches {touched} arrays, the ledger says {one.count}"


# Servers that are not to be trusted ------------------------------------------------------------------------------------


def check_client_refuses(bench: Bench) -> None:
    """A client refuses another configuration, unknown requests and nonsense, and never raises."""
    base = bench.base()
    for original in _one_of_each_request(base):
        client = _client_after(bench, base, original)
        for change in ({"config": "0" * 64}, {"request": "give me the table"}, {"version": 99}, {"kind": "order"}):
            reply = _fit(client, {**original.envelope, **change}, original.arrays)
            assert reply["ok"] is False, f"{original}: a request with {next(iter(change))} changed is answered"
            assert not client.ledger.releases, f"{original}: a request with {next(iter(change))} changed is charged"
        swapped = "sum" if original.envelope["kind"] == "ask" else "ask"
        reply = _fit(client, {**original.envelope, "kind": swapped}, original.arrays)
        assert reply["ok"] is False, f"{original}: answered as '{swapped}', it would skip the protection of its kind"
        for params in ({}, {key: "nonsense" for key in original.envelope["params"]}):
            for arrays in ((), (np.full(3, np.nan), np.array([2**62]))):
                _fit(client, {**original.envelope, "params": params}, arrays)
        _report_holds(
            client.ledger.report(), base.config.privacy.epsilon, base.config.privacy.delta, "a client's ledger"
        )


def check_repeated_requests(bench: Bench) -> None:
    """A server that repeats its requests cannot make a client spend more than the budget."""
    base = bench.base()
    requests = [exchange for exchange in base.tape.exchanges if exchange.partition == 0]
    client = _client_after(bench, base, requests[0])
    for _ in range(6):
        for exchange in requests:
            _fit(client, exchange.envelope, exchange.arrays)
    _report_holds(client.ledger.report(), base.config.privacy.epsilon, base.config.privacy.delta, "a client's ledger")


def _one_of_each_request(outcome: Outcome) -> list[harness.Exchange]:
    return list({e.envelope["request"]: e for e in outcome.tape.exchanges if e.partition == 0}.values())


def _client_after(bench: Bench, base: Outcome, exchange: harness.Exchange) -> Any:
    """A fresh client, as at the start of a run."""
    from fedsyn.protocol.client import Holder
    from fedsyn.randomness import Randomness

    federation = bench.federation
    codes = federation.parts[exchange.partition]
    schema_hash = federation.table.schema.sha256
    holder = Holder(exchange.partition, codes, federation.domain, schema_hash, Randomness(0))
    return client_class(bench.name)(base.config, holder)


def _fit(client: Any, envelope: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> dict[str, Any]:
    from fedsyn.protocol.messages import ANSWER, ENVELOPE, to_json

    _, examples, metrics = client.fit(list(arrays), {ENVELOPE: to_json(envelope)})
    assert examples == 0, "a reply states a number of examples: row counts travel only where they may"
    reply: dict[str, Any] = json.loads(metrics[ANSWER])
    return reply


# Once per mechanism --------------------------------------------------------------------------------------------------


def check_statement(bench: Bench) -> None:
    """The docstring ends with a privacy statement in the fixed form, and the ledger repeats one for the run."""
    document = (bench.strategy.__doc__ or "").partition("Privacy statement.")[2]
    assert document, "the strategy's docstring has no 'Privacy statement.'"
    lines = [line.strip() for line in document.strip().splitlines()]
    found = [line.partition(":")[0] for line in lines if line.partition(":")[0] in STATEMENT_TITLES]
    assert tuple(found) == STATEMENT_TITLES, f"the privacy statement must have, in order: {', '.join(STATEMENT_TITLES)}"
    first = "Unit:" if _declared_private(bench) else "NOT PRIVATE:"
    assert lines[0].startswith(first), f"the privacy statement must begin with '{first}'"
    assert all(lines), "the docstring must end with the privacy statement"
    statement = bench.base().strategy.ledger.report()["statement"]
    assert statement and all(str(text).strip() for text in statement.values()), "the run's statement is incomplete"
    assert statement["sampler"] == SEEDED_LABEL, "the run's statement does not name its sampler"


def check_options(bench: Bench) -> None:
    """An unknown option is refused with a ConfigError."""
    try:
        config_of(bench.name, len(bench.federation.parts), {"no_such_option_anywhere": 1})
    except ConfigError:
        return
    raise AssertionError("an unknown option is accepted")


def check_run_directory(bench: Bench) -> None:
    """The real client app and `fedsyn.run` give the result of the other checks, and a complete run directory."""
    import pandas as pd

    from fedsyn.client_app import app
    from fedsyn.data import write_encoded
    from fedsyn.flower import InProcessGrid
    from fedsyn.run import Prepared, finish, load_model, run_config_of, serve

    base, schema = bench.base(), bench.table.schema
    clients = len(bench.federation.parts)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        bounds = np.cumsum([0, *(len(part) for part in bench.federation.parts)])
        rows = [np.arange(bounds[k], bounds[k + 1]) for k in range(clients)]
        write_encoded(out, np.concatenate(bench.federation.parts), schema.domain, rows)
        prepared = Prepared(out, schema, True, clients, bench.table.name).save()
        base.config.save(out / "config.yaml")
        nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
        grid = InProcessGrid(app, nodes, run_config_of(base.config, store=out))
        strategy = serve(base.config, prepared, grid, out, None)
        finish(base.config, prepared, strategy, out, 0.0)
        assert strategy.model is not None
        assert _equal_arrays(strategy.model.to_arrays(), base.arrays), "the real client app gives another model"
        loaded = load_model(out / "model.npz").to_arrays()
        assert _equal_arrays(loaded, base.arrays), "model.npz does not hold the model"
        frame = pd.read_csv(out / "synthetic.csv", keep_default_na=False, dtype=str)
        assert list(frame.columns) == list(schema.columns) and len(frame) == len(base.synthetic), (
            "synthetic.csv has other columns or another number of rows than the synthetic table"
        )
        ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
        assert ledger["releases"] == json.loads(json.dumps(base.strategy.ledger.report()["releases"])), (
            "ledger.json does not hold the run's releases"
        )


_PER_TABLE: tuple[Callable[[Bench], None], ...] = (
    check_ledger,
    check_noise_comes_through_the_ledger,
    check_reproducible,
    check_order_of_replies,
    check_failing_client,
    check_vanishing_client,
    check_everyone_vanishes,
    check_malformed_client,
    check_synthetic_table,
    check_private_without_a_seed,
    check_private_sizes,
    check_local_noise,
    check_released_values_only,
    check_sensitivity,
    check_client_refuses,
    check_repeated_requests,
    check_run_directory,
)
_ONCE: tuple[Callable[[Bench], None], ...] = (check_statement, check_options)

__all__ = ["STATEMENT_TITLES", "ConformanceCheck", "FedsynError", "check_mechanism", "mechanism_checks"]
