"""`where`: from what a person asks of some columns to a model that gives such rows only, exactly as likely as before.

A condition on a column is one value, a list of values (any of them), or for an ordered column a pair (lowest, highest),
both included, None for no bound; None alone, or in a list, is a missing value. Conditions on several columns hold
together. On the command line: `ward=children`, `age<=16`, `sex=f sex=m` (either), `ward!=children`, `ward=` (missing).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ConfigError, SchemaError, nearest
from fedsyn.inference import AnyModel, EmpiricalModel, MixtureModel, Model
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import CategoricalColumn, Schema
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CodeColumn
from fedsyn.table.schema.compute import Mapped
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.values import key, keys

_OPERATORS = ("<=", ">=", "!=", "=", "<", ">")
# Rows by which a table that stands for a model is thinned where a range cuts its bins.
_FINEST = 1 << 16


@dataclass(frozen=True)
class Between:
    """A range of an ordered column; None: no bound. `above` and `below`: the bound itself is left out."""

    low: Any = None
    high: Any = None
    above: bool = False
    below: bool = False


@dataclass(frozen=True)
class Except:
    """All values but some."""

    values: tuple[Any, ...]


def restrict(schema: Schema, model: AnyModel, where: Mapping[str, Any], lean: float = 0.0) -> tuple[Schema, AnyModel]:
    """The schema and the model of the rows that meet some conditions.

    Args:
        schema: of the model.
        model: of all rows.
        where: column -> condition, see the module.
        lean: of the densities inside bins (`decoding`).

    Returns:
        A schema that decodes such rows (values of a bin that a range cuts come from the range), and a model whose total
        is the number of records that meet the conditions. Their distribution is the model's own, given the conditions,
        with values inside a bin as likely as they are drawn. (Where a range and a constraint cut the same bin,
        every row obeys both, and how likely that bin is follows the range alone.)

    Raises:
        InputError: an unknown column or value, a range of a column without an order, or conditions that no row meets.
    """
    if not isinstance(where, Mapping):
        raise ConfigError(
            f"where: expected column: condition pairs, such as {{'age': (0, 16)}}, found {type(where).__name__}"
        )
    schema = decoding(schema, model, lean)
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    weights: dict[str, npt.NDArray[np.float64]] = {}
    columns: dict[str, Any] = dict(schema.columns)
    for asked_of, asked in where.items():
        name, answers = _source(schema, asked_of)
        column = _column(schema, name)
        if isinstance(column, CategoricalColumn):
            mask = _categories(name, column, asked) if answers is None else answers(asked)
            masks[name] = masks.get(name, np.ones(column.size, dtype=bool)) & mask
            if not masks[name].any():
                raise ConfigError(f"where: no value of '{name}' meets all that is asked")
            continue
        columns[name] = column = column.drawing_within(_pieces(name, column, asked))
        assert column.within is not None
        missing = [_asks_for_missing(name, column, asked)] * column.missing
        weights[name] = np.concatenate([column.within.weights, np.array(missing, dtype=np.float64)])
        masks[name] = weights[name] > 0
        if not masks[name].any():
            raise ConfigError(f"where: no value of '{name}' is in that range; its values are {_bounds(column)}")
    if not where:
        return schema, model
    restricted = schema.model_copy(update={"columns": columns})
    for kept in ("every_column", "compiled", "domain"):  # made once, of the old columns
        restricted.__dict__.pop(kept, None)
    cut = {name: weight for name, weight in weights.items() if (weight[masks[name]] != 1).any()}
    if cut and schema.constraints:
        model = _obeying(model, restricted)
    return restricted, _given(model, masks, cut)


def read_conditions(schema: Schema, texts: Iterable[str]) -> dict[str, Any]:
    """What `restrict` takes, from conditions as they are typed: COLUMN=VALUE, COLUMN<=VALUE and so on.

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
            bounds[name] = _narrowed(bounds.get(name, Between()), operator, wanted, text)
    groups = (equal, unequal, bounds)
    for name in {name for group in groups for name in group}:
        if sum(name in group for group in groups) > 1:
            raise ConfigError(f"--where: '{name}' is asked for with '=' and with another sign; use one of them")
    return {**equal, **{name: Except(tuple(values)) for name, values in unequal.items()}, **bounds}


