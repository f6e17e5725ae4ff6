"""Conformance checks that replay a run on other rows.

Every ledger's outputs are held fixed.

What then still differs has come past the ledger; how far the values that enter a ledger differ for one row is their
sensitivity.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, FedsynError
from fedsyn.evaluation.record import FEDERATED_FILE, PREDICTED_FILE
from fedsyn.front.testing.bench import Bench, Nodes, equal_arrays, under
from fedsyn.front.testing.checks.runs import ledgers_hold
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.harness import Federation, Outcome, execute, watched_grid, watched_server
from fedsyn.front.testing.tape import Tape, TapedExchange, TapedRelease
from fedsyn.registry import strategy_class
from fedsyn.runs.directory import LOOKS_FILE, PUBLIC_PAGE_FILE, README_FILE
from fedsyn.runs.finish import finish
from fedsyn.runs.prepare import Prepared
from fedsyn.runs.report import keep_looks
from fedsyn.runs.serve import serve

#: What the README calls public (`synthetic.csv`, `model.npz` and `measurements.npz` if the run is private).
PUBLIC = (
    *("synthetic.csv", "model.npz", "measurements.npz", "schema.yaml", "ledger.json", "rounds.jsonl", "config.yaml"),
    *(PREDICTED_FILE, README_FILE, FEDERATED_FILE, LOOKS_FILE, PUBLIC_PAGE_FILE),
)
# Its holders are asked how good the table is, half of them by rows that they kept out.
_JUDGED = {"evaluation": {"federated": True, "share": 0.2, "held_out": 0.5, "metrics": []}}
_BY_MBI = {"inference": {"engine": "mbi"}}


@under("as configured", "private sizes", "private sizes and local noise", "distributed noise")
def check_released_values_only(bench: Bench, nodes: Nodes) -> None:
    """Requires results that depend on rows through releases only.

    Results are replies to an `Ask`, requests, and the model. Releases are those of the ledgers.
    """
    bench.require_private()
    first = bench.base(**nodes)
    again = execute(first.config, bench.federation.other_rows(), script=first.tape.draws)
    _post_processed(first, again, "other rows")


def check_fits_by_mbi(bench: Bench) -> None:
    """Requires a run whose fits Private-PGM makes to be as sound.

    Its ledgers hold, and its results depend on rows through releases only. Skipped where the engine refuses the
    mechanism, or the package mbi is not installed.
    """
    config = bench.supported(**_BY_MBI)
    try:
        strategy_class(bench.name).require_engine(bench.contract(config, bench.federation.domain))
    except ConfigError as error:
        raise Skipped(str(error)) from None
    ledgers_hold(bench.base(**_BY_MBI))
    check_released_values_only(bench, _BY_MBI)


@under("as configured", "private sizes", "private sizes and local noise", "distributed noise")
def check_sensitivity(bench: Bench, nodes: Nodes) -> None:
    """Requires that one row moves a ledger's inputs within the entry.

    They change by no more than the entry says.

    With private sizes a row is added or removed. With public ones it is exchanged for another, which moves an entry
    `Release.replaced` times as far.
    """
    bench.require_private()
    first = bench.base(**nodes)
    _moves_within_entries(first, neighbours(bench.federation, first.config.privacy.client_sizes == "private"))


@under("a client as the unit")
def check_client_unit(bench: Bench, nodes: Nodes) -> None:
    """Requires that a whole client moves inputs within the entry.

    A client is the unit here. It changes what enters a ledger by no more than the entry says.
    """
    bench.require_private()
    first = bench.base(**nodes)
    assert first.strategy.ledger.unit.rows == 3, "the ledger's unit is another one than the configuration's"
    _moves_within_entries(first, whole_clients(bench.federation))


def _moves_within_entries(first: Outcome, others: Iterable[tuple[str, Federation, bool]]) -> None:
    """Replays a run on other federations, and compares both.

    Each entry's inputs must move by no more than it says, and nothing else may change.
    """
    for what, neighbour, exchanged in others:
        again = execute(first.config, neighbour, script=first.tape.draws)
        _post_processed(first, again, what)
        for party in sorted(first.tape.draws):
            for one, two in zip(first.tape.draws[party], again.tape.draws.get(party, []), strict=True):
                _moved_at_most(one, two, f"{party}, {what}", exchanged=exchanged)


def whole_clients(federation: Federation) -> Iterator[tuple[str, Federation, bool]]:
    """Yields federations that differ in all rows of one client.

    Each comes with a description, and with whether the rows are exchanged. Equal rows show most.
    """
    part, last = federation.parts[0], len(federation.parts) - 1
    equal = np.repeat((np.array(federation.domain.shape) - 1)[None, :], 5, axis=0).astype(part.dtype)
    yield "client 0 without its rows", federation.with_part(0, part[:0]), False
    yield f"client {last} with five rows in the last cell", federation.with_part(last, equal), False
    yield "client 0 with five rows in the last cell", federation.with_part(0, equal), True


def neighbours(federation: Federation, private: bool) -> Iterator[tuple[str, Federation, bool]]:
    """Yields federations that differ in one row.

    It is a row of the client with most rows or of the one with none. Each federation comes with a
    description, and with whether the row is exchanged.
    """
    shape = np.array(federation.domain.shape)
    last = len(federation.parts) - 1
    for row_name, row in (("the last cell", shape - 1), ("the first cell", shape * 0)):
        new = row[None, :].astype(federation.parts[0].dtype)
        part = federation.parts[0]
        if private:
            yield f"a row in {row_name} added to client 0", federation.with_part(0, np.concatenate([part, new])), False
            grown = np.concatenate([federation.parts[last], new])
            yield f"a row in {row_name} added to client {last}", federation.with_part(last, grown), False
        else:
            yield (
                f"a row of client 0 moved to {row_name}",
                federation.with_part(0, np.concatenate([part[1:], new])),
                True,
            )
    if private:
        yield "a row of client 0 removed", federation.with_part(0, federation.parts[0][1:]), False


def _post_processed(first: Outcome, again: Outcome, what: str) -> None:
    """Asserts that a replay differs nowhere outside of the ledgers.

    The replay is on other rows.
    """
    assert not again.tape.problems, f"{what}, with every release held fixed: {again.tape.problems[0]}"
    pairs = (_by_client(first), _by_client(again))
    assert pairs[0].keys() == pairs[1].keys() and all(len(pairs[0][k]) == len(pairs[1][k]) for k in pairs[0]), (
        f"{what}, with every release held fixed, lead to different numbers of requests"
    )
    exact = (
        first.config.aggregation.noise == "server"
    )  # then a contribution to a sum is exact, and protected by the sum
    for partition in pairs[0]:
        for one, two in zip(pairs[0][partition], pairs[1][partition], strict=True):
            same = one.envelope == two.envelope and _equal(one.arrays, two.arrays)
            assert same, f"{what}, with every release held fixed, change the request {one}"
            if one.envelope["kind"] == "deal" or (one.envelope["kind"] == "sum" and exact):
                assert one.reply["ok"] == two.reply["ok"], f"{what} decide whether {one} is answered"
                assert one.active == two.active, f"{what} decide to which arrays {one} adds"
                continue
            same = one.reply == two.reply and _equal(one.reply_arrays, two.reply_arrays)
            assert same, (
                f"{what}, with every release held fixed, change the reply to {one}: it shows more than it released"
            )
    assert equal_arrays(first.arrays, again.arrays), f"{what}, with every release held fixed, change the model"


def _by_client(outcome: Outcome) -> dict[int, list[TapedExchange]]:
    grouped: dict[int, list[TapedExchange]] = {}
    for exchange in outcome.tape.exchanges:
        grouped.setdefault(exchange.partition, []).append(exchange)
    return grouped


def _equal(one: Sequence[np.ndarray], two: Sequence[np.ndarray]) -> bool:
    pairs = zip(one, two, strict=False)
    return len(one) == len(two) and all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _moved_at_most(one: TapedRelease, two: TapedRelease, where: str, *, exchanged: bool) -> None:
    """Asserts that the inputs of two releases differ little enough.

    They differ by at most what the entry allows for one row.
    """
    what = f"'{one.name}' of round {one.round} ({where})"
    allowed = (one.replaced if exchanged else 1.0) * one.sensitivity * (1 + 1e-9)
    if one.kind == "exponential":
        with np.errstate(invalid="ignore"):
            moved = np.nan_to_num(np.abs(one.inputs[0] - two.inputs[0]), nan=0.0)  # -inf stays -inf
        slack = 1e-9 * float(np.max(np.abs(one.inputs[0][np.isfinite(one.inputs[0])]), initial=1.0))
        assert moved.max() <= allowed + slack, (
            f"{what}: one row moves a score by {moved.max():.6g}, the ledger says {one.sensitivity:.6g}"
        )
        return
    moves = [float(np.linalg.norm((a - b).astype(np.float64))) for a, b in zip(one.inputs, two.inputs, strict=True)]
    touched = sum(move > 1e-9 for move in moves)
    assert max(moves) <= allowed + 1e-9, (
        f"{what}: one row moves an array by {max(moves):.6g}, the ledger says {one.sensitivity:.6g}"
    )
    most = (2 if exchanged else 1) * one.count
    assert touched <= most, f"{what}: one row touches {touched} arrays, the ledger says {one.count}"


@under("private sizes", "private sizes and local noise", "private sizes and distributed noise")
def check_released_files(bench: Bench, nodes: Nodes) -> None:
    """Requires public files that depend on rows through releases only.

    One row more or less changes no byte of them but through what the ledgers released.

    The run is replayed on neighbouring tables with every ledger's outputs held fixed, by the code that a real run goes
    through. What is not public, such as the bytes of messages, may differ.
    """
    bench.require_private()
    config = bench.supported(**nodes, **_JUDGED)
    first, files = _left_behind(config, bench.federation)
    assert files[FEDERATED_FILE] and files[README_FILE], "nothing was said of how good the table is"
    tables = list(neighbours(bench.federation, True))
    for what, neighbour, _ in (*islice(tables, 1, 2), tables[-1]):  # a row where there was none, and a row less
        again, others = _left_behind(config, neighbour, first.draws)
        assert not again.problems, f"{what}, with every release held fixed: {again.problems[0]}"
        for name in PUBLIC:
            assert files[name] == others[name], (
                f"{what}, with every release held fixed, changes {name}{_first_difference(files[name], others[name])}"
            )


def _left_behind(
    config: RunConfig, federation: Federation, script: Mapping[str, Sequence[TapedRelease]] | None = None
) -> tuple[Tape, dict[str, bytes]]:
    """Watches a run with a run directory.

    Returns the tape, and the bytes of the public files.
    """
    tape = Tape(script)
    grid = watched_grid(config, federation, tape)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        prepared = Prepared(out, federation.table.schema, False, len(federation.parts), federation.table.name)
        config.save(out / "config.yaml")
        try:
            strategy = serve(config, prepared, grid, out, None, watched_server(config, tape))
        except FedsynError as error:
            raise AssertionError(f"the run failed: {error}") from None
        finish(config, prepared, strategy, out, 0.0, full_page=False)
        # It stays where nothing can be predicted.
        keep_looks(out, strategy.sketch_errors(), shrunk=strategy.is_shrunk, limited=strategy.limited)
        return tape, {name: (out / name).read_bytes() if (out / name).is_file() else b"" for name in PUBLIC}


def _first_difference(one: bytes, two: bytes) -> str:
    """Returns words on where two files of text differ first.

    They are empty for binary files, and where no line differs.
    """
    if b"\0" in one:
        return ""
    pairs = zip(one.decode().splitlines(), two.decode().splitlines(), strict=False)
    number, lines = next(((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1]), (0, ("", "")))
    start = next((i for i, (a, b) in enumerate(zip(*lines, strict=False)) if a != b), 0)
    shown = [line[max(0, start - 30) : start + 10] for line in lines]
    return f" in line {number}: '...{shown[0]}' against '...{shown[1]}'" if number else ""
