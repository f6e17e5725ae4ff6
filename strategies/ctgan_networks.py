"""CTGAN's generator, and the training of both networks.

The server sees no row. The module imports JAX, so it is loaded when used.

The generator is that of Xu et al. 2019, Section 4.4 (two hidden layers, each beside its own input; Gumbel-softmax with
temperature 0.2; a cross entropy that holds it to its condition), with layer normalisation for their batch
normalisation, whose running means would be one thing more to keep.

Every random number here belongs to the generator's own noise or to what the networks start from; none protects a row.
Whatever is computed in a round is one compiled program, the same for every attribute that a condition may name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.flatten_util import ravel_pytree

from fedsyn.plugins.clients.ctgan_discriminator import Parameters, score
from fedsyn.plugins.clients.fed_dp_ctgan import CtganContract

Floats = npt.NDArray[np.float64]
Shape = tuple[int, ...]
_TEMPERATURE = 0.2
_LEAST = 1e-6  # probability of a value that the marginals had none of
_AT_ONCE = 512  # components of the mixture
_BETAS = {"b1": 0.5, "b2": 0.9}  # CTGAN's


class Networks:
    """Both networks of a run, and their optimisers' states.

    Args:
        contract: of the run.
        marginals: (C,) released one-way marginals, each summing to 1.
        seed: of all their randomness.
    """

    def __init__(self, contract: CtganContract, marginals: Floats, seed: int) -> None:
        options = self.options = contract.options
        self.shape: Shape = tuple(contract.domain.shape)
        first, second, self._key = jax.random.split(jax.random.key(seed), 3)
        self._logs = jnp.log(jnp.asarray(np.maximum(marginals, _LEAST), jnp.float32))
        discriminator = _initial(first, contract.shapes)
        cells, hidden = sum(self.shape), options.hidden
        inner = options.noise_dim + cells
        layers = (
            (inner, hidden),
            (hidden,),
            (inner + hidden, hidden),
            (hidden,),
            (inner + 2 * hidden, cells),
            (cells,),
        )
        generator = _initial(second, layers)
        if options.start == "marginals":
            generator = (*generator[:-2], 0.1 * generator[-2], self._logs)
        rates = (options.discriminator_learning_rate, options.generator_learning_rate)
        self._learn, adams = _learner(
            self.shape, rates, options.clip, (options.batch, options.noise_dim), options.generator_steps
        )
        self._state = (discriminator, adams[0].init(discriminator), generator, adams[1].init(generator))

    def arrays(self) -> list[npt.NDArray[np.float32]]:
        """The discriminator's parameters, for a message."""
        return [np.array(parameter, np.float32) for parameter in self._state[0]]

    def learn(self, gradient: npt.NDArray[np.float64], attribute: int) -> None:
        """Takes one step of the discriminator, then those of the generator.

        Args:
            gradient: (P,) released estimate of the mean of the clipped gradients over the real rows.
            attribute: whose value is the condition, of real and of made rows.
        """
        self._key, key = jax.random.split(self._key)
        self._state = self._learn(self._state, gradient.astype(np.float32), attribute, self._logs, key)

    def mixture(self) -> npt.NDArray[np.float32]:
        """Returns the generator's output for M noise vectors, (M, C).

        Each is a product of distributions under a condition: an attribute, drawn uniformly, and its value, drawn by the
        released marginals.
        """
        parts = []
        for _ in range(0, self.options.components, _AT_ONCE):
            self._key, key = jax.random.split(self._key)
            parts.append(_components(self._state[2], self._logs, key, self.shape, self.options.noise_dim))
        return np.concatenate(parts)[: self.options.components].astype(np.float32)


@lru_cache(maxsize=4)
def _learner(
    shape: Shape, rates: tuple[float, float], clip: float, size: tuple[int, int], steps: int
) -> tuple[Callable[..., Any], list[Any]]:
    """The compiled program of a round, and both optimisers."""
    adams = [optax.adam(rate, **_BETAS) for rate in rates]
    rows = size[0]

    @jax.jit
    def learn(state: Any, gradient: Any, attribute: Any, logs: Any, key: Any) -> Any:
        discriminator, discriminator_memory, generator, generator_memory = state
        _, unravel = ravel_pytree(discriminator)
        keys = jax.random.split(key, 1 + steps)
        seen, _ = _made(generator, *_drawn(keys[0], logs, jnp.full(rows, attribute), shape, size), shape)
        whole = jax.tree.map(jnp.add, unravel(gradient), fake_gradient(discriminator, seen, clip))
        changes, discriminator_memory = adams[0].update(whole, discriminator_memory, discriminator)
        discriminator = optax.apply_updates(discriminator, changes)
        for step_key in keys[1:]:
            drawn = _drawn(step_key, logs, jnp.full(rows, attribute), shape, size)
            changes, generator_memory = adams[1].update(
                jax.grad(_generator_loss)(generator, discriminator, drawn, shape), generator_memory, generator
            )
            generator = optax.apply_updates(generator, changes)
        return discriminator, discriminator_memory, generator, generator_memory

    return learn, adams


