"""Names and categories that command a terminal or are markup, through every command that reads a file with names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
import typer

import fedsyn as package
from fedsyn import yamlio
from fedsyn.front.archive import read_release
from fedsyn.front.cli import app
from fedsyn.loading import parse_config
from fedsyn.runs.engines import run
from fedsyn.table.schema import Schema
from support.node_folders import make_node
from support.typed_commands import Fedsyn, entry_point

AGE = "age\x1b[2J\x1b]0;pwned\x07"
SCRIPT, LINK, TURNED = "<script>alert(1)</script>", "a|b](javascript:alert(3))", "\u202eevil\u2066\x9b2J"
VALUES = ["x\x1b[31m", "<img src=x onerror=alert(2)>"]
SCHEMA: dict[str, Any] = {
    "columns": {
        AGE: {"kind": "numeric", "lower": 0, "upper": 90, "bins": 3, "dtype": "integer"},
        SCRIPT: {"kind": "categorical", "categories": VALUES},
        LINK: {"kind": "categorical", "categories": VALUES},
        TURNED: {"kind": "categorical", "categories": VALUES},
    },
    "label": LINK,
}
COMMANDS_A_TERMINAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
IS_MARKUP = re.compile(r"<script>alert|<img src=x|(?<!\\)\]\(javascript", re.IGNORECASE)

# What each command is given of the files that `folder` makes; None: it reads none with names of columns, or a person's
# own key files alone, or serves for ever. A new command needs a line here.
TYPED: dict[str, list[str] | None] = {
    "demo": None,
    "init": ["init", "rows.csv", "--label", LINK, "--keep", TURNED],
    "run": ["run", "run.yaml", "--out", "again"],
    "plan": ["plan", "run.yaml", "--public", "rows.csv", "--epsilon", "1", "--out", "plan.html"],
    "sample": ["sample", "model.fedsyn", "--rows", "5", "--where", f"{SCRIPT}=nothing", "--out", "more.csv"],
    "analyse": ["analyse", "tables", f"`{AGE}` ~ `{SCRIPT}`"],
    "evaluate": ["evaluate", "out", "--real", "other.csv", "--out", "page.html"],
    "compare": ["compare", "out", "out2"],
    "report": ["report", "out", "--no-real"],
    "new": ["new", SCRIPT],
    "sweep": ["sweep", "sweep.yaml", "--out", "swept"],
    "partition": ["partition", "run.yaml"],
    "explain": ["explain", "run.yaml"],
    "identity": None,
    "operator-key": None,
    "mechanisms": None,
    "datasets": None,
    "schema draft": ["schema", "draft", "rows.csv"],
    "schema check": ["schema", "check", "schema.yaml", "--data", "other.csv"],
    "schema review": ["schema", "review", "schema.yaml", "--approve", TURNED],
    "party keygen": None,
    "party card": ["party", "card", "schema.yaml"],
    "party rotate": None,
    "party serve": ["party", "serve", "schema.yaml"],
    "deploy init": ["deploy", "init", "federation", "--holders", f"north,{TURNED}", "--schema", "schema.yaml"],
    "deploy link": ["deploy", "link", "out"],
    "deploy run": ["deploy", "run", "out"],
    "deploy log": ["deploy", "log", TURNED, "out"],
    "deploy status": ["deploy", "status", "out"],
    "deploy stop": ["deploy", "stop", "out"],
    "deploy add": ["deploy", "add", TURNED, "--card", "schema.yaml", "--folder", "out"],
    "deploy rotate-keys": ["deploy", "rotate-keys", TURNED, "--card", "schema.yaml", "--folder", "out"],
    "deploy remove": ["deploy", "remove", TURNED, "--folder", "out"],
    "node serve": ["node", "serve", "schema.yaml"],
    "node status": ["node", "status", "schema.yaml"],
    "node init-ledger": ["node", "init-ledger", "schema.yaml"],
    "node pending": ["node", "pending", "node/node.yaml"],
    "node approve": ["node", "approve", TURNED, "node/node.yaml", "--yes"],
    "node reject": ["node", "reject", TURNED, "node/node.yaml", "--yes"],
    "node new-keys": ["node", "new-keys", "schema.yaml"],
    "node seal": None,
    "ledger show": ["ledger", "show", "out/ledger.json"],
    "ledger verify": ["ledger", "verify", "schema.yaml"],
    "ledger export": ["ledger", "export", "schema.yaml"],
}
MORE = [
    ["evaluate", "out", "--real", "rows.csv"],
    ["evaluate", "out", "--real", "rows.csv", "--json"],
    ["explain", "run.yaml", "--json"],
    ["explain", "schema.yaml"],
    ["report", "out"],
    ["sample", "out", "--where", f"{AGE}>=nothing"],
    ["sample", "out", "--where", f"{SCRIPT}={VALUES[0]}", "--out", "some.csv"],
    ["analyse", "tables", f"mean(`{AGE}`)"],
    ["schema", "check", "schema.yaml", "--data", "rows.csv"],
    ["schema", "check", "broken.yaml"],
    ["schema", "review", "schema.yaml", "--approve", "nobody"],
    ["run", "run.yaml", "--set", f"data.label={TURNED}x", "--out", "never"],
    ["run", "run.yaml", "--set", f"{AGE}=1", "--out", "never"],
    [AGE],
    ["sample", AGE],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, a schema, a finished run, a saved model, tables of it, a node: all with hostile names."""
    made = tmp_path_factory.mktemp("hostile")
    source = np.random.default_rng(0)
    others = {name: source.choice(VALUES, 120) for name in (SCRIPT, LINK, TURNED)}
    table = pd.DataFrame({AGE: source.integers(0, 90, 120), **others})
    schema = Schema.from_dict(SCHEMA)
    schema.save(made / "schema.yaml")
    table.to_csv(made / "rows.csv", index=False)
    table[[SCRIPT]].assign(**{f"{LINK}2": 1}).to_csv(made / "other.csv", index=False)
    document = {
        "mechanism": {"name": "sketch_aim", "rounds": 1},
        "data": {"source": str(made / "rows.csv"), "schema": str(made / "schema.yaml")},
        "federation": {"clients": 2, "minimum_cohort": 1},
        "privacy": {"epsilon": 5.0, "delta": 1e-6},
        "aggregation": {"protocol": "plain"},
        "evaluation": ["workload_error"],
    }
    (made / "run.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
    (made / "sweep.yaml").write_text(
        yamlio.dumps({"base": "run.yaml", "axes": {"data.label": [TURNED, AGE]}, "seeds": [1]}), encoding="utf-8"
    )
    broken = {"columns": {AGE: {"kind": "numeric", "lower": 9, "upper": 1, SCRIPT: 1}}, TURNED: 1}
    (made / "broken.yaml").write_text(yamlio.dumps(broken), encoding="utf-8")
    run(parse_config(document), made / "out", table=table, schema=schema)
    shutil.copytree(made / "out", made / "out2")
    model = package.load(made / "out")
    model.save(made / "model.fedsyn")
    from fedsyn.front.several import write_tables

    (made / "tables").mkdir()
    write_tables(made / "tables", read_release(made / "out"), 2, 20, {}, 0)
    make_node(made / "node")
    return made


@pytest.fixture
def fedsyn(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    monkeypatch.chdir(folder)
    return entry_point(capfd, monkeypatch)


def _commands(command: Any, path: tuple[str, ...] = ()) -> list[str]:
    if isinstance(command, click.Group):
        return [name for key, each in command.commands.items() for name in _commands(each, (*path, key))]
    return [" ".join(path)]


def test_every_command_is_tried() -> None:
    assert sorted(_commands(typer.main.get_command(app))) == sorted(TYPED)


CASES = [words for words in TYPED.values() if words is not None] + MORE


@pytest.mark.thorough
@pytest.mark.parametrize("words", CASES, ids=map(str, range(len(CASES))))
def test_no_command_prints_what_a_terminal_obeys(fedsyn: Fedsyn, words: list[str]) -> None:
    done = fedsyn(*words)
    assert done.code in (0, 1, 2), done.err
    assert not COMMANDS_A_TERMINAL.search(done.out + done.err), repr(done.out + done.err)
    if done.code == 2:
        assert len(done.err.splitlines()) == 1


@pytest.mark.thorough
def test_no_page_holds_what_a_browser_obeys(fedsyn: Fedsyn, folder: Path) -> None:
    """The pages of runs and comparisons, the README.md beside them and in a saved model."""
    page = ["evaluate", "out", "--real", "rows.csv", "--out", "p.html", "--force"]
    for words in (["report", "out", "--no-real"], ["report", "out2"], page):
        assert fedsyn(*words).code == 0
    pages = [folder / name for name in ("out/report_public.html", "out2/report.html", "p.html")]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for page, text in texts.items():
        assert not re.search(r"<script|<img", text), page
        assert "alert(1)" in text, "the name is shown"
    readmes = [(folder / "out" / "README.md").read_text(encoding="utf-8"), read_release(folder / "out").readme()]
    for text in readmes:
        assert not IS_MARKUP.search(text) and not COMMANDS_A_TERMINAL.search(text)


def test_a_hostile_schema_survives_writing_and_reading_without_a_raw_character(folder: Path) -> None:
    text = (folder / "schema.yaml").read_text(encoding="utf-8")
    assert not COMMANDS_A_TERMINAL.search(text)
    assert Schema.load(folder / "schema.yaml").sha256 == Schema.from_dict(SCHEMA).sha256
