"""Rows of persons beside the records that were judged: what steps lost of a link, and columns that are unlike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from fedsyn.evaluation.predicted import PredictedError, PredictedQuality
from fedsyn.evaluation.predicted.drawn import DrawnRows
from fedsyn.evaluation.predicted.links import SeenLink, SeenLinks
from fedsyn.inference import EmpiricalModel
from fedsyn.table.data.records import RecordMaker
from fedsyn.table.schema import Schema
from fedsyn.table.schema.holdings import Holding

ROWS = Schema.from_dict(
    {
        "columns": {
            "id": {"kind": "identifier"},
            "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
            "ward": {"kind": "categorical", "categories": ["a", "b"], "other": False},
            "cost": {"kind": "numeric", "lower": 0, "upper": 10, "bins": 5},
        },
        "persons": {"id": "id", "order": True, "constant": ["sex"], "most_rows": 5},
        "approved": True,
    }
)


def people(linked: float, cost: float, seed: int = 0) -> pd.DataFrame:
    """1,000 persons of four rows, whose ward is their sex's in a share of the rows."""
    rng, sex = np.random.default_rng(seed), np.repeat(np.arange(1000) % 2, 4)
    ward = np.where(rng.random(4000) < linked, sex, rng.integers(0, 2, 4000))
    columns = {
        "id": np.repeat(np.arange(1000), 4),
        "sex": np.array(["f", "m"])[sex],
        "ward": np.array(["a", "b"])[ward],
    }
    return pd.DataFrame({**columns, "cost": cost * rng.random(4000)})


def drawn(frame: pd.DataFrame) -> DrawnRows:
    """Rows, beside the records of persons whose ward is always their sex's."""
    maker = RecordMaker(ROWS, np.random.default_rng(0))
    Holding(ROWS, maker).encoded(people(1.0, 10.0))
    block = maker.record()
    schema = ROWS.records
    return DrawnRows(schema, EmpiricalModel(schema.domain, block.codes), ROWS.block(frame).codes)


QUALITY = PredictedQuality(
    PredictedError((), 0.2, 0.1, 0.3, "measured"),
    tuple(PredictedError((name,), 0.02, 0.01, 0.03, "measured") for name in ("sex", "ward", "cost")),
    seen=SeenLinks((SeenLink(("sex", "ward"), 0.95, 0.95, 0.97, 0.02),), 3, 3),
    of="people",
)


def test_a_table_is_not_called_good_for_a_link_that_its_rows_lost() -> None:
    """The records have it: what is said of the table is true of its rows."""
    alike, faded = (QUALITY.with_rows(drawn(people(share, 10.0))) for share in (1.0, 0.5))
    assert QUALITY.verdict().sure == alike.verdict().sure == ["sex × ward"]
    assert alike.seen.links[0].kept == 0.97 and 0.45 < faded.seen.links[0].made < 0.55
    assert 0.45 < faded.seen.links[0].kept < 0.58
    assert faded.verdict().sure == [] and faded.verdict().links[0].state != "kept"


def test_a_column_whose_rows_are_unlike_the_records_is_in_doubt_and_people_are_not() -> None:
    alike, moved = (QUALITY.with_rows(drawn(people(1.0, cost))).verdict() for cost in (10.0, 7.0))
    assert [one.state for one in alike.columns] == ["kept", "kept", "kept"]
    assert [one.state for one in moved.columns] == ["kept", "kept", "changed"]
    assert "of its rows differ from the records" in moved.columns[2].why
    assert moved.persons == alike.persons


def test_what_rows_add_is_kept_in_the_file_and_is_nothing_of_single_rows() -> None:
    found = QUALITY.with_rows(drawn(people(1.0, 7.0)))
    assert PredictedQuality.from_dict(found.to_dict()) == found and found.drawn["cost"].mean > 0.4
    assert "drawn" not in replace(QUALITY, of="rows").to_dict()
