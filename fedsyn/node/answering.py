"""What a node does with one request: the one place where a holder's policy, ledger, memory and rows meet.

The order is the argument that a holder's promise holds, whoever the server is:

1. The run's configuration must travel with the run; nothing that a server names is opened.
2. What would come of a request that was answered before is what came: its stored reply, and nothing is charged.
3. A holder is made of the node's own file: its rows, its schema, its limits; noise is the operating system's.
4. The mechanism's client half, installed here, charges and answers. The submitted app is never run.
5. What was charged and what is remembered is on the disk before anything leaves.

An attempt that was killed between its charge and its reply let nothing out. It is remembered where it began: the same
request, asked again, finds its charges there and does not pay for them a second time; any other request leaves them
spent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedsyn.aggregation.identities import load_identities
from fedsyn.config import RunConfig
from fedsyn.errors import NodeError, ProtocolError
from fedsyn.flower.bridge import refusal
from fedsyn.node.file import NodeFile
from fedsyn.node.tables import Encoding, NotRead, Tables
from fedsyn.node.task import Reply, Task, read_array, written
from fedsyn.privacy import PrivacyBudget
from fedsyn.protocol.common import Join
from fedsyn.protocol.finding import FOUND, FindingClient
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.runs.run_config import config_of, is_resolved
from fedsyn.wire.envelope import ANSWER, Envelope, from_json
from fedsyn.wire.holder import Holder

_compact = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


class Answering:
    """A holder's answers to requests.

    Args:
        file: of the node, with absolute file names.
        tables: its table in memory; None: read when it is first needed.
    """

    def __init__(self, file: NodeFile, tables: Tables | None = None) -> None:
        self.file = file
        self.tables = tables or Tables(file)
        self.runs = file.state_folder / "runs"

    def answer(self, task: Task) -> Reply:
        """The reply to a request, or a refusal that tells no more than `fedsyn.flower.bridge.refusal` lets out.

        Raises:
            NotRead: only of a `Tables` that does not read: nothing was charged, and the task may be tried again.
        """
        try:
            return self._answer(task)
        except NotRead:
            raise
        except Exception as error:
            return Reply(refusal(error))

    def _answer(self, task: Task) -> Reply:
        if not is_resolved(task.run_config):
            raise NodeError(
                "this node holds real rows: it takes a run from 'fedsyn run' only, and opens no file for it"
            )
        config = config_of(task.run_config)
        if config.runtime.engine != "deployment":
            raise NodeError("this node holds real rows: the run's runtime.engine must be 'deployment'")
        if config.runtime.seed is not None:
            raise NodeError("this node holds real rows and refuses a seeded run")
        name = str(task.run_config.get("run") or task.run)
        memory = _Memory(self.runs / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json")
        memory.require_same(config.sha256)
        digest = task.digest
        stored = memory.stored(digest)
        if stored is not None:
            return stored
        holder = self._holder(config, memory.client)
        reply = self._ask(config, holder, task)
        if is_join(task.scalars):
            return reply  # it is free and says nothing of the rows: a server that is resumed asks it in between
        memory.client = holder.state
        memory.keep(digest, reply)
        return reply

    def _ask(self, config: RunConfig, holder: Holder, task: Task) -> Reply:
        made = client_class(config.mechanism.name)
        client = made(config, holder) if holder.open_schema is None else FindingClient(config, holder, made.Contract)
        arrays, _, scalars = client.fit(list(task.arrays), dict(task.scalars))
        return Reply({key: str(value) for key, value in scalars.items()}, list(arrays))

    def _holder(self, config: RunConfig, state: dict[str, Any]) -> Holder:
        file = self.file
        encoding = Encoding.of(config, file.partition)
        rows = self.tables.get(encoding)
        if rows.schema.open and FOUND in state:
            rows = self.tables.get(encoding._replace(found=_compact(state[FOUND])))
        holder = Holder(
            file.partition,
            rows.codes,
            rows.domain,
            rows.schema_hash,
            Randomness(None),
            state,
            self._budget(config),
            again=True,
        )
        if rows.schema.open:
            holder.own, holder.open_schema = rows.own, rows.schema
        if file.identity is not None and file.roster is not None:
            holder.identities = partial(load_identities, file.identity, file.roster)
        return holder

    def _budget(self, config: RunConfig) -> PrivacyBudget:
        """The smaller of what the run asks for and what the holder allows a run, for epsilon and delta apart."""
        asked, own = config.privacy, self.file.policy.limits.per_run
        if own is None:
            return PrivacyBudget(asked.epsilon, asked.delta)
        return PrivacyBudget(min(asked.epsilon, own.epsilon), min(asked.delta, own.delta))


def is_join(scalars: Mapping[str, Any]) -> bool:
    """Whether a request asks who this is, and nothing else. It does not take the place of the last one's reply."""
    try:
        return Envelope.from_scalars(scalars).request == Join.name
    except ProtocolError:
        return False


class _Memory:
    """What a node remembers of one run, one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    @property
    def client(self) -> dict[str, Any]:
        """The client's own state."""
        state: dict[str, Any] = self._facts.get("client", {})
        return state

    @client.setter
    def client(self, state: dict[str, Any]) -> None:
        self._facts["client"] = state

    def require_same(self, config_hash: str) -> None:
        if self._facts.setdefault("config", config_hash) != config_hash:
            raise NodeError("this run's configuration is not the one that the run began with")

    def stored(self, digest: str) -> Reply | None:
        """The reply that this request got, if it is the last one that was answered.

        Raises:
            ProtocolError: it was answered before the last one: its reply is gone, and nothing is released twice.
        """
        if self._facts.get("digest") == digest:
            kept = self._facts["reply"]
            return Reply(kept["scalars"], [read_array(base64.b64decode(text)) for text in kept["arrays"]])
        if digest in self._facts.get("answered", ()):
            raise ProtocolError("this request was answered before, and others since then")
        return None

    def keep(self, digest: str, reply: Reply) -> None:
        """Everything on the disk, the reply with it if it is an answer."""
        if from_json(reply.scalars.get(ANSWER), "answer").get("ok") is True:
            arrays = [base64.b64encode(written(array)).decode() for array in reply.arrays]
            self._facts |= {"digest": digest, "reply": {"scalars": reply.scalars, "arrays": arrays}}
            self._facts.setdefault("answered", []).append(digest)
        _write(self._path, self._facts)


def _write(path: Path, facts: Mapping[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_compact(facts))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
