"""Comparison of a synthetic table with real rows, value by value.

Columns, pairs, prediction and an attack are compared.

What `fedsyn evaluate`, `Synthesizer.evaluate` and the page of a simulated run show: what became of each column (its
moments, its shares, what is missing, what no real row has), and of each pair that something links. Both tables are read
as they are written, in codes that the real rows alone give (`fedsyn.evaluation.real.reading`): the schema that made the
table has no say, or what it cannot see nobody would. It reads real rows: nothing here is private. docs/metrics.md
defines each figure; `fedsyn.evaluation.verdict` says what is lost.

Rules that bound the work, all seeded by the caller: at most 200,000 rows of either table are read; pairs are those of
at most 60 columns (the label and others at random), counted on at most 20 million rows times pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsyn.errors import DataError
from fedsyn.evaluation.inputs import sample_rows
from fedsyn.evaluation.real.attack import Attack, membership
from fedsyn.evaluation.real.between import ends_of, with_between
from fedsyn.evaluation.real.columns import ColumnScore, ReadColumn, Through, column_score, through_schema
from fedsyn.evaluation.real.constraints import ConstraintScore, constraint_scores
from fedsyn.evaluation.real.pairs import PairScore, scored_pairs
from fedsyn.evaluation.real.persons import PersonsScore, persons_score, whole_people
from fedsyn.evaluation.real.prediction import Prediction, prediction
from fedsyn.evaluation.real.propensity import Propensity, propensity
from fedsyn.evaluation.real.reading import Reading, Readings
from fedsyn.evaluation.real.regressions import RegressionScore
from fedsyn.evaluation.real.regressions import regressions as compared_regressions
from fedsyn.evaluation.real.repeats import Repeats, repeats
from fedsyn.evaluation.record import COMPARISON_FILE, Evaluation, of_unlisted, sentence
from fedsyn.evaluation.scores import Codes, Floats
from fedsyn.evaluation.verdict import LOST, Verdict, foremost
from fedsyn.lazy import pd
from fedsyn.notebook import Bar, View
from fedsyn.output import first_of
from fedsyn.table.schema import Schema
from fedsyn.table.schema.joined import there_are
from fedsyn.table.schema.whose import PersonColumn, of_nobody

MOST_ROWS = 200_000
MOST_PAIRED_COLUMNS = 60
MOST_COUNTED = 20_000_000  # rows times pairs
_FEWEST_COUNTED_ROWS = 5_000
_SOME_ROWS = f"At most {MOST_ROWS:,} rows of each table, drawn at random, were read."
_HELD_OUT = "needs real rows that the table was not made from (a run: data.test_fraction above 0)"
_THROUGH = 5_000  # real rows that a schema alone is tried on
#: What stands beside what a comparison shows.
NOT_PRIVATE = "Read from the real rows, exactly: not for publication."


@dataclass(frozen=True, kw_only=True)
class TableComparison(Evaluation):
    """Findings of `compare_tables`, not for publication.

    `columns` and `pairs` stand worst first.

    Attributes:
        columns, pairs: scores.
        prediction: training on synthetic beside training on real rows; None: see `missing`.
        attack: a membership attack; None: see `missing`.
        missing: what could not be computed -> what it would need.
        rules: how the work was bounded, one sentence each; empty where all rows and pairs were read.
        real_rows, synthetic_rows, holdout_rows: of the given tables.
        label: the column to predict; None: none was named.
        propensity: how well a model tells synthetic rows from real ones; None: see `missing`.
        regressions: those that were named, else that of the label; None: see `missing`.
        repeats: rows that repeat others.
        persons: of a table that has several rows of one person; None: its rows stand for themselves, or see `missing`.
        constraints: of the schema; empty where there is none.
        scales: metric of the run -> name of a reference -> value; None: not finite.
        limits: what to do about limits on the model's size that cost much, as one clause; empty where none do.
    """

    FILE = COMPARISON_FILE
    LABEL = "compared"
    PUBLIC = False

    columns: tuple[ColumnScore, ...]
    pairs: tuple[PairScore, ...]
    prediction: Prediction | None
    attack: Attack | None
    missing: Mapping[str, str]
    rules: tuple[str, ...]
    real_rows: int
    synthetic_rows: int
    holdout_rows: int
    label: str | None = None
    propensity: Propensity | None = None
    regressions: tuple[RegressionScore, ...] | None = None
    repeats: Repeats
    persons: PersonsScore | None = None
    constraints: tuple[ConstraintScore, ...] = ()
    scales: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    limits: str = ""

    @property
    def column_score(self) -> float:
        """Mean score of the columns."""
        return float(np.mean([column.score for column in self.columns]))

    def verdict(self) -> Verdict:
        """Returns what the table is fit for."""
        links = [pair for pair in self.pairs if pair.linked]
        names, unseen = [(pair.first, pair.second) for pair in links], ""
        if not links:
            unseen = f"no link of two columns is beyond chance in {self.real_rows:,} real rows, so none was judged"
        elif any(rule.startswith("Pairs are") for rule in self.rules):
            unseen = f"only pairs of {MOST_PAIRED_COLUMNS} of the {len(self.columns)} columns were judged"
        training, why = None, self.missing.get("prediction", "")
        if (prediction := self.prediction) and prediction.can_judge:
            training = prediction.kept, f"a model that learned {prediction.label} from it {prediction.words()}"
        elif prediction:
            why = prediction.words()
        return Verdict(
            columns=[column.judged() for column in self.columns],
            links=[pair.judged() for pair in links],
            foremost=[links[at].judged() for at in foremost(names, [one.association for one in links], self.label)],
            questions=[found for one in self.regressions or () if one.named and (found := one.judged())],
            rows=[self.repeats.judged()],
            persons=None if self.persons is None else self.persons.judged(),
            unseen=unseen,
            training=training,
            why=why,
            next=self.remedy(),
        )

    def remedy(self) -> str:
        """Returns what would help most, as one clause."""
        if self.persons and (names := self.persons.torn()):
            return f"name {first_of(names, 3)} under persons.constant in the schema"
        lost = [column for column in self.columns if column.judged().state == "lost"]
        ends = ends_of([column.name for column in self.columns])
        if apart := [ends[column.name] for column in lost if column.name in ends and column.by_schema]:
            early, late = apart[0]
            return f"keep what lies between {early} and {late} in a hidden column of the schema"
        unread = [column for column in lost if column.name not in ends and max(column.gone, column.new) > LOST["other"]]
        if read := [column for column in unread if column.gone > LOST["other"] or column.ordered]:
            numbers = [column.name for column in read if column.ordered]
            return of_unlisted([column.name for column in read], numbers)
        if self.limits:
            return self.limits
        if cut := [column.name for column in lost if column.by_schema]:
            return f"set other bounds and bins for {first_of(cut, 3)}. The real rows lose as much to them without noise"
        links = [pair for pair in self.pairs if pair.linked and pair.judged().state == "lost"]
        sizes = {column.name: column.codes for column in self.columns}
        cells = [sizes[pair.first] * sizes[pair.second] for pair in links]
        if cells and float(np.median(cells)) > max(64, self.real_rows / 20):
            return f"use fewer bins. A lost pair has {np.median(cells):,.0f} cells for {self.real_rows:,} rows (median)"
        amiss = [pair.judged() for pair in self.pairs if pair.linked] + [column.judged() for column in self.columns]
        amiss += self.persons.judged().every if self.persons else ()
        kept = all(one.state == "kept" for one in amiss)
        return "" if kept else f"raise epsilon or bring more {'rows' if self.persons is None else 'people'}"

    def sentence(self) -> str:
        """Returns the verdict, as one clause."""
        return self.verdict().sentence()

    def __repr__(self) -> str:
        return f"TableComparison({self.sentence()})"

    def _view(self) -> View:
        verdict = self.verdict()
        persons = verdict.persons.every if verdict.persons else ()
        both = [*verdict.columns, *verdict.links, *verdict.questions, *verdict.rows, *persons]
        rows = [(one.name, one.state, one.why) for one in both]
        bars = [Bar(one.name, one.loss) for one in both]
        head, note = ("column, linked pair or regression", "verdict", "its largest loss"), NOT_PRIVATE
        return View(sentence(self.sentence()), head, rows, [note], "loss: above 0.5 changed, above 1 lost", bars)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, without the scales of metrics, which `document` has."""
        facts = {name: value for name, value in super().to_dict().items() if name != "scales"}
        return {"verdict": self.sentence(), **facts}

    def document(self) -> dict[str, Any]:
        """Returns what comparison.json holds."""
        return {"private": NOT_PRIVATE, "quality": self.to_dict(), "scales": self.scales}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> TableComparison:
        """Reads what `document` wrote.

        Raises ValueError if it is of a version that judged otherwise.
        """
        return replace(cls.from_dict(document["quality"]), scales=document["scales"])


