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
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Aggregation, ClientSum, Limits, ServerSum
from fedsyn.aggregation.plain import PlainAggregation
from fedsyn.aggregation.shares import noise_of, noisy_vector, opened, promised
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import DistributedNoise
from fedsyn.settings import AggregationNode
from fedsyn.wire.envelope import Arrays, Stage, SumSpec, check_message, to_json
from fedsyn.wire.holder import MOST_PARTITIONS
from fedsyn.wire.requests import Summed

if TYPE_CHECKING:
    from fedsyn.aggregation.secagg import SecureSumClient, Session

STATE = "secure_sum"  # of the sum that is under way, in the holder's state
LAST = "secure_sums"  # number of the last sum that this client took part in
UNMASK = "unmask"
MASKED = "masked"
_UNMASKING = (UNMASK, "recover")


class SecureAggregation(Aggregation):
    """`aggregation.protocol: secagg` with `setup: sum`: every sum agrees its own keys."""

    name = "secagg"
    whose: ClassVar[str] = "a sum's clients"  # of whom no more than a share may be corrupted

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
        if clients > 1:
            self._check_everybody(clients)

    def _check_everybody(self, clients: int) -> None:
        """The session of a sum over everybody: it derives, or refuses, degree and threshold."""
        self._session(SumSpec(((1,),), 1.0, 1.0, 1, asked=clients), range(clients), "", 0, "", "")

    def room(self, spec: SumSpec, rows: float) -> DistributedNoise | None:
        """A sum in the ring of 64 bits, no longer than a client makes room for."""
        if spec.asked == 1:
            return PlainAggregation(self.node, self.minimum).room(spec, rows)
        from fedsyn.aggregation.committee.facts import LONGEST

        if spec.length > LONGEST:
            raise ConfigError(f"a secure sum has at most {LONGEST:,} entries, and one of {spec.length:,} may be needed")
        check_message(8.0 * spec.length, "aggregation.protocol: secagg")
        noise = noise_of("distributed" if self.node.noise == "distributed" else "local", spec, self.limits(spec.asked))
        noise.check_ring(rows * spec.magnitude)
        return noise

    @property
    def _graph(self) -> str:
        if self.node.graph != "auto":
            return self.node.graph
        return "full" if self.node.threat == "malicious" else "sparse"

    # The client's half ------------------------------------------------------------------------------------------------

    def answer(self, part: ClientSum) -> Arrays:
        """One stage of a secure sum. The client's vector is computed, charged and masked in one of them only."""
        if part.spec.asked == 1:
            return self.alone(part)
        stage, arrays = part.stage, part.call.arrays
        if stage is None or stage.skip > len(arrays) - 2:
            raise ProtocolError("the message belongs to no stage of a secure sum")
        cohort = read_cohort(arrays[stage.skip], part.spec.asked)
        (given,) = read_place(arrays[-1], 1)
        partition = own_partition(part, given, given in cohort)
        session = self._session(part.spec, cohort, part.name, part.call.round, part.config_hash, stage.run)
        client = self._member(part, session, partition, stage.name)
        state = part.holder.state
        state.pop(STATE, None)  # a client that refuses a message has left the sum: no stage is tried twice
        sent = client.answer(stage.name, arrays[stage.skip + 1 : -1], lambda: self.vector(part, arrays[: stage.skip]))
        if stage.name != UNMASK:
            state[STATE] = {"session": session.identifier.hex(), "client": client.to_state()}
        return sent

    def alone(self, part: ClientSum) -> Arrays:
        if self.node.noise == "server" and not part.central:
            raise ProtocolError("a secure sum over one client would show its exact vector")
        return PlainAggregation(self.node, self.minimum).answer(part)

    def _member(self, part: ClientSum, session: Session, partition: int, stage: str) -> SecureSumClient:
        """This client in this session, as the stages before left it."""
        from fedsyn.aggregation.secagg import SecureSumClient

        state, number = part.holder.state, part.spec.number
        identity, roster = part.holder.identities() if self.node.threat == "malicious" else (None, None)
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

    def vector(self, part: ClientSum, arrays: Arrays) -> npt.NDArray[np.uint64]:
        """The vector to mask, in Z_2^64; charged."""
        contribution = part.contribution(arrays)
        if self.node.noise == "server":
            return part.promised_to_server(contribution).dense().view(np.uint64)
        noise = noise_of(self.node.noise, part.spec, self.limits(part.spec.asked))
        return noisy_vector(contribution, part, noise).view(np.uint64)

    # The server's half ------------------------------------------------------------------------------------------------

    def run(self, whole: ServerSum) -> Summed:
        from fedsyn.aggregation.secagg import SecureSumAborted

        if len(whole.cohort) == 1:
            return PlainAggregation(self.node, self.minimum).run(whole)
        spec, limits = whole.spec, self.limits(len(whole.cohort))
        if limits.fewest > limits.asked:
            return Summed.nothing()
        noise = self.room(spec, whole.rows)
        assert noise is not None

        def promise() -> None:
            """Entered before the total is opened: a total that came too late to be used was released too."""
            if self.node.noise != "server":
                whole.ledger.promise(promised(whole, noise))

        try:
            total, contributors = self._form(whole, promise)
        except ConfigError as error:
            # Everybody together would do, or the configuration had been refused: this cohort is too small to hide in.
            for partition in whole.cohort:
                whole.drop(partition, str(error))
            return Summed.nothing()
        except SecureSumAborted as aborted:
            # Who dropped out, and why, is noted for each.
            whole.note(f"'{whole.name}' was not opened: {aborted}")
            return Summed.nothing()
        if self.node.noise == "server":
            return whole.with_server_noise(total.view(np.int64), contributors)
        return opened(total.view(np.int64), whole, noise, contributors)

    def _form(self, whole: ServerSum, promise: Callable[[], None]) -> tuple[npt.NDArray[np.uint64], tuple[int, ...]]:
        """The exchanges of a sum: its total in Z_2^64, and the contributors; `promise` is called before it is opened.

        Raises:
            ConfigError: the cohort is too small to hide anybody in.
            SecureSumAborted: too few were left, nothing was opened.
        """
        from fedsyn.aggregation.secagg import SecureSumServer

        session = self._session(whole.spec, whole.cohort, whole.name, whole.round, whole.config_hash, self._run)
        server = SecureSumServer(session, self.server_roster())
        members = write_cohort(whole.cohort)
        while not server.done:
            stage, common, each = server.outbox()
            if stage == UNMASK:
                promise()
            exact = stage == MASKED
            ours = whole.arrays if exact else []
            addressed = {k: [*arrays, np.array([k], np.int64)] for k, arrays in each.items()}
            replies = whole.send(
                sorted(each),
                [*ours, members, *common],
                each=addressed,
                stage=Stage(stage, len(ours), self._run),
                exact=exact,
                enough=server.enough,
            )
            server.receive({k: reply.arrays for k, reply in replies.items()}, whole.drop)
        return server.result()

    def may_rest(self, stage: Stage) -> bool:
        """All stages, but where the server draws the noise those that take the masks off: they give the exact total.

        Masked vectors alone are uniform to whoever reads them. With the unmasking they give the total, and where the
        clients have drawn the noise that is what is released.
        """
        return self.node.noise != "server" or stage.name not in _UNMASKING

    def memory(self, known: int | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return {"run": self._run}, None

    def remember(self, memory: Mapping[str, Any], setup: Mapping[str, Any] | None) -> None:
        self._run = str(memory["run"])

    def server_roster(self) -> Mapping[int, bytes] | None:
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
        share = f"no more than the share aggregation.corrupted of {self.whose} (one at least, unless that is 0)"
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
    facts = json.dumps([*name, to_json(asdict(spec)), list(cohort)])
    return Session(
        identifier=hashlib.sha256(facts.encode()).digest(),
        clients=cohort,
        length=spec.length,
        dropouts=limits.dropouts,
        corrupted=limits.colluding,
        threat=threat,
        graph=graph,
        failure_bits=failure_bits,
    )


def own_partition(part: ClientSum, given: int, is_named: bool) -> int:
    """This client's place in a sum: its own id, or the one that the server gave it and names among the others."""
    if not is_named:
        raise ProtocolError("the message does not say which client of the sum it is for")
    own = part.holder.partition
    if own is not None and given != own:
        raise ProtocolError("the message is for another client of the sum")
    return given


def read_place(array: npt.NDArray[Any], numbers: int) -> tuple[int, ...]:
    """The whole numbers by which a message says which client it is for."""
    if array.shape != (numbers,) or array.dtype.kind not in "ui":
        raise ProtocolError("the message does not say which client of the sum it is for")
    return tuple(int(number) for number in array)


def write_cohort(cohort: Sequence[int]) -> npt.NDArray[np.uint8]:
    """The asked partition ids as compressed bits: a few hundred bytes for thousands of clients."""
    bits = np.zeros(max(cohort) + 1, bool)
    bits[list(cohort)] = True
    return np.frombuffer(zlib.compress(np.packbits(bits).tobytes()), np.uint8)


def read_cohort(array: npt.NDArray[Any], asked: int | None) -> tuple[int, ...]:
    """The partition ids of `write_cohort`; `asked` is how many there have to be, where that is known."""
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ProtocolError("the message does not say which clients take part in the secure sum")
    return _members(array.tobytes(), asked)


@lru_cache(maxsize=8)
def _members(compressed: bytes, asked: int | None) -> tuple[int, ...]:
    reader = zlib.decompressobj()
    try:
        bits = reader.decompress(compressed, MOST_PARTITIONS // 8)  # never more, whatever the message unfolds to
    except zlib.error:
        raise ProtocolError("the message does not say which clients take part in the secure sum") from None
    cohort = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8)))
    if not reader.eof or (asked is not None and len(cohort) != asked):
        raise ProtocolError("the secure sum names another number of clients than it accounts for")
    return tuple(int(k) for k in cohort)
