"""The ordered family: columns of values between public bounds, cut into bins.

Inside, a value is a *number* (float64): of most kinds a whole number of steps (an integer, a count of cents, days since
1970), of a `numeric` column of floats the value itself. A kind says how a value becomes a number and back; the bins,
the codes and the draws are the same for all of them.

A value that many rows share, an *atom*, has a bin of its own between the others, so whatever counts bins counts it, and
it comes back exactly. What is no number of the column (missing, a code for missing, a censored value, a value that it
cannot place) has a code after the bins: its *sides*.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, PrivateAttr, StrictInt, field_validator, model_validator

from fedsyn.domain import Codes, Flags, Floats
from fedsyn.lazy import pd
from fedsyn.table.schema.column_base import LEFT_OUT
from fedsyn.table.schema.digits import numbers_at_once
from fedsyn.table.schema.frames import as_decimals
from fedsyn.table.schema.inside import Inside
from fedsyn.table.schema.sides import SidedColumn
from fedsyn.table.schema.values import MISSING_TEXT, parse_number, text_dtype, written
from fedsyn.table.schema.within import Among, Within

# float64 numbers every integer up to here exactly, which keeps bins of whole numbers unambiguous.
LARGEST_INTEGER = 2**53
MOST_BINS = 1_000_000
# Between so many edges a number is compared with each.
_FEW_EDGES = 64
#: Families of ordered values; only columns of one family compare.
NUMBERS, MOMENTS, SPANS = "numbers", "moments", "spans of time"


class BinnedColumn(SidedColumn):
    """A column of ordered values between public bounds, cut into bins.

    Attributes:
        lower, upper: public bounds, both included; left out where `bins` gives edges.
        bins: number of equal-width bins (whole numbers: at most one bin a number, every number in exactly one bin, the
            numbers per bin differ by at most one); or ascending edges, the first and the last being the bounds (bin i
            holds edge i <= x < edge i+1, the last bin also its upper edge, and of whole numbers it may be that edge
            alone: [0, 5, 5]); or "values": one bin a number, kept also
            where a run sets its own number of bins.
        atoms: values that many rows share (zero, a limit, a default), each with a bin of its own, cut out of others.
        values: the only values, ascending, each a bin; another number goes to the nearest. It stands instead of bounds
            and bins.
        hidden: whether no file has the column: a constraint that adds it to others says how it is read.
    """

    #: A value of the kind, which stands where a private bound is not found yet.
    origin: ClassVar[Any] = 0

    lower: Any = None
    upper: Any = None
    bins: Any = 32
    atoms: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    hidden: bool = False
    _within: Within | Among | None = PrivateAttr(default=None)
    _inside: Inside | None = PrivateAttr(default=None)

    # What a kind says -------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Returns whether every number is whole.

        Whole numbers count the steps of the kind.
        """
        return True

    @property
    def reads_numbers(self) -> bool:
        """Returns whether a CSV file's cells are plain numbers.

        Such cells are read and written without quotes.
        """
        return False

    @property
    @abstractmethod
    def scale(self) -> tuple[str, Fraction]:
        """Family of the values, and the worth of one step.

        A step is worth so much in the family's unit (1, or a microsecond).
        """

    @property
    def middle(self) -> float:
        """Number near which a private range is searched most finely.

        It is zero, or for dates the beginning of 2025.
        """
        return 0.0

    @abstractmethod
    def number(self, bound: Any) -> float:
        """Returns the number of a bound or an edge.

        The bound is as the schema has it. Raises ValueError, which says what is expected.
        """

    def bound(self, number: float) -> Any:
        """Returns a number as a bound or an edge.

        The bound is as a schema has it. This is the inverse of `number`.
        """
        return int(number) if self.whole else number

    @property
    def reach(self) -> tuple[float | None, float | None]:
        """Numbers beyond which no value of this kind lies.

        None where there is no such number.
        """
        return None, None

    @abstractmethod
    def parse_all(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of different values of any type.

        Returns:
            (m,) float64 numbers, NaN where missing or not of this kind; (m,) bool, which are not of this kind.
        """

    def of_plain(self, numbers: Floats) -> Floats | None:
        """Returns the numbers of a column that holds plain numbers.

        They are NaN where missing. None if plain numbers are not of this kind.
        """
        return None

    @abstractmethod
    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        """Returns (n,) numbers as values.

        They have the dtype as it came (`stored`), or the kind's own.
        """

    @abstractmethod
    def texts(self, numbers: np.ndarray) -> list[str]:
        """Returns numbers as they are written in a CSV file."""

    @property
    def expected(self) -> str:
        """Words for a cell's content in messages, such as "a number"."""
        return "a number"

    # The bins ---------------------------------------------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _bounds_from_edges(cls, data: Any) -> Any:
        for key in ("values", "bins") if isinstance(data, dict) else ():
            if isinstance(data.get(key), list | tuple) and data[key]:
                ends = data[key][0], data[key][-1]
                return {**data, "lower": data.get("lower", ends[0]), "upper": data.get("upper", ends[1])}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> BinnedColumn:
        if self.lower is None or self.upper is None:
            raise ValueError("public bounds are needed: lower and upper")
        low, high = self.span
        if low > high:
            raise ValueError(f"lower ({self._shown(self.lower)}) is above upper ({self._shown(self.upper)})")
        numbers = [low, high, *self._special(low, high)]
        if isinstance(self.bins, tuple):
            edges = [self.number(edge) for edge in self.bins]
            numbers += edges
            last = edges[:-1] if self.whole and edges[-2:-1] == edges[-1:] else edges  # [3, 5, 5]: 5 alone in its bin
            if len(edges) < 2 or any(not a < b for a, b in itertools.pairwise(last)):
                raise ValueError("bin edges must ascend, and be at least two")
            if (edges[0], edges[-1]) != (low, high):
                raise ValueError("the first and the last bin edge must equal lower and upper")
        elif isinstance(self.bins, int) and not 1 <= self.bins <= MOST_BINS:
            raise ValueError(f"bins must lie between 1 and {MOST_BINS}")
        if self.whole:
            if any(not float(x).is_integer() or abs(x) > LARGEST_INTEGER for x in numbers):
                raise ValueError(self._not_whole)
            if self.bins == "values" and high - low >= MOST_BINS:
                raise ValueError(f"bins: values allows at most {MOST_BINS} values")
        elif self.bins == "values":
            raise ValueError("bins: values needs dtype: integer")
        return self

    def _special(self, low: float, high: float) -> list[float]:
        """Returns the numbers of atoms and listed values. Raises ValueError."""
        atoms, values = ([self.number(value) for value in known] for known in (self.atoms, self.values))
        if self.values and (self.atoms or self.bins != type(self).model_fields["bins"].default):
            raise ValueError("values are the only ones, each a bin: leave bins and atoms out")
        if any(not a < b for a, b in itertools.pairwise(values)) or (values and (values[0], values[-1]) != (low, high)):
            raise ValueError("values must ascend, from lower to upper")
        if len(set(atoms)) != len(atoms) or any(not low <= atom <= high for atom in atoms):
            raise ValueError("atoms must be different values between lower and upper")
        words = [written(word) for word in (*self.missing_codes, *self.censored)]
        if len(set(words)) != len(words):
            raise ValueError("a word stands twice among missing_codes and censored")
        return atoms + values

    @property
    def _not_whole(self) -> str:
        return "an integer column needs integer bounds and edges of at most 2**53"

    @staticmethod
    def _shown(bound: Any) -> str:
        return f"{bound:g}" if isinstance(bound, float) else str(bound)

    @cached_property
    def span(self) -> tuple[float, float]:
        """The bounds as numbers."""
        return self.number(self.lower), self.number(self.upper)

    @cached_property
    def edges(self) -> np.ndarray:
        """Edges of the bins, (bins + 1,) float64, strictly ascending.

        Bin i holds the numbers edges[i] <= x < edges[i + 1].

        The last bin of a column of floats also holds its upper edge; the last edge of whole numbers is upper + 1.
        """
        if self.values:
            return self._between_values
        numbers = [self.number(atom) for atom in self.atoms]
        cuts = [(n, n + 1.0 if self.whole else np.nextafter(n, np.inf)) for n in numbers]
        return np.unique(np.append(self._plain_edges, np.array(cuts).ravel())) if cuts else self._plain_edges

    @property
    def _plain_edges(self) -> Floats:
        """Edges of `bins` alone."""
        low, high = self.span
        if not self.whole:
            if isinstance(self.bins, tuple):
                return np.array([self.number(edge) for edge in self.bins], dtype=np.float64)
            edges = np.unique(np.linspace(low, high, int(self.bins) + 1))
            return edges if len(edges) > 1 else np.array([low, high], dtype=np.float64)
        if isinstance(self.bins, tuple):
            starts = [int(self.number(edge)) for edge in self.bins]
            return np.array([*starts[:-1], starts[-1] + 1], dtype=np.float64)
        lower, count = int(low), int(high) - int(low) + 1
        bins = count if self.bins == "values" else min(int(self.bins), count)
        return np.array([lower - (-b * count // bins) for b in range(bins + 1)], dtype=np.float64)

    @property
    def _between_values(self) -> Floats:
        """Edges half way between listed values."""
        known = np.array([self.number(value) for value in self.values], dtype=np.float64)
        middles = (known[:-1] + known[1:]) / 2.0
        middles = np.floor(middles) + 1.0 if self.whole else middles
        end = known[-1] + 1.0 if self.whole else np.nextafter(known[-1], np.inf)
        return np.asarray(np.r_[known[0], middles, end], dtype=np.float64)

    @cached_property
    def atom_bins(self) -> Flags:
        """Marks the bins of a single value, which is written exactly, (bins,)."""
        if self.values:
            return np.ones(len(self.values), dtype=bool)
        return np.isin(self.edges[:-1], [self.number(atom) for atom in self.atoms])

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """Smallest and largest number that each bin gives back, (bins,) each."""
        if self.values:
            known = np.array([self.number(value) for value in self.values], dtype=np.float64)
            return known, known
        low, high = self.edges[:-1], self.edges[1:] - 1 if self.whole else np.nextafter(self.edges[1:], self.edges[:-1])
        if not self.whole:
            high[-1] = self.edges[-1]  # which the last bin holds
            high = np.where(self.atom_bins, low, high)
        return low, high

    @property
    def middles(self) -> Floats:
        """Middle of the numbers of each bin, (bins,)."""
        if self.values:
            return self.ends[0]
        middles = (self.edges[:-1] + self.edges[1:] - (1.0 if self.whole else 0.0)) / 2
        return np.where(self.atom_bins, self.ends[0], middles)

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.edges) - 1 + len(self.sides)

    # From values to codes ---------------------------------------------------------------------------------------------

    def parse(self, value: Any, missing_text: frozenset[str] = MISSING_TEXT) -> float | None:
        """Returns the number of one value, NaN where missing.

        None if the value is not of this kind.
        """
        numbers, bad = self.parse_all([value], missing_text)
        return None if bad[0] else float(numbers[0])

    def codes_of(self, numbers: np.ndarray, bad: Flags | None = None) -> np.ndarray:
        """(n,) codes of (n,) float64 numbers, NaN where missing; an integer type.

        A row has `LEFT_OUT` where no code of the column takes its value: a missing one, or one that is `bad`.
        """
        absent, inner = np.isnan(numbers), self.edges[1:-1]
        if len(inner) > _FEW_EDGES:
            codes = np.searchsorted(inner, numbers, side="right")
        else:  # five times as fast as a search
            codes = np.zeros(len(numbers), dtype=np.int16)
            for edge in inner.tolist():
                codes += numbers >= edge
        codes[absent] = self._missing_code
        for number, code in self._side_numbers.items():
            codes[numbers == number] = code
        if bad is not None:
            codes[bad] = self.unplaced
        return codes

    @cached_property
    def _missing_code(self) -> int:
        return len(self.edges) - 1 if self.missing else self.unplaced

    @cached_property
    def unplaced(self) -> int:
        """Code of a value that the column cannot place, or `LEFT_OUT`."""
        if self.unlisted:
            return self.size - 1
        return len(self.edges) - 1 if self.missing else LEFT_OUT

    # And back ---------------------------------------------------------------------------------------------------------

    def decode(self, codes: np.ndarray, rng: np.random.Generator) -> pd.Series:
        """Draws values inside the bins of (n,) codes.

        Takes one `rng.random` number a row, missing or not; none where the values are listed.
        """
        return self.restored(*self.draw(codes, rng))

    def draw(
        self, codes: np.ndarray, rng: np.random.Generator, moved: Floats | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws (n,) numbers from those of each bin.

        Returns them (float64 or int64) with a (n,) mask of the missing.

        All are equally likely, or as `shaped` has it; `moved`: by the rest of their rows (`Links`).
        """
        bins = len(self.edges) - 1
        inside = np.minimum(codes, bins - 1)
        if self.values:
            return self.ends[0][inside].astype(np.int64 if self.whole else np.float64), codes >= bins
        uniform = rng.random(len(codes))
        numbers = self._drawn(inside, codes, uniform, moved)
        for number in self._side_numbers:  # which is none of the column: the number beside it
            taken = (numbers == number) & (codes < bins)
            low, high = (end[inside[taken]] for end in self.ends)
            step = 1.0 if self.whole else np.spacing(number)
            numbers[taken] = np.where(number + step <= high, number + step, np.maximum(number - step, low))
        return numbers, codes >= bins

    def _drawn(self, inside: Codes, codes: Codes, uniform: Floats, moved: Floats | None) -> npt.NDArray[Any]:
        """Draws a number inside each of (n,) bins."""
        if moved is not None and self._inside is not None:
            uniform = self._inside.linked(codes, uniform, moved)
        if isinstance(self._within, Within):
            return self._within.draw(inside, uniform)
        low, high = self.edges[inside], self.edges[inside + 1]
        if self._inside is not None:
            uniform = self._inside.place(inside, uniform)
        if not self.whole:
            # Rounding may land on the upper edge, which belongs to the next bin.
            values: Floats = np.maximum(np.minimum(low + uniform * (high - low), np.nextafter(high, low)), low)
            return values
        return np.asarray(low + np.minimum(np.floor(uniform * (high - low)), high - low - 1)).astype(np.int64)

    def cut(self, bins: int | Sequence[Any]) -> Self:
        """The column, cut into that many equal bins, or at these edges."""
        return type(self).model_validate({**self.model_dump(), "bins": bins})

    def bins_between(self, lower: Any, upper: Any) -> list[Any] | int:
        """Returns bins for other bounds.

        They are the edges of `bins` that lie between the bounds, and the bounds.

        Where that leaves fewer than half of the bins, most edges were for values that there are none of: then as many
        equal bins as before.
        """
        low, high = (self.number(bound) for bound in (lower, upper))
        edges, before = [edge for edge in self.bins if low < self.number(edge) < high], len(self.bins) - 1
        return [lower, *edges, upper] if 2 * (len(edges) + 1) >= before else before

    @property
    def within(self) -> Within | Among | None:
        """The pieces to which draws are restricted, or None."""
        return self._within

    def drawing_within(self, pieces: Sequence[tuple[float, float]]) -> Self:
        """Returns the column with draws restricted to some pieces.

        The pieces are ranges of its numbers. Its codes stay as they are.
        """
        other = self.model_copy()
        if self.values:
            other._within = Among(self.ends[0], pieces)
        else:
            other._within = Within(self.edges, self.whole, pieces, self._inside, self.atom_bins)
        return other

    def shaped(self, counts: Floats, lean: float | None = None) -> Self:
        """Returns the column with draws that follow the bins' counts.

        Inside bins it draws as the counts suggest, which were released (`Inside`).

        Args:
            counts: (codes,) records.
            lean: where in the range of what the counts leave open, -1 to 1; None: of a table by itself (`Inside`).
        """
        if self.values or (self.whole and (np.diff(self.edges) <= 1).all()):
            return self
        other = self.model_copy()
        other._inside = self.densities(counts, lean)
        return other

    @property
    def inside(self) -> Inside | None:
        """Densities inside bins, or None."""
        return self._inside

    def share(self, bins: Codes, numbers: Floats) -> Floats:
        """Returns the share of each number's bin below it, (n,)."""
        assert self._inside is not None
        low, width = self.edges[bins], np.diff(self.edges)[bins]
        return self._inside.share(bins, np.clip((numbers - low + 0.5 * self.whole) / width, 0.0, 1.0))

    def densities(self, counts: Floats, lean: float | None = None) -> Inside:
        """Returns the densities inside bins that (codes,) counts suggest; atoms have none."""
        return Inside(self.edges, counts[: len(self.edges) - 1], lean, self.atom_bins)

    def cells(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        """Returns (n,) numbers as they are written to a CSV file.

        Missing ones are None.
        """
        index, distinct = pd.factorize(numbers)
        table = pd.Series([*self.texts(distinct), None], dtype=text_dtype())
        return table.take(np.where(absent, len(distinct), index)).reset_index(drop=True)

    def labels(self) -> list[str]:
        """Returns the start of each bin, in words.

        The missing category has none.
        """
        return self.texts(self.edges[:-1])


class NumericColumn(BinnedColumn):
    """A column of numbers between public bounds, cut into bins.

    Attributes:
        lower, upper, bins: see `BinnedColumn`.
        dtype: "integer" columns decode to integers, "float" columns to floats.
        digits: significant digits with which a float comes out, where its bin has such a number, and no constraint
            leaves it less room; None: all of a float's.
        exponent: how every cell writes its exponent: 1.5e+03, 1.5E+03, 1.5e3, 1.5E3; None: where Python does.
    """

    kind: Literal["numeric"] = "numeric"
    lower: float | None = None
    upper: float | None = None
    bins: StrictInt | tuple[float, ...] | Literal["values"] = 32
    atoms: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    dtype: Literal["integer", "float"] = "float"
    digits: int | None = Field(default=None, ge=1, le=15)
    exponent: Literal["e+00", "E+00", "e0", "E0"] | None = None

    @field_validator("lower", "upper")
    @classmethod
    def _finite(cls, bound: float | None) -> float | None:
        if bound is not None and not math.isfinite(bound):
            raise ValueError("a bound must be a finite number")
        return bound

    @property
    def whole(self) -> bool:
        return self.dtype == "integer"

    @property
    def reads_numbers(self) -> bool:
        return True

    @property
    def scale(self) -> tuple[str, Fraction]:
        return NUMBERS, Fraction(1)

    def number(self, bound: Any) -> float:
        return float(bound)

    def parse_all(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        return numbers_at_once(values, missing_text) or numbers_of(
            math.nan if isinstance(value, str) and value.strip() in missing_text else parse_number(value)
            for value in values
        )

    def of_plain(self, numbers: Floats) -> Floats | None:
        return numbers

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        if self.stored is not None and self.stored.startswith("decimal"):
            return as_decimals([written(number) for number in numbers.tolist()], absent, self.stored)
        if self.exponent is not None and self.stored in ("str", "string"):
            return as_stored(self.cells(numbers, absent), self.stored)
        return restored_numbers(numbers, absent, self.whole, self.missing, self.stored)

    def _drawn(self, inside: Codes, codes: Codes, uniform: Floats, moved: Floats | None) -> npt.NDArray[Any]:
        numbers = super()._drawn(inside, codes, uniform, moved)
        if self.digits is None or self.whole or self._within is not None:
            return numbers
        out = numbers.copy()
        for rounded in (np.floor, np.ceil, np.rint):  # the nearest one last, where it is in the bin
            near = _significant(numbers, self.digits, rounded)
            mine = self.codes_of(near) == inside
            out[mine] = near[mine]
        return out

    def texts(self, numbers: np.ndarray) -> list[str]:
        return [f"{number:.4g}" if not self.whole else str(int(number)) for number in numbers.tolist()]

    def cells(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        if self.exponent is not None and not self.whole:
            texts = [None if gone else self._scientific(x) for x, gone in zip(numbers.tolist(), absent, strict=True)]
            return pd.Series(texts, dtype=text_dtype())
        return restored_numbers(numbers, absent, self.whole, self.missing, None)

    def _scientific(self, number: float) -> str:
        text = f"{number:e}" if self.digits is None else f"{number:.{self.digits - 1}e}"
        if float(text) != number:  # its bin has no number of so few digits
            text = f"{number:.16e}"
        mantissa, power = text.split("e")
        letter, signed = str(self.exponent)[0], str(self.exponent).endswith("00")
        return f"{mantissa}{letter}{power if signed else int(power)}"


def _significant(numbers: Floats, digits: int, rounded: Callable[[Floats], Floats]) -> Floats:
    """Returns (n,) numbers with a number of significant digits.

    `rounded` rounds to whole numbers: down, up, or to the nearest one.
    """
    size = np.abs(numbers)
    power = digits - 1 - np.floor(np.log10(np.where(size > 0.0, size, 1.0))).astype(np.int64)
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.maximum(-power, 0)  # exact, unlike 10^-n
    return np.asarray(rounded(numbers * up / down) / up * down)


def numbers_of(parsed: Iterable[float | None]) -> tuple[Floats, Flags]:
    """Returns the numbers of values that were read one by one.

    The result has the form of `parse_all`. A value is None where it is not of the kind.
    """
    read = list(parsed)
    bad = np.array([number is None for number in read], dtype=bool)
    return np.array([math.nan if number is None else number for number in read], dtype=np.float64), bad


def restored_numbers(
    numbers: np.ndarray, absent: np.ndarray, whole: bool, missing: bool, stored: str | None
) -> pd.Series:
    """Returns plain numbers as a Series.

    Its dtype is int64, Int64 where the column may be missing, or float64; or the dtype as it came.
    """
    if not whole:
        values = numbers.astype(np.float64) + 0.0  # no -0.0
        values[absent] = np.nan
        series = pd.Series(values)
    elif missing:
        series = pd.Series(pd.arrays.IntegerArray(numbers.astype(np.int64), absent))
    else:
        series = pd.Series(numbers.astype(np.int64))
    return as_stored(series, stored)


def as_stored(series: pd.Series, stored: str | None) -> pd.Series:
    """Returns a series in the dtype as it came, where that fits.

    Integers with missing values may have come as floats.
    """
    if stored is None or str(series.dtype) == stored:
        return series
    try:
        return series.astype(stored)
    except (TypeError, ValueError, OverflowError):
        # A missing value has no place in int64; Int64 has one.
        return series
