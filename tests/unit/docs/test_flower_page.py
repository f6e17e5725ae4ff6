"""What the page for people who know Flower shows works, here on a Grid of messages in this process.

`tests/e2e/test_engines.py` has it under `flwr run`.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fedsyn.flower import Context, RecordDict
from fedsyn.flower.grid import InProcessGrid
from support.flower_page import CLIENTS, blocks, check_table, write_app


def app_of(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("app_of_the_page", folder / "app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_app_of_the_page_makes_a_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_app(tmp_path / "app")
    app = app_of(folder)
    run_config = {"rows": str(folder / "rows"), "out": str(folder / "synthetic.csv")}
    nodes = [{"partition-id": k, "num-partitions": CLIENTS} for k in range(CLIENTS)]
    with caplog.at_level(logging.INFO, "flwr"):
        app.server(InProcessGrid(app.client, nodes, run_config), Context(1, 0, {}, RecordDict(), run_config))
    check_table(folder / "synthetic.csv")
    for said in ("AugFlaim (augflaim), 2 columns", "[ROUND 3] clients 20, dropped 0", "evaluate_fn: {'mean age'"):
        assert said in caplog.text


def test_the_app_has_twenty_lines() -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


@pytest.mark.thorough
def test_flower_builds_a_bundle_of_it(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(folder)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert [file.name for file in tmp_path.glob("you.wards.1-0-0.*.fab")]


@pytest.mark.slow
def test_the_unpacked_bundle_of_this_repository_is_what_flower_hub_takes(tmp_path: Path) -> None:
    """`flwr app publish` checks what it uploads; the checks need no account, the upload does."""
    root, app = Path(__file__).resolve().parents[3], tmp_path / "fedsyn-app"
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(root)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    (bundle,) = tmp_path.glob("fedsyn.fedsyn.*.fab")
    with zipfile.ZipFile(bundle) as packed:
        packed.extractall(app)
    hub: Any = importlib.import_module("flwr.cli.app_cmd.publish")
    hub._validate_app_name(app.name, "directory")
    files = hub._collect_file_paths(app)
    hub._validate_files(files)
    assert {"pyproject.toml", "server_app.py", "client_app.py", "flwr.yaml"} <= {file.name for file in files}
    with pytest.raises(Exception, match="Too many files"):
        hub._validate_files(hub._collect_file_paths(root))
