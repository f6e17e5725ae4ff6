"""Runs that protect persons: whole persons come out, whatever the mechanism, the file and the engine."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import fedsyn
from experiments.persons import events
from fedsyn.errors import DataError, FedsynError, InputError
from fedsyn.front.synthesizer import log
from fedsyn.inference import Measurement, estimate
from fedsyn.loading import load_config, parse_config
from fedsyn.runs.engines import run
from fedsyn.runs.holders import load_rows
from fedsyn.runs.persons import WholePersons
from fedsyn.runs.report import _edges
from fedsyn.runs.run_config import published_config
from fedsyn.table.counting.marginals import count
from fedsyn.table.data.records import RecordMaker
from fedsyn.table.schema import Schema
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.persons import no_row_code
from fedsyn.table.schema.review import with_persons

SCHEMA: dict[str, Any] = {
    "columns": {
        "patient": {"kind": "identifier", "make": "sequence", "prefix": "P", "width": 5},
        "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
        "born": {"kind": "integer", "lower": 1940, "upper": 1999, "bins": 6},
        "admitted": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 12},
        "left": {"kind": "date", "lower": "2024-01-01", "upper": "2025-01-31", "bins": 13},
        "severity": {"kind": "categorical", "categories": ["low", "mid", "high"], "other": False},
        "year": {"kind": "integer", "lower": 0, "upper": 85, "bins": 10},
    },
    "constraints": ["admitted <= left"],
    "persons": {"id": "patient", "order": "admitted", "constant": ["sex", "born"], "most_rows": 12},
}
SCHEMA["columns"].pop("year")


def hospital(persons: int = 3000, none: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Women have more visits, severity never falls within a person, and visits of a person follow each other."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, persons)
    counts = np.where(rng.random(persons) < none, 0, np.minimum(1 + rng.poisson(1 + 2 * sex), 12))
    whose = np.repeat(np.arange(persons), np.maximum(counts, 1))
    day = np.sort(rng.integers(0, 360, len(whose)) + 1000 * whose) - 1000 * whose
    first = np.r_[True, whose[1:] != whose[:-1]]
    level = np.where(first, rng.integers(0, 2, len(whose)), 0)
    for at in np.flatnonzero(~first):
        level[at] = min(2, level[at - 1] + (rng.random() < 0.3))
    start = pd.Timestamp("2024-01-01") + pd.to_timedelta(day, unit="D")
    table = pd.DataFrame(
        {
            "patient": [f"x{i}" for i in whose],
            "sex": np.array(["m", "f"])[sex][whose],
            "born": rng.integers(1940, 2000, persons)[whose],
            "admitted": start.strftime("%Y-%m-%d"),
            "left": (start + pd.to_timedelta(rng.integers(0, 20, len(whose)), unit="D")).strftime("%Y-%m-%d"),
            "severity": np.array(["low", "mid", "high"])[level],
        }
    )
    table.loc[(counts == 0)[whose], ["admitted", "left", "severity"]] = None
    return table


def schema(**persons: Any) -> dict[str, Any]:
    return {**SCHEMA, "persons": {**SCHEMA["persons"], **persons}}


def fitted(
    table: Any, mechanism: str = "sketch_aim", seed: int | None = 3, epsilon: float = 5.0, **persons: Any
) -> Any:
    privacy = {"unit": "person"}
    made = fedsyn.Synthesizer(epsilon, 1e-6, schema(**persons), mechanism, seed=seed, privacy=privacy)
    return made.fit(table)


#: Values of two columns that are independent of each other.
ROWS = {"a": ("x", "y"), "b": ("u", "v")}


def require_persons(table: pd.DataFrame) -> None:
    """What is said of a person in all rows is the same in all, and rows stand in order; constraints hold."""
    each = table.groupby("patient")
    assert (each[["sex", "born"]].nunique() == 1).all().all()
    rows = table.dropna(subset=["admitted"])
    for _, own in rows.groupby("patient"):
        assert own["admitted"].astype(str).is_monotonic_increasing
    assert (rows["admitted"].astype(str) <= rows["left"].astype(str)).all()


def test_whole_persons_have_the_real_ones_numbers_links_and_steps() -> None:
    """At epsilon 5 and 3,000 persons what is left is mostly sampling: 3,000 persons and 7,600 rows.

    A share of 3,000 has a standard deviation of at most 0.0091, so differences of shares of 0.05 are 3.9 of sqrt(2)
    times that; the seed is fixed.
    """
    real = hospital()
    made = fitted(real).sample()
    require_persons(made)
    counts, drawn = (table.groupby("patient").size() for table in (real, made))
    assert len(drawn) == pytest.approx(len(counts), rel=0.02)
    assert drawn.mean() == pytest.approx(counts.mean(), rel=0.06)
    shares = [each.clip(upper=6).value_counts(normalize=True).sort_index() for each in (counts, drawn)]
    assert (shares[0] - shares[1]).abs().max() < 0.05
    visits = [t.groupby("sex").size() / t.groupby("sex")["patient"].nunique() for t in (real, made)]
    assert (visits[0] - visits[1]).abs().max() < 0.35  # 2.0 and 4.0 visits
    steps = []
    for table in (real, made):
        word = table["severity"].astype(str)
        after = word.groupby(table["patient"]).shift(-1)
        steps.append(pd.crosstab(word[after.notna()], after[after.notna()], normalize="all"))
    assert (steps[0] - steps[1]).abs().to_numpy().max() < 0.06
    assert steps[1].loc["high", "low"] + steps[1].loc["mid", "low"] < 0.03  # severity hardly ever falls


@pytest.mark.slow
def test_persons_without_a_row_stay_persons() -> None:
    real = hospital(none=0.4)
    made = fitted(real, least_rows=0).sample()
    require_persons(made)
    without = made[made["admitted"].isna()]
    assert without["severity"].isna().all() and without["left"].isna().all()
    assert not without["patient"].isin(made.dropna(subset=["admitted"])["patient"]).any()
    assert len(without) / made["patient"].nunique() == pytest.approx(0.4, abs=0.05)


def panel(firms: int = 400, years: int = 5) -> pd.DataFrame:
    """Firms with a row in each year, and sales that go by the trade."""
    rng = np.random.default_rng(11)
    whose = np.repeat(np.arange(firms), years)
    trade = rng.integers(0, 3, firms)[whose]
    table = pd.DataFrame({"firm_id": whose, "year": 2010 + np.arange(len(whose)) % years})
    return table.assign(trade=np.array(["food", "steel", "cloth"])[trade], sales=rng.integers(0, 4, len(whose)) + trade)


def test_everybody_in_a_panel_has_as_many_rows() -> None:
    """As it is drafted: firms have all five years, each once but for what noise says of steps."""
    table = panel()
    rows = Schema.draft(table).approve()
    assert rows.persons is not None and rows.persons.order == "year"
    assert (rows.persons.least_rows, rows.persons.most_rows, rows.persons.constant) == (5, 5, ("trade",))
    assert rows.columns["year"].size == 5
    made = fedsyn.Synthesizer(5.0, 1e-5, rows, privacy={"unit": "person"}, seed=3, progress=False).fit(table).sample()
    assert (made["firm_id"].value_counts() == 5).all() and abs(made["firm_id"].nunique() - 400) < 40
    assert (made.groupby("firm_id")["trade"].nunique() == 1).all()
    assert (made.groupby("firm_id")["year"].nunique() == 5).mean() > 0.95
    answered = with_persons(Schema.draft(table).dumps(), "firm_id", True, 20)  # that firms may have 20 rows
    other = Schema.loads(answered).persons
    assert other is not None and (other.least_rows, other.most_rows) == (1, 20)
    seven = panel(years=7)
    assert Schema.draft(seven).columns["year"].size == 7  # four bins if it gave no order
    own = seven[["firm_id", "trade"]].drop_duplicates()  # and a firm without a row: the most rows are rounded up
    two = {"firms": pd.concat([own, own.iloc[:1].assign(firm_id=-1)]), "years": seven.drop(columns="trade")}
    persons = Schema.draft(two).persons
    assert persons is not None and (persons.least_rows, persons.most_rows) == (0, 10)
    some = Schema.draft(table.iloc[1:]).persons  # one firm lacks a year
    assert some is not None and (some.least_rows, some.most_rows) == (1, 5)


def test_a_table_in_which_nobody_has_enough_rows_is_refused() -> None:
    document = schema(order=False, least_rows=12)
    table = hospital(60)
    table = table[table.groupby("patient").cumcount() < 3]
    asked = fedsyn.Synthesizer(1.0, 1e-5, document, privacy={"unit": "person"}, seed=0, progress=False)
    with pytest.raises(DataError, match=r"no rows of a person with 12 or more, which persons.least_rows asks"):
        asked.fit(table)


def test_who_has_no_row_is_no_link_between_values() -> None:
    """Values of two columns go along in records where nobody has one of them alone; in rows they need not."""
    rng = np.random.default_rng(8)
    whose = np.repeat(np.arange(2_000), np.maximum(1, 2 * rng.integers(0, 2, 2_000)))
    rows = pd.DataFrame(
        {"who": whose, "a": rng.choice(["x", "y"], len(whose)), "b": rng.choice(["u", "v"], len(whose))}
    )
    alone = rows["who"].map(rows["who"].value_counts()) == 1
    columns: dict[str, Any] = {"who": {"kind": "identifier"}}
    columns |= {name: {"kind": "categorical", "categories": [*pair], "other": False} for name, pair in ROWS.items()}
    found = {}
    for least in (0, 1):
        persons = {"id": "who", "most_rows": 2, "least_rows": least}
        table = rows.assign(a=rows["a"].mask(alone), b=rows["b"].mask(alone)) if least == 0 else rows
        made = fedsyn.Synthesizer(
            20, 1e-6, {"columns": columns, "persons": persons}, seed=1, privacy={"unit": "person"}, progress=False
        ).fit(table)
        found[least] = made.predicted_quality.seen
    assert not found[0].links and not found[1].links  # of a and b, which are independent
    assert (found[0].pairs, found[0].looked, found[1].looked) == (1, 1, 1)
    assert (found[0].unlinked, found[1].unlinked) == (1, 1)  # among those who have rows, too


@pytest.mark.parametrize("order", [False, True])
def test_rows_may_have_no_order_or_that_of_the_file(order: bool) -> None:
    made = fitted(hospital(500), order=order).sample(200)
    assert made["patient"].nunique() == 200
    assert (made.groupby("patient")[["sex", "born"]].nunique() == 1).all().all()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["mst", "privsyn", "fed_naive_bayes", "aim", "augflaim", "each_alone"])
def test_every_mechanism_gives_whole_persons(mechanism: str) -> None:
    real = hospital(800)
    made = fitted(real, mechanism).sample(300)
    assert made["patient"].nunique() == 300
    require_persons(made)


@pytest.mark.slow
def test_a_person_is_at_one_client_whatever_the_partition(tmp_path: Path) -> None:
    hospital(600).to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    data = {"source": str(tmp_path / "visits.csv"), "schema": str(tmp_path / "schema.yaml")}
    document: dict[str, Any] = {
        "data": data,
        "privacy": {"unit": "person", "epsilon": 2.0, "delta": 1e-5},
        "federation": {"clients": 4},
        "runtime": {"seed": 1},
    }
    out = tmp_path / "out"
    run(parse_config(document), out)
    made = pd.read_csv(out / "synthetic.csv")
    assert list(made.columns) == list(SCHEMA["columns"])
    require_persons(made)
    ledger = json.loads((out / "ledger.json").read_text())
    assert ledger["unit"] == "one person with all rows at one client, added or removed"
    assert "persons" not in ledger  # no column is left of which the promise does not hold
    again = Schema.load(out / "schema.yaml")
    assert again.rows is not again and again.rows.to_dict() == Schema.from_dict(SCHEMA).to_dict()
    comparison = json.loads((out / "comparison.json").read_text())
    judged = {column["name"] for column in comparison["quality"]["columns"]}
    assert judged == {*SCHEMA["columns"], "admitted to left"} - {"patient"}
    for name in ("report.html", "metrics.json", "predicted_quality.json"):
        assert (out / name).is_file()


def test_a_holder_of_its_own_makes_records_of_the_same_schema(tmp_path: Path) -> None:
    hospital(100).to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    files = str(tmp_path / "visits.csv"), str(tmp_path / "schema.yaml")
    rows = load_rows(*files, None, None, persons=True)
    records = Schema.from_dict(SCHEMA).records
    assert rows.schema_hash == records.sha256
    assert rows.domain == records.domain
    assert rows.codes.shape == (100, len(records.columns))
    assert load_rows(*files, None, None).schema_hash == Schema.from_dict(SCHEMA).sha256


@pytest.mark.slow
def test_a_release_is_saved_and_loaded_with_its_persons(tmp_path: Path) -> None:
    made = fitted(hospital(400), seed=None)
    again = fedsyn.load(made.save(tmp_path / "visits.fedsyn"))
    require_persons(again.sample(50, seed=1))
    assert again.sample(50, seed=1).equals(made.sample(50, seed=1))
    comparison = again.evaluate(hospital(400, seed=1))
    judged = {column.name for column in comparison.columns}
    assert judged == {"sex", "born", "admitted", "left", "severity", "admitted to left"}


def test_numbers_lie_in_their_bins_as_counts_suggest() -> None:
    """A tail in wide bins: numbers that are even inside them have a mean of 12.5 where the rows have 10."""
    rng = np.random.default_rng(4)
    whose = np.repeat(np.arange(4_000), rng.integers(1, 5, 4_000))
    rows = pd.DataFrame({"who": whose, "cost": rng.exponential(10.0, len(whose)).clip(max=119).round(3)})
    columns = {"who": {"kind": "identifier"}, "cost": {"kind": "numeric", "lower": 0, "upper": 120, "bins": 6}}
    schema = Schema.from_dict({"columns": columns, "persons": {"id": "who", "most_rows": 4}})
    fitted = fedsyn.Synthesizer(50, 1e-6, schema, "mst", seed=1, privacy={"unit": "person"}, progress=False).fit(rows)
    made = fitted.sample(8_000, seed=2)["cost"]
    even = 20 * (np.floor(rows["cost"] / 20) + 0.5)
    assert even.mean() > 12  # what bins alone say
    assert made.mean() == pytest.approx(rows["cost"].mean(), rel=0.1)


def test_a_schema_without_persons_is_refused() -> None:
    plain = {key: value for key, value in SCHEMA.items() if key != "persons"}
    with pytest.raises(FedsynError, match="does not say whose a row is"):
        fedsyn.Synthesizer(1.0, 1e-6, plain, privacy={"unit": "person"}).fit(hospital(50))


def two_tables(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    patients = table.drop_duplicates("patient")[["patient", "sex", "born"]]
    visits = table.dropna(subset=["admitted"])[["patient", "admitted", "left", "severity"]]
    return {"patients": patients.sample(frac=1.0, random_state=0), "visits": visits}


def test_two_tables_are_one_schema() -> None:
    """The same table joined and apart gives the same persons, whose tables come apart."""
    real, more = hospital(600, none=0.3), {"least_rows": 0, "tables": ["patients", "visits"]}
    made = fitted(two_tables(real), **more).sample(200)
    assert list(made) == ["patients", "visits"]
    patients, visits = made.values()
    assert list(patients.columns) == ["patient", "sex", "born"] and next(iter(visits.columns)) == "patient"
    assert patients["patient"].is_unique and len(patients) == 200
    assert set(visits["patient"]) < set(patients["patient"])
    require_persons(visits.merge(patients, on="patient"))
    assert not visits[["admitted", "left", "severity"]].isna().any().any()


@pytest.mark.parametrize("mechanism", ["sketch_aim", "mst", pytest.param("privsyn", marks=pytest.mark.slow)])
def test_what_rows_alone_say_of_a_person_is_in_all_of_them(mechanism: str) -> None:
    """Whoever has a row has it, and nobody else: also of models that no zeros bind."""
    real = hospital(600, none=0.3)
    tables = two_tables(real)
    known = real[["sex", "born"]]
    tables["patients"] = tables["patients"].drop(columns=["sex", "born"]).assign(town="here")
    tables["visits"] = tables["visits"].join(known)
    town = {"town": {"kind": "categorical", "categories": ["here", "there"], "other": False}}
    document = schema(
        least_rows=0, tables=["patients", "visits"], constant=["town", "sex", "born"], in_rows=["sex", "born"]
    )
    document["columns"] = document["columns"] | town
    made = fedsyn.Synthesizer(5.0, 1e-6, document, mechanism, seed=3, privacy={"unit": "person"}).fit(tables)
    patients, visits = made.sample(200).values()
    assert list(patients.columns) == ["patient", "town"] and len(patients) == 200
    assert set(visits["patient"]) < set(patients["patient"]) and visits.notna().all().all()
    require_persons(visits)
    assert pd.api.types.is_integer_dtype(visits["born"]) and visits["born"].between(1940, 1999).all()


def test_a_record_that_lacks_what_rows_say_gets_it() -> None:
    """A model that no zeros bind may say "no row" of somebody who has one: the others of such a person say the rest."""
    document = schema(least_rows=0, tables=["patients", "visits"], constant=["sex", "born"], in_rows=["sex"])
    records = Schema.from_dict(document).records
    whole = hospital(300, none=0.3)
    maker = RecordMaker(records.rows, np.random.default_rng(0))
    Holding(records.rows, maker).encoded(whole)
    codes = maker.record().codes
    names, column = list(records.columns), records.columns["sex"]
    clique = ("sex", "number of rows", "born")
    values = count(codes, records.domain, [clique])[0]
    model = estimate(records.domain, [Measurement(clique, values, 1.0)], total=float(len(codes)))
    broken = codes.copy()
    broken[:, names.index("sex")] = no_row_code(column)
    rows, people = WholePersons(records, model).of(broken, np.random.default_rng(1))
    at = list(records.rows.columns).index("sex")
    share = (rows[people.first, at] == 1).mean()
    assert set(rows[:, at].tolist()) == {0, 1} and abs(share - (whole["sex"] == "m").mean()) < 0.15


def test_half_of_two_tables_is_not_compared() -> None:
    """One of them lacks columns; both are fine, joined or apart."""
    two = two_tables(hospital(200))
    model = fitted(two, tables=["patients", "visits"])
    for name, other in (("visits", "patients"), ("patients", "visits")):
        sentence = rf"the table lacks columns of the table of {other} \(.*: give both tables, \{{'patients': \.\.\."
        with pytest.raises(InputError, match=sentence):
            model.evaluate(two[name])
        with pytest.raises(InputError, match=sentence):
            model.report(real=two[name])
    assert model.evaluate(two).persons and model.evaluate(two["patients"].merge(two["visits"])).persons


def test_identifiers_that_never_meet_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's numbers lose their zeros in one of the tables; the command line says the same."""
    for logger in (log, logging.root):  # nobody listens, as in a session of Python
        monkeypatch.setattr(logger, "handlers", [])
    two, tables = two_tables(hospital(200)), ["patients", "visits"]
    other = {**two, "visits": two["visits"].assign(patient="0" + two["visits"]["patient"])}
    sentence = rf"'visits' has {len(two['visits'])} rows of persons whom the table 'patients' does not have"
    with pytest.warns(UserWarning, match=sentence):
        fitted(other, least_rows=0, tables=tables)
    model = fitted(two, tables=tables)
    with pytest.warns(UserWarning, match=sentence):
        model.evaluate(other)


