"""What a run leaves behind when it fails or is killed: no rows, no lost ledger, and the right class of error."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, InputError, RunError
from fedsyn.flower.grid import InProcessGrid
from fedsyn.loading import parse_config
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.runs.directory import keep_ledger
from fedsyn.runs.engines import run
from fedsyn.runs.holders import app
from fedsyn.runs.open_tables import read_own
from fedsyn.runs.prepare import deployed, prepare
from fedsyn.runs.run_config import store_of
from fedsyn.runs.serve import serve
from fedsyn.table.data.encoded import RowFiles
from fedsyn.table.schema import Schema

SCHEMA = """
columns:
  cost: {kind: integer, lower: 0, upper: private, bins: {private: 8}}
  paid: {kind: integer, lower: 0, upper: private, bins: {private: 8}}
  ward: {kind: categorical, categories: {private: {length: 6}}}
  sex: {kind: categorical, categories: [f, m]}
"""


def table(rows: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    cost = rng.integers(0, 5000, rows)
    names = {"ward": [f"W{i}" if i % 10 == 0 else "north" for i in range(rows)], "sex": rng.choice(["f", "m"], rows)}
    return pd.DataFrame({"cost": cost, "paid": np.minimum(cost + 7, 4000 + cost // 9), **names})


def config(**changes: Any) -> RunConfig:
    document: dict[str, Any] = {
        "mechanism": {"name": "augflaim", "rounds": 2},
        "data": {"source": "rows"},
        "federation": {"clients": 3},
        "privacy": {"epsilon": 20.0, "delta": 1e-5},
        "workload": {"degree": 2, "size": None},
        "aggregation": {"protocol": "plain", "noise": "distributed"},
    }
    merged = {key: {**value, **changes.get(key, {})} for key, value in document.items()}
    return parse_config({**changes, **merged, "evaluation": []})


# Before anything is spent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (SCHEMA.replace("8}", "200}"), {"inference": {"max_cells": 5000}}, "need a model of inference.max_cells"),
        (
            SCHEMA.replace("8}", "200}").replace(
                "  ward", "  due: {kind: integer, bounds: private, bins: {private: 200}}\n  ward"
            )
            + "constraints: [cost <= due, due <= paid]",
            {},
            "hang together",
        ),
    ],
    ids=["room", "too wide"],
)
def test_what_no_found_schema_could_honour_is_refused_before(
    tmp_path: Path, text: str, changes: dict[str, Any], message: str
) -> None:
    text += "" if "constraints" in text else "constraints: [paid <= cost]"
    frame = table().assign(due=1)
    with pytest.raises(InputError, match=message) as caught:
        run(config(**changes), tmp_path / "out", table=frame, schema=Schema.loads(text))
    assert "as many bins and categories as may be found" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_largest_schema_has_as_much_as_may_be_found() -> None:
    text = """
columns:
  x: {kind: integer, bounds: private, bins: {private: 200}}
  y: {kind: decimal, places: 2, lower: 0, upper: private, bins: {private: 31}}
  z: {kind: integer, lower: 0, upper: 4, bins: {private: 31}}
  t: {kind: time, bins: private}
  d: {kind: date, bounds: private, bins: 7}
  w: {kind: code, categories: {private: {most: 1024, length: 2}}}
constraints:
  - impossible: {w: Q7, z: 3}
