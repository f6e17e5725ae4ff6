"""Bad calls of the Python interface: an error of fedsyn, one sentence, and nothing fitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn import Schema, Synthesizer
from fedsyn.errors import InputError

SECRET = "4711-diagnosis"
SCHEMA = {
    "columns": {
        "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 4},
        "job": {"kind": "categorical", "categories": ["clerk", "nurse"]},
    }
}


def frame(rows: int = 60) -> pd.DataFrame:
    made = pd.DataFrame({"age": np.arange(rows) % 99, "job": ["clerk", "nurse"] * (rows // 2)})
    made.loc[3, "job"] = SECRET
    return made


FIT: list[tuple[Callable[[], Any], str]] = [
    (lambda: Synthesizer().fit(frame()), "a schema is needed"),
    (lambda: Synthesizer(schema=Schema.draft(frame())).fit(frame()), "not approved"),
    (lambda: Synthesizer(schema=3).fit(frame()), "found int"),  # type: ignore[arg-type]
    (lambda: Synthesizer(schema={"colums": {}}).fit(frame()), "did you mean 'columns'"),
    (lambda: Synthesizer(schema="absent.yaml").fit(frame()), "absent.yaml"),
    (lambda: Synthesizer(epsilon=0, schema=SCHEMA).fit(frame()), "greater than 0"),
    (lambda: Synthesizer(epsilon=float("nan"), schema=SCHEMA).fit(frame()), "finite number"),
    (lambda: Synthesizer(epsilon="one", schema=SCHEMA).fit(frame()), "must be a number"),  # type: ignore[arg-type]
    (lambda: Synthesizer(delta=True, schema=SCHEMA).fit(frame()), "not true"),
    (lambda: Synthesizer(epsilonn=1, schema=SCHEMA).fit(frame()), "did you mean 'epsilon'"),
    (lambda: Synthesizer(mechanism="sketchaim", schema=SCHEMA).fit(frame()), "did you mean 'sketch_aim'"),
    (lambda: Synthesizer(rounds=0, schema=SCHEMA).fit(frame()), "rounds"),
    (lambda: Synthesizer(schema=SCHEMA).fit(None), "expected a DataFrame"),  # type: ignore[arg-type]
    (lambda: Synthesizer(schema=SCHEMA).fit([]), "expected a DataFrame"),
    (lambda: Synthesizer(schema=SCHEMA).fit(frame().head(0)), "no rows"),
    (lambda: Synthesizer(schema=SCHEMA).fit([frame().head(0), frame().head(0)]), "all 2 tables have no rows"),
    (lambda: Synthesizer(schema=SCHEMA).fit([frame(), frame().drop(columns="age")]), "lacks columns"),
    (lambda: Synthesizer(schema=SCHEMA).fit(frame().assign(age=SECRET)), "no row fits the schema: column 'age'"),
    (lambda: Synthesizer(schema=SCHEMA).sample(3), "not fitted"),
    (lambda: Schema.draft("rows.csv"), "expected a DataFrame (pandas, Polars, Arrow, a DuckDB relation); found str"),  # type: ignore[arg-type]
    (lambda: Schema.draft(frame(), bins="x"), "bins must be a whole number"),  # type: ignore[arg-type]
    (lambda: Schema.draft(frame(), label="jbo"), "did you mean 'job'"),
    (lambda: fedsyn.load("absent.fedsyn"), "absent.fedsyn"),
    (lambda: fedsyn.load(None), "path"),  # type: ignore[arg-type]
]
USE: list[tuple[Callable[[Synthesizer], Any], str]] = [
    (lambda s: s.sample(0), "from 1 to"),
    (lambda s: s.sample(1.5), "1.5"),  # type: ignore[arg-type]
    (lambda s: s.sample("5"), "'5'"),  # type: ignore[arg-type]
    (lambda s: s.sample(10**12), "from 1 to"),
    (lambda s: s.sample(3, where="job=clerk"), "where"),  # type: ignore[arg-type]
    (lambda s: s.sample(3, where={"job"}), "where"),  # type: ignore[arg-type]
    (lambda s: s.sample(3, where={"jbo": "clerk"}), "did you mean 'job'"),
    (lambda s: s.sample(3, where={"job": "clrek"}), "did you mean 'clerk'"),
    (lambda s: s.sample(3, where={"age": (30, 20)}), "'30..20' of column 'age' is an empty range"),
    (lambda s: s.sample(3, where={"age": ("a", "b")}), "'age'"),
    (lambda s: s.evaluate(frame().rename(columns={"age": "ag"})), "lacks columns"),
    (lambda s: s.evaluate(None), "expected a DataFrame"),  # type: ignore[arg-type]
    (lambda s: s.save("no/such/model"), "no/such"),
    (lambda s: s.report("no/such/page.html"), "no/such"),
]


def refused(says: str, ask: Callable[..., Any], *arguments: Any) -> None:
    """One sentence with these words and without a cell; nothing is written."""
    with pytest.raises(InputError) as caught:
        ask(*arguments)
    assert says in str(caught.value) and SECRET not in str(caught.value) and "\n" not in str(caught.value), says
    assert not any(Path.cwd().iterdir()), says


def test_a_bad_call_before_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for ask, says in FIT:
        refused(says, ask)


def test_a_bad_call_after_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Synthesizer(epsilon=5, delta=1e-5, schema=SCHEMA, rounds=1).fit(frame())
    monkeypatch.chdir(tmp_path)
    for ask, says in USE:
        refused(says, ask, fitted)
