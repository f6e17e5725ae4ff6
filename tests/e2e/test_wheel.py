"""What a wheel holds: `fedsyn` and nothing else on the import path, with everything that an empty folder needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedsyn.front.cli.new import package_files

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this tree, offline."""
    pytest.importorskip("hatchling", reason="building a wheel offline needs hatchling (extra 'dev')")
    pytest.importorskip("pip", reason="building a wheel needs pip")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(ROOT)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next(folder.glob("fedsyn-*.whl"))


@pytest.mark.slow
@pytest.mark.thorough
def test_nothing_but_fedsyn_is_on_the_import_path(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"fedsyn", next(name for name in top if name.endswith(".dist-info"))}
    assert len(names) == len(set(names))


@pytest.mark.thorough
def test_it_holds_what_an_empty_folder_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "fedsyn").rglob("*.py")
        if "plugins/" not in path.as_posix()
    }
    assert sources <= names
    for folder in ("strategies", "clients", "partitioners"):
        assert {f"fedsyn/plugins/{folder}/{path.name}" for path in (ROOT / folder).glob("*.py")} <= names
    for path in (ROOT / "configs").rglob("*.yaml"):
        assert f"fedsyn/app/{path.relative_to(ROOT).as_posix()}" in names
    assert {
        f"fedsyn/table/data/registry/{path.name}" for path in (ROOT / "fedsyn/table/data/registry").glob("*.yaml")
    } <= names
    assert {"fedsyn/py.typed", "fedsyn/app/pyproject.toml"} <= names
    assert not [name for name in names if "test" in name.split("/")[-1] and name.startswith("tests")]


@pytest.mark.slow
@pytest.mark.thorough
def test_it_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """The wheel alone on the path, not this checkout: the demo, and a page."""
    pytest.importorskip("statsmodels", reason="the demo's table is statsmodels'")
    here = tmp_path / "empty"
    here.mkdir()
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "COLUMNS": "80"}
    where = "import fedsyn; print(fedsyn.__file__)"
    found = subprocess.run([sys.executable, "-c", where], cwd=here, env=environment, capture_output=True, text=True)
    assert str(tmp_path / "installed") in found.stdout
    command = [sys.executable, "-m", "fedsyn.front.cli", "demo", "--out", "out"]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "may be released" in done.stdout
    assert {"synthetic.csv", "report.html", "ledger.json"} <= {path.name for path in (here / "out").iterdir()}


@pytest.mark.thorough
def test_it_writes_a_mechanism_to_start_from(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    command = [sys.executable, "-m", "fedsyn.front.cli", "new", "of_mine"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "of_mine"
    files = {path.relative_to(made).as_posix(): path.read_text() for path in made.rglob("*") if path.is_file()}
    assert files == package_files("of_mine")
