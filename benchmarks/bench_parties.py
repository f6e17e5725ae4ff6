"""What three computing parties cost: one choice over 330,000 cells, and whole runs of DistAIM beside the plain store.

Three `fedsyn party serve` processes with TLS, each in a network namespace of its own (on localhost where namespaces
cannot be made). The services are those of the tests: `export PYTHONPATH=tests` first. The run is the real strategy
over the in-process Grid with Adult in 32 bins, real noise, the parties as a deployment has them; the same with the
plain store in the same process is what it is compared with. Bytes are what a party sends to the other two, memory is
the peak of a party's process. Needs the tests' dependencies.

    python benchmarks/bench_parties.py                       # both; FEDSYN_DATA holds adult.csv.gz
    python benchmarks/bench_parties.py --rounds 0            # the choice alone
    python benchmarks/bench_parties.py --threat malicious --localhost
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.flower import Context
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.state import read_state, write_state
from fedsyn.loading import parse_config
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, contract_class, strategy_class
from fedsyn.runs.prepare import SplitTable, split_tables
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, PartyCost, sealed_for
from fedsyn.stores.parties.sealing import seal_deal
from fedsyn.table.counting.marginals import count
from fedsyn.wire.holder import Holder
from support.namespaces import Namespaces
from support.party_services import NAMES, Services

POLICY = {"epsilon_per_run": 1.0, "epsilon_total": 100.0, "delta": 1e-5, "mechanisms": ["distaim"]}


@contextlib.contextmanager
def services(localhost: bool) -> Iterator[Services]:
    """Three running parties; says where they are."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts, prefix, where = ("127.0.0.1",) * 3, lambda index: [], "on localhost"
        if not localhost:
            try:
                made = Namespaces()
                stack.callback(made.close)
                hosts, prefix, where = made.hosts, made.prefix, "in three network namespaces"
            except OSError as error:
                where += f" (no namespaces: {error})"
        with contextlib.redirect_stdout(io.StringIO()):
            started = Services(folder, hosts, prefix, policy=POLICY, timeout=60.0)
        stack.callback(started.close)
        print(f"three parties {where}, {os.cpu_count()} cores for everything")
        yield started


def memory(started: Services) -> list[float]:
    """MB, the peak of each party's process."""
    found = []
    for name in NAMES:
        text = Path(f"/proc/{started.processes[name].pid}/status").read_text()
        found.append(int(text.split("VmHWM:")[1].split()[0]) / 1024)
    return found


