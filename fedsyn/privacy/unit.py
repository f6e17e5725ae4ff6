"""The unit: whose presence a guarantee hides.

It says how far that presence moves what is released.

Every request states its sensitivity for ONE ROW. A ledger multiplies it by what its unit can have in a release, in one
place and whatever the mechanism is: by 1 for a row, by c for a client of whose rows at most c ever take part, by h for
a person who may be at h clients.

*A person is one row.* Where the unit is a person, the table that takes part is not the holder's: it has one record of
each person, made of that person's rows and of coins that depend on no row (`fedsyn.table.data.records`). Neighbours are
two federations in one of which a person has no row at all, at one client. For fixed coins their tables of records
differ in one row, that person's. So whatever holds for one row holds for a person with all rows, in every release and
in all of them together, and it holds for the average over the coins. A person at h clients has h records: h tables lie
between the neighbours, each with one row less, and what is said of c below holds of h.

*Why c, for every release.* Who takes part is public; what is hidden is a client's rows. Neighbours are two federations
in one of which that client has no row. Of a client with more than c rows c take part, by the client's own coins, which
depend on no row (`kept_rows`); hold them fixed. Between the table of at most c rows and the empty one lie at most c
tables, each with one row less than the one before, and what is released of them (given all that was released before)
differs by at most the stated sensitivity Δ from one to the next. So, by the triangle inequality,

- a vector moves by at most c Δ in L2 norm: Gaussian noise of sigma costs rho = (c Δ)²/(2 sigma²), c² times that of a
  row;
- a score moves by at most c Δ, so the exponential mechanism exp(epsilon s / (2 Δ)) IS the one of parameter c epsilon
  and sensitivity c Δ: rho = (c epsilon)²/8.

For linear statistics, and so for marginals, c Δ is reached: c equal rows. A client's part of a sum of m marginals has
L1 norm at most m c and L2 norm at most sqrt(m) c. It is brought below that norm by taking fewer rows, never by scaling:
parts stay counts, integers, and nothing is rounded. A mixture over the client's coins is no easier to tell apart than
the worst coin, since both neighbours draw the same coins.

What shares of noise cost beyond a Gaussian's (`Release.extra`) bounds a density everywhere, however far a neighbour is
(`fedsyn.privacy.distributed`, steps 1 to 3): it is not multiplied.

*Exchanging.* A client's rows may also be exchanged for others: two parts of a sum of counts, non-negative vectors of
norm c Δ each, are at most sqrt(2) c Δ apart, any two others 2 c Δ. `Release.replaced` is the same for both units, but
for row counts, which stay when a row is exchanged: those of a client's rows and of others are up to c apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.privacy.release import Release
from fedsyn.privacy.statement import UNIT


@dataclass(frozen=True)
class Unit:
    """One row at one client: what every sensitivity is stated for.

    Attributes:
        rows: c, the most rows that it has in what is released.
    """

    rows: int = 1

    #: What a count counts: one of them, and several.
    counted: ClassVar[tuple[str, str]] = ("row", "rows")
    #: What is hidden, in few words; for people.
    hidden: ClassVar[str] = "one row"
    #: What can be exchanged, where nothing can be added or removed; for people.
    exchanged: ClassVar[str] = "a row can only be exchanged for another"
    #: What is then hidden; for people.
    instead: ClassVar[str] = "one row at one client, exchanged for another (row counts are published)"
    #: What a client publishes of its size, under `privacy.client_sizes: public`; for people.
    sizes: ClassVar[str] = "row count"

    @property
    def text(self) -> str:
        """The words for whose presence is hidden."""
        return UNIT

    @property
    def apart(self) -> str:
        """The words for what two neighbours differ in."""
        return "one row of one client's table is added or removed"

    def adjacency(self, sizes: str) -> str:
        """Returns words for which federations are neighbours.

        They depend on `privacy.client_sizes`: a published count does not follow the rows, so it alone would tell the
        two apart.
        """
        neighbours = f"two federations are neighbours when {self.apart}"
        if sizes != "public":
            return neighbours
        return (
            f"{neighbours}, every client's {self.sizes} being a published constant; where the counts follow the rows, "
            f"{self.exchanged}, and epsilon_replace_one is the guarantee"
        )

    @property
    def caps(self) -> bool:
        """True if only a limited number of a client's rows takes part."""
        return False

    @property
    def factor(self) -> float:
        """c², the unit's cost for one row's cost, in rho or mu²."""
        return float(self.rows * self.rows)

    def entered(self, release: Release) -> Release:
        """Returns the ledger's entry of a row's release.

        The release states what one row moves and pays.
        """
        return release

    def row_rho(self, release: Release) -> float:
        """Returns a row's share of an entry's rho.

        The surcharge for shares of noise beyond a Gaussian's is left out.
        """
        return (release.rho - release.extra) / self.factor

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values for a ledger's state; a row has none."""
        return {}