def test_what_is_computed_or_made_afresh_stays_in_its_table() -> None:
    """Of rows: the day of leaving follows from two columns, and each visit has a number that is made."""
    real, document = hospital(300, none=0.2), schema(least_rows=0, tables=["patients", "visits"])
    days = [pd.to_datetime(real[name]) for name in ("left", "admitted")]
    columns = document["columns"] | {"visit": {"kind": "identifier", "make": "sequence"}}
    columns["nights"] = {"kind": "integer", "lower": 0, "upper": 20, "bins": 20}
    document |= {"columns": columns, "constraints": ["left = admitted + nights"]}
    tables = two_tables(real)
    nights = (days[0] - days[1]).dt.days[real["admitted"].notna()]
    tables["visits"] = tables["visits"].assign(nights=nights.astype(int), visit=range(len(nights)))
    model = fedsyn.Synthesizer(5.0, 1e-6, document, seed=3, privacy={"unit": "person"}).fit(tables)
    patients, visits = model.sample(200).values()
    assert list(patients.columns) == ["patient", "sex", "born"]
    assert list(visits.columns) == ["patient", "admitted", "left", "severity", "visit", "nights"]
    stays = (pd.to_datetime(visits["left"].astype(str)) - pd.to_datetime(visits["admitted"].astype(str))).dt.days
    assert (stays == visits["nights"]).all() and visits["visit"].is_unique
    judged = {column.name for column in model.evaluate(tables).columns}
    assert judged == {"sex", "born", "admitted", "left", "severity", "nights"}


