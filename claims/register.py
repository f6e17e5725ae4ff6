"""What is claimed where: the entries of the register, the figures of the pages, and what is stale.

An entry of claims/*.yaml is a run: a command, commit and minutes of its last measurement, what tells that it can have
moved (`fingerprints`), how far its figures may (`tolerance`, or `runs`: two standard errors of so many), and the
figures that it prints, each by the page and the phrase or table in which it stands.

A figure is a measured quantity: a decimal, or a number with a unit (seconds, bytes, %, times), or a cell of a table
that is a number. A number behind a relation (ε = 0.3) is a parameter, one behind a name (Python 3.11, Lemma 4.1) a
version or a place. What else is arithmetic, an option or somebody else's is listed with its reason in not_figures.yaml.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TAKEN, ALLOWED, SHARDS = HERE / "fingerprints.yaml", HERE / "not_figures.yaml", HERE / "shards.yaml"
NEVER = "never"

#: Pages whose figures need an entry, and those on which a stale one needs a reason.
READ = ("README.md", "docs/**/*.md", "benchmarks/README.md")
STRICT = ("README.md", "docs/", "benchmarks/README.md")
WRITTEN = ("docs/reference/", "docs/statements.md")  # by docs/site/reference.py, from the models

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_UNIT = (
    r"(?:%|[kMGT]?B\b|CPU s|ms\b|s\b|min\b|minutes?\b|hours?\b|seconds\b|megabytes\b|kilobytes\b|bytes\b|times\b|"
    r"x\b|nats\b|of \d+ runs\b)"
)
_FIGURE = re.compile(
    rf"(?<![\w.,^/–=-]){_NUMBER}(?:(?: to | and | or | / |–|, ){_NUMBER})*\s?{_UNIT}"
    r"|(?<![\w.^-])[\d,]*\d\.\d+(?![.\d-])"
)
_CELL = re.compile(r"(?<=\|) *[*]*[\d,.]*\d[*]*(?: \([\d.]+\))?[*]* *(?=\|)")
_BEHIND = re.compile(r"([=≤≥<>≈]|\b[A-Z]\w*\.?|\bmbi|\bopendp) ?$")
_HIDDEN = [
    re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL),
    re.compile(r"<[^>]*>", re.DOTALL),
    re.compile(r"``.*?``|`[^`]*`", re.DOTALL),
    re.compile(r"\]\([^)]*\)"),
    re.compile(r"^#.*$", re.MULTILINE),
    re.compile(r"https?://\S+"),
]
_TABLE = re.compile(r"(?:^\|.*(?:\n|\Z))+", re.MULTILINE)
_NOTE = re.compile(r"\n\n?\*<!-- stale -->[^*\n]*\*(?=\n)")
_CELL_NUMBER = re.compile(r"(?<![\w.])[\d,]*\d(?:\.\d+)?(?: \([\d.]+\))?")


class Page:
    """A page: its prose with every run of blanks as one, so that a phrase may go over a line's end."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, _NOTE.sub("", text)
        self.tables = [(match.start(), match.end()) for match in _TABLE.finditer(self.text)]

    @classmethod
    def read(cls, name: str) -> Page:
        return cls(name, (ROOT / name).read_text(encoding="utf-8"))

    def span(self, phrase: str) -> tuple[int, int] | None:
        """Where a phrase stands: once, or not at all as far as the register is concerned."""
        words = r"\s+".join(map(re.escape, phrase.split()))
        found = list(re.finditer(words, self.text))
        return found[0].span() if len(found) == 1 else None

    def table(self, head: str) -> tuple[int, int] | None:
        """The table whose first line starts so."""
        found = [(start, end) for start, end in self.tables if self.text.startswith(head, start)]
        return found[0] if len(found) == 1 else None

    @cached_property
    def figures(self) -> list[tuple[int, int]]:
        """Where figures stand."""
        shown = self.text
        for hidden in _HIDDEN:
            shown = hidden.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), shown)
        prose = [match.span() for match in _FIGURE.finditer(shown) if not _BEHIND.search(shown[: match.start()][-30:])]
        cells = [match.span() for start, end in self.tables for match in _CELL.finditer(shown, start, end)]
        return sorted({*prose, *cells})

    def digits(self, span: tuple[int, int]) -> str:
        """A hash of the numbers in a table, or in a page."""
        return hashlib.sha256(" ".join(_CELL_NUMBER.findall(self.text[slice(*span)])).encode()).hexdigest()[:8]

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1


@dataclass(frozen=True)
class Figure:
    """Figures of one phrase, table or whole page.

    Attributes:
        page: below the root.
        phrase: the words in which they stand, numbers included; None of a table.
        table: how the table's first line starts.
        digits: hash of the numbers of the table, or of the page.
        sd: of a phrase's figure, over `runs`.
        value: the number that `sd` is of.
    """

    page: str
    phrase: str | None = None
    table: str | None = None
    digits: str | None = None
    sd: float | None = None
    value: float | None = None

    def span(self, page: Page) -> tuple[int, int] | None:
        if self.phrase is not None:
            return page.span(self.phrase)
        return page.table(self.table) if self.table else (0, len(page.text))

    @property
    def where(self) -> str:
        return f"{self.page}: {self.phrase or self.table or 'the whole page'}"


