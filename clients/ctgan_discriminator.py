"""The discriminator of (Fed) DP-CTGAN, and its clipped gradients.

It imports JAX, so it is loaded when used.

Two hidden layers with leaky ReLU, as in CTGAN (Xu et al. 2019, Section 4.4), which scores a one-hot row and the
condition under which it was drawn. No dropout, and one row at a time (CTGAN looks at packs of ten): a row's gradient
depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax_privacy.clipping import clip_pytree

Parameters = tuple[Any, ...]

#: Rows whose gradients are formed at once. Always so many, so that one compiled program serves every batch.
CHUNK = 32


def score(parameters: Parameters, seen: Any) -> Any:
    """Returns the logit of "real".

    `seen` is a row and its condition, one-hot, (..., 2 C).
    """
    return _from_first_layer(seen @ parameters[0], parameters[1:])


def _from_first_layer(sums: Any, others: Parameters) -> Any:
    b1, w2, b2, w3, b3 = others
    hidden = jax.nn.leaky_relu(sums + b1, 0.2)
    hidden = jax.nn.leaky_relu(hidden @ w2 + b2, 0.2)
    return (hidden @ w3 + b3)[..., 0]


def _real_loss(weights: tuple[Any, Parameters]) -> Any:
    """-log of the probability of "real" that a real row gets.

    `weights`: the (d + 1, hidden) rows of the first weights that a one-hot row and its condition pick, and all other
    parameters. The other weights of the first layer have gradient 0.
    """
    picked, others = weights
    return jax.nn.softplus(-_from_first_layer(picked.sum(axis=0), others))


@partial(jax.jit, static_argnames=("clip", "steps"))
def _chunk(parameters: Parameters, places: Any, taken: Any, clip: float, steps: int) -> list[Any]:
    """Sums a chunk's clipped gradients, in whole steps.

    `places`: (CHUNK, d + 1) distinct inputs of the first layer that are 1.
    """
    first, others = parameters[0], parameters[1:]
    size = places.shape[1] * first.shape[1] + sum(array.size for array in others)
    # A norm of so many numbers in single precision is off by at most size 2^-24 of itself, a quotient by 2^-24.
    safe = clip * (1.0 - (size + 64) * 2.0**-24)

    def whole(place: Any, is_taken: Any) -> Any:
        gradient = jax.grad(_real_loss)((first[place], others))
        clipped, _ = clip_pytree(gradient, clip_norm=safe, return_zero=~is_taken)
        # Towards zero, so that rounding never lengthens it; 32 rows of at most 2^24 steps fit into 32 bits.
        return jax.tree.map(lambda g: jnp.trunc(g * (steps / clip)).astype(jnp.int32), clipped)

    picked, rest = jax.vmap(whole)(places, taken)
    whole_first = jnp.zeros(first.shape, jnp.int32).at[places.ravel()].add(picked.reshape(-1, first.shape[1]))
    return [whole_first, *(table.sum(axis=0) for table in rest)]


def clipped_sum(
    parameters: Sequence[npt.NDArray[Any]],
    codes: npt.NDArray[np.integer],
    shape: Sequence[int],
    attribute: int,
    clip: float,
    steps: int,
) -> npt.NDArray[np.int64]:
    """Returns the sum of the rows' clipped gradients, (P,).

    Each gradient is rounded towards zero to whole steps of clip / steps.

    A row's part has an L2 norm of at most `steps`, whatever the parameters are: its gradient is clipped first
    (jax-privacy's `clip_pytree`, which turns what is no number into 0), with room for the rounding of the norm, and
    rounding towards zero does not lengthen it. The sum is of integers, so it is exact in any order.

    Args:
        parameters: of the discriminator, in the order of `Ctgan.shapes`.
        codes: (n, d) rows.
        shape: (d,) values of each attribute.
        attribute: the one whose value is a row's condition.
        clip: of the L2 norm of a row's gradient.
        steps: that the clipping norm is divided into, at most 2^24.
    """
    weights = tuple(jnp.asarray(array, jnp.float32) for array in parameters)
    offsets = np.cumsum([0, *shape])
    places = np.empty((len(codes), len(shape) + 1), np.int32)
    places[:, :-1] = codes + offsets[:-1]
    places[:, -1] = offsets[-1] + places[:, attribute]
    total = np.zeros(sum(array.size for array in parameters), np.int64)
    for start in range(0, len(places), CHUNK):
        some = places[start : start + CHUNK]
        padded = np.concatenate([some, np.repeat(some[:1], CHUNK - len(some), axis=0)])
        sums = _chunk(weights, padded, np.arange(CHUNK) < len(some), clip, steps)
        total += np.concatenate([np.asarray(table).ravel() for table in sums])
    return total
