"""docs/adding_a_mechanism.md, followed literally: its files in an empty folder, its commands run there."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "adding_a_mechanism.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
FILES = {text.partition("\n")[0].removeprefix("# "): text for language, text in BLOCKS if language != "sh"}


def typed(line: str, folder: Path, *, fails: bool = False) -> str:
    """Output of a command of the page, typed in `folder` after the page's `export`; with this tree's fedsyn."""
    words = shlex.split(line)
    commands = {"fedsyn": [sys.executable, "-m", "fedsyn.front.cli"], "python": [sys.executable]}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "COLUMNS": "100"}
    done = subprocess.run(
        commands.get(words[0], words[:1]) + words[1:],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode != 0) == fails, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder into which the page's first commands and its files went."""
    made = tmp_path_factory.mktemp("page")
    assert COMMANDS[:3] == ["mkdir vote", "touch vote/__init__.py", "export PYTHONPATH=$PWD"]
    for line in COMMANDS[:2]:
        typed(line, made)
    assert list(FILES) == ["vote/client.py", "vote/strategy.py", "run.yaml", "pyproject.toml"]
    for name, text in FILES.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


def test_a_mechanism_imports_thirteen_names_from_one_module() -> None:
    imports = [
        node
        for name in ("vote/client.py", "vote/strategy.py")
        for node in ast.walk(ast.parse(FILES[name]))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedsyn")
    ]
    assert {node.module for node in imports} == {"fedsyn.mechanism"}
    assert len({alias.name for node in imports for alias in node.names}) <= 13


@pytest.mark.slow
def test_the_mechanism_of_the_page_conforms(folder: Path) -> None:
    (check,) = (line for line in COMMANDS if "check_mechanism" in line)
    printed = typed(check, folder)
    assert re.match(r"vote\.strategy:Vote passes \d+ checks on 9 table\(s\)\.", printed), printed
    assert "Skipped" not in printed and "Traceback" not in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.slow
def test_the_mechanism_of_the_page_runs(folder: Path) -> None:
    (run,) = (line for line in COMMANDS if line.startswith("fedsyn run"))
    typed(run, folder)
    metrics = json.loads((folder / "runs" / "vote" / "metrics.json").read_text(encoding="utf-8"))
    assert 0 < metrics["workload_error"] < 2
    last = (folder / "runs" / "vote" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    assert 1 <= len(json.loads(last)["selected"]) <= 5
    ledger = json.loads((folder / "runs" / "vote" / "ledger.json").read_text(encoding="utf-8"))
    assert [entry["name"] for entry in ledger["releases"]] == ["sizes", "one-way", "vote", "measure"]
    assert ledger["spent"] <= ledger["capacity"] * (1 + 1e-9)


@pytest.mark.slow
def test_an_installed_package_gives_its_mechanism_a_short_name(folder: Path) -> None:
    """What an installer makes of the page's pyproject.toml: a folder of metadata beside the package."""
    (folder / "short.yaml").write_text(FILES["run.yaml"].replace("vote.strategy:Vote", "vote"), encoding="utf-8")
    assert "unknown mechanism 'vote'" in typed("fedsyn run short.yaml --out short", folder, fails=True)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    installed = folder / f"{project['name']}-{project['version']}.dist-info"
    installed.mkdir()
    facts = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (installed / "METADATA").write_text(facts, encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {path}\n" for name, path in points.items())
        for group, points in project["entry-points"].items()
    )
    (installed / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    assert "from the package vote" in typed("fedsyn mechanisms", folder)
    assert "imports no module that a file names" in typed("fedsyn explain run.yaml", folder, fails=True)
    told = " ".join(typed("fedsyn explain short.yaml", folder).split())
    assert "vote (each client by itself): One eligible clique, by the exponential mechanism." in told
    assert "for 5 marginals: each marginal has sensitivity 1" in told
    assert "noise drawn by the contributing clients, a share each" in told and "added up behind a zCDP filter" in told
    typed("fedsyn run short.yaml --out short", folder)
    assert (folder / "short" / "synthetic.csv").is_file()
