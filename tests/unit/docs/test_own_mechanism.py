"""docs/own_mechanism.md and `fedsyn new`, which writes its files: they pass their own tests, and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsyn.errors import ConfigError
from fedsyn.front.cli.new import new, package_files
from fedsyn.testing import AwkwardTable, Skipped, awkward_table, mechanism_checks

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "own_mechanism.md").read_text(encoding="utf-8")


def test_every_block_of_the_page_is_a_file_or_commands() -> None:
    blocks = re.findall(r"^```(\w+)\n", PAGE, re.MULTILINE)
    files = package_files("robust")
    names = [
        "robust/__init__.py",
        "robust/client.py",
        "robust/strategy.py",
        "test_robust.py",
        "run.yaml",
        "pyproject.toml",
    ]
    assert list(files) == names and len(blocks) == len(names) + blocks.count("sh")
    assert all(text in PAGE and not text.startswith("#") for text in files.values())


def test_a_new_mechanism_has_its_own_name_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new("my_way")
    files = {str(path.relative_to("my_way")): path.read_text() for path in Path("my_way").rglob("*") if path.is_file()}
    assert sorted(files) == [
        "my_way/__init__.py",
        "my_way/client.py",
        "my_way/strategy.py",
        "pyproject.toml",
        "run.yaml",
        "test_my_way.py",
    ]
    assert not any("robust" in text.lower() for text in files.values())
    points = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]["fedsyn.mechanisms"]
    assert points == {"my_way": "my_way.strategy:MyWay"} and "class MyWay(" in files["my_way/strategy.py"]


@pytest.mark.parametrize(
    ("name", "word"),
    [("2fast", "cannot be"), ("class", "cannot be"), ("My", "cannot be"), ("numpy", "installed"), ("there", "already")],
)
def test_a_name_that_no_package_can_have_is_refused(
    name: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    with pytest.raises(ConfigError, match=word):
        new(name)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a new mechanism, whose package can be imported until the test ends."""
    monkeypatch.chdir(tmp_path)
    new("of_ones_own")
    monkeypatch.syspath_prepend(tmp_path / "of_ones_own")
    yield tmp_path / "of_ones_own"
    for module in [module for module in sys.modules if module.partition(".")[0] == "of_ones_own"]:
        del sys.modules[module]


def checked(table: AwkwardTable, *names: str) -> list[str]:
    """What is skipped of some checks on a table; they must not find anything."""
    skipped = []
    for check in mechanism_checks("of_ones_own.strategy:OfOnesOwn", tables=[table]):
        if check.name in names:
            try:
                check()
            except Skipped as reason:
                skipped.append(str(reason))
    return skipped


def test_a_new_mechanism_conforms_where_it_matters_most(written: Path) -> None:
    assert not checked(awkward_table("missing_values"), "ledger", "sensitivity", "released_values_only", "statement")


def test_a_table_that_is_too_narrow_is_refused_and_skipped(written: Path) -> None:
    (reason,) = set(checked(awkward_table("single_column"), "ledger", "released_files"))
    assert reason == "refused by the mechanism: a median over pairs needs a table of two columns or more"


def typed(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    facts = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 600, "check": False}
    done = subprocess.run([sys.executable, "-m", *words], **facts)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.mark.slow
def test_the_tests_of_a_new_mechanism_pass(written: Path) -> None:
    assert re.search(r"\d+ passed, \d+ skipped", typed(written, "pytest", "-q", "-p", "no:cacheprovider"))


@pytest.mark.slow
def test_a_new_mechanism_runs(written: Path) -> None:
    typed(written, "fedsyn.front.cli", "run", "run.yaml", "--out", "made")
    assert 0 < json.loads((written / "made" / "metrics.json").read_text())["workload_error"] < 2
    assert (
        "each client's noisy counts"
        in json.loads((written / "made" / "ledger.json").read_text())["statement"]["server_sees"]
    )
