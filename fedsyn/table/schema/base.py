"""What every column of a schema has, whatever its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr

if TYPE_CHECKING:
    from fedsyn.table.schema.profile import Profile

Value = StrictBool | StrictInt | StrictFloat | StrictStr

#: Keys that describe a column without deciding how it is encoded: they are not part of a schema's hash.
REMARKS = ("drafted", "approved", "public", "stored")


class Reading(NamedTuple):
    """How a kind of column reads every text of a column.

    Attributes:
        keys: of the kind, bounds included, as a schema has them.
        why: the kind is proposed, in words, without a value of a row.
    """

    keys: dict[str, Any]
    why: str


class ColumnBase(BaseModel):
    """A column.

    Attributes:
        kind: its name in YAML.
        missing: whether missing values are a category of their own.
        drafted: what was read from the data rather than known to be public.
        approved: whether a person has accepted what was drafted as public.
        public: why the values are public, in words.
        stored: the dtype in which pandas had the column ("int32", "Int64", "category", "datetime64[us, UTC]"), and in
            which it comes back; None: the kind's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    missing: bool = False
    drafted: tuple[str, ...] = ()
    approved: bool = False
    public: str | None = None
    stored: str | None = None

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        """Return how a column of this kind reads every text of a column (at least one); None if it does not."""
        return None

    def __eq__(self, other: object) -> bool:
        # By fields: pydantic compares what properties have cached as well, and arrays have no one truth.
        fields = type(self).model_fields
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in fields)

    __hash__ = None  # type: ignore[assignment]
