"""Sources as syntax trees: the tests that read all of them share one reading."""

from __future__ import annotations

import ast
from functools import cache


@cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """Every node of a module's text, the module itself first."""
    return tuple(ast.walk(ast.parse(text)))
