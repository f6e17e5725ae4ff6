"""Remarks of a draft in a schema's text.

They are lines that begin with `#?`, for the table's holder alone. Those on a column stand above it, those on the table
at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fedsyn import yamlio
from fedsyn.output import plain
from fedsyn.table.schema.approval import DRAFT_NOTE, REMARK

Remarks = Mapping[str, Sequence[str]]
#: What stands above the constraints that a draft proposes, and how they begin.
HOLD = "These hold in all rows. To state one that must, remove the `#? ` from its line and from `constraints:`"
HEAD = "constraints:"
#: The same where a draft has constraints already.
HOLD_MORE = "These hold in all rows, too. To state one that must, remove the `#? ` from its line"
_SEEN = "holds in {rows} rows; {breaks}% would break it if its columns were independent"
_PROPOSED = re.compile(f"  - (?P<rule>.*)  # {_SEEN.format(rows='(?P<rows>[0-9,]+)', breaks='(?P<breaks>[0-9.]+)')}")


@dataclass(frozen=True)
class Proposed:
    """A constraint that a draft proposes, as its text has it.

    Attributes:
        rule: the constraint, as a line of YAML.
        rows: in which it was seen to hold.
        breaks: share of the rows, in percent, that would break it, were its columns independent (`Proposal.breaks`).
    """

    rule: str
    rows: str
    breaks: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.seen})"

    @property
    def seen(self) -> str:
        """Words on what the rows say of it."""
        return _SEEN.format(rows=self.rows, breaks=self.breaks)


def proposing(rule: Any, rows: int, breaks: float) -> str:
    """Returns the line that proposes a constraint, given as plain data."""
    return f"  - {yamlio.in_one_line(rule)}  # {_SEEN.format(rows=f'{rows:,}', breaks=f'{100 * breaks:.1f}')}"


def proposed_in(lines: Iterable[str]) -> list[Proposed]:
    """Returns the constraints that some remarks propose."""
    return [Proposed(**match.groupdict()) for line in lines if (match := _PROPOSED.fullmatch(line))]


def without_rules(remarks: Remarks, rules: Iterable[Any]) -> dict[str, Sequence[str]]:
    """Returns remarks that do not propose some constraints, given as plain data."""
    texts = {yamlio.in_one_line(rule) for rule in rules}
    lines = [line for line in remarks.get("", ()) if not any(one.rule in texts for one in proposed_in([line]))]
    return {**remarks, "": lines if proposed_in(lines) else ()}


def text_with(data: dict[str, Any], remarks: Remarks) -> str:
    """Returns the text of a draft, with its note and remarks.

    Args:
        data: the schema as plain data.
        remarks: column -> lines that stand above it, and "" -> at the end.
    """
    if not any(remarks.values()):
        return DRAFT_NOTE + yamlio.dumps(data)
    data = dict(data)
    lines = [*DRAFT_NOTE.splitlines(), "columns:"]
    for name, column in data.pop("columns").items():
        lines += [f"  {REMARK}{plain(line, keep='')}" for line in remarks.get(name, ())]
        lines += yamlio.dumps({"columns": {name: column}}).splitlines()[1:]
    rules = data.pop("constraints", [])
    lines += yamlio.dumps(data).splitlines() if data else []
    # Last, and each on a line of its own: what else holds in all rows follows.
    lines += [HEAD, *(f"  - {yamlio.in_one_line(rule)}" for rule in rules)] if rules else []
    return "\n".join([*lines, *(f"{REMARK}{plain(line, keep='')}" for line in remarks.get("", ()))]) + "\n"


def remarks_of(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the remarks in a schema's text (`text_with`).

    The text is valid YAML.
    """
    mark = REMARK.strip()
    if mark not in text:
        return {}
    lines, found = text.split("\n"), dict[str, tuple[str, ...]]()
    for name, line in _lines_of_columns(text):
        start = line
        while start and lines[start - 1].lstrip().startswith(mark):
            start -= 1
        if start < line:
            found[name] = tuple(lines[at].strip().removeprefix(REMARK) for at in range(start, line))
    last = tuple(line.removeprefix(REMARK) for line in lines if line.startswith(mark))
    return found | ({"": last} if last else {})


def _lines_of_columns(text: str) -> list[tuple[str, int]]:
    """Name and line of each column."""
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    entries = document.value if isinstance(document, yaml.MappingNode) else ()
    columns = next((value for key, value in entries if key.value == "columns"), None)
    entries = columns.value if isinstance(columns, yaml.MappingNode) else ()
    return [(key.value, key.start_mark.line) for key, _ in entries]
