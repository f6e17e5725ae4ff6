"""Tables that are read, counted, sampled and written in blocks: the same bytes as in one piece."""

from __future__ import annotations

import datetime
import decimal
import gzip
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import DataError
from fedsyn.front.testing.schemas import awkward_tables
from fedsyn.inference import EmpiricalModel, Model
from fedsyn.inference.sampling import shuffled_order
from fedsyn.loading import parse_config
from fedsyn.randomness import Randomness
from fedsyn.runs import prepare, synthesis
from fedsyn.runs.directory import RESULTS
from fedsyn.runs.engines import run
from fedsyn.sweep.report import report_folder
from fedsyn.table.counting import marginals
from fedsyn.table.data import encode_file, encoded_blocks, load_dataset, partition, read_table, write_encoded
from fedsyn.table.data.encoded import RowFiles, RowSpool, taken
from fedsyn.table.data.partition import draw_test_rows
from fedsyn.table.data.writers import _lines, table_writer
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema
from fedsyn.table.schema.holdings import Holding

TABLES = awkward_tables()
NAMED = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def read_in_blocks(path, schema, rows=7):
    blocks = list(encoded_blocks(path, schema, rows=rows))
    assert all(0 < block.read <= rows for block in blocks)
    return np.concatenate([b.codes for b in blocks]), np.concatenate([b.numbers for b in blocks])


def assert_like_whole(path, schema, rows=7):
    frame = read_table(path, schema)
    codes, numbers = read_in_blocks(path, schema, rows)
    np.testing.assert_array_equal(codes, schema.encode(frame))
    assert codes.dtype == schema.dtype
    np.testing.assert_array_equal(numbers, schema.block(frame).numbers)
    np.testing.assert_array_equal(encode_file(path, schema), codes)


# Reading --------------------------------------------------------------------------------------------------------------


@NAMED
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_blocks_of_a_file_are_the_table(table, suffix, tmp_path):
    path = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        table.frame.to_parquet(path, row_group_size=11)
    else:
        table.frame.to_csv(path, index=False)
    assert_like_whole(path, table.schema)


MIXED = Schema(
    columns={
        "town": CategoricalColumn(categories=("Bonn", "Köln", "Ulm"), missing=True),
        "priors": CategoricalColumn(categories=("0", "1-3", "4+"), other=False),
        "grade": CategoricalColumn(categories=(1, 2, 3), missing=True),
        "flag": CategoricalColumn(categories=(False, True)),
        "ratio": CategoricalColumn(categories=(0.5, 1.0), missing=True),
        "age": NumericColumn(lower=0, upper=99, bins=10, dtype="integer", missing=True),
        "weight": NumericColumn(lower=-5, upper=200, bins=7),
        "day": CategoricalColumn(categories=("2020-01-01", "2020-01-02")),
        "time": CategoricalColumn(categories=("2020-01-01 00:00:00", "2020-01-02 12:00:00"), missing=True),
    }
)


