"""Conformance checks of what fedsyn promises for every mechanism, and no author of one can break.

`fedsyn.testing.check_mechanism` checks what a mechanism does; these check the bases, the protocols and the run around
it, on the same tables and runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.capabilities import MPC, SECAGG
from fedsyn.config import is_node
from fedsyn.errors import ConfigError
from fedsyn.flower.grid import InProcessGrid
from fedsyn.front.testing.bench import SETTINGS, Bench, Nodes, equal_arrays, under
from fedsyn.front.testing.checks.contributions import sums_of
from fedsyn.front.testing.checks.runs import ledger_holds, ledgers_hold, noise_of, same
from fedsyn.front.testing.conformance import ConformanceCheck, checks_on, mechanism_checks
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.harness import Outcome, config_of, execute, finished
from fedsyn.front.testing.tape import SERVER, TapedExchange
from fedsyn.privacy import Ledger
from fedsyn.protocol.client import Join, Sizes
from fedsyn.protocol.contract import Contract
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL, Randomness
from fedsyn.runs.directory import load_model
from fedsyn.runs.finish import finish
from fedsyn.runs.holders import app
from fedsyn.runs.prepare import Prepared
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.serve import serve
from fedsyn.table.data import write_encoded
from fedsyn.table.data.encoded import RowFiles
from fedsyn.wire.envelope import ANSWER, ENVELOPE, SumSpec, to_json
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Layout, Request
from support.second_account import rho_of_entries, within_budget


def every_check(name: str, **named: Any) -> Iterator[ConformanceCheck]:
    """The checks of `mechanism_checks`, and after those of each table the ones below."""
    for number, (_, checks) in enumerate(groupby(mechanism_checks(name, **named), key=lambda check: id(check.bench))):
        own = list(checks)
        yield from own
        yield from checks_on(own[0].bench, (ONCE if number == 0 else ()) + PER_TABLE)


@under("as configured", "private sizes", "local noise", "distributed noise", "sampled cohorts")
def check_second_account(bench: Bench, nodes: Nodes) -> None:
    """Every ledger is within budget by a second account, and its total is that of its entries."""
    base = bench.base(**nodes)
    for ledger in (base.strategy.ledger, *base.ledgers.values()):
        _adds_up(ledger, base)


def _adds_up(ledger: Ledger, outcome: Outcome) -> None:
    report, privacy = ledger.report(), outcome.config.privacy
    assert within_budget(report, privacy.epsilon, privacy.delta), "a ledger exceeds its budget"
    again = rho_of_entries(report["releases"])
    assert abs(report["rho"] - again) <= 1e-9 * max(1.0, again), "a ledger reports a total that its entries do not have"


def check_choices(bench: Bench) -> None:
    """A client adds to the arrays that it chose, where its layout says that a row is in some arrays only."""
    base = bench.base()
    for layout, asked, exchanges in sums_of(bench, base):
        for exchange in exchanges if layout.argument and layout.cliques else ():
            expected = _expected(base, exchange, layout, asked)
            assert exchange.contribution is not None and expected in (None, exchange.contribution.active), (
                f"{exchange}: the client adds to the arrays {exchange.contribution}, and chose {expected}"
            )


def _expected(base: Outcome, exchange: TapedExchange, layout: Layout, asked: Request) -> tuple[int, ...] | None:
    """The arrays that a client must add to: those that everybody adds to, and its own choices.

    A choice is a candidate's index in the client's reply to an `Ask` of the same round. None where the layout says that
    a row is in some arrays only and the client chose nothing: then the reason is another one.
    """
    everything = tuple(range(len(layout.cliques)))
    listed = _choosable(base.strategy.contract, layout, asked)
    own = _chosen(base, exchange)
    if listed is None or own is None:
        return None
    common = len(layout.cliques) - len(listed)
    return everything[:common] + tuple(common + j for j, i in enumerate(listed) if i in own)


def _choosable(contract: Contract, layout: Layout, asked: Request) -> list[int] | None:
    """The parameter of the request that names the last cliques of the layout as candidates."""
    cliques = contract.candidates.cliques
    for value in asked.model_dump().values():
        named = isinstance(value, list) and value and all(type(i) is int and 0 <= i < len(cliques) for i in value)
        if named and [cliques[i] for i in value] == list(layout.cliques[-len(value) :]):
            return list(value)
    return None


def _chosen(base: Outcome, exchange: TapedExchange) -> set[int] | None:
    """What a client chose in the round of an exchange; None if it was not asked to choose."""
    chosen: set[int] | None = None
    for other in base.tape.exchanges:
        same = other.partition == exchange.partition and other.envelope["round"] == exchange.envelope["round"]
        asked = other.envelope["kind"] == "ask" and other.envelope["request"] not in (Join.name, Sizes.name)
        if same and asked and other.reply["ok"]:
            found = [i for value in other.reply["params"].values() for i in _listed(value)]
            chosen = (chosen or set()) | set(found)
    return chosen


def _listed(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [i for i in values if type(i) is int]


def check_options(bench: Bench) -> None:
    """An unknown option is refused with a ConfigError, at every level."""
    nodes = [name for name, field in bench.contract.Options.model_fields.items() if is_node(field.annotation)]
    unknown: dict[str, Any] = {"no_such_option_anywhere": 1}
    for options in (unknown, *({name: unknown} for name in nodes)):
        try:
            config_of(bench.name, len(bench.federation.parts), options)
        except ConfigError:
            continue
        raise AssertionError(f"an unknown option is accepted: {options}")


def check_run_directory(bench: Bench) -> None:
    """The real client app and `fedsyn.runs` give the result of the other checks, and a complete run directory."""
    import pandas as pd

    base, schema = bench.base(), bench.table.schema
    clients = len(bench.federation.parts)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        bounds = np.cumsum([0, *(len(part) for part in bench.federation.parts)])
        rows = [np.arange(bounds[k], bounds[k + 1]) for k in range(clients)]
        files = RowFiles()
        write_encoded(out, np.concatenate(bench.federation.parts), schema.domain, rows, files)
        prepared = Prepared(out, schema, True, clients, bench.table.name, files).save()
        base.config.save(out / "config.yaml")
        nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
        grid = InProcessGrid(app, nodes, run_config_of(base.config, store=out))
        strategy = serve(base.config, prepared, grid, out, None)
        finish(base.config, prepared, strategy, out, 0.0, full_page=False)
        assert strategy.model is not None
        assert equal_arrays(strategy.model.to_arrays(), base.arrays), "the real client app gives another model"
        loaded = load_model(out / "model.npz").to_arrays()
        assert equal_arrays(loaded, base.arrays), "model.npz does not hold the model"
        frame = pd.read_csv(out / "synthetic.csv", keep_default_na=False, dtype=str)
        assert list(frame.columns) == list(schema.order) and len(frame) == len(base.synthetic), (
            "synthetic.csv must have the synthetic table's columns and number of rows"
        )
        ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
        assert ledger["releases"] == json.loads(json.dumps(base.strategy.ledger.report()["releases"])), (
            "ledger.json does not hold the run's releases"
        )


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
    outcome = bench.base(federation={"sampling_rate": 0.5, "max_participations": 1})
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
    protocol = outcome.config.aggregation.capabilities
    problems = outcome.tape.problems if protocol.parties is None or protocol.deals_noise else []
    assert not problems, "; ".join(problems)


def _masked_only(outcome: Outcome) -> None:
    """Checks that only masked vectors, and sums of all contributors' masks, are as long as a secure sum."""
    for exchange in outcome.tape.exchanges:
        if exchange.envelope["kind"] == "sum" and exchange.envelope["stage"]["name"] not in ("masked", "unmask"):
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
        ledger_holds(client.ledger, base.config, "a client's ledger")


def check_repeated_requests(bench: Bench) -> None:
    """A server that repeats its requests cannot make a client spend more than the budget."""
    base = bench.base()
    requests = [exchange for exchange in base.tape.exchanges if exchange.partition == 0]
    client = _fresh_client(bench, base, requests[0])
    for _ in range(6):
        for exchange in requests:
            _fit(client, exchange.envelope, exchange.arrays)
    ledger_holds(client.ledger, base.config, "a client's ledger")


def _one_of_each_request(outcome: Outcome) -> list[TapedExchange]:
    return list({e.envelope["request"]: e for e in outcome.tape.exchanges if e.partition == 0}.values())


def _fresh_client(bench: Bench, base: Outcome, exchange: TapedExchange) -> Any:
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


#: On the first table only.
ONCE: tuple[Callable[..., None], ...] = (check_options, check_participations)
PER_TABLE: tuple[Callable[..., None], ...] = (
    check_second_account,
    check_choices,
    check_private_without_a_seed,
    check_private_sizes,
    check_local_noise,
    check_distributed_noise,
    check_client_refuses,
    check_repeated_requests,
    check_run_directory,
)
