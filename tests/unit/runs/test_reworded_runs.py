"""A run under way does the same whatever its refusals say: each of them reworded, in every form.

It asks again, it ends and is resumed, and it hands the reason of its end to its starter, whose exit code follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_asked_again import Faults, Federation, FlakyGrid, bad_minute, check_once

from fedsyn.errors import BudgetExceeded, ConfigError, InputError, Lost, RunError
from fedsyn.front.cli.ending import BAD_INPUT, FAILED, verdict
from fedsyn.runs.deployment import _is_worth_resuming
from fedsyn.runs.directory import raise_recorded_error, record_error, recorded_error
from fedsyn.runs.submitted import Submitted
from fedsyn.wire.refusals import Kind, Refusal
from support.killed_servers import served
from support.reworded import FORMS, reword

pytestmark = pytest.mark.thorough


def without_sentences(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run, of whose refusals the kinds alone."""
    lines = [json.loads(line) for line in facts["rounds"].splitlines()]
    for line in lines:
        line["dropped"] = {k: why["kind"] for k, why in line["dropped"].items()}
    return {**facts, "rounds": lines}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_asks_again_ends_and_is_resumed_whatever_its_refusals_say(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation("plain, the server's noise", tmp_path, monkeypatch)
    whole, places = federation.undisturbed()
    words = reword(monkeypatch, form)

    nodes, out = federation.begin()  # a bad minute everywhere
    faults: Faults = {}
    for place in places:
        faults |= bad_minute(place, one_may_be=False)
    found, grid = federation.run(nodes, out, faults)
    assert without_sentences(found) == without_sentences(whole)
    check_once(nodes)
    assert max(grid.asked.values()) == 4 and any(f"(busy: {words(Kind.BUSY)})" in said for said in grid.seen)

    nodes, out = federation.begin()  # a refusal for good
    place = places[-1]
    grid = FlakyGrid(nodes, {(place, 1): [Kind.BUDGET]}, out)
    with monkeypatch.context() as patch, pytest.raises(Lost, match="3 of 4 clients, too few to go on") as raised:
        patch.setattr(nodes, "grid", lambda *_: grid)
        served(nodes, out, monkeypatch)
    assert grid.asked[place, 1] == 1, "it was asked again, in vain"
    assert f"client 1 (budget: {words(Kind.BUDGET)})" in str(raised.value) and raised.value.can_go_on
    found, _ = federation.run(nodes, out)  # and the run is resumed
    assert without_sentences(found) == without_sentences(whole)
    check_once(nodes)


ENDINGS: dict[str, tuple[Exception, Kind, type[Exception], int]] = {
    "bad input": (ConfigError("input: no"), Kind.INPUT, InputError, BAD_INPUT),
    "lost": (Lost("over: no"), Kind.FAILED, RunError, FAILED),
    "over": (RunError("input: no", can_go_on=False), Kind.OVER, RunError, FAILED),
    "budget": (BudgetExceeded("failed: no"), Kind.OVER, RunError, FAILED),
    "a bug": (ValueError("input: no"), Kind.FAILED, RunError, FAILED),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ENDINGS)
def test_a_starter_hears_how_its_run_ended_whatever_it_says(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, kind, raised, code = ENDINGS[name]
    words: Callable[[Kind], str] = reword(monkeypatch, form)
    record_error(tmp_path, error)
    assert recorded_error(tmp_path) == Refusal(kind, "")
    with pytest.raises(raised) as caught:
        raise_recorded_error(tmp_path)
    assert verdict(caught.value) == (f"{'error' if code == BAD_INPUT else 'failed'}: {words(kind)}", code)
    assert not isinstance(caught.value, RunError) or caught.value.can_go_on == (kind is Kind.FAILED)
    kept = Submitted("r", "c", "s", "link", flower_run="1")
    assert _is_worth_resuming(tmp_path, kept) == (kind is not Kind.INPUT)
