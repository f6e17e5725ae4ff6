"""`fedsyn.Synthesizer`: tables in, a table out, as scikit-learn does; one file for a model, read without trust."""

from __future__ import annotations

import io
import json
import logging
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedsyn
from fedsyn.errors import ConfigError, DataError, InputError, NotFittedError, SchemaError
from fedsyn.front.archive import LIMITS
from fedsyn.runs.prepare import split_tables

SCHEMA: dict[str, Any] = {
    "columns": {
        "ward": {"kind": "categorical", "categories": ["children", "adults"], "missing": True, "stored": "string"},
        "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10, "stored": "int16"},
        "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False, "stored": "category"},
        "admitted": {
            "kind": "datetime",
            "lower": "2024-01-01",
            "upper": "2024-12-31",
            "bins": 12,
            "stored": "datetime64[us]",
        },
        "smokes": {"kind": "boolean"},
        "cost": {
            "kind": "decimal",
            "places": 2,
            "lower": 0,
            "upper": 500,
            "bins": 8,
            "missing": True,
            "stored": "float32",
        },
    },
    "label": "smokes",
}


def frame(rows: int = 900, seed: int = 0) -> pd.DataFrame:
    """Dtypes that nothing has by default."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(["children", "adults"], rows)
    age = np.where(ward == "children", rng.integers(0, 16, rows), rng.integers(16, 100, rows))
    table = pd.DataFrame(
        {
            "ward": pd.array(ward, dtype="string"),
            "age": age.astype("int16"),
            "sex": pd.Categorical(rng.choice(["f", "m"], rows), categories=["f", "m"]),
            "admitted": pd.to_datetime("2024-01-01").as_unit("s") + pd.to_timedelta(rng.integers(0, 8000, rows), "h"),
            "smokes": rng.random(rows) < 0.3,
            "cost": np.round(rng.gamma(2.0, 50.0, rows), 2).astype("float32"),
            "patient": [f"p{i}" for i in range(rows)],
        }
    )
    table.loc[rng.random(rows) < 0.1, ["ward", "cost"]] = None
    return table


@pytest.fixture(scope="module")
def fitted() -> fedsyn.Synthesizer:
    return fedsyn.Synthesizer(epsilon=3, delta=1e-5, schema=SCHEMA, rounds=2).fit(frame())


@pytest.fixture(scope="module")
def federated() -> fedsyn.Synthesizer:
    table = frame()
    return fedsyn.Synthesizer(epsilon=3, delta=1e-5, schema=SCHEMA).fit([table[:400], table[400:700], table[700:]])


# Tables in, a table out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["fitted", "federated"])
def test_rows_have_the_columns_order_and_dtypes_of_the_schema(which: str, request: pytest.FixtureRequest) -> None:
    synthesizer = request.getfixturevalue(which)
    rows = synthesizer.sample(500)
    expected = frame().drop(columns="patient")  # which the schema does not know
    assert list(rows.columns) == list(expected.columns) == list(synthesizer.feature_names_in_)
    assert rows.dtypes.astype(str).to_dict() == expected.dtypes.astype(str).to_dict()
    assert len(rows) == 500 and rows["ward"].isna().any() and rows["cost"].isna().any()
    # Unseeded: how many marginals are worth their noise differs, so a run may end with a little of its budget unspent.
    assert synthesizer.ledger.private and 2.0 < synthesizer.ledger.epsilon <= 3.0 * (1 + 1e-9)
    assert len(synthesizer.sample()) == pytest.approx(900, rel=0.2)


def test_one_row_more_changes_no_dtype_order_or_file(tmp_path: Path) -> None:
    """A CSV that is read again with one row more: `int64` becomes `float64`, and a column of numbers one of words."""
    schema = {
        "columns": {
            "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 4},
            "smoker": {"kind": "categorical", "categories": [1, 2, 3], "other": "other"},
            "sex": {"kind": "categorical", "categories": ["f", "m"], "stored": "category"},
            "day": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 4},
        }
    }
    rows = "".join(f"2024-03-{i % 28 + 1:02d},{i % 90},{i % 3 + 1},{'fm'[i % 2]}\n" for i in range(300))
    tables = [
        pd.read_csv(io.StringIO(f"day,age,smoker,sex\n{text}"))
        for text in (rows, f"{rows},,x,f\n", f"{rows}2024-04-01,2.5,1,q\n")
    ]
    tables.append(
        tables[0].astype({"sex": "category", "age": "int8", "day": "datetime64[s]"})[["sex", "day", "smoker", "age"]]
    )
    assert len({tuple(map(str, table.dtypes)) for table in tables}) == 4
    seen = []
    for table in tables:
        fitted = fedsyn.Synthesizer(1.0, 1e-5, schema).fit(table)
        saved = zipfile.ZipFile(fitted.save(tmp_path / f"{len(seen)}.fedsyn")).read("schema.yaml")
        dtypes = fitted.sample(5).dtypes.astype(str).to_dict()
        seen.append((fitted.schema_.dumps(), saved, list(dtypes.items()), list(fitted.feature_names_in_)))
    assert seen[1:] == seen[:1] * 3
    assert {"age": "int64", "sex": "category"}.items() <= dict(seen[0][2]).items()


def test_rows_go_out_in_the_library_that_they_came_from(fitted: fedsyn.Synthesizer) -> None:
    class Stream:
        def __init__(self, table: pa.Table) -> None:
            self.table = table

        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            return self.table.__arrow_c_stream__(requested_schema)

    table = pa.Table.from_pandas(frame(300))
    made = {
        name: fedsyn.Synthesizer(epsilon=3, delta=1e-5, schema=SCHEMA, rounds=1, seed=4).fit(given).sample(50)
        for name, given in {"pandas": frame(300), "arrow": table, "stream": Stream(table)}.items()
    }
    assert isinstance(made["pandas"], pd.DataFrame) and isinstance(made["arrow"], pa.Table)
    assert made["stream"].equals(made["arrow"]) and not made["arrow"].schema.metadata
    types = dict(zip(made["arrow"].column_names, map(str, made["arrow"].schema.types), strict=True))
    assert types["age"] == "int16" and types["cost"] == "float" and types["ward"] == "string"
    for name in made["pandas"]:  # the same rows, whatever they came from
        rows = made["pandas"][name].astype(object)
        assert made["arrow"][name].to_pylist() == rows.where(rows.notna(), None).tolist()
    assert isinstance(pickle.loads(pickle.dumps(fitted)).sample(2), pd.DataFrame)


def test_evaluation_and_whole_configurations_take_arrow() -> None:
    table = pa.Table.from_pandas(frame(300))
    config = {"epsilon": 1, "delta": 1e-6, "evaluation": [], "mechanism": {"name": "mst"}, "runtime": {"seed": 1}}
    made = fedsyn.run(config, table=[table], schema=SCHEMA).synthesizer
    assert isinstance(made.sample(5), pa.Table)
    assert made.evaluate(table).to_dict() == made.evaluate(frame(300)).to_dict()


def test_what_links_two_columns_is_kept(fitted: fedsyn.Synthesizer) -> None:
    rows = fitted.sample(2000)
    assert (rows.loc[rows["ward"] == "children", "age"] < 20).mean() > 0.9


def test_one_table_is_one_holder_and_a_list_is_a_federation(
    fitted: fedsyn.Synthesizer, federated: fedsyn.Synthesizer
) -> None:
    assert (fitted.config_.federation.clients, federated.config_.federation.clients) == (1, 3)
    assert fitted.config_.aggregation.noise == "local"
    node = federated.config_.aggregation
    assert (node.protocol, node.noise) == ("secagg", "distributed")
    assert federated.config_.federation.partition.name == "native"
    assert "masked vectors" in federated.ledger["statement"]["server_sees"]


def test_each_table_of_a_list_is_one_clients() -> None:
    table = frame()
    parts = [table[table["ward"] == "adults"], table[table["ward"] != "adults"], table[:50]]
    schema = fedsyn.Schema.from_dict(SCHEMA)
    tables = split_tables(fedsyn.Synthesizer(schema=schema)._config(3), parts, schema)
    assert [len(rows) for rows in tables.parts] == [len(part) for part in parts]
    for rows, part in zip(tables.parts, parts, strict=True):
        np.testing.assert_array_equal(tables.train[rows], schema.encode(part))


def test_conditions_hold_in_every_row(fitted: fedsyn.Synthesizer) -> None:
    where = {"ward": "children", "age": (3, 12), "sex": ["f"], "admitted": ("2024-03-02", None), "smokes": True}
    rows = fitted.sample(300, where=where)
    assert (rows["ward"] == "children").all() and rows["age"].between(3, 12).all() and (rows["sex"] == "f").all()
    assert (rows["admitted"] >= "2024-03-02").all() and rows["smokes"].all()
    assert len(fitted.sample(where={"ward": "children"})) < len(fitted.sample())


def test_a_seed_repeats_and_says_so() -> None:
    one, other = (fedsyn.Synthesizer(2.0, 1e-5, SCHEMA, seed=7, rounds=1).fit(frame(300)) for _ in range(2))
    pd.testing.assert_frame_equal(one.sample(50), other.sample(50))
    assert not one.ledger.private and "seeded" in repr(one)
    unseeded = fedsyn.Synthesizer(2.0, 1e-5, SCHEMA, rounds=1).fit(frame(300))
    pd.testing.assert_frame_equal(unseeded.sample(50, seed=1), unseeded.sample(50, seed=1))
    assert not unseeded.sample(50).equals(unseeded.sample(50))


def test_evaluation_and_page(fitted: fedsyn.Synthesizer, tmp_path: Path) -> None:
    found = fitted.evaluate(frame(seed=5))
    assert 0.5 < found.column_score <= 1 and len(found.columns) == 6
    named = fitted.evaluate(frame(seed=5), regressions=["age ~ sex"]).regressions
    assert named is not None and [(one.formula, one.named) for one in named] == [("age ~ sex", True)]
    page = fitted.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html" and "not for publication" not in page.read_text(encoding="utf-8")
    text = fitted.report(real=frame(seed=5))
    assert isinstance(text, str) and "not for publication" in text


def test_rounds_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fedsyn"):
        fedsyn.Synthesizer(2.0, 1e-5, SCHEMA, rounds=2).fit(frame(1337))
    told = [record.getMessage() for record in caplog.records if record.name.startswith("fedsyn")]
    assert any(message.startswith("round 2") for message in told)
    assert not any("1337" in message for message in told)  # the size of a table is private


@pytest.mark.parametrize("mechanism", ["aim", "privsyn", "augflaim"])
def test_other_mechanisms(mechanism: str) -> None:
    synthesizer = fedsyn.Synthesizer(5.0, 1e-5, SCHEMA, mechanism, rounds=2) if mechanism != "privsyn" else None
    synthesizer = synthesizer or fedsyn.Synthesizer(5.0, 1e-5, SCHEMA, mechanism)
    assert len(synthesizer.fit(frame(300)).sample(5, where={"sex": "f"})) == 5


# scikit-learn --------------------------------------------------------------------------------------------------------


def test_parameters_are_scikit_learns() -> None:
    sklearn_base = pytest.importorskip("sklearn.base")
    from sklearn.utils.validation import check_is_fitted

    schema = fedsyn.Schema.from_dict(SCHEMA)
    one = fedsyn.Synthesizer(epsilon=2, schema=schema, rounds=3, workload={"degree": 2})
    again = sklearn_base.clone(one)
    assert again is not one and again.get_params() == one.get_params()
    assert one.get_params()["rounds"] == 3 and one.get_params()["workload"] == {"degree": 2}
    assert one.set_params(epsilon=4, rounds=1) is one
    assert (one.epsilon, one.get_params()["rounds"], again.epsilon) == (4, 1, 2)
    assert "not fitted" in repr(one)
    fitted = one.fit(frame(300))
    assert fitted is one and "at delta" in repr(one)
    check_is_fitted(fitted)
    assert not sklearn_base.clone(fitted).__sklearn_is_fitted__()


def test_an_unknown_parameter_is_refused_where_it_is_given() -> None:
    one = fedsyn.Synthesizer(rounds=3)
    for call in (lambda: fedsyn.Synthesizer(foo=1), lambda: one.set_params(epsilon=9, foo=1)):
        for kind in (ConfigError, TypeError, ValueError):  # as fedsyn, Python and scikit-learn raise
            with pytest.raises(kind, match="unknown parameter 'foo'"):
                call()
    assert one.get_params()["epsilon"] == 1.0  # nothing was set
    with pytest.raises(ConfigError, match="unknown parameter 'rounds'; options of mst"):
        one.set_params(mechanism="mst", rounds=3)
    assert one.set_params(mechanism="aim", rounds=5, workload={}).get_params()["rounds"] == 5


def test_random_state_is_called_seed(fitted: fedsyn.Synthesizer) -> None:
    asked: list[Any] = [
        lambda: fedsyn.Synthesizer(random_state=3),
        lambda: fitted.set_params(random_state=3),
        lambda: fitted.sample(3, random_state=3),
    ]
    for call in asked:
        with pytest.raises(ConfigError, match="unknown parameter 'random_state': use seed"):
            call()


@pytest.mark.parametrize("what", ["sample", "report", "save", "evaluate", "ledger", "model"])
def test_nothing_is_given_before_fit(what: str) -> None:
    synthesizer = fedsyn.Synthesizer()
    with pytest.raises(NotFittedError, match="not fitted yet: call fit"):
        found = getattr(synthesizer, what)
        found(*(["x"] if what in ("save", "evaluate") else []))
    assert not hasattr(synthesizer, "ledger")


@pytest.mark.parametrize(
    ("parameters", "given", "match"),
    [
        ({"schema": None}, frame(30), "Schema.draft"),
        ({"schema": 3}, frame(30), "schema: expected a Schema, its plain data or a path, found int"),
        ({"schema": "absent.yaml"}, frame(30), "cannot read the schema absent.yaml"),
        ({"epsilon": -1}, frame(30), "epsilon"),
        ({"delta": 2}, frame(30), "delta"),
        ({"mechanism": "sketchaim"}, frame(30), r"did you mean 'sketch_aim'\?"),
        ({"mechanism": 3}, frame(30), "mechanism: expected a name"),
        ({"mechanism": "aim"}, [frame(30), frame(30)], "'aim' has one data holder: give it one DataFrame"),
        ({"roundss": 3}, frame(30), r"unknown parameter 'roundss' \(did you mean 'rounds'\?\)"),
        ({"workload": 3}, frame(30), "workload: expected the keys"),
        ({"workload": {"degre": 3}}, frame(30), r"workload.degre.*did you mean 'degree'"),
        ({}, [], "a list with one DataFrame of each holder"),
        ({}, "rows.csv", "expected a DataFrame"),
        ({}, [frame(30), 3], "expected a DataFrame"),
        ({}, [frame(0), frame(0)], "all 2 tables have no rows"),
        ({}, [frame(30), frame(30).drop(columns="age")], "table 2 of 2 lacks columns of the schema: 'age'"),
        ({}, frame(30).rename(columns={"age": 3}), "column names must be text"),
        ({}, frame(30).assign(age="x"), "no row fits the schema: column 'age'"),
        ({"seed": "x"}, frame(30), "runtime.seed"),
        ({"federation": {"clients": 5}}, [frame(30), frame(30)], "name 2 clients, but federation.clients is 5"),
    ],
)
def test_a_bad_call_is_one_sentence(parameters: dict[str, Any], given: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as raised:
        fedsyn.Synthesizer(**{"schema": SCHEMA, **parameters}).fit(given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "5"])
def test_a_bad_number_of_rows(fitted: fedsyn.Synthesizer, n: Any) -> None:
    with pytest.raises(ConfigError, match="n: expected a number of rows"):
        fitted.sample(n)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: s.sample(where="ward=north"), "where: expected column: condition pairs"),
        (lambda s: s.sample(seed=-1), "seed must be a non-negative integer"),
        (lambda s: s.evaluate(3), "expected a DataFrame"),
        (lambda s: s.evaluate(frame(30), label="smoke"), "did you mean 'smokes'"),
        (lambda s: s.evaluate(frame(30).drop(columns="age")), "lacks columns of the schema: 'age'"),
        (lambda s: s.evaluate(frame(30).iloc[:0]), "the real table has no rows"),
        (lambda s: s.save(3), "expected the path of a file, found int"),
        (lambda s: s.save("no/such/model.fedsyn"), "cannot write no/such/model.fedsyn"),
        (lambda s: s.report("no/such/page.html"), "cannot write no/such/page.html"),
        (lambda s: fedsyn.load(None), "expected the path of a file"),
        (lambda s: fedsyn.run(3), "expected a configuration, a dictionary or a path, found int"),
        (lambda s: fedsyn.run({}), "missing key 'data'"),
        (lambda s: fedsyn.run({"epsilon": 1, "delta": 1e-6}, table=frame(30)), "needs a schema"),
        (lambda s: fedsyn.run({"epsilon": 1, "delta": 1e-6}, table="x.csv", schema=SCHEMA), "expected a DataFrame"),
        (lambda s: fedsyn.run({"epsilon": 1, "delta": 1e-6}, table=frame(30), schema=5), "schema: expected a Schema"),
        (
            lambda s: fedsyn.run({"epsilon": 1, "delta": 1e-6, "federation": 3}, table=[frame(30)], schema=SCHEMA),
            "federation: expected keys below it",
        ),
    ],
)
def test_other_bad_calls_are_one_sentence(fitted: fedsyn.Synthesizer, call: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as raised:
        call(fitted)
    assert "\n" not in str(raised.value)


def test_a_draft_is_refused_with_what_to_do() -> None:
    data = {"columns": {**SCHEMA["columns"], "age": {**SCHEMA["columns"]["age"], "drafted": ["bounds"]}}}
    with pytest.raises(SchemaError, match="drafted from data and is not approved") as raised:
        fedsyn.Synthesizer(schema=data).fit(frame(30))
    assert "approve" in str(raised.value)


# One file ------------------------------------------------------------------------------------------------------------


def test_a_model_is_one_file_that_needs_no_table(fitted: fedsyn.Synthesizer, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "model.fedsyn")
    assert set(zipfile.ZipFile(path).namelist()) == set(LIMITS)
    again = fedsyn.load(path)
    pd.testing.assert_frame_equal(again.sample(80, seed=1), fitted.sample(80, seed=1))
    assert again.ledger == fitted.ledger and again.get_params()["rounds"] == 2
    assert again.schema_ == fitted.schema_ and "fitted" in repr(again)
    assert isinstance(again.report(), str)
    with pytest.raises(ConfigError, match="exists; choose another name"):
        again.save(path)
    before = path.read_bytes()
    assert again.save(path, overwrite=True).read_bytes() == before


def test_a_saved_model_holds_no_row_and_no_place(tmp_path: Path) -> None:
    table = frame().assign(patient=[f"name-{i}" for i in range(900)])
    path = fedsyn.Synthesizer(schema=SCHEMA, rounds=1).fit(table).save(tmp_path / "model.fedsyn")
    archive = zipfile.ZipFile(path)
    texts = b"".join(archive.read(name) for name in archive.namelist())
    assert b"name-1" not in texts and b"/tmp" not in texts


def test_a_saved_model_says_how_good_it_is(fitted: fedsyn.Synthesizer, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "model.fedsyn")
    said = fitted.predicted_quality
    assert said is not None and said.workload_error is not None
    assert fedsyn.load(path).predicted_quality == said and len(said.columns) == len(fitted.model.domain)
    again = fedsyn.load(path).measurements
    assert [m.clique for m in again] == [m.clique for m in fitted.measurements]
    assert {m.clique for m in again} >= {(name,) for name in fitted.model.domain}
    told = zipfile.ZipFile(path).read("README.md").decode()
    assert (
        told.startswith("# Synthetic table")
        and f"{said.workload_error.value:.3g}" in told
        and "Epsilon 3 at delta" in told
    )
    damaged = tmp_path / "damaged.fedsyn"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(damaged, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(b'"low"', b'"log"') if name == "predicted_quality.json" else content)
    with pytest.raises(DataError, match=r"predicted_quality\.json is damaged"):
        fedsyn.load(damaged)


@pytest.mark.slow
def test_a_run_directory_is_loaded_too(tmp_path: Path) -> None:
    result = fedsyn.run({"epsilon": 1, "delta": 1e-6}, tmp_path / "run", table=frame(300), schema=SCHEMA)
    assert result.folder == tmp_path / "run" and "workload_error" in result
    assert list(fedsyn.load(tmp_path / "run").sample(3).columns) == list(result.synthesizer.sample(3).columns)
    table = frame(300)
    for name, part in (("a.csv", table[:100]), ("b.csv", table[100:])):
        part.to_csv(tmp_path / name, index=False)
    files = {"data": {"source": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]}, "epsilon": 1, "delta": 1e-6}
    held = fedsyn.run(files, tmp_path / "held", schema=SCHEMA).synthesizer
    again = fedsyn.load(held.save(tmp_path / "held.fedsyn"))
    assert again.config_.federation.clients == 2 and str(tmp_path) not in str(again.config_.data)


def test_a_run_needs_no_folder() -> None:
    result = fedsyn.run({"epsilon": 1, "delta": 1e-6}, table=[frame(200), frame(150)], schema=SCHEMA)
    folder = result.folder
    assert folder.is_dir() and result.synthesizer.config_.federation.clients == 2 and "epsilon" in repr(result)
    del result
    assert not folder.exists()


def hostile(path: Path, changes: dict[str, bytes | None]) -> Path:
    """A copy of a saved model with other members; None: left out."""
    target = path.with_name("hostile.fedsyn")
    with zipfile.ZipFile(path) as own, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as other:
        for name in [*own.namelist(), *(name for name in changes if name not in own.namelist())]:
            content = changes.get(name, own.read(name) if name in own.namelist() else b"")
            if content is not None:
                other.writestr(name, content)
    return target


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class Exploit:
    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Exploit, "ran", True)


# Thirty lists of ten times the one before, in a few hundred bytes.
BOMB = "\n".join(
    ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)), "data: {source: x}"]
).encode()

HOSTILE: list[tuple[dict[str, bytes | None], str]] = [
    ({"model.npz": None}, "lacks model.npz"),
    ({"schema.yaml": None}, "lacks schema.yaml"),
    ({"../../evil.py": b"x"}, "holds other files than fedsyn saves"),
    ({"model.npz": b"PK nonsense"}, "model.npz is damaged"),
    ({"model.npz": npz(domain=np.array([Exploit()], dtype=object))}, "model.npz is damaged"),
    ({"model.npz": npz(evil=np.zeros(3))}, "holds other files than fedsyn saves"),
    ({"model.npz": npz(domain=np.zeros(3), model=np.zeros(3))}, "model.npz: domain is damaged"),
    ({"ledger.json": b"{"}, "ledger.json is damaged"),
    ({"ledger.json": b"[" * 100_000}, "ledger.json is damaged"),
    ({"ledger.json": b"\xff"}, "ledger.json is not text"),
    ({"fedsyn.json": b'{"format": 99}'}, "fedsyn.json: expected format 1, found 99"),
    ({"config.yaml": b"- 1"}, "expected a mapping"),
    ({"config.yaml": b"mechanism: antigravity:Fly\n"}, "config.yaml"),
    ({"schema.yaml": b"columns: {age: {kind: boolean}}"}, "describe different tables"),
    ({"ledger.json": b'{"format": 1, "epsilon": 1}'}, "ledger.json is damaged: it has no usable 'delta'"),
    ({"ledger.json": b"[]"}, "ledger.json is damaged"),
    ({"config.yaml": BOMB}, "config.yaml: it unfolds to more than"),
    ({"schema.yaml": b"columns: " + BOMB}, "schema.yaml"),
    ({"schema.yaml": b"[" * 50_000}, "schema.yaml"),
    ({"schema.yaml": b"columns: !!python/object/apply:os.getcwd []"}, "not valid YAML"),
]


@pytest.mark.parametrize(
    ("changes", "match"), HOSTILE, ids=[str(next(iter(changes))) + match for changes, match in HOSTILE]
)
def test_a_hostile_file_is_one_sentence(
    fitted: fedsyn.Synthesizer, tmp_path: Path, changes: dict[str, bytes | None], match: str
) -> None:
    path = hostile(fitted.save(tmp_path / "model.fedsyn"), changes)
    with pytest.raises(InputError, match=match) as raised:
        fedsyn.load(path)
    assert "\n" not in str(raised.value) and not Exploit.ran


def test_a_file_is_not_unpacked_beyond_its_limits(
    fitted: fedsyn.Synthesizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fitted.save(tmp_path / "model.fedsyn")
    bomb = hostile(path, {"rounds.jsonl": b" " * 5_000_000})
    monkeypatch.setitem(LIMITS, "rounds.jsonl", 1_000_000)
    with pytest.raises(DataError, match=r"rounds\.jsonl is larger than 1,000,000 bytes"):
        fedsyn.load(bomb)
    with zipfile.ZipFile(path) as archive, np.load(io.BytesIO(archive.read("model.npz"))) as arrays:
        kept = dict(arrays)
    head = json.loads(kept["model"].tobytes())
    # A clique of everything, said to be there for speed: no potential, and a junction tree of 100 million cells.
    head["structural_cliques"] = [head["attributes"]]
    kept["model"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    monkeypatch.setattr("fedsyn.runs.directory.MOST_CELLS", 10_000)
    with pytest.raises(DataError, match="would unfold to more than 10,000 cells"):
        fedsyn.load(hostile(path, {"model.npz": npz(**kept)}))
    lies = io.BytesIO()
    np.lib.format.write_array_header_1_0(lies, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("potentials.npy", lies.getvalue())
    with pytest.raises(DataError, match=r"model\.npz is damaged"):
        fedsyn.load(hostile(path, {"model.npz": (tmp_path / "lies.npz").read_bytes()}))


def test_loading_imports_nothing_that_a_file_names(
    fitted: fedsyn.Synthesizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_module.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    path = fitted.save(tmp_path / "model.fedsyn")
    config = zipfile.ZipFile(path).read("config.yaml").replace(b"sketch_aim", b"evil_module:Strategy")
    loaded = fedsyn.load(hostile(path, {"config.yaml": config}))
    assert len(loaded.sample(2)) == 2 and "evil_module" not in sys.modules


def test_what_a_file_says_is_text_on_its_page(tmp_path: Path) -> None:
    """A name may be anything; on the page it is not markup."""
    name = "</script><script>alert(1)</script>"
    schema = {"columns": {name: {"kind": "categorical", "categories": [name, "b"], "other": False}}}
    table = pd.DataFrame({name: [name, "b"] * 100})
    path = fedsyn.Synthesizer(schema=schema, rounds=1).fit(table).save(tmp_path / "model.fedsyn")
    archive = zipfile.ZipFile(path)
    ledger = json.loads(archive.read("ledger.json")) | {"unit": name, "not_private_because": [name], "private": False}
    loaded = fedsyn.load(hostile(path, {"ledger.json": json.dumps(ledger).encode()}))
    assert "<script>alert" not in str(loaded.report()) and "alert(1)" in str(loaded.report(real=table))
    assert "<script>alert" not in str(loaded.report(real=table))
    broken = hostile(path, {"rounds.jsonl": b'{"format": 1, "round": []}\n'})
    with pytest.raises(DataError, match="no page"):
        fedsyn.load(broken).report()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Exploit()))
    (tmp_path / "empty").mkdir()
    for name, match in (("model.pkl", "not a model that"), ("empty", "no model.npz"), ("absent", "no file or run")):
        with pytest.raises(DataError, match=match):
            fedsyn.load(tmp_path / name)
    assert not Exploit.ran
