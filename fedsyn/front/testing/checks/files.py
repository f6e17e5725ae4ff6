"""What a run leaves behind: complete, the same as the other checks saw, and public where it is said to be."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from fedsyn.config import RunConfig
from fedsyn.evaluation.record import FEDERATED_FILE, PREDICTED_FILE
from fedsyn.front.testing.bench import Bench, Nodes, under
from fedsyn.front.testing.checks.replay import neighbours
from fedsyn.front.testing.harness import Federation, watched_grid, watched_server
from fedsyn.front.testing.tape import Tape, TapedRelease
from fedsyn.runs.directory import LOOKS_FILE, README_FILE
from fedsyn.runs.finish import finish
from fedsyn.runs.prepare import Prepared
from fedsyn.runs.report import keep_looks
from fedsyn.runs.serve import serve

#: What the README calls public (`synthetic.csv`, `model.npz` and `measurements.npz` if the run is private).
PUBLIC = (
    *("synthetic.csv", "model.npz", "measurements.npz", "schema.yaml", "ledger.json", "rounds.jsonl", "config.yaml"),
    *(PREDICTED_FILE, README_FILE, FEDERATED_FILE, LOOKS_FILE),
)
# Its holders are asked how good the table is, half of them by rows that they kept out.
_JUDGED = {"evaluation": {"federated": True, "share": 0.2, "held_out": 0.5, "metrics": []}}


@under("private sizes", "private sizes and local noise", "private sizes and distributed noise")
def check_released_files(bench: Bench, nodes: Nodes) -> None:
    """One row more or less changes no byte of a public file but through what the ledgers released.

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
    """A watched run with a run directory: the tape, and the bytes of the public files."""
    tape = Tape(script)
    grid = watched_grid(config, federation, tape)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        prepared = Prepared(out, federation.table.schema, False, len(federation.parts), federation.table.name)
        config.save(out / "config.yaml")
        strategy = serve(config, prepared, grid, out, None, watched_server(config, tape))
        finish(config, prepared, strategy, out, 0.0, full_page=False)
        keep_looks(out, strategy.sketch_errors(), shrunk=strategy.is_shrunk)  # stays where nothing can be predicted
        return tape, {name: (out / name).read_bytes() if (out / name).is_file() else b"" for name in PUBLIC}


def _first_difference(one: bytes, two: bytes) -> str:
    """Where two files of text differ first."""
    if b"\0" in one:
        return ""
    pairs = zip(one.decode().splitlines(), two.decode().splitlines(), strict=False)
    number, lines = next(((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1]), (0, ("", "")))
    start = next((i for i, (a, b) in enumerate(zip(*lines, strict=False)) if a != b), 0)
    shown = [line[max(0, start - 30) : start + 10] for line in lines]
    return f" in line {number}: '...{shown[0]}' against '...{shown[1]}'" if number else ""
