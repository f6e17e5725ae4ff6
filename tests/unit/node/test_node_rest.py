"""Sealed tables: read as the plain ones are, never written in the clear, and any change to them is noticed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

from fedsyn.errors import ConfigError, DataError
from fedsyn.files import write_key
from fedsyn.node.rest import seal_table
from fedsyn.table.data import read_table, sealed
from fedsyn.table.data.readers import encode_file, encode_open_file
from fedsyn.table.data.sealed import KEY, SealedFile, open_sealed, plain_name, read_key, sealed_blocks
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10},
            "ward": {"kind": "categorical", "categories": ["north", "south", "östlich"]},
        }
    }
)
SECRET = "östlich"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    write_key(tmp_path / "data.key", os.urandom(KEY), "key")
    return tmp_path / "data.key"


def frame(rows: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame({"age": rng.integers(0, 99, rows), "ward": rng.choice(["north", "south", SECRET], rows)})


def written(folder: Path, ending: str, rows: int = 500) -> Path:
    path, table = folder / f"rows{ending}", frame(rows)
    text = table.to_csv(index=False, sep="\t" if ending == ".tsv" else ",").encode()
    if ending == ".parquet":
        table.to_parquet(path)
    elif ending == ".xlsx":
        table.to_excel(path, index=False)
    elif ending == ".csv.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("rows.csv", text)
    elif ending == ".csv.zst":
        path.write_bytes(pa.compress(text, "zstd", asbytes=True))
    else:
        pack: dict[str, Any] = {".csv.gz": gzip.compress, ".csv.bz2": bz2.compress, ".csv.xz": lzma.compress}
        path.write_bytes(pack.get(ending, bytes)(text))
    return path


# Reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending", [".csv", ".tsv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".csv.zst", ".xlsx", ".parquet"]
)
def test_every_kind_of_table_is_read_sealed_as_it_is_read_plain(tmp_path: Path, key: Path, ending: str) -> None:
    if ending == ".xlsx":
        pytest.importorskip("openpyxl")
    plain = written(tmp_path, ending)
    out, made = seal_table(plain, key)
    assert out == plain.with_name(plain.name + ".sealed") and not made and plain_name(out) == plain
    assert SECRET.encode() not in out.read_bytes()
    expected, table, cells = encode_file(plain, SCHEMA), read_table(plain, SCHEMA), read_cells(plain)
    plain.unlink()
    options = {"key_file": str(key)}
    assert (encode_file(out, SCHEMA, options) == expected).all()
    assert (encode_open_file(out, SCHEMA, options)[0] == expected).all()
    pd.testing.assert_frame_equal(read_table(out, SCHEMA, options), table)
    pd.testing.assert_frame_equal(read_cells(out, options).frame, cells.frame)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_nothing_is_written_while_a_sealed_table_is_read(
    tmp_path: Path, key: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to a file that Python has is watched: none is opened for writing, and no file appears."""
    out, _ = seal_table(written(tmp_path, ending, 20_000), key)
    before, opened = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}, []

    def watched(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            opened.append(given[0])
        elif event.startswith("tempfile."):
            opened.append(event)

    import sys

    recording = [True]
    sys.addaudithook(lambda event, given: watched(event, given) if recording else None)
    encode_file(out, SCHEMA, {"key_file": str(key)})
    recording.clear()
    assert opened == [] and {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_sealed_table_needs_its_key_and_an_open_one_none(tmp_path: Path, key: Path) -> None:
    plain = written(tmp_path, ".csv")
    out, _ = seal_table(plain, key)
    write_key(tmp_path / "other", os.urandom(KEY), "key")
    (tmp_path / "no.key").write_text("zz")
    with pytest.raises(ConfigError, match="is sealed: name the file of its key"):
        encode_file(out, SCHEMA)
    with pytest.raises(ConfigError, match=r"key_file means nothing for rows\.csv: leave it out"):
        encode_file(plain, SCHEMA, {"key_file": str(key)})
    with pytest.raises(DataError, match="sealed under another key, or was changed or cut since"):
        encode_file(out, SCHEMA, {"key_file": str(tmp_path / "other")})
    with pytest.raises(ConfigError, match="holds no key: expected 64 hex digits"):
        encode_file(out, SCHEMA, {"key_file": str(tmp_path / "no.key")})
    with pytest.raises(ConfigError, match="cannot read"):
        encode_file(out, SCHEMA, {"key_file": str(tmp_path / "none")})
    plain.rename(tmp_path / "fake.csv.sealed")
    with pytest.raises(DataError, match="is not a sealed file"):
        encode_file(tmp_path / "fake.csv.sealed", SCHEMA, {"key_file": str(key)})


# The format ----------------------------------------------------------------------------------------------------------

BLOCK = 64


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_BLOCK", BLOCK)


def sealed_at(path: Path, content: bytes, key: bytes = bytes(32)) -> Path:
    path.write_bytes(b"".join(sealed_blocks(io.BytesIO(content), key)))
    return path


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 640, 1000])
def test_any_length_any_place(tmp_path: Path, length: int) -> None:
    content = os.urandom(length)
    path = sealed_at(tmp_path / "x.sealed", content)
    with open_sealed(path, bytes(32)) as opened:
        assert opened.read() == content and opened.seek(0, os.SEEK_END) == length
        for start in (0, 1, 63, 64, 100, 640, 2000):
            opened.seek(start)
            assert opened.read(70) == content[start : start + 70]


