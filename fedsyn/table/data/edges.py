"""Looks above and below the rows of a file.

Above them are titles and names, below them totals and notes. Whoever describes a file is asked about what looks like
something else: a line of values that is taken for names would stand in every public file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from fedsyn.output import counted, first_of
from fedsyn.table.schema.values import parse_number
from fedsyn.table.schema.vocabulary import known_words, plainly_written, word_lists

# Rows of a title, and of names.
MOST_TITLES, MOST_NAMES = 20, 3
# Lines below the names that are looked at.
LOOKED_AT = 1000
# Lines at the end that may be totals and notes.
MOST_NOTES = 10
# Names that are said.
_SHOWN = 6
_NUMBERS = ("no cell", "one cell", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# A share of 0.8 leaves room for an index without a name, and for one more.
_MOST_OF_THEM = 0.8


class Line(NamedTuple):
    """A line that holds something.

    Attributes:
        number: as an editor, or Excel, counts it.
        cells: without spaces around them, and without blank ones at the end.
    """

    number: int
    cells: list[str]

    @property
    def filled(self) -> int:
        """Number of cells that hold something."""
        return sum(map(bool, self.cells))


class Names(NamedTuple):
    """Lines to skip, and lines that name the columns."""

    skip: int
    header: int

    def typed(self) -> str:
        """Returns the options for a command and for a configuration."""
        words = {"--skip-rows": self.skip, "--header": self.header if self.header > 1 else 0}
        keys = [f"data.options.{word[2:].replace('-', '_')}: {n}" for word, n in words.items() if n]
        return f"{' '.join(f'{word} {n}' for word, n in words.items() if n)} (in a run {', '.join(keys)})"


def line_of(number: int, cells: Sequence[str]) -> Line:
    """Returns a line from its cells as they stand."""
    stripped = [cell.strip() for cell in cells]
    while stripped and not stripped[-1]:
        stripped.pop()
    return Line(number, stripped)


def joined(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns names that stand in several rows, joined.

    A cell that stands above several columns goes with each of them.
    """
    if len(rows) < 2:
        return list(rows[0]) if rows else []
    width = max(map(len, rows))
    padded = [[cell.strip() for cell in row] + [""] * (width - len(row)) for row in rows]
    for row in padded[:-1]:
        for j in range(1, width):
            row[j] = row[j] or row[j - 1]
    return [" ".join(filter(None, names)) for names in zip(*padded, strict=True)]


# Above ----------------------------------------------------------------------------------------------------------------


def looks_like_values(names: Sequence[str], below: Sequence[Line]) -> str | None:
    """Returns why the names of columns look like values.

    The words quote none of them. None if they look like names.

    They do if one is a date, or if several are numbers or stand below in their own column: two that make a quarter of
    them, or half. Numbers and dates that count columns, such as years, are names.
    """
    cells = [(j, name.strip()) for j, name in enumerate(names) if name.strip()]
    numbers = {j: number for j, name in cells if (number := _number(name)) is not None}
    dates = {j for j, name in cells if _is_date(name)} - numbers.keys()
    again = {j for j, name in cells if any(len(line.cells) > j and line.cells[j] == name for line in below)}
    if _count_columns([*numbers.values()]):
        again -= numbers.keys() if len(numbers) > 2 else set()
        numbers = {}
    if len(dates) > 1 and [names[j].strip() for j in sorted(dates)] == sorted(names[j].strip() for j in dates):
        dates = set()
    found = numbers.keys() | dates | again
    several = 2 * len(found) >= len(cells) or (len(found) > 1 and 4 * len(found) >= len(cells))
    if not found or not (dates or several):
        return None
    said = [counted(len(numbers), "number")] if numbers else []
    said += [counted(len(dates), "date")] if dates else []
    more = len(again - numbers.keys() - dates)
    said += [f"{more} that {'stands' if more == 1 else 'stand'} again below in the same column"] if more else []
    return f"of {counted(len(cells), 'cell')}: {', '.join(said)}"


