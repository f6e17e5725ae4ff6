"""Public constraints as a schema states them.

They stand under `constraints`, each as one line or as a small mapping.

    constraints:
      - admitted <= discharged                       # also <, >=, >; a missing side satisfies it
      - age <= 120                                   # the same with a fixed bound
      - total = a + b                                # also minus; `total` is computed, not modelled
      - {determines: ward, column: building, map: {A: North, B: South}}      # `building` is computed
      - {impossible: {sex: male, pregnant: "yes"}}   # values, lists, "< 16", "16..45", null for missing
      - {when: {ward: children}, then: {age: "<= 17"}}

Names that hold an operator stand in backticks. What constraints mean is compiled in `fedsyn.table.schema.compiled`.
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
_OPERATOR = re.compile(r"\s*(<=|>=|->|<|>|=)\s*")
_FORMS = "'a <= b', 'total = a + b', {determines, column, map}, {impossible} or {when, then}"


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


class Comparison(Rule):
    """Two columns, or a column and a bound, that compare.

    The bound is fixed. They compare in every row, and a missing side satisfies it.

    Attributes:
        left: a column.
        op: '<=', '<', '>=' or '>'.
        right: a column, or a value of the left one's kind.
    """

    left: str
    op: Literal["<=", "<", ">=", ">"]
    right: str

    @property
    def text(self) -> str:
        return f"{_quoted(self.left)} {self.op} {_quoted(self.right)}"

    def data(self) -> Any:
        return self.text


class SumRule(Rule):
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

    def data(self) -> Any:
        return self.text


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


AnyRule = Comparison | SumRule | Determined | Impossible | When
_KEYS: dict[str, type[AnyRule]] = {"determines": Determined, "impossible": Impossible, "when": When}


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
        return kind.model_validate({key: _listable(value) for key, value in item.items()})
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            hint = nearest(key, kind.model_fields) or f" (allowed: {', '.join(kind.model_fields)})"
            raise ValueError(f"{where}: unknown key '{key}'{hint}") from None
        if first["type"] == "missing":
            raise ValueError(f"{where}: '{key}' is missing beside '{next(iter(item))}'") from None
        expected = "a column's name" if key in ("determines", "column") else "a mapping of at least one entry"
        raise ValueError(f"{where}: {key} must be {expected}, with single values or lists of them") from None


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
        elif isinstance(rule, Impossible | When):
            key = "impossible" if isinstance(rule, Impossible) else "when"
            never = [name for name, wanted in getattr(rule, key).items() if _of_known(name, wanted, known) == ()]
            changed = {field: {n: _of_known(n, w, known) for n, w in value} for field, value in _parts(rule).items()}
            if not never:
                yield rule.model_copy(update=changed)
        else:
            yield rule


def named_categories(rules: Iterable[AnyRule]) -> dict[str, list[str]]:
    """Column -> what rules name of its values, as text."""
    named: dict[str, list[str]] = {}
    for rule in rules:
        if isinstance(rule, Determined):
            named.setdefault(rule.determines, []).extend(map(str, rule.map))
        elif isinstance(rule, Impossible | When):
            for name, wanted in itertools.chain.from_iterable(_parts(rule).values()):
                items = wanted if isinstance(wanted, tuple) else (wanted,)
                named.setdefault(name, []).extend(str(item) for item in items if item is not None)
    return named


def _parts(rule: Impossible | When) -> dict[str, Any]:
    names = ("impossible",) if isinstance(rule, Impossible) else ("when", "then")
    return {name: getattr(rule, name).items() for name in names}


def _of_known(name: str, wanted: Any, known: Mapping[str, Collection[Any]]) -> Any:
    if name not in known:
        return wanted
    items = wanted if isinstance(wanted, tuple) else (wanted,)
    return tuple(item for item in items if item is None or str(item) in known[name])


def _listable(value: Any) -> Any:
    """Lists as tuples, so that constraints can be compared and kept."""
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
    if op != "=":
        return Comparison(left=_name(left), op=op, right=_name(right))  # type: ignore[arg-type]
    pieces = _split(re.compile(r"\s+([+-])\s+"), right)
    signs = [1, *(1 if sign == "+" else -1 for sign in pieces[1::2])]
    terms = [(sign, _name(name)) for sign, name in zip(signs, pieces[::2], strict=True)]
    if any(not name for _, name in terms):
        raise ValueError(f"{where}: expected 'total = a + b', with spaces around + and -")
    return SumRule(column=_name(left), terms=tuple(terms))  # type: ignore[arg-type]


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
    return f"`{name}`" if _OPERATOR.search(name) or re.search(r"\s[+-]\s", name) else name


def _listed(conditions: Mapping[str, Any]) -> str:
    out = []
    for name, wanted in conditions.items():
        items = wanted if isinstance(wanted, tuple) else (wanted,)
        words = ["missing" if item is None else str(item) for item in items]
        shown = " or ".join(words)
        compared = len(words) == 1 and words[0][:1] in ("<", ">", "=", "!")
        out.append(f"{name} {shown}" if compared else f"{name} = {shown}")
    return " and ".join(out)
