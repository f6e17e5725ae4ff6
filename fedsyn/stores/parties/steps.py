"""A party's half of one run, in any role.

It has steps, of which none follows an error, and one way to charge.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from fedsyn.errors import FedsynError, RunError
from fedsyn.ledgers.party_ledger import called, facts_of
from fedsyn.privacy import EXPONENTIAL, Ledger, Release, SelectionNoise
from fedsyn.stores.parties.checks import Host, Orders
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, PartyCost, PartyOrder, sealed_for

_log = logging.getLogger("fedsyn.party")


class PartyRun:
    """A run, as a party keeps it, in memory alone.

    Args:
        run: id.
        announcement: of the run.
        contract: of its mechanism.
        ledger: of this run at this party.
    """

    def __init__(self, run: bytes, announcement: Announcement, contract: Any, ledger: Ledger) -> None:
        self.id, self.announcement, self.config, self.ledger = run, announcement, announcement.config, ledger
        self.agreed = sealed_for(run, announcement.config, announcement.domain, announcement.cliques)
        self.ordered = Orders(contract, announcement.config)
        self.least_sigma = least_sigma(contract, announcement.rho)


def least_sigma(contract: Any, rho: float) -> float | None:
    """Returns the plan's least noise on any opened marginal.

    None means that the plan does not fix it.
    """
    opened = [step for step in contract.plan(rho, math.inf) if step.request.kind == "open"]
    return None if any(step.first_rho < step.rho for step in opened) else min((s.sigma for s in opened), default=None)


S = TypeVar("S", bound=PartyRun)
H = TypeVar("H", bound="RunHalf[Any]")
P = ParamSpec("P")
T = TypeVar("T")


class RunHalf(ABC, Generic[S]):
    """A party's half of one run.

    A server can call its steps.

    Args:
        host: what it is, whatever the run.
        index: of the party, for its noise.
    """

    def __init__(self, host: Host, index: int) -> None:
        self.host, self.index = host, index
        self.over: str | None = None  # why, once it is
        self.cpu = 0.0  # processor seconds of all steps
        self._begun: S | None = None

    @property
    @abstractmethod
    def cost(self) -> PartyCost:
        """Returns what the party has spent so far in this run."""

    def stop(self, reason: str) -> None:
        """Ends the run: what it kept in memory is gone.

        Later calls change nothing.
        """
        if self.over is not None:
            return
        self.over, run, self._begun = reason, self._begun, None
        if run is not None and self.host.book is not None:
            with contextlib.suppress(FedsynError):  # a ledger that cannot be written: its next reader ends the run
                self.host.book.end(run.id.hex())

    def _enter(self, run: S) -> None:
        """Begins the run in the party's ledger for life.

        What is in it gets its end from here on.
        """
        book, config, rho = self.host.book, run.config, run.announcement.rho
        if book is not None:
            book.begin(run.id.hex(), rho, **facts_of(config))
            name = called(run.id.hex(), config.runtime.run)
            _log.info("run %s begins: %s, up to %.4g rho", name, config.mechanism.name, rho)
        self._begun = run

    def _charge(self, run: S, order: PartyOrder, entry: Release) -> None:
        """Charges the party's ledger for life, on the disk at return.

        The run's own ledger must have room for the entry.

        Nothing was drawn yet. The run's ledger charges where it draws.
        """
        book = self.host.book
        if not run.ledger.can_afford(entry):
            run.ledger.charge(entry)  # raises, in the ledger's own words
        if book is not None:
            book.require_left(entry.rho)
        self._agree(run, order)
        if book is not None:
            book.charge(run.id.hex(), entry.rho, name=order.name, round=order.round, number=order.number)

    def _share_of_choice(
        self, run: S, order: ChooseOrder, noise: SelectionNoise, *, draws: bool, noise_by: str
    ) -> npt.NDArray[np.int64]:
        """Charges a choice, then draws this party's share of its noise.

        Zeros if it draws none.
        """
        moved, epsilon = order.terms.sensitivity, noise.epsilon
        entry = Release(order.name, order.round, EXPONENTIAL, moved, epsilon=epsilon, noise_by=noise_by)
        self._charge(run, order, entry)
        zeros = np.zeros(len(order.terms.cliques), np.int64)
        return run.ledger.selection_share(zeros, noise, entry, self._source(order), draws=draws)

    def _agree(self, run: S, order: PartyOrder) -> None:
        """Compares an order with the other parties, before it is charged.

        Where there are any.
        """

    def _source(self, order: PartyOrder) -> Any:
        return self.host.randomness.generator("party", self.index, order.round, order.name, order.number)


def step(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Makes a method a step of a run.

    After an error the run is over, and only sentences of our own leave.
    """

    @functools.wraps(method)
    def stepped(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.over is not None:
            raise RunError(f"the run is over at this party: {self.over}")
        started = time.thread_time()
        try:
            return method(self, *args, **kwargs)
        except FedsynError as error:
            self.stop(str(error))
            raise
        except Exception as error:
            self.stop("an internal error")
            raise RunError(f"an internal error ({type(error).__name__})") from error
        finally:
            self.cpu += time.thread_time() - started

    return stepped


def steps_of(half: type[RunHalf[Any]]) -> dict[str, Callable[..., Any]]:
    """Returns the steps that a server can call, by name."""
    return {name: method for name, method in vars(half).items() if hasattr(method, "__wrapped__")}


@functools.lru_cache(maxsize=64)
def types_of(step: Callable[..., Any]) -> tuple[Any, Any]:
    """Returns the types of a step's arguments and results.

    The results are the step's own and what the party spent.
    """
    hints = get_type_hints(step)
    answer = hints.pop("return"), PartyCost
    return tuple.__class_getitem__(tuple(hints.values())), tuple.__class_getitem__(answer)
