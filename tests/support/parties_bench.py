"""A run of three parties in one process, with everything that a test compares it with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.crypto.primitives import KeyPair
from fedsyn.front.testing.harness import config_of
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.privacy import EXPONENTIAL, DistributedNoise, Ledger, PrivacyBudget, Release, SelectionNoise
from fedsyn.privacy.shared_choice import DRAWING
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.stores.parties.checks import Host
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, OpenOrder, SealedDeal, sealed_for
from fedsyn.stores.parties.local import LocalParties
from fedsyn.stores.parties.policy import PartyPolicy
from fedsyn.stores.parties.sealing import seal_deal
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.stored import StoredLayout

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()
RHO = PrivacyBudget(1.0, 1e-5).rho
CLIENTS = 4
Change = dict[str, dict[str, Any]]


def mpc_config(options: dict[str, Any] | None = None, **nodes: Any) -> RunConfig:
    """Annealed, unless `options` say otherwise: then no order has a least sigma."""
    aggregation = {"protocol": "mpc", "noise": "distributed", **nodes.pop("aggregation", {})}
    return config_of(
        "distaim", CLIENTS, {"rounds": None} if options is None else options, aggregation=aggregation, **nodes
    )


def announced(
    config: RunConfig, rho: float = RHO, minimum: int = 1, nonce: bytes = bytes(16), clients: int = CLIENTS
) -> Announcement:
    cliques = contract_class("distaim")(config, DOMAIN).stored.cliques
    return Announcement(config, DOMAIN, cliques, rho, minimum, nonce, clients)


def policy(**changes: Any) -> PartyPolicy:
    facts: dict[str, Any] = {"epsilon_per_run": 1.0, "epsilon_total": 3.0, "delta": 1e-5, "minimum_clients": 2}
    return PartyPolicy.model_validate({**facts, "mechanisms": ["distaim"], **changes})


class Bench:
    """A run of `LocalParties` with everything that a test compares it with.

    Args:
        config: of the run; default `mpc_config()`.
        hosts: of the parties; default: what a simulation has.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        *,
        rho: float = RHO,
        minimum: int = 1,
        seed: int | None = 5,
        hosts: tuple[Host, Host, Host] | None = None,
        record: bool = False,
    ) -> None:
        self.config = config or mpc_config()
        self.announcement = announced(self.config, rho, minimum)
        self.layout = StoredLayout(self.announcement.cliques, DOMAIN)
        self.randomness = Randomness(seed)
        self.parties = LocalParties(self.randomness, hosts or (), timeout=20.0, record=record)
        self.run = self.parties.begin(self.announcement)
        self.codes: dict[int, np.ndarray] = {}
        self.numbers = iter(range(1000))

    def vector(self, codes: np.ndarray) -> np.ndarray:
        return np.concatenate([table.ravel() for table in count(codes, DOMAIN, self.layout.cliques)]).astype(np.int64)

    def sealed(self, partition: int, **changes: Any) -> SealedDeal:
        codes = CODES[partition::CLIENTS]
        public = self.config.privacy.client_sizes == "public"
        agreed = sealed_for(self.run, self.config, DOMAIN, self.announcement.cliques)
        facts = {"rho": RHO, "rows": len(codes) if public else 0, "run": agreed, "partition": partition} | changes
        vector = facts.pop("vector", None)
        keys = facts.pop("keys", self.parties.keys)
        return seal_deal(self.vector(codes) if vector is None else vector, facts.pop("run"), keys, **facts)

    def deal(self, partitions: Iterable[int] = range(CLIENTS)) -> dict[int, str]:
        deals = {k: self.sealed(k) for k in partitions}
        self.codes |= {k: CODES[k::CLIENTS] for k in deals}
        return self.parties.deal(deals)

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate(list(self.codes.values()))

    def exact(self, cliques: Iterable[tuple[str, ...]]) -> np.ndarray:
        return np.concatenate([table.ravel() for table in count(self.rows, DOMAIN, list(cliques))]).astype(np.int64)

    def terms(self, norm: str = "l1", sigma: float = 4.0, seed: int = 0, rows: int | None = None) -> ChoiceTerms:
        cliques = [q for q in contract_class("distaim")(self.config, DOMAIN).candidates.cliques if len(q) == 2]
        rng = np.random.default_rng(seed)
        p = [rng.dirichlet(np.ones(DOMAIN.size(q))) for q in cliques]
        n = len(self.rows)
        cells = np.array([len(x) for x in p], float)
        weights = rng.integers(1, 4, len(cliques)).astype(float)
        return ChoiceTerms.of(norm, cliques, p, weights, cells, sigma=sigma, size=n, rows=n if rows is None else rows)

    def choice(self, epsilon: float = 0.05, **terms: Any) -> ChooseOrder:
        number = next(self.numbers)
        return ChooseOrder(number, "select", number + 1, epsilon, self.terms(**terms))

    def opening(self, sigma: float = 20.0, cliques: Any = None) -> OpenOrder:
        number = next(self.numbers)
        names = DOMAIN.attributes
        return OpenOrder(number, "measure", number + 1, sigma, cliques or ((names[0],), (names[1],)))

    def source(self, party: int, order: Any) -> Any:
        return self.randomness.generator("party", party, order.round, order.name, order.number)

    def expected_choice(self, order: ChooseOrder) -> tuple[int, int]:
        """The index of the largest noisy score, and of the largest score, by somebody who sees everything."""
        scores = order.terms.scores(count(self.rows, DOMAIN, list(order.terms.cliques)))
        return int(np.argmax(scores + self.noise_of(order))), int(np.argmax(scores))

    def noise_of(self, order: ChooseOrder) -> np.ndarray:
        """All three shares of a choice's noise, drawn again."""
        terms, total = order.terms, np.zeros(len(order.terms.cliques), np.int64)
        noise = SelectionNoise(order.epsilon, terms.moved)
        for party in range(3):
            entry = Release(order.name, order.round, EXPONENTIAL, terms.sensitivity, epsilon=noise.epsilon)
            zeros, source = np.zeros(len(total), np.int64), self.source(party, order)
            total += loose().selection_share(zeros, noise, entry, source, draws=party in DRAWING)
        return total

    def expected_opening(self, order: OpenOrder) -> np.ndarray:
        exact = self.exact(order.cliques)
        noise = DistributedNoise.of_parties(order.sigma, count=len(order.cliques), length=len(exact))
        total = exact * noise.resolution
        for party in range(3):
            entry = noise.release(order.name, order.round)
            total += loose().distributed(np.zeros(len(exact), np.int64), noise, entry, self.source(party, order))
        return total


def loose() -> Ledger:
    return Ledger(PrivacyBudget(1000.0, 1e-5), noise_by="self")


def three_hosts(folder: Path, seed: int | None = 5, **changes: Any) -> tuple[Host, Host, Host]:
    """Parties with books and a policy; `changes` are of the policy."""
    rules = policy(**changes)
    books = [PartyLedger(folder / f"{index}.jsonl", rules.total_budget) for index in range(3)]
    one, two, three = (Host(KeyPair(), rules, Randomness(seed), book) for book in books)
    return one, two, three


def dropped(bench: Bench) -> bool:
    """Whether no party holds a share any more, and each of them says that the run is over."""
    return all(party._begun is None and party.over for party in bench.parties.halves)
