"""Reads what a sweep left in its folder, and writes its tables.

One row a cell; mean and standard deviation over the seeds of each combination.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from fedsyn.bounded import json_of, read_bytes
from fedsyn.errors import DataError
from fedsyn.evaluation.real.metrics import is_quality
from fedsyn.files import write_text
from fedsyn.output import cell as guarded
from fedsyn.output import counted, first_of

SWEEP_FILE = "sweep.json"  # in the sweep's folder: the sweep as given, and its cells
CELL_FILE = "cell.json"  # in a cell's run directory, written last: how the cell ended
_CELL = re.compile(r"\w[\w.=+-]*")  # no path leads out of cells/
_SMALLEST_NUMERIC_AXIS = 3  # values of one that plots run along
_MECHANISM = "mechanism.name"
_NAMED_CELLS = 3  # that a failure lists
Facts = dict[str, Any]  # what one of these files holds


@dataclass(frozen=True)
class Row:
    """A cell's result.

    Attributes:
        id: of the cell; its run directory is cells/ID.
        axes: dotted key -> value.
        seed: of the run.
        status: 'done', 'failed' or 'missing' (not run yet).
        metrics: empty unless done; infinite where the run's metric was not finite.
        error: type, message and exit code of a failed cell.
    """

    id: str
    axes: dict[str, Any]
    seed: int | None
    status: str
    metrics: dict[str, float]
    error: dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """A combination of axes over its seeds.

    `values` holds one array per metric, of done cells only; `rows` has the cells.
    """

    axes: dict[str, Any]
    cells: int
    values: dict[str, np.ndarray]
    rows: tuple[Row, ...] = ()

    @property
    def done(self) -> int:
        return max((value.size for value in self.values.values()), default=0)

    def by_seed(self, metric: str) -> dict[int | None, float]:
        """Returns a metric of each done cell, by its seed."""
        return {row.seed: row.metrics[metric] for row in self.rows if metric in row.metrics}

    def mean(self, metric: str) -> float:
        values = self.values.get(metric)
        return float(values.mean()) if values is not None and values.size else math.nan

    def sd(self, metric: str) -> float:
        """Returns the sample standard deviation of a metric.

        It is nan for fewer than two seeds, or where a value is not finite.
        """
        values = self.values.get(metric)
        if values is None or values.size < 2 or not np.isfinite(values).all():
            return math.nan
        return float(values.std(ddof=1))


class _Cell(BaseModel):
    """A cell of `SWEEP_FILE`."""

    id: Any
    axes: dict[str, Any]
    seed: int | None


class _Sweep(BaseModel):
    """Required content of `SWEEP_FILE`, which a stranger may have written."""

    name: str
    document: dict[str, Any]
    cells: list[_Cell]


class _Ending(BaseModel):
    """Required content of a `CELL_FILE`."""

    status: Literal["done", "failed"]
    metrics: dict[str, float | None] = {}
    error: dict[str, Any] = {}


class _Unset:
    """Stands for an axis that a cell does not set.

    Null is a value like any other (annealing: `rounds: null`).
    """


UNSET = _Unset()


@dataclass(frozen=True)
class Results:
    """All that a sweep's folder holds.

    Attributes:
        name: of the sweep's file.
        document: the sweep as it was given.
        rows: one a cell, in the sweep's order.
    """

    name: str
    document: dict[str, Any]
    rows: tuple[Row, ...]

    @cached_property
    def axes(self) -> list[str]:
        """Keys that vary between cells, in the sweep's order.

        All keys if none varies.
        """
        keys = list(dict.fromkeys(key for row in self.rows for key in row.axes))
        return [key for key in keys if len({text(row.axes.get(key, UNSET)) for row in self.rows}) > 1] or keys

    @cached_property
    def main_axes(self) -> list[str]:
        """Axes that tell combinations apart, or that every cell sets.

        Left out is an axis that only some cells set and that tells no combinations apart.

        An example is `federation.sampling_rate` in a list of mechanisms, set for the central one only.
        """
        axes = list(self.axes)
        partial = [key for key in axes if any(key not in row.axes for row in self.rows)]
        for key in reversed(partial):
            without = [other for other in axes if other != key]
            if len(self._combinations(without)) == len(self._combinations(axes)):
                axes = without
        return axes

    def _combinations(self, keys: Sequence[str]) -> set[tuple[str, ...]]:
        return {tuple(text(row.axes.get(key, UNSET)) for key in keys) for row in self.rows}

    def values(self, key: str) -> list[Any]:
        """Returns the different values of an axis, in the sweep's order."""
        return list({text(summary.axes[key]): summary.axes[key] for summary in self.summaries}.values())

    @cached_property
    def main(self) -> str | None:
        """The main axis, None if there are no axes.

        It is the numeric axis with most values, if it has at least three, else the axis with most values.
        Mechanisms are it only if there is no other axis.
        """
        candidates = [key for key in self.main_axes if key != _MECHANISM] or self.main_axes
        numeric = [key for key in candidates if all(map(is_number, self.values(key)))]
        numeric = [key for key in numeric if len(self.values(key)) >= _SMALLEST_NUMERIC_AXIS]
        return max(numeric or candidates, key=lambda key: len(self.values(key)), default=None)

    @cached_property
    def compared(self) -> str | None:
        """The axis that bold cells compare.

        It is the mechanisms, or else the axis beside the main one with most values. It is the main axis if
        there is no other.
        """
        others = [key for key in self.main_axes if key != self.main]
        if _MECHANISM in others:
            return _MECHANISM
        return max(others, key=lambda key: len(self.values(key)), default=self.main)

    @cached_property
    def names(self) -> dict[str, str]:
        """Main axes, and the names by which people see them."""
        return dict(zip(self.main_axes, short_names(self.main_axes), strict=True))

    @property
    def caption(self) -> str:
        """Caption of the tables, in the words of the sweep."""
        return str(self.document.get("caption", ""))

    def label(self, name: str) -> str:
        """Returns the sweep's own name for a metric or a value."""
        labels = self.document.get("labels")
        return str(labels.get(name, name)) if isinstance(labels, dict) else name

    def named(self, key: str) -> str:
        """Returns the name of an axis for people.

        It is the sweep's own, or a short one.
        """
        label = self.label(key)
        return self.names[key] if label == key else label

    @property
    def shown_metrics(self) -> list[str]:
        """Metrics that say how good a table is.

        The metric `seconds`, if there is no such metric.
        """
        return [name for name in self.metrics if is_quality(name)] or [n for n in self.metrics if n == "seconds"]

    @cached_property
    def metrics(self) -> list[str]:
        """Names of metrics: evaluated ones first, costs last."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.metrics))
        return sorted(names, key=lambda name: not is_quality(name))

    @cached_property
    def summaries(self) -> list[Summary]:
        """Summaries of all combinations of the axes, in the sweep's order."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(tuple(text(row.axes.get(key, UNSET)) for key in self.axes), []).append(row)
        summaries = []
        for rows in groups.values():
            values = {
                name: np.array([row.metrics[name] for row in rows if name in row.metrics]) for name in self.metrics
            }
            axes = {key: rows[0].axes.get(key, UNSET) for key in self.axes}
            summaries.append(Summary(axes, len(rows), values, tuple(rows)))
        return summaries


