"""Size of a committee, for given corruption, dropouts and threat.

n clients are enrolled. A fixed set of at most c of them colludes with the server, a fixed set of at most d drops out,
and the m members are drawn at random afterwards, so independently of both. Three numbers follow for the committee: at
most `corrupted` members collude, at most `lost` members are gone, and `threshold` shares give the key of a member
that is gone. With H(n, x, m) the number of marked clients among m that are drawn without replacement from n of which
x are marked,

1. security: P[H(n, c, m) > corrupted] <= 2^-statistical_security_bits;
2. correctness: P[H(n, d, m) > lost] <= 2^-statistical_security_bits;
3. one layer is always left: m - corrupted - lost >= 1 (semi-honest);
   m - corrupted - 2 lost >= 1 (malicious, see below).

The threshold is m - lost: as many shares as there are sure to be, and so more than `corrupted`.

**Malicious.** The server may tell each honest member another story about who is gone. A member gives its shares of at
most `lost` keys of an epoch, so h = m - corrupted honest members give at most h * lost shares of honest keys. Each
key takes at least threshold - corrupted of them. Fewer than h keys can be had as long as lost < threshold -
corrupted, which is (3): at least one honest key of each epoch is never revealed. And it may draw many committees
before it shows one, by the name of its run or by who it says is enrolled: with 2^64 trials (1) holds if it is asked
of 64 further bits. A committee of everybody needs no luck: c and d are then its own numbers, with certainty.

All probabilities are exact fractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from fedsyn.errors import ConfigError

FEWEST = 10  # members, or everybody: among few clients each one is then protected by its own layer too
MOST = 512  # members: each seals a share for every other one
TRIALS = 64  # bits of work that a malicious server is granted for choosing among committees


@dataclass(frozen=True)
class Size:
    """Numbers of a committee.

    Attributes:
        members: m.
        corrupted: most members that collude with the server.
        lost: most members whose key may be revealed because they are gone, in one epoch.
        threshold: shares that give such a key.
    """

    members: int
    corrupted: int
    lost: int

    @property
    def threshold(self) -> int:
        return self.members - self.lost

    def protects(self, malicious: bool) -> bool:
        """Returns whether at least one honest member's key is never revealed."""
        return self.members - self.corrupted - (2 if malicious else 1) * self.lost >= 1


def hypergeometric_tail(population: int, marked: int, draws: int, least: int) -> Fraction:
    """Returns the exact upper tail of a hypergeometric distribution.

    It is P[at least `least` of `draws` drawn without replacement are among the `marked` of `population`].
    """
    if least <= 0:
        return Fraction(1)
    first, last = max(least, draws - population + marked), min(marked, draws)
    if first > last:
        return Fraction(0)
    ways = term = math.comb(marked, first) * math.comb(population - marked, draws - first)
    for j in range(first, last):  # each term from the one before: the division leaves no rest
        term = term * ((marked - j) * (draws - j)) // ((j + 1) * (population - marked - draws + j + 1))
        ways += term
    return Fraction(ways, math.comb(population, draws))


@lru_cache(maxsize=64)
def derive(n: int, corrupted: int, dropouts: int, statistical_security_bits: int, malicious: bool) -> Size:
    """Returns the smallest committee that keeps the module's promises.

    It has at least min(n, 10) members.

    Args:
        n: enrolled clients.
        corrupted: c, most clients that collude with the server.
        dropouts: d, most clients that drop out.
        statistical_security_bits: see above.
        malicious: whether server and corrupted clients may deviate.

    Raises:
        ConfigError: if not even a committee of everybody, or of 512, protects.
    """
    drawn = Fraction(1, 2 ** (statistical_security_bits + TRIALS * malicious))
    gone = Fraction(1, 2**statistical_security_bits)
    bad = lost = 0  # neither falls with the size: whoever draws more draws no fewer marked ones
    for members in range(min(n, FEWEST), min(n, MOST + 1)):
        bad = _least(n, corrupted, members, drawn, bad)
        lost = _least(n, dropouts, members, gone, lost)
        size = Size(members, bad, lost)
        if size.protects(malicious):
            return size
    if n > MOST:
        raise ConfigError(
            f"no committee of {MOST} out of {n} clients protects if {corrupted} of them may collude with the server "
            f"and {dropouts} may drop out: lower aggregation.corrupted or aggregation.dropout"
        )
    everybody = Size(n, corrupted, dropouts)
    if not everybody.protects(malicious):
        times = "twice those that may drop out" if malicious else "those that may drop out"
        raise ConfigError(
            f"a secure sum needs more clients than those that may collude with the server and {times}; "
            f"here {n} clients, {corrupted} and {dropouts}. Ask more clients, or lower aggregation.dropout or "
            "aggregation.corrupted"
        )
    return everybody


def _least(n: int, marked: int, draws: int, allowed: Fraction, start: int) -> int:
    """Returns the least k >= start with P[H(...) > k] <= allowed."""
    while hypergeometric_tail(n, marked, draws, start + 1) > allowed:
        start += 1
    return start
