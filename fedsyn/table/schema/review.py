"""Approval in a schema's file, column by column.

A schema's file belongs to the person who wrote it: only the columns that are approved are written anew, everything else
stays as it is, comments too. What a draft says in lines that begin with `#?` goes as it is answered.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedsyn import yamlio
from fedsyn.bounded import read_bytes
from fedsyn.errors import DataError, SchemaError, nearest
from fedsyn.table.schema.approval import DRAFT_NOTE, PERSONS, REMARK, Finding, How, approved_columns
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import Value
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.model import Schema
from fedsyn.table.schema.remarks import HEAD, HOLD, HOLD_MORE, Proposed, proposed_in
from fedsyn.table.schema.rules import Determined


def approve(
    text: str,
    names: Collection[str],
    how: How = How(),  # noqa: B008 - frozen
    seen: Mapping[str, Finding] | None = None,
    where: str = "schema",
) -> str:
    """The text of a schema in which some columns are approved.

    Args:
        text: of the schema's file.
        names: the columns.
        how: they are approved.
        seen: what the table shows (`findings`), if it is at hand.
        where: what to call the schema in a message.

    Raises:
        SchemaError: no such column, or few rows hold a category, and nobody said why it is public.
    """
    for name, new in approved_columns(Schema.loads(text, where), names, seen, how, where).items():
        text = answered(text, name, new, where)
    return text


def answered(text: str, name: str, data: Mapping[str, Any], where: str = "schema") -> str:
    """Returns the text with one column as it was answered.

    The draft's remarks on the column are left out. Once all is approved, so is the draft's note.
    """
    text = with_column(text, name, data, where)
    lines, remarked = text.split("\n"), _remarked(text, name, where)
    text = "\n".join(line for at, line in enumerate(lines) if at not in remarked)
    if Schema.loads(text, where).unapproved:
        return text
    return re.sub(rf"(?m)^ +{re.escape(REMARK.strip())}.*\n", "", text.replace(DRAFT_NOTE, ""))


def _remarked(text: str, name: str, where: str) -> range:
    """The numbers of those lines."""
    lines, end = text.split("\n"), _column(text, name, where)[0].start_mark.line
    start = end
    while start and lines[start - 1].lstrip().startswith(REMARK.strip()):
        start -= 1
    return range(start, end)


def typed(text: str, name: str, answer: str, where: str = "schema", seen: Finding | None = None) -> str:
    """Returns the text with a column's typed answer, approved.

    The answer is public bounds (`0, 110`) or categories (`north, south`).

    Raises:
        SchemaError: not two bounds, values that the column cannot have, or categories that neither its rows (`seen`)
            nor, without them, its draft has: a word that was meant as something else.
    """
    schema = Schema.loads(text, where)
    column = schema.every_column[name]
    parts = [part.strip() for part in answer.split(";" if ";" in answer else ",") if part.strip()]
    if isinstance(column, BinnedColumn):
        if len(parts) != 2:
            raise SchemaError(f"expected two bounds, such as '{example_of(column)}', got {len(parts)}")
        low, high = (_bound(column, part) for part in parts)
        keys: dict[str, Any] = {"lower": low, "upper": high}
    elif isinstance(column, CategoricalColumn):
        known = {str(value): value for value in column.categories}
        listed = [known.get(part, part) for part in parts]
        keys = {"categories": listed, "unordered": [value for value in column.unordered if value in listed]}
        keys["groups"] = {value: members for value, members in column.groups.items() if value in listed} or None
    else:
        raise SchemaError(f"'{name}' is of kind {column.kind}, which has no bounds or categories")
    edited = schema.edited(**{name: keys})
    new = edited.every_column[name]
    if isinstance(new, CategoricalColumn) and isinstance(column, CategoricalColumn) and name not in schema.open:
        held = [value for value in (seen.values if seen else column.categories) if value != new.other_value]
        if held and not any(map(new.lists, held)):
            raise SchemaError(f"column '{name}' has none of these values: type a key, or categories that it holds")
    return answered(text, name, edited.to_dict()["columns"][name] | {"approved": True}, where)


def example_of(column: Any) -> str:
    """Returns an example of an answer for a column.

    It has the column's bounds, or its first categories, as its cells are written.
    """
    values = column.texts(np.array(column.span)) if isinstance(column, BinnedColumn) else column.labels()[:2]
    return ("; " if any("," in value for value in values) else ", ").join(values)


def _bound(column: BinnedColumn, text: str) -> Any:
    """Reads a bound.

    It is written as the column's cells are, or as a schema has it.
    """
    number = None if column.reads_numbers else column.parse(text)
    return yamlio.loads(text, "a bound") if number is None or np.isnan(number) else column.bound(number)


# What a draft remarks ------------------------------------------------------------------------------------------------

_HEAD = f"{REMARK}{HEAD}"


def proposed_lines(text: str) -> list[Proposed]:
    """The constraints that a draft's text proposes."""
    return proposed_in(line.removeprefix(REMARK) for line in text.split("\n") if line.startswith(REMARK))


