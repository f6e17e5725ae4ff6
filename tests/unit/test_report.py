"""Reports: self-contained pages below 2 MB, real rows only where asked for and with the warning, exact tables."""

from __future__ import annotations

import base64
import csv
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedsyn.config import RunConfig
from fedsyn.errors import DataError
from fedsyn.loading import load_config
from fedsyn.report.tables import latex_table, number, plus_minus
from fedsyn.runs import report as run_report
from fedsyn.runs.engines import run
from fedsyn.sweep import load_results, load_sweep, run_sweep
from fedsyn.sweep.report import main_axis, report_folder
from fedsyn.sweep.results import CELL_FILE, Results, Row

pytestmark = pytest.mark.thorough

CONFIG: dict[str, Any] = {
    "mechanism": {"name": "augflaim", "rounds": 2},
    "data": {"source": "synthfs", "bins": 4, "options": {"features": 4, "rows": 200, "clients": 4}},
    "federation": {"clients": 4, "partition": {"name": "native"}},
    "privacy": {"epsilon": 2.0, "delta": 1.0e-5},
    "workload": {"degree": 2, "size": None},
    "runtime": {"seed": 0},
}
LIMIT = 2_000_000
WARNING = "drawn from the real rows"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    run(RunConfig(**CONFIG), out)
    return out


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two mechanisms at three budgets, two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    grid = {"mechanism.name": ["naive_flaim", "augflaim"], "privacy.epsilon": [0.5, 1.0, 8.0]}
    base = {**CONFIG, "runtime": {}}
    text = yaml.safe_dump({"base": base, "grid": grid, "seeds": [0, 1]}, sort_keys=False)
    (folder / "budget.yaml").write_text(text, encoding="utf-8")
    assert run_sweep(load_sweep(folder / "budget.yaml"), folder / "out") == 0
    return folder / "out"


def pictures(page: str) -> list[bytes]:
    found = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page)]
    assert all(data.startswith(b"\x89PNG") for data in found)
    return found


