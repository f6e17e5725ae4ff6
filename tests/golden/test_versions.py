"""Upgrade and rollback: each version reads what the other one left, or refuses it in a sentence.

`party_format_1/ledger.jsonl` was written by `fedsyn.mpc.book.Book` of commit 1ba3f7d: two runs, the second without an
end, as a kill leaves it. The tests that are marked slow run the code of commit LAST, which has the names of today, on
files of today's, and the other way round.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import fedsyn
from fedsyn.errors import BudgetExceeded, ConfigError
from fedsyn.ledgers.party_ledger import PartyLedger, read_party_lines
from fedsyn.privacy import PrivacyBudget
from fedsyn.stores.parties.policy import load_party_file

ROOT = Path(__file__).resolve().parents[2]
LAST = "8444e438"
STORED = Path(__file__).parent / "party_format_1" / "ledger.jsonl"
TOTAL = PrivacyBudget(4.0, 1e-5)
FIRST, SECOND = f"{1:064x}", f"{2:064x}"
CONFIG = ROOT / "tests" / "golden" / "run_format_1" / "config.yaml"


# What the last version left ------------------------------------------------------------------------------------------


def test_a_partys_ledger_of_the_last_version_is_read_and_continued(tmp_path: Path) -> None:
    reading = read_party_lines(STORED)
    assert reading.runs == {FIRST: [0.01, pytest.approx(0.006)], SECOND: [0.01, pytest.approx(0.006)]}
    assert reading.spent == pytest.approx(0.012, rel=1e-12) and reading.open == SECOND and not reading.torn

    ledger = tmp_path / "ledger.jsonl"
    shutil.copy(STORED, ledger)
    book = PartyLedger(ledger, TOTAL)
    try:
        assert book.spent == pytest.approx(0.012, rel=1e-12)
        with pytest.raises(BudgetExceeded):
            book.begin("a" * 64, TOTAL.rho - 0.0119)
        book.begin("a" * 64, 0.01)
        book.charge("a" * 64, 0.004, name="open")
    finally:
        book.close()
    lines = ledger.read_text("utf-8").splitlines()
    assert lines[: len(STORED.read_text("utf-8").splitlines())] == STORED.read_text("utf-8").splitlines()
    assert read_party_lines(ledger).spent == pytest.approx(0.016, rel=1e-12)


def test_a_changed_line_of_a_stored_ledger_is_noticed(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(STORED.read_text("utf-8").replace('"rho": 0.003', '"rho": 0.0003', 1), encoding="utf-8")
    with pytest.raises(ConfigError, match="ledger"):
        read_party_lines(ledger)


# The last version's own code -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the last version, out of this checkout's history."""
    folder = tmp_path_factory.mktemp("last")
    archive = folder / "last.tar"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--output", str(archive), LAST], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"commit {LAST} is not in this copy of the sources: {done.stderr.strip()[-100:]}")
    shutil.unpack_archive(archive, folder / "fedsyn")
    return folder / "fedsyn"


def typed(sources: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`fedsyn ...` of a version."""
    command = [sys.executable, "-m", "fedsyn.front.cli", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(sources), "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, cwd=sources, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done


def ran(sources: Path, code: str) -> str:
    """What a piece of code prints in a version."""
    environment = os.environ | {"PYTHONPATH": str(sources)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=sources, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["upgrade", "rollback"])
def test_a_run_directory_is_read_by_the_other_version(last: Path, tmp_path: Path, direction: str) -> None:
    writer, reader = (last, ROOT) if direction == "upgrade" else (ROOT, last)
    out = tmp_path / "out"
    done = typed(writer, "run", CONFIG, "--out", out)
    assert done.returncode == 0, done.stderr
    ledger = json.loads((out / "ledger.json").read_text("utf-8"))
    code = (
        "import fedsyn, json; from fedsyn.runs.directory import read_facts; from pathlib import Path\n"
        f"out = Path({str(out)!r}); model = fedsyn.load_model(out / 'model.npz')\n"
        "ledger = read_facts(out / 'ledger.json'); config = fedsyn.load_config(out / 'config.yaml')\n"
        "print(json.dumps([model.total, ledger['epsilon'], config.mechanism.name]))"
    )
    total, epsilon, name = json.loads(ran(reader, code))
    assert epsilon == ledger["epsilon"] and total == pytest.approx(len(pd.read_csv(out / "synthetic.csv")), abs=1)
    assert name == fedsyn.load_config(CONFIG).mechanism.name
    sampled = typed(reader, "sample", out, "--rows", 20, "--out", tmp_path / "more.csv")
    assert sampled.returncode == 0, sampled.stderr
    assert len(pd.read_csv(tmp_path / "more.csv")) == 20
    reported = typed(reader, "report", out)
    assert reported.returncode == 0, reported.stderr
    again = typed(reader, "run", out / "config.yaml", "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "again" / "synthetic.csv"), pd.read_csv(out / "synthetic.csv"), rtol=1e-6
    )


@pytest.mark.slow
def test_a_partys_ledger_goes_to_and_fro_between_versions(last: Path, tmp_path: Path) -> None:
    """Upgrade, rollback, upgrade: each version goes on with what the other has written."""
    ledger, spent = tmp_path / "ledger.jsonl", 0.0
    for number, sources in enumerate((last, ROOT, last, ROOT)):
        run = f"{number:064x}"
        code = (
            "from pathlib import Path; from fedsyn.privacy import PrivacyBudget\n"
            "from fedsyn.ledgers.party_ledger import PartyLedger\n"
            f"book = PartyLedger(Path({str(ledger)!r}), PrivacyBudget(4.0, 1e-5)); print(repr(book.spent))\n"
            f"book.begin({run!r}, 0.01); book.charge({run!r}, 0.00{number + 1}, name='open')\n"
            + ("" if number == 1 else f"book.end({run!r})\n")  # one that was killed
            + "book.close()"
        )
        assert float(ran(sources, code)) == pytest.approx(spent, rel=1e-12)
        spent += 0.001 * (number + 1)
    assert read_party_lines(ledger).spent == pytest.approx(spent, rel=1e-12)


@pytest.mark.slow
def test_a_partys_files_of_the_last_version_serve_this_one_and_unknown_keys_are_refused_in_a_sentence(
    last: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "alder"
    assert typed(last, "party", "keygen", folder, "--name", "alder", "--address", "127.0.0.1:7443").returncode == 0
    assert typed(last, "party", "keygen", tmp_path / "study", "--name", "study", "--operator").returncode == 0
    file = folder / "party.yaml"
    file.write_text(
        "role: crypto\noperators: [../study/certificate.pem]\n"
        "policy: {epsilon_per_run: 1.0, epsilon_total: 4.0, delta: 1.0e-5, mechanisms: [sketch_aim]}\n",
        encoding="utf-8",
    )
    assert load_party_file(file).policy.epsilon_total == 4.0
    assert typed(ROOT, "party", "card", folder).stdout == typed(last, "party", "card", folder).stdout
    assert typed(ROOT, "party", "rotate", folder).returncode == 0
    assert typed(last, "party", "card", folder).returncode == 0, "rotated keys are a party's keys to the last version"
    with file.open("a", encoding="utf-8") as text:
        text.write("listen_nowhere: 127.0.0.1:9102\n")
    for sources in (last, ROOT):  # as a key of a version to come
        refused = typed(sources, "party", "serve", file)
        assert refused.returncode == 2 and "listen_nowhere" in refused.stderr and len(refused.stderr.splitlines()) == 1
