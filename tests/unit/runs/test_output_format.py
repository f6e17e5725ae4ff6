"""The synthetic table has the format of its input: separator, encoding, decimal mark, order of the columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.errors import ConfigError
from fedsyn.front.archive import read_release
from fedsyn.loading import parse_config
from fedsyn.runs.directory import reading_of
from fedsyn.runs.prepare import deployed, with_layout
from fedsyn.runs.report import write_full_report
from fedsyn.table.data import encode_file
from fedsyn.table.data.options import shown_layout, written_as
from fedsyn.table.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "Größe": {"kind": "numeric", "lower": 1.0, "upper": 2.5, "bins": 6, "missing": True},
            "Ort": {"kind": "categorical", "categories": ["Köln; Süd", "Bonn"], "other": False},
            "Gewicht": {"kind": "decimal", "places": 1, "lower": 40, "upper": 120, "bins": 4, "mark": ","},
        }
    }
)


def text(separator: str = ";", mark: str = ",", header: str | None = None) -> str:
    rng = np.random.default_rng(0)
    drawn = zip(rng.uniform(1.4, 2.1, 300), rng.integers(0, 2, 300), rng.uniform(45, 110, 300), strict=True)
    lines = [header or separator.join(SCHEMA.order)]
    for height, place, weight in drawn:
        written = f"{weight:.1f}".replace(".", ",")
        cells = [f"{height:.2f}".replace(".", mark), ('"Köln; Süd"', "Bonn")[place], f'"{written}"']
        lines.append(separator.join(cells))
    return "\r\n".join(lines)


def config(source: Any, schema: Path, **options: Any) -> dict[str, Any]:
    SCHEMA.save(schema)
    return {
        "data": {"source": source, "schema": str(schema), "options": options},
        "epsilon": 5,
        "delta": 1e-5,
        "mechanism": {"name": "mst"},
        "evaluation": [],
        "federation": {"clients": 1} if isinstance(source, str) else {},
        "runtime": {"seed": 1},
    }


@pytest.mark.parametrize(
    ("encoding", "separator", "options", "start"),
    [
        ("cp1252", ";", {"decimal": ","}, "Größe;Ort".encode("cp1252")),
        ("utf-8-sig", ";", {"decimal": ","}, b"\xef\xbb\xbfGr\xc3\xb6"),
        ("utf-16", "\t", {"decimal": ","}, b"\xff\xfeG\x00r\x00"),
        ("utf-8", "|", {"decimal": ","}, b"Gr\xc3\xb6\xc3\x9fe|Ort|"),
    ],
)
def test_a_run_and_a_sample_write_what_was_read(
    encoding: str, separator: str, options: dict[str, Any], start: bytes, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_bytes(text(separator).encode(encoding))
    out = fedsyn.run(config(str(rows), tmp_path / "s.yaml", **options), tmp_path / "out").folder
    made = out / "synthetic.csv"
    assert made.read_bytes().startswith(start)
    lines = made.read_text(encoding=encoding).splitlines()
    assert lines[0] == separator.join(SCHEMA.order) and len(lines) > 200
    shown = pd.read_csv(made, sep=separator, encoding=encoding, decimal=",")
    assert shown["Größe"].dropna().between(1.0, 2.5).all() and set(shown["Ort"]) == {"Köln; Süd", "Bonn"}
    assert shown["Gewicht"].astype(str).str.replace(",", ".").astype(float).between(40, 120).all()
    # What reads the table later finds the same: evaluation, page, further rows.
    assert len(encode_file(made, SCHEMA, reading_of(made, SCHEMA))) == len(shown)
    write_full_report(out)
    named = {"|": "'|'", ";": "';'", "\t": "tab"}[separator]
    assert f"with {named} between the cells" in (out / "README.md").read_text(encoding="utf-8").replace("\\|", "|")
    assert "decimal commas" in (out / "README.md").read_text(encoding="utf-8")
    release = read_release(fedsyn.load(out).save(tmp_path / "model.fedsyn"))
    assert written_as(release.config.data.options, SCHEMA) == reading_of(made, SCHEMA)


def test_rows_have_no_say_in_the_format(tmp_path: Path) -> None:
    """One byte of one row that is not UTF-8 changes how that row is read, and nothing of what is written."""
    plain = text(",", ".", "a,Ort,b")
    places = Schema.from_dict({"columns": {"Ort": SCHEMA.to_dict()["columns"]["Ort"]}})
    found = []
    for number, rows in enumerate((plain.encode(), plain.encode() + b'\r\n1.5,"K\xf6ln; S\xfcd","50,0"')):
        (tmp_path / f"{number}.csv").write_bytes(rows)
        asked = parse_config(config(str(tmp_path / f"{number}.csv"), tmp_path / "s.yaml"))
        found.append(with_layout(asked, places).data.options)
    assert found == [{}, {}]


def test_holders_with_other_files_get_a_plain_one(tmp_path: Path) -> None:
    for name, separator in {"one": ";", "two": ";", "three": "|"}.items():
        (tmp_path / f"{name}.csv").write_bytes(text(separator).encode("cp1252"))
    files = [str(tmp_path / f"{name}.csv") for name in ("one", "two", "three")]
    asked = [parse_config(config(some, tmp_path / "s.yaml")) for some in (files[:2], files)]
    same, other = (with_layout(one, SCHEMA).data.options for one in asked)
    assert same == {"separator": ";", "encoding": "cp1252"} and other == {}
    assert shown_layout(other, SCHEMA) == ""


def test_what_an_encoding_lacks_makes_it_utf_8() -> None:
    greek = Schema.from_dict({"columns": {"α": {"kind": "boolean"}}})
    asked = {"separator": ";", "encoding": "cp1252", "decimal": ","}
    assert written_as(asked, greek).encoding is None and written_as(asked, SCHEMA).encoding == "cp1252"
    assert shown_layout(asked, greek) == (
        "';' between the cells, UTF-8 (letters of the schema are not in cp1252), decimal commas"
    )


def test_a_format_that_cannot_be_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    asked = parse_config(config("rows.csv", tmp_path / "s.yaml", encoding="klingon"))
    with pytest.raises(ConfigError, match="encoding: an encoding is a name that Python knows"):
        deployed(asked, SCHEMA, tmp_path)
