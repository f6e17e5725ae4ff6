"""`fedsyn plan`: a table in 80 columns, a page, JSON; one sentence for whatever is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedsyn.front import plan as planning
from fedsyn.front.plan import Expected, Plan, Rehearsal
from support.typed_commands import Fedsyn, entry_point

CONFIG = """
data: {source: rows.csv, schema: schema.yaml}
epsilon: 1
delta: 1e-5
"""
SCHEMA = "columns: {age: {kind: numeric, lower: 0, upper: 80, bins: 8}, ill: {kind: categorical, categories: [a, b]}}"
RUN = Rehearsal(0.2345, 0.0123, 0.1, 41.0, 0.234, 12.0, 28.6, 4.9, 16.7, 0.075, 1.25, 12.0, "use fewer bins for a")


@pytest.fixture
def fedsyn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fedsyn:
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return entry_point(capsys, monkeypatch)


def foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every plan be of 500 columns, whose names and numbers are as long as they get."""
    found = tuple(Expected(epsilon, 0.1234, 0.4567, RUN) for epsilon in (0.125, 1.0, 1000.0))
    whole = Plan("sketch_aim", 10**9, 5000, 500, "typical tables", found, 1, "secagg")
    monkeypatch.setattr(planning, "plan", lambda *_, **__: whole)


def test_a_plan_fits_80_columns(fedsyn: Fedsyn, monkeypatch: pytest.MonkeyPatch) -> None:
    foreseen(monkeypatch)
    said = fedsyn("plan", "run.yaml", "--rows", "1000000000")
    assert said.code == 0 and max(map(len, said.out.splitlines())) <= 80
    text = " ".join(said.out.split())
    assert "rows: 1,000,000,000, holders: 5,000, columns: 500" in text
    assert "0.125 0.234 0.123-0.457 0.012 0.100 41 of 124,750 0.23" in text
    assert "A larger model would be better: use fewer bins for a. Errors are" in text
    assert "up to 29 even bins, and of a measured pair with up to 5 x 5" in text
    assert "gets 17 messages over secagg, 1.2 MB, and sends 0.075 MB; the run takes 20 seconds or more" in text


def test_a_plan_as_json_and_as_a_page(fedsyn: Fedsyn, monkeypatch: pytest.MonkeyPatch) -> None:
    foreseen(monkeypatch)
    said = fedsyn("plan", "run.yaml", "--rows", "100", "--json", "--out", "page.html")
    facts = json.loads(said.out)
    assert facts["expected"][1]["run"]["error"] == 0.2345 and facts["minutes"] == pytest.approx(20.35 / 60)
    page = Path("page.html").read_text(encoding="utf-8")
    assert "0.123-0.457" in page and "half a second for each exchange" in page
    again = fedsyn("plan", "run.yaml", "--rows", "100", "--out", "page.html")
    assert again.code == 2 and "add --force" in again.err
    os.mkfifo("pipe")
    into = fedsyn("plan", "run.yaml", "--rows", "100", "--out", "pipe", "--force")
    assert into.code == 2 and "pipe is a pipe or a device" in into.err and Path("pipe").is_fifo()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected the rows of all holders together, --rows N"),
        (["--rows", "100", "--like", "gone"], "no file or run directory gone"),
        (["--rows", "100", "--public", "gone.csv"], "gone.csv"),
        (["--rows", "1"], "--rows"),
        (["--row", "100"], "--rows"),
        (["--rows", "100", "--epsilon", "0"], "--epsilon"),
        (["--rows", "100", "--out", "nowhere/page.html"], "there is no folder"),
        (["--rows", "100", "--set", "epsilom=1"], "did you mean 'epsilon'"),
    ],
)
def test_bad_plans_are_one_sentence(fedsyn: Fedsyn, arguments: list[str], said: str) -> None:
    found = fedsyn("plan", "run.yaml", *arguments)
    assert found.code == 2 and found.out == ""
    assert said in found.err and "Traceback" not in found.err and len(found.err.strip().splitlines()) == 1