"""
    largest = PrivateColumns(Schema.loads(text)).largest()
    # Five values of d may get a bin each.
    assert not largest.open and largest.domain.shape == (200, 31, 5, 32, 12, 1025)
    assert "Q7" in largest.columns["w"].categories and len(largest.domain.zeros) == 1  # type: ignore[union-attr]


# After ---------------------------------------------------------------------------------------------------------------


def test_bad_input_after_anything_was_released_is_a_failed_run(tmp_path: Path) -> None:
    """The mechanism is made when the schema is closed; nothing about a made one can be known before."""

    def make(*_: Any, **__: Any) -> Any:
        raise ConfigError("no room")

    schema, nodes = Schema.loads(SCHEMA), [{"partition-id": k, "num-partitions": 3} for k in range(3)]
    prepared = prepare(config(), tmp_path / "store", table(), schema)
    grid = InProcessGrid(app, nodes, {"resolved": json.dumps(config().to_dict()), "store": str(prepared.folder)})
    with pytest.raises(RunError, match=r"no room \(after epsilon [0-9.]+ at delta 1e-05 was spent; the ledger is in"):
        serve(config(), prepared, grid, tmp_path, None, make)
    assert json.loads((tmp_path / "ledger.json").read_text("utf-8"))["epsilon"] > 0
    closed = Schema.loads("columns: {sex: {kind: categorical, categories: [f, m]}, n: {kind: boolean}}")

    class Refusing:
        def __init__(self, *_: Any, **given: Any) -> None:
            from fedsyn.privacy import Ledger, PrivacyBudget

            self.ledger = Ledger(PrivacyBudget(1.0, 1e-5))

        def run(self, grid: Any) -> None:
            raise ConfigError("no room")

    with pytest.raises(ConfigError, match=r"no room$"):
        serve(config(), deployed(config(), closed, tmp_path), grid, tmp_path, None, Refusing)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_rerun_keeps_the_ledger_of_what_was_spent(tmp_path: Path) -> None:
    out, texts = tmp_path / "out", []
    for _ in range(3):
        fedsyn.run(config(), out, table=table(600), schema=Schema.loads(SCHEMA))
        texts.append((out / "ledger.json").read_text("utf-8"))
    assert [(out / f"ledger-{n}.json").read_text("utf-8") for n in (1, 2)] == texts[:2]
    assert not (out / "ledger-3.json").exists()
    for text, kept in (('{"releases": []}', False), ("{", True), ('{"releases": [{}]}', True)):
        (tmp_path / "ledger.json").write_text(text, encoding="utf-8")
        keep_ledger(tmp_path)
        assert (tmp_path / "ledger.json").exists() is not kept
        (tmp_path / "ledger.json").unlink(missing_ok=True)


# The rows ------------------------------------------------------------------------------------------------------------


def test_a_store_has_the_words_of_its_own_rows_and_is_closed_to_others(tmp_path: Path) -> None:
    prepared = prepare(config(data={"test_fraction": 0.2}), tmp_path / "store", table(), Schema.loads(SCHEMA))
    train, test = read_own(prepared.folder), read_own(prepared.folder, "test_own")
    for own in (train, test):
        assert sorted(set(own.index["ward"].tolist()) - {-1}) == list(range(len(own.words["ward"])))
        assert len(own.words["ward"]) > 10
    assert set(train.words["ward"]) & set(test.words["ward"]) == {"north"}
    assert {*train.words["ward"], *test.words["ward"]} == set(table()["ward"])
    assert stat.S_IMODE(prepared.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in prepared.folder.iterdir()} == {0o600}
    found = prepared.close(PrivateColumns(prepared.schema).largest()).folder
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in found.iterdir()} == {0o600}


_LONG = """
import time
from test_what_stays import *
import {module} as module
inner = module.{name}
def stops(*given, **named):
    if {runtime} == {{}} or {name!r} != "serve":
        made = inner(*given, **named) if {after} else None
        print("begun", flush=True)
        time.sleep(60)
    advance = given[-1]
    def slowly(record):
        print("begun", flush=True)
        time.sleep(60)
    return inner(*given[:-1], slowly)
module.{name} = stops
if __name__ == "__main__":
    run(config(runtime={runtime}), Path({out!r}), table=table(), schema=Schema.loads(SCHEMA))
"""
#: Where a run is when it is killed: the function that it is in, at its beginning or behind it; by which engine.
_MOMENTS = {
    "opening": ("fedsyn.table.data.encoded", "_write_rows", False, {}),
    "writing": ("fedsyn.table.data.encoded", "_write_rows", True, {}),
    "own values written": ("fedsyn.runs.open_tables", "write_own", True, {}),
    "serving": ("fedsyn.runs.engines", "serve", False, {}),
    "serving by Ray": ("fedsyn.runs.engines", "serve", False, {"engine": "ray"}),
    "found": ("fedsyn.runs.open_tables", "write_found", True, {}),
    "finishing": ("fedsyn.runs.engines", "finish", False, {}),
}

_MARKS = {
    "writing": [],
    "serving by Ray": [pytest.mark.slow, pytest.mark.xdist_group("namespaces")],
}


def started(folder: Path, out: Path, moment: str) -> subprocess.Popen[str]:
    """A run in a process of its own, which has come to a moment and stays there."""
    module, name, after, runtime = _MOMENTS[moment]
    file = folder / "long.py"
    code = _LONG.format(out=str(out), module=module, name=name, after=after, runtime=runtime)
    file.write_text(code, encoding="utf-8")
    imports = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True, env=imports)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_folder_or_its_successor_removes_it(tmp_path: Path, kind: signal.Signals) -> None:
    out = tmp_path / "out"
    with started(tmp_path, out, "serving") as process:
        (store,) = out.glob(".store-*")
        with pytest.raises(RunError, match=r"^stop$"):  # somebody else's run in the same folder, at the same time
            other(out)
        assert (store / "own.json").exists(), "the folder of a living run stays"
        process.send_signal(kind)
        assert process.wait(30) == (143 if kind == signal.SIGTERM else -signal.SIGKILL)
    assert [folder.name for folder in out.glob(".store-*")] == ([] if kind == signal.SIGTERM else [store.name])
    with pytest.raises(RunError, match=r"^stop$"):
        other(out)
    assert not list(out.glob(".store-*"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files without a name need Linux")
@pytest.mark.parametrize("moment", [pytest.param(m, marks=_MARKS.get(m, [pytest.mark.slow])) for m in _MOMENTS])
def test_a_run_that_is_killed_with_kill_9_leaves_no_row(tmp_path: Path, moment: str) -> None:
    out = tmp_path / "out"
    with started(tmp_path, out, moment) as process:
        (store,) = out.glob(".store-*")
        links = [file for file in store.rglob("*") if file.is_symlink()]
        if moment not in ("opening", "writing"):  # the check below looks where the rows are
            assert b"W1230" in (store / "own.json").read_bytes()
            assert {"codes.npy", "own.json", "test.npy"} - {link.name for link in links} <= {"test.npy"}
        assert nameless(out), "and the files are on this disk, open"
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    assert not any(link.exists() for link in links)
    kept = [file for file in store.rglob("*") if file.is_file()]
    assert {file.name for file in kept} <= {"lock", "schema.yaml", "table.json"}
    assert not any(b"W1230" in file.read_bytes() for file in kept)
    deadline = time.monotonic() + 30
    while nameless(out) and time.monotonic() < deadline:  # workers see within moments that their parent has gone
        time.sleep(0.05)
    assert not nameless(out), "what has no name and is open nowhere is no longer on the disk"


def nameless(folder: Path) -> set[int]:
    """Processes that have a removed file of this folder open, or mapped."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            opened = [str(file.readlink()) for file in (process / "fd").iterdir()]
            mapped = (process / "maps").read_text(encoding="utf-8", errors="replace").splitlines()
            if any(str(folder) in line and line.endswith(" (deleted)") for line in [*opened, *mapped]):
                found.add(int(process.name))
    return found


