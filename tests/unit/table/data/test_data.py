"""Sources of tables: files, registered names, SynthFS, scikit-learn, the encoded table; and every way they
fail.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, DataError, SchemaError
from fedsyn.front.testing.schemas import awkward_table, awkward_tables
from fedsyn.table.data import (
    EncodedTable,
    dataset_names,
    describe,
    load_dataset,
    read_table,
    write_encoded,
)
from fedsyn.table.data.datasets import Origin
from fedsyn.table.data.encoded import RowFiles
from fedsyn.table.data.fetch import fetch
from fedsyn.table.data.partition import draw_test_rows
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

SCHEMA = Schema(
    columns={
        "age": NumericColumn(lower=0, upper=99, dtype="integer"),
        "town": CategoricalColumn(categories=("Bonn", "Köln"), missing=True),
    },
    label="town",
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# Files


def test_a_csv_file_is_read_as_the_schema_says(tmp_path):
    path = write(tmp_path / "people.csv", 'note,town,age\nx,Köln,10\ny,,\nz,"Bonn",99\n')
    dataset = load_dataset(str(path), schema=SCHEMA)
    assert dataset.name == "people"
    assert list(dataset.frame) == ["age", "town"]  # the schema's order, and no column that it does not name
    assert dataset.encode().tolist() == [[3, 1], [31, 0]]  # a row without an age is left out: none is missing
    schema_file = tmp_path / "schema.yaml"
    SCHEMA.save(schema_file)
    again = load_dataset(path, schema=schema_file, bins=5, label="age")
    assert again.schema.domain.shape == (5, 4)
    assert again.schema.label == "age"


def test_the_same_cell_is_read_the_same_way_in_every_file(tmp_path):
    schema = Schema(columns={"priors": CategoricalColumn(categories=("0", "1-3", "4+"), other=False)})
    some = write(tmp_path / "some.csv", "priors\n0\n0\n")
    mixed = write(tmp_path / "mixed.csv", "priors\n0\n4+\n")
    assert schema.encode(read_table(some, schema))[:, 0].tolist() == [0, 0]
    assert schema.encode(read_table(mixed, schema))[:, 0].tolist() == [0, 2]


def test_a_number_on_the_edge_of_a_bin_is_read_exactly(tmp_path):
    edges = np.sort(np.random.default_rng(0).random(500) * 1000)
    schema = Schema(columns={"x": NumericColumn(bins=tuple(edges.tolist()))})
    path = write(tmp_path / "t.csv", "x\n" + "\n".join(map(repr, edges.tolist())) + "\n")
    assert load_dataset(path, schema=schema).encode()[:, 0].tolist() == [*range(499), 498]


def test_separator_byte_order_mark_and_compression(tmp_path):
    text = "\ufeffage;town\n7;Köln\n"
    write(tmp_path / "a.csv", text)
    frame = load_dataset(str(tmp_path / "a.csv"), schema=SCHEMA, options={"separator": ";"}).frame
    assert frame["age"].tolist() == [7]
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert load_dataset(tmp_path / "b.csv.gz", schema=SCHEMA).frame.to_dict("list") == {"age": [7], "town": ["Köln"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", b"", "is empty"),
        ("header.csv", b"age,town\n", "has no rows"),
        ("short.csv", b"agee,town\n1,Bonn\n", r"'age' \(did you mean 'agee'\?\)"),
        ("twice.csv", b"age,town,age\n1,Bonn,2\n", "more than one column named 'age'"),
        ("surplus.csv", b"age,town\n1,Bonn,x\n2,Bonn,y\n", "has no rows"),
        ("zeros.csv", b"age,to\0wn\n1,Bonn\n", "holds NUL bytes"),
        ("broken.csv.gz", b"not gzip at all", "the file is damaged|Not a gzipped file"),
        ("cut.csv.gz", gzip.compress(b"age,town\n" + b"1,Bonn\n" * 5000, mtime=0)[:40], "damaged"),
        ("broken.parquet", b"not parquet", "not a well-formed Parquet file"),
        ("table.xlsx", b"", "not a well-formed Excel file"),
        ("table.doc", b"", "must end in one of .csv"),
        ("table.xls", b"", "save it as .xlsx or .csv"),
    ],
)
def test_a_bad_file_gets_one_clear_message(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, SCHEMA)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "people.csv", "a\n1\n")
    with pytest.raises(DataError, match=r"no such file: .*peple.csv \(did you mean 'people.csv'\?\)"):
        load_dataset(tmp_path / "peple.csv", schema=SCHEMA)


def test_a_row_with_text_in_a_numeric_column_is_left_out(tmp_path):
    path = write(tmp_path / "t.csv", "age,town\n1,Bonn\nSECRET,Bonn\n")
    assert load_dataset(str(path), schema=SCHEMA).encode().tolist() == [[0, 0]]


def test_a_category_outside_the_schema_is_no_error(tmp_path):
    schema = Schema(columns={"town": CategoricalColumn(categories=("Bonn",))})
    path = write(tmp_path / "t.csv", "town\nBonn\nAtlantis\n")
    assert load_dataset(str(path), schema=schema).encode()[:, 0].tolist() == [0, 1]
    assert schema.columns["town"].values == ("Bonn", "other")


def test_in_a_table_of_one_column_a_blank_line_is_a_missing_value(tmp_path):
    schema = Schema(columns={"town": CategoricalColumn(categories=("Bonn", " "), other=False, missing=True)})
    path = write(tmp_path / "t.csv", "town\nBonn\n\n \nBonn\n")
    assert load_dataset(path, schema=schema).encode()[:, 0].tolist() == [0, 2, 1, 0]
    two = write(tmp_path / "two.csv", "town,x\nBonn,1\n\n,2\n\n")
    assert load_dataset(two, schema=schema).encode()[:, 0].tolist() == [0, 2]


def test_a_parquet_file_without_a_column_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"town": ["Bonn"]}).to_parquet(path)
    with pytest.raises(DataError, match="lacks columns of the schema: 'age'"):
        read_table(path, SCHEMA)


def test_a_data_frame_is_a_source():
    frame = pd.DataFrame({"age": [1], "town": ["Bonn"]})
    assert load_dataset(frame, schema=SCHEMA).encode().shape == (1, 2)
    with pytest.raises(DataError, match="no rows"):
        load_dataset(frame.iloc[:0], schema=SCHEMA)


def test_sources_that_need_a_schema_say_so(tmp_path):
    path = write(tmp_path / "people.csv", "age,town\n1,Bonn\n")
    for source in (pd.DataFrame({"a": [1]}), path, "openml:anything"):
        with pytest.raises(SchemaError, match="fedsyn schema draft"):
            load_dataset(source)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("adutl", {}, "did you mean 'adult'"),
        ("synthfs", {"betta": 1}, r"'betta' \(did you mean 'beta'\?\)"),
        ("synthfs", {"rows": 5, "clients": 6}, "5 rows are too few for 6 clients"),
        ("synthfs", {"beta": -1}, "beta: "),
        ("sklearn:irish", {}, "did you mean 'iris'"),
        ("iris", {"grouped": False}, "unknown data option 'grouped'"),
    ],
)
def test_an_unknown_source_or_option_names_the_nearest(source, options, message):
    with pytest.raises(ConfigError, match=message):
        load_dataset(source, options=options)


# SynthFS


def test_synthfs_is_the_construction_of_the_paper():
    dataset = load_dataset("synthfs", options={"beta": 1, "clients": 50, "rows": 20_000, "seed": 3})
    assert dataset.frame.shape == (20_000, 10)
    client = dataset.native_partition
    assert np.bincount(client).tolist() == [400] * 50
    values = dataset.frame.to_numpy()
    means = np.stack([values[client == k].mean(axis=0) for k in range(50)])
    spread = np.stack([values[client == k].std(axis=0) for k in range(50)])
    # Means are integers of 1..40 up to the error of 400 draws (0.05); standard deviations are 1 (up to
    # 0.035).
    assert np.abs(means - np.round(means)).max() < 5 * 0.05
    assert means.min() > 0.5
    assert means.max() < 40.5
    assert np.abs(spread - 1).max() < 5 * 0.035
    # P(1) / P(2) = 2 under Zipf with exponent 1, whose mass at 1 is 1 / H(40).
    share = (np.round(means) == 1).mean()
    expected = 1 / (1 / np.arange(1, 41)).sum()
    assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / means.size)


def test_synthfs_repeats_with_the_seed_and_is_milder_for_larger_beta():
    options = {"clients": 40, "rows": 4_000, "seed": 1}
    first = load_dataset("synthfs", options=options)
    pd.testing.assert_frame_equal(first.frame, load_dataset("synthfs", options=options).frame)
    other = load_dataset("synthfs", options={**options, "seed": 2})
    assert not np.array_equal(first.frame, other.frame)
    spreads = []
    for beta in (1, 2, 3, 5):
        frame = load_dataset("synthfs", options={**options, "beta": beta}).frame
        spreads.append(frame.groupby(first.native_partition).mean().std(axis=0).mean())
    assert spreads == sorted(spreads, reverse=True)
    assert first.schema.domain.shape == (32,) * 10
    assert load_dataset("synthfs", options=options, bins=8).schema.domain.shape == (8,) * 10


def test_synthfs_shares_rows_as_evenly_as_possible():
    dataset = load_dataset("synthfs", options={"clients": 7, "rows": 30})
    sizes = np.bincount(dataset.native_partition)
    assert len(sizes) == 7
    assert sizes.max() - sizes.min() == 1


# Registry


def test_every_registered_table_is_described_and_has_a_public_schema():
    wanted = "adult adult_flaim magic marketing intrusion covtype credit census abalone obesity insurance shoppers"
    assert set(f"{wanted} breast_cancer compas diabetes iris wine digits".split()) <= set(dataset_names())
    for name in dataset_names():
        entry = describe(name)
        schema = entry.schema_
        schema.require_approved()
        assert entry.title
        assert entry.licence
        assert schema.label in schema.columns
        origin = entry.origin
        assert sum(x is not None for x in (origin.openml, origin.url, origin.sklearn, origin.statsmodels)) == 1
        if entry.task == "classification":
            assert isinstance(schema.columns[schema.label], CategoricalColumn)
        codes = np.zeros((3, len(schema.columns)), dtype=schema.dtype)
        frame = schema.decode(codes, np.random.default_rng(0))
        np.testing.assert_array_equal(schema.encode(frame), codes)
    with pytest.raises(ConfigError, match="did you mean 'covtype'"):
        describe("covertype")


def test_tables_without_a_copy_here_have_the_columns_of_their_documentation():
    covtype = describe("covtype").schema_
    assert len(covtype.columns) == 55  # FLAIM's Table 4
    assert covtype.columns["Cover_Type"].size == 7
    credit = describe("credit").schema_
    assert len(credit.columns) == 30
    assert credit.columns["Class"].size == 2
    census = describe("census").schema_
    assert len(census.columns) == 41
    sizes = {name: column.size for name, column in census.columns.items()}
    assert sizes["state of previous residence"] == 51  # distinct values as census-income.names lists them
    assert sizes["detailed household and family stat"] == 38
    assert sizes["country of birth self"] == 43
    assert sizes["migration code-move within reg"] == 10
    assert sizes["hispanic origin"] == 10


@pytest.mark.parametrize("name", ["iris", "sklearn:wine", "breast_cancer_sklearn", "sklearn:diabetes", "digits"])
def test_the_tables_that_scikit_learn_ships_load_without_a_network(name, monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is an extra")
    monkeypatch.delenv("FEDSYN_DATA", raising=False)
    dataset = load_dataset(name)
    codes = dataset.encode()
    entry = describe(dataset.name)
    assert codes.shape == (entry.rows, len(dataset.schema.columns))
    if entry.task == "classification":
        label = dataset.frame[dataset.schema.label].to_numpy()
        np.testing.assert_array_equal(codes[:, -1], label)


def test_a_copy_with_the_names_of_the_origin_is_adapted(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSYN_DATA", str(tmp_path))
    write(
        tmp_path / "diabetes.csv",
        "preg,plas,pres,skin,insu,mass,pedi,age,class\n6,148,72,35,0,33.6,0.627,50,tested_positive\n"
        "1,85,66,29,0,26.6,0.351,31,tested_negative\n",
    )
    dataset = load_dataset("diabetes")
    assert dataset.frame["outcome"].tolist() == [1, 0]
    assert dataset.frame["pedigree"].tolist() == [0.627, 0.351]
    write(
        tmp_path / "compas.csv",
        "id,sex,age_cat,race,priors_count,c_charge_degree,score_text,two_year_recid\n"
        "9,Male,25 - 45,Other,0,F,Low,0\n8,Female,Less than 25,Asian,12,M,High,1\n"
        "7,Male,25 - 45,Asian,3,M,Low,0\n",
    )
    assert load_dataset("compas").frame["priors"].tolist() == ["0", "4+", "1-3"]


def test_openml_adult_is_adapted():
    frame = pd.DataFrame(
        {
            "age": [30, 40],
            "workclass": pd.Categorical(["Private", None]),
            "class": pd.Categorical(["<=50K", ">50K"]),
        }
    )
    adapted = describe("adult").adapt(frame)
    assert adapted["workclass"].tolist() == ["Private", "?"]
    assert adapted["income"].tolist() == ["<=50K", ">50K"]
    assert "class" not in adapted


def test_intrusion_groups_attacks_unless_told_not_to():
    entry = describe("intrusion")
    assert entry.schema_.columns["label"].values == ("normal", "dos", "probe", "r2l", "u2r")
    raw = entry.ungrouped().columns["label"]
    assert raw.size == 23
    assert {"normal", "smurf", "rootkit"} <= set(raw.values)


# Fetching (addresses of local files: no network)


def archive(path: Path, files: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(path, "w") as out:
        for name, content in files.items():
            out.writestr(name, content)
    return path.read_bytes()


def test_fetching_unpacks_nested_archives_and_keeps_what_it_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path / "cache"))
    inner = archive(tmp_path / "inner.zip", {"folder/data.csv": b'"y";"x"\n"no";1\n"yes";2\n'})
    archive(tmp_path / "outer.zip", {"inner.zip": inner, "readme.txt": b"-"})
    origin = Origin(url=(tmp_path / "outer.zip").as_uri(), members=("inner.zip", "folder/data.csv"), separator=";")
    assert fetch(origin, "bank").to_dict("list") == {"y": ["no", "yes"], "x": [1, 2]}
    (tmp_path / "outer.zip").unlink()
    assert len(fetch(origin, "bank")) == 2  # from the cache


def test_fetching_joins_the_files_of_a_tar_archive_and_decompresses(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path / "cache"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in (("train", b" 1, a, ?\n 2, b, NA\n"), ("test", b" 3, c,\n")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive(tmp_path / "census.zip", {"census.tar.gz": buffer.getvalue()})
    origin = Origin(
        url=(tmp_path / "census.zip").as_uri(),
        members=("census.tar.gz", "train + test"),
        header=("i", "t", "q"),
    )
    frame = fetch(origin, "census")
    assert frame["i"].tolist() == [1, 2, 3]
    assert frame["t"].tolist() == ["a", "b", "c"]
    assert frame["q"].fillna("missing").tolist() == ["?", "NA", "missing"]
    (tmp_path / "plain.data.gz").write_bytes(gzip.compress(b"1,x,y\n"))
    origin = Origin(url=(tmp_path / "plain.data.gz").as_uri(), header=("i", "t", "q"))
    assert fetch(origin, "plain").to_dict("list") == {"i": [1], "t": ["x"], "q": ["y"]}


def test_what_cannot_be_fetched_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSYN_CACHE", str(tmp_path / "cache"))
    origin = Origin(url=(tmp_path / "nowhere.zip").as_uri())
    with pytest.raises(DataError, match=r"put magic.csv or magic.csv.gz into a folder and set FEDSYN_DATA"):
        fetch(origin, "magic")
    archive(tmp_path / "other.zip", {"a": b"1"})
    with pytest.raises(DataError, match="not the expected table"):
        fetch(Origin(url=(tmp_path / "other.zip").as_uri(), members=("b",)), "other")


# Splitting


def test_train_and_test_rows_cover_the_table_once():
    test = draw_test_rows(1001, 0.1, np.random.default_rng(0))
    assert test.shape == (1001,) and test.sum() == 100
    np.testing.assert_array_equal(draw_test_rows(1001, 0.1, np.random.default_rng(0)), test)
    assert not np.array_equal(draw_test_rows(1001, 0.1, np.random.default_rng(1)), test)


def test_a_split_never_takes_the_last_training_row():
    taken = [draw_test_rows(n, share, np.random.default_rng(0)).sum() for n, share in ((1, 0.9), (2, 0.9), (5, 0))]
    assert taken == [0, 1, 0]
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        draw_test_rows(5, 1, np.random.default_rng(0))
    with pytest.raises(DataError):
        draw_test_rows(0, 0.1, np.random.default_rng(0))


# The encoded table


@pytest.mark.parametrize("table", awkward_tables(), ids=lambda table: table.name)
def test_each_client_opens_exactly_its_rows(table, tmp_path):
    codes = table.encode()
    rows = np.random.default_rng(0).permutation(len(codes))
    partition = [rows[:1], rows[1:1], rows[1:]]
    written = write_encoded(tmp_path / "t", codes, table.schema.domain, partition, RowFiles())
    assert written.clients == 3
    assert written.domain == table.schema.domain
    for client, part in enumerate(partition):
        opened = written.rows(client)
        assert opened.dtype == codes.dtype
        np.testing.assert_array_equal(opened, codes[part])
        assert not opened.flags.writeable


def open_files() -> int:
    """Number of open files of this process, where the operating system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_thousands_of_clients_share_one_mapping(tmp_path):
    clients = 3000
    domain = Domain(("a", "b"), (250, 2))
    codes = np.stack([np.arange(clients * 2) % 250, np.arange(clients * 2) % 2], axis=1).astype(np.uint8)
    partition = [np.array([k, clients + k]) for k in range(clients)]
    files = RowFiles()
    write_encoded(tmp_path, codes, domain, partition, files)
    before, table = open_files(), EncodedTable(tmp_path)
    opened = [table.rows(k) for k in range(clients)]
    assert open_files() - before <= 2  # one mapping, not one per client
    assert all((opened[k] == codes[partition[k]]).all() for k in range(0, clients, 97))
    base = opened[0].base
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)  # mapped, not read