def mixed_arrays(rows, seed):
    rng = np.random.default_rng(seed)

    def drawn(values, share=0.2):
        absent = rng.random(rows) < share
        picked = [values[i] for i in rng.integers(len(values), size=rows)]
        return [None if gone else value for gone, value in zip(absent, picked, strict=True)]

    days = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), datetime.date(1999, 1, 1)]
    times = [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2, 12)]
    return {
        "town": drawn(["Bonn", "Köln", "Ulm", "Atlantis", " Bonn", "NA", ""]),
        "priors": drawn(["0", "1-3", "4+", "x"]),
        "grade": drawn([1, 2, 3, 7, -4]),
        "flag": drawn([True, False]),
        "ratio": drawn([0.5, 1.0, 0.8, float("nan"), float("inf")]),
        "age": drawn([0, 9, 10, 99, 250, -3]),
        "weight": drawn([0.0, -7.5, 199.999, 1e300, float("inf"), float("-inf"), float("nan"), -0.0]),
        "day": drawn(days),
        "time": drawn(times),
    }


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"town": pa.large_string(), "grade": pa.int8(), "age": pa.uint16(), "weight": pa.float64()},
        {"town": pa.dictionary(pa.int8(), pa.string()), "priors": pa.dictionary(pa.int32(), pa.string())},
        {"age": pa.string(), "grade": pa.string(), "flag": pa.string()},
        {"age": pa.decimal128(9, 2), "grade": pa.decimal128(5, 0)},
        {"age": pa.dictionary(pa.int16(), pa.int64()), "flag": pa.dictionary(pa.int8(), pa.string())},
    ],
    ids=["guessed", "small", "dictionaries", "text", "decimals", "numbers in dictionaries"],
)
def test_a_parquet_file_is_read_alike_in_blocks_and_whole_whatever_its_types(types, tmp_path):
    """Row groups with other values, with other dictionaries, without a missing value, and of missing values only."""
    path = tmp_path / "t.parquet"
    groups = []
    for seed, rows in ((0, 40), (1, 3), (2, 25)):
        arrays = mixed_arrays(rows, seed)
        if seed == 1:
            arrays = {name: [None] * rows for name in arrays}
        for name, kind in types.items():
            inner = kind.value_type if pa.types.is_dictionary(kind) else kind
            if pa.types.is_string(inner) or pa.types.is_large_string(inner):
                arrays[name] = [None if v is None else str(v) for v in arrays[name]]
            elif pa.types.is_unsigned_integer(inner):
                arrays[name] = [v if v is None else abs(v) for v in arrays[name]]
            elif pa.types.is_decimal(inner):
                arrays[name] = [v if v is None else decimal.Decimal(v) for v in arrays[name]]
        plain = pa.table(mixed_arrays(5, 9))
        fields = {name: types.get(name, plain.schema.field(name).type) for name in arrays}
        groups.append(pa.table({name: pa.array(values, fields[name]) for name, values in arrays.items()}))
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert_like_whole(path, MIXED)


def test_a_parquet_file_that_pandas_wrote_keeps_its_nullable_types_and_index(tmp_path):
    frame = pd.DataFrame(
        {
            "age": pd.array([1, None, 99], "Int64"),
            "smoker": pd.array([True, None, False], "boolean"),
            "town": pd.Categorical(["Ulm", None, "Bonn"]),
        },
        index=[7, 8, 9],
    )
    schema = Schema(
        columns={
            "town": CategoricalColumn(categories=("Bonn", "Ulm"), other=False, missing=True),
            "age": NumericColumn(lower=0, upper=99, dtype="integer", missing=True),
            "smoker": NumericColumn(lower=0, upper=1, dtype="integer", missing=True),
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    assert_like_whole(tmp_path / "t.parquet", schema, 2)


def test_a_missing_value_in_one_row_changes_no_other_row(tmp_path):
    """A whole number stays one: pandas, reading a file whole, makes floats of a column in which one is missing."""
    schema = Schema(columns={"x": CategoricalColumn(categories=("1.0", "1", str(2**53 + 1)), missing=True)})
    path = tmp_path / "t.parquet"
    for values in ([1, 2**53 + 1, 7], [1, 2**53 + 1, None]):
        pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), path)
        assert read_in_blocks(path, schema)[0][:2, 0].tolist() == [1, 2]


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_with_text_among_numbers_are_left_out_whatever_the_blocks(rows, tmp_path):
    schema = Schema(columns={"n": NumericColumn(lower=0, upper=9), "m": NumericColumn(lower=0, upper=9)})
    path = tmp_path / "t.csv"
    path.write_text("n,m\n1,2\nSECRET,2\n3,\n4,1\nSECRET2,x\n")
    pq.write_table(pa.table({"n": ["1", "SECRET", "3", "4", "SECRET2"], "m": [1, 2, 3, 4, 5]}), tmp_path / "t.parquet")
    for file, left_out in ((path, 3), (tmp_path / "t.parquet", 2)):
        holding = Holding(schema)
        blocks, encoder = list(encoded_blocks(file, schema, rows=rows, holding=holding)), holding.encoder
        assert encoder.unplaced["n"] == 2 and encoder.left_out == left_out and encoder.rows == 5
        assert sum(len(block.codes) for block in blocks) == 5 - left_out
        assert sum(block.read for block in blocks) == 5


