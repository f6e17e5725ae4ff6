"""Exchanging one row for another: what a ledger states for it, and by brute force that no mechanism moves farther."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.tape import TapedRelease
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Ledger, PrivacyBudget, Release, accountant_for, epsilon_for_rho
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.privacy.unit import ROW
from fedsyn.registry import MECHANISMS, contract_class
from support.pair_runs import table_of

BUDGET = PrivacyBudget(1.0, 1e-5)
SHAPE = (3, 2, 4)
CODES = np.array([[0, 0, 0], [1, 1, 2], [0, 0, 0], [2, 1, 3], [0, 1, 0], [1, 0, 2], [0, 0, 1], [2, 1, 0], [0, 0, 0]])
TABLE = table_of(CODES, SHAPE)
ROWS = tuple(itertools.product(*map(range, SHAPE)))  # every row that there can be
PRIVATE = [
    name
    for name, entry in MECHANISMS.items()
    if entry.strategy.startswith("fedsyn.plugins.strategies.") and not contract_class(name).not_private
]


def run(name: str, codes: np.ndarray = CODES, script: Any = None, epsilon: float = 1.0, **nodes: Any) -> Outcome:
    parts = (codes,) if contract_class(name).central else (codes[:5], codes[5:])
    privacy = {"epsilon": epsilon, "delta": 1e-5, **nodes.pop("privacy", {})}
    options = {"rounds": 2, "hidden": 8, "components": 10} if name == "fed_dp_ctgan" else None
    config = config_of(name, len(parts), options, privacy=privacy, **nodes)
    federation = Federation(TABLE, tuple(part.astype(np.uint8) for part in parts))
    return execute(config, federation, script=script)


# What the ledger states ----------------------------------------------------------------------------------------------


def test_marginals_alone_are_1_46_where_rows_can_only_be_exchanged() -> None:
    """Counts move by sqrt(2) instead of 1, so rho doubles: 1.46, whichever of the two accounts is kept."""
    for accountant in ("gaussian", "zcdp"):
        ledger = Ledger(BUDGET, accountant_for(accountant, BUDGET))
        sigma = math.sqrt(0.5 / ledger.remaining_rho)
        ledger.charge(Release("measure", 1, GAUSSIAN, sigma=sigma, replaced=COUNTS))
        assert ledger.epsilon() == pytest.approx(1.0, abs=1e-6)
        assert 1.455 <= ledger.epsilon_replace_one <= 1.47
    assert 1.455 <= ledger.epsilon_replace_one <= 1.465  # in zCDP, where both kinds of release can be compared


def test_choices_alone_are_2_14_where_rows_can_only_be_exchanged() -> None:
    ledger = Ledger(BUDGET, accountant_for("zcdp", BUDGET))
    ledger.charge(Release("select", 1, EXPONENTIAL, 3.0, epsilon=epsilon_for_rho(ledger.remaining_rho)))
    assert ledger.releases[0].replaced == TWICE
    assert ledger.epsilon() == pytest.approx(1.0, abs=1e-6)
    assert 2.135 <= ledger.epsilon_replace_one <= 2.145


def test_a_whole_run_of_marginals_says_so_beside_its_epsilon() -> None:
    report = finished(run("fed_naive_bayes")).strategy.ledger.report()
    assert report["epsilon"] == pytest.approx(1.0, abs=1e-6)
    assert 1.455 <= report["epsilon_replace_one"] <= 1.47
    assert {entry["replaced"] for entry in report["releases"]} == {COUNTS}


def test_a_run_of_choices_and_marginals_lies_between() -> None:
    report = finished(run("aim")).strategy.ledger.report()
    assert 1.46 < report["epsilon_replace_one"] < 2.14
    assert {(e["name"], e["replaced"]) for e in report["releases"]} == {
        ("one-way", COUNTS),
        ("measure", COUNTS),
        ("select", TWICE),
    }


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("sizes", ["public", "private"])
def test_a_ledger_names_the_neighbours_that_its_row_counts_leave(name: str, sizes: str) -> None:
    nodes = {"mechanism": {"name": name, "score": "l1"}} if name == "fhaim" else {}  # its own needs public sizes
    report = finished(run(name, privacy={"client_sizes": sizes}, **nodes)).strategy.ledger.report()
    assert report["assumptions"]["client_sizes"] == sizes
    assert report["adjacency"] == ROW.adjacency(sizes)
    assert ("published constant" in report["adjacency"]) == (sizes == "public")
    assert report["epsilon"] <= 1.0 + 1e-9 < report["epsilon_replace_one"]
    names = [entry["name"] for entry in report["releases"]]
    assert names.count("sizes") == (sizes == "private")


def test_a_released_row_count_costs_nothing_under_exchange() -> None:
    """Exchanging a row changes no count. With nothing else in the ledger, nothing is spent; its own epsilon is."""
    outcome = finished(run("augflaim", privacy={"client_sizes": "private"}))
    for ledger in (outcome.strategy.ledger, *outcome.ledgers.values()):
        sizes = [release for release in ledger.releases if release.name == "sizes"]
        assert [release.replaced for release in sizes] == [0.0] and sizes[0].rho > 0
        alone = Ledger(BUDGET)
        alone.charge(sizes[0])
        assert alone.epsilon() > 0 and alone.epsilon_replace_one == 0.0
        rest = Ledger(BUDGET)
        for release in ledger.releases:
            if release.name != "sizes":
                rest.charge(release)
        assert rest.epsilon_replace_one == pytest.approx(ledger.epsilon_replace_one, rel=1e-12)


def test_a_ledger_that_is_read_again_keeps_what_exchange_costs() -> None:
    """Also compact, as a client keeps it: entries that differ in `replaced` are not merged."""
    ledger = finished(run("aim", privacy={"client_sizes": "private"})).strategy.ledger
    for compact in (False, True):
        again = Ledger.from_dict(ledger.to_dict(compact=compact))
        assert again.epsilon_replace_one == pytest.approx(ledger.epsilon_replace_one, rel=1e-9)
        assert {(r.name, r.replaced) for r in again.releases} == {(r.name, r.replaced) for r in ledger.releases}


@pytest.mark.parametrize("replaced", [-0.1, 2.1, math.nan])
def test_exchange_is_a_removal_and_an_addition_at_most(replaced: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 2"):
        Release("measure", 1, GAUSSIAN, sigma=1.0, replaced=replaced)


# By brute force ------------------------------------------------------------------------------------------------------


def exchanged(which: range, step: int) -> Iterator[np.ndarray]:
    """The table with one of these rows exchanged for every other row that there can be (every `step`th of them)."""
    for position in which:
        for row in ROWS[position % step :: step]:
            if row != tuple(CODES[position]):
                yield np.concatenate([CODES[:position], [row], CODES[position + 1 :]])


def moved(one: TapedRelease, two: TapedRelease) -> float:
    """How far what entered a ledger moved, in units of what the entry allows for one row added or removed."""
    if one.kind == "exponential":
        both = np.isfinite(one.inputs[0]) & np.isfinite(two.inputs[0])
        assert np.array_equal(np.isfinite(one.inputs[0]), both)
        return float(np.abs(one.inputs[0] - two.inputs[0])[both].max() / one.sensitivity)
    squares = [float(((a - b).astype(float) ** 2).sum()) for a, b in zip(one.inputs, two.inputs, strict=True)]
    return math.sqrt(sum(squares) / max(1, one.count)) / one.sensitivity


#: Whose noise, and every how many exchanges are tried.
KINDS = [("public", "server", 1), ("private", "local", 11), ("public", "distributed", 13)]
ALL_KINDS = ("aim", "fed_naive_bayes")


def cases() -> Iterator[Any]:
    """The default tests have every mechanism once, and each kind over one with choices and one without."""
    for number, name in enumerate(PRIVATE):
        own = KINDS[2 if contract_class(name).store else 1 + number % 2]
        for kind in KINDS:
            default = kind == own or name in ALL_KINDS
            yield pytest.param(name, *kind, marks=[] if default else [pytest.mark.slow])


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sizes", "noise", "step"), cases())
def test_no_exchange_of_a_row_moves_a_release_farther_than_its_ledger_says(
    name: str, sizes: str, noise: str, step: int
) -> None:
    """Every release is repeated as it was, so what enters the next one differs by the exchanged row alone.

    Each row of the first client's is exchanged, for every row that there can be where `step` is 1.
    """
    nodes = {"privacy": {"client_sizes": sizes}, "aggregation": {"noise": noise}}
    if noise == "local" and contract_class(name).store:
        pytest.skip("a store's noise is on what comes out of it, never on one client's vector")
    first = finished(run(name, epsilon=20.0, **nodes))
    largest: dict[tuple[str, float], float] = {}
    for codes in exchanged(range(5), step):
        again = run(name, codes, first.tape.draws, epsilon=20.0, **nodes)
        assert not again.tape.problems
        for party, draws in first.tape.draws.items():
            for one, two in zip(draws, again.tape.draws[party], strict=True):
                move = moved(one, two)
                assert move <= one.replaced * (1 + 1e-9), f"{party}: '{one.name}' of round {one.round} moves {move:.4g}"
                key = one.name, one.replaced
                largest[key] = max(largest.get(key, 0.0), move)
    assert largest.pop(("sizes", 0.0), 0.0) == 0.0
    # What is said of counts is no more than true: some exchange moves them just as far.
    for (release, replaced), move in largest.items():
        if replaced == COUNTS and step == 1:
            assert move == pytest.approx(COUNTS, rel=1e-9), release
    assert largest
