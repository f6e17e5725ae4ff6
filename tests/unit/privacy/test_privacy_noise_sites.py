"""Noise is drawn in two modules only, and only the ledger reaches them: read from the sources themselves.

What is scanned: calls by the name of a noise distribution (`DRAWS`), and imports of the noise modules. The discrete
Gaussian is made from uniform integers (`source.integers`), which serve other purposes as well and are no noise by
themselves, so its module is guarded by the imports. Uniform numbers that somebody turns into noise with arithmetic of
his own cannot be seen here; the conformance checks see them, when a mechanism runs: a source of noise that is drawn
from outside a ledger entry, by whatever method, is reported.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from support.parsed import nodes_of

pytestmark = pytest.mark.xdist_group("sources")  # on one worker, which parses them once
ROOT = Path(__file__).resolve().parents[3]
SCANNED = ("fedsyn", "strategies", "clients")
DRAWS = {
    "discrete_gaussian",
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
# Module: the only one that may import it.
REACHED_BY = {"_noise": "fedsyn/privacy/ledger.py", "_discrete": NOISE_MODULE}
# Draws that protect nobody's row, each with the reason.
ALLOWED = {
    "fedsyn/table/data/sources.py": "the SynthFS generator makes the table itself",
    "strategies/ctgan_networks.py": "the noise that a generator makes rows of; it never meets a real one",
    "fedsyn/front/standin.py": "draws tables that stand in for real ones, which it never sees",
    "fedsyn/selection/halves.py": "splits released numbers by public coins; it sees no row",
    "fedsyn/inference/posterior.py": "draws of what released sums leave uncertain; it sees no row",
    "fedsyn/front/testing/harness.py": "hands on the draws of a watched source, reports those outside a ledger entry",
}


@cache
def _sources() -> dict[str, str]:
    files = [path for folder in SCANNED for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _called_name(call: ast.Call) -> str | None:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def draws(text: str) -> list[int]:
    """Line numbers of calls that draw from a noise distribution."""
    return [n.lineno for n in nodes_of(text) if isinstance(n, ast.Call) and _called_name(n) in DRAWS]


def imports_module(text: str, module: str) -> bool:
    for node in nodes_of(text):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        else:
            continue
        if any(module in name.split(".") for name in names):
            return True
    return False


def test_noise_is_drawn_in_one_module_only() -> None:
    found = {name: lines for name, text in _sources().items() if (lines := draws(text))}
    assert NOISE_MODULE in found
    strangers = {name: lines for name, lines in found.items() if name != NOISE_MODULE and name not in ALLOWED}
    assert not strangers, f"noise drawn outside a ledger entry (file: lines): {strangers}"


@pytest.mark.parametrize("module", REACHED_BY)
def test_only_the_ledger_reaches_the_noise_modules(module: str) -> None:
    importers = [name for name, text in _sources().items() if imports_module(text, module)]
    assert importers == [REACHED_BY[module]]


@pytest.mark.parametrize(
    "code,expected",
    [
        ("rng.standard_normal(3)", [1]),
        ("x = 1\nnp.random.normal(0, 1)", [2]),
        ("from numpy.random import laplace\nlaplace()", [2]),
        ("from fedsyn.privacy._discrete import discrete_gaussian\ndiscrete_gaussian(3.0, 5, rng)", [2]),
        ("ledger.gaussian(x)\nledger.exponential(x)\nledger.distributed(x)\nrng.random()\nrng.integers(7)", []),
    ],
)
def test_the_scan_sees_draws(code: str, expected: list[int]) -> None:
    assert draws(code) == expected


@pytest.mark.parametrize("module", REACHED_BY)
@pytest.mark.parametrize(
    "code",
    [
        "from fedsyn.privacy import {}",
        "from fedsyn.privacy.{} import gaussian",
        "import fedsyn.privacy.{} as n",
        "from . import {}",
        "from .{} import gaussian",
    ],
)
def test_the_scan_sees_imports(module: str, code: str) -> None:
    assert imports_module(code.format(module), module)
    assert not imports_module(code.format("ledger"), module)
