"""What a terminal of 80 columns shows: a verdict in six lines, and what is being done."""

from __future__ import annotations

import re

import pytest

from fedsyn.evaluation.verdict import Judged, Verdict
from fedsyn.front.cli import console
from fedsyn.front.cli.console import say_line, say_verdict, working

KEPT, LOST = (
    Judged("a × b", 0.1, "kept"),
    Judged("arm × pressure of the last visit", 3.0, "association 0.40 became 0.08"),
)
COLUMNS = [Judged(f"column {at}", 0.1, "") for at in range(100)]
LONG = "a schema that reads all cells of the columns " + "and of others " * 40


@pytest.mark.parametrize("good", [0, 95])
@pytest.mark.parametrize("foremost", [(), (LOST,)])
@pytest.mark.parametrize("training", [None, (0.99, "well"), (0.1, "badly")])
@pytest.mark.parametrize("hidden", [0, 40])
def test_a_verdict_is_at_most_six_lines_of_80_columns(
    good: int, foremost: tuple[Judged, ...], training: tuple[float, str] | None, hidden: int,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the page's: good for, not good for, not known, what to do next, whatever is long."""
    monkeypatch.setenv("COLUMNS", "80")
    links = [KEPT] * 4_950 if not foremost else [KEPT] * 50 + [LOST] * 4_900
    columns = COLUMNS[:good] + [LOST] * (100 - good)
    verdict = Verdict(
        columns=columns, links=links, foremost=foremost, doubt=hidden > 0, hidden=hidden, unseen="u" * 300,
        training=training, why="it needs real rows", next=LONG,
    )  # fmt: skip
    say_verdict(verdict)
    say_line("page", "out/report.html")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 6 and all(len(line) <= 80 for line in lines), lines
    text = re.sub(r"\n {17}", " ", "\n".join(lines))
    for use in verdict.uses():
        what = {True: "good for", False: "not good for", None: "not known"}[use.fit]
        (said,) = re.findall(rf"^{what}: +(.*)$", text, re.MULTILINE)
        assert use.name in said and (not use.of or use.name == "regression" or f"({use.kept} of {use.of} kept)" in said)
    assert re.search(r"^next: +a schema", text, re.MULTILINE)
    assert f"; {LOST.name} is lost" in text, "the worst of what is not kept is named"


def test_what_is_being_done_is_shown_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with working("reading rows.csv") as following:
        following("comparing")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(console.err_console, "_force_terminal", True)
    with working("reading [b]rows[/b].csv") as following:
        following("comparing")
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err


def test_a_run_shows_what_it_does_after_its_rounds() -> None:
    shown: list[str] = []
    rounds = console._Rounds("m on t.csv", lambda **facts: shown.append(facts["description"]))
    rounds.stage("drawing 1,000 rows")
    assert shown == ["m on t.csv, drawing 1,000 rows"]