def test_two_tables_of_several_holders_in_another_library() -> None:
    polars = pytest.importorskip("polars")
    real, more = hospital(400), {"least_rows": 0, "tables": ["patients", "visits"]}
    halves = [real[real["patient"].str[-1].astype(int) % 2 == half] for half in (0, 1)]
    holders = [{n: polars.from_pandas(t) for n, t in two_tables(half).items()} for half in halves]
    made = fitted(holders, seed=None, **more).sample(50)
    assert isinstance(made["visits"], polars.DataFrame) and made["patients"].height == 50


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (lambda t: {"patients": t["patients"]}, "'patients' and 'visits'; found 'patients'"),
        (lambda t: {**t, "patients": pd.concat([t["patients"]] * 2)}, "has 50 rows too many"),
        (lambda t: {**t, "patients": t["patients"].drop(columns="sex")}, "the table 'patients' lacks the column 'sex'"),
        (lambda t: {**t, "visits": t["visits"].drop(columns="left")}, "the table 'visits' lacks the column 'left'"),
    ],
)
def test_tables_that_are_not_the_schemas_are_refused(tables: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        fitted(tables(two_tables(hospital(50))), least_rows=0, tables=["patients", "visits"])


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_two_files_make_a_run_with_one_file_a_table(tmp_path: Path, format_: str) -> None:
    for name, table in two_tables(hospital(300, none=0.2)).items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    document = schema(least_rows=0, tables=["patients", "visits"])
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump(
            {
                "data": {"source": "visits.csv", "persons": "patients.csv", "schema": "schema.yaml"},
                "privacy": {"unit": "person", "epsilon": 5.0, "delta": 1e-5},
                "synthesis": {"format": format_},
                "runtime": {"seed": 0},
            }
        )
    )
    run(load_config(tmp_path / "run.yaml"), tmp_path / "out")
    read = pd.read_csv if format_ == "csv" else pd.read_parquet
    patients, visits = (read(tmp_path / "out" / f"synthetic_{name}.{format_}") for name in ("patients", "visits"))
    assert patients["patient"].is_unique and set(visits["patient"]) < set(patients["patient"])
    joined = read(tmp_path / "out" / f"synthetic.{format_}")
    assert joined["patient"].nunique() == len(patients) and joined["severity"].notna().sum() == len(visits)
    published = published_config(load_config(tmp_path / "out" / "config.yaml"))
    assert published["data"]["persons"] == ["patients.csv"] and str(tmp_path) not in json.dumps(published)
    rows = load_rows(
        *(str(tmp_path / name) for name in ("visits.csv", "schema.yaml")),
        None,
        None,
        persons=True,
        apart=str(tmp_path / "patients.csv"),
    )
    assert len(rows.codes) == 300


