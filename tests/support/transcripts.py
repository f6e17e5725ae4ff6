"""What an adversary sees of a whole run, and how much likelier it is in the world where it happened.

The only file of the audits that knows the harness. Two worlds: a small federation, and the same one with one row more
at client 0 (the canary). Where a whole client is the unit, client 0 itself is the canary: it has all of its rows, more
of them than may take part, or none. A run takes place in one of them, unseeded: its noise is the operating system's. It
is then replayed in the other world with every released value held fixed. That gives, for each release, what would have
been released there given the same past; and the log ratio of the whole transcript is the sum over its releases, each
given what came before (the chain rule), however adaptively they were asked for. Whatever else the server sees of the
run (requests, replies to an `Ask`, the model) must come out the same in the replay; if anything does not, the adversary
knows the world for certain and the log ratio is infinite.

*Claims.* sigma, epsilon and sensitivity are read from the server's ledger, which is what a run publishes, not from
the draws themselves: whoever draws less noise than the ledger says is caught, not believed.

*Distributed noise.* The server sees the opened sum: the clients' vectors added up, over the resolution. Its noise is a
sum of discrete Gaussians, whose law is within a factor e^(1e-20) of a Gaussian of variance sigma^2 (1 + r^2 / (gamma
sigma)^2) on a grid (step 3 in fedsyn.privacy.distributed). The audit uses the continuous density with the claimed
sigma: for integer shifts the discrete log ratio has that same form, and the true variance is at most 0.025% above the
claimed one (gamma sigma >= 128, r = 2). With no dropout and nobody corrupted the shares of the contributors are exactly
the planned noise: the least that the server can meet.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedsyn.config import RunConfig
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.front.testing.tape import TapedRelease
from fedsyn.privacy import Release
from fedsyn.privacy.distributed import DistributedNoise
from fedsyn.randomness import OsRandom, Randomness
from fedsyn.registry import contract_class
from fedsyn.table.schema import NumericColumn, Schema

Values = npt.NDArray[np.float64]
CLIENTS = 2
ROWS = 30
# Builds that noise is tested against, by likelihood: their noise is this share of what their ledgers say.
SHORT = np.array([0.85, 0.5])


@dataclass(frozen=True)
class Case:
    """A mechanism as it is audited.

    Attributes:
        mechanism: registered name.
        noise: who draws the noise of a sum.
        options: of the mechanism. Fits take one step only: the audit is about what is released, not about its use.
        shape: values of the table's attributes. Equal ones leave the choices open: AIM's penalty counts cells.
        shows: of the rho that it pays, what the canary shows at least: a choice shows less than it costs.
        cap: the most rows that a client takes part with, where a whole client is the unit.
    """

    mechanism: str
    noise: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (4, 4, 4)
    shows: float = 0.75
    cap: int | None = None

    @property
    def clients(self) -> int:
        return 1 if contract_class(self.mechanism).central else CLIENTS

    def config(self, epsilon: float, delta: float) -> RunConfig:
        steps = ("iterations", "final_iterations", "local_iterations", "gum_iterations")
        known = contract_class(self.mechanism).Options.model_fields
        options = {**{name: 1 for name in steps if name in known}, **self.options}
        unit = {} if self.cap is None else {"unit": "client", "rows_per_client": self.cap}
        return config_of(
            self.mechanism,
            self.clients,
            options,
            privacy={"epsilon": epsilon, "delta": delta, "client_sizes": "private", **unit},
            aggregation={"noise": self.noise, "corrupted": 0.0, "dropout": 0.0},
            runtime={"seed": None},
        )


@lru_cache(maxsize=4)
def worlds(shape: tuple[int, ...], clients: int, cap: int | None = None) -> tuple[Federation, Federation]:
    """A federation without and with the canary, a row in a cell where few others are, at client 0.

    With a cap the canary is client 0 with twice as many such rows, against one that has none.
    """
    columns = {f"x{i}": NumericColumn(lower=0, upper=size - 1, dtype="integer") for i, size in enumerate(shape)}
    schema = Schema(columns=columns)
    rng = np.random.default_rng(20240501)
    codes = (rng.random((ROWS, len(shape))) ** 2 * shape).astype(schema.dtype)
    table = AwkwardTable("audit", schema, schema.decode(codes, rng))
    without = Federation(table, tuple(codes[k::clients] for k in range(clients)))
    canary = (np.array(shape) - 1)[None, :].astype(codes.dtype)
    if cap is not None:
        without = without.with_part(0, canary[:0])
        canary = np.repeat(canary, 2 * cap, axis=0)
    return without, without.with_part(0, np.concatenate([without.parts[0], canary]))


# One transcript ----------------------------------------------------------------------------------------------------


@dataclass
class Transcript:
    """A run in one world, as an adversary sees it who knows everything but the world.

    Attributes:
        world: in which it took place: 1 with the canary.
        gaussian: log p(seen | this world) - log p(seen | the other), of its Gaussian releases, with the claimed sigma.
        chosen: the same of its choices; infinite if anything but released values tells the worlds apart.
        divergence: the expectation of both, each release's given the past: a Kullback-Leibler divergence.
        rho: what the server's ledger says that the run cost.
        budget: the most that it could have cost.
        short: by name of the release, log p(seen | noise SHORT times as large) - log p(seen | noise as claimed), in the
            world where it happened; one number for each share.
        differences: what tells the worlds apart past the ledgers.
    """

    world: int
    rho: float
    budget: float
    gaussian: float = 0.0
    chosen: float = 0.0
    divergence: float = 0.0
    short: dict[str, Values] = field(default_factory=lambda: defaultdict(lambda: np.zeros(len(SHORT))))
    differences: list[str] = field(default_factory=list)

    @property
    def lead(self) -> float:
        """The log ratio in favour of the world in which the run took place: positive where the adversary is right."""
        return self.gaussian + self.chosen

    def add_gaussian(self, claim: Release, own: Values, other: Values, seen: Values) -> None:
        assert claim.sigma is not None
        noise, shift = (seen - own) / claim.sigma, (own - other) / claim.sigma
        self.short[claim.name] += -noise.size * np.log(SHORT) - 0.5 * float(noise @ noise) * (SHORT**-2 - 1.0)
        self.gaussian += float(noise @ shift + 0.5 * shift @ shift)
        self.divergence += 0.5 * float(shift @ shift)

    def add_choice(self, claim: Release, own: Values, other: Values, seen: int) -> None:
        assert claim.epsilon is not None
        open_ = np.isfinite(own)
        scale, place = claim.epsilon / (2.0 * claim.sensitivity), int(open_[:seen].sum())
        mine, theirs = _log_softmax(scale * own[open_]), _log_softmax(scale * other[open_])
        self.short[claim.name] += [(_log_softmax(scale / share * own[open_]) - mine)[place] for share in SHORT]
        self.chosen += float(mine[place] - theirs[place])
        self.divergence += float(np.exp(mine) @ (mine - theirs))

    def add_difference(self, what: str) -> None:
        self.differences.append(what)
        self.chosen = math.inf


def transcripts(case: Case, epsilon: float, delta: float, runs: int) -> list[Transcript]:
    """`runs` independent runs in each world."""
    config = case.config(epsilon, delta)
    federations = worlds(case.shape, case.clients, case.cap)
    return [transcript(config, federations, world) for _ in range(runs) for world in (0, 1)]


def transcript(config: RunConfig, federations: Sequence[Federation], world: int) -> Transcript:
    """One run in one world, and its replay in the other."""
    with _same_coins():
        run = finished(execute(config, federations[world]))
    with _same_coins(again=True):
        replay = execute(config, federations[1 - world], script=run.tape.draws)
    ledger = run.strategy.ledger
    assert ledger.private, f"the run is not private: {ledger.caveats}"
    left = ledger.remaining_rho * ledger.unit.factor  # of the unit; a row's is what plans reckon with
    result = Transcript(world, ledger.spent_rho, ledger.spent_rho + left)
    for what in replay.tape.problems:
        result.add_difference(what)
    for place, (one, two) in enumerate(zip(_visible(run), _visible(replay), strict=False)):
        if one != two:
            result.add_difference(f"visible item {place} differs: {one[:80]!r}")
    if len(_visible(run)) != len(_visible(replay)):
        result.add_difference("another number of messages")
    if not result.differences:
        _add_releases(result, config, run, replay)
    return result


def _add_releases(result: Transcript, config: RunConfig, run: Outcome, replay: Outcome) -> None:
    claims = {party: _Claims(run.strategy.ledger.releases) for party in run.tape.draws}
    shares: list[list[tuple[TapedRelease, TapedRelease]]] = []  # of each opened sum, one pair from each client
    for party in sorted(run.tape.draws):
        sums = 0
        for one, two in zip(run.tape.draws[party], replay.tape.draws[party], strict=True):
            if one.kind == "distributed":
                if sums == len(shares):
                    shares.append([])
                shares[sums].append((one, two))
                sums += 1
                continue
            claim = claims[party].of(one)
            if one.kind == "exponential":
                result.add_choice(claim, one.inputs[0], two.inputs[0], int(one.output))
            else:
                result.add_gaussian(claim, _flat(one.inputs), _flat(two.inputs), _flat(one.output))
    opened = _Claims(run.strategy.ledger.releases)
    for pairs in shares:
        first = pairs[0][0]
        assert len(pairs) == len(run.federation.parts), f"'{first.name}': not every client took part"
        claim = opened.of(first)
        own, other, seen = (
            np.sum([_flat(value) for value in values], axis=0)
            for values in zip(*((one.inputs, two.inputs, one.output) for one, two in pairs), strict=True)
        )
        result.add_gaussian(claim, own, other, seen / _resolution(claim, own.size, len(pairs)))


class _Claims:
    """The server's entries in the order in which a party's draws use them up."""

    def __init__(self, releases: Sequence[Release]) -> None:
        self.left: dict[tuple[str, int], list[Release]] = defaultdict(list)
        for release in releases:
            # One entry for several choices of a client; of arrays, one draw has them all.
            copies = release.count if release.mechanism == "exponential" else 1
            self.left[release.name, release.round] += [release] * copies

    def of(self, draw: TapedRelease) -> Release:
        left = self.left[draw.name, draw.round]
        assert left, f"'{draw.name}' of round {draw.round} was released, but the server's ledger does not have it"
        return left.pop(0)


def _resolution(claim: Release, length: int, clients: int) -> int:
    assert claim.sigma is not None
    plan = DistributedNoise.of(
        claim.sigma,
        sensitivity=claim.sensitivity,
        count=claim.count,
        length=length,
        asked=clients,
        fewest=clients,
        corrupted=0,
    )
    return plan.resolution


def _visible(outcome: Outcome) -> list[str]:
    """Everything that the server sees beside the ledgers' outputs, and the model.

    With `noise: server` the server is trusted with exact contributions to a sum or a store; what it does with them is
    the model.
    """
    trusted = outcome.config.aggregation.noise == "server"
    items = []
    for exchange in outcome.tape.exchanges:
        seen: list[Any] = [exchange.partition, exchange.envelope, _bytes(exchange.arrays), exchange.reply]
        if not (trusted and exchange.envelope["kind"] in ("sum", "deal")):
            seen.append(_bytes(exchange.reply_arrays))
        items.append(repr(seen))
    return [*items, repr({name: _bytes([array]) for name, array in outcome.arrays.items()})]


def _bytes(arrays: Sequence[npt.NDArray[Any]]) -> list[tuple[str, bytes]]:
    return [(f"{array.dtype}{array.shape}", array.tobytes()) for array in arrays]


def _flat(values: Any) -> Values:
    arrays = [values] if isinstance(values, np.ndarray) else values
    return np.concatenate([np.ravel(array) for array in arrays]).astype(np.float64)


def _log_softmax(logits: Values) -> Values:
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


# Coins that protect nobody -----------------------------------------------------------------------------------------

_COINS = b""


@contextmanager
def _same_coins(again: bool = False) -> Iterator[None]:
    """Draws whatever is not noise from coins that the operating system gives once for a run and its replay.

    Uniform choices of FLAIM (Random), rows that GUM makes between two exchanges: they depend on no row, so they are
    given to the adversary, and cancel in the log ratio. `OsRandom.permutation` makes no noise.
    """
    global _COINS
    if not again:
        _COINS = os.urandom(16)
    seed = int.from_bytes(_COINS, "big")
    keyed, uniform = Randomness(seed), np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Randomness, "ordinary", lambda self, *key: keyed._stream("ordinary", key))
        patch.setattr(OsRandom, "permutation", lambda self, x: uniform.permutation(x))
        yield
