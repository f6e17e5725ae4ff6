"""Partitioners: what each promises, its options and errors, and the cache of the clustering."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, DataError
from fedsyn.plugins.partitioners import clustering as clustering_module
from fedsyn.registry import PARTITIONERS
from fedsyn.registry import partitioner as make_partitioner
from fedsyn.table.data.partition import PartitionInput, check_partition

# Distributional tests compare a p-value with this: under the right distribution one run in a million fails.
# The seeds are fixed, so a failure means a change, not bad luck.
ALARM = 1e-6


def table(label: np.ndarray, **more: object) -> PartitionInput:
    codes = np.stack([label, np.arange(label.size) % 5], axis=1).astype(np.uint8)
    return PartitionInput(codes, Domain(("y", "x"), (int(label.max()) + 1, 5)), label="y", **more)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_registry_names_every_family() -> None:
    assert sorted(PARTITIONERS) == ["clustering", "dirichlet", "iid", "native", "quantity", "subpopulation"]
    assert all(make_partitioner(name).name == name for name in PARTITIONERS)


def test_importing_the_partitioners_loads_no_heavy_package() -> None:
    heavy = {"umap", "sklearn", "numba", "altair", "vl_convert", "pandas", "scipy"}
    code = f"import sys, partitioners; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clusterin", {}, "did you mean 'clustering'"),
        ("dirichlet", {"betta": 1}, "did you mean 'beta'"),
        ("dirichlet", {"beta": 0}, r"federation.partition \(dirichlet\): beta: "),
        ("dirichlet", {"beta": float("nan")}, r"federation.partition \(dirichlet\): beta: "),
        ("quantity", {"min_rows": -1}, r"federation.partition \(quantity\): min_rows: "),
        ("subpopulation", {"bias": 1.5}, r"federation.partition \(subpopulation\): bias: "),
        ("clustering", {"metric": "cosine"}, r"federation.partition \(clustering\): unknown key 'metric'"),
        ("iid", {"alpha": 1}, "unknown key 'alpha'; allowed here: none"),
    ],
)
def test_a_wrong_name_option_or_value_is_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_partitioner(name, **options)


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
def test_more_clients_than_rows_leave_some_without(name: str) -> None:
    data = table(np.zeros(2, dtype=int), native=np.array([0, 2]), holders=np.arange(3))
    options = {"min_rows": 0} if name in ("dirichlet", "quantity") else {}
    parts = make_partitioner(name, **options).split(data, 3, rng())
    assert len(parts) == 3 and sorted(np.concatenate(parts).tolist()) == [0, 1]
    with pytest.raises(ConfigError, match="at least 1"):
        make_partitioner(name).split(data, 0, rng())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], []], "1 are missing"),
        ([[0, 1], [1, 2]], "1 are at several clients"),
        ([[0], [2]], "1 are missing"),
        ([[0, 0, 1], [2]], "1 are at several clients, or twice at one"),
        ([[0, 1], [3]], "outside the 3 rows"),
        ([[0, 1, 2]], "has 1 parts"),
    ],
)
def test_a_wrong_partition_is_refused(parts: list[list[int]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_partition([np.array(part, dtype=np.int64) for part in parts], 3, 2)


def test_input_that_does_not_fit_is_refused() -> None:
    domain = Domain(("a", "b"), (2, 2))
    with pytest.raises(DataError, match="do not fit"):
        PartitionInput(np.zeros((3, 1), dtype=int), domain)
    with pytest.raises(DataError, match="integers"):
        PartitionInput(np.zeros((3, 2)), domain)
    with pytest.raises(DataError, match="native"):
        PartitionInput(np.zeros((3, 2), dtype=int), domain, native=np.zeros(2))


def test_iid_clients_are_equal_in_size_and_label() -> None:
    label = (np.arange(10_000) < 3_000).astype(int)
    parts = make_partitioner("iid").split(table(label), 7, rng())
    assert {part.size for part in parts} <= {10_000 // 7, 10_000 // 7 + 1}
    counts = np.array([np.bincount(label[part], minlength=2) for part in parts])
    assert stats.chi2_contingency(counts).pvalue > ALARM


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [("quantity", "alpha"), ("dirichlet", "beta")])
@pytest.mark.parametrize("concentration", [0.3, 2.0])
def test_shares_follow_the_dirichlet_distribution(name: str, option: str, concentration: float) -> None:
    data = table(np.zeros(5_000, dtype=int))
    partitioner = make_partitioner(name, **{option: concentration})
    # Of two clients the first one's share is Beta(c, c). Shares are multiples of 1/5000: blur them so.
    source = rng(1)
    first = np.array([partitioner.split(data, 2, source)[0].size for _ in range(1_000)])
    shares = np.clip((first + source.uniform(-0.5, 0.5, first.size)) / 5_000, 0, 1)
    inner = (first > 1) & (first < 4_999)  # the repair moves the outermost shares to one row
    low, high = (stats.beta.cdf(x / 5_000, concentration, concentration) for x in (1.5, 4_998.5))
    u = (stats.beta.cdf(shares[inner], concentration, concentration) - low) / (high - low)
    assert stats.kstest(u, "uniform").pvalue > ALARM


def test_dirichlet_draws_a_share_per_class() -> None:
    label = np.repeat([0, 1], 5_000)
    source, first = rng(2), []
    for _ in range(400):
        part = make_partitioner("dirichlet", beta=1.0).split(table(label), 2, source)[0]
        first.append(np.bincount(label[part], minlength=2) / 5_000)
    # Shares of different classes are independent, each Uniform(0, 1).
    a, b = np.array(first).T
    assert stats.pearsonr(a, b).pvalue > ALARM
    assert stats.kstest(a, "uniform").pvalue > ALARM
    assert stats.kstest(b, "uniform").pvalue > ALARM


def test_min_rows_is_kept_or_refused() -> None:
    label = (np.arange(100) == 0).astype(int)
    for name in ("dirichlet", "quantity"):
        parts = make_partitioner(name, min_rows=10).split(table(label), 10, rng())
        assert [part.size for part in parts] == [10] * 10
        with pytest.raises(DataError, match=r"10 clients with at least 11 rows each need 110 rows; .* 100"):
            make_partitioner(name, min_rows=11).split(table(label), 10, rng())


def test_label_skew_uses_the_named_attribute_or_says_what_is_missing() -> None:
    label = np.repeat([0, 1], 500)
    data = table(label)
    parts = make_partitioner("dirichlet", beta=1e-3, label="x").split(data, 4, rng())
    # At so small a beta nearly every value lies at one client: 5 values, few of the 20 pairs occur.
    pairs = {(client, x) for client, part in enumerate(parts) for x in data.codes[part, 1].tolist()}
    assert len(pairs) <= 10
    with pytest.raises(ConfigError, match=r"no column 'z'"):
        make_partitioner("dirichlet", label="z").split(data, 4, rng())
    bare = PartitionInput(data.codes, data.domain)
    with pytest.raises(ConfigError, match=r"set federation\.partition\.label"):
        make_partitioner("dirichlet").split(bare, 4, rng())
    with pytest.raises(ConfigError, match=r"set federation\.partition\.attribute"):
        make_partitioner("subpopulation").split(bare, 4, rng())


@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
def test_subpopulation_clients_hold_their_share_of_home_rows(bias: float) -> None:
    label = np.repeat([0, 1, 2], [6_000, 3_000, 1_000])
    parts = make_partitioner("subpopulation", bias=bias).split(table(label), 10, rng())
    home = np.repeat([0, 1, 2], [6, 3, 1])
    for client, part in enumerate(parts):
        assert abs(part.size - 1_000) <= 2
        share = float(np.mean(label[part] == home[client]))
        expected = bias + (1 - bias) * np.mean(label == home[client])
        # A share of 1000 rows has sd below 0.016; beyond 6 sd lies less than 1e-8 per client.
        assert abs(share - expected) < 6 * 0.016 * (1 - bias) + 2e-3


def test_subpopulation_groups_neighbouring_values() -> None:
    label = np.repeat(np.arange(30), 10)
    data = table(label)
    parts = make_partitioner("subpopulation", bias=1.0).split(data, 3, rng())
    assert [np.unique(label[part]).tolist() for part in parts] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 30)),
    ]
    halves = make_partitioner("subpopulation", bias=1.0, groups=2).split(data, 6, rng())
    assert [label[part].max() < 15 for part in halves] == [True] * 3 + [False] * 3
    with pytest.raises(DataError, match="groups"):
        make_partitioner("subpopulation", groups=7).split(data, 6, rng())


def test_native_gives_each_client_its_own_rows() -> None:
    ids = np.array([30, 10, 30, 20, 10])
    data = table(np.zeros(5, dtype=int), native=ids)
    parts = make_partitioner("native").split(data, 3, rng())
    assert [part.tolist() for part in parts] == [[1, 4], [3], [0, 2]]
    with pytest.raises(DataError, match=r"name 3 clients, but federation\.clients is 2"):
        make_partitioner("native").split(data, 2, rng())
    with pytest.raises(DataError, match="no client ids of its own"):
        make_partitioner("native").split(table(np.zeros(5, dtype=int)), 3, rng())


def blobs(rows: int, seed: int = 0) -> PartitionInput:
    """Three far groups of rows in three columns."""
    group = rng(seed).integers(0, 3, rows)
    codes = group[:, None] * 30 + rng(seed + 1).integers(0, 4, (rows, 3))
    return PartitionInput(codes.astype(np.uint8), Domain(("a", "b", "c"), (100, 100, 100)))


def test_clustering_puts_similar_rows_together() -> None:
    data = blobs(15)
    parts = make_partitioner("clustering", cache=False).split(data, 3, rng())
    assert all(np.unique(data.codes[part, 0] // 30).size == 1 for part in parts)


def test_clustering_keeps_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path))
    data, clustering = blobs(15), make_partitioner("clustering")
    three = clustering.split(data, 3, rng(0))
    (kept,) = (tmp_path / "partitions").glob("*.npy")
    # A damaged or wrong file is computed again and replaced.
    for damaged in (b"", b"\x93NUMPY not really"):
        kept.write_bytes(damaged)
        again = clustering.split(data, 3, rng(0))
        assert all(np.array_equal(a, b) for a, b in zip(three, again, strict=True))
    np.save(kept, np.zeros((14, 2), dtype=np.float32))
    assert all(np.array_equal(a, b) for a, b in zip(three, clustering.split(data, 3, rng(0)), strict=True))
    assert np.load(kept).shape == (15, 2)
    # Neither the run's randomness nor the dtype of the codes matters, so this is read, not computed: an embedding that
    # puts the rows on a line is cut into stretches of rows.
    np.save(kept, np.repeat(np.arange(15, dtype=np.float32)[:, None], 2, axis=1))
    wide = PartitionInput(data.codes.astype(np.int32), data.domain)
    assert all(np.all(np.diff(part) == 1) for part in clustering.split(wide, 4, rng(5)))
    assert list((tmp_path / "partitions").glob("*.npy")) == [kept] and list(tmp_path.rglob("*.tmp")) == []


def test_every_seed_and_every_code_has_its_own_cache_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path))
    data = blobs(15)
    make_partitioner("clustering").split(data, 3, rng())
    make_partitioner("clustering", seed=1).split(data, 3, rng())
    assert len(list(tmp_path.rglob("embedding-*.npy"))) == 2
    changed = data.codes.copy()
    changed[0, 0] += 1
    make_partitioner("clustering").split(PartitionInput(changed, data.domain), 3, rng())
    assert len(list(tmp_path.rglob("embedding-*.npy"))) == 3


def test_processes_that_share_an_embedding_compute_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path))
    data, computed = blobs(15), []

    def project(points: np.ndarray, seed: int) -> np.ndarray:
        computed.append(time.sleep(0.3))
        return points[:, :2]

    monkeypatch.setattr(clustering_module, "_project", project)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(make_partitioner("clustering").embedding, data, 0) for _ in range(4)]
        found = [one.result().tolist() for one in asked]
    assert found == [data.codes[:, :2].tolist()] * 4 and len(computed) == 1


def test_a_stored_split_is_taken_whatever_umap_makes_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, file = blobs(15), tmp_path / "splits.npz"
    parts = make_partitioner("clustering", cache=False).split(data, 3, rng())
    clustering_module.store_splits(file, [(data, parts, 0)])
    stored = make_partitioner("clustering", splits=str(file))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(clustering_module, "_project", lambda points, seed: points[:, :2])
        elsewhere.setattr(clustering_module, "_k_means", lambda points, clients, seed: np.zeros(len(points), np.int64))
        assert all(np.array_equal(a, b) for a, b in zip(parts, stored.split(data, 3, rng()), strict=True))
    changed = data.codes.copy()
    changed[0, 0] += 1
    for other, clients in ((data, 4), (PartitionInput(changed, data.domain), 3)):
        with pytest.raises(DataError, match=r"holds no split of this table .* gives another split"):
            stored.split(other, clients, rng())
    with pytest.raises(DataError, match="with seed 1"):
        make_partitioner("clustering", splits=str(file), seed=1).split(data, 3, rng())
    file.write_text("no archive")
    with pytest.raises(ConfigError, match="does not hold stored splits"):
        stored.split(data, 3, rng())


def test_clustering_without_a_writable_cache_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path / "file"))
    assert len(make_partitioner("clustering").split(blobs(15), 3, rng())) == 3


def test_clustering_takes_its_seed_from_the_run_when_asked() -> None:
    data = blobs(15)
    drawn = make_partitioner("clustering", seed=None, cache=False)
    first = drawn.split(data, 5, rng(3))
    assert all(np.array_equal(a, b) for a, b in zip(first, drawn.split(data, 5, rng(3)), strict=True))


def test_clustering_repairs_clusters_of_equal_rows() -> None:
    same = PartitionInput(np.zeros((10, 2), dtype=np.uint8), Domain(("a", "b"), (2, 2)))
    parts = make_partitioner("clustering", cache=False).split(same, 10, rng())
    assert [part.size for part in parts] == [1] * 10


@pytest.mark.slow
def test_umap_embedding_is_repeated_bit_for_bit_and_separates_groups() -> None:
    pytest.importorskip("umap")
    import numba

    data = blobs(150)
    clustering = make_partitioner("clustering", cache=False)
    embedding = clustering.embedding(data, 0)
    assert embedding.shape == (150, 2)
    assert embedding.dtype == np.float32
    assert np.isfinite(embedding).all()
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert np.array_equal(embedding, clustering.embedding(data, 0))
    finally:
        numba.set_num_threads(before)
    # Each row's nearest neighbour in the plane belongs to its own group.
    group = data.codes[:, 0] // 30
    distance = np.linalg.norm(embedding[:, None] - embedding[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert np.mean(group[distance.argmin(axis=1)] == group) > 0.95
    other = clustering.embedding(data, 1)
    assert not np.array_equal(embedding, other)
