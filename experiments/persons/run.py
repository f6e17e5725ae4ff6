"""Measures what protecting persons costs, and what makes tables of persons and rows good.

    FEDSYN_DATA=FOLDER python experiments/persons/run.py [--tables NAME ...] [--seeds 2] [--epsilon 1] [--clients 20]
                                                         [--caps 1 3 10] [--check]
                                                         [--sdv INTERPRETER [--epochs 128]]

A run protects one person with all rows, in three ways: by one record each, as `privacy.unit: person` does, by up to c
records each (flatten and cap: sensitivity c), and by one row each, all others dropped. Errors are mean L1 distances, 0
to 2: pairs of a row and its person and pairs of neighbouring rows are counted in rows; pairs inside persons, numbers of
rows, and aggregates of a person's rows in persons. Columns are read in groups of at most about ten values. `airbnb` is
for tuning; the others are generated and for judging. `--sdv` names a Python that has SDV, whose HMA and PAR are
beside ours then, without privacy (`of_sdv.py`).
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedsyn
from fedsyn import yamlio
from fedsyn.domain import Flags

#: Columns of what is printed.
ERRORS = ("rows' pairs", "next rows", "persons' pairs", "number of rows", "aggregates")
OURS, CAPPED = "one record each", "at most"


class People(NamedTuple):
    """Persons, and their rows in order.

    Attributes:
        persons: one row each; the first column is the identifier.
        rows: theirs; the first column is the identifier.
        most: the most rows that a person is known to have.
    """

    persons: pd.DataFrame
    rows: pd.DataFrame
    most: int


# Tables ---------------------------------------------------------------------------------------------------------------


def airbnb(seed: int) -> People:
    """10,000 users and 47,217 sessions of a quarter of them; the seed is not used."""
    folder = Path(os.environ["FEDSYN_DATA"])
    users, sessions = (pd.read_csv(folder / f"airbnb_{name}.csv.gz") for name in ("users", "sessions"))
    created = pd.to_datetime(users["date_account_created"]).dt.to_period("Q").astype(str)
    persons = pd.DataFrame({"id": users["id"], "created": common(created, 6)})
    persons["age"] = cut(users["age"], (25, 30, 40, 60))
    persons["booked"] = np.where(users["date_first_booking"].notna(), "yes", "no")
    for name in _USERS:
        persons[name] = common(users[name], 5)
    rows = pd.DataFrame({"id": sessions["user_id"]})
    for name in ("action", "action_type", "action_detail", "device_type"):
        rows[name] = common(sessions[name], 9)
    rows["seconds"] = cut(sessions["secs_elapsed"], (10, 500, 2000, 10_000))
    return People(persons, rows, 50)


_USERS = (
    "gender",
    "signup_method",
    "signup_flow",
    "language",
    "affiliate_channel",
    "affiliate_provider",
    "first_affiliate_tracked",
    "signup_app",
    "first_device_type",
    "first_browser",
    "country_destination",
)


def hospital(seed: int) -> People:
    """8,000 patients with 0 to 40 visits: illness decides how many, severity follows severity, wards follow it."""
    rng, n = np.random.default_rng([46, seed]), 8000
    age, sex = rng.integers(0, 6, n), rng.integers(0, 2, n)
    ill = (rng.random(n) < 0.1 + 0.08 * age).astype(int) + (rng.random(n) < 0.15).astype(int)
    counts = np.minimum(rng.poisson(np.array([0.7, 2.5, 7.0])[ill]), 40)
    whose = np.repeat(np.arange(n), counts)
    first = np.r_[True, whose[1:] != whose[:-1]]
    start, step = rng.integers(0, 2, len(whose)) + (ill[whose] == 2), rng.random(len(whose))
    moves = (step > 0.8 - 0.1 * ill[whose]).astype(int) - (step < 0.2)  # it falls, stays, or rises with illness
    level = np.zeros(len(whose), int)
    for at in range(len(whose)):
        level[at] = np.clip((start[at] if first[at] else level[at - 1]) + moves[at], 0, 4)
    ward = (level + rng.integers(0, 2, len(whose)) + 3 * sex[whose]) % 7
    cost = np.minimum(9, level * 2 + rng.poisson(1.0, len(whose)))
    persons = pd.DataFrame({"id": np.arange(n), "age": age, "sex": sex, "ill": ill, "region": rng.integers(0, 5, n)})
    rows = pd.DataFrame({"id": whose, "level": level, "ward": ward, "cost": cost})
    rows["day"] = rng.integers(0, 7, len(whose))
    return in_words(persons, rows, 40)


def shop(seed: int) -> People:
    """3,000 customers with 1 to 120 payments, a few with most of them; who bought a thing often buys it again."""
    rng, n = np.random.default_rng([47, seed]), 3000
    kind = rng.choice(4, n, p=(0.5, 0.3, 0.15, 0.05))
    counts = np.clip(rng.lognormal(np.array([0.5, 1.2, 2.0, 3.2])[kind], 0.7).astype(int), 1, 120)
    whose = np.repeat(np.arange(n), counts)
    first = np.r_[True, whose[1:] != whose[:-1]]
    item = (rng.integers(0, 4, len(whose)) + 2 * kind[whose]) % 8
    for at in np.flatnonzero(~first & (rng.random(len(whose)) < 0.6)):
        item[at] = item[at - 1]
    persons = pd.DataFrame({"id": np.arange(n), "kind": kind, "city": rng.integers(0, 6, n)})
    persons["since"] = (kind * 2 + rng.integers(0, 4, n)) % 7
    rows = pd.DataFrame({"id": whose, "item": item})
    rows["price"] = np.minimum(7, item // 2 + rng.integers(0, 4, len(whose)))
    rows["card"] = (rng.random(len(whose)) < 0.2 + 0.15 * kind[whose]).astype(int)
    return in_words(persons, rows, 120)


def in_words(persons: pd.DataFrame, rows: pd.DataFrame, most: int) -> People:
    """Returns generated tables whose values are words."""
    return People(*(table.astype(str).assign(id=table["id"]) for table in (persons, rows)), most)


TABLES: dict[str, Callable[[int], People]] = {"airbnb": airbnb, "hospital": hospital, "shop": shop}


def common(series: pd.Series, most: int) -> pd.Series:
    """Returns a column with its commonest words, all others as one."""
    words = series.fillna("?").astype(str)
    return words.where(words.isin(words.value_counts().index[:most]), "others")


def cut(series: pd.Series, edges: Sequence[float]) -> pd.Series:
    """Returns a column of numbers as words for the intervals between edges."""
    return pd.Series(np.digitize(series.fillna(-1), edges), index=series.index).astype(str).where(series.notna(), "?")


# Ways -----------------------------------------------------------------------------------------------------------------


def by_records(table: People, seed: int, *, epsilon: float, clients: int) -> People:
    """Returns the synthetic persons of a run with one record each."""
    joined = table.persons.merge(table.rows, on="id", how="left")
    parts = [joined[joined["id"].isin(set(table.persons["id"].iloc[at::clients]))] for at in range(clients)]
    return synthetic(table, joined, parts, epsilon, seed, {"unit": "person"})


def flattened(table: People, seed: int, *, epsilon: float, cap: int) -> People:
    """Returns the synthetic persons of a run with a record for each of up to `cap` rows.

    Who has so many rows is at `cap` holders, each of whom makes a record; the noise is for all of them.
    """
    joined = table.persons.merge(table.rows, on="id", how="left")
    counts = joined.groupby("id")["id"].transform("size")
    parts = [joined[counts > at] for at in range(cap)]
    return synthetic(table, joined, parts, epsilon, seed, {"unit": "person", "holders_per_person": cap})


def one_row(table: People, seed: int, *, epsilon: float, clients: int) -> People:
    """Returns the synthetic persons of a run with the first row of each person and no other."""
    first = table._replace(rows=table.rows.groupby("id").head(1), most=1)
    return by_records(first, seed, epsilon=epsilon, clients=clients)


def by_sdv(table: People, seed: int, *, way: str, python: str, epochs: int) -> People:
    """Returns the synthetic persons of SDV's HMA or PAR, which protects nobody."""
    with tempfile.TemporaryDirectory() as name:
        for what, frame in (("persons", table.persons), ("rows", table.rows)):
            frame.to_csv(Path(name) / f"{what}.csv", index=False)
        script = str(Path(__file__).with_name("of_sdv.py"))
        subprocess.run([python, script, way, name, "--epochs", str(epochs), "--seed", str(seed)], check=True)
        read = [pd.read_csv(Path(name) / f"made_{x}.csv", keep_default_na=False) for x in ("persons", "rows")]
    return People(*(made.astype(str).assign(id=made["id"]) for made in read), table.most)


