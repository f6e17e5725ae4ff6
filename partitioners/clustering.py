"""Clustering partition: UMAP to two dimensions, then k-means.

Clients get regions of different sizes in which many features are skewed at once (Maddock et al. 2024,
appendix B.2). The embedding takes a minute for 44,000 rows, so embeddings are kept on disk under the hash of
everything that they depend on; another K reuses the embedding.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.metadata
import io
import json
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedsyn.errors import ConfigError, DataError
from fedsyn.files import replace_synced
from fedsyn.table.data.fetch import cache_dir
from fedsyn.table.data.partition import Partitioner, PartitionInput, fill_small_clients, group_rows
from fedsyn.version import installing

# UMAP needs a neighbourhood: below this many rows the embedding is the first two principal components.
_FEWEST_ROWS_FOR_UMAP = 16
# UMAP's parameters, those of the published code; fewer neighbours where there are fewer other rows.
_NEIGHBORS = 15
_UMAP = {"n_neighbors": _NEIGHBORS, "min_dist": 0.1, "metric": "euclidean"}
# Raised when the computation below changes, so that older cache entries are not taken for its result.
_CACHE_VERSION = 1


class Clustering(Partitioner):
    """A client per k-means cluster of the table's UMAP embedding.

    The split belongs to the table and to `seed`, not to the run: runs with different seeds share it, as in
    the paper's experiments, and its embedding. `seed: null` draws a seed from the run's
    randomness instead. UMAP's coordinates differ by processor and library build, and so does the split:
    figures that others are to repeat rest on a stored one (`splits`, written by `store_splits`).

    The codes are embedded as numbers, categories included, with UMAP's Euclidean metric. That is crude, and
    it is what the published code does: it reproduces the paper's Table 5 (0.525 on Adult, 0.79 on Magic),
    while columns scaled to [0, 1] give 0.645 and 0.80. Columns with many bins dominate.

    Attributes:
        seed: of UMAP and k-means; None: drawn from the generator that `split` is given.
        cache: False neither reads nor writes the cache.
        splits: file of stored splits, of which this table's is taken; a table that it does not hold is refused. Null:
            UMAP and k-means run here.
    """

    name: ClassVar[str] = "clustering"
    seed: int | None = Field(default=0, ge=0, lt=2**32)
    cache: bool = True
    splits: str | None = None

    def assign(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        seed = int(rng.integers(2**32)) if self.seed is None else self.seed
        if self.splits is not None:
            return group_rows(_stored(Path(self.splits), table, clients, seed), clients)
        regions = _k_means(self.embedding(table, seed), clients, seed)
        # k-means finds fewer clusters than K where fewer than K points are distinct.
        return fill_small_clients(group_rows(regions, clients), min_rows=int(clients <= table.rows))

    def embedding(self, table: PartitionInput, seed: int) -> np.ndarray:
        """Returns coordinates of the rows, (n, 2) float32.

        They come from the cache, or are computed and stored there.
        """
        points = table.codes.astype(np.float32)
        if not self.cache:
            return _project(points, seed)
        versions = _versions("umap-learn", "pynndescent", "numba", "scikit-learn", "numpy", "scipy")
        digest = _digest(table, seed, version=_CACHE_VERSION, versions=versions)
        path = cache_dir() / "partitions" / f"embedding-{digest}.npy"
        with _alone(path):
            try:
                cached: np.ndarray = np.load(path, allow_pickle=False)
                if cached.shape == (table.rows, 2):
                    return cached
            except (OSError, ValueError, EOFError, zipfile.BadZipFile):
                pass  # absent or damaged: compute it and write it again
            computed = _project(points, seed)
            with contextlib.suppress(OSError):  # a folder that cannot be written to is no error
                content = io.BytesIO()
                np.save(content, computed, allow_pickle=False)
                replace_synced(path, content.getvalue())
        return computed


def store_splits(path: Path, splits: Iterable[tuple[PartitionInput, Sequence[np.ndarray], int]]) -> None:
    """Writes tables, the rows of their clients and seeds for `splits`."""
    stored = dict[str, Any]()
    for table, parts, seed in splits:
        holder = np.empty(table.rows, np.min_scalar_type(len(parts) - 1))
        for client, rows in enumerate(parts):
            holder[rows] = client
        stored[_digest(table, seed, clients=len(parts))] = holder
    np.savez_compressed(path, **stored)


def _stored(path: Path, table: PartitionInput, clients: int, seed: int) -> np.ndarray:
    """Returns the stored client of each row, (n,) int64."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            holder = stored.get(_digest(table, seed, clients=clients))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise ConfigError(f"federation.partition.splits: {path} does not hold stored splits") from None
    if holder is None or holder.shape != (table.rows,) or holder.max() >= clients:
        raise DataError(
            f"{path} holds no split of this table into {clients} clients with seed {seed}: its rows, columns or codes "
            "differ. Without federation.partition.splits it is clustered here, which gives another split"
        )
    clients_of: np.ndarray = holder.astype(np.int64)
    return clients_of


