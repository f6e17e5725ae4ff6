"""Release: one entry of the ledger, and what it costs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from fedsyn.privacy.budget import exponential_rho, gaussian_rho, positive

GAUSSIAN = "gaussian"
EXPONENTIAL = "exponential"
SAMPLED = "sampled gaussian"
UNKNOWN_SAMPLER = "unknown"
#: Who draws noise that is made of shares, as a ledger names them.
CLIENTS = "the clients, a share each"
PARTIES = "the three parties, a share each"
ROLES = "server and crypto party, a share each"
BOTH = "the clients, a share each, and the crypto party, the whole once more"
#: How much farther a release moves when a row is exchanged for another than when one is added: twice, in general.
TWICE = 2.0
#: Where every row adds a non-negative vector of norm S: two of them are at most sqrt(2) S apart.
COUNTS = math.sqrt(2.0)


class Shares(NamedTuple):
    """Clients' shares that make the noise of a sum.

    Attributes:
        asked: n, clients that are asked.
        fewest: m, contributors below which the sum is not opened.
        honest: H, shares that together are the noise that is charged for.
    """

    asked: int
    fewest: int
    honest: int

    @property
    def tolerated(self) -> int:
        """Most clients that may pool their shares.

        If one share is the whole noise, all others may.
        """
        return self.asked - 1 if self.honest == 1 else self.fewest - self.honest


@dataclass(frozen=True)
class Release:
    """One entry: `count` releases of one kind.

    One row takes part in all of them. What is charged states what one ROW moves; the entry of a ledger, what its unit
    does (`fedsyn.privacy.unit`).

    Attributes:
        name: the request, as the mechanism calls it ("measure", "select", ...).
        round: t; 0 before the first round.
        mechanism: "gaussian", "exponential", or "sampled gaussian": a step of DP-SGD (`fedsyn.privacy.renyi`).
        sensitivity: L2 sensitivity of the vector (gaussian) or of the largest score (exponential) to one row.
        sigma: standard deviation in records (not of a choice).
        rate: probability with which a step takes a row (sampled gaussian only).
        epsilon: parameter of the exponential mechanism (exponential only).
        count: the largest number of such releases that ONE row takes part in. Releases that a row has no part
            in (other clients' choices, marginals its client did not send) cost it nothing: parallel
            composition.
        noise_by: who draws the noise and so has to be trusted to draw it.
        sampler: where the noise comes from, as far as the keeper of the ledger knows.
        argument: why `count` is smaller than the number of released vectors; empty when it is not.
        extra: rho beyond that of the Gaussian mechanism, once for the whole entry (`DistributedNoise.extra_rho`).
        replaced: how much farther a release moves when a row is exchanged for another one than when one is added or
            removed: 2 in general, sqrt(2) for counts, 0 for row counts.
        clients: on a server's ledger, partition ids of those whose rows alone the release can concern; empty:
            anybody's. Which they are must not depend on rows.
        shares: on a server's ledger, of noise that the clients of a sum draw together; None: of every other noise.
        until: last round of an entry that stands for several rounds (`Ledger.to_dict(compact=True)`).
    """

    name: str
    round: int
    mechanism: str
    sensitivity: float = 1.0
    sigma: float | None = None
    epsilon: float | None = None
    count: int = 1
    noise_by: str = "self"
    sampler: str = UNKNOWN_SAMPLER
    argument: str = ""
    until: int | None = None
    extra: float = 0.0
    replaced: float = TWICE
    rate: float | None = None
    clients: tuple[int, ...] = ()
    shares: Shares | None = None

    def __post_init__(self) -> None:
        positive("sensitivity", self.sensitivity)
        if self.count < 1 or self.count != int(self.count):
            raise ValueError("count must be an integer of at least 1")
        if not 0.0 <= self.replaced <= TWICE:
            raise ValueError("replaced must lie between 0 and 2: exchanging a row is removing one and adding one")
        for name in ("round", "count"):  # NumPy integers would not survive JSON
            object.__setattr__(self, name, int(getattr(self, name)))
        if (self.rate is not None) != (self.mechanism == SAMPLED):
            raise ValueError("a rate belongs to a sampled gaussian release, and to no other")
        if self.rate is not None and not 0.0 < self.rate <= 1.0:
            raise ValueError("rate must be above 0 and at most 1")
        if self.mechanism in (GAUSSIAN, SAMPLED) and self.sigma is not None and self.epsilon is None:
            positive("sigma", self.sigma)
        elif self.mechanism == EXPONENTIAL and self.epsilon is not None and self.sigma is None:
            positive("epsilon", self.epsilon)
        else:
            raise ValueError("a release is 'gaussian' (or sampled) with a sigma or 'exponential' with an epsilon")
        if not 0.0 <= self.extra < math.inf or (self.extra and self.mechanism != GAUSSIAN):
            raise ValueError("extra must be at least 0 and finite, and belongs to a gaussian release")

    @cached_property
    def rho(self) -> float:
        """zCDP of the entry.

        It is `count Δ² / (2 sigma²) + extra` or `count epsilon² / 8`. Of a sampled gaussian release it is that of the
        same release over all rows: sampling only mixes it with one that the row has no part in, and divergences are
        convex. How much less it costs is for an accountant to say.
        """
        if self.sigma is not None:
            return self.count * gaussian_rho(self.sigma, self.sensitivity) + self.extra
        return self.count * exponential_rho(positive("epsilon", self.epsilon))

    @property
    def mu2(self) -> float | None:
        """Gaussian DP of the entry, squared; None for the exponential mechanism.

        It is `count Δ² / sigma² + 2 extra`. Step 4 in fedsyn.privacy.distributed shows that `2 extra` covers what
        `extra` stands for.
        """
        return None if self.sigma is None else 2.0 * self.rho

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values; what is unset is left out.

        `rho` is for the reader: `from_dict` computes it anew.
        """
        entry: dict[str, Any] = {f.name: getattr(self, f.name) or None for f in fields(self)}
        entry |= {
            "round": self.round,
            "replaced": self.replaced,
            "rho": self.rho,
            "clients": list(self.clients) or None,
        }
        if self.shares is not None:
            entry["shares"] = self.shares._asdict()
        return {key: value for key, value in entry.items() if value is not None}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Release:
        known = {key: value for key, value in entry.items() if key not in ("rho", "cliques")}  # once for the reader
        if "clients" in known:
            known["clients"] = tuple(known["clients"])
        if "shares" in known:
            known["shares"] = Shares(**{name: int(known["shares"][name]) for name in Shares._fields})
        return _read(**known)


@lru_cache(maxsize=256, typed=True)  # clients of a simulation that share a process have entered the same ones
def _read(**known: Any) -> Release:
    return Release(**known)


#: What merged entries have in common.
_alike = attrgetter(*(f.name for f in fields(Release) if f.name not in ("round", "until", "count", "extra")))


def merged(releases: Sequence[Release]) -> list[Release]:
    """Merges entries that differ only in round, count and extra.

    The merged entry has the sums of the counts and of the extras.
    """
    groups: dict[tuple[object, ...], list[Release]] = {}
    for release in releases:
        groups.setdefault(_alike(release), []).append(release)
    result = []
    for members in groups.values():
        if len(members) == 1:  # a client's, between two of its messages
            result.append(members[0])
            continue
        first = min(r.round for r in members)
        last = max(r.round if r.until is None else r.until for r in members)
        count = sum(r.count for r in members)
        extra = math.fsum(r.extra for r in members)
        until = None if last == first else last
        result.append(replace(members[0], round=first, until=until, count=count, extra=extra))
    return result


def of_the_worst(releases: Sequence[Release], values: Sequence[float]) -> float:
    """Returns the largest sum of values that can concern one client's rows.

    Each release has a value.
    """
    # An entry without clients costs everybody; one with clients costs each of those, in parallel.
    shared, by_client = [], defaultdict[int, list[float]](list)
    for release, value in zip(releases, values, strict=True):
        for client in release.clients:
            by_client[client].append(value)
        if not release.clients:
            shared.append(value)
    return max((math.fsum([*shared, *costs]) for costs in by_client.values()), default=math.fsum(shared))
