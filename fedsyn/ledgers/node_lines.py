"""Meaning of the lines of a holder's ledger.

`node_ledger` writes them, `fedsyn ledger` shows them.

    open      first line: an id of this ledger
    begin     a run: what it is, whom it protects, and the budget that it asked for
    charge    one release, before its noise is drawn: rho, and the whole `Release`
    again     a charge whose reply did not leave pays for the same request's next attempt
    answered  an attempt's reply was kept and may leave from now on
    end       a run keeps nothing from others any more
    torn      what a torn line counts as

An *attempt* is one process' way from a request to its reply; its name is random. A charge belongs to the attempt that
made it, or took it over last (`again`). Before `answered` nothing leaves, and `answered` is refused to an attempt that
lost a charge to a later one, so of all attempts that share a charge the reply of one leaves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, NodeError
from fedsyn.ledgers.chain import TORN, LedgerLines, legible
from fedsyn.ledgers.limits import Cost, Kind, counted, order_of, require_joined, rho_of, total
from fedsyn.output import counted as in_words
from fedsyn.privacy import GAUSSIAN, PrivacyBudget, Release
from fedsyn.privacy.unit import ROW, Unit, unit_from_dict
from fedsyn.registry import client_class

#: Room for a rho that another version of fedsyn computed.
_SAME = 1e-9
_NAMES = ("configuration", "schema", "mechanism", "accountant")


@dataclass(frozen=True)
class LedgerRun:
    """A run, as its holder's ledger names it.

    All of it is public.

    Attributes:
        configuration: `RunConfig.sha256`.
        schema: hash of the schema.
        mechanism: name.
        accountant: 'gaussian', 'zcdp', or 'renyi' and an order (`Contract.accountant`, `order_of`).
        budget: what the run may spend here.
        client_sizes: 'private', or 'public': then rows can only be exchanged (`epsilon_replace_one` in ledger.json).
        unit: whose presence the run hides; its entries are what that one pays.
    """

    configuration: str
    schema: str
    mechanism: str
    accountant: str
    budget: PrivacyBudget
    client_sizes: str = "private"
    unit: Unit = ROW

    def to_dict(self) -> dict[str, Any]:
        names = {name: getattr(self, name) for name in _NAMES}
        whom = {"unit": self.unit.text, "adjacency": self.unit.adjacency(self.client_sizes), **self.unit.to_dict()}
        return {**names, **self.budget.to_dict(), "client_sizes": self.client_sizes, **whom}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> LedgerRun:
        budget = PrivacyBudget(entry["epsilon"], entry["delta"])
        configuration, schema, mechanism, accountant = (str(entry[name]) for name in _NAMES)
        sizes, unit = str(entry["client_sizes"]), unit_from_dict(entry)
        return cls(configuration, schema, mechanism, accountant, budget, sizes, unit)

    @classmethod
    def of(cls, config: RunConfig, configuration: str, schema: str) -> LedgerRun:
        """Returns a run's facts for the ledger.

        It announces its whole budget, also where a limit is smaller.

        Args:
            config: of the run.
            configuration: its hash, as the run was admitted under.
            schema: hash of the schema.
        """
        contract = client_class(config.mechanism.name).Contract
        order = getattr(contract, "order_of", None)  # of a contract that counts in Rényi DP
        accountant = contract.accountant if order is None else f"{contract.accountant} {order(config)}"
        node = config.privacy
        name, sizes = config.mechanism.name, node.client_sizes
        return cls(configuration, schema, name, accountant, node.budget, sizes, node.hidden)

    @property
    def kind(self) -> Kind:
        """Name of its accountant.

        Raises ValueError if a ledger cannot add it up.
        """
        order_of(self.accountant)
        return self.accountant

    @property
    def announced(self) -> float:
        """The most rho that the run may spend, by its own accountant."""
        return rho_of(self.budget, self.kind)


@dataclass
class Charge:
    """One release of a run.

    Attributes:
        release: what was charged.
        request: digest of the request that it was charged for; "" if that is not known.
        attempts: that it belonged to, the last one being its owner.
        answered: whether its reply may have left.
    """

    release: Release
    request: str
    attempts: list[str]
    answered: bool = False

    @property
    def owner(self) -> str:
        return self.attempts[-1]


@dataclass
class Run:
    """One run.

    Attributes:
        facts: what it is.
        charges: in order.
        torn: rho of torn lines that may have been its own.
        ended: whether it has ended.
        closed: whether it may charge nothing more, because a torn line may have been its own.
        begun: time of its first entry.
        latest: time of its last entry.
        memory: number of the newest memory that a reply left with (`RunMemory.number`).
    """

    facts: LedgerRun
    begun: float
    latest: float
    charges: list[Charge] = field(default_factory=list)
    torn: float = 0.0
    ended: bool = False
    closed: bool = False
    memory: int = 0

    @property
    def spent(self) -> float:
        """The rho that the run has spent, as `counted`."""
        return math.fsum([self.torn, *(self.counts(charge.release) for charge in self.charges)])

    def counts(self, release: Release) -> float:
        """Returns the rho that a release of this run counts."""
        return counted(release, self.facts.kind)

    @property
    def rest(self) -> Cost:
        """Budget that the run announced and has not spent."""
        return Cost(max(0.0, self.facts.announced - self.spent), self.facts.kind == "gaussian")


@dataclass
class NodeLines(LedgerLines):
    """Lines that were read of a holder's ledger.

    Attributes:
        opened: the first line.
        runs: by name, in order.
        costs: of all entries.
        latest: largest time of an entry.
        now: the clock, seconds since 1970.
    """

    owner: ClassVar[str] = "node"
    advice: ClassVar[str] = "restore the true file; what a table has given away cannot be found out in another way"

    opened: dict[str, Any] | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)
    latest: float = 0.0
    now: Callable[[], float] = time.time

    def stamp(self) -> int:
        """Returns the time of the next entry.

        The clock's, but never less than one that was seen before.
        """
        return math.ceil(max(self.latest, self.now()))

    @property
    def kind(self) -> Kind | None:
        """The filter, which the first run decided; None before it."""
        return next((run.facts.kind for run in self.runs.values()), None)

    @property
    def unit(self) -> str:
        """Words for whom the runs protect.

        Their costs are added up. Where they protect others than each other, the sum is for whom all of them protect: a
        single row, and of a person who has no other where one of them protects persons.
        """
        counts: dict[str, int] = {}
        for run in self.runs.values():
            counts[run.facts.unit.text] = counts.get(run.facts.unit.text, 0) + 1
        if len(counts) < 2:
            return next(iter(counts), ROW.text)
        several = "; ".join(f"{text}, in {in_words(number, 'run')}" for text, number in counts.items())
        return f"{several}; what all of them add up to is for a row whose person has no other"

    @property
    def spent(self) -> float:
        """Total rho that was charged, whatever the filter."""
        return math.fsum(cost.rho for cost in self.costs)

    def open_runs(self) -> dict[str, Run]:
        return {name: run for name, run in self.runs.items() if not run.ended}

    def worst(self) -> list[tuple[str, float]]:
        """Returns (run, rho) for each torn line.

        What it says, as far as it can be read, else the largest rest of a run.

        A line that cannot be read may have been any run's. It counts once, with the largest rest, and no run that had
        not ended goes on: `mended` names all of them.
        """
        result = []
        for fragment in self.fragments:
            says = legible(fragment)
            kind, run, rho = says.get("entry"), says.get("run"), says.get("rho")
            # A charge that names its run and its rho costs that; other kinds of lines cost nothing; what cannot be
            # read costs the most that any run under way could still have charged.
            if kind == "charge" and run in self.runs and isinstance(rho, float) and 0.0 <= rho < math.inf:
                result.append((str(run), rho))
            elif kind not in ("open", "begin", "again", "answered", "end", TORN):
                rests = [(run.rest.under(self.kind or "zcdp"), name) for name, run in self.open_runs().items()]
                name = max(rests)[1] if rests else ""
                result.append((name, self.runs[name].rest.rho if name else 0.0))
        return result

    @property
    def torn_rho(self) -> float:
        """The rho that torn lines count as."""
        return math.fsum(rho for _, rho in self.worst())

    def mended(self) -> dict[str, Any]:
        # Each run pays for its own lines; after a line that nobody can read, no run under way goes on.
        worst = self.worst()
        legibly = all(legible(fragment).get("entry") for fragment in self.fragments)
        rhos: dict[str, float] = {}
        for name, rho in worst:
            if name:
                rhos[name] = math.fsum([rhos.get(name, 0.0), rho])
        closed = [] if legibly else [name for name in self.open_runs() if name]
        return {"entry": TORN, "time": self.stamp(), "runs": rhos, "closed": closed}

    # ---------------------------------------------------------------------------------------------- one entry

    def take(self, entry: Mapping[str, Any]) -> None:
        kind, when = entry["entry"], entry["time"]
        if (kind == "open") != (self.opened is None) or not self.latest <= when < math.inf:
            raise ValueError
        takes = {
            "open": self._open,
            "begin": self._begin,
            "charge": self._charge,
            "again": self._again,
            "answered": self._answered,
            "end": self._end,
            TORN: self._torn,
        }
        takes[kind](entry)
        self.latest = when
        if "run" in entry:
            self.runs[entry["run"]].latest = when

    def _open(self, entry: Mapping[str, Any]) -> None:
        if not isinstance(entry["id"], str):
            raise ValueError
        self.opened = dict(entry)

    def _begin(self, entry: Mapping[str, Any]) -> None:
        try:
            facts = LedgerRun.from_dict(entry)
            require_joined(facts.kind, self.kind or facts.kind)
        except (ConfigError, NodeError):
            raise ValueError from None
        if entry["run"] in self.runs:
            raise ValueError
        self.runs[entry["run"]] = Run(facts, entry["time"], entry["time"])

    def _charge(self, entry: Mapping[str, Any]) -> None:
        run, release, rho = self.runs[entry["run"]], Release.from_dict(entry["release"]), float(entry["rho"])
        # The line states a rho; the release says what it costs. A line that states less was not written by a ledger.
        least = run.counts(release) * (1.0 - _SAME)
        if not least <= rho < math.inf or entry["number"] != len(run.charges) or run.closed:
            raise ValueError
        charge = Charge(release, str(entry["request"]), [str(entry["attempt"])])
        self.costs.append(Cost(rho, release.mechanism == GAUSSIAN, entry["time"]))
        run.charges.append(charge)

    def _again(self, entry: Mapping[str, Any]) -> None:
        charge = self.runs[entry["run"]].charges[_index(entry["number"])]
        if charge.answered or not charge.request or charge.request != entry["request"]:
            raise ValueError
        charge.attempts.append(str(entry["attempt"]))

    def _answered(self, entry: Mapping[str, Any]) -> None:
        run = self.runs[entry["run"]]
        charges = [run.charges[_index(number)] for number in entry["numbers"]]
        if any(charge.answered or charge.owner != entry["attempt"] for charge in charges):
            raise ValueError
        for charge in charges:
            charge.answered = True
        run.memory = max(run.memory, _index(entry["memory"]))

    def _end(self, entry: Mapping[str, Any]) -> None:
        self.runs[entry["run"]].ended = True

    def _torn(self, entry: Mapping[str, Any]) -> None:
        rhos = {name: float(rho) for name, rho in entry["runs"].items()}
        if not {*rhos, *entry["closed"]} <= set(self.runs) or not all(0.0 <= rho < math.inf for rho in rhos.values()):
            raise ValueError
        for name, rho in rhos.items():
            run = self.runs[name]
            run.torn += rho
            self.costs.append(Cost(rho, run.facts.kind == "gaussian", entry["time"]))
        for name in entry["closed"]:
            self.runs[name].ended = self.runs[name].closed = True


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def spent_by(run: Run, kind: Kind) -> float:
    """Returns what a run has spent, in a filter's unit.

    A torn line counts as what the run can do at worst.
    """
    gaussian = run.facts.kind == "gaussian"
    costs = [Cost(run.counts(charge.release), charge.release.mechanism == GAUSSIAN) for charge in run.charges]
    return total([*costs, Cost(run.torn, gaussian)], kind)