@pytest.mark.slow
def test_noise_does_not_add_up_along_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dates in order: a leap ahead is never taken back, so by steps and without weights the last month fills.

    3,000 persons at epsilon 1, whose records the model has up to noise: the last month has 0.08 of the real rows.
    """
    real = hospital()
    made = fedsyn.Synthesizer(1.0, 1e-6, schema(), seed=3, privacy={"unit": "person"}).fit(real)

    def last_month(table: pd.DataFrame) -> float:
        return float((table["admitted"].astype(str) >= "2024-12-01").mean())

    assert abs(last_month(made.sample(seed=1)) - last_month(real)) < 0.03
    with events.by_steps():
        weighed = last_month(made.sample(seed=1))
        monkeypatch.setattr("fedsyn.runs.persons._STEPS", 0)
        left = last_month(made.sample(seed=1))
    assert abs(weighed - last_month(real)) < 0.5 * abs(left - last_month(real))
    assert abs(weighed - last_month(real)) < 0.03


# Where nobody has a second row ---------------------------------------------------------------------------------------


def once(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop_duplicates("patient").reset_index(drop=True)


# Records are made before a mechanism sees them, so one is enough by default.
@pytest.mark.parametrize(
    "mechanism", ["sketch_aim", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mst", "augflaim"))]
)
def test_one_row_a_person_gives_the_bytes_of_single_rows(mechanism: str, tmp_path: Path) -> None:
    """The schema says so, and the record of a person is then the row: table and model are the same, bit for bit."""
    once(hospital(500)).to_csv(tmp_path / "visits.csv", index=False)
    document = schema(most_rows=1, order=False)
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    for unit in ("row", "person"):
        config = parse_config(
            {
                "mechanism": mechanism,
                "data": {"source": str(tmp_path / "visits.csv"), "schema": str(tmp_path / "schema.yaml")},
                "privacy": {"unit": unit, "epsilon": 2.0, "delta": 1e-5},
                "federation": {"clients": 1 if mechanism == "mst" else 3},
                "runtime": {"seed": 1},
            }
        )
        run(config, tmp_path / unit)
    assert (tmp_path / "row" / "synthetic.csv").read_bytes() == (tmp_path / "person" / "synthetic.csv").read_bytes()
    with np.load(tmp_path / "row" / "model.npz") as rows, np.load(tmp_path / "person" / "model.npz") as persons:
        assert rows.files == persons.files
        assert all(rows[name].tobytes() == persons[name].tobytes() for name in rows.files)
    ledger = json.loads((tmp_path / "person" / "ledger.json").read_text())
    assert ledger["unit"] == "one person with all rows at one client, added or removed"


@pytest.mark.parametrize("order", [False, True])
def test_who_has_several_rows_against_the_schema_counts_once_all_the_same(order: bool) -> None:
    """A record is one of the person's rows: 500 people with 1 to 12 rows are 500 records, each with values it has."""
    table, rows = hospital(500), Schema.from_dict(schema(most_rows=1, order=order))
    maker = RecordMaker(rows, np.random.default_rng(0))
    Holding(rows, maker).encoded(table)
    records = maker.record().codes
    assert len(records) == 500 and rows.records is rows
    mine = {(who, *codes) for who, codes in zip(table["patient"], rows.encode(table).tolist(), strict=True)}
    assert all((who, *codes) in mine for who, codes in zip(table["patient"].unique(), records.tolist(), strict=True))


