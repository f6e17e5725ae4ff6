"""A checkout's folders hold the modules that run, under whichever name they are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def printed(code: str, folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_checkouts_folders_are_what_runs_and_no_file_is_loaded_by_two_paths() -> None:
    code = """
import clients.flaim, partitioners.iid, strategies.flaim
from strategies.flaim import AugFlaim
from strategies import aim
from fedsyn.registry import client_class, partitioner, strategy_class
print(AugFlaim is strategy_class("augflaim"), aim.Aim is strategy_class("aim"))
print(clients.flaim.AugFlaimClient is client_class("augflaim"), type(partitioner("iid")) is partitioners.iid.Iid)
print(strategies.flaim.__file__, strategies.flaim.__spec__.name)

import sys
from pathlib import Path
import strategies.sketch_aim, clients.aim
from fedsyn.registry import mechanisms
for name in mechanisms():
    strategy_class(name)
files = {}
for name, module in sys.modules.items():
    file = getattr(module, "__file__", None)
    if file and "__init__" not in file and Path(file).parent.name in ("strategies", "clients"):
        files.setdefault(Path(file).resolve(), set()).add((id(module), file))
print(len(files) > 15, {len(each) for each in files.values()} == {1})
"""
    file, name = str(ROOT / "strategies" / "flaim.py"), "fedsyn.plugins.strategies.flaim"
    assert printed(code, ROOT) == ["True"] * 4 + [file, name] + ["True"] * 2


def test_folders_of_somebody_elses_stay_theirs(tmp_path: Path) -> None:
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "strategies" / "flaim.py").write_text("MINE = True\n", encoding="utf-8")
    code = """
from fedsyn.registry import strategy_class
strategy_class("augflaim")
import strategies.flaim
print(strategies.flaim.MINE, hasattr(strategies.flaim, "AugFlaim"))
"""
    assert printed(code, tmp_path) == ["True", "False"]
