"""A row's codes depend on that row alone, whatever types and notations its neighbours have."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.table.schema import Schema

FINE = "2024-05-31T12:00:00.1234567"  # of SQL's datetime2: pandas makes nanoseconds of a column with it
DAYS = {"missing": True, "unlisted": True, "bins": 100}
MOMENTS = {"lower": "2024-05-30", "upper": "2024-06-02", **DAYS}
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "day": {"kind": "date", "lower": "1900-01-01", "upper": "2100-01-01", **DAYS},
            "written": {"kind": "date", "format": "%d.%m.%Y", "lower": "1900-01-01", "upper": "2100-01-01", **DAYS},
            "there": {"kind": "datetime", "zone": "Europe/Berlin", **MOMENTS},
            "plain": {"kind": "datetime", **MOMENTS},
            "span": {"kind": "duration", "lower": "0 days", "upper": "10 days", **DAYS},
            "whole": {"kind": "integer", "lower": 0, "upper": 9, "missing": True, "unlisted": True},
            "number": {"kind": "numeric", "lower": 0, "upper": 9, "missing": True, "unlisted": True},
            "word": {"kind": "categorical", "categories": ["True", "1", "2.0", "a"], "missing": True},
            "code": {"kind": "code", "categories": ["007", "010"], "width": 3, "missing": True},
        }
    }
)
VALUES: list[Any] = [
    *["9999-12-31", "1500-01-01", "2024-05-31", "31.05.2024", FINE, "2024-05-31T12:00:00", "2024-05-31T12:00:00+00:00"],
    *["2024-05-31 12:00:00-0500", "2024-05-31T12:00Z", "1 days", "7", "a", "-999", None, np.nan, True, 1, 1.0, 0],
    *[
        False,
        np.True_,
        Decimal(1),
        Decimal("sNaN"),
        10**400,
        20240531,
        [1],
        {},
        dt.date(2024, 5, 31),
        pd.Period("2024-05"),
    ],
    *[pd.Timestamp(FINE + "89"), pd.Timestamp("2024-05-31 12:00", tz="UTC"), np.datetime64("2500-01-01"), pd.NaT],
]


def codes(values: list[Any]) -> list[list[int]]:
    cells = np.empty(len(values), dtype=object)
    cells[:] = values
    return SCHEMA.encode(pd.DataFrame(dict.fromkeys(SCHEMA.columns, pd.Series(cells)))).tolist()


#: Every two places, each pair in one order, as many with the later place first.
PAIRS = [(i, j) if (i + j) % 2 else (j, i) for i, j in itertools.combinations(range(len(VALUES)), 2)]


@pytest.mark.parametrize(
    "pairs", [PAIRS, pytest.param([(j, i) for i, j in PAIRS], marks=pytest.mark.slow)], ids=["one order", "the other"]
)
def test_no_value_changes_what_another_is(pairs: list[tuple[int, int]]) -> None:
    alone = [codes([value])[0] for value in VALUES]
    for i, j in pairs:
        assert codes([VALUES[i], VALUES[j]]) == [alone[i], alone[j]], (i, j)


@pytest.mark.parametrize("whole", [[2, 1], [True, False]])
def test_a_missing_value_changes_no_other(whole: list[Any]) -> None:
    for missing in ([], [None]):
        frame = pd.DataFrame(dict.fromkeys(SCHEMA.columns, pd.Series([*whole, *missing])))
        kept = [name for name in SCHEMA.columns if name != "code"]
        found = SCHEMA.encode(frame)[:2, [list(SCHEMA.columns).index(name) for name in kept]].tolist()
        assert found == [row[: len(kept)] for row in codes(whole)]
