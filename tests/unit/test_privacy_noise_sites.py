"""Noise is drawn in one module only, and only the ledger reaches it: read from the sources themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCANNED = ("fedsyn", "strategies", "clients")
DRAWS = {
    "gumbel",
    "laplace",
    "lognormal",
    "multivariate_normal",
    "normal",
    "normalvariate",
    "randn",
    "rvs",
    "standard_cauchy",
    "standard_exponential",
    "standard_normal",
    "standard_t",
}
NOISE_MODULE = "fedsyn/privacy/_noise.py"
# Draws that protect nobody's row, each with the reason.
ALLOWED = {
    "fedsyn/data/synthfs.py": "the SynthFS generator makes the table itself",
    "fedsyn/testing/harness.py": "hands the draws of a watched source on, and reports those outside a ledger entry",
}


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in SCANNED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _called_name(call: ast.Call) -> str | None:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def draws(tree: ast.Module) -> list[int]:
    """Line numbers of calls that draw from a noise distribution."""
    return [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and _called_name(n) in DRAWS]


def imports_noise(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        else:
            continue
        if any(name.endswith("._noise") for name in names):
            return True
    return False


def test_noise_is_drawn_in_one_module_only() -> None:
    found = {name: lines for name, tree in _sources() if (lines := draws(tree))}
    assert NOISE_MODULE in found
    strangers = {name: lines for name, lines in found.items() if name != NOISE_MODULE and name not in ALLOWED}
    assert not strangers, f"noise drawn outside a ledger entry (file: lines): {strangers}"


def test_only_the_ledger_reaches_the_noise_module() -> None:
    importers = [name for name, tree in _sources() if imports_noise(tree)]
    assert importers == ["fedsyn/privacy/ledger.py"]


@pytest.mark.parametrize(
    "code,expected",
    [
        ("rng.standard_normal(3)", [1]),
        ("x = 1\nnp.random.normal(0, 1)", [2]),
        ("from numpy.random import laplace\nlaplace()", [2]),
        ("ledger.gaussian(x)\nledger.exponential(x)\nrng.random()", []),
    ],
)
def test_the_scan_sees_draws(code: str, expected: list[int]) -> None:
    assert draws(ast.parse(code)) == expected


@pytest.mark.parametrize(
    "code",
    [
        "from fedsyn.privacy import _noise",
        "from fedsyn.privacy._noise import gaussian",
        "import fedsyn.privacy._noise as n",
        "from . import _noise",
    ],
)
def test_the_scan_sees_imports(code: str) -> None:
    assert imports_noise(ast.parse(code))
