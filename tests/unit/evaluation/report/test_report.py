"""Pages: self-contained, below 2 MB, readable without charts; one for publication reads no real row; tables exact."""

from __future__ import annotations

import csv
import html
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from fedsyn.config import RunConfig
from fedsyn.errors import DataError
from fedsyn.evaluation.federated.intervals import FederatedQuality
from fedsyn.evaluation.predicted import PredictedQuality
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.record import COMPARISON_FILE, FEDERATED_FILE, PREDICTED_FILE, Evaluation
from fedsyn.evaluation.report.evaluations import evaluation_page
from fedsyn.evaluation.report.page import Page
from fedsyn.evaluation.report.run_page import RunFacts, _rounds, alarms, may_be_released, odds, origin, title_of
from fedsyn.evaluation.report.tables import plus_minus
from fedsyn.front.archive import read_release, save_release
from fedsyn.front.cli import app
from fedsyn.loading import load_config
from fedsyn.runs.directory import LOOKS_FILE, load_metrics
from fedsyn.runs.engines import run
from fedsyn.runs.prepare import encoded_table, public_schema
from fedsyn.runs.report import load_evaluation, load_evaluations, write_run_page
from fedsyn.sweep import load_results, load_sweep, run_sweep
from fedsyn.sweep.report import report_folder
from fedsyn.sweep.results import CELL_FILE, Results, Row, failures
from fedsyn.sweep.tables import best
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

pytestmark = pytest.mark.thorough

CONFIG: dict[str, Any] = {
    "mechanism": {"name": "augflaim", "rounds": 2},
    "data": {"source": "synthfs", "bins": 4, "options": {"features": 4, "rows": 200, "clients": 4}},
    "federation": {"clients": 4, "partition": {"name": "native"}},
    "privacy": {"epsilon": 2.0, "delta": 1.0e-5},
    "workload": {"degree": 2, "size": None},
    "runtime": {"seed": 0},
}
LIMIT = 500_000
NOT_THIS_PAGE, THIS_PAGE = "This page may not.", "This page may, too."


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


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """The run again, in a folder that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


class Outline(HTMLParser):
    """What a screen reader goes by: headings, tables with their headers, images with their texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(path: Path, *, links: str = "#") -> str:
    """The page, after the checks that hold for every page; links: what one may start with."""
    page = path.read_text(encoding="utf-8")
    assert len(page.encode()) < LIMIT and "<script" not in page
    # Self-contained: it names no other file or address to load.
    outline = Outline(page)
    for tag, attributes in outline.tags:
        assert "src" not in attributes and tag not in ("link", "iframe", "img"), (tag, attributes)
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", links)), attributes
    assert "@import" not in page and "url(" not in page
    assert '<meta name="viewport"' in page and "prefers-color-scheme" in page and "@media print" in page
    assert outline.all("html")[0]["lang"] == "en" and len(outline.all("h1")) == 1 == len(outline.all("main"))
    assert outline.all("a")[0] == {"class": "skip", "href": "#content"}
    assert all("scope" in attributes for attributes in outline.all("th"))
    assert all(a.get("aria-label") for a in outline.all("div") if a.get("role") in ("img", "region"))
    identifiers = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(set(identifiers)) == len(identifiers)
    inside = {str(attributes["href"])[1:] for attributes in outline.all("a") if str(attributes["href"]).startswith("#")}
    assert inside <= {*identifiers} and len(re.findall(r"<h2[ >]", page)) <= 10
    assert not re.search(r"</h2>\s*</section>", page), "a section of nothing"
    return page


def drawn(page: str, what: str) -> list[list[float]]:
    """Heights of the bars or ticks of each column in the picture of all columns, the highest 1."""
    picture = re.search(r'<figure class="columns">.*?</figure>', page, re.DOTALL)
    assert picture is not None
    mark = {"bars": r"1V([-\d.e]+)H", "ticks": r"M\d+ ([-\d.e]+)h1"}[what]
    paths = re.findall(rf'<path class="{what}" d="([^"]*)"', picture[0])
    return [[1.0 - float(y) for y in re.findall(mark, path)] for path in paths]


