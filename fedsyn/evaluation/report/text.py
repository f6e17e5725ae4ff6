"""Pieces of HTML: tables, warnings, cards. Every text is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 1000
_NUMBER = re.compile(r"[-−]?(\d[\d,]*(\.\d+)?|\.\d+)(e[-+]?\d+)?( ?(%|kB|MB|s))?( ± <?[\d.e+-]+)?|–|not finite|")
_LONG = 40  # letters from which on a cell keeps some width


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    best: Iterable[tuple[int, int]] = (),
    links: dict[str, str] | None = None,
) -> str:
    """A table that scrolls by itself on a narrow screen; of a very long one the first rows.

    Args:
        head: names of the columns.
        rows: cells; the first one of a row is its heading.
        caption: what the table shows.
        best: (row, column) of cells that are set in bold.
        links: cell text -> address, for cells that are links.
    """
    rows = [list(map(str, row)) for row in rows]
    shown, bold = rows[:MOST_ROWS], set(best)
    numeric = [
        any(row[j] for row in shown) and all(_NUMBER.fullmatch(row[j]) for row in shown) for j in range(len(head))
    ]
    # A column without a heading would be an empty header cell, which screen readers stumble over.
    header = "".join(
        f'<th scope="col"{_class(numeric[j])}>{escape(name)}</th>' if name else "<td></td>"
        for j, name in enumerate(head)
    )
    body = []
    for i, row in enumerate(shown):
        cells = []
        for j, cell in enumerate(row):
            text = escape(cell)
            if links and cell in links:
                text = f'<a href="{escape(links[cell])}">{text}</a>'
            tag, scope = ("th", ' scope="row"') if j == 0 else ("td", "")
            cells.append(f"<{tag}{scope}{_class(numeric[j], (i, j) in bold, len(cell) > _LONG)}>{text}</{tag}>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    hidden = len(rows) - len(shown)
    more = f"<p>{hidden} more rows are in the files beside this page.</p>" if hidden else ""
    label = escape(caption or ", ".join(name for name in head if name))
    title = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{title}'
        f"<thead><tr>{header}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{more}"
    )


def _class(numeric: bool, best: bool = False, long: bool = False) -> str:
    names = [name for name, on in (("n", numeric), ("best", best), ("long", long and not numeric)) if on]
    return f' class="{" ".join(names)}"' if names else ""


def warning(title: str, text: str) -> str:
    """A box that stands out."""
    return f'<div class="warn" role="note"><p><strong>{escape(title)}</strong> {escape(text)}</p></div>'


def paragraph(text: str, css: str = "") -> str:
    """A paragraph."""
    return f'<p class="{css}">{escape(text)}</p>' if css else f"<p>{escape(text)}</p>"


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """Large numbers: (what, number, words) each."""
    return (
        '<ul class="cards">'
        + "".join(f"<li>{escape(what)}<b>{escape(number)}</b>{escape(words)}</li>" for what, number, words in items)
        + "</ul>"
    )


def definitions(items: Iterable[tuple[str, str]]) -> str:
    """Terms and what they mean."""
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in items) + "</dl>"
