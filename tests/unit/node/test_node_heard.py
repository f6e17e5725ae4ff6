"""What a holder hears of its table before its node is online, and nobody else ever does."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fedsyn import yamlio
from fedsyn.node.file import load_node_file
from fedsyn.node.worker import Worker
from support.node_folders import header_of, make_node, run_of


def node_of(folder: Path, header: str = "age,city,smoker", odd: int = 20, **keys: object) -> Worker:
    """A node of 1,000 rows; the last `odd` ones write another word for a city, and one of them a word for an age."""
    path = make_node(folder, rows=1000, **keys)
    file = folder / "rows.csv"
    lines = [line.replace(",d,", ",c,") for line in file.read_text(encoding="utf-8").splitlines()]
    for at in range(len(lines) - odd, len(lines)):
        age, _, smoker = lines[at].split(",")
        lines[at] = f"{age},Dorf,{smoker}"
    if odd:
        lines[-1] = "sixty,Dorf,yes"
    file.write_text("\n".join([header, *lines[1:]]) + "\n", encoding="utf-8")
    return Worker(load_node_file(path))


def test_a_holder_hears_what_does_not_fit_before_its_node_is_online(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts and shares, and no word of a row."""
    with caplog.at_level(logging.WARNING, logger="fedsyn"):
        node_of(tmp_path / "node").warm()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [
        "age: in 1 of 1,000 rows (0.1%) there is something other than a number: left out",
        "city: in 20 of 1,000 rows (2%) the schema does not list the value: counted as 'other'",
        "city: 1 of 4 listed words never occurs here",
        "left out: 1 of 1,000 rows (0.1%), which count nowhere; unlisted: true in a column gives its values a place",
    ]


def test_nobody_else_hears_it(tmp_path: Path) -> None:
    """The reply to a join, with words that the schema lists and without, is the same to the last byte."""
    replies = []
    for odd in (0, 20):
        worker = node_of(tmp_path / f"node-{odd}", odd=odd)
        worker.warm()
        reply, blobs = worker.ask(header_of(run_of(), "join"), [])
        text = json.dumps(reply)
        assert not any(word in text for word in ("Dorf", "sixty", "left out", "listed words", "1,000"))
        replies.append((text, blobs))
    assert replies[0] == replies[1]


def test_a_node_reads_a_column_under_another_name(tmp_path: Path) -> None:
    worker = node_of(tmp_path / "node", header="Alter,city,smoker", odd=0, rename={"Alter": "age"})
    worker.warm()
    (rows,) = worker.tables._kept.values()
    assert rows.codes.shape == (1000, 3)
    document = yamlio.read_mapping(tmp_path / "node" / "node.yaml")
    assert document["rename"] == {"Alter": "age"}
