"""Approval in a schema's file, column by column.

A schema's file belongs to the person who wrote it: only the columns that are approved are written anew, everything else
stays as it is, comments too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import yaml

from fedsyn import yamlio
from fedsyn.errors import ConfigError, SchemaError, nearest
from fedsyn.table.schema.approval import Finding, How, approved_column
from fedsyn.table.schema.model import Schema


def approve(
    text: str,
    names: Collection[str],
    how: How = How(),  # noqa: B008 - frozen
    found: Mapping[str, Finding] | None = None,
    where: str = "schema",
) -> str:
    """The text of a schema in which some columns are approved.

    Args:
        text: of the schema's file.
        names: the columns.
        how: they are approved.
        found: what the table shows (`findings`), if it is at hand.
        where: what to call the schema in a message.

    Raises:
        ConfigError: a name that is none of a column.
        SchemaError: few rows hold a category, and nobody said why it is public.
    """
    schema = Schema.loads(text, where)
    for name in names:
        if name not in schema.every_column:
            raise ConfigError(f"{where} has no column '{name}'{nearest(name, schema.every_column)}")
    columns = schema.to_dict()["columns"]
    for name in names:
        known = found.get(name) if found is not None else None
        new = approved_column(schema.every_column[name], columns[name], known, how, name, where)
        text = with_column(text, name, new, where)
    Schema.loads(text, where)
    return text


def with_column(text: str, name: str, data: Mapping[str, Any], where: str = "schema") -> str:
    """The text of a schema's file with another description of one column; everything else as it stands.

    Raises:
        SchemaError: the text has no such column.
    """
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        raise SchemaError(f"{where}: not valid YAML") from None
    columns = _value(document, "columns")
    column = _value(columns, name)
    if column is None:
        raise SchemaError(f"{where} has no column '{name}'")
    start, end = column.start_mark, column.end_mark
    if column.flow_style or columns.flow_style:
        return text[: start.index] + yamlio.in_one_line(dict(data)) + text[end.index :]
    body = yamlio.dumps(dict(data)).splitlines()
    lines = [body[0], *(" " * start.column + line for line in body[1:])]
    # A block ends where the next thing begins: what stands between is blank lines and comments.
    inner = text[start.index : end.index]
    tail = inner[len(inner.rstrip()) :]
    kept = _trailing_comments(inner)
    return text[: start.index] + "\n".join(lines) + (kept or tail) + text[end.index :]


def _trailing_comments(block: str) -> str:
    """Blank lines and comments at the end of a block of YAML, with the line end before them."""
    lines = block.split("\n")
    at = len(lines)
    while at > 1 and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#")):
        at -= 1
    return "\n" + "\n".join(lines[at:]) if at < len(lines) else ""


def _value(mapping: Any, key: str) -> Any:
    """The node under a key of a mapping, or None."""
    if not isinstance(mapping, yaml.MappingNode):
        return None
    return next((value for node, value in mapping.value if node.value == key), None)
