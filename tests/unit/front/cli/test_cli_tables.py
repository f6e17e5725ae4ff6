"""`fedsyn sample`, `evaluate`, `compare` and `demo`: what they print and write, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.errors import InputError
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.front.archive import read_release
from fedsyn.front.cli.runs import show_result
from fedsyn.front.several import write_tables
from fedsyn.loading import load_config
from fedsyn.runs.engines import run
from fedsyn.runs.report import write_run_page
from fedsyn.version import installing
from support.typed_commands import Fedsyn, Result, entry_point

ROOT = Path(__file__).resolve().parents[4]
SCHEMA = """\
columns:
  age: {kind: integer, lower: 0, upper: 99, bins: 10}
  ward: {kind: categorical, categories: [children, adults], other: false}
  cost: {kind: decimal, places: 2, lower: 0, upper: 500, bins: 8}
label: ward
"""


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    """The command's own entry point, in this process, as a pipe sees it: 80 columns."""
    return entry_point(capfd, monkeypatch)


def rows(n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ward = rng.choice(["children", "adults"], n)
    age = np.where(ward == "children", rng.integers(0, 16, n), rng.integers(16, 100, n))
    return pd.DataFrame({"age": age, "ward": ward, "cost": np.round(rng.gamma(2.0, 50.0, n), 2)})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its schema, two runs and a saved model."""
    folder = tmp_path_factory.mktemp("project")
    rows().to_csv(folder / "rows.csv", index=False)
    (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    (folder / "run.yaml").write_text("data: rows.csv\nepsilon: 3\ndelta: 1e-5\n", encoding="utf-8")
    for name, changes in (("one", ()), ("two", ("epsilon=1", "runtime.seed=3", "mechanism.name=augflaim"))):
        fedsyn.run(load_config(folder / "run.yaml", changes), folder / name)
    fedsyn.load(folder / "one").save(folder / "model.fedsyn")
    return folder


@pytest.fixture
def here(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return project


def assert_one_message(result: Result, *parts: str) -> None:
    assert result.code == 2 and result.out == "", result
    lines = result.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.err
    for part in parts:
        assert part in lines[0], lines[0]


# run -----------------------------------------------------------------------------------------------------------------


def test_a_deployment_says_who_is_not_in_its_table(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may begin without some holders: neither its end nor its page speaks of their rows."""
    folder = tmp_path / "deployed"
    shutil.copytree(project / "one", folder)
    config = load_config(project / "run.yaml")
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"engine": "deployment"})})
    first, *others = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    facts = json.loads(first)
    clients = len(facts["cohort"])
    lake = {"who": "lake", "why": {"kind": "offline", "sentence": "it was away"}}
    facts |= {"cohort": facts["cohort"][:-1], "not_joined": [lake]}
    (folder / "rounds.jsonl").write_text("\n".join([json.dumps(facts), *others, ""]), encoding="utf-8")
    show_result(folder, config, {})
    assert "not joined: lake (offline: it was away)" in " ".join(capsys.readouterr().out.split())
    write_run_page(folder, config=config, public=True, draw=False)
    for name in ("report_public.html", "README.md"):
        said = (folder / name).read_text(encoding="utf-8")
        assert f"the rows of {clients - 1} of {clients} holders" in said, name


def test_a_mechanism_of_one_holder_says_whose_rows_it_took(call: Fedsyn, here: Path) -> None:
    """And with published row counts what is hidden."""
    pooled = ("--set", "mechanism.name=mst", "--set", "federation.clients=3")
    result = call("run", here / "run.yaml", "--out", "out", *pooled)
    assert result.code == 0, result
    assert "'mst' needs one holder: it took the rows of all 3 clients for one's" in " ".join(result.out.split())
    readme = Path("out", "README.md").read_text(encoding="utf-8")
    assert f"and {len(pd.read_csv('out/synthetic.csv').columns)} columns, made by mst" in readme
    assert "from the rows of one holder" in readme
    result = call("run", here / "run.yaml", "--out", "public", "--set", "privacy.client_sizes=public")
    promised = json.loads(Path("public", "ledger.json").read_text(encoding="utf-8"))["epsilon_replace_one"]
    assert promised > 3.5 and f"epsilon {promised:.4g} at delta 1e-05, for one row" in " ".join(result.out.split())


