"""A crypto party as a `fedsyn party serve` process with TLS on localhost, and a record of all that it sends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsyn import yamlio
from fedsyn.config import RunConfig, load_options
from fedsyn.front.testing.harness import config_of
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.ledgers.party_ledger import PartyLines, read_party_lines
from fedsyn.privacy import PrivacyBudget
from fedsyn.settings import PartyCard
from fedsyn.stores.parties.remote import RemoteCryptoParty
from support.loopback import BIN, environment, free_port, stop

NAME = "elder"
TABLE = awkward_table("missing_values")
DOMAIN, CODES = TABLE.schema.domain, TABLE.encode()
RHO = PrivacyBudget(1.0, 1e-5).rho
MECHANISMS = ["fhaim", "sketch_aim", "distributed_aim"]
POLICY = {"epsilon_per_run": 1.0, "epsilon_total": 50.0, "delta": 1e-5, "mechanisms": MECHANISMS}
CLIENTS, ROUNDS = 3, 2
PRIVATE = {"client_sizes": "private"}
ROSTER = {k: simulated_identities(k, CLIENTS)[0].public.hex() for k in range(CLIENTS)}
#: The configurations that the party of most tests has pinned, with their clients' keys.
PINNED: list[dict[str, Any]] = [
    {},
    {"options": {"rounds": None}},
    {"mechanism": "sketch_aim"},
    {"mechanism": "distributed_aim", "privacy": PRIVATE},
]


class CryptoServices:
    """A crypto party's folder and its process; `close` stops it.

    Args:
        folder: of everything.
        operators: that the party has pinned; the first one drives.
        policy: of the party.
        pinned: the configurations that it has agreed to; None: any, so that it knows no client.
        settings: of `party.yaml`.
    """

    def __init__(
        self,
        folder: Path,
        operators: tuple[str, ...] = ("operator",),
        policy: Mapping[str, Any] | None = None,
        pinned: list[dict[str, Any]] | None = PINNED,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.servers: list[Recorded] = []
        self.file: dict[str, Any]
        self.process: subprocess.Popen[bytes] | None = None
        self.keygen(NAME, "--address", f"127.0.0.1:{free_port()}")
        for name in {"operator", *operators}:
            self.keygen(name, "--operator")
        pins = [f"../{operator}/certificate.pem" for operator in operators]
        self.card = load_options(PartyCard, folder / NAME / "card.yaml")
        self.file = {"role": "crypto", "operators": pins, **settings, "policy": {**POLICY, **(policy or {})}}
        self.pin(None if pinned is None else [self.config(**nodes).sha256 for nodes in pinned])
        self.start()

    def pin(self, hashes: list[str] | None) -> None:
        """Which configurations the party agrees to, from its next start on."""
        document = {**self.file, "policy": {**self.file["policy"], "configurations": hashes}}
        (self.folder / NAME / "party.yaml").write_text(yamlio.dumps(document), encoding="utf-8")

    def keygen(self, name: str, *options: str) -> None:
        from fedsyn.front.cli import app

        app(["party", "keygen", str(self.folder / name), "--name", name, *options], standalone_mode=False)

    def start(self) -> None:
        ready = self.log().count("spent so far") + 1
        with (self.folder / f"{NAME}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(BIN / "fedsyn"), "party", "serve", "party.yaml"],
                cwd=self.folder / NAME,
                env=environment(self.folder / "home"),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_for("spent so far", ready)

    def wait_for(self, text: str, times: int = 1, patience: float = 30.0) -> None:
        """Until the party's log says something."""
        deadline = time.monotonic() + patience
        while self.log().count(text) < times:
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the party does not say '{text}':\n{self.log()}")
            time.sleep(0.02)

    def signal(self, kind: signal.Signals) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, kind)

    def kill(self) -> None:
        assert self.process is not None
        self.signal(signal.SIGKILL)
        self.process.wait(10.0)

    def log(self) -> str:
        path = self.folder / f"{NAME}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def book(self) -> PartyLines:
        return read_party_lines(self.folder / NAME / "ledger.jsonl")

    @property
    def spent(self) -> float:
        return self.book.spent

    def config(self, mechanism: str = "fhaim", **nodes: Any) -> RunConfig:
        card = nodes.pop("card", self.card)
        crypto = {"crypto": card.model_dump(), "roster": ROSTER, **nodes.pop("aggregation", {})}
        aggregation = {"protocol": "fhe", "noise": "distributed", **crypto}
        runtime = {"engine": "deployment", "seed": None, "operator": str(self.folder / "operator")}
        options = nodes.pop("options", {"rounds": ROUNDS})
        return config_of(mechanism, CLIENTS, options, aggregation=aggregation, runtime=runtime, **nodes)

    def remote(self, operator: str = "operator", card: PartyCard | None = None) -> Recorded:
        self.servers.append(Recorded(card or self.card, self.folder / operator))
        return self.servers[-1]

    def end_runs(self) -> None:
        """So that a test that failed leaves nothing to the next one."""
        while self.servers:
            self.servers.pop().end()

    def close(self) -> None:
        if self.process is not None:
            stop(self.process)


class Recorded(RemoteCryptoParty):
    """Keeps every byte that the service sends in answer to a call."""

    def __init__(self, *facts: Any, **named: Any) -> None:
        super().__init__(*facts, **named)
        self.heard: list[bytes] = []

    def _call(self, index: int, method: str, message: bytes, timeout: float) -> Any:
        return _Heard(super()._call(index, method, message, timeout), self.heard)


class _Heard:
    def __init__(self, future: Any, heard: list[bytes]) -> None:
        self._future, self._heard = future, heard

    def result(self) -> bytes:
        self._heard.append(self._future.result())
        return self._heard[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)
