"""What a server's journal costs: its size, what it adds to a run, and what going on from it takes.

A run in this process writes the journal that a deployment's server writes. Then another server goes on from the whole
of it: it asks nobody, and comes to the same model. Fits are read from the journal; `fits` is how long they took.

    python benchmarks/bench_journal.py
    python benchmarks/bench_journal.py configs/demo.yaml --mechanism augflaim fed_privsyn
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import load_config
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.runs import journal as journals
from fedsyn.runs.holders import app
from fedsyn.runs.journal import RunJournal, encode
from fedsyn.runs.prepare import prepare
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.serve import serve


def measure(file: str, mechanism: str, sets: list[str]) -> None:
    config = load_config(file, [f"mechanism.name={mechanism}", "runtime.seed=0", "evaluation=[]", *sets])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        prepared = prepare(config, out / "store")
        run_config = run_config_of(config, store=prepared.folder)
        named = {"run": "bench", "config": config.sha256, "schema": prepared.schema.sha256}

        def run(journal: RunJournal | None, nodes: int) -> tuple[MechanismStrategy, float]:
            described = [{"partition-id": k, "num-partitions": prepared.clients} for k in range(nodes)]
            start = time.process_time()
            strategy = serve(config, prepared, InProcessGrid(app, described, run_config), out, None, journal=journal)
            return strategy, time.process_time() - start

        run(None, prepared.clients)  # what is loaded and compiled once, is
        _, plain = run(None, prepared.clients)
        written: dict[str, list[int]] = {}
        real = journals._append

        def append(handle: Any, entry: Mapping[str, Any]) -> None:
            written.setdefault(str(entry["kind"]), []).append(len(encode(entry)))
            real(handle, entry)

        journals._append = append
        try:
            journal = RunJournal.begin(out, **named)
            first, seconds = run(journal, prepared.clients)
        finally:
            journals._append = real
        size = sum(file.stat().st_size for file in journal.folder.iterdir())
        journal.close()
        journal = RunJournal.resume(out, **named)
        second, replayed = run(journal, 0)  # there is nobody to ask
        journal.close()
        assert first.model is not None and second.model is not None
        same = all(np.array_equal(a, second.model.to_arrays()[name]) for name, a in first.model.to_arrays().items())
        fits = sum(costs.seconds.get(name, 0.0) for costs in first.costs for name in ("estimate", "synthesise"))
        kinds = ", ".join(f"{len(sizes)} {kind} {sum(sizes) / 1e6:.2f} MB" for kind, sizes in written.items())
        print(f"{mechanism}: journal {size / 1e6:.2f} MB ({kinds})")
        print(f"  CPU: run {plain:.2f} s, with a journal {seconds:.2f} s (fits {fits:.2f} s by the clock)")
        print(f"  going on from its end {replayed:.2f} s; the same model: {same}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="configs/demo.yaml")
    parser.add_argument("--mechanism", nargs="+", default=["sketch_aim", "augflaim", "fed_privsyn", "distributed_aim"])
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    for mechanism in arguments.mechanism:
        measure(arguments.config, mechanism, arguments.sets)


if __name__ == "__main__":
    main()