def read(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LIMIT
    # Self-contained: it names no other file or address to load.
    assert not re.search(r"(src|href)=\"(?!data:)", text) and "<script" not in text and "@import" not in text
    return text


def test_the_page_of_a_run_itself_holds_no_picture(made: Path, tmp_path: Path) -> None:
    """Every run writes one; it must not cost matplotlib's import, nor show real rows."""
    run(RunConfig(**CONFIG), tmp_path)
    page = read(tmp_path / "report.html")
    assert not pictures(page) and WARNING not in page
    code = "import sys, fedsyn.report.html, fedsyn.runs.engines; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_report_of_a_run_warns_of_real_rows(made: Path) -> None:
    paths = report_folder(made)
    assert [path.name for path in paths] == ["report.html", "metrics.csv", "metrics.tex"]
    page = read(paths[0])
    assert len(pictures(page)) == 2 and WARNING in page and "<h2>Privacy</h2>" in page and "epsilon: 2.0" in page
    metrics = json.loads((made / "metrics.json").read_text(encoding="utf-8"))
    with paths[1].open(newline="", encoding="utf-8") as file:
        rows = {row["metric"]: float(row["value"]) for row in csv.DictReader(file)}
    assert rows == metrics
    assert r"workload\_error & " in paths[2].read_text(encoding="utf-8")

    without = read(report_folder(made, real=False)[0])
    assert WARNING not in without and len(pictures(without)) == 2
    assert pictures(without)[1] != pictures(page)[1]


def test_plots_show_the_tables_themselves(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts that are drawn are those of synthetic.csv and of the training rows."""
    import pandas as pd

    drawn: list[Any] = []

    def spy(synthetic: Any, real: Any, labels: Any) -> bytes:
        drawn.extend((synthetic, real, labels))
        return b"\x89PNG"

    monkeypatch.setattr(run_report.figures, "marginals", spy)
    report_folder(made)
    synthetic, real, labels = drawn
    table = pd.read_csv(made / "synthetic.csv")
    config = load_config(made / "config.yaml")
    schema = run_report._public_schema(config)
    codes = schema.encode(table)
    for j, name in enumerate(schema.columns):
        assert np.array_equal(synthetic[name], np.bincount(codes[:, j], minlength=schema.domain.shape[j]))
        assert len(labels[name]) == schema.domain.shape[j]
        assert real[name].sum() == 180  # 200 rows, a tenth of them held out


def test_report_without_the_real_rows_still_shows_the_synthetic_ones(made: Path, tmp_path: Path) -> None:
    """Of a run whose table has been moved away since; its message stands where the plot's outline would."""
    frame_schema = run_report._public_schema(load_config(made / "config.yaml"))
    frame_schema.save(tmp_path / "schema.yaml")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("metrics.json", "ledger.json", "rounds.jsonl", "synthetic.csv"):
        (out / name).write_bytes((made / name).read_bytes())
    data = {"source": str(tmp_path / "gone.csv"), "schema": str(tmp_path / "schema.yaml")}
    partition = {"clients": 4, "partition": "iid"}
    RunConfig(**{**CONFIG, "data": data, "federation": partition}).save(out / "config.yaml")
    page = read(report_folder(out)[0])
    assert "real rows are not at hand" in page and WARNING not in page and len(pictures(page)) == 2


def test_report_of_a_sweep_has_settings_spread_and_plot(swept: Path) -> None:
    paths = report_folder(swept)
    assert [path.name for path in paths] == ["report.html", "results.csv", "summary.csv", "summary.tex"]
    page = read(paths[0])
    assert len(pictures(page)) == 1 and "12 done, 0 failed" in page and "features: 4" in page
    results = load_results(swept)
    assert main_axis(results) == "privacy.epsilon"
    with paths[2].open(newline="", encoding="utf-8") as file:
        summary = list(csv.DictReader(file))
    assert len(summary) == 6
    for row in summary:
        mean, sd = float(row["workload_error_mean"]), float(row["workload_error_sd"])
        assert plus_minus(mean, sd) in page


def results_over(**axes: list[Any]) -> Results:
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return Results("made", {}, tuple(Row(str(i), p, 0, "done", {"nll": 1.0}, {}) for i, p in enumerate(points)))


def test_the_main_axis_is_the_numeric_one_if_it_has_points_enough() -> None:
    names = ["a", "b", "c", "d"]
    assert main_axis(results_over(name=names, epsilon=[1, 2, 3])) == "epsilon"
    assert main_axis(results_over(epsilon=[1, 2], name=names)) == "name"
    assert main_axis(results_over(rounds=[1, 2, 3], epsilon=[1, 2, 3, 4])) == "epsilon"


def test_the_sweeps_plot_has_a_line_per_mechanism(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsyn.report import figures

    seen: list[Any] = []

    def spy(metrics: Any, x_name: str, ticks: Any) -> bytes:
        seen.extend((metrics, x_name, ticks))
        return b"\x89PNG"

    monkeypatch.setattr(figures, "over_axis", spy)
    report_folder(swept)
    metrics, x_name, ticks = seen
    assert x_name == "privacy.epsilon" and ticks is None and list(metrics) == ["workload_error"]
    naive, augmented = metrics["workload_error"]
    assert (naive.name, augmented.name) == ("naive_flaim", "augflaim")
    assert augmented.x.tolist() == [0.5, 1.0, 8.0]
    rows = [row for row in load_results(swept).rows if row.axes["mechanism.name"] == "augflaim"]
    last = [row.metrics["workload_error"] for row in rows if row.axes["privacy.epsilon"] == 8.0]
    assert augmented.mean[-1] == pytest.approx(np.mean(last)) and augmented.sd[-1] == pytest.approx(
        np.std(last, ddof=1)
    )


def test_report_of_a_sweep_names_failed_and_missing_cells(swept: Path, tmp_path: Path) -> None:
    import shutil

    out = tmp_path / "out"
    shutil.copytree(swept, out)
    rows = load_results(out).rows
    failed = out / "cells" / rows[0].id / CELL_FILE
    error = {"type": "RunError", "message": "<b>it stopped</b>", "exit": 1}
    failed.write_text(json.dumps({"status": "failed", "error": error}), encoding="utf-8")
    (out / "cells" / rows[1].id / CELL_FILE).write_text("{", encoding="utf-8")  # torn by a full disk, say
    page = read(report_folder(out)[0])
    assert "10 done, 1 failed, 1 not run yet" in page
    assert "&lt;b&gt;it stopped&lt;/b&gt;" in page and "<b>it stopped" not in page


def test_a_sweep_of_thousands_of_cells_stays_small(swept: Path, tmp_path: Path) -> None:
    record = json.loads((swept / "sweep.json").read_text(encoding="utf-8"))
    cell = record["cells"][0]
    record["cells"] = [
        {**cell, "id": f"{cell['id']}-{k}", "axes": {**cell["axes"], "privacy.epsilon": k // 5 + 1.0}, "seed": k % 5}
        for k in range(6000)
    ]
    (tmp_path / "sweep.json").write_text(json.dumps(record), encoding="utf-8")
    assert "5000 more rows" in read(report_folder(tmp_path)[0])


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither"):
        report_folder(tmp_path)
    (tmp_path / "config.yaml").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"not a finished run: metrics\.json"):
        report_folder(tmp_path)


@pytest.mark.parametrize(
    ("mean", "sd", "shown"),
    [
        (0.41753, 0.01342, "0.418 ± 0.013"),
        (123.4, 49.2, "123 ± 49"),
        (0.5, 0.0, "0.5 ± 0"),
        (0.5, math.nan, "0.5"),
        (math.inf, math.nan, "not finite"),
        (math.nan, math.nan, "–"),
    ],
)
def test_spread_is_shown_to_two_digits(mean: float, sd: float, shown: str) -> None:
    assert plus_minus(mean, sd) == shown


def test_latex_is_escaped() -> None:
    table = latex_table(("a_b", "50%"), [("x & y", number(1 / 3))])
    assert r"a\_b & 50\% \\" in table and r"x \& y & 0.3333 \\" in table
