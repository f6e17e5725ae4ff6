"""A party's checks of announcements and orders.

They are checked against its policy and against each other.

All of it is public, so a sentence may say what is wrong. Every check is made before anything is compared, charged or
drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fedsyn.capabilities import MPC, Capabilities
from fedsyn.config import RunConfig
from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.crypto.primitives import KeyPair
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, ProtocolError, refuse
from fedsyn.ledgers.limits import Kind, largest_epsilon, rho_of
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.privacy import DistributedNoise, Ledger, SelectionNoise
from fedsyn.privacy.accountant import GaussianAccountant, ZcdpAccountant
from fedsyn.privacy.budget import affordable, require_budget
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, contract_class
from fedsyn.selection.terms import LARGEST_SCORE, NORMS, ChoiceTerms, SquaredL2
from fedsyn.settings import PartyCard
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, OpenOrder, PartyOrder, TotalOrder
from fedsyn.stores.parties.policy import LimitsNode, PartyPolicy
from fedsyn.table.counting.stored import StoredLayout, StoreFacts

T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """A party's facts, whatever run it takes part in.

    Attributes:
        pair: the X25519 key pair to which clients seal.
        policy: of its administrator.
        randomness: of its shares of the noise.
        book: what it has released in its life; None in a simulation.
        cards: its own card, then those of the other two parties; None in a simulation.
    """

    pair: KeyPair
    policy: PartyPolicy
    randomness: Randomness
    book: PartyLedger | None = None
    cards: tuple[PartyCard, ...] | None = None

    def index_in(self, config: RunConfig) -> int:
        """Returns this party's place among those of a configuration.

        All three must be those that it pinned.
        """
        if self.cards is None or config.aggregation.parties is None:
            raise ProtocolError("the configuration names no parties, and this is one of a deployment")
        for node in config.aggregation.parties:
            known = [card for card in self.cards if card.key == node.key]
            wrong = [
                name for name in PartyCard.model_fields if known and getattr(known[0], name) != getattr(node, name)
            ]
            if not known or wrong:
                what = wrong[0] if wrong else "key"
                raise ProtocolError(
                    f"the configuration has another {what} for '{node.name}' than this party has pinned"
                )
        keys = [node.key for node in config.aggregation.parties]
        if len(set(keys)) != PARTIES:
            raise ProtocolError("the configuration names a party twice")
        return keys.index(self.cards[0].key)


def check_announcement(announcement: Announcement, host: Host) -> Any:
    """The mechanism's contract under an announced configuration, for a computing party.

    Raises:
        ProtocolError: this party does not take part in such a run.
        BudgetExceeded: the run could release more than this party may.
    """
    config = announcement.config
    check_configuration(announcement, host, MPC)
    if host.policy.threat is not None and config.aggregation.threat != host.policy.threat:
        raise ProtocolError(f"its policy demands aggregation.threat: {host.policy.threat}")
    if host.cards is not None:
        host.index_in(config)
    contract = contract_of(announcement, host.policy.limits)
    stored = tuple(contract.stored.cliques)
    refuse(stored != announcement.cliques, "the announced cliques are not those that the mechanism stores")
    _check_norm(contract.store_facts.norm, config)
    return contract


def _check_norm(norm: str, config: RunConfig) -> None:
    """Refuses a score that parties do not compute.

    Raises ProtocolError, also where a client could break the score's sensitivity.
    """
    refuse(
        norm not in MPC.scores, f"three parties compute scores with {_listed(MPC.scores)}, and the run has another one"
    )
    squared = norm == SquaredL2.name
    public, honest = config.privacy.client_sizes == "public", config.aggregation.threat == "semi_honest"
    refuse(squared and not public, "squared_l2 needs public row counts: its sensitivity follows from them")
    refuse(squared and not honest, "squared_l2 takes clients at their word, which threat: malicious does not")


def check_configuration(announcement: Announcement, host: Host, protocol: Capabilities) -> None:
    """Checks a configuration, as every party does.

    It compares it with what the party allows, and with what holds for all roles.
    """
    config, policy = announcement.config, host.policy
    refuse(config.mechanism.name not in policy.mechanisms, f"its policy allows {_listed(policy.mechanisms)} only")
    pinned = policy.configurations
    refuse(pinned is not None and config.sha256 not in pinned, "its policy has not pinned this configuration's hash")
    named = config.aggregation.capabilities
    refuse(named != protocol, f"the configuration does not have aggregation.protocol: {protocol.name}")
    refuse(config.aggregation.noise != "distributed", "the configuration does not have aggregation.noise: distributed")
    if host.cards is not None:
        refuse(config.runtime.engine != "deployment", "a party of a deployment takes part in no simulation")
        refuse(config.runtime.seed is not None, "a party draws no noise from a seed that others know")
    few, least = announcement.clients, policy.minimum_clients
    refuse(few < least, f"its policy lets nothing out below {least} clients, and the run has {few}")
    _check_sizes(announcement, policy.limits)
    _check_budget(announcement, host)


def contract_of(announcement: Announcement, limits: LimitsNode) -> Any:
    """The mechanism's contract.

    Raises:
        ProtocolError: it does not take the configuration, or an order could exceed the policy's limits.
    """
    config, fitting, longest = announcement.config, list[float](), 0
    try:
        family = client_class(config.mechanism.name).Contract
        family.check(config)
        contract = family(config, announcement.domain)
        if family.store:
            _ = contract.stored, contract.store_facts
            fitting = [cells for cells in contract.candidates.cells if cells <= config.inference.max_cells]
        else:
            plan = contract.plan(contract.budget.mechanism, 1)
            longest = max((one.length for step in plan for one in step.request.largest(contract)), default=0)
    except Exception as error:  # of a plug-in, on a configuration that a server made up
        raise ProtocolError(f"the mechanism does not take the configuration ({type(error).__name__})") from None
    # A choice compares what the model has room for. Its order would be refused, too, but in a run that was paid for.
    refuse(longest > limits.cells, f"its policy allows sums of {limits.cells} cells, and one may have {longest}")
    many, cells = len(fitting), math.fsum(fitting)
    refuse(many > limits.candidates, f"its policy allows {limits.candidates} candidates, and a choice may have {many}")
    refuse(cells > limits.cells, f"its policy allows orders of {limits.cells} cells, and a choice may have {cells:.0f}")
    return contract


def _check_sizes(announcement: Announcement, limits: LimitsNode) -> None:
    config, domain = announcement.config, announcement.domain
    wrong = len(announcement.nonce) != 16 or min(announcement.minimum, announcement.clients) < 1
    refuse(wrong, "the announcement is malformed")
    fewest = config.federation.minimum_cohort
    refuse(announcement.minimum < fewest, f"the configuration's minimum_cohort is {fewest}")
    refuse(config.federation.clients > limits.clients, f"its policy allows {limits.clients} clients")
    workload = config.workload
    if workload.cliques is None and workload.degree is None and domain.wanted:
        listed = sum(2 ** len(clique) for clique, _ in domain.wanted)
    elif workload.cliques is None:
        assert workload.degree is not None
        degree = min(workload.degree, len(domain))
        listed = min(math.comb(len(domain), degree), workload.size or math.inf) * 2**degree
    else:
        listed = sum(2 ** len(clique) for clique in workload.cliques or ())
    many = listed > 256 * limits.candidates or len(announcement.cliques) > limits.candidates
    refuse(many, f"its policy allows {limits.candidates} candidates")
    for clique in announcement.cliques:
        _known(clique, domain)
    fewest = 0 if config.aggregation.capabilities.sums else 1
    refuse(
        not fewest <= announcement.length <= limits.entries, f"its policy allows {limits.entries} entries of a client"
    )


def _check_budget(announcement: Announcement, host: Host) -> None:
    budget, rho = host.policy.run_budget, announcement.rho
    refuse(not 0.0 < rho < math.inf, "the announcement is malformed")
    most = rho_of(budget, _accounted(announcement))
    require_budget(
        affordable(rho, most),
        lambda: f"the run may release {rho:.4g} rho, and its policy allows {budget} per run, which is {most:.4g} rho",
    )
    if host.book is not None:
        host.book.require_left(rho, partial(_fitting, announcement, host.policy, host.book))


def _fitting(announcement: Announcement, policy: PartyPolicy, book: PartyLedger) -> str:
    """Names the largest epsilon that this party's rest allows."""
    kind = _accounted(announcement)
    rest = min(book.budget.rho - book.spent, rho_of(policy.run_budget, kind))
    epsilon = largest_epsilon(rest, announcement.config.privacy.delta, kind)
    return "" if epsilon is None else f"; epsilon = {epsilon:g} would fit"


