"""Fixtures that all tests share."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from fedsyn.inference import Measurement
from fedsyn.protocol.strategy import MechanismStrategy

# Tests over every mechanism leave the deep one to `make test-all`: each of its runs compiles for seconds. Its own tests
# are in tests/unit/strategies/test_fed_dp_ctgan.py.
DEEP, NOT_LEFT = (
    "fed_dp_ctgan",
    {"test_both_halves_have_one_contract", "test_every_request_says_what_leaves_and_what_it_costs"},
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = importlib.util.find_spec("jax_privacy") is None
    for item in items:
        name = getattr(item, "originalname", item.name)
        if DEEP in item.name and name not in NOT_LEFT:
            item.add_marker(pytest.mark.slow)
            if absent:
                item.add_marker(pytest.mark.skip(reason="the extra deep is not installed"))
        # A module's quick tests stay on one worker: each worker makes the module's fixtures and cached runs anew.
        if not (item.get_closest_marker("xdist_group") or item.get_closest_marker("slow")):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what stays anyway (modules, collected tests) to no collection of garbage, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Each command line that a test types would build the tree of all commands anew, four fifths of what it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def disks_are_not_waited_for() -> Iterator[None]:
    """No test pulls a plug, so what is written need not reach the disk: a tenth of the time, all of it waiting.

    What survives a kill does so by the system's own memory. Tests of the order in which files are written and waited
    for put a function of their own in this one's place.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture(scope="session")
def fedsyn_data() -> Path:
    """The folder of benchmark tables that FEDSYN_DATA names; skips where it is absent."""
    folder = os.environ.get("FEDSYN_DATA")
    if not folder:
        pytest.skip("FEDSYN_DATA is not set: it names the folder of the benchmark tables")
    path = Path(folder)
    if not (path / "adult_flaim.csv.gz").is_file():
        pytest.skip(f"FEDSYN_DATA={folder} does not hold the benchmark tables (adult_flaim.csv.gz)")
    return path


@dataclass(frozen=True)
class Seen:
    """A call of a watched method: its positional arguments behind `self`, and what it returned."""

    owner: Any
    arguments: tuple[Any, ...]
    result: Any


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str], list[Seen]]:
    """`watch(kind, method)`: the calls of a method from now on. The method is the real one."""

    def watched(kind: type, method: str) -> list[Seen]:
        real, seen = getattr(kind, method), []

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            result = real(self, *arguments, **named)
            seen.append(Seen(self, arguments, result))
            return result

        monkeypatch.setattr(kind, method, call)
        return seen

    return watched


@pytest.fixture
def measured(watch: Callable[[type, str], list[Seen]]) -> Callable[[MechanismStrategy], list[Measurement]]:
    """`measured(strategy)`: what the strategy gave to its last fit."""
    fits = watch(MechanismStrategy, "estimate")
    return lambda strategy: next((fit.arguments[0] for fit in reversed(fits) if fit.owner is strategy), [])


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of the working tree that a clone would hold."""
    from support.typed_flower import cloned

    return cloned(tmp_path)


@pytest.fixture
def own_flower(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which `flwr` starts a local SuperLink of its own; stopped at the end, with its children."""
    from support.typed_flower import own_superlink

    with own_superlink(tmp_path) as environment:
        yield environment