@dataclass(frozen=True)
class ClientUnit(Unit):
    """A whole client, of whose rows at most `rows` take part."""

    hidden: ClassVar[str] = "one client's rows"
    exchanged: ClassVar[str] = "a client's rows can only be exchanged for as many others"
    instead: ClassVar[str] = "one client's rows, exchanged for as many others (row counts are published)"
    sizes: ClassVar[str] = "count of rows that take part"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError("a client has at least one row in what is released")

    @property
    def caps(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return f"one client with all of its rows, of which at most {self.rows:,} take part"

    @property
    def apart(self) -> str:
        return "they differ in the rows of one client, which has none in one of them (that it takes part is public)"

    def entered(self, release: Release) -> Release:
        return _entered(release, self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {"rows_per_client": self.rows}


@dataclass(frozen=True)
class PersonUnit(Unit):
    """A person with all rows, at no more than `rows` clients."""

    counted: ClassVar[tuple[str, str]] = ("person", "people")
    hidden: ClassVar[str] = "one person"
    exchanged: ClassVar[str] = "a person can only be exchanged for another"
    instead: ClassVar[str] = "one person with all rows, exchanged for another (counts of persons are published)"
    sizes: ClassVar[str] = "count of persons"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError("a person is at one client at least")

    @property
    def where(self) -> str:
        """Words for the clients at which one person may be."""
        return "one client" if self.rows == 1 else f"up to {self.rows:,} clients"

    @property
    def text(self) -> str:
        return f"one person with all rows at {self.where}, added or removed"

    @property
    def apart(self) -> str:
        return f"all rows of one person are added or removed, at {self.where}"

    def entered(self, release: Release) -> Release:
        return _entered(release, self.rows) if self.rows > 1 else release

    def to_dict(self) -> dict[str, Any]:
        return {"holders_per_person": self.rows}


ROW = Unit()
_KINDS = {"row": Unit, "person": PersonUnit, "client": ClientUnit}


def kind_of(unit: object) -> type[Unit]:
    """Returns the kind of a unit under `privacy.unit`.

    Any other word is for a row.
    """
    return _KINDS.get(str(unit), Unit)


def counted_as(unit: str) -> tuple[str, str]:
    """Returns what a count counts under `privacy.unit`: one of them, and several.

    >>> counted_as("person"), counted_as("client")
    (('person', 'people'), ('row', 'rows'))
    """
    return kind_of(unit).counted


#: What a promise for one row does not cover.
NOT_ONE_PERSON = "not for one person, who may have several"


def unit_from_dict(state: Mapping[str, Any]) -> Unit:
    """Restores the unit of a ledger's state."""
    if (holders := state.get("holders_per_person")) is not None:
        return PersonUnit(int(holders))
    rows = state.get("rows_per_client")
    return ROW if rows is None else ClientUnit(int(rows))


def promised(ledger: Mapping[str, Any]) -> tuple[float, str]:
    """Returns the epsilon that ledger.json promises, and for what.

    If row counts are published, that is the epsilon under exchange: the counts would give away a row added or removed.
    """
    if ledger.get("assumptions", {}).get("client_sizes") == "public":
        return float(ledger["epsilon_replace_one"]), unit_from_dict(ledger).instead
    return float(ledger["epsilon"]), str(ledger["unit"])


def not_persons(ledger: Mapping[str, Any]) -> str:
    """Returns words for what a promise does not cover.

    They are empty where no column is of persons, or a client is the unit. They rest on the schema, which is public, and
    on no row.
    """
    return NOT_ONE_PERSON if ledger.get("persons") else ""


def protects(ledger: Mapping[str, Any]) -> str:
    """Returns for what a promise is, in a few words.

    >>> protects({"assumptions": {}}), protects({"assumptions": {}, "persons": ["id"]})
    ('for one row', 'for one row, not for one person, who may have several')
    """
    counts = ledger.get("assumptions", {}).get("client_sizes") == "public"
    words = "exchanged for others (row counts are published)" if counts else ""
    return ", ".join(filter(None, [f"for {unit_from_dict(ledger).hidden}", words, not_persons(ledger)]))


@lru_cache(maxsize=256)  # clients of a simulation that share a process enter the same ones
def _entered(release: Release, rows: int) -> Release:
    # c tables lie between the two neighbours: norms and score differences add up, and so does a choice's epsilon.
    epsilon = None if release.epsilon is None else rows * release.epsilon
    # Exchanging c rows for c others moves a row count by up to c, where exchanging one row moves it by nothing.
    replaced = max(1.0, release.replaced)
    return replace(release, sensitivity=rows * release.sensitivity, epsilon=epsilon, replaced=replaced)


def kept_rows(total: int, most: int, source: np.random.Generator) -> npt.NDArray[np.int64]:
    """Returns indices of a client's rows that take part, ascending.

    They are `most` of the rows, every choice equally likely, or all rows.

    Args:
        total: n, rows of the client.
        most: c.
        source: the client's own coins, kept for the run. They carry no privacy: whoever knows them learns no row.
    """
    if total <= most:
        return np.arange(total)
    return np.sort(source.choice(total, most, replace=False, shuffle=False)).astype(np.int64)
