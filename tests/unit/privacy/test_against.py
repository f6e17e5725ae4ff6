"""Who faces what: the epsilon of somebody outside, of other holders, and of those with the server."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsyn.aggregation.base import Limits
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.evaluation.report.run_page import who_faces_what
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    DistributedNoise,
    Ledger,
    PrivacyBudget,
    Release,
)
from fedsyn.privacy.accountant import GaussianAccountant, ZcdpAccountant
from fedsyn.privacy.against import against, at_most, in_words, times_of, tolerated
from fedsyn.privacy.distributed import ROUNDING
from fedsyn.privacy.release import Shares
from fedsyn.protocol.explain import Explanation, explain
from fedsyn.registry import client_class
from fedsyn.runs.engines import run
from fedsyn.sweep.report import report_folder

DELTA = 1e-6
BUDGET = PrivacyBudget(1.0, DELTA)
#: What another holder faces at epsilon 1, delta 1e-6, where shares count on nobody who knows one: holders -> epsilon.
UNCOUNTED = {2: 1.455, 3: 1.245, 4: 1.168, 5: 1.128}
#: What somebody outside faces there by default, rounded up.
OUTSIDE = {2: 0.689, 3: 0.804, 4: 0.857, 5: 0.887}


def delta_of(mu: float, epsilon: float) -> float:
    """Balle & Wang 2018, Theorem 8, with the error function of the standard library."""

    def below(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2.0))

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)


def epsilon_of(mu: float) -> float:
    """By bisection."""
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(mu, middle) > DELTA else (low, middle)
    return high


def mu_of(epsilon: float) -> float:
    low, high = 1e-6, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle) < epsilon else (low, middle)
    return low


def ledger_of(holders: int, *, corrupted: float, dropout: float = 0.0, reads: str = "releases") -> Ledger:
    """A ledger whose whole budget went into one sum with distributed noise."""
    ledger = Ledger(
        BUDGET,
        GaussianAccountant.of(BUDGET),
        assumptions={"holders": holders, "server_reads": reads},
        noise_by="server",
    )
    limits = Limits.of_shares(corrupted, dropout, holders, 1)
    sigma = 1.0 / math.sqrt(ledger.remaining * (1.0 - 1e-9))
    noise = DistributedNoise.of(
        sigma, sensitivity=1.0, count=1, length=200, asked=holders, fewest=limits.fewest, corrupted=limits.corrupted
    )
    ledger.promise(Release(**{**vars(noise.release("m", 1)), "shares": noise.shares}))
    return ledger


def faces(ledger: Ledger) -> dict[tuple[int, bool], float]:
    return {(one["holders"], one["server"]): one["epsilon"] for one in ledger.report()["against"]["faces"]}


@pytest.mark.parametrize("holders", UNCOUNTED)
def test_counting_on_nobody_costs_what_was_measured(holders: int) -> None:
    """By an independent formula: n - 1 of n shares are left of the variance."""
    found = faces(ledger_of(holders, corrupted=0.0))
    assert found[1, False] == pytest.approx(UNCOUNTED[holders], abs=6e-4)
    assert found[1, False] == pytest.approx(epsilon_of(mu_of(1.0) * math.sqrt(holders / (holders - 1))), rel=2e-3)
    assert found[0, False] == pytest.approx(1.0, rel=1e-6)
    report = ledger_of(holders, corrupted=0.0).report()["against"]
    assert report["may_collude"] == 0 and "counts on nobody" in " ".join(in_words(report, 1.0))


def test_no_failure_of_this_reading_loses_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above 4,096 holders, once: a bound fell below zero, and the whole ledger of a paid run with it."""
    whole, ledger = ledger_of(3, corrupted=0.05).report(), ledger_of(3, corrupted=0.05)

    def fails(*_: object) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr("fedsyn.privacy.ledger.against", fails)
    report = ledger.report()
    facts: Any = SimpleNamespace(ledger={**report, "private": True})
    assert "could not be computed (ValueError: math domain error)" in who_faces_what(facts)
    assert report.pop("against_unknown") == "ValueError: math domain error"
    assert report == {key: value for key, value in whole.items() if key != "against"} and len(report["releases"]) == 1


