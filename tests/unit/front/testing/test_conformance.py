"""Every registered mechanism passes every conformance check, and mechanisms that are broken on purpose do not."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsyn.registry as registry
from fedsyn.errors import ConfigError
from fedsyn.front.testing.checks import replay
from fedsyn.front.testing.checks.replay import PUBLIC
from fedsyn.front.testing.schemas import AwkwardTable, awkward_names, awkward_tables
from fedsyn.runs.directory import LOOKS_FILE
from fedsyn.runs.report import keep_looks
from fedsyn.table.schema import Schema
from fedsyn.testing import ConformanceCheck, Skipped, check_mechanism, mechanism_checks
from support.broken_mechanisms import (
    BROKEN,
    Aloof,
    ClumsyClient,
    Forgetful,
    OwnNoiseClient,
    RevealingClient,
    Sound,
    SoundClient,
    TwoClient,
    TwoSums,
    Voting,
    VotingClient,
)
from support.house_checks import every_check
from support.second_account import delta_of_gaussian, delta_of_rho

# Those of the paper's own variants whose code no default option reaches.
VARIANTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("aim", {"rounds": None}, ["two_rows", "odd_names"]),
    ("augflaim", {"rounds": 2, "local_rounds": 3}, ["two_rows"]),
    *((name, {"synthesizer": "pgm"}, ["two_rows"]) for name in ("privsyn", "fed_privsyn", "ada_fed_privsyn")),
]
# JAX compiles for seconds: the default tests fit one mechanism by Private-PGM.
BY_MBI = "aim"


# The default tests run every mechanism on this table, and some of them on one table more; `make test-all` runs all.
HOME = "missing_values"
PAIRWISE = ("mst", "fed_mst", "privsyn", "fed_privsyn", "ada_fed_privsyn")  # 1,770 pairs of sixty columns
# Each has most of its code from another one: of its checks the default tests make that of its sensitivities.
SIBLINGS = ("naive_flaim", "augflaim_oracle", "flaim_random", "mst", "fed_mst", "privsyn", "ada_fed_privsyn")
# Two steps of small networks.
OPTIONS = {"fed_dp_ctgan": {"rounds": 2, "hidden": 8, "noise_dim": 4, "batch": 8, "components": 20}}
COSTLY = (
    "sensitivity",
    "client_unit",
    "malformed_client",
    "released_values_only",
    "released_files",
    "vanishing_client",
    "distributed_noise",
)


def _every_check() -> Iterator[Any]:
    tables = awkward_tables()
    others = [table for table in awkward_names() if table != HOME]
    for number, name in enumerate(sorted(registry.MECHANISMS)):
        second = others[number % len(others)]
        if second == "sixty_columns" and name in PAIRWISE:
            second = "odd_names"
        for check in every_check(name, tables=tables, options=OPTIONS.get(name)):
            table, costly = check.bench.table.name, check.name in COSTLY
            settings = getattr(check.run, "settings", (check.setting,))
            # Of the settings of a costly check a mechanism has every second one, the next mechanism the others.
            turn = not costly or len(settings) == 1 or (settings.index(check.setting) + number) % 2 == 0
            marks = [pytest.mark.xdist_group(f"conformance-{name}-{table}")]
            if table == HOME:
                runs = turn and (name not in SIBLINGS or check.name == "sensitivity")
                runs = runs and (name == BY_MBI or check.name != "fits_by_mbi")
            else:
                runs = not costly and table == second and name not in SIBLINGS and check.name != "fits_by_mbi"
            if not runs:
                marks.append(pytest.mark.slow)
            elif table != HOME or costly or name in SIBLINGS:
                marks.append(pytest.mark.thorough)
            yield pytest.param(check, id=f"{name}-{check}".replace(": ", "-"), marks=marks)


@pytest.mark.parametrize("check", _every_check())
def test_mechanism_conforms(check: ConformanceCheck) -> None:
    try:
        check()
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "tables"), VARIANTS, ids=lambda value: str(value))
def test_variant_conforms(name: str, options: dict[str, Any], tables: list[str]) -> None:
    check_mechanism(name, options=options, tables=tables)


def test_an_unknown_mechanism_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown mechanism 'agflaim'.*augflaim"):
        check_mechanism("agflaim")


def test_the_second_account_agrees_with_the_first() -> None:
    from fedsyn.privacy.conversion import gaussian_delta, zcdp_delta

    for rho in (1e-4, 0.01, 0.3):
        for epsilon in (0.1, 1.0, 4.0):
            ours, theirs = delta_of_rho(rho, epsilon), zcdp_delta(rho, epsilon)
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-300)
            assert delta_of_gaussian(rho, epsilon) == pytest.approx(
                gaussian_delta(np.sqrt(2 * rho), epsilon), rel=1e-6, abs=1e-15
            )


# Mechanisms that are broken on purpose -------------------------------------------------------------------------------


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))

    def add(strategy: type, client: type) -> str:
        name = f"{strategy.__name__}_{client.__name__}"
        paths = (f"support.broken_mechanisms:{half.__name__}" for half in (strategy, client))
        registry.MECHANISMS[name] = registry.MechanismEntry(*paths)
        return name

    return add


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("halves", [(Sound, SoundClient), (Voting, VotingClient), (TwoSums, TwoClient)])
def test_the_sound_ones_pass(halves: tuple[type, type], register: Any) -> None:
    name = register(*halves)
    report = check_mechanism(name, tables=["two_rows"])
    assert not report.skipped and not report.failed
    assert report.passed["contributions"] == ["two_rows"]
    for check in every_check(name, tables=["two_rows"]):
        if check.name != "participations":  # they have no rounds
            check()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "broken", [pytest.param(b, marks=[pytest.mark.slow] * (i % 10 > 0)) for i, b in enumerate(BROKEN)]
)
def test_a_broken_mechanism_is_found(broken: str, register: Any) -> None:
    strategy, client, finding = BROKEN[broken]
    with pytest.raises(AssertionError, match=finding) as caught:
        check_mechanism(register(strategy, client), tables=["missing_values"])
    assert " on missing_values" in str(caught.value)


@pytest.mark.slow
def test_every_finding_has_its_cause_then_checks_and_tables(register: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        check_mechanism(register(Sound, OwnNoiseClient), tables=["missing_values", "two_rows"])
    head, *lines = str(caught.value).splitlines()
    assert re.fullmatch(r"mechanism 'Sound_OwnNoiseClient' fails \d+ conformance check\(s\) for \d+ reasons", head)
    where = next(i for i, line in enumerate(lines) if re.match(r"\d+\. noise of .* drawn outside a ledger entry", line))
    assert "noise_comes_through_the_ledger" in lines[where + 1]
    found = re.findall(r"noise_comes_through_the_ledger.* on (.*)", str(caught.value))
    assert {table for tables in found for table in tables.split(", ")} == {"missing_values", "two_rows"}


def test_an_error_of_the_authors_own_is_told_with_its_place(register: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        check_mechanism(register(Sound, ClumsyClient), tables=["two_rows"])
    head, first, *_ = str(caught.value).splitlines()
    assert first.startswith("1. ") and re.search(r"KeyError: 'no such key' at .*broken_mechanisms.py:\d+", first)
    assert re.search(r"fails 2\d conformance check\(s\) for 1 reason$", head)


@pytest.mark.thorough
def test_what_follows_from_an_error_stands_below_it(register: Any) -> None:
    """A row decides whether a client fails: the error comes first, then what the checks say of it."""
    with pytest.raises(AssertionError) as caught:
        check_mechanism(register(Sound, RevealingClient), tables=["two_rows", "missing_values"])
    head, first, *lines = str(caught.value).splitlines()
    assert head.endswith("for 1 reason") and first.startswith("1. ValueError: a private matter at ")
    seen = [line for line in lines if line.startswith("   seen by ")]
    follows = [line for line in lines if line.startswith("   so that ")]
    assert lines == seen + follows and len(follows) > 2
    assert any("released_values_only" in line and "two_rows" in line for line in seen)
    assert len({line.partition(" (")[0] for line in follows}) == len(follows)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (Aloof, "1. the run failed: the mechanism asked no client for anything"),
        (Forgetful, "1. the run failed: every client answered what it was asked, and the mechanism left no model"),
    ],
)
def test_a_run_without_a_model_says_who_is_to_blame(strategy: type, sentence: str, register: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        check_mechanism(register(strategy, SoundClient), tables=["two_rows"])
    head, first, *_ = str(caught.value).splitlines()
    assert head.endswith("for 1 reason") and first.startswith(sentence)
    assert "enough replies" not in str(caught.value)


@pytest.mark.slow
def test_a_pass_is_told_on_one_screen_and_nothing_else_is(
    register: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = logging.getLogger("fedsyn").handlers
    report = check_mechanism("aim", tables=["two_rows", "odd_names"])
    printed = capsys.readouterr()
    assert printed.out == report.render() + "\n" and not printed.err and not caplog.records
    assert logging.getLogger("fedsyn").handlers is before
    lines = printed.out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert lines[0] == f"aim passes {len(report.passed)} checks on 2 table(s)."
    assert "Skipped on all tables, one data holder has every row: order_of_replies (3" in printed.out
    named = " ".join(line.strip() for line in lines)
    for check in mechanism_checks("aim", tables=["two_rows"]):
        assert check.name in named


@pytest.mark.slow
def test_what_is_not_looked_at_is_skipped_with_its_reason() -> None:
    report = check_mechanism("augflaim_oracle", tables=["two_rows"])
    (skipped,) = (seen for reason, seen in report.skipped.items() if reason.startswith("declared not private: the or"))
    looked_at = {"sensitivity", "client_unit", "released_values_only", "released_files", "fits_by_mbi"}
    assert {title.partition(" (")[0] for title in skipped} == looked_at


def test_public_files_are_those_of_the_page_on_runs() -> None:
    page = (Path(__file__).parents[4] / "docs" / "running.md").read_text(encoding="utf-8")
    table = page.partition("| file | what | public? |\n")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[1:]]
    public = [name for names, _, told in rows for name in re.findall(r"`([\w.]+)`", names) if "**no**" not in told]
    assert sorted(public) == sorted(PUBLIC)


def test_what_sketches_say_follows_from_released_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The awkward tables are too small for sketches: here looks.json, which a failed prediction leaves, has some."""
    rng = np.random.default_rng(0)
    column = {"kind": "categorical", "categories": list(range(8))}
    schema = Schema.from_dict({"columns": dict.fromkeys("abcd", column)})
    own, shared = rng.integers(0, 8, (3000, 4)), rng.integers(0, 8, (3000, 1))
    codes = np.where(rng.random((3000, 4)) < 0.6, shared, own).astype(schema.dtype)
    table = AwkwardTable("linked", schema, schema.decode(codes, rng))
    (check, *_) = (c for c in mechanism_checks("sketch_aim", tables=[table]) if c.name == "released_files")
    written: list[str] = []

    def watched(out: Path, *looks: Any, **named: Any) -> None:
        keep_looks(out, *looks, **named)
        written.append((out / LOOKS_FILE).read_text(encoding="utf-8"))

    monkeypatch.setattr(replay, "keep_looks", watched)
    check()
    assert len(written) == 3 and '"clique"' in written[0]

    def telling(out: Path, *looks: Any, **named: Any) -> None:
        watched(out, *looks, **named)
        (out / LOOKS_FILE).write_text(f"{len(written)}", encoding="utf-8")

    monkeypatch.setattr(replay, "keep_looks", telling)
    with pytest.raises(AssertionError, match=r"with every release held fixed, changes looks\.json"):
        check()
