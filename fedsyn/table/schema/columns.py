"""Categorical columns.

The module holds a column's public values, and the encoding of its values as codes 0 .. size-1.

Codes of a categorical column: the categories in the order given, then `other` if it is not one of them, then
the missing category. Codes of an ordered column (`fedsyn.table.schema.binned`): the bins from lowest to highest, then
the missing category.

What happens to a value outside the schema (the same for every row, and never an exception):

| column      | value                               | goes to                                                     |
|-------------|-------------------------------------|-------------------------------------------------------------|
| ordered     | below, above, infinite              | the nearest (first, last) bin                               |
| categorical | not listed, the column has `other`  | `other`                                                     |
| any         | not listed; no number; of another   | the code of what is not listed, with `unlisted: true`; else |
|             | kind; missing, `missing: false`     | missing, with `missing: true`; else the row is left out     |

A row that is left out counts nowhere, as if its holder did not have it. So no cell stops a holder, and none becomes
another value.
"""

from __future__ import annotations

import math
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from fedsyn.lazy import pc, pd
from fedsyn.table.schema.binned import BinnedColumn, NumericColumn, as_stored
from fedsyn.table.schema.column_base import ASIDE, LEFT_OUT, REMARKS, ColumnBase, Reading, Value
from fedsyn.table.schema.ordered import (
    DateColumn,
    DatetimeColumn,
    DecimalColumn,
    DurationColumn,
    IntegerColumn,
    TimeColumn,
)
from fedsyn.table.schema.values import (
    MISSING_TEXT,
    is_missing,
    key,
    keys,
    mostly_numbers,
    same,
    text_dtype,
    written,
)
from fedsyn.table.schema.vocabulary import known_words, reading_in_order, word_lists, words_of

if TYPE_CHECKING:
    from fedsyn.table.schema.profile import Profile


