"""How good a synthetic table is beside real rows: per column, per pair, in prediction, and under attack.

What `fedsyn evaluate`, `Synthesizer.evaluate` and the page of a simulated run show. Every score comes with a scale: a
second sample of real rows (two random halves of them), columns drawn independently from the real one-way marginals, a
table of uniform rows. It reads real rows: nothing here is private. docs/metrics.md defines each score.

Rules that bound the work, all seeded by the caller: at most 200,000 rows of either table are read; pairs are those of
at most 60 columns (the label and others at random), counted on at most 20 million rows times pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import DataError
from fedsyn.evaluation.base import sample_rows
from fedsyn.evaluation.learners.prediction import Prediction, prediction
from fedsyn.evaluation.real import verdicts
from fedsyn.evaluation.real.attack import Attack, membership
from fedsyn.evaluation.real.scores import (
    Codes,
    Floats,
    Grouping,
    association,
    axis_labels,
    closeness,
    places,
    shares,
    shift,
)
from fedsyn.evaluation.record import COMPARISON_FILE, Evaluation
from fedsyn.table.schema import Schema

MOST_ROWS = 200_000
MOST_PAIRED_COLUMNS = 60
MOST_COUNTED = 20_000_000  # rows times pairs
_FEWEST_COUNTED_ROWS = 5_000


@dataclass(frozen=True, kw_only=True)
class ColumnScore:
    """One column.

    Attributes:
        name: of the column.
        score: 1 - total variation distance of the real and the synthetic marginal: 1 is equal, 0 is disjoint.
        halves: the same of two halves of the real rows.
        uniform: the same of the real marginal and a uniform one.
        shift: of an ordered column, how far values have moved: see `fedsyn.evaluation.real.scores.shift`.
        labels: what each code stands for.
        real, synthetic: shares of the rows that have each code.
    """

    name: str
    score: float
    halves: float
    uniform: float
    shift: float | None
    labels: tuple[str, ...]
    real: tuple[float, ...]
    synthetic: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PairScore:
    """Two columns together; scores as of one column, codes beyond 20 in groups.

    Attributes:
        first, second: the columns.
        score: of the real and the synthetic two-way marginal.
        halves: of two halves of the real rows.
        independent: of the real marginal and the product of the two real one-way marginals.
        uniform: of the real marginal and a uniform one.
        association, association_synthetic: Cramér's V (bias-corrected), real and synthetic.
    """

    first: str
    second: str
    score: float
    halves: float
    independent: float
    uniform: float
    association: float
    association_synthetic: float


@dataclass(frozen=True, kw_only=True)
class TableComparison(Evaluation):
    """What `compare_tables` found: not for publication. `columns` and `pairs` stand worst first.

    Attributes:
        columns, pairs: scores.
        prediction: training on synthetic beside training on real rows; None: see `missing`.
        attack: a membership attack; None: see `missing`.
        missing: what could not be computed -> what it would need.
        rules: how the work was bounded, one sentence each; empty where all rows and pairs were read.
        real_rows, synthetic_rows, holdout_rows: of the given tables.
        scales: metric of the run -> name of a reference -> value; None: not finite.
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
    scales: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def column_score(self) -> float:
        """Mean score of the columns."""
        return self.mean("columns", "score")

    @property
    def pair_score(self) -> float:
        """Mean score of the pairs; that of the columns where there is one column only."""
        return self.mean("pairs", "score") if self.pairs else self.column_score

    @property
    def overall(self) -> float:
        """The mean of the two."""
        return (self.column_score + self.pair_score) / 2

    def mean(self, of: str, what: str) -> float:
        """Mean over the `columns` or the `pairs` of one of their numbers."""
        return float(np.mean([getattr(item, what) for item in getattr(self, of)]))

    def sentence(self) -> str:
        """Return how good its columns and pairs are, as one clause."""
        text = f"its columns are {self.columns_verdict()[0]} (score {self.column_score:.3f} of 1)"
        if not self.pairs:
            return text
        score, independent, halves = (self.mean("pairs", what) for what in ("score", "independent", "halves"))
        kept = verdicts.position(score, independent, halves)
        if halves - independent < 0.005 or not math.isfinite(kept):
            return f"{text}, and its pairs of columns score {score:.3f}, where the real columns are nearly independent"
        share = f"{min(kept, 1):.0%}" if kept > 0 else "nothing"
        scale = f"score {score:.3f}; independent columns: {independent:.3f}"
        return f"{text}, and it keeps {share} of what links two columns ({scale})"

    def columns_verdict(self) -> verdicts.Verdict:
        """Return the words for the mean score of the columns."""
        return verdicts.of_column(self.column_score, self.mean("columns", "uniform"), self.mean("columns", "halves"))

    def __repr__(self) -> str:
        return f"TableComparison({self.sentence()}; worst {self.columns[0].name})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, without the scales of metrics, which `document` has."""
        return {name: value for name, value in super().to_dict().items() if name != "scales"}

    def document(self) -> dict[str, Any]:
        """Return what comparison.json holds."""
        private = "Read from the real rows, exactly: not for publication."
        return {"private": private, "quality": self.to_dict(), "scales": self.scales}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> TableComparison:
        """Inverse of `document`."""
        return replace(cls.from_dict(document["quality"]), scales=document["scales"])


