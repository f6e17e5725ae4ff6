"""Prints docs/comparison.md: every mechanism on eight tables at three budgets, and what each needs and costs.

    python benchmarks/comparison.py --cache FILE > docs/comparison.md

Rows, workload and metrics are those of experiments/held_out. What FILE holds is not run again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
_ROOT = Path(__file__).resolve().parent.parent

import numpy as np  # noqa: E402

from experiments.held_out.held_cells import AIM, Cache, Cell, code_hash, fitted, run_cell  # noqa: E402
from experiments.held_out.held_tables import rows_of  # noqa: E402
from fedsyn.errors import FedsynError  # noqa: E402
from fedsyn.flower.grid import InProcessGrid  # noqa: E402
from fedsyn.registry import contract_class, mechanisms  # noqa: E402

#: The real tables of the judging side with 500 training rows or more, one of each family.
TABLES = ("adult", "magic", "shoppers", "compas", "diabetes", "abalone", "insurance", "randhie")
EPSILONS = (0.3, 1.0, 10.0)
CLIENTS = 20
#: What a run costs is looked at on one table, of a size that ciphertexts bear.
COSTS_ON = "compas"
ONE_WAY = "one-way marginals alone"
BEST_AIM = "`aim`, the best of six settings"

#: Printed beside a metric of the model: the same of a table that was sampled from it.
BESIDE = {"workload_error": "table_error"}

#: Mechanisms that two cores cannot run 24 times, and why.
LEFT_OUT = {"fed_dp_ctgan": "it trains networks for 500 rounds"}

#: Mechanisms that are run at one budget, and why.
#: At epsilon 1 alone.
ALONE_EPSILON = 1.0
AT_ONE = {"each_alone": "a run of it is twenty of `sketch_aim`"}

TRUST = {
    ("plain", "server"): "the server, with every row's counts",
    ("plain", "local"): "nobody: each holder adds its own noise",
    ("secagg", "distributed"): "nobody alone: a server that sees noisy totals, and no more than 5% of the clients",
    ("mpc", "distributed"): "nobody alone: of three computing parties at most one is corrupted",
    ("fhe", "distributed"): "server and crypto party not to collude, no more than 5% of the clients",
}


# Utility ------------------------------------------------------------------------------------------------------------


def settings_of(name: str) -> tuple[str, ...]:
    """A mechanism at its defaults; several clients draw shares of the noise, as in a secure sum or among parties."""
    if name == ONE_WAY:
        return (*settings_of("sketch_aim"), "workload={degree: 1, size: null}")
    contract = contract_class(name)
    noise = "local" if contract.alone else "distributed"
    return (f"mechanism.name={name}", *(() if contract.central else (f"aggregation.noise={noise}",)))


def cells(name: str, seeds: Iterable[int]) -> Iterator[Cell]:
    for seed in seeds:
        for epsilon in [ALONE_EPSILON] if name in AT_ONE else EPSILONS:
            for table in TABLES:
                yield Cell(table, len(rows_of(table).train), epsilon, seed, name, settings_of(name), CLIENTS)


# Costs --------------------------------------------------------------------------------------------------------------


class CountingGrid(InProcessGrid):
    """Counts exchanges and messages; every message is a real one."""

    last: CountingGrid

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.exchanges = self.messages = 0
        CountingGrid.last = self

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        asked = list(messages)
        self.exchanges += 1
        self.messages += len(asked)
        return super().send_and_receive(asked, timeout=timeout)


@dataclass(frozen=True)
class Costs:
    """Result of one run under the protocol that the mechanism has by default.

    Attributes:
        protocol, noise: of `aggregation`.
        exchanges: of the server with its clients.
        messages: to and from an average client.
        up, down: kilobytes of an average client.
        cpu: seconds of processor of everybody together.
    """

    protocol: str
    noise: str
    exchanges: int
    messages: float
    up: float
    down: float
    cpu: float


def costs_of(name: str) -> Costs:
    """Runs a mechanism once, at epsilon = 1."""
    contract, rows = contract_class(name), rows_of(COSTS_ON)
    node = contract.default_aggregation(alone=contract.central)
    sets = (f"mechanism.name={name}", *(f"aggregation.{key}={value}" for key, value in node.items()))
    config = Cell(COSTS_ON, len(rows.train), 1.0, 1, name, sets, 1 if contract.central else CLIENTS).config()
    started = time.process_time()
    strategy = fitted(config, rows.train, rows.domain, CountingGrid)
    cpu, grid = time.process_time() - started, CountingGrid.last
    clients = 1 if contract.central else CLIENTS
    up, down = (sum(getattr(c, f"bytes_{way}") for c in strategy.costs) / clients / 1e3 for way in ("up", "down"))
    return Costs(node["protocol"], node["noise"], grid.exchanges, 2 * grid.messages / clients, up, down, cpu)


# The page -----------------------------------------------------------------------------------------------------------


HEAD = """# Comparison

Every mechanism of this project on the same rows, with the same workload and the same code for the metrics; beside other
libraries: [peers](peers.md).

```sh
python experiments/held_out/run.py --cache FILE --side judging --epsilons 0.3 1 10 --seeds 1 2 3 --yardsticks
python benchmarks/comparison.py --cache FILE --seeds 1 2 3 > docs/comparison.md
```