# What holders say of the table ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_holders_are_asked_about_people(tmp_path: Path) -> None:
    """Each compares one record of each person, in figures, costs and words."""
    tables = [hospital(200, seed=seed) for seed in range(3)]
    privacy = {"unit": "person", "epsilon": 20.0, "delta": 1e-5}
    evaluation = {"federated": True, "share": 0.1}
    document: dict[str, Any] = {"data": {"source": "rows", "test_fraction": 0.0}, "evaluation": evaluation}
    document |= {"privacy": privacy, "runtime": {"seed": 0}}
    fedsyn.run(document, tmp_path / "out", table=tables, schema=SCHEMA)
    facts = json.loads((tmp_path / "out" / "federated_evaluation.json").read_text())
    assert facts["of"] == "people" and facts["holders"] == 3
    names = {name.removeprefix("column_score: ") for name in facts["figures"] if ": " in name}
    assert names == set(Schema.from_dict(SCHEMA).records.columns)
    page = " ".join((tmp_path / "out" / "report_public.html").read_text().split())
    assert "one record of each of their own people" in page and "No people were held out" in page
    statement = json.loads((tmp_path / "out" / "ledger.json").read_text())["statement"]
    assert "how far one record of each person is from the table" in statement["server_sees"]


def test_who_has_no_row_makes_no_pair_of_the_model_associated() -> None:
    """Severity and day are drawn apart for each row; only that both are missing goes along."""
    rng, columns = np.random.default_rng(0), {name: dict(SCHEMA["columns"][name]) for name in ("patient", "severity")}
    columns["shift"] = {"kind": "categorical", "categories": ["day", "night"], "other": False}
    persons = {"id": "patient", "order": True, "most_rows": 2, "least_rows": 0}
    rows = Schema.from_dict({"columns": columns, "persons": persons, "approved": True})
    frame = pd.DataFrame({"patient": [f"x{i}" for i in range(2000)]})
    frame["severity"] = rng.choice(["low", "mid", "high"], 2000)
    frame["shift"] = rng.choice(["day", "night"], 2000)
    frame.loc[::3, ["severity", "shift"]] = None
    maker = RecordMaker(rows, np.random.default_rng(0))
    Holding(rows, maker).encoded(frame)
    schema, codes, pair = rows.records, maker.record().codes, ("severity", "shift")
    counts = count(codes, schema.domain, [pair])[0]
    model = estimate(schema.domain, [Measurement(pair, counts, 1.0)], total=float(len(codes)))
    edges = _edges(model, schema, [pair], None)
    assert edges is not None and edges[0][:2] == pair and edges[0][2] < 0.1
