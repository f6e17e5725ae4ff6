"""Comparison of a synthetic table with real rows.

Columns, pairs, prediction and an attack are compared.

What `fedsyn evaluate`, `Synthesizer.evaluate` and the page of a simulated run show: what became of each column (its
moments, its shares, values that are `other`), and of each pair that something links. It reads real rows: nothing here
is private. docs/metrics.md defines each figure; `fedsyn.evaluation.verdict` says what is lost.

Rules that bound the work, all seeded by the caller: at most 200,000 rows of either table are read; pairs are those of
at most 60 columns (the label and others at random), counted on at most 20 million rows times pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import DataError
from fedsyn.evaluation.inputs import sample_rows
from fedsyn.evaluation.real.attack import Attack, membership
from fedsyn.evaluation.real.prediction import Prediction, prediction
from fedsyn.evaluation.record import COMPARISON_FILE, Evaluation, of_unlisted, percents, sentence
from fedsyn.evaluation.scores import (
    Codes,
    Floats,
    Grouping,
    Moments,
    axis_labels,
    closeness,
    correlations,
    levels,
    link,
    moments_of_shares,
    places,
    shares,
)
from fedsyn.evaluation.verdict import (
    CHANCE,
    LEAST_LINK,
    LOST,
    Correlation,
    Judged,
    Verdict,
    few,
    folded,
    judged,
    judged_link,
)
from fedsyn.notebook import Bar, View
from fedsyn.table.schema import BinnedColumn, CategoricalColumn, Schema
from fedsyn.table.schema.binned import NUMBERS
from fedsyn.table.schema.columns import Column

MOST_ROWS = 200_000
MOST_PAIRED_COLUMNS = 60
MOST_COUNTED = 20_000_000  # rows times pairs
_FEWEST_COUNTED_ROWS = 5_000
#: What stands beside what a comparison shows.
NOT_PRIVATE = "Read from the real rows, exactly: not for publication."


@dataclass(frozen=True, kw_only=True)
class ColumnScore:
    """One column.

    Attributes:
        name: of the column.
        score: 1 - total variation distance of the real and the synthetic marginal: 1 is equal, 0 is disjoint.
        moved: share of the rows that would have to change their group of values, of at most 8; of listed values.
        other: share of the real rows whose value is in the category `other`.
        unlisted: share of the real rows whose value the schema does not list, and no synthetic row has.
        moments: mean and standard deviation of the real values and of the synthetic ones; None without order.
        ordered: whether its values are numbers or dates; plain: whether they are numbers.
        lists_numbers: whether it lists text that is mostly numbers.
        cut: whether the real values lose their mean or standard deviation already by the schema's bounds and bins.
        labels: what each code stands for.
        real, synthetic: shares of the rows that have each code.
    """

    name: str
    score: float
    moved: float
    other: float
    moments: tuple[Moments, Moments] | None
    ordered: bool
    plain: bool
    labels: tuple[str, ...]
    real: tuple[float, ...]
    synthetic: tuple[float, ...]
    lists_numbers: bool = False
    cut: bool = False
    unlisted: float = 0.0

    def judged(self) -> Judged:
        """Returns what became of the column, by the worst of its losses."""
        losses = [("rows", self.moved, f"{percents(self.moved)} of the rows would have to change")]
        losses.append(("other", self.other, f"{percents(self.other)} of the real rows are 'other', an unlisted value"))
        if self.unlisted:
            words = (
                f"{percents(self.unlisted)} of the real rows hold values of '{self.name}' that the schema does not list"
            )
            losses.append(("other", self.unlisted, words))
        if self.moments is not None:
            losses += _of_moments(*self.moments, self.plain)
        if not self.ordered:
            real, synthetic = self._listed_shares()
            top = int(np.argmax(real))
            was, now = float(real[top]), float(synthetic[top])
            losses.append(
                ("share", abs(was - now), f"{self.labels[top]!r} had {was:.0%} of the rows and has {now:.0%}")
            )
        return judged(self.name, losses)

    def _listed_shares(self) -> tuple[Floats, Floats]:
        """Returns the real and the synthetic shares among listed values."""
        real, synthetic = np.array(self.real), np.array(self.synthetic)
        return (listed(real), listed(synthetic)) if self.unlisted else (real, synthetic)


def listed(share: Floats) -> Floats:
    """Returns shares without those of the last code, which is not listed.

    They sum to 1, or are all 0.
    """
    known = np.append(share[:-1], 0.0)
    return np.asarray(known / max(known.sum(), 1e-300))


def _of_moments(real: Moments, synthetic: Moments, plain: bool) -> list[tuple[str, float, str]]:
    """Returns the losses of a mean and a standard deviation.

    `plain` says that the values are numbers.
    """
    (mean, sd), (synthetic_mean, synthetic_sd) = real, synthetic
    off = abs(synthetic_mean - mean) / sd if sd else 10.0 if mean != synthetic_mean else 0.0
    words = f"its mean moved by {off:.2f} standard deviations"
    moved = f"{words}, from {number(mean)} to {number(synthetic_mean)}" if plain else words
    turned = synthetic_sd / sd if sd else 1.0 if sd == synthetic_sd else math.inf
    words = f"its standard deviation is {turned:.2f} times the real one"
    return [("mean", off, moved), ("spread", min(10.0, abs(math.log(turned))) if turned else 10.0, words)]


def number(value: float) -> str:
    """A moment, as people write it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True, kw_only=True)