@pytest.mark.parametrize("cells", ["True,False,1,2", "1,2,True,False", "True,,3,", "True,False,,True", ",,True,False"])
def test_true_and_false_in_a_numeric_column_of_csv_do_not_depend_on_blocks(cells, tmp_path):
    """pandas takes a column of them for numbers, and beside numbers for text: a block is not a column."""
    schema = Schema(columns={"n": NumericColumn(lower=0, upper=9, bins=10), "k": CategoricalColumn(categories=("a",))})
    path = tmp_path / "t.csv"
    path.write_text("n,k\n" + "".join(f"{cell},a\n" for cell in cells.split(",")))
    try:
        whole = schema.encode(read_table(path, schema)).tolist()
    except DataError as error:
        with pytest.raises(DataError) as caught:
            list(encoded_blocks(path, schema, rows=2))
        assert str(caught.value) == str(error)
    else:
        assert read_in_blocks(path, schema, 2)[0].tolist() == whole


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", b"", "is empty"),
        ("short.csv", b"agee,town\n1,Bonn\n", r"'age' \(did you mean 'agee'\?\)"),
        ("zeros.csv", b"age,to\0wn\n1,Bonn\n", "holds NUL bytes"),
        ("cut.csv.gz", gzip.compress(b"age,town\n" + b"1,Bonn\n" * 5000, mtime=0)[:40], "damaged"),
        ("broken.parquet", b"not parquet", "not a well-formed Parquet file"),
        ("table.xlsx", b"", "not a well-formed Excel file"),
        ("table.doc", b"", "must end in one of .csv"),
    ],
)
def test_a_bad_file_gets_the_message_of_the_whole_reader(name, content, message, tmp_path):
    schema = Schema(columns={"age": NumericColumn(lower=0, upper=99), "town": CategoricalColumn(categories=("Bonn",))})
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(encoded_blocks(path, schema, rows=4))
    with pytest.raises(DataError) as whole:
        read_table(path, schema)
    assert str(caught.value) == str(whole.value)


def test_a_file_without_rows_is_a_block_without_rows(tmp_path):
    schema = Schema(columns={"age": NumericColumn(lower=0, upper=99), "town": CategoricalColumn(categories=("Bonn",))})
    (tmp_path / "none.csv").write_bytes(b"age,town\n")
    columns = {"age": pa.array([], pa.int64()), "town": pa.array([], pa.string())}
    pq.write_table(pa.table(columns), tmp_path / "none.parquet")
    pq.write_table(pa.table(columns).schema.empty_table(), tmp_path / "groups.parquet", row_group_size=1)
    for name in ("none.csv", "none.parquet", "groups.parquet"):
        (block,) = encoded_blocks(tmp_path / name, schema)
        assert block.codes.shape == (0, 2) and block.codes.dtype == schema.dtype and block.numbers.shape == (0, 1)
        assert encode_file(tmp_path / name, schema).shape == (0, 2)
        with pytest.raises(DataError, match="has no rows"):
            read_table(tmp_path / name, schema)


LETTERS = pa.Array.from_buffers(  # the second of the three texts is no UTF-8
    pa.string(), 3, [None, pa.py_buffer(np.arange(4, dtype=np.int32).tobytes()), pa.py_buffer(b"a\xffa")]
)


@pytest.mark.parametrize(
    "cells",
    [[["a"], [{"b": 1}], None], [{"x": 1}, {"x": 2}, None], LETTERS, pa.array([b"\xff", b"a", None], pa.binary())],
    ids=["lists", "records", "damaged text", "bytes"],
)
def test_cells_of_a_parquet_file_that_nothing_can_read_cost_themselves(cells, tmp_path):
    """They are counted, whatever the others of their column are; those that can be read are."""
    if not isinstance(cells, pa.Array):
        cells = pa.array([cells[0], cells[0], cells[2]])
    letters = CategoricalColumn(categories=("a", "b"), missing=True, unlisted=True, other=False)
    numbers = NumericColumn(lower=0, upper=9, bins=3, missing=True, unlisted=True)
    schema = Schema(columns={"x": letters, "y": numbers, "z": numbers})
    pq.write_table(pa.table({"x": cells, "y": cells, "z": [1, 5, 9]}), tmp_path / "t.parquet")
    holding = Holding(schema)
    (block,) = encoded_blocks(tmp_path / "t.parquet", schema, holding=holding)
    encoder = holding.encoder
    assert block.codes[:, 2].tolist() == [0, 1, 2]
    expected = [0, 3, 0] if cells is LETTERS else [3, 3, 2]
    assert block.codes[:, 0].tolist() == expected
    assert encoder.unplaced["x"] == expected.count(3) and encoder.left_out == 0


