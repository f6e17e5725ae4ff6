"""The first step of a run: loads and checks its input.

For a simulation it also encodes, splits and stores the table.

A simulation's clients each open their slice of what is stored; a deployment's server gets the schema, and no table.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from fedsyn.config import DataNode, RunConfig
from fedsyn.domain import Flags
from fedsyn.errors import ConfigError, DataError, SchemaError
from fedsyn.evaluation.inputs import column_ranges, label_values
from fedsyn.loading import require_files
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class, metric, partitioner
from fedsyn.runs import open_tables
from fedsyn.runs.real_rows import RealRows, RealTable
from fedsyn.runs.sources import Source, named_schema, of_persons, source_of
from fedsyn.runs.unit import require_unit
from fedsyn.table.data.encoded import RowFiles, RowSpool, forget, taken, write_encoded
from fedsyn.table.data.options import written_as
from fedsyn.table.schema import Schema
from fedsyn.table.schema.encoding import NOTHING_OWN, OwnRows
from fedsyn.table.schema.holdings import no_row_fits, sentences
from fedsyn.table.schema.persons import require_records

log = logging.getLogger("fedsyn")

if TYPE_CHECKING:
    import pandas as pd

    from fedsyn.table.data.partition import Partitioner
    from fedsyn.table.data.records import RecordMaker

    #: Rows that a caller has in memory: one table, or one of each client.
    Table: TypeAlias = pd.DataFrame | Sequence[pd.DataFrame]


def prepare(config: RunConfig, folder: Path, table: Table | None = None, schema: Schema | None = None) -> Prepared:
    """Loads and checks everything that the run needs.

    For a simulation it also splits and stores the encoded table.

    Args:
        config: the configuration.
        folder: where to keep it.
        table: rows to use in place of `data.source`: one table, or one of each client.
        schema: describes them, in place of `data.schema`.

    Raises:
        InputError: bad configuration, schema or data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    open_tables.close_to_others(folder)  # encoded rows are rows
    open_tables.forget_found(folder)
    if config.runtime.engine == "deployment":
        return _prepare_deployment(config, folder)
    require_files(config.data, source=table is None)
    if (named := schema or named_schema(config.data)) is not None:
        require_unit(config, named)
    tables = split_tables(config, table, schema)
    _check_evaluation(config, tables.schema, len(tables.test))
    open_tables.check_before(config, tables.schema, tables.parts)
    files = RowFiles()
    write_encoded(folder, tables.train, tables.schema.domain, tables.parts, files)
    open_tables.write_own(folder, tables.schema, tables.own, tables.parts, tables.test_own, files)
    files.save(folder / "test.npy", tables.test)
    files.save(folder / "test_numbers.npy", tables.test_numbers)
    for rows in (tables.train, tables.test, tables.test_numbers):
        forget(rows)  # from here on the run reads what was stored
    clients = len(tables.parts) if config.federation.columns is None else config.federation.clients
    return Prepared(folder, tables.schema, True, clients, tables.name, files, tables.real).save()


@dataclass(frozen=True)
class Prepared:
    """Result of `prepare` in a folder.

    It is the schema, and for a simulation the encoded tables.

    Attributes:
        folder: holds schema.yaml and, for a simulation, the clients' shared table and test.npy.
        schema: the run's schema.
        simulated: whether the folder holds tables (a deployment's server has none).
        clients: number of clients.
        name: of the data source, for reports.
        files: of its rows, which are there as long as this object is.
        real: the rows as they are written; None: there are none here.
    """

    folder: Path
    schema: Schema
    simulated: bool
    clients: int
    name: str
    files: RowFiles = field(default_factory=RowFiles, compare=False, repr=False)
    real: RealRows | None = field(default=None, compare=False, repr=False)

    @property
    def closed(self) -> Prepared:
        """This result under the schema that the run has found.

        It is the object itself where nothing was to be found.
        """
        folder = open_tables.found_in(self.folder)
        if not self.schema.open or not folder.is_dir():
            return self
        return replace(self, folder=folder, schema=Schema.load(folder / "schema.yaml"))

    def close(self, schema: Schema) -> Prepared:
        """Encodes the tables by the schema that was found.

        They are written beside those that the clients have open.
        """
        folder = open_tables.found_in(self.folder)
        if self.simulated:
            open_tables.write_found(self.folder, schema, self.files)
        else:
            folder.mkdir(mode=0o700)
        return replace(self, folder=folder, schema=schema).save()

    def save(self) -> Prepared:
        self.schema.save(self.folder / "schema.yaml")
        open_tables.close_to_others(self.folder)
        return self


