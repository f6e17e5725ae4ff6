"""A self-contained page: one HTML file that loads nothing.

It is built from texts, tables and figures as data.

`templates/page.html.md` is how every page looks; the templates escape whatever is put into them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedsyn.evaluation.report.figures import (
    INSTALL,
    PALETTE,
    PALETTE_DARK,
    Figure,
    chart_config,
    drawable,
    runtime,
)
from fedsyn.evaluation.report.tables import Table
from fedsyn.files import write_text
from fedsyn.output import filled
from fedsyn.version import __version__


@dataclass(frozen=True)
class Part:
    """A piece of a page other than paragraphs, tables and figures.

    A paragraph is a text by itself.

    Attributes:
        kind: how it looks.
        value: a text; of a warning (title, text), of cards (what, number, words) each. Of definitions nothing: what
            the scores mean is the same everywhere.
    """

    kind: Literal["lead", "soft", "warning", "cards", "verbatim", "definitions"]
    value: Any = ""


Piece = str | Part | Table | Figure


@dataclass(frozen=True)
class Section:
    """A titled part of a page, listed in its contents."""

    title: str
    pieces: tuple[Piece, ...]

    @property
    def anchor(self) -> str:
        """The section's anchor (`#…`)."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


class Page:
    """A page under construction.

    Args:
        title: of the page.
        pieces: what stands before the first section; empty texts are left out.
        draw: draw charts where that is possible; False leaves tables alone.
    """

    def __init__(self, title: str, *pieces: Piece, draw: bool = True) -> None:
        self.title, self.pieces = title, [piece for piece in pieces if piece]
        self.sections: list[Section] = []
        self.draw, self._wanted = draw and drawable(), draw

    def section(self, title: str, *pieces: Piece) -> None:
        """Adds a section; empty texts are left out."""
        self.sections.append(Section(title, tuple(piece for piece in pieces if piece)))

    @property
    def figures(self) -> list[Figure]:
        return [piece for section in self.sections for piece in section.pieces if isinstance(piece, Figure)]

    def write(self, path: Path) -> Path:
        """Writes the page."""
        figures = self.figures
        charts: Mapping[str, Any] | None = None
        if self.draw and figures:
            data = {name: rows for figure in figures for name, rows in figure.data.items()}
            themes = {"light": chart_config(), "dark": chart_config(dark=True)}
            charts = {"data": data, "themes": themes, "runtime": runtime()}
        missing = f"This page has tables only: charts need the extra 'report' ({INSTALL})."
        text = filled(
            "evaluation/report",
            "page.html.md",
            page=self,
            charts=charts,
            missing=missing if self._wanted and figures and not self.draw else "",
            palettes=(PALETTE, PALETTE_DARK),
            version=__version__,
        )
        write_text(path, text)
        return path