def _digest(table: PartitionInput, seed: int, **more: Any) -> str:
    """Returns a hash of what decides an embedding, and of `more`."""
    facts = {
        "codes": hashlib.sha256(np.ascontiguousarray(table.codes, dtype="<i8").tobytes()).hexdigest(),
        "attributes": list(table.domain.attributes),
        "shape": [*table.codes.shape, *table.domain.shape],
        "options": {"scale": "codes", **_UMAP},
        "seed": seed,
        **more,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _project(points: np.ndarray, seed: int) -> np.ndarray:
    if len(points) < _FEWEST_ROWS_FOR_UMAP:
        return _principal_components(points)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import umap
    except ImportError:
        raise _missing("umap-learn") from None
    reducer = umap.UMAP(
        n_components=2,
        **{**_UMAP, "n_neighbors": min(_NEIGHBORS, len(points) - 1)},
        random_state=seed,
        n_jobs=1,  # the only setting in which a seed decides the result
    )
    with _one_thread(), warnings.catch_warnings():
        # "Graph is not fully connected", "n_jobs overridden": nothing that the user could act on.
        warnings.simplefilter("ignore")
        embedded = np.asarray(reducer.fit_transform(points), dtype=np.float32)
    # A row without any neighbour within reach is left without coordinates; put such rows at the centre.
    lost = ~np.isfinite(embedded).all(axis=1)
    embedded[lost] = embedded[~lost].mean(axis=0) if not lost.all() else 0.0
    return embedded


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Makes other processes wait while one computes a file.

    Where no lock can be had, both compute it.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(path.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
        yield


def _k_means(points: np.ndarray, clients: int, seed: int) -> np.ndarray:
    """Returns the cluster of each point, (n,) int64.

    Some of the `clients` clusters may be empty.
    """
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise _missing("scikit-learn") from None
    with _one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than clusters: repaired by the caller
        labels = KMeans(n_clusters=min(clients, len(points)), n_init=1, random_state=seed).fit_predict(points)
    return np.asarray(labels, dtype=np.int64)


def _principal_components(points: np.ndarray) -> np.ndarray:
    """Returns coordinates along the first two principal axes, (n, 2) float32.

    Signs are fixed, missing axes are zero.
    """
    centred = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    left, scale, right = np.linalg.svd(centred, full_matrices=False)
    scores = (left * scale)[:, :2]
    # An SVD is unique only up to the sign of each axis.
    signs = np.sign(right[:2][np.arange(min(2, len(right))), np.argmax(np.abs(right[:2]), axis=1)])
    coordinates = np.zeros((len(points), 2), dtype=np.float32)
    coordinates[:, : scores.shape[1]] = scores * signs
    return coordinates


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limits numeric libraries to one thread.

    Sums of floats depend on how many threads share them; with one thread they do not.
    """
    threadpoolctl = importlib.import_module("threadpoolctl")  # comes with scikit-learn
    numba = sys.modules.get("numba")  # k-means alone does not load it
    before = numba.get_num_threads() if numba else 1
    try:
        if numba:
            numba.set_num_threads(1)
        with threadpoolctl.threadpool_limits(limits=1):
            yield
    finally:
        if numba:
            numba.set_num_threads(before)


def _missing(package: str) -> ConfigError:
    return ConfigError(f"the clustering partition needs {package}, which is not installed: {installing('simulation')}")


def _versions(*packages: str) -> dict[str, str]:
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
