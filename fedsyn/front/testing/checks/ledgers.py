"""What ledgers must hold: no more than the budget, every release by its name, and all noise that is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from fedsyn.config import RunConfig
from fedsyn.front.testing.bench import Bench
from fedsyn.front.testing.harness import Outcome
from fedsyn.privacy import Ledger, Release
from fedsyn.privacy.ledger import of_the_worst
from fedsyn.privacy.release import UNKNOWN_SAMPLER


def check_ledger(bench: Bench) -> None:
    """Ledgers of server and clients are within budget, agree with each other, and name every release."""
    base = bench.base()
    ledgers_hold(base)
    total = base.strategy.ledger.spent_rho
    for partition, ledger in sorted(base.ledgers.items()):
        assert ledger.spent_rho <= total * (1 + 1e-9), (
            f"client {partition} released rho = {ledger.spent_rho:.6g}, but the server's ledger accounts for "
            f"{total:.6g} only"
        )


def ledgers_hold(outcome: Outcome) -> None:
    """The server's ledger speaks for the row that is worst off, so no client's ledger may exceed it."""
    ledger = outcome.strategy.ledger
    ledger_holds(ledger, outcome.config, "the server's ledger")
    assert ledger.releases, "the server's ledger is empty: a run that releases nothing cannot learn anything"
    accounted, promised = _rho_by_name(ledger.releases), _sensitivity_by_name(ledger.releases)
    for partition, own in sorted(outcome.ledgers.items()):
        ledger_holds(own, outcome.config, f"the ledger of client {partition}")
        # A promise is for a sum that the others' replies decide upon; what a client drew itself has left it.
        drawn = [release for release in own.releases if release.noise_by == own.noise_by]
        for name, spent in _rho_by_name(drawn).items():
            held = accounted.get(name, 0.0)
            assert spent <= held * (1 + 1e-9), (
                f"client {partition} released rho = {spent:.6g} as '{name}', the server's ledger has {held:.6g} for it"
            )
        for name, sensitivity in _sensitivity_by_name(drawn).items():
            assert sensitivity <= promised[name] * (1 + 1e-9), (
                f"client {partition} released '{name}' of sensitivity {sensitivity:.6g}, the server's ledger says "
                f"{promised[name]:.6g}"
            )


def _rho_by_name(releases: Sequence[Release]) -> dict[str, float]:
    named: dict[str, list[Release]] = {}
    for release in releases:
        named.setdefault(release.name, []).append(release)
    return {name: of_the_worst(found, [release.rho for release in found]) for name, found in named.items()}


def _sensitivity_by_name(releases: Sequence[Release]) -> dict[str, float]:
    found: dict[str, float] = {}
    for release in releases:
        found[release.name] = max(release.sensitivity, found.get(release.name, 0.0))
    return found


def ledger_holds(ledger: Ledger, config: RunConfig, whose: str) -> None:
    """A ledger's releases have names and samplers, and are within the budget of the run."""
    for release in ledger.releases:
        assert release.name.strip(), f"{whose} has a release without a name"
        assert release.sampler != UNKNOWN_SAMPLER, f"{whose}: '{release.name}' does not say where noise is from"
    privacy = config.privacy
    assert ledger.epsilon(privacy.delta) <= privacy.epsilon * (1 + 1e-9), (
        f"{whose} exceeds epsilon = {privacy.epsilon:g} at delta = {privacy.delta:g}"
    )


def check_noise_comes_through_the_ledger(bench: Bench) -> None:
    """No noise is drawn outside a ledger entry, and no stream of noise is drawn twice."""
    problems = list(dict.fromkeys(bench.base().tape.problems))
    assert not problems, "; ".join(problems)
