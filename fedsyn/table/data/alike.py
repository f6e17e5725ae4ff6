"""Columns of several holders' tables, and how they differ.

Names of columns alone are looked at here, and no row. One message has all differences of all tables, and what to do.
"""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsyn import yamlio
from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.lazy import pq
from fedsyn.output import first_of
from fedsyn.table.data.layout import layout_of
from fedsyn.table.data.opening import is_parquet, source_of
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import readable
from fedsyn.table.schema.model import Schema

# Names of one kind that a message lists for one table.
_LISTED = 10


def column_names(path: Path, options: FileOptions, columns: Sequence[str]) -> list[str]:
    """Returns the names of a file's columns, renamed.

    Args:
        path: of the file.
        options: say how it is read.
        columns: of its schema, by which the separator is found.
    """
    with readable(path):
        if is_parquet(path):
            return options.renamed(pq.read_schema(source_of(path, options)).names)
        return layout_of(path, options, columns).header


def require_renamed(names: Mapping[str, Sequence[str]], rename: Mapping[str, str]) -> None:
    """Refuses a renaming that no file has a column for.

    Args:
        names: file -> its columns, renamed.
        rename: name in a file -> name in the schema.

    Raises:
        ConfigError: a new name stands in no file, so none has the old one.
    """
    every = [*dict.fromkeys(name for own in names.values() for name in own)]
    for old, new in rename.items():
        if new not in every:
            files = f"{first_of([*names], 3)} {'has' if len(names) == 1 else 'have'}"
            raise ConfigError(
                f"--rename {old}={new}: {files} no column '{old}'{nearest(old, every)}; columns: {first_of(every, 20)}"
            )


def shared_columns(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the columns that every table has.

    They are in the order of the first.
    """
    first, *others = names.values()
    return [name for name in first if all(name in other for other in others)]


def other_orders(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the tables with another order of columns.

    The first table's order is not another one.
    """
    first = next(iter(names.values()))
    orders = {table: [name for name in own if name in first] for table, own in names.items()}
    return [table for table, order in orders.items() if order != [name for name in first if name in order]]


def require_same_columns(names: Mapping[str, Sequence[str]]) -> None:
    """Refuses tables of different columns.

    What most tables have is taken for right, or what the first has where there is no most.

    Args:
        names: table -> its columns.

    Raises:
        DataError: all differences of all tables, and the ways out.
    """
    counts = Counter(name for own in names.values() for name in dict.fromkeys(own))
    first = next(iter(names.values()))
    usual = [
        name for name in counts if 2 * counts[name] > len(names) or (2 * counts[name] == len(names) and name in first)
    ]
    differences = _differences(names, usual, extra=True)
    if not differences:
        return
    order = other_orders(names)
    moved = f" ({', '.join(order)}: in another order, which changes nothing)" if order else ""
    pairs = dict(_pairs(names, usual))
    renamed = {table: [pairs.get(name, name) for name in own] for table, own in names.items()}
    ways = [_renaming(list(pairs.items())), "leave out what not all have: --common"]
    if pairs and _differences(renamed, usual, extra=True):  # a new name alone would be refused again
        ways = ["; and ".join(ways)]
    raise DataError(f"all holders need the same columns, and these differ: {differences}{moved}. {_either(ways)}")


def require_schema_columns(names: Mapping[str, Sequence[str]], schema: Schema, *, files: bool = True) -> None:
    """Refuses tables that lack columns of a schema; further columns are ignored.

    Args:
        names: table -> its columns.
        schema: of all tables.
        files: whether they are files, in which columns can be renamed.

    Raises:
        DataError: all that all tables lack, and the ways out.
    """
    wanted = list(schema.needed)
    differences = _differences(names, wanted, extra=False)
    if differences:
        pairs = _pairs(names, wanted)
        ways = [_renaming(pairs) if files else f"rename them: frame.rename(columns={dict(pairs) or {'OLD': 'NEW'}})"]
        ways.append("set the column's kind to drop in the schema, if not all holders have it")
        raise DataError(f"{differences}. {_either(ways)}")


def _differences(names: Mapping[str, Sequence[str]], wanted: Sequence[str], *, extra: bool) -> str:
    sentences = []
    for table, own in names.items():
        lacking = [name for name in wanted if name not in own]
        more = [name for name in own if name not in wanted] if extra else []
        what = "" if extra else "columns of the schema: "
        parts = [f"lacks {what}{_listed(lacking)}"] if lacking else []
        parts += [f"has {_listed(more)}, which others lack"] if more else []
        twice = [name for name in dict.fromkeys(own) if list(own).count(name) > 1 and name in wanted]
        parts += [f"has {_listed(twice)} twice"] if twice else []
        sentences += [f"{table} {' and '.join(parts)}"] if parts else []
    return "; ".join(sentences)


def _pairs(names: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (name, wanted name) of columns that may be the same."""
    pairs: dict[str, str] = {}
    for own in names.values():
        others = [name for name in own if name not in wanted]
        for name in wanted:
            if name in own:
                continue
            by_form = {_form(other): other for other in reversed(others)}
            close = difflib.get_close_matches(_form(name), by_form, n=1, cutoff=0.75)
            if close and by_form[close[0]] not in pairs:
                pairs[by_form[close[0]]] = name
    return list(pairs.items())


def _form(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _renaming(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns how one name is given to what is the same column."""
    shown = pairs or [("OLD", "NEW")]
    typed = " ".join(f"--rename {shlex.quote(f'{old}={new}')}" for old, new in shown[:_LISTED])
    return f"give what is the same one name: {typed}, in a run data.options.rename: {yamlio.in_one_line(dict(shown))}"


def _either(ways: Sequence[str]) -> str:
    first, *rest = ways
    return "; or ".join([first[:1].upper() + first[1:], *rest])


def _listed(names: Sequence[str]) -> str:
    return first_of([f"'{name}'" for name in names], _LISTED)
