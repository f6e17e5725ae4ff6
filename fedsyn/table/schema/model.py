"""Schema of a table: columns, file format, encoding and decoding."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from fedsyn import yamlio
from fedsyn.bounded import read_bytes
from fedsyn.domain import Domain, Flags
from fedsyn.errors import ConfigError, DataError, SchemaError
from fedsyn.lazy import pd
from fedsyn.notebook import Shown, View
from fedsyn.output import plain
from fedsyn.table.schema.approval import How, approved_columns, findings, not_approved, not_stated, standing, waiting
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import ASIDE, REMARKS, Aside, ColumnBase, kind_of
from fedsyn.table.schema.columns import Column, column_dict
from fedsyn.table.schema.compiled import CompiledRules
from fedsyn.table.schema.computed import computed_columns
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.edited import edited_data
from fedsyn.table.schema.encoding import Block, Encoder, drawn_rows
from fedsyn.table.schema.frames import as_frame
from fedsyn.table.schema.hidden import with_hidden, without_hidden
from fedsyn.table.schema.joined import one_table
from fedsyn.table.schema.links import Links, RowModel
from fedsyn.table.schema.nested import Placed
from fedsyn.table.schema.open import Found, Open, OpenCategories, all_set_apart, filled_in, put_back, with_bins
from fedsyn.table.schema.people import People, counts_of_rows
from fedsyn.table.schema.persons import RECORDS, Persons, record_columns, record_domain, record_of, require_persons
from fedsyn.table.schema.problems import describe, require_names, require_usable
from fedsyn.table.schema.remarks import Proposed, Remarks, proposed_in, remarks_of, text_with, without_rules
from fedsyn.table.schema.rules import AnyRule, of_known, parse_rules
from fedsyn.table.schema.shown import described, view_of
from fedsyn.table.schema.spread import spread
from fedsyn.table.schema.values import MISSING_TEXT, written
from fedsyn.table.schema.whose import along_of

if TYPE_CHECKING:
    from fedsyn.table.schema.frames import AnyFrame, AnyTables


class Schema(BaseModel, Shown):
    """The columns of a table with their public values.

    A value outside the schema gets a code too: the nearest bin, "other", missing, or that of what is not listed. Where
    a column has none of these, the row is left out.

    >>> import pandas as pd
    >>> schema = Schema.loads('''
    ... columns:
    ...   age: {kind: numeric, dtype: integer, lower: 0, upper: 99, bins: 10}
    ...   ward: {kind: categorical, categories: [north, south], other: true}
    ... ''')
    >>> schema.domain.shape
    (10, 3)
    >>> schema.encode(pd.DataFrame({"age": [7, 63, 140], "ward": ["south", "north", "east"]})).tolist()
    [[0, 1], [6, 0], [9, 2]]

    Attributes:
        columns: name -> modelled column, in the order of the table.
        aside: name -> column that is not modelled. In YAML and in `from_dict` both kinds stand under `columns`.
        derived: name -> column that a constraint computes; not modelled.
        table: names of all columns, in the order of the table.
        constraints: what holds in every row, publicly known; see `fedsyn.table.schema.rules`.
        open: name -> what of a column is private, and found before a run; see `fedsyn.table.schema.open`.
        label: the column that evaluation predicts, or None.
        persons: who a row is about, where a person may have several; None: nobody says.
        missing_values: text that stands for a missing value, besides the usual (empty, NA, NaN, null, None).
        approved: whether everything that was drafted from data has been accepted as public.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: dict[str, Column] = Field(min_length=1)
    aside: dict[str, Aside] = Field(default_factory=dict)
    derived: dict[str, Column] = Field(default_factory=dict)
    table: tuple[str, ...] = ()
    constraints: tuple[AnyRule, ...] = ()
    open: dict[str, Open] = Field(default_factory=dict)
    label: str | None = None
    persons: Persons | None = None
    missing_values: tuple[str, ...] = ()
    approved: bool = False
    _rows: Schema | None = PrivateAttr(default=None)
    _links: Links | None = PrivateAttr(default=None)
    _groups: Placed | None = PrivateAttr(default=None)
    _remarks: Remarks = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _set_aside(cls, data: Any) -> Any:
        """Separates modelled columns from the others, and reads the constraints."""
        if not isinstance(data, Mapping) or not isinstance(data.get("columns"), Mapping):
            return data
        rules = parse_rules(data.get("constraints", ()))
        computed = set(computed_columns(rules))
        columns, wanted = all_set_apart(data["columns"], computed)
        apart = {name for name, column in columns.items() if kind_of(column) in ASIDE}
        modelled = {name: column for name, column in columns.items() if name not in apart | computed}
        if columns and not modelled:
            raise ValueError(
                "columns: every column is set aside (kind identifier, text or drop) or computed; none is left to model"
            )
        return {
            **data,
            "columns": modelled,
            "derived": {**data.get("derived", {}), **{n: c for n, c in columns.items() if n in computed - apart}},
            "constraints": rules,
            "aside": {**data.get("aside", {}), **{name: column for name, column in columns.items() if name in apart}},
            "table": data.get("table") or tuple(columns),
            "open": {**data.get("open", {}), **wanted},
        }

    @field_validator("missing_values", mode="before")
    @classmethod
    def _numbers_as_text(cls, words: Any) -> Any:
        if not isinstance(words, list | tuple):
            return words
        return [written(word) if type(word) in (int, float) else word for word in words]

    @model_validator(mode="after")
    def _names_are_usable(self) -> Schema:
        require_usable(self)
        require_persons(self)
        return self

    @classmethod
    def from_dict(cls, data: Any, where: str = "schema") -> Schema:
        """Builds a schema from the data of `to_dict` or a YAML file.

        Raises:
            SchemaError: one message that names `where` and every wrong entry, with the nearest valid key.
        """
        if not isinstance(data, Mapping):
            raise SchemaError(f"{where}: expected a mapping with the key 'columns'")
        if record_of(data):
            return cls.from_dict({key: value for key, value in data.items() if key != "form"}, where).records
        columns = data.get("columns")
        if isinstance(columns, Mapping) and not all(isinstance(name, str) for name in columns):
            raise SchemaError(f"{where}: column names must be text; put quotes around names like 1 or true")
        for key in _OWN:
            if key in data:
                raise SchemaError(f"{where}: unknown key '{key}' (allowed: {', '.join(_KEYS)})")
        try:
            schema = cls.model_validate(data)
            _ = schema.compiled  # refuses constraints that cannot be
            return schema
        except ValidationError as error:
            raise SchemaError(f"{where}: {describe(error, _KEYS)}") from None
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from None

    @classmethod
    def loads(cls, text: str, where: str = "schema") -> Schema:
        """Reads a schema from YAML text.

        Raises:
            SchemaError: not YAML, or see `from_dict`.
        """
        try:
            data = yamlio.loads(text, where)
        except ConfigError as error:
            raise SchemaError(str(error)) from None
        return cls.from_dict(data, where).remarked(remarks_of(text))

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Reads a schema from a YAML file.

        Raises:
            SchemaError: no such file, a pipe, a device or a longer file than is read, not UTF-8 text, not YAML, or see
                `from_dict`.
        """
        try:
            text = read_bytes(path).decode("utf-8")
        except DataError as error:
            raise SchemaError(str(error)) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SchemaError(f"cannot read the schema {path}: {reason}") from None
        return cls.loads(text, where=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain data (JSON, YAML) without the settings that have their default value."""
        if self._rows is not None:
            return self._rows.to_dict() | {"form": RECORDS}
        columns = {name: column_dict(column) for name, column in self.every_column.items()}
        columns |= {name: put_back(columns[name], self.columns[name], wanted) for name, wanted in self.open.items()}
        data: dict[str, Any] = {"columns": columns}
        data |= {"constraints": [rule.data() for rule in self.constraints]} if self.constraints else {}
        data |= {"label": self.label} if self.label is not None else {}
        data |= {"persons": self.persons.model_dump(mode="json", exclude_defaults=True)} if self.persons else {}
        data |= {"missing_values": list(self.missing_values)} if self.missing_values else {}
        data |= {"approved": True} if self.approved else {}
        return data

    def dumps(self) -> str:
        """Returns the schema as YAML text.

        Above a draft stand instructions, and in it what it hints at, as comments that begin with `#?`. They tell of its
        table's rows, so the text of a schema that a run accepts has none.
        """
        return text_with(self.to_dict(), self._remarks) if self.unapproved else yamlio.dumps(self.to_dict())

    def __repr__(self) -> str:
        hints = [f"{name}: {hint}" for name, lines in self.hints.items() for hint in lines]
        return "\n".join(plain(line, keep="") for line in (f"Schema({described(self)})", *hints))

    __str__ = __repr__

    def _view(self) -> View:
        return view_of(self)

    def save(self, path: str | Path) -> None:
        """Writes the schema as a YAML file."""
        Path(path).write_text(self.dumps(), encoding="utf-8")

    @cached_property
    def sha256(self) -> str:
        """Hex hash of the encoding of tables, the constraints and the label.

        Not of drafting and approval.
        """
        if self._rows is not None:
            return hashlib.sha256(f"{RECORDS} {self._rows.sha256}".encode()).hexdigest()
        data = self.to_dict()
        data.pop("approved", None)
        columns = {name: data["columns"][name] for name in [*self.columns, *self.derived]}
        for column in columns.values():
            for remark in REMARKS:
                column.pop(remark, None)
        # Names in a list, because the order of the columns counts.
        data["columns"] = list(columns.items())
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @cached_property
    def every_column(self) -> dict[str, ColumnBase]:
        """Name -> column, modelled or not, in the order of the table."""
        known: dict[str, Any] = {**self.columns, **self.derived, **self.aside}
        return {name: known[name] for name in dict.fromkeys([*self.table, *known])}

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the synthetic table's columns: modelled, computed, or made afresh."""
        whose = self.persons.id if self.persons else None
        known = without_hidden(self)
        return tuple(n for n in known if n not in self.aside or self.aside[n].made or n == whose)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the columns that a table needs, without hidden ones."""
        sources = {name for one in self.compiled.hidden for name in one.sources}
        return tuple(n for n in without_hidden(self) if n in self.columns or n in sources)

    def closed(self, discovered: Found, atoms: Found | None = None) -> Schema:
        """The schema with what was found of each open column (see `fedsyn.table.schema.open.filled_in`)."""
        data = self.to_dict()
        for name, wanted in self.open.items():
            pieces = discovered[name], (atoms or {}).get(name, ())
            data["columns"][name] = filled_in(data["columns"][name], self.columns[name], wanted, *pieces)
        known = {name: discovered[name] for name, wanted in self.open.items() if isinstance(wanted, OpenCategories)}
        data["constraints"] = [rule.data() for rule in of_known(self.constraints, known)]
        return Schema.from_dict(data, "the schema that was found")

    @property
    def hints(self) -> dict[str, tuple[str, ...]]:
        """Column -> hints that nobody has answered, for the table's holder alone.

        A draft has them. They stay in its file as comments; what answers them takes them out: `edited`, `approve`.
        """
        return {name: tuple(lines) for name, lines in self._remarks.items() if name and lines}

    @property
    def proposed(self) -> tuple[Proposed, ...]:
        """Constraints that a draft has seen to hold, not yet `stated`."""
        return tuple(proposed_in(self._remarks.get("", ())))

    def stated(self, *rules: Any) -> Schema:
        """Returns the schema with further constraints; without any, all `proposed`."""
        data = self.to_dict()
        known = [yamlio.loads(one.rule, "a constraint") for one in self.proposed]
        data["constraints"] = [*data.get("constraints", ()), *(rules or known)]
        schema = Schema.from_dict(data)
        return schema.remarked(without_rules(self._remarks, [rule.data() for rule in schema.constraints]))

    def remarked(self, remarks: Remarks, *, answered: Collection[str] = ()) -> Schema:
        """Returns the schema with remarks, but none on answered columns."""
        other = self.model_copy()
        other._remarks = {name: tuple(lines) for name, lines in remarks.items() if name not in answered and lines}
        return other

    @property
    def drafted(self) -> dict[str, tuple[str, ...]]:
        """Facts read from the data, by column, where there are any."""
        return {name: column.drafted for name, column in self.every_column.items() if column.drafted}

    @property
    def unapproved(self) -> dict[str, tuple[str, ...]]:
        """Unapproved facts read from the data, of modelled columns and of persons."""
        return waiting(self)

    def require_approved(self) -> None:
        """Refuses a drafted schema that nobody has approved as public.

        Raises:
            SchemaError: lists per column what was read from the data, and what to do.
        """
        if self.unapproved:
            raise SchemaError(not_approved(self.unapproved))

    @classmethod
    def draft(
        cls, frame: AnyTables, bins: int | None = None, label: str | None = None, keep: Collection[str] = (), **how: Any
    ) -> Schema:
        """Proposes a schema (`drafting.draft_columns`), which no run accepts before approval.

        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [34, 51] * 30, "ward": ["north", "south"] * 30})
        >>> schema = Schema.draft(table).edited(age={"lower": 0, "upper": 110})
        >>> schema.unapproved
        {'age': ('kind', 'bins', 'missing', 'notation'), 'ward': ('kind', 'categories', 'missing', 'notation')}
        >>> schema.approve("age", "ward", frame=table).unapproved
        {}

        Raises:
            ConfigError, DataError: as `draft_columns`. SchemaError: every column is set aside.
        """
        from fedsyn.table.schema.drafting import draft_of

        schema: Schema = draft_of(cls, frame, bins, label, keep, **how).schema
        return schema

    def edited(self, **columns: dict[str, Any]) -> Schema:
        """Returns the schema with other settings, such as `age={"lower": 0}`.

        None takes a setting out. A new `kind` starts from nothing. Edges between new bounds stay
        (`bins_between`). What is set leaves the list under `drafted`. New bounds put the drafted `bins` there.

        Raises:
            SchemaError: no such column, or not a valid schema.
        """
        data = edited_data(self, columns)
        return Schema.from_dict(data).remarked(self._remarks, answered=columns)

    def approve(self, *names: str, frame: AnyTables | None = None, **how: Any) -> Schema:
        """Returns the schema with some columns approved as public.

        Args:
            names: the columns; without names, all of them.
            frame: the table, to count who holds a category; without it, what the draft marked as rare counts.
            how: see `How`: few, public, fold, private.

        Hints on the approved columns are answered by it; a warning repeats them once. Once nothing is left to approve,
        warnings name what was proposed and is not `stated`, too.

        Raises:
            SchemaError: no such column, or few rows hold a category and nobody said why it is public.
        """
        data, request = self.to_dict(), How(**how)
        table_findings = None if frame is None else findings(self, one_table(frame, self), request.few)
        names = names or tuple(self.unapproved)
        data["columns"] |= approved_columns(self, names, table_findings, request)
        schema = Schema.from_dict(data).remarked(self._remarks, answered=names)
        for sentence in [*standing(self.hints, names), *([] if schema.unapproved else not_stated(self.proposed))]:
            warnings.warn(sentence, stacklevel=2)
        return schema

    def adjusted(self, bins: int | None = None, label: str | None = None) -> Schema:
        """The schema with a run's `data.bins` and `data.label`, where it sets them.

        Args:
            bins: equal-width bins of every ordered column that names a number of bins. Explicit edges and
                `bins: values` are the schema author's own choice and stay.
            label: another label.

        Raises:
            SchemaError: a number of bins out of range, or no such column.
        """
        data = self.to_dict() | ({} if label is None else {"label": label})
        for name, column in self.columns.items():
            equal = isinstance(column, BinnedColumn) and isinstance(column.bins, int) and not column.values
            if bins is not None and equal:
                data["columns"][name]["bins"] = with_bins(bins, self.open.get(name))
        return self if bins is None and label is None else Schema.from_dict(data).remarked(self._remarks)

    @cached_property
    def compiled(self) -> CompiledRules:
        """Compiled constraints, without those on columns still to be found.

        Raises:
            SchemaError: constraints that cannot be, in one sentence.
        """
        return CompiledRules(self.constraints, self.columns, self.derived, self.open, self.persons)

    @cached_property
    def domain(self) -> Domain:
        """Attributes of the encoded table, with constraints' zeros and value groups."""
        if self._rows is not None:
            return record_domain(self._rows, self.columns)
        ordered = {n: c.size - len(c.sides) for n, c in self.columns.items() if isinstance(c, BinnedColumn)}
        sizes = tuple(column.size for column in self.columns.values())
        return Domain(tuple(self.columns), sizes, ordered, self.compiled.zeros, coarser=self.compiled.coarser)

    @cached_property
    def records(self) -> Schema:
        """Schema of a table with one record of each person (`fedsyn.table.schema.persons`).

        Where nobody has a second row, a record is the row.
        """
        if self.persons is None or self._rows is not None or self.persons.one_each:
            return self
        columns = record_columns(self)
        label = self.label if self.label in columns else None
        other = Schema(columns=columns, label=label, missing_values=self.missing_values, approved=self.approved)
        other._rows = self
        return other

    @property
    def rows(self) -> Schema:
        """Schema of the rows as files have them."""
        return self if self._rows is None else self._rows

    @property
    def of_persons(self) -> Persons | None:
        """The persons of a schema of records; None: it is of rows."""
        return None if self._rows is None else self._rows.persons

    def shaped(
        self,
        counts: Mapping[str, np.ndarray],
        lean: Mapping[str, float] | None = None,
        model: RowModel | None = None,
        nested: Mapping[tuple[str, str], np.ndarray] | None = None,
    ) -> Schema:
        """Returns this schema with other draws inside bins, and unchanged codes.

        Args:
            counts: ordered column -> (codes,) records: the released counts of the bins, which draws follow.
            lean: column -> where in the range of what the counts leave open, -1 to 1; else the middle. None: of a
                table by itself (`Inside`).
            model: released: numbers go by the rest of their rows as it has them.
            nested: pair of `compiled.nesting.pairs` -> (codes, codes) records of the released model.
        """
        shaped: dict[str, Any] = dict(self.columns)
        for name, column in self.columns.items():
            if isinstance(column, BinnedColumn):
                shaped[name] = column.shaped(counts[name], None if lean is None else lean.get(name, 0.0))
        other = self.model_copy(update={"columns": shaped})
        other.__dict__.pop("every_column", None)
        other.__dict__["compiled"] = self.compiled.drawing_from(shaped)
        other._links = None if model is None else Links(shaped, counts, model)
        groups_of = self.compiled.nesting.groups_of
        other._groups = {pair: groups_of(pair, table) for pair, table in (nested or {}).items()} or None
        if self._rows is not None:
            other._rows = self._rows.shaped(counts_of_rows(self, counts), lean)
        return other

    @property
    def dtype(self) -> np.dtype:
        """The smallest of uint8, uint16 and int32 that holds every code."""
        largest = max(self.domain.shape) - 1
        return np.dtype(np.uint8 if largest < 2**8 else np.uint16 if largest < 2**16 else np.int32)

    @cached_property
    def missing_text(self) -> frozenset[str]:
        """All text that stands for a missing value."""
        return MISSING_TEXT | frozenset(self.missing_values)

    def require_columns(self, names: Any, where: str = "the table") -> None:
        """Checks the column names of a table; further columns are ignored.

        Raises:
            DataError: columns of the schema are missing or doubled.
        """
        require_names(self.needed, [str(name) for name in names], where)

    def encoder(self) -> Encoder:
        """Returns an encoder of one table's blocks."""
        return Encoder(self.columns, self.missing_text, self.dtype, self.open, self.compiled.hidden)

    def block(self, frame: AnyFrame) -> Block:
        """Encodes a table as one block.

        Each row's codes depend on that row alone; see `fedsyn.table.schema.columns` for values outside the schema.

        Args:
            frame: a table with at least the schema's columns, in any order.

        Raises:
            DataError: a column is missing or doubled.
        """
        rows = as_frame(frame)
        self.require_columns(rows.columns)
        return self.encoder().block(rows)

    def encode(self, frame: AnyFrame) -> np.ndarray:
        """Returns (n, d) codes in `domain`'s order. Raises DataError as `block`."""
        return self.block(frame).codes

    def violations(self, frame: AnyTables) -> dict[str, int]:
        """Counts the rows that break each constraint whose columns are there.

        >>> import pandas as pd
        >>> schema = Schema.loads('''
        ... columns:
        ...   born: {kind: integer, lower: 1900, upper: 2030}
        ...   died: {kind: integer, lower: 1900, upper: 2030, missing: true}
        ... constraints: [born <= died]
        ... ''')
        >>> schema.violations(pd.DataFrame({"born": [1950, 1990, 1960], "died": [2001, 1980, None]}))
        {'born <= died': 1}

        Numbers are compared as they are, also beyond the bounds of the schema; categories as the schema groups them.
        Rows that no code takes are left out. What compares a row with the next one of its person is counted where the
        table says whose rows are, and in which order. Persons and their rows may be two tables, by their names.
        """
        table = one_table(frame, self)
        rows, kept = self.rows_of(table)
        return self.compiled.violations(rows, None if not self.compiled.across else along_of(self, table, rows, kept))

    def rows_of(self, rows: pd.DataFrame) -> tuple[DrawnRows, Flags | None]:
        """Returns rows as constraints see them; which of the table's, None: all."""
        rows = with_hidden(self, rows)
        known = {name: c for name, c in {**self.columns, **self.derived}.items() if name in rows.columns}
        return drawn_rows(known, self.missing_text, rows)

    def placed(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns (n, d) codes as tables have them: listed, and nested."""
        codes = spread(codes, self.columns, self.domain, None if self._links is None else self._links.odds, rng)
        return self.compiled.nesting.placed(codes, self._groups)

    def decode(
        self, codes: np.ndarray, rng: np.random.Generator, start: int = 0, people: People | None = None
    ) -> pd.DataFrame:
        """Turns codes back into a table.

        The constraints hold in every row whose codes are possible (`Domain.violated`).

        Args:
            codes: (n, d) codes.
            rng: draws a number's place in its bin, one number per row and ordered column; then what constraints
                ask for and what is made afresh.
            start: number of rows before these, for columns that number the rows.
            people: whose rows they are; None: each row is a person's own.

        Returns:
            A table with the schema's column names, order, categories, dtypes and units, for which `encode` gives
            back `codes`, but for the code of what is not listed (such a row gets another value of the column) and the
            group of a nested code (`placed`).

        Raises:
            ValueError: codes of another shape, or outside the domain.
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != len(self.columns):
            raise ValueError(f"codes of shape {codes.shape} do not fit a schema of {len(self.columns)} columns")
        if codes.size and ((codes < 0).any() or (codes >= np.array(self.domain.shape)).any()):
            raise ValueError("codes outside the domain of the schema")
        return self._table(codes, rng, start, people, dtypes=True)

    def cells(
        self, codes: np.ndarray, rng: np.random.Generator, start: int = 0, people: People | None = None
    ) -> pd.DataFrame:
        """Returns `decode`'s table for a CSV file, without the stored dtypes."""
        return self._table(codes, rng, start, people, dtypes=False)

    def _table(
        self, codes: np.ndarray, rng: np.random.Generator, start: int, people: People | None, *, dtypes: bool
    ) -> pd.DataFrame:
        (rows, kept), table = self.compiled.drawn(self.placed(codes, rng), rng, self._links, people), {}
        people, size = None if people is None else people.kept(kept), len(codes) if kept is None else int(kept.sum())
        for name in self.order:
            column: Any = self.every_column[name]
            if name in self.aside:
                whose = people is not None and self.persons is not None and name == self.persons.id
                table[name] = people.named(column, rng) if whose and people else column.fresh(start, size, rng)
            elif name in rows.drawn:
                column_codes = rows.codes.get(name, np.zeros(size, dtype=np.intp))  # a computed one has none
                table[name] = column.series_of(*rows.drawn[name], column_codes, dtypes=dtypes)
            else:
                table[name] = (column.decode if dtypes else column.cells)(rows.codes[name])
            if people is not None and name not in self.aside:
                table[name] = people.blanked(name, table[name])
        return pd.DataFrame(table)


#: Keys of a schema in YAML.
_OWN = ("aside", "table", "derived", "open")
_KEYS = [name for name in Schema.model_fields if name not in _OWN]