@dataclass(frozen=True)
class Run:
    """An entry: what one command prints.

    Attributes:
        commit: at which it was measured; "unknown": nobody can say.
        fingerprints: name -> digest at that measurement; "never": it was not measured since there are fingerprints.
        tolerance: share of a value by which it may move.
        reason: for a tolerance above a fifth.
        runs: how many a mean (sd) in a table is of; its tolerance is two standard errors.
        exits: the command itself says by its exit code whether all figures are within their tolerances.
        elsewhere: commit of which the figures came out under the code of another processor, too.
        may_be_stale: until when, and why.
    """

    name: str
    file: Path
    command: str
    commit: str
    minutes: float
    fingerprints: dict[str, str]
    figures: tuple[Figure, ...]
    tolerance: float | None = None
    reason: str | None = None
    runs: int | None = None
    exits: bool = False
    may_be_stale: str | None = None
    elsewhere: str | None = None

    @property
    def portable(self) -> bool:
        """Whether the figures are known to come out under another processor's code."""
        return self.elsewhere == self.commit

    def moved(self, now: dict[str, str]) -> list[str]:
        """The fingerprints that have changed since."""
        return [name for name, then in self.fingerprints.items() if now.get(name) != then]

    def note(self) -> str:
        when = f"Measured at {self.commit}" if self.commit != "unknown" else "Measured at a commit that nobody knows"
        return f"*<!-- stale -->{when}; what it measures has changed since.*"


def load(folder: Path = HERE) -> list[Run]:
    """All entries, in the order of the files."""
    found: list[Run] = []
    for file in sorted(folder.glob("*.yaml")):
        if file.name in (TAKEN.name, ALLOWED.name, SHARDS.name):
            continue
        for name, entry in (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).items():
            figures = tuple(Figure(**each) for each in entry.pop("figures"))
            commits = {key: str(entry[key]) for key in ("commit", "elsewhere") if key in entry}
            found.append(Run(name=name, file=file, figures=figures, **{**entry, **commits}))
    return found


def taken() -> dict[str, dict[str, Any]]:
    """name -> what `make claims` took last."""
    return yaml.safe_load(TAKEN.read_text(encoding="utf-8")) if TAKEN.exists() else {}


def digest_of(facts: dict[str, Any]) -> str:
    return hashlib.sha256(yaml.safe_dump(facts).encode()).hexdigest()[:8]


def current() -> dict[str, str]:
    """name -> digest of what was taken last."""
    return {name: digest_of(facts) for name, facts in taken().items()}


def stale(runs: list[Run] | None = None, now: dict[str, str] | None = None) -> list[Run]:
    """The entries of which a fingerprint has changed, oldest name first."""
    known = current() if now is None else now
    return [run for run in (load() if runs is None else runs) if run.moved(known) or run.commit == "unknown"]


def pages() -> Iterator[str]:
    """Pages that need an entry for each figure."""
    for pattern in READ:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(WRITTEN):
                yield name


def allowed() -> dict[str, list[tuple[str, str]]]:
    """page -> (reason, phrase) of what looks like a figure and is none."""
    found: dict[str, list[tuple[str, str]]] = {}
    for reason, places in yaml.safe_load(ALLOWED.read_text(encoding="utf-8")).items():
        for page, phrases in places.items():
            found.setdefault(page, []).extend((reason, phrase) for phrase in phrases)
    return found


def problems(runs: list[Run] | None = None, read: dict[str, Page] | None = None) -> list[str]:
    """What is wrong with pages and entries, one sentence each."""
    entries, known = load() if runs is None else runs, {} if read is None else dict(read)
    covered: dict[str, list[tuple[int, int]]] = {}
    found: list[str] = []

    def page_of(name: str) -> Page:
        return known.setdefault(name, Page.read(name)) if name in known or (ROOT / name).is_file() else Page(name, "")

    for run in entries:
        if run.tolerance is not None and run.tolerance > 0.2 and not run.reason:
            found.append(f"{run.name}: a tolerance above a fifth needs a reason")
        for figure in run.figures:
            page = page_of(figure.page)
            span = figure.span(page)
            if span is None:
                found.append(f"{figure.where}: not there, or twice ({run.name} in {run.file.name})")
                continue
            covered.setdefault(figure.page, []).append(span)
            if figure.phrase is None and figure.digits != page.digits(span):
                found.append(f"{figure.where}: differs from its entry, {run.name} in {run.file.name}")
    for name, phrases in allowed().items():
        for reason, phrase in phrases:
            spans = [
                match.span() for match in re.finditer(r"\s+".join(map(re.escape, phrase.split())), page_of(name).text)
            ]
            if not spans:
                found.append(f"{name}: {phrase!r} ({reason}) is in not_figures.yaml and no longer on the page")
            covered.setdefault(name, []).extend(spans)
    for name in pages():
        page = page_of(name)
        for start, end in page.figures:
            if not any(low <= start and end <= high for low, high in covered.get(name, ())):
                text = " ".join(page.text[max(0, start - 40) : end + 20].split())
                found.append(f"{name}:{page.line(start)}: a figure without an entry: … {text} …")
    return found


def noted(text: str, name: str, runs: list[Run] | None = None) -> str:
    """The page, with a note behind each paragraph or table that has a stale figure."""
    page = Page(name, text)
    at: dict[int, str] = {}
    for run in stale(runs):
        for figure in run.figures:
            span = figure.span(page) if figure.page == name else None
            if span is not None:
                end = page.text.find("\n\n", span[1] - 1)
                at[len(page.text.rstrip()) if end < 0 else end] = run.note()
    for end in sorted(at, reverse=True):
        page.text = f"{page.text[:end]}\n\n{at[end]}{page.text[end:]}"
    return page.text
