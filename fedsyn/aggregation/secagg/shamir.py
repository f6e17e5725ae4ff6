"""Shamir's secret sharing of 256-bit secrets over a prime field.

It computes with Python's integers.

A secret is the constant term of a random polynomial of degree t - 1; a share is its value at a holder's public point.
Any t shares give the secret (Lagrange interpolation at 0), t - 1 are independent of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

PRIME = 2**256 + 297  # the smallest prime above all 256-bit secrets
SHARE = 33  # bytes of a share
_COEFFICIENT = 48  # random bytes per coefficient: modulo the prime they are within 2^-126 of uniform
FEW = 64  # shares of a secret, of which all windows are tried
_LAZY = 16  # Horner steps between two reductions: points are small, so products stay short


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """Returns one share (33 bytes) per point; `threshold` give the secret.

    Args:
        secret: at most 32 bytes.
        threshold: number t of shares that open it.
        points: positive and distinct.
    """
    size = _COEFFICIENT
    raw = os.urandom(size * (threshold - 1))
    coefficients = [int.from_bytes(raw[i : i + size], "little") % PRIME for i in range(0, len(raw), size)]
    coefficients.append(int.from_bytes(secret, "little"))
    shares = []
    for point in points:
        value = 0
        for start in range(0, threshold, _LAZY):
            for coefficient in coefficients[start : start + _LAZY]:
                value = value * point + coefficient
            value %= PRIME
        shares.append(value.to_bytes(SHARE, "little"))
    return shares


@lru_cache(maxsize=64)
def coefficients_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Returns Lagrange coefficients at 0 of distinct points.

    The secret is the sum of coefficient times share.
    """
    numerators, denominators = [], []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        numerators.append(above)
        denominators.append(below)
    return tuple(above * inverse % PRIME for above, inverse in zip(numerators, _inverses(denominators), strict=True))


def _inverses(values: Sequence[int]) -> list[int]:
    """Returns modular inverses with a single inversion (Montgomery's trick)."""
    products = [1]
    for value in values:
        products.append(products[-1] * value % PRIME)
    rest = pow(products[-1], -1, PRIME)
    result = []
    for value, before in zip(reversed(values), reversed(products[:-1]), strict=True):
        result.append(rest * before % PRIME)
        rest = rest * value % PRIME
    return result[::-1]


def join(points: tuple[int, ...], shares: Sequence[bytes]) -> bytes | None:
    """Returns the 32-byte secret that `threshold` shares give.

    It is None if the secret has more bits, so that some share is wrong.
    """
    weights = coefficients_at_zero(points)
    value = sum(w * int.from_bytes(share, "little") for w, share in zip(weights, shares, strict=True)) % PRIME
    return value.to_bytes(32, "little") if value < 1 << 256 else None


def windows(count: int, size: int) -> list[int]:
    """Returns start positions of cyclic windows of shares.

    One of the windows of `size` shares out of `count` should be without a wrong share.

    A window leaves out the `count` - `size` shares behind it. Those left out by the first few windows cover the round,
    so that whichever single share is wrong, one of them avoids it. Where shares are few the others follow, for more
    than one wrong share; where they are many that would cost count * size^2 for a single client that dealt nonsense.
    """
    if count <= size:
        return [0] if count == size else []
    first = range(0, count, count - size)
    others = [start for start in range(count) if start % (count - size)]
    return [*first, *others] if count <= FEW else [*first]
