"""Whole persons as neighbours, by brute force: no release of any mechanism moves farther than its ledger says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from unit.privacy.test_replace_one import PRIVATE, moved
from unit.table.data.test_records import SameCoins, made

from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.registry import contract_class
from fedsyn.table.schema import Schema
from support.pair_runs import table_of

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "id": {"kind": "identifier"},
            "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
            "ward": {"kind": "categorical", "categories": ["a", "b", "c"], "other": False},
        },
        "persons": {"id": "id", "constant": ["sex"], "most_rows": 40, "least_rows": 0},
    }
)
SHAPE = tuple(SCHEMA.records.domain.shape)
COINS = SameCoins(0.4, 0.1)  # of a person alone, whoever else is there
#: Persons who may be there or not: id -> the wards of their rows at each of two holders.
AWKWARD = {
    "no rows": ("-", ""),
    "one row": ("", "b"),
    "fifty rows": ("abc" * 16 + "ca", ""),
    "fifty equal rows": ("", "c" * 50),
    "a row at each holder": ("a", "c"),
}
AT_BOTH = "a row at each holder"
ORDINARY = {f"p{k}": ("abc"[k % 3] * (1 + k % 4), "") for k in range(7)} | {
    f"q{k}": ("", "cab"[k % 3] + "a" * (k % 3)) for k in range(6)
}


def holder(number: int, without: str | None) -> np.ndarray:
    """The records of a holder, from rows of all persons but one."""
    rows = [
        {"id": who, "sex": "fm"[len(who) % 2], "ward": None if ward == "-" else ward}
        for who, wards in {**ORDINARY, **AWKWARD}.items()
        for ward in wards[number]
        if who != without
    ]
    return np.array(made(SCHEMA, pd.DataFrame(rows), COINS), np.uint8)


def ran(name: str, without: str | None = None, script: Any = None, holders: int = 1, noise: str = "server") -> Outcome:
    parts = tuple(holder(number, without) for number in (0, 1))
    parts = (np.concatenate(parts),) if contract_class(name).central else parts
    known: dict[str, dict[str, Any]] = {
        "fed_dp_ctgan": {"rounds": 2, "hidden": 8, "components": 10},
        "fhaim": {"score": "l1"},  # its own needs public sizes, which a person who comes or goes would change
    }
    options = known.get(name)
    privacy = {"epsilon": 20.0, "delta": 1e-5, "unit": "person", "holders_per_person": holders}
    nodes: dict[str, Any] = {"privacy": privacy | {"client_sizes": "private"}, "aggregation": {"noise": noise}}
    config = config_of(name, len(parts), options, workload={"degree": 2, "size": None}, **nodes)
    return execute(config, Federation(table_of(np.concatenate(parts), SHAPE), parts), script=script)


def farthest(name: str, who: list[str], holders: int, noise: str) -> float:
    """How far a release moves at most, in units of what its ledger says, if one of these persons is not there.

    Every release is repeated as it was, so what enters the next one differs by that person alone.
    """
    first, most = finished(ran(name, holders=holders, noise=noise)), 0.0
    for person in who:
        again = ran(name, person, first.tape.draws, holders, noise)
        assert not again.tape.problems
        for party, draws in first.tape.draws.items():
            for one, two in zip(draws, again.tape.draws[party], strict=True):
                move = moved(one, two)
                assert move <= 1 + 1e-9, f"{person}, {party}: '{one.name}' of round {one.round} moves {move:.4g}"
                most = max(most, move)
    return most


def cases() -> Iterator[Any]:
    for name in PRIVATE:
        contract = contract_class(name)
        yield pytest.param(name, "server", id=f"{name}-server")
        if not contract.store:
            yield pytest.param(name, "local", id=f"{name}-local", marks=pytest.mark.slow)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "noise"), cases())
def test_no_person_moves_a_release_farther_than_a_ledger_says(name: str, noise: str) -> None:
    """Each of the awkward persons with all rows, of all at one holder: no rows, one, fifty, and fifty equal ones."""
    most = farthest(name, [person for person in AWKWARD if person != AT_BOTH], 1, noise)
    assert most > 0.1  # somebody is seen: the check compares something


def several() -> Iterator[Any]:
    """Mechanisms that may protect a person at two holders; the others refuse, in `test_person_unit`."""
    for name in PRIVATE:
        contract = contract_class(name)
        if not contract.store and not contract.central and contract.accountant in ("zcdp", "gaussian"):
            yield name


@pytest.mark.thorough
@pytest.mark.parametrize("name", several())
def test_a_person_at_two_holders_moves_both_and_no_farther(name: str) -> None:
    assert farthest(name, [*AWKWARD], 2, "server") > 0.1


def test_two_holders_are_refused_or_tried() -> None:
    """No mechanism is left out of both."""
    for name in set(PRIVATE) - set(several()) - {n for n in PRIVATE if contract_class(n).central}:
        with pytest.raises(ConfigError, match="holders_per_person: 2: "):
            ran(name, holders=2)


def test_a_person_who_is_at_two_holders_unsaid_moves_farther() -> None:
    """What h = 1 assumes: the brute force sees a person at two holders, whom one record's noise does not hide.

    Both records fall into the same cell of a marginal, which moves by 2.
    """
    with pytest.raises(AssertionError, match="moves"):
        farthest("fed_naive_bayes", [AT_BOTH], 1, "server")
