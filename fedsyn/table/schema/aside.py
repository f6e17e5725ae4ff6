"""Columns that no model sees: identifiers, free text, whatever else is set aside. Nothing of their values is used."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from fedsyn.table.schema.base import ColumnBase
from fedsyn.table.schema.values import text_dtype

if TYPE_CHECKING:
    import pandas as pd


class AsideColumn(ColumnBase):
    """A column that is not modelled, and left out of the synthetic table."""

    @property
    def made(self) -> bool:
        """Whether the synthetic table has such a column, made afresh."""
        return False


class DropColumn(AsideColumn):
    """A column that is left out."""

    kind: Literal["drop"] = "drop"


class TextColumn(AsideColumn):
    """Free text, which is left out: a sentence about a person is about that person."""

    kind: Literal["text"] = "text"


class IdentifierColumn(AsideColumn):
    """Names, numbers and keys of persons. Never synthesised from real values: left out, or made afresh.

    Attributes:
        make: 'sequence' numbers the rows from 1; 'uuid' draws random UUIDs; None leaves the column out.
        prefix: text before each number of a sequence.
        width: digits of a sequence's numbers, with leading zeros.
    """

    kind: Literal["identifier"] = "identifier"
    make: Literal["sequence", "uuid"] | None = None
    prefix: str = ""
    width: int = Field(default=0, ge=0, le=30)

    @property
    def made(self) -> bool:
        return self.make is not None

    def fresh(self, start: int, rows: int, rng: np.random.Generator) -> pd.Series:
        """(rows,) new values, for the rows from number `start` on; draws from `rng` for UUIDs only."""
        import pandas as pd

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


Aside = Annotated[DropColumn | TextColumn | IdentifierColumn, Field(discriminator="kind")]
ASIDE: dict[str, type[AsideColumn]] = {"drop": DropColumn, "text": TextColumn, "identifier": IdentifierColumn}
