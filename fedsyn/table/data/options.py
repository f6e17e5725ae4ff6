"""Options with which a person describes a file.

They are `data.options` of a configuration, and the options of `fedsyn schema draft`.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from fedsyn.errors import ConfigError

#: Separators that are looked for where none is named. The first one wins where nothing tells them apart.
SEPARATORS = (",", ";", "\t", "|")
#: Options by which a text file is written, too.
_WRITTEN = ("separator", "encoding", "decimal")
# Encodings in which a row could change what others hold: shifts last beyond a line, or the text is no row of letters.
_WITH_STATE = ("iso2022", "hz", "utf-7", "punycode", "idna", "unicode-escape", "raw-unicode-escape")
_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}


class FileOptions(BaseModel):
    """Options that say how a file is read.

    Options that are left out are found in the file, as `fedsyn.table.data.layout` describes, and a
    message says so.

    >>> FileOptions.of({"separator": "tab"}).separator
    '\\t'

    Attributes:
        separator: one character between the cells of a text file; also `tab`, `comma`, `semicolon`, `pipe`.
        encoding: of a text file, by the name that Python has for it: `utf-8`, `cp1252`, `utf-16`, ...
        decimal: the decimal mark of its numeric columns, `.` (the default) or `,`.
        sheet: of an Excel file, by name or counted from 1; the first one where it is left out.
        skip_rows: number of lines, or rows of a sheet, above the names of the columns, as an editor counts them: empty
            ones count.
        header: number of rows that name the columns, 1 where it is left out. Names are joined by a space, and what
            stands above several columns, in a merged cell, goes with each. 0: no row does, and the columns are called
            `column_1`, `column_2` and so on.
        skip_footer: number of lines, or rows of a sheet, at the end that are no rows of the table, such as totals and
            notes; counted from the last one that is not empty, empty ones between included.
        rename: name of a column in a file -> its name in the schema, `{Age: age}`, wherever a file has the former.
        key_file: file with the key of a sealed table (`fedsyn node seal`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    separator: StrictStr | None = None
    encoding: StrictStr | None = None
    decimal: StrictStr | None = None
    sheet: StrictStr | StrictInt | None = None
    skip_rows: StrictInt | None = Field(default=None, ge=0, le=1000)
    header: StrictInt | None = Field(default=None, ge=0, le=5)
    skip_footer: StrictInt | None = Field(default=None, ge=0, le=1000)
    rename: tuple[tuple[StrictStr, StrictStr], ...] | None = None
    key_file: StrictStr | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any] | FileOptions | None, where: str = "data.options") -> FileOptions:
        """Checked options.

        Args:
            options: of a configuration, or checked ones, or None.
            where: what to call them in a message.

        Raises:
            ConfigError: an unknown option, or a value that cannot be used.
        """
        if isinstance(options, FileOptions):
            return options
        try:
            return cls(**(options or {}))
        except ValidationError as error:
            from fedsyn.config import explain  # which imports what no reader needs

            raise ConfigError(explain(error, cls, where)) from None

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = value if value is None else _NAMES.get(value.lower(), value)
        if value is not None and (len(value) != 1 or value in '"\r\n'):
            raise ValueError("a separator is one character, such as ',' ';' '|' or 'tab'")
        return value

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                io.TextIOWrapper(io.BytesIO(), encoding=value)  # refuses what Python calls a codec and is none of text
                value = codecs.lookup(value).name
        except (LookupError, ValueError):
            raise ValueError(
                "an encoding is a name that Python knows, such as utf-8, cp1252, latin-1 or utf-16"
            ) from None
        if value is not None and value.startswith(_WITH_STATE):
            raise ValueError(
                f"{value} is an encoding in which a line decides how later ones are read; save it as UTF-8"
            )
        return value

    @field_validator("decimal")
    @classmethod
    def _known_mark(cls, value: str | None) -> str | None:
        if value not in (None, ".", ","):
            raise ValueError("a decimal mark is '.' or ','")
        return value

    @field_validator("rename", mode="before")
    @classmethod
    def _old_and_new(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = tuple(value.items())
        pairs = value is None or (
            isinstance(value, tuple)
            and all(len(pair) == 2 and all(isinstance(name, str) and name.strip() for name in pair) for pair in value)
        )
        if not pairs:
            raise ValueError("expected a mapping of names in a file to names in the schema, such as {Age: age}")
        return value or None

    @model_validator(mode="after")
    def _told_apart(self) -> FileOptions:
        if self.separator is not None and self.separator == self.decimal:
            raise ValueError("separator and decimal cannot be the same character")
        return self

    def renamed(self, names: Sequence[str]) -> list[str]:
        """Returns names of a file's columns as the schema has them."""
        new = dict(self.rename or ())
        return [new.get(name, name) for name in names]

    def said(self) -> dict[str, Any]:
        """The options that are not left out, as a configuration has them."""
        named = {mark: name for name, mark in _NAMES.items() if name == "tab"}
        data = self.model_dump(exclude_none=True)
        data |= {"rename": dict(self.rename)} if self.rename else {}
        return data | ({"separator": named.get(data["separator"], data["separator"])} if "separator" in data else {})


def written_as(options: Mapping[str, Any], schema: Any) -> FileOptions:
    """Returns the layout in which a run writes a CSV file.

    It is that of the run's input, by what the configuration says of the input.

    In UTF-8 if the encoding lacks a letter of the schema.

    Args:
        options: `data.options` of the run. A run fills in what the first line of its input shows.
        schema: of the table.

    Raises:
        ConfigError: a value that cannot be used.
    """
    chosen = FileOptions.of({key: options[key] for key in _WRITTEN if key in options})
    try:
        json.dumps(schema.to_dict(), ensure_ascii=False, default=str).encode(chosen.encoding or "utf-8")
    except UnicodeEncodeError:
        return chosen.model_copy(update={"encoding": None})
    return chosen


def shown_layout(options: Mapping[str, Any], schema: Any) -> str:
    """Returns the layout of a run's CSV file, in words.

    The text is empty for commas, UTF-8 and decimal points.
    """
    written, encoding = written_as(options, schema), options.get("encoding")
    words = [f"{shown(written.separator)} between the cells"] if written.separator not in (None, ",") else []
    if written.encoding not in (None, "utf-8"):
        words.append(written.encoding.upper())
    elif encoding and written.encoding is None:
        words.append(f"UTF-8 (letters of the schema are not in {encoding})")
    return ", ".join([*words, *(["decimal commas"] if written.decimal == "," else [])])


def shown(separator: str) -> str:
    """A separator as it is said: `';'`, `tab`."""
    return "tab" if separator == "\t" else f"'{separator}'"
