"""CTGAN's generator and how both networks learn at the server, which sees no row. Imports JAX: loaded when used.

The generator is that of Xu et al. 2019, Section 4.4 (two hidden layers, each beside its own input; Gumbel-softmax with
temperature 0.2; a cross entropy that holds it to its condition), with layer normalisation for their batch
normalisation, whose running means would be one thing more to keep.

Every random number here belongs to the generator's own noise or to what the networks start from; none protects a row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.flatten_util import ravel_pytree
from jax_privacy import clipped_grad

from fedsyn.plugins.clients.ctgan_discriminator import Parameters, score
from fedsyn.plugins.clients.fed_dp_ctgan import CtganContract

Floats = npt.NDArray[np.float64]
_TEMPERATURE = 0.2
_LEAST = 1e-6  # probability of a value that the marginals had none of, in the generator's start


class Networks:
    """Both networks of a run, and their optimisers' states.

    Args:
        contract: of the run.
        marginals: (C,) released one-way marginals, each summing to 1.
        key: of all their randomness.
    """

    def __init__(self, contract: CtganContract, marginals: Floats, key: Any) -> None:
        options = contract.options
        self.options, self.shape = options, tuple(contract.domain.shape)
        self.marginals = marginals
        first, second, self._key = jax.random.split(key, 3)
        self.discriminator: Parameters = _initial(first, contract.shapes)
        cells, hidden, inner = sum(self.shape), options.hidden, options.noise_dim + sum(self.shape)
        shapes = (
            (inner, hidden),
            (hidden,),
            (inner + hidden, hidden),
            (hidden,),
            (inner + 2 * hidden, cells),
            (cells,),
        )
        self.generator: Parameters = _initial(second, shapes)
        if options.start == "marginals":
            bias = jnp.log(jnp.asarray(np.maximum(marginals, _LEAST), jnp.float32))
            self.generator = (*self.generator[:-2], self.generator[-2] * 0.1, bias)
        self._adam = {
            "discriminator": optax.adam(options.discriminator_learning_rate, b1=0.5, b2=0.9),
            "generator": optax.adam(options.generator_learning_rate, b1=0.5, b2=0.9),
        }
        self._states = {name: adam.init(getattr(self, name)) for name, adam in self._adam.items()}

    def arrays(self) -> list[npt.NDArray[np.float32]]:
        """The discriminator's parameters, for a message."""
        return [np.array(parameter, np.float32) for parameter in self.discriminator]

    def learn(self, gradient: npt.NDArray[np.float64], attribute: int) -> None:
        """One step of the discriminator, then the generator's.

        Args:
            gradient: (P,) released estimate of the mean of the clipped gradients over the real rows.
            attribute: whose value is the condition, of real and of made rows.
        """
        _, unravel = ravel_pytree(self.discriminator)
        real = unravel(jnp.asarray(gradient, jnp.float32))
        conditions, noise = self._draw(self.options.batch, attribute)
        fake = _fake_gradient(
            self.discriminator, self.generator, conditions, noise, self._next(), self.shape, self.options.clip
        )
        self._update("discriminator", jax.tree.map(jnp.add, real, fake))
        for _ in range(self.options.generator_steps):
            conditions, noise = self._draw(self.options.batch, attribute)
            slope = _generator_gradient(self.generator, self.discriminator, conditions, noise, self._next(), self.shape)
            self._update("generator", slope)

    def mixture(self) -> npt.NDArray[np.float32]:
        """(M, C) what the generator makes of M noise vectors and conditions: each a product of distributions.

        Conditions are an attribute, uniformly, and its value, by the released marginals (CTGAN's training-by-sampling).
        """
        parts, most = [], self.options.components
        attributes = np.asarray(jax.random.randint(self._next(), (most,), 0, len(self.shape)))
        for attribute in np.unique(attributes):
            conditions, noise = self._draw(int((attributes == attribute).sum()), int(attribute))
            parts.append(np.exp(np.asarray(_log_shares(_logits(self.generator, conditions, noise), self.shape))))
        return np.concatenate(parts).astype(np.float32)

    def _draw(self, size: int, attribute: int) -> tuple[Any, Any]:
        """(size, C) one-hot conditions on an attribute, and (size, noise_dim) noise."""
        start = sum(self.shape[:attribute])
        own = jnp.asarray(self.marginals[start : start + self.shape[attribute]], jnp.float32)
        values = jax.random.choice(self._next(), len(own), (size,), p=own / own.sum())
        conditions = jax.nn.one_hot(start + values, sum(self.shape))
        return conditions, jax.random.normal(self._next(), (size, self.options.noise_dim))

    def _next(self) -> Any:
        self._key, own = jax.random.split(self._key)
        return own

    def _update(self, name: str, gradient: Any) -> None:
        parameters = getattr(self, name)
        changes, self._states[name] = self._adam[name].update(gradient, self._states[name], parameters)
        setattr(self, name, optax.apply_updates(parameters, changes))


