"""Notes of a server on a run under way.

Another process can go on from them.

A mechanism's server half is a generator: what it does next follows from the public configuration and from the answers
that it got. So the answers are written down, and not the state that follows from them (event sourcing). To go on, the
generator is driven again from its beginning: a request of which the journal holds the answer is answered from there,
without a message and without a charge that was not made before, and the first one of which it does not is the request
that was under way.

**The order of writing is the privacy argument.** Every write is on the disk before what follows it happens.

1. `opened`: which request is under way. A request is written down before its first message leaves.
2. `charged`: each entry of the server's ledger, before the message that makes the release possible leaves, or before
   the server draws its noise. So a killed server never knows less than what clients may have released.
3. `replies`: what came back in one stage of a secure sum (and of nothing else).
4. `answered`: what the mechanism is told, with the ledger's entries. What stands of the open request is removed then.

A process that goes on sends the request under way again: the same bytes, because the generator, the ledger's totals,
the sum's numbers and the stages before it are the same. A `fedsyn node` answers the same bytes with the reply that it
has stored, and is charged once; so the server charges once too: an entry that was written down for the request under
way is not entered again (`Recorder.charged`). One that the repetition does not need stays in the ledger all the same.

**What is never written down.** An answer is written after the noise is on it; with `noise: server` the exact total
exists in memory alone, and so does whatever gives it: single replies to a plain sum, and the unmasking of a secure one
(`Aggregation.may_rest`). If the server dies between its draw of the noise and the answer's record, the exact replies
are asked for again and the noise is drawn again. The first draw was seen by nobody: it went into no message, no
file and no decision before it was lost. So of two draws on one exact total at most one is ever seen, and one charge
pays for it. In the other order (noise written down first, added later) a reader of the journal could subtract it.

**What replies rest on the disk, and for how long.** The stages of the secure sum under way: public keys, sealed shares,
masked vectors, and where the noise is the clients' also the unmasking, which gives the noisy total that is released
anyway. All of it was seen by this server. It is removed when the sum is answered, so that clients whose secrets are
stolen later do not open vectors of old sums with it.

**Models** are written down as well and not fitted again: a fit is deterministic on one machine, but the last bit of a
sum may differ between two, and a request that differs in one bit is another request. A regenerated request that is not
the one that was written down ends the run (`RunError`); nothing is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from fedsyn.aggregation.base import Aggregation
from fedsyn.errors import RunError
from fedsyn.privacy import Release
from fedsyn.protocol.record import RoundCosts, RoundRecord
from fedsyn.wire.envelope import Arrays, Reply, to_json
from fedsyn.wire.requests import Ask, Sum, Summed

#: JSON values and arrays.
Entry = Mapping[str, Any]


class Journal(Protocol):
    """Protocol of the place where a driver writes down events.

    Entries are JSON values, with NumPy arrays anywhere among them.
    """

    @property
    def key(self) -> bytes:
        """Key of the run's ordinary randomness (`Randomness.keyed`)."""

    @property
    def is_past(self) -> bool:
        """True if an earlier process's entries are left to read."""

    def past(self) -> Entry:
        """Returns the next of an earlier process's entries."""

    def add(self, entry: Entry) -> None:
        """Writes an entry, which is on the disk when this returns.

        What was kept of the request under way is removed.
        """

    def under_way(self) -> list[Entry]:
        """Returns an earlier process's notes on its last request, once.

        It was under way when that process died.
        """

    def keep(self, entry: Entry, *, first: bool = False) -> None:
        """Writes an entry about the request under way, on the disk.

        `first` marks the first one about it.
        """


