"""Sweeps: which cells a file makes, that finished cells are never run again, that failures stay with their cell."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedsyn.errors import ConfigError, DataError
from fedsyn.flower.ray_cluster import Cluster, Needs
from fedsyn.front import cli
from fedsyn.sweep import load_results, load_sweep, run_sweep, write_tables
from fedsyn.sweep.execute import CellTask, _needs, run_cell
from fedsyn.sweep.results import CELL_FILE, read_cell
from fedsyn.sweep.tables import grid_tables, summary_table

BASE: dict[str, Any] = {
    "mechanism": {"name": "augflaim", "rounds": 1},
    "data": {"source": "synthfs", "bins": 4, "options": {"features": 4, "rows": 200, "clients": 4}},
    "federation": {"clients": 4, "partition": {"name": "native"}},
    "privacy": {"epsilon": 2.0, "delta": 1.0e-5},
    "workload": {"degree": 2, "size": None},
    "evaluation": ["workload_error"],
}


def write(folder: Path, name: str = "sweep.yaml", **keys: Any) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump({"base": BASE, **keys}, sort_keys=False), encoding="utf-8")
    return path


def call(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["fedsyn", *map(str, arguments)])
        cli.main()
    return int(ended.value.code or 0)


# Which cells ---------------------------------------------------------------------------------------------------------


def test_cells_are_the_product_of_list_grid_and_paired_times_seeds(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        list=[{"mechanism.name": "naive_flaim"}, {"mechanism": {"name": "augflaim", "rounds": 2}}],
        grid={"privacy.epsilon": [1.0, 3.0]},
        paired=[{"federation.sampling_rate": [0.5, 1.0], "workload.degree": [1, 2]}],
        seeds=[0, 7, 8],
    )
    cells = load_sweep(file).cells
    assert len(cells) == 2 * 2 * 2 * 3 == len({cell.id for cell in cells})
    assert {(c.config.federation.sampling_rate, c.config.workload.degree) for c in cells} == {(0.5, 1), (1.0, 2)}
    assert [cell.seed for cell in cells[:4]] == [0, 7, 8, 0]
    last = cells[-1]
    assert last.config.runtime.seed == last.seed == 8
    assert last.config.mechanism.options == {"rounds": 2} and last.config.privacy.epsilon == 3.0
    assert last.axes == {
        "mechanism.name": "augflaim",
        "mechanism.rounds": 2,
        "privacy.epsilon": 3.0,
        "federation.sampling_rate": 1.0,
        "workload.degree": 2,
    }
    assert cells[0].id.startswith("naive_flaim-synthfs-s0-")


@pytest.mark.parametrize("axis", ["epsilon", "privacy.epsilon"])
@pytest.mark.parametrize("in_a_file", [True, False])
def test_an_axis_replaces_a_budget_at_the_top_of_the_base(axis: str, in_a_file: bool, tmp_path: Path) -> None:
    """`fedsyn init` writes it there."""
    base = {**{key: value for key, value in BASE.items() if key != "privacy"}, "epsilon": 2.0, "delta": 1.0e-5}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    file = write(tmp_path, base="run.yaml" if in_a_file else base, grid={axis: [1.0, 3.0]})
    privacies = [cell.config.privacy for cell in load_sweep(file).cells]
    assert [(privacy.epsilon, privacy.delta) for privacy in privacies] == [(1.0, 1.0e-5), (3.0, 1.0e-5)]


def test_ids_depend_on_the_configuration_alone(tmp_path: Path) -> None:
    """A cell keeps its id when others join the sweep, when the base moves to a file, and when the folder moves."""
    one = load_sweep(write(tmp_path, grid={"privacy.epsilon": [1.0]}, seeds=[0])).cells[0]
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    other = tmp_path / "elsewhere"
    other.mkdir()
    wider = write(other, base="../base.yaml", seeds=[5, 0], list=[{"privacy.epsilon": 9.0}, {"privacy.epsilon": 1.0}])
    assert [cell.id == one.id for cell in load_sweep(wider).cells] == [False, False, False, True]
    changed = write(tmp_path, set={"workload.degree": 1}, grid={"privacy.epsilon": [1.0]}, seeds=[0])
    assert load_sweep(changed).cells[0].id != one.id
    ids = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "rows.csv").write_text("x\n1\n", encoding="utf-8")
        ids.append(load_sweep(write(folder, grid={"data.source": ["rows.csv"]})).cells[0].id)
        assert load_sweep(folder / "sweep.yaml").cells[0].config.data.source == str(folder / "rows.csv")
    assert ids[0] == ids[1]


def test_file_names_of_a_sweep_are_relative_to_the_file_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base's to the base's folder, those of axes and `set` to the sweep's; never to the current folder."""
    base, sweeps, here = tmp_path / "base", tmp_path / "sweeps", tmp_path / "here"
    for folder, files in ((base, ["a.csv", "s.yaml"]), (sweeps, ["b.csv", "t.yaml"]), (here, ["c.csv"])):
        folder.mkdir()
        for name in files:
            (folder / name).write_text("x\n1\n", encoding="utf-8")
    document = BASE | {"data": {"source": "a.csv", "schema": "s.yaml"}}
    (base / "run.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    monkeypatch.chdir(here)

    def data(**keys: Any) -> dict[str, Any]:
        (sweeps / "sweep.yaml").write_text(yaml.safe_dump({"base": "../base/run.yaml", **keys}), encoding="utf-8")
        sweep = load_sweep(sweeps / "sweep.yaml")
        return sweep.cells[0].config.to_dict()["data"] | {"base": sweep.document["base"]["data"]}

    own = data()
    assert [Path(own[key]).resolve() for key in ("source", "schema")] == [base / "a.csv", base / "s.yaml"]
    axis = data(grid={"data.source": ["b.csv"]})
    assert (axis["source"], Path(axis["schema"]).resolve()) == (str(sweeps / "b.csv"), base / "s.yaml")
    override = data(set={"data.source": "b.csv", "data.schema": "t.yaml"})
    assert (override["source"], override["schema"]) == (str(sweeps / "b.csv"), str(sweeps / "t.yaml"))
    assert override["base"]["source"] == str(sweeps / "b.csv")  # sweep.json means the same everywhere, too
    for keys in ({"grid": {"data.source": ["c.csv"]}}, {"set": {"data.schema": "absent.yaml"}}):
        with pytest.raises(ConfigError, match=f"no such file: {sweeps}/"):
            data(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gird": {"privacy.epsilon": [1]}}, "did you mean 'grid'"),
        ({"grid": {"privacy.epsilon": []}}, "has no values"),
        ({"grid": {"privacy.epsilon": [1, 1]}}, "same value twice"),
        ({"grid": {"privcy.epsilon": [1]}}, "did you mean 'privacy'"),
        ({"paired": [{"privacy.epsilon": [1, 2], "privacy.delta": [0.1]}]}, "equal length"),
        ({"grid": {"mechanism.rounds": [1]}, "list": [{"mechanism": "aim"}]}, "set the same key"),
        ({"grid": {"runtime.seed": [1]}, "seeds": [0]}, "set the same key"),
        ({"seeds": [1, 1]}, "different integers"),
        ({"base": "no.yaml"}, "no such file"),
        ({"grid": {"data.source": ["adlt"]}}, "did you mean 'adult'"),
        ({"list": [{"workload.seed": 0}, {}]}, "is the same run as"),
        ({"grid": {"runtime.engine": ["deployment"]}}, "a sweep is for simulations"),
        ({"grid": {"privacy": ["much"]}}, "privacy: expected keys below it"),
    ],
)
def test_a_bad_sweep_is_one_message(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(write(tmp_path, **keys))


def test_mechanisms_with_different_default_workloads_need_one_that_is_named(tmp_path: Path) -> None:
    base = {key: value for key, value in BASE.items() if key != "workload"}
    both = {"mechanism.name": ["sketch_aim", "augflaim"]}
    with pytest.raises(ConfigError, match=r"sweep\.yaml: names no workload, by default sketch_aim has 1,000 cliques"):
        load_sweep(write(tmp_path, base=base, grid=both))
    named = load_sweep(write(tmp_path, base=base, grid=both, set={"workload.size": 5}))
    assert [cell.config.workload.size for cell in named.cells] == [5, 5]
    axis = load_sweep(write(tmp_path, base=base, grid={**both, "workload.size": [5, None]}))
    assert [cell.config.workload.size for cell in axis.cells] == [5, None, 5, None]


def test_every_bad_cell_is_found_before_any_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"privacy.epsilon": [1.0, -1.0], "mechanism.name": ["augflaim", "augflame"]}
    out = tmp_path / "out"
    assert call("sweep", write(tmp_path, grid=grid, seeds=[0, 1]), "--out", out) == 2
    shown = capsys.readouterr().err
    assert "6 of 8 cells cannot run" in shown
    assert "privacy.epsilon" in shown and "did you mean 'augflaim'" in shown
    assert not out.exists()