def test_a_run_says_what_an_analyst_asks(call: Fedsyn, here: Path) -> None:
    result = call("run", here / "run.yaml", "--out", "out")
    assert result.code == 0, result
    assert all(len(line) <= 80 for line in result.out.splitlines())
    told = dict(line.split(":", 1) for line in re.sub(r"\n {17}", " ", result.out).splitlines())
    assert told["synthetic table"].strip() == "out/synthetic.csv"
    assert told["page"].strip() == "out/report.html (beside real rows, not for publication)"
    assert told["privacy"].strip() == "may be released: epsilon 3 at delta 1e-05, for one row"
    assert (
        told["predicted"].strip().startswith("the workload error is about 0.") and "workload_error" in told["metrics"]
    )
    uses = " ".join(told.get(what, "") for what in ("good for", "not good for", "not known"))
    assert all(use in uses for use in ("counts of single columns", "tables of two columns", "regression", "training"))
    assert "held out" not in told
    assert call(*told["more rows"].strip().removeprefix("fedsyn ").split()).code == 0
    assert len(pd.read_csv("more.csv")) == 1000


@pytest.mark.slow
def test_what_fails_after_the_release_is_said(call: Fedsyn, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **named: object) -> None:
        raise ZeroDivisionError("a value of a row")

    monkeypatch.delenv("FEDSYN_DEBUG", raising=False)
    monkeypatch.setattr("fedsyn.runs.finish.predict_quality", broken)
    result = call("run", here / "run.yaml", "--out", "out")
    assert result.code == 0 and "a value of a row" not in result.err
    told = "warning: the predicted quality could not be made (a bug of fedsyn, ZeroDivisionError); the table"
    assert result.err.count(told) == 1 and Path("out/synthetic.csv").is_file()


def test_what_is_held_out_is_said(call: Fedsyn, here: Path) -> None:
    result = call("run", here / "run.yaml", "--out", "out", "--set", "runtime.seed=1")
    assert "held out:" in result.out and "0.1 of the rows" in result.out
    assert "do not release this table (not private: seeded noise)" in result.out


@pytest.mark.slow
def test_a_run_spares_a_schema_that_is_somebodys_own(call: Fedsyn, here: Path, tmp_path: Path) -> None:
    for name in ("rows.csv", "schema.yaml", "run.yaml"):
        (tmp_path / name).write_bytes((here / name).read_bytes())
    assert_one_message(call("run", "run.yaml", "--out", "."), "has a schema.yaml of its own")
    assert (tmp_path / "schema.yaml").read_text(encoding="utf-8") == SCHEMA
    assert not (tmp_path / "config.yaml").exists()
    assert call("run", "run.yaml", "--out", "out").code == 0
    assert call("run", "run.yaml", "--out", "out", "--force").code == 0


# sample --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["one", "model.fedsyn"])
def test_rows_go_to_standard_output(call: Fedsyn, here: Path, source: str) -> None:
    result = call("sample", here / source, "--rows", "25", "--where", "ward=children", "--where", "age<=7")
    assert result.code == 0 and result.err == ""
    lines = result.out.splitlines()
    assert lines[0] == "age,ward,cost" and len(lines) == 26
    assert all(line.split(",")[1] == "children" and int(line.split(",")[0]) <= 7 for line in lines[1:])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_go_to_a_file_that_is_not_replaced_unasked(call: Fedsyn, here: Path, suffix: str) -> None:
    out = Path(f"more.{suffix}")
    assert call("sample", here / "one", "--rows", "30", "--out", out, "--seed", "1").code == 0
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    first = read(out)
    assert len(first) == 30 and list(first.columns) == ["age", "ward", "cost"]
    assert_one_message(call("sample", here / "one", "--out", out), f"{out} exists", "--force")
    assert call("sample", here / "one", "--rows", "30", "--out", out, "--seed", "1", "--force").code == 0
    pd.testing.assert_frame_equal(read(out), first)
    assert [path.name for path in Path().iterdir()] == [out.name]


