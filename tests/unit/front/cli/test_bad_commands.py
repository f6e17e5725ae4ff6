"""Bad command lines, models and folders: exit code 2, one sentence that helps, nothing written."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
import pytest
import typer

from fedsyn.front import cli
from support.bad_inputs import SCHEMA, SECRETS, Bad, Content, bad, by_kind, call, check_each, furnish, rows


def damaged(name: str, change: Callable[[bytes], bytes]) -> Content:
    """A run's folder with one file changed."""

    def make(path: Path) -> None:
        shutil.copytree(path.parent / "done", path)
        (path / name).write_bytes(change((path / name).read_bytes()))

    return make


def without(name: str) -> Content:
    def make(path: Path) -> None:
        shutil.copytree(path.parent / "done", path)
        (path / name).unlink()

    return make


def archive(**changed: bytes | None) -> Content:
    """A saved model with some members changed, or taken out."""

    def make(path: Path) -> None:
        names = ("schema.yaml", "config.yaml", "ledger.json", "rounds.jsonl", "model.npz")
        members = {name: (path.parent / "done" / name).read_bytes() for name in names}
        members["fedsyn.json"] = b'{"format": 1, "kind": "model"}'
        for name, content in changed.items():
            member = name.replace("__", ".").replace("UP", "../../")
            if content is None:
                del members[member]
            else:
                members[member] = content
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for member, content in members.items():
                file.writestr(member, content)

    return make


def cut(content: Content, size: int) -> Content:
    def make(path: Path) -> None:
        assert callable(content)
        content(path)
        path.write_bytes(path.read_bytes()[:size])

    return make


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, allow_pickle=True)
    return buffer.getvalue()


class Opens:
    """What a hostile pickle would do: leave a file."""

    def __reduce__(self) -> tuple[object, ...]:
        return (open, ("pwned", "w"))