# Running them --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sweep_gives_what_its_runs_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes compute what one run computes alone; the tables hold mean and sd over the seeds."""
    from fedsyn.runs.engines import run

    file = write(tmp_path, grid={"privacy.epsilon": [0.5, 8.0]}, seeds=[0, 1])
    out = tmp_path / "out"
    assert call("sweep", file, "--workers", 2, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "epsilon" in shown and "workload_error" in shown and "±" in shown
    results = load_results(out)
    assert [row.status for row in results.rows] == ["done"] * 4
    cell = load_sweep(file).cells[3]
    alone = run(cell.config, tmp_path / "alone")
    assert results.rows[3].metrics["workload_error"] == alone["workload_error"]
    same = (tmp_path / "alone" / "synthetic.csv").read_bytes()
    assert (out / "cells" / cell.id / "synthetic.csv").read_bytes() == same

    with (out / "results.csv").open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    with (out / "summary.csv").open(newline="", encoding="utf-8") as opened:
        summary = list(csv.DictReader(opened))
    assert [row["privacy.epsilon"] for row in rows] == ["0.5", "0.5", "8.0", "8.0"]
    assert [row["seed"] for row in rows] == ["0", "1", "0", "1"]
    errors = [float(row["workload_error"]) for row in rows[2:]]
    assert errors[0] != errors[1]
    assert float(summary[1]["workload_error_mean"]) == pytest.approx(np.mean(errors))
    assert float(summary[1]["workload_error_sd"]) == pytest.approx(np.std(errors, ddof=1))
    assert summary[1]["done"] == "2"


@pytest.mark.slow
def test_a_failed_cell_is_recorded_and_the_rest_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.csv").write_text("", encoding="utf-8")
    bad = {"data": {"source": "broken.csv", "options": {}}}
    file = write(tmp_path, list=[bad, {"privacy.epsilon": 1.0}], seeds=[0])
    out = tmp_path / "out"
    assert call("sweep", file, "--out", out) == 1
    shown = capsys.readouterr()
    assert "SchemaError" in shown.err and "1 of 2 cells failed" in shown.err
    first, second = load_results(out).rows
    assert (first.status, second.status) == ("failed", "done")
    assert first.error["type"] == "SchemaError" and first.error["exit"] == 2 and "schema" in first.error["message"]
    # A failed cell is not finished: --resume runs it again, and it only.
    before = (out / "cells" / second.id / CELL_FILE).stat().st_mtime_ns
    tried = (out / "cells" / first.id / CELL_FILE).stat().st_mtime_ns
    assert call("sweep", file, "--out", out, "--resume") == 1
    assert (out / "cells" / second.id / CELL_FILE).stat().st_mtime_ns == before
    assert (out / "cells" / first.id / CELL_FILE).stat().st_mtime_ns > tried


def test_an_unexpected_error_leaves_its_place_and_not_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedsyn.runs.engines

    def explode(*_: object) -> None:
        raise ValueError("could not convert 4711-diagnosis")

    monkeypatch.setattr(fedsyn.runs.engines, "prepare", explode)
    cell = load_sweep(write(tmp_path)).cells[0]
    facts = run_cell(CellTask(cell, tmp_path / "cell"))
    assert facts["status"] == "failed" and facts["error"]["exit"] == 1 and "explode" in facts["error"]["message"]
    assert "4711" not in (tmp_path / "cell" / CELL_FILE).read_text(encoding="utf-8")


def test_a_folder_in_use_needs_resume(tmp_path: Path) -> None:
    sweep = load_sweep(write(tmp_path, seeds=[0]))
    out = tmp_path / "out"
    assert run_sweep(sweep, out) == 0
    with pytest.raises(ConfigError, match="--resume"):
        run_sweep(sweep, out)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no sweep"):
        run_sweep(sweep, other, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_sweep_resumes_without_running_a_finished_cell_again(workers: int, tmp_path: Path) -> None:
    file = write(tmp_path, grid={"privacy.epsilon": [1.0, 2.0]}, seeds=[0, 1, 2], set={"mechanism.rounds": 3})
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "fedsyn.front.cli",
        "sweep",
        str(file),
        "--out",
        str(out),
        "--workers",
        str(workers),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    ids = [cell.id for cell in load_sweep(file).cells]
    while not any(read_cell(out / "cells" / name) for name in ids):
        assert process.poll() is None, "the sweep ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL if workers == 2 else signal.SIGTERM)
    process.wait()
    _until_no_process_of(process.pid)
    finished = {name for name in ids if read_cell(out / "cells" / name)}
    assert 0 < len(finished) < len(ids)
    stamps = {name: _stamps(out / "cells" / name) for name in finished}
    leftover = out / "cells" / next(name for name in ids if name not in finished)
    leftover.mkdir(exist_ok=True)
    (leftover / "half-written").write_text("", encoding="utf-8")

    seen = []
    assert run_sweep(load_sweep(file), out, resume=True, on_done=lambda cell, _: seen.append(cell.id)) == 0
    assert sorted(seen) == sorted(ids) and {row.status for row in load_results(out).rows} == {"done"}
    assert {name: _stamps(out / "cells" / name) for name in finished} == stamps
    assert not (leftover / "half-written").exists() and not list(out.rglob(".store-*"))


def _stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}


def _until_no_process_of(session: int) -> None:
    """Workers must notice that their sweep was killed; a worker that lives on would write into the folder."""
    for _ in range(6000):
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    os.killpg(session, signal.SIGKILL)
    pytest.fail("workers outlived their sweep")


@pytest.mark.slow
def test_a_cell_that_kills_its_process_costs_itself_only(tmp_path: Path) -> None:
    """One cell dies while another is under way, whose process is lost with it: that one is run again."""
    file = write(tmp_path, grid={"privacy.epsilon": [2.0, 1.0]}, seeds=[0, 1])
    cells = load_sweep(file).cells
    script = tmp_path / "main.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "import fedsyn.runs.engines\n"
        "from fedsyn.runs.prepare import prepare\n"
        "started = pathlib.Path(__file__).with_name('started')\n"
        "def mortal(config, folder, *rest):\n"
        "    if config.privacy.epsilon == 2.0 and config.runtime.seed == 0:\n"
        "        while not started.exists():\n"
        "            time.sleep(0.01)\n"
        "        os.kill(os.getpid(), 9)\n"
        "    if not started.exists():\n"
        "        started.touch()\n"
        "        time.sleep(60)\n"
        "    return prepare(config, folder, *rest)\n"
        "fedsyn.runs.engines.prepare = mortal\n"  # spawned workers import this file, and with it this line
        "if __name__ == '__main__':\n"
        "    from fedsyn.sweep import load_sweep, run_sweep\n"
        "    sys.exit(run_sweep(load_sweep(sys.argv[1]), sys.argv[2], workers=2))\n",
        encoding="utf-8",
    )
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, str(script), str(file), str(out)], timeout=300, check=False)
    assert done.returncode == 1
    rows = {row.id: row for row in load_results(out).rows}
    assert [rows[cell.id].status for cell in cells] == ["failed", "done", "done", "done"]
    assert "died" in rows[cells[0].id].error["message"]


