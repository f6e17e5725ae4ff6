"""A self-contained page, which loads nothing and runs no script.

It is built from texts, tables and pictures as data.

`templates/page.html.md` is how every page looks; the templates escape whatever is put into them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsyn.evaluation.report.charts import Mark, Picture
from fedsyn.evaluation.report.tables import Table
from fedsyn.files import write_text
from fedsyn.output import filled
from fedsyn.version import __version__


@dataclass(frozen=True)
class Part:
    """A piece of a page other than paragraphs, tables and pictures.

    A paragraph is a text by itself.

    Attributes:
        kind: how it looks.
        value: a text; of a warning (title, text), of answers and uses (mark, title, text) each, of a glance pictures
            side by side, of a list texts. Of definitions nothing: what the scores mean is the same everywhere.
    """

    kind: Literal["lead", "soft", "warning", "answers", "uses", "next", "glance", "list", "verbatim", "definitions"]
    value: Any = ""


@dataclass(frozen=True)
class Folded:
    """Pieces under one line, which opens them.

    Attributes:
        title: that line.
        pieces: what it opens.
        anchor: what links to it name: a browser opens it for them.
        mark, words: what became of it.
    """

    kind: ClassVar[str] = "folded"
    title: str
    pieces: tuple[Piece, ...]
    anchor: str = ""
    mark: Mark = ""
    words: str = ""


@dataclass(frozen=True)
class Details:
    """Several folded pieces, side by side until one is opened."""

    kind: ClassVar[str] = "details"
    parts: tuple[Folded, ...]


Piece = str | Part | Table | Picture | Folded | Details


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
    """

    def __init__(self, title: str, *pieces: Piece) -> None:
        self.title, self.pieces = title, [piece for piece in pieces if piece]
        self.sections: list[Section] = []

    def section(self, title: str, *pieces: Piece) -> None:
        """Adds a section, without empty texts.

        A section of nothing is none.
        """
        if shown := tuple(piece for piece in pieces if piece):
            self.sections.append(Section(title, shown))

    def write(self, path: Path) -> Path:
        """Writes the page."""
        write_text(path, filled("evaluation/report", "page.html.md", page=self, version=__version__))
        return path
