"""Secure sums on Flower: the server learns the total of the clients' vectors in Z_2^64 and nothing else.

The cryptography is `fedsyn.aggregation.secagg`, which knows no messages; this module carries its stages, one exchange
each, and keeps a client's secrets of an unfinished sum in the state of its node. A mechanism sees no difference: it
yields a `Sum` and gets a `Summed`.

Noise of the clients (`distributed`, `local`) is added in integers before the masks, so the total that is opened is
already private. With `noise: server` the server learns the exact total and is trusted to add the noise to it.

A sum over one client (the central yardsticks) has nobody to hide among: it goes the plain way, and is refused where
the client's vector would be exact and the mechanism is not a central one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import (
    Aggregation,
    Contribution,
    Exchange,
    Limits,
    Party,
    SumSpec,
    check_contribution,
)
from fedsyn.aggregation.plain import PlainAggregation
from fedsyn.aggregation.shares import noise_plan, noisy_vector, opened, promised
from fedsyn.config import AggregationNode
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import GAUSSIAN, Ledger, Release
from fedsyn.randomness import RandomSource
from fedsyn.wire.messages import Arrays, Envelope, Sum, Summed, split_vector

if TYPE_CHECKING:
    from fedsyn.aggregation.secagg import Session
    from fedsyn.config import AggregationNode
    from fedsyn.wire.holder import Call

STATE = "secure_sum"  # of the sum that is under way, in the holder's state
LAST = "secure_sums"  # number of the last sum that this client took part in
UNMASK = "unmask"
MASKED = "masked"


class SecureAggregation(Aggregation):
    """`aggregation.protocol: secagg`."""

    name = "secagg"

    def __init__(self, node: AggregationNode, minimum: int = 1) -> None:
        super().__init__(node, minimum)
        self._run = secrets.token_hex(16)  # the server's; makes the sums of two runs of one configuration different

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.node.threat == "malicious" and self.node.noise == "server":
            raise ConfigError(
                "aggregation: threat: malicious cannot go with noise: server, which trusts it with exact totals; "
                "allowed: distributed, local"
            )
        if clients > 1:  # the session of a sum over everybody: it derives, or refuses, degree and threshold
            self._session(SumSpec(((1,),), 1.0, 1.0, 1, asked=clients), range(clients), "", 0, "", "")

    @property
    def _graph(self) -> str:
        if self.node.graph != "auto":
            return self.node.graph
        return "full" if self.node.threat == "malicious" else "sparse"

    # The client's half ------------------------------------------------------------------------------------------------

    def answer(self, party: Party) -> Arrays:
        """One stage of a secure sum. The client's vector is computed, charged and masked in one of them only."""
        if party.spec.asked == 1:
            return self._alone(party)
        stage, skip, run = (party.call.params.pop(key, None) for key in ("stage", "skip", "run"))
        arrays = party.call.arrays
        named = isinstance(stage, str) and isinstance(run, str)
        if not named or type(skip) is not int or not 0 <= skip <= len(arrays) - 2:
            raise ProtocolError("the message belongs to no stage of a secure sum")
        cohort = _read_cohort(arrays[skip], party.spec.asked)
        partition = self._own_partition(party, arrays[-1], cohort)
        session = self._session(
            party.spec, cohort, party.envelope.request, party.envelope.round, party.config_hash, run
        )
        client = self._member(party, session, partition, stage)
        state = party.holder.state
        state.pop(STATE, None)  # a client that refuses a message has left the sum: no stage is tried twice
        sent = client.answer(stage, arrays[skip + 1 : -1], lambda: self._vector(party, arrays[:skip]))
        if stage != UNMASK:
            state[STATE] = {"session": session.identifier.hex(), "client": client.to_state()}
        return sent

    def _alone(self, party: Party) -> Arrays:
        if self.node.noise == "server" and not party.central:
            raise ProtocolError("a secure sum over one client would show its exact vector")
        return PlainAggregation(self.node, self.minimum).answer(party)

    def _own_partition(self, party: Party, given: npt.NDArray[Any], cohort: tuple[int, ...]) -> int:
        """This client's place in the sum: its own id, or the one that the server gave it."""
        if given.shape != (1,) or given.dtype.kind not in "ui" or int(given[0]) not in cohort:
            raise ProtocolError("the message does not say which client of the sum it is for")
        own = party.holder.partition
        if own is not None and int(given[0]) != own:
            raise ProtocolError("the message is for another client of the sum")
        return int(given[0])

    def _member(self, party: Party, session: Session, partition: int, stage: str) -> Any:
        """This client in this session, as the stages before left it."""
        from fedsyn.aggregation.secagg import SecureSumClient

        state, number = party.holder.state, party.spec.number
        identity, roster = party.holder.identities() if self.node.threat == "malicious" else (None, None)
        if stage == session.stages[0]:
            if number <= state.get(LAST, -1):
                raise ProtocolError("this client took part in that sum, or in a later one, already")
            state[LAST] = number
            state.pop(STATE, None)  # a sum that was given up: its secrets are of no more use
            kept = None
        else:
            under_way = state.get(STATE)
            if under_way is None or under_way["session"] != session.identifier.hex():
                raise ProtocolError("this client takes part in no such secure sum")
            kept = under_way["client"]
        return SecureSumClient(session, partition, identity=identity, roster=roster, state=kept)

    def _vector(self, party: Party, arrays: Arrays) -> npt.NDArray[np.uint64]:
        """The vector to mask, in Z_2^64."""
        call = party.call
        vector = self._exact_or_noisy(party.contribution(arrays), party.spec, party.ledger, call, party.envelope)
        return vector.view(np.uint64)

    def _exact_or_noisy(
        self, contribution: Contribution, spec: SumSpec, ledger: Ledger, call: Call, envelope: Envelope
    ) -> npt.NDArray[np.int64]:
        if self.node.noise != "server":
            plan = noise_plan(self.node.noise, spec, self.limits(spec.asked))
            return noisy_vector(contribution, spec, plan, ledger, call, envelope)
        check_contribution(contribution, spec)
        if contribution.count:
            ledger.promise(
                Release(
                    envelope.request,
                    envelope.round,
                    GAUSSIAN,
                    spec.sensitivity,
                    sigma=spec.sigma,
                    count=contribution.count,
                    noise_by="server",
                )
            )
        return contribution.dense()

    def contribute(
        self, contribution: Contribution, spec: SumSpec, ledger: Ledger, call: Call, envelope: Envelope
    ) -> Arrays:
        return [self._exact_or_noisy(contribution, spec, ledger, call, envelope)]

    # The server's half ------------------------------------------------------------------------------------------------

    def run(
        self,
        request: Sum,
        *,
        exchange: Exchange,
        drop: Callable[[int, str], None],
        ledger: Ledger,
        source: RandomSource,
        round: int,
        number: int = 0,
        rows: float = 2.0**40,
        config_hash: str = "",
        note: Callable[[str], None] = lambda text: None,
    ) -> Summed:
        from fedsyn.aggregation.secagg import SecureSumAborted, SecureSumServer

        if len(request.cohort) == 1:
            return PlainAggregation(self.node, self.minimum).run(
                request,
                exchange=exchange,
                drop=drop,
                ledger=ledger,
                source=source,
                round=round,
                number=number,
                rows=rows,
                config_hash=config_hash,
                note=note,
            )
        spec, limits = SumSpec.of(request, number), self.limits(len(request.cohort))
        if limits.fewest > limits.asked:
            return Summed([], (), ())
        try:
            session = self._session(spec, request.cohort, request.name, round, config_hash, self._run)
        except ConfigError as error:
            # Everybody together would do, or the configuration had been refused: this cohort is too small to hide in.
            for partition in request.cohort:
                drop(partition, str(error))
            return Summed([], (), ())
        plan = noise_plan("distributed" if self.node.noise == "distributed" else "local", spec, limits)
        plan.check_ring(rows * spec.magnitude)
        server = SecureSumServer(session, self._server_roster())
        members = _write_cohort(request.cohort)
        while not server.done:
            stage, common, each = server.outbox()
            if stage == UNMASK and self.node.noise != "server":
                # Entered before the total is opened: a total that came too late to be used was released too.
                ledger.promise(promised(request, plan, round))
            ours = list(request.arrays) if stage == MASKED else []
            params = dict(request.params) if stage == MASKED else {}
            params |= {"sum": spec.to_text(), "stage": stage, "skip": len(ours), "run": self._run}
            addressed = {k: [*arrays, np.array([k], np.int64)] for k, arrays in each.items()}
            replies = exchange(sorted(each), request.name, "sum", params, [*ours, members, *common], addressed)
            try:
                server.receive({k: reply.arrays for k, reply in replies.items()}, drop)
            except SecureSumAborted as aborted:
                note(f"'{request.name}' was not opened: {aborted}")  # who dropped out, and why, is noted for each
                return Summed([], (), ())
        total, contributors = server.result()
        if self.node.noise != "server":
            return opened(total.view(np.int64), request, plan, contributors)
        noisy = ledger.gaussian(
            split_vector(total.view(np.int64), request.shapes),
            sigma=request.sigma,
            sensitivity=request.sensitivity,
            count=request.count,
            name=request.name,
            round=round,
            source=source,
            argument=request.argument,
        )
        return Summed(noisy, (request.sigma,) * len(request.shapes), contributors)

    def _server_roster(self) -> Mapping[int, bytes] | None:
        """Public keys by which the server finds out whose signature is bad; clients trust their own rosters only."""
        if self.node.threat != "malicious" or self.node.roster is None:
            return None
        return {k: bytes.fromhex(key) for k, key in self.node.roster.items()}

    # Both ------------------------------------------------------------------------------------------------------------

    def _session(
        self, spec: SumSpec, cohort: Sequence[int], request: str, round: int, config_hash: str, run: str
    ) -> Session:
        protection = (self.node.threat, self._graph, self.node.failure_bits)
        name = (run[:64], config_hash, request, round)
        return _session_of(protection, self.limits(len(cohort)), spec, tuple(cohort), name)

    def who_sees_what(self) -> dict[str, str]:
        share = "no more than the share aggregation.corrupted of a sum's clients"
        active = " (the server and they may deviate from the protocol)" if self.node.threat == "malicious" else ""
        if self.node.noise == "server":
            return {
                "trust": f"the server, with every exact total, and to add the noise to it; beside it, {share}{active}",
                "server": "masked vectors that are uniform to it, and the exact total of every sum",
                "noise": "the server, on the sum",
            }
        if self.node.noise == "local":
            return {
                "trust": f"nobody with a vector, which carries the full noise before it is masked; {share}{active}",
                "server": "masked vectors that are uniform to it, and every total with all clients' full noises on it",
                "noise": "each client, on its own vector",
            }
        return {
            "trust": f"nobody alone: the server may collude with {share}{active}",
            "server": "masked vectors that are uniform to it, and every total with the clients' noise on it",
            "noise": "the contributing clients, a share each, sized for the fewest honest ones",
        }


