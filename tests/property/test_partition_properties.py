"""Every partitioner, on awkward tables: each row once, the same split for the same seed."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsyn.domain import Domain
from fedsyn.plugins.partitioners.subpopulation import _home_clients, _merge_neighbours
from fedsyn.registry import PARTITIONERS
from fedsyn.registry import partitioner as make_partitioner
from fedsyn.table.data.partition import PartitionInput, apportion, check_partition, fill_small_clients

OPTIONS = {
    "iid": st.just({}),
    "quantity": st.fixed_dictionaries({"alpha": st.sampled_from([1e-3, 0.1, 1.0, 1e6])}),
    "dirichlet": st.fixed_dictionaries({"beta": st.sampled_from([1e-3, 0.1, 1.0, 1e6])}),
    "subpopulation": st.fixed_dictionaries({"bias": st.sampled_from([0.0, 0.3, 1.0])}),
    # Tables here are below the size from which UMAP is used; tests/unit embeds a larger one.
    "clustering": st.fixed_dictionaries({"cache": st.just(False)}),
    "native": st.just({}),
}
LABELS = ("one value", "one rare row", "distinct values", "two values")


def table_of(rows: int, labels: str, columns: int, seed: int) -> PartitionInput:
    rng = np.random.default_rng(seed)
    label = {
        "one value": np.zeros(rows, dtype=int),
        "one rare row": (np.arange(rows) == rows // 2).astype(int),
        "distinct values": rng.permutation(rows),
        "two values": rng.integers(0, 2, rows),
    }[labels]
    others = [rng.integers(0, 3, rows) for _ in range(columns - 1)]
    codes = np.stack([label, *others], axis=1).astype(np.uint8)
    domain = Domain(tuple(f"a{i}" for i in range(columns)), (max(rows, 2), *[3] * (columns - 1)))
    return PartitionInput(codes, domain, label="a0")


@st.composite
def cases(draw: st.DrawFn) -> tuple[PartitionInput, int, int]:
    rows = draw(st.integers(1, 15))
    clients = draw(st.one_of(st.integers(1, rows + 3), st.just(rows)))
    seed = draw(st.integers(0, 2**16))
    table = table_of(rows, draw(st.sampled_from(LABELS)), draw(st.integers(1, 3)), seed)
    return table, clients, seed


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_once_few_clients_without_and_reproducible(name: str, data: st.DataObject) -> None:
    table, clients, seed = data.draw(cases())
    if name == "native":
        ids = np.random.default_rng(seed).permutation(np.arange(table.rows) % clients) + 7
        holders = np.arange(clients) + 7
        table = PartitionInput(table.codes, table.domain, table.label, native=ids, holders=holders)
    scarce = {"min_rows": 0} if clients > table.rows and name in ("dirichlet", "quantity") else {}
    partitioner = make_partitioner(name, **data.draw(OPTIONS[name]), **scarce)
    parts = partitioner.split(table, clients, np.random.default_rng(seed))
    check_partition(parts, table.rows, clients)
    assert sorted(np.concatenate(parts).tolist()) == list(range(table.rows))
    assert all((part.size > 0 or clients > table.rows) and part.dtype == np.int64 for part in parts)
    again = partitioner.split(table, clients, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    min_rows=st.integers(1, 4),
)
@example(sizes=[0, 0, 12], min_rows=4)
def test_repair_moves_only_what_it_must(sizes: list[int], min_rows: int) -> None:
    rows = sum(sizes)
    if rows < min_rows * len(sizes):
        return
    parts = list(np.split(np.random.default_rng(0).permutation(rows), np.cumsum(sizes)[:-1]))
    filled = fill_small_clients(parts, min_rows)
    assert sorted(np.concatenate(filled).tolist()) == list(range(rows))
    assert min(part.size for part in filled) >= min_rows
    missing = sum(max(min_rows - size, 0) for size in sizes)
    moved = sum(np.setdiff1d(after, before).size for before, after in zip(parts, filled, strict=True))
    assert moved == missing
    # Always from the largest: no donor ends more than one row below another client that it was larger than.
    donors = [part.size for part, size in zip(filled, sizes, strict=True) if part.size < size]
    if donors:
        assert max(part.size for part in filled) <= min(donors) + 1


@given(shares=st.lists(st.floats(0.01, 100), min_size=1, max_size=20), total=st.integers(0, 1000))
def test_apportioned_sizes_sum_to_the_total_and_differ_by_less_than_one(shares: list[float], total: int) -> None:
    weights = np.array(shares)
    sizes = apportion(weights, total)
    assert sizes.sum() == total
    assert np.all(np.abs(sizes - weights / weights.sum() * total) < 1 + 1e-9)


@given(counts=st.lists(st.integers(1, 1000), min_size=1, max_size=30), data=st.data())
def test_merged_values_are_consecutive_groups_none_empty(counts: list[int], data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, len(counts)))
    merged = _merge_neighbours(np.array(counts), groups)
    assert np.all(np.diff(merged) >= 0)
    assert np.unique(merged).tolist() == list(range(groups))


@given(counts=st.lists(st.integers(1, 1000), min_size=1, max_size=30), data=st.data())
def test_every_group_has_a_home(counts: list[int], data: st.DataObject) -> None:
    clients = data.draw(st.integers(len(counts), sum(counts)))
    homes = _home_clients(np.array(counts), clients)
    assert homes.sum() == clients
    assert homes.min() >= 1
