"""Secure sums on Flower.

The server learns the total of the clients' vectors in Z_2^64 and nothing else.

The cryptography is `fedsyn.aggregation.secagg`, which knows no messages; this module carries its stages, one exchange
each, and keeps a client's secrets in the state of its node. Keys are agreed once in a run, before its first sum; then
each sum takes one message of a client, and one more of a member of the committee. A mechanism sees no difference: it
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
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import (
    Aggregation,
    Answering,
    ClientSum,
    Contribution,
    Enough,
    Forming,
    Limits,
    Message,
    ServerSum,
    noise_of,
    noisy_vector,
    opened,
    promised,
)
from fedsyn.aggregation.plain import PlainAggregation
from fedsyn.aggregation.secagg import wire
from fedsyn.aggregation.secagg.client import CommitteeClient
from fedsyn.aggregation.secagg.facts import (
    DEAL,
    ENROL,
    LONGEST,
    MASKED,
    RECOVER,
    UNMASK,
    SecureSumAborted,
    Setup,
    SumFacts,
    committee_of,
)
from fedsyn.aggregation.secagg.server import CommitteeSumServer, Established, SetupServer, StageRequest
from fedsyn.capabilities import SECAGG
from fedsyn.errors import ConfigError, ProtocolError, RunError, refuse
from fedsyn.privacy import DistributedNoise
from fedsyn.settings import AggregationNode
from fedsyn.wire.envelope import Arrays, Stage, SumSpec, check_message, to_json
from fedsyn.wire.holder import MOST_PARTITIONS
from fedsyn.wire.requests import Summed

Totalling = Generator[Message, Any, tuple[npt.NDArray[np.uint64], tuple[int, ...]]]
STATE = "secure_run"  # what a client remembers of the run's setup, in the holder's state
_AGAIN = 8  # sums after which a setup is made again for those who are not in it, or have lost their memory of it
Shares = tuple[str, int, float, float, int]  # threat, statistical_security_bits, corrupted, dropout, minimum_cohort
_HEAD = 5  # arrays that say what a sum's stage is about: cohort, invited, enrolled, transcript, dealt
_NO_STAGE = "the message belongs to no stage of a secure sum"


class SecureAggregation(Aggregation):
    """`aggregation.protocol: secagg`."""

    capabilities = SECAGG

    def __init__(self, node: AggregationNode, minimum: int = 1) -> None:
        super().__init__(node, minimum)
        self._run = secrets.token_hex(16)  # the server's; makes the sums of two runs of one configuration different
        self._established: Established | None = None
        self._setups = 0
        self._served = 0  # sums of the present setup
        self._missed: set[int] = set()  # who did not contribute when they were asked last

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.node.threat == "malicious" and self.node.noise == "server":
            raise ConfigError(
                "aggregation: threat: malicious cannot go with noise: server, which trusts it with exact totals; "
                "allowed: distributed, local"
            )
        if clients > 1:
            self._setup(tuple(range(clients)), 0, "", "")

    def assumptions(self) -> dict[str, str | int | float]:
        bits = self.node.statistical_security_bits
        return {**super().assumptions(), "threat": self.node.threat, "statistical_security_bits": bits}

    def room(self, spec: SumSpec, rows: float) -> DistributedNoise | None:
        """Checks that a sum fits 64 bits and a client's message."""
        if spec.asked == 1:
            return PlainAggregation(self.node, self.minimum).room(spec, rows)
        if spec.length > LONGEST:
            raise ConfigError(f"a secure sum has at most {LONGEST:,} entries, and one of {spec.length:,} may be needed")
        check_message(8.0 * spec.length, "aggregation.protocol: secagg")
        noise = noise_of("distributed" if self.node.noise == "distributed" else "local", spec, self.limits(spec.asked))
        noise.check_ring(rows * spec.magnitude)
        return noise

    # The client's half ------------------------------------------------------------------------------------------------

    def answer(self, part: ClientSum) -> Answering:
        """Answers one stage.

        Only in one of them is the client's vector computed, charged and masked.
        """
        if part.spec.asked == 1:
            if self.node.noise == "server" and not part.central:
                raise ProtocolError("a secure sum over one client would show its exact vector")
            return (yield from PlainAggregation(self.node, self.minimum).answer(part))
        stage, arrays = part.stage, part.call.arrays
        if stage is None:
            raise ProtocolError(_NO_STAGE)
        if stage.name in (ENROL, DEAL):
            return self._set_up(part, stage, arrays)
        refuse(stage.name not in (MASKED, UNMASK, RECOVER) or stage.skip > len(arrays) - _HEAD - 1, _NO_STAGE)
        head, inbox = arrays[stage.skip : stage.skip + _HEAD], arrays[stage.skip + _HEAD : -1]
        partition, number, epoch = read_place(arrays[-1], 3)
        facts = self._facts(part, stage.run, head, number, epoch)
        client = self._client(part, own_partition(part, partition, facts.committee.setup.position(partition) >= 0))
        if stage.name == MASKED:
            layers = client.layers(facts, inbox)
            contribution = yield arrays[: stage.skip]
            return client.mask(facts, layers, self.vector(part, contribution))
        return client.unmask(facts, inbox) if stage.name == UNMASK else client.recover(facts, inbox)

    def _set_up(self, part: ClientSum, stage: Stage, arrays: Arrays) -> Arrays:
        is_first = stage.name == ENROL
        refuse(stage.skip != 0 or len(arrays) < (2 if is_first else 3), _NO_STAGE)
        invited = read_cohort(arrays[0], None)
        partition, number = read_place(arrays[-1], 2)
        setup = self._setup(invited, number, stage.run, part.config_hash)
        client = self._client(part, own_partition(part, partition, setup.position(partition) >= 0))
        if is_first:
            return client.enrol(setup)
        return client.deal(committee_of(setup, _bytes(arrays[1])), arrays[2:-1])

    def _client(self, part: ClientSum, partition: int) -> CommitteeClient:
        identity, roster = part.holder.identities() if self.node.threat == "malicious" else (None, None)
        state = part.holder.state.setdefault(STATE, {})
        return CommitteeClient(partition, state, identity=identity, roster=roster)

    def vector(self, part: ClientSum, contribution: Contribution) -> npt.NDArray[np.uint64]:
        """Returns the vector to mask, in Z_2^64, after it is charged."""
        if self.node.noise == "server":
            return part.promised_to_server(contribution).dense().view(np.uint64)
        noise = noise_of(self.node.noise, part.spec, self.limits(part.spec.asked))
        return noisy_vector(contribution, part, noise).view(np.uint64)

    def _facts(self, part: ClientSum, run: str, head: Arrays, number: int, epoch: int) -> SumFacts:
        """Returns the facts of a sum, by this client's own configuration.

        Who takes part is the server's word.
        """
        cohort, invited, enrolled, transcript, dealt = map(_bytes, head)
        setup = (invited, number, run[:64], part.config_hash)
        about = (part.name, part.call.round)
        return _facts_read(self._shares, setup, (enrolled, transcript, dealt), epoch, about, part.spec, cohort)

    # The server's half ------------------------------------------------------------------------------------------------

    def form(self, whole: ServerSum) -> Forming:
        if len(whole.asked.cohort) == 1:
            return (yield from PlainAggregation(self.node, self.minimum).form(whole))
        spec, limits = whole.spec, self.limits(len(whole.asked.cohort))
        if limits.fewest > limits.asked:
            return Summed.nothing()
        noise = self.room(spec, whole.rows)
        assert noise is not None
        try:
            total, contributors = yield from self._total(whole, noise)
        except ConfigError as error:
            # Everybody together would do, or the configuration had been refused: this cohort is too small to hide in.
            for partition in whole.asked.cohort:
                whole.drop(partition, str(error))
            return Summed.nothing()
        except SecureSumAborted as aborted:
            # Who dropped out, and why, is noted for each.
            whole.record.notes.append(f"'{whole.name}' was not opened: {aborted}")
            return Summed.nothing()
        if self.node.noise == "server":
            return whole.with_server_noise(total.view(np.int64), contributors)
        return opened(total.view(np.int64), spec.shapes, noise, contributors)

    def _total(self, whole: ServerSum, noise: DistributedNoise) -> Totalling:
        """Exchanges the messages of a sum, and opens its total.

        Returns the total in Z_2^64 with its contributors. It is charged before it is opened.

        Raises:
            ConfigError: the cohort is too small to hide anybody in.
            SecureSumAborted: too few were left, nothing was opened.
        """
        limits = self.limits(len(whole.asked.cohort))
        established = yield from self._ready(whole, limits)
        self._served += 1
        # The facts of the sum, and who of its cohort is not enrolled.
        committee, dealt = established.committee, wire.write_flags(established.dealt)
        keys, about = (committee.enrolled, established.transcript, dealt.tobytes()), (whole.name, whole.record.round)
        facts = _facts_of(
            self._shares, committee.setup, keys, established.epoch, about, whole.spec, tuple(whole.asked.cohort)
        )
        for partition in set(whole.asked.cohort) - {committee.setup.clients[i] for i in np.flatnonzero(facts.asked)}:
            if partition not in whole.record.dropped:  # whose refusal says why
                whole.drop(partition, "the client is not enrolled for the run's secure sums")
        # Every message of the sum starts with these arrays, and ends with this place.
        head = [write_cohort(whole.asked.cohort), write_cohort(committee.setup.clients), *map(_array, keys)]
        place = (committee.setup.number, established.epoch)
        steps = CommitteeSumServer(facts, established, whole.drop).steps()
        step = next(steps)
        while True:
            stage = step.stage
            if stage == UNMASK and self.node.noise != "server":
                # Before the total is opened: one that came too late to be used was released too.
                whole.ledger.promise(promised(whole, noise))
            ours = list(whole.asked.arrays) if stage == MASKED else []
            replies = yield Message(
                sorted(step.each),
                [*ours, *head, *step.common],
                {k: [*arrays, np.array([k, *place], np.int64)] for k, arrays in step.each.items()},
                Stage(stage, len(ours), self._run),
                exact=stage == MASKED,
                enough=step.enough,
            )
            if stage == MASKED:
                self._missed = (self._missed | set(step.each)) - set(replies)
            try:
                step = steps.send({k: reply.arrays for k, reply in replies.items()})
            except StopIteration as end:
                total: tuple[npt.NDArray[np.uint64], tuple[int, ...]] = end.value
                return total
            except SecureSumAborted:
                if stage != MASKED:  # the committee could not open it: the next sum draws another one
                    self._established = None
                raise

    def _ready(self, whole: ServerSum, limits: Limits) -> Generator[Message, Any, Established]:
        """Returns a setup for a sum.

        It is a new one if the present one is used up or lacks too many clients.
        """
        established, everyone = self._established, whole.everyone or whole.asked.cohort
        if established is not None:
            established.renew()
            enrolled = {established.committee.setup.clients[int(i)] for i in established.committee.places}
            lacking = len(set(whole.asked.cohort) & enrolled) < limits.fewest
            late = self._served >= _AGAIN and bool(self._missed or set(everyone) - enrolled)
            if not (established.is_spent or lacking or late):
                return established
        self._established = None  # whoever answers the first message of a setup has forgotten the one before
        self._established = yield from self._established_anew(whole, tuple(sorted(everyone)))
        self._served, self._missed = 0, set()
        return self._established

    def _established_anew(self, whole: ServerSum, everyone: tuple[int, ...]) -> Generator[Message, Any, Established]:
        """Enrols everybody, and has a committee of them deal keys.

        It takes two exchanges. If the server may be malicious, no member may be left out: it is done again without
        those that have not dealt.
        """
        for _ in range(1 + self.limits(len(everyone)).dropouts):
            setup = self._setup(everyone, self._setups, self._run, whole.config_hash)
            self._setups += 1
            # Enrol everybody, and let the committee deal keys.
            invited = write_cohort(everyone)
            steps = SetupServer(setup, self._roster(), whole.drop).steps()
            step = next(steps)
            while True:
                replies = yield Message(
                    sorted(step.each),
                    [invited, *step.common],
                    {k: [*arrays, np.array([k, setup.number], np.int64)] for k, arrays in step.each.items()},
                    Stage(step.stage, 0, self._run),
                    exact=False,
                    enough=self._is_enough(step, whole, everyone),
                )
                try:
                    step = steps.send({k: reply.arrays for k, reply in replies.items()})
                except StopIteration as end:
                    outcome: Established | list[int] = end.value
                    break
            if isinstance(outcome, Established):
                return outcome
            # Members that have not dealt stay out of the next setup.
            everyone = tuple(k for k in everyone if k not in outcome)
        raise SecureSumAborted("no committee could be set up: its members do not deal keys")

    def _is_enough(self, step: StageRequest, whole: ServerSum, everyone: tuple[int, ...]) -> Enough:
        """Returns a test: can some replies lead to a setup?

        The setup is this one, or the next without the clients that are missing.

        Args:
            step: of the setup. Who is missing in the first one is not enrolled, and in the second one may be left out
                of the next setup: in both the sum has to do without.
            whole: the sum.
            everyone: that was invited.
        """
        fewest, dropouts = self.limits(len(whole.asked.cohort)).fewest, self.limits(len(everyone)).dropouts

        def enough(replied: Collection[int]) -> bool:
            missing = set(step.each) - set(replied)
            does = len(set(whole.asked.cohort) & (set(everyone) - missing)) >= fewest
            if step.stage == DEAL:
                return step.enough(replied) or (does and len(missing) <= dropouts)
            return does and step.enough(replied)

        return enough

    def may_rest(self, stage: Stage) -> bool:
        """Returns whether a stage's replies may lie on the server's disk.

        If the server draws the noise, those that take the masks off may not: they give the exact total. Masked vectors
        alone are uniform to anyone who reads them. With the unmasking they give the total, and if the clients have
        drawn the noise that is what is released.
        """
        return self.node.noise != "server" or stage.name not in (UNMASK, RECOVER)

    def memory(self, known: int | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
        established, number = self._established, None
        if established is not None:
            number = established.committee.setup.number
        small = {"run": self._run, "setups": self._setups, "served": self._served, "missed": sorted(self._missed)}
        small |= {"setup": number, **({} if established is None else established.progress())}
        whole = None if established is None or number == known else established.to_entry()
        return small, whole

    def remember(self, memory: Mapping[str, Any], setup: Mapping[str, Any] | None) -> None:
        self._run = str(memory["run"])
        self._setups, self._served = int(memory["setups"]), int(memory["served"])
        self._missed, self._established = set(memory["missed"]), None
        if memory["setup"] is not None:
            if setup is None or setup["number"] != memory["setup"]:
                raise RunError("the journal lacks the setup of the run's secure sums")
            rebuilt = self._setup(tuple(setup["invited"]), int(setup["number"]), self._run, "")
            rebuilt = replace(rebuilt, identifier=bytes.fromhex(setup["identifier"]))
            self._established = Established.read(rebuilt, setup, memory)

    def _roster(self) -> Mapping[int, bytes] | None:
        """Returns the public keys by which the server finds a bad signature.

        Clients trust their own rosters only.
        """
        if self.node.threat != "malicious" or self.node.roster is None:
            return None
        return {k: bytes.fromhex(key) for k, key in self.node.roster.items()}

    # Both ------------------------------------------------------------------------------------------------------------

    @property
    def _shares(self) -> Shares:
        node = self.node
        return (node.threat, node.statistical_security_bits, node.corrupted, node.dropout, self.minimum)

    def _setup(self, invited: tuple[int, ...], number: int, run: str, config_hash: str) -> Setup:
        return _setup_of(self._shares, invited, number, run[:64], config_hash)

    def who_sees_what(self) -> dict[str, str]:
        share = "no more than the share aggregation.corrupted of a sum's clients, and of those invited to a setup "
        share += "(one at least, unless that is 0)"
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
def _facts_read(
    shares: Shares,
    setup: tuple[bytes, int, str, str],
    keys: tuple[bytes, bytes, bytes],
    epoch: int,
    about: tuple[str, int],
    spec: SumSpec,
    cohort: bytes,
) -> SumFacts:
    """Returns `_facts_of` from what a message holds.

    A cache finds bytes faster than tuples of thousands of numbers.
    """
    invited, *rest = setup
    rebuilt = _setup_of(shares, read_cohort(_array(invited), None), *rest)
    return _facts_of(shares, rebuilt, keys, epoch, about, spec, read_cohort(_array(cohort), spec.asked))


@lru_cache(maxsize=8)
def _setup_of(shares: Shares, invited: tuple[int, ...], number: int, run: str, config_hash: str) -> Setup:
    threat, statistical_security_bits, corrupted, dropout, minimum = shares
    limits = Limits.of_shares(corrupted, dropout, len(invited), minimum)
    identifier = hashlib.sha256(json.dumps([run, config_hash]).encode()).digest()
    return Setup(identifier, number, invited, limits.colluding, limits.dropouts, threat, statistical_security_bits)


def _facts_of(
    shares: Shares,
    setup: Setup,
    keys: tuple[bytes, bytes, bytes],
    epoch: int,
    about: tuple[str, int],
    spec: SumSpec,
    cohort: tuple[int, ...],
) -> SumFacts:
    """Returns the public facts of a sum.

    `keys` are the enrolled clients, the transcript, and the members that have dealt.
    """
    _, _, corrupted, dropout, minimum = shares
    limits = Limits.of_shares(corrupted, dropout, len(cohort), minimum)
    enrolled, transcript, dealt = keys
    return SumFacts(
        committee=committee_of(setup, enrolled),
        transcript=transcript,
        dealt=dealt,
        epoch=epoch,
        identifier=hashlib.sha256(json.dumps([*about, to_json(asdict(spec))]).encode()).digest(),
        number=spec.number,
        cohort=cohort,
        length=spec.length,
        fewest=limits.fewest,
        corrupted=limits.colluding,
    )


def own_partition(part: ClientSum, partition: int, is_named: bool) -> int:
    """Returns this client's place in a sum.

    It is its own id, or the one that the server gave it and names among the others.
    """
    refuse(not is_named, "the message does not say which client of the sum it is for")
    holder_partition = part.holder.partition
    if holder_partition is not None and partition != holder_partition:
        raise ProtocolError("the message is for another client of the sum")
    return partition


def read_place(array: npt.NDArray[Any], numbers: int) -> tuple[int, ...]:
    """Reads the numbers that say which client a message is for."""
    if array.shape != (numbers,) or array.dtype.kind not in "ui":
        raise ProtocolError("the message does not say which client of the sum it is for")
    return tuple(int(number) for number in array)


def write_cohort(cohort: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Writes the asked partition ids as compressed bits.

    Thousands of clients take a few hundred bytes.
    """
    bits = np.zeros(max(cohort) + 1, bool)
    bits[list(cohort)] = True
    return np.frombuffer(zlib.compress(np.packbits(bits).tobytes()), np.uint8)


def read_cohort(array: npt.NDArray[Any], count: int | None) -> tuple[int, ...]:
    """Reads the partition ids of `write_cohort`.

    `count` is how many there must be; None: any number.
    """
    return _members(_bytes(array), count)


@lru_cache(maxsize=8)
def _members(compressed: bytes, count: int | None) -> tuple[int, ...]:
    reader = zlib.decompressobj()
    try:
        bits = reader.decompress(compressed, MOST_PARTITIONS // 8)  # never more, whatever the message unfolds to
    except zlib.error:
        raise ProtocolError("the message does not say which clients take part in the secure sum") from None
    cohort = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8)))
    if not reader.eof or (count is not None and len(cohort) != count):
        raise ProtocolError("the secure sum names more or fewer clients than it accounts for")
    return tuple(int(k) for k in cohort)


def _bytes(array: npt.NDArray[Any]) -> bytes:
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ProtocolError("the message does not say which clients take part in the secure sum")
    return array.tobytes()


def _array(raw: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8)