@lru_cache(maxsize=8)  # thousands of clients of a simulation share a process, and each is told of all of them
def _session_of(
    protection: tuple[str, str, int],
    limits: Limits,
    spec: SumSpec,
    cohort: tuple[int, ...],
    name: tuple[str, str, str, int],
) -> Session:
    """The public facts of a secure sum. Its identifier binds run, configuration, number, request, layout, cohort."""
    from fedsyn.aggregation.secagg import Session

    threat, graph, failure_bits = protection
    facts = json.dumps([*name, spec.to_text(), list(cohort)])
    return Session(
        identifier=hashlib.sha256(facts.encode()).digest(),
        clients=cohort,
        length=spec.length,
        dropouts=limits.dropouts,
        corrupted=limits.corrupted,
        threat=threat,
        graph=graph,
        failure_bits=failure_bits,
    )


def _write_cohort(cohort: Sequence[int]) -> npt.NDArray[np.uint8]:
    """The asked partition ids as bits: a few hundred bytes for thousands of clients."""
    bits = np.zeros(max(cohort) + 1, bool)
    bits[list(cohort)] = True
    return np.packbits(bits)


def _read_cohort(array: npt.NDArray[Any], asked: int) -> tuple[int, ...]:
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ProtocolError("the message does not say which clients take part in the secure sum")
    return _members(array.tobytes(), asked)


@lru_cache(maxsize=8)
def _members(bits: bytes, asked: int) -> tuple[int, ...]:
    cohort = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8)))
    if len(cohort) != asked:
        raise ProtocolError("the secure sum names another number of clients than it accounts for")
    return tuple(int(k) for k in cohort)
