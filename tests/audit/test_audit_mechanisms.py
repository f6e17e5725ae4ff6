"""Whole runs of the registered mechanisms, audited: can an adversary tell whether one row, or a client's, was there?

`support/transcripts.py` says what is seen, `support/attack.py` what is concluded from it and how often an honest build
is blamed (below 2e-6 for all tests here together). Half of the tests are of the audit itself: builds that are broken in
one place must be caught. An audit finds errors that show for one row of one table; it does not prove a guarantee.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsyn import registry
from fedsyn.plugins.clients.flaim import FedNaiveBayesClient
from fedsyn.privacy import _noise
from fedsyn.privacy.unit import ClientUnit
from fedsyn.protocol.client import Sizes, answers
from fedsyn.registry import contract_class
from fedsyn.wire.holder import Call
from support.attack import mean_gap, violated
from support.transcripts import Case, Transcript, transcripts

DELTA = 0.01
# Few runs: 20 in each world. At epsilon = 0.4 a test that is right in all 40 is a refutation already.
FEW, FEW_EPSILON = 20, 0.4
# Many: success is then known to 0.1 or so, and the gap to a third of what is claimed.
MANY, MANY_EPSILON = 1_000, 2.0

WIDE = (2, 3, 16)  # an ordered attribute of so many values is measured at several resolutions
ROUNDS = {"rounds": 2}
AUDITS = {
    case.mechanism: case
    for case in (
        Case("aim", "server", ROUNDS),
        Case("distaim", "server", ROUNDS),
        Case("fhaim", "server", {**ROUNDS, "score": "l1"}),  # its own needs public row counts: no neighbour has them
        Case("naive_flaim", "local", {"rounds": 1, "local_rounds": 2}),
        Case("augflaim", "server", ROUNDS),
        Case("flaim_random", "distributed", ROUNDS),
        Case("fed_naive_bayes", "local", ROUNDS),
        # Every row is sampled, and its gradient is longer than the clipping norm: the canary then shows in full. What
        # sampling hides of it is arithmetic (tests/unit/privacy/test_privacy_renyi.py).
        Case("fed_dp_ctgan", "local", {**ROUNDS, "rate": 1.0, "clip": 0.01, "hidden": 8, "components": 10}),
        Case("distributed_aim", "distributed", ROUNDS),
        Case("sketch_aim", "local", ROUNDS),
        Case("each_alone", "local", ROUNDS),
        Case("mst", "server", shows=2 / 3),  # the other third is for choices
        Case("fed_mst", "local"),
        Case("privsyn", "server", shape=WIDE),
        Case("fed_privsyn", "distributed", shape=WIDE),
        Case("ada_fed_privsyn", "distributed", {"fraction": 1.0, "every": 1}, shape=WIDE),
    )
}
# A whole client as the canary: every mechanism that may have it as the unit.
CAP = 4
CLIENT_AUDITS = {
    name: replace(case, cap=CAP)
    for name, case in AUDITS.items()
    if not (contract_class(name).store or contract_class(name).central or contract_class(name).accountant == "renyi")
}
CLIENT_FEW = ("sketch_aim",)  # by default
# By default one of each family of mechanisms, under each noise; `make test-all` audits all, and in many runs.
# `sketch_aim` is audited by a whole client (CLIENT_FEW).
FEW_DEFAULT = ("aim", "flaim_random", "fed_naive_bayes", "fed_dp_ctgan", "mst")
NOT_AUDITED = {"augflaim_oracle": "its clients read the pooled table: not private, and its ledger says so"}


def test_every_registered_mechanism_is_audited_or_excused() -> None:
    """What other tests register for themselves does not live in `fedsyn.plugins`."""
    names = {
        name for name, entry in registry.MECHANISMS.items() if entry.strategy.startswith("fedsyn.plugins.strategies.")
    }
    assert names == AUDITS.keys() | NOT_AUDITED.keys()
    assert not AUDITS.keys() & NOT_AUDITED.keys()
    assert {case.noise for case in AUDITS.values()} == {"server", "local", "distributed"}


@pytest.mark.parametrize("name", NOT_AUDITED)
def test_only_what_calls_itself_not_private_is_excused(name: str) -> None:
    with pytest.raises(AssertionError, match="the run is not private"):
        transcripts(Case(name, "server", ROUNDS), FEW_EPSILON, DELTA, 1)


def audit(case: Case, epsilon: float, runs: int) -> None:
    seen = transcripts(case, epsilon, DELTA, runs)
    # An audit in which the canary hardly shows would pass anything.
    shown = np.mean([run.divergence / run.rho for run in seen])
    assert shown > case.shows, "the canary does not reach what is released"
    assert violated(seen, epsilon, DELTA) == {}


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=n, marks=[] if n in FEW_DEFAULT else pytest.mark.slow) for n, c in AUDITS.items()]
)
def test_audit(case: Case) -> None:
    audit(case, FEW_EPSILON, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("case", AUDITS.values(), ids=AUDITS)
def test_audit_of_many_runs(case: Case) -> None:
    audit(case, MANY_EPSILON, MANY)


@pytest.mark.parametrize("name", CLIENT_FEW)
def test_audit_of_a_whole_client(name: str) -> None:
    audit(CLIENT_AUDITS[name], FEW_EPSILON, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CLIENT_AUDITS.keys() - set(CLIENT_FEW)))
def test_audit_of_a_whole_client_by_the_other_mechanisms(name: str) -> None:
    audit(CLIENT_AUDITS[name], FEW_EPSILON, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("case", CLIENT_AUDITS.values(), ids=CLIENT_AUDITS)
def test_audit_of_a_whole_client_in_many_runs(case: Case) -> None:
    audit(case, MANY_EPSILON, MANY)


# The audit can fail ------------------------------------------------------------------------------------------------


def scale_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """A build whose Gaussian noise, continuous and discrete, is `factor` times as large as its ledgers say."""
    gaussian, discrete = _noise.gaussian, _noise.discrete
    monkeypatch.setattr(_noise, "gaussian", lambda values, sigma, source: gaussian(values, factor * sigma, source))
    monkeypatch.setattr(_noise, "discrete", lambda values, s, source: discrete(values, factor * s, source))


def scale_choices(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """A build whose Gumbel noise is `factor` times as large as its ledgers say."""
    choose = _noise.exponential
    sharper: Callable[..., int] = lambda scores, epsilon, *rest: choose(scores, epsilon / factor, *rest)  # noqa: E731
    monkeypatch.setattr(_noise, "exponential", sharper)


def break_client(monkeypatch: pytest.MonkeyPatch, client: type) -> None:
    """Gives FedNaiveBayes another client half."""
    entry = registry.MECHANISMS["fed_naive_bayes"]
    monkeypatch.setitem(registry.MECHANISMS, "fed_naive_bayes", replace(entry, client=f"{__name__}:{client.__name__}"))


def naive_bayes(noise: str, epsilon: float = FEW_EPSILON) -> list[Transcript]:
    """80 noisy one-way counts a run, 160 with local noise: 3,200 of FEW runs in each world, or more."""
    return transcripts(Case("fed_naive_bayes", noise, ROUNDS, shape=(8, 16, 16)), epsilon, DELTA, FEW)


@pytest.mark.parametrize("noise", ["server", "distributed", pytest.param("local", marks=pytest.mark.slow)])
def test_noise_that_is_15_percent_too_small_is_caught(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log likelihood ratio is then 0.0238 a value in mean, 0.196 in standard deviation: 76 +- 11 for 3,200 values.
    Below the 20.2 that are needed: 5 standard deviations, once in 3e6."""
    scale_noise(monkeypatch, 0.85)
    assert "noise" in violated(naive_bayes(noise), FEW_EPSILON, DELTA)


