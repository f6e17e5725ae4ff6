"""One column of a schema: its public values, and the encoding of its values as codes 0 .. size-1.

Codes of a categorical column: the categories in the order given, then `other` if it is not one of them, then
the missing category. Codes of a numeric column: the bins from lowest to highest, then the missing category.

What happens to a value outside the schema (the same for every row, and never an exception):

| column      | value                                      | goes to                                       |
|-------------|--------------------------------------------|-----------------------------------------------|
| numeric     | below, above, infinite                     | the nearest (first, last) bin                 |
| numeric     | missing, and `missing: false`              | the first bin                                 |
| categorical | unknown, column has `other`                | `other`                                       |
| categorical | unknown number, only numbers as categories | the nearest category, the lower one of two    |
| categorical | unknown otherwise                          | the missing category if any, else the last    |
| categorical | missing, and `missing: false`              | `other`, else the last category               |

Text in a numeric column is different: it means that the file is not the table the schema describes, and is
refused with a DataError that names the column and counts the rows.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from fedsyn.schema.values import MISSING_TEXT, key, keys, parse_number, same, to_numbers, written

if TYPE_CHECKING:
    import pandas as pd

Value = StrictBool | StrictInt | StrictFloat | StrictStr
Drafted = Literal["kind", "bounds", "categories", "missing"]

# float64 numbers every integer up to here exactly, which keeps bins of integer columns unambiguous.
_LARGEST_INTEGER = 2**53
_MOST_BINS = 1_000_000


class _ColumnBase(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    missing: bool = False
    drafted: tuple[Drafted, ...] = ()


class CategoricalColumn(_ColumnBase):
    """A column that holds one of a list of values.

    Attributes:
        categories: the values (text, integers, floats, booleans), kept as they are; decoding gives them back.
        other: where unknown values go. Text or number: that category, appended if it is not among
            `categories`.
            true: "other". false: no such category, see the module's table. Left out: "other" (or the category
                that
            is already called so, whatever its case) where the categories are text, none where they are
            numbers or booleans.
        groups: category -> the raw values that mean it; such values are encoded as the category and come back
            as the category, so a grouping is for good.
        missing: whether missing values are a category of their own.
        drafted: what was read from the data rather than known to be public.
    """

    kind: Literal["categorical"] = "categorical"
    categories: tuple[Value, ...] = Field(min_length=1)
    other: Value | None = None
    groups: dict[str, tuple[Value, ...]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> CategoricalColumn:
        texts = [written(value) for value in self.values]
        if len(set(texts)) != len(texts) or len(set(self.values)) != len(texts):
            raise ValueError("categories must be distinct, also when written as text")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            raise ValueError("categories must be finite; for missing values say 'missing: true'")
        for name in self.groups:
            if name not in self.categories:
                raise ValueError(f"the group '{name}' is not one of the categories")
        members = [written(value) for group in self.groups.values() for value in group]
        if len(set(members)) != len(members):
            raise ValueError("a value stands in two groups")
        return self

    @cached_property
    def other_value(self) -> Value | None:
        """The category that takes unknown values, or None."""
        if self.other is None:
            if not any(isinstance(value, str) for value in self.categories):
                return None
            named = [v for v in self.categories if isinstance(v, str) and v.casefold() == "other"]
            return named[0] if named else "other"
        if isinstance(self.other, bool):
            return "other" if self.other else None
        return self.other

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The value of each code, without the missing category: `categories` and `other`."""
        other = self.other_value
        extra = other is not None and not any(same(other, value) for value in self.categories)
        return (*self.categories, other) if extra and other is not None else self.categories

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.values) + self.missing

    @cached_property
    def _fallback(self) -> int:
        """The code of an unknown value that is not a number near a numeric category."""
        other = self.other_value
        if other is not None:
            return next(code for code, value in enumerate(self.values) if same(other, value))
        return self.size - 1  # the missing category if there is one, else the last category

    @cached_property
    def _codes(self) -> dict[tuple[str, Any], int]:
        codes = {key(value): code for code, value in enumerate(self.values)}
        for name, members in self.groups.items():
            for value in members:
                codes.setdefault(key(value), codes["text", name])
        return codes

    @cached_property
    def _numbers(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Sorted values and their codes if every category is a number, else None."""
        if any(isinstance(value, bool | str) for value in self.values):
            return None
        numbers = np.array([float(value) for value in self.values])
        order = np.argsort(numbers)
        return numbers[order], order

    def encode(self, series: pd.Series, missing_text: frozenset[str] = MISSING_TEXT) -> np.ndarray:
        """(n,) int64 codes of any values; see the module's table."""
        import pandas as pd

        if isinstance(series.dtype, pd.CategoricalDtype):
            inverse, uniques = series.cat.codes.to_numpy(), series.cat.categories
        else:
            inverse, uniques = pd.factorize(series, use_na_sentinel=True)
        # The last entry is the code of "missing", which both factorisations number -1.
        codes = [self.code_of(value, missing_text) for value in uniques.tolist()]
        codes.append(self.code_of(None, missing_text))
        encoded: np.ndarray = np.asarray(codes, dtype=np.int64)[inverse]
        return encoded

    def code_of(self, value: Any, missing_text: frozenset[str] = MISSING_TEXT) -> int:
        """The code of one value of any type."""
        if value is None or value != value or type(value).__name__ == "NAType":
            return len(self.values) if self.missing else self._fallback
        for form in keys(value):
            if form in self._codes:
                return self._codes[form]
        if isinstance(value, str) and value.strip() in missing_text:
            return len(self.values) if self.missing else self._fallback
        number = parse_number(value)
        if self._numbers is None or self.other_value is not None or number is None or math.isnan(number):
            return self._fallback
        return self._nearest(number)

    def value_of(self, text: str, missing_text: frozenset[str] = MISSING_TEXT) -> Any:
        """The category a text stands for; None if that is a missing value; else the text itself."""
        for form in keys(text):
            if form in self._codes:
                return self.values[self._codes[form]]
        return None if text.strip() in missing_text else text

    def _nearest(self, number: float) -> int:
        assert self._numbers is not None
        numbers, order = self._numbers
        at = int(np.searchsorted(numbers, number))
        if at == len(numbers) or (at > 0 and number - numbers[at - 1] <= numbers[at] - number):
            at -= 1
        return int(order[at])

    def decode(self, codes: np.ndarray) -> pd.Series:
        """The values of (n,) codes, in the dtype of the categories (nullable where there is a missing
        category).
        """
        import pandas as pd

        table: list[Any] = [*self.values, None] if self.missing else list(self.values)
        dtype: str
        if all(isinstance(value, bool) for value in self.values):
            dtype = "boolean" if self.missing else "bool"
        elif all(isinstance(value, int) and not isinstance(value, bool) for value in self.values):
            dtype = "Int64" if self.missing else "int64"
        elif not any(isinstance(value, bool | str) for value in self.values):
            dtype = "float64"
        elif all(isinstance(value, str) for value in self.values):
            dtype = "str" if int(pd.__version__.split(".")[0]) >= 3 else "object"
        else:
            dtype = "object"
        return pd.Series(pd.array(table, dtype=dtype), dtype=dtype).take(codes).reset_index(drop=True)


class NumericColumn(_ColumnBase):
    """A column of numbers between public bounds, cut into bins.

    Attributes:
        lower, upper: public bounds, both included; left out where `bins` gives edges.
        bins: number of equal-width bins (integers: at most one bin per integer, every integer in exactly one
            bin, numbers of integers per bin differ by at most one); or ascending edges, the first and the
            last being the bounds (bin i holds edge i <= x < edge i+1, the last bin also its upper edge); or
            "values": one bin per integer, kept also where a run sets its own number of bins.
        dtype: "integer" columns decode to integers, "float" columns to floats.
        missing: whether missing values are a category of their own.
        drafted: what was read from the data rather than known to be public.
    """

    kind: Literal["numeric"] = "numeric"
    lower: float | None = None
    upper: float | None = None
    bins: StrictInt | tuple[float, ...] | Literal["values"] = 32
    dtype: Literal["integer", "float"] = "float"

    @field_validator("lower", "upper")
    @classmethod
    def _finite(cls, bound: float | None) -> float | None:
        if bound is not None and not math.isfinite(bound):
            raise ValueError("a bound must be a finite number")
        return bound

    @model_validator(mode="before")
    @classmethod
    def _bounds_from_edges(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("bins"), list | tuple) and data["bins"]:
            edges = data["bins"]
            return {**data, "lower": data.get("lower", edges[0]), "upper": data.get("upper", edges[-1])}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> NumericColumn:
        if self.lower is None or self.upper is None:
            raise ValueError("public bounds are needed: lower and upper")
        if self.lower > self.upper:
            raise ValueError(f"lower ({self.lower:g}) is above upper ({self.upper:g})")
        integers = [self.lower, self.upper]
        if isinstance(self.bins, tuple):
            integers += self.bins
            if len(self.bins) < 2 or any(not a < b for a, b in zip(self.bins, self.bins[1:], strict=False)):
                raise ValueError("bin edges must ascend, and be at least two")
            if (self.bins[0], self.bins[-1]) != (self.lower, self.upper):
                raise ValueError("the first and the last bin edge must equal lower and upper")
        elif isinstance(self.bins, int) and not 1 <= self.bins <= _MOST_BINS:
            raise ValueError(f"bins must lie between 1 and {_MOST_BINS}")
        if self.dtype == "integer":
            if any(not float(x).is_integer() or abs(x) > _LARGEST_INTEGER for x in integers):
                raise ValueError("an integer column needs integer bounds and edges of at most 2**53")
            if self.bins == "values" and self.upper - self.lower >= _MOST_BINS:
                raise ValueError(f"bins: values allows at most {_MOST_BINS} integers")
        elif self.bins == "values":
            raise ValueError("bins: values needs dtype: integer")
        return self

    @cached_property
    def edges(self) -> np.ndarray:
        """(bins + 1,) float64 strictly ascending: bin i holds edges[i] <= x < edges[i + 1].

        The last bin of a float column also holds its upper edge; the last edge of an integer column is upper
        + 1.
        """
        assert self.lower is not None and self.upper is not None
        if self.dtype == "float":
            if isinstance(self.bins, tuple):
                return np.array(self.bins, dtype=np.float64)
            edges = np.unique(np.linspace(self.lower, self.upper, int(self.bins) + 1))
            return edges if len(edges) > 1 else np.array([self.lower, self.upper], dtype=np.float64)
        if isinstance(self.bins, tuple):
            starts = [int(edge) for edge in self.bins]
            return np.array([*starts[:-1], starts[-1] + 1], dtype=np.float64)
        lower, span = int(self.lower), int(self.upper) - int(self.lower) + 1
        bins = span if self.bins == "values" else min(int(self.bins), span)
        return np.array([lower - (-b * span // bins) for b in range(bins + 1)], dtype=np.float64)

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.edges) - 1 + self.missing

    def encode(self, series: pd.Series, missing_text: frozenset[str] = MISSING_TEXT) -> np.ndarray:
        """(n,) int64 codes; see the module's table.

        Raises:
            DataError: text that is not a number, or dates.
        """
        return self.codes_of(to_numbers(series, missing_text)).astype(np.int64)

    def codes_of(self, numbers: np.ndarray) -> np.ndarray:
        """(n,) codes of (n,) float64 numbers, NaN where missing; an integer type."""
        absent = np.isnan(numbers)
        some_absent = bool(absent.any())
        guess = self._even_bins
        if guess is None:
            codes = np.searchsorted(self.edges[1:-1], numbers, side="right")
        else:
            lower, scale, open_edges = guess
            with np.errstate(over="ignore"):
                place = (np.where(absent, lower, numbers) if some_absent else numbers) - lower
                place *= scale
            np.clip(place, 0, len(open_edges) - 2, out=place)
            codes = place.astype(np.int32)
            codes += numbers >= open_edges[codes + 1]
            codes -= numbers < open_edges[codes]
        if some_absent:
            codes[absent] = self.size - 1 if self.missing else 0
        return codes

    @cached_property
    def _even_bins(self) -> tuple[float, float, np.ndarray] | None:
        """How to guess a number's bin to within one bin: (lower, bins per unit, edges open to both sides), or None.

        The guess never falls as the number grows, so it is enough to look at the edges. It is much faster than a search
        and, after its check against two edges, as exact.
        """
        bins = len(self.edges) - 1
        width = float(self.edges[-1] - self.edges[0])
        if bins < 4 or not 0 < width < math.inf or not math.isfinite(bins / width):
            return None
        lower, scale = float(self.edges[0]), bins / width
        place = np.clip((self.edges - lower) * scale, 0, bins - 1).astype(np.int64)
        at_start, at_end = place[:-1], place[1:]
        here = np.arange(bins)
        if (at_start < here - 1).any() or (at_end > here + 1).any():
            return None
        return lower, scale, np.concatenate([[math.nan], self.edges[1:-1], [math.nan]])  # no number is beyond NaN

    def decode(self, codes: np.ndarray, rng: np.random.Generator) -> pd.Series:
        """Values drawn uniformly inside the bins of (n,) codes; one `rng.random` number per row, missing or
        not.
        """
        import pandas as pd

        values, absent = self.draw(codes, rng)
        if self.dtype == "float":
            values[absent] = np.nan
            return pd.Series(values)
        return pd.Series(pd.arrays.IntegerArray(values, absent)) if self.missing else pd.Series(values)

    def draw(self, codes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """What `decode` says, as (n,) float64 or int64 values and a (n,) mask of those that are missing."""
        bins = len(self.edges) - 1
        inside = np.minimum(codes, bins - 1)
        low, high = self.edges[inside], self.edges[inside + 1]
        uniform = rng.random(len(codes))
        absent = codes >= bins
        if self.dtype == "float":
            # Rounding may land on the upper edge, which belongs to the next bin.
            values = np.maximum(np.minimum(low + uniform * (high - low), np.nextafter(high, low)), low)
            return values, absent
        return (low + np.minimum(np.floor(uniform * (high - low)), high - low - 1)).astype(np.int64), absent


Column = Annotated[CategoricalColumn | NumericColumn, Field(discriminator="kind")]