def processor(started: Services) -> list[float]:
    """Seconds of each party's process so far, all of its threads, TLS included."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{started.processes[name].pid}/stat").read_text().rsplit(")")[-1].split() for name in NAMES]
    return [(int(fields[11]) + int(fields[12])) / ticks for fields in stats]


def line(name: str, values: list[float], unit: str, digits: int = 2) -> None:
    print(f"{name:>34}: " + "  ".join(f"{value:9.{digits}f}" for value in values) + f"  {unit}")


def print_costs(costs: tuple[PartyCost, ...], since: tuple[PartyCost, ...], times: int = 1) -> None:
    pairs = list(zip(costs, since, strict=True))
    line("sent to the other two, a party", [(b.bytes_sent - a.bytes_sent) / times / 1e6 for b, a in pairs], "MB")
    line("rounds, a party", [(b.rounds - a.rounds) / times for b, a in pairs], "", 0)
    line("computing, a party", [(b.cpu - a.cpu) / times for b, a in pairs], "CPU s of its computing thread", 3)


# One choice ----------------------------------------------------------------------------------------------------------


def choice(started: Services, attributes: int, repeats: int, threat: str) -> None:
    """The pairs of some attributes of 32 values; three clients with 2,000 rows each."""
    domain = Domain(tuple(f"a{i}" for i in range(attributes)), (32,) * attributes)
    workload = {"degree": 2, "size": None}
    config = started.config(workload=workload, aggregation={"threat": threat})
    contract = contract_class("distaim")(config, domain)
    cliques = [q for q in contract.candidates.cliques if len(q) == 2]
    parties = started.remote()
    announcement = Announcement(
        config, domain, contract.stored.cliques, 0.03, 1, secrets.token_bytes(16), config.federation.clients
    )
    run = parties.begin(announcement)
    rng = np.random.default_rng(0)
    tables = [rng.integers(0, 32, (2000, attributes)).astype(np.uint8) for _ in range(3)]
    begun, deals = time.perf_counter(), {}
    for k, table in enumerate(tables):
        vector = np.concatenate([x.ravel() for x in count(table, domain, contract.stored.cliques)]).astype(np.int64)
        agreed = sealed_for(run, config, domain, contract.stored.cliques)
        deals[k] = seal_deal(vector, agreed, parties.keys, k, rho=0.03, rows=2000)
    sealed = time.perf_counter()
    assert not parties.deal(deals)
    cells = len(cliques) * 1024
    print(f"\none choice over {cells:,} cells in {len(cliques)} cliques, threat: {threat}, median of {repeats}")
    print(
        f"{'a deal':>34}: {(sealed - begun) / 3:9.2f} s to count and seal, {(time.perf_counter() - sealed) / 3:.2f} s"
    )
    p = [np.full(1024, 1 / 1024) for _ in cliques]
    terms = ChoiceTerms.of("l1", cliques, p, np.ones(len(p)), np.full(len(p), 1024.0), sigma=20.0, size=6000, rows=6000)
    wall, before, cpu = [], parties.costs, processor(started)
    for number in range(repeats):
        begun = time.perf_counter()
        parties.choose(ChooseOrder(number, "select", number + 1, 0.01, terms))
        wall.append(time.perf_counter() - begun)
    after = processor(started)
    print(f"{'wall':>34}: {statistics.median(wall):9.2f} s (goal 1.5), from {min(wall):.2f} to {max(wall):.2f}")
    line("processor, a party (goal 0.6)", [(b - a) / repeats for b, a in zip(after, cpu, strict=True)], "CPU s")
    print_costs(parties.costs, before, repeats)
    parties.end()
    begun = time.perf_counter()
    expected = int(np.argmax(terms.scores(count(np.concatenate(tables), domain, list(cliques)))))
    print(f"{'the same from exact counts':>34}: {time.perf_counter() - begun:9.2f} s (index {expected})")


# Whole runs ----------------------------------------------------------------------------------------------------------


def adult(clients: int, rounds: int, aggregation: dict[str, Any], runtime: dict[str, Any]) -> RunConfig:
    document = {
        "mechanism": {"name": "distaim", "rounds": rounds},
        "data": {"source": "adult", "bins": 32, "test_fraction": 0.1},
        "federation": {"clients": clients, "sampling_rate": 0.5},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 3, "size": 64, "seed": 0},
        "aggregation": {"noise": "distributed", **aggregation},
        "evaluation": [],
        "runtime": runtime,
    }
    return parse_config(document)


def grid_of(config: RunConfig, tables: SplitTable) -> InProcessGrid:
    """Clients with rows, as a deployment has them: real noise, keys of the parties from their own configuration."""
    schema_hash, clients = tables.schema.sha256, config.federation.clients

    def client_fn(context: Context) -> Any:
        partition = int(context.node_config["partition-id"])
        text = read_state(context)
        holder = Holder(
            partition,
            tables.train[tables.parts[partition]],
            tables.schema.domain,
            schema_hash,
            Randomness(None),
            json.loads(text) if text else {},
            save=lambda kept: write_state(context, json.dumps(kept, separators=(",", ":"))),
        )
        return client_class(config.mechanism.name)(config, holder)

    nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
    return InProcessGrid(TableApp(client_fn), nodes, {})


def whole(config: RunConfig, tables: SplitTable) -> tuple[float, MechanismStrategy]:
    """Wall seconds of a run, and its strategy."""
    strategy: MechanismStrategy = strategy_class("distaim")(
        config, tables.schema.domain, tables.schema.sha256, randomness=Randomness(None)
    )
    begun = time.perf_counter()
    strategy.run(grid_of(config, tables))
    seconds = time.perf_counter() - begun
    dropped = [record.dropped for record in strategy.records if record.dropped]
    assert strategy.model is not None and not dropped, dropped
    return seconds, strategy


def runs(started: Services, clients: int, rounds: int, threat: str, repeats: int) -> None:
    cards = [card.model_dump() for card in started.cards]
    plain_config = adult(clients, rounds, {"protocol": "plain"}, {"engine": "inprocess"})
    config = adult(
        clients,
        rounds,
        {"protocol": "mpc", "parties": cards, "threat": threat},
        {"engine": "deployment", "operator": str(started.folder / "operator")},
    )
    tables = split_tables(plain_config)
    stored = contract_class("distaim")(config, tables.schema.domain).stored
    print(f"\nDistAIM on Adult, 32 bins: {clients} clients, half of them a round, T = {rounds}, threat: {threat};")
    print(f"a client deals {stored.length:,} cells; median of {repeats}, one after the other")
    whole(plain_config, tables)  # imports are nobody's cost
    plain, mpc = [], []
    cpu = processor(started)
    for _ in range(repeats):
        plain.append(whole(plain_config, tables)[0])
        seconds, strategy = whole(config, tables)
        mpc.append(seconds)
    after = processor(started)
    costs = tuple(PartyCost(int(c["bytes_sent"]), int(c["rounds"]), c["cpu"]) for c in strategy.costs[-1].parties)
    one, other = statistics.median(plain), statistics.median(mpc)
    print(f"{'plain store':>34}: {one:9.2f} s wall")
    more = f"{other - one:.2f} s more (goal: below 60), {other / one:.2f} times"
    print(f"{'three parties':>34}: {other:9.2f} s wall; {more}")
    line("processor, a party", [(b - a) / repeats for b, a in zip(after, cpu, strict=True)], "CPU s a run")
    print_costs(costs, (PartyCost(),) * 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attributes", type=int, default=26, help="of 32 values; all pairs are compared")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10, help="T; 0: no whole runs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threat", choices=("semi_honest", "malicious"), default="semi_honest")
    parser.add_argument("--localhost", action="store_true", help="no network namespaces")
    a = parser.parse_args()
    with services(a.localhost) as started:
        line("memory of an idle party", memory(started), "MB, peak", 0)
        choice(started, a.attributes, max(5, a.repeats), a.threat)
        line("memory of a party so far", memory(started), "MB, peak", 0)
        if a.rounds and not (Path(os.environ.get("FEDSYN_DATA", "")) / "adult.csv.gz").is_file():
            print("\nno whole runs: FEDSYN_DATA does not name a folder that holds adult.csv.gz")
        elif a.rounds:
            runs(started, a.clients, a.rounds, a.threat, a.repeats)
            line("memory of a party (goal: 500)", memory(started), "MB, peak", 0)


if __name__ == "__main__":
    main()