Tables: the real ones of the judging side of [experiments/held_out](../experiments/held_out) with 500 training rows or
more, one of each family; at most 20,000 training rows, a fifth (at most 5,000 rows) held out. Workload: 64 random
triples, or all. δ = 1e-5, row counts public. Every mechanism at its defaults; {clients} clients with even shares of the
rows, unless one holder has all of them; noise in shares, as in a secure sum or among parties. `aim` has its default,
ten rounds; the best of six settings is chosen by its error, cell by cell, which no user can. Seeds: {seeds}.
Workload error: 0 is best, 2 worst; of the model/of a table sampled from it. nll: nats a held-out row
([metrics](metrics.md)); ∞: a held-out row has probability 0; -: no such number.
{left_out}
"""


def page(options: argparse.Namespace) -> str:
    cache = Cache(options.cache)
    names = [*compared(), ONE_WAY]
    found = {name: list(results(name, options, cache)) for name in names}
    if best := list(best_aim(options, cache)):
        found[BEST_AIM] = best
    parts = [
        HEAD.format(clients=CLIENTS, seeds=", ".join(map(str, options.seeds)), left_out=left_out()),
        costs_table(options, cache),
    ]
    for metric, title, digits in (("workload_error", "Workload error", 3), ("nll", "nll", 2)):
        for epsilon in EPSILONS:
            here = {name: [f for f in facts if f["epsilon"] == epsilon] for name, facts in found.items()}
            lines = [f"## {title}, ε = {epsilon:g}\n", f"| | {' | '.join(TABLES)} |", "|---" * (len(TABLES) + 1) + "|"]
            lines += [row(name, facts, metric, digits) for name, facts in here.items() if facts]
            parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, cpu_table(found)])


def left_out() -> str:
    """What the page does not have."""
    parts = {name: f"`{name}` is left out: {why}." for name, why in LEFT_OUT.items()}
    parts |= {name: f"`{name}` was run at ε = {ALONE_EPSILON:g} alone: {why}." for name, why in AT_ONE.items()}
    return "\n".join(sentence for name, sentence in parts.items() if name in mechanisms())


def compared() -> list[str]:
    """The mechanisms of the page."""
    return [name for name in mechanisms() if name not in LEFT_OUT]


def results(name: str, options: argparse.Namespace, cache: Cache) -> Iterator[dict[str, Any]]:
    for cell in cells(name, options.seeds):
        facts = cache.find(cell, any_code=options.any_code and name not in options.again)
        if facts is None:
            facts = run_cell(cell)
            cache.add(facts)
            print(cell.table, cell.epsilon, cell.seed, name, facts.get("error", facts["cpu"]), file=sys.stderr)
        yield facts


def best_aim(options: argparse.Namespace, cache: Cache) -> Iterator[dict[str, Any]]:
    """For each place, the setting with the smallest mean error, where the protocol's cache has all six."""
    for epsilon in EPSILONS:
        for table in TABLES:
            ran = {
                setting: [
                    cache.find(Cell(table, len(rows_of(table).train), epsilon, seed, setting, sets), any_code=True)
                    for seed in options.seeds
                ]
                for setting, sets in AIM.items()
            }
            found = {setting: [f for f in facts if f is not None] for setting, facts in ran.items()}
            if all(len(facts) == len(options.seeds) for facts in found.values()):
                yield from min(found.values(), key=lambda facts: sum(f["workload_error"] for f in facts))


def row(name: str, facts: Sequence[dict[str, Any]], metric: str, digits: int) -> str:
    cells = []
    for table in TABLES:
        own = [f for f in facts if f["table"] == table and "error" not in f]
        values = [f[metric] for f in own]
        if not values:
            cells.append("-")
        elif None in values or not np.isfinite(values).all():
            cells.append("∞")
        else:
            beside = [f[BESIDE[metric]] for f in own if BESIDE.get(metric) in f]
            means = [np.mean(some) for some in (values, beside) if len(some) == len(values)]
            cells.append("/".join(f"{mean:.{digits}f}" for mean in means))
    label = f"`{name}`" if name in mechanisms() else name
    return f"| {label} | {' | '.join(cells)} |"


def costs_table(options: argparse.Namespace, cache: Cache) -> str:
    lines = [
        "## What each needs, and costs\n",
        f"One run on {COSTS_ON}, ε = 1, {CLIENTS} clients, under the protocol that is each mechanism's default.\n"
        "Messages and kilobytes are of an average client, CPU seconds of everybody together on one core.\n",
        "| mechanism | protocol, noise | must be trusted | exchanges | messages | kB up | kB down | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in compared():
        cell = Cell(COSTS_ON, 0, 1.0, 1, f"costs of {name}", (f"costs={name}",), CLIENTS)
        facts = cache.find(cell, any_code=options.any_code and name not in options.again)
        if facts is None:
            facts = {"id": cell.id, **asdict(cell), "code": code_hash()}
            try:
                facts["costs"] = asdict(costs_of(name))
            except FedsynError as error:
                facts["error"] = str(error)
            print("costs of", name, facts.get("error", facts.get("costs")), file=sys.stderr)
            cache.add(facts)
        if "error" in facts:
            lines.append(f"| `{name}` | - | {facts['error'].splitlines()[0]} | - | - | - | - | - |")
            continue
        c = Costs(**facts["costs"])
        whom = contract_class(name).not_private or TRUST[c.protocol, c.noise]
        numbers = [f"{c.exchanges}", f"{c.messages:.0f}", f"{c.up:.1f}", f"{c.down:.1f}", f"{c.cpu:.2f}"]
        lines.append(f"| `{name}` | {c.protocol}, {c.noise} | {whom} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def cpu_table(found: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["## CPU seconds of the runs above\n", f"| | {' | '.join(TABLES)} |", "|---" * (len(TABLES) + 1) + "|"]
    lines += [row(name, facts, "cpu", 2) for name, facts in found.items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("runs/held_out/cache.jsonl"), help="file of JSON lines")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--any-code", action="store_true", help="also print what earlier code computed")
    parser.add_argument(
        "--again", nargs="*", default=[], metavar="NAME", help="of which only this code's results count"
    )
    print(page(parser.parse_args(arguments)).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
