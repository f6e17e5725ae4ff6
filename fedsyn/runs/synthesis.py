"""Writes the synthetic table of a run.

It is sampled, decoded and written batch by batch, on several cores.

A table of one batch comes from one generator, as it always has. In a larger one every batch has its own, by its
number, so that the rows depend neither on how many threads there are nor on which is faster. Each count of a batch is
within one of its expectation; over B batches these deviations, which are independent, add up to about sqrt(B)/3 rows.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ConfigError
from fedsyn.inference import AnyModel, EmpiricalModel, Model
from fedsyn.randomness import Randomness
from fedsyn.runs.persons import WholePersons
from fedsyn.table.data.encoded import RowSpool
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.writers import table_writer
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.links import RowModel
from fedsyn.table.schema.persons import COUNT

#: Rows of a batch. Part of the result: a smaller table has the same rows whatever becomes of this.
BATCH = 1 << 19
# A batch that is under way takes about 150 MB.
_MOST_THREADS = 4
#: Rows of a table whose number is a released value. A holder may claim any number: one that nobody asked for must not
#: fill a disk. `synthesis.rows` and `--rows` ask for more.
MOST_UNASKED = 10**8
# Characters of a cell and its separator: two at the least, and few tables have twenty on average.
_LEAST, _AMPLE = 2, 20
# Rows that say how far a bin's values are moved by the rest of their rows, and how large rows are.
_ROWS = 1 << 13
# Persons, and rows of them, that show how far rows are from records.
_JUDGED_PERSONS, _JUDGED_ROWS = 5_000, 200_000

T = TypeVar("T")
R = TypeVar("R")
Make = Callable[[], npt.NDArray[np.integer]]
Sample = Callable[[int, np.random.Generator], npt.NDArray[np.integer]]


def write_synthetic(
    path: Path | BinaryIO,
    schema: Schema,
    model: AnyModel,
    rows: int,
    randomness: Randomness,
    *,
    keep: bool,
    most: int | None = None,
    independent: bool = False,
    layout: FileOptions | None = None,
    whole: WholePersons | None = None,
) -> npt.NDArray[np.integer] | None:
    """Writes `rows` rows of the model.

    Of records it writes all rows of as many persons.

    Returns their codes, read-only, if they are kept: all, or the `most` first. Returns None if not.
    With `independent` each row is drawn by itself, and expectations are not rounded (`Model.sample`).
    `layout` is as in `table_writer`; `whole` makes persons of records, if that is known already.
    """
    spool = RowSpool(len(schema.columns), schema.dtype) if keep else None
    whole = whole or whole_persons(schema, model)
    with table_writer(path, schema.rows, layout) as writer:

        def made(numbered: tuple[int, tuple[Make, np.random.Generator]]) -> tuple[npt.NDArray[np.integer], object]:
            number, (make, rng) = numbered
            codes = schema.placed(make(), rng)
            if whole is None:
                return codes, writer.render(codes, rng, number * BATCH)
            rows, people = whole.of(codes, rng, number * BATCH)
            return codes, writer.render(rows, rng, 0, people)

        for codes, rendered in _in_order(
            made, enumerate(batches(model, rows, randomness, independent)), _threads(rows)
        ):
            writer.write(rendered)
            if spool is not None and (most is None or len(spool) < most):
                spool.append(codes if most is None else codes[: most - len(spool)])
    return None if spool is None else spool.rows()


def whole_persons(schema: Schema, model: AnyModel) -> WholePersons | None:
    """Returns what makes persons of a model's records; None of rows.

    Args:
        schema: that decodes the model's rows.
        model: of the rows.
    """
    return None if schema.of_persons is None else WholePersons(schema, model)


def judged_rows(schema: Schema, model: AnyModel, whole: WholePersons | None = None) -> npt.NDArray[np.integer]:
    """Returns rows of persons, (n, columns of the rows) codes.

    They are drawn as those of a table are, and stand in none: they show how far rows are from records, however few
    persons a table has. Those of persons without a row are left out. `whole` makes them of records, if that is known
    already.
    """
    count = schema.columns[COUNT]
    assert isinstance(count, BinnedColumn)
    persons = np.maximum(model.project((COUNT,)).reshape(-1)[: len(count.middles)], 0.0)
    each = float(persons @ count.middles) / max(float(persons.sum()), 1e-300)
    people = max(1, min(_JUDGED_PERSONS, int(_JUDGED_ROWS / max(each, 1.0))))
    whole, rng = whole or WholePersons(decoding(schema, model), model), np.random.default_rng(0)
    rows, shown = whole.of(whole.schema.placed(model.sample(people, rng), rng), rng)
    return rows if shown.empty is None else rows[~shown.empty]


def decoding(schema: Schema, model: AnyModel, lean: Mapping[str, float] | None = None) -> Schema:
    """Returns the schema that decodes a model's rows.

    Inside bins numbers lie as the model's one-way marginals suggest.

    Post-processing of the model, which was released: no privacy is spent (`fedsyn.table.schema.inside`).

    Args:
        schema: of the model.
        model: a run's, or a draw of its posterior.
        lean: of a table that is analysed beside others of its posterior: column -> where in the range of what the
            counts leave open its numbers lie, -1 to 1; they go by the rest of their rows, too, as coefficients need it.
            None: for a
            table by itself, whose conditions on a range are exact.
    """
    names = [name for name, column in schema.columns.items() if isinstance(column, BinnedColumn)]
    pairs = schema.compiled.nesting.pairs
    counts = dict(zip(names, model.project_many([(name,) for name in names]), strict=True))
    nested = dict(zip(pairs, model.project_many(pairs), strict=True))
    if lean is None or not isinstance(model, Model):
        return schema.shaped(counts, lean, nested=nested)
    codes = model.sample(_ROWS, np.random.default_rng(0)).astype(np.intp)  # a quadrature: nothing is drawn from it
    return schema.shaped(counts, lean, RowModel(codes, model.log_odds, model.neighbours), nested)


def expected_rows(model: AnyModel) -> int:
    """Returns the rows that the model stands for.

    They are at least one, and at most `MOST_UNASKED`.
    """
    return min(MOST_UNASKED, max(1, round(model.total)))


def rows_with_room(folder: Path, schema: Schema, model: AnyModel, layout: FileOptions | None = None) -> int:
    """Returns the rows of a table whose number is open.

    They are those that the model stands for, and fewer where the disk cannot hold so many: then what fills nine tenths
    of what is left of it. Some rows are drawn to see how large they are, as text: no other format takes more.
    """
    rows, free = expected_rows(model), shutil.disk_usage(folder).free
    if rows * _AMPLE * len(schema.rows.order) > free:
        few, file = min(rows, _ROWS), BytesIO()
        write_synthetic(file, decoding(schema, model), model, few, Randomness(0), keep=False, layout=layout)
        rows = max(1, min(rows, int(0.9 * free * few / file.tell())))
    return rows


def require_room(folder: Path, schema: Schema, rows: int, format: str = "csv") -> None:
    """Refuses a table that cannot be written.

    It does so before anything is spent on the table.

    Raises:
        ConfigError: the disk has no room for even one character and a separator for each cell of a text file.
    """
    least, free = rows * _LEAST * len(schema.rows.order), shutil.disk_usage(folder).free
    if format == "csv" and least > free:
        raise ConfigError(
            f"{rows:,} rows need at least {least / 1e9:,.1f} GB, and {folder} has {free / 1e9:,.1f} GB left: "
            "ask for fewer rows (synthesis.rows, --rows)"
        )


def batches(
    model: AnyModel, rows: int, randomness: Randomness, independent: bool = False
) -> Iterator[tuple[Make, np.random.Generator]]:
    """Yields a maker of each batch's codes, and a generator.

    The batch is decoded from the generator afterwards.
    """
    if independent:
        assert isinstance(model, Model)
        sample: Sample = partial(model.sample, independent=True)
    else:
        sample = model.sample
    rng = randomness.ordinary("synthesize")
    if rows <= BATCH:
        yield (lambda: sample(rows, rng)), rng
        return
    starts = range(0, rows, BATCH)
    if isinstance(model, EmpiricalModel):  # its rows are drawn without replacement: all at once
        whole = model.sample(rows, rng)
        for number, start in enumerate(starts):
            part = whole[start : start + BATCH]
            yield (lambda part=part: part), randomness.ordinary("synthesize", number)  # type: ignore[misc]
        return
    model.sample(1, np.random.default_rng(0))  # fills what the model keeps between samples, before threads share it
    for number, start in enumerate(starts):
        stream, size = randomness.ordinary("synthesize", number), min(BATCH, rows - start)
        yield (lambda stream=stream, size=size: sample(size, stream)), stream  # type: ignore[misc]


def _threads(rows: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _MOST_THREADS, -(-rows // BATCH)))


def _in_order(work: Callable[[T], R], items: Iterator[T], threads: int) -> Iterator[R]:
    """Yields the results in order.

    At most `threads` are under way, and one more is waiting.
    """
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
