"""Rows that break constraints, in synthetic and in real rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsyn.output import first_of
from fedsyn.table.schema import Schema

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ConstraintScore:
    """Rows that break a constraint.

    What compares a row with the next one of its person is broken by the first of both.

    Attributes:
        constraint: its text.
        real, synthetic: numbers of rows; None: the table does not have all that the constraint is about.
    """

    constraint: str
    real: int | None
    synthetic: int | None


def constraint_scores(real: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema | None) -> list[ConstraintScore]:
    """Counts the rows of both tables that break each constraint."""
    if schema is None or not schema.constraints:
        return []
    one, other = schema.violations(real), schema.violations(synthetic)
    return [ConstraintScore(text, one.get(text), other.get(text)) for text in dict.fromkeys([*one, *other])]


def words_of(scores: Sequence[ConstraintScore]) -> str:
    """Returns which constraints synthetic rows break, as one sentence.

    >>> words_of([ConstraintScore("a <= b", 3, 0), ConstraintScore("b <= next.a", 0, 0)])
    'No synthetic row breaks a constraint.'
    """
    broken = [f"'{one.constraint}'" for one in scores if one.synthetic]
    if broken:
        return f"Synthetic rows break {first_of(broken, 3)}."
    some = "" if all(one.synthetic is not None for one in scores) else " that could be checked"
    return f"No synthetic row breaks a constraint{some}."