def test_hardly_any_noise_is_a_success_of_the_adversary(monkeypatch: pytest.MonkeyPatch) -> None:
    """mu = 0.26 with a fiftieth of the noise is mu = 13: never wrong. (A tenth: wrong once in 11 runs, too often.)"""
    scale_noise(monkeypatch, 0.02)
    assert "success" in violated(naive_bayes("server"), FEW_EPSILON, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("factor, runs", [(0.1, FEW), (0.8, MANY)])
def test_choices_with_too_little_noise_are_caught(factor: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single choice says little, however greedy: 6 a run, among three pairs of equal size."""
    scale_choices(monkeypatch, factor)
    options = {"rounds": 3, "measure_fraction": 0.3, "filter_and_combine": True}
    seen = transcripts(Case("experiments.variants.flaim:NaiveFlaimVariant", "server", options), 10.0, DELTA, runs)
    assert "select" in violated(seen, 10.0, DELTA)["noise"]


class CountsTwice(FedNaiveBayesClient):
    """Each row is in the sums twice: the sensitivity is 2, the ledger says 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.codes = np.repeat(self.codes, 2, axis=0)


class TellsItsSize(FedNaiveBayesClient):
    """Answers with its true row count instead of the one that it releases with noise."""

    @answers(Sizes)
    def sizes(self, call: Call[Sizes]) -> tuple[list[Any], dict[str, Any]]:
        return [], {"rows": float(len(self.codes))}


class BringsAllItsRows(FedNaiveBayesClient):
    """Takes part with every row, twice as many as the cap has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.codes = self.holder.codes


def whole_client() -> list[Transcript]:
    return transcripts(Case("fed_naive_bayes", "server", ROUNDS, cap=CAP), FEW_EPSILON, DELTA, FEW)


def test_a_client_that_is_not_capped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    break_client(monkeypatch, BringsAllItsRows)
    assert "divergence" in violated(whole_client(), FEW_EPSILON, DELTA)


@pytest.mark.slow
def test_a_ledger_that_accounts_for_one_row_of_a_client_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientUnit, "entered", lambda self, release: release)
    monkeypatch.setattr(ClientUnit, "factor", 1.0)
    assert "divergence" in violated(whole_client(), FEW_EPSILON, DELTA)


def test_a_sensitivity_that_is_understated_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    break_client(monkeypatch, CountsTwice)
    assert "divergence" in violated(naive_bayes("server"), FEW_EPSILON, DELTA)


def test_a_number_that_goes_past_the_ledger_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true count stands in the reply; a model scaled by it differs too."""
    break_client(monkeypatch, TellsItsSize)
    found = violated(naive_bayes("server"), FEW_EPSILON, DELTA)
    assert "visible" in found["success"] and found["gap"]


def test_noise_around_another_value_than_the_ledgers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice what entered the ledger comes out. At epsilon = 30 the gap is 34 +- 1.9 if honest, 69 here, allowed 46."""
    gaussian = _noise.gaussian
    monkeypatch.setattr(_noise, "gaussian", lambda values, *rest: gaussian(2.0 * values, *rest))
    assert "gap" in violated(naive_bayes("server", 30.0), 30.0, DELTA)


def test_the_adversary_is_as_successful_as_the_ledger_allows() -> None:
    """The gap of a mechanism that is Gaussian in all is its claim: within 5.8 standard errors, two-sided 7e-9.

    At epsilon = 30, where FEW runs are enough: 34 +- 1.9.
    """
    seen = naive_bayes("distributed", 30.0)
    claim = 2.0 * seen[0].rho
    assert mean_gap(seen) == pytest.approx(claim, abs=5.8 * np.sqrt(2.0 * claim / FEW))