@pytest.mark.parametrize("holders", OUTSIDE)
def test_the_table_of_the_documents(holders: int) -> None:
    found = faces(ledger_of(holders, corrupted=0.05))
    assert f"{math.ceil(found[0, False] * 1000) / 1000:g}" == f"{OUTSIDE[holders]:g}"
    left = holders / max(1, holders - 1)  # shares of all contributors, for those that are charged
    assert found[0, False] == pytest.approx(epsilon_of(mu_of(1.0) / math.sqrt(left)), rel=1e-6)
    page = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text(encoding="utf-8")
    for row in (UNCOUNTED, OUTSIDE):
        assert " | ".join(f"{value:g}" for value in row.values()) in page


@pytest.mark.parametrize("holders", [2, 3, 4, 5, 10, 19, 20, 39, 40, 100])
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
def test_another_holder_never_faces_more_than_is_charged(holders: int, dropout: float) -> None:
    ledger = ledger_of(holders, corrupted=0.05, dropout=dropout)
    found, most = faces(ledger), ledger.report()["against"]["may_collude"]
    assert most >= 1 and found[1, False] <= ledger.epsilon() * (1 + 1e-9)
    assert found[most, True] <= ledger.epsilon() * (1 + 1e-9) and found[0, False] <= found[1, False]
    # Everybody else, with the server: the row's own holder's share alone, 1/H of the variance.
    (shares,) = {release.shares for release in ledger.releases}
    assert shares is not None
    alone = epsilon_of(mu_of(1.0) * math.sqrt(shares.honest))
    assert alone * (1 - 1e-6) <= found[holders - 1, True] <= alone * 1.03  # what the rounding of one share costs


def test_the_rounding_of_shares_is_counted() -> None:
    """Fewer shares than are charged are a little less noise than their part says: never claimed to be more."""
    for known in range(1, 9):
        noise = DistributedNoise.of(3.0, sensitivity=1.0, count=1, length=1, asked=10, fewest=10, corrupted=0)
        ledger = Ledger(PrivacyBudget(50.0, DELTA), ZcdpAccountant.of(PrivacyBudget(50.0, DELTA)))
        ledger.charge(Release("m", 1, GAUSSIAN, 1.0, sigma=3.0, shares=noise.shares, extra=noise.extra_rho))
        really = ((10 - known) * noise.share**2 - 4.0) / noise.resolution**2  # step 3 of the proof in `distributed`
        assert ledger.epsilon_faced(known) >= ZcdpAccountant(9.0).epsilon(0.5 / really, DELTA) * (1 - 1e-12)


