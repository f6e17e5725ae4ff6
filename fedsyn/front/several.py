"""Several tables of a release, each from another posterior draw.

Error bars are computed from them (docs/analysis.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.config import FORMAT
from fedsyn.domain import Floats
from fedsyn.errors import InputError
from fedsyn.evaluation.analysis.tables import FACTS, FACTS_FILE, bins_of, marked_facts, records_facts, without_words
from fedsyn.evaluation.scores import level_of_codes, places
from fedsyn.front.archive import ReleasedRun
from fedsyn.front.conditions import restrict
from fedsyn.inference import AnyModel, Model, Posterior
from fedsyn.output import first_of, watched
from fedsyn.randomness import Randomness
from fedsyn.runs.persons import WholePersons
from fedsyn.runs.synthesis import BATCH, MOST_UNASKED, Make, batches, write_synthetic
from fedsyn.table.data.writers import ArrowRows
from fedsyn.table.schema import Schema
from fedsyn.table.schema.frames import Kind, in_kind
from fedsyn.table.schema.joined import apart
from fedsyn.table.schema.people import People
from fedsyn.table.schema.persons import COUNT, person_attributes

if TYPE_CHECKING:
    import pandas as pd

#: Tables of one analysis at most.
MOST_TABLES = 1000
# Rows of a table / real rows. The rules that combine tables take the spread between them and subtract what their own
# rows add; the less that is, the less is left to chance (docs/analysis.md).
_LARGER = 5
T = TypeVar("T")


class PosteriorTables:
    """Tables of a release, each from another posterior draw.

    Their rows meet the conditions.

    Attributes:
        real: number of real rows that meet the conditions, as released.
        size: rows of each table.
        schema: of the tables; of records it has one row a person.
        facts: what an analysis must know of them.

    Raises:
        InputError: the model has no potentials, the run kept no measurements, or no row meets the conditions.
    """

    def __init__(self, release: ReleasedRun, rows: int | None, where: Mapping[str, Any]) -> None:
        if release.evidence is None:
            raise InputError(
                "several tables need the run's measurements.npz, which a mechanism without marginals does not write"
            )
        schema, persons = as_table(release.schema), release.schema.of_persons
        own = () if persons is None else person_attributes(release.schema.rows)
        of_rows = {*schema.columns} - {*own, COUNT} if persons is not None and persons.in_order else set()
        if beyond := sorted(of_rows & {*where}):
            raise InputError(
                f"where: '{beyond[0]}' differs between the rows of a person, and tables for an analysis can be "
                f"restricted to persons alone: {first_of(own, 10) or 'none'}"
            )
        self._posterior = Posterior(release.model, release.evidence, numbers_of(schema, release.model))
        self.schema, self._where = schema, where
        self.real = restrict(schema, self._posterior.centre, where)[1].total
        self.size = min(MOST_UNASKED, max(1, round(_LARGER * self.real))) if rows is None else rows
        self.facts: dict[str, Any] = {"held": held_of(schema, self._posterior), "given": sorted(where)}
        if persons is not None:
            self.facts["records"] = records_facts(release.schema)

    def draws(
        self, count: int, randomness: Randomness, progress: bool | None = None
    ) -> Iterator[tuple[Schema, Model, Randomness]]:
        """Yields the schema, model and randomness of each table.

        A bar shows how many were used, as `progress_bar` has it.
        """
        for number in watched(range(1, count + 1), "drawing tables", progress):
            model = self._posterior.draw(randomness.ordinary("posterior", number))
            # Where numbers lie inside bins is open to some extent, and each column takes another place in it.
            at = randomness.ordinary("inside bins", number).uniform(-1.0, 1.0, len(self.schema.columns))
            lean = dict(zip(self.schema.columns, at.tolist(), strict=True))
            schema, conditioned = restrict(self.schema, model, self._where, lean)
            if not isinstance(conditioned, Model):
                raise InputError("several tables cannot be cut inside a bin: ask for whole bins, or for no condition")
            yield schema, conditioned, randomness.child("table", number)


def as_table(schema: Schema) -> Schema:
    """Returns the schema of a table as a model has it.

    Records stand in it one by one, whole persons are not made of them. Columns that no file has stand in it, too: what
    a model knows of a stay is in them.
    """
    if schema.of_persons is None:
        hidden = {one.name: {"hidden": False} for one in schema.compiled.hidden}
        return schema.edited(**hidden) if hidden else schema
    return Schema(columns=schema.columns, missing_values=schema.missing_values, approved=schema.approved)


def numbers_of(schema: Schema, model: AnyModel) -> dict[str, Floats]:
    """Returns the numbers that codes stand for.

    Only columns with an order have them. A bin stands for the mean inside it, as the model's counts suggest it.
    """
    known = {name: at for name in schema.columns if (at := places(schema, name)) is not None}
    shares = zip(known.items(), model.project_many([(name,) for name in known]), strict=True)
    return {
        name: level_of_codes(schema.columns[name], np.maximum(share, 0.0) / model.total, at, model.total)
        for (name, at), share in shares
    }


def frame_of(
    schema: Schema, model: AnyModel, rows: int, randomness: Randomness, independent: bool = False
) -> pd.DataFrame:
    """Returns rows of a model as a DataFrame.

    Of records it returns all rows of as many persons.
    """
    import pandas as pd

    parts = list(_decoded(schema, schema.rows.decode, model, batches(model, rows, randomness, independent)))
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)


def table_of(schema: Schema, model: AnyModel, rows: int, randomness: Randomness, kind: Kind) -> Any:
    """Returns rows of a model as a table of `kind`.

    The values do not depend on the kind.
    """
    if kind == "pandas":
        return frame_of(schema, model, rows, randomness)
    import pyarrow as pa

    arrow_rows = ArrowRows(schema.rows)
    parts = _decoded(schema, arrow_rows.batch, model, batches(model, rows, randomness))
    return in_kind(pa.Table.from_batches(parts, arrow_rows.fields.remove_metadata()), kind)


def tables_of(schema: Schema, model: AnyModel, rows: int, randomness: Randomness, kind: Kind) -> Any:
    """Returns rows of a model as a table of `kind`.

    Where the schema has two tables, they come by their names.
    """
    persons = schema.of_persons
    if persons is None or persons.tables is None:
        return table_of(schema, model, rows, randomness, kind)
    import pyarrow as pa

    frames = apart(frame_of(schema, model, rows, randomness), schema.rows)
    if kind == "pandas":
        return frames
    return {
        name: in_kind(pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(), kind)
        for name, frame in frames.items()
    }


def _decoded(
    schema: Schema,
    decode: Callable[[npt.NDArray[np.integer], np.random.Generator, int, People | None], T],
    model: AnyModel,
    numbered: Iterable[tuple[Make, np.random.Generator]],
) -> Iterator[T]:
    whole = None if schema.of_persons is None else WholePersons(schema, model)
    for number, (make, rng) in enumerate(numbered):
        if whole is None:
            yield decode(make(), rng, number * BATCH, None)
        else:
            rows, people = whole.of(schema.placed(make(), rng), rng, number * BATCH)
            yield decode(rows, rng, 0, people)


def frames_of_posterior(
    release: ReleasedRun,
    count: int,
    rows: int | None,
    where: Mapping[str, Any],
    randomness: Randomness,
    progress: bool | None = None,
) -> Iterator[pd.DataFrame]:
    """Yields one table per draw of the posterior.

    Raises:
        InputError: as `PosteriorTables`, or not a number of tables.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_TABLES:
        raise InputError(f"tables: expected a number of tables from 1 to {MOST_TABLES}, found {count!r}")
    tables = PosteriorTables(release, rows, where)
    facts = {**tables.facts, "real_rows": tables.real, "bins": bins_of(tables.schema)}
    facts |= {"marked": marked} if (marked := marked_facts(tables.schema)) else {}
    for schema, model, stream in tables.draws(count, randomness, progress):
        frame = frame_of(schema, model, tables.size, stream, independent=True)
        frame = without_words(frame, schema) if "records" in facts else frame
        frame.attrs[FACTS] = facts
        yield frame


