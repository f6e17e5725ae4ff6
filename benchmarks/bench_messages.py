"""Messages that a client gets in a run, by mechanism, protocol and number of rounds, for benchmarks/README.md.

They are counted, not looked up: each run is a whole one over the in-process Grid, which counts what it hands to each
client. Runs of 2, 3 and 4 rounds give a + b T; where the third does not lie on the line of the first two, all three
counts are printed. Row counts are private, which is one message (`sizes`) more than public ones; *: of a mechanism that
needs public ones by this protocol. Nobody drops out.

    python benchmarks/bench_messages.py [--clients 4] [--only sketch_aim ...] [--page benchmarks/README.md]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.flower.direct import DirectReply, DirectRequest
from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import parse_config
from fedsyn.registry import MECHANISMS, contract_class
from fedsyn.runs.holders import app
from fedsyn.runs.prepare import prepare
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.serve import serve

#: Column of the table -> `aggregation` of the runs.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "plain": {"protocol": "plain", "noise": "distributed"},
    "secagg": {"protocol": "secagg", "noise": "distributed"},
    "secagg, malicious": {"protocol": "secagg", "noise": "distributed", "threat": "malicious"},
    "mpc": {"protocol": "mpc", "noise": "distributed"},
    "fhe": {"protocol": "fhe", "noise": "distributed"},
}
ROUNDS = (2, 3, 4)
_BEGIN, _END = "<!-- counted -->", "<!-- /counted -->"


class CountingGrid(InProcessGrid):
    """Counts what it hands to each node, by the name of the request."""

    counted: Counter[int]

    def called(self, requests: Iterable[tuple[int, DirectRequest]]) -> Iterator[DirectReply]:
        def counted() -> Iterator[tuple[int, DirectRequest]]:
            for node, asked in requests:
                self.counted[node] += 1
                yield node, asked

        return super().called(counted())


def configured(mechanism: str, aggregation: dict[str, Any], clients: int, rounds: int) -> tuple[RunConfig, bool] | None:
    """A run, and whether its row counts are private; None where the mechanism does not run by this protocol."""
    named: dict[str, Any] = {"name": mechanism}
    fields = contract_class(mechanism).Options.model_fields
    if "rounds" in fields:
        named["rounds"] = rounds
    squared = {"score": "squared_l2"} if "score" in fields else {}
    for sizes, score in (("private", {}), ("public", {}), ("public", squared)):
        document = {
            "mechanism": {**named, **score},
            "data": {"source": "synthfs", "options": {"rows": 800, "features": 4, "clients": clients}},
            "federation": {"clients": clients},
            "privacy": {"epsilon": 50.0, "delta": 1e-5, "client_sizes": sizes},
            "workload": {"degree": 2, "size": None},
            "aggregation": aggregation,
            "evaluation": [],
            "runtime": {"seed": 0},
        }
        try:
            return parse_config(document, "bench_messages"), sizes == "private"
        except ConfigError:
            continue
    return None


def counts(config: RunConfig) -> Counter[int]:
    """Messages by node of one run."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(config, Path(folder) / "store")
        nodes = [{"partition-id": k, "num-partitions": prepared.clients} for k in range(prepared.clients)]
        grid = CountingGrid(app, nodes, run_config_of(config, store=prepared.folder))
        grid.counted = Counter()
        if not grid.is_direct:
            raise RuntimeError("the Grid would use messages, which this does not count")
        serve(config, prepared, grid, Path(folder), None)
        grid.close()
    return grid.counted


def line(found: list[int]) -> str:
    """The counts of `ROUNDS` as `a + b T`, if they lie on a line."""
    slope = found[1] - found[0]
    if found[2] - found[1] != slope:
        return " / ".join(map(str, found))
    start = found[0] - slope * ROUNDS[0]
    return str(start) if slope == 0 else f"{start} + {slope} T" if slope > 1 else f"{start} + T"


def cell(mechanism: str, aggregation: dict[str, Any], clients: int) -> str:
    """Bytes of the client with the most messages, and of the one with the fewest where that is another number."""
    made = [configured(mechanism, aggregation, clients, rounds) for rounds in ROUNDS]
    runs = [each for each in made if each is not None]
    if len(runs) < len(ROUNDS):
        return "-"
    found = [counts(config) for config, _ in runs]
    most, fewest = ([pick(each.values()) for each in found] for pick in (max, min))
    text = line(most) if most == fewest else f"{line(most)}; least {line(fewest)}"
    return text if runs[0][1] else f"{text} *"


def table(mechanisms: list[str], clients: int) -> str:
    """Markdown."""
    head = ["mechanism", *PROTOCOLS]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for mechanism in mechanisms:
        cells = [cell(mechanism, aggregation, clients) for aggregation in PROTOCOLS.values()]
        rows.append(f"| `{mechanism}` | " + " | ".join(cells) + " |")
        print(rows[-1], file=sys.stderr, flush=True)
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=sorted(MECHANISMS), help="mechanisms; default: all")
    parser.add_argument("--page", type=Path, help="a page whose counted table is replaced")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    made = table(arguments.only or list(MECHANISMS), arguments.clients)
    if arguments.page is None:
        print(made)
        return
    before, _, rest = arguments.page.read_text(encoding="utf-8").partition(_BEGIN)
    arguments.page.write_text(f"{before}{_BEGIN}\n{made}{_END}{rest.partition(_END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