# Tables --------------------------------------------------------------------------------------------------------------


def test_tables_of_an_unfinished_sweep_leave_gaps(tmp_path: Path) -> None:
    """Axes that only some cells set and that tell nothing apart stay out of the summary; infinity survives."""
    file = write(
        tmp_path,
        list=[{"mechanism.name": "naive_flaim"}, {"mechanism.name": "aim", "federation.sampling_rate": 1.0}],
        seeds=[0, 1],
    )
    sweep, out = load_sweep(file), tmp_path / "out"
    run_sweep(sweep, out)
    facts = json.loads((out / "cells" / sweep.cells[0].id / CELL_FILE).read_text(encoding="utf-8"))
    facts["metrics"]["workload_error"] = None
    (out / "cells" / sweep.cells[0].id / CELL_FILE).write_text(json.dumps(facts), encoding="utf-8")
    (out / "cells" / sweep.cells[2].id / CELL_FILE).unlink()
    results = load_results(out)
    assert results.main_axes == ["mechanism.name"]
    write_tables(results, out)
    assert [row[:2] for row in summary_table(results).rows] == [["naive_flaim", "2"], ["aim", "1 of 2"]]
    assert summary_table(results).rows[0][2] == "not finite"
    assert [row.status for row in results.rows] == ["done", "done", "missing", "done"]


