"""Tables with planted rules, drafted, answered with yes and made anew: no row breaks one, as an analyst would count."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsyn import Schema, Synthesizer
from fedsyn.errors import ConfigError
from support import planted_rules

pytestmark = pytest.mark.thorough


def broken(table: str, frame: pd.DataFrame) -> dict[str, int]:
    """Rows that break what was planted, counted without fedsyn."""
    if table == "trial":
        absent = frame[planted_rules.VISITS].isna().to_numpy()
        ended, started = (pd.to_datetime(frame[name]) for name in ("completed_on", "randomised"))
        lost = frame["status"].isin(["lost", "withdrawn"])
        return {
            "dropout": int((absent[:, :-1] & ~absent[:, 1:]).any(axis=1).sum()),
            "last visit": int((lost != absent[:, -1]).sum()),
            "end": int((lost != ended.isna()).sum()),
            "order": int((ended < started).sum()),
        }
    if table == "staff":
        hired, left = (pd.to_datetime(frame[name]) for name in ("hired", "terminated_on"))
        stays = frame["status"].isin(["active", "leave"])
        return {
            "date": int((stays != left.isna()).sum()),
            "reason": int((stays != frame["reason"].isna()).sum()),
            "order": int((left < hired).sum()),
        }
    if table == "claims":
        return {"zero": int(((frame["claims"] == 0) != (frame["amount"] == 0)).sum())}
    listed = frame[frame["school"] != "other"]
    return {"nested": int((listed.groupby("school")["district"].nunique() > 1).sum())}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["sketch_aim", "aim"])
@pytest.mark.parametrize("table", planted_rules.TABLES)
def test_what_was_answered_with_yes_holds_in_every_row(table: str, mechanism: str) -> None:
    frame = planted_rules.TABLES[table]()
    assert set(broken(table, frame).values()) == {0}
    schema = Schema.draft(frame).stated().approve(public="planted")
    assert [rule.data() for rule in schema.constraints] == planted_rules.PLANTED[table]
    synthesizer = Synthesizer(epsilon=1, delta=1e-6, schema=schema, mechanism=mechanism, seed=0)
    made = synthesizer.fit(frame).sample()
    assert len(made) > 0.8 * len(frame)
    assert broken(table, made) == dict.fromkeys(broken(table, frame), 0)
    assert set(schema.violations(made).values()) == {0}


def test_schools_of_many_rows_are_found_in_their_districts() -> None:
    """Nobody writes the map: the noisy counts of 120 schools in 12 districts say it."""
    frame = planted_rules.pupils(20_000)
    schema = Schema.draft(frame).stated().approve(public="planted")
    synthesizer = Synthesizer(epsilon=1, delta=1e-6, schema=schema, seed=0).fit(frame)
    made = synthesizer.sample()
    real = dict(zip(frame["school"], frame["district"], strict=True))
    listed = made[made["school"] != "other"]
    assert np.mean(listed["district"] == listed["school"].map(real)) > 0.99
    with pytest.raises(ConfigError, match="'district' follows from 'school'"):
        synthesizer.sample(10, where={"district": "district 3"})
    assert set(synthesizer.sample(200, where={"school": "S003"})["district"]) == {real["S003"]}
