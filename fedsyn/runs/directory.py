"""The files of a run directory.

This module has their names. It also writes and reads those that are read again.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedsyn import yamlio
from fedsyn.bounded import MOST_ROUND_BYTES, Arrays, json_lines, json_of, open_file, read_bytes
from fedsyn.config import FORMAT, RunConfig, check_format
from fedsyn.domain import Domain
from fedsyn.errors import BudgetExceeded, DataError, FedsynError, InputError, RunError
from fedsyn.evaluation.record import COMPARISON_FILE, FEDERATED_FILE, PREDICTED_FILE
from fedsyn.files import write_text
from fedsyn.inference import AnyModel, Evidence, Measurement, model_size, read_model
from fedsyn.inference.model import hidden_of
from fedsyn.loading import released_config
from fedsyn.protocol.record import Waiting
from fedsyn.table.data.options import FileOptions, written_as
from fedsyn.table.schema import Schema
from fedsyn.wire.refusals import Kind, Refusal

# What may be published about the table.
README_FILE = "README.md"
#: The page that shows real rows, and the one that may be published. A run without real rows has the second alone.
PAGE_FILE, PUBLIC_PAGE_FILE = "report.html", "report_public.html"
# What a run waits for, as long as it does.
WAITING_FILE = "waiting.json"
# Why a run has ended without a result.
ERROR_FILE = "error.json"
#: What sketches said of the last model, until the predicted quality is written.
LOOKS_FILE = "looks.json"
# What a run leaves besides config.yaml. A new run in the same folder removes them before it starts, so that nothing of
# an earlier one can be taken for its own.
RESULTS = (
    "synthetic.csv",
    "synthetic.parquet",
    "model.npz",
    "measurements.npz",
    LOOKS_FILE,
    "schema.yaml",
    "metrics.json",
    "ledger.json",
    "rounds.jsonl",
    "measured.jsonl",
    PAGE_FILE,
    PUBLIC_PAGE_FILE,
    ERROR_FILE,
    COMPARISON_FILE,
    PREDICTED_FILE,
    FEDERATED_FILE,
    WAITING_FILE,
    README_FILE,
)


#: Largest model that is unfolded: cells of its junction tree, and bytes of its arrays.
MOST_CELLS, MOST_MODEL_BYTES = 1 << 27, 1 << 30
_MOST_CLIQUES = 100_000
_MOST_TEXT = 1 << 25  # bytes that describe a model
_MODEL_ARRAYS = ("domain", "model", "potentials", "codes", "probabilities", "weights")
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)

# Of those, and of what `fedsyn report` adds, the files that are computed from a simulation's real rows without noise.
_OF_REAL_ROWS = (PAGE_FILE, COMPARISON_FILE, "metrics.json", "metrics.csv", "measured.jsonl")


def not_for_publication(out: Path, published: Sequence[Path] = ()) -> list[Path]:
    """Lists the files that must not leave with the table.

    They are those of a run directory, except the ones just published.
    """
    files = [out / name for name in _OF_REAL_ROWS]
    return [file for file in files if file.is_file() and file not in published]


def keep_ledger(out: Path) -> None:
    """Renames the ledger of an earlier run, unless nothing was spent.

    The names are ledger-1.json, ledger-2.json and so on.
    """
    file = out / "ledger.json"
    if not file.is_file():
        return
    try:
        spent = bool(json.loads(file.read_text(encoding="utf-8"))["releases"])
    except (OSError, ValueError, KeyError, TypeError):
        spent = True  # damaged: nobody knows
    if spent:
        file.rename(next(unused for n in count(1) if not (unused := out / f"ledger-{n}.json").exists()))


def default_out(config: RunConfig | None, name: str = "run") -> Path:
    """Returns runs/MECHANISM-SOURCE-TIME, which does not exist yet.

    The name is runs/NAME-TIME if no configuration can be read.
    """
    if config is not None:
        source = Path(config.data.source).name.split(".")[0].replace(":", "-") or "data"
        name = f"{config.mechanism.name.rpartition(':')[2]}-{source}"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = Path("runs") / f"{name}-{stamp}"
    suffix = 1
    while out.exists():
        suffix += 1
        out = Path("runs") / f"{name}-{stamp}-{suffix}"
    return out


def synthetic_file(out: Path) -> Path:
    """Returns the path of a run directory's synthetic table.

    It is that of the CSV file if there is neither a CSV nor a Parquet file.
    """
    present = [out / name for name in ("synthetic.csv", "synthetic.parquet") if (out / name).is_file()]
    return present[0] if present else out / "synthetic.csv"


def reading_of(table: Path, schema: Schema) -> FileOptions | None:
    """Returns the layout of a run's own table, else None.

    The run's configuration says it.
    """
    beside = table.with_name("config.yaml")
    if table.name != "synthetic.csv" or not beside.is_file() or not table.is_file():
        return None
    return written_as(released_config(yamlio.read_mapping(beside), str(beside)).data.options, schema.rows)


def drop_tables(out: Path) -> None:
    """Removes the synthetic table and the model of a run directory.

    They take most of its room. The measurements go, too.
    """
    for name in ("synthetic.csv", "synthetic.parquet", "model.npz", "measurements.npz"):
        (out / name).unlink(missing_ok=True)


def save_fit(out: Path, schema: Schema, model: AnyModel, measured: tuple[Measurement, ...]) -> None:
    """Writes what the budget has bought, before any row is drawn.

    Model, measurements and schema give rows wherever the folder is copied to.
    """
    save_model(out / "model.npz", model)
    if measured:
        save_evidence(out / "measurements.npz", Evidence(measured, model.total))
    schema.save(out / "schema.yaml")


def save_model(path: Path | BinaryIO, model: AnyModel) -> None:
    """Writes model.npz, which can be read without pickle.

    It has the model's arrays (potentials or rows) and, as JSON in bytes, its domain.
    """
    facts = {"format": FORMAT, **model.domain.describe()}
    arrays: dict[str, Any] = dict(model.to_arrays())
    np.savez_compressed(path, domain=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)


def save_evidence(path: Path | BinaryIO, evidence: Evidence) -> None:
    """Writes measurements.npz, which can be read without pickle.

    It has the noisy sums that the model was fitted to, as released.
    """
    arrays: dict[str, Any] = dict(evidence.to_arrays())
    np.savez_compressed(path, **arrays)


def load_evidence(path: Path | str, domain: Domain) -> Evidence:
    """Reads a file of `save_evidence`, as `read_evidence` does."""
    with _opened(path) as file:
        return read_evidence(file, domain, str(path))


def load_model(path: Path | str) -> AnyModel:
    """Reads a file of `save_model`, as `read_released_model` does."""
    with _opened(path) as file:
        return read_released_model(file, str(path))


def _opened(path: Path | str) -> BinaryIO:
    try:
        return open_file(path)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def read_released_model(file: BinaryIO, where: str, domain: Domain | None = None) -> AnyModel:
    """Reads a model from the bytes that `save_model` wrote.

    A stranger may have written them: sizes are checked before they are unpacked.

    Args:
        file: seekable.
        where: what to call it.
        domain: that it must have.

    Raises:
        DataError: it is damaged, larger than a model may be, or of another domain.
    """
    try:
        arrays = Arrays(file, _MODEL_ARRAYS, where)
        # The domain comes first: it bounds the sizes of the potentials.
        model_domain = Domain.described(_json(arrays, "domain"))
        if domain is not None and (model_domain.attributes, model_domain.shape) != (domain.attributes, domain.shape):
            raise DataError(f"{where}: the model and the schema describe different tables")
        head = _json(arrays, "model")
        model_domain = replace(model_domain, hidden=hidden_of(head))
        # A few short cliques may ask for a junction tree that fills the memory.
        cliques = [tuple(clique) for key in ("cliques", "structural_cliques") for clique in head.get(key, ())]
        cells = _cells(model_domain, cliques) if len(cliques) <= _MOST_CLIQUES else math.inf
        if cells > MOST_CELLS:
            raise DataError(f"{where}: its model would unfold to more than {MOST_CELLS:,} cells")
        # Each array is read up to the size that it may have.
        tables = sum(model_domain.size(tuple(clique)) for clique in head.get("cliques", ()))
        most = {"potentials": 8 * tables, "codes": MOST_MODEL_BYTES, "probabilities": MOST_MODEL_BYTES}
        most |= {"weights": MOST_MODEL_BYTES}
        stored = {name: arrays.read(name, size) for name, size in most.items() if name in arrays}
        return read_model(model_domain, {"model": arrays.read("model", _MOST_TEXT), **stored})
    except FedsynError as error:
        raise DataError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    except _MALFORMED:
        raise DataError(f"{where} is damaged") from None


def read_evidence(file: BinaryIO, domain: Domain, where: str) -> Evidence:
    """Reads measurements from the bytes that `save_evidence` wrote.

    Sizes and errors are as in `read_released_model`.
    """
    try:
        arrays = Arrays(file, ("evidence", "values", "groups"), where)
        head = _json(arrays, "evidence")
        cliques = [tuple(map(str, one["clique"])) for one in head["measurements"]]
        if not all(set(clique) <= set(domain.attributes) for clique in cliques):
            raise DataError(f"{where}: it measures what the table has not")
        values = sum(domain.size(clique) for clique in cliques)
        grouped = sum(sum(domain.shape_of(clique)) for clique in cliques)
        most = {"values": 8 * values, "groups": 4 * grouped}
        stored = {name: arrays.read(name, min(size, MOST_MODEL_BYTES)) for name, size in most.items()}
        return Evidence.from_arrays(domain, {"evidence": arrays.read("evidence", _MOST_TEXT), **stored})
    except FedsynError as error:
        raise DataError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    except _MALFORMED:
        raise DataError(f"{where} is damaged") from None


def _json(arrays: Arrays, name: str) -> dict[str, Any]:
    """Returns the mapping in array `name`."""
    facts = json_of(arrays.read(name, _MOST_TEXT).tobytes(), f"{arrays.where}: {name}")
    if not isinstance(facts, dict):
        raise DataError(f"{arrays.where} is damaged")
    if name == "domain":
        check_format(facts, arrays.where)
    return facts


def _cells(domain: Domain, cliques: list[tuple[str, ...]]) -> float:
    """Counts the cells of a model's junction tree.

    Returns the sum over the cliques alone where that is too much already.
    """
    apart = sum(domain.size(clique) for clique in cliques)
    return apart if apart > MOST_CELLS else model_size(domain, cliques)


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Adds one line of JSON to a file, with the format's version."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"format": FORMAT, **value}) + "\n")


def write_json(path: Path, value: Mapping[str, Any], indent: int | None = 1) -> None:
    """Writes strict JSON, with the format's version.

    Numbers that are not finite must have become null before. Without an indent this is ten times as
    fast, for files that nobody reads.
    """
    text = json.dumps({"format": FORMAT, **value}, indent=indent, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def page_file(out: Path) -> Path | None:
    """Returns the page of a run, the one with real rows first."""
    return next((file for name in (PAGE_FILE, PUBLIC_PAGE_FILE) if (file := out / name).is_file()), None)


def is_complete(out: Path) -> bool:
    """Returns True if a run has left all of its files.

    The page is the last of them.
    """
    return (out / "metrics.json").is_file() and page_file(out) is not None


def read_facts(path: Path) -> dict[str, Any]:
    """Reads a JSON file of a run.

    Raises:
        DataError: it is damaged, or of another format.
    """
    return parse_facts(read_bytes(path), str(path))


def parse_facts(content: bytes, where: str) -> dict[str, Any]:
    """Returns the mapping in a JSON document, without its format.

    Raises DataError as `read_facts`.
    """
    facts = json_of(content, where)
    if not isinstance(facts, dict):
        raise DataError(f"{where} is damaged: expected a mapping of keys")
    check_format(facts, where)
    facts.pop("format", None)
    return facts


def read_rounds(out: Path, *, measured: bool = True) -> list[dict[str, Any]]:
    """Reads the rounds of a run.

    Each has what was released of it, and what was measured of it where that is wanted and at hand.
    """
    rounds, costs = _lines(out / "rounds.jsonl"), list[dict[str, Any]]()
    if measured and (out / "measured.jsonl").is_file():
        costs = _lines(out / "measured.jsonl")
    costs += [{}] * (len(rounds) - len(costs))
    return [{**line, **cost} for line, cost in zip(rounds, costs, strict=False)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return json_lines(read_bytes(path, MOST_ROUND_BYTES), str(path))


def load_metrics(out: Path) -> dict[str, float]:
    """Reads metrics.json of a run directory, with nulls as infinities."""
    metrics = read_facts(out / "metrics.json")
    return {name: float("inf") if value is None else value for name, value in metrics.items()}


def write_waiting(out: Path, waiting: Waiting | None) -> None:
    """Writes down what a run waits for.

    `deploy status` and the starter's bar read it. The file is removed when the waiting is over.

    A disk that is full is no reason to stop waiting.
    """
    path = out / WAITING_FILE
    with contextlib.suppress(OSError):
        if waiting is None:
            path.unlink(missing_ok=True)
            return
        write_json(path, asdict(waiting))


def load_waiting(out: Path) -> Waiting | None:
    """Returns what a run in this directory waits for.

    Returns None where that is nothing, or cannot be read.
    """
    try:
        return Waiting.read(json.loads((out / WAITING_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record_error(out: Path, error: Exception) -> None:
    """Leaves an error for the process that started the run.

    Unexpected errors leave their type, not their text.
    """
    kind = Kind.INPUT if isinstance(error, InputError) else Kind.FAILED
    if isinstance(error, BudgetExceeded) or (isinstance(error, RunError) and not error.can_go_on):
        kind = Kind.OVER
    text = str(error) if isinstance(error, FedsynError) else f"unexpected {type(error).__name__}; see Flower's log"
    write_json(out / ERROR_FILE, Refusal(kind, text).fields)


def recorded_error(out: Path) -> Refusal | None:
    """Returns the error that `record_error` left in a run directory.

    Returns None if there is none. Raises RunError if it cannot be read.
    """
    path = out / ERROR_FILE
    if not path.is_file():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return Refusal(Kind(facts["kind"]), str(facts["sentence"]))
    except (ValueError, KeyError, TypeError):
        raise RunError(f"the run failed, and what it left of its error in {path} cannot be read") from None


def raise_recorded_error(out: Path) -> None:
    """Raises the error that `record_error` left, if there is one."""
    error = recorded_error(out)
    if error is None:
        return
    if error.kind is Kind.INPUT:
        raise InputError(error.sentence)
    raise RunError(error.sentence, error.kind is not Kind.OVER)
