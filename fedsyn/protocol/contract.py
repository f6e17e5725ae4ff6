"""The contract that the two halves of a mechanism share.

A data holder can read it before it joins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

from fedsyn.aggregation import PROTOCOLS, make_aggregation
from fedsyn.aggregation.base import Aggregation, TrustModel
from fedsyn.capabilities import CAPABILITIES, MPC, PLAIN, SECAGG
from fedsyn.config import RunConfig, parse_options
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, nearest
from fedsyn.inference.capacity import require_room
from fedsyn.output import first_of
from fedsyn.privacy import (
    Ledger,
    PrivacyBudget,
    PrivacyStatement,
    Release,
    RunBudget,
    Unit,
    accountant_for,
)
from fedsyn.privacy.accountant import Accountant
from fedsyn.privacy.unit import ROW
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.protocol.cohorts import check_participations, rounds_of_one
from fedsyn.protocol.plan import Step
from fedsyn.randomness import Randomness
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.settings import Node
from fedsyn.stores import make_store
from fedsyn.table.counting.stored import StoredLayout, StoreFacts, stored_cliques
from fedsyn.table.counting.workload import Candidates, Workload, build_workload
from fedsyn.table.schema import Schema
from fedsyn.wire.requests import Request


class Contract:
    """Contract of a family of mechanisms under one configuration.

    It stands with the client half.

    Class attributes that a family sets:
        Options: pydantic model of the keys of the `mechanism` node beside `name`.
        accountant: 'zcdp' (also choices by the exponential mechanism), 'gaussian' (Gaussian noise only), or 'renyi'
            (also steps of DP-SGD; the family then defines `accountant_of`, `order_of`).
        central: whether one data holder has all rows (a yardstick, not a federation).
        store: the requests by which it uses a store; empty: it forms sums.
        own_sizes: whether clients score by their own row counts (`TableClient.size`). Where none does and a whole
            client is protected, the sum of the counts is released instead of each.
        alone: whether every request goes to one client, for a result of its own: what it releases costs its own rows
            alone, and the run goes on without a client that is lost.
        not_private: why a run is not private, for baselines that read exact data; else empty.
        statement: the privacy statement, with placeholders: {public}, {trust}, {server} (what it sees of a sum),
            {noise} (who draws it) and {cost} (of the steps of the plan).

    Args:
        config: the run's configuration.
        domain: the schema's domain.

    Clients of a simulation that share a process share one contract: it is made of public facts and never changes.
    """

    Options: ClassVar[type[Node]] = Node
    accountant: ClassVar[str] = "zcdp"
    central: ClassVar[bool] = False
    store: ClassVar[tuple[type[Request], ...]] = ()
    own_sizes: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    not_private: ClassVar[str] = ""
    statement: ClassVar[PrivacyStatement]

    def __init__(self, config: RunConfig, domain: Domain) -> None:
        self.config = config
        self.options: Any = self.options_of(config)
        self.domain = domain
        self.finding: PrivateColumns | None = None
        self.workload = build_workload(config.workload, domain)
        _check_columns(config, domain, self.workload)

    def opened(self, schema: Schema) -> Self:
        """Adds what an open schema leaves to be found; returns this contract.

        It must have been made on the schema's domain.

        Raises:
            ConfigError: this configuration cannot find it.
        """
        if self.finding is None:
            check_open(self.config, schema)
            self.finding = PrivateColumns(schema)
            self.budget = replace(self.budget, schema_share=self._schema_share(len(schema.open)))
        return self

    def at_largest(self) -> Self:
        """Returns this contract on the largest domain it may get.

        It is itself unless a schema is open; the domain is then the largest of a closed one.
        """
        return self if self.finding is None else type(self)(self.config, self.finding.largest().domain)

    @property
    def unit(self) -> Unit:
        """Unit whose presence the run hides."""
        return self.config.privacy.hidden

    @property
    def sums_rows(self) -> bool:
        """True if private row counts are released as one sum.

        Then no client's count is released by itself.
        """
        privacy = self.config.privacy
        return privacy.unit == "client" and privacy.client_sizes == "private" and not self.own_sizes

    # The plan: what ONE ROW pays, whatever the unit (`fedsyn.privacy.unit`) ------------------------------------------

    def accountant_of(self, budget: PrivacyBudget) -> Accountant:
        """Returns the accountant of this run for a budget.

        Its capacity is the whole budget.
        """
        return accountant_for(self.accountant, budget)

    @cached_property
    def budget(self) -> RunBudget:
        """The run's budget, with its parts."""
        privacy, evaluation, guarantee = self.config.privacy, self.config.evaluation, self.config.privacy.budget
        return RunBudget(
            guarantee,
            self.accountant_of(guarantee),
            self.unit,
            sizes_share=privacy.size_share,
            evaluation_share=evaluation.share if evaluation.federated else 0.0,
            public_sizes=privacy.client_sizes == "public",
        )

    def budget_of(self, guarantee: PrivacyBudget | None) -> RunBudget:
        """Returns the budget of a holder with a smaller guarantee.

        None means as much as the run asks for.
        """
        if guarantee is None or guarantee == self.budget.guarantee:
            return self.budget
        return replace(self.budget, guarantee=guarantee, accountant=self.accountant_of(guarantee))

    def _schema_share(self, columns: int) -> float:
        """Returns the budget's share for finding private columns.

        With a share s for c columns the noise on each goes as the root of c/s, and the noise of all that follows as
        that of 1/(1 - s). It is a tenth for one column; with more of them it grows as their root, so that half of what
        a column more costs falls on the columns that are found, and half on the rest; it is never more than a third.
        """
        share = self.config.privacy.schema_share
        return min(0.1 * math.sqrt(columns), 1 / 3) if share is None else share

    def paid(self, rounds: int) -> int:
        """Returns the rounds, out of all, that one row pays for.

        Noise scales divide the budget by it.
        """
        return rounds_of_one(self.config.federation, rounds)

    def plan(self, rho: float, rows: float = math.inf) -> Iterable[Step]:
        """Returns the family's division of a budget, as steps.

        It lists each request that the family may make, with the most that a row pays.

        A client refuses every other request of the mechanism, and one that costs more. Where a family does not define
        this, only the budget limits what is asked.

        Args:
            rho: zCDP of the whole mechanism.
            rows: of all clients, where they are known; infinite: any number, so that every step is there.
        """
        return ()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Steps of the whole plan, by which clients check requests."""
        return tuple(self.plan(self.budget.mechanism, math.inf))

    def require_size(self, rows: float) -> None:
        """Raises ConfigError if a client of this size cannot answer.

        The number of its rows is public, or released.
        """

    @cached_property
    def candidates(self) -> Candidates:
        """Cliques that may be selected, in an order that all share.

        They are kept, since a wide workload takes long to find again.
        """
        return Candidates.of(self.workload, self.domain)

    @property
    def stored(self) -> StoredLayout:
        """Cliques that a client deals into a store.

        They are the largest of the workload, and every attribute.
        """
        return _stored(self.candidates, self.domain)

    @property
    def store_facts(self) -> StoreFacts:
        """Facts on what the mechanism may ask its store for.

        A family with a store says how often (`most_rounds`) and has an option `score`.
        """
        attributes = tuple((name,) for name in self.domain)
        cliques = tuple(dict.fromkeys([*attributes, *self.candidates.cliques]))
        return StoreFacts(cliques, self.most_rounds, 1 + self.most_rounds, self.options.score)

    def largest_terms(self, part: float, rows: int) -> ChoiceTerms:
        """Returns the terms by which a store's scores are largest.

        A round then costs `part` of the most that it may.
        """
        raise NotImplementedError("a mechanism with a store says how large its scores can be")

    @property
    def most_rounds(self) -> int:
        """Bound on the rounds of a mechanism with a store.

        Each round chooses once, and opens what it chose.
        """
        raise NotImplementedError("a mechanism with a store says how many rounds it has at most")

    @classmethod
    def options_of(cls, config: RunConfig) -> Any:
        """Returns the mechanism's own checked options; ConfigError names every problem."""
        return _options(cls.Options, config.mechanism.name, json.dumps(config.mechanism.options, sort_keys=True))

    @classmethod
    def default_aggregation(cls, *, alone: bool = False) -> dict[str, str]:
        """Returns `protocol` and `noise` where a configuration names none.

        They trust nobody with exact counts. One holder of everything (`alone`) has nobody to hide among: it draws its
        own noise where it can.
        """
        if cls.central or (alone and not cls.store):
            return {"protocol": PLAIN.name, "noise": "server" if cls.store else "local"}
        return {"protocol": MPC.name if cls.store else SECAGG.name, "noise": "distributed"}

    @classmethod
    def trusted(cls, config: RunConfig) -> TrustModel:
        """Returns the trust model under this configuration.

        Clients' numbers come together in sums, or in a store.

        Raises:
            ConfigError: `aggregation.protocol` has none of these.
        """
        node = config.aggregation
        if cls.store:
            if cls.accountant != "zcdp":
                raise ConfigError(
                    f"mechanism '{config.mechanism.name}': a store makes choices; the accountant must be 'zcdp'"
                )
            return make_store(config)
        if node.protocol not in PROTOCOLS:
            raise ConfigError(
                f"aggregation.protocol: '{node.protocol}' is a store, and '{config.mechanism.name}' forms sums; "
                f"allowed: {', '.join(PROTOCOLS)}"
            )
        return make_aggregation(node, config.federation.minimum_cohort)

    def sums(self) -> Aggregation | None:
        """Returns the sums that the run may form; None: it forms none.

        They are the mechanism's own, or stand beside its store if that allows both.
        """
        node = self.config.aggregation
        able = node.capabilities.mixes if self.store else node.capabilities.sums
        return make_aggregation(node, self.config.federation.minimum_cohort) if able else None

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Raises ConfigError for a configuration that this mechanism cannot run."""
        federation, node = config.federation, config.aggregation
        rounds = getattr(cls.options_of(config), "rounds", None)
        check_participations(config, rounds, once=bool(cls.store), central=cls.central)
        cls._check_unit(config)
        cls._check_evaluation(config)
        if federation.columns is not None and (
            not cls.store
            or cls.central
            or not node.encrypts_columns
            or config.privacy.client_sizes != "public"
            or federation.sampling_rate < 1.0
            or federation.minimum_cohort < federation.clients
        ):
            raise ConfigError(
                "federation.columns: columns split over holders need a mechanism with a store (fhaim), "
                "aggregation.protocol: fhe with fhe: {compute: packed}, privacy.client_sizes: public, and everybody: "
                "federation.sampling_rate: 1, minimum_cohort: all clients"
            )
        if cls.central and config.federation.sampling_rate < 1.0:
            raise ConfigError(
                f"federation.sampling_rate: '{config.mechanism.name}' has one data holder, who takes part in every "
                "round; leave sampling_rate at 1"
            )

    @classmethod
    def _check_unit(cls, config: RunConfig) -> None:
        """Raises ConfigError where nothing derives the configuration's unit.

        The error says why. A person at one client is one row.
        """
        privacy = config.privacy
        if privacy.unit == "row" or (privacy.unit == "person" and privacy.holders_per_person == 1):
            return
        reasons = {
            "keeps a store of exact answers, whose parties account for single rows": bool(cls.store),
            "has one holder of all rows: there is no client to hide among others": cls.central,
            f"protects nobody: {cls.not_private}": bool(cls.not_private),
            "has an accountant whose costs are those of single rows": cls.accountant not in ("zcdp", "gaussian"),
            "can form its sums under aggregation.protocol: plain or secagg; the crypto party of fhe accounts for "
            "single rows": privacy.unit not in config.aggregation.capabilities.units,
        }
        key = "unit: client" if privacy.unit == "client" else f"holders_per_person: {privacy.holders_per_person}"
        for reason, holds in reasons.items():
            if holds:
                raise ConfigError(f"privacy.{key}: mechanism '{config.mechanism.name}' {reason}")

    @classmethod
    def _check_evaluation(cls, config: RunConfig) -> None:
        """Raises ConfigError for a federated evaluation without sums over whole rows."""
        if not config.evaluation.federated:
            return
        if cls.store and not config.aggregation.capabilities.mixes:
            raise ConfigError(
                f"evaluation.federated: asks for a noisy sum, and '{config.mechanism.name}' under "
                f"aggregation.protocol: {config.aggregation.protocol} keeps a store, which forms none; leave it out, "
                "or use a mechanism of sums"
            )
        if config.federation.columns is not None:
            raise ConfigError("evaluation.federated: needs whole rows at each holder; leave out federation.columns")

    @classmethod
    def in_general(cls, requests: Iterable[type[Request]]) -> PrivacyStatement:
        """Returns the family's privacy statement under any configuration.

        It is meant for documents; `requests` are the family's own.
        """
        costs = cls._cost([f"'{request.name}': {request.costs}" for request in requests], GENERAL["noise"])
        return cls.statement.filled(GENERAL | {"cost": costs})

    @classmethod
    def _cost(cls, costs: Iterable[str], noise: str) -> str:
        """Returns the costs of requests in words.

        They also say who draws the noise, and how costs add up.
        """
        return "; ".join([*costs, f"noise drawn by {noise}; added up {ADDED_UP[cls.accountant]}"])

    def planned_cost(self, noise: str) -> str:
        """Returns in words the cost of each step.

        `noise` says who draws it.
        """
        steps = self.at_largest().steps
        whole = self.budget.mechanism
        costs = [f"'{step.request.name}' {step.sentence(whole)}: {step.request.costs}" for step in steps]
        return self._cost(costs, noise)

    def filled(self, sampler: str) -> PrivacyStatement:
        """Returns the privacy statement of a run."""
        seen = self.trusted(self.config).who_sees_what()
        if not hasattr(self, "statement"):
            raise ConfigError(f"mechanism '{self.config.mechanism.name}': the contract has no privacy statement")
        words = {"public": public_facts(self.config), "sampler": sampler, "cost": self.planned_cost(seen["noise"])}
        statement = self.statement.filled(words | seen)
        public, cost = statement.public, statement.cost
        server, client = [statement.server_sees], [statement.client_sees]
        # What comes before the mechanism goes first: finding private parts of the schema, then row counts.
        if self.finding is not None:
            public += f"; of {', '.join(self.finding.schema.open)} only what is found with noise"
            server.insert(0, "first, noisy counts by which private bounds, bins and categories are found")
            client.insert(0, "what was found")
            cost = (
                "finding what is private of the schema: sums of counts at 1/(2 sigma^2) for each vector that a row is "
                f"in, over all clients, at most {self.budget.schema_share:g} of rho; of the rest: {cost}"
            )
        most = self.config.federation.max_participations
        if most is not None and not self.store:
            cost = (
                f"a row's client takes part in at most {most} round(s), which its own ledger keeps to, and a row pays "
                f"for those only: {cost}"
            )
        if self.config.privacy.client_sizes == "private":
            counts = counts_of(self.config.privacy.unit)
            whose = f"the sum of the clients' {counts}" if self.sums_rows else f"each client's {_one(counts)}"
            server.insert(0, f"{whose} with noise, once")
            share = self.config.privacy.size_share
            cost = f"the {_one(counts)} once at 1/(2 sigma^2), {share:g} of rho; of the rest: {cost}"
        # Evaluation comes last.
        if self.budget.evaluation_share:
            whose = "the holders' rows" if self.config.privacy.unit != "person" else "one record of each person"
            is_ = "are" if self.config.privacy.unit != "person" else "is"
            server.append(f"last, noisy sums of how far {whose} {is_} from the table")
            client.append("the synthetic table, and a classifier that was trained on it")
            share = self.budget.evaluation_share
            cost = f"last, one vector of evaluation at 1/(2 sigma^2), {share:g} of rho; before it, of the rest: {cost}"
        if self.unit is not ROW:
            statement = replace(statement, unit=self.unit.text)
        if self.config.privacy.unit == "person":
            cost = f"a person counts with one record, made of all rows: {cost}"
        if self.unit.rows > 1:
            who = self.config.privacy.unit
            for_one = "one record" if who == "person" else "one row"
            cost = f"a {who} pays {self.unit.rows:,}^2 times what is said here for {for_one}: {cost}"
        return replace(
            statement, public=public, server_sees="; ".join(server), client_sees="; ".join(client), cost=cost
        )

    def new_ledger(self, randomness: Randomness, record: Callable[[Release], None] | None = None) -> Ledger:
        """Returns the run's ledger at its server.

        It has the whole budget, the statement, and what the guarantee rests on. `record` is told of each release before
        it is entered.
        """
        node, most = self.config.privacy, self.config.federation.max_participations
        ledger = Ledger(
            self.budget.guarantee,
            self.budget.accountant,
            self.filled(randomness.label),
            assumptions={
                "client_sizes": node.client_sizes,
                **self.unit.to_dict(),
                "amplification_by_sampling": self.accountant == "renyi",
                "seeded": randomness.seeded,
                "holders": 1 if self.central else self.config.federation.clients,
                **({} if most is None else {"max_participations": most}),
                **self.trusted(self.config).assumptions(),
            },
            noise_by="server",
            record=record,
            unit=self.unit,
        )
        ledger.keep_back(self.budget.evaluation_share)
        if randomness.seeded:
            ledger.not_private(randomness.label)
        if self.not_private:
            ledger.not_private(self.not_private)
        return ledger


def _check_columns(config: RunConfig, domain: Domain, workload: Workload) -> None:
    """Raises ConfigError for encrypted columns that cannot make the workload.

    Raises:
        ConfigError: columns that are split over holders are not those of the schema, or a clique has more than the two
            attributes that one product of columns counts.
    """
    columns = config.federation.columns
    if columns is not None:
        named = {name for held in columns for name in held}
        unknown, missing = sorted(named - set(domain)), sorted(set(domain) - named)
        if unknown:
            raise ConfigError(
                f"federation.columns: the schema has no column '{unknown[0]}'{nearest(unknown[0], domain)}"
            )
        if missing:
            raise ConfigError(f"federation.columns: no client holds column '{missing[0]}'")
    if config.aggregation.encrypts_columns:
        large = [clique for clique in workload.cliques if len(clique) > 2]
        if large:
            raise ConfigError(
                f"aggregation.fhe.compute: '{config.fhe.compute}' counts pairs of columns, and the workload has "
                f"{' x '.join(large[0])}: set workload.degree: 2"
            )


def check_open(config: RunConfig, schema: Schema) -> None:
    """Raises ConfigError where an open schema cannot be closed.

    Its constraints may not fit into the model, or its private values may be impossible to find.
    """
    require_room(schema.domain, config.inference)
    if not schema.open:
        return
    names = list(schema.open)
    what = "data.schema: " + first_of([f"'{name}'" for name in names], 1)
    what += " have private values, which are found by noisy sums of all clients' counts"
    if not config.aggregation.capabilities.finds_bins:
        allowed = ", ".join(one.name for one in CAPABILITIES.values() if one.finds_bins)
        raise ConfigError(f"{what}; aggregation.protocol: {config.aggregation.protocol} forms none; allowed: {allowed}")
    if config.federation.columns is not None:
        raise ConfigError(f"{what}; columns that are split over holders (federation.columns) have none")


@lru_cache(maxsize=32)
def _options(model: type[Node], name: str, options: str) -> Any:
    return parse_options(model, json.loads(options), f"mechanism ({name})")


@lru_cache(maxsize=8)
def _stored(candidates: Candidates, domain: Domain) -> StoredLayout:
    return StoredLayout(stored_cliques(candidates.cliques, domain), domain)


# Words of privacy statements that are the same for every family ------------------------------------------------------

#: How costs add up, by `Contract.accountant`.
ADDED_UP = {
    "zcdp": "behind a zCDP filter",
    "gaussian": "exactly, as one Gaussian mechanism",
    "renyi": "as Rényi DP of one order",
}
#: What placeholders of a statement stand for in documents.
GENERAL = {
    "public": "schema with bounds and bins, workload, configuration, who takes part in which round (row counts where "
    "`privacy.client_sizes` is `public`)",
    "trust": "as `aggregation` says",
    "server": "of every sum, what `aggregation` shows it",
    "noise": "whom `aggregation.noise` names",
    "sampler": "the operating system's; seeded, and not private, in a simulation with a seed",
}


def public_facts(config: RunConfig) -> str:
    """Returns the `public` line of a privacy statement under this configuration."""
    privacy = config.privacy
    counts = counts_of(privacy.unit)
    sizes = f" ({counts} are private: each client releases its own once, with noise)"
    if privacy.client_sizes == "public":
        sizes = f", and the clients' {counts}"
    elif privacy.unit == "client":
        sizes = " (row counts are private: released with noise, once)"
    return f"schema with bounds and bins, workload, configuration, who takes part in which round{sizes}"


def counts_of(unit: str) -> str:
    """Returns the name of clients' sizes under a unit."""
    return "counts of people" if unit == "person" else "row counts"


def _one(counts: str) -> str:
    return counts.replace("counts", "count", 1)


def require(condition: bool, message: str) -> None:
    """Raises ConfigError with this message unless the condition holds.

    It is for `Contract.check`.
    """
    if not condition:
        raise ConfigError(message)