def synthetic(
    table: People, joined: pd.DataFrame, parts: list[pd.DataFrame], epsilon: float, seed: int, privacy: dict[str, Any]
) -> People:
    """Returns the synthetic persons of a federation."""
    least = int(joined[table.rows.columns[1]].notna().all())
    constant = list(table.persons.columns[1:])
    columns: dict[str, Any] = {"id": {"kind": "identifier", "make": "sequence"}}
    for name in joined.columns[1:]:
        columns[name] = {"kind": "categorical", "categories": sorted(joined[name].dropna().unique()), "other": False}
    persons = {"id": "id", "order": True, "constant": constant, "most_rows": table.most, "least_rows": least}
    schema = {"columns": columns, "persons": persons}
    made = fedsyn.Synthesizer(epsilon, 1e-6, schema, seed=seed, privacy=privacy).fit(parts).sample()
    there = made[table.rows.columns[1]].notna()
    own, rows = list(table.persons.columns), list(table.rows.columns)
    return People(made.drop_duplicates("id")[own], made.loc[there, rows], table.most)


# Errors ---------------------------------------------------------------------------------------------------------------


def errors(real: People, made: People) -> tuple[float, ...]:
    """Returns the distances of `ERRORS`."""
    own, row = list(real.persons.columns[1:]), list(real.rows.columns[1:])
    joined = [table.rows.merge(table.persons, on="id") for table in (real, made)]
    after = [neighbours(table.rows, row) for table in (real, made)]
    edges = (-1, 0, 1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 1e9)
    counts = [pd.cut(numbers(table), edges).astype(str).to_frame("n").assign(one="") for table in (real, made)]
    return (
        mean_distance(joined, [(a, b) for a in own for b in row]),
        mean_distance(after, [(a, f"next {b}") for a in row for b in row]),
        mean_distance((real.persons, made.persons), list(itertools.combinations(own, 2))),
        mean_distance(counts, [("n", "one")]),
        mean_distance([aggregates(table.rows, row) for table in (real, made)], [(a, "one") for a in facts(row)]),
    )