def test_rows_of_a_run_that_is_not_private_say_so(call: Fedsyn, here: Path) -> None:
    result = call("sample", here / "two", "--rows", "3")
    assert result.code == 0 and "do not release this table: not private: seeded noise" in result.err
    assert len(result.out.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["absent"], ["no file or run directory absent"]),
        (["."], ["not the directory of a finished run"]),
        (["{one}", "--where", "wrad=children"], ["did you mean 'ward'"]),
        (["{one}", "--where", "ward=chldren"], ["did you mean 'children'"]),
        (["{one}", "--where", "age<0"], ["no value of 'age'"]),
        (["{one}", "--out", "rows.txt"], [".csv or .parquet"]),
        (["{one}", "--out", "no/such/rows.csv"], ["there is no folder no/such"]),
    ],
)
def test_a_bad_call_of_sample(call: Fedsyn, here: Path, arguments: list[str], parts: list[str]) -> None:
    assert_one_message(call("sample", *(text.format(one=here / "one") for text in arguments)), *parts)


# evaluate ------------------------------------------------------------------------------------------------------------


def test_a_table_is_compared_with_real_rows(call: Fedsyn, here: Path) -> None:
    result = call("evaluate", here / "one", "--real", here / "rows.csv", "--out", "page.html")
    assert result.code == 0 and result.err == ""
    assert all(len(line) <= 80 for line in result.out.splitlines())
    assert "not for publication" in result.out and "age × cost" in result.out
    assert "not for publication</title>" in Path("page.html").read_text(encoding="utf-8")
    assert "page:            page.html (beside real rows, not for publication)" in result.out
    arguments = [
        "evaluate",
        here / "one" / "synthetic.csv",
        "--real",
        here / "rows.csv",
        "--schema",
        here / "schema.yaml",
    ]
    assert_one_message(call(*arguments, "--out", "page.html"), "page.html exists")
    found = json.loads(call(*arguments, "--json").out)
    assert {column["name"] for column in found["columns"]} == {"age", "ward", "cost"}
    itself = json.loads(call("evaluate", here / "rows.csv", "--real", here / "rows.csv", "--json").out)
    assert found["regressions"] is None and found["missing"]["regressions"].startswith(
        "regression 'ward ~ age' of the real rows"
    )
    named = ["--regression", "cost ~ age", "--regression", "age ~ ward"]
    result = call(*arguments, *named)
    for formula in named[1::2]:
        assert re.search(f"The regression {formula} (is|has|cannot) ", " ".join(result.out.split())), result.out
    assert "A model tells synthetic rows from real ones in " in Path("page.html").read_text(encoding="utf-8")
    both = json.loads(call(*arguments, *named, "--json").out)["regressions"]
    assert [one["formula"] for one in both] == ["cost ~ age", "age ~ ward"] and all(one["named"] for one in both)
    assert all(column["score"] == 1.0 for column in itself["columns"])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["absent.csv", "--real", "{rows}", "--schema", "{schema}"], ["absent.csv"]),
        (["{rows}", "--real", "absent.csv"], ["absent.csv"]),
        (["lonely.csv", "--real", "{rows}"], ["rows.csv has none of the columns"]),
        (["{rows}", "--real", "lonely.csv"], ["lonely.csv has none of the columns"]),
        (["{rows}", "--real", "{rows}", "--label", "wrad"], ["did you mean 'ward'"]),
        (
            ["{rows}", "--real", "{rows}", "--regression", "cost ~ agee"],
            ["'agee' is not a column", "did you mean 'age'"],
        ),
        (["{rows}", "--real", "{rows}", "--regression", "cost"], ["has no outcome"]),
    ],
)
def test_a_bad_call_of_evaluate(call: Fedsyn, here: Path, arguments: list[str], parts: list[str]) -> None:
    Path("lonely.csv").write_text("x\n1\n", encoding="utf-8")
    files = {"rows": here / "rows.csv", "schema": here / "schema.yaml"}
    assert_one_message(call("evaluate", *(text.format(**files) for text in arguments)), *parts)


