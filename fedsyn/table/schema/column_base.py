"""Base of every kind of column, and columns that no model sees.

Those are set aside: identifiers, free text, whatever else is left out. Nothing of their values is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from fedsyn.lazy import pd
from fedsyn.table.schema.values import text_dtype

if TYPE_CHECKING:
    from fedsyn.table.schema.profile import Profile

Value = StrictBool | StrictInt | StrictFloat | StrictStr

#: Keys that describe a column without deciding how it is encoded: they are not part of a schema's hash.
REMARKS = ("drafted", "approved", "public", "stored")

#: Keys that say how a column's cells are written: what a draft puts there it read from them.
NOTATION = frozenset(
    [
        "thousands",
        "mark",
        "prefix",
        "suffix",
        "minus",
        "plus",
        "leading_zero",
        "places",
        "least_places",
        "digits",
        "exponent",
        "format",
        "step",
        "zone",
        "width",
        "stored",
    ]
)

#: Words for codes that stand for no value of a column.
MISSING, UNLISTED = "missing", "not listed"
#: In the place of a code: the row counts nowhere, as its column has no code for such a value.
LEFT_OUT = -1


class Reading(NamedTuple):
    """Description of a column that a kind reads.

    The kind reads every text of the column.

    Attributes:
        keys: of the kind, bounds included, as a schema has them.
        why: the kind is proposed, in words, without a value of a row.
    """

    keys: dict[str, Any]
    why: str


class ColumnBase(BaseModel):
    """A column.

    Attributes:
        kind: its name in YAML.
        missing: whether missing values are a category of their own.
        unlisted: whether values that the column cannot place have a code of their own, the last one. It is counted as
            any other and never written: rows that have it are spread over the column's other values.
        drafted: what was read from the data rather than known to be public.
        approved: whether a person has accepted what was drafted as public.
        public: why the values are public, in words.
        stored: the dtype in which pandas had the column ("int32", "Int64", "category", "datetime64[us, UTC]"), and in
            which it comes back; None: the kind's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    missing: bool = False
    unlisted: bool = False
    drafted: tuple[str, ...] = ()
    approved: bool = False
    public: str | None = None
    stored: str | None = None

    @property
    def sides(self) -> tuple[str, ...]:
        """Words for the codes after a column's bins or categories."""
        return (*[MISSING] * self.missing, *[UNLISTED] * self.unlisted)

    @property
    def optional(self) -> bool:
        """Returns whether a row of a table may have no value."""
        return self.missing

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        """Returns how this kind reads every text of a column.

        The column has at least one text. None if the kind does not read them all.
        """
        return None

    def __eq__(self, other: object) -> bool:
        # By fields: pydantic compares what properties have cached as well, and arrays have no one truth.
        fields = type(self).model_fields
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in fields)

    __hash__ = None  # type: ignore[assignment]


class AsideColumn(ColumnBase):
    """Column that is not modelled.

    It is left out of the synthetic table.
    """

    @property
    def made(self) -> bool:
        """Returns whether the synthetic table has such a column.

        The column is then made afresh.
        """
        return False


class DropColumn(AsideColumn):
    """A column that is left out."""

    kind: Literal["drop"] = "drop"


class TextColumn(AsideColumn):
    """Free text, which is left out.

    A sentence about a person is about that person.
    """

    kind: Literal["text"] = "text"


class IdentifierColumn(AsideColumn):
    """Names, numbers and keys of persons.

    They are never synthesised from real values. The column is left out, or made afresh.

    Attributes:
        make: 'sequence' numbers the rows from 1; 'uuid' draws random UUIDs; None leaves the column out.
        prefix: text before each number of a sequence.
        width: digits of a sequence's numbers, with leading zeros.
        person: whether it says which person a row is of, who may have several; null: nobody has said.
    """

    kind: Literal["identifier"] = "identifier"
    make: Literal["sequence", "uuid"] | None = None
    prefix: str = ""
    width: int = Field(default=0, ge=0, le=30)
    person: bool | None = None

    @property
    def made(self) -> bool:
        return self.make is not None

    def fresh(self, start: int, rows: int, rng: np.random.Generator) -> pd.Series:
        """Returns new values, (rows,).

        They are for the rows from number `start` on. Draws from `rng` for UUIDs only.
        """
        if self.make == "uuid":
            drawn = rng.bytes(16 * rows)
            values = [str(uuid.UUID(bytes=drawn[16 * i : 16 * i + 16], version=4)) for i in range(rows)]
            return pd.Series(values, dtype=text_dtype())
        numbers = np.arange(start + 1, start + rows + 1)
        if self.prefix or self.width:
            return pd.Series(
                [f"{self.prefix}{number:0{self.width}d}" for number in numbers.tolist()], dtype=text_dtype()
            )
        return pd.Series(numbers)


C = TypeVar("C", bound=ColumnBase)
Aside = Annotated[DropColumn | TextColumn | IdentifierColumn, Field(discriminator="kind")]
ASIDE: dict[str, type[AsideColumn]] = {"drop": DropColumn, "text": TextColumn, "identifier": IdentifierColumn}


def kind_of(column: Any) -> Any:
    """Returns the kind of a column, given as data or model."""
    return column.get("kind") if isinstance(column, Mapping) else getattr(column, "kind", None)


def remade(column: C, **settings: Any) -> C:
    """Returns a column with other settings.

    It is made anew: a copy would keep what the column has worked out of its values.
    """
    return type(column)(**{name: getattr(column, name) for name in type(column).model_fields} | settings)