def test_a_table_is_replaced_and_the_old_one_stays_readable(tmp_path):
    domain = Domain(("a",), (9,))
    files = RowFiles()
    old = write_encoded(tmp_path, np.array([[1], [2]], dtype=np.uint8), domain, [np.array([0, 1])], files).rows(0)
    write_encoded(tmp_path, np.array([[7]], dtype=np.uint8), domain, [np.array([0])], files)
    assert EncodedTable(tmp_path).rows(0).tolist() == [[7]]
    assert old.tolist() == [[1], [2]]


def test_a_damaged_encoded_table_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not hold an encoded table"):
        EncodedTable(tmp_path)
    table = awkward_table("two_rows")
    files = RowFiles()
    written = write_encoded(tmp_path, table.encode(), table.schema.domain, [np.array([0, 1])], files)
    for client in (-1, 1):
        with pytest.raises(DataError, match=r"no client -?[0-9]+: the table is split"):
            written.rows(client)
    files.save(tmp_path / "offsets.npy", np.array([0, 3]))
    with pytest.raises(DataError, match="damaged"):
        EncodedTable(tmp_path)
    (tmp_path / "table.json").write_text('{"version": 99}', encoding="utf-8")
    with pytest.raises(DataError, match="another version"):
        EncodedTable(tmp_path)
    with pytest.raises(ValueError, match="do not fit"):
        write_encoded(tmp_path, np.zeros((2, 1), dtype=np.uint8), table.schema.domain, [], files)
