"""The server's side of a federated evaluation.

Holders are asked how good a table is, whatever mechanism made it: after the mechanism, once, as a sum over everybody.
What that may cost is set aside before the mechanism begins (`RunBudget.evaluation`).
`fedsyn.evaluation.federated.statistics` says what is counted, and derives what a row moves it by.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

from fedsyn.evaluation.federated.intervals import HolderSums
from fedsyn.evaluation.federated.question import TableQuestion
from fedsyn.privacy import sigma_for_rho
from fedsyn.protocol.common import Evaluate, Sizes, entries_of
from fedsyn.protocol.driving import Driver
from fedsyn.wire.requests import Sum, Summed, Yielded


def federated_evaluation(driver: Driver, question: TableQuestion) -> Generator[Yielded, Any, HolderSums | None]:
    """Asks everybody, and returns the released sums.

    They spend what was set aside. The result is None if too few contributed.
    """
    contract, ledger = driver.contract, driver.ledger
    ledger.keep_back(0.0)
    rho = min(contract.budget.evaluation, ledger.remaining_rho)
    entries = entries_of(contract, question)
    reckoned = {k: client.reckoned for k, client in driver.clients.items()}
    total = min(max(1.0, math.fsum(reckoned.values())), 2.0**32)
    label = 0 if question.label is None else question.label + 1
    request = Evaluate(total=total, even=total / len(driver.clients), label=label)
    sigma = sigma_for_rho(rho, entries.sensitivity)
    sums: Summed = yield Sum(driver.everyone(), request, sigma, question.arrays())
    if not sums.opened:
        return None
    rows = math.fsum(reckoned[k] for k in sums.contributors)
    off = 0.0 if contract.config.privacy.client_sizes == "public" else _noise_of_sizes(driver, sums.contributors)
    return HolderSums.of(question, entries, sums.arrays[0], sums.sigmas[0], rows, off, len(sums.contributors))


def _noise_of_sizes(driver: Driver, contributors: Sequence[int]) -> float:
    """Returns the noise's standard deviation on released sizes' sum.

    It is infinite where a size may have been cut off at 1, or only the sum of all was released.
    """
    sigmas = [release.sigma for release in driver.ledger.releases if release.name == Sizes.name]
    if (
        not sigmas or sigmas[0] is None
    ):  # the sum of all, an even part each: what the contributors have of it is unknown
        return math.inf
    smallest = min(driver.clients[k].reckoned for k in contributors)
    return sigmas[0] * math.sqrt(len(contributors)) if smallest > 1.0 else math.inf
