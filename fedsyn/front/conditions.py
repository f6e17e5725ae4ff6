"""Conditions on columns (`where`), and models restricted to them.

A restricted model draws only rows that meet the conditions, exactly as likely as before.

A condition on a column is one value, a list of values (any of them), or for an ordered column a pair (lowest, highest),
both included, None for no bound; None alone, or in a list, is a missing value. Conditions on several columns hold
together. On the command line: `ward=children`, `age<=16`, `sex=f sex=m` (either), `ward!=children`, `ward=` (missing).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ConfigError, SchemaError, nearest
from fedsyn.inference import AnyModel, EmpiricalModel, MixtureModel, Model
from fedsyn.output import first_of
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import CategoricalColumn, Schema
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import remade
from fedsyn.table.schema.columns import Column
from fedsyn.table.schema.conditions import Between, Condition, Literal
from fedsyn.table.schema.persons import COUNT, no_row_code, person_attributes

_OPERATORS = ("<=", ">=", "!=", "=", "<", ">")
# Rows by which a table that stands for a model is thinned where a range cuts its bins.
_FINEST = 1 << 16


@dataclass(frozen=True)
class Except:
    """All values of a column except some."""

    values: tuple[Any, ...]


def restrict(
    schema: Schema, model: AnyModel, where: Mapping[str, Any], lean: Mapping[str, float] | None = None
) -> tuple[Schema, AnyModel]:
    """Returns the schema and the model of rows that meet conditions.

    Args:
        schema: of the model.
        model: of all rows.
        where: column -> condition, see the module.
        lean: of the densities inside bins (`decoding`).

    Returns:
        A schema that decodes such rows (values of a bin that a range cuts come from the range), and a model whose total
        is the number of records that meet the conditions. Their distribution is the model's own, given the conditions,
        with values inside a bin as likely as they are drawn. (Where a range and a constraint cut the same bin,
        every row obeys both, and how likely that bin is follows the range alone; so it does where `lean` links
        values to the rest of their rows.)

    Raises:
        InputError: an unknown column or value, a range of a column without an order, or conditions that no row meets.
    """
    if not isinstance(where, Mapping):
        raise ConfigError(
            f"where: expected column: condition pairs, such as {{'age': (0, 16)}}, found {type(where).__name__}"
        )
    schema = decoding(schema, model, lean)
    # Each condition gives a mask of the codes that meet it, a range also a weight for each bin that it cuts.
    masks: dict[str, Any] = {}
    weights: dict[str, npt.NDArray[np.float64]] = {}
    columns: dict[str, Any] = dict(schema.columns)
    for column_name, condition in where.items():
        literal = _literal(schema, column_name, condition)
        _require_of_persons(schema, column_name, literal.name)
        name, column = literal.name, columns[literal.name]
        if literal.intervals is None:
            masks[name] = masks.get(name, True) & literal.possible
            if not masks[name].any():
                raise ConfigError(f"where: no value of '{name}' meets all that is asked")
            continue
        # A range: the column draws inside it, and a bin counts by the part of it that the range covers.
        (lowest, highest), pieces = column.span, literal.intervals
        pieces = tuple((max(a, lowest), min(b, highest)) for a, b in pieces if a <= highest and b >= lowest)
        columns[name] = column = column.drawing_within(pieces)
        inside = column.within.weights
        weights[name] = np.append(inside, literal.possible[len(inside) :].astype(np.float64))
        masks[name] = weights[name] > 0
        if not masks[name].any() and pieces:
            raise ConfigError(f"where: no value of '{name}' that is drawn lies in that range; ask for a wider one")
        if not masks[name].any():
            bounds = f"{column.bound(lowest)} to {column.bound(highest)}"
            raise ConfigError(f"where: no value of '{name}' is in that range; its values are {bounds}")
    if not where:
        return schema, model
    restricted = _with_columns(schema, columns)
    # The model: constraints first, as they also read the cut bins, then the conditions.
    cut = {name: weight for name, weight in weights.items() if (weight[masks[name]] != 1).any()}
    if cut and schema.constraints:
        model = _obeying(model, restricted)
    return restricted, _given(model, masks, cut)


def _with_columns(schema: Schema, columns: dict[str, Any]) -> Schema:
    """Returns a schema with other columns.

    A person's own ones are drawn by the schema of the rows.
    """
    restricted = schema.model_copy(update={"columns": columns})
    if schema.of_persons is not None:
        whole = schema.rows.columns
        mine = {name: _of_rows(columns[name], whole[name]) for name in person_attributes(schema.rows)}
        restricted._rows = schema.rows.model_copy(update={"columns": {**schema.rows.columns, **mine}})
    for cached in ("every_column", "compiled", "domain"):  # made once, of the columns before they were cut
        restricted.__dict__.pop(cached, None)
        restricted.rows.__dict__.pop(cached, None)
    return restricted


def _of_rows(column: Column, whole: Column) -> Column:
    """Returns a record's column without "(no row)".

    `whole` is that of the rows, before it was cut.
    """
    if no_row_code(column) < 0:
        return column
    return remade(column, missing_codes=whole.missing_codes) if isinstance(whole, BinnedColumn) else whole


def _require_of_persons(schema: Schema, column: str, name: str) -> None:
    """Refuses a condition on rows where whole persons are drawn.

    Somebody asks for persons who have such a row. The model knows one row of each and the next one.
    """
    if schema.of_persons is None or name in (COUNT, *person_attributes(schema.rows)):
        return
    others = first_of([f"'{one}'" for one in (*person_attributes(schema.rows), COUNT)], 4)
    raise ConfigError(
        f"where: '{column}' differs between the rows of a person, and whole persons are drawn; ask for {others}, "
        "or draw more people and keep those who have such a row"
    )


def read_conditions(schema: Schema, texts: Iterable[str]) -> dict[str, Any]:
    """Reads typed conditions into what `restrict` takes.

    They are typed as COLUMN=VALUE, COLUMN<=VALUE and so on.

    Raises:
        ConfigError: a text that is none, an unknown column, or conditions on one column that do not go together.
    """
    equal: dict[str, list[Any]] = {}
    unequal: dict[str, list[Any]] = {}
    bounds: dict[str, Between] = {}
    for text in texts:
        name, operator, value = _split(schema, text)
        wanted = None if value == "" else value
        if operator in ("=", "!="):
            (equal if operator == "=" else unequal).setdefault(name, []).append(wanted)
        elif wanted is None:
            raise ConfigError(f"--where {text}: a value is missing after '{operator}'")
        else:
            known, low, strict = bounds.get(name, Between()), operator[0] == ">", len(operator) == 1
            if (known.low if low else known.high) is not None:
                raise ConfigError(f"--where {text}: this bound of the column is given twice")
            new: dict[str, Any] = {"low": wanted, "above": strict} if low else {"high": wanted, "below": strict}
            bounds[name] = replace(known, **new)
    groups = (equal, unequal, bounds)
    for name in {name for group in groups for name in group}:
        if sum(name in group for group in groups) > 1:
            raise ConfigError(f"--where: '{name}' is asked for with '=' and with another sign; use one of them")
    return {**equal, **{name: Except(tuple(values)) for name, values in unequal.items()}, **bounds}


def _split(schema: Schema, text: str) -> tuple[str, str, str]:
    """Splits a typed condition into column, operator and value.

    A column's name may hold such signs itself.
    """
    for name in sorted(schema.every_column, key=len, reverse=True):
        rest = text.removeprefix(name).lstrip()
        operator = next((sign for sign in _OPERATORS if rest.startswith(sign)), None)
        if text.startswith(name) and operator is not None:
            return name, operator, rest.removeprefix(operator).strip()
    signs = [(text.index(sign), sign) for sign in _OPERATORS if sign in text]
    if not signs:
        raise ConfigError(f"--where {text}: expected COLUMN=VALUE, or another of != <= >= < > in place of =")
    _column(schema, text[: min(signs)[0]].strip())
    raise AssertionError("a known column would have been found")


def _column(schema: Schema, name: Any) -> CategoricalColumn | BinnedColumn:
    known = {**schema.columns, **schema.derived}
    if name in known:
        return known[name]
    if name in schema.aside:
        kind = schema.aside[name].kind
        raise ConfigError(f"where: '{name}' is set aside in the schema (kind {kind}), so no row is known by it")
    raise ConfigError(f"where: unknown column '{name}'{nearest(str(name), schema.columns)}")


def _literal(schema: Schema, name: Any, request: Any) -> Literal:
    """Returns a request for one column as a condition.

    The condition is on a modelled column: the column itself, or the one that decides it.
    """
    column = _column(schema, name)
    try:
        if isinstance(request, Except):
            literal = Condition(name, column, request.values).negated()
        else:
            if isinstance(request, tuple) and len(request) == 2:
                request = Between(*request)
            elif isinstance(request, Iterable) and not isinstance(request, str | bytes | Mapping):
                request = list(request)
            literal = Condition(name, column, request).literal()
        literal = schema.compiled.traced(literal)
    except SchemaError as error:
        raise ConfigError(f"where: {error}") from None
    inner = next((code for code, group in schema.compiled.nesting.pairs if group == literal.name), None)
    if inner is not None:
        raise ConfigError(f"where: '{name}' follows from '{inner}'; ask for values of '{inner}'")
    return literal


def _obeying(model: AnyModel, schema: Schema) -> AnyModel:
    """Returns the model without the cells that the constraints now forbid.

    The constraints rule them out together with the ranges, though not alone.
    """
    try:
        domain = schema.domain
    except SchemaError:
        raise ConfigError("where: no row meets these conditions and the schema's constraints together") from None
    if isinstance(model, Model):
        return Model(replace(domain, hidden=model.domain.hidden), model.potentials, model.total)
    if isinstance(model, MixtureModel):
        if domain.zeros:
            raise ConfigError("where: this model, a mixture, cannot keep to these conditions and the constraints")
        return model
    allowed = ~domain.violated(model.codes)
    if not allowed.any():
        raise ConfigError("where: no row of this model, which is a table, meets the conditions and the constraints")
    return EmpiricalModel(domain, model.codes[allowed], model.total * float(allowed.mean()))


def _given(
    model: AnyModel,
    masks: Mapping[str, npt.NDArray[np.bool_]],
    cut: Mapping[str, npt.NDArray[np.float64]],
) -> AnyModel:
    """Returns the model, given the masks.

    Each value is then as likely as its weight says.
    """
    if isinstance(model, EmpiricalModel):
        conditioned = model.conditioned(masks)
        return _thinned(conditioned, cut) if cut else conditioned
    if isinstance(model, MixtureModel):
        return model.conditioned(masks).weighted(cut)
    if not cut:
        return model.conditioned(masks)
    potentials = model.potentials
    for name, weight in cut.items():
        logs = np.log(np.where(weight > 0, weight, 1.0))
        potentials[(name,)] = potentials[(name,)] + logs if (name,) in potentials else logs
    weighted = Model(model.domain, potentials, model.total).conditioned(masks)
    share = math.exp(min(0.0, weighted.log_partition - model.log_partition))
    return weighted.with_total(max(share * model.total, math.ulp(0.0)))


def _thinned(model: EmpiricalModel, cut: Mapping[str, npt.NDArray[np.float64]]) -> EmpiricalModel:
    """Repeats rows as often as their weights say.

    That is exact to one part in many thousands.
    """
    weights = np.ones(len(model.codes))
    for name, weight in cut.items():
        weights *= weight[model.codes[:, model.domain.axes((name,))[0]]]
    rows = max(_FINEST, 8 * len(weights))
    chosen = np.searchsorted(np.cumsum(weights) / weights.sum(), (np.arange(rows) + 0.5) / rows)
    total = model.total * float(np.clip(weights, 0.0, 1.0).mean())
    return EmpiricalModel(model.domain, model.codes[np.minimum(chosen, len(weights) - 1)], total)
