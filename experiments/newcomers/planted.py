"""Seven tables as people bring them, made from stated truths: what links their columns, and what holds in every row.

A trial whose patients drop out, claims that are mostly zero, pupils in schools in districts, a staff list, laboratory
values with codes and censored words, visits of the same people, a server's log. Each is drawn with as many rows as one
asks for, so a large draw is the population of a small one. All of it is public test data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

Flags = npt.NDArray[np.bool_]
Rng = np.random.Generator


@dataclass(frozen=True)
class Planted:
    """A table and its truths.

    Attributes:
        draw: rows from the population.
        rows: how many a newcomer has.
        label: what one would predict.
        effects: questions that the table is there for -> what answers them, from a table's written values.
        rules: what holds in every row -> the rows of a written table that break it.
        person: the column that says which person a row is of, if a person has several.
    """

    draw: Callable[[int, Rng], pd.DataFrame]
    rows: int
    label: str
    effects: Mapping[str, Callable[[pd.DataFrame], float]]
    rules: Mapping[str, Callable[[pd.DataFrame], Flags]] = field(default_factory=dict)
    person: str | None = None


def numbers(table: pd.DataFrame, name: str) -> npt.NDArray[np.float64]:
    """The numbers of a column; words and missing cells are NaN."""
    return np.asarray(pd.to_numeric(table[name], errors="coerce"), np.float64)


def _yes(rng: Rng, chance: npt.ArrayLike, rows: int) -> npt.NDArray[np.str_]:
    return np.where(rng.random(rows) < chance, "yes", "no")


def _days(first: str, after: npt.ArrayLike) -> pd.Series:
    return pd.Series(pd.Timestamp(first) + pd.to_timedelta(np.asarray(after), unit="D"))


def _difference(table: pd.DataFrame, value: npt.NDArray[np.float64], column: str, one: str, other: str) -> float:
    groups = np.asarray(table[column].astype(str))
    means = [value[groups == name] for name in (one, other)]
    return float(np.nanmean(means[0]) - np.nanmean(means[1])) if min(map(len, means)) else 0.0


def _correlation(table: pd.DataFrame, first: str, second: str) -> float:
    x, y = numbers(table, first), numbers(table, second)
    known = np.isfinite(x) & np.isfinite(y)
    return float(np.corrcoef(x[known], y[known])[0, 1])


def trial(rows: int, rng: Rng) -> pd.DataFrame:
    """Pressure falls by 2, 8 or 14 in seven visits, by arm; patients leave and do not come back."""
    arm, site = rng.choice(["placebo", "low", "high"], rows), rng.choice(list("ABCDEF"), rows)
    own, start = rng.normal(150, 14, rows), rng.integers(0, 540, rows)
    fall = np.select([arm == "high", arm == "low"], [14.0, 8.0], 2.0)
    gone = np.maximum.accumulate(rng.random((rows, 7)) < np.array([0, 0, 0.04, 0.04, 0.05, 0.05, 0.06]), axis=1)
    sbp = np.round(own[:, None] - fall[:, None] * np.arange(7) / 6 + rng.normal(0, 5, (rows, 7)))
    last = (~gone).sum(axis=1)
    found = {"site": site, "arm": arm, "sex": rng.choice(["f", "m"], rows), "age": rng.integers(35, 80, rows)}
    found |= {f"sbp_v{k}": pd.Series(np.where(gone[:, k], np.nan, sbp[:, k])).astype("Int64") for k in range(7)}
    found |= {"visits": last, "completed": np.where(last == 7, "yes", "no")}
    found |= {"randomised_on": _days("2022-01-01", start), "end_date": _days("2022-01-01", start + 28 * last)}
    return pd.DataFrame(found | {"serious": _yes(rng, np.where(arm == "high", 0.07, 0.02), rows)})


def claims(rows: int, rng: Rng) -> pd.DataFrame:
    """Nine policies of ten have no claim and no amount; young drivers have twice as many."""
    age, car = rng.integers(18, 90, rows), rng.integers(0, 6, rows)
    number = rng.poisson(0.07 * np.where(age < 26, 2.0, 1.0) * (1.0 + 0.1 * car))
    paid = np.where(number > 0, rng.lognormal(7.0 + 0.1 * car, 0.9, rows), 0.0).round(2)
    found = {
        "exposure": rng.uniform(0.05, 1.0, rows).round(2),
        "driver_age": age,
        "car_class": np.array([*"ABCDEF"])[car],
    }
    found |= {"region": rng.choice(["north", "east", "south", "west"], rows, p=[0.4, 0.3, 0.2, 0.1])}
    fraud = _yes(rng, np.where(paid > 3_000, 0.16, 0.0), rows)
    return pd.DataFrame(found | {"claims": number, "amount": paid, "fraud": fraud})


def pupils(rows: int, rng: Rng) -> pd.DataFrame:
    """A hundred schools in ten districts; status goes with scores, and four answers are of one factor."""
    school, status = rng.integers(0, 100, rows), rng.normal(size=rows)
    math = 500 + 90 * (0.43 * status + 0.9 * rng.normal(size=rows))
    reading = 500 + 90 * (0.91 * (math - 500) / 90 + 0.41 * rng.normal(size=rows))
    factor = 0.73 * rng.normal(size=(rows, 1)) + 0.68 * rng.normal(size=(rows, 4))
    answers = np.array(["never", "seldom", "often", "always"])[np.digitize(factor, [-0.8, 0.0, 0.8])]
    found = {"school": [f"S{k:03d}" for k in 7 * school], "district": [f"D{k:02d}" for k in school // 10]}
    found |= {"track": rng.choice(["Gymnasium", "Realschule", "Hauptschule"], rows, p=[0.4, 0.35, 0.25])}
    found |= {"status": status.round(2), "math": math.round(1), "reading": reading.round(1)}
    found |= {f"q{k + 1}": answers[:, k] for k in range(4)}
    return pd.DataFrame(found | {"weight": rng.lognormal(3.0, 0.4, rows).round(3)})


def staff(rows: int, rng: Rng) -> pd.DataFrame:
    """Salaries in hundreds that follow grades, and pay women less; who has left has a day, not before the first one."""
    grade, sex = rng.integers(1, 8, rows), rng.choice(["F", "M"], rows)
    salary = 24_000 + 6_500 * grade + np.where(sex == "M", 3_200, 0) + rng.normal(0, 3_000, rows)
    start, left = rng.integers(0, 5_000, rows), rng.random(rows) < 0.25
    ended = _days("2008-01-01", start + rng.integers(30, 2_500, rows)).where(left)
    found = {"grade": [f"G{k}" for k in grade], "sex": sex, "salary": (salary / 100).round().astype(int) * 100}
    found |= {"bonus_percent": np.maximum(0, rng.normal(2.0 * grade, 2.0, rows)).round(1)}
    found |= {
        "fte": rng.choice([0.5, 0.6, 0.8, 1.0], rows, p=[0.1, 0.1, 0.2, 0.6]),
        "hired": _days("2008-01-01", start),
    }
    return pd.DataFrame(found | {"left": ended, "state": np.where(left, "left", "active")})


def labs(rows: int, rng: Rng) -> pd.DataFrame:
    """Kidneys that fall with age, a sugar of -999 where none was taken, a third of the CRP below what can be seen."""
    age, sick = rng.integers(18, 95, rows), rng.normal(size=rows)
    egfr = np.clip(150 - 1.0 * age + rng.normal(0, 20, rows), 5, 140).round()
    hba = 6.0 + 0.9 * sick + rng.normal(0, 0.3, rows)
    glucose = np.where(rng.random(rows) < 0.04, -999, np.maximum(55, 100 + 28 * sick + rng.normal(0, 15, rows)).round())
    crp = rng.lognormal(0.0, 1.3, rows).round(1)
    found = {"age": age, "sex": rng.choice(["f", "m"], rows), "eGFR": egfr.astype(int), "glucose": glucose.astype(int)}
    found |= {"HbA1c": np.where(rng.random(rows) < 0.6, np.nan, hba.round(1))}
    found |= {"CRP": np.where(crp < 0.5, "<0.5", crp.astype(str)), "ward": rng.choice(["ICU", "med", "surg"], rows)}
    return pd.DataFrame(found | {"died": _yes(rng, np.where(age > 75, 0.06, 0.01), rows)})


def visits(rows: int, rng: Rng) -> pd.DataFrame:
    """About four visits of each person, who is heavier with more pressure, and has ten points more with diabetes."""
    person = np.repeat(np.arange(rows), rng.integers(1, 8, rows))[:rows]
    bmi, sick = rng.normal(26, 4.4, rows)[person], (rng.random(rows) < 0.2)[person]
    sbp = 105 + 0.9 * bmi + 10 * sick + rng.normal(0, 9, rows)[person] + rng.normal(0, 5, rows)
    found = {"nhs_no": [f"{943_000_0000 + 7919 * k}" for k in person], "bmi": (bmi + rng.normal(0, 0.5, rows)).round(1)}
    found |= {"sbp": sbp.round().astype(int), "diabetes": np.where(sick, "yes", "no")}
    return pd.DataFrame(found | {"clinic": rng.choice(["A", "B", "C"], rows), "smoker": _yes(rng, 0.3, rows)})


def log(rows: int, rng: Rng) -> pd.DataFrame:
    """A thermometer whose humidity falls by 1.5 a degree, which warns above 28 degrees."""
    temp = rng.normal(22, 4, rows)
    error = rng.random(rows) < 0.03
    level = np.where(error, "ERROR", np.where(temp.round(2) > 28, "WARN", "INFO"))
    usual = rng.choice([200, 201, 204, 404], rows, p=[0.85, 0.05, 0.04, 0.06])
    humidity = 90 - 1.5 * temp + rng.normal(0, 3.7, rows)
    found = {"at": pd.Timestamp("2024-03-01") + pd.to_timedelta(np.sort(rng.integers(0, 7 * 86_400, rows)), unit="s")}
    found |= {"device": [f"dev-{k:02d}" for k in rng.integers(0, 12, rows)], "temp": temp.round(2)}
    found |= {
        "humidity": humidity.round(1),
        "level": level,
        "status": np.where(error, rng.choice([500, 503], rows), usual),
    }
    return pd.DataFrame(found | {"latency": rng.lognormal(3.6, 0.6, rows).round(1)})


def _nested(table: pd.DataFrame) -> Flags:
    usual = table.groupby("school")["district"].transform(lambda some: some.mode().iloc[0])
    return np.asarray((table["district"] != usual) & (table["school"] != "other"))


def _left(table: pd.DataFrame) -> Flags:
    return np.asarray((table["state"] == "active") != table["left"].isna())


def _zeros(table: pd.DataFrame) -> Flags:
    return (numbers(table, "claims") == 0) != (numbers(table, "amount") == 0)


def _returns(table: pd.DataFrame) -> Flags:
    missing = np.column_stack([np.isnan(numbers(table, f"sbp_v{k}")) for k in range(7)])
    return np.asarray((missing[:, :-1] & ~missing[:, 1:]).any(axis=1))


def _early(first: str, second: str) -> Callable[[pd.DataFrame], Flags]:
    return lambda table: np.asarray(pd.to_datetime(table[second]) < pd.to_datetime(table[first]))


TABLES = {
    "trial": Planted(
        trial,
        1_800,
        "completed",
        {
            "change of pressure, high arm against placebo": lambda t: _difference(
                t, numbers(t, "sbp_v6") - numbers(t, "sbp_v0"), "arm", "high", "placebo"
            ),
            "first pressure with last": lambda t: _correlation(t, "sbp_v0", "sbp_v6"),
        },
        {"dropout": _returns, "end not before start": _early("randomised_on", "end_date")},
    ),
    "claims": Planted(
        claims,
        5_000,
        "fraud",
        {"share of amounts that are zero": lambda t: float((numbers(t, "amount") == 0).mean())},
        {"zero amount where no claim": _zeros},
    ),
    "pupils": Planted(
        pupils,
        4_000,
        "track",
        {
            "status with math": lambda t: _correlation(t, "status", "math"),
            "math with reading": lambda t: _correlation(t, "math", "reading"),
        },
        {"a school in one district": _nested},
    ),
    "staff": Planted(
        staff,
        1_000,
        "state",
        {"pay gap": lambda t: _difference(t, numbers(t, "salary"), "sex", "M", "F")},
        {"left not before hired": _early("hired", "left"), "a last day for who left": _left},
    ),
    "labs": Planted(labs, 2_500, "died", {"age with kidneys": lambda t: _correlation(t, "age", "eGFR")}),
    "visits": Planted(
        visits,
        5_000,
        "diabetes",
        {
            "bmi with pressure": lambda t: _correlation(t, "bmi", "sbp"),
            "pressure with diabetes": lambda t: _difference(t, numbers(t, "sbp"), "diabetes", "yes", "no"),
        },
        person="nhs_no",
    ),
    "log": Planted(
        log,
        5_000,
        "level",
        {"temperature with humidity": lambda t: _correlation(t, "temp", "humidity")},
    ),
}
