"""Measures what protecting persons costs, and what makes tables of persons and rows good.

    FEDSYN_DATA=FOLDER python experiments/persons/run.py [--tables NAME ...] [--seeds 2] [--epsilon 1] [--clients 20]
                                                         [--caps 1 3 10] [--client-caps 1 3] [--persons N] [--check]
                                                         [--limits] [--sdv INTERPRETER [--epochs 128]]

A run protects one person with all rows, in several ways: by one record each, as `privacy.unit: person` does, by up to c
records each (flatten and cap: sensitivity c), by one row each, all others dropped, and as a client each that takes part
with up to c rows (`privacy.unit: client`). Errors are mean L1 distances, 0 to 2: pairs of a row and its person and
pairs of neighbouring rows are counted in rows; pairs inside persons, numbers of rows, and aggregates of a person's rows
in persons. Columns are read in groups of at most about ten values. Which tables are for tuning and which for judging is
in `tables.py`. `--limits` sets beside these what holds them back, and what more would be worth: the records as they
are, without noise and without a model; one record each with aggregates of the person's rows as further columns of the
person; several records each; and the whole budget for a table of persons without rows, or for rows without columns of
persons. `--sdv` names a Python that has SDV, whose HMA and PAR are beside ours then, without privacy (`of_sdv.py`).
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
from experiments.persons.tables import TABLES, TUNING, People, common
from fedsyn import yamlio
from fedsyn.domain import Flags
from fedsyn.table.data.records import pairs_of

#: What a row of the table of clients has beside its columns, and what stands where there is no row.
NUMBER, NONE, WEIGHT = "number of rows", "(none)", "\0weight"
#: Largest number of rows of each group but the last one; more groups where a person may have hundreds of rows.
EDGES = np.array([0, 1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 80, 120, 200, 350])
FEW, HUNDREDS = 11, 200
#: Values of an aggregate that is a column of a record.
MOST_VALUES = 11
#: Records of each person, beside one.
SEVERAL = 4
#: Mechanisms of a table of persons alone, and with how many holders; 0: as many as all others.
ALONE = {"sketch_aim": 0, "distributed_aim": 0, "aim": 1, "privsyn": 1, "mst": 1}
#: Columns of what is printed.
ERRORS = ("rows' pairs", "next rows", "persons' pairs", "number of rows", "aggregates")
OURS, CAPPED = "one record each", "at most"


class Flat(NamedTuple):
    """Synthetic rows that belong to nobody.

    Attributes:
        rows: with the person's columns, `NUMBER`, and the next row.
        own: names of the person's columns.
        row: names of the row's columns.
        cap: how many rows of a person took part at most.
    """

    rows: pd.DataFrame
    own: list[str]
    row: list[str]
    cap: int

    def of_rows(self, after: bool = False) -> pd.DataFrame:
        """Returns the rows that are there; `after`: that have a next one.

        Of a person with more rows than took part each stands for several.
        """
        found = self.rows[self.rows[f"next {self.row[0]}" if after else self.row[0]] != NONE]
        return found.assign(**{WEIGHT: np.maximum(self._numbers(found) / self.cap, 1.0)})

    def of_persons(self) -> pd.DataFrame:
        """Returns rows that stand for persons: of one with many each stands for a part."""
        return self.rows.assign(**{WEIGHT: 1.0 / np.clip(self._numbers(self.rows), 1.0, self.cap), "one": ""})

    @staticmethod
    def _numbers(rows: pd.DataFrame) -> np.ndarray:
        """Returns the number of rows of each one's person: the middle of its group."""
        middles = (np.append(EDGES, 2 * EDGES[-1]) + np.append(0, EDGES + 1)) / 2.0
        return np.asarray(middles[rows[NUMBER].to_numpy(int)])


# Ways -----------------------------------------------------------------------------------------------------------------


