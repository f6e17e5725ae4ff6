"""A self-contained page: one HTML file that loads nothing. And the facts that pages are made from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from fedsyn.bounded import MOST_ROUND_BYTES, json_lines, json_of, read_bytes
from fedsyn.config import check_format
from fedsyn.errors import DataError
from fedsyn.evaluation.report.figures import INSTALL, Figure, drawable, figure_html, save_figures, scripts
from fedsyn.evaluation.report.style import STYLE, series_colours
from fedsyn.evaluation.report.text import paragraph
from fedsyn.version import __version__


class Page:
    """A page under construction: sections of HTML and figures, in order.

    Args:
        title: of the page.
        draw: draw charts where that is possible; False leaves tables alone.
    """

    def __init__(self, title: str, *, draw: bool = True) -> None:
        self.title = title
        self.figures: list[Figure] = []
        self._wanted, self._draw = draw, draw and drawable()
        self._parts: list[str] = []
        self._sections: list[tuple[str, str]] = []

    def add(self, *parts: str) -> None:
        """Adds HTML."""
        self._parts += parts

    def section(self, title: str, *parts: str) -> None:
        """Starts a section, which the table of contents names."""
        anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        self._sections.append((anchor, title))
        self._parts.append(f'<h2 id="{anchor}">{escape(title)}</h2>')
        self._parts += parts

    def figure(self, figure: Figure) -> None:
        """Adds a figure."""
        self.figures.append(figure)
        self._parts.append(figure_html(figure, self._draw))

    def write(self, path: Path) -> Path:
        """Writes the page."""
        links = "".join(f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title in self._sections)
        contents = f'<nav class="toc" aria-label="Contents"><ul>{links}</ul></nav>' if links else ""
        ending = ""
        if self._draw and self.figures:
            ending = scripts({name: rows for figure in self.figures for name, rows in figure.data.items()})
        elif self._wanted and self.figures:
            self._parts.append(paragraph(f"This page has tables only: charts need the extra 'report' ({INSTALL})."))
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}{series_colours()}</style></head><body>"
            f'<a class="skip" href="#content">Skip to the content</a>'
            f"<header><h1>{escape(self.title)}</h1></header>{contents}"
            f'<main id="content" tabindex="-1">{"".join(self._parts)}</main>'
            f'<footer><p class="soft">Written by fedsyn {escape(__version__)}.</p></footer>{ending}</body></html>'
        )
        path.write_text(page, encoding="utf-8")
        return path

    def save_figures(self, folder: Path, formats: tuple[str, ...]) -> list[Path]:
        """Writes the figures of the page as files; see `fedsyn.evaluation.report.figures.save_figures`."""
        return save_figures(self.figures, folder, formats) if formats else []


def read_facts(path: Path) -> dict[str, Any]:
    """A JSON file of a run. Raises DataError if it is damaged, or of a later format."""
    facts = json_of(read_bytes(path), str(path))
    if not isinstance(facts, dict):
        raise DataError(f"{path} is damaged: expected a mapping of keys")
    check_format(facts, str(path))
    facts.pop("format", None)
    return facts


def read_rounds(out: Path, *, measured: bool = True) -> list[dict[str, Any]]:
    """The rounds of a run: what was released of each, and what was measured where that is wanted and at hand."""
    rounds, costs = _lines(out / "rounds.jsonl"), list[dict[str, Any]]()
    if measured and (out / "measured.jsonl").is_file():
        costs = _lines(out / "measured.jsonl")
    costs += [{}] * (len(rounds) - len(costs))
    return [{**line, **cost} for line, cost in zip(rounds, costs, strict=False)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return json_lines(read_bytes(path, MOST_ROUND_BYTES), str(path))


def settings(text: str) -> str:
    """A configuration as it stands."""
    return f'<pre tabindex="0">{escape(text)}</pre>'


def listed(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The entries of a mapping with readable names."""
    return [(key.replace("_", " "), value) for key, value in facts.items()]
