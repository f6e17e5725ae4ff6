"""Categories by a tree of prefixes.

Frequent texts are found without asking for any that is not.

A text is its bytes in UTF-8. Level l asks, for every prefix of l bytes that stood out, how many rows go on with each of
the 256 bytes, or end here. A text of b bytes is known after b + 1 levels, all of which it has to stand out in.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsyn.domain import Codes, Floats, Integers
from fedsyn.private_bins.ranges import threshold

#: What may follow a prefix: one of 256 bytes, or nothing.
SYMBOLS = 257
_END = 256
#: Prefixes that may be followed at a time, for each category that may be found.
FOLLOWED = 2


def is_word(text: str, missing_text: Collection[str] = ()) -> bool:
    """Returns whether a text may become a category.

    Any other counts as `other`.

    A word is what `CategoricalColumn.word_of` gives of a cell that is there (stripped, not blank, none that stands for
    a missing value), in strict UTF-8, without control characters, breaks of lines or a mark of byte order. No such
    text is anybody's ward; one that was planted would pass for another one in a file, a page or a terminal.
    """
    if not text or text != text.strip() or text in missing_text or "\ufeff" in text:
        return False
    return not any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text)


def level_counts(words: Sequence[str], rows: Codes, prefixes: Sequence[bytes]) -> Integers:
    """Counts rows by prefix and next byte, (prefixes * 257,).

    One row is in at most one cell.

    Args:
        words: the different texts of a column.
        rows: (words,) rows of each.
        prefixes: different ones of equal length.
    """
    place = {prefix: i for i, prefix in enumerate(prefixes)}
    counts = np.zeros(len(prefixes) * SYMBOLS, np.int64)
    length = len(prefixes[0]) if prefixes else 0
    for word, count in zip(words, rows.tolist(), strict=True):
        raw = word.encode("utf-8", "surrogatepass")
        at = place.get(raw[:length]) if len(raw) >= length else None
        if at is not None:
            counts[at * SYMBOLS + (raw[length] if len(raw) > length else _END)] += count
    return counts


@dataclass
class PrefixTree:
    """One column's search, as the server keeps it: released counts only.

    Attributes:
        most: categories; twice as many prefixes are followed at a time, for those that become too long.
        length: most bytes of a category.
        missing_text: texts that stand for a missing value.
        alive: prefixes to ask about next, of equal length.
        found: category -> its noisy rows.
    """

    most: int
    length: int
    missing_text: frozenset[str] = frozenset()
    alive: list[bytes] = field(default_factory=lambda: [b""])
    found: dict[str, float] = field(default_factory=dict)

    def take(self, counts: Floats, sigma: float, cells: int, false_alarm: float) -> None:
        """Takes the noisy counts of a level.

        Prefixes that do not stand out are forgotten.

        Args:
            counts: (alive * 257,).
            sigma: of their noise.
            cells: of the whole level, all columns together.
            false_alarm: of the whole level.
        """
        least = threshold(sigma, cells, false_alarm)
        longer: dict[bytes, float] = {}
        for cell in np.flatnonzero(counts > least).tolist():
            prefix, symbol = self.alive[cell // SYMBOLS], cell % SYMBOLS
            if symbol != _END:
                if len(prefix) < self.length:
                    longer[prefix + bytes([symbol])] = float(counts[cell])
                continue
            try:
                text = prefix.decode("utf-8")
            except UnicodeDecodeError:  # noise: no text ends within a letter
                continue
            if is_word(text, self.missing_text):
                self.found[text] = float(counts[cell])
        self.alive = sorted(sorted(longer, key=lambda p: (-longer[p], p))[: FOLLOWED * self.most])

    @property
    def categories(self) -> list[str]:
        """The most frequent ones, in the order of their text."""
        return sorted(sorted(self.found, key=lambda text: (-self.found[text], text))[: self.most])
