"""What notebooks show of a schema, a ledger and results: small, escaped, and nothing that was only drafted."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.errors import ConfigError
from fedsyn.notebook import Bar, Shown, View

EVIL = "<script>alert(1)</script>\x1b[2J"
SCHEMA: dict[str, Any] = {
    "columns": {
        EVIL: {"kind": "integer", "lower": 0, "upper": 99, "bins": 4},
        "job": {"kind": "categorical", "categories": ["clerk", "nurse & <b>"], "missing": True},
        "name": {"kind": "drop"},
    }
}


class Tags(HTMLParser):
    """Collects the tags and the text of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert not attrs

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def seen(shown: Any) -> str:
    """The text of what a notebook shows, which has tags of a table alone."""
    page = shown._repr_html_()
    assert len(page) < 20_000
    parser = Tags()
    parser.feed(page)
    assert parser.tags <= {"p", "b", "table", "tr", "th", "td"} and "\x1b" not in parser.text
    return parser.text


def frame(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(0, 99, rows)
    return pd.DataFrame({EVIL: age, "job": np.where(age < 50, "clerk", "nurse & <b>"), "name": "Zebediah"})


@pytest.fixture(scope="module")
def result() -> fedsyn.RunResult:
    config = {"epsilon": 5, "delta": 1e-5, "evaluation": ["workload_error"], "mechanism": {"name": "mst"}}
    return fedsyn.run(config, table=frame(), schema=SCHEMA)


def test_what_is_shown(result: fedsyn.RunResult) -> None:
    made = result.synthesizer
    text = seen(made.schema_)
    assert "0 to 99, 4 bins" in text and "2: clerk, nurse & <b>" in text and "left out" in text
    assert "epsilon 5 at delta 1e-05" in seen(made.ledger) and "gaussian" in seen(made.ledger)
    assert "measured" in seen(made.predicted_quality)
    compared = seen(made.evaluate(frame()))
    assert "not for publication" in compared and "× job" in compared
    assert "workload_error" in seen(result)
    found = seen(fedsyn.analyse(made.sample(tables=2), "proportion(job)"))
    assert "honest 95%" in found and "naive 95%" in found


def test_charts(result: fedsyn.RunResult) -> None:
    pytest.importorskip("altair")
    made = result.synthesizer
    shown: list[Any] = [made.schema_, made.ledger, made.predicted_quality, made.evaluate(frame()), result]
    for one in shown:
        drawn = one.plot().to_dict()  # validated against Vega-Lite's own schema
        values = next(iter(drawn["datasets"].values())) if "datasets" in drawn else drawn["data"]["values"]
        assert values and len(drawn.get("layer", [drawn])) == (2 if one is made.predicted_quality else 1)


def test_a_draft_shows_nothing_that_was_read_from_the_data() -> None:
    rows = frame().assign(name=["Zebediah", "Rumpelstilt"] * 200)
    schema = fedsyn.Schema.draft(rows)
    for text in (seen(schema), repr(schema), str(schema)):
        assert not any(value in text for value in ("Zebediah", "clerk", "nurse", "98"))
    assert seen(schema).count("read from the data, not approved") == len(schema.columns) == 3
    assert "3 to approve" in repr(schema)


def test_the_repr_of_a_schema_is_one_line() -> None:
    columns = {f"column {i}\x07": {"kind": "boolean"} for i in range(500)}
    text = repr(fedsyn.Schema.from_dict({"columns": columns}))
    assert text.startswith(r"Schema(500 columns: column 0\x07, ") and len(text) < 120 and "\x07" not in text


def test_long_tables_are_cut_and_charts_need_altair(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(Shown):
        def _view(self) -> View:
            rows = [(str(i),) for i in range(1000)]
            return View("many", ("n",), rows, (), "n", [Bar("0", math.inf), *(Bar(str(i), i) for i in range(1, 1000))])

    assert "960 more rows" in seen(Long()) and "999" not in seen(Long())
    if find_spec("altair"):
        drawn = Long().plot().to_dict()
        assert len(drawn["data"]["values"]) == 40 and "the first 40 of 999" in drawn["title"]["text"]
    monkeypatch.setattr("fedsyn.notebook.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"altair: pip install '.*\.whl\[report\]'"):
        Long().plot()
