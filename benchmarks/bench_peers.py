"""Other libraries' mechanisms beside this project's: one table, workload, domain, epsilon and delta for all.

    FEDSYN_DATA=DIR python benchmarks/bench_peers.py --private-pgm CHECKOUT \\
        --python private-pgm=/path/to/python opendp=/path/to/python dpmm=... smartnoise=... sdv=...

PRIVATE_PGM and PEER_PYTHONS in the environment say the same as these two options.

Every run is a process of its own, one after the other. `work` is from the table in memory to as many synthetic rows,
imports left out, `process` the whole process; CPU seconds, children included. `error` is the workload error of the
synthetic rows. Beside both times stands how many times they are those of this project's mechanism of that name (of
`sketch_aim`, the default, for what has none). The smallest figures of all private ones are named below each table.

Every AIM starts with `--rounds` rounds and `--megabytes`; this project's makes just as many, the others go on while
budget is left. All else is a library's default, but for `--draw`: "round", the default of mbi 1.1 below OpenDP and
smartnoise, gives the rows of one value of a column the values of each column that depends on it in ascending order, so
that two such columns go together more than the model has it. Where a library is not there, a row says so. An
environment for each:

    private-pgm    pip install 'jax==0.6.2' 'pandas<3' scipy networkx chex optax attrs matplotlib (later ones break it);
                   CHECKOUT is of github.com/ryan112358/private-pgm: no package has its mechanisms/
    opendp         pip install 'opendp[mbi,polars]' pandas (mbi 1.1)
    dpmm           pip install dpmm
    smartnoise     pip install smartnoise-synth
    sdv            pip install sdv
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inference_suite import tables
from benchmarks.inference_suite.cells import run_cell
from benchmarks.peers.peer_cell import PEERS
from fedsyn.privacy import PrivacyBudget
from fedsyn.table.counting.workload import random_kway

_LARGEST = 200_000  # cells of a workload's clique
_CELL = Path(__file__).resolve().parent / "peers" / "peer_cell.py"
_SETTINGS = ("epsilon", "delta", "rounds", "megabytes", "seed", "draw", "private_pgm")


def beside(peer: str) -> str:
    """The mechanism of this project that another one is compared with."""
    own = f"fedsyn {peer.split()[-1].lower()}"
    return own if own in PEERS else "fedsyn sketch_aim"


def checkout_paths(peer: str, checkout: str) -> list[str]:
    """The folders of a checkout of private-pgm that its own mechanisms import from."""
    is_theirs = peer.startswith("private-pgm") and checkout
    return [str(Path(checkout) / folder) for folder in ("src", "mechanisms")] if is_theirs else []


def measured(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Runs every peer on a table and prints the table of their figures."""
    table = tables.load(name)
    table = tables.Table(table.codes[: arguments.rows], table.domain)
    workload = random_kway(table.domain, 3, arguments.triples, np.random.default_rng(arguments.seed)).cliques
    workload = tuple(q for q in workload if math.prod(table.domain.shape_of(q)) <= _LARGEST)
    path = folder / f"{name}.npz"
    tables.write_table(path, table, list(workload))
    rows, columns = table.codes.shape
    print(
        f"| {name}, {rows:,} rows, {columns} columns | work, CPU s | times | process, CPU s | times | peak MB | error |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    pythons = dict(one.split("=", 1) for one in arguments.python)
    rho = PrivacyBudget(arguments.epsilon, arguments.delta).rho
    found: dict[str, dict[str, Any]] = {}
    for peer in arguments.peers:
        settings = {"peer": peer, "rho": rho, **{key: getattr(arguments, key) for key in _SETTINGS}}
        given = {"python": pythons.get(peer.split()[0], sys.executable), "limit": arguments.limit}
        paths = checkout_paths(peer, arguments.private_pgm)
        found[peer] = run_cell(str(_CELL), [str(path), json.dumps(settings)], **given, paths=paths)
        print(row(peer, found), flush=True)
    return found


def row(peer: str, found: dict[str, dict[str, Any]]) -> str:
    """A peer's figures, beside those of this project's mechanism where that ran before."""
    cell, own = found[peer], found.get(beside(peer), {})
    if "failed" in cell:
        return f"| {peer}: {cell['failed']} | - | - | - | - | - | - |"
    times = [f"{cell[key] / own[key]:.1f}" if own.get(key) else "-" for key in ("cpu", "whole")]
    figures = f"{cell['cpu']:.2f} | {times[0]} | {cell['whole']:.1f} | {times[1]} | {cell['peak_mb']:,.0f}"
    return f"| {peer} | {figures} | {cell['error']:.3f} |"


def least(found: dict[str, dict[str, Any]]) -> str:
    """Who has the smallest figures among the private ones."""
    ran = {peer: cell for peer, cell in found.items() if "failed" not in cell and not PEERS[peer].not_private}
    names = {"cpu": "work", "whole": "process", "peak_mb": "memory", "error": "error"}
    return "Least: " + ", ".join(
        f"{said} {min(ran, key=lambda peer, key=key: ran[peer][key])}" for key, said in names.items() if ran
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=["compas", "adult_flaim"], help="or wideN, N generated columns")
    parser.add_argument("--rows", type=int, help="the first of a table; all by default")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    pythons = os.environ.get("PEER_PYTHONS", "").split()
    parser.add_argument("--python", nargs="*", default=pythons, metavar="LIBRARY=INTERPRETER")
    parser.add_argument("--private-pgm", default=os.environ.get("PRIVATE_PGM", ""), metavar="CHECKOUT")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--triples", type=int, default=64, help="random triples of the workload")
    parser.add_argument("--megabytes", type=float, default=1_000_000 / 2**17, help="cells take 8 bytes")
    parser.add_argument("--draw", choices=("sample", "round"), default="sample", help="how mbi 1.1 draws rows")
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds of a run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    versions: dict[str, None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.tables:
            if why := tables.missing(name):
                print(f"{name}: skipped, {why}\n")
                continue
            found = measured(name, arguments, Path(folder))
            print(f"\n{least(found)}.\n", flush=True)
            versions |= {cell["version"]: None for cell in found.values() if "version" in cell}
    print(", ".join(versions))


if __name__ == "__main__":
    main()