FACTS = ("first", "last", "commonest", "different", "share")


def facts(names: Sequence[str]) -> list[str]:
    """Returns the names of what `aggregates` says of columns of rows."""
    return [f"{fact} {name}" for name in names for fact in FACTS]


def aggregates(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Returns facts of each person who has rows.

    The first, last and commonest value of a column, the number of different ones, and the share of the commonest in
    tenths.
    """
    by, found = rows.groupby("id"), dict[str, Any]()
    size = by.size()
    for name in names:
        found[f"first {name}"], found[f"last {name}"] = by[name].first(), by[name].last()
        times = rows.groupby(["id", name]).size().rename("times").reset_index()
        most = times.sort_values(["times", name], kind="stable").groupby("id").last()
        found[f"commonest {name}"] = most[name]
        found[f"different {name}"] = by[name].nunique().clip(upper=10)
        found[f"share {name}"] = (10 * most["times"] / size).astype(int)
    return pd.DataFrame(found).astype(str).assign(one="")


def numbers(table: People) -> pd.Series:
    """Returns the number of each person's rows."""
    return table.persons["id"].map(table.rows.groupby("id").size()).fillna(0)


def neighbours(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Returns each row beside the one after it, of the same person."""
    after = rows.groupby("id")[list(names)].shift(-1).add_prefix("next ")
    both: Flags = after.notna().all(axis=1).to_numpy()
    return pd.concat([rows[list(names)], after], axis=1)[both]


def mean_distance(tables: Sequence[pd.DataFrame], pairs: Sequence[tuple[str, str]]) -> float:
    """Returns the mean L1 distance of two tables' pairs of columns."""
    shares = [[table.groupby([a, b]).size() / len(table) for table in tables] for a, b in pairs]
    return float(np.mean([distance(*both) for both in shares]))


def distance(one: pd.Series, other: pd.Series) -> float:
    return float(one.sub(other, fill_value=0.0).abs().sum())


# What is printed ------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--caps", type=int, nargs="*", default=[1, 3, 10])
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml")
    parser.add_argument("--sdv", metavar="INTERPRETER", help="also SDV's HMA and PAR, without privacy")
    parser.add_argument("--epochs", type=int, default=128, help="of PAR; 0: HMA alone")
    asked = parser.parse_args()
    ways, known = ways_of(asked), dict[tuple[str, str], list[float]]()
    print(f"| table | way | {' | '.join(ERRORS)} |\n|{'---|' * (2 + len(ERRORS))}")
    for name in asked.tables:
        for way, make in ways.items():
            real = [TABLES[name](seed) for seed in range(asked.seeds)]
            found = [errors(table, make(table, seed)) for seed, table in enumerate(real)]
            known[name, way] = [float(x) for x in np.mean(found, axis=0)]
            print(f"| {name} | {way} | {' | '.join(f'{x:.3f}' for x in known[name, way])} |", flush=True)
    return says_otherwise(known) if asked.check else 0


def ways_of(asked: argparse.Namespace) -> dict[str, Callable[[People, int], People]]:
    """Returns what makes synthetic persons, from real ones and a seed.

    All of it can be pickled, for runs in processes of their own.
    """
    budget = {"epsilon": asked.epsilon}
    ways: dict[str, Callable[[People, int], People]] = {OURS: partial(by_records, **budget, clients=asked.clients)}
    for cap in asked.caps:
        if cap == 1:
            ways["one row each"] = partial(one_row, **budget, clients=asked.clients)
        else:
            ways[f"{CAPPED} {cap} rows each"] = partial(flattened, **budget, cap=cap)
    for way in ("HMA", "PAR") if asked.sdv and asked.epochs else ("HMA",) if asked.sdv else ():
        ways[f"SDV's {way}, no privacy"] = partial(by_sdv, way=way, python=asked.sdv, epochs=asked.epochs)
    return ways


def says_otherwise(known: Mapping[tuple[str, str], Sequence[float]]) -> int:
    """Prints what expected.yaml says and the errors do not; returns an exit code."""
    expected = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))

    def error(name: str, way: str, what: str) -> float:
        return known[name, way][ERRORS.index(what)]

    wrong = [
        f"{name}: {what} is {error(name, OURS, what):.3f}, expected at most {most}"
        for name, limits in expected["at_most"].items()
        for what, most in limits.items()
        if (name, OURS) in known and error(name, OURS, what) > most
    ]
    wrong += [
        f"{name}: {what} is more than {share} of what it is with {way}"
        for name, way in known
        for what, share in expected["of caps"].items()
        if way.startswith(CAPPED) and error(name, OURS, what) > share * error(name, way, what)
    ]
    print(*(wrong or ["as expected"]), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
