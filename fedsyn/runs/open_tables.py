"""A simulation's tables under an open schema.

The rows' own values stand beside their codes, and the encoded rows stand there again once the
schema is closed.

A folder of `prepare` holds own.json (names and words) and one array for each open column; when a run has found what was
private, a folder in it holds the tables again, encoded by the closed schema, for evaluation.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, SchemaError
from fedsyn.inference.capacity import require_room
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.protocol.contract import check_open
from fedsyn.protocol.room import require_feasible
from fedsyn.registry import contract_class
from fedsyn.table.schema import Schema
from fedsyn.table.schema.encoding import NOTHING_OWN, OwnRows

if TYPE_CHECKING:
    from fedsyn.table.data.encoded import RowFiles

Codes = npt.NDArray[np.integer]


def check_before(config: RunConfig, schema: Schema, parts: Sequence[npt.NDArray[np.int64]] = ()) -> None:
    """Checks what can be known of a run before anything is spent.

    Whatever is found in an open schema has room, and so has all that the mechanism's plan may ask for
    (`fedsyn.protocol.room`).

    Args:
        config: of the run.
        schema: of its table.
        parts: rows of each client of a simulation; looked at where row counts are public.

    Raises:
        ConfigError: its constraints do not fit into the model, its private values cannot be found, or its plan could
            not be carried out to its end.
        SchemaError: its constraints cannot hold for as many bins and categories as may be found.
    """
    check_open(config, schema)
    if schema.open and schema.constraints:
        _check_constraints(config, schema)
    contract = contract_class(config.mechanism.name)(config, schema.domain)
    if schema.open:
        contract.opened(schema)
    sizes = [len(part) for part in parts] if config.privacy.client_sizes == "public" else []
    require_feasible(contract, config.federation.clients, float(sum(sizes) or 1), float(max(sizes, default=1)))


def _check_constraints(config: RunConfig, schema: Schema) -> None:
    """Checks a schema with as many bins and categories as possible.

    They are as many as may be found.
    """
    try:
        domain = PrivateColumns(schema).largest().domain
    except SchemaError as error:
        why = str(error).removeprefix("the schema that was found: ")
        raise SchemaError(f"with as many bins and categories as may be found: {why}") from None
    try:
        require_room(domain, config.inference)
    except ConfigError as error:
        raise ConfigError(f"with as many bins and categories as may be found: {error}") from None


def write_own(
    folder: Path,
    schema: Schema,
    own_rows: OwnRows,
    parts: Sequence[npt.NDArray[np.int64]],
    test_own: OwnRows,
    files: RowFiles,
) -> None:
    """Keeps the rows' own values in the open columns.

    They are written client after client. For a closed schema nothing is written.
    """
    if not schema.open:
        return
    rows = np.concatenate([np.zeros(0, np.int64), *parts])
    _write(folder, "own", own_rows.taken(rows).pruned(), files)
    _write(folder, "test_own", test_own.pruned(), files)


def _write(folder: Path, what: str, own_rows: OwnRows, files: RowFiles) -> None:
    facts = {"numbers": list(own_rows.numbers), "words": {name: list(words) for name, words in own_rows.words.items()}}
    files.write_text(folder / f"{what}.json", json.dumps(facts))
    for place, values in enumerate([*own_rows.numbers.values(), *own_rows.index.values()]):
        files.save(folder / f"{what}-{place}.npy", values)


def close_to_others(folder: Path) -> None:
    """Lets nobody but their owner read a folder's files of rows."""
    folder.chmod(0o700)
    for file in folder.iterdir():
        if file.is_file():
            file.chmod(0o600)


def read_own(folder: Path, what: str = "own") -> OwnRows:
    """Returns the values that `write_own` kept, mapped and not read.

    Returns no values for a closed schema.
    """
    file = folder / f"{what}.json"
    if not file.is_file():
        return NOTHING_OWN
    facts = json.loads(file.read_text(encoding="utf-8"))
    names = [*facts["numbers"], *facts["words"]]
    arrays = {name: _mapped(folder / f"{what}-{place}.npy") for place, name in enumerate(names)}
    numbers = {name: arrays[name] for name in facts["numbers"]}
    return OwnRows(numbers, facts["words"], {name: arrays[name] for name in facts["words"]})


def _mapped(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an empty array cannot be mapped
        array = np.load(path, allow_pickle=False)
    return array.view(np.ndarray)


def found_in(folder: Path) -> Path:
    """Returns the folder of the tables under the closed schema."""
    return folder / "found"


def forget_found(folder: Path) -> None:
    """Removes what an earlier run left in the folder.

    So nothing of it is taken for this run's.
    """
    shutil.rmtree(found_in(folder), ignore_errors=True)
    for pattern in ("own.json", "own-*.npy", "test_own.json", "test_own-*.npy"):
        for file in folder.glob(pattern):
            file.unlink()


def write_found(folder: Path, schema: Schema, files: RowFiles) -> None:
    """Writes the tables of a folder, encoded by the closed schema."""
    from fedsyn.table.data import EncodedTable, write_encoded

    table, target = EncodedTable(folder), found_in(folder)
    codes = read_own(folder).coded(table.pooled(), schema, table.domain)
    parts = [np.arange(a, b) for a, b in zip(table.offsets, table.offsets[1:], strict=False)]
    write_encoded(target, codes, schema.domain, parts, files)
    test: Codes = np.load(folder / "test.npy", allow_pickle=False)
    files.save(target / "test.npy", read_own(folder, "test_own").coded(test, schema, table.domain))
    files.save(target / "test_numbers.npy", np.load(folder / "test_numbers.npy", allow_pickle=False))


def with_label(schema: Schema, codes: Codes, own_rows: OwnRows) -> tuple[Codes, Domain]:
    """Returns codes and domain for a simulation's partition.

    A label that is still open is numbered by its different values.
    """
    label, domain = schema.label, schema.domain
    values = own_rows.numbers.get(label or "", own_rows.index.get(label or ""))
    if label is None or values is None:
        return codes, domain
    different, places = np.unique(values, return_inverse=True)
    axis = domain.axes((label,))[0]
    shape = [max(1, len(different)) if i == axis else size for i, size in enumerate(domain.shape)]
    wide = codes.astype(np.int64)
    wide[:, axis] = places
    return wide, Domain(domain.attributes, tuple(shape))
