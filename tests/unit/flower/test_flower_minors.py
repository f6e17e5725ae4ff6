"""Only minors of Flower that the tests ran on are taken; any other is refused in a sentence that says what to type."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedsyn.flower.minors import KNOWN, requirement, why_not

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("version", ["1.41.0", "1.41.3", "1.42.0", "1.42.0.dev20261101", "1.42"])
def test_a_known_minor_is_taken(version: str) -> None:
    assert why_not(version) is None


@pytest.mark.parametrize("version", ["1.40.9", "1.43.0", "1.410.0", "2.41.0", "1.4.1", "nightly", "", None])
def test_another_minor_is_refused(version: str | None) -> None:
    reason = why_not(version)
    assert reason is not None and reason.endswith(
        f"works with Flower 1.41 and 1.42: type pip install '{requirement()}'"
    )
    assert (f"Flower {version};" in reason) or (version is None and "not installed" in reason)


def test_every_place_that_asks_for_flower_asks_for_the_known_minors() -> None:
    assert requirement() == f"flwr>=1.{KNOWN[0][1]},<1.{KNOWN[-1][1] + 1}"
    for file in ("pyproject.toml", "benchmarks/secagg_plus/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
        groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
        every = [each for group in groups for each in group]
        asked = [each.replace("[simulation]", "") for each in every if each.startswith("flwr")]
        assert asked and set(asked) == {requirement()}


def test_a_command_says_so_in_one_sentence_before_it_touches_flower(tmp_path: Path) -> None:
    """The other minor is one that pip knows of and that has no code: nothing of it may be imported."""
    known = tmp_path / "flwr-1.43.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: flwr\nVersion: 1.43.0\n", encoding="utf-8")
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "__init__.py").write_text("raise SystemError('imported')\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "fedsyn.front.cli", "run", str(ROOT / "configs" / "demo.yaml"), "--out", "out"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert " ".join(done.stderr.split()) == f"error: {why_not('1.43.0')}"
    assert not (tmp_path / "out").exists()