def _initial(key: Any, shapes: tuple[Shape, ...]) -> Parameters:
    """Weights uniform within 1 / sqrt(inputs), biases 0."""
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    tables = (
        (2.0 * random.random(shape) - 1.0) / np.sqrt(shape[0]) if len(shape) == 2 else np.zeros(shape)
        for shape in shapes
    )
    return tuple(jnp.asarray(table, jnp.float32) for table in tables)


def _drawn(key: Any, logs: Any, attributes: Any, shape: Shape, size: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Draws one-hot conditions (b, C), noise (b, noise_dim), and a key.

    A condition is a value of its row's attribute, by the marginals.
    """
    values, noise, rest = jax.random.split(key, 3)
    of = jnp.asarray(np.repeat(np.arange(len(shape)), shape))
    allowed = jnp.where(of[None, :] == attributes[:, None], logs[None, :], -jnp.inf)
    conditions = jax.nn.one_hot(jax.random.categorical(values, allowed, axis=1), len(of))
    return conditions, jax.random.normal(noise, size), rest


def _logits(parameters: Parameters, conditions: Any, noise: Any) -> Any:
    """Returns the values of all attributes before softmax, (b, C)."""
    w1, b1, w2, b2, w3, b3 = parameters
    inner = jnp.concatenate([noise, conditions], axis=1)
    for weight, bias in ((w1, b1), (w2, b2)):
        hidden = inner @ weight + bias
        centred = hidden - hidden.mean(axis=1, keepdims=True)
        scaled = centred / jnp.sqrt(jnp.square(centred).mean(axis=1, keepdims=True) + 1e-5)
        inner = jnp.concatenate([jax.nn.relu(scaled), inner], axis=1)
    return inner @ w3 + b3


def _log_shares(logits: Any, shape: Shape) -> Any:
    """Returns log probabilities, (b, C): a softmax for each attribute."""
    pieces = jnp.split(logits, np.cumsum(shape)[:-1], axis=1)
    return jnp.concatenate([jax.nn.log_softmax(piece, axis=1) for piece in pieces], axis=1)


def _made(parameters: Parameters, conditions: Any, noise: Any, key: Any, shape: Shape) -> tuple[Any, Any]:
    """Returns soft rows with conditions, and their log probabilities.

    Their shapes are (b, 2 C) and (b, C).
    """
    logs = _log_shares(_logits(parameters, conditions, noise), shape)
    softened = (logs + jax.random.gumbel(key, logs.shape)) / _TEMPERATURE
    return jnp.concatenate([jnp.exp(_log_shares(softened, shape)), conditions], axis=1), logs


def fake_gradient(discriminator: Parameters, seen: Any, clip: float) -> Parameters:
    """Returns the mean clipped gradient over generated rows `seen`, (b, 2 C).

    Each is clipped as a real row's is. The loss is -log of the probability of "made". A weight's gradient at a row is
    the product of what comes in and of the slope of what goes out, so its norm is the product of both norms, and no
    row's gradient is formed by itself.
    """
    w1, b1, w2, b2, w3, b3 = discriminator

    def layers(taps: Any) -> tuple[Any, Any]:
        first = jax.nn.leaky_relu(seen @ w1 + b1 + taps[0], 0.2)
        second = jax.nn.leaky_relu(first @ w2 + b2 + taps[1], 0.2)
        return jax.nn.softplus(second @ w3 + b3 + taps[2]).sum(), (seen, first, second)

    rows, hidden = len(seen), w2.shape[0]
    zeros = (jnp.zeros((rows, hidden)), jnp.zeros((rows, hidden)), jnp.zeros((rows, 1)))
    slopes, inputs = jax.grad(layers, has_aux=True)(zeros)
    pairs = list(zip(inputs, slopes, strict=True))
    squares = sum((jnp.square(x).sum(axis=1) + 1.0) * jnp.square(slope).sum(axis=1) for x, slope in pairs)
    shares = (jnp.minimum(1.0, clip / jnp.sqrt(jnp.maximum(squares, 1e-30))) / rows)[:, None]
    return tuple(part for x, slope in pairs for part in (x.T @ (shares * slope), (shares * slope).sum(axis=0)))


def _generator_loss(
    parameters: Parameters, discriminator: Parameters, drawn: tuple[Any, Any, Any], shape: Shape
) -> Any:
    """Returns the loss of being recognised and of missing the condition."""
    seen, logs = _made(parameters, *drawn, shape)
    fooled = jax.nn.softplus(-score(discriminator, seen)).mean()
    return fooled - (drawn[0] * logs).sum(axis=1).mean()


@partial(jax.jit, static_argnames=("shape", "noise_dim"))
def _components(generator: Parameters, logs: Any, key: Any, shape: Shape, noise_dim: int) -> Any:
    """Returns probabilities of `_AT_ONCE` components, (_AT_ONCE, C)."""
    which, rest = jax.random.split(key)
    attributes = jax.random.randint(which, (_AT_ONCE,), 0, len(shape))
    conditions, noise, _ = _drawn(rest, logs, attributes, shape, (_AT_ONCE, noise_dim))
    return jnp.exp(_log_shares(_logits(generator, conditions, noise), shape))
