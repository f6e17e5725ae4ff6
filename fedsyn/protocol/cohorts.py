"""Cohorts of a round.

They are drawn at random, or so that nobody takes part in more than m of the rounds.

`federation.max_participations: m` bounds what one client takes part in: a row pays for m rounds and not for all T.
The server draws cohorts without replacement: always from those who were asked least often so far, so that no two
clients' numbers differ by more than 1, and nobody's exceeds m. Who is asked depends on public numbers and on the run's
ordinary randomness, never on a row; who was asked counts, answered or not. Each client keeps its own count, and refuses
(`take_part`): of the rounds that it remembers, and of those that its ledger for life was charged for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, MutableMapping, Sequence, Sized
from typing import Any

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, RunError, refuse
from fedsyn.settings import FederationNode
from fedsyn.wire.requests import Request

#: Of a holder's state: the rounds in which it has taken part.
ROUNDS = "rounds"
NOBODY_LEFT = "nobody is left who may take part in another round (federation.max_participations)"


class Cohorts:
    """The cohorts of a run.

    Args:
        node: `federation` of the configuration.
        alone: whether every request goes to one client, for a result of its own.
    """

    def __init__(self, node: FederationNode, alone: bool = False) -> None:
        self.node, self.alone = node, alone
        self.asked: Counter[int] = Counter()  # rounds, by partition id

    def draw(self, everyone: Sequence[int], sampling_rate: float, source: np.random.Generator) -> tuple[int, ...]:
        """Draws a round's cohort, ascending.

        Without `max_participations` each client comes with probability `sampling_rate`, independently; a cohort below
        the minimum is drawn again, and with sampling_rate 1 nothing is drawn. With it the cohort has a fixed size; it
        is smaller, or empty, where too few clients are left that may take part in another round.

        Args:
            everyone: partition ids.
            sampling_rate: p.
            source: of the run's ordinary randomness, for this round.

        Raises:
            RunError: no cohort of at least the minimum could be drawn.
        """
        node = self.node
        if node.max_participations is None:
            every = sampling_rate >= 1.0
            return tuple(everyone) if every else sampled(everyone, sampling_rate, node.minimum_cohort, source)
        order = [everyone[i] for i in source.permutation(len(everyone))]
        order.sort(key=lambda k: self.asked[k])  # stable: by chance among those asked equally often
        left = [k for k in order if self.asked[k] < node.max_participations]
        cohort = sorted(left[: cohort_size(sampling_rate, node.minimum_cohort, len(everyone))])
        if len(cohort) < node.minimum_cohort:
            return ()
        self.asked.update(cohort)
        return tuple(cohort)

    def apart(self, cohort: Sequence[int], everyone: Sized) -> Sequence[int]:
        """Returns clients that the server's ledger counts by themselves.

        The result is empty unless a request concerns only some clients, and participations are bounded or each client
        is asked alone.
        """
        counted = self.alone or self.node.max_participations is not None
        return cohort if counted and len(cohort) < len(everyone) else ()


def sampled(
    everyone: Sequence[int], sampling_rate: float, minimum: int, source: np.random.Generator
) -> tuple[int, ...]:
    """Samples each client with probability `sampling_rate`, independently.

    A cohort with too few clients is drawn again.

    Raises:
        RunError: no cohort of at least `minimum` clients could be drawn.
    """
    for _ in range(10_000):
        cohort = tuple(k for k in everyone if source.random() < sampling_rate)
        if len(cohort) >= max(1, minimum):
            return cohort
    raise RunError(
        f"federation.sampling_rate: with {sampling_rate} and {len(everyone)} clients no cohort of at least "
        f"{minimum} clients could be drawn; raise it or lower minimum_cohort"
    )


def cohort_size(sampling_rate: float, minimum: int, clients: int) -> int:
    """Returns the number of clients in a round of fixed size.

    It is the share `sampling_rate` of all, and at least the minimum.
    """
    return max(1, minimum, math.floor(sampling_rate * clients + 1e-9))


def rounds_of_one(node: FederationNode, rounds: int) -> int:
    """Returns the most rounds that one row pays for.

    A client takes part in no more of all rounds.
    """
    return rounds if node.max_participations is None else min(node.max_participations, rounds)


def check_participations(config: RunConfig, rounds: int | None, *, once: bool, central: bool) -> None:
    """Raises ConfigError where `federation.max_participations` cannot hold.

    Args:
        config: of the run.
        rounds: T, of a mechanism whose rounds ask cohorts; None: it has no such rounds, or does not know their number.
        once: whether a client is asked for its rows once, in whatever round: any number of rounds is fine then.
        central: whether there is one holder.
    """
    node = config.federation
    most = node.max_participations
    if most is None or (once and not central):
        return
    name = config.mechanism.name
    if central or rounds is None:
        why = "has one data holder" if central else "has no fixed number of rounds that ask cohorts of clients"
        raise ConfigError(f"federation.max_participations: '{name}' {why}; leave it out")
    cohort = cohort_size(node.sampling_rate, node.minimum_cohort, node.clients)
    has = most * node.clients
    if rounds * cohort > has:
        # One client a round, the fewest, may be too many: then no rate helps.
        rate = f"federation.sampling_rate to {_shown(most / rounds)} or less (and minimum_cohort with it), "
        raise ConfigError(
            f"federation.max_participations: {rounds} rounds of {cohort} clients each need {rounds * cohort} "
            f"participations, and {node.clients} clients with at most {most} each have {has}: set "
            f"{rate if has >= rounds else ''}mechanism.rounds to {has // cohort} or less, or max_participations to "
            f"{math.ceil(rounds * cohort / node.clients)} or more"
        )


def take_part(
    request: Request, t: int, node: FederationNode, state: MutableMapping[str, Any], charged: Iterable[int] = ()
) -> None:
    """Counts a client's part in round t, in its own state.

    All requests of a round count once.

    Args:
        request: that is to be answered.
        t: its round.
        node: `federation` of the configuration.
        state: of the holder.
        charged: rounds that its ledger for life has been charged for. They are on its disk before any noise was drawn,
            so a process that was killed before it saved `state` has taken part all the same.

    Raises:
        ProtocolError: it has taken part in as many rounds as `max_participations` allows, or `t` is none. Only public
            facts are looked at, and nothing was charged.
    """
    if node.max_participations is None or not request.takes_part:
        return
    rounds = state.setdefault(ROUNDS, [])
    rounds += sorted(set(charged) - set(rounds))
    if t in rounds:
        return
    refuse(
        t < 1 or len(rounds) >= node.max_participations,
        f"this client has taken part in {len(rounds)} round(s), and federation.max_participations allows "
        f"{node.max_participations}; nothing was released",
    )
    rounds.append(t)


def _shown(share: float) -> str:
    """Returns a share, rounded down to three digits but never to 0."""
    whole = 10 ** (2 - math.floor(math.log10(share)))
    return f"{math.floor(share * whole + 1e-9) / whole:.3g}"