def by_records(table: People, seed: int, *, epsilon: float, clients: int, records: int = 1) -> People:
    """Returns the synthetic persons of a run with one record each, or several, whose rows are drawn one by one.

    For several each person is at so many holders with all rows, and the noise is for so many records.
    """
    joined = table.persons.merge(table.rows, on="id", how="left")
    parts = [joined[joined["id"].isin(set(table.persons["id"].iloc[at::clients]))] for at in range(clients)]
    return synthetic(table, joined, parts * records, epsilon, seed, {"unit": "person", "holders_per_person": records})


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


def as_clients(table: People, seed: int, *, epsilon: float, cap: int) -> Flat:
    """Returns the synthetic rows of a run whose clients are the persons, each with up to `cap` of its rows.

    `privacy.unit: client` gives rows and no persons. Each row has its person's columns, the number of the person's rows
    and the next row beside it, so as much can be said as rows can tell.
    """
    own, row = list(table.persons.columns[1:]), list(table.rows.columns[1:])
    joined = table.persons.assign(**{NUMBER: groups(table)}).merge(table.rows, on="id", how="left")
    after = joined.groupby("id", sort=False)[row].shift(-1).add_prefix("next ")
    flat = pd.concat([joined, after], axis=1).fillna(NONE)
    columns = listed(flat.iloc[:, 1:])
    privacy = {"unit": "client", "rows_per_client": cap}
    parts = [part for _, part in flat[[*columns]].groupby(flat["id"], sort=False)]
    run = fedsyn.Synthesizer(epsilon, 1e-6, {"columns": columns}, seed=seed, privacy=privacy, progress=False)
    return Flat(run.fit(parts).sample(), own, row, cap)


def as_they_are(table: People, seed: int) -> Flat:
    """Returns a row and the next one of each person, as a record has them: without noise and without a model."""
    own, row = list(table.persons.columns[1:]), list(table.rows.columns[1:])
    rows = table.rows.reset_index(drop=True)
    whose, ids = pd.factorize(rows["id"])
    shown = pairs_of(whose, None, True, len(ids), np.random.default_rng(seed))
    after = rows[row].add_prefix("next ").reindex(shown.after).reset_index(drop=True)
    one = pd.concat([rows.iloc[shown.here].reset_index(drop=True), after], axis=1)
    persons = table.persons.assign(**{NUMBER: groups(table)})
    return Flat(persons.merge(one, on="id", how="left").fillna(NONE), own, row, 1)


def with_aggregates(table: People, seed: int, *, epsilon: float, clients: int) -> People:
    """Returns the synthetic persons of a run with one record each, in which facts of all rows are columns, too.

    Of each fact there are at most eleven values and others, and who has no row has none. They are taken out again: rows
    say what they are.
    """
    own, row = list(table.persons.columns), list(table.rows.columns[1:])
    found = aggregates(table.rows, row).drop(columns="one").apply(common, most=MOST_VALUES)
    wide = table.persons.merge(found, left_on="id", right_index=True, how="left").fillna(NONE)
    made = by_records(table._replace(persons=wide), seed, epsilon=epsilon, clients=clients)
    return made._replace(persons=made.persons[own])


def persons_alone(table: People, seed: int, *, epsilon: float, clients: int, mechanism: str) -> People:
    """Returns synthetic persons without a row: the whole budget goes to a table of the persons' own columns."""
    own = list(table.persons.columns[1:])
    parts = [table.persons[own].iloc[at::clients] for at in range(clients)]
    schema = {"columns": listed(table.persons[own])}
    run = fedsyn.Synthesizer(epsilon, 1e-6, schema, seed=seed, mechanism=mechanism, progress=False)
    return People(run.fit(parts if clients > 1 else parts[0]).sample(), table.rows.iloc[:0], table.most)


def rows_alone(table: People, seed: int, *, epsilon: float, clients: int) -> People:
    """Returns the synthetic persons of a run with one record each, from whom all own columns were taken."""
    return by_records(table._replace(persons=table.persons[["id"]]), seed, epsilon=epsilon, clients=clients)