@pytest.mark.usefixtures("small")
def test_every_change_is_noticed_before_a_byte_of_its_block_is_used(tmp_path: Path) -> None:
    content = bytes(range(200))
    path = sealed_at(tmp_path / "x.sealed", content)
    whole, sealed_block = path.read_bytes(), BLOCK + 16
    head = len(whole) - (3 * sealed_block + 8 + 16)
    blocks = [whole[head + i * sealed_block : head + (i + 1) * sealed_block] for i in range(4)]
    changes = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    changes += [whole[:place] for place in range(len(whole))]
    changes += [whole + b"\0", whole + blocks[0], whole[:head] + blocks[1] + blocks[0] + blocks[2] + blocks[3]]
    changes += [whole[:head] + b"".join(blocks[:2] + blocks[3:]), whole[:head] + b"".join(blocks[:3])]
    other = sealed_at(tmp_path / "y.sealed", content).read_bytes()
    changes += [whole[:head] + other[head:], other[:head] + whole[head:]]
    for changed in changes:
        path.write_bytes(changed)
        read = b""
        with pytest.raises(DataError), open_sealed(path, bytes(32)) as opened:
            while piece := opened.read(7):
                read += piece
        assert content.startswith(read) and read != content


def test_no_two_sealed_files_are_alike(tmp_path: Path) -> None:
    one, other = (sealed_at(tmp_path / name, bytes(1000)).read_bytes() for name in "ab")
    assert one[48:] != other[48:] and len(one) == len(other)


def test_one_block_is_in_memory_at_a_time(tmp_path: Path) -> None:
    path = sealed_at(tmp_path / "x.sealed", bytes(10 * sealed._BLOCK))
    opened = SealedFile(path, bytes(32))
    opened.seek(5 * sealed._BLOCK)
    assert len(opened.read(10)) == 10 and len(opened._block) == sealed._BLOCK
    opened.close()
    assert opened._block == b"" and opened.closed


# Sealing -------------------------------------------------------------------------------------------------------------


def test_a_new_key_is_its_owners_alone_and_never_replaced(tmp_path: Path) -> None:
    plain = written(tmp_path, ".csv")
    out, made = seal_table(plain, tmp_path / "new.key", tmp_path / "elsewhere.csv.sealed")
    assert made and (tmp_path / "new.key").stat().st_mode & 0o777 == 0o600 and out.stat().st_mode & 0o777 == 0o600
    key = read_key(tmp_path / "new.key")
    with pytest.raises(ConfigError, match=r"key: .* cannot be created"):
        write_key(tmp_path / "new.key", os.urandom(KEY), "key")
    assert read_key(tmp_path / "new.key") == key
    with open_sealed(out, key) as opened:
        assert opened.read() == plain.read_bytes()


def test_sealing_replaces_nothing_and_leaves_no_half(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = written(tmp_path, ".csv")
    out, _ = seal_table(plain, key)
    before = sorted(path.name for path in tmp_path.iterdir())
    for table, target, said in (
        (plain, out, "is there already"),
        (out, None, "is sealed already"),
        (tmp_path / "none.csv", None, "no such file"),
        (plain, tmp_path / "x.sealed", r"must end in what the table is"),
        (plain, tmp_path / "x.csv", r"must end in what the table is"),
    ):
        with pytest.raises(ConfigError, match=said):
            seal_table(table, key, target)
    out.unlink()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        seal_table(plain, key)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name for name in before if name != out.name]
