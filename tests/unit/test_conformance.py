"""Every registered mechanism passes every conformance check, and mechanisms that are broken on purpose do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import Field

import fedsyn.registry as registry
from fedsyn.aggregation import Contribution
from fedsyn.config import Node
from fedsyn.errors import ConfigError
from fedsyn.inference import Measurement, estimate
from fedsyn.privacy import Ledger, PrivacyBudget, PrivacyStatement, sigma_for_rho
from fedsyn.protocol.client import TableClient, answers, marginal_contribution
from fedsyn.protocol.strategy import MechanismStrategy, Protocol, public_facts
from fedsyn.testing import check_mechanism, mechanism_checks
from fedsyn.testing.accounting import delta_of_gaussian, delta_of_rho
from fedsyn.testing.conformance import ConformanceCheck
from fedsyn.wire.holder import Call

# Those of the paper's own variants whose code no default option reaches.
VARIANTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("aim", {"rounds": None}, ["two_rows", "odd_names"]),
    ("augflaim", {"rounds": 2, "local_rounds": 3}, ["two_rows", "odd_names"]),
]


# `make check` runs every mechanism on these two tables only, and the costly checks on the second of them.
QUICK = ("two_rows", "missing_values")
# On the two widest tables `make test-all` runs them.
WIDE = ("sixty_columns", "more_categories_than_rows")
PAIRWISE = ("privsyn", "fed_privsyn", "ada_fed_privsyn")  # 1,770 pairs of sixty columns: minutes a run
COSTLY = ("sensitivity", "malformed_client", "released_values_only", "vanishing_client", "distributed_noise")


def _every_check() -> Iterator[Any]:
    for name in sorted(registry.MECHANISMS):
        for check in mechanism_checks(name):
            table = check.bench.table.name
            marks = [pytest.mark.xdist_group(f"conformance-{name}-{table}")]
            if table not in QUICK or (check.name in COSTLY and table != QUICK[-1]):
                marks.append(pytest.mark.thorough)
            if table in WIDE and (check.name in COSTLY or name in PAIRWISE):
                marks.append(pytest.mark.slow)
            yield pytest.param(check, id=f"{name}-{check}".replace(": ", "-"), marks=marks)


@pytest.mark.parametrize("check", _every_check())
def test_mechanism_conforms(check: ConformanceCheck) -> None:
    check()


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options", "tables"), VARIANTS, ids=lambda value: str(value))
def test_variant_conforms(name: str, options: dict[str, Any], tables: list[str]) -> None:
    check_mechanism(name, options=options, tables=tables)


def test_an_unknown_mechanism_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown mechanism 'agflaim'.*augflaim"):
        check_mechanism("agflaim")


def test_the_second_account_agrees_with_the_first() -> None:
    from fedsyn.privacy import gaussian_delta, zcdp_delta

    for rho in (1e-4, 0.01, 0.3):
        for epsilon in (0.1, 1.0, 4.0):
            ours, theirs = delta_of_rho(rho, epsilon), zcdp_delta(rho, epsilon)
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-300)
            assert delta_of_gaussian(rho, epsilon) == pytest.approx(
                gaussian_delta(np.sqrt(2 * rho), epsilon), rel=1e-6, abs=1e-15
            )


# Mechanisms that are broken on purpose -------------------------------------------------------------------------------


class SoundConfig(Node):
    """Options."""

    strength: int = Field(default=1, ge=1)


class Sound(MechanismStrategy):
    """Sums all one-way marginals once. The broken ones below differ from it in one thing each.

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, configuration, row counts.
    Trusted not to collude: as `aggregation` says.
    The server sees: noisy one-way marginals.
    A client sees: nothing.
    Cost of each release: d marginals at 1/(2 sigma^2).
    Sampler: the operating system's.
    """

    Config = SoundConfig

    def protocol(self) -> Protocol:
        self.begin_round(1)
        yield Ask(self.everyone(), "hello")
        sums = yield self.measure(self.sigma())
        self.fit(sums.arrays, sums.sigmas)

    def sigma(self) -> float:
        return sigma_for_rho(self.ledger.remaining_rho / len(self.domain))

    def measure(self, sigma: float) -> Sum:
        shapes = tuple(self.domain.shape_of((name,)) for name in self.domain)
        return Sum(self.everyone(), "measure", shapes, sigma, count=len(shapes))

    def fit(self, arrays: list[np.ndarray], sigmas: tuple[float, ...]) -> None:
        if arrays:
            triples = zip(self.domain, arrays, sigmas, strict=True)
            measured = [Measurement((name,), values, sigma) for name, values, sigma in triples]
            self.model = estimate(self.domain, measured, total=max(1.0, self.rows(self.clients)))

    def statement(self) -> PrivacyStatement:
        seen = self.aggregation.who_sees_what()
        return PrivacyStatement(public_facts(self.run), seen["trust"], seen["server"], "nothing", "d marginals", "run")


class SoundClient(TableClient):
    @answers("hello")
    def hello(self, call: Call) -> tuple[list[np.ndarray], dict[str, Any]]:
        return [], {}

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        cliques = [(name,) for name in self.domain]
        return marginal_contribution(self.codes, self.domain, cliques, range(len(cliques)))


class LeakingClient(SoundClient):
    @answers("hello")
    def hello(self, call: Call) -> tuple[list[np.ndarray], dict[str, Any]]:
        return [], {"first": int(self.codes[0, 0]) if len(self.codes) else -1}


class OwnNoiseClient(SoundClient):
    """Adds noise of its own, which no ledger has seen."""

    @answers("hello")
    def hello(self, call: Call) -> tuple[list[np.ndarray], dict[str, Any]]:
        return [self.codes.sum(axis=0) + call.source.standard_normal(self.codes.shape[1])], {}


class UnderstatedClient(SoundClient):
    """One row touches each marginal twice."""

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        sound = super().measure(call)
        return Contribution(sound.cells, 3 * sound.values, sound.count, sound.active, sound.length)


class RevealingClient(SoundClient):
    """Raises, or does not, depending on a row."""

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        if len(self.codes) and int(self.codes[0].sum()) % 2:
            raise ValueError("a private matter")
        return super().measure(call)


class Overspending(Sound):
    """Draws noise outside of the ledger, on the sum that it peeked at."""

    __doc__ = Sound.__doc__

    def fit(self, arrays: list[np.ndarray], sigmas: tuple[float, ...]) -> None:
        source = self.randomness.generator("server", self.round, "more")
        super().fit([array + source.standard_normal(array.shape) for array in arrays], sigmas)


class Unseeded(Sound):
    __doc__ = Sound.__doc__

    def fit(self, arrays: list[np.ndarray], sigmas: tuple[float, ...]) -> None:
        super().fit([array + np.random.default_rng().random(array.shape) for array in arrays], sigmas)


class FirstComeFirstServed(Sound):
    """Reads replies in the order in which they came."""

    __doc__ = Sound.__doc__

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        first = replies[0].metadata.src_node_id if replies else 0
        result = super().aggregate_train(server_round, replies)
        self.first = first
        return result

    def fit(self, arrays: list[np.ndarray], sigmas: tuple[float, ...]) -> None:
        super().fit([array + self.first for array in arrays], sigmas)


class Fragile(Sound):
    """Believes what a client says."""

    __doc__ = Sound.__doc__

    def protocol(self) -> Protocol:
        self.begin_round(1)
        replies = yield Ask(self.everyone(), "hello")
        assert len(replies) == len(self.clients)
        sums = yield self.measure(self.sigma())
        self.fit(sums.arrays, sums.sigmas)


class Peeking(Sound):
    """Uses the exact sums beside the noisy ones."""

    __doc__ = Sound.__doc__

    def _sum(self, request: Sum) -> Any:
        exchange = self._exchange

        def peek(*arguments: Any) -> Any:
            replies = exchange(*arguments)
            self.seen = float(sum(reply.arrays[-1].max(initial=0) for reply in replies.values() if reply.arrays))
            return replies

        self._exchange = peek  # type: ignore[method-assign]
        return super()._sum(request)

    def fit(self, arrays: list[np.ndarray], sigmas: tuple[float, ...]) -> None:
        super().fit([array + self.seen for array in arrays], sigmas)


class SameNoise(Sound):
    """Two releases with noise of one key: their difference has none."""

    __doc__ = Sound.__doc__

    def sigma(self) -> float:
        return 2 * super().sigma()

    def fit(self, arrays: list[np.ndarray], sigmas: tuple[float, ...]) -> None:
        for _ in range(2):
            source = self.randomness.generator("server", "again")
            self.ledger.gaussian(np.array([0]), sigma=1e3, source=source, name="again", round=1)
        super().fit(arrays, sigmas)


class Silent(Sound):
    """A docstring without a statement."""


class Loose(Sound):
    """Spends what was promised, and again; its client lets it."""

    __doc__ = Sound.__doc__

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ledger = Ledger(PrivacyBudget(10.0, 1e-5), None, self.ledger.statement, noise_by="server")


class LooseClient(SoundClient):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ledger = Ledger(PrivacyBudget(10.0, 1e-5), noise_by="client")


BROKEN: dict[str, tuple[type, type, str]] = {
    "leaking": (Sound, LeakingClient, "it shows more than it released"),
    "own_noise": (Sound, OwnNoiseClient, "is drawn outside a ledger entry"),
    "understated": (Sound, UnderstatedClient, "one row moves an array by 4.24264, the ledger says 1"),
    "revealing": (Sound, RevealingClient, "decide whether .* is answered"),
    "overspending": (Overspending, SoundClient, "is drawn outside a ledger entry"),
    "loose": (Loose, LooseClient, "the server's ledger exceeds epsilon = 1"),
    "unseeded": (Unseeded, SoundClient, "the same seed, run twice, gives another model"),
    "arrival": (FirstComeFirstServed, SoundClient, "another order of replies"),
    "fragile": (Fragile, SoundClient, "vanishing_client"),
    "peeking": (Peeking, SoundClient, "change the model"),
    "same_noise": (SameNoise, SoundClient, "drawn from its beginning twice"),
    "silent": (Silent, SoundClient, "no 'Privacy statement.'"),
}


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))

    def add(strategy: type, client: type) -> str:
        module = sys.modules[__name__].__name__
        name = f"{strategy.__name__}_{client.__name__}"
        registry.register(name, f"{module}:{strategy.__name__}", f"{module}:{client.__name__}")
        return name

    return add


@pytest.mark.thorough
def test_the_sound_one_passes(register: Any) -> None:
    check_mechanism(register(Sound, SoundClient), tables=["missing_values", "two_rows"])


@pytest.mark.thorough
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_mechanism_is_found(broken: str, register: Any) -> None:
    strategy, client, finding = BROKEN[broken]
    with pytest.raises(AssertionError, match=finding) as caught:
        check_mechanism(register(strategy, client), tables=["missing_values"])
    assert "missing_values: " in str(caught.value)


@pytest.mark.thorough
def test_every_failure_is_listed_with_its_table(register: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        check_mechanism(register(Sound, OwnNoiseClient), tables=["missing_values", "two_rows"])
    text = str(caught.value)
    for line in ("missing_values: noise_comes_through_the_ledger", "two_rows: noise_comes_through_the_ledger"):
        assert line in text
