"""Profile of a column's values.

It counts how many there are, how often each stands, and how many are missing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedsyn.domain import Integers
from fedsyn.lazy import pa, pc, pd
from fedsyn.table.schema.values import MISSING_TEXT, written

# Different texts that are tried against a pattern before all of them are.
_TRIED = 200


@dataclass(frozen=True, eq=False)
class Profile:
    """Different texts of a column, and their numbers of rows.

    The texts have no spaces around them.

    Attributes:
        name: of the column.
        rows: of the table.
        missing: rows without a value.
        texts: (k,) Arrow strings, the most frequent first; of two as frequent, the first in the alphabet.
        counts: (k,) rows of each.
    """

    name: str
    rows: int
    missing: int
    texts: pa.Array
    counts: Integers

    @property
    def values(self) -> int:
        """Number of different values."""
        return len(self.texts)

    @property
    def present(self) -> int:
        """Rows with a value."""
        return self.rows - self.missing

    @property
    def unlike(self) -> float:
        """Share of rows left if every value stood once.

        Only rows with a value count. It is 1 where no value stands twice.
        """
        return self.values / self.present if self.present else 0.0

    @cached_property
    def tried(self) -> pa.Array:
        """Some of the texts.

        They are the first and the last ones, and some between.
        """
        at = np.unique(np.linspace(0, self.values - 1, min(_TRIED, self.values)).astype(np.int64))
        return self.texts.take(at)

    def all_match(self, pattern: str) -> bool:
        """Returns whether every text matches a regular expression (of RE2).

        Some texts are tried first.
        """
        for texts in (self.tried, self.texts):
            if not len(texts) or not pc.all(pc.match_substring_regex(texts, pattern)).as_py():
                return False
        return True

    def without(self, words: Collection[str]) -> Profile:
        """Returns this profile with some texts taken for missing values."""
        mask = ~pc.is_in(self.texts, pa.array(sorted(words), self.texts.type)).to_numpy(zero_copy_only=False)
        missing = self.missing + int(self.counts[~mask].sum())
        return replace(self, missing=missing, texts=self.texts.filter(pa.array(mask)), counts=self.counts[mask])

    def unlike_pattern(self, pattern: str) -> Profile:
        """Returns this profile without texts that match a regular expression.

        Their rows are not missing.
        """
        if not self.any_matches(pattern):
            return self
        mask = pc.invert(pc.match_substring_regex(self.texts, pattern))
        return replace(self, texts=self.texts.filter(mask), counts=self.counts[mask.to_numpy(zero_copy_only=False)])

    def replaced(self, pattern: str, by: str) -> Profile:
        """Returns this profile with matches of a pattern replaced.

        The pattern is of RE2, and its matches in the texts are replaced. Equal texts count together.
        """
        texts = pc.replace_substring_regex(self.texts, pattern, by).to_pylist()
        rows = pd.Series(self.counts).groupby(texts).sum().sort_index().sort_values(ascending=False, kind="stable")
        return replace(self, texts=pa.array(rows.index.tolist(), self.texts.type), counts=rows.to_numpy())

    def any_matches(self, pattern: str) -> bool:
        """Returns whether any text matches a regular expression."""
        return bool(len(self.texts)) and bool(pc.any(pc.match_substring_regex(self.texts, pattern)).as_py())

    def share_matching(self, pattern: str) -> float:
        """Share of some of the texts that match a regular expression."""
        if not len(self.tried):
            return 0.0
        return float(pc.sum(pc.match_substring_regex(self.tried, pattern)).as_py() or 0) / len(self.tried)

    @classmethod
    def of(cls, series: pd.Series, missing_text: frozenset[str] = MISSING_TEXT) -> Profile:
        """Profiles a column of text, or of anything else as text."""
        cells = pa.chunked_array([_as_text(series)]) if len(series) else pa.chunked_array([pa.array([], pa.string())])
        cells = pc.utf8_trim_whitespace(cells)
        tally = pc.value_counts(cells.combine_chunks() if hasattr(cells, "combine_chunks") else cells)
        if isinstance(tally, pa.ChunkedArray):
            tally = tally.combine_chunks()
        texts, counts = tally.field("values"), tally.field("counts").to_numpy(zero_copy_only=False).astype(np.int64)
        absent = pc.or_kleene(pc.is_null(texts), pc.is_in(texts, pa.array(sorted(missing_text), texts.type)))
        absent = pc.fill_null(absent, True).to_numpy(zero_copy_only=False).astype(bool)
        missing = int(counts[absent].sum())
        texts, counts = texts.filter(pa.array(~absent)), counts[~absent]
        order = pc.sort_indices(
            pa.table({"count": counts, "text": texts}), sort_keys=[("count", "descending"), ("text", "ascending")]
        )
        return cls(str(series.name), len(series), missing, texts.take(order), counts[order.to_numpy()])


def _as_text(series: pd.Series) -> Any:
    """Arrow strings of a column, null where it has no value."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        table = pa.array([written(value) for value in series.cat.categories.tolist()], pa.large_string())
        codes = series.cat.codes.to_numpy()
        return table.take(pa.array(codes.astype(np.int64), mask=codes < 0))
    if isinstance(series.dtype, pd.StringDtype):
        cells = pa.array(series)
        cells = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        return cells.cast(pa.large_string())
    inverse, uniques = pd.factorize(series, use_na_sentinel=True)
    table = pa.array([written(value) for value in uniques.tolist()], pa.large_string())
    return table.take(pa.array(inverse.astype(np.int64), mask=inverse < 0))