class PairScore:
    """Two columns together, codes beyond 8 in groups.

    Attributes:
        first, second: the columns.
        score: 1 - total variation distance of the real and the synthetic two-way marginal.
        association, association_synthetic: Cramér's V (bias-corrected), real and synthetic.
        kept: how much of what links them is in the table: `fedsyn.evaluation.scores.Link`.
        linked: whether something links the real columns, beyond chance and by V = 0.1 at least.
        correlation: of two columns with bins; None where the real one is below 0.1.
    """

    first: str
    second: str
    score: float
    association: float
    association_synthetic: float
    kept: float
    linked: bool
    correlation: Correlation | None = None

    @property
    def name(self) -> str:
        """Both columns."""
        return f"{self.first} × {self.second}"

    def judged(self) -> Judged:
        """Returns what became of the link."""
        return judged_link(self.name, self.association, self.association_synthetic, self.kept, linear=self.correlation)


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
    label: str | None = None
    scales: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def column_score(self) -> float:
        """Mean score of the columns."""
        return float(np.mean([column.score for column in self.columns]))

    def verdict(self) -> Verdict:
        """Returns what the table is fit for."""
        links = [pair for pair in self.pairs if pair.linked]
        unseen = ""
        if not links:
            unseen = f"no link of two columns is beyond chance in {self.real_rows:,} real rows, so none was judged"
        elif any(rule.startswith("Pairs are") for rule in self.rules):
            unseen = f"pairs of {MOST_PAIRED_COLUMNS} of the {len(self.columns)} columns alone were judged"
        training, why = None, self.missing.get("prediction", "")
        if (prediction := self.prediction) and prediction.can_judge:
            training = prediction.kept, f"a model that learned {prediction.label} from it {prediction.words()}"
        elif prediction:
            why = prediction.words()
        return Verdict(
            columns=[column.judged() for column in self.columns],
            links=[pair.judged() for pair in links],
            foremost=[pair.judged() for pair in foremost(links, self.label)],
            unseen=unseen,
            training=training,
            why=why,
            next=self.remedy(),
        )

    def remedy(self) -> str:
        """Returns what would help most, as one clause."""
        folded = [column.name for column in self.columns if column.other > LOST["other"]]
        unlisted = [column for column in self.columns if column.unlisted > LOST["other"]]
        folded += [column.name for column in unlisted if not column.ordered]
        lost = [pair for pair in self.pairs if pair.linked and pair.judged().state == "lost"]
        if folded or unlisted:
            numbers = [column.name for column in self.columns if column.lists_numbers]
            return of_unlisted(folded, numbers, [column.name for column in unlisted if column.ordered])
        if cut := [column.name for column in self.columns if column.cut]:
            return f"bounds and bins that fit the values of {few(cut)}: the real rows lose as much to them"
        sizes = {column.name: len(column.labels) for column in self.columns}
        cells = [sizes[pair.first] * sizes[pair.second] for pair in lost]
        if cells and float(np.median(cells)) > max(64, self.real_rows / 20):
            return f"fewer bins: two columns have {np.median(cells):,.0f} cells for {self.real_rows:,} rows"
        amiss = lost or any(column.judged().state == "lost" for column in self.columns)
        return "a larger epsilon or more rows" if amiss else ""

    def sentence(self) -> str:
        """Returns the verdict, as one clause."""
        return self.verdict().sentence()

    def __repr__(self) -> str:
        return f"TableComparison({self.sentence()})"

    def _view(self) -> View:
        verdict = self.verdict()
        both = [*verdict.columns, *verdict.links]
        rows = [(one.name, one.state, one.why) for one in both]
        bars = [Bar(one.name, one.loss) for one in both]
        head, note = ("column or linked pair", "verdict", "its largest loss"), NOT_PRIVATE
        return View(sentence(self.sentence()), head, rows, [note], "loss: 0.5 is weakened or moved, 1 is lost", bars)

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