def test_the_page_of_a_run_answers_first(made: Path) -> None:
    page = read(made / "report.html")
    title = "Synthetic table of synthfs beside real rows, not for publication"
    assert f"<title>{title}</title>" in page and f"<h1>{title}</h1>" in page
    first = page[: page.index("<nav")]
    answers = ("Do not release the table.", NOT_THIS_PAGE, "Counts of single columns", "Tables of two columns")
    places = [first.index(text) for text in (*answers, "Regression", "Training", "All columns", "All links")]
    assert places == sorted(places) and "Not private: seeded noise. Epsilon 2" in first
    assert "at delta 1e-05 holds for nobody" in first and re.search(r"\d of 4 columns kept", first)
    sections = re.findall(r"<h2 [^>]*>([^<]*)</h2>", page)
    assert [title for title in sections if title != "Real or synthetic?"] == [  # which needs scikit-learn
        *("Columns", "Pairs of columns", "Membership attack", "From released values", "Metrics", "Privacy"),
        *("How it was made", "What the words mean", "Not looked at"),
    ]
    assert "more than half of the way" in page or "nearly as good as" in page or "less than half" in page
    left_out = page[page.index(">Not looked at</h2>") :]
    assert "Training a model: needs a label" in left_out and "95% interval" in page
    found = load_evaluation(made, TableComparison)
    assert found is not None and found.scales["workload_error"]["training rows"] == 0.0
    scale = [found.scales["workload_error"][key] for key in ("independent columns", "uniform table")]
    assert None not in scale and 0 < scale[0] < scale[1]  # type: ignore[operator]


def test_a_section_of_nothing_is_no_section() -> None:
    page = Page("x")
    page.section("Empty", "", "")
    page.section("One", "", "text")
    assert [section.title for section in page.sections] == ["One"] and page.sections[0].pieces == ("text",)


def test_the_page_of_a_deployment_names_its_run(copy: Path) -> None:
    ledger = json.loads((copy / "ledger.json").read_text(encoding="utf-8"))
    assert ", in run " not in read(copy / "report.html")
    (copy / "ledger.json").write_text(json.dumps({"run": "ce490ae03a", **ledger}), encoding="utf-8")
    report_folder(copy)
    assert ", in run ce490ae03a." in read(copy / "report.html")


def test_what_is_drawn_are_the_tables_themselves(made: Path) -> None:
    """The shares that are drawn are those of synthetic.csv and of the training rows; so are the links."""
    import pandas as pd

    page = read(made / "report.html")
    config = load_config(made / "config.yaml")
    schema = public_schema(config)
    made_rows = pd.read_csv(made / "synthetic.csv")
    real = encoded_table(config.data).real.read(schema.order, 1000, np.random.default_rng(0))[0]
    assert len(real) == 180  # 200 rows, a tenth of them held out
    found = load_evaluation(made, TableComparison)
    assert found is not None and len(found.columns) == len(schema.domain)
    bars, ticks = drawn(page, "bars"), drawn(page, "ticks")
    for place, column in enumerate(found.columns):
        edges = [-np.inf, *map(float, column.labels[1:]), np.inf]
        shares = [np.histogram(table[column.name], edges)[0] / len(table) for table in (made_rows, real)]
        for heights, share in zip((bars[place], ticks[place]), shares, strict=True):
            assert np.allclose(heights, share / np.max(shares), atol=2e-3)
    pair = found.pairs[0]
    for what, value in (("real rows", pair.association), ("synthetic table", pair.association_synthetic)):
        said = [f"{a} × {b}, {what}: {value:.2f}" for a, b in ((pair.first, pair.second), (pair.second, pair.first))]
        assert value < 0.005 or any(f"<title>{words}</title>" in page for words in said)


def test_the_moments_of_the_page_are_those_of_the_written_table(made: Path) -> None:
    """Not of another draw from the model."""
    import pandas as pd

    made_rows, page = pd.read_csv(made / "synthetic.csv"), html.unescape(read(made / "report.html"))
    for name in made_rows:
        row = re.search(rf"<a href=\"#column-\d\">{name}</a>.*?</tr>", page, re.DOTALL)
        assert row is not None
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", row[0])
        mean, sd = (float(text.replace(",", "")) for text in cells[-2:])
        assert np.allclose([mean, sd], [made_rows[name].mean(), made_rows[name].std(ddof=0)], rtol=2e-3)


