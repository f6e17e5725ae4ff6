"""One record of a table's quality, for all three readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter

from fedsyn.evaluation.verdict import few
from fedsyn.notebook import Shown

#: Found by comparing with a simulation's real rows: not for publication.
COMPARISON_FILE = "comparison.json"
#: Found by asking the holders, whose noisy answers were paid for: public.
FEDERATED_FILE = "federated_evaluation.json"
#: Predicted from what was released: public.
PREDICTED_FILE = "predicted_quality.json"


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


def of_unlisted(names: Sequence[str], numbers: Collection[str], ordered: Sequence[str] = ()) -> str:
    """Returns a clause on what would help columns of unlisted values.

    Many of their values are `other`, or not listed; `ordered` are columns of numbers or dates with other cells.

    >>> of_unlisted(["ward", "CRP"], ["CRP", "age"])
    'a schema that reads CRP as numbers and lists the values of ward'
    >>> of_unlisted([], [], ["dose"])
    'a schema that reads all cells of dose (format, missing_codes, censored)'
    """
    read, listed = [n for n in names if n in numbers], [n for n in names if n not in numbers]
    parts = [f"reads {few(read)} as numbers"] if read else []
    parts += [f"lists the values of {few(listed)}"] if listed else []
    parts += [f"reads all cells of {few(ordered)} (format, missing_codes, censored)"] if ordered else []
    return f"a schema that {' and '.join(parts)}"


def percents(share: float) -> str:
    """Returns a share in whole per cents, or under 1%.

    >>> percents(0.004), percents(0.125), percents(0.0)
    ('under 1%', '12%', '0%')
    """
    return "under 1%" if 0.0 < share < 0.005 else f"{share:.0%}"


def short(value: float) -> float:
    """Returns a number with the four digits that a record keeps."""
    return float(f"{value:.4g}")


def sentence(text: str) -> str:
    """Returns a clause as a sentence.

    >>> sentence("its columns are close")
    'Its columns are close.'
    """
    return f"{text[:1].upper()}{text[1:]}."