def with_stated(text: str, wanted: Collection[str], where: str = "schema") -> str:
    """Returns the text with proposed constraints stated.

    Args:
        text: of a draft.
        wanted: constraints as it proposes them; "all": every one.
        where: what to call the schema in a message.

    Raises:
        SchemaError: it proposes no such constraint, or one cannot be stated beside what the schema has.
    """
    known = [one.rule for one in proposed_lines(text)]
    for rule in known if "all" in wanted else [yamlio.in_one_line(yamlio.loads(one, "a constraint")) for one in wanted]:
        if rule not in known:
            raise SchemaError(
                f"{where} does not propose '{rule}'; "
                + (f"it proposes {', '.join(map(shlex.quote, known))}" if known else "it proposes no constraint")
                + "; write any other one under `constraints:` in the file"
            )
        text = stated(text, rule, holds=True, where=where)
    return text


def with_map(text: str, file: str | Path, where: str = "schema") -> str:
    """Returns the text with a public map between two columns.

    It is a constraint, which computes the second column.

    Args:
        text: of a schema.
        file: CSV of two columns, named as those of the schema: a code, and the group that it lies in.
        where: what to call the schema in a message.

    Raises:
        InputError: no such file, not two columns of the schema, or a code in two groups.
    """
    schema, entries = Schema.loads(text, where), dict[Value, Value | None]()
    try:
        lines = [line for line in csv.reader(io.StringIO(read_bytes(file).decode("utf-8-sig"))) if line]
    except (OSError, UnicodeDecodeError, csv.Error):
        raise DataError(f"cannot read {file} as a CSV file in UTF-8") from None
    if not lines or any(len(line) != 2 for line in lines):
        raise DataError(f"{file}: expected two columns, a code and its group")
    (code, group), *rows = ([cell.strip() for cell in line] for line in lines)
    for name in (code, group):
        if name not in schema.columns:
            raise DataError(
                f"{file}: the first line names the schema's columns, found '{name}'{nearest(name, schema.columns)}"
            )
    column: Any = schema.columns[code]
    for key, value in rows:
        if entries.setdefault(key, value) != value:
            raise DataError(f"{file}: '{key}' is in two groups")
    if isinstance(column, CategoricalColumn) and code not in schema.open:  # a classification has more than one table
        entries = {key: value for key, value in entries.items() if column.named(key) is not None}
    rule = yamlio.in_one_line(Determined(determines=code, column=group, map=entries).data())
    return with_constraint(text, rule, where)


def with_constraint(text: str, rule: str, where: str = "schema") -> str:
    """Returns a schema's text with one more constraint, a line of YAML.

    Raises:
        SchemaError: it cannot be stated beside what the schema has.
    """
    start = re.search(r"(?m)^constraints:[ \t]*(#.*)?\n", text)
    if start:
        items = re.compile(r"(?m)^( *)- ").search(text, start.end())
        indent = items[1] if items else "  "
        text = text[: start.end()] + f"{indent}- {rule}\n" + text[start.end() :]
    elif re.search(r"(?m)^constraints:", text):
        raise SchemaError(f"{where}: put each of its constraints on a line of its own, then there is room for one more")
    else:
        text = text.rstrip("\n") + f"\nconstraints:\n  - {rule}\n"
    Schema.loads(text, where)
    return text


def stated(text: str, rule: str, *, holds: bool, where: str = "schema") -> str:
    """Returns the text with the answer to a proposed constraint.

    Either the constraint is stated, or its line goes.

    Raises:
        SchemaError: it cannot be stated beside what the schema has.
    """
    lines = text.split("\n")
    at = next(
        at
        for at, line in enumerate(lines)
        if line.startswith(REMARK) and [one.rule for one in proposed_in([line.removeprefix(REMARK)])] == [rule]
    )
    # The schema had constraints before it proposed these.
    elsewhere = HEAD in lines and not {_HEAD, f"{REMARK}{HOLD_MORE}"}.isdisjoint(lines)
    lines[at : at + 1] = [f"  - {rule}"] if holds and not elsewhere else []
    text = "\n".join(lines)
    if holds:
        text = with_constraint(text, rule, where) if elsewhere else text.replace(_HEAD, HEAD, 1)
    if not proposed_lines(text):
        for line in (_HEAD, f"{REMARK}{HOLD}", f"{REMARK}{HOLD_MORE}"):
            text = text.replace(f"{line}\n", "")
    Schema.loads(text, where)
    return text