def load_results(out: Path | str) -> Results:
    """Reads a sweep's folder.

    Not all of its cells need to have run.

    Raises:
        DataError: the folder holds no sweep, or names a folder outside of itself.
    """
    out = Path(out)
    try:
        record = json_of(read_bytes(out / SWEEP_FILE), str(out / SWEEP_FILE))
    except (OSError, DataError):
        raise DataError(f"{out} holds no sweep: {SWEEP_FILE} is absent or cannot be read") from None
    try:
        sweep = _Sweep.model_validate(record)
    except ValidationError:
        raise DataError(f"{out / SWEEP_FILE} is damaged: run the sweep again") from None
    rows = []
    for cell in sweep.cells:
        if not isinstance(cell.id, str) or not _CELL.fullmatch(cell.id):
            raise DataError(f"{out / SWEEP_FILE}: a cell's id must be the name of a folder in cells/")
        facts = read_cell(out / "cells" / cell.id) or {"status": "missing"}
        metrics = {name: math.inf if v is None else float(v) for name, v in facts.get("metrics", {}).items()}
        rows.append(Row(cell.id, cell.axes, cell.seed, facts["status"], metrics, facts.get("error", {})))
    return Results(sweep.name, sweep.document, tuple(rows))


def read_cell(folder: Path) -> Facts | None:
    """Reads cell.json of a run directory.

    Returns None where it is absent or not whole.
    """
    try:
        facts: Facts = json_of(read_bytes(folder / CELL_FILE), str(folder / CELL_FILE))
        _Ending.model_validate(facts)
    except (OSError, DataError, ValidationError):
        return None
    return facts


