"""A holder's table in memory, encoded as runs need it.

It stays in the process that is forked: no task reads it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from fedsyn.config import RunConfig
from fedsyn.errors import FedsynError
from fedsyn.node.file import NodeFile
from fedsyn.runs.holders import LoadedRows, close_rows, load_rows
from fedsyn.table.schema import Schema

_KEPT = 2  # encodings of one table


class Encoding(NamedTuple):
    """A run's encoding of the rows.

    All of it comes from public facts: its configuration, and what was found.

    Attributes:
        bins, label: of `RunConfig.data`.
        found: JSON of what a run on an open schema has found; None before that, and on any other.
        persons: whether there is one record of each person (`privacy.unit`).
    """

    bins: int | None = None
    label: str | None = None
    found: str | None = None
    persons: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> Encoding:
        """Returns the encoding of a run."""
        return cls(config.data.bins, config.data.label, persons=config.privacy.unit == "person")

    @classmethod
    def of_most(cls, file: NodeFile) -> Encoding:
        """Returns the encoding that most runs will ask a node for.

        Where the schema has persons, a run protects single rows only if somebody has said so.
        """
        return cls(persons=file.policy.unit != "client" and Schema.load(file.schema_file).persons is not None)

    @classmethod
    def read(cls, fields: list[Any]) -> Encoding:
        """Reads an encoding from JSON of a task, which may say anything.

        What does not fit is an error where it is used.
        """
        return cls(*fields)


class NotRead(FedsynError):
    """A task needs an encoding that its parent has not read.

    The parent reads it and forks again.
    """

    def __init__(self, encoding: Encoding) -> None:
        super().__init__("the table is not encoded as this run needs it")
        self.encoding = encoding


class Tables:
    """The encodings of a node's table that are in memory.

    Args:
        file: of the node.
        reads: whether `get` reads what is missing; a task's process leaves that to its parent.
    """

    def __init__(self, file: NodeFile, *, reads: bool = True) -> None:
        self._file = file
        self.reads = reads
        self._kept: OrderedDict[Encoding, LoadedRows] = OrderedDict()

    def get(self, encoding: Encoding) -> LoadedRows:
        """The rows.

        Raises:
            NotRead: they are not in memory, and are not to be read here.
            NotReady: the table cannot be read, or does not fit its schema.
            ConfigError: the run's configuration does not fit the schema.
        """
        if encoding in self._kept:
            self._kept.move_to_end(encoding)
            return self._kept[encoding]
        if not self.reads:
            raise NotRead(encoding)
        if encoding.found is not None:
            rows = close_rows(self.get(encoding._replace(found=None)), encoding.found)
        else:
            rows = load_rows(
                self._file.data,
                self._file.schema_file,
                encoding.bins,
                encoding.label,
                self._file.data_key,
                tuple(self._file.rename.items()),
                persons=encoding.persons,
                apart=self._file.persons,
            )
        self._kept[encoding] = rows
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return rows
