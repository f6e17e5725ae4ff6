"""Whole runs that protect persons, audited: a person with fifty rows hides as one with a single row does.

Two tables differ in one person, all of whose fifty rows are the only ones with a rare value. The event is fixed before:
more than half a count of what one record moves. See `test_audit_primitives.py` for the bound. The same table under
`unit: row` shows that the audit has power: fifty rows together are seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from audit.test_audit_primitives import ALPHA, epsilon_lower_bound

from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.table.data.records import RecordMaker
from fedsyn.table.schema import Schema
from fedsyn.table.schema.holdings import Holding
from support.pair_runs import table_of

RUNS, EPSILON, DELTA = 600, 2.0, 1e-5
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "id": {"kind": "identifier"},
            "a": {"kind": "categorical", "categories": ["x", "y", "rare"], "other": False},
            "b": {"kind": "categorical", "categories": ["u", "v"], "other": False},
        },
        "persons": {"id": "id", "order": True, "most_rows": 60},
    }
)


def rows(canary: bool) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    whose = np.repeat(np.arange(40), rng.integers(1, 6, 40))
    table = pd.DataFrame(
        {
            "id": [f"p{i}" for i in whose],
            "a": rng.choice(["x", "y"], len(whose)),
            "b": rng.choice(["u", "v"], len(whose)),
        }
    )
    one = pd.DataFrame({"id": ["canary"] * 50, "a": ["rare"] * 50, "b": ["u"] * 50})
    return pd.concat([table, one], ignore_index=True) if canary else table


def measured(unit: str) -> float:
    """Returns a lower bound on epsilon of the released count of the rare value."""
    hits = []
    for canary in (True, False):
        table, above = rows(canary), 0
        if unit == "person":
            maker = RecordMaker(SCHEMA, np.random.default_rng(1))
            Holding(SCHEMA, maker).encoded(table)
            codes, domain = maker.record().codes, SCHEMA.records.domain
        else:
            codes, domain = SCHEMA.encode(table), SCHEMA.domain
        # The table of one-way counts alone: every mechanism's first look is one, and what it costs is known exactly.
        shape = tuple(domain.shape)
        federation = Federation(table_of(codes, shape), (codes,))
        at = 2 if unit == "person" else 0  # the column that has the rare value
        start, moved = sum(shape[:at]) + 2, 1.0 if unit == "person" else 50.0
        privacy: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "unit": unit, "client_sizes": "public"}
        config = config_of("fed_naive_bayes", 1, privacy=privacy, runtime={"seed": None}, workload={"degree": 1})
        for _ in range(RUNS):
            outcome = finished(execute(config, federation))
            counts = np.concatenate([m.values for m in outcome.strategy.measured if len(m.clique) == 1])
            above += counts[start] > moved / 2
        hits.append(above)
    return epsilon_lower_bound(hits[0], hits[1], RUNS, DELTA, ALPHA)


@pytest.mark.slow
def test_a_person_with_fifty_rows_is_hidden() -> None:
    assert measured("person") <= EPSILON


@pytest.mark.slow
def test_fifty_rows_of_one_person_are_not() -> None:
    assert measured("row") > EPSILON