def is_number(value: Any) -> bool:
    """Returns whether an axis's value is a number.

    True and false are not.
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def short_names(keys: Sequence[str]) -> list[str]:
    """Returns names of axes for people.

    They are `mechanism` for mechanism.name and `epsilon` for privacy.epsilon. A name that is not unique
    stays the whole key.
    """
    names = [key.removesuffix(".name").rpartition(".")[2] for key in keys]
    return [key if names.count(name) > 1 else name for key, name in zip(keys, names, strict=True)]


def text(value: Any) -> str:
    """Returns a value of an axis as tables show it.

    It is empty where a cell does not set the axis.
    """
    if value is UNSET:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# Tables ---------------------------------------------------------------------------------------------------------------


def write_tables(results: Results, out: Path | str) -> list[Path]:
    """Writes results.csv and summary.csv into `out`.

    The first has one row a cell, the second mean and standard deviation over seeds. Returns their
    paths.
    """
    out = Path(out)
    paths = [out / "results.csv", out / "summary.csv"]
    keys = list(dict.fromkeys(key for row in results.rows for key in row.axes))
    cells = [
        [row.id, *(text(row.axes.get(key, UNSET)) for key in keys)]
        + ["" if row.seed is None else row.seed, row.status]
        + [row.metrics.get(name) for name in results.metrics]
        + [row.error.get("message", "")]
        for row in results.rows
    ]
    head = ["cell", *keys, "seed", "status", *results.metrics, "error"]
    write_text(paths[0], _csv(head, cells))
    spread = [f"{name}_{what}" for name in results.metrics for what in ("mean", "sd")]
    combinations = [
        [*(text(summary.axes[key]) for key in results.axes), summary.cells, summary.done]
        + [value for name in results.metrics for value in (summary.mean(name), summary.sd(name))]
        for summary in results.summaries
    ]
    head = [*results.axes, "cells", "done", *spread]
    write_text(paths[1], _csv(head, combinations))
    return paths


def _csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    frame = pd.DataFrame([list(map(guarded, row)) for row in rows], columns=list(map(guarded, head)))
    return str(frame.to_csv(index=False))


@dataclass(frozen=True)
class Failure:
    """An error, and the cells that it ended."""

    kind: str
    message: str
    cells: tuple[str, ...]

    @property
    def where(self) -> str:
        """Words on the failed cells: `3 cells: a, b, c`.

        Of many cells only the first ones are named.
        """
        return f"{counted(len(self.cells), 'cell')}: {first_of(self.cells, _NAMED_CELLS)}"


def failures(results: Results) -> list[Failure]:
    """Returns one entry an error, however many cells share it."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in results.rows:
        if row.status == "failed":
            key = (str(row.error.get("type", "")), str(row.error.get("message", "")))
            groups.setdefault(key, []).append(row)
    return [Failure(*key, tuple(row.id for row in rows)) for key, rows in groups.items()]
