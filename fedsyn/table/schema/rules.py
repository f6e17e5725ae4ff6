"""Public constraints as a schema states them.

They stand under `constraints`, each as one line or as a small mapping.

    constraints:
      - admitted <= discharged                       # also <, >=, >; a missing side satisfies it
      - age <= 120                                   # the same with a fixed bound
      - discharged <= next.admitted                  # with the next row of the same person
      - total = a + b                                # also minus; `total` is computed, not modelled
      - {determines: ward, column: building, map: {A: North, B: South}}      # `building` is computed
      - {impossible: {sex: male, pregnant: "yes"}}   # values, lists, "< 16", "16..45", null for missing
      - {when: {ward: children}, then: {age: "<= 17"}}
      - {dropout: [visit_1, visit_2, visit_3]}       # where one is missing, so are all later ones
      - {missing: ended, where: {status: active}}    # missing there, and nowhere else
      - {zero: [claims, amount]}                     # zero in one where it is zero in the others
      - {nested: [school, district]}                 # a school lies in one district; which, the run finds

Names that hold an operator or begin with `next.` stand in backticks. What constraints mean is compiled in
`fedsyn.table.schema.compiled`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsyn.errors import nearest
from fedsyn.table.schema.column_base import Value

Wanted = Value | None | tuple[Value | None, ...]
#: Stands before the name of a column in the next row of a person.
NEXT = "next."
_OPERATOR = re.compile(r"\s*(<=|>=|->|<|>|=)\s*")
_TURNED = str.maketrans("<>", "><")
_FORMS = (
    "'a <= b', 'a <= next.b', 'total = a + b', {determines, column, map}, {impossible}, {when, then}, {dropout}, "
    "{missing, where}, {zero} or {nested}"
)


class Rule(BaseModel):
    """A constraint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def text(self) -> str:
        """The constraint in one line."""
        raise NotImplementedError

    @property
    def computed(self) -> str | None:
        """The column that the constraint computes, if it is of that sort."""
        return None

    def data(self) -> Any:
        """Returns the rule as it stands in a schema."""
        return self.model_dump(mode="json")


class Line(Rule):
    """Constraint that stands as one line."""

    def data(self) -> Any:
        return self.text


class Sides(Line):
    """Two sides that compare; a missing one satisfies it.

    Attributes:
        left: a column. Beside the next row it may be one that another constraint computes as a sum.
        op: '<=', '<', '>=' or '>'.
        right: a column; inside a row also a value of the left one's kind, which is a fixed bound.
    """

    left: str
    op: Literal["<=", "<", ">=", ">"]
    right: str


class Comparison(Sides):
    """Two columns, or a column and a bound, that compare."""

    @property
    def text(self) -> str:
        return f"{_quoted(self.left)} {self.op} {_quoted(self.right)}"


class Across(Sides):
    """Columns of a row and of the next one that compare."""

    @property
    def text(self) -> str:
        return f"{_quoted(self.left)} {self.op} {NEXT}{_quoted(self.right)}"


class SumRule(Line):
    """Column that is the sum of others.

    Some of them may have a minus. It is missing where one of them is.

    Attributes:
        column: what is computed.
        terms: (1 or -1, column) in the order written.
    """

    column: str
    terms: tuple[tuple[Literal[1, -1], str], ...] = Field(min_length=1)

    @property
    def text(self) -> str:
        parts = [f"{'+' if sign > 0 else '-'} {_quoted(name)}" for sign, name in self.terms]
        return f"{_quoted(self.column)} = {' '.join(parts).removeprefix('+ ')}"

    @property
    def computed(self) -> str:
        return self.column


class Determined(Rule):
    """A column whose value follows from another one's.

    Attributes:
        determines: the column that decides.
        column: what is computed.
        map: value, or condition on numbers, of the first -> value of the second. What is in no entry goes to `other`,
            or is missing.
    """

    determines: str
    column: str
    map: dict[Value, Value | None]

    @property
    def text(self) -> str:
        return f"{_quoted(self.determines)} -> {_quoted(self.column)}"

    @property
    def computed(self) -> str:
        return self.column


class Impossible(Rule):
    """A combination that no row has.

    Attributes:
        impossible: column -> value, list of values, comparison or range; all of them together are impossible.
    """

    impossible: dict[str, Wanted] = Field(min_length=1)

    @property
    def text(self) -> str:
        return f"impossible: {_listed(self.impossible)}"


class When(Rule):
    """Constraint that holds under a condition.

    Attributes:
        when: column -> condition; all of them together.
        then: column -> condition; a missing value satisfies it.
    """

    when: dict[str, Wanted] = Field(min_length=1)
    then: dict[str, Wanted] = Field(min_length=1)

    @property
    def text(self) -> str:
        return f"when {_listed(self.when)}: {_listed(self.then)}"


class Dropout(Rule):
    """Columns of which all are missing after the first that is.

    Attributes:
        dropout: the columns in their order, such as a measurement at each visit. The first ones may always be there.
    """

    dropout: tuple[str, ...] = Field(min_length=2)

    @property
    def text(self) -> str:
        return f"dropout: {', '.join(self.dropout)}"


