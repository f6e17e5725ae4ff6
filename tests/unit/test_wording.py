"""Sentences that a native engineer stumbles over: CONTRIBUTING.md has them beside better ones.

Read are the pages, and of the sources the first line of each docstring and every other string: errors and help of the
command line among them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.parsed import nodes_of

pytestmark = pytest.mark.xdist_group("sources")  # on one worker, which parses them once
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("fedsyn", "strategies", "clients", "partitioners", "benchmarks")
PAGES = ("README.md", "SECURITY.md", "docs/*.md", "docs/mechanisms/*.md", "docs/tutorials/*.md", "experiments/**/*.md")

#: What only the first line of a docstring must not do, and what no sentence must say.
FIRST_LINES = {
    "Of ...": r"^Of\b",
    "; XError if": r"[;,:] [A-Z]\w+(?:Error|Exceeded)\w* (?:if|where)\b",
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
    """Yield the first line of each docstring (with True) and each other string (with False) of a module."""
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
    """Yield (folder, text, whether it is the first line of a docstring) of all that people read."""
    for pattern in PAGES:
        for path in ROOT.glob(pattern):
            yield path.relative_to(ROOT).parts[0], path.read_text(encoding="utf-8"), False
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            if "plugins" not in path.relative_to(ROOT).parts:  # links to the other folders
                for text, first in strings(path.read_text(encoding="utf-8")):
                    yield folder, text, first


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
