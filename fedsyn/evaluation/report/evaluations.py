"""Evaluations on a page, in a terminal and in a README.

The same sections, whichever way found them.

To word a verdict anew, change `fedsyn.evaluation.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedsyn.evaluation.federated.intervals import FederatedQuality
from fedsyn.evaluation.predicted import PredictedError, PredictedQuality
from fedsyn.evaluation.real.attack import Attack
from fedsyn.evaluation.real.columns import number as written
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.real.prediction import Prediction
from fedsyn.evaluation.real.propensity import Propensity
from fedsyn.evaluation.real.regressions import RegressionScore
from fedsyn.evaluation.record import Evaluation, sentence
from fedsyn.evaluation.report.charts import Marginal, associations, marginals
from fedsyn.evaluation.report.page import Page, Part, Section
from fedsyn.evaluation.report.tables import Table, number
from fedsyn.evaluation.verdict import Judged

_SHOWN = 12
_SHOWN_PAIRS = 20
#: Figure of the holders -> what it is, and which way is better.
_ASKED = {
    "workload_error": "mean L1 distance over the workload, 0 to 2: lower is better",
    "range_query_error": "mean difference of 1,000 two-way range queries, 0 to 1: lower is better",
    "accuracy": "rows whose label a classifier trained on the table predicts: higher is better",
    "column_score": "score of the columns, 1 is equal: higher is better",
}
#: What a prediction rests on.
_RESTS_ON = {
    "measured": "its own noisy counts, of values or of groups of them",
    "sketched": "a sketch",
    "inferred": "what is known of others",
    "unknown": "nothing: its parts alone",
}
#: What stands on every page that shows real rows.
NOT_FOR_PUBLICATION = Part(
    "warning",
    (
        "Not for publication.",
        "This page compares with the real rows, exactly and outside any guarantee. What it shows of them is not "
        "private.",
    ),
)


def evaluation_page(comparison: TableComparison, path: Path, title: str) -> Path:
    """Writes a page about a table beside real rows.

    `fedsyn evaluate` and `Synthesizer.evaluate(...)` write it.

    Args:
        comparison: what was found.
        path: HTML file to write.
        title: of the page, such as the table's name.
    """
    lead = (
        f"{title} is a synthetic table of {comparison.synthetic_rows:,} rows and {len(comparison.columns)} columns. "
        f"{comparison.sentence()}."
    )
    page = Page(title, Part("lead", lead), NOT_FOR_PUBLICATION, cards(comparison))
    page.sections += sections(comparison)
    page.section("What the scores mean", Part("definitions"))
    return page.write(path)


def cards(comparison: TableComparison) -> Part:
    """Returns the few numbers that matter most."""
    verdict = comparison.verdict()
    items = [_counted("Columns", verdict.columns, "moved"), _counted("Linked pairs", verdict.links, "weakened")]
    if got := comparison.prediction:
        items.append(
            (f"{got.measure} for {got.label}", f"{got.synthetic:.3g}", f"trained on real rows: {got.real:.3g}")
        )
    if attack := comparison.attack:
        words = f"95% interval {attack.lower:.2f} to {attack.upper:.2f}; guessing 0.5"
        items.append(("Membership attack", f"{attack.auc:.2f}", words))
    return Part("cards", items)


def _counted(what: str, some: Sequence[Judged], halfway: str) -> tuple[str, str, str]:
    number = {state: sum(one.state == state for one in some) for state in ("kept", "weakened", "lost")}
    words = f"kept; {number['weakened']} {halfway}, {number['lost']} lost" if some else "beyond chance in the real rows"
    return what, f"{number['kept']} of {len(some)}" if some else "none", words


def sections(evaluation: Evaluation, most_auc: float | None = None) -> Iterator[Section]:
    """Yields what an evaluation says, section by section.

    Args:
        evaluation: the one to show.
        most_auc: what the guarantee allows an attack on real rows; None: not known.
    """
    if isinstance(evaluation, TableComparison):
        yield from _compared(evaluation, most_auc)
    elif isinstance(evaluation, FederatedQuality):
        notes = (Part("soft", sentence(note)) for note in evaluation.notes)
        yield Section("What the holders say", (_asked(evaluation), *evaluation.explained(), *notes))
    elif isinstance(evaluation, PredictedQuality):
        opening = sentence(evaluation.sentence())
        yield Section(
            "How good it is, from what was released", (opening, *evaluation.explained(), *_predicted(evaluation))
        )


def summary(evaluation: Evaluation) -> Table | None:
    """Returns a public evaluation's few lines for its README.

    Returns None where there is nothing to show.
    """
    if isinstance(evaluation, FederatedQuality):
        table = _asked(evaluation)
        return replace(table, rows=table.rows[:_SHOWN])
    if isinstance(evaluation, PredictedQuality) and evaluation.workload_error is not None:
        return _errors("furthest off", evaluation.worst())
    return None


# From real rows ------------------------------------------------------------------------------------------------------


def _compared(comparison: TableComparison, most_auc: float | None) -> Iterator[Section]:
    yield Section("Columns", (*comparison.rules, _columns(comparison)))
    shares = marginals([Marginal(c.name, c.labels, c.synthetic, c.real) for c in comparison.columns])
    yield Section("Values of the columns", (shares,))
    if comparison.pairs:
        yield Section("Pairs of columns", tuple(_pairs(comparison)))
        names = sorted({name for pair in comparison.pairs for name in (pair.first, pair.second)})
        links = [(p.first, p.second, p.association, p.association_synthetic) for p in comparison.pairs]
        yield Section("Associations", (associations(names, links),))
    if comparison.prediction is None:
        yield Section("Prediction", (f"Not measured: {comparison.missing['prediction']}.",))
    else:
        yield Section("Prediction", _prediction(comparison.prediction))
    for regression in comparison.regressions or ():
        yield Section("Regressions", _regression(regression))
    if comparison.propensity is not None:
        yield Section("The whole table", (_propensity(comparison.propensity),))
    if comparison.attack is None:
        yield Section("Membership attack", (f"Not tried: it {comparison.missing['attack']}.",))
    else:
        yield Section("Membership attack", _attack(comparison.attack, most_auc))


def _columns(comparison: TableComparison) -> Table:
    rows = []
    for column in comparison.columns:
        judged = column.judged()
        state = "moved" if judged.state == "weakened" else judged.state
        known = column.moments if column.plain and column.moments else ()
        moments = [written(value) for pair in known for value in pair] or [""] * 4
        rows.append((column.name, state, judged.why, f"{column.score:.3f}", *moments))
    head = ("column", "verdict", "its largest loss", "score", "mean: real", "sd", "mean: synthetic", "sd")
    return Table(head, rows, "The columns, the largest loss first; a score of 1 is equal", narrow=4)


def _pairs(comparison: TableComparison) -> Iterator[Table]:
    head = ("pair", "verdict", "association: real", "synthetic", "kept", "score")
    rows = []
    for pair in comparison.pairs:
        words = pair.judged().state if pair.linked else "no link beyond chance"
        share = f"{max(pair.kept, 0.0):.0%}" if pair.linked else ""
        links = (f"{pair.association:.2f}", f"{pair.association_synthetic:.2f}")
        rows.append((pair.name, words, *links, share, f"{pair.score:.3f}"))
    worst, rest = rows[:_SHOWN_PAIRS], rows[_SHOWN_PAIRS:]
    yield Table(head, worst, f"{len(worst)} of {len(rows):,} pairs: linked ones first, the worst first", narrow=4)
    if rest:
        yield Table(head, rest, "The other pairs", folded=f"The other {len(rest)} pairs")


def _prediction(prediction: Prediction) -> tuple[Table, str]:
    better = "higher is better" if prediction.measure == "AUC" else "lower is better"
    rows = [
        ("synthetic rows", f"{prediction.synthetic:.4g}", prediction.words()),
        ("as many real rows", f"{prediction.real:.4g}", "as good as it gets"),
        ("nothing", f"{prediction.guess:.4g}", "a guess that looks at no column"),
    ]
    tested = "held out: the table was not made from them"
    if not prediction.held_out:
        tested = (
            "a half of those that the table was made from, which flatters it (hold rows out with data.test_fraction)"
        )
    table = Table(
        ("trained on", prediction.measure, "verdict"), rows, f"Predicting {prediction.label}; {better}", narrow=2
    )
    return table, f"Tested on {prediction.rows:,} real rows, {tested}."


def _regression(regression: RegressionScore) -> tuple[str | Table, ...]:
    words = sentence(regression.words())
    head = ("term", "real (95% interval)", "synthetic", "overlap", "difference in standard errors")
    return (words,) if regression.failed else (Table(head, regression.rows(), words, narrow=4),)


def _propensity(propensity: Propensity) -> str:
    text = sentence(propensity.words())
    return f"{text} Its pMSE is {propensity.ratio:.1f} times that of chance; fresh rows have 1."


def _attack(attack: Attack, most_auc: float | None) -> tuple[Table, str]:
    table = Table(
        ("attacker", "AUC", "95% interval", "verdict"),
        [
            (
                "distance to the closest row",
                f"{attack.auc:.3f}",
                f"{attack.lower:.3f} to {attack.upper:.3f}",
                attack.words(),
            )
        ],
        "Telling training rows from held-out rows; 0.5 is guessing, and best for the rows",
        narrow=3,
    )
    text = (
        f"{attack.rows:,} rows of each kind, searched among {attack.synthetic:,} synthetic rows. Equal to a synthetic "
        f"row, code for code: {attack.copies:.1%} of the training rows, {attack.copies_held_out:.1%} of the others."
    )
    if most_auc is not None:
        text += f" The guarantee allows no attack an AUC above {most_auc:.3f}."
    return table, text


# Asked of the holders, and predicted ---------------------------------------------------------------------------------


def _asked(quality: FederatedQuality) -> Table:
    rows = [
        (name, *map(number, (figure.low, figure.high, figure.value)), _ASKED.get(name, _ASKED["column_score"]))
        for name, figure in quality.figures.items()
    ]
    holders = "1 holder" if quality.holders == 1 else f"{quality.holders:,} holders"
    caption = f"Asked of {holders}, with noise; {quality.confidence:.0%} intervals"
    return Table(("figure", "from", "to", "at the holders", "what"), rows, caption, narrow=4)


def _predicted(quality: PredictedQuality) -> Iterator[Table]:
    if quality.workload_error is None:
        return
    for name, some in (("columns", quality.columns), ("pairs", quality.pairs), ("cliques", quality.cliques)):
        shown = sorted(some, key=lambda error: -error.value)[:_SHOWN]
        caption = f"The {len(shown)} worst {name} of {len(some):,}; all of them are in {quality.FILE}"
        yield _errors(name, shown, caption, name.capitalize())


def _errors(what: str, some: Sequence[PredictedError], caption: str = "", folded: str = "") -> Table:
    rows = [(" × ".join(s.columns), *map(number, (s.value, s.low, s.high)), _RESTS_ON[s.source]) for s in some]
    return Table((what, "distance", "from", "to", "rests on"), rows, caption, folded=folded)