LABELS = {"augflaim": "AugFLAIM", "privacy.epsilon": "ε", "workload_error": "error", "independent": "no links at all"}


def test_mechanisms_stand_beside_budgets_and_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = {"mechanism.name": ["augflaim", "fed_naive_bayes"], "privacy.epsilon": [1.0, 1000.0]}
    fits = {"data.options.beta": 0.1, "inference.iterations": 300, "inference.final_iterations": 300}
    file = write(tmp_path, set=fits, grid=axes, seeds=[0, 1], labels=LABELS, caption="Two ways", baseline=True)
    assert call("sweep", file, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "Two ways: error, mean ± standard deviation over 2 seeds" in " ".join(printed.split())
    (grid,) = grid_tables(load_results(tmp_path / "out"))
    assert grid.head == ["mechanism", "ε 1.0", "ε 1000.0"]
    assert [row[0] for row in grid.rows] == ["AugFLAIM", "fed_naive_bayes", "no links at all"]
    rows = load_results(tmp_path / "out").rows
    apart = {row.seed: row.metrics["independent_workload_error"] for row in rows}
    assert all(row.metrics["independent_workload_error"] == apart[row.seed] for row in rows)
    weak = [row for row in rows if row.axes == {"mechanism.name": "fed_naive_bayes", "privacy.epsilon": 1000.0}]
    for row in weak:  # one-way marginals with hardly any noise come to the same
        assert row.metrics["workload_error"] == pytest.approx(apart[row.seed], rel=0.05)
    assert grid.rows[2][1] == grid.rows[2][2] and "±" in grid.rows[2][1]


def test_a_table_side_by_side_has_one_part_for_each_other_setting(tmp_path: Path) -> None:
    grid = {"mechanism.name": ["naive_flaim", "augflaim"], "privacy.epsilon": [1.0, 2.0], "workload.degree": [1, 2]}
    run_sweep(load_sweep(write(tmp_path, grid=grid)), tmp_path / "out")
    tables = grid_tables(load_results(tmp_path / "out"))
    assert [table.caption.split(", ")[1] for table in tables] == ["degree 1", "degree 2"]
    assert all(len(table.rows) == 2 and len(table.head) == 3 and not table.best for table in tables)
    assert all("" not in row for table in tables for row in table.rows)


def test_one_axis_stands_in_one_table(tmp_path: Path) -> None:
    run_sweep(load_sweep(write(tmp_path, grid={"privacy.epsilon": [1.0, 2.0]})), tmp_path / "out")
    assert grid_tables(load_results(tmp_path / "out")) == []


def test_a_label_for_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"labels: the sweep has no key, metric or value 'augflam'.*augflaim"):
        load_sweep(write(tmp_path, grid={"mechanism.name": ["augflaim", "aim"]}, labels={"augflam": "x"}))


