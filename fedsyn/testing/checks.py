"""The conformance checks, one function each; the docstring says what must hold. Replays are in `replay.py`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.errors import ConfigError
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL, Randomness
from fedsyn.registry import client_class
from fedsyn.testing import harness
from fedsyn.testing.accounting import rho_of_entries, within_budget
from fedsyn.testing.bench import Bench, declared_private, equal_arrays
from fedsyn.testing.harness import SERVER, Outcome, config_of, execute, finished
from fedsyn.testing.replay import check_released_values_only, check_sensitivity
from fedsyn.wire.envelope import ANSWER, ENVELOPE, SumSpec, to_json
from fedsyn.wire.holder import Holder

STATEMENT_TITLES = (
    "Unit",
    "Public",
    "Trusted not to collude",
    "The server sees",
    "A client sees",
    "Cost of each release",
    "Sampler",
)


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
    assert equal_arrays(one.arrays, two.arrays), f"{what} gives another model"
    assert np.array_equal(one.synthetic, two.synthetic), f"{what} gives another synthetic table"
    releases = [[release.to_dict() for release in o.strategy.ledger.releases] for o in (one, two)]
    assert releases[0] == releases[1], f"{what} gives another ledger"


def _gaussian_outputs(outcome: Outcome) -> list[bytes]:
    draws = [draw for party in sorted(outcome.tape.draws) for draw in outcome.tape.draws[party]]
    outputs = [draw.output for draw in draws if draw.kind == "gaussian"]
    return [np.asarray(a).tobytes() for out in outputs for a in (out if isinstance(out, list) else [out])]


# Clients that fail -------------------------------------------------------------------------------------------------


def check_failing_client(bench: Bench) -> None:
    """A client that raises at every message costs only itself; without any client left the run says so."""
    if bench.contract.central:
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
        assert equal_arrays(outcome.arrays, missing[after].arrays), f"{what} changes the result of the others"


def _survived(bench: Bench, outcome: Outcome, what: str) -> None:
    if not bench.contract.central:
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
    assert not caveats or not declared_private(bench), f"a run without a seed is not private: {'; '.join(caveats)}"
    assert _gaussian_outputs(runs[0]) != _gaussian_outputs(runs[1]), "two runs without a seed draw the same noise"


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


def check_distributed_noise(bench: Bench) -> None:
    """`noise: distributed` works: only clients draw noise, and a secure sum opens the same totals, bit for bit."""
    plain = {"aggregation": {"noise": "distributed"}}
    secure = {"aggregation": {"noise": "distributed", "protocol": "secagg"}}
    if bench.supported(**plain) is None or bench.supported(**secure) is None:
        return
    simulated, outcome = bench.base(**plain), bench.base(**secure)
    for one in (simulated, outcome):
        _ledgers_hold(one)
        drawn = [draw.name for draw in one.tape.draws.get(SERVER, [])]
        assert not drawn, f"with distributed noise the server drew noise of its own: {', '.join(sorted(set(drawn)))}"
        assert not one.tape.problems, "; ".join(one.tape.problems)
    _same(simulated, outcome, "a secure sum in place of its simulation")
    if len(bench.federation.parts) > 1:
        _masked_only(outcome)


def _masked_only(outcome: Outcome) -> None:
    """Of a secure sum nothing but masked vectors has the length of the sum."""
    for exchange in outcome.tape.exchanges:
        if exchange.envelope["kind"] == "sum" and exchange.envelope["stage"]["name"] != "masked":
            spec = SumSpec.read(exchange.envelope["sum"])
            longest = max((array.size for array in exchange.reply_arrays if array.dtype.itemsize == 8), default=0)
            assert longest < max(2, spec.length), f"{exchange}: a vector of the sum leaves a client without a mask"


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
        _report_holds(
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
    _report_holds(client.ledger.report(), base.config.privacy.epsilon, base.config.privacy.delta, "a client's ledger")


def _one_of_each_request(outcome: Outcome) -> list[harness.Exchange]:
    return list({e.envelope["request"]: e for e in outcome.tape.exchanges if e.partition == 0}.values())


def _fresh_client(bench: Bench, base: Outcome, exchange: harness.Exchange) -> Any:
    """The client of an exchange, as at the start of a run."""
    federation = bench.federation
    codes = federation.parts[exchange.partition]
    schema_hash = federation.table.schema.sha256
    holder = Holder(exchange.partition, codes, federation.domain, schema_hash, Randomness(0))
    return client_class(bench.name)(base.config, holder)


def _fit(client: Any, envelope: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> dict[str, Any]:
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
    first = "Unit:" if declared_private(bench) else "NOT PRIVATE:"
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
    """The real client app and `fedsyn.runs` give the result of the other checks, and a complete run directory."""
    import pandas as pd

    from fedsyn.data import write_encoded
    from fedsyn.flower.grid import InProcessGrid
    from fedsyn.runs.directory import load_model
    from fedsyn.runs.finish import finish
    from fedsyn.runs.holders import app
    from fedsyn.runs.prepare import Prepared
    from fedsyn.runs.run_config import run_config_of
    from fedsyn.runs.serve import serve

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
        assert equal_arrays(strategy.model.to_arrays(), base.arrays), "the real client app gives another model"
        loaded = load_model(out / "model.npz").to_arrays()
        assert equal_arrays(loaded, base.arrays), "model.npz does not hold the model"
        frame = pd.read_csv(out / "synthetic.csv", keep_default_na=False, dtype=str)
        assert list(frame.columns) == list(schema.columns) and len(frame) == len(base.synthetic), (
            "synthetic.csv has other columns or another number of rows than the synthetic table"
        )
        ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
        assert ledger["releases"] == json.loads(json.dumps(base.strategy.ledger.report()["releases"])), (
            "ledger.json does not hold the run's releases"
        )


PER_TABLE: tuple[Callable[[Bench], None], ...] = (
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
    check_distributed_noise,
    check_released_values_only,
    check_sensitivity,
    check_client_refuses,
    check_repeated_requests,
    check_run_directory,
)
ONCE: tuple[Callable[[Bench], None], ...] = (check_statement, check_options)
