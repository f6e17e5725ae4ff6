"""One record of a table's quality, for all three readers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter

from fedsyn.notebook import Shown
from fedsyn.output import first_of

#: Found by comparing with a simulation's real rows: not for publication.
COMPARISON_FILE = "comparison.json"
#: Found by asking the holders, whose noisy answers were paid for: public.
FEDERATED_FILE = "federated_evaluation.json"
#: Predicted from what was released: public.
PREDICTED_FILE = "predicted_quality.json"
#: Share of the predicted error from which on limits of the model's size are named first of what to change.
LIMITED = 0.2


class Evaluation(Shown, ABC):
    """Quality of a table, found out in one way: a dataclass.

    Attributes:
        FILE: its name in a run directory.
        LABEL: what found it, as a line of the terminal begins.
        PUBLIC: whether it may be published: it read no real row, or paid for its answers.
    """

    FILE: ClassVar[str]
    LABEL: ClassVar[str]
    PUBLIC: ClassVar[bool] = True

    @abstractmethod
    def sentence(self) -> str:
        """Returns the finding as one clause.

        Without a capital letter and a full stop.
        """

    def explained(self) -> tuple[str, ...]:
        """Returns what its figures are and rest on, a paragraph each."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        facts: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json")
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """Returns the record that `to_dict` wrote. Raises ValueError if it did not."""
        return TypeAdapter(cls).validate_python(facts)

    def document(self) -> dict[str, Any]:
        """Returns what its file holds."""
        return self.to_dict()

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `document`."""
        return cls.from_dict(document)


def of_limits(widest: Sequence[str]) -> str:
    """Returns a clause on what helps a model that limits keep small.

    >>> of_limits(["admitted", "discharged"])
    'use fewer bins for admitted and discharged, or raise inference.max_message_passing_cost and max_cells'
    """
    few = f"use fewer bins for {' and '.join(widest)}, or " if widest else ""
    return f"{few}raise inference.max_message_passing_cost and max_cells"


def of_unlisted(names: Sequence[str], numbers: Collection[str], ordered: Sequence[str] = ()) -> str:
    """Returns a clause on what would help columns of unlisted values.

    Many of their values are `other`, or not listed; `ordered` are columns of numbers or dates with other cells.

    >>> of_unlisted(["ward", "CRP"], ["CRP", "age"])
    'in the schema, read CRP as numbers and list the values of ward'
    >>> of_unlisted([], [], ["dose"])
    'in the schema, read all cells of dose (format, missing_codes, censored)'
    """
    read, listed = [n for n in names if n in numbers], [n for n in names if n not in numbers]
    parts = [f"read {first_of(read, 3)} as numbers"] if read else []
    parts += [f"list the values of {first_of(listed, 3)}"] if listed else []
    parts += [f"read all cells of {first_of(ordered, 3)} (format, missing_codes, censored)"] if ordered else []
    return f"in the schema, {' and '.join(parts)}"


def percent(share: float, *, up: bool = False) -> str:
    """Returns a share in per cent, with two digits.

    A little is not 0%, and less than all is not 100%. `up` rounds up, as of a bound.

    >>> percent(0.3812), percent(0.0042), percent(0.00421, up=True), percent(0.0), percent(0.9996), percent(1.0)
    ('38%', '0.42%', '0.43%', '0%', '99.96%', '100%')
    """
    if share <= 0.0:
        return f"-{percent(-share)}" if share else "0%"
    hundredths = 100.0 * share
    telling, most = (abs(hundredths - 100.0), 1) if hundredths > 99.0 else (hundredths, 2)  # beyond 99, what is missing
    digits = min(max(most - 1 - math.floor(math.log10(telling)), 0), 6) if telling else 0
    whole = math.ceil(hundredths * 10**digits - 1e-9) if up else round(hundredths * 10**digits)
    text = f"{max(whole, 1) / 10**digits:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text}%"


def short(value: float) -> float:
    """Returns a number with the four digits that a record keeps.

    >>> short(0.123456), short(1_234_567.0)
    (0.1235, 1235000.0)
    """
    return float(f"{value:.4g}")


def sentence(text: str) -> str:
    """Returns a clause as a sentence.

    >>> sentence("its columns are close")
    'Its columns are close.'
    """
    return f"{text[:1].upper()}{text[1:]}."