def test_one_page_never_takes_the_place_of_the_other(copy: Path) -> None:
    whole = (copy / "report.html").read_bytes()
    assert [path.name for path in report_folder(copy, real=False)] == ["report_public.html"]
    assert (copy / "report.html").read_bytes() == whole
    public = (copy / "report_public.html").read_bytes()
    assert public != whole and [path.name for path in report_folder(copy)] == ["report.html", "metrics.csv"]
    assert (copy / "report_public.html").read_bytes() == public


def test_the_page_for_publication_reads_nothing_private(copy: Path) -> None:
    """It is the same, to the last byte, whatever the real rows and all that was measured against them were."""
    page_file = report_folder(copy, real=False)[0]
    page = read(page_file)
    assert (
        NOT_THIS_PAGE not in page and "Do not release this page." in page and "The workload error is at least" in page
    )
    private_words = ("real halves", "Membership attack", ">Metrics</h2>", "kB up", "workload_error</th>", "seconds")
    for private in (*private_words, 'class="ticks"'):
        assert private not in page
    for section in ("Privacy", "How it was made", "Columns"):
        assert f">{section}</h2>" in page
    for name in (COMPARISON_FILE, "metrics.json", "measured.jsonl"):
        facts = copy / name
        facts.write_text(facts.read_text(encoding="utf-8").replace("0.", "0.9"), encoding="utf-8")
    assert read(report_folder(copy, real=False)[0]) == page


def test_the_page_for_publication_names_no_folder_of_this_machine(copy: Path, tmp_path: Path) -> None:
    config = load_config(copy / "config.yaml")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "rows.csv").write_text("a\n1\n", encoding="utf-8")
    data = {"source": str(tmp_path / "deep" / "rows.csv"), "schema": str(copy / "schema.yaml")}
    RunConfig(**{**config.to_dict(), "data": data}).save(copy / "config.yaml")
    page = report_folder(copy, real=False)[0].read_text(encoding="utf-8")
    assert str(tmp_path) not in page and "source: rows.csv" in page and "schema: schema.yaml" in page


def test_neither_page_nor_saved_model_say_where_the_run_was(copy: Path, tmp_path: Path) -> None:
    """Paths with blanks, of a home and of Windows, a holder's each; the machines of a cluster."""
    config = load_config(copy / "config.yaml").to_dict()
    files = ["/srv/Dr Meier/secret/a.csv", "~/Meier/secret/b.csv", "C:\\Dr Meier\\secret\\c.csv", "secret Meier/d.csv"]
    data = {**config["data"], "source": files[0], "holders": files, "schema": "../Dr Meier/secret/s.yaml"}
    data["options"] = {"key_file": "/srv/meier/own.key"}
    places = {"operator": "/keys of/Meier", "superlink": "Meier", "ray": {"address": "ray.meier.example:6379"}}
    mechanism = {**config["mechanism"], "name": "meine.klasse:Strategie"}
    changed = {**config, "data": data, "runtime": {**config["runtime"], **places}, "mechanism": mechanism}
    RunConfig(**changed).save(copy / "config.yaml")
    write_run_page(copy, config=RunConfig(**changed), public=True)
    page = (copy / "report_public.html").read_text(encoding="utf-8")
    save_release(tmp_path / "m.fedsyn", read_release(copy))
    with zipfile.ZipFile(tmp_path / "m.fedsyn") as archive:
        saved = {name: archive.read(name).decode("latin-1") for name in archive.namelist()}
    for text in (page, *saved.values()):
        assert not re.search(r"Meier|meier|secret|srv|own\.key", text)
    for text in (page, saved["config.yaml"]):
        assert "meine.klasse:Strategie" in text and "c.csv" in text and "schema: s.yaml" in text
    assert read_release(tmp_path / "m.fedsyn").config.data.holders == ("a.csv", "b.csv", "c.csv", "d.csv")


