"""Benchmarks run in miniature, and the page that prints their figures finds them in what they print."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from claims.__main__ import by_label
from claims.register import Page, Run, load

ROOT = Path(__file__).resolve().parents[3]
#: Options with which a benchmark takes seconds.
MINIATURES = {
    "bench_draft": "--rows 500 --columns 3",
    "bench_fhe": "--steps 0 --clients 5",
    "bench_gum": "--source compas --bins 8 --pairs 3 --iterations 20 --cells 1000",
    "bench_inference": "--measurements 2 --cells 1000 --engines MirrorDescent",
    "bench_iterations": "--source compas --seeds 1 --clients 2",
    "bench_long": "--rows 0.001",
    "bench_many": "--clients 20 --work one-way",
    "bench_messages": "--only mst",
    "bench_mpc": "--cells 200 --segments 4 --repeats 1 --mpyc-cells 4",
    "bench_mst": "--tables compas --epsilons 1 --seeds 1",
    "bench_ordinary": "--profile --rows 300 --repeats 1",
    "bench_persons": "--persons 200 --rows-each 3 --holders 1 --overlap",
    "bench_peers": "--tables wide4 --rows 300 --triples 2 --rounds 6 --peers 'fedsyn mst' 'opendp MST' 'dpmm MST'",
    "bench_noise": "--draws 100 --settings 2",
    "bench_sampling": "--rows 1000",
    "bench_since": "HEAD --rows 300 --repeats 1 --only '`fedsyn demo`' '30,000 x 15 x 32' '`privsyn`, 60 columns'",
    "bench_secure_sum": "--ray 0 --clients 20 --lengths 10 --repeats 2",
    "bench_wide": "--columns 60 --rows 300 --mechanisms aim augflaim sketch_aim distributed_aim",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MINIATURES)
def test_a_benchmark_runs_in_miniature_and_its_page_reads_it(name: str) -> None:
    if "compas" in MINIATURES[name] and "FEDSYN_DATA" not in os.environ:
        pytest.skip("reads a benchmark table: FEDSYN_DATA names their folder")
    command = [sys.executable, f"benchmarks/{name}.py", *shlex.split(MINIATURES[name])]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    printed = by_label(done.stdout)
    assert printed, "no line holds a figure"
    for table, rows in tables_of(name):
        # A row of the page has its like among what was printed: of the same name, with as many numbers.
        like = [
            label for label, cells in rows.items() if any(len(line) >= len(cells[0]) for line in printed.get(label, []))
        ]
        assert like, f"{table}: none of {list(rows)} among {list(printed)}"


def tables_of(name: str) -> list[tuple[str, dict[str, list[list[str]]]]]:
    """Tables of the pages that a benchmark prints, with their rows."""
    runs: list[Run] = [run for run in load() if f"benchmarks/{name}.py" in run.command]
    tables = [(figure, Page.read(figure.page)) for run in runs for figure in run.figures if figure.table]
    spans = [(figure.table or "", page, figure.span(page)) for figure, page in tables]
    return [(table, by_label(page.text[slice(*span)])) for table, page, span in spans if span is not None]