def _split(schema: Schema, text: str) -> tuple[str, str, str]:
    """Column, operator and value of a typed condition; a column's name may hold such signs itself."""
    for name in sorted(schema.every_column, key=len, reverse=True):
        rest = text.removeprefix(name).lstrip()
        operator = next((sign for sign in _OPERATORS if rest.startswith(sign)), None)
        if text.startswith(name) and operator is not None:
            return name, operator, rest.removeprefix(operator).strip()
    found = [(text.index(sign), sign) for sign in _OPERATORS if sign in text]
    if not found:
        raise ConfigError(f"--where {text}: expected COLUMN=VALUE, or another of != <= >= < > in place of =")
    _column(schema, text[: min(found)[0]].strip())
    raise AssertionError("a known column would have been found")


def _narrowed(known: Between, operator: str, value: Any, text: str) -> Between:
    low = operator in (">", ">=")
    if (known.low if low else known.high) is not None:
        raise ConfigError(f"--where {text}: this bound of the column is given twice")
    strict = operator in ("<", ">")
    if low:
        return Between(value, known.high, strict, known.below)
    return Between(known.low, value, known.above, strict)


def _column(schema: Schema, name: Any) -> CategoricalColumn | BinnedColumn:
    if name in schema.columns:
        return schema.columns[name]
    if name in schema.aside:
        kind = schema.aside[name].kind
        raise ConfigError(f"where: '{name}' is set aside in the schema (kind {kind}), so no row is known by it")
    if name in getattr(schema, "derived", ()):
        raise ConfigError(f"where: '{name}' is computed from other columns; ask for values of those")
    raise ConfigError(f"where: unknown column '{name}'{nearest(str(name), schema.columns)}")


def _source(schema: Schema, name: Any) -> tuple[Any, Callable[[Any], npt.NDArray[np.bool_]] | None]:
    """The column that decides a column, and for another one the way from a condition to codes of that column."""
    step = next((step for step in schema.compiled.steps if step.name == name), None)
    if not isinstance(step, Mapped):
        return name, None
    (source,), target = step.sources, schema.derived[name]
    known = schema.columns.get(source)
    if not isinstance(known, CategoricalColumn) or not isinstance(target, CategoricalColumn):
        return name, None
    rows = DrawnRows({source: np.arange(known.size)}, {})
    step.add(rows)
    return source, lambda asked: _categories(name, target, asked)[rows.codes[name]]


def _values(asked: Any) -> list[Any] | None:
    """The single values that are asked for; None where it is a range."""
    if isinstance(asked, Except):
        return list(asked.values)
    if isinstance(asked, Between) or (isinstance(asked, tuple) and len(asked) == 2):
        return None
    if isinstance(asked, str | bytes | Mapping) or not isinstance(asked, Iterable):
        return [asked]
    return list(asked)


def _is_missing(value: Any) -> bool:
    return value is None or value != value or type(value).__name__ == "NAType"


def _asks_for_missing(name: str, column: CategoricalColumn | BinnedColumn, asked: Any) -> bool:
    wanted = any(_is_missing(value) for value in _values(asked) or [])
    if wanted and not column.missing:
        raise ConfigError(f"where: '{name}' is never missing in this schema")
    return wanted != isinstance(asked, Except)


def _categories(name: str, column: CategoricalColumn, asked: Any) -> npt.NDArray[np.bool_]:
    """(size,) which codes are asked for."""
    values = _values(asked)
    mask = np.zeros(column.size, dtype=bool)
    if values is None:
        if not column.ordered:
            raise ConfigError(f"where: '{name}' has no order, so no range; a list asks for any of several values")
        ends = asked if isinstance(asked, Between) else Between(*asked)
        first = 0 if ends.low is None else _category(name, column, ends.low) + ends.above
        last = len(column.values) - 1 if ends.high is None else _category(name, column, ends.high) - ends.below
        mask[first : last + 1] = True
    else:
        mask[[_category(name, column, value) for value in values if not _is_missing(value)]] = True
        if any(_is_missing(value) for value in values):
            mask[-1] = _asks_for_missing(name, column, values)
        if isinstance(asked, Except):
            mask = ~mask
    if not mask.any():
        raise ConfigError(f"where: no value of '{name}' is left")
    return mask


def _category(name: str, column: CategoricalColumn, value: Any) -> int:
    wanted = value.item() if isinstance(value, np.generic) else value
    if isinstance(column, CodeColumn) and column.width is not None and type(wanted) is int:
        wanted = f"{wanted:0{column.width}d}"
    codes = {key(known): code for code, known in enumerate(column.values)}
    for form in keys(wanted):
        if form in codes:
            return codes[form]
    known = [str(value) for value in column.values]
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    raise ConfigError(f"where: '{wanted}' is not a value of '{name}'{nearest(str(wanted), known)}; its values: {shown}")