def test_files_of_rows_have_no_name_and_go_with_who_keeps_them(tmp_path: Path) -> None:
    files, path = RowFiles(), tmp_path / "codes.npy"
    for size in (3, 5):  # a second one replaces the first
        before = np.load(path, mmap_mode="r") if path.exists() else None
        files.save(path, np.arange(size))
        assert np.load(path).tolist() == list(range(size))
        assert before is None or before.tolist() == [0, 1, 2], "who has the old one open keeps it"
    with pytest.raises(OSError, match="stop"), files.create(path) as file:
        file.write(b"half")
        raise OSError("stop")
    assert np.load(path).tolist() == [0, 1, 2, 3, 4], "what was not written to its end replaces nothing"
    code = f"import numpy; print(numpy.load({str(path)!r}, mmap_mode='r').sum())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "10\n", "another process of the same user opens it by its path"
    if not path.is_symlink():
        pytest.skip("files without a name need Linux")
    assert [file.name for file in tmp_path.iterdir()] == ["codes.npy"]
    files.close()
    assert path.is_symlink() and not path.exists()


@pytest.mark.parametrize("open_before", [0, 60])
def test_more_files_of_rows_than_a_process_may_have_open_at_first(tmp_path: Path, open_before: int) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, others = RowFiles(), [Path(os.devnull).open() for _ in range(open_before)]  # noqa: SIM115 - closed below
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, before[1]))
        for number in range(100):
            files.save(tmp_path / f"own-{number}.npy", np.arange(number))
        assert [len(np.load(tmp_path / f"own-{number}.npy")) for number in (0, 99)] == [0, 99]
    finally:
        files.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for other_file in others:
            other_file.close()


def test_where_there_are_no_such_links_files_of_rows_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsyn.table.data.encoded._leads_to", lambda *_: False)
    RowFiles().save(tmp_path / "codes.npy", np.arange(3))
    assert np.load(tmp_path / "codes.npy").tolist() == [0, 1, 2] and not (tmp_path / "codes.npy").is_symlink()
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()] == [0o600]


def other(out: Path) -> None:
    def stop(*_: Any) -> None:
        raise RunError("stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsyn.runs.engines.serve", stop)
        run(config(), out, table=table(300), schema=Schema.loads(SCHEMA))


@pytest.mark.slow
def test_sigterm_is_the_programs_own_again_after_a_run(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another test's Ray may have left its own
    try:
        run(config(), tmp_path / "out", table=table(300), schema=Schema.loads(SCHEMA))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_flwr_run_removes_the_store_that_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    from fedsyn.server_app import app as server

    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path / "cache"))
    options = "data.options.rows=200;data.options.features=4;data.options.clients=3;mechanism.rounds=1"
    given = {"config": "configs/flwr.yaml", "set": options, "out": str(tmp_path / "out")}
    grid = InProcessGrid(app, [{"partition-id": k, "num-partitions": 3} for k in range(3)], given)
    if fails:
        monkeypatch.setattr("fedsyn.server_app.finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            server(grid, SimpleNamespace(run_config=given))  # type: ignore[arg-type]
    else:
        server(grid, SimpleNamespace(run_config=given))  # type: ignore[arg-type]
        assert (tmp_path / "out" / "synthetic.csv").is_file()
    assert not store_of(given).exists()