def _initial(key: Any, shapes: tuple[tuple[int, ...], ...]) -> Parameters:
    """Weights uniform within 1 / sqrt(inputs), biases 0."""
    keys = jax.random.split(key, len(shapes))
    return tuple(
        jax.random.uniform(own, shape, minval=-1.0, maxval=1.0) / np.sqrt(shape[0])
        if len(shape) == 2
        else jnp.zeros(shape)
        for own, shape in zip(keys, shapes, strict=True)
    )


def _logits(parameters: Parameters, conditions: Any, noise: Any) -> Any:
    """(b, C) before softmax, of all attributes."""
    w1, b1, w2, b2, w3, b3 = parameters
    inner = jnp.concatenate([noise, conditions], axis=1)
    for weight, bias in ((w1, b1), (w2, b2)):
        hidden = inner @ weight + bias
        centred = hidden - hidden.mean(axis=1, keepdims=True)
        scaled = centred / jnp.sqrt(jnp.square(centred).mean(axis=1, keepdims=True) + 1e-5)
        inner = jnp.concatenate([jax.nn.relu(scaled), inner], axis=1)
    return inner @ w3 + b3


def _log_shares(logits: Any, shape: tuple[int, ...]) -> Any:
    """(b, C) log probabilities: a softmax for each attribute."""
    pieces = jnp.split(logits, np.cumsum(shape)[:-1], axis=1)
    return jnp.concatenate([jax.nn.log_softmax(piece, axis=1) for piece in pieces], axis=1)


def _made(parameters: Parameters, conditions: Any, noise: Any, key: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """(b, 2 C) soft rows with their conditions, and (b, C) their log probabilities."""
    logs = _log_shares(_logits(parameters, conditions, noise), shape)
    softened = (logs + jax.random.gumbel(key, logs.shape)) / _TEMPERATURE
    return jnp.concatenate([jnp.exp(_log_shares(softened, shape)), conditions], axis=1), logs


def _fake_loss(discriminator: Parameters, seen: Any) -> Any:
    """-log of the probability of "made" that a made row gets; `seen`: (1, 2 C)."""
    return jax.nn.softplus(score(discriminator, seen[0]))


@partial(jax.jit, static_argnames=("shape", "clip"))
def _fake_gradient(
    discriminator: Parameters,
    generator: Parameters,
    conditions: Any,
    noise: Any,
    key: Any,
    shape: tuple[int, ...],
    clip: float,
) -> Any:
    """Mean over made rows of their gradients, clipped as those of real rows are, so that neither side outweighs."""
    seen, _ = _made(generator, conditions, noise, key, shape)
    slope = clipped_grad(_fake_loss, l2_clip_norm=clip, normalize_by=float(len(seen)))
    return slope(discriminator, seen)


@partial(jax.jit, static_argnames=("shape",))
def _generator_gradient(
    generator: Parameters, discriminator: Parameters, conditions: Any, noise: Any, key: Any, shape: tuple[int, ...]
) -> Any:
    """Of the generator's loss: to be taken for real, and to meet its condition."""

    def loss(parameters: Parameters) -> Any:
        seen, logs = _made(parameters, conditions, noise, key, shape)
        fooled = jax.nn.softplus(-score(discriminator, seen)).mean()
        return fooled - (conditions * logs).sum(axis=1).mean()

    return jax.grad(loss)(generator)
