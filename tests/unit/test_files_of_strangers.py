"""Files of strangers: bounded in memory and time before anything is parsed, and nothing that they name is imported.

Each hostile file is read in a process of its own, with so much memory beyond what it has after its imports, and so many
seconds of a processor: a reader that follows the file is ended there, one that counts first says one sentence.
"""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn import yamlio
from fedsyn.bounded import MOST_LINES, json_lines, json_of, read_bytes
from fedsyn.config import WorkloadNode
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, DataError, InputError, SchemaError
from fedsyn.node.rest import seal_table
from fedsyn.sweep import load_sweep, run_sweep
from fedsyn.sweep.report import report_folder
from fedsyn.table.counting import workload
from fedsyn.table.schema import Schema

MEGABYTES, SECONDS = 500, 20
SCHEMA = """\
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 8, dtype: integer}
  job: {kind: categorical, categories: [clerk, driver, nurse]}
"""


def said(read: Callable[[Path], object], path: Path) -> str:
    """The one sentence with which a bounded process refuses a file."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told, status = "", 1
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            most = pages * resource.getpagesize() + MEGABYTES * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            seconds = int(time.process_time()) + SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            read(path)
            told = "it was read"
        except InputError as error:
            told, status = str(error), 0
        except BaseException as error:
            told = type(error).__name__
        finally:
            os.write(writing, told.encode()[:4000])
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        told = answer.read()
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"{told or 'ended by a limit'}: {status}"
    assert told and told.isprintable()
    return told


def _load(path: Path) -> object:
    return fedsyn.load(path)


def _report(path: Path) -> object:
    return report_folder(path, real=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in one file."""
    source = np.random.default_rng(0)
    rows = pd.DataFrame({"age": source.integers(18, 90, 300), "job": source.choice(["clerk", "driver"], 300)})
    made = fedsyn.Synthesizer(epsilon=3, delta=1e-5, schema=yamlio.loads(SCHEMA, "schema"), rounds=1).fit(rows)
    return made.save(tmp_path_factory.mktemp("saved") / "model.fedsyn")


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished simulation's directory."""
    config = {
        "mechanism": {"name": "sketch_aim", "rounds": 1},
        "data": {"source": "synthfs", "options": {"rows": 300, "features": 3}},
        "federation": {"clients": 2, "minimum_cohort": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "aggregation": {"protocol": "plain"},
        "evaluation": [],
    }
    out = tmp_path_factory.mktemp("run") / "out"
    fedsyn.run(config, out=out)
    return out


def with_members(saved: Path, target: Path, **members: bytes | None) -> Path:
    """A copy of a saved model with other members; None: left out. Names have '_' in place of the '.'."""
    changes = {".".join(name.rsplit("_", 1)): content for name, content in members.items()}
    with zipfile.ZipFile(saved) as own, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as other:
        for name in own.namelist():
            content = changes.get(name, own.read(name))
            if content is not None:
                other.writestr(name, content)
    return target


# YAML ----------------------------------------------------------------------------------------------------------------


def _merged(levels: int) -> str:
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: 1" for i in range(10)) + "}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * 10)}]")
    return "\n".join(lines) + "\n"


