"""What lies between two dates is judged like any column."""

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.real.between import ends_of, with_between
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.table.schema import Schema

ROWS = 4000


def visits(seed: int, longest: int = 6, form: str = "%Y-%m-%d") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    begins = pd.Timestamp("2022-01-01") + pd.to_timedelta(rng.integers(0, 700, ROWS), unit="D")
    ends = begins + pd.to_timedelta(rng.integers(0, longest, ROWS), unit="D")
    return pd.DataFrame(
        {"ward": rng.choice(["a", "b"], ROWS), "admitted": begins.strftime(form), "discharged": ends.strftime(form)}
    )


def compared(real: pd.DataFrame, made: pd.DataFrame, schema: Schema | None = None) -> TableComparison:
    return compare_tables(real, made, schema=schema, rng=np.random.default_rng(0))


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%Y-%m-%d %H:%M"])
def test_stays_that_became_long_are_lost_where_both_dates_are_kept(form: str) -> None:
    real = visits(0, form=form)
    states = {column.name: column.judged().state for column in compared(real, visits(1, form=form)).columns}
    assert states == dict.fromkeys(["ward", "admitted", "discharged", "admitted to discharged"], "kept")
    states = {column.name: column.judged().state for column in compared(real, visits(2, 12, form)).columns}
    assert states.pop("admitted to discharged") == "lost"
    assert set(states.values()) == {"kept"}


def test_a_schema_whose_bins_lose_them_is_told_what_keeps_them() -> None:
    real = visits(0)
    coarse = Schema.loads(
        """
        columns:
          ward: {kind: categorical, categories: [a, b]}
          admitted: {kind: date, lower: "2022-01-01", upper: "2024-12-31", bins: 12}
          discharged: {kind: date, lower: "2022-01-01", upper: "2024-12-31", bins: 12}
        constraints: [admitted <= discharged]
        """
    )
    made = coarse.decode(coarse.encode(real), np.random.default_rng(0))
    asked = "keep what lies between admitted and discharged in a hidden column of the schema"
    assert compared(real, made, coarse).remedy() == asked
    drafted = Schema.draft(real)
    made = drafted.decode(drafted.encode(real), np.random.default_rng(0))
    assert asked not in compared(real, made, drafted).remedy()


def test_dates_that_are_far_apart_or_in_no_order_have_no_column_between_them() -> None:
    real = visits(0)
    far = real.assign(discharged=(pd.to_datetime(real["discharged"]) + pd.Timedelta(days=200)).dt.strftime("%Y-%m-%d"))
    mixed = real.assign(discharged=real["discharged"].sample(frac=1, random_state=0).to_numpy())
    for table in (far, mixed, real.drop(columns="discharged"), real.assign(discharged=None)):
        names = list(table.columns)
        tables, found = with_between([table, table], names)
        assert found == names
        assert all(list(one.columns) == names for one in tables)


def test_days_that_a_column_has_are_not_compared_twice() -> None:
    real = visits(0)
    days = (pd.to_datetime(real["discharged"]) - pd.to_datetime(real["admitted"])).dt.days
    for column, there in ((days, True), (days.astype(str), True), (days + 1, False)):
        table = real.assign(nights=column)
        found = with_between([table, table], list(table.columns))[1]
        assert ("admitted to discharged" not in found) is there


def test_the_real_rows_alone_say_which_dates_are_near() -> None:
    real, made = visits(0), visits(0)
    made["discharged"] = "no date"
    tables, names = with_between([real, made], list(real.columns))
    assert names[-1] == "admitted to discharged"
    assert tables[1]["admitted to discharged"].isna().all()
    assert ends_of(names) == {"admitted to discharged": ("admitted", "discharged")}
