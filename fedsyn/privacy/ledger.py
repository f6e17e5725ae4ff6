"""The ledger, which enters every release before its noise is drawn.

It refuses a release beyond the budget.

A ledger speaks for the row that is worst off, or for the client whose rows all are (`fedsyn.privacy.unit`). On a server
that is a row taking part in the largest number of releases; on a client, a row of that client's table. What comes in
states what ONE ROW moves; what is entered, what the unit does. Nothing here depends on a plan: totals are sums over
the entries. Where entries name the clients whose rows they can concern (`Ledger.among`), a total is the largest sum
over the entries of any one client: a row sits at one of them, and so do all rows of a client, so what the others
release costs it nothing (parallel composition; the cohorts must not depend on rows).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsyn.privacy import _noise
from fedsyn.privacy.accountant import REREADING_ROOM, Accountant, ZcdpAccountant, accountant_from_dict
from fedsyn.privacy.against import against, faced
from fedsyn.privacy.budget import PrivacyBudget, affordable, require_budget
from fedsyn.privacy.distributed import DistributedNoise
from fedsyn.privacy.release import (
    BOTH,
    CLIENTS,
    EXPONENTIAL,
    GAUSSIAN,
    SAMPLED,
    UNKNOWN_SAMPLER,
    Release,
    merged,
    of_the_worst,
)
from fedsyn.privacy.shared_choice import SelectionNoise
from fedsyn.privacy.statement import PrivacyStatement
from fedsyn.privacy.unit import ROW, Unit, unit_from_dict
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL, OsRandom, RandomSource

_FORMAT = 1


class Ledger:
    """Books releases against a budget and draws their noise.

    Args:
        budget: the promised (ε, δ).
        accountant: how costs add up; the zCDP filter with the whole budget when omitted.
        statement: the mechanism's privacy statement.
        assumptions: what the guarantee rests on, by name, for ledger.json ("client_sizes": "public", ...).
        noise_by: name of the party that keeps this ledger and draws its noise ("server", "client", ...).
        record: called with each release once it is found affordable, before it is entered and before its noise is
            drawn: whoever keeps an account over runs writes it down, or raises BudgetExceeded and nothing happens.
        unit: whose presence the budget hides.

    Raises:
        ValueError: if the accountant's capacity would exceed the budget.
    """

    def __init__(
        self,
        budget: PrivacyBudget,
        accountant: Accountant | None = None,
        statement: PrivacyStatement | None = None,
        *,
        assumptions: Mapping[str, str | bool | int | float] | None = None,
        noise_by: str = "self",
        record: Callable[[Release], None] | None = None,
        unit: Unit = ROW,
    ) -> None:
        self.budget = budget
        self.unit = unit
        self.accountant: Accountant = ZcdpAccountant.of(budget) if accountant is None else accountant
        self.statement = statement
        self.assumptions = dict(assumptions or {})
        self.noise_by = noise_by
        self._record = record
        self._releases: list[Release] = []
        self._costs: list[float] = []
        self._caveats: list[str] = []
        self._among: tuple[int, ...] = ()
        self._kept_back = 0.0
        full = self.accountant.capacity * (1.0 + REREADING_ROOM)
        if self.accountant.epsilon(full, budget.delta) > budget.epsilon:
            raise ValueError("the accountant's capacity exceeds the budget")

    # ------------------------------------------------------------------ totals, all from the entries

    @property
    def releases(self) -> tuple[Release, ...]:
        return tuple(self._releases)

    @property
    def spent(self) -> float:
        """The costs of the client that pays most, in the accountant's unit."""
        return of_the_worst(self._releases, self._costs)

    @property
    def remaining(self) -> float:
        """The budget neither spent nor kept back, in the accountant's unit."""
        return max(0.0, self._free - self.spent)

    @property
    def _free(self) -> float:
        """The capacity that may be spent now."""
        return self.accountant.capacity - self._kept_back

    def keep_back(self, share: float) -> None:
        """Keeps a share of the budget back; 0 frees all of it.

        What comes after a mechanism is paid from it: plans divide `remaining_rho`, which does not hold it.
        """
        if not 0.0 <= share < 1.0:
            raise ValueError("the share that is kept back must be at least 0 and below 1")
        self._kept_back = share * self.accountant.capacity

    @property
    def spent_rho(self) -> float:
        """The rho of the client that pays most, whatever the accountant."""
        return of_the_worst(self._releases, [release.rho for release in self._releases])

    @property
    def remaining_rho(self) -> float:
        """The rho that one row has left (mu² = 2 rho).

        A unit of c rows pays c² times as much, so plans that reckon with sensitivities to one row hold for it, too.
        """
        return self.remaining / self.accountant.per_rho / self.unit.factor

    def epsilon(self, delta: float | None = None) -> float:
        """Returns the ε of the entries, at `delta` or the budget's."""
        return self.accountant.epsilon(self.spent, self.budget.delta if delta is None else delta)

    @property
    def epsilon_replace_one(self) -> float:
        """The ε of the entries where a row is exchanged for another."""
        pairs = zip(self._releases, self._costs, strict=True)
        exchanged = of_the_worst(self._releases, [self.accountant.exchanged(r, cost) for r, cost in pairs])
        return self.accountant.epsilon_replaced(self.spent, exchanged, self.budget.delta)

    def epsilon_faced(self, known: int, alone: bool = False) -> float:
        """Returns the ε for holders who pool shares (`fedsyn.privacy.against`).

        Args:
            known: holders whose shares are known, none of them the one whose row is at stake.
            alone: whether that one's vector can be read by itself.
        """
        costs = [self.accountant.cost(faced(release, known, alone)) for release in self._releases]
        return self.accountant.epsilon(of_the_worst(self._releases, costs), self.budget.delta)

    def _against(self) -> dict[str, Any]:
        """Returns who faces which epsilon, for ledger.json.

        It is empty if the number of holders is unknown. The entries are the record of what was spent, and this is a
        reading of them: where it fails, the record stands.
        """
        holders, reads = (self.assumptions.get(name) for name in ("holders", "server_reads"))
        if not isinstance(holders, int):
            return {}
        shares = [*dict.fromkeys(r.shares for r in self._releases if r.shares is not None)]
        try:
            return {"against": against(self.epsilon_faced, shares, holders, reads)}  # type: ignore[arg-type]
        except Exception as error:
            return {"against_unknown": f"{type(error).__name__}: {error}"}

    def can_afford(self, *releases: Release) -> bool:
        """Returns whether all of these together would be accepted now.

        Each states what one row moves and pays.
        """
        releases = tuple(map(self.unit.entered, releases))
        costs = [self.accountant.cost(release) for release in releases]
        return affordable(self._with(releases, costs), self._free)

    def _with(self, releases: Sequence[Release], costs: Sequence[float]) -> float:
        """Returns what would be spent if these were entered, too."""
        return of_the_worst([*self._releases, *releases], [*self._costs, *costs])

    @contextmanager
    def among(self, clients: Sequence[int]) -> Iterator[None]:
        """Limits the charges within it to the rows of these clients.

        If none is named, charges concern everybody. Callers must choose the clients without looking at rows, and name
        all that were asked, answered or not.
        """
        before, self._among = self._among, tuple(sorted(int(k) for k in clients))
        try:
            yield
        finally:
            self._among = before

    # ------------------------------------------------------------------------------------- entries

    def charge(self, release: Release) -> None:
        """Enters a release, which states what one row moves and pays.

        The entry is for the ledger's unit.

        Raises:
            BudgetExceeded: if the sum would exceed the budget; nothing is entered then.
            ValueError: if the accountant does not cover this kind of release.
        """
        # What one row moves becomes what the unit moves; inside `among`, the entry names whose rows it concerns.
        release = self.unit.entered(release)
        release = replace(release, clients=self._among) if self._among else release
        cost = self.accountant.cost(release)
        # The filter: all entries and this one, for the client that they cost most.
        require_budget(
            affordable(self._with([release], [cost]), self._free),
            lambda: (
                f"release '{release.name}' of round {release.round} costs {cost:.6g} {self.accountant.unit}, but "
                f"only {self.remaining:.6g} of {self.accountant.capacity:.6g} is left for {self.budget}"
            ),
        )
        # An account over runs has the release on its disk, or refuses it, before it is entered here and noise is drawn.
        if self._record is not None:
            self._record(release)
        self._releases.append(release)
        self._costs.append(cost)

    def reenter(self, releases: Iterable[Release]) -> None:
        """Enters what an earlier process of the run charged, unchanged.

        It is not recorded again.

        Raises:
            BudgetExceeded: they exceed the budget.
        """
        before = list(releases)
        costs = [self.accountant.cost(release) for release in before]
        # Costs are positive: where their sum is affordable, so was every part of it.
        require_budget(
            affordable(self._with(before, costs), self.accountant.capacity, REREADING_ROOM),
            lambda: f"what was charged before is more than {self.budget} allows",
        )
        self._releases += before
        self._costs += costs

    def promise(self, release: Release) -> None:
        """Charges a release whose noise ANOTHER party draws, `release.noise_by`.

        A client calls it before it sends an exact vector into a sum that the server (or a committee)
        perturbs. Its rows are protected only as far as that party keeps the promise; the report says so.

        Raises:
            BudgetExceeded: as `charge`.
            ValueError: if `noise_by` names nobody else.
        """
        if release.noise_by in ("", "self", self.noise_by):
            raise ValueError("a promised release must name the other party that draws its noise")
        if release.sampler == UNKNOWN_SAMPLER:
            release = replace(release, sampler=f"drawn by {release.noise_by}, not seen here")
        self.charge(release)

    def gaussian(
        self, values: Sequence[NDArray[Any]], entry: Release, source: RandomSource
    ) -> list[NDArray[np.float64]]:
        """Charges an entry, then adds N(0, sigma²) to every value.

        Args:
            values: arrays each of which one row changes by at most the entry's `sensitivity` in L2 norm. Pass counts
                as integers: their noisy values then carry no trace in the low-order bits (fedsyn.privacy._noise).
            entry: what is charged and drawn: name, round, sigma in records. Its `count` is the largest number of these
                arrays that one row has a part in; a smaller one than all of them needs an `argument`.
            source: of the noise, from `Randomness.generator`.

        Returns:
            New float64 arrays, one for each that was given, in its shape.

        Raises:
            BudgetExceeded: before anything is drawn.
            ValueError: for non-finite values, no arrays, or a `count` that is not argued.
        """
        if isinstance(values, np.ndarray) or not values:
            raise ValueError("there is nothing to release: expected a list of one array or more")
        # Everything that could fail is looked at before the charge: after it, only noise is drawn.
        arrays = [np.asarray(array) for array in values]
        if any(array.dtype.kind not in "iubf" for array in arrays):
            raise ValueError("values to release must be real numbers")
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays):
            raise ValueError("values to release must be finite")  # noise would not hide an infinity
        if entry.count < len(arrays) and not entry.argument.strip():
            raise ValueError(f"a row counted in {entry.count} of {len(arrays)} released arrays needs an argument why")
        release = self._drawn_here(entry, GAUSSIAN, source)
        assert release.sigma is not None
        self.charge(release)
        return [_noise.gaussian(array, release.sigma, source) for array in arrays]

    def sampled_gaussian(
        self, total: Callable[[NDArray[np.int64]], NDArray[np.int64]], rows: int, entry: Release, source: RandomSource
    ) -> NDArray[np.float64]:
        """Charges a step of DP-SGD, then takes it.

        It takes a secret Poisson sample of the rows, and adds N(0, sigma²) to their sum.

        Args:
            total: gives the exact sum over some rows, by their indices: (L,) integers, so that no rounding depends on
                which other rows are there. One row's part has an L2 norm of at most the entry's `sensitivity`.
            rows: n, of which each is taken with the entry's `rate`, independently.
            entry: what is charged and drawn; sigma in the unit of the sum.
            source: of the sample and of the noise, from `Randomness.generator`.

        Returns:
            (L,) float64.

        Raises:
            BudgetExceeded: before anything is drawn.
            ValueError: for a sum that is not of integers.
        """
        release = self._drawn_here(entry, SAMPLED, source)
        assert release.sigma is not None and release.rate is not None
        self.charge(release)
        values = total(_noise.poisson_sample(rows, release.rate, source))
        if values.dtype.kind not in "iu":
            raise ValueError("the sum over a sample must be of integers")
        return _noise.gaussian(values, release.sigma, source)

    def distributed(
        self,
        values: NDArray[np.int64],
        noise: DistributedNoise,
        entry: Release,
        source: RandomSource,
        *,
        takes_part: bool = True,
    ) -> NDArray[np.int64]:
        """Charges, then returns a client's noisy part of a sum.

        The part is scaled, and the client's share of the noise added. The charge is that of the opened sum, which is
        what the client's rows are seen through; with local noise it is that of the vector itself.

        Args:
            values: (L,) integers, the concatenated arrays of the sum.
            noise: the plan of the sum.
            entry: of the sum, at the sigma that it is charged with, which is at most that of the plan. Its `count` is
                the largest number of arrays that one row of this client touches.
            source: of the share, from `Randomness.generator`.
            takes_part: whether any of its rows may be in the sum. If not nothing is charged, but its share is part of
                the noise that the sum relies on, and drawn all the same.

        Returns:
            (L,) int64: `noise.resolution * values` plus the share.

        Raises:
            BudgetExceeded: before anything is drawn.
            ValueError: for values that are no integers or have the wrong length, or values of one that takes no part,
                or a sigma that the plan does not give; and, when the charge is entered, for values that could overflow.
        """
        if values.dtype.kind not in "iu" or values.shape != (noise.length,):
            raise ValueError(f"a part of this sum is a vector of {noise.length} integers")
        # The entry may name less noise than the shares make, never more.
        if entry.sigma is None or entry.sigma > noise.sigma:
            raise ValueError("a sum cannot be charged with more noise than its shares add up to")
        if not takes_part and values.any():
            raise ValueError("values that depend on rows need a count of at least 1")
        if takes_part:
            by = self.noise_by if noise.is_local else noise.noise_by
            self.charge(replace(self._drawn_here(entry, GAUSSIAN, source), noise_by=by, extra=noise.extra_rho))
        # After the charge: whether it fits is a fact about the values. Who can pay for a sigma has values that do.
        _check_room(values, noise)
        return _noise.discrete(noise.resolution * values.astype(np.int64, copy=False), noise.share, source)

    def exponential(self, scores: NDArray[np.float64] | Sequence[float], entry: Release, source: RandomSource) -> int:
        """Charges, then chooses by the exponential mechanism.

        Index i has probability ∝ `exp(epsilon scores[i] / (2 sensitivity))`.

        Args:
            scores: (n,); -inf marks a candidate that cannot be chosen. Which ones are eligible must follow
                from public or already released facts: the mark is not protected.
            entry: what is charged and drawn. Its `sensitivity` is the largest change of any score when one row is added
                or removed; its `count`, how often this row's data is used for such a choice, is 1 for this one call.
            source: of the noise, from `Randomness.generator`.

        Raises:
            BudgetExceeded: before anything is drawn.
            ValueError: for NaN or +inf scores, or when no candidate is eligible.
        """
        checked = np.asarray(scores, dtype=np.float64)
        if checked.ndim != 1 or checked.size == 0:
            raise ValueError("scores must be a non-empty vector")
        if np.isnan(checked).any() or np.isposinf(checked).any():
            raise ValueError("scores must be finite, or -inf for a candidate that cannot be chosen")
        if np.isneginf(checked).all():
            raise ValueError("no candidate is eligible")
        release = self._drawn_here(entry, EXPONENTIAL, source)
        assert release.epsilon is not None
        self.charge(release)
        return _noise.exponential(checked, release.epsilon, release.sensitivity, source)

    def selection_share(
        self, scores: NDArray[np.int64], noise: SelectionNoise, entry: Release, source: RandomSource, *, draws: bool
    ) -> NDArray[np.int64]:
        """Charges a joint choice, then adds this party's share of its noise.

        Several parties make the choice together.

        Args:
            scores: (m,) integers, to which the share is added; zeros where nobody may see scores.
            noise: the plan.
            entry: of the choice, with the plan's epsilon; it names who draws the shares. Its `sensitivity` is the most
                that one row moves a score, in the unit that the ledger names.
            source: of the share, from `Randomness.generator`.
            draws: whether this party is one of those that draw; the others add nothing.

        Returns:
            (m,) int64 scores with this party's share.

        Raises:
            BudgetExceeded: before anything is drawn.
            ValueError: for an entry that is not of this choice.
        """
        if entry.epsilon != noise.epsilon:
            raise ValueError("a choice is charged with the epsilon that its noise is drawn for")
        self.charge(replace(entry, sampler=sampler_of(source)))
        return scores + _noise.gumbel_steps(len(scores), noise.scale, source) if draws else scores.copy()

    def _drawn_here(self, entry: Release, mechanism: str, source: RandomSource) -> Release:
        """Returns an entry as it stands where its noise is drawn.

        It raises ValueError for another kind of release.
        """
        if entry.mechanism != mechanism:
            raise ValueError(f"expected a {mechanism} release, got a {entry.mechanism} one")
        return replace(entry, noise_by=self.noise_by, sampler=sampler_of(source))

    def once_more(
        self, total: NDArray[np.int64], noise: DistributedNoise, entry: Release, source: RandomSource
    ) -> NDArray[np.int64]:
        """Charges, then adds a sum's whole noise to a total.

        The total may have shares of the noise already.

        Args:
            total: (L,) in units of 1/`noise.resolution`, modulo 2^64; it may wrap around, and so may the result.
            noise: the plan of the sum; its `whole` is drawn.
            entry: of the sum.
            source: from `Randomness.generator`.

        Raises:
            BudgetExceeded: before anything is drawn.
        """
        if total.shape != (noise.length,) or total.dtype != np.int64:
            raise ValueError(f"a total of this sum is a vector of {noise.length} integers")
        self.charge(replace(entry, noise_by=BOTH, sampler=sampler_of(source)))
        return _noise.discrete(total, noise.whole().share, source)

    def pool(self, length: int, share: float, promised: Release, source: RandomSource) -> NDArray[np.int64]:
        """Draws shares of noise that will be opened later, (length,).

        They are this holder's part of what a promise relies on. Nothing is charged: the promise covers every opening.
        It is entered once, its shares are drawn once, and the entry names their sampler from then on.

        Raises:
            ValueError: this ledger has no such promise of the clients' noise, or its shares were drawn.
        """
        facts = (promised.name, promised.round, promised.sigma, promised.noise_by)
        for place, entry in enumerate(self._releases):
            if (entry.name, entry.round, entry.sigma, entry.noise_by) == facts and entry.noise_by == CLIENTS:
                if entry.sampler != f"drawn by {CLIENTS}, not seen here":
                    break
                self._releases[place] = replace(entry, sampler=sampler_of(source))
                return _noise.discrete(np.zeros(length, np.int64), share, source)
        raise ValueError("noise for later openings needs one promise of them, and is drawn once")

    # --------------------------------------------------------------------------------- state and report

    def not_private(self, reason: str) -> None:
        """Records that the run as a whole is not private.

        A baseline that reads exact data is an example.
        """
        if reason not in self._caveats:
            self._caveats.append(reason)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why the result is not private; empty when it is."""
        seeded = [SEEDED_LABEL] if any(r.sampler == SEEDED_LABEL for r in self._releases) else []
        return tuple(dict.fromkeys([*seeded, *self._caveats]))

    @property
    def private(self) -> bool:
        return not self.caveats

    def to_dict(self, *, compact: bool = False) -> dict[str, Any]:
        """Returns the state as JSON values, for `from_dict`.

        A client keeps it between two messages.

        Args:
            compact: merge entries that differ only in their round. Totals do not change.
        """
        entries = merged(self._releases) if compact else self._releases
        return {
            "format": _FORMAT,
            "budget": self.budget.to_dict(),
            "accountant": self.accountant.to_dict(),
            "noise_by": self.noise_by,
            "assumptions": dict(self.assumptions),
            "caveats": list(self._caveats),
            "statement": None if self.statement is None else self.statement.to_dict(),
            **self.unit.to_dict(),
            **({"kept_back": self._kept_back / self.accountant.capacity} if self._kept_back else {}),
            "releases": [release.to_dict() for release in entries],
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Ledger:
        """Rebuilds a ledger.

        Every cost is computed anew from the entries and charged again. What a ledger accepted, its state is accepted
        with (`REREADING_ROOM`). New releases get no more room by that.

        Raises:
            BudgetExceeded: if the entries exceed the budget: the state was tampered with or belongs to
                another budget.
            ValueError: for an unknown format.
        """
        if state.get("format") != _FORMAT:
            raise ValueError(f"unknown ledger format; this version reads {_FORMAT}")
        budget = PrivacyBudget(state["budget"]["epsilon"], state["budget"]["delta"])
        statement = state.get("statement")
        ledger = cls(
            budget,
            accountant_from_dict(state["accountant"]),
            None if statement is None else PrivacyStatement.from_dict(statement),
            assumptions=state["assumptions"],
            noise_by=state["noise_by"],
            unit=unit_from_dict(state),
        )
        for reason in state["caveats"]:
            ledger.not_private(reason)
        ledger.reenter(map(Release.from_dict, state["releases"]))
        ledger.keep_back(float(state.get("kept_back", 0.0)))
        return ledger

    def report(self) -> dict[str, Any]:
        """Returns the contents of ledger.json.

        They are the statement, every release, totals, and whether the result is private.
        """
        samplers = sorted({release.sampler for release in self._releases})
        others = sorted({r.noise_by for r in self._releases} - {self.noise_by})
        return {
            "statement": None if self.statement is None else self.statement.to_dict(),
            "unit": self.unit.text if self.statement is None else self.statement.unit,
            **self.unit.to_dict(),
            "adjacency": self.unit.adjacency(
                "public" if self.assumptions.get("client_sizes") == "public" else "private"
            ),
            "private": self.private,
            "not_private_because": list(self.caveats),
            "sampler": samplers,
            "kept_by": self.noise_by,
            "noise_by": sorted({r.noise_by for r in self._releases}),
            "noise_promised_by": others,
            "assumptions": dict(self.assumptions),
            "accountant": self.accountant.name,
            "accountant_unit": self.accountant.unit,
            "budget": self.budget.to_dict(),
            "capacity": self.accountant.capacity,
            "spent": self.spent,
            "remaining": self.remaining,
            "rho": self.spent_rho,
            "epsilon": self.epsilon(),
            "epsilon_replace_one": self.epsilon_replace_one,
            "delta": self.budget.delta,
            **self._against(),
            "releases": [release.to_dict() for release in self._releases],
        }


def sampler_of(source: object) -> str:
    """Returns the sampler that a release is entered with.

    Anything but the operating system counts as seeded.
    """
    return OS_LABEL if isinstance(source, OsRandom) else SEEDED_LABEL


def _check_room(values: NDArray[Any], noise: DistributedNoise) -> None:
    largest = max(int(values.max()), -int(values.min()))  # Python integers: -2^63 has no absolute value in 64 bits
    # No share reaches 64 s: each of its at most 8 tables ends below 16.4 of its own standard deviations.
    if noise.resolution * largest + 64 * math.ceil(noise.share) >= 2**63:
        raise ValueError("a scaled value and its share of the noise do not fit into 64 bits")