def compare_tables(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    *,
    holdout: pd.DataFrame | None = None,
    label: str | None = None,
    schema: Schema | None = None,
    regressions: Sequence[str] = (),
    rng: np.random.Generator,
) -> TableComparison:
    """Compares a synthetic table with real rows.

    Args:
        real: the rows that the table was made from; text as their file has it.
        synthetic: the table, as it is written.
        holdout: real rows that it was not made from; without them nothing is attacked, and prediction is tested on a
            half of the real rows.
        label: what to predict; None: the schema's own, if there is a schema.
        schema: of the synthetic table, which says what it loses by itself, and which constraints there are. It reads no
            value that is judged.
        regressions: formulas such as `sbp ~ age + arm`, whose coefficients are compared; none: that of the label on
            what is linked to it most.
        rng: chooses rows, halves and columns.

    Returns the scores of the columns that both tables have; nothing of it is private.

    Raises:
        ConfigError: a regression cannot be read, or needs a package that is missing.
        DataError: there is no real or no synthetic row, no column in common, no such label, or the real rows have no
            such regression.
    """
    _require_rows(real, synthetic)
    label = schema.label if label is None and schema is not None else label
    names, rules = _shared_columns(real, synthetic, schema, label)
    sizes = _sizes(schema, real=real, synthetic=synthetic, holdout=holdout)
    rules += [_SOME_ROWS] * (max(sizes.values()) > MOST_ROWS)
    by = PersonColumn.of(schema)
    whole = [_sampled(table, MOST_ROWS, rng, by) for table in (real, synthetic, holdout) if table is not None]
    tables, every = with_between(whole if schema is None else _there(schema, whole), names)
    paired, most, pair_rules = _paired_columns(every, label, max(map(len, tables[:2])), rng)
    counted = [sample_rows(np.arange(len(table)), most, rng) for table in tables[:2]]
    through = {} if schema is None else through_schema(schema, _sampled(tables[0], _THROUGH, rng), rng)
    columns, readings, codes, numbers = _read_columns(every, tables, paired, counted, through, by)
    some, apart = [of[at] for of, at in zip(codes, counted, strict=False)], _people(by, tables[:2], counted)
    pairs = scored_pairs(readings, paired, some, numbers, apart=apart)
    found = _of_the_whole(columns, pairs, readings, codes, [t[every] for t in tables[:2]], regressions, label, rng)
    if schema is not None and schema.persons is not None:
        found["persons"] = persons_score(whole[0], whole[1], names, schema, rng)
    missing = {what: why for what, why in found.items() if isinstance(why, str)}
    known: dict[str, Any] = {what: None if what in missing else one for what, one in found.items()}
    known |= {f"{table}_rows": rows for table, rows in sizes.items()}
    return TableComparison(
        columns=tuple(sorted(columns, key=lambda column: -column.judged().loss)),
        pairs=pairs,
        missing=missing,
        rules=(*rules, *pair_rules),
        label=label,
        constraints=tuple(constraint_scores(tables[0], tables[1], schema)),
        **known,
    )