def _accounted(announcement: Announcement) -> Kind:
    """Returns how the run adds up.

    A run of Gaussian noise alone is exact, and may spend a little more rho for its epsilon.
    """
    return "zcdp" if contract_class(announcement.config.mechanism.name).accountant == "zcdp" else "gaussian"


def ledger_of(announcement: Announcement, accountant: str = "zcdp") -> Ledger:
    """Returns the ledger of one run at one party.

    It is a filter at what was announced, within the run's own budget.
    """
    rho = announcement.rho
    try:
        filtered = ZcdpAccountant(rho) if accountant == "zcdp" else GaussianAccountant(math.sqrt(2.0 * rho))
        return Ledger(announcement.config.privacy.budget, filtered, noise_by="self")
    except ValueError:
        raise ProtocolError("the run may release more than its own privacy.epsilon") from None


# Orders --------------------------------------------------------------------------------------------------------------


class Orders:
    """Orders that a run's configuration allows, and how often.

    Each order is taken once.

    The parties derive it: nothing in an order says which norm the scores have, what may be chosen or opened, how often,
    or how a ledger may call it.

    Args:
        contract: of the run.
        config: of the run.
    """

    def __init__(self, contract: Any, config: RunConfig) -> None:
        self.facts: StoreFacts | None = contract.store_facts if contract.store else None
        requests = contract.store or client_class(config.mechanism.name).requests.values()
        self._names = {(request.kind, request.name) for request in requests}
        self._cliques = frozenset(self.facts.cliques if self.facts is not None else ())
        self.last, self.choices, self.openings = -1, 0, 0

    def take(self, order: PartyOrder) -> None:
        """Raises ProtocolError for an order that is not due.

        The configuration has no such order, or not as many, or it is not later than the last.
        """
        numbers = type(order.number) is int and type(order.round) is int and 0 <= order.round < 2**31
        refuse(not numbers, "an order is malformed")
        refuse(not self.last < order.number < 2**31, f"order {order.number} is not later than order {self.last}")
        self.last = order.number
        if isinstance(order, TotalOrder):
            refuse(self.facts is not None, "this run keeps a store: it has no sums of clients' vectors")
            self._named("sum", order)
            return
        facts = self.facts
        if facts is None:
            raise ProtocolError("this run forms sums: it has no store to choose from or to open")
        if isinstance(order, ChooseOrder):
            self.choices += 1
            self._named("choose", order)
            refuse(self.choices > facts.choices, f"this run has {facts.choices} choices, and no more")
            norm = order.terms.norm
            refuse(norm != facts.norm, f"a choice by another norm is ordered, and this run's score is {facts.norm}")
            self._may_ask(order.terms.cliques)
            return
        self.openings += 1
        self._named("open", order)
        refuse(self.openings > facts.openings, f"this run has {facts.openings} openings, and no more")
        assert isinstance(order, OpenOrder)
        self._may_ask(order.cliques)

    def _named(self, kind: str, order: PartyOrder) -> None:
        known = isinstance(order.name, str) and (kind, order.name) in self._names
        refuse(not known, "an order is malformed: its name is not that of a request of the mechanism")

    def _may_ask(self, cliques: Sequence[Clique]) -> None:
        refuse(
            any(clique not in self._cliques for clique in cliques), "an order asks for a clique that is not a candidate"
        )