def _aliased(levels: int) -> str:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lambda: _merged(9), "merge key"),
        (lambda: _aliased(30), "unfolds to more than"),
        (lambda: "a: [" + "x, " * (yamlio.MOST_VALUES + 2) + "]\n", "unfolds to more than"),
        (lambda: "a: &a " + "[" * 90 + "]" * 90 + "\nb: " + "[" * 200 + "\n", "nested more than"),
        (lambda: "a: |\n  " + "x" * (1 << 26) + "\n", "larger than"),
    ],
    ids=["merge", "aliases", "values", "deep", "long"],
)
def test_a_yaml_bomb_is_refused_in_a_sentence(tmp_path: Path, text: Callable[[], str], why: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text(), encoding="utf-8")
    assert why in said(yamlio.read_mapping, path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_a_regular_file_is_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert "a pipe or a device" in said(yamlio.read_mapping, path)
    with pytest.raises(SchemaError, match="a pipe or a device"):
        Schema.load(path)
    with pytest.raises(DataError, match="a pipe or a device"):
        read_bytes(path)


def test_all_yaml_is_read_by_one_reader() -> None:
    """`yaml.load` and its kin appear in `yamlio` alone."""
    from support.parsed import sources

    found = {path for path, text in sources().items() if re.search(r"\bimport yaml\b", text)}
    composed = {"fedsyn/table/schema/review.py", "fedsyn/table/schema/remarks.py"}  # they look for lines
    assert found == {"fedsyn/yamlio.py", *composed}
    assert not any("yaml.load" in sources()[path] for path in composed)


# Archives ------------------------------------------------------------------------------------------------------------


def _npz(**arrays: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _model_of_zeros(saved: Path) -> bytes:
    """The model with a gigabyte of zeros for its potentials: a few kilobytes once packed twice."""
    with zipfile.ZipFile(saved) as own, np.load(io.BytesIO(own.read("model.npz"))) as arrays:
        kept = dict(arrays)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name in ("domain", "model"):
            piece = io.BytesIO()
            np.save(piece, kept[name])
            packed.writestr(f"{name}.npy", piece.getvalue())
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (2**27 - 16,)})
        with packed.open("potentials.npy", "w", force_zip64=True) as member:
            member.write(head.getvalue())
            for _ in range(127):
                member.write(bytes(2**23))
            member.write(bytes(2**23 - 128))
    return buffer.getvalue()


