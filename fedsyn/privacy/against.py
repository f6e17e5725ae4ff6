"""Epsilon against a coalition of holders.

A coalition knows its own shares of the noise.

A ledger charges for the noise of H honest shares (`fedsyn.privacy.distributed`). What is left of a sum's noise depends
on who looks. Of at least m contributors, k pool what they know; the holder whose row is at stake has contributed, and
is none of them. So at least max(1, m - k) shares are unknown to them. Somebody outside is k = 0, another holder alone
k = 1. The server adds what it reads (`Reads`): with secure sums nothing, as long as masks hide one holder from so many
others, which they do up to k = m - H. Beyond that, and where it reads single vectors, a row is protected by its own
holder's share alone. Epsilon is then that of the same entries with the noise that is left.

A person with all rows is one record at each of its holders (`fedsyn.privacy.unit`), so what is said of a row holds for
a person. Of a person at several holders, one of which is in the coalition, that one knows its own record; the others'
are fewer, and move a sum by less than the ledger charges.

An entry whose noise is not in shares of the clients counts as it stands: the server's own noise, a whole noise that
each client put on what it sent, the shares of a store's parties, of which the entry leaves one out already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from fedsyn.privacy.distributed import FINEST, ROUNDING, SMALLEST_SHARE
from fedsyn.privacy.release import Release, Shares

#: What a server reads of what the clients contribute: nothing but what is released; each vector, with a share of the
#: noise; or exact numbers, for which it has to be trusted.
Reads = Literal["releases", "vectors", "exact numbers"]


def left(shares: Shares, known: int, alone: bool = False) -> int:
    """Returns the shares of noise left when `known` clients pool theirs.

    Args:
        shares: of the sum.
        known: k, of others than the one whose row is at stake.
        alone: whether that one's vector can be read by itself.
    """
    return 1 if alone else max(1, shares.fewest - known)


def times_of(shares: Shares, remaining: int) -> float:
    """Returns how many times dearer a release is with `remaining` shares.

    It compares rho or mu² with that of the H shares charged.

    H s² is at least (γσ)² + r² (`fedsyn.privacy.distributed`). So j shares are a Gaussian noise of variance

        (j s² - r²)/γ² >= σ² (j/H - (1 - j/H) (r/γσ)²) for j < H, and γσ is at least `FINEST`; >= σ² j/H for j >= H.

    For thousands of shares that bound falls below 0. But s is at least `SMALLEST_SHARE`, so j s² - r² is also at least
    j s² (1 - r²/(j `SMALLEST_SHARE`²)) >= (γσ)² (j/H) (1 - r²/(j `SMALLEST_SHARE`²)).
    """
    # The share j/H of the variance that is left, by the first bound and by the one for thousands of shares.
    part = remaining / shares.honest
    fine = part - max(0.0, 1.0 - part) * (ROUNDING / FINEST) ** 2
    return 1.0 / max(fine, part * (1.0 - (ROUNDING / SMALLEST_SHARE) ** 2 / remaining))


def faced(release: Release, known: int, alone: bool) -> Release:
    """Returns the entry as it would stand with the noise left.

    `extra` is 1000 L (t + u) for H shares, where each further one adds a term to t that is below u (s is at least 3),
    so j times as much is enough for j of them.
    """
    if release.shares is None or release.sigma is None:
        return release
    remaining = left(release.shares, known, alone)
    if remaining == release.shares.honest:
        return release
    sigma = release.sigma / math.sqrt(times_of(release.shares, remaining))
    return replace(release, sigma=sigma, extra=release.extra * remaining)


def tolerated(shares: Iterable[Shares], holders: int, reads: Reads) -> int | None:
    """Returns the most holders that may pool knowledge at no price.

    With the server they then face no more than what is charged. The result is None if the server alone faces more, or
    reads exact numbers.
    """
    some = [*shares]
    if reads == "exact numbers" or (reads == "vectors" and any(one.honest > 1 for one in some)):
        return None
    return max(0, min([holders - 1, *(one.tolerated for one in some if one.honest > 1)]))


def against(
    epsilon: Callable[[int, bool], float], shares: Sequence[Shares], holders: int, reads: Reads
) -> dict[str, Any]:
    """Returns who faces which epsilon, as JSON values.

    They stand in `ledger.json` and in `fedsyn explain`.

    Args:
        epsilon: of a coalition of so many holders, which can read the vector of one other by itself, or not.
        shares: of the sums whose noise the clients draw.
        holders: n, of the run.
        reads: what the server does.

    Returns:
        `holders`, `server_reads`, `may_collude` (see `tolerated`), and `faces`: for nobody, one, the tolerated and all
        other holders, without and with the server, the epsilon that they face; None where they read exact numbers.
    """
    most = tolerated(shares, holders, reads)
    # Up to m - H colluders, masks hide each of the others from the server; beyond that it reads single vectors.
    masked = min([holders - 1, *(one.fewest - one.honest for one in shares if one.honest > 1)])
    numbers = sorted({0, min(1, holders - 1), most or 0, holders - 1})
    faces: list[dict[str, Any]] = []
    for server in (False, True):
        for k in numbers:
            alone = server and (reads == "vectors" or k > masked)
            faced_epsilon = None if server and reads == "exact numbers" else epsilon(k, alone)
            faces.append({"holders": k, "server": server, "epsilon": faced_epsilon})
    return {"holders": holders, "server_reads": reads, "may_collude": most, "faces": faces}


def in_words(faces: dict[str, Any], budget: float, hidden: str = "rows") -> list[str]:
    """Returns who faces which epsilon, in sentences.

    There are none if there is one holder.

    Args:
        faces: as `against` gives it.
        budget: epsilon as it is charged.
        hidden: what a holder has of the unit, several of them (`Unit.counted`).
    """
    holders = faces["holders"]
    if holders < 2:
        return []
    by = {(one["holders"], one["server"]): one["epsilon"] for one in faces["faces"]}
    others = holders - 1
    everybody = "the other holder" if others == 1 else f"all {others:,} other holders together"
    outside, one, all_others = by[0, False], by[1, False], by[others, False]
    sentences = [_with_the_server(faces, by)]
    if math.isclose(outside, all_others, rel_tol=1e-9):
        sentences.append(
            f"No holder knows noise that protects another one's {hidden}: epsilon is at most {at_most(outside)} "
            f"against somebody outside, against another holder and against {everybody}."
        )
        return sentences
    parts = [f"{at_most(outside)} against somebody outside, who knows what is released"]
    parts.append(f"{at_most(one)} against another holder alone, which knows its own share of the noise")
    if others > 1:
        parts.append(f"{at_most(all_others)} against {everybody}")
    sentences.append(f"Epsilon is at most {'; '.join(parts)}.")
    if one > budget * (1.0 + 1e-9):
        sentences.append(
            "aggregation.corrupted: 0 counts on nobody, so another holder faces more than the epsilon that is charged."
        )
    return sentences


def _with_the_server(faces: dict[str, Any], by: dict[tuple[int, bool], float | None]) -> str:
    holders, most = faces["holders"], faces["may_collude"]
    if faces["server_reads"] == "exact numbers":
        return "The server is trusted with exact numbers: no epsilon holds against it, or against anyone it tells."
    if most is None:
        return (
            "The server is trusted: it reads each holder's vector, with a share of the noise on it, and faces an "
            f"epsilon of up to {at_most(by[0, True])}."
        )
    if most == 0:
        return (
            f"None of the {holders:,} holders may pool what it knows with the server: one that does faces, with it, an "
            f"epsilon of up to {at_most(by[1, True])}."
        )
    pool = "what it knows" if most == 1 else "what they know"
    return (
        f"Up to {most:,} of the {holders:,} holders may pool {pool} with the server; against them, too, epsilon is at "
        f"most {at_most(by[most, True])}."
    )


def at_most(value: float | None) -> str:
    """Rounds a number up to four digits.

    A relative 1e-9, which rounding may have added, is taken off first.

    >>> at_most(1.0), at_most(1.24512), at_most(0.7961)
    ('1', '1.246', '0.7961')
    """
    if value is None or not 0.0 < value < math.inf:
        return "0" if value == 0.0 else "infinity"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1.0 - 1e-9)) * unit:.4g}"
