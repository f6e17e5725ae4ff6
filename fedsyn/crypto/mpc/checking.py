"""Products that are checked before anything is opened: what `malicious=True` adds.

Every product of a computation is logged: two factors and what came out, as shares. A party that deviates in a product
adds an error to it, and can do nothing else: the two honest parties hold all three slots, so what they hold defines a
value, x y + d, whatever the third one sent. The check (Furukawa, Lindell, Nof and Weinstein, "High-throughput secure
three-party computation for malicious adversaries and an honest majority", Eurocrypt 2017, with the gates in the place
of their last triple; Araki et al., "Optimized honest-majority MPC for malicious adversaries", S&P 2017):

1. *Triples.* Random a, b from the key streams, without a message (their third slot is uniform to any one party), and
   c = a b + e by the same kind of product as the gates. 1 round, 8 B a triple.
2. *Coin.* A secret word of 256 bits from the streams is opened. An honest party sends its slot after it has all
   triples of the party that lacks it (of the slot's other holder that party gets a digest at most). 1 round.
3. *Buckets.* The coin's key stream gives a uniform permutation. Each gate gets `size` triples, and so do `dummies`
   gates 0 * 0 = 0, which cost nothing and which nobody can make wrong.
4. *Check* (Beaver's, with one triple sacrificed): open r = x - a and s = y - b, with two copies compared before they
   are used. Then w = z - c - s x - r b, a linear function of shares, is d - e: with x = a + r and y = b + s,
   x y + d - a b - e - s (a + r) - r b = d - e. 1 round, 16 B a triple.
5. *Zero.* Each party computes what slot it does not hold if all w are 0, and compares its digest with those of both
   others' copies, one of which is honest. 1 round, 64 B. Then all say "ok" (`Rounds._agree`). 1 round, 4 B.

**Bound.** w = 0 everywhere if and only if each gate's triples have just the error of the gate. Say there are G gates
with the dummies, N = G size triples, gate errors d (fixed before the triples) and triple errors e (fixed before the
coin). Of the N! permutations those that pass are none, or prod_v n_v!, where n_v = size * (gates with error v) is also
the number of triples with error v. So the probability is 1 / multinomial(N; n_v), at most 1 / C(N, n_0). A gate is bad
and a dummy is good, so size <= n_0 <= N - size, and 1 / C(N, n_0) <= 1 / C(N, size): a single bad gate is a cheater's
best bet. `buckets` takes size and dummies such that C(N, size) >= 2^40. Errors are words: 64 ANDs are one object with
an error of 64 bits. It holds for a whole computation, not for each check: to end with a wrong product unnoticed, the
cheater has to pass the *first* check in which there is one, and each has its own coin.

**Nothing leaks in the check.** A triple is used once and a, b are uniform to each party, whatever e is: r and s are
uniform. w, d and e are known to the cheater beforehand: it knows what it ought to have sent. Whether the check fails
depends on d, e and the coin, not on a secret. A wrong copy of r would make w tell about b: so copies come first.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.mpc.dealing import KeyStream, buffer, wire
from fedsyn.crypto.mpc.network import Cheating, Network
from fedsyn.crypto.mpc.rounds import BITS, DIGEST, RING, Arithmetic, Rounds
from fedsyn.crypto.mpc.shared import Shared, Words, concatenate

SECURITY = 40  # a wrong product is noticed but with probability 2^-SECURITY
_BATCH = 750_000  # gates that are checked with one coin, at least: from 741,456 on two triples a gate suffice
_PIECE = 1 << 18  # triples in one message
_MOST = 1 << 20  # gates in the log that start a check: about 48 B each


class Buckets(NamedTuple):
    """Number of triples per gate, and of zero gates (0 * 0)."""

    size: int
    dummies: int


@functools.lru_cache(maxsize=1024)
def buckets(gates: int, security: int = SECURITY) -> Buckets:
    """Returns the fewest triples that catch a wrong gate.

    One wrong gate among `gates` passes with probability 2^-security at most (see above).
    """
    best, size = Buckets(1, max(1, 2**security - gates)), 2
    least = gates + best.dummies
    while size * (gates + 1) < least:
        enough = functools.partial(_enough, gates, size, security)
        dummies = 1 + bisect.bisect_left(range(1, 2**security), True, key=enough)
        if size * (gates + dummies) < least:
            best, least = Buckets(size, dummies), size * (gates + dummies)
        size += 1
    return best


def _enough(gates: int, size: int, security: int, dummies: int) -> bool:
    return math.comb(size * (gates + dummies), size) >= 1 << security


def assignment(seed: bytes, gates: int, size: int) -> npt.NDArray[np.int64]:
    """Returns the gate of each of gates * size triples.

    Sorting words of the seed's stream gives a uniform permutation. Equal words would make it depend on how sorting is
    done, so then all are drawn again (once in 2^23 for 2^21).
    """
    stream = KeyStream(seed)
    while True:
        keys = stream.words(gates * size)
        order = np.argsort(keys)
        keys = keys[order]
        if (keys[1:] != keys[:-1]).all():
            return order // size


class _Zeros:
    """Digests of words that must be 0.

    There is one for each of a party's two slots, and one for the slot that it lacks, computed as if the words were 0.
    """

    def __init__(self) -> None:
        self.own, self.next, self.missing = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()

    def add(self, kind: Arithmetic, share: Words, after: Words) -> None:
        self.own.update(buffer(share))
        self.next.update(buffer(after))
        self.missing.update(buffer(kind.minus(np.uint64(0), kind.plus(share, after))))


class Checking(Rounds):
    """Products that are logged and, in malicious mode, checked."""

    def __init__(self, index: int, keys: tuple[bytes, bytes], network: Network, malicious: bool = False) -> None:
        super().__init__(index, keys, network)
        self.malicious = malicious
        self._logged = 0  # gates
        self._log: dict[Arithmetic, list[tuple[Shared, Shared, Shared]]] = {BITS: [], RING: []}

    def _multiplied(self, kind: Arithmetic, x: Shared, y: Shared) -> Shared:
        z = self._product(kind, x, y)
        if self.malicious and z.size:
            self._log[kind].append((x, y, z))
            self._logged += z.size
            if self._logged >= _MOST:
                self.verify()
        return z

    def verify(self) -> None:
        """Checks all products since the last check, if there are any.

        Semi-honest parties log none. If a product is wrong, both honest parties raise Cheating, but with probability
        2^-40. It takes 24 B per triple of a product's bucket, and rounds: 3 and 2 for each 262,144 triples, for each
        kind, and 2.
        """
        self._check_running()
        if self._logged:
            try:
                self._check_all()
            except BaseException as error:  # whatever it is, these products will not be checked again
                self._over = self._over or f"a check broke off ({type(error).__name__})"
                raise

    def _check_all(self) -> None:
        zeros = _Zeros()
        for kind, log in self._log.items():
            if log:
                x, y, z = (self._flat([entry[role] for entry in log]) for role in range(3))
                log.clear()
                for start, stop in _batches(len(z) - 1):
                    self._check(kind, (x, y, z), (start, stop), zeros)
        self._logged = 0
        outgoing = {self.after: zeros.own.digest(), self.before: zeros.next.digest()}
        arrived = self._round(outgoing, {self.before: DIGEST, self.after: DIGEST})
        if any(heard != zeros.missing.digest() for heard in arrived.values()):
            raise self._ended(Cheating("a product is wrong, or its check: one party lies; nothing was opened"))
        self._agree()

    def _flat(self, parts: list[Shared]) -> Shared:
        """Joins the parts, and a 0 for the dummies."""
        zero = np.zeros(1, np.uint64)
        return concatenate([*(part.reshape(-1) for part in parts), Shared(zero, zero, self.index)])

    def _triples(self, kind: Arithmetic, count: int) -> list[tuple[Shared, Shared, Shared]]:
        """Returns random a, b and their products, in pieces."""
        pieces = []
        for start in range(0, count, _PIECE):
            length = min(_PIECE, count - start)
            a, b = self._random(length), self._random(length)
            pieces.append((a, b, self._product(kind, a, b)))
        return pieces

    def _assigned(self, gates: int, size: int) -> npt.NDArray[np.int64]:
        """Draws the gate of each triple by a coin that nobody foresees."""
        coin = self._random(4)
        return assignment(wire(BITS.sum(coin, self._missing(coin))), gates, size)

    def _check(
        self, kind: Arithmetic, gates: tuple[Shared, Shared, Shared], batch: tuple[int, int], zeros: _Zeros
    ) -> None:
        """Takes steps 1 to 4 for a batch of gates.

        Words that must be 0 go into `zeros`.
        """
        start, stop = batch
        size, dummies = buckets(stop - start)
        total = stop - start + dummies
        pieces = self._triples(kind, total * size)
        place = self._assigned(total, size)
        place = np.where(place < stop - start, place + start, len(gates[2]) - 1)
        for where in np.split(place, range(_PIECE, len(place), _PIECE)):
            a, b, c = pieces.pop(0)
            x, y, z = (part[where] for part in gates)
            masked = Shared(
                _differences(kind, (x.own, a.own), (y.own, b.own)),
                _differences(kind, (x.next, a.next), (y.next, b.next)),
                self.index,
            )
            r, s = kind.sum(masked, self._missing(masked))
            zeros.add(
                kind,
                _remainder(kind, z.own, c.own, (s, x.own), (r, b.own)),
                _remainder(kind, z.next, c.next, (s, x.next), (r, b.next)),
            )


def _batches(gates: int) -> list[tuple[int, int]]:
    """Returns start and stop of parts of about equal size.

    Each has `_BATCH` gates or a little more, if there are as many.
    """
    bounds = np.linspace(0, gates, max(1, gates // _BATCH) + 1).astype(int).tolist()
    return list(itertools.pairwise(bounds))


def _differences(kind: Arithmetic, *pairs: tuple[Words, Words]) -> Words:
    """Returns the differences, one row per pair."""
    rows = np.empty((len(pairs), len(pairs[0][0])), np.uint64)
    for row, (one, other) in zip(rows, pairs, strict=True):
        kind.minus(one, other, out=row)
    return rows


def _remainder(kind: Arithmetic, z: Words, c: Words, *factors: tuple[Words, Words]) -> Words:
    """Returns z - c minus the products."""
    left: Words = kind.minus(z, c)
    for one, other in factors:
        kind.minus(left, kind.times(one, other), out=left)
    return left