@dataclass(frozen=True)
class ChoicePlan:
    """Numbers by which a choice is computed.

    Attributes:
        noise: two parties' shares make it.
        noise_bits: of one party's share of it, whatever that party sends.
        score_bits: of a difference of two scores with their noise.
    """

    noise: SelectionNoise
    noise_bits: int
    score_bits: int


def plan_choice(
    order: ChooseOrder, layout: StoredLayout, limits: LimitsNode, public_rows: int | None, *, bounded: bool
) -> ChoicePlan:
    """Checks a choice.

    Args:
        order: as the server gave it.
        layout: of what was dealt.
        limits: of the policy.
        public_rows: of all clients that have dealt; None if they are private.
        bounded: whether a party that deviates can enter only so much noise as fits `noise_bits`, so that all three may.

    Raises:
        ProtocolError: it does not fit the store, or its numbers could leave 64 bits.
    """
    terms = order.terms
    _check_cliques(terms.cliques, layout, limits)
    refuse(any(type(n) is not int for n in (*terms.sizes, terms.scale, terms.rows)), "an order is malformed")
    domain = layout.domain
    fit = terms.norm in NORMS and [domain.size(clique) for clique in terms.cliques] == list(terms.sizes)
    refuse(not fit, "the terms of a choice do not fit the store")
    squared = terms.norm == SquaredL2.name
    refuse(squared and public_rows is None, "squared_l2 needs public row counts: its sensitivity follows from them")
    if squared and public_rows is not None:
        refuse(terms.rows < public_rows, f"the terms name {terms.rows} rows, and the clients have dealt {public_rows}")
    return checked(lambda: room_of_scores(terms, order.epsilon, bounded=bounded))


