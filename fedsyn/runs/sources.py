"""The tables of a simulation, as blocks of encoded rows.

A source is a file, one file of each client, two files of persons and of their rows, a table in memory or one of each
client. Nothing is read before its blocks are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.config import DataNode
from fedsyn.errors import ConfigError
from fedsyn.randomness import Randomness
from fedsyn.table.data.options import FileOptions
from fedsyn.table.schema import Schema
from fedsyn.table.schema.encoding import Block
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.persons import require_records

if TYPE_CHECKING:
    import pandas as pd

    from fedsyn.table.data.records import RecordMaker


def source_of(
    data: DataNode, table: pd.DataFrame | Sequence[pd.DataFrame] | None, given_schema: Schema | None
) -> Source:
    """Returns the source of a configuration, or of tables in memory.

    Raises:
        InputError: it cannot be read, or its schema is not approved.
    """
    source = _files(data, given_schema) if table is None else None
    return source or (
        _holders(data, table, given_schema) if isinstance(table, Sequence) else _loaded(data, table, given_schema)
    )


class Part(NamedTuple):
    """One table of a source, in blocks.

    It is the source's only table or a client's. `rows` is None if their number is not known before they
    are read. `source` gives them as they are written.
    """

    rows: int | None
    blocks: Iterable[Block]
    holding: Holding
    source: pd.DataFrame | tuple[Path, FileOptions]
    path: Path = Path()

    def recorded(self, maker: RecordMaker) -> Iterator[Block]:
        """Yields one block: a record of each person."""
        from fedsyn.table.data.readers import check_rows

        self.holding.maker, read = maker, 0
        for block in self.blocks:
            read += block.read
        check_rows(self.path, read, self.rows)
        yield maker.record()


class Source(NamedTuple):
    """A source as blocks.

    `native` is the client of each row, where the parts are not of one client each.
    """

    name: str
    schema: Schema
    parts: list[Part]
    each_a_client: bool = False
    native: npt.NDArray[np.int64] | None = None

    @property
    def tables(self) -> dict[str, Holding]:
        """Holdings of the tables, by name."""
        if len(self.parts) == 1:
            return {"": self.parts[0].holding}
        names = [part.path.name or f"table {number}" for number, part in enumerate(self.parts, 1)]
        if len(set(names)) < len(names):
            names = [str(part.path) for part in self.parts]
        return {name: part.holding for name, part in zip(names, self.parts, strict=True)}

    @property
    def where(self) -> str:
        """Name and verb, for a message."""
        if len(self.parts) > 1:
            return f"all {len(self.parts)} tables have"
        return f"{self.parts[0].path if self.parts[0].path.name else 'the table'} has"


def of_persons(source: Source, data: DataNode) -> tuple[Source, list[RecordMaker]]:
    """Returns a source of records, and their makers.

    Without a split seed the coins are the operating system's. A table with a column of clients counts a person at the
    client of the row that comes first.

    Raises:
        SchemaError: the schema does not say who a person is.
    """
    from fedsyn.table.data.records import RecordMaker

    require_records(source.schema)
    randomness, makers, parts = Randomness(data.split_seed), list[RecordMaker](), list[Part]()
    for number, part in enumerate(source.parts):
        maker = RecordMaker(source.schema, randomness.ordinary("records", number))
        makers.append(maker)
        parts.append(part._replace(rows=None, blocks=part.recorded(maker)))
    return source._replace(schema=source.schema.records, parts=parts), makers


def _files(data: DataNode, given_schema: Schema | None) -> Source | None:
    """Returns a source that is a file, or one of each client.

    Returns None for every other source.
    """
    from fedsyn.table.data.alike import column_names, require_schema_columns
    from fedsyn.table.data.readers import encoded_blocks, options_for, require_table, row_count
    from fedsyn.table.data.sources import is_path

    sources = data.holders or [data.source]
    if not all(map(is_path, sources)):
        if data.holders:
            raise ConfigError("data.source: a list names files, one of each client")
        return None
    schema = _approved(data, given_schema, data.source)
    if data.persons is not None:
        return _joined(data, sources, schema)
    files = [(path, options_for(path, data.options)) for path in map(require_table, sources)]
    if len(files) > 1:  # all that all of them lack, in one message
        require_schema_columns({str(path): column_names(path, how, schema.needed) for path, how in files}, schema)
    parts = []
    for path, options in files:
        holding = Holding(schema)
        blocks = encoded_blocks(path, schema, options, holding=holding)
        parts.append(Part(row_count(path, options), blocks, holding, (path, options), path))
    return Source(Path(data.source).name.split(".")[0], schema, parts, bool(data.holders))


def _joined(data: DataNode, rows: Sequence[str], schema: Schema) -> Source:
    """Returns a source whose persons are in files of their own."""
    from fedsyn.table.data.joined import joined_files

    options = FileOptions.of(data.options)
    pairs = zip(data.persons or (), rows, strict=True)
    parts = [_in_memory(joined_files(*pair, schema, options), schema) for pair in pairs]
    return Source(Path(rows[0]).name.split(".")[0], schema, parts, bool(data.holders))


def _loaded(data: DataNode, table: pd.DataFrame | None, given_schema: Schema | None) -> Source:
    """Returns a source that is in memory, or is loaded whole."""
    from fedsyn.table.data import load_dataset

    source, schema = data.source if table is None else table, given_schema or named_schema(data)
    dataset = load_dataset(source, schema=schema, bins=data.bins, label=data.label, options=data.options)
    dataset.schema.require_approved()
    part = _in_memory(dataset.frame, dataset.schema)
    return Source(dataset.name, dataset.schema, [part], native=dataset.native_partition)


def _in_memory(frame: pd.DataFrame, schema: Schema) -> Part:
    """Returns a table in memory as one block.

    It is encoded when it is asked for.
    """
    holding = Holding(schema)
    return Part(len(frame), map(holding.encoded, [frame]), holding, frame)


def _holders(data: DataNode, tables: Sequence[pd.DataFrame], given_schema: Schema | None) -> Source:
    """Returns a source with one table of each client.

    Each is encoded by itself: what one holder's column holds changes no other's codes.
    """
    from fedsyn.table.data.alike import require_schema_columns

    schema = _approved(data, given_schema, "a list of DataFrames")
    frames = {f"table {number} of {len(tables)}": frame for number, frame in enumerate(tables, 1)}
    require_schema_columns({where: list(frame.columns) for where, frame in frames.items()}, schema, files=False)
    parts = [_in_memory(frame, schema) for frame in tables]
    return Source(data.source, schema, parts, each_a_client=True)


def named_schema(data: DataNode) -> Schema | None:
    """Returns the schema that a configuration names, or None.

    Raises:
        SchemaError: see `Schema.load`.
    """
    file = data.schema_file
    if file is None:
        return None
    there = Path(file).stat() if Path(file).exists() else None
    return _read_once(file, None if there is None else (there.st_mtime_ns, there.st_size))


@lru_cache(maxsize=2)  # what is checked before the table is read, and what reads it, take the same
def _read_once(file: str, version: tuple[int, int] | None) -> Schema:
    """Returns the schema of a file, read once per process and version."""
    return Schema.load(file)


def _approved(data: DataNode, given_schema: Schema | None, what: str) -> Schema:
    """Returns the approved schema for a source without its own."""
    from fedsyn.table.data.sources import needed

    schema = needed(given_schema or named_schema(data), what).adjusted(data.bins, data.label)
    schema.require_approved()
    return schema
