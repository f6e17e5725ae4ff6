"""Three `fedsyn party serve` processes with TLS, and a run that drives them."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn import yamlio
from fedsyn.config import RunConfig, load_options
from fedsyn.errors import RunError
from fedsyn.front.testing.harness import config_of
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.ledgers.party_ledger import PartyLines, read_party_lines
from fedsyn.privacy import DistributedNoise, PrivacyBudget
from fedsyn.registry import contract_class
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.settings import PartyCard
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, OpenOrder, SealedDeal, sealed_for
from fedsyn.stores.parties.remote import RemoteParties
from fedsyn.stores.parties.sealing import seal_deal
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.stored import StoredLayout
from support.loopback import BIN, environment, free_port, stop

NAMES = ("alder", "birch", "cedar")
TABLE = awkward_table("missing_values")
DOMAIN, CODES = TABLE.schema.domain, TABLE.encode()
RHO = PrivacyBudget(1.0, 1e-5).rho
POLICY = {"epsilon_per_run": 1.0, "epsilon_total": 50.0, "delta": 1e-5, "mechanisms": ["distaim"]}


class Services:
    """Three parties' folders and their processes; `close` stops every one of them.

    Args:
        folder: of everything.
        hosts: at which the parties listen.
        prefix: put before a party's command, to run it elsewhere (in a network namespace).
        operators: that the parties have pinned; the first one drives.
        policy: of all three.
        settings: of `party.yaml`.
    """

    def __init__(
        self,
        folder: Path,
        hosts: tuple[str, ...] = ("127.0.0.1",) * 3,
        prefix: Callable[[int], list[str]] = lambda index: [],
        operators: tuple[str, ...] = ("operator",),
        policy: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.prefix = folder, prefix
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, host in zip(NAMES, hosts, strict=True):
            self.keygen(name, "--address", f"{host}:{free_port()}")
        for name in {"operator", *operators}:
            self.keygen(name, "--operator")
        for name in NAMES:
            others = [f"../{other}/card.yaml" for other in NAMES if other != name]
            pins = [f"../{operator}/certificate.pem" for operator in operators]
            document = {"parties": others, "operators": pins, "timeout": 20.0, **settings}
            text = yamlio.dumps({**document, "policy": {**POLICY, **(policy or {})}})
            (folder / name / "party.yaml").write_text(text, encoding="utf-8")
        self.cards = [load_options(PartyCard, folder / name / "card.yaml") for name in NAMES]
        self.start(*NAMES)

    def keygen(self, name: str, *options: str) -> None:
        from fedsyn.front.cli import app

        app(["party", "keygen", str(self.folder / name), "--name", name, *options], standalone_mode=False)

    def start(self, *names: str) -> None:
        ready = {name: self.log(name).count("spent so far") + 1 for name in names}
        for name in names:
            command = [*self.prefix(NAMES.index(name)), str(BIN / "fedsyn"), "party", "serve", "party.yaml"]
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    command,
                    cwd=self.folder / name,
                    env=environment(self.folder / "home"),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        for name in names:
            self.wait_for(name, "spent so far", ready[name])

    def wait_for(self, name: str, text: str, times: int = 1, patience: float = 30.0) -> None:
        """Until the party's log says something."""
        deadline = time.monotonic() + patience
        while self.log(name).count(text) < times:
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not say '{text}':\n{self.log(name)}")
            time.sleep(0.02)

    def kill(self, name: str) -> None:
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait(10.0)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def book(self, name: str) -> PartyLines:
        return read_party_lines(self.folder / name / "ledger.jsonl")

    def config(self, **nodes: Any) -> RunConfig:
        parties = [card.model_dump() for card in nodes.pop("cards", self.cards)]
        aggregation = {"protocol": "mpc", "noise": "distributed", "parties": parties, **nodes.pop("aggregation", {})}
        runtime = {"engine": "deployment", "seed": None, "operator": str(self.folder / "operator")}
        return config_of("distaim", 3, {"rounds": None}, aggregation=aggregation, runtime=runtime, **nodes)

    def remote(self, operator: str = "operator", cards: list[PartyCard] | None = None, **named: Any) -> RemoteParties:
        return RemoteParties(cards or self.cards, self.folder / operator, **named)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            stop(process)


class Driven:
    """A run of the services, and what a curator who sees everything would say."""

    def __init__(self, services: Services, parties: RemoteParties | None = None, **nodes: Any) -> None:
        self.services, self.parties = services, parties or services.remote()
        self.config = services.config(**nodes)
        cliques = contract_class("distaim")(self.config, DOMAIN).stored.cliques
        self.layout = StoredLayout(cliques, DOMAIN)
        self.announcement = Announcement(
            self.config, DOMAIN, cliques, RHO, 1, secrets.token_bytes(16), self.config.federation.clients
        )
        self.number = -1
        self.run = self.parties.begin(self.announcement)

    def sealed(self, partition: int, run: bytes | None = None) -> SealedDeal:
        codes = CODES[partition::3]
        vector = np.concatenate([table.ravel() for table in count(codes, DOMAIN, self.layout.cliques)])
        agreed = sealed_for(run or self.run, self.config, DOMAIN, self.layout.cliques)
        return seal_deal(vector.astype(np.int64), agreed, self.parties.keys, partition, rho=RHO, rows=len(codes))

    def deal(self) -> dict[int, SealedDeal]:
        deals = {k: self.sealed(k) for k in range(3)}
        assert self.parties.deal(deals) == {}
        return deals

    def opening(self, sigma: float = 10.0) -> OpenOrder:
        self.number += 1
        return OpenOrder(self.number, "measure", 1, sigma, tuple((name,) for name in DOMAIN))

    def choice(self, epsilon: float = 0.01, best: int | None = None) -> ChooseOrder:
        """With `best`, one whose outcome is certain: the penalties of all other cliques are far beyond the noise."""
        self.number += 1
        cliques = [q for q in contract_class("distaim")(self.config, DOMAIN).candidates.cliques if len(q) == 2]
        p = [np.full(DOMAIN.size(q), 1 / DOMAIN.size(q)) for q in cliques]
        cells, weights = np.array([float(len(x)) for x in p]), np.ones(len(p))
        n = len(CODES)
        terms = ChoiceTerms.of("l1", cliques, p, weights, cells, sigma=10.0, size=n, rows=n)
        if best is not None:
            penalties = np.full(len(p), 2**45)
            penalties[best] = 0
            terms = replace(terms, penalties=penalties)
        return ChooseOrder(self.number, "select", 1, epsilon, terms)

    def is_right(self, order: OpenOrder, opened: np.ndarray) -> bool:
        """Counts, within 8 standard deviations: fails by chance once in 10^13 entries."""
        exact = np.concatenate([table.ravel() for table in count(CODES, DOMAIN, list(order.cliques))])
        noise = DistributedNoise.of_parties(order.sigma, count=len(order.cliques), length=len(exact))
        far = np.abs(opened / noise.resolution - exact) / noise.sigma_of(3)
        return bool(far.max() < 8.0 and far.max() > 0.0)


def spent(services: Services) -> list[float]:
    return [services.book(name).spent for name in NAMES]


def one_sentence(error: pytest.ExceptionInfo[RunError], *said: str) -> None:
    text = str(error.value)
    assert "\n" not in text and "Traceback" not in text and len(text) < 400, text
    assert all(re.search(part, text) for part in said), text


def at(services: Services, name: str) -> str:
    return re.escape(f"party '{name}' ({services.cards[NAMES.index(name)].address})")