def _prepare_deployment(config: RunConfig, folder: Path) -> Prepared:
    """Prepares a deployment, whose server needs the schema only.

    The rows stay with their holders.
    """
    from fedsyn.table.data import dataset_names

    require_files(config.data, source=False)
    if config.data.schema_file is None and config.data.source not in dataset_names():
        raise ConfigError("data.schema: a deployment needs the schema that all data holders approved")
    schema = public_schema(config)
    schema.rows.require_approved()
    open_tables.check_before(config, schema)
    if config.evaluation.metrics:
        raise ConfigError(
            "evaluation: a deployment's server has no rows to evaluate on; set evaluation: [] (or ask the holders: "
            "evaluation: {federated: true}) and evaluate the synthetic table where real rows are"
        )
    return deployed(config, schema, folder)


def deployed(config: RunConfig, schema: Schema, folder: Path) -> Prepared:
    """Returns the input of a deployment's server.

    It is the schema, and no table.
    """
    written_as(config.data.options, schema.rows)  # refuses what would fail once the budget is spent
    return Prepared(folder, schema, False, config.federation.clients, Path(config.data.source).name).save()


def _check_evaluation(config: RunConfig, schema: Schema, test_rows: int) -> None:
    numeric = None if schema.label is None else label_values(schema, schema.label) is not None
    for name in config.evaluation.metrics:
        metric(name).require(
            test_rows > 0,
            schema.label,
            numeric_label=numeric,
            has_partition=True,
            attributes=len(schema.domain),
            numeric_attributes=len(column_ranges(schema)),
        )


@dataclass(frozen=True, eq=False)
class SplitTable:
    """A source, encoded and divided into training and held-out rows, all read-only.

    Attributes:
        name: of the data source.
        schema: of the table.
        train: (n, d) codes of the pooled training table.
        test: (m, d) codes of the held-out rows.
        test_numbers: (m, numeric columns) float32 values of the same rows before binning.
        native: (n,) the source's own client of each training row, or None.
        holders: ids of all of the source's own clients, also of those without training rows; None without `native`.
        real: the rows as they are written.
        own, test_own: the same rows' own values in the open columns of an open schema, whose codes are placeholders.
        parts: row indices into `train` of each client of a simulation; empty before they are split.
    """

    name: str
    schema: Schema
    train: npt.NDArray[np.integer]
    test: npt.NDArray[np.integer]
    test_numbers: npt.NDArray[np.float32]
    native: npt.NDArray[np.int64] | None
    real: RealRows
    own: OwnRows = NOTHING_OWN
    test_own: OwnRows = NOTHING_OWN
    parts: Sequence[npt.NDArray[np.int64]] = ()
    holders: npt.NDArray[np.int64] | None = None


def split_tables(config: RunConfig, table: Table | None = None, schema: Schema | None = None) -> SplitTable:
    """Loads, encodes and splits a simulation's table.

    `table` and `schema`, if there are any, take the place of the configuration's.

    Raises:
        InputError: bad schema or data, or a split that does not exist.
    """
    encoded = encoded_table(config.data, table, schema, persons=config.privacy.unit == "person")
    return replace(encoded, parts=_partition(config, encoded))


