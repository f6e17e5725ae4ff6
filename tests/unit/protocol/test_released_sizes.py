"""Private row counts of many tiny clients: the estimates sum to what was released, and are no worse than it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.protocol.joining import LARGEST_SIZE, Participant, estimated_sizes, usable_size, with_released_sizes
from fedsyn.wire.envelope import Reply
from support.pair_runs import table_of

CODES = (np.random.default_rng(0).random((600, 2)) ** 2 * (3, 4)).astype(np.uint8)
TABLE = table_of(CODES, (3, 4))


def replied(values: list[Any]) -> dict[int, Reply]:
    return {k: Reply(k, [], {"rows": value}) for k, value in enumerate(values)}


def test_the_total_of_many_tiny_clients_is_unbiased_and_was_not() -> None:
    """4,000 clients of 11 rows, sigma = 16.7 as at epsilon 1. False alarms: 5 standard deviations of a mean, 6e-7."""
    rng, sigma, rows, draws = np.random.default_rng(1), 16.7, 11.0, 50
    released = rows + sigma * rng.standard_normal((draws, 4000))
    totals = np.array([math.fsum(estimated_sizes(list(own), sigma)) for own in released])
    off = sigma * math.sqrt(4000 / draws)
    assert abs(totals.mean() - 44_000) < 5 * off
    assert totals.std(ddof=1) == pytest.approx(sigma * math.sqrt(4000), rel=0.5)
    assert np.maximum(released, 1.0).sum(axis=1).mean() > 1.2 * 44_000  # what cutting off first makes of them


def test_few_large_holders_keep_what_they_released_and_equal_ones_get_the_mean() -> None:
    large = [5_210.3, 14_000.9, 30_001.0, 812.4]
    assert estimated_sizes(large, 17.0) == pytest.approx(large, abs=0.1)
    assert estimated_sizes([50.0, -3.0], 17.0) == pytest.approx([46.0, 1.0])  # too few to know better
    assert estimated_sizes([5.0, -30.0, 2.0], 17.0) == [1.0, 1.0, 1.0]  # less than nothing in all
    rng = np.random.default_rng(2)
    equal = estimated_sizes(list(11.0 + 17.0 * rng.standard_normal(1000)), 17.0)
    assert np.std(equal) < 2.0


@pytest.mark.parametrize("spread", [0.0, 8.0, 40.0, 400.0])
def test_the_estimates_are_no_farther_off_than_the_noisy_counts(spread: float) -> None:
    """Mean squared errors of 200 draws; that of the noisy counts is sigma². False alarms: below 1e-6 (6 deviations)."""
    rng, sigma, clients = np.random.default_rng(3), 17.0, 50
    rows = np.rint(30 + spread * rng.random(clients))
    squared = []
    for _ in range(200):
        released = rows + sigma * rng.standard_normal(clients)
        squared.append(float(np.mean((np.array(estimated_sizes(list(released), sigma)) - rows) ** 2)))
    assert np.mean(squared) < sigma**2 * (1 + 6 * math.sqrt(2 / (200 * clients)))
    if spread <= 8.0:
        assert np.mean(squared) < 0.25 * sigma**2


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-(2.0**32), 2.0**32), min_size=1, max_size=30), st.floats(1e-3, 1e9))
def test_whatever_was_released_every_client_has_a_row_and_they_sum_to_it(released: list[float], sigma: float) -> None:
    found = estimated_sizes(released, sigma)
    assert len(found) == len(released) and min(found) >= 1.0
    assert math.fsum(found) == pytest.approx(max(len(released), math.fsum(released)), rel=1e-6)


def test_a_reply_that_is_no_number_drops_its_client_and_a_negative_one_does_not() -> None:
    clients = {k: Participant(k, k, None) for k in range(6)}
    dropped: dict[int, str] = {}
    known = with_released_sizes(clients, replied([-4.0, 20, True, "9", math.nan, 2.0**60]), 9.0, dropped.__setitem__)
    assert sorted(known) == [0, 1] and sorted(dropped) == [2, 3, 4, 5]
    assert [client.reckoned for client in known.values()] == [1.0, 20.0]
    assert sum(client.rows or 0.0 for client in known.values()) == pytest.approx(16.0)
    assert usable_size(-1e300) == 1.0 and usable_size(1e300) == LARGEST_SIZE


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_of_tiny_clients_knows_how_many_rows_there_are() -> None:
    """600 clients of one row: the sum of their noisy counts, within 5 of its deviations (false alarms: 6e-7)."""
    config = config_of("fed_naive_bayes", 600, privacy={"epsilon": 1.0, "delta": 1e-5, "client_sizes": "private"})
    strategy = finished(execute(config, Federation(TABLE, tuple(np.split(CODES, 600))))).strategy
    (sizes,) = [release for release in strategy.ledger.releases if release.name == "sizes"]
    assert sizes.sigma is not None
    cut_off = 600 * (sizes.sigma / math.sqrt(2 * math.pi) - 1.0)  # at least what cutting off at 0 would add
    assert abs(strategy.total - 600) < 5 * sizes.sigma * math.sqrt(600) < 0.7 * cut_off
    assert min(strategy.rows([k]) for k in strategy.clients) >= 1.0
    # The model's rows: two one-way marginals of three and four cells say more of them than 600 noisy counts.
    marginals = [release.sigma for release in strategy.ledger.releases if release.name == "one-way"]
    noise = math.sqrt(1.0 / sum(1.0 / (cells * sigma**2) for sigma in marginals if sigma for cells in (3, 4)))
    assert strategy.model is not None and abs(strategy.model.total - 600) < 5 * noise
    assert 5 * noise < sizes.sigma * math.sqrt(600)
