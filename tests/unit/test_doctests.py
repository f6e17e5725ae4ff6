"""The examples in docstrings do what they say, and the public face is complete and light."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fedsyn

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fedsyn", "strategies", "clients", "partitioners")


def _modules_with_examples() -> list[str]:
    """Every module of the product that holds a line `>>> `."""
    names = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if any(line.lstrip().startswith(">>> ") for line in path.read_text(encoding="utf-8").splitlines()):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            names.append(name if name.split(".")[0] == "fedsyn" else f"fedsyn.plugins.{name}")
    return names


@pytest.mark.parametrize("name", _modules_with_examples())
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0, "the examples stand where doctest does not look"
    assert found.failed == 0, "see the printed difference"


def test_the_public_names_have_examples() -> None:
    public = {
        "fedsyn",
        "fedsyn.domain",
        "fedsyn.table.schema.model",
        "fedsyn.privacy.budget",
        "fedsyn.privacy.conversion",
    }
    assert public | {"fedsyn.table.counting.workload", "fedsyn.inference.estimation"} <= set(_modules_with_examples())


def test_every_public_name_is_what_its_module_holds() -> None:
    for name in fedsyn.__all__:
        assert name in dir(fedsyn)
        if name != "__version__":
            assert getattr(fedsyn, name) is getattr(importlib.import_module(fedsyn._MODULES[name]), name)
    with pytest.raises(AttributeError, match="no attribute 'load_confg'"):
        fedsyn.load_confg  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    assert f'\nversion = "{fedsyn.__version__}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"\nversion: {fedsyn.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_importing_fedsyn_loads_no_other_package() -> None:
    code = """
import sys
before = set(sys.modules)
import fedsyn
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names) - {"fedsyn"}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