class MissingWhere(Rule):
    """A column that is missing under a condition, and only there.

    Attributes:
        missing: the column.
        where: column -> condition; all of them together. A missing value meets none that does not list null.
    """

    missing: str
    where: dict[str, Wanted] = Field(min_length=1)

    @property
    def text(self) -> str:
        return f"{self.missing} is missing exactly where {_listed(self.where)}"


class ZeroTogether(Rule):
    """Columns of numbers of which all are zero, or none.

    Attributes:
        zero: the columns; a missing side satisfies it.
    """

    zero: tuple[str, ...] = Field(min_length=2)

    @property
    def text(self) -> str:
        return f"zero together: {', '.join(self.zero)}"


class Nested(Rule):
    """Codes that lie in one group each, which nobody writes down.

    A run finds the group of each code in its released model: it is the likeliest one (`fedsyn.table.schema.nested`).

    Attributes:
        nested: columns of categories, each in the next one: school, district, state.
    """

    nested: tuple[str, ...] = Field(min_length=2)

    @property
    def text(self) -> str:
        return f"nested: {' in '.join(self.nested)}"


AnyRule = (
    Comparison | Across | SumRule | Determined | Impossible | When | Dropout | MissingWhere | ZeroTogether | Nested
)
_KEYS: dict[str, type[AnyRule]] = {
    "determines": Determined,
    "impossible": Impossible,
    "when": When,
    "dropout": Dropout,
    "missing": MissingWhere,
    "zero": ZeroTogether,
    "nested": Nested,
}


def parse_rules(data: Any) -> tuple[AnyRule, ...]:
    """The constraints of a schema from plain data.

    Raises:
        ValueError: one sentence that names the constraint and says what it may be.
    """
    if isinstance(data, str | Mapping) or not isinstance(data, Iterable):
        raise ValueError("constraints: expected a list")
    return tuple(_parsed(item, number) for number, item in enumerate(data, start=1))


def _parsed(item: Any, number: int) -> AnyRule:
    where = f"constraint {number}"
    if isinstance(item, Rule):
        return item  # type: ignore[return-value]
    if isinstance(item, str):
        return _parsed_line(item.strip(), f"{where} ('{item.strip()}')")
    if isinstance(item, Mapping) and len(item) == 1 and "determines" not in item and not set(item) & set(_KEYS):
        raise ValueError(f"{where}: a constraint is {_FORMS}; put quotes around a line that holds ': '")
    kinds = [kind for key, kind in _KEYS.items() if isinstance(item, Mapping) and key in item]
    if len(kinds) != 1:
        raise ValueError(f"{where}: a constraint is {_FORMS}")
    kind = kinds[0]
    try:
        rule = kind.model_validate({key: _listable(value) for key, value in item.items()})
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            hint = nearest(key, kind.model_fields) or f" (allowed: {', '.join(kind.model_fields)})"
            raise ValueError(f"{where}: unknown key '{key}'{hint}") from None
        if first["type"] == "missing":
            raise ValueError(f"{where}: '{key}' is missing beside '{next(iter(item))}'") from None
        raise ValueError(f"{where}: {key} must be {_expected(key)}") from None

    names = columns_of(rule) if isinstance(rule, Dropout | MissingWhere | ZeroTogether | Nested) else []
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: it names '{name}' twice")
    return rule


def _expected(key: str) -> str:
    if key in ("determines", "column", "missing"):
        return "a column's name"
    if key in ("dropout", "zero", "nested"):
        return "a list of at least two columns"
    return "a mapping of at least one entry, with single values or lists of them"


def columns_of(rule: AnyRule) -> list[str]:
    """Names of a constraint's columns, in order; a comparison's bound, too."""
    match rule:
        case Comparison() | Across():
            return [rule.left, rule.right]
        case SumRule():
            return [*(name for _, name in rule.terms), rule.column]
        case Determined():
            return [rule.determines, rule.column]
        case Dropout() | ZeroTogether() | Nested():
            return list(listed_columns(rule))
        case MissingWhere():
            return [*rule.where, rule.missing]
    return list(rule.impossible) if isinstance(rule, Impossible) else [*rule.when, *rule.then]


def listed_columns(rule: Dropout | ZeroTogether | Nested) -> tuple[str, ...]:
    """The columns of a constraint that is a list of them."""
    if isinstance(rule, Dropout):
        return rule.dropout
    return rule.zero if isinstance(rule, ZeroTogether) else rule.nested