def with_persons(text: str, name: str, is_person: bool, most_rows: int | None = None, where: str = "schema") -> str:
    """Returns the text with an answer about an identifier of persons.

    Args:
        text: of a schema.
        name: of the identifier.
        is_person: whether it does. Then what `persons:` says of it is approved; else it goes.
        most_rows: the most rows that a person may have; None: as it stands.
        where: what to call the schema in a message.

    Raises:
        SchemaError: a number of rows that the key cannot have.
    """
    schema = Schema.loads(text, where)
    persons = schema.persons if schema.persons is not None and schema.persons.id == name else None
    data = schema.to_dict()["columns"][name] | {"person": is_person}
    data["drafted"] = [mark for mark in data["drafted"] if mark not in ("person", PERSONS)]
    if persons is not None and not is_person:
        text = _with_key(text, "persons", None)
    elif persons is not None and most_rows is not None:
        least = min(persons.least_rows, 1)  # who has other rows than a draft saw need not have as many as others
        new = persons.model_copy(update={"most_rows": most_rows, "least_rows": least})
        text = _with_key(text, "persons", new.model_dump(mode="json", exclude_defaults=True))
    return answered(text, name, data, where)


def dropped(text: str, name: str, where: str = "schema") -> str:
    """Returns the text with a column left out, of `persons`, too."""
    persons = Schema.loads(text, where).persons
    if persons is not None and name in (persons.order, *persons.constant):
        some = {"constant": persons.constant, "in_rows": persons.in_rows}
        left: dict[str, Any] = {key: tuple(one for one in names if one != name) for key, names in some.items()}
        left |= {"order": False} if persons.order == name else {}
        new = persons.model_copy(update=left).model_dump(mode="json", exclude_defaults=True)
        text = _with_key(text, "persons", new)
    column = Schema.loads(text, where).edited(**{name: {"kind": "drop"}}).to_dict()["columns"][name]
    return answered(text, name, column, where)


def _with_key(text: str, key: str, data: Any) -> str:
    """Returns the text with a top key replaced, or without it."""
    document: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    node, value = next((node, value) for node, value in document.value if node.value == key)
    end = value.end_mark.index
    inner = text[node.start_mark.index : end]
    tail = "" if value.flow_style else _trailing_comments(inner) or inner[len(inner.rstrip()) :]
    if data is None:
        tail = tail.removeprefix("\n")
        end += text[end : end + 1] == "\n" if value.flow_style else 0
    new = "" if data is None else yamlio.dumps({key: data}).rstrip("\n")
    return text[: node.start_mark.index] + new + tail + text[end:]


def without_remarks(text: str) -> str:
    """The text without what a draft remarks on its table's rows."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith(REMARK.strip()))


def with_column(text: str, name: str, data: Mapping[str, Any], where: str = "schema") -> str:
    """Returns a schema's text with another description of a column.

    Everything else in the file stays as it stands.

    Raises:
        SchemaError: the text has no such column.
    """
    columns, column = _column(text, name, where)[1:]
    start, end = column.start_mark, column.end_mark
    if column.flow_style or columns.flow_style:
        return text[: start.index] + yamlio.in_one_line(dict(data)) + text[end.index :]
    body = yamlio.dumps(dict(data)).splitlines()
    lines = [body[0], *(" " * start.column + line for line in body[1:])]
    # A block ends where the next thing begins: what stands between is blank lines and comments.
    inner = text[start.index : end.index]
    tail = inner[len(inner.rstrip()) :]
    comments = _trailing_comments(inner)
    return text[: start.index] + "\n".join(lines) + (comments or tail) + text[end.index :]


def _trailing_comments(block: str) -> str:
    """Returns blank lines and comments at the end of a block.

    The block is YAML. The line end before them is returned, too.
    """
    lines = block.split("\n")
    at = len(lines)
    while at > 1 and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#")):
        at -= 1
    return "\n" + "\n".join(lines[at:]) if at < len(lines) else ""


def _column(text: str, name: str, where: str) -> tuple[Any, Any, Any]:
    """Returns the nodes of a column's name, all columns, and the column.

    Raises SchemaError if there is no such column.
    """
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        raise SchemaError(f"{where}: not valid YAML") from None
    columns = _value(document, "columns")
    entries = columns.value if isinstance(columns, yaml.MappingNode) else ()
    for key, column in entries:
        if key.value == name:
            return key, columns, column
    raise SchemaError(f"{where} has no column '{name}'")


def _value(mapping: Any, key: str) -> Any:
    """The node under a key of a mapping, or None."""
    if not isinstance(mapping, yaml.MappingNode):
        return None
    return next((value for node, value in mapping.value if node.value == key), None)