def held_of(schema: Schema, posterior: Posterior) -> list[list[str]]:
    """Returns the sets of columns that were measured cell by cell.

    Each set also has the columns that constraints compute from nothing else.
    """
    sets = []
    for clique in posterior.held:
        known = list(clique)
        for step in schema.compiled.steps:  # in an order in which they can be computed
            if set(step.sources) <= set(known):
                known.append(step.name)
        sets.append(known)
    return sets


def write_tables(
    out: Path,
    release: ReleasedRun,
    count: int,
    rows: int | None,
    where: Mapping[str, Any],
    seed: int | None,
    begins: Callable[[int], None] = lambda number: None,
) -> int:
    """Writes tables, their schema and tables.json into an existing folder.

    The tables are table_01.csv and so on, the schema is schema.yaml. Returns the number of rows of each
    table. `begins` takes the number of each table before it is drawn.
    """
    tables, named = PosteriorTables(release, rows, where), []
    begins(1)
    for number, (schema, model, stream) in enumerate(tables.draws(count, Randomness(seed)), 1):
        name = f"table_{number:0{max(2, len(str(count)))}}.csv"
        named.append({"file": name, "rows": tables.size})
        write_synthetic(out / name, schema, model, tables.size, stream, keep=False, independent=True)
        if number < count:
            begins(number + 1)
    tables.schema.save(out / "schema.yaml")
    facts = {
        "format": FORMAT,
        "tables": named,
        "real_rows": tables.real,
        **tables.facts,
        "seed": seed,
        "run": release.config.sha256,
        "private": bool(release.ledger.get("private", False)),
    }
    (out / FACTS_FILE).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return tables.size