def compare_tables(
    schema: Schema,
    real: Codes,
    synthetic: Codes,
    *,
    holdout: Codes | None = None,
    label: str | None = None,
    rng: np.random.Generator,
) -> TableComparison:
    """Compares a synthetic table with real rows.

    Args:
        schema: of the codes.
        real: (n, d) codes of the rows that the table was made from.
        synthetic: (s, d) codes of the table.
        holdout: (m, d) codes of real rows that it was not made from; without them nothing is attacked, and prediction
            is tested on a half of the real rows.
        label: what to predict; the schema's own by default.
        rng: chooses rows, halves and columns.

    Returns:
        The scores; nothing of it is private.

    Raises:
        DataError: there is no real or no synthetic row.
    """
    for name, table in (("real", real), ("synthetic", synthetic)):
        if len(table) == 0:
            raise DataError(f"the {name} table has no rows to compare")
    label = schema.label if label is None else label
    rules = []
    sizes = (len(real), len(synthetic), 0 if holdout is None else len(holdout))
    if max(sizes) > MOST_ROWS:
        rules.append(f"At most {MOST_ROWS:,} rows of each table, drawn at random, were read.")
    real, synthetic = sample_rows(real, MOST_ROWS, rng), sample_rows(synthetic, MOST_ROWS, rng)
    order = rng.permutation(len(real))
    halves = real[order[: len(real) // 2]], real[order[len(real) // 2 :]]
    columns, marginals = _columns(schema, real, synthetic, halves)
    pairs, found = _pairs(schema, (real, synthetic, *halves), marginals, label, rng)
    missing: dict[str, str] = {}
    predicted = prediction(schema, real, synthetic, holdout, label, halves, rng)
    if isinstance(predicted, str):
        missing["prediction"] = predicted
    attack = None if holdout is None else membership(schema, real, holdout, synthetic, rng)
    if attack is None:
        missing["attack"] = "needs real rows that the table was not made from (a run: data.test_fraction above 0)"
    return TableComparison(
        columns=columns,
        pairs=pairs,
        prediction=None if isinstance(predicted, str) else predicted,
        attack=attack,
        missing=missing,
        rules=(*rules, *found),
        real_rows=sizes[0],
        synthetic_rows=sizes[1],
        holdout_rows=sizes[2],
    )


def _columns(
    schema: Schema, real: Codes, synthetic: Codes, halves: tuple[Codes, Codes]
) -> tuple[tuple[ColumnScore, ...], list[Floats]]:
    """The columns' scores, worst first, and the real marginals."""
    p, q, one, other = (shares(codes, schema.domain) for codes in (real, synthetic, *halves))
    scores = []
    for axis, name in enumerate(schema.domain):
        at = places(schema, name)
        scores.append(
            ColumnScore(
                name=name,
                score=closeness(p[axis], q[axis]),
                halves=closeness(one[axis], other[axis]),
                uniform=closeness(p[axis], np.full(p[axis].size, 1 / p[axis].size)),
                shift=None if at is None else shift(p[axis], q[axis], at),
                labels=axis_labels(schema.columns[name]),
                real=_rounded(p[axis]),
                synthetic=_rounded(q[axis]),
            )
        )
    return tuple(sorted(scores, key=lambda score: score.score)), p


def _pairs(
    schema: Schema, tables: tuple[Codes, ...], marginals: list[Floats], label: str | None, rng: np.random.Generator
) -> tuple[tuple[PairScore, ...], list[str]]:
    """The pairs' scores, worst first, and the rules that bounded them; tables: real, synthetic, two real halves."""
    names, rules = list(schema.domain), []
    if len(names) > MOST_PAIRED_COLUMNS:
        others = [name for name in names if name != label]
        chosen = {*rng.permutation(others)[: MOST_PAIRED_COLUMNS - (label is not None)], label}
        rules.append(f"Pairs are those of {MOST_PAIRED_COLUMNS} of the {len(names)} columns, drawn at random.")
        names = [name for name in names if name in chosen]
    if len(names) < 2:
        return (), rules
    grouping = Grouping.of(schema, marginals, names)
    most = max(_FEWEST_COUNTED_ROWS, MOST_COUNTED // len(grouping.pairs))
    if max(len(tables[0]), len(tables[1])) > most:
        rules.append(f"Pairs were counted on at most {most:,} rows of each table, drawn at random.")
    sampled = [sample_rows(codes, most, rng) for codes in tables]
    real, synthetic, one, other = (grouping.count(codes) for codes in sampled)
    uniform = grouping.fold([np.full(size, 1 / size) for size in schema.domain.shape])
    scores = []
    for at, (a, b) in enumerate(grouping.pairs):
        table = real[at]
        scores.append(
            PairScore(
                first=names[a],
                second=names[b],
                score=closeness(table, synthetic[at]),
                halves=closeness(one[at], other[at]),
                independent=closeness(table, np.outer(table.sum(axis=1), table.sum(axis=0))),
                uniform=closeness(table, np.outer(uniform[a], uniform[b])),
                association=association(table, len(sampled[0])),
                association_synthetic=association(synthetic[at], len(sampled[1])),
            )
        )
    return tuple(sorted(scores, key=lambda score: score.score)), rules


def _rounded(distribution: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in distribution)
