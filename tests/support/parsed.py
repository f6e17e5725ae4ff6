"""Sources as text and as syntax trees: the tests that read all of them share one reading."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fedsyn", "strategies", "clients", "partitioners")


@cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """Every node of a module's text, the module itself first."""
    return tuple(ast.walk(ast.parse(text)))


@cache
def sources() -> dict[str, str]:
    """Path within the repository -> text, of every module of the product."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