def _number(text: str) -> float | None:
    """Returns the number that a text spells, with whatever marks."""
    number = parse_number(text.replace(",", "."))
    plain = re.fullmatch(r"[+-]?[\d.,' ]*\d[\d.,' ]*", text)
    return number if number is not None else parse_number(re.sub(r"[^\d-]", "", text)) if plain else None


def _count_columns(numbers: Sequence[float]) -> bool:
    """Returns whether numbers are years, or count columns.

    Such are 2019, 2020, 2021; 0, 1, 2; 5, 10, 15.
    """
    if len(numbers) < 2 or not all(a < b and a.is_integer() and b.is_integer() for a, b in pairwise(numbers)):
        return False
    steps = {b - a for a, b in pairwise(numbers)}
    years = all(1900 <= number <= 2100 for number in numbers)
    return years or (len(steps) == 1 and (len(numbers) > 2 or (steps == {1} and numbers[0] in (0, 1))))


@cache
def _dates() -> re.Pattern[str]:
    shapes = "|".join(f"(?:{pattern})" for pattern, _ in word_lists()["dates"])
    return re.compile(rf"(?:{shapes})(?:[T ]\d\d?:\d\d.*)?")


def _is_date(text: str) -> bool:
    return _dates().fullmatch(text) is not None


def usual_width(lines: Sequence[Line]) -> int:
    """Returns the number of cells that most lines have.

    It is the larger one of two that are as frequent.
    """
    widths = Counter(len(line.cells) for line in lines)
    return max(widths, key=lambda width: (widths[width], width), default=0)


def names_above(lines: Sequence[Line]) -> Names | None:
    """Returns which lines at the top of a file name its columns.

    The last one has a cell in most columns, none twice, none that looks like a value. Lines above it that reach beyond
    the middle belong to it, as merged cells do; others are titles.

    `lines`: of the whole file, from the top.
    """
    width = usual_width(lines[MOST_NAMES:] or lines)
    for j, line in enumerate(lines[: MOST_TITLES + MOST_NAMES]):
        texts = [cell for cell in line.cells if cell]
        full = len(texts) >= _MOST_OF_THEM * width or len(texts) == len(line.cells) == width - 1
        if (
            not full
            or len(texts) < 2
            or len(line.cells) > width
            or len(set(texts)) < len(texts)
            or looks_like_values(line.cells, lines[j + 1 :])
        ):
            continue
        first = j
        while (
            first
            and j - first + 1 < MOST_NAMES
            and lines[first - 1].filled > 1
            and 2 * len(lines[first - 1].cells) > width
        ):
            first -= 1
        names = joined([line.cells for line in lines[first : j + 1]])
        if len({*names} - {""}) < sum(map(bool, names)):
            first = j
        return Names(lines[first].number - 1, j - first + 1)
    return None


def described(lines: Sequence[Line]) -> str:
    """Returns the numbers of cells that lines hold, in words.

    They read like "lines 1 and 2 hold one cell, line 4 three".
    """
    groups: list[list[Line]] = []
    for line in lines:
        if not groups or groups[-1][0].filled != line.filled:
            groups.append([])
        groups[-1].append(line)
    words = list[str]()
    for group in groups:
        several, filled = len(group) > 1, group[0].filled
        count = _NUMBERS[filled] if filled < len(_NUMBERS) else f"{filled:,}"
        if words:
            count = count.removesuffix(" cell")
        else:
            verb = "hold" if several else "holds"
            count = f"{verb} {count}{'' if count.endswith('cell') else ' cells'}"
        words.append(f"{numbered([line.number for line in group])} {count}")
    return ", ".join(words)


def numbered(numbers: Sequence[int]) -> str:
    """Returns the numbers of lines, in words.

    They read like "line 3", "lines 3 and 4", "lines 3 to 7".
    """
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    return f"lines {numbers[0]} {'and' if len(numbers) == 2 else 'to'} {numbers[-1]}"


