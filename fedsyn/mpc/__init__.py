"""Exact computation on secrets of Z_2^64 among three parties of which at most one is corrupted.

Replicated secret sharing after Araki, Furukawa, Lindell, Nof and Ohara, "High-throughput semi-honest secure three-party
computation with an honest majority" (CCS 2016): x = x_0 + x_1 + x_2 mod 2^64, party i holds the slots i and i + 1.
Pure: knows no messages, no mechanism, no Flower. Every party runs the same program, in a thread or in a process:

    session = Session(index, (key of slot index, key of slot index + 1), network)
    table = received(index, seeds, correction, length)            # what a client dealt
    sums = session.l1(table, starts, bits=28)
    best = session.argmax(sums, bits=40)                          # the only thing that is opened

| operation | rounds | bytes that one party sends |
|---|---|---|
| linear functions, public constants, slices, marginals (`Shared`) | 0 | 0 |
| `input`, `sum_of_inputs`, `multiply` | 1 | 8 per element (`input`: the owner alone) |
| `inner`, `squared` | 1 | 8 per segment |
| `and_planes` | 1 | 8 per word of 64 gates |
| `negative` | 2 + ceil(log2(bits - 2)) | below bits / 2 per value |
| `l1` | `negative` + 2 | `negative` + 16 per element + 8 per segment |
| `argmax` of one level (to 512 values) | `negative` + ceil(log2(m - 1)) + 1 | `negative` of all pairs + m^2 / 8 |
| `open` | 1 | 8 per element + 32 |
| `shares_for_server` | 0 | 8 per element + 32, to the server |

**Semi-honest.** One party that follows the protocol learns what is opened and nothing else: everything it receives is
masked with the stream of the one key that it does not hold, each word of a stream used once (`Gates`). Keys must be
fresh for each session. Results are exact and do not depend on keys. Two parties together know everything.

**Not covered.** Wrong inputs: a client or a party may share what it likes. What the opened values say by themselves.
Lengths, bounds and the program are public. A party can always end the computation. Python wipes no secrets.
"""

from fedsyn.mpc.dealing import Dealt, ServerShare, deal, received, reconstruct
from fedsyn.mpc.local import in_threads
from fedsyn.mpc.network import Cheating, LocalNetwork, Network, PartyGone
from fedsyn.mpc.session import Session
from fedsyn.mpc.shared import Shared, concatenate

__all__ = [
    "Cheating",
    "Dealt",
    "LocalNetwork",
    "Network",
    "PartyGone",
    "ServerShare",
    "Session",
    "Shared",
    "concatenate",
    "deal",
    "in_threads",
    "received",
    "reconstruct",
]
