"""How many rows of a client take part, found from noisy counts of clients: the grid, and the rule that chooses.

Where `privacy.rows_per_client` is 'auto', every client first says in which cell of a public grid its row count lies:
one entry of 1 in a vector of zeros, and zeros alone if it has no rows. The sum of these vectors is released with noise;
the cap c is a function of it and of public facts, the same at the server and at every client, and public from then on.

**Sensitivity.** A client is one entry of one cell, whatever its rows are. Beside a federation in which it has none, its
vector moves by 1 in L2 norm; with its rows exchanged for others by 0 or sqrt(2): as counts do, with a client in the
place of a row. So the release is the same for one client as a marginal is for one row, and nothing multiplies it: the
cap is not known yet, and is not needed (`fedsyn.privacy.unit.UNCAPPED`).

**Whatever c comes out**, what follows is private: c is public when it is used, and a client's ledger pays for c rows
in each release. A server that lied about the counts would choose how much noise the sums have, and how many rows are in
them, as somebody does who writes c into the configuration; clients still refuse a c that the rule does not give.

**The rule.** Let client k have n_k rows, N in all, of which N_c take part, min(n_k, c) each. Two things are off in an
estimated share of a value, and c is the entry of the grid with the least sum of both, in expectation:

- *noise*: c sigma / N_c in each cell, where sigma is for one row. If the whole budget went to the one-way marginals of
  d attributes, sigma^2 = d / (2 rho), and the squared error of one of them is S (c / N_c)^2 on average, with
  S = (cells of all attributes) / (2 rho);
- *sampling*: clients stand for other shares of the rows than they have, by sum_k (n_k / N - min(n_k, c) / N_c)^2 at
  most (rows of a client all alike; how many it has says nothing of what they are), and of each some are drawn only, by
  1/N_c - 1/N at most (rows unlike each other). It is the squared error of a whole marginal but for a factor below 1.

The first grows with c, for N_c grows more slowly than c; the second falls. Mechanisms measure more than one-way
marginals, so their noise is larger: the rule rather takes too many rows than too few.

*The counts are noisy.* The last cell for which the number of clients in it and beyond stands out of the noise is
looked for, and what lies behind it is taken for empty. The other counts become numbers of clients, at least 0 each and
together at most the clients that answered: the nearest such numbers, a projection. A client counts with the least
number of rows of its cell. Where nothing stands out, c is 1: there the noise is least against the rows, and there are
too few clients for anything else to matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

#: Probability with which noise alone makes a cell behind the largest client's look as if somebody were there.
FALSE_ALARM = 0.01


@lru_cache(maxsize=16)
def grid(largest: int) -> tuple[int, ...]:
    """Ascending row counts, each about sqrt(2) times the one before: a client is in the last cell that begins within
    its rows.

    >>> grid(50)
    (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 50)

    Args:
        largest: the last one, which stands for all beyond: `privacy.largest_cap`.
    """
    steps = (round(2.0 ** (j / 2)) for j in range(64))
    return (*dict.fromkeys(step for step in steps if step < largest), largest)


def place(rows: int, cells: Sequence[int]) -> int | None:
    """The cell of a client with this many rows; None without rows."""
    return max((j for j, least in enumerate(cells) if least <= rows), default=None)


def clients_in(counts: Sequence[float], sigma: float, clients: int) -> list[float]:
    """Numbers of clients by cell, from noisy ones: none is negative, and there are no more than took part.

    Args:
        counts: noisy.
        sigma: standard deviation of the noise on each.
        clients: K, those whose vectors are in the sum.
    """
    number, tail, last = len(counts), 0.0, -1
    z = NormalDist().inv_cdf(1.0 - FALSE_ALARM / number)
    for j in range(number - 1, -1, -1):
        tail += counts[j]
        if tail > z * sigma * math.sqrt(number - j):
            last = j
            break
    kept = list(counts[: last + 1])
    found = [max(0.0, count) for count in kept]
    if math.fsum(found) <= clients:
        return found + [0.0] * (number - len(found))
    above, level = 0.0, 0.0  # projection onto numbers that sum to K: all less the same level, cut off at 0
    for i, count in enumerate(sorted(kept, reverse=True), start=1):
        above += count
        if count <= (above - clients) / i:
            break
        level = (above - clients) / i
    return [max(0.0, count - level) for count in kept] + [0.0] * (number - len(kept))


def predicted(cap: int, cells: Sequence[int], clients: Sequence[float], noise: float) -> float:
    """Squared error of a one-way marginal in shares, at most, with at most `cap` rows of each client.

    Args:
        cap: c, one of `cells`.
        cells: the grid.
        clients: numbers of clients by cell, not all 0.
        noise: S.
    """
    rows = math.fsum(k * n for k, n in zip(clients, cells, strict=True))
    kept = math.fsum(k * min(n, cap) for k, n in zip(clients, cells, strict=True))
    shares = math.fsum(k * (n / rows - min(n, cap) / kept) ** 2 for k, n in zip(clients, cells, strict=True))
    return noise * (cap / kept) ** 2 + shares + (1.0 / kept - 1.0 / rows)


def cap_of(counts: Sequence[float], sigma: float, clients: int, largest: int, noise: float) -> int:
    """c. Only sums, products and square roots that round correctly: the same on every machine.

    Args:
        counts: noisy, of clients, by the cells of `grid(largest)`.
        sigma: standard deviation of the noise on each.
        clients: K, those whose vectors are in the sum.
        largest: the largest that c may become.
        noise: S, above.
    """
    cells, found = grid(largest), clients_in(counts, sigma, clients)
    if not any(found):
        return cells[0]
    return min(cells, key=lambda cap: predicted(cap, cells, found, noise))


def left_out(cap: int, counts: Sequence[float], sigma: float, clients: int, largest: int) -> float:
    """The share of the rows that do not take part, as the noisy counts have it; a client's beyond `largest` unknown."""
    cells, found = grid(largest), clients_in(counts, sigma, clients)
    rows = math.fsum(k * n for k, n in zip(found, cells, strict=True))
    kept = math.fsum(k * min(n, cap) for k, n in zip(found, cells, strict=True))
    return 1.0 - kept / rows if rows else 0.0


__all__ = ["cap_of", "clients_in", "grid", "left_out", "place", "predicted"]
