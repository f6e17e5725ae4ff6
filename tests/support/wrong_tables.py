"""Real tables, right synthetic ones, and ones made wrong in twelve ways, as text that stands in files.

Three populations are planted: a trial, insurance claims and a firm's staff. A column's part in a population says which
way of being wrong can hurt it, so every way is tried on every table. Each cell is the text of a CSV file; a missing one
is empty. All is drawn from the caller's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Texts = npt.NDArray[np.object_]
Rng = np.random.Generator


@dataclass(frozen=True)
class Population:
    """A population with a planted structure, and the part that its columns take.

    Attributes:
        name: of the table.
        draw: rows and a generator -> a table of text.
        answer: a column of yes and no; category: one whose two words `swapped` change places.
        zeros: an amount that is mostly zero, and the width of the first of a maker's bins.
        numbers: two columns with a strong link.
        effect: a group, and the number that differs among its values.
        holder: the column of data holders, and one of them.
        date, code, gaps: a date, a code with leading zeros, a number that is often missing.
        tail: a number whose tails matter.
        label, question: the column to predict, and a regression with its planted effect.
    """

    name: str
    draw: Callable[[int, Rng], pd.DataFrame]
    answer: str
    category: str
    swapped: tuple[str, str]
    zeros: tuple[str, float]
    numbers: tuple[str, str]
    effect: tuple[str, str]
    holder: tuple[str, str]
    date: str
    code: str
    gaps: str
    tail: str
    label: str
    question: str


@dataclass(frozen=True)
class Wrong:
    """A synthetic table that is wrong.

    Attributes:
        way: in which.
        table: as text.
        touched: columns that were changed, each of which a judge should name; none where whole rows are wrong.
    """

    way: str
    table: pd.DataFrame
    touched: tuple[str, ...]


# Populations ---------------------------------------------------------------------------------------------------------


def _text(values: npt.ArrayLike, digits: int = 0, missing: npt.ArrayLike = False) -> Texts:
    """Numbers with so many digits, as text."""
    array = np.asarray(values, np.float64)
    cells = np.array([f"{value:.{digits}f}" for value in array], object)
    return np.where(np.broadcast_to(np.asarray(missing, bool), array.shape), "", cells).astype(object)


def _days(first: str, days: npt.ArrayLike) -> Texts:
    return np.datetime_as_string(np.datetime64(first) + np.asarray(days, np.int64), unit="D").astype(object)


def _yes(marks: npt.ArrayLike) -> Texts:
    return np.where(np.asarray(marks, bool), "yes", "no").astype(object)


def trial(rows: int, rng: Rng) -> pd.DataFrame:
    """Pressure falls by 2, 8 and 14 in three arms; one in six drops out, more where it stays high."""
    arm = rng.choice(["placebo", "low", "high"], rows, p=[0.4, 0.35, 0.25])
    age = np.clip(rng.normal(58, 11, rows), 18, 95).round()
    first = 150 + 0.4 * (age - 58) + rng.normal(0, 9, rows)
    fall = np.select([arm == "placebo", arm == "low"], [2.0, 8.0], 14.0)
    last = first - fall + rng.normal(0, 5, rows)
    lost = rng.random(rows) < 1 / (1 + np.exp(-(last - 155) / 5))
    start = rng.integers(0, 300, rows)
    nights = np.where(rng.random(rows) < 0.92, 0, rng.geometric(0.15, rows) + 20)
    site = rng.choice(6, rows, p=[0.25, 0.2, 0.15, 0.15, 0.15, 0.1])
    return pd.DataFrame(
        {
            "site": np.array(["Basel", "Graz", "Lyon", "Oslo", "Porto", "Turin"], object)[site],
            "postcode": np.array(["04051", "08010", "06900", "01500", "04000", "01012"], object)[site],
            "arm": arm.astype(object),
            "sex": rng.choice(["f", "m"], rows).astype(object),
            "age": _text(age),
            "sbp_v0": _text(first),
            "sbp_v6": _text(last, missing=lost),
            "completed": _yes(~lost),
            "randomised_on": _days("2023-01-10", start),
            "nights": _text(nights),
            "weight": _text(rng.lognormal(4.35, 0.25, rows), 1),
        }
    )


def claims(rows: int, rng: Rng) -> pd.DataFrame:
    """One policy in eleven has a claim; young drivers have twice as many, class F pays twice the premium."""
    age = np.clip(rng.gamma(9, 5, rows), 18, 90).round()
    region = rng.choice(5, rows, p=[0.3, 0.25, 0.2, 0.15, 0.1])
    car = rng.choice(list("ABCDEF"), rows, p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    worth = np.searchsorted(np.array(list("ABCDEF")), car)
    claim = rng.random(rows) < np.where(age < 35, 0.14, 0.07)
    amount = np.where(claim, rng.lognormal(7.2, 0.9, rows), 0.0)
    distance = rng.gamma(4, 3_500, rows)
    premium = 280 + 90 * worth + 0.012 * distance + rng.normal(0, 40, rows)
    return pd.DataFrame(
        {
            "region": np.array(["north", "east", "south", "west", "islands"], object)[region],
            "postcode": np.array(["01067", "04109", "20095", "50667", "07743"], object)[region],
            "driver_age": _text(age),
            "car_class": car.astype(object),
            "km": _text(distance.round(-2)),
            "telematics": _text(rng.normal(70, 12, rows) - worth, 1, rng.random(rows) < 0.25),
            "premium": _text(premium, 2),
            "claim": _yes(claim),
            "claim_amount": _text(amount, 2),
            "policy_start": _days("2022-01-01", rng.integers(0, 365, rows)),
        }
    )


def staff(rows: int, rng: Rng) -> pd.DataFrame:
    """Salaries follow grades, women earn 3,200 less; answers of a survey follow one mood."""
    grade, woman = rng.choice(5, rows, p=[0.3, 0.3, 0.2, 0.15, 0.05]), rng.random(rows) < 0.45
    salary = (38_000 + 9_000 * grade - 3_200 * woman + rng.normal(0, 4_000, rows)).round(-2)
    mood = rng.normal(size=rows)
    answers = np.digitize(0.85 * mood[:, None] + 0.53 * rng.normal(size=(rows, 2)), [-1.2, -0.4, 0.4, 1.2])
    words = np.array(["never", "rarely", "sometimes", "often", "always"], object)
    left = rng.random(rows) < 1 / (1 + np.exp(1.2 + 1.5 * mood))
    overtime = np.where(rng.random(rows) < 0.92, 0.0, rng.gamma(3, 250, rows) + 100)
    bonus = np.clip(1 + 2 * grade + rng.normal(0, 1, rows), 0, None)
    return pd.DataFrame(
        {
            "office": rng.choice(["Bonn", "Kiel", "Ulm", "Jena"], rows, p=[0.4, 0.3, 0.2, 0.1]).astype(object),
            "cost_centre": np.array(["00120", "00340", "01700", "00990", "04400"], object)[grade],
            "grade": np.array(["G1", "G2", "G3", "G4", "G5"], object)[grade],
            "gender": np.where(woman, "Female", "Male").astype(object),
            "salary": _text(salary),
            "bonus": _text(bonus, 1),
            "overtime_pay": _text(overtime, 2),
            "commute": _text(rng.gamma(3, 9, rows), missing=rng.random(rows) < 0.2),
            "enjoys": words[answers[:, 0]],
            "recommends": words[answers[:, 1]],
            "left": _yes(left),
            "reviewed_on": _days("2024-01-01", rng.integers(0, 366, rows)),
        }
    )


POPULATIONS = {
    "trial": Population(
        name="trial",
        draw=trial,
        answer="completed",
        category="arm",
        swapped=("placebo", "high"),
        zeros=("nights", 8.0),
        numbers=("sbp_v0", "sbp_v6"),
        effect=("arm", "sbp_v6"),
        holder=("site", "Lyon"),
        date="randomised_on",
        code="postcode",
        gaps="sbp_v6",
        tail="weight",
        label="sbp_v6",
        question="sbp_v6 ~ sbp_v0 + arm",
    ),
    "claims": Population(
        name="claims",
        draw=claims,
        answer="claim",
        category="region",
        swapped=("north", "south"),
        zeros=("claim_amount", 300.0),
        numbers=("km", "premium"),
        effect=("car_class", "premium"),
        holder=("region", "west"),
        date="policy_start",
        code="postcode",
        gaps="telematics",
        tail="claim_amount",
        label="premium",
        question="premium ~ km + car_class",
    ),
    "staff": Population(
        name="staff",
        draw=staff,
        answer="left",
        category="grade",
        swapped=("G1", "G3"),
        zeros=("overtime_pay", 100.0),
        numbers=("salary", "bonus"),
        effect=("grade", "salary"),
        holder=("office", "Ulm"),
        date="reviewed_on",
        code="cost_centre",
        gaps="commute",
        tail="salary",
        label="left",
        question="salary ~ gender + grade",
    ),
}


# Right tables --------------------------------------------------------------------------------------------------------


def right_tables(population: Population, real: pd.DataFrame, rng: Rng) -> Iterator[tuple[str, pd.DataFrame]]:
    """Fresh rows, others drawn with replacement, and rows of a good model of the real ones."""
    yield "fresh rows", population.draw(len(real), rng)
    others = population.draw(len(real), rng)
    yield "a bootstrap", others.iloc[rng.integers(0, len(others), len(others))].reset_index(drop=True)
    yield "a good model", modelled(real, rng)


def modelled(real: pd.DataFrame, rng: Rng, leaf: int = 12) -> pd.DataFrame:
    """Columns one after the other, each from the leaf of a tree over those before it (synthpop's `cart`)."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    codes = np.column_stack([_numbered(real[name]) for name in real])
    drawn = np.empty(real.shape, np.intp)  # which real row each cell is of
    drawn[:, 0] = rng.integers(0, len(real), len(real))
    for at, name in enumerate(real.columns[1:], 1):
        ordered = pd.to_numeric(real[name].replace("", np.nan), errors="coerce").notna().mean() > 0.5
        tree = (DecisionTreeRegressor if ordered else DecisionTreeClassifier)(min_samples_leaf=leaf, random_state=0)
        leaves = tree.fit(codes[:, :at], codes[:, at]).apply(codes[:, :at])
        members = {one: np.flatnonzero(leaves == one) for one in np.unique(leaves)}
        before = np.take_along_axis(codes[:, :at], drawn[:, :at], axis=0)
        drawn[:, at] = [rng.choice(members[one]) for one in tree.apply(before)]
    return pd.DataFrame(np.take_along_axis(real.to_numpy(object), drawn, axis=0), columns=real.columns)


def _numbered(column: pd.Series) -> npt.NDArray[np.float64]:
    """Numbers as they are and words by their place; a missing cell is far off."""
    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.notna().sum() < 0.5 * len(column):
        numbers = pd.Series(np.unique(column, return_inverse=True)[1])
    return numbers.fillna(-1e6).to_numpy(np.float64)


# Wrong tables --------------------------------------------------------------------------------------------------------


def wrong_tables(population: Population, rng: Rng, rows: int = 3_000) -> Iterator[Wrong]:
    """Twelve tables, each a fresh draw of the population that is wrong in one way."""
    for way in WAYS:
        table = population.draw(rows, rng)
        table, touched = WAYS[way](population, table, rng)
        yield Wrong(way, table, touched)


Made = tuple[pd.DataFrame, tuple[str, ...]]


def _numbers(column: pd.Series) -> npt.NDArray[np.float64]:
    return pd.to_numeric(column.replace("", np.nan)).to_numpy(np.float64)


def _rewritten(column: pd.Series, numbers: npt.NDArray[np.float64]) -> Texts:
    """Numbers with the digits of a column."""
    digits = max((len(cell.partition(".")[2]) for cell in column), default=0)
    return _text(numbers, digits, np.isnan(numbers))


def _with(table: pd.DataFrame, name: str, numbers: npt.NDArray[np.float64]) -> Made:
    return table.assign(**{name: _rewritten(table[name], numbers)}), (name,)


def recoded(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """Yes and no are written in other words, and two words of a category change places."""
    first, second = p.swapped
    words = table[p.category].replace({first: second, second: first})
    answers = table[p.answer].replace({"yes": "true", "no": "false"})
    return table.assign(**{p.category: words, p.answer: answers}), (p.category, p.answer)


def smeared(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """Zeros are drawn over the first of the maker's bins."""
    name, width = p.zeros
    numbers = _numbers(table[name])
    return _with(table, name, np.where(numbers == 0, rng.uniform(0, width, len(numbers)), numbers))


def permuted(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """A number is permuted within each of two bins, so that it is linked as far as its half tells."""
    name = p.numbers[0]
    numbers = _numbers(table[name])
    upper = numbers > np.median(numbers)
    for half in (upper, ~upper):
        numbers[half] = rng.permutation(numbers[half])
    return _with(table, name, numbers)


def levelled(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """A number no longer differs among groups: each has the mean of all."""
    group, outcome = p.effect
    numbers = pd.Series(_numbers(table[outcome]))
    means = numbers.groupby(table[group]).transform("mean")
    made, _ = _with(table, outcome, (numbers - means + numbers.mean()).to_numpy())
    return made, p.effect


def repeated(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """A twentieth of the rows, twenty times each."""
    return table.iloc[rng.integers(0, len(table) // 20, len(table))].reset_index(drop=True), ()


def holder_lost(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """No row of one holder; those of the others fill its place."""
    name, lost = p.holder
    others = table[table[name] != lost]
    more = others.iloc[rng.integers(0, len(others), len(table) - len(others))]
    return pd.concat([others, more], ignore_index=True), (name,)


def shifted(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """Every date is thirty days late."""
    days = np.datetime_as_string(table[p.date].to_numpy().astype("datetime64[D]") + 30).astype(object)
    return table.assign(**{p.date: days}), (p.date,)


def cut(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """Values beyond the 5% and 95% quantiles are moved to them."""
    numbers = _numbers(table[p.tail])
    return _with(table, p.tail, np.clip(numbers, *np.nanquantile(numbers, [0.05, 0.95])))


def filled(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """Missing values are the mean."""
    numbers = _numbers(table[p.gaps])
    return _with(table, p.gaps, np.where(np.isnan(numbers), np.nanmean(numbers), numbers))


def unpadded(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """A code has lost its leading zeros, as spreadsheets do."""
    return table.assign(**{p.code: table[p.code].str.lstrip("0")}), (p.code,)


def turned(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """A number has its mirror image around the mean, so every relation has the other sign."""
    numbers = _numbers(table[p.numbers[1]])
    return _with(table, p.numbers[1], 2 * np.nanmean(numbers) - numbers)


def with_outliers(p: Population, table: pd.DataFrame, rng: Rng) -> Made:
    """One value of a hundred lies fifty standard deviations off."""
    numbers = _numbers(table[p.numbers[1]])
    far = rng.random(len(numbers)) < 0.01
    return _with(table, p.numbers[1], np.where(far, np.nanmean(numbers) + 50 * np.nanstd(numbers), numbers))


WAYS: dict[str, Callable[[Population, pd.DataFrame, Rng], Made]] = {
    "words recoded": recoded,
    "zeros smeared": smeared,
    "permuted within bins": permuted,
    "a group's effect removed": levelled,
    "rows repeated": repeated,
    "a holder lost": holder_lost,
    "dates shifted": shifted,
    "tails cut": cut,
    "missing filled": filled,
    "a code's zeros lost": unpadded,
    "sign turned": turned,
    "outliers added": with_outliers,
}
