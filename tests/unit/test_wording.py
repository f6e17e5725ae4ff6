"""Sentences and names that a native engineer stumbles over; CONTRIBUTING.md has the rules.

Read are the pages, and of the sources the first line of each docstring and every other string: errors and help of the
command line among them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.parsed import nodes_of, sources

pytestmark = pytest.mark.xdist_group("sources")  # on one worker, which parses them once
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("fedsyn", "strategies", "clients", "partitioners", "benchmarks")
PAGES = ("README.md", "SECURITY.md", "docs/*.md", "docs/mechanisms/*.md", "docs/tutorials/*.md", "experiments/**/*.md")

#: How no docstring opens: it starts with a verb in the third person or a noun phrase. Its first line is short.
CLAUSES = "That What Whether How Where Who Whom Whose Which When Of By From As At The_same Its Their Those"
OPENER = re.compile(rf"^(?:{'|'.join(CLAUSES.split())})\b".replace("_", " "))
MOST_WORDS = 12
#: Names that say nothing of the thing that a parameter holds.
EMPTY_NAMES = {"own", "told", "said", "found", "kept", "made", "given", "asked"}
#: What only the first line of a docstring must not do, and what no sentence must say.
FIRST_LINES = {
    "Of ...": r"^Of\b",
    "; XError if": r"[;,:] [A-Z]\w+(?:Error|Exceeded)\w* (?:if|where)\b",
}
#: What there still is of each, by folder. A count is only ever lowered.
KNOWN: dict[str, dict[str, int]] = {
    "fedsyn/privacy": {"names": 2},
}
ANYWHERE = {
    "At which.": r"\bAt which\.",
    "is none": r"(?<![Tt]here )\b(?:is|are) none\b",
    "is no noun": r"(?<![Tt]here )\bis no (?!longer\b|more\b|less\b|fewer\b|better\b|worse\b|larger\b|smaller\b)[a-z]",
    "whoever": r"\b[Ww]hoever\b",
    "so many": r"\b[Ss]o many\b",
    "another number of": r"\b[Aa]nother number of\b",
    "reckon": r"\breckon",
}


def strings(source: str) -> Iterator[tuple[str, bool]]:
    """Yields the first line of each docstring (with True) and each other string (with False) of a module."""
    nodes = nodes_of(source)
    documented: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                documented.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield text.splitlines()[0], True
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value, False


def sentences() -> Iterator[tuple[str, str, bool]]:
    """Yields (folder, text, whether it is the first line of a docstring) of all that people read."""
    for pattern in PAGES:
        for path in ROOT.glob(pattern):
            yield path.relative_to(ROOT).parts[0], path.read_text(encoding="utf-8"), False
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            if "plugins" not in path.relative_to(ROOT).parts:  # links to the other folders
                for text, first in strings(path.read_text(encoding="utf-8")):
                    yield folder, text, first


# First lines and names -----------------------------------------------------------------------------------------------


def folder_of(path: str) -> str:
    """The folder of the product that a file stands in: a top folder of fedsyn, a folder of plug-ins, or `fedsyn`."""
    first, *rest = path.split("/")
    return f"{first}/{rest[0]}" if first == "fedsyn" and len(rest) > 1 else first


def clumsy(source: str) -> Iterator[tuple[str, int, str]]:
    """Yields (kind, line, text) of clumsy first lines and of parameters with empty names."""
    for node in nodes_of(source):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (text := ast.get_docstring(node)):
            first, line = text.splitlines()[0], node.body[0].lineno
            if OPENER.match(first):
                yield "openers", line, first
            if len(first.split()) > MOST_WORDS:
                yield "long", line, first
        if isinstance(node, ast.arg) and node.arg in EMPTY_NAMES:
            yield "names", node.lineno, node.arg


def offenders() -> dict[str, dict[str, list[str]]]:
    """For each folder and kind, the places of what is clumsy."""
    places: dict[str, dict[str, list[str]]] = {}
    for path, text in sources().items():
        for kind, line, words in clumsy(text):
            places.setdefault(folder_of(path), {}).setdefault(kind, []).append(f"{path}:{line}: {words}")
    return places


@pytest.mark.parametrize("kind", ["openers", "long", "names"])
def test_first_lines_and_names_are_plain(kind: str) -> None:
    more = [
        f"{folder}: {len(lines)}, allowed are {KNOWN.get(folder, {}).get(kind, 0)}\n" + "\n".join(lines)
        for folder, kinds in sorted(offenders().items())
        if len(lines := kinds.get(kind, [])) > KNOWN.get(folder, {}).get(kind, 0)
    ]
    assert not more, "CONTRIBUTING.md, Words:\n" + "\n".join(more)


def test_a_planted_first_line_is_found() -> None:
    planted = (
        '"""Whether it is."""\n\n\nclass A:\n    """Reads a card."""\n\n    def f(self, found, *told, made=1):\n'
        '        """Reads one card after the other, and then all that are left of them again."""\n'
        '        own = "What it says"\n'
    )
    hits = [(kind, line) for kind, line, _ in clumsy(planted)]
    assert sorted(hits) == [("long", 8), ("names", 7), ("names", 7), ("names", 7), ("openers", 1)]
    assert folder_of("fedsyn/table/schema/model.py") == "fedsyn/table" and folder_of("fedsyn/files.py") == "fedsyn"
    assert not OPENER.match("Ofsted's table") and OPENER.match("The same again")


# Phrases -------------------------------------------------------------------------------------------------------------


def test_no_sentence_has_such_a_phrase() -> None:
    found = [
        f"{folder}: '{phrase}' in {text[:100]!r}"
        for folder, text, first in sentences()
        for phrase, pattern in {**(FIRST_LINES if first else {}), **ANYWHERE}.items()
        if re.search(pattern, text)
    ]
    assert not found, "CONTRIBUTING.md, Words:\n" + "\n".join(found)


def test_a_planted_phrase_is_found() -> None:
    planted = (
        '"""Of the run."""\n\ndef f():\n    """Whoever asks; ConfigError if it is none."""\n    raise E("is no key")\n'
    )
    patterns = {**FIRST_LINES, **ANYWHERE}
    hits = {phrase for text, _ in strings(planted) for phrase, pattern in patterns.items() if re.search(pattern, text)}
    assert hits == {"Of ...", "; XError if", "whoever", "is none", "is no noun"}
    assert not re.search(ANYWHERE["is no noun"], "there is no column 'x'; 3 is no more than 4")