@pytest.mark.parametrize("honest", [2, 60, 1_821, 4_096, 4_097, 100_000, 3_000_000])
@pytest.mark.parametrize("sigma", [1e-3, 0.7, 5.0, 333.0, 1e6])
def test_some_shares_of_thousands_are_never_less_noise_than_is_said(honest: int, sigma: float) -> None:
    """By the plan itself: j shares, less what pays for being discrete, are (j s^2 - r^2) / gamma^2 of variance."""
    noise = DistributedNoise.of(sigma, sensitivity=1.0, count=1, length=1, asked=honest, fewest=honest, corrupted=0)
    for some in sorted({1, 2, 7, honest // 2, honest - 1, honest, 2 * honest} - {0}):
        variance = (some * noise.share**2 - ROUNDING**2) / noise.resolution**2
        said = times_of(noise.shares, some)
        assert variance > 0 and 0 < sigma**2 / variance <= said * (1 + 1e-12)
        assert said <= 1.8 * honest / some


@pytest.mark.parametrize("holders", [5_000, 100_000])
def test_of_thousands_a_ledger_says_what_the_last_one_faces(holders: int) -> None:
    """All others collude: one share is left, of which the older bound on its variance fell below 0."""
    found = faces(ledger_of(holders, corrupted=0.05, dropout=0.1))
    values = [found[key] for key in sorted(found)]
    assert all(0 < value < math.inf for value in values)
    assert found[0, True] <= found[holders - 1, True] and found[holders - 1, True] > 10.0


def test_what_is_not_in_shares_counts_as_it_stands() -> None:
    """Row counts carry each client's own noise, choices a whole one; only the sum's part is larger or smaller."""
    ledger = Ledger(BUDGET, assumptions={"holders": 3, "server_reads": "releases"})
    ledger.charge(Release("sizes", 0, GAUSSIAN, sigma=40.0, noise_by="each client"))
    ledger.charge(Release("select", 1, EXPONENTIAL, epsilon=0.1, noise_by="each client"))
    own = ledger.spent
    ledger.charge(Release("measure", 1, GAUSSIAN, sigma=20.0, shares=Shares(3, 3, 2), extra=1e-27))
    summed = ledger.spent - own
    to_epsilon = ledger.accountant.epsilon
    found = faces(ledger)
    assert found[0, False] == pytest.approx(to_epsilon(own + summed * 2 / 3, DELTA), rel=1e-12)
    assert found[1, False] == found[1, True] == ledger.epsilon()
    assert found[2, False] == pytest.approx(to_epsilon(own + summed * 2, DELTA), rel=1e-3)
    assert found[2, False] > to_epsilon(own + summed * 2, DELTA)  # rounding


def test_a_trusted_server_is_named() -> None:
    vectors = ledger_of(3, corrupted=0.05, reads="vectors").report()["against"]
    by = {(one["holders"], one["server"]): one["epsilon"] for one in vectors["faces"]}
    assert vectors["may_collude"] is None and by[0, True] == by[2, True] == by[2, False] > by[1, False]
    assert "The server is trusted" in in_words(vectors, 1.0)[0]
    exact = against(lambda known, alone: 1.0, [], 4, "exact numbers")
    assert [one["epsilon"] for one in exact["faces"] if one["server"]] == [None] * 3
    assert exact["may_collude"] is None and "no epsilon holds against it" in in_words(exact, 1.0)[0]


def test_whole_noises_hold_against_everybody() -> None:
    """Two holders: each adds the whole noise, since neither may rely on the other's share."""
    report = ledger_of(2, corrupted=0.05).report()["against"]
    by = {(one["holders"], one["server"]): one["epsilon"] for one in report["faces"]}
    assert report["may_collude"] == 1 and by[1, True] == by[1, False] == pytest.approx(1.0, rel=1e-6)
    assert by[0, False] == by[0, True] < 0.75
    assert in_words(report, 1.0)[0] == (
        "Up to 1 of the 2 holders may pool what it knows with the server; against them, too, epsilon is at most 1."
    )
    assert tolerated([Shares(7, 2, 1), Shares(5, 4, 3)], 7, "releases") == 1
    assert tolerated([Shares(7, 2, 1)], 7, "releases") == 6 and tolerated([], 1, "releases") == 0


def test_words_name_the_unit() -> None:
    faces = [{"holders": k, "server": server, "epsilon": 1.0} for server in (False, True) for k in (0, 1, 2)]
    report = {"holders": 3, "server_reads": "releases", "may_collude": 2, "faces": faces}
    for hidden in ("rows", "people"):
        assert f"No holder knows noise that protects another one's {hidden}: " in in_words(report, 1.0, hidden)[1]


def test_limits_count_one() -> None:
    def of(corrupted: float, dropout: float, asked: int, minimum: int = 1) -> tuple[int, int, int]:
        limits = Limits.of_shares(corrupted, dropout, asked, minimum)
        return limits.fewest, limits.corrupted, limits.colluding

    assert of(0.05, 0.1, 1) == (1, 0, 0)
    assert of(0.05, 0.1, 2) == (2, 1, 0) and of(0.05, 0.1, 3) == (3, 1, 1)
    assert of(0.05, 0.5, 2) == (1, 0, 0) and of(0.05, 0.5, 2, 2) == (2, 1, 0)
    assert of(0.05, 0.5, 4) == (2, 1, 0) and of(0.05, 0.1, 10) == (9, 1, 1) and of(0.05, 0.1, 40) == (36, 2, 2)
    assert of(0.0, 0.1, 10) == (9, 0, 0) and of(0.0, 0.0, 2) == (2, 0, 0)
    assert of(0.5, 0.5, 4) == (2, 2, 2)  # refused where noise is planned: nobody's share would be certain


def test_a_number_is_rounded_up() -> None:
    assert [at_most(x) for x in (1.0, 1.0 - 1e-12, 1.24512, 0.79601, 14.289, 0.0)] == [
        "1", "1", "1.246", "0.7961", "14.29", "0",
    ]  # fmt: skip


# What a holder reads before it agrees ---------------------------------------------------------------------------------


def explained(mechanism: str = "sketch_aim", **aggregation: Any) -> Explanation:
    config = RunConfig.model_validate(
        {
            "mechanism": mechanism,
            "data": {"source": "demo"},
            "privacy": {"epsilon": 1.0, "delta": DELTA},
            "federation": {"clients": 3, "minimum_cohort": 2},
            "aggregation": {"protocol": "secagg", "noise": "distributed", **aggregation},
        }
    )
    return explain(config, Domain(["a", "b", "c"], [2, 3, 4]), client_class(mechanism))


def test_explain_prints_numbers_that_differ_with_what_is_asked() -> None:
    default, nobody = explained(), explained(corrupted=0.0)
    text = " ".join(default.render().split())
    assert (
        "Up to 1 of the 3 holders may pool what it knows with the server; against them, too, epsilon is at most 1."
        in text
    )
    assert "aggregation.corrupted 0.05" in text and "federation.minimum_cohort 2" in text
    assert "its noise assumes 1 known share" in text
    other = " ".join(nobody.render().split())
    assert "aggregation.corrupted 0)" in other and "its noise assumes 0 known shares" in other
    assert "1.245 against another holder alone" in other and "None of the 3 holders may pool" in other
    few = " ".join(explained(dropout=0.4).render().split())
    assert "aggregation.dropout 0.4" in few and "opened with 2 contributors or more" in few
    assert "each of them adds the whole noise" in few and "Up to 2 of the 3 holders" in few
    assert "The server is trusted" in " ".join(explained(protocol="plain").render().split())


def test_explain_is_never_below_what_a_ledger_says() -> None:
    """All of a budget in sums, but for what row counts cost at most: no split of it faces more."""
    found = explained().against["faces"]
    whole = faces(ledger_of(3, corrupted=0.05))
    for one in found:
        assert one["epsilon"] >= whole[one["holders"], one["server"]] * (1 - 1e-6)


# A run that is private ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("holders", [2, 3])
def test_a_run_says_who_faces_what_in_every_file_that_people_read(holders: int, tmp_path: Path) -> None:
    """Without a seed, over secure sums as they are by default: nothing of it is a simulation's promise."""
    config = RunConfig.model_validate(
        {
            "mechanism": "fed_naive_bayes",
            "data": {"source": "iris"},
            "privacy": {"epsilon": 1.0, "delta": DELTA},
            "federation": {"clients": holders},
            "aggregation": {"protocol": "secagg", "noise": "distributed"},
            "evaluation": [],
        }
    )
    run(config, tmp_path)
    ledger = json.loads((tmp_path / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] and ledger["against"]["holders"] == holders and ledger["against"]["may_collude"] == 1
    by = {(one["holders"], one["server"]): one["epsilon"] for one in ledger["against"]["faces"]}
    assert by[0, False] < by[1, False] <= ledger["epsilon"] * (1 + 1e-9) and by[1, True] == by[1, False]
    sums = [release for release in ledger["releases"] if release["name"] != "sizes"]
    assert sums and all(release["shares"]["honest"] == holders - 1 for release in sums)
    sentence = f"Up to 1 of the {holders} holders may pool what it knows with the server"
    report_folder(tmp_path, real=False)
    for name in ("report_public.html", "README.md"):
        (found,) = tmp_path.rglob(name)
        assert sentence in found.read_text(encoding="utf-8"), name