def test_dates_in_a_numeric_column_of_a_parquet_file(tmp_path):
    numeric = Schema(columns={"x": NumericColumn(lower=0, upper=1)})
    pq.write_table(pa.table({"x": [datetime.datetime(2020, 1, 1)]}), tmp_path / "dates.parquet")
    assert encode_file(tmp_path / "dates.parquet", numeric).tolist() == []


def test_a_parquet_file_that_is_damaged_further_on_says_where(tmp_path):
    path = tmp_path / "t.parquet"
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"x": rng.random(3000)}), path, row_group_size=1000, use_dictionary=False)
    column = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset
    data[start : start + 64] = bytes(64)
    path.write_bytes(bytes(data))
    schema = Schema(columns={"x": NumericColumn(lower=0, upper=1)})
    blocks = encoded_blocks(path, schema, rows=1000)
    assert len(next(blocks).codes) == 1000
    with pytest.raises(DataError, match=r"t.parquet is damaged: row group 2 of 3 cannot be read") as caught:
        next(blocks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("suffix", "share"), [(".csv", 1.0), (".parquet", 1.0), (".csv", 0.6), (".parquet", 0.6)])
def test_a_run_from_a_file_has_the_rows_of_a_run_from_its_data_frame(suffix, share, tmp_path, monkeypatch):
    """With the rows in memory, and in a file."""
    table = next(t for t in TABLES if t.name == "missing_values")
    frame = pd.concat([table.frame] * 9, ignore_index=True)
    path, schema = tmp_path / f"t{suffix}", tmp_path / "schema.yaml"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    table.schema.save(schema)
    config = parse_config(
        {
            "mechanism": "augflaim",
            "data": {"source": str(path), "schema": str(schema), "sample": share, "test_fraction": 0.25, "bins": 3},
            "federation": {"clients": 3, "partition": "dirichlet"},
            "privacy": {"epsilon": 1, "delta": 1e-5},
            "runtime": {"seed": 0},
        },
        "here",
    )
    whole = prepare.split_tables(config, frame)
    for in_memory in (1 << 20, 100):
        monkeypatch.setattr("fedsyn.table.data.encoded._IN_MEMORY", in_memory)
        prepare._encoded.cache_clear()
        streamed = prepare.split_tables(config)
        assert streamed.schema.to_dict() == whole.schema.to_dict()
        for part in ("train", "test", "test_numbers"):
            np.testing.assert_array_equal(getattr(streamed, part), getattr(whole, part), err_msg=part)
            assert getattr(streamed, part).flags.c_contiguous
        assert [p.tolist() for p in streamed.parts] == [p.tolist() for p in whole.parts]
    assert load_dataset(str(path), schema=schema).encode().shape == (540, 5)