def test_what_must_not_leave_with_the_page_is_listed(copy: Path) -> None:
    report_folder(copy)
    done = CliRunner().invoke(app, ["report", str(copy), "--no-real"])
    last = done.stdout.strip().splitlines()[-1]
    files = "report.html, comparison.json, metrics.json, metrics.csv, measured.jsonl"
    assert last == f"not for publication: {files} (of real rows)"


@pytest.mark.parametrize("looks", ['{"format": 1}', '{"format": 1, "looks": [{"clique": ["age"]}], "shrunk": true}'])
def test_a_prediction_that_fails_again_takes_no_page_with_it(copy: Path, looks: str) -> None:
    (copy / PREDICTED_FILE).unlink()
    (copy / LOOKS_FILE).write_text(looks, encoding="utf-8")
    page = read(report_folder(copy, real=False)[0])
    assert "The quality could not be predicted from looks.json (KeyError)." in page


def test_each_way_is_read_from_its_file(copy: Path) -> None:
    predicted = load_evaluation(copy, PredictedQuality)
    assert predicted is not None and predicted == read_release(copy).predicted
    asked = {"holders": 3, "confidence": 0.95, "figures": {}, "notes": []}
    (copy / FEDERATED_FILE).write_text(json.dumps({"format": 1, **asked}), encoding="utf-8")
    found = load_evaluation(copy, FederatedQuality)
    assert found is not None and found.document() == {"rows": "training", "of": "rows", **asked}
    assert [type(one) for one in load_evaluations(copy)] == [TableComparison, FederatedQuality, PredictedQuality]
    assert [type(one) for one in load_evaluations(copy, public=True)] == [FederatedQuality, PredictedQuality]


@pytest.mark.parametrize("way", [TableComparison, FederatedQuality, PredictedQuality])
def test_a_damaged_evaluation_is_named(way: type[Evaluation], tmp_path: Path) -> None:
    for damaged in ({}, {"columns": 1, "figures": [], "quality": None, "left_out": "x"}):
        (tmp_path / way.FILE).write_text(json.dumps({"format": 1, **damaged}), encoding="utf-8")
        with pytest.raises(DataError, match=rf"{way.FILE} is damaged: remove it"):
            load_evaluation(tmp_path, way)


def test_report_writes_exact_tables(copy: Path) -> None:
    paths = report_folder(copy)
    assert [path.name for path in paths] == ["report.html", "metrics.csv"]
    with paths[1].open(newline="", encoding="utf-8") as file:
        rows = {row["metric"]: float(row["value"]) for row in csv.DictReader(file)}
    assert rows == load_metrics(copy)


def test_pages_need_no_extra(copy: Path) -> None:
    """Neither altair nor scikit-learn is there, and every picture is."""
    code = f"""
import sys
sys.modules["altair"] = sys.modules["sklearn"] = None
from fedsyn.sweep.report import report_folder
report_folder({str(copy)!r})
"""
    before = read(copy / "report.html")
    subprocess.run([sys.executable, "-c", code], check=True)
    assert read(copy / "report.html") == before and before.count("<svg") > 8


