"""A second opinion on a ledger: totals from its JSON entries alone, with formulas written here once more.

Nothing of `fedsyn.privacy` is used, so that an error there and the same error here would have to be made twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# Renyi orders; the bound holds at each of them, so a coarse grid is only pessimistic (by less than 1e-4 of epsilon).
_ORDERS = 1.0 + np.logspace(-4, 8, 24_001)


def rho_of_entry(entry: Mapping[str, Any]) -> float:
    """zCDP of one ledger entry (Bun & Steinke 2016, Propositions 1.6; Rogers & Steinke 2021 for the choices)."""
    if entry["mechanism"] in ("gaussian", "sampled gaussian"):  # a sampled one as if every row were taken
        gaussian = entry["count"] * entry["sensitivity"] ** 2 / (2.0 * entry["sigma"] ** 2)
        return float(gaussian + entry.get("extra", 0.0))  # what shares of distributed noise cost beyond one Gaussian
    if entry["mechanism"] == "exponential":
        return float(entry["count"] * entry["epsilon"] ** 2 / 8.0)
    raise ValueError(f"unknown kind of release '{entry['mechanism']}'")


def rho_of_entries(entries: Iterable[Mapping[str, Any]]) -> float:
    """Their sum; where entries name the clients that they concern, that of the client for whom it is largest."""
    known = list(entries)
    groups = [{*entry.get("clients", ())} for entry in known]

    def of(client: int) -> float:
        pairs = zip(known, groups, strict=True)
        return math.fsum(rho_of_entry(entry) for entry, group in pairs if not group or client in group)

    return max(map(of, set().union(*groups) or {-1}))


def delta_of_rho(rho: float, epsilon: float) -> float:
    """delta of rho-zCDP at epsilon: a bound by Canonne, Kamath & Steinke 2020, Corollary 13."""
    if rho <= 0.0:
        return 0.0
    log_delta = (_ORDERS - 1.0) * (_ORDERS * rho - epsilon) + _ORDERS * np.log1p(-1.0 / _ORDERS)
    return float(min(1.0, np.exp(np.min(log_delta - np.log(_ORDERS - 1.0)))))


def delta_of_gaussian(rho: float, epsilon: float) -> float:
    """delta at epsilon of Gaussian releases that cost `rho` together (Balle & Wang 2018, Theorem 8)."""
    if rho <= 0.0:
        return 0.0
    mu = math.sqrt(2.0 * rho)
    return _phi(mu / 2.0 - epsilon / mu) - math.exp(epsilon) * _phi(-mu / 2.0 - epsilon / mu)


def within_budget(report: Mapping[str, Any], epsilon: float, delta: float) -> bool:
    """Whether the entries of a ledger's report are (epsilon, delta)-DP by this second account.

    Only a ledger of Gaussian releases may use the exact Gaussian account; one with steps of DP-SGD must hold by Rényi
    DP at the best of many orders, every other one by zCDP.
    """
    entries = report["releases"]
    if any(entry["mechanism"] == "sampled gaussian" for entry in entries):
        clients = {client for entry in entries for client in entry.get("clients", ())} or {-1}
        own = ([e for e in entries if not e.get("clients") or client in e["clients"]] for client in clients)
        return max(_epsilon_of_steps(theirs, delta) for theirs in own) <= epsilon * (1.0 + 1e-6)
    rho = rho_of_entries(entries)
    only_gaussian = all(entry["mechanism"] == "gaussian" for entry in entries)
    exact = only_gaussian and report["accountant_unit"] != "rho"
    spent = delta_of_gaussian(rho, epsilon) if exact else delta_of_rho(rho, epsilon)
    return spent <= delta * (1.0 + 1e-4)


def _epsilon_of_steps(entries: Iterable[Mapping[str, Any]], delta: float) -> float:
    """epsilon at delta by Rényi DP, the best of the orders 2 to 128 (Mironov 2017, Proposition 3, improved by Canonne,
    Kamath & Steinke 2020). A step's moment is summed term by term (Mironov, Talwar & Zhang 2019, Section 3.3)."""
    spent, best = list(entries), math.inf
    for order in range(2, 129):
        try:
            divergence = math.fsum(
                entry["count"] * _log_moment(entry, order) / (order - 1)
                if entry["mechanism"] == "sampled gaussian"
                else order * rho_of_entry(entry)
                for entry in spent
            )
        except OverflowError:
            continue
        best = min(best, divergence + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1))
    return best


def _log_moment(entry: Mapping[str, Any], order: int) -> float:
    """log E[(dP/dQ)^order] of one step: a row is among the sampled ones with probability `rate`."""
    rate, z = entry["rate"], entry["sigma"] / entry["sensitivity"]
    terms = (
        math.comb(order, k) * (1.0 - rate) ** (order - k) * rate**k * math.exp(k * (k - 1) / (2.0 * z * z))
        for k in range(order + 1)
    )
    return math.log(math.fsum(terms))


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