@pytest.mark.slow
def test_ray_gives_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    sweep = load_sweep(write(tmp_path, seeds=list(range(5)), grid={"runtime.engine": ["inprocess", "ray"]}))
    assert run_sweep(sweep, tmp_path / "here") == 0
    most, some_of = [0], Cluster.some_of

    def watched(self: Cluster, references: Any, needs: Any) -> Any:
        most[0] = max(most[0], len(references))
        return some_of(self, references, needs)

    monkeypatch.setattr(Cluster, "some_of", watched)
    assert run_sweep(sweep, tmp_path / "ray", ray="local") == 0
    assert most == [len(sweep.cells)] == [10]  # all of them at once, however few processors there are
    for cell in sweep.cells:
        here, there = (tmp_path / place / "cells" / cell.id / "synthetic.csv" for place in ("here", "ray"))
        assert here.read_bytes() == there.read_bytes()


def test_what_a_cell_needs_of_ray(tmp_path: Path) -> None:
    axes = [{"runtime.seed": 3}, {"runtime.ray": {"cpus": 2, "memory": 4.5, "retries": 1, "wait": 9}}]
    cells = load_sweep(write(tmp_path, list=axes)).cells
    found = [_needs(CellTask(cell, tmp_path)) for cell in cells]
    assert found == [Needs(1, None, 5, 300.0), Needs(2, 4.5, 1, 9.0)]


def test_shipped_sweeps_are_usable(tmp_path: Path) -> None:
    files = sorted((Path(__file__).resolve().parents[3] / "configs" / "sweeps").glob("*.yaml"))
    assert files
    for file in files:
        assert load_sweep(file).cells


# What is kept, and what people see ------------------------------------------------------------------------------------