BOMB = bytes(300_000_000)  # no page of it is touched before it is packed
#: What is typed, the words of the answer, and the files that lie there besides rows.csv, run.yaml, schema.yaml, done/.
CASES: list[Bad] = [
    # The command line itself
    bad("rnu run.yaml", "no such command: rnu", "did you mean 'run'", "--help"),
    bad("review schema.yaml", "no such command: review; there is fedsyn schema review"),
    bad("init absent.csv", "absent.csv"),  # and not that run.yaml exists
    bad("run run.yaml --set privacy.epsilon=-1", "run.yaml with --set: privacy.epsilon"),
    bad("run", "missing argument", "fedsyn run --help"),
    bad("run run.yaml more.yaml", "unexpected extra argument", "more.yaml"),
    bad("run run.yaml --sett a=b", "no such option: --sett", "did you mean '--set'"),
    bad("run run.yaml --out", "--out", "argument"),
    bad("--verison", "did you mean '--version'"),
    bad("schema daft rows.csv", "no such command: daft", "did you mean 'draft'"),
    bad("run absent.yaml", "no such file: absent.yaml"),
    bad("run done", "done", "irectory"),
    bad("run rows.csv", "rows.csv"),
    bad("run schema.yaml", "schema.yaml", "unknown key"),
    bad("run run.yaml --out rows.csv", "rows.csv"),
    bad("run run.yaml --out rows.csv/out", "rows.csv"),
    bad("run run.yaml --out own", "schema.yaml of its own", files={"own/schema.yaml": SCHEMA}),
    bad("explain absent.yaml", "no such file: absent.yaml"),
    bad("partition run.yaml --set federation.clients=0", "federation.clients"),
    bad("demo --out rows.csv", "rows.csv", "it is a file"),
    # sample
    bad("sample absent", "absent"),
    bad("sample rows.csv", "rows.csv is not a model"),
    bad("sample run.yaml", "run.yaml is not a model"),
    bad("sample .", "has no model.npz"),
    bad("sample done --rows 0", "--rows", "range"),
    bad("sample done --rows many", "--rows", "integer"),
    bad("sample done --rows 1e3", "--rows", "integer"),
    bad("sample done --rows 100000000000", "--rows"),
    bad("sample done --seed -1", "--seed"),
    bad("sample done --out t.xlsx", ".csv or .parquet"),
    bad("sample done --out t", ".csv or .parquet"),
    bad("sample done --out rows.csv", "rows.csv exists", "--force"),
    bad("sample done --out no/such/t.csv", "no folder no/such"),
    bad("sample done --where job", "COLUMN=VALUE"),
    bad("sample done --where ''", "COLUMN=VALUE"),
    bad("sample done --where jbo=clerk", "jbo", "did you mean 'job'"),
    bad("sample done --where job=clrek", "clrek", "did you mean 'clerk'"),
    bad("sample done --where 'job<=clerk'", "no order"),
    bad("sample done --where age=old", "old", "age"),
    bad("sample done --where age=150", "18 to 90"),
    bad("sample done --where 'age<=5'", "18 to 90"),
    bad("sample done --where 'age>=50' --where 'age<=40'", "empty range"),
    bad("sample done --where 'age>=50' --where 'age>=40'", "twice"),
    bad("sample done --where 'age>=50' --where age=60", "'='"),
    bad("sample done --where 'age>='", "missing after '>='"),
    bad("sample done --where job=", "no missing values"),
    bad("sample done " + " ".join(f"--where job!={job}" for job in ("clerk", "driver", "nurse", "other")),
        "no value of 'job' meets all"),
    bad("sample done --where age=nan", "age"),
    bad("sample done --where age=inf", "age"),
    # Models that are none
    bad("sample m", "m", files={"m": b"PK\x03\x04 no zip"}),
    bad("sample m", "m", files={"m": b""}),
    bad("sample m", "m", files={"m": cut(archive(), 500)}),
    bad("sample m", "m", "other files", files={"m": archive(extra__txt=b"x")}),
    bad("sample m", "m", "other files", files={"m": archive(UPevil__sh=b"x")}),
    bad("sample m", "m", "other files", files={"m": archive(fedsyn__json=None)}),
    bad("sample m", "ledger.json", files={"m": archive(ledger__json=None)}),
    bad("sample m", "ledger.json", "JSON", files={"m": archive(ledger__json=b"{")}),
    bad("sample m", "fedsyn.json", "format", files={"m": archive(fedsyn__json=b'{"format": 99}')}),
    bad("sample m", "schema.yaml", "larger than", files={"m": archive(schema__yaml=BOMB)}),
    bad("sample m", "schema.yaml", files={"m": archive(schema__yaml=b"\xff\xfe")}),
    bad("sample m", "different tables",
        files={"m": archive(schema__yaml=SCHEMA.replace("bins: 4", "bins: 5").encode())}),
    bad("sample m", "config.yaml", files={"m": archive(config__yaml=b"[]")}),
    bad("sample m", "model.npz is damaged", files={"m": archive(model__npz=b"\0" * 100)}),
    bad("sample m", "model.npz", files={"m": archive(model__npz=npz(model=np.array([Opens()], dtype=object)))}),
    bad("sample m", "m", files={"m": pickle.dumps(Opens())}),
    bad("sample broken", "model.npz is damaged", files={"broken": damaged("model.npz", lambda b: b[:100])}),
    bad("sample broken", "config.yaml", files={"broken": without("config.yaml")}),
    bad("sample broken", "broken", files={"broken": damaged("schema.yaml", lambda b: b"columns: 5")}),
    # evaluate
    bad("evaluate done", "--real"),
    bad("evaluate done --real absent.csv", "absent.csv"),
    bad("evaluate done --real other.csv", "no column 'smokes'", files={"other.csv": "age,cost\n1,2\n3,4\n"}),
    bad("evaluate absent --real rows.csv", "absent"),
    bad("evaluate own --real rows.csv", "own", files={"own/nothing.txt": ""}),
    bad("evaluate done --real rows.csv --label jbo", "did you mean 'job'"),
    bad("evaluate done --real rows.csv --schema absent.yaml", "absent.yaml"),
    bad("evaluate done --real rows.csv --schema run.yaml", "run.yaml"),
    bad("evaluate done --real rows.csv --out rows.csv", "rows.csv exists"),
    bad("evaluate done --real empty.csv", "empty.csv is empty", files={"empty.csv": ""}),
    # compare and report
    bad("compare done absent", "absent is not the directory of a finished run"),
    bad("compare done rows.csv", "rows.csv is not the directory of a finished run"),
    bad("compare done .", "is not the directory of a finished run"),
    bad("compare done broken", "broken", files={"broken": damaged("metrics.json", lambda b: b"{")}),
    bad("compare done broken", "broken", files={"broken": damaged("ledger.json", lambda b: b"[]")}),
    bad("report absent", "absent"),
    bad("report rows.csv", "rows.csv"),
    bad("report .", "neither the directory of a run nor of a sweep"),
    bad("report broken", "broken", files={"broken": damaged("ledger.json", lambda b: b"{")}),
    # init
    bad("init rows.csv", "run.yaml exists", "--force"),
    bad("init absent.csv --force", "no such file: absent.csv"),
    bad("init rows.csv other.csv --force", "other.csv", "'job'",
        files={"other.csv": "age,jbo,cost,smokes\n1,a,2,no\n"}),
    bad("init rows.csv t.parquet --force", "different kinds",
        files={"t.parquet": lambda path: rows().to_parquet(path)}),
    bad("init --force", "missing argument"),
    bad("init rows.csv --force --label jbo", "did you mean 'job'"),
    # schema check and review
    bad("schema check absent.yaml", "absent.yaml"),
    bad("schema check run.yaml", "run.yaml", "unknown key"),
    bad("schema check rows.csv", "rows.csv"),
    bad("schema check schema.yaml --data absent.csv", "absent.csv"),
    bad("schema check schema.yaml --data other.csv", "lacks columns", files={"other.csv": "a,b\n1,2\n"}),
    bad("schema check schema.yaml --few 0", "--few"),
    bad("schema review absent.yaml", "absent.yaml"),
    bad("schema review schema.yaml --approve jbo", "did you mean 'job'"),
    bad("schema review schema.yaml --public ''", "--approve"),
    bad("schema review draft.yaml", "--approve", "--all",
        files={"draft.yaml": SCHEMA.replace("bins: 4}", "bins: 4, drafted: [lower]}", 1)}),
    # sweeps
    bad("sweep absent.yaml", "absent.yaml"),
    bad("sweep run.yaml", "run.yaml", "unknown key"),
    bad("sweep s.yaml", "base", files={"s.yaml": "grid: {privacy.epsilon: [1, 2]}\n"}),
    bad("sweep s.yaml", "absent.yaml", files={"s.yaml": "base: absent.yaml\n"}),
    bad("sweep s.yaml", "has no values", files={"s.yaml": "base: run.yaml\ngrid: {privacy.epsilon: []}\n"}),
    bad("sweep s.yaml", "greater than", files={"s.yaml": "base: run.yaml\ngrid: {privacy.epsilon: [1, 0]}\n"}),
    bad("sweep s.yaml", "privcay", files={"s.yaml": "base: run.yaml\ngrid: {privcay.epsilon: [1, 2]}\n"}),
    bad("sweep s.yaml", "same value twice", files={"s.yaml": "base: run.yaml\ngrid: {privacy.epsilon: [1, 1]}\n"}),
    bad("sweep s.yaml --workers 0", "--workers", files={"s.yaml": "base: run.yaml\n"}),
    bad("sweep s.yaml", "text", files={"s.yaml": "1: 2\n"}),
    # what only some mechanisms can
    bad("run run.yaml --out out --set mechanism=distaim --set data.schema=p.yaml", "private",
        files={"p.yaml": SCHEMA.replace("upper: 1000, bins: 4", "upper: 1000, bins: private")}),
    bad("run run.yaml --out out --set mechanism=aim --set aggregation.protocol=secagg", "allowed: plain, mpc, fhe"),
    bad("run run.yaml --out out --set mechanism=fhaim", "privacy.client_sizes: public"),
    # keys of parties
    bad("identity rows.csv/key", "rows.csv"),
    bad("party keygen keys --name a", "--address"),
    bad("party keygen keys --name a --address nowhere", "HOST:PORT"),
    bad("party card absent", "absent"),
    bad("party serve absent.yaml", "absent.yaml"),
]  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, done/."""
    from fedsyn.loading import load_config
    from fedsyn.runs.engines import run

    folder = tmp_path_factory.mktemp("newcomer")
    furnish(folder)
    run(load_config(folder / "run.yaml"), folder / "done", full_page=False)
    return folder


def by_command(cases: list[Bad]) -> dict[str, list[Bad]]:
    """Groups cases by the command that each types; "none" where there is no command of that name."""
    tree = typer.main.get_command(cli.app)  # once: it builds the whole tree, an eighth of a second
    assert isinstance(tree, click.Group)
    names = tree.commands

    def typed(case: Bad) -> str:
        word = case.typed.partition(" ")[0]
        return word if word in names else "none"

    return by_kind(cases, typed)


BY_COMMAND = by_command(CASES)


@pytest.mark.parametrize("cases", BY_COMMAND.values(), ids=BY_COMMAND)
def test_a_command_that_is_typed_wrongly(
    cases: list[Bad], done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_each(cases, tmp_path, partial(shutil.copytree, done), capsys, monkeypatch)


# What nobody foresaw --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["run run.yaml --out out", "schema draft rows.csv", "sample done", "init x.csv"])
@pytest.mark.parametrize("debug", ["", "1"])
def test_a_bug_is_one_sentence_without_a_cell(
    typed: str,
    debug: str,
    done: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is raised, wherever: here each time by the part that all four commands use."""
    from fedsyn.table.schema import Schema

    def broken(*_: object, **__: object) -> Schema:
        raise ZeroDivisionError(f"cannot divide {SECRETS[0]}")

    monkeypatch.setattr(Schema, "from_dict", broken)
    monkeypatch.setenv("FEDSYN_DEBUG", debug)
    shutil.copytree(done, tmp_path / "work")  # a table of its own: one that this process has read before meets no bug
    shutil.copyfile(done / "rows.csv", tmp_path / "x.csv")
    monkeypatch.chdir(tmp_path if typed.startswith("init") else tmp_path / "work")
    code, _, err = call(typed, capsys, monkeypatch)
    last = err.strip().splitlines()[-1]
    assert code == 70 and last.startswith("this is a bug of fedsyn") and "ZeroDivisionError" in last
    assert "FEDSYN_DEBUG=1" in last and SECRETS[0] not in last
    assert ("Traceback" in err) == (debug == "1") and (SECRETS[0] in err) == (debug == "1")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "memory ran out"),
        (OSError(28, "No space left on device", "out/synthetic.csv"), 1, "out/synthetic.csv: No space left on device"),
        (RecursionError("deep"), 70, "RecursionError"),
        (KeyError(SECRETS[0]), 70, "KeyError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_run_may_end(
    error: BaseException, code: int, says: str, done: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import fedsyn.runs.engines as engines

    def ended(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(engines, "run", ended)
    monkeypatch.chdir(done)
    got, out, err = call("run run.yaml --out out", capsys, monkeypatch)
    assert (got, out) == (code, "") and len(err.strip().splitlines()) == 1
    assert says in err and "Traceback" not in err and SECRETS[0] not in err


def test_an_interrupted_run_says_what_it_has_cost(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the rounds, while files are written."""
    import fedsyn.runs.engines as engines

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    shutil.copytree(done, tmp_path / "work")
    monkeypatch.setattr(engines, "finish", interrupt)
    monkeypatch.chdir(tmp_path / "work")
    code, _, err = call("run run.yaml --out new", capsys, monkeypatch)
    epsilon = json.loads((tmp_path / "work" / "new" / "ledger.json").read_text(encoding="utf-8"))["epsilon"]
    assert code == 130
    said = f"epsilon {epsilon:.4g} is spent, by its ledger; a simulation starts again, with --force"
    assert epsilon > 0 and err.endswith(f"{said}\ninterrupted\n")
