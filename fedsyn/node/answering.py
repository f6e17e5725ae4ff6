"""A node's answer to one request.

It is the one place where a holder's policy, ledger, memory and rows meet.

The order is the argument that a holder's promise holds, whoever the server is:

1. *Policy.* The run's configuration travels with the run, and nothing that a server names is opened or imported. The
   policy, what the ledger has left, and then a person come before anything of the run is remembered, charged or read.
2. *Ledger.* A run begins in the table's ledger for life, or is refused there, before its first answer.
3. *Memory.* The request that was answered last gets its stored reply, and nothing is charged. One that was answered and
   paid for before that is refused: nothing is released twice.
4. *Holder.* It is made of the node's own file: its rows, its schema; noise is the operating system's. The mechanism's
   client half, installed here, charges and answers. The submitted app is never run.
5. *Disk.* What is remembered, a line of the audit log, and the word that the reply leaves (`RunAccount.answered`) are
   on the disk in this order before it does.

A task that was killed between a charge and the last of these let nothing out: its charge pays for the next attempt at
the identical request (`fedsyn.ledgers.node_ledger`). So it does where the task itself could not go on: a disk
that is full, a ledger that cannot be written, memory that ran out (`Unable`). Such a refusal says which of the
machine's own resources failed, in fixed words, and is `busy`: a server asks again. Nothing of the attempt is remembered
then, and what it had drawn is gone unseen. Whatever else leaves a task after a charge, a refusal for one, ends that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from fedsyn.config import RunConfig
from fedsyn.errors import FedsynError, NodeError, ProtocolError
from fedsyn.ledgers.node_ledger import NodeLedger, RunAccount
from fedsyn.ledgers.node_lines import LedgerRun
from fedsyn.node.approvals import Approvals
from fedsyn.node.audit import Audit, Fact
from fedsyn.node.file import NodeFile
from fedsyn.node.memory import Memory, RunMemory
from fedsyn.node.policy import Policy
from fedsyn.node.tables import Encoding, NotRead, Tables
from fedsyn.node.task import NodeReply, Task, reply_bytes, reply_of
from fedsyn.protocol.common import Join
from fedsyn.protocol.finding import FOUND
from fedsyn.runs.holders import client_of, holder_of
from fedsyn.wire.envelope import ENVELOPE, from_json
from fedsyn.wire.holder import Holder
from fedsyn.wire.refusals import Refusal, answer_of, refusal_of

#: Charges of one run: many small ones would cost no budget to speak of, and disk and time of every later request.
MOST_CHARGES = 25_000
_compact = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_log = logging.getLogger("fedsyn.node")


class Answering:
    """A holder's answers to requests.

    Args:
        file: of the node, with absolute file names.
        tables: its table in memory; None: read when it is first needed.

    Raises:
        ConfigError: something that the file names cannot be used, or the ledger is missing, damaged, or older than what
            a run remembers of it.
    """

    def __init__(self, file: NodeFile, tables: Tables | None = None) -> None:
        self.file = file
        self.tables = tables or Tables(file)
        self.policy = Policy(file)
        self.approvals = Approvals(file.state_folder / "approvals")
        self.book = NodeLedger(file.ledger_file, file.policy.limits)
        self.memory = Memory(file.state_folder / "runs", file.data_key)
        for head in self.memory.heads():
            self.book.require(head)
        self.memory.forget()
        self.audit = Audit(file.state_folder / "audit.jsonl")

    def answer(self, task: Task) -> NodeReply:
        """Returns the reply to a request, or a refusal.

        A refusal tells no more than `fedsyn.wire.refusals.refusal_of` lets out.

        Raises:
            NotRead: only of `Tables` that do not read: nothing was charged, and the task may be tried again.
        """
        facts: dict[str, Fact] = {"flower_run": str(task.run), "app": task.fab_hash, "request": _request(task)}
        try:
            return self._answer(task, facts)
        except NotRead:
            raise
        except Exception as error:
            return self._refused(error, facts)

    def end(self, runs: Iterable[str]) -> None:
        """Frees what runs that are over have kept from others.

        What is remembered of them stays for a while: a run that failed may be resumed.
        """
        for run in runs:
            try:
                self.book.end(run)
                self.memory.forget()
            except FedsynError as error:
                _log.error("run '%s' could not be ended in the ledger: %s", run, error)

    def _answer(self, task: Task, facts: dict[str, Fact]) -> NodeReply:
        admitted = self.policy.admit(task.run_config, task.scalars)
        config, name = admitted.config, admitted.subject.run
        facts |= {"run": name, "configuration": admitted.subject.config, "mechanism": config.mechanism.name}
        facts |= {"operator": admitted.operator, "digest": task.digest}
        run = LedgerRun.of(config, admitted.subject.config, admitted.subject.schema)
        self.book.require_taken(name, run)  # nobody is asked about a run that the ledger would refuse
        if self.policy.needs_approval:
            self.approvals.require(admitted.subject, admitted.operator, config.to_dict())
        account = self.book.account(name, run, task.digest)
        memory = self.memory.load(name, account.memory)
        self.book.require(memory.head)
        if memory.digest == task.digest and memory.reply is not None:
            self.audit.write(event="repeated", **facts)
            if account.repeats(memory.attempt, memory.number):
                return reply_of(memory.reply)
        elif any(each.request == task.digest and each.answered for each in self.book.runs[name].charges):
            raise ProtocolError("this request was answered before, and others since then: nothing is released twice")
        if len(account.releases) >= MOST_CHARGES:
            raise NodeError("this run has charged as often as a run may at this node; nothing was released")
        holder = self._holder(config, memory.state, account)
        before = self.book.spent
        self.audit.write(event="asked", **facts)
        reply = self._ask(config, holder, task)
        # A server that is resumed asks who this is in between: that takes the place of no stored reply. The first time
        # the answer may be a number of rows that follows from coins of the holder's: those are kept.
        is_kept = admitted.request != Join.name or bool(holder.state and not memory.number)
        if is_kept:
            self._keep(name, memory, holder.state, account, reply, task.digest)
        answer = answer_of(reply.scalars)
        is_refusal = isinstance(answer, Refusal)
        self.audit.write(
            event="refused" if is_refusal else "answered",
            **facts,
            why=str(answer) if is_refusal else None,
            rho=self.book.spent - before,
            epsilon_of_life=self.book.epsilon,
        )
        account.answered(memory.number if is_kept else 0)
        return reply

    def _ask(self, config: RunConfig, holder: Holder, task: Task) -> NodeReply:
        arrays, _, scalars = client_of(config, holder).fit(list(task.arrays), dict(task.scalars))
        return NodeReply({key: str(value) for key, value in scalars.items()}, list(arrays))

    def _keep(
        self, run: str, memory: RunMemory, state: dict[str, Any], account: RunAccount, reply: NodeReply, digest: str
    ) -> None:
        """Keeps what the run has to remember.

        It keeps the reply, too, if that is an answer: a refusal may be another one next time.
        """
        memory.state, memory.head = state, account.head
        if not isinstance(answer_of(reply.scalars), Refusal):
            memory.digest, memory.reply, memory.attempt = digest, reply_bytes(reply), account.attempt
        self.memory.save(run, memory)

    def _holder(self, config: RunConfig, state: dict[str, Any], account: RunAccount) -> Holder:
        file = self.file
        encoding = Encoding.of(config)
        rows = self.tables.get(encoding)
        if rows.schema.open and FOUND in state:
            rows = self.tables.get(encoding._replace(found=_compact(state[FOUND])))
        keys = None if file.identity is None or file.roster is None else (file.identity, file.roster)
        return holder_of(rows, file.partition, state, config.privacy.budget, keys, account)

    def _refused(self, error: Exception, facts: dict[str, Fact]) -> NodeReply:
        """Returns a refusal that the client half did not decide.

        It was not asked yet, or something could not be written.
        """
        refusal = refusal_of(error)
        try:
            self.audit.write(event="refused", **facts, why=str(refusal))
        except FedsynError as full:
            _log.error("%s", full)
        return NodeReply(refusal.scalars)


def _request(task: Task) -> str:
    """Returns the name of a request, for the audit log.

    '?' if the message is not a request.
    """
    try:
        return str(from_json(task.scalars.get(ENVELOPE), "envelope").get("request", "?"))[:40]
    except ProtocolError:
        return "?"
