"""A run is rehearsed on tables that stand in for the holders' rows: what it says, and that it reads none of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, InputError, SchemaError
from fedsyn.front import plan as planning
from fedsyn.front.plan import Rehearsal, StandIns, expectation, plan, rehearse, rehearsing, stand_ins
from fedsyn.loading import parse_config
from fedsyn.runs.engines import run
from fedsyn.table.schema import Schema

SCHEMA = """
columns:
  age: {kind: numeric, lower: 0, upper: 80, bins: 8, dtype: integer}
  ward: {kind: categorical, categories: [a, b, c], other: false}
  ill: {kind: categorical, categories: ['no', 'yes'], other: false}
  old: {kind: numeric, lower: 0, upper: 2, bins: 2}
approved: true
"""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    return parse_config(
        {
            "data": {"source": str(tmp_path / "nowhere.csv"), "schema": str(tmp_path / "schema.yaml")},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "workload": {"degree": 2, "size": None},
            "federation": {"clients": 4},
        }
    )


def linked(rows: int, seed: int = 0) -> pd.DataFrame:
    """Rows whose columns follow age."""
    age = np.random.default_rng(seed).integers(0, 80, rows)
    ward, ill = np.array(["a", "b", "c"])[age // 27], np.where(age > 40, "yes", "no")
    return pd.DataFrame({"age": age, "ward": ward, "ill": ill, "old": (age > 60) * 1.5})


def test_a_plan_reads_no_row_of_the_run_and_promises_less_error_for_more_epsilon(config: RunConfig) -> None:
    done: list[tuple[int, int]] = []
    found = plan(config, 400, epsilons=[8.0], advance=lambda *at: done.append(at))
    assert not Path(config.data.source).exists()
    assert (found.rows, found.holders, found.columns, found.basis) == (400, 4, 4, "typical tables")
    assert [one.epsilon for one in found.expected] == [1.0, 8.0] and found.own == 0
    few, many = (one.run for one in found.expected)
    assert many.error < few.error and many.columns < few.columns and many.bins > few.bins
    assert all(one.low < one.run.error < one.high <= 2.0 for one in found.expected)
    assert done == [(at, 6) for at in range(1, 7)], "three tables at two epsilons"
    assert few.messages > 4 and few.up > 0 and few.down > 0 and found.minutes > 0


def test_a_stand_in_without_a_measured_pair_does_not_make_the_mean_none(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, counts = Schema.load(config.data.schema_file or ""), iter([0.0, 3.0, 6.0])
    one, release = rehearse(rehearsing(config, 1.0), schema, linked(300))
    monkeypatch.setattr(planning, "rehearse", lambda *_: (replace(one, measured=next(counts), bins=0.0), release))
    stands = StandIns("typical tables", schema, [linked(300)] * 3)
    found = expectation(config, stands, 2.0, lambda: None)
    assert found.run.measured == 3.0 and found.run.bins == 0.0 and found.run.error == pytest.approx(one.error)


def test_a_rehearsal_without_the_runs_protocol_has_its_noise(config: RunConfig) -> None:
    schema = Schema.load(config.data.schema_file or "")
    assert config.aggregation.protocol == "secagg"
    own, other = (rehearse(rehearsing(config, 1.0, protocol=asked), schema, linked(300))[0] for asked in (True, False))
    same = ("error", "columns", "pairs", "measured", "seen", "bins", "side")
    assert [getattr(own, name) for name in same] == [getattr(other, name) for name in same]
    assert own.messages > other.messages, "a secure sum has stages"


def test_what_stands_in_for_the_table(config: RunConfig, tmp_path: Path) -> None:
    schema, table = Schema.load(config.data.schema_file or ""), tmp_path / "public.csv"
    linked(300).to_csv(table, index=False)
    public = stand_ins(config, schema, 200, public=table)
    assert public.basis == "a public table" and len(public.middle) == 200
    assert set(zip(public.middle["age"] > 40, public.middle["ill"], strict=True)) == {(False, "no"), (True, "yes")}
    assert len(stand_ins(config, schema, public=table).middle) == 300
    run(rehearsing(config, 4.0), tmp_path / "earlier", table=linked(300), schema=schema, full_page=False)
    earlier = stand_ins(config, schema, 150, like=tmp_path / "earlier")
    assert earlier.basis == "an earlier release" and len(earlier.middle) == 150 and earlier.missed >= 0.0
    assert abs(len(stand_ins(config, schema, like=tmp_path / "earlier").middle) - 300) < 60, "as many as it releases"


def test_fewer_public_rows_than_planned_are_fitted_and_not_repeated(config: RunConfig, tmp_path: Path) -> None:
    schema, table = Schema.load(config.data.schema_file or ""), tmp_path / "public.csv"
    linked(40).to_csv(table, index=False)
    ages = stand_ins(config, schema, 2000, public=table).middle["age"]
    assert len(ages) == 2000
    counts = np.bincount(np.minimum(ages // 10, 7), minlength=8)
    exact = np.bincount(np.minimum(linked(40)["age"] // 10, 7), minlength=8) * 50
    assert not np.array_equal(counts, exact) and counts.min() > 0


def test_what_an_earlier_release_missed_is_missed_again_the_less_the_larger_the_budget(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Rehearsal(0.3, 0.1, 0.2, 3.0, 0.5, 2.0, 10.0, 3.0, 9.0, 0.1, 0.1, 1.0)
    monkeypatch.setattr(planning, "rehearse", lambda *_: (said, type("Release", (), {"model": None})))
    stands = StandIns("an earlier release", Schema.loads(SCHEMA), [linked(100)], missed=0.16, budget=100.0)
    errors = [expectation(config, stands, epsilon, lambda: None).run.error for epsilon in (0.5, 1.0, 4.0)]
    assert errors == pytest.approx([0.5, 0.5, (0.09 + 0.04) ** 0.5])


def test_a_draft_will_do(config: RunConfig) -> None:
    ward = "ward: {kind: categorical, categories: [a, b, c], other: false"
    draft = Schema.loads(SCHEMA.replace("approved: true", "").replace(ward, f"{ward}, drafted: [categories, rare]"))
    assert draft.unapproved and not stand_ins(config, draft, 50).schema.unapproved


@pytest.mark.parametrize("wrong", ["rows", "both", "open", "other schema"])
def test_what_no_plan_can_be_made_of(config: RunConfig, tmp_path: Path, wrong: str) -> None:
    schema, folder = Schema.load(config.data.schema_file or ""), tmp_path / "earlier"
    if wrong == "rows":
        with pytest.raises(ConfigError, match="--rows N"):
            plan(config)
    if wrong == "both":
        with pytest.raises(ConfigError, match="got both"):
            plan(config, 100, like=folder, public=tmp_path / "public.csv")
    if wrong == "open":
        hidden = Schema.loads(SCHEMA.replace("lower: 0, upper: 80, bins: 8", "bounds: private, bins: 8"))
        with pytest.raises(InputError, match="column 'age'"):
            stand_ins(config, hidden, 100)
    if wrong == "other schema":
        run(rehearsing(config, 1.0), folder, table=linked(100), schema=schema, full_page=False)
        with pytest.raises(SchemaError, match="got one with other columns"):
            stand_ins(config, Schema.loads(SCHEMA.replace("bins: 8", "bins: 4")), 100, like=folder)