def by_sdv(table: People, seed: int, *, way: str, python: str, epochs: int) -> People:
    """Returns the synthetic persons of SDV's HMA or PAR, which protects nobody."""
    with tempfile.TemporaryDirectory() as name:
        for what, frame in (("persons", table.persons), ("rows", table.rows)):
            frame.to_csv(Path(name) / f"{what}.csv", index=False)
        script = str(Path(__file__).with_name("of_sdv.py"))
        subprocess.run([python, script, way, name, "--epochs", str(epochs), "--seed", str(seed)], check=True)
        read = [pd.read_csv(Path(name) / f"made_{x}.csv", keep_default_na=False) for x in ("persons", "rows")]
    persons, rows = (made.astype(str).assign(id=made["id"]) for made in read)
    return People(persons, rows, table.most)


def synthetic(
    table: People, joined: pd.DataFrame, parts: list[pd.DataFrame], epsilon: float, seed: int, privacy: dict[str, Any]
) -> People:
    """Returns the synthetic persons of a federation."""
    columns: dict[str, Any] = {"id": {"kind": "identifier", "make": "sequence"}} | listed(joined.iloc[:, 1:])
    keys = {"constant": list(table.persons.columns[1:]), "most_rows": table.most, "least_rows": table.least}
    persons = {"id": "id", "order": True, **keys}
    schema = {"columns": columns, "persons": persons}
    made = fedsyn.Synthesizer(epsilon, 1e-6, schema, seed=seed, privacy=privacy).fit(parts).sample()
    there = made[table.rows.columns[1]].notna()
    own, rows = list(table.persons.columns), list(table.rows.columns)
    return People(made.drop_duplicates("id")[own], made.loc[there, rows], table.most)


def listed(frame: pd.DataFrame) -> dict[str, Any]:
    """Returns the columns of a schema, each with the words that it has."""
    words = {name: sorted(frame[name].dropna().unique()) for name in frame}
    return {name: {"kind": "categorical", "categories": some, "other": False} for name, some in words.items()}


# Errors ---------------------------------------------------------------------------------------------------------------