# compare -------------------------------------------------------------------------------------------------------------


def test_runs_stand_side_by_side(call: Fedsyn, here: Path) -> None:
    result = call("compare", here / "one", here / "two")
    assert result.code == 0 and result.err == ""
    lines = {line.split("  ")[0].strip(): line.split() for line in result.out.splitlines() if line.strip()}
    assert lines["mechanism.name"][-2:] == ["sketch_aim", "augflaim"]
    assert lines["privacy.epsilon"][-2:] == ["3.0", "1.0"] and lines["may be released"][-2:] == ["yes", "NO"]
    assert sum(value.endswith("*") for value in lines["workload_error"]) == 1
    assert "workload.degree" not in result.out  # both have the same
    facts = json.loads(call("compare", here / "one", here / "two", "--json").out)
    assert [run["private"] for run in facts] == [True, False]
    best = min(facts, key=lambda run: run["metrics"]["workload_error"])
    assert f"{best['metrics']['workload_error']:.4g}*" in lines["workload_error"]


def test_runs_of_other_schemas_say_in_what_they_differ(call: Fedsyn, here: Path, tmp_path: Path) -> None:
    """Nothing is the best of tables that are read by other schemas, and the columns that differ are named."""
    for name in ("three", "four"):
        shutil.copytree(here / "one", tmp_path / name)
    schema = (tmp_path / "three" / "schema.yaml").read_text(encoding="utf-8")
    other = schema.replace("upper: 99", "upper: 120").replace("label: ward", "label: age")
    assert other != schema
    (tmp_path / "three" / "schema.yaml").write_text(other, encoding="utf-8")
    result = call("compare", here / "one", tmp_path / "three", tmp_path / "four")
    line, rest = (line.split() for line in result.out.splitlines() if line.startswith("schema"))  # two runs abreast
    assert line == ["schema", "differs", "in", "-", "age,", "label"] and rest[3:] == ["nothing"]
    assert "*" not in result.out
    assert "schema" not in call("compare", here / "one", tmp_path / "four").out


def test_many_runs_fit_into_80_columns(call: Fedsyn, here: Path) -> None:
    result = call("compare", *[here / "one", here / "two"] * 6)
    assert result.code == 0 and all(len(line) <= 80 for line in result.out.splitlines())


def test_a_bad_call_of_compare(call: Fedsyn, here: Path) -> None:
    assert_one_message(call("compare", here / "one", here), "not the directory of a finished run")
    assert call("compare").code == 2


