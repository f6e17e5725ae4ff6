"""The exact posterior over a model's potentials, by a sampler: the oracle of `posterior`, for small tables.

The rows of a run are n draws from p_beta, log p_beta = X beta - log Z: the columns of X, one row for each cell of the
WHOLE table, are an orthonormal basis of what potentials on the measured cliques can say (their gauge is divided out). A
measurement is y = A rows + noise, so given beta it is Gaussian about n A p with covariance n A (diag p - p p') A' +
diag sigma^2, here at beta itself (Räisä et al. 2023, NAPSU-MQ, sec. 3). NUTS (Hoffman & Gelman 2014) draws from it.

What remains to be chosen is what is flat.

- In the potentials nothing can be: emptying a cell changes the likelihood by a bounded factor and KL(p || p0), the
  pull of a fit, by at most log(1 / min p0), so their product has infinite mass far out. `NormalPotentials` is
  NAPSU-MQ's answer; where cells are nearly empty the answer is in that choice.
- In the means X' p there is a flat prior, since means are bounded: `FlatMeans`, of density |d means / d beta| = |Fisher
  information| over beta. It is the prior of `posterior.Posterior`, whose draws these must therefore be.
- `Pulled` weighs either with exp(-kappa KL(p || p0)).

`laplace` is the normal approximation in the potentials, which `posterior` makes in the means: docs/analysis.md says
which holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain
from fedsyn.errors import InputError
from fedsyn.inference.junction_tree import axes_of
from fedsyn.inference.measurements import Evidence, MeasuredGrid, merge
from fedsyn.inference.model import Model
from fedsyn.randomness import RandomSource
from fedsyn.table.counting.sums import residual

Floats = npt.NDArray[np.float64]
#: Cells of the whole table, at most: every step of the sampler looks at all of them.
MOST_CELLS = 1 << 12
# Singular values of a design below this share of the largest are gauge.
_GAUGE = 1e-9
_STEPS = 200


@contextmanager
def _jax() -> Iterator[tuple[Any, Any]]:
    """jax and numpyro, in double precision while the context lasts."""
    import jax
    import numpyro.infer

    with jax.enable_x64(True):
        yield jax, numpyro


def cells_of(domain: Domain) -> npt.NDArray[np.int64]:
    """(cells, d) all possible cells of the whole table, in domain order.

    Raises:
        InputError: there are more than `MOST_CELLS`.
    """
    if domain.size() > MOST_CELLS:
        raise InputError(f"the sampler takes tables of at most {MOST_CELLS} cells, and this one has {domain.size()}")
    codes = np.array(list(itertools.product(*map(range, domain.shape))), np.int64).reshape(-1, len(domain))
    return codes[~domain.violated(codes)]


class Prior:
    """Log density over beta, up to a constant."""

    def of(self, jnp: Any, beta: Any, log_p: Any, design: Any) -> Any:
        """Args: (K,) beta, (cells,) log p, (cells, K) X; jax arrays. Returns a scalar."""
        raise NotImplementedError


class FlatMeans(Prior):
    """Flat in the means X' p: a table's marginals, whatever they are, are as likely beforehand."""

    def of(self, jnp: Any, beta: Any, log_p: Any, design: Any) -> Any:
        p = jnp.exp(log_p)
        centred = design - p @ design
        return jnp.linalg.slogdet(centred.T @ (p[:, None] * centred))[1]


@dataclass(frozen=True)
class NormalPotentials(Prior):
    """Independent normals of mean 0 (NAPSU-MQ takes a standard deviation of 10)."""

    sd: float = 10.0

    def of(self, jnp: Any, beta: Any, log_p: Any, design: Any) -> Any:
        return -0.5 * jnp.sum(beta**2) / self.sd**2


@dataclass(frozen=True, eq=False)
class Pulled(Prior):
    """Another prior times exp(-kappa KL(p || p0)), the shrinkage of a fit.

    Attributes:
        base: the other.
        kappa: in records.
        towards: (cells,) p0, positive, as `cells_of` orders them.
    """

    base: Prior
    kappa: float
    towards: Floats

    def of(self, jnp: Any, beta: Any, log_p: Any, design: Any) -> Any:
        pull = jnp.sum(jnp.exp(log_p) * (log_p - np.log(self.towards)))
        return self.base.of(jnp, beta, log_p, design) - self.kappa * pull


class Potentials:
    """The posterior over the potentials of a small table.

    Args:
        model: that a run fitted; the sampler starts there.
        evidence: what it was fitted to.
        prior: over the potentials.

    Attributes:
        cells: (cells, d) of the whole table.
        design: (cells, K) X.

    Raises:
        InputError: a table that is too large, or nothing was measured.
    """

    def __init__(self, model: Model, evidence: Evidence, prior: Prior | None = None) -> None:
        self.prior, self.total = prior or FlatMeans(), evidence.total
        self.cells = cells_of(model.domain)
        axes = axes_of(model.domain)
        grids = [(MeasuredGrid.of(axes, m), m.values) for m in merge(axes, evidence.measurements) if m.mask]
        if not grids:
            raise InputError("a posterior needs the measurements of a run, and this one kept none")
        shares: dict[int, float] = {}
        for m in evidence.measurements:
            mask = axes.mask(m.clique)
            shares[mask] = min(shares.get(mask, 1.0), m.share)
        self.values = np.concatenate([values.ravel() for _, values in grids])
        self._seen = np.concatenate([_matrix(grid, self.cells) for grid, _ in grids])
        self._variance = np.concatenate([np.full(v.size, grid.sigma**2) for grid, v in grids])
        self._fewer = np.concatenate([np.full(v.size, shares[grid.mask] ** -0.5) for grid, v in grids])
        self.design = _basis([grid for grid, _ in grids], self.cells)
        fitted = model.project(model.domain.attributes)[tuple(self.cells.T)]
        self._start = self.design.T @ np.log(np.maximum(fitted / fitted.sum(), 1e-9))

    def log_density(self, beta: Floats) -> float:
        """Log density of (K,) potentials, up to a constant."""
        with _jax():
            return float(self._density(beta, self.values))

    def draws(self, rng: RandomSource, count: int, warmup: int = 500, values: Floats | None = None) -> Floats:
        """(count, cells) probabilities, by NUTS; one after the other they depend on each other.

        Args:
            rng: where the sampler's key comes from.
            count: how many.
            warmup: iterations that adapt the sampler and are thrown away.
            values: other measured numbers in the place of the run's, as `values` has them.
        """
        with _jax() as (jax, _):
            key = jax.random.key(int(rng.integers(1 << 31)))
            given = jax.numpy.asarray(self.values if values is None else values)
            sampler = self._sampler(warmup, count)
            sampler.run(key, given, init_params={"beta": jax.numpy.asarray(self._start)})
            return self.probabilities(np.asarray(sampler.get_samples()["beta"]))

    def laplace(self, rng: RandomSource, count: int, values: Floats | None = None) -> Floats:
        """(count, cells) probabilities of the normal approximation in the potentials, at their mode.

        Args: as of `draws`.

        Raises:
            InputError: the mode is not found, or the density has no peak there.
        """
        given = self.values if values is None else values
        with _jax() as (jax, _):
            mode = jax.numpy.asarray(self._start)
            for _step in range(_STEPS):
                slope, bend = self._derivatives(mode, given)
                curvature, directions = np.linalg.eigh(-np.asarray(bend))
                move = directions @ ((directions.T @ np.asarray(slope)) / np.maximum(np.abs(curvature), 1e-6))
                length, now = min(1.0, 2.0 / max(float(np.abs(move).max()), 1e-12)), self._density(mode, given)
                while length > 1e-8 and not self._density(mode + length * move, given) >= now:
                    length /= 2.0
                mode = mode + length * move
                if float(np.abs(length * move).max()) < 1e-6:
                    break
            else:
                raise InputError(f"the posterior's mode was not found in {_STEPS} steps")
            curvature, directions = np.linalg.eigh(-np.asarray(self._derivatives(mode, given)[1]))
        if curvature.min() <= 0:
            raise InputError("the posterior over the potentials has no peak")
        noise = np.asarray(rng.standard_normal((count, len(curvature)))) / np.sqrt(curvature)
        return self.probabilities(np.asarray(mode) + noise @ directions.T)

    def probabilities(self, beta: Floats) -> Floats:
        """(count, cells) of (count, K) potentials."""
        log_p = beta @ self.design.T
        p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def _of(self, jax: Any, beta: Any, values: Any) -> Any:
        """The log density, of jax arrays."""
        jnp = jax.numpy
        design, seen = jnp.asarray(self.design), jnp.asarray(self._seen)
        log_p = jax.nn.log_softmax(design @ beta)
        p = jnp.exp(log_p)
        counted = (seen - (seen @ p)[:, None]) * jnp.sqrt(p) * self._fewer[:, None]
        spread = self.total * counted @ counted.T + jnp.diag(self._variance)
        root = jnp.linalg.cholesky(spread)
        off = jax.scipy.linalg.solve_triangular(root, values - self.total * seen @ p, lower=True)
        return -0.5 * off @ off - jnp.sum(jnp.log(jnp.diag(root))) + self.prior.of(jnp, beta, log_p, design)

    @cached_property
    def _density(self) -> Callable[..., Any]:
        with _jax() as (jax, _):
            return jax.jit(lambda beta, values: self._of(jax, beta, values))  # type: ignore[no-any-return]

    @cached_property
    def _derivatives(self) -> Callable[..., Any]:
        with _jax() as (jax, _):
            slope = jax.grad(self._of, 1)
            return jax.jit(lambda beta, values: (slope(jax, beta, values), jax.jacfwd(slope, 1)(jax, beta, values)))  # type: ignore[no-any-return]

    @cached_property
    def _made(self) -> dict[tuple[int, int], Any]:
        return {}

    def _sampler(self, warmup: int, count: int) -> Any:
        """A chain that is compiled once, whatever the values."""
        if (warmup, count) not in self._made:
            with _jax() as (jax, numpyro):
                everywhere = numpyro.distributions.constraints.real_vector
                flat = numpyro.distributions.ImproperUniform(everywhere, (), (self.design.shape[1],))

                def model(values: Any) -> None:
                    beta = numpyro.sample("beta", flat)
                    numpyro.factor("density", self._of(jax, beta, values))

                self._made[warmup, count] = numpyro.infer.MCMC(
                    numpyro.infer.NUTS(model),
                    num_warmup=warmup,
                    num_samples=count,
                    progress_bar=False,
                    jit_model_args=True,
                )
        return self._made[warmup, count]


def _matrix(grid: MeasuredGrid, cells: npt.NDArray[np.int64]) -> Floats:
    """(numbers, cells) what one row in each cell adds to a measurement."""
    rows = [grid.counted(cell[None, :]) for cell in cells]
    return np.stack([(residual(row) if grid.beyond else row).ravel() for row in rows], axis=1)


def _basis(grids: list[MeasuredGrid], cells: npt.NDArray[np.int64]) -> Floats:
    """(cells, K) orthonormal columns: what potentials on the measured grids can say beyond a constant."""
    told = np.concatenate([_matrix(grid, cells) for grid in grids]).T
    told = told - told.mean(axis=0)
    left, size, _ = np.linalg.svd(told, full_matrices=False)
    return np.asarray(left[:, size > _GAUGE * size.max(initial=1.0)])
