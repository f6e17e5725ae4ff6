"""A person as the unit: what ledgers enter, what is said, and who refuses what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.privacy.release import COUNTS
from fedsyn.privacy.unit import ROW, PersonUnit, promised, protects
from support.pair_runs import table_of

SHAPE = (3, 2, 4)
CODES = (np.random.default_rng(0).random((60, 3)) ** 2 * SHAPE).astype(np.uint8)
PARTS = (CODES[:3], CODES[3:30], CODES[30:], CODES[:0])
TABLE = table_of(CODES, SHAPE)
PAIRS = {"degree": 2, "size": None}


def run(name: str, holders: int = 1, **nodes: Any) -> Outcome:
    privacy = {"unit": "person", "epsilon": 1.0, "delta": 1e-5, "holders_per_person": holders}
    privacy |= nodes.pop("privacy", {})
    return finished(
        execute(config_of(name, len(PARTS), privacy=privacy, workload=PAIRS, **nodes), Federation(TABLE, PARTS))
    )


def test_a_person_at_one_client_is_a_row_of_records() -> None:
    counts = Release("measure", 1, GAUSSIAN, 2.0, sigma=7.0, count=3, extra=1e-3, replaced=COUNTS)
    assert PersonUnit(1).entered(counts) is counts
    assert PersonUnit(1).factor == ROW.factor == 1.0
    assert not PersonUnit(3).caps  # no row is left out: each holder makes one record of all of a person's rows


def test_a_person_at_several_clients_pays_for_all_of_them() -> None:
    counts = Release("measure", 1, GAUSSIAN, 2.0, sigma=7.0, count=3)
    assert PersonUnit(3).entered(counts).rho == pytest.approx(9 * counts.rho)
    choice = Release("select", 1, EXPONENTIAL, 3.0, epsilon=0.1)
    assert PersonUnit(3).entered(choice).rho == pytest.approx(9 * choice.rho)
    one, three = (run("fed_naive_bayes", holders).strategy.ledger for holders in (1, 3))
    assert three.epsilon() == pytest.approx(one.epsilon(), abs=1e-6)  # the same promise, by three times the noise
    sums = [[r.sigma for r in ledger.releases if r.name == "counts" or r.sigma] for ledger in (one, three)]
    assert sums[1][-1] == pytest.approx(3 * sums[0][-1], rel=1e-6)


def test_the_report_says_that_a_person_is_protected() -> None:
    report = run("fed_naive_bayes").strategy.ledger.report()
    assert report["unit"] == report["statement"]["unit"] == "one person with all rows at one client, added or removed"
    assert "all rows of one person are added or removed, at one client" in report["adjacency"]
    assert report["assumptions"]["holders_per_person"] == report["holders_per_person"] == 1
    private = run("fed_naive_bayes", privacy={"client_sizes": "private"}).strategy.ledger.report()
    assert protects(private) == "for one person"
    assert promised(private) == (private["epsilon"], private["unit"])
    three = run("fed_naive_bayes", 3).strategy.ledger.report()
    assert three["unit"] == "one person with all rows at up to 3 clients, added or removed"
    assert three["statement"]["cost"].startswith("a person pays 3^2 times what is said here for one record")
    public = run("fed_naive_bayes", privacy={"client_sizes": "public"}).strategy.ledger.report()
    assert "a person can only be exchanged for another" in public["adjacency"]


def test_a_ledgers_state_keeps_the_person() -> None:
    ledger = Ledger(PrivacyBudget(1.0, 1e-5), unit=PersonUnit(2))
    ledger.charge(Release("measure", 1, GAUSSIAN, sigma=400.0))
    again = Ledger.from_dict(ledger.to_dict())
    assert again.unit == PersonUnit(2)
    assert again.spent == ledger.spent


@pytest.mark.parametrize("name", ["aim", "distaim"])
def test_a_store_protects_a_person_at_one_client_and_refuses_several(name: str) -> None:
    nodes: dict[str, Any] = {"aggregation": {"noise": "server"}}
    assert run(name, **nodes).strategy.ledger.epsilon() <= 1.0 + 1e-6
    with pytest.raises(ConfigError, match=r"holders_per_person: 2: .* keeps a store of exact answers"):
        run(name, 2, **nodes)


@pytest.mark.parametrize("unit", ["row", "client"])
def test_several_holders_are_of_persons_alone(unit: str) -> None:
    more = {"rows_per_client": 3} if unit == "client" else {}
    with pytest.raises(ConfigError, match="holders_per_person says"):
        config_of("fed_naive_bayes", 4, privacy={"unit": unit, "holders_per_person": 2, **more})
