"""Flower's private names stand in one file, and the installed Flower has each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsyn.flower import ClientApp, RecordDict, private
from fedsyn.flower.grid import InProcessGrid
from support.parsed import nodes_of

pytestmark = pytest.mark.xdist_group("sources")  # on one worker, which parses them once
ROOT = Path(__file__).resolve().parents[3]
HERE = "fedsyn/flower/private.py"
PUBLIC = {"flwr.app", "flwr.client", "flwr.clientapp", "flwr.common", "flwr.serverapp", "flwr.serverapp.strategy"}


def taken(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of what a source takes from Flower; the name is empty for a module alone."""
    for node in nodes_of(text):
        if isinstance(node, ast.ImportFrom) and re.match(r"flwr\b", node.module or ""):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if re.match(r"flwr\b", alias.name))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"flwr(\.\w+)+:?", str(node.value)):
            yield str(node.value), ""
        elif isinstance(node, ast.Attribute) and node.attr == "_runtime_client":
            yield "flwr", node.attr


def is_public(module: str, name: str) -> bool:
    return module in PUBLIC and name in __import__(module, fromlist=["__all__"]).__all__


def elsewhere(path: str, text: str) -> list[str]:
    return [f"{path}: {module} {name}" for module, name in taken(text) if not is_public(module, name)]


def test_private_names_stand_in_one_file() -> None:
    folders = ("fedsyn", "strategies", "clients", "partitioners", "experiments")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    files = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    wrong = [line for path, text in files.items() if path != HERE for line in elsewhere(path, text)]
    assert not wrong, f"private names of Flower stand in {HERE} alone:\n" + "\n".join(wrong)
    rest = "\n".join(text for path, text in files.items() if path != HERE)
    assert not [name for name in private.NAMES if not re.search(rf"\b{name}\b", rest)], "not used any more"


@pytest.mark.parametrize(
    "line",
    [
        "from flwr.proto.node_pb2 import Node",
        "from flwr.common import constant",
        "import flwr.supercore.error",
        "import_module('flwr.superlink.main')",
        "def f():\n    from flwr.app.metadata import Metadata",
        "grid._runtime_client.PullMessages()",
    ],
)
def test_a_private_name_elsewhere_is_found(line: str) -> None:
    assert elsewhere("a.py", line)
    assert not elsewhere("a.py", "from flwr.app import Metadata\nfrom fedsyn.flower.private import Node")


def test_flower_has_every_private_name() -> None:
    assert not private.missing()


def test_a_missing_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private.NAMES, "Gone", "flwr.proto.node_pb2")
    monkeypatch.setitem(private.NAMES, "Moved", "flwr.no_such_module")
    one, two = private.missing()
    assert one.endswith(" has no flwr.proto.node_pb2.Gone") and " has no flwr.no_such_module (" in two
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        private.other  # noqa: B018


def test_what_is_private_of_flowers_objects_is_there() -> None:
    message = InProcessGrid(ClientApp(), [{}], {}).create_message(RecordDict(), "train", 1, "0")
    private.name_message(message, "an id")
    assert message.metadata.message_id == "an id"
    assert isinstance(private.HttpGrid._runtime_client, property)