def errors(real: People, made: People | Flat) -> tuple[float, ...]:
    """Returns the distances of `ERRORS`; NaN where a table has nothing to say."""
    own, row = list(real.persons.columns[1:]), list(real.rows.columns[1:])
    if isinstance(made, People):  # who was made without own columns or without rows has nothing to say of them
        own = [name for name in own if name in made.persons]
        if not len(made.rows):
            inside = mean_distance((real.persons, made.persons), list(itertools.combinations(own, 2)))
            return np.nan, np.nan, inside, np.nan, np.nan
    joined, after = real.rows.merge(real.persons, on="id"), neighbours(real.rows, row)
    counts = groups(real).to_frame(NUMBER).assign(one="")
    if isinstance(made, Flat):
        return (
            mean_distance((joined, made.of_rows()), [(a, b) for a in own for b in row]),
            mean_distance((after, made.of_rows(after=True)), [(a, f"next {b}") for a in row for b in row]),
            mean_distance((real.persons, made.of_persons()), list(itertools.combinations(own, 2))),
            mean_distance((counts, made.of_persons()), [(NUMBER, "one")]),
            np.nan,
        )
    return (
        mean_distance((joined, made.rows.merge(made.persons, on="id")), [(a, b) for a in own for b in row]),
        mean_distance((after, neighbours(made.rows, row)), [(a, f"next {b}") for a in row for b in row]),
        mean_distance((real.persons, made.persons), list(itertools.combinations(own, 2))),
        mean_distance((counts, groups(made).to_frame(NUMBER).assign(one="")), [(NUMBER, "one")]),
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


def groups(table: People) -> pd.Series:
    """Returns the number of each person's rows, as the group in which it lies."""
    numbers = table.persons["id"].map(table.rows.groupby("id").size()).fillna(0)
    edges = EDGES if table.most > HUNDREDS else EDGES[:FEW]
    return pd.Series(np.searchsorted(edges, numbers), index=numbers.index).astype(str)


def neighbours(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Returns each row beside the one after it, of the same person."""
    after = rows.groupby("id")[list(names)].shift(-1).add_prefix("next ")
    both: Flags = after.notna().all(axis=1).to_numpy()
    return pd.concat([rows[list(names)], after], axis=1)[both]


def mean_distance(tables: Sequence[pd.DataFrame], pairs: Sequence[tuple[str, str]]) -> float:
    """Returns the mean L1 distance of two tables' pairs of columns; NaN where there is none."""
    found = []
    for pair in pairs:
        sums = [
            table.groupby(list(pair))[WEIGHT].sum() if WEIGHT in table else table.groupby(list(pair)).size()
            for table in tables
        ]
        found.append(distance(*(each / each.sum() for each in sums)))
    return float(np.mean(found)) if found else np.nan


def distance(one: pd.Series, other: pd.Series) -> float:
    return float(one.sub(other, fill_value=0.0).abs().sum())


# What is printed ------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TUNING), choices=list(TABLES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--caps", type=int, nargs="*", default=[1, 3, 10])
    parser.add_argument("--client-caps", type=int, nargs="*", default=[], help="of unit: client")
    parser.add_argument("--persons", type=int, help="so many of each table's persons")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml")
    parser.add_argument("--limits", action="store_true", help="also the records as they are, and with aggregates")
    parser.add_argument("--sdv", metavar="INTERPRETER", help="also SDV's HMA and PAR, without privacy")
    parser.add_argument("--epochs", type=int, default=128, help="of PAR; 0: HMA alone")
    asked = parser.parse_args()
    known = dict[tuple[str, str], list[float]]()
    print(f"| table | way | {' | '.join(ERRORS)} |\n|{'---|' * (2 + len(ERRORS))}")
    for name in asked.tables:
        real = [few(TABLES[name](seed), asked.persons, seed) for seed in range(asked.seeds)]
        for way, make in ways_of(asked, real[0].most).items():
            found, started = [], sum(os.times()[:4])
            for seed, table in enumerate(real):
                found.append(errors(table, make(table, seed)))
            known[name, way] = [float(x) for x in np.mean(found, axis=0)]
            shown = ["–" if np.isnan(x) else f"{x:.3f}" for x in known[name, way]]
            print(f"| {name} | {way} | {' | '.join(shown)} |", flush=True)
            print(f"{name}, {way}: {(sum(os.times()[:4]) - started) / len(real):.0f} CPU s a seed", file=sys.stderr)
    return says_otherwise(known) if asked.check else 0


def few(table: People, persons: int | None, seed: int) -> People:
    """Returns so many of a table's persons, and their rows; None: all."""
    if persons is None or persons >= len(table.persons):
        return table
    some = table.persons.sample(persons, random_state=seed).sort_index()
    return table._replace(persons=some, rows=table.rows[table.rows["id"].isin(set(some["id"]))])


def ways_of(asked: argparse.Namespace, most: int) -> dict[str, Callable[[People, int], People | Flat]]:
    """Returns what makes synthetic persons, from real ones and a seed.

    No cap is above the most rows of a person. All of it can be pickled, for runs in processes of their own.
    """
    budget = {"epsilon": asked.epsilon}
    ways: dict[str, Callable[[People, int], People | Flat]] = {
        OURS: partial(by_records, **budget, clients=asked.clients)
    }
    for cap in dict.fromkeys(min(cap, most) for cap in asked.caps):
        if cap == 1:
            ways["one row each"] = partial(one_row, **budget, clients=asked.clients)
        else:
            ways[f"{CAPPED} {cap} rows each"] = partial(flattened, **budget, cap=cap)
    for cap in dict.fromkeys(min(cap, most) for cap in asked.client_caps):
        ways[f"a client each, {CAPPED} {cap} rows"] = partial(as_clients, **budget, cap=cap)
    if asked.limits:
        ways[f"{OURS}, with aggregates"] = partial(with_aggregates, **budget, clients=asked.clients)
        ways["records as they are"] = as_they_are
        ways[f"{SEVERAL} records each"] = partial(by_records, **budget, clients=asked.clients, records=SEVERAL)
        ways["rows alone"] = partial(rows_alone, **budget, clients=asked.clients)
        for name, clients in ALONE.items():
            ways[f"persons alone, {name}"] = partial(
                persons_alone, **budget, clients=clients or asked.clients, mechanism=name
            )
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