def _require_rows(real: pd.DataFrame, synthetic: pd.DataFrame, why: str = "has no rows to compare") -> None:
    if not len(real) or not len(synthetic):
        raise DataError(f"the {'synthetic' if len(real) else 'real'} table {why}")


def _there(schema: Schema, whole: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Returns tables without the persons who have no row."""
    tables = [there_are(schema, table) for table in whole]
    _require_rows(tables[0], tables[1], "has persons, none of whom has a row")
    return tables


def _sizes(schema: Schema | None, **tables: pd.DataFrame | None) -> dict[str, int]:
    """Returns the rows of each table; a person without one has none."""

    def rows_in(table: pd.DataFrame) -> int:
        return len(table) if schema is None else int((~of_nobody(schema, table)).sum())

    return {name: 0 if table is None else rows_in(table) for name, table in tables.items()}


def _of_the_whole(
    columns: Sequence[ColumnScore],
    pairs: Sequence[PairScore],
    readings: Readings,
    codes: Sequence[Codes],
    tables: Sequence[pd.DataFrame],
    named: Sequence[str],
    label: str | None,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Returns scores of the table as a whole.

    A score that could not be computed is a text, which says what it would need.

    Args:
        columns, pairs: all scores.
        readings: of the columns.
        codes: of the real, the synthetic and, if there are any, the held-out rows.
        tables: real and synthetic rows.
        named: regressions that somebody named.
        label: what to predict.
        rng: chooses rows and halves.
    """
    real, synthetic, held_out = codes[0], codes[1], codes[2] if len(codes) > 2 else None
    order = rng.permutation(len(real))
    halves = real[order[: len(order) // 2]], real[order[len(order) // 2 :]]
    found: dict[str, Any] = {"prediction": prediction(readings, real, synthetic, held_out, label, halves, rng)}
    attack = None if held_out is None else membership(readings, real, held_out, synthetic, rng)
    found["attack"] = attack or _HELD_OUT
    found["propensity"] = propensity(real, synthetic, rng)
    # The columns that are linked to the label, the strongest first.
    links = sorted((pair for pair in pairs if pair.linked), key=lambda pair: -pair.association)
    strongest = [
        pair.second if pair.first == label else pair.first for pair in links if label in (pair.first, pair.second)
    ]
    notations = {name: reading.notation for name, reading in readings.columns.items()}
    found["regressions"] = compared_regressions(named, tables[0], tables[1], label, strongest, notations)
    # Rows that a lost column made equal repeat no row.
    kept = [column.name for column in columns if column.judged().state != "lost"] or [one.name for one in columns]
    return {**found, "repeats": repeats(tables[0][kept], tables[1][kept], rng)}


def _shared_columns(
    real: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema | None, label: str | None
) -> tuple[list[str], list[str]]:
    """Returns the columns to compare.

    A rule names those that only the synthetic table has.
    """
    afresh = () if schema is None else schema.aside  # identifiers that are made, not modelled
    names = [name for name in synthetic.columns if name not in afresh]
    alone = [str(name) for name in names if name not in real.columns]
    names = [name for name in names if name in real.columns]
    if not names:
        raise DataError("the two tables have no column in common")
    if label is not None and label not in names:
        raise DataError(f"the two tables have no column '{label}' in common, which is to be predicted")
    return names, [f"Not judged, because the real rows lack them: {first_of(alone, 3)}."] if alone else []


def _read_columns(
    names: Sequence[str],
    tables: Sequence[pd.DataFrame],
    paired: Sequence[str],
    counted: Sequence[Codes],
    through: Mapping[str, Through],
    by: PersonColumn | None,
) -> tuple[list[ColumnScore], Readings, list[Codes], dict[str, list[Floats]]]:
    """Reads and scores column after column.

    No more than one is in memory value by value.

    Args:
        names: of the columns.
        tables: real, synthetic and held-out rows.
        paired: columns whose correlations are wanted.
        counted: real and synthetic rows that they are of.
        through: see `through_schema`.
        by: column of persons; None: each row stands for itself.

    Returns:
        The scores; how values get codes; (rows, columns) codes of each table; the numbers of paired columns.
    """
    columns, readings, numbers = list[ColumnScore](), dict[str, Reading](), dict[str, list[Floats]]()
    codes: list[list[Codes]] = [[] for _ in tables]
    whose = None if by is None else by.numbered(tables[0])
    for name in names:
        column = ReadColumn.of([table[name] for table in tables], whose)
        readings[name] = column.reading
        for some, own in zip(codes, column.codes, strict=True):
            some.append(own)
        if name in paired and column.reading.ordered:
            numbers[name] = [cells.numbers[rows] for cells, rows in zip(column.tables, counted, strict=False)]
        columns.append(column_score(name, column, through.get(name)))
    return columns, Readings(readings), [np.stack(some, axis=1) for some in codes], numbers


def _people(by: PersonColumn | None, tables: Sequence[pd.DataFrame], rows: Sequence[Codes]) -> tuple[int, int] | None:
    """Returns the persons among some rows of both tables.

    None: each row stands for itself.
    """
    whose = [None if by is None else by.numbered(table) for table in tables]
    real, synthetic = (0 if one is None else len(np.unique(one[some])) for one, some in zip(whose, rows, strict=True))
    return None if any(one is None for one in whose) else (real, synthetic)


def _sampled(table: pd.DataFrame, rows: int, rng: np.random.Generator, by: PersonColumn | None = None) -> pd.DataFrame:
    """Returns different rows in their order; all where there are no more.

    `by` is a column of persons who stay whole.
    """
    if len(table) <= rows:
        return table
    if by is not None and (whose := by.numbered(table)) is not None:
        return table.loc[whole_people(whose, rows, rng)]
    return table.iloc[np.sort(rng.choice(len(table), rows, replace=False))]


def _paired_columns(
    names: Sequence[str], label: str | None, rows: int, rng: np.random.Generator
) -> tuple[list[str], int, list[str]]:
    """Returns columns whose pairs are counted, rows, and rules.

    The label is always among them. `rows` are those of the larger table.
    """
    chosen, rules = list(names), list[str]()
    if len(names) > MOST_PAIRED_COLUMNS:
        others = [name for name in names if name != label]
        drawn = {*rng.permutation(others)[: MOST_PAIRED_COLUMNS - (label is not None)], label}
        chosen = [name for name in names if name in drawn]
        rules.append(f"Pairs are those of {MOST_PAIRED_COLUMNS} of the {len(names)} columns, drawn at random.")
    most = max(_FEWEST_COUNTED_ROWS, MOST_COUNTED // max(1, len(chosen) * (len(chosen) - 1) // 2))
    if len(chosen) > 1 and rows > most:
        rules.append(f"Pairs were counted on at most {most:,} rows of each table, drawn at random.")
    return chosen if len(chosen) > 1 else [], most, rules