def of_known(rules: Iterable[AnyRule], known: Mapping[str, Collection[Any]]) -> Iterator[AnyRule]:
    """Yields the rules without categories that were not found.

    No row of the synthetic table can have such a category.

    Args:
        rules: of a schema with open columns.
        known: column -> the categories that were found, as text, of columns whose categories were private.
    """
    for rule in rules:
        if isinstance(rule, Determined) and rule.determines in known:
            entries = {key: value for key, value in rule.map.items() if str(key) in known[rule.determines]}
            yield rule.model_copy(update={"map": entries})
        elif isinstance(rule, Impossible | When | MissingWhere):
            key = next(iter(_parts(rule)))
            never = [name for name, wanted in getattr(rule, key).items() if _of_known(name, wanted, known) == ()]
            changed = {field: {n: _of_known(n, w, known) for n, w in value} for field, value in _parts(rule).items()}
            if not never:
                yield rule.model_copy(update=changed)
            elif isinstance(rule, MissingWhere):  # no row meets the condition, so it is never missing
                yield Impossible(impossible={rule.missing: None})
        else:
            yield rule


def named_categories(rules: Iterable[AnyRule]) -> dict[str, list[str]]:
    """Column -> what rules name of its values, as text."""
    named: dict[str, list[str]] = {}
    for rule in rules:
        if isinstance(rule, Determined):
            named.setdefault(rule.determines, []).extend(map(str, rule.map))
        elif isinstance(rule, Impossible | When | MissingWhere):
            for name, wanted in itertools.chain.from_iterable(_parts(rule).values()):
                items = wanted if isinstance(wanted, tuple) else (wanted,)
                named.setdefault(name, []).extend(str(item) for item in items if item is not None)
    return named


def _parts(rule: Impossible | When | MissingWhere) -> dict[str, Any]:
    names = ("impossible",) if isinstance(rule, Impossible) else ("when", "then")
    names = ("where",) if isinstance(rule, MissingWhere) else names
    return {name: getattr(rule, name).items() for name in names}


def _of_known(name: str, wanted: Any, known: Mapping[str, Collection[Any]]) -> Any:
    if name not in known:
        return wanted
    items = wanted if isinstance(wanted, tuple) else (wanted,)
    return tuple(item for item in items if item is None or str(item) in known[name])


def _listable(value: Any) -> Any:
    """Lists as tuples, so that constraints can be compared and kept."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, Mapping):
        return value
    return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}


def _parsed_line(line: str, where: str) -> AnyRule:
    parts = _split(_OPERATOR, line)
    if len(parts) != 3 or not parts[0] or not parts[2]:
        raise ValueError(f"{where}: a constraint is {_FORMS}; put backticks around names with an operator")
    left, op, right = parts
    if op == "->":
        raise ValueError(
            f"{where}: what '{_name(left)}' says of '{_name(right)}' must be public: write "
            f"{{determines: {_name(left)}, column: {_name(right)}, map: {{value: value, ...}}}}"
        )
    if left.startswith(NEXT) or right.startswith(NEXT):
        return _across(left, op, right, where)
    if op != "=":
        return Comparison(left=_name(left), op=op, right=_name(right))  # type: ignore[arg-type]
    pieces = _split(re.compile(r"\s+([+-])\s+"), right)
    signs = [1, *(1 if sign == "+" else -1 for sign in pieces[1::2])]
    terms = [(sign, _name(name)) for sign, name in zip(signs, pieces[::2], strict=True)]
    if any(not name for _, name in terms):
        raise ValueError(f"{where}: expected 'total = a + b', with spaces around + and -")
    return SumRule(column=_name(left), terms=tuple(terms))  # type: ignore[arg-type]


def _across(left: str, op: str, right: str, where: str) -> Across:
    """Reads a comparison with the next row, which goes right."""
    if op == "=" or left.startswith(NEXT) == right.startswith(NEXT):
        raise ValueError(
            f"{where}: '{NEXT}' stands before one column of a comparison, as in 'a <= {NEXT}b' (also <, >=, >); a "
            "column that is the same in all rows of a person stands under persons.constant"
        )
    if left.startswith(NEXT):
        left, op, right = right, op.translate(_TURNED), left
    return Across(left=_name(left), op=op, right=_name(right.removeprefix(NEXT)))  # type: ignore[arg-type]


def _split(pattern: re.Pattern[str], text: str) -> list[str]:
    """`pattern.split` outside of backticks."""
    out, at = [], 0
    quoted = [(m.start(), m.end()) for m in re.finditer(r"`[^`]*`", text)]
    for match in pattern.finditer(text):
        if match.start() < at or any(start <= match.start(1) < end for start, end in quoted):
            continue
        out += [text[at : match.start()], match[1]]
        at = match.end()
    return [part.strip() for part in [*out, text[at:]]]


def _name(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "`" else text


def _quoted(name: str) -> str:
    operator = _OPERATOR.search(name) or re.search(r"\s[+-]\s", name)
    return f"`{name}`" if operator or name.startswith(NEXT) else name


def _listed(conditions: Mapping[str, Any]) -> str:
    out = []
    for name, wanted in conditions.items():
        items = wanted if isinstance(wanted, tuple) else (wanted,)
        words = ["missing" if item is None else str(item) for item in items]
        shown = " or ".join(words)
        compared = len(words) == 1 and words[0][:1] in ("<", ">", "=", "!")
        out.append(f"{name} {shown}" if compared else f"{name} = {shown}")
    return " and ".join(out)