class Recorder:
    """A driver's access to its journal.

    Without a journal nothing is written, and there is no past.

    Args:
        journal: of the run, or None.

    Attributes:
        known: number of the setup of secure sums that stands in the journal; None: none does.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self.known: int | None = None
        self._memory: Entry | None = None  # of the aggregation, as the past left it
        self._setup: Entry | None = None
        self._made: list[Release] = []  # charges of the request under way, by an earlier process
        self._came: list[Entry] = []  # replies to its stages
        self._asked = ""

    @property
    def is_on(self) -> bool:
        return self._journal is not None

    @property
    def key(self) -> bytes | None:
        return None if self._journal is None else self._journal.key

    @property
    def is_past(self) -> bool:
        return self._journal is not None and self._journal.is_past

    def past(self, kind: str) -> Entry | None:
        """Returns the next entry of the past, of this kind.

        None means that the past is over.
        """
        if self._journal is None or not self._journal.is_past:
            return None
        entry = self._journal.past()
        if entry["kind"] != kind:
            raise otherwise()
        return entry

    def add(self, kind: str, **facts: Any) -> None:
        if self._journal is not None:
            self._journal.add({"kind": kind, **facts})

    # Requests ---------------------------------------------------------------------------------------------------------

    def answered(self, number: int, yielded: Ask | Sum) -> Entry | None:
        """Returns the answer that an earlier process got.

        None means that the request must be asked (again).
        """
        if self._journal is None:
            return None
        self._asked = digest(yielded)
        entry = self.past("answer")
        if entry is None:
            return None
        if (entry["number"], entry["asked"]) != (number, self._asked):
            raise otherwise()
        self._memory = entry["memory"]
        if entry["setup"] is not None:
            self._setup, self.known = entry["setup"], int(entry["setup"]["number"])
        return entry

    def begin(self, number: int, sums: Aggregation | None) -> None:
        """Notes that a request begins, perhaps again.

        It begins again if an earlier process died in it.

        Args:
            number: of the request.
            sums: of the run, which get back what an earlier process wrote down of their memory and setup.
        """
        if self._journal is None:
            return
        entries = self._journal.under_way()
        if entries:
            head = entries[0]
            if (head["number"], head["asked"]) != (number, self._asked):
                raise otherwise()
            self._memory = head["memory"]
            self._made = [Release.from_dict(entry["release"]) for entry in entries if entry["kind"] == "charge"]
            self._came = [entry for entry in entries if entry["kind"] == "replies"]
        if self._memory is not None:
            if sums is not None:
                sums.remember(self._memory, self._setup)
            self._memory = self._setup = None
        if not entries:
            memory = {} if sums is None else sums.memory(None)[0]
            facts = {"kind": "open", "number": number, "asked": self._asked, "memory": memory}
            self._journal.keep(facts, first=True)

    def charged(self, release: Release) -> None:
        """Writes down a release; the ledger calls it before entering it."""
        if self._journal is None:
            return
        if release in self._made:  # on the disk already, by the process that asked first
            self._made.remove(release)
            return
        self._journal.keep({"kind": "charge", "release": release.to_dict()})

    def came(self, record: RoundRecord, costs: RoundCosts) -> dict[int, Reply] | None:
        """Returns replies that an earlier process got to the next stage.

        The stage is one of the sum under way. None means that no reply came.
        """
        if not self._came:
            return None
        entry = self._came.pop(0)
        read_round(entry, record, costs)
        return read_replies(entry["replies"])

    def keep(self, replies: Mapping[int, Reply], record: RoundRecord, costs: RoundCosts) -> None:
        """Writes down the replies to one stage of the sum under way."""
        if self._journal is not None:
            came = {"kind": "replies", "replies": write_replies(replies), **written_round(record, costs)}
            self._journal.keep(came)

    def unneeded(self) -> list[Release]:
        """Returns an earlier process's charges that asking again did not need.

        They stay charged.
        """
        left, self._made = self._made, []
        return left

    def end(
        self,
        number: int,
        answer: Mapping[int, Reply] | Summed,
        releases: Sequence[Release],
        record: RoundRecord,
        costs: RoundCosts,
        sums: Aggregation | None,
    ) -> None:
        """Writes down the answer to the request under way.

        The entry has everything that the answer changed.
        """
        if self._journal is None:
            return
        small, setup = ({}, None) if sums is None else sums.memory(self.known)
        if setup is not None:  # large: not with every answer
            self.known = int(setup["number"])
        self._came = []
        self._journal.add(
            {
                "kind": "answer",
                "number": number,
                "asked": self._asked,
                "answer": write_answer(answer),
                "releases": [release.to_dict() for release in releases],
                **written_round(record, costs),
                "memory": small,
                "setup": setup,
            }
        )


def otherwise() -> RunError:
    return RunError(
        "the run cannot be resumed: this process comes to another request than the one that was written down (another "
        "version of fedsyn or of a library it computes with?); nothing was sent. Resume with the version that began "
        "the run"
    )


# Entries -------------------------------------------------------------------------------------------------------------


def digest(yielded: Ask | Sum) -> str:
    """Returns a digest that identifies a request.

    It covers the request, whom it asks, its noise and its arrays.
    """
    facts: dict[str, Any] = {
        "name": yielded.request.name,
        "params": yielded.request.model_dump(),
        "cohort": [int(k) for k in yielded.cohort],
        "sigma": float(yielded.sigma).hex() if isinstance(yielded, Sum) else None,
    }
    hashed = hashlib.sha256(to_json(facts).encode())
    for array in yielded.arrays:
        values = np.asarray(array)
        hashed.update(json.dumps([values.dtype.str, values.shape]).encode())
        hashed.update(np.ascontiguousarray(values).tobytes())
    return hashed.hexdigest()


def write_replies(replies: Mapping[int, Reply]) -> list[Any]:
    return [[k, list(reply.arrays), dict(reply.params)] for k, reply in replies.items()]


def read_replies(written: Sequence[Any]) -> dict[int, Reply]:
    return {int(k): Reply(int(k), list(arrays), params) for k, arrays, params in written}


def write_answer(answer: Mapping[int, Reply] | Summed) -> dict[str, Any]:
    if isinstance(answer, Summed):
        arrays, sigmas = [np.asarray(a) for a in answer.arrays], [float(sigma) for sigma in answer.sigmas]
        return {"arrays": arrays, "sigmas": sigmas, "contributors": [int(k) for k in answer.contributors]}
    return {"replies": write_replies(answer)}


def read_answer(written: Entry) -> dict[int, Reply] | Summed:
    if "replies" in written:
        return read_replies(written["replies"])
    arrays: Arrays = list(written["arrays"])
    return Summed(arrays, tuple(written["sigmas"]), tuple(written["contributors"]))


def written_round(record: RoundRecord, costs: RoundCosts) -> dict[str, Any]:
    """Returns the round's record and costs as they are after a request."""
    return {"record": asdict(record), "costs": dict(vars(costs))}


def read_round(entry: Entry, record: RoundRecord, costs: RoundCosts) -> None:
    """Restores record and costs to what they were."""
    vars(record).update(vars(RoundRecord.read(entry["record"])))
    vars(costs).update(entry["costs"])
