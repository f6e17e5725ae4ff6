"""Tables 2 and 4 of Kumar et al. 2025 (FHAIM): seconds of each step, and peak memory, beside the paper's.

    python experiments/fhaim_table4/run.py                  # FEDSYN_DATA holds the three tables
    python experiments/fhaim_table4/run.py --naive ''       # without the printed circuits, which take minutes

A line is a whole run of ten rounds in a process of its own: COMPUTE is what dealing takes (client, server and crypto
party), SELECT and MEASURE are means over the rounds. The printed circuit (naive.py) and packed products beside it are
that step alone. The paper used 16 cores; a run here uses one at a time. Exit code: 0 if packed products are as much
faster than the printed circuits as expected.yaml says, 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import fedsyn
from experiments.fhaim_table4.naive import compute, table_of
from fedsyn import yamlio

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "fhaim.yaml"
ROUNDS = 10


def one(source: str, settings: list[str]) -> dict[str, float]:
    """The metrics of one run."""
    given = [f"data.source={source}", "data.bins=5", f"mechanism.rounds={ROUNDS}", *settings]
    with tempfile.TemporaryDirectory() as folder:
        return dict(fedsyn.run(fedsyn.load_config(str(CONFIG), given), folder))


def measured(source: str, settings: list[str]) -> dict[str, float]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(one, source, settings).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", default="compas", help="tables on which the printed circuits run too")
    parser.add_argument("--tables", default="breast_cancer,compas,diabetes")
    args = parser.parse_args()
    expected = yamlio.read_mapping(Path(__file__).parent / "expected.yaml")
    print("| table | how | COMPUTE s | SELECT s | MEASURE s | whole run s | peak MB |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for source in args.tables.split(","):
        variants = {
            "bfv, client": ["aggregation.fhe.compute=client"],
            "bfv, packed": ["aggregation.fhe.compute=packed"],
        }
        paper = expected["paper"][source]
        print(
            f"| {source} | the paper, 16 cores | {paper['compute']} | {paper['l2']} (L1: {paper['l1']}) | "
            f"{paper['measure']} | - | {paper['peak']}, by its count |"
        )
        for name, settings in variants.items():
            found = measured(source, settings)
            choose, opened = found["seconds_choose"] / ROUNDS, found["seconds_open"] / (ROUNDS + 1)
            print(
                f"| {source} | {name} | {found['seconds_deal']:.2f} | {choose:.3f} | {opened:.3f} | "
                f"{found['seconds']:.1f} | {found['peak_mb']:.0f} |",
                flush=True,
            )
        if source in args.naive.split(","):
            (packed, exact, _), (naive, counts, _) = (compute(*table_of(source), each) for each in (True, False))
            print(f"| {source} | the step alone, packed | {packed:.2f} | - | - | - | - |")
            print(f"| {source} | the step alone, as printed | {naive:.2f} | - | - | - | - |", flush=True)
            good &= naive / packed >= expected["packed_times_faster_than_naive"] and np.array_equal(counts, exact)
            print(f"{source}: packed is {naive / packed:.1f} times faster than naive", file=sys.stderr)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