def heading(numbers: Sequence[int], names: Sequence[str]) -> str:
    """Returns a sentence on what was taken for names."""
    said = first_of([" ".join(name.split()) for name in names if name.strip()], _SHOWN)
    if not numbers:
        return f"no line names the columns: {said}"
    together = "together name" if len(numbers) > 1 else "names"
    return f"{numbered(numbers)} {together} the columns: {said}"


# Below ----------------------------------------------------------------------------------------------------------------


class Footer(NamedTuple):
    """Lines at the end that look like totals or notes.

    Attributes:
        lines: how many there are, blank ones among them.
        first: number of the first one.
        why: it looks so, in words that quote nothing.
    """

    lines: int
    first: int
    why: str


def footer_of(
    last: Sequence[Sequence[str]], numbers: Sequence[int], column: Callable[[int], Sequence[str]]
) -> Footer | None:
    """Returns the lines at the end that look like totals or notes.

    A line does that is mostly empty and begins with a word for it, or one whose number is the sum of its column.

    Args:
        last: the cells of the last rows, top down.
        numbers: of these rows in the file.
        column: gives all cells of a column, by its place, those of the last rows among them.
    """
    found: tuple[int, str] | None = None
    for back, row in enumerate(reversed(last), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        why = _why_footer(cells, column, back)
        if why is None:
            break
        found = back, why
    if found is None:
        return None
    first = numbers[-found[0]]
    return Footer(numbers[-1] - first + 1, first, found[1])


def _why_footer(cells: Sequence[str], column: Callable[[int], Sequence[str]], back: int) -> str | None:
    def above(j: int) -> Sequence[str]:
        return column(j)[:-back]

    filled = [j for j, cell in enumerate(cells) if cell]
    empty, first = 2 * len(filled) <= len(cells), filled[0]
    word = _begins_like_a_note(cells[first]) and cells[first] not in map(str.strip, above(first))
    if word and empty:
        return "most of its cells are empty, and it begins with a word for totals or notes"
    if (word or empty) and any(_is_sum(cells[j], above(j)) for j in filled):
        how = "it begins with a word for totals" if word else "most of its cells are empty"
        return f"{how}, and a number in it is the sum of its column"
    return None


def _begins_like_a_note(text: str) -> bool:
    plain = plainly_written(text)
    if re.match(r"n\s*=|[*†©]", plain):
        return True
    words = re.split(r"[\s:=.,;(\[]+", plain)
    return any(" ".join(words[:count]) in known_words("notes") for count in (1, 2))


def _is_sum(text: str, cells: Sequence[str]) -> bool:
    """Returns whether a number is the sum of those above it.

    It is so to its last digit, and of three numbers at least.
    """
    for mark in (".", ","):
        total = _read(text, mark)
        numbers = [number for cell in cells if (number := _read(cell, mark)) is not None]
        if total is not None and total != 0 and sum(number != 0 for number in numbers) > 2:
            places = len(text.strip().partition(mark)[2]) if mark in text else 0
            if abs(sum(numbers) - total) <= 0.51 * 10.0**-places + 1e-9 * abs(total):
                return True
    return False


def _read(text: str, mark: str) -> float | None:
    """Returns the number of a text with this decimal mark.

    Other marks stand between thousands.
    """
    digits = re.fullmatch(r"\D{0,3}?([+-]?\d[\d.,' \u00a0\u202f]*)\D{0,4}", text.strip())
    if digits is None:
        return None
    return parse_number(re.sub(rf"[^\d{re.escape(mark)}-]", "", digits[1]).replace(mark, "."))


# In between -----------------------------------------------------------------------------------------------------------


_TWICE = re.compile("[ÃÂâÅÄ][\u0080-\u00ff\u0152-\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]")


def encoded_twice(texts: Iterable[str]) -> set[str]:
    """Returns the texts that were encoded in UTF-8 twice.

    Such is `SÃ¼d` for `Süd`.
    """
    found = set()
    for text in texts:
        if not _TWICE.search(text):
            continue
        for encoding in ("cp1252", "latin-1"):
            try:
                found |= {text} if text.encode(encoding).decode("utf-8") != text else set()
            except UnicodeError:
                continue
    return found