def test_report_without_the_real_rows_says_so(copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a run that has measured nothing, whose table has been moved away since: the page may be published."""
    (copy / COMPARISON_FILE).unlink()
    (copy / "metrics.json").write_text('{"format": 1, "seconds": 1.0}', encoding="utf-8")
    data = {"source": str(tmp_path / "gone.csv"), "schema": str(copy / "schema.yaml")}
    partition = {"clients": 4, "partition": "iid"}
    RunConfig(**{**CONFIG, "data": data, "federation": partition}).save(copy / "config.yaml")
    page_file = report_folder(copy)[0]
    assert page_file.name == "report_public.html" and "real rows are not at hand" in caplog.text
    page = read(page_file)
    assert "The workload error is at least" in page and str(tmp_path) not in page and ">Columns</h2>" in page


def test_a_run_without_evaluation_compares_with_no_row(tmp_path: Path) -> None:
    """Its one page may be published: it has no bytes or times of the holders either."""
    run(RunConfig(**CONFIG, evaluation=[]), tmp_path)
    assert not (tmp_path / COMPARISON_FILE).exists() and not (tmp_path / "report.html").exists()
    page = read(tmp_path / "report_public.html")
    assert "The workload error is at least" in page and "kB up" not in page and NOT_THIS_PAGE not in page


def facts(**changes: Any) -> RunFacts:
    """A private run of 1,000 rows, two columns of ten values."""
    ledger = {
        "private": True,
        "not_private_because": [],
        "unit": "one row, added or removed, at one client",
        "adjacency": "two federations ...",
        "epsilon": 1.0,
        "delta": 1e-6,
        "releases": [{"name": "one-way", "round": 1, "sigma": 10.0, "sensitivity": 1.0}],
        **changes,
    }
    return RunFacts(
        source="t", config="", mechanism="m", clients=3, ledger=ledger, metrics={}, rounds=[], rows=1000,
        domain={"a": 10, "b": 10}, total=1000.0, edges=[], public=True,
    )  # fmt: skip


def test_published_row_counts_leave_an_exchange_to_be_hidden() -> None:
    public = facts(assumptions={"client_sizes": "public"}, epsilon_replace_one=2.1229)
    (_, said, why), _ = may_be_released(public)
    assert said == "The table may be released."
    assert why == "Epsilon 2.123 at delta 1e-06, for one row, exchanged for others (row counts are published)."
    assert odds(public).startswith("Exchanging one row makes any outcome at most 8.36 times as likely, plus 1e-06 (")
    own = facts(epsilon_replace_one=2.1229)
    assert odds(own).startswith("Adding or removing one row makes any outcome at most 2.72 times as likely, plus 1e-06")
    assert odds(own).endswith("exchanged for another, epsilon is 2.123.")
    assert "one client's rows makes" in odds(facts(rows_per_client=4)) and odds(facts(private=False)) == ""


def test_a_run_says_what_may_be_released_and_who_it_is_of() -> None:
    private, seeded = facts(), facts(private=False, not_private_because=["seeded"])
    assert [mark for mark, *_ in may_be_released(private)] == ["good", "good"]
    assert [mark for mark, *_ in may_be_released(replace(private, public=False))] == ["good", "bad"]
    assert [mark for mark, *_ in may_be_released(seeded)] == ["bad", "bad"]
    assert "holds for nobody" in may_be_released(seeded)[0][2]
    assert title_of(private) == "Synthetic table of t, for publication" and title_of(seeded) == "Synthetic table of t"
    assert title_of(replace(seeded, public=False)) == "Synthetic table of t beside real rows, not for publication"
    made = "1,000 rows and 2 columns, made by m from the rows of 3 holders."
    assert origin(replace(private, columns=2)) == made
    assert origin(replace(private, joined=2)) == "1,000 rows, made by m from the rows of 2 of 3 holders."
    persons = may_be_released(facts(persons=["id"]))[0][2]
    assert persons.endswith("for one row, not for one person, who may have several.")


def test_noise_that_outweighs_the_signal_and_a_large_delta_are_said() -> None:
    assert alarms(facts()) == []
    loud = alarms(facts(releases=[{"name": "one-way", "round": 1, "sigma": 100.0, "sensitivity": 1.0}]))
    assert [title for title, _ in loud] == ["Noise outweighs signal."] and "100" in loud[0][1]
    wide = alarms(facts(releases=[{"name": "sketch", "round": 1, "sigma": 100.0, "sensitivity": 9.0}]))
    assert wide == []
    assert [title for title, _ in alarms(facts(delta=0.01))] == ["Delta is large."]
    unknown = alarms(facts(releases=[{"name": "sizes", "round": 0, "sigma": 400.0, "sensitivity": 1.0}]))
    assert [title for title, _ in unknown] == ["The number of rows is not known."]


def test_the_noise_of_a_count_is_told_in_rows_and_where_it_was_added() -> None:
    """A vector of weighted counts has a sigma of thousands; a count in it one of a few rows."""
    release = {"name": "measure", "round": 1, "sigma": 9594.4, "sensitivity": 1565.2}
    line = {"cohort": [0], "dropped": {}, "selected": []}
    rounds = [{**line, "round": 1, "sigma": 9594.4}, {**line, "round": 2, "sigma": None}]
    said = next(part for part in _rounds(replace(facts(releases=[release]), rounds=rounds)) if isinstance(part, str))
    assert said == "Least noise of a count (sigma, in rows): 6.13 in round 1."


def test_a_run_at_an_epsilon_of_nothing_says_so(tmp_path: Path) -> None:
    run(RunConfig(**{**CONFIG, "privacy": {"epsilon": 1e-9, "delta": 0.02}}), tmp_path)
    for real in (True, False):
        page = read(report_folder(tmp_path, real=real)[0])
        assert "Noise outweighs signal." in page or (not real and "The number of rows is not known." in page)
    assert "Delta is large." in read(report_folder(tmp_path)[0])


NASTY = "</script><b>x</b> & \"'\\"


def nasty_quality() -> tuple[Schema, TableComparison]:
    """Names and values that break a page which puts them in as they are."""
    schema = Schema(
        columns={
            NASTY: CategoricalColumn(categories=(NASTY, "a", "]" + NASTY)),
            "datum.value": NumericColumn(lower=0, upper=1e9, bins=30),
            "a.b[c]": CategoricalColumn(categories=("1", "2")),
        },
        label="a.b[c]",
        approved=True,
    )
    rng = np.random.default_rng(0)
    codes = [np.column_stack([rng.integers(0, size, 300) for size in schema.domain.shape]) for _ in range(3)]
    real, made, held_out = (schema.decode(some, rng) for some in codes)
    return schema, compare_tables(real, made, holdout=held_out, schema=schema, rng=rng)


def test_names_and_values_are_text_everywhere(tmp_path: Path) -> None:
    path = evaluation_page(nasty_quality()[1], tmp_path / "page.html", NASTY)
    page = read(path)
    assert "<b>x</b>" not in page and "&lt;b&gt;x&lt;/b&gt;" in page and "</script" not in page.lower()
    assert NASTY in html.unescape(page)


def test_report_of_a_sweep_has_settings_and_spread(swept: Path) -> None:
    paths = report_folder(swept)
    assert [path.name for path in paths] == ["report.html", "results.csv", "summary.csv"]
    page = read(paths[0], links="cells/")
    assert "12 done, 0 failed" in page and "features: 4" in page
    results = load_results(swept)
    assert results.main == "privacy.epsilon"
    with paths[2].open(newline="", encoding="utf-8") as file:
        summary = list(csv.DictReader(file))
    assert len(summary) == 6
    for row in summary:
        mean, sd = float(row["workload_error_mean"]), float(row["workload_error_sd"])
        assert plus_minus(mean, sd) in page
    # Every cell's own page is linked and there; it has no charts, which `fedsyn report` of the cell adds.
    cells = re.findall(r'href="(cells/[^"]+)"', page)
    assert len(set(cells)) == 12 and all((swept / cell).is_file() for cell in cells)
    assert (swept / cells[0]).stat().st_size < 50_000 and not (swept / cells[0]).with_name(COMPARISON_FILE).exists()
    # Two seeds tell little apart: what is bold stands once in the table side by side, and once among all.
    bold = sum(len(best(results, name)) for name in results.shown_metrics)
    assert page.count('<td class="n best">') == 2 * bold and "paired t test" in page


def results_over(**axes: list[Any]) -> Results:
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return Results("made", {}, tuple(Row(str(i), p, 0, "done", {"nll": 1.0}, {}) for i, p in enumerate(points)))


def test_the_main_axis_is_the_numeric_one_if_it_has_points_enough() -> None:
    names = ["a", "b", "c", "d"]
    assert results_over(name=names, epsilon=[1, 2, 3]).main == "epsilon"
    assert results_over(epsilon=[1, 2], name=names).main == "name"
    assert results_over(rounds=[1, 2, 3], epsilon=[1, 2, 3, 4]).main == "epsilon"


def test_axes_get_a_role_each() -> None:
    grid = results_over(**{"data.bins": [8, 16, 32], "mechanism.name": ["a", "b"], "federation.clients": [4, 9]})
    assert (grid.main, grid.compared) == ("data.bins", "mechanism.name")
    alone, two = results_over(epsilon=[1, 2, 3]), results_over(a=["x", "y", "z"], b=["p", "q"])
    assert (alone.main, alone.compared) == ("epsilon", "epsilon")
    assert (two.main, two.compared) == ("a", "b")


def seeded(values: dict[tuple[str, float], list[float]]) -> Results:
    """Results of (mechanism, epsilon) over as many seeds as there are values."""
    rows = [
        Row(f"{name}{epsilon}{seed}", {"mechanism.name": name, "privacy.epsilon": epsilon}, seed, "done", metrics, {})
        for (name, epsilon), of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
        if (metrics := {"nll": value, "auc": value})
    ]
    return Results("made", {}, tuple(rows))


def test_the_best_is_that_of_equal_settings_in_the_metrics_direction() -> None:
    results = seeded(
        {
            ("a", 1): [5.0, 5.1, 5.2],
            ("b", 1): [4.0, 4.1, 4.2],
            ("c", 1): [math.inf] * 3,
            ("a", 2): [3.0, 3.1, 3.2],
            ("b", 2): [3.0, 3.1, 3.2],
            ("c", 2): [9.0, 9.2, 9.1],
        }
    )
    assert best(results, "nll") == {1, 3, 4} and best(results, "auc") == {0, 5} and best(results, "seconds") == set()


def test_what_a_paired_test_does_not_tell_from_the_best_is_bold_too() -> None:
    """The seeds differ by much more than the mechanisms do, so that only pairs of them tell `a` from `b`."""
    seeds = [10.0, 20.0, 30.0, 40.0]
    a, b = seeds, [seed + off for seed, off in zip(seeds, (0.9, 1.1, 1.0, 1.2), strict=True)]
    tie = [seed + off for seed, off in zip(seeds, (3.0, -2.9, 0.5, -0.4), strict=True)]
    far = [seed + 30.0 + off for seed, off in zip(seeds, (0.0, 1.0, 0.0, 1.0), strict=True)]
    assert best(seeded({("a", 1): a, ("b", 1): b}), "nll") == {0}
    assert best(seeded({("a", 1): a, ("tie", 1): tie, ("far", 1): far}), "nll") == {0, 1}
    assert best(seeded({("a", 1): a, ("tie", 1): tie}), "nll") == set()  # nothing is told apart
    assert best(seeded({("a", 1): a[:1], ("far", 1): far[:1]}), "nll") == set()  # one seed tells nothing
    assert best(seeded({("a", 1): [1.0, 2.0], ("b", 1): [1.5, 4.0]}), "nll") == set()  # nor do two so far apart


def test_one_error_is_one_line_however_many_cells_share_it() -> None:
    error = {"type": "DataError", "message": "no such file", "exit": 2}
    rows = [Row(f"cell{i}", {"seed": i}, i, "failed", {}, error) for i in range(40)]
    rows.append(Row("other", {"seed": 41}, 41, "failed", {}, {**error, "message": "another"}))
    found = failures(Results("made", {}, tuple(rows)))
    assert [failure.message for failure in found] == ["no such file", "another"]
    assert found[0].where == "40 cells: cell0, cell1, cell2 and 37 more" and found[1].where == "1 cell: other"


def test_report_of_a_sweep_names_failed_and_missing_cells(swept: Path, tmp_path: Path) -> None:
    import shutil

    out = tmp_path / "out"
    shutil.copytree(swept, out)
    rows = load_results(out).rows
    failed = out / "cells" / rows[0].id / CELL_FILE
    error = {"type": "RunError", "message": "<b>it stopped</b>", "exit": 1}
    failed.write_text(json.dumps({"status": "failed", "error": error}), encoding="utf-8")
    (out / "cells" / rows[1].id / CELL_FILE).write_text("{", encoding="utf-8")  # torn by a full disk, say
    page = read(report_folder(out)[0], links="cells/")
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
        (17.4677872, 0.0000084, "17.47 ± <0.01"),
        (0.00012345, 0.000011, "0.000123 ± 0.000011"),
        (56547581.0, 79970352.0, "5.65e+07 ± 8e+07"),
    ],
)
def test_spread_is_shown_to_two_digits(mean: float, sd: float, shown: str) -> None:
    assert plus_minus(mean, sd) == shown