def test_keep_metrics_leaves_no_table_and_no_model(tmp_path: Path) -> None:
    from fedsyn.sweep.report import report_folder

    file = write(tmp_path, seeds=[0, 1], keep="metrics")
    assert run_sweep(load_sweep(file), tmp_path / "out") == 0
    for cell in load_results(tmp_path / "out").rows:
        folder = tmp_path / "out" / "cells" / cell.id
        kept = {path.name for path in folder.iterdir()}
        assert kept >= {"cell.json", "config.yaml", "ledger.json", "metrics.json", "report.html", "rounds.jsonl"}
        assert not kept & {"synthetic.csv", "model.npz"} and cell.metrics["workload_error"] > 0
    page = report_folder(folder)[0].read_text(encoding="utf-8")
    assert "The synthetic table was not kept" in page
    assert run_sweep(load_sweep(file), tmp_path / "out", resume=True) == 0  # they are finished
    with pytest.raises(ConfigError, match="keep"):
        load_sweep(write(tmp_path, keep="everything"))


@pytest.mark.slow
def test_the_terminal_shows_a_wide_table_in_eighty_columns_and_how_far_it_is(tmp_path: Path) -> None:
    """Piped, as into a log: no cell is cut, no row is broken over lines, errors that cells share are one line."""
    grid = {
        "mechanism.name": ["naive_flaim", "augflaim"],
        "privacy.epsilon": [0.5, 4.0],
        "federation.partition": [{"name": "iid"}, {"name": "quantity"}],
        "data.source": ["synthfs", "gone.csv"],
        "federation.clients": [3, 4],
    }
    metrics = ["workload_error", "nll", "heterogeneity", "range_query_error"]
    file = write(tmp_path, set={"evaluation": metrics}, grid=grid, seeds=[0], keep="metrics")
    (tmp_path / "gone.csv").write_text("a\n1\n", encoding="utf-8")
    command = [sys.executable, "-m", "fedsyn.front.cli", "sweep", str(file), "--out", str(tmp_path / "out")]
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}
    ended = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert ended.returncode == 1
    tables = [line for line in ended.stdout.splitlines() if line.startswith(("│", "┃", "|"))]
    assert max(map(len, tables)) <= 80 and "…" not in ended.stdout
    for metric in metrics:
        caption = f"{metric}, partition iid, source synthfs, clients 3, mean ± standard deviation over 1 seed"
        assert caption in " ".join(ended.stdout.split())
    failed = [line for line in ended.stderr.splitlines() if line.startswith("failed:")]
    assert len(failed) == 1 and "[16 cells: " in failed[0] and failed[0].endswith("and 13 more]")
    progress = [line for line in ended.stderr.splitlines() if "of 32 cells" in line and " left" in line]
    assert 5 <= len(progress) <= 12 and "failed" in progress[-1]


@pytest.mark.parametrize("name", ["../secret", "/etc", "..", "a/b", ".hidden", "", 3])
def test_no_cell_is_read_outside_of_the_sweep(tmp_path: Path, name: object) -> None:
    """A folder that somebody else made names its cells in sweep.json."""
    (tmp_path / "out" / "cells").mkdir(parents=True)
    record = {"name": "s", "document": {}, "cells": [{"id": name, "axes": {}, "seed": 0}]}
    (tmp_path / "out" / "sweep.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(DataError, match="a cell's id must be the name of a folder in cells/"):
        load_results(tmp_path / "out")


@pytest.mark.parametrize(
    "damage", [{"cells": 3}, {"cells": [1]}, {"cells": [{"id": "a"}]}, {"name": 1}, {"document": []}]
)
def test_a_damaged_sweep_is_named(tmp_path: Path, damage: dict[str, object]) -> None:
    record = {"name": "s", "document": {}, "cells": []}
    for content in (json.dumps(record | damage), "[1]"):
        (tmp_path / "sweep.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=r"sweep\.json is damaged: run the sweep again"):
            load_results(tmp_path)


@pytest.mark.parametrize("damage", [{"metrics": 3}, {"metrics": {"a": "b"}}, {"error": []}, {"status": "well"}])
def test_a_damaged_cell_is_a_missing_one(tmp_path: Path, damage: dict[str, object]) -> None:
    record = {"name": "s", "document": {}, "cells": [{"id": "a", "axes": {}, "seed": 0}]}
    (tmp_path / "sweep.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "cells" / "a").mkdir(parents=True)
    for facts in ({"status": "done"} | damage, [damage]):
        (tmp_path / "cells" / "a" / "cell.json").write_text(json.dumps(facts), encoding="utf-8")
        assert [row.status for row in load_results(tmp_path).rows] == ["missing"]