def foremost(links: Sequence[PairScore], label: str | None) -> list[PairScore]:
    """Returns the links that matter most.

    They are the strongest, and the label's that are half as strong as its strongest: to lose such a link is to lose
    as much as is called lost of the strongest.
    """
    strongest = max(links, key=lambda pair: pair.association, default=None)
    of_label = [pair for pair in links if label in (pair.first, pair.second)]
    least = (1.0 - LOST["link"]) * max((pair.association for pair in of_label), default=0.0)
    return [pair for pair in links if pair is strongest or (pair in of_label and pair.association >= least)]


def compare_tables(
    schema: Schema,
    real: Codes,
    synthetic: Codes,
    *,
    holdout: Codes | None = None,
    label: str | None = None,
    moments: tuple[Sequence[Moments | None] | None, Sequence[Moments | None] | None] = (None, None),
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
        moments: `scores.moments` of the values themselves in the columns with bins, real and synthetic; None: values
            are taken to lie in their bins as a table has them.
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
    rules = [f"Not judged, because constraints compute them: {', '.join(schema.derived)}."] if schema.derived else []
    sizes = (len(real), len(synthetic), 0 if holdout is None else len(holdout))
    if max(sizes) > MOST_ROWS:
        rules.append(f"At most {MOST_ROWS:,} rows of each table, drawn at random, were read.")
    real, synthetic = sample_rows(real, MOST_ROWS, rng), sample_rows(synthetic, MOST_ROWS, rng)
    order = rng.permutation(len(real))
    halves = real[order[: len(real) // 2]], real[order[len(real) // 2 :]]
    columns, marginals = _columns(schema, real, synthetic, moments)
    pairs, pair_rules = _pairs(schema, (real, synthetic), marginals, label, rng)
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
        rules=(*rules, *pair_rules),
        real_rows=sizes[0],
        synthetic_rows=sizes[1],
        holdout_rows=sizes[2],
        label=label,
    )


def _columns(
    schema: Schema,
    real: Codes,
    synthetic: Codes,
    moments: tuple[Sequence[Moments | None] | None, Sequence[Moments | None] | None],
) -> tuple[tuple[ColumnScore, ...], list[Floats]]:
    """The columns, worst first, and the real marginals."""
    # One-way shares in codes and in few groups.
    p, q = (shares(codes, schema.domain) for codes in (real, synthetic))
    grouping = Grouping.of(schema, p, list(schema.domain))
    known_p, known_q = (
        [listed(x) if column.unlisted else x for x, column in zip(table, schema.columns.values(), strict=True)]
        for table in (p, q)
    )
    one, other = grouping.fold(known_p), grouping.fold(known_q)
    # Moments of the values themselves, where the caller has them.
    binned = [name for name, column in schema.columns.items() if isinstance(column, BinnedColumn)]
    known = [
        dict(zip(binned, table_moments, strict=True)) if table_moments is not None else {} for table_moments in moments
    ]
    columns = []
    for axis, (name, column) in enumerate(schema.columns.items()):
        at = places(schema, name)
        both = [
            table_moments[name] if name in table_moments else moments_of_shares(column, share[axis], at, rows)
            for table_moments, share, rows in zip(known, (p, q), (len(real), len(synthetic)), strict=True)
        ]
        columns.append(
            ColumnScore(
                name=name,
                score=closeness(p[axis], q[axis]),
                moved=1.0 - closeness(one[axis], other[axis]),
                other=folded(column, p[axis]),
                moments=_scaled(column, *both),
                ordered=name in binned,
                plain=isinstance(column, BinnedColumn) and column.scale[0] == NUMBERS,
                labels=axis_labels(column),
                real=_rounded(p[axis]),
                synthetic=_rounded(q[axis]),
                lists_numbers=isinstance(column, CategoricalColumn) and column.lists_numbers,
                unlisted=float(p[axis][-1]) if column.unlisted else 0.0,
                cut=_is_cut(both[0], moments_of_shares(column, p[axis], at, len(real))),
            )
        )
    return tuple(sorted(columns, key=lambda column: -column.judged().loss)), p


def _is_cut(real: Moments | None, binned: Moments | None) -> bool:
    """Returns whether bins cost the real values a moment.

    Values stand inside their bins as a table has them.
    """
    if real is None or binned is None:
        return False
    return judged("", _of_moments(real, binned, False)).state == "lost"


def _pairs(
    schema: Schema, tables: tuple[Codes, Codes], marginals: list[Floats], label: str | None, rng: np.random.Generator
) -> tuple[tuple[PairScore, ...], list[str]]:
    """Returns the pairs, and the rules that bounded the work.

    `tables` holds the real and the synthetic one. Linked pairs come first, the worst of them at the top.
    """
    names, rules = list(schema.domain), []
    # A choice of columns bounds the number of pairs; the label is always among them.
    if len(names) > MOST_PAIRED_COLUMNS:
        others = [name for name in names if name != label]
        chosen = {*rng.permutation(others)[: MOST_PAIRED_COLUMNS - (label is not None)], label}
        rules.append(f"Pairs are those of {MOST_PAIRED_COLUMNS} of the {len(names)} columns, drawn at random.")
        names = [name for name in names if name in chosen]
    if len(names) < 2:
        return (), rules
    # A choice of rows bounds the counting.
    grouping = Grouping.of(schema, marginals, names, len(tables[0]))
    most = max(_FEWEST_COUNTED_ROWS, MOST_COUNTED // len(grouping.pairs))
    if max(len(tables[0]), len(tables[1])) > most:
        rules.append(f"Pairs were counted on at most {most:,} rows of each table, drawn at random.")
    sampled = [sample_rows(codes, most, rng) for codes in tables]
    rows, synthetic_rows = map(len, sampled)
    # Two-way tables and correlations of both tables.
    real, synthetic = (grouping.count(codes) for codes in sampled)
    linear = [_correlations(schema, codes, names) for codes in sampled]
    pairs = []
    for at, (a, b) in enumerate(grouping.pairs):
        comparison = link(real[at], rows, synthetic[at], synthetic_rows)
        linked = comparison.real >= LEAST_LINK and comparison.chance * len(grouping.pairs) < CHANCE
        pairs.append(
            PairScore(
                first=names[a],
                second=names[b],
                score=closeness(real[at], synthetic[at]),
                association=comparison.real,
                association_synthetic=comparison.synthetic,
                kept=comparison.kept,
                linked=linked,
                correlation=Correlation.of(float(linear[0][a, b]), float(linear[1][a, b]), rows, synthetic_rows),
            )
        )
    return tuple(sorted(pairs, key=lambda pair: (not pair.linked, -pair.judged().loss, -pair.association))), rules


def _correlations(schema: Schema, codes: Codes, names: Sequence[str]) -> Floats:
    """Returns correlations of columns with bins, (names, names).

    Values lie inside their bins as a table has them. Other columns have NaN.
    """
    matrix, columns = np.full((len(names), len(names)), np.nan), codes[:, schema.domain.axes(names)].astype(np.intp)
    binned = [at for at, name in enumerate(names) if isinstance(schema.columns[name], BinnedColumn)]
    known = [levels(schema.columns[names[at]], columns[:, at], places(schema, names[at])) for at in binned]
    if binned:
        matrix[np.ix_(binned, binned)] = correlations(known)
    return matrix


def _scaled(column: Column, real: Moments | None, synthetic: Moments | None) -> tuple[Moments, Moments] | None:
    """Returns moments in the unit of the column's values.

    A decimal column's numbers are whole.
    """
    if real is None or synthetic is None:
        return None
    unit = float(column.scale[1]) if isinstance(column, BinnedColumn) and column.scale[0] == NUMBERS else 1.0
    return (unit * real[0], unit * real[1]), (unit * synthetic[0], unit * synthetic[1])


def _rounded(distribution: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in distribution)
