"""A deployment's run from its starter's side: how it ends, what is kept to resume it, and how its files come back."""

from __future__ import annotations

import json
import stat
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsyn.config import RunConfig
from fedsyn.crypto.primitives import KeyPair
from fedsyn.errors import ConfigError, InputError, Lost, RunError
from fedsyn.flower import launch
from fedsyn.flower.control import Control, RunState, Unreachable
from fedsyn.loading import parse_config
from fedsyn.privacy import GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.runs import deployment, engines, returned
from fedsyn.runs.directory import record_error
from fedsyn.runs.journal import RunJournal
from fedsyn.runs.returned import lines_of, packed, unpacked
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.submitted import FILE, RunFolder, Submitted, give_up, is_unfinished, runs_folder
from fedsyn.table.schema import Schema

SCHEMA = "columns:\n  age: {kind: integer, lower: 0, upper: 9}\n  sex: {kind: categorical, categories: [f, m]}\n"


def config_of(folder: Path, **nodes: Any) -> RunConfig:
    (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    document: dict[str, Any] = {
        "mechanism": {"name": "sketch_aim", "rounds": 2},
        "data": {"source": "rows", "schema": str(folder / "schema.yaml")},
        "federation": {"clients": 3},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "evaluation": [],
        "runtime": {"engine": "deployment", "superlink": "north", "patience": 0.2},
    }
    for key, node in nodes.items():
        document[key] = {**document.get(key, {}), **node}
    return parse_config(document)


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Flower home with one connection, at which nobody listens."""
    home = tmp_path / "home"
    home.mkdir()
    connection = '[superlink]\ndefault = "north"\n\n[superlink.north]\naddress = "127.0.0.1:9"\ninsecure = true\n'
    (home / "config.toml").write_text(connection, encoding="utf-8")
    monkeypatch.setenv("FLWR_HOME", str(home))
    return home


# How it ends ---------------------------------------------------------------------------------------------------------


def test_a_superlink_must_be_known_and_answer(flower: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no SuperLink connection 'nort' in .*did you mean 'north'"):
        engines.run(config_of(tmp_path, runtime={"superlink": "nort"}), tmp_path / "out")
    with pytest.raises(RunError, match=r"'north' at 127\.0\.0\.1:9 does not answer: .*; nothing was submitted"):
        engines.run(config_of(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ([RunState("running"), None], "knows no run 7 any more: it was started anew without"),
        ([RunState("running"), Unreachable("the SuperLink", "refused")], "has not answered for 0.2 s (refused)"),
    ],
)
def test_waiting_ends_whatever_happens(
    flower: Path, monkeypatch: pytest.MonkeyPatch, told: list[Any], cause: str
) -> None:
    answers = list(told)

    def state(self: Control, run: str) -> RunState | None:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Control, "state", state)
    with pytest.raises(RunError) as error:
        launch.wait(Control.named("north"), "7", lambda: False, every=0.0, patience=0.2)
    assert cause in str(error.value)


@pytest.mark.parametrize(
    ("spent", "error", "said"),
    [
        (
            True,
            Lost("lost"),
            r"lost\. Epsilon [\d.]+ is spent so far, by its ledger; once .* --resume",
        ),
        (
            False,
            RunError("refused"),
            r"refused\. Nothing is spent; once the cause is gone, .* --resume: it ",
        ),
        (
            True,
            Lost("lost", False),
            r"Epsilon [\d.]+ is spent .*; it would end in the same way .* --force",
        ),
        (False, None, r"lost\. What it has spent stays spent; once the cause is gone"),
    ],
)
def test_the_last_sentence_says_what_it_cost_and_what_helps(
    flower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent: bool, error: RunError | None, said: str
) -> None:
    """As its ServerApp leaves it: an error, and a ledger; without a ledger nobody knows."""
    out = tmp_path / "out"

    def ended(*_: Any, **__: Any) -> RunState:
        ledger = Ledger(PrivacyBudget(1.0, 1e-6), noise_by="server")
        if spent:
            ledger.reenter([Release("measure", 1, GAUSSIAN, 1.0, sigma=40.0, noise_by="server")])
        if error is not None:
            (out / "ledger.json").write_text(json.dumps({"format": 1, **ledger.report()}), encoding="utf-8")
        record_error(out, error or RunError("lost"))
        return RunState("finished", "failed")

    monkeypatch.setattr(Control, "state", lambda self, run: None)
    monkeypatch.setattr(deployment, "submit", lambda *_: "41")
    monkeypatch.setattr(deployment, "wait", ended)
    with pytest.raises(RunError, match=said) as raised:
        engines.run(config_of(tmp_path), out)
    assert raised.value.can_go_on == (error is None or error.can_go_on)


@pytest.mark.slow
def test_a_run_that_was_stopped_says_so_and_how_to_go_on(
    flower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[dict[str, str]] = []

    def submit(app: Path, superlink: str, run_config: Any) -> str:
        submitted.append(dict(run_config))
        return str(40 + len(submitted))

    failed = RunState("finished", "failed", "No heartbeat.")
    states = {"1": None, "41": RunState("finished", "stopped"), "42": failed, "43": failed}
    monkeypatch.setattr(Control, "state", lambda self, run: states[run])
    monkeypatch.setattr(Control, "log", lambda self, run: "")
    monkeypatch.setattr(deployment, "submit", submit)
    monkeypatch.setattr(deployment, "wait", partial(launch.wait, every=0.0))
    config, out = config_of(tmp_path), tmp_path / "out"
    with pytest.raises(RunError, match=rf"the run was stopped\. .*with --out {out} --resume"):
        engines.run(config, out)
    kept = Submitted.load(out)
    assert kept.flower_run == "41" and is_unfinished(out)
    assert stat.S_IMODE((out / FILE).stat().st_mode) == 0o600
    with pytest.raises(RunError, match=r"without a result: No heartbeat\.; its log: flwr log 42 north.*--resume"):
        engines.run(config, out, resume=True)
    monkeypatch.setenv(deployment.FOLDER, "/srv/study/operator")  # whose connection is nobody else's
    with pytest.raises(RunError, match=rf"its log: fedsyn deploy log {kept.run} /srv/study/operator\."):
        engines.run(config, out, resume=True)
    first, second, _ = submitted
    assert len(kept.run) == 10 and json.loads(first["resolved"])["runtime"]["run"] == kept.run
    assert first["run"] == second["run"] == kept.run and first["reply"] == second["reply"]
    assert (first["resume"], second["resume"]) == ("", "yes")
    assert kept.secret not in str(submitted)
    with pytest.raises(ConfigError, match="another configuration"):
        engines.run(config_of(tmp_path, privacy={"epsilon": 2.0}), out, resume=True)
    (tmp_path / "schema.yaml").write_text(SCHEMA.replace("9", "8"), encoding="utf-8")
    with pytest.raises(ConfigError, match="the schema is not the one"):
        engines.run(config, out, resume=True)
    assert len(submitted) == 3


def finished(out: Path) -> None:
    """What a ServerApp leaves that went on alone to the end: its files, and no journal."""
    for name, text in {"metrics.json": '{"format": 1, "epsilon": 0.5}', "report_public.html": "the page"}.items():
        (out / name).write_text(text, encoding="utf-8")


def test_a_run_that_went_on_alone_to_its_end_is_brought_home(
    flower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its SuperLink died when no holder was needed any more: nobody is asked to resume what is whole."""
    config, out = config_of(tmp_path), tmp_path / "out"
    asked: list[str] = []

    def cut_off(*_: Any, **__: Any) -> RunState:
        if asked.pop() == "whole":
            finished(out)
        raise RunError("the SuperLink has not answered for 6 s")

    monkeypatch.setattr(Control, "state", lambda self, run: None)
    monkeypatch.setattr(deployment, "submit", lambda *_: "41")
    monkeypatch.setattr(deployment, "wait", cut_off)
    asked.append("unfinished")
    with pytest.raises(RunError, match=r"not answered for 6 s.*--resume"):
        engines.run(config, out)
    finished(out)  # after its starter has gone; the SuperLink is not needed for it, nor asked
    monkeypatch.setattr(Control, "state", lambda self, run: 1 / 0)
    with pytest.raises(ConfigError, match="another configuration"):
        engines.run(config_of(tmp_path, privacy={"epsilon": 2.0}), out, resume=True)
    assert engines.run(config, out, resume=True) == {"epsilon": 0.5} and not is_unfinished(out)
    monkeypatch.setattr(Control, "state", lambda self, run: None)
    asked.append("whole")  # before its starter has lost patience
    assert engines.run(config, tmp_path / "out") == {"epsilon": 0.5} and not is_unfinished(out)


def test_a_server_app_that_is_to_resume_what_is_whole_sends_it_back(tmp_path: Path) -> None:
    """It asks nobody, and removes nothing. With an error beside it the run is not whole."""
    from fedsyn.server_app import app as server

    kept = Submitted.new(config_of(tmp_path), Schema.loads(SCHEMA), "north")
    kept.save(tmp_path)
    finished(tmp_path)
    facts = run_config_of(
        config_of(tmp_path), schema=Schema.loads(SCHEMA), out=tmp_path, run=kept.run, order="", reply="", resume=True
    )
    grid = SimpleNamespace(get_node_ids=lambda: [1, 2, 3])
    server(grid, SimpleNamespace(run_config=facts, run_id=1))  # type: ignore[arg-type]
    assert (tmp_path / "report_public.html").read_text(encoding="utf-8") == "the page"
    record_error(tmp_path, RunError("lost"))
    with pytest.raises(ConfigError, match="no journal"):
        server(grid, SimpleNamespace(run_config=facts, run_id=1))  # type: ignore[arg-type]


def test_bad_input_that_the_server_found_leaves_nothing_to_resume(
    flower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def submit(app: Path, superlink: str, run_config: Any) -> str:
        (out / "error.json").write_text(json.dumps({"kind": "input", "sentence": "no such thing"}), encoding="utf-8")
        return "41"

    monkeypatch.setattr(Control, "state", lambda self, run: RunState("finished", "failed"))
    monkeypatch.setattr(deployment, "submit", submit)
    monkeypatch.setattr(deployment, "wait", partial(launch.wait, every=0.0))
    with pytest.raises(InputError, match=r"^no such thing$"):
        engines.run(config_of(tmp_path), out)
    assert not is_unfinished(out)


# What is resumed, and what is not -------------------------------------------------------------------------------------


def test_there_must_be_something_to_resume(flower: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to resume in .*: no run that can be resumed"):
        engines.run(config_of(tmp_path), tmp_path / "out", resume=True)
    (tmp_path / "metrics.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="the run in it has finished"):
        engines.run(config_of(tmp_path), tmp_path, resume=True)
    with pytest.raises(ConfigError, match="is a simulation, which starts again"):
        engines.run(config_of(tmp_path, runtime={"engine": "inprocess"}), tmp_path / "out", resume=True)
    (tmp_path / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="is damaged; give the run up with --force"):
        Submitted.load(tmp_path)


def test_a_directory_with_an_unfinished_run_is_not_taken_by_another(flower: Path, tmp_path: Path) -> None:
    from fedsyn.front.cli import app

    config = config_of(tmp_path)
    Submitted.new(config, Schema.loads(SCHEMA), "north").save(tmp_path)
    config.save(tmp_path / "run.yaml")
    done = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml"), "--out", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert "--resume" in str(done.exception) and "--force" in str(done.exception)


def test_what_a_run_that_is_given_up_has_spent_stays_on_record(tmp_path: Path) -> None:
    journal = RunJournal.begin(tmp_path, run="r", config="c", schema="s")
    journal.add({"kind": "ledger", "state": Ledger(PrivacyBudget(1.0, 1e-6), noise_by="server").to_dict()})
    entry = Release("measure", 1, GAUSSIAN, 1.0, sigma=40.0, noise_by="server").to_dict()
    journal.add({"kind": "answer", "number": 1, "releases": [entry]})
    journal.keep({"kind": "open", "number": 2}, first=True)
    journal.keep({"kind": "charge", "release": entry})
    with pytest.raises(RunError, match="another process serves the run"):
        give_up(tmp_path)
    journal.close()
    give_up(tmp_path)
    ledger = json.loads((tmp_path / "ledger.json").read_text(encoding="utf-8"))
    assert len(ledger["releases"]) == 2 and ledger["rho"] == pytest.approx(2 / (2 * 40.0**2))
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.json"] and not is_unfinished(tmp_path)


# Files come back ------------------------------------------------------------------------------------------------------


def results(folder: Path, table: bytes = b"age,sex\n1,f\n") -> Path:
    folder.mkdir()
    for name, data in {"synthetic.csv": table, "model.npz": bytes(1000), "measured.jsonl": b"bytes_up"}.items():
        (folder / name).write_bytes(data)
    (folder / FILE).write_text("{}", encoding="utf-8")
    (folder / "journal").mkdir()
    return folder


def test_files_come_back_through_a_log_that_says_nothing(tmp_path: Path) -> None:
    there, mine, pair = results(tmp_path / "there", bytes(range(256)) * 4000), tmp_path / "mine", KeyPair()
    mine.mkdir()
    (mine / "model.npz").symlink_to(tmp_path / "elsewhere")  # it is replaced
    lines = lines_of(packed(there), "r1", pair.public)
    log = "INFO : a line\n" + "".join(lines) + "another\n"
    assert "bytes_up" not in log and "measured" not in log
    assert unpacked(log, "r1", pair.secret, mine)
    assert {file.name for file in mine.iterdir()} == {"synthetic.csv", "model.npz", "measured.jsonl"}
    assert (mine / "synthetic.csv").read_bytes() == (there / "synthetic.csv").read_bytes()
    assert not (tmp_path / "elsewhere").exists()
    assert (
        unpacked(log, "r2", pair.secret, mine) == [] and unpacked(log[: len(log) // 2], "r1", pair.secret, mine) == []
    )
    with pytest.raises(RunError, match="sent to somebody else"):
        unpacked(log, "r1", KeyPair().secret, mine)
    renamed = log.replace("fedsyn-files r1", "fedsyn-files r2")
    with pytest.raises(RunError, match="damaged"):
        unpacked(renamed, "r2", pair.secret, mine)
    # Words of a node that a server app repeats stand within a line: they pass for none of these.
    forged = lines_of(returned._zipped([], {"ledger.json": "forged"}), "r1", pair.public)
    unpacked(log + "".join(f"dropped: client: {line}" for line in forged), "r1", pair.secret, mine)
    assert not (mine / "ledger.json").exists()
    # Of two tries the last complete one counts.
    (there / "model.npz").write_bytes(b"later")
    later = lines_of(packed(there), "r1", pair.public)
    unpacked("".join([*lines, *later]), "r1", pair.secret, mine)
    assert (mine / "model.npz").read_bytes() == b"later"


def test_only_files_of_a_run_are_unpacked(tmp_path: Path) -> None:
    pair, mine = KeyPair(), tmp_path / "mine"
    mine.mkdir()
    for name in ("../evil", "run.json", "journal/open", "x.csv"):
        evil = returned._zipped([], {name: "x"})
        with pytest.raises(RunError, match="not a run directory"):
            unpacked("".join(lines_of(evil, "r", pair.public)), "r", pair.secret, mine)
    assert list(mine.iterdir()) == [] and not (tmp_path / "evil").exists()


def test_a_table_that_is_too_large_stays_behind_and_says_where(tmp_path: Path) -> None:
    import random

    there = results(tmp_path / "there", random.Random(0).randbytes(50_000))
    pair, mine = KeyPair(), tmp_path / "mine"
    mine.mkdir()
    unpacked("".join(lines_of(packed(there, 20_000), "r", pair.public)), "r", pair.secret, mine)
    assert {file.name for file in mine.iterdir()} == {"too-large.txt", "model.npz", "measured.jsonl"}
    assert "synthetic.csv is too large" in (mine / "too-large.txt").read_text(encoding="utf-8")


def test_where_a_server_app_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_RUNS", str(tmp_path / "runs"))
    assert runs_folder() == tmp_path / "runs"
    assert RunFolder.of({"out": ""}) == RunFolder(None) and RunFolder.of({"out": str(tmp_path)}) == RunFolder(
        tmp_path.resolve()
    )
    elsewhere = RunFolder(tmp_path / "runs" / "abc", True)
    facts = {"out": str(tmp_path / "out"), "run": "abc"}
    assert RunFolder.of(facts) == elsewhere, "the starter's disk is not here"
    (tmp_path / "out").mkdir()
    assert RunFolder.of(facts) == elsewhere, "a folder of the same name is not its own"
    kept = Submitted.new(config_of(tmp_path), Schema.loads(SCHEMA), "north")
    kept.save(tmp_path / "out")
    assert RunFolder.of(facts) == elsewhere
    assert RunFolder.of({"out": str(tmp_path / "out"), "run": kept.run}) == RunFolder((tmp_path / "out").resolve())
    with pytest.raises(RunError, match="a run's name has"):
        RunFolder.of({"out": "", "run": "../../etc"})


def test_what_no_journal_may_hold_is_not_resumed(flower: Path, tmp_path: Path) -> None:
    """A store in the server's memory holds exact counts: they are never written down."""
    config = config_of(
        tmp_path, mechanism={"name": "distaim", "rounds": 1}, aggregation={"protocol": "plain", "noise": "server"}
    )
    with pytest.raises(ConfigError, match=r"a run of 'distaim' with aggregation\.protocol: plain keeps .*--force"):
        engines.run(config, tmp_path / "out", resume=True)