def _pieces(name: str, column: BinnedColumn, asked: Any) -> list[tuple[float, float]]:
    """Which numbers of an ordered column are asked for: (lowest, highest) each, both included."""
    values = _values(asked)
    if values is None:
        ends = asked if isinstance(asked, Between) else Between(*asked)
        low = -math.inf if ends.low is None else _number(name, column, ends.low)
        high = math.inf if ends.high is None else _number(name, column, ends.high)
        low, high = (_next(column, low, 1) if ends.above else low), (_next(column, high, -1) if ends.below else high)
        low, high = max(low, column.span[0]), min(high, column.span[1])
        if low > high:
            raise ConfigError(f"where: no value of '{name}' is in that range; its values are {_bounds(column)}")
        return [(low, high)]
    points = sorted(_number(name, column, value) for value in values if not _is_missing(value))
    lowest, highest = column.span
    if any(not lowest <= point <= highest for point in points):
        raise ConfigError(f"where: a value of '{name}' that is asked for is beyond its bounds, {_bounds(column)}")
    if not isinstance(asked, Except):
        return [(point, point) for point in points]
    starts = [lowest, *(_next(column, point, 1) for point in points)]
    ends_ = [*(_next(column, point, -1) for point in points), highest]
    return [(start, end) for start, end in zip(starts, ends_, strict=True) if start <= end]


def _next(column: BinnedColumn, number: float, step: int) -> float:
    """The nearest number above (step 1) or below (-1) that the column can have."""
    if not column.whole or not math.isfinite(number):
        return math.nextafter(number, step * math.inf)
    return math.floor(number) + 1 if step > 0 else math.ceil(number) - 1


def _number(name: str, column: BinnedColumn, value: Any) -> float:
    """The column's number of a value: as a schema writes it (plain numbers, ISO 8601), else as a cell does."""
    wanted = value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value
    number: float | None
    try:
        number = column.number(wanted)
    except (ValueError, TypeError, OverflowError):
        number = column.parse(wanted)
    if number is None or math.isnan(number):
        raise ConfigError(f"where: '{wanted}' is not a value of '{name}', which holds {column.expected}")
    return number


def _bounds(column: BinnedColumn) -> str:
    return " to ".join(
        str(int(x)) if isinstance(x, float) and x.is_integer() else str(x) for x in (column.lower, column.upper)
    )


def _obeying(model: AnyModel, schema: Schema) -> AnyModel:
    """The model without the cells that the constraints rule out beside the ranges, though not alone."""
    try:
        domain = schema.domain
    except SchemaError:
        raise ConfigError("where: no row meets these conditions and the schema's constraints together") from None
    if isinstance(model, Model):
        return Model(domain, model.potentials, model.total)
    if isinstance(model, MixtureModel):
        if domain.zeros:
            raise ConfigError("where: this model, a mixture, cannot keep to these conditions and the constraints")
        return model
    kept = ~domain.violated(model.codes)
    if not kept.any():
        raise ConfigError("where: no row of this model, which is a table, meets the conditions and the constraints")
    return EmpiricalModel(domain, model.codes[kept], model.total * float(kept.mean()))


def _given(
    model: AnyModel,
    masks: Mapping[str, npt.NDArray[np.bool_]],
    cut: Mapping[str, npt.NDArray[np.float64]],
) -> AnyModel:
    """The model given the masks, each value then as likely as its weight says."""
    if isinstance(model, EmpiricalModel):
        given = model.conditioned(masks)
        return _thinned(given, cut) if cut else given
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
    """Rows as often as their weights say, to one part in many thousands."""
    weights = np.ones(len(model.codes))
    for name, weight in cut.items():
        weights *= weight[model.codes[:, model.domain.axes((name,))[0]]]
    rows = max(_FINEST, 8 * len(weights))
    chosen = np.searchsorted(np.cumsum(weights) / weights.sum(), (np.arange(rows) + 0.5) / rows)
    total = model.total * float(np.clip(weights, 0.0, 1.0).mean())
    return EmpiricalModel(model.domain, model.codes[np.minimum(chosen, len(weights) - 1)], total)


__all__: Sequence[str] = ("Between", "Except", "read_conditions", "restrict")