def room_of_scores(terms: ChoiceTerms, epsilon: float, *, bounded: bool) -> ChoicePlan:
    """Returns the plan of a choice, if it fits 64 bits.

    Raises ConfigError if not.

    The server asks the same before its run charges anything. `bounded`: as for `plan_choice`.
    """
    terms.check()
    noise = SelectionNoise(epsilon, terms.moved)
    noise.check(float(terms.reach))
    reach = math.ceil(noise.reach)
    noise_bits = reach.bit_length() + 1
    largest = terms.reach + (PARTIES << (noise_bits - 1) if bounded else reach)
    if largest >= LARGEST_SCORE:
        raise ConfigError(
            f"the scores of a choice with epsilon {epsilon:g}, up to {float(terms.reach):.3g}, and the noise that a "
            "party could add to them exceed 2^62: choose a larger privacy.epsilon, fewer rounds, or a smaller "
            "workload.degree"
        )
    return ChoicePlan(noise, noise_bits, (2 * largest).bit_length() + 1)


def plan_opening(order: OpenOrder, layout: StoredLayout, limits: LimitsNode, least: float | None) -> DistributedNoise:
    """Returns the noise of an opening.

    Raises ProtocolError if it does not fit the store, or is less than the run's.
    """
    check_opening(order, layout, limits, least)
    cells = sum(layout.domain.size(clique) for clique in order.cliques)
    return checked(lambda: DistributedNoise.of_parties(order.sigma, count=len(order.cliques), length=cells))


def check_opening(order: OpenOrder, layout: StoredLayout, limits: LimitsNode, least: float | None) -> None:
    """Refuses an opening that does not fit the store.

    Raises ProtocolError, also where it carries less noise than the run must.
    """
    _check_cliques(order.cliques, layout, limits)
    refuse(not 0.0 < order.sigma < math.inf, "an order is malformed")
    if least is not None and order.sigma < least * (1.0 - 1e-9):
        raise ProtocolError(
            f"an opening with sigma {order.sigma:.6g} is asked for, and this run has {least:.6g} at least"
        )


def _check_cliques(cliques: Sequence[Clique], layout: StoredLayout, limits: LimitsNode) -> None:
    refuse(not 1 <= len(cliques) <= limits.candidates, f"an order has 1 to {limits.candidates} cliques here")
    cells = 0
    for clique in cliques:
        _known(clique, layout.domain)
        try:
            layout.place(clique)
        except KeyError:
            raise ProtocolError("an order asks for a clique that lies inside no stored one") from None
        cells += layout.domain.size(clique)
    refuse(cells > limits.cells, f"its policy allows orders of {limits.cells} cells")
    refuse(len(set(cliques)) != len(cliques), "an order names a clique twice")


def _known(clique: Clique, domain: Domain) -> None:
    refuse(not clique or len(set(clique)) != len(clique), "a clique is empty, or names an attribute twice")
    refuse(any(name not in domain for name in clique), "a clique names an attribute that the schema does not have")


def checked(check: Callable[[], T]) -> T:
    """Returns the result of a check of public numbers.

    Its refusal becomes one kind of error.
    """
    try:
        return check()
    except (ValueError, TypeError, OverflowError):
        raise ProtocolError("an order is malformed") from None


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
