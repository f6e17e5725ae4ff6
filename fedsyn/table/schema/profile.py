"""Profile of a column's values.

It counts how many there are, how often each stands, and how many are missing. Where persons have several rows, each
person counts once for each value.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Flags, Integers
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
        rows: of the table. Of persons, one of each person and value.
        missing: rows without a value.
        texts: (k,) Arrow strings, the most frequent first; of two as frequent, the first in the alphabet.
        counts: (k,) rows of each.
        people: (2, pairs) place of a text, and number of a person who holds it, each pair once; None: rows are counted.
    """

    name: str
    rows: int
    missing: int
    texts: pa.Array
    counts: Integers
    people: Integers | None = None

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

        Of many texts some are tried first.
        """
        for texts in (self.tried, self.texts) if self.values > _TRIED else (self.texts,):
            if not len(texts) or not pc.all(pc.match_substring_regex(texts, pattern)).as_py():
                return False
        return True

    def without(self, words: Collection[str]) -> Profile:
        """Returns this profile with some texts taken for missing values."""
        mask = ~pc.is_in(self.texts, pa.array(sorted(words), self.texts.type)).to_numpy(zero_copy_only=False)
        missing = self.missing + int(self.counts[~mask].sum())
        return replace(self._among(mask), missing=missing)

    def unlike_pattern(self, pattern: str) -> Profile:
        """Returns this profile without texts that match a regular expression.

        Their rows are not missing.
        """
        if not self.any_matches(pattern):
            return self
        mask = pc.invert(pc.match_substring_regex(self.texts, pattern))
        return self._among(mask.to_numpy(zero_copy_only=False))

    def replaced(self, pattern: str, by: str) -> Profile:
        """Returns this profile with matches of a pattern replaced.

        The pattern is of RE2, and its matches in the texts are replaced. Equal texts count together.
        """
        texts = pc.replace_substring_regex(self.texts, pattern, by).to_pylist()
        rows = self.held([[text] for text in texts])
        ordered = sorted(rows, key=lambda text: (-rows[text], text))
        people = self.people
        if people is not None:
            place = {text: at for at, text in enumerate(ordered)}
            people = np.unique(np.stack([np.array([place[text] for text in texts])[people[0]], people[1]]), axis=1)
        counts = np.array([rows[text] for text in ordered], np.int64)
        of_all = self.rows + int(counts.sum() - self.counts.sum())  # who holds several of a group holds it once
        return replace(self, rows=of_all, texts=pa.array(ordered, self.texts.type), counts=counts, people=people)

    def held(self, groups: Sequence[Collection[Hashable]]) -> dict[Any, int]:
        """Returns how often each group of texts stands: rows, or people.

        Args:
            groups: (k,) those of each text.
        """
        places: dict[Hashable, int] = {}
        each = [[places.setdefault(group, len(places)) for group in some] for some in groups]
        sizes = np.array([len(some) for some in each], np.int64)
        flat = np.array([place for some in each for place in some], np.int64)
        if self.people is None:
            held = np.bincount(flat, np.repeat(self.counts, sizes), len(places)).astype(np.int64)
        else:
            at, whose = self.people
            starts = np.cumsum(sizes) - sizes
            times = sizes[at]
            inner = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times)
            held = held_by(flat[np.repeat(starts[at], times) + inner], np.repeat(whose, times), len(places))
        return dict(zip(places, held.tolist(), strict=True))

    def _among(self, mask: Flags) -> Profile:
        """Returns this profile with some of its texts."""
        people = self.people
        if people is not None:
            places = np.cumsum(mask) - 1
            kept = people[:, mask[people[0]]]
            people = np.stack([places[kept[0]], kept[1]])
        return replace(self, texts=self.texts.filter(pa.array(mask)), counts=self.counts[mask], people=people)

    def any_matches(self, pattern: str) -> bool:
        """Returns whether any text matches a regular expression."""
        return bool(len(self.texts)) and bool(pc.any(pc.match_substring_regex(self.texts, pattern)).as_py())

    def share_matching(self, pattern: str) -> float:
        """Share of some of the texts that match a regular expression."""
        if not len(self.tried):
            return 0.0
        return float(pc.sum(pc.match_substring_regex(self.tried, pattern)).as_py() or 0) / len(self.tried)

    @classmethod
    def of(
        cls, series: pd.Series, missing_text: frozenset[str] = MISSING_TEXT, whose: Integers | None = None
    ) -> Profile:
        """Profiles a column of text, or of anything else as text.

        Args:
            series: the column.
            missing_text: texts that stand for a missing value.
            whose: (rows,) number of each row's person, from 0, who counts once for each value; None: each row counts.
        """
        cells = pa.chunked_array([_as_text(series)]) if len(series) else pa.chunked_array([pa.array([], pa.string())])
        cells = pc.utf8_trim_whitespace(cells)
        tally = pc.value_counts(cells.combine_chunks() if hasattr(cells, "combine_chunks") else cells)
        if isinstance(tally, pa.ChunkedArray):
            tally = tally.combine_chunks()
        texts, counts = tally.field("values"), tally.field("counts").to_numpy(zero_copy_only=False).astype(np.int64)
        absent = pc.or_kleene(pc.is_null(texts), pc.is_in(texts, pa.array(sorted(missing_text), texts.type)))
        absent = pc.fill_null(absent, True).to_numpy(zero_copy_only=False).astype(bool)
        missing, rows, pairs = int(counts[absent].sum()), len(series), None
        texts, counts = texts.filter(pa.array(~absent)), counts[~absent]
        if whose is not None:
            at = pc.fill_null(pc.index_in(cells, texts), len(texts)).to_numpy().astype(np.int64)
            persons = int(whose.max(initial=0)) + 1
            pairs = np.stack(np.divmod(np.unique(at * persons + whose), persons))
            counts, rows = np.bincount(pairs[0], minlength=len(texts) + 1), pairs.shape[1]
            missing, counts = int(counts[-1]), counts[:-1]
            pairs = pairs[:, pairs[0] < len(texts)]
        order = pc.sort_indices(
            pa.table({"count": counts, "text": texts}), sort_keys=[("count", "descending"), ("text", "ascending")]
        )
        taken = order.to_numpy()
        if pairs is not None:
            place = np.empty(len(taken), np.int64)
            place[taken] = np.arange(len(taken))
            pairs = np.stack([place[pairs[0]], pairs[1]])
        return cls(str(series.name), rows, missing, texts.take(order), counts[taken], pairs)


def held_by(codes: Codes, whose: Integers | None, size: int) -> Integers:
    """Returns the number of people who hold each code, (size,).

    >>> held_by(np.array([0, 0, 0, 1]), np.array([7, 7, 8, 7]), 2).tolist()
    [2, 1]

    Args:
        codes: (rows,) from 0.
        whose: (rows,) number of each row's person, from 0; None: each row is a person.
        size: number of codes.
    """
    if whose is not None:
        persons = int(whose.max(initial=0)) + 1
        codes = np.unique(codes.astype(np.int64) * persons + whose) // persons
    return np.bincount(codes, minlength=size)


def _as_text(series: pd.Series) -> Any:
    """Arrow strings of a column, null where it has no value."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        labels, codes = series.cat.categories, series.cat.codes.to_numpy()
        texts = labels if isinstance(labels.dtype, pd.StringDtype) else [written(value) for value in labels.tolist()]
        table = pa.array(texts, pa.large_string())
        return table.take(pa.array(codes.astype(np.int64), mask=codes < 0))
    if isinstance(series.dtype, pd.StringDtype):
        cells = pa.array(series)
        cells = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        return cells.cast(pa.large_string())
    inverse, uniques = pd.factorize(series, use_na_sentinel=True)
    table = pa.array([written(value) for value in uniques.tolist()], pa.large_string())
    return table.take(pa.array(inverse.astype(np.int64), mask=inverse < 0))