# demo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_demo_runs_in_an_empty_folder(tmp_path: Path) -> None:
    """As its user types it: on a real table, over secure sums, unseeded, so that the table may be released."""
    pytest.importorskip("statsmodels")
    done = subprocess.run(
        [sys.executable, "-m", "fedsyn.front.cli", "demo"],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    (folder,) = (tmp_path / "runs").iterdir()
    assert "may be released: epsilon 1 at delta 1e-06" in done.stdout
    assert f"runs/{folder.name}/report.html" in done.stdout and (folder / "report.html").is_file()
    config: Any = load_config(folder / "config.yaml")
    assert (config.aggregation.protocol, config.aggregation.noise) == ("secagg", "distributed")
    assert config.federation.clients == 12 and config.runtime.seed is None
    assert len(pd.read_csv(folder / "synthetic.csv")) == pytest.approx(20_190, rel=0.02)


@pytest.mark.thorough
def test_the_demo_is_good_for_counts_and_pairs(tmp_path: Path) -> None:
    """With a seed, which the demo itself has not; one holder has the noise of twelve."""
    pytest.importorskip("statsmodels")
    seeded = ["runtime.seed=1", "federation.clients=1", "aggregation.protocol=plain", "data.test_fraction=0"]
    run(load_config(ROOT / "configs" / "demo.yaml", seeded), tmp_path / "out")
    found = TableComparison.of_document(json.loads((tmp_path / "out" / TableComparison.FILE).read_text("utf-8")))
    good = {use.name for use in found.verdict().good()}
    assert {"counts of single columns", "tables of two columns", "regression"} <= good, found.sentence()


def test_the_demo_without_its_table_says_what_to_install(
    call: Fedsyn, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsyn.table.data.fetch.find_spec", lambda name: None)
    monkeypatch.delenv("FEDSYN_DATA", raising=False)
    assert_one_message(call("demo", "--out", "out"), installing("demo"))
    assert not Path("out").exists()


# sample --tables -----------------------------------------------------------------------------------------------------


def test_several_tables_are_draws_of_their_own(call: Fedsyn, here: Path) -> None:
    result = call("sample", here / "one", "--tables", 3, "--rows", 50, "--out", "several", "--seed", 1)
    assert result.code == 0 and "3 tables of 50 rows in several" in result.err, result
    facts = json.loads(Path("several/tables.json").read_text(encoding="utf-8"))
    assert [one["file"] for one in facts["tables"]] == [f"table_0{i}.csv" for i in (1, 2, 3)]
    assert facts["real_rows"] == pytest.approx(fedsyn.load(here / "one").model.total) and facts["private"] is True
    assert facts["held"] and all(set(clique) <= {"age", "ward", "cost"} for clique in facts["held"])
    tables = [pd.read_csv(Path("several") / one["file"]) for one in facts["tables"]]
    assert all(list(table) == ["age", "ward", "cost"] and len(table) == 50 for table in tables)
    assert not tables[0].equals(tables[1])
    saved = fedsyn.load(here / "model.fedsyn").sample(50, tables=3, seed=1)
    assert [list(table["ward"]) for table in saved] == [list(table["ward"]) for table in tables]
    assert all(table.attrs["fedsyn"]["held"] == facts["held"] for table in saved)
    assert all(table.attrs["fedsyn"]["real_rows"] == facts["real_rows"] for table in saved)
    assert all(table.attrs["fedsyn"]["given"] == [] and "cost" in table.attrs["fedsyn"]["bins"] for table in saved)


def test_each_of_several_tables_is_told_before_it_is_drawn(here: Path, tmp_path: Path) -> None:
    begun = list[int]()
    write_tables(tmp_path, read_release(here / "one"), 3, 20, {}, 0, begun.append)
    assert begun == [1, 2, 3]


def test_tables_under_a_condition_meet_it(call: Fedsyn, here: Path) -> None:
    result = call("sample", here / "one", "--tables", 2, "--rows", 20, "--where", "ward=children", "--out", "few")
    assert result.code == 0, result
    assert set(pd.read_csv("few/table_02.csv")["ward"]) == {"children"}
    facts = json.loads(Path("few/tables.json").read_text(encoding="utf-8"))
    assert 0 < facts["real_rows"] < fedsyn.load(here / "one").model.total
    assert facts["given"] == ["ward"]


def test_what_tables_refuse(call: Fedsyn, here: Path) -> None:
    assert_one_message(call("sample", here / "one", "--tables", 2), "--out DIR")
    assert_one_message(call("sample", here / "one", "--tables", 2, "--out", "a.csv"), "--out DIR")
    Path("mine").mkdir()
    assert_one_message(call("sample", here / "one", "--tables", 2, "--out", "mine"), "mine exists")
    assert_one_message(call("sample", here / "one", "--tables", 2, "--out", "mine", "--force"), "something else")
    with pytest.raises(InputError, match="number of tables"):
        fedsyn.load(here / "one").sample(5, tables=0)
