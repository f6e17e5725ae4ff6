"""SynthFS: Gaussian features whose means differ from client to client, with one knob for how much.

Source: Maddock et al. 2024 (FLAIM), appendix B.1.1.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedsyn.lazy import pd
from fedsyn.table.schema import NumericColumn, Schema

# Values beyond this many standard deviations from the outermost means are clipped into the outermost bins.
# The bounds are constants of the generator, so they are public.
_REACH = 5.0


class SynthFSOptions(BaseModel):
    """Options of the generator.

    Attributes:
        beta: exponent of the Zipf distribution of the means. 1 is the most skewed of the paper; the larger,
            the more alike the clients.
        clients: number of clients K; each draws its own means.
        rows: number of rows n, shared evenly among the clients.
        features: number of features d.
        n_zipf: largest mean; means lie in 1 .. n_zipf.
        seed: seed of the generator. The table is public test data, so this is no privacy matter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    beta: float = Field(default=2.0, ge=0)
    clients: int = Field(default=100, ge=1)
    rows: int = Field(default=50_000, ge=1)
    features: int = Field(default=10, ge=1)
    n_zipf: int = Field(default=40, ge=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _a_row_each(self) -> SynthFSOptions:
        if self.clients > self.rows:
            raise ValueError(f"{self.rows} rows are too few for {self.clients} clients")
        return self


def synthfs_schema(options: SynthFSOptions) -> Schema:
    """The public schema: 32 equal-width bins over five standard deviations beyond the outermost means."""
    column = NumericColumn(lower=1 - _REACH, upper=options.n_zipf + _REACH, bins=32, dtype="float")
    return Schema(columns=dict.fromkeys(_names(options), column))


def synthfs(options: SynthFSOptions) -> tuple[pd.DataFrame, np.ndarray]:
    """Generates the table.

    For each client k and feature m a mean is drawn from the Zipf distribution P(r) ~ r^-beta on 1 .. n_zipf
    (bounded, so every beta >= 0 is allowed), then the client's rows from N(mean, 1).

    Returns:
        The table (rows, features) with the clients' rows one after the other, and the (rows,) int64 client of
        each
        row: the native partition.
    """
    rng = np.random.default_rng(options.seed)
    ranks = np.arange(1, options.n_zipf + 1)
    mass = ranks ** -float(options.beta)
    means = rng.choice(ranks, size=(options.clients, options.features), p=mass / mass.sum()).astype(np.float64)
    # Client k gets rows k*n/K .. (k+1)*n/K: equal shares up to one row.
    client = np.arange(options.rows, dtype=np.int64) * options.clients // options.rows
    values = means[client] + rng.standard_normal((options.rows, options.features))
    return pd.DataFrame(values, columns=_names(options)), client


def _names(options: SynthFSOptions) -> list[str]:
    return [f"x{m}" for m in range(1, options.features + 1)]
