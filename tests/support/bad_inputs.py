"""What tests of bad input share: a newcomer's folder, cases as rows of a table, and what must hold after each of them.

A case is what somebody types, the files that lie there, and the words that the one sentence has to contain.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import pytest

from fedsyn.front import cli

#: Cells of the tables that no message may quote.
SECRETS = ("4711-diagnosis", "88123.77", "1903-02-03")
SCHEMA = """\
columns:
  age: {kind: integer, lower: 18, upper: 90, bins: 4}
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  cost: {kind: decimal, places: 2, lower: 0, upper: 1000, bins: 4}
  smokes: {kind: categorical, categories: ['no', 'yes']}
label: smokes
"""
CONFIG = """\
mechanism: {name: augflaim, rounds: 1}
data: {source: rows.csv, schema: schema.yaml}
federation: {clients: 3}
privacy: {epsilon: 4.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
evaluation: [workload_error]
"""
# What a person who never read the source cannot understand.
_INTERNALS = re.compile(
    r"Traceback|0x[0-9a-f]{6}|NoneType|pydantic|dtype\('|Errno|[a-z]+Error\b|<class|site-packages|\bNaN\b|unicode str"
)
_LONGEST = 700

Content = str | bytes | Callable[[Path], object]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Bad:
    """One bad input.

    Attributes:
        typed: the command line, without `fedsyn`.
        says: what the sentence has to contain.
        files: name -> text, bytes, or what makes the file of that name.
        code: exit code.
    """

    typed: str
    says: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    code: int = 2

    @property
    def name(self) -> str:
        """The case's name in pytest."""
        made = ",".join(self.files)
        return f"{self.typed} [{made}]" if made else self.typed


def bad(typed: str, *says: str, files: Mapping[str, Content] | None = None, code: int = 2) -> Bad:
    """A row of a table of cases."""
    return Bad(typed, says, files or {}, code)


def rows(count: int = 60) -> pd.DataFrame:
    """The newcomer's table; one row holds secrets."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, count),
            "job": rng.choice(["clerk", "driver", "nurse"], count),
            "cost": rng.integers(0, 90_000, count) / 100,
            "smokes": rng.choice(["no", "yes"], count),
        }
    )
    frame.loc[7, ["job", "cost"]] = ["4711-diagnosis", 88123.77]
    return frame


def furnish(folder: Path) -> None:
    """A folder with rows.csv, schema.yaml and run.yaml, which run."""
    folder.mkdir(exist_ok=True)
    rows().to_csv(folder / "rows.csv", index=False)
    (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")


def put(folder: Path, files: Mapping[str, Content]) -> None:
    """Writes the files of a case."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            content(path)


def contents(folder: Path) -> dict[str, str]:
    """What lies in a folder: name -> hash, links and folders included."""
    found = {}
    for path in sorted(folder.rglob("*")):
        readable = path.is_file() and os.access(path, os.R_OK)
        name = path.relative_to(folder).as_posix()
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if readable else str(path.lstat().st_mode)
    return found


Try = Callable[[Iterable[Bad]], None]


def by_kind(rows: Iterable[Row], kind: Callable[[Row], str]) -> dict[str, list[Row]]:
    """The rows of a table of cases, by kind: one test for each."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(kind(row), []).append(row)
    return kinds


def call(typed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """The command's own entry point in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["fedsyn", *shlex.split(typed)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def check(case: Bad, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Exit code 2, one sentence (returned) with the words of the case, no cell of a table; the folder is as it was."""
    put(folder, case.files)
    before = contents(folder)
    code, out, err = call(case.typed, capsys, monkeypatch)
    assert code == case.code, f"{code}\n{out}\n{err}"
    *said, last = err.strip().splitlines() or [""]
    assert last.startswith("error: "), err
    # What was found out about a file may be said above; nothing else.
    assert all(re.fullmatch(r"\S+\.\w+: .*", line) for line in said), err
    assert len(last) <= _LONGEST and not _INTERNALS.search(last), last
    for part in case.says:
        assert part in last, f"{part!r} is not in: {last}"
    for secret in SECRETS:
        assert secret not in out + err
    assert out == "", out
    assert contents(folder) == before  # no run directory, no ledger, no draft: nothing was spent or replaced
    return last


def check_each(
    cases: Iterable[Bad],
    folder: Path,
    furnished: Callable[[Path], object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks every case in a folder of its own and fails with all that is wrong.

    Args:
        folder: in which the folders are made.
        furnished: makes a case's folder as it is before the case's files are put there.
    """
    failures = []
    for number, case in enumerate(cases):
        place = folder / f"case-{number}"
        furnished(place)
        monkeypatch.chdir(place)
        try:
            check(case, place, capsys, monkeypatch)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