def split_rows(data: DataNode, rows: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns (n,) masks of the training rows and held-out rows.

    Rows in neither are outside the sample.

    **Without a split seed**, as in every run for release, each row has two coins of its own, from the operating
    system. They depend neither on the other rows nor on how many there are. So the guarantee for the training rows is
    one for the whole table. Let a table have one row more than another, wherever it stands, and fix the coins of all
    the others: then the training rows of both are equal, or differ in that row alone, and an outcome of one is at most
    exp(epsilon) times as probable as of the other, plus delta. This holds for any coins, and therefore for their
    average. It holds for releases together, which share their coins, as for one.

    **With a split seed** the shares are exact and the same each time. One row more moves others to another part; a run
    with a seed promises nothing of rows.
    """
    from fedsyn.table.data.partition import draw_test_rows, toss

    share, fraction = data.sample, data.test_fraction or 0.0
    if data.split_seed is None:
        used = toss(rows, share)
        test = used & toss(rows, fraction)
    else:
        randomness = Randomness(data.split_seed)
        used = np.ones(rows, dtype=bool)
        if share < 1.0:
            used[randomness.ordinary("sample").permutation(rows)[max(1, round(share * rows)) :]] = False
        test = used.copy()
        test[used] = draw_test_rows(int(used.sum()), fraction, randomness.ordinary("split"))
    used &= ~test
    if not used.any():
        raise ConfigError(f"data.sample {share:g} and data.test_fraction {fraction:g} leave no row to learn from")
    return used, test


def _partition(config: RunConfig, encoded: SplitTable) -> list[npt.NDArray[np.int64]]:
    """Returns the row indices of each client.

    A central mechanism has one client with every row. So have columns that are split over holders.
    """
    from fedsyn.table.data.partition import PartitionInput

    if contract_class(config.mechanism.name).central or config.federation.columns is not None:
        return [np.arange(len(encoded.train))]  # with columns split over holders, each opens its own of all rows
    node, schema = config.federation.partition, encoded.schema
    codes, domain = open_tables.with_label(schema, encoded.train, encoded.own)
    chosen: Partitioner = partitioner(node.name, **node.options)
    table = PartitionInput(codes, domain, schema.label, encoded.native, encoded.holders)
    return chosen.split(table, config.federation.clients, randomness_of(config).ordinary("partition"))


def encoded_table(
    data: DataNode, table: Table | None = None, schema: Schema | None = None, *, persons: bool = False
) -> SplitTable:
    """Loads and encodes a configuration's source, or a table.

    The schema must be approved. Of `persons` it gives one record each (`fedsyn.table.data.records`).
    """
    require_files(data, source=table is None)
    if table is not None or schema is not None or data.by_coins:
        return _encode(data, table, schema, persons=persons)
    files = [
        data.source,
        *(data.holders or ()),
        *(data.persons or ()),
        data.schema_file or "",
        os.environ.get("FEDSYN_DATA", ""),
    ]
    stamps = tuple(Path(file).stat().st_mtime_ns if Path(file).exists() else 0 for file in files)
    return _encoded(data.model_dump_json(by_alias=True), (*files, *stamps), persons)


@lru_cache(maxsize=2)  # the cells of a sweep that share a process share its table
def _encoded(data: str, version: tuple[object, ...], persons: bool) -> SplitTable:
    """Loads and encodes a source, once per process and version.

    The version is the names and times of its files.
    """
    return _encode(DataNode.model_validate_json(data), persons=persons)


def _encode(
    data: DataNode, table: Table | None = None, given_schema: Schema | None = None, *, persons: bool = False
) -> SplitTable:
    """Encodes a source block by block.

    The table may be larger than memory.
    """
    from fedsyn.table.data.readers import check_rows

    source = source_of(data, table, given_schema)
    makers: list[RecordMaker] = []
    if persons:
        source, makers = of_persons(source, data)
    schema, known = source.schema, [part.rows for part in source.parts if part.rows is not None]
    # Rows are divided once their number is known.
    roles = split_rows(data, sum(known)) if len(known) == len(source.parts) and any(known) else None
    codes, test = RowSpool(len(schema.columns), schema.dtype), RowSpool(len(schema.columns), schema.dtype)
    numbers, own_rows, kept = RowSpool(len(column_ranges(schema)), np.float32), list[OwnRows](), list[Flags]()
    rows, read, done = [0] * len(source.parts), [0] * len(source.parts), 0
    # Block by block; with known roles each row goes to its place at once.
    for client, part in enumerate(source.parts):
        for block in part.blocks:
            here = slice(done, done + block.read)
            done, read[client] = here.stop, read[client] + block.read
            if part.rows is not None and read[client] > part.rows:
                break
            rows[client] += len(block.codes)
            own_rows.append(block.own)
            kept.append(np.ones(block.read, dtype=bool) if block.kept is None else block.kept)
            codes.append(block.codes if roles is None else block.codes[block.of(roles[0][here])])
            numbers.append(block.numbers if roles is None else block.numbers[block.of(roles[1][here])])
            if roles is not None:
                test.append(block.codes[block.of(roles[1][here])])
        check_rows(part.path, read[client], part.rows)
    # Rows that are left out have no role.
    everywhere = np.concatenate([*kept, np.zeros(0, dtype=bool)])
    native, done = _natives(source, makers, everywhere), int(everywhere.sum())
    roles = roles if roles is None else (roles[0][everywhere], roles[1][everywhere])
    _require_rows(source, everywhere, roles)
    # For the person who has the rows, and looks at this terminal.
    for sentence in sentences(source.tables, slight=False):
        log.warning("%s", sentence)
    # Without known roles all rows were kept, and are divided now that their number is known.
    train, held_out = roles or split_rows(data, done)
    divided = codes.rows(), test.rows(), numbers.rows()
    if roles is None:
        divided = taken(divided[0], train), taken(divided[0], held_out), taken(divided[2], held_out)
    # The client of each training row, and the own values of open columns.
    native = np.repeat(np.arange(len(rows)), rows) if source.each_a_client else native
    named = source.native if source.native is None else np.unique(source.native)
    holders = np.arange(len(rows)) if source.each_a_client else named
    joined = OwnRows.joined(own_rows)
    owned = joined.taken(train), joined.taken(held_out)
    mine = None if native is None else native[train]
    if makers:
        real = _real_rows_of(source, makers, train, held_out)
    else:
        real = _real_rows(source, read, everywhere, train, held_out, whole=data.sample == 1.0)
    return SplitTable(source.name, schema, *divided, mine, real, *owned, holders=holders)


def _natives(source: Source, makers: Sequence[RecordMaker], fits: Flags) -> npt.NDArray[np.int64] | None:
    """Returns the source's own client of each encoded row, or None.

    A person is at the client of the row that comes first.
    """
    if source.native is None or not makers:
        return None if source.native is None else source.native[fits]
    (maker,) = makers  # a table with a column of clients is one table
    there, own = np.flatnonzero(maker.person >= 0)[::-1], np.zeros(maker.records, np.int64)
    own[maker.person[there]] = source.native[there]
    return own


def _real_rows_of(source: Source, makers: Sequence[RecordMaker], train: Flags, held_out: Flags) -> RealRows:
    """Returns the rows of persons as they are written.

    Args:
        source: the table, or one of each client.
        makers: what made the records of each.
        train, held_out: (records,) their roles.
    """
    rows, done, roles = list[int](), 0, list[Flags]()
    for maker in makers:
        rows.append(len(maker.person))
        own = np.append(np.stack([train, held_out])[:, done : done + maker.records], np.full((2, 1), False), axis=1)
        roles.append(own[:, maker.person])
        done += maker.records
    tables = tuple(RealTable(count, part.source) for count, part in zip(rows, source.parts, strict=True))
    return RealRows(tables, *np.concatenate(roles, axis=1))


def _real_rows(
    source: Source, read: Sequence[int], fits: Flags, train: Flags, held_out: Flags, whole: bool
) -> RealRows:
    """Returns the rows as they are written.

    Args:
        source: the table.
        read: rows of each of its parts.
        fits: (rows read,) which the schema could take.
        train, held_out: (rows that fit,) their roles.
        whole: whether no sample was drawn. Then rows that the schema could not take are real rows all the same.
    """
    roles = np.full((2, len(fits)), False)
    roles[:, fits] = train, held_out
    roles[0] |= ~fits & whole
    tables = tuple(RealTable(rows, part.source) for rows, part in zip(read, source.parts, strict=True))
    return RealRows(tables, *roles)


def _require_rows(source: Source, fits: Flags, roles: tuple[Flags, Flags] | None) -> None:
    """Refuses a table without a row to learn from.

    Whoever runs a simulation named it, and can mend it.

    Args:
        source: the table.
        fits: (rows,) which fit the schema.
        roles: of these, which are for training and which are held out, if that is known.

    Raises:
        DataError: says which rows are lacking.
    """
    if not len(fits):
        persons = source.schema.of_persons
        least = 1 if persons is None else persons.least_rows
        whose = f" of a person with {least:,} or more, which persons.least_rows asks for" if least > 1 else ""
        raise DataError(f"{source.where} no rows{whose}")
    if not fits.any():
        raise DataError(no_row_fits(source.tables))
    if roles is not None and not roles[0].any():
        raise DataError(f"{source.where} no rows to learn from: those that fit the schema are held out, or not drawn")


def with_layout(config: RunConfig, schema: Schema) -> RunConfig:
    """Returns the configuration with the detected format of its files.

    The first lines of the files show it. It is taken only where all show the same. The table is written
    in it, or as a plain CSV file where holders' files differ.
    """
    from fedsyn.table.data.sources import layouts

    detected = layouts(config.data.holders or [config.data.source], schema.rows, config.data.options)
    if len(detected) != 1:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"options": detected.pop().said()})})


def randomness_of(config: RunConfig) -> Randomness:
    """Returns the run's randomness: its seed's, or the operating system's."""
    return Randomness(config.runtime.seed)


def public_schema(config: RunConfig) -> Schema:
    """Returns the run's schema, without reading a row.

    Raises SchemaError if only the table could tell.
    """
    from fedsyn.table.data import dataset_names, describe
    from fedsyn.table.data.sources import SynthFSOptions, synthfs_schema

    data = config.data
    if (named := named_schema(data)) is not None:
        schema = named
    elif data.source == "synthfs":
        schema = synthfs_schema(SynthFSOptions(**data.options))
    elif data.source in dataset_names():
        entry = describe(data.source)
        schema = entry.schema_ if data.options.get("grouped", True) else entry.ungrouped()
    else:
        raise SchemaError("the run's schema is not at hand")
    require_unit(config, schema)
    schema = schema.adjusted(data.bins, data.label)
    if config.privacy.unit != "person":
        return schema
    require_records(schema)
    return schema.records