# Rows on disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [0, 50, 1 << 20])
def test_a_spool_gives_back_its_rows_and_leaves_no_file(in_memory, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = np.random.default_rng(0).integers(0, 60_000, (100, 3)).astype(np.uint16)
    spool = RowSpool(3, np.uint16, in_memory)
    for start in range(0, 100, 7):
        spool.append(rows[start : start + 7])
        assert list(tmp_path.iterdir()) == []
    assert len(spool) == 100
    again = spool.rows()
    np.testing.assert_array_equal(again, rows)
    assert again.dtype == np.uint16 and not again.flags.writeable
    wanted = rows[:, 0] % 3 == 0
    np.testing.assert_array_equal(taken(again, wanted, block=9), rows[wanted])
    assert RowSpool(4, np.uint8, in_memory).rows().shape == (0, 4)


def test_a_spool_without_room_says_where(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        DataError, match=r"cannot keep the encoded table in .*gone: .*; it needs 3 bytes a row \(TMPDIR"
    ):
        RowSpool(3, np.uint8, in_memory=2).append(np.zeros((1, 3), np.uint8))


class Coarse:
    """A generator whose numbers are often equal."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def random(self, n):
        return np.floor(self.rng.random(n) * 8) / 8


@pytest.mark.parametrize("make", [np.random.default_rng, Coarse])
@pytest.mark.parametrize("block", [1 << 18, 10])
def test_the_test_rows_are_those_with_the_smallest_numbers(make, block, monkeypatch):
    monkeypatch.setattr(partition, "_BLOCK", block)
    for n in (1, 2, 5, 101, 1000):
        for fraction in (0.0, 0.1, 0.5, 0.99):
            rng, again = make(n), make(n)
            drawn = draw_test_rows(n, fraction, rng)
            wanted = np.zeros(n, bool)
            wanted[np.argsort(again.random(n), kind="stable")[: min(round(n * fraction), n - 1)]] = True
            np.testing.assert_array_equal(drawn, wanted)
            assert rng.random(3).tolist() == again.random(3).tolist(), "the generator is left where it was"


def test_the_clients_rows_are_written_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsyn.table.data.encoded._BLOCK", 4)
    codes = np.random.default_rng(0).integers(0, 200, (57, 3)).astype(np.uint8)
    parts = np.array_split(np.random.default_rng(1).permutation(57), 4)
    files = RowFiles()
    table = write_encoded(tmp_path, np.asfortranarray(codes), Domain(("a", "b", "c"), (200, 200, 200)), parts, files)
    np.testing.assert_array_equal(table.pooled(), codes[np.concatenate(parts)])
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy", allow_pickle=False), table.pooled())


# Counting -------------------------------------------------------------------------------------------------------------


def test_counts_of_many_rows_are_those_of_few_at_a_time(monkeypatch):
    domain = Domain(("a", "b", "c", "d"), (3, 70, 40, 30))
    codes = (np.random.default_rng(0).random((5000, 4)) ** 2 * domain.shape).astype(np.uint8)
    cliques = [(), ("b",), ("c", "a"), ("b", "c", "d"), ("a", "b", "c", "d"), ("d", "b")]
    dense, sparse = marginals.count(codes, domain, cliques), marginals.count_sparse_many(codes, domain, cliques)
    one_way = marginals.count_one_way(codes, domain)
    monkeypatch.setattr(marginals, "_CHUNK", 16)
    monkeypatch.setattr(marginals, "_CELLS_AT_ONCE", 6000)
    for whole, parts in zip(dense, marginals.count(codes, domain, cliques), strict=True):
        np.testing.assert_array_equal(whole, parts)
    for whole, parts in zip(sparse, marginals.count_sparse_many(codes, domain, cliques), strict=True):
        np.testing.assert_array_equal(whole.cells, parts.cells)
        np.testing.assert_array_equal(whole.counts, parts.counts)
        assert parts.cells.dtype == parts.counts.dtype == np.int64
    np.testing.assert_array_equal(one_way, marginals.count_one_way(codes, domain))
    for whole, parts in zip(dense, marginals.count_blocks(np.array_split(codes, 7), domain, cliques), strict=True):
        np.testing.assert_array_equal(whole, parts)


# Sampling and writing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 5, 1 << 16, 70_000, 10**9])
@pytest.mark.parametrize("equal", [False, True])
def test_rows_are_ordered_as_lexsort_orders_them(groups, equal):
    rng = np.random.default_rng(0)
    group, shuffle = rng.integers(0, groups, 20_000), rng.random(20_000)
    shuffle = np.round(shuffle, 2) if equal else shuffle
    np.testing.assert_array_equal(shuffled_order(group, shuffle, groups), np.lexsort((shuffle, group)))


TEXTS = Schema(
    columns={
        "text": CategoricalColumn(categories=("a", "1", 'say "x"', "two\nlines", " b ", "a,b"), missing=True),
        "mixed": CategoricalColumn(categories=(3, "a", True, 0.5), other=False),
        "floats": CategoricalColumn(categories=(1, 2.5, 1e20, 1e-7), missing=True),
        "tiny": NumericColumn(lower=-1e-3, upper=1e-3),
        "huge": NumericColumn(lower=0, upper=1e22, missing=True, bins=7),
        "big": NumericColumn(lower=-(2**53), upper=2**53, dtype="integer", bins=3),
    }
)
ALONE = Schema(columns={"x": NumericColumn(lower=-1, upper=1, missing=True)})
ALONE_TEXT = Schema(columns={"x": CategoricalColumn(categories=("a", "b"), missing=True)})
SCHEMAS = {table.name: table.schema for table in TABLES} | {"texts": TEXTS, "number": ALONE, "text": ALONE_TEXT}


def test_every_float_is_written_as_pandas_writes_it():
    bits = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    powers = np.outer([1.0, 1.5, -3.2], 10.0 ** np.arange(-12, 24)).ravel()
    frame = pd.DataFrame({"x": [*bits[np.isfinite(bits)], *powers, *(np.round(powers, 3) + 0.0), np.nan, 0.0], "y": 1})
    assert bytes(_lines(frame, ",", ())).decode() == frame.to_csv(header=False, index=False)


@pytest.mark.parametrize("name", SCHEMAS)
def test_written_tables_are_those_that_pandas_writes(name, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsyn.table.data.writers._LINES", 100)
    schema, rng = SCHEMAS[name], np.random.default_rng(0)
    written = [column.size - column.unlisted for column in schema.columns.values()]
    codes = (rng.random((250, len(schema.columns))) * np.array(written)).astype(schema.dtype)
    frame = schema.decode(codes, np.random.default_rng(1))
    for suffix in ("csv", "parquet"):
        drawn = np.random.default_rng(1)
        with table_writer(tmp_path / f"made.{suffix}", schema) as writer:
            writer.write(writer.render(codes, drawn))
            writer.write(writer.render(codes[:0], drawn))
        again = np.random.default_rng(1)
        schema.decode(codes, again)
        assert drawn.random() == again.random(), "another number of draws than decoding makes"
        read = np.concatenate([block.codes for block in encoded_blocks(tmp_path / f"made.{suffix}", schema)])
        np.testing.assert_array_equal(read, codes)
    frame.to_csv(tmp_path / "whole.csv", index=False)
    if name != "cells_of_their_own":  # a frame has its code for missing as the number -9.0, a file as it came: -9
        assert (tmp_path / "made.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    made = pd.read_parquet(tmp_path / "made.parquet")
    mixed = [column for column in frame if column == "mixed"]  # of several types: text in Parquet
    pd.testing.assert_frame_equal(made.drop(columns=mixed), frame.drop(columns=mixed))


def test_floats_are_written_as_python_writes_them():
    schema = Schema(columns={"x": NumericColumn(lower=-1e308, upper=1e308)})
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 63, 20_000, dtype=np.uint64).view(np.float64)
    values = np.concatenate([bits[np.isfinite(bits)], rng.random(20_000), 10.0 ** np.arange(-12, 20), [0.0, -0.0]])
    values = np.concatenate([values, -values, rng.random(20_000) * 1e6, rng.random(20_000) * 1e11])
    values = np.concatenate([values, *(np.nextafter(edge, [0, 1e99]) for edge in (1e-4, 1e10, 1e15, 1e16, 2.0))])
    values = values[np.isfinite(values)]
    cells = schema.columns["x"].cells(values, np.zeros(len(values), bool))
    assert cells.to_csv(index=False, header=False).split() == [
        repr(value) for value in (values + 0.0).tolist()
    ]  # never -0.0


def chain() -> tuple[Schema, Model]:
    schema = next(table.schema for table in TABLES if table.name == "missing_values")
    rng, domain = np.random.default_rng(0), schema.domain
    pairs = list(zip(domain.attributes[:-1], domain.attributes[1:], strict=True))
    return schema, Model(domain, {pair: rng.normal(size=domain.shape_of(pair)) for pair in pairs}, 100.0)


def models() -> list[Model | EmpiricalModel]:
    schema, model = chain()
    return [model, EmpiricalModel(schema.domain, model.sample(90, np.random.default_rng(3)))]


@pytest.mark.parametrize("model", models(), ids=["tree", "rows"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_synthetic_rows_depend_neither_on_threads_nor_on_what_is_kept(model, suffix, tmp_path, monkeypatch):
    schema = chain()[0]
    monkeypatch.setattr(synthesis, "BATCH", 64)
    made = []
    for threads, keep in ((1, True), (3, True), (2, False)):
        monkeypatch.setattr(synthesis, "_threads", lambda rows, threads=threads: threads)
        path = tmp_path / f"{threads}.{suffix}"
        codes = synthesis.write_synthetic(path, schema, model, 500, Randomness(5), keep=keep)
        made.append((path.read_bytes(), None if codes is None else codes.tolist()))
        read = np.concatenate([block.codes for block in encoded_blocks(path, schema)])
        assert read.shape == (500, 5) and (codes is None or read.tolist() == codes.tolist())
    first = synthesis.write_synthetic(
        tmp_path / f"some.{suffix}", schema, model, 500, Randomness(5), keep=True, most=150
    )
    assert first is not None and first.tolist() == made[0][1][:150]
    assert (tmp_path / f"some.{suffix}").read_bytes() == made[0][0]
    assert made[0] == made[1]
    assert made[2] == (made[0][0], None)


@pytest.mark.parametrize("model", models(), ids=["tree", "rows"])
def test_a_table_of_one_batch_is_the_table_that_it_always_was(model, tmp_path):
    schema = chain()[0]
    codes = synthesis.write_synthetic(tmp_path / "new.csv", schema, model, 500, Randomness(5), keep=True)
    rng = Randomness(5).ordinary("synthesize")
    sampled = model.sample(500, rng)
    schema.decode(sampled, rng).to_csv(tmp_path / "old.csv", index=False)
    np.testing.assert_array_equal(codes, sampled)
    assert (tmp_path / "new.csv").read_bytes() == (tmp_path / "old.csv").read_bytes()


def test_the_counts_of_batches_stay_close_to_the_model(tmp_path, monkeypatch):
    """An attribute at a root of the tree has every count of a batch within one of its expectation: of 8, within 8."""
    schema, model = chain()
    monkeypatch.setattr(synthesis, "BATCH", 64)
    codes = synthesis.write_synthetic(tmp_path / "t.csv", schema, model, 512, Randomness(1), keep=True)
    assert codes is not None and len({codes[at : at + 64].tobytes() for at in range(0, 512, 64)}) == 8
    names = [(name,) for name in schema.domain]
    gaps = [
        np.abs(counts - model.project(name) * 512 / model.total).max()
        for name, counts in zip(names, marginals.count(codes, schema.domain, names), strict=True)
    ]
    assert min(gaps) <= 8
    assert max(gaps) < 64, "the others hold it given their parents' counts"


def config(tmp_path: Path, **nodes) -> RunConfig:
    table = next(t for t in TABLES if t.name == "missing_values")
    table.schema.save(tmp_path / "schema.yaml")
    table.frame.to_parquet(tmp_path / "t.parquet")
    return parse_config(
        {
            "mechanism": {"name": "augflaim", "rounds": 1},
            "data": {"source": str(tmp_path / "t.parquet"), "schema": str(tmp_path / "schema.yaml")},
            "federation": {"clients": 3},
            "privacy": {"epsilon": 5, "delta": 1e-5},
            "runtime": {"seed": 0},
            **nodes,
        },
        "here",
    )


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_writes_parquet_where_it_is_asked_to(tmp_path):
    csv = run(config(tmp_path), tmp_path / "csv")
    parquet = run(config(tmp_path, synthesis={"format": "parquet"}), tmp_path / "parquet")
    ignored = {"seconds", "peak_mb", "client_mb_up", "client_mb_down"}
    assert {k: v for k, v in csv.items() if k not in ignored} == {k: v for k, v in parquet.items() if k not in ignored}
    assert not (tmp_path / "parquet" / "synthetic.csv").exists()
    schema = Schema.load(tmp_path / "schema.yaml")
    one = schema.encode(read_table(tmp_path / "csv" / "synthetic.csv", schema))
    two = schema.encode(read_table(tmp_path / "parquet" / "synthetic.parquet", schema))
    np.testing.assert_array_equal(one, two)
    report_folder(tmp_path / "parquet")
    assert ">All columns</strong>" in (tmp_path / "parquet" / "report.html").read_text(encoding="utf-8")
    assert "synthetic.parquet" in RESULTS, "a second run would leave the table of the first"


@pytest.mark.parametrize("claimed", [1, 6])
def test_a_file_that_does_not_hold_the_rows_of_its_end_is_refused(
    claimed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else rows that nobody has written would be counted, or rows lost."""
    pd.DataFrame({"a": [1.0, 2.0]}).to_parquet(tmp_path / "two.parquet")
    schema = Schema(columns={"a": NumericColumn(lower=0, upper=3, bins=3)})
    assert encode_file(tmp_path / "two.parquet", schema).shape == (2, 1)
    monkeypatch.setattr("fedsyn.table.data.readers.row_count", lambda path, options: claimed)
    with pytest.raises(DataError, match="was replaced while it was read"):
        encode_file(tmp_path / "two.parquet", schema)


def test_a_cell_that_cannot_be_converted_is_a_value_that_is_not_listed(tmp_path: Path) -> None:
    days = pa.array([2147483000], pa.int32()).cast(pa.date32())  # a day that Python's calendar does not have
    pq.write_table(pa.table({"a": days}), tmp_path / "days.parquet")
    schema = Schema(columns={"a": CategoricalColumn(categories=("x",), other=True)})
    assert encode_file(tmp_path / "days.parquet", schema).tolist() == [[1]]