BOMBS: dict[str, tuple[Callable[[Path], dict[str, bytes | None]], str]] = {
    "lines": (lambda _: {"rounds_jsonl": b"{}\n" * 16_000_000}, f"more than {MOST_LINES:,} lines"),
    "values": (lambda _: {"ledger_json": b'{"releases": [' + b"[]," * 10_000_000 + b"[]]}"}, "values"),
    "deep": (lambda _: {"ledger_json": b"[" * 1_000_000}, "is not JSON"),
    "values of a line": (lambda _: {"rounds_jsonl": b'{"a": [' + b"{}," * 10_000_000 + b"{}]}"}, "values"),
    "zeros": (lambda saved: {"model_npz": _model_of_zeros(saved)}, "its 'potentials' has 1,073,7"),
    "zeros of a member": (lambda _: {"predicted_quality_json": bytes(1 << 27)}, "more than a model needs"),
    "zeros of a packed member": (lambda _: {"model_npz": bytes(1 << 28)}, "more than a model needs"),
    "merge": (lambda _: {"schema_yaml": _merged(9).encode()}, "merge key"),
    "no schema": (lambda _: {"schema_yaml": None}, "lacks schema.yaml"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", BOMBS)
def test_a_saved_model_of_a_stranger_is_bounded(saved: Path, tmp_path: Path, name: str) -> None:
    make, why = BOMBS[name]
    path = with_members(saved, tmp_path / "bomb.fedsyn", **make(saved))
    assert path.stat().st_size < 8_000_000
    assert why in said(_load, path)


def test_an_archive_without_a_schema_opens_no_file_that_its_configuration_names(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as own:
        config = yamlio.loads(own.read("config.yaml").decode(), "config.yaml")
    (tmp_path / "mine.yaml").write_text("secret-key: 1\n", encoding="utf-8")
    config["data"]["schema"] = str(tmp_path / "mine.yaml")
    changed = with_members(saved, tmp_path / "m.fedsyn", schema_yaml=None, config_yaml=yamlio.dumps(config).encode())
    with pytest.raises(DataError, match=r"lacks schema\.yaml") as caught:
        fedsyn.load(changed)
    assert "secret-key" not in str(caught.value)


def test_the_list_of_an_archives_members_is_short(tmp_path: Path) -> None:
    """Half a million members without content: a list of 25 MB."""
    entry = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0)
    listed = b"".join(entry + f"{number:05x}".encode() for number in range(500_000))
    for count in (65535, 1):  # what the end says of their number is a word
        end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(listed), 0, 0)
        path = tmp_path / "many.fedsyn"
        path.write_bytes(listed + end)
        assert "not a model that fedsyn saved" in said(_load, path)


def test_json_within_the_bounds_is_read() -> None:
    assert json_of(b'{"a": [1, {"b": null}]}', "x") == {"a": [1, {"b": None}]}
    assert json_lines(b'{"a": 1}\n{}\n', "x") == [{"a": 1}, {}]
    assert len(json_lines(b"{}\n" * MOST_LINES, "x")) == MOST_LINES
    with pytest.raises(DataError, match="expected a mapping"):
        json_lines(b"[]\n", "x")


# Run directories -----------------------------------------------------------------------------------------------------


def _copied(run_directory: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "evil"
    shutil.copytree(run_directory, copy)
    return copy


def _schema_is(folder: Path, target: str) -> None:
    (folder / "schema.yaml").unlink()
    config = yamlio.read_mapping(folder / "config.yaml")
    config["data"]["schema"] = target
    (folder / "config.yaml").write_text(yamlio.dumps(config), encoding="utf-8")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    _schema_is(folder, str(folder / "pipe"))


FOLDERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str]] = {
    "device": (lambda folder: _schema_is(folder, "/dev/zero"), _load, "it lacks schema.yaml"),  # none is opened
    "pipe": (_pipe, _load, "it lacks schema.yaml"),
    "rounds": (lambda folder: (folder / "rounds.jsonl").write_bytes(b"{}\n" * 16_000_000), _report, "lines"),
    "ledger": (lambda folder: (folder / "ledger.json").write_bytes(b"[" + b"[]," * 10_000_000), _report, "values"),
    "config": (lambda folder: (folder / "config.yaml").write_text(_aliased(30)), _report, "unfolds to more"),
    "model": (
        lambda folder: (folder / "model.npz").write_bytes(_npz(domain=np.zeros(2**26), model=np.zeros(3))),
        _report,
        "its 'domain' has 536,870,912 bytes",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FOLDERS)
def test_a_run_directory_of_a_stranger_is_bounded(run_directory: Path, tmp_path: Path, name: str) -> None:
    change, code, why = FOLDERS[name]
    folder = _copied(run_directory, tmp_path)
    change(folder)
    assert why in said(code, folder)


def test_the_workload_of_a_run_directory_is_bounded(
    run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    eight = WorkloadNode(degree=8, size=None)
    with pytest.raises(ConfigError, match="more cliques than are read of a run directory"):
        workload.strangers_workload(eight, Domain(tuple(map(str, range(60))), (2,) * 60))
    assert len(workload.strangers_workload(eight, Domain(tuple("abcdefghi"), (2,) * 9))) == 9
    folder = _copied(run_directory, tmp_path)
    (folder / "looks.json").write_text('{"format": 1, "looks": [], "shrunk": false}', encoding="utf-8")
    (folder / "comparison.json").unlink(missing_ok=True)
    monkeypatch.setattr(workload, "MOST_CLIQUES", 1)
    page = report_folder(folder, real=False)[0].read_text(encoding="utf-8")
    assert "The quality could not be predicted from looks.json (ConfigError)." in page
    report_folder(folder)
    assert "The real rows are not at hand: workload: it has more cliques" in caplog.text


# Tables that a directory names ---------------------------------------------------------------------------------------


@pytest.fixture
def rows(run_directory: Path, tmp_path: Path) -> Path:
    """The user's own table, which has the columns of the run."""
    file = tmp_path / "mine.csv"
    shutil.copy(run_directory / "synthetic.csv", file)
    return file


def _directory_that_names(run_directory: Path, tmp_path: Path, **data: Any) -> Path:
    folder = _copied(run_directory, tmp_path)
    partition = {"name": "native" if data.get("holders") else "iid"}
    _named(folder, data={"options": {}, **data}, evaluation=["workload_error"], federation={"partition": partition})
    (folder / "comparison.json").unlink(missing_ok=True)
    return folder


NOT_OPENED = "a report opens no table outside the run's directory unless you name it: fedsyn report RUN --data FILE"


@pytest.mark.parametrize("named", ["outside", "relative", "link", "circle", "holders", "openml", "persons"])
def test_a_report_opens_no_table_that_a_strangers_directory_names(
    run_directory: Path,
    tmp_path: Path,
    rows: Path,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = str(tmp_path / "evil" / "rows.csv")
    sources = {"outside": str(rows), "relative": "evil/../mine.csv", "openml": "openml:1", "link": inside}
    sources["circle"] = str(tmp_path / "circle.csv")
    holders = [str(rows), str(rows)] if named == "holders" else None
    data = {"persons": [str(rows)]} if named == "persons" else {"holders": holders}
    folder = _directory_that_names(run_directory, tmp_path, source=sources.get(named, inside), **data)
    if named == "persons":
        shutil.copyfile(rows, folder / "rows.csv")
    if named != "persons":  # whose rows lie in the directory
        (folder / "rows.csv").symlink_to(rows)
    (tmp_path / "circle.csv").symlink_to("circle.csv")
    page_file = report_folder(folder)[0]
    assert NOT_OPENED in caplog.text and not (folder / "comparison.json").exists()
    assert page_file.name == "report_public.html" and NOT_OPENED not in html.unescape(page_file.read_text("utf-8"))


def test_a_report_opens_the_table_that_its_user_names(
    run_directory: Path, tmp_path: Path, rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that lies in the directory as well; a name that is wrong ends the command."""
    folder = _directory_that_names(run_directory, tmp_path, source=str(rows))
    assert report_folder(folder, data=[str(rows)])[0].name == "report.html"
    assert NOT_OPENED not in caplog.text and (folder / "comparison.json").is_file()
    assert "workload_error" in json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    (folder / "comparison.json").unlink()
    with pytest.raises(ConfigError, match="no such file"):
        report_folder(folder, data=[str(tmp_path / "absent.csv")])
    with pytest.raises(ConfigError, match="--data: real rows are read for the page of one run alone"):
        report_folder(folder, data=[str(rows)], real=False)
    deployed = tmp_path / "deployed"
    shutil.copytree(folder, deployed)
    _named(deployed, runtime={"engine": "deployment", "superlink": "north"})
    with pytest.raises(ConfigError, match="--data: the real rows of a deployment stay with its holders"):
        report_folder(deployed, data=[str(rows)])
    rows.rename(folder / "rows.csv")
    _named(folder, data={"source": str(folder / "rows.csv")})
    report_folder(folder)
    assert (folder / "comparison.json").is_file()


def test_a_report_draws_no_table_elsewhere_as_the_synthetic_one(
    run_directory: Path, tmp_path: Path, rows: Path
) -> None:
    folder = _copied(run_directory, tmp_path)
    for name in ("report_public.html", "synthetic.csv"):
        (folder / name).unlink()
    (folder / "synthetic.csv").symlink_to(rows)
    with pytest.raises(DataError, match=r"synthetic\.csv is a link to a table outside the run's directory"):
        report_folder(folder, real=False)
    assert not (folder / "report_public.html").exists()


def test_a_report_opens_no_schema_and_no_key_that_a_strangers_directory_names(
    run_directory: Path, tmp_path: Path, rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, schema = tmp_path / "key", tmp_path / "schema.yaml"
    folder = _directory_that_names(
        run_directory, tmp_path, source=str(rows), schema=str(schema), options={"key_file": str(key)}
    )
    seal_table(rows, key, folder / "rows.csv.sealed")
    _named(folder, data={"source": str(folder / "rows.csv.sealed")})
    report_folder(folder)
    assert "rows.csv.sealed is sealed: name the file of its key" in caplog.text
    shutil.move(folder / "schema.yaml", schema)
    page = report_folder(folder)[0].read_text(encoding="utf-8")
    assert "The values of the columns: the schema is not at hand." in page


# Links, and names that are paths --------------------------------------------------------------------------------------


def _links(folder: Path, names: Iterable[str]) -> Path:
    """Puts links to one file in the places of the files of a directory. Returns that file, which holds "mine"."""
    victim = folder.parent / "victim"
    victim.write_text("mine", encoding="utf-8")
    for name in names:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
    return victim


def _sweep(folder: Path, metric: str = "loss", axis: Any = 1) -> Path:
    """A sweep's folder of three cells that are done, written by hand."""
    cells = [{"id": f"c{i}", "axes": {"privacy.epsilon": i, "x": axis}, "seed": i} for i in (1, 2, 4)]
    for cell in cells:
        made = folder / "cells" / str(cell["id"])
        made.mkdir(parents=True)
        facts = {"status": "done", "metrics": {"workload_error": cell["seed"], metric: cell["seed"]}}
        (made / "cell.json").write_text(json.dumps(facts), encoding="utf-8")
    record = {"name": "s", "document": {}, "cells": cells}
    (folder / "sweep.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


REPORTED = ("README.md", "report.html", "report_public.html", "metrics.csv", "predicted_quality.json")


def test_a_report_of_a_run_follows_no_link(run_directory: Path, tmp_path: Path) -> None:
    folder = _copied(run_directory, tmp_path)
    (folder / "looks.json").write_text('{"format": 1, "looks": [], "shrunk": false}', encoding="utf-8")
    victim = _links(folder, REPORTED)
    report_folder(folder)
    report_folder(folder, real=False)
    assert victim.read_text(encoding="utf-8") == "mine"
    assert not [name for name in REPORTED if (folder / name).is_symlink()] and not list(folder.glob(".*part*"))
    assert "synthfs" in (folder / "report_public.html").read_text(encoding="utf-8")


def test_a_report_of_a_sweep_follows_no_link(tmp_path: Path) -> None:
    folder = _sweep(tmp_path / "sweep")
    victim = _links(folder, ["report.html", "results.csv", "summary.csv"])
    assert not [path for path in report_folder(folder) if path.is_symlink()]
    assert victim.read_text(encoding="utf-8") == "mine"


def test_no_text_in_a_table_of_a_report_is_a_formula(run_directory: Path, tmp_path: Path) -> None:
    folder = _sweep(tmp_path / "sweep", metric="=1+1", axis="@SUM(A1)")
    failed = {"status": "failed", "error": {"message": "+cmd|' /C calc'!A0"}}
    (folder / "cells" / "c4" / "cell.json").write_text(json.dumps(failed), encoding="utf-8")
    paths = report_folder(folder)
    copy = _copied(run_directory, tmp_path)
    (copy / "metrics.json").write_text('{"format": 1, "-2+3": -0.5}', encoding="utf-8")
    texts = [path.read_text(encoding="utf-8") for path in (paths[1], paths[2], report_folder(copy)[1])]
    assert "'=1+1" in texts[0] and "'@SUM(A1)" in texts[0] and "'+cmd|" in texts[0] and "'=1+1_mean" in texts[1]
    assert texts[2].splitlines()[1] == "'-2+3,-0.5"
    assert not [
        cell for text in texts for row in csv.reader(io.StringIO(text)) for cell in row if cell[:1] in ("=", "@")
    ]


def test_settings_that_are_lists_in_lists_are_damaged(tmp_path: Path) -> None:
    folder = _sweep(tmp_path / "sweep")
    record = (folder / "sweep.json").read_text(encoding="utf-8").replace("{}", '{"a": ' + "[" * 900 + "]" * 900 + "}")
    (folder / "sweep.json").write_text(record, encoding="utf-8")
    with pytest.raises(DataError, match=r"sweep\.json is damaged: run the sweep again"):
        report_folder(folder)


@pytest.mark.parametrize("link", ["cells", "cells/a"])
def test_a_sweep_goes_on_in_no_folder_that_is_a_link(tmp_path: Path, link: str) -> None:
    base = {"data": {"source": "synthfs", "options": {"rows": 300, "features": 3}}, "epsilon": 1.0, "delta": 1e-6}
    (tmp_path / "sweep.yaml").write_text(yamlio.dumps({"base": base, "seeds": [0]}), encoding="utf-8")
    sweep = load_sweep(tmp_path / "sweep.yaml")
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    place = folder / link.replace("a", sweep.cells[0].id) if link != "cells" else folder / link
    place.parent.mkdir(parents=True)
    elsewhere.mkdir()
    place.symlink_to(elsewhere)
    (folder / "sweep.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a link, and files written there could land anywhere"):
        run_sweep(sweep, folder, resume=True)
    assert not list(elsewhere.iterdir())


def test_a_run_follows_no_link_that_lies_in_its_directory(run_directory: Path, tmp_path: Path) -> None:
    folder = _copied(run_directory, tmp_path)
    victim = _links(folder, ["metrics.json", "rounds.jsonl"])
    config = fedsyn.load_config(folder / "config.yaml")
    _links(folder, ["config.yaml"])
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "own.svg").touch()
    (folder / "figures").symlink_to(tmp_path / "kept")
    fedsyn.run(config, out=folder)
    assert victim.read_text(encoding="utf-8") == "mine" and (tmp_path / "kept" / "own.svg").exists()
    assert not (folder / "config.yaml").is_symlink()


# Names of modules ----------------------------------------------------------------------------------------------------


def _named(folder: Path, **nodes: Any) -> None:
    """Puts a module's path into the configuration of a run directory."""
    config = yamlio.read_mapping(folder / "config.yaml")
    for node, keys in nodes.items():
        config[node] = {**config[node], **keys} if isinstance(keys, dict) else keys
    (folder / "config.yaml").write_text(yamlio.dumps(config), encoding="utf-8")


def test_no_reading_command_imports_what_a_file_names(run_directory: Path, saved: Path, tmp_path: Path) -> None:
    """A module that leaves a file when it is imported, named by a copied run directory and by a saved model."""
    folder, mark = _copied(run_directory, tmp_path), tmp_path / "imported"
    (tmp_path / "evil_plugin.py").write_text(f"open({str(mark)!r}, 'w').close()\nFoo = 1\n", encoding="utf-8")
    partition = {"federation": {"partition": {"name": "evil_plugin:Foo"}}}
    _named(folder, **partition)
    shutil.copy(folder / "config.yaml", tmp_path / "partition.yaml")
    _named(folder, mechanism={"name": "evil_plugin:Foo"}, evaluation=["evil_plugin:Foo"])
    (folder / "comparison.json").unlink(missing_ok=True)  # it is made again then
    with zipfile.ZipFile(saved) as own:
        config = yamlio.loads(own.read("config.yaml").decode(), "config.yaml")
    config |= {"mechanism": {"name": "evil_plugin:Foo"}, **partition}
    model = with_members(saved, tmp_path / "evil.fedsyn", config_yaml=yamlio.dumps(config).encode())
    table = folder / "synthetic.csv"
    commands = [
        ["report", folder],
        ["report", folder, "--no-real"],
        ["explain", folder / "config.yaml"],
        ["explain", tmp_path / "partition.yaml", "--json"],
        ["plan", folder / "config.yaml", "--rows", "300"],
        ["partition", tmp_path / "partition.yaml"],
        ["sample", folder, "--rows", "3"],
        ["sample", model, "--rows", "3"],
        ["sample", folder, "--tables", "2", "--out", tmp_path / "tables"],
        ["compare", folder, run_directory],
        ["evaluate", folder, "--real", table],
        ["ledger", "show", folder / "ledger.json"],
        ["schema", "show", folder / "schema.yaml"],
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    code = (
        "import sys\nfrom fedsyn.front.cli import app\nfor words in {}:\n    try: app(words, standalone_mode=False)\n"
    )
    code += "    except (SystemExit, Exception) as error: print('ended:', error)\n"
    code += "import fedsyn\nfrom sklearn.base import clone\nmodel = fedsyn.load({!r})\nmodel.report()\n"
    code += "model.set_params(rounds=3)\nclone(model)\nmodel.save({!r})\nfedsyn.load({!r})\n"
    whole = code.format([list(map(str, each)) for each in commands], str(model), str(tmp_path / "2"), str(folder))
    done = subprocess.run([sys.executable, "-c", whole], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not mark.exists(), "a file of others had a module imported"
    assert done.stdout.count("imports no module that a file names") == 4, "they say so, of mechanism and partitioner"
    assert (folder / "report_public.html").stat().st_size > 1000 and "ended: evil" not in done.stdout
    ours = subprocess.run(
        [sys.executable, "-m", "fedsyn.front.cli", "run", str(folder / "config.yaml"), "--out", str(tmp_path / "own")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert mark.exists() and ours.returncode != 0, "one's own configuration may name one's own module"


def test_a_card_or_roster_of_others_is_read_within_bounds(tmp_path: Path) -> None:
    from fedsyn.keys.holder_keys import load_identities, new_identity

    new_identity(tmp_path / "key")
    (tmp_path / "roster.yaml").write_text(_merged(9), encoding="utf-8")
    with pytest.raises(ConfigError):
        load_identities(str(tmp_path / "key"), str(tmp_path / "roster.yaml"))
