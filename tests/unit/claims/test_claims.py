"""Each published figure has an entry, says what that says, and is stale as soon as what it measures has changed."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from claims.__main__ import measure, moved, take
from claims.derived import missing
from claims.fingerprints import FINGERPRINTS, same
from claims.register import ROOT, STRICT, Page, current, digest_of, load, noted, problems, stale, taken
from fedsyn.selection.planning import Planner

RUNS = load()


def test_figures_and_entries_agree() -> None:
    assert problems(RUNS) == []


def test_what_is_stale_says_until_when_it_may_be() -> None:
    read = [run for run in RUNS if any(figure.page.startswith(STRICT) for figure in run.figures)]
    assert [run.name for run in stale(read) if not run.may_be_stale] == []


def test_every_fingerprint_is_taken_and_used() -> None:
    assert set(taken()) == set(FINGERPRINTS) == {name for run in RUNS for name in run.fingerprints}


@pytest.mark.thorough
def test_an_entry_has_the_fingerprints_of_its_sweep() -> None:
    assert {run.name: missing(run) for run in RUNS if missing(run)} == {}
    run = next(run for run in RUNS if run.name == "flaim_figure1")
    assert missing(replace(run, fingerprints={})) == ["aim", "flaim"]
    assert missing(replace(run, command="python experiments/check.py distaim_table2", fingerprints={"aim": "0"})) == [
        *("flaim", "sketch_aim", "splits")
    ]
    variants = replace(run, command="python experiments/check.py distributed_aim_adult", fingerprints={})
    assert {"distributed_aim", "splits"} <= set(missing(variants))


@pytest.mark.slow  # `make claims`, which CI runs
@pytest.mark.parametrize("name", sorted(FINGERPRINTS))
def test_a_fingerprint_is_what_was_taken(name: str) -> None:
    """Where it is not, `make claims` takes it, and says which figures are stale."""
    assert same(taken()[name], take(name)), f"what fingerprint {name} stands for has changed: run make claims"


def test_a_figure_without_an_entry_is_found() -> None:
    readme = Page.read("README.md")
    page = Page("README.md", readme.text + "\nIt takes 3.25 seconds, and 14 MB.\n")
    found = problems(RUNS, {"README.md": page})
    assert len(found) == 2 and all("without an entry" in line for line in found)
    assert problems(RUNS, {"README.md": Page("README.md", readme.text + "\nAt ε = 0.3, with Python 3.12.\n")}) == []


def test_a_value_that_differs_from_its_entry_is_found() -> None:
    text = Page.read("README.md").text
    found = problems(RUNS, {"README.md": Page("README.md", text.replace("0.453 (0.003)", "0.353 (0.003)"))})
    assert len(found) == 1 and "differs from its entry" in found[0]


def test_a_figure_made_stale_says_so_on_its_page() -> None:
    run = next(run for run in RUNS if run.name == "bench_mst")
    fresh = replace(run, fingerprints={"mst": current()["mst"]})
    old = replace(run, fingerprints={"mst": "00000000"})
    name = "benchmarks/README.md"
    text = noted((ROOT / name).read_text("utf-8"), name, [fresh])  # without the notes of other figures
    assert noted(text, name, [fresh]) == text
    note = f"Measured at {run.commit}; what it measures has changed since."
    assert note in noted(text, name, [old])
    assert noted(noted(text, name, [old]), name, [fresh]).strip() == text.strip()


@pytest.mark.slow
def test_a_planner_twice_as_slow_makes_its_claims_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = Planner.removed

    def twice(self: Planner, parts: object) -> object:
        removed(self, parts)
        return removed(self, parts)

    monkeypatch.setattr(Planner, "removed", twice)
    facts = FINGERPRINTS["planner"]()
    assert not same(taken()["planner"], facts)
    run = replace(
        next(run for run in RUNS if run.name == "bench_growth"), fingerprints={"planner": current()["planner"]}
    )
    assert stale([run]) == [] and stale([run], {"planner": digest_of(facts)}) == [run]


def test_a_measurement_is_compared_within_its_tolerance() -> None:
    run = next(run for run in RUNS if run.name == "bench_mst")
    printed = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    assert moved(run, printed) == []
    assert len(moved(run, printed.replace("| adult_flaim | 0.3 | 0.436", "| adult_flaim | 0.3 | 0.536"))) == 1
    second = moved(run, printed.replace("| adult_flaim | 1 | 0.424", "| adult_flaim | 1 | 0.524"))
    assert second == ["    adult_flaim: 0.424 (0.001) -> 0.524 (0.001)"]


def test_a_row_of_a_repeated_label_is_missed_where_only_the_others_were_printed() -> None:
    run = next(run for run in RUNS if run.name == "bench_mst")
    page = Page.read("benchmarks/README.md")
    span = run.figures[0].span(page)
    assert span is not None
    printed = page.text[slice(*span)].splitlines()
    shorter = [line for line in printed if not line.startswith("| insurance | 1 |")]
    assert moved(run, "\n".join(shorter)) == ["    insurance: not found in what was printed"]
    spaced = [line.strip("| ").replace(" | ", "   ") for line in printed]  # as a benchmark without bars prints
    assert moved(run, "\n".join(spaced)) == []


ENTRY = """\
one:
  command: 'test "$OPENBLAS_CORETYPE $NUMBA_CPU_NAME" = "Nehalem generic" && test ! -e "$FEDSYN_CACHE"'
  commit: "a"
  minutes: 1
  fingerprints: {}
  figures: []
"""


def test_an_entry_is_portable_once_it_held_under_another_processors_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claims.__main__.HERE", tmp_path)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "of this machine")
    (tmp_path / "one.yaml").write_text(ENTRY)
    (run,) = load(tmp_path)
    assert not run.portable and not measure(run, elsewhere=False)
    for _ in range(2):
        assert measure(run, elsewhere=True)
        (run,) = load(tmp_path)
        assert run.portable and not replace(run, commit="b").portable
    assert (tmp_path / "one.yaml").read_text() == ENTRY.replace('"a"\n', '"a"\n  elsewhere: "a"\n')


@pytest.mark.thorough
def test_the_command_explains_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As `python -m claims --help` does, in this process, which has its imports."""
    monkeypatch.setattr(sys, "argv", ["claims", "--help"])
    monkeypatch.delitem(sys.modules, "claims.__main__")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("claims", run_name="__main__")
    assert not ended.value.code and "--minutes" in capsys.readouterr().out