class CategoricalColumn(ColumnBase):
    """A column that holds one of a list of values.

    Attributes:
        categories: the values (text, integers, floats, booleans), kept as they are; decoding gives them back.
        other: where unknown values go. Text or number: that category, appended if it is not among
            `categories`.
            true: "other". false: no such category, see the module's table. Left out: "other" (or the category
            that is already called so, whatever its case) where the categories are text, none where they are
            numbers or booleans, or with `unlisted: true`.
        groups: category -> the raw values that mean it; such values are encoded as the category and come back
            as the category, so a grouping is for good.
        ordered: whether the categories stand in their natural order; pandas gets an ordered category back.
        unordered: categories without a place in the order ("prefer not to say"); an added `other` has none either.
    """

    kind: Literal["categorical"] = "categorical"
    categories: tuple[Value, ...] = Field(min_length=1)
    other: Value | None = None
    groups: dict[str, tuple[Value, ...]] = Field(default_factory=dict)
    ordered: bool = False
    unordered: tuple[Value, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> CategoricalColumn:
        if self.unlisted and self.other_value is not None:
            raise ValueError("unlisted: 'other' takes values that are not listed; leave one of the two out")
        texts = [written(value) for value in self.values]
        if len(set(texts)) != len(texts) or len(set(self.values)) != len(texts):
            raise ValueError("categories must be distinct, also when written as text")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            raise ValueError("categories must be finite; for missing values say 'missing: true'")
        for name in self.groups:
            if name not in self.categories:
                raise ValueError(f"the group '{name}' is not one of the categories")
        for value in self.unordered:
            if not self.ordered or value not in self.categories:
                raise ValueError(f"unordered: '{value}' is not one of the categories of an ordered column")
        members = [written(value) for group in self.groups.values() for value in group]
        if len(set(members)) != len(members):
            raise ValueError("a value stands in two groups")
        return self

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        return reading_in_order(profile)

    @cached_property
    def other_value(self) -> Value | None:
        """The category that takes unknown values, or None."""
        if self.other is None:
            if self.unlisted or not any(isinstance(value, str) for value in self.categories):
                return None
            named = [v for v in self.categories if isinstance(v, str) and v.casefold() == "other"]
            return named[0] if named else "other"
        if isinstance(self.other, bool):
            return "other" if self.other else None
        return self.other

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The value of each code, without the missing category: `categories` and `other`."""
        other = self.other_value
        extra = other is not None and not any(same(other, value) for value in self.categories)
        return (*self.categories, other) if extra and other is not None else self.categories

    @property
    def listed_codes(self) -> list[int]:
        """Codes of `categories`, without an added `other`."""
        return [code for code, value in enumerate(self.values) if value in self.categories]

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.values) + len(self.sides)

    @cached_property
    def unplaced(self) -> int:
        """Code of a value that is not listed, or `LEFT_OUT`."""
        other = self.other_value
        if other is not None:
            return next(code for code, value in enumerate(self.values) if same(other, value))
        if self.unlisted:
            return self.size - 1
        return len(self.values) if self.missing else LEFT_OUT

    @cached_property
    def _codes(self) -> dict[tuple[str, Any], int]:
        codes = {key(value): code for code, value in enumerate(self.values)}
        for name, members in self.groups.items():
            for value in members:
                codes.setdefault(key(value), codes["text", name])
        return codes

    @cached_property
    def _folded(self) -> dict[str, int]:
        """Codes by text without case, where one code alone has it."""
        folded: dict[str, int] = {}
        for (sort, value), code in self._codes.items():
            text = str(value).strip().casefold() if sort == "text" else ""
            if text:
                folded[text] = code if folded.get(text, code) == code else LEFT_OUT
        return {text: code for text, code in folded.items() if code != LEFT_OUT}

    def listed(self, value: Any) -> int | None:
        """Returns the code of a listed value, however written, or None."""
        for form in keys(value):
            if form in self._codes:
                return self._codes[form]
        return self._folded.get(value.strip().casefold()) if isinstance(value, str) else None

    def code_of(self, value: Any, missing_text: frozenset[str] = MISSING_TEXT) -> int:
        """The code of one value of any type, or `LEFT_OUT`."""
        code = None if is_missing(value) else self.listed(value)
        if code is not None:
            return code
        return len(self.values) if self.missing and is_missing(value, missing_text) else self.unplaced

    def named(self, value: Any) -> int | None:
        """Returns the code of one of the column's own values.

        The value is as a schema or a person writes it. None if there is no such value.
        """
        codes = {key(known): code for code, known in enumerate(self.values)}
        return next((codes[form] for form in keys(value) if form in codes), None)

    def word_of(self, value: Any) -> str | None:
        """Returns a value's text for categories that nobody knows yet.

        None if the value is missing.
        """
        if is_missing(value):
            return None
        return written(value).strip() or None

    def lists(self, value: Any) -> bool:
        """Returns whether a value is one of the categories.

        Members of a group count, too.
        """
        return self.listed(value) is not None

    @property
    def lists_numbers(self) -> bool:
        """Returns whether the categories are text that is mostly numbers.

        Columns of codes return False.
        """
        return mostly_numbers([str(value) for value in self.categories if isinstance(value, str)])

    @cached_property
    def mixed(self) -> bool:
        """Returns whether the categories are of several types.

        No dtype is of several types.
        """
        texts = {isinstance(value, str) for value in self.values}
        flags = {isinstance(value, bool) for value in self.values}
        return len(texts) > 1 or len(flags) > 1

    def cells(self, codes: np.ndarray) -> pd.Series:
        """Returns the values of (n,) codes.

        They have the dtype of the categories, nullable where there is a missing category.
        """
        table: list[Any] = [*self.values, None] if self.sides else list(self.values)
        dtype = "float64"
        if self.mixed:
            dtype = "object"
        elif isinstance(self.values[0], str):
            dtype = text_dtype()
        elif isinstance(self.values[0], bool):
            dtype = "boolean" if self.sides else "bool"
        elif all(isinstance(value, int) for value in self.values):
            dtype = "Int64" if self.sides else "int64"
        values = pd.Series(pd.array(table, dtype=dtype), dtype=dtype)
        return values.take(np.minimum(np.asarray(codes, dtype=np.intp), len(table) - 1)).reset_index(drop=True)

    def decode(self, codes: np.ndarray) -> pd.Series:
        """Returns the values of (n,) codes in the dtype as it came.

        Without such a dtype they have that of `cells`.
        """
        if self.stored == "category":
            return self.cells(codes).astype(pd.CategoricalDtype(list(self.values), ordered=self.ordered))
        return as_stored(self.cells(codes), self.stored)

    def labels(self) -> list[str]:
        """Each value in words; not the missing category."""
        return [written(value) for value in self.values]


@cache
def _yes_and_no() -> dict[str, int]:
    """Word without case -> 0 for no, 1 for yes."""
    pairs = [*word_lists()["no_and_yes"], ("0", "1")]
    return {word.casefold(): code for pair in pairs for code, word in enumerate(pair)}


def no_or_yes(word: str) -> int | None:
    """Returns 0 for a no, and 1 for a yes.

    None of others.
    """
    return _yes_and_no().get(word.strip().casefold())


class BooleanColumn(CategoricalColumn):
    """A column of yes and no.

    Attributes:
        texts: how no and yes are written, in this order, where they are not false and true: [nein, ja]. They are read
            however people write them: yes, Y, 1, TRUE, oui, ...
    """

    kind: Literal["boolean"] = "boolean"  # type: ignore[assignment]
    categories: tuple[Value, ...] = (False, True)
    other: Value | None = False
    texts: tuple[str, str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _categories_are_texts(cls, data: Any) -> Any:
        texts = data.get("texts") if isinstance(data, dict) else None
        if isinstance(data, dict) and data.get("categories") not in (None, [False, True], (False, True), texts):
            raise ValueError("a boolean has no categories of its own; 'texts: [no, yes]' says how they are written")
        return data if texts is None else {**data, "categories": texts}

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        if profile.values != 2:
            return None
        by_case = {text.casefold(): text for text in profile.texts.to_pylist()}
        texts = next(
            ((by_case[no], by_case[yes]) for no, yes in word_lists()["no_and_yes"] if {no, yes} == set(by_case)), None
        )
        if texts is None:
            return None
        return Reading({} if texts == ("False", "True") else {"texts": texts}, f"only {texts[0]} and {texts[1]}")

    def listed(self, value: Any) -> int | None:
        code = super().listed(value)
        if code is None and not is_missing(value):
            code = no_or_yes(written(value))
        return code

    def named(self, value: Any) -> int | None:
        return self.listed(value)


class CodeColumn(CategoricalColumn):
    """Column of codes, kept as they stand.

    Leading zeros stay, and there is no arithmetic (ZIP codes, ICD codes, ward numbers).

    Attributes:
        width: digits that every code has; whole numbers (a file's reader lost the zeros) are padded to it.
        leading: how many first characters of a code count: 3 makes I10 of I10.00.
    """

    kind: Literal["code"] = "code"  # type: ignore[assignment]
    width: int | None = Field(default=None, ge=1, le=64)
    leading: int | None = Field(default=None, ge=1, le=64)

    @model_validator(mode="after")
    def _codes_are_text(self) -> CodeColumn:
        if not all(isinstance(value, str) for value in self.categories):
            raise ValueError('codes are text; put quotes around those that look like numbers ("01007")')
        if self.leading is not None and any(len(str(value)) > self.leading for value in self.categories):
            raise ValueError(f"leading: {self.leading} characters count, and a category has more")
        return self

    @property
    def lists_numbers(self) -> bool:
        return False

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        if not profile.all_match(r"^\d{1,18}$"):
            return None
        if profile.any_matches(r"^0\d"):
            return Reading({}, "text of digits that starts with 0")
        widths = pc.min_max(pc.utf8_length(profile.tried))
        one_width = widths["min"].as_py() == widths["max"].as_py() >= 3
        named = known_words("codes") & set(words_of(profile.name))
        return Reading({}, "named like a code") if one_width and named else None

    def _counted(self, value: Any, missing_text: frozenset[str] = MISSING_TEXT) -> Any:
        """Returns the part of a value that counts.

        It is padded to the width and cut to the leading characters.
        """
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        text = f"{int(value):0{self.width}d}" if whole and self.width is not None else value
        if self.leading is None or is_missing(value, missing_text):
            return text
        cut = written(text).strip()
        return cut if cut == self.other_value else cut[: self.leading]

    def code_of(self, value: Any, missing_text: frozenset[str] = MISSING_TEXT) -> int:
        return super().code_of(self._counted(value, missing_text), missing_text)

    def lists(self, value: Any) -> bool:
        return super().lists(self._counted(value))

    def named(self, value: Any) -> int | None:
        return super().named(self._counted(value))

    def word_of(self, value: Any) -> str | None:
        return super().word_of(self._counted(value))


#: Every kind of modelled column by its name. Each class says how it is guessed, read, written and compared. A draft
#: proposes the first one that reads a column's text.
KINDS: dict[str, type[CategoricalColumn] | type[BinnedColumn]] = {
    "categorical": CategoricalColumn,
    "boolean": BooleanColumn,
    "code": CodeColumn,
    "numeric": NumericColumn,
    "integer": IntegerColumn,
    "decimal": DecimalColumn,
    "date": DateColumn,
    "time": TimeColumn,
    "datetime": DatetimeColumn,
    "duration": DurationColumn,
}


class _OfKind:
    """Validates a column by the class that `KINDS` has for its `kind`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = {name: handler.generate_schema(kind) for name, kind in KINDS.items()}
        return core_schema.tagged_union_schema(kinds, discriminator="kind")


Column = Annotated[CategoricalColumn | BinnedColumn, _OfKind()]


def column_dict(column: Any) -> dict[str, Any]:
    """Returns a column as `Schema.from_dict` takes it.

    Settings that have their default value are left out.
    """
    data = column.model_dump(mode="json", exclude_defaults=True)
    remarks = {remark: data.pop(remark) for remark in REMARKS if remark in data}
    remarks |= {"approved": column.approved} if column.drafted and column.kind not in ASIDE else {}
    data = {"kind": column.kind, **data}
    if isinstance(column, BooleanColumn):
        data.pop("categories", None)
    if isinstance(column, BinnedColumn):
        if isinstance(column.bins, tuple) or column.values:
            data.pop("lower", None)
            data.pop("upper", None)
        if isinstance(column, IntegerColumn) or (isinstance(column, NumericColumn) and column.whole):
            for key in ("lower", "upper"):
                if key in data:
                    data[key] = int(data[key])
            for key in ("bins", "atoms", "values"):
                if isinstance(data.get(key), list):
                    data[key] = [int(edge) for edge in data[key]]
        if float(step := data.get("multiple_of", 0.5)).is_integer():
            data["multiple_of"] = int(step)
    return {**data, **remarks}
