"""Integers and decimals, written as tables write them: thousands, decimal commas, currencies, percent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, StrictInt, model_validator

from fedsyn.lazy import pd
from fedsyn.table.schema.binned import NUMBERS, BinnedColumn, as_stored, numbers_of, restored_numbers
from fedsyn.table.schema.values import parse_number

_MOST_PLACES = 12


class WrittenNumber(BinnedColumn):
    """A number that may be written with more than digits.

    Attributes:
        thousands: what stands between groups of three digits, such as "," or "."; None: nothing.
        mark: what stands before the decimals.
        prefix, suffix: text around the number, such as "€" or " %". Spaces around a cell do not count.
        parentheses: whether a negative number is written (1,234.50).
    """

    lower: float | None = None
    upper: float | None = None
    bins: StrictInt | tuple[float, ...] | Literal["values"] = 32
    thousands: Literal[",", ".", " ", "'", "\u00a0", "\u202f"] | None = None
    mark: Literal[".", ","] = "."
    prefix: str = ""
    suffix: str = ""
    parentheses: bool = False

    @property
    def decimals(self) -> int:
        """Digits after the decimal mark."""
        return 0

    @model_validator(mode="after")
    def _marks_differ(self) -> WrittenNumber:
        if self.thousands == self.mark:
            raise ValueError(
                f"thousands and mark are both '{self.mark}'; say mark: '{',' if self.mark == '.' else '.'}'"
            )
        return self

    @property
    def reads_numbers(self) -> bool:
        plain = self.thousands is None and self.mark == "." and not self.parentheses
        return plain and not self.prefix and not self.suffix

    @property
    def scale(self) -> tuple[str, Fraction]:
        return NUMBERS, Fraction(1, 10**self.decimals)

    @property
    def expected(self) -> str:
        return f"a number like {self.prefix}{self._digits(1234.5)}{self.suffix}"

    @property
    def _not_whole(self) -> str:
        digits = "whole numbers" if self.decimals == 0 else f"numbers of at most {self.decimals} decimals"
        return f"bounds and edges must be {digits}, and at most 2**53 steps"

    def number(self, bound: Any) -> float:
        number = float(bound)
        if not math.isfinite(number):
            raise ValueError("a bound must be a finite number")
        steps = number * 10**self.decimals
        return float(round(steps)) if math.isclose(steps, round(steps), rel_tol=1e-12, abs_tol=1e-6) else steps

    def bound(self, number: float) -> Any:
        return round(number / 10**self.decimals, self.decimals) if self.decimals else int(number)

    def of_plain(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
        # The nearest step; an integer column keeps what lies between two integers in the bin of the lower one.
        return np.rint(numbers * 10.0**self.decimals) if self.decimals else numbers

    def parse_all(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        numbers, bad = numbers_of(self._parsed(value, missing_text) for value in values)
        plain = self.of_plain(numbers)
        assert plain is not None
        return plain, bad

    def _parsed(self, value: Any, missing_text: frozenset[str]) -> float | None:
        if not isinstance(value, str):
            return None if isinstance(value, bool) else parse_number(value)
        text = value.strip()
        if text in missing_text:
            return math.nan
        if self.reads_numbers:
            return parse_number(text)
        if self.parentheses and text.startswith("(") and text.endswith(")"):
            text = f"-{text[1:-1].strip()}"
        for affix in (self.prefix.strip(), self.suffix.strip()):
            text = text.removeprefix(affix) if affix == self.prefix.strip() else text.removesuffix(affix)
        text = text.strip()
        sign = text[:1] if text[:1] in "+-" else ""
        body = text.removeprefix(sign).strip().removeprefix(self.prefix.strip()).strip()
        if self.thousands is not None:
            head, mark, tail = body.partition(self.mark)
            groups = head.split(self.thousands)
            if len(groups) > 1 and (not 1 <= len(groups[0]) <= 3 or any(len(group) != 3 for group in groups[1:])):
                return None
            body = "".join(groups) + mark + tail
        if self.mark == "," and "." in body:
            return None
        return parse_number(sign + body.replace(self.mark, "."))

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:

        if self.stored is not None and self.stored.startswith("decimal"):
            import decimal

            exact = [decimal.Decimal(int(number)).scaleb(-self.decimals) for number in numbers.tolist()]
            return pd.Series(exact, dtype=object).mask(absent, None)
        if not self.reads_numbers and (self.stored is None or self.stored in ("object", "str", "string")):
            return as_stored(self.cells(numbers, absent), self.stored)
        if self.decimals == 0:
            return restored_numbers(numbers, absent, True, self.missing, self.stored)
        return restored_numbers(numbers / 10**self.decimals, absent, False, self.missing, self.stored)

    def cells(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        if self.decimals == 0 and self.reads_numbers:
            return restored_numbers(numbers, absent, True, self.missing, None)
        return super().cells(numbers, absent)

    def texts(self, numbers: np.ndarray) -> list[str]:
        return [self._written(number) for number in (np.asarray(numbers, np.float64) / 10**self.decimals).tolist()]

    def _written(self, value: float) -> str:
        text = f"{self.prefix}{self._digits(abs(value))}{self.suffix}"
        if value >= 0:
            return text
        return f"({text})" if self.parentheses else f"-{text}"

    def _digits(self, value: float) -> str:
        text = f"{value:,.{self.decimals}f}"
        return text.replace(",", "\0").replace(".", self.mark).replace("\0", self.thousands or "")


class IntegerColumn(WrittenNumber):
    """A column of whole numbers."""

    kind: Literal["integer"] = "integer"


class DecimalColumn(WrittenNumber):
    """A column of numbers with a fixed number of decimals: prices, temperatures, shares in percent.

    Attributes:
        places: digits after the decimal mark.
    """

    kind: Literal["decimal"] = "decimal"
    places: int = Field(ge=0, le=_MOST_PLACES)

    @property
    def decimals(self) -> int:
        return self.places


__all__ = ["DecimalColumn", "IntegerColumn", "WrittenNumber"]
