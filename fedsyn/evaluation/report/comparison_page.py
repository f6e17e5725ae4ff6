"""How good a table is, as sections of a page: scores with their scale and a verdict in words, the worst first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedsyn.evaluation.learners.prediction import Prediction
from fedsyn.evaluation.real import verdicts
from fedsyn.evaluation.real.attack import Attack
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.report.charts import Marginal, associations, marginals, scores
from fedsyn.evaluation.report.html import Page
from fedsyn.evaluation.report.text import cards, definitions, paragraph, table, warning

_SHOWN_PAIRS = 20

DEFINITIONS = (
    (
        "Score of a column",
        "1 minus the total variation distance of the column's real and synthetic shares, in the schema's bins: "
        "the part of the two bar charts that overlaps. Higher is better; 1 is equal, 0 has nothing in common.",
    ),
    (
        "Score of a pair",
        "The same for two columns together. Columns of more than 20 values are read in 20 groups of about equally"
        " many real rows. Higher is better.",
    ),
    (
        "Two real halves",
        "The score of one random half of the real rows beside the other: what chance alone leaves, and as good as"
        " a table can be expected to get.",
    ),
    (
        "Independent columns",
        "The score of a table whose columns have exactly the real shares and nothing to do with one another. A "
        "pair that scores no better has lost what links it.",
    ),
    (
        "Uniform",
        "The score of a table in which every value is equally frequent: it knows nothing but the schema.",
    ),
    (
        "Moved",
        "For columns with an order: how far values have moved on average (Wasserstein distance), as a share of "
        "the mean distance between two real values. Lower is better; 0 is not at all.",
    ),
    (
        "Association",
        "Cramér's V of two columns, corrected for bias (Bergsma 2013): 0 where they are independent, 1 where one "
        "determines the other.",
    ),
    (
        "Train on synthetic, train on real",
        "The same learner (gradient boosting, 100 trees of depth 4) is trained on synthetic rows and on real "
        "ones, and both are tested on the same real rows. AUC: the chance that a row of a class is ranked above a"
        " row without it, higher is better, 0.5 is guessing. RMSE: typical error in the label's unit, lower is "
        "better.",
    ),
    (
        "Membership attack",
        "Training rows and held-out rows are told apart by their distance to the closest synthetic row. AUC 0.5 "
        "is guessing, 1 finds all; the interval is a 95% confidence interval (DeLong). One attack among many: "
        "that it fails shows no privacy. The guarantee is the ledger's.",
    ),
)


def evaluation_page(comparison: TableComparison, path: Path, title: str) -> Path:
    """Writes a page about a table beside real rows, for `fedsyn evaluate` and `Synthesizer.evaluate(...)`.

    Args:
        comparison: what was found.
        path: HTML file to write.
        title: of the page, such as the table's name.
    """
    page = Page(title)
    page.add(
        f'<p class="lead">{escape(title)} is a synthetic table of {comparison.synthetic_rows:,} rows and '
        f"{len(comparison.columns)} columns; {escape(how_good(comparison))}.</p>",
        not_for_publication(),
        comparison_cards(comparison),
    )
    comparison_sections(page, comparison)
    page.section("What the scores mean", definitions(DEFINITIONS))
    return page.write(path)


def not_for_publication() -> str:
    """What stands on every page that shows real rows."""
    return warning(
        "Not for publication.",
        "This page compares with the real rows, exactly and outside any guarantee. What it shows of them is not "
        "private.",
    )


def how_good(comparison: TableComparison) -> str:
    """One clause: `its columns are ..., ...`."""
    words, _ = _columns_verdict(comparison)
    text = f"its columns are {words} (score {comparison.column_score:.3f} of 1)"
    if comparison.pairs:
        text += f", and {_pairs_words(comparison)}"
    return text


def _columns_verdict(comparison: TableComparison) -> verdicts.Verdict:
    return verdicts.of_column(
        comparison.column_score, comparison.mean("columns", "uniform"), comparison.mean("columns", "halves")
    )


def _pairs_words(comparison: TableComparison) -> str:
    score, independent, halves = (comparison.mean("pairs", what) for what in ("score", "independent", "halves"))
    kept = verdicts.position(score, independent, halves)
    if halves - independent < 0.005 or not math.isfinite(kept):
        return f"its pairs of columns score {score:.3f}, where the real columns are nearly independent"
    if kept <= 0:
        return f"it keeps nothing of what links two columns (score {score:.3f}; independent columns {independent:.3f})"
    scale = f"score {score:.3f}; independent columns: {independent:.3f}"
    return f"it keeps {min(kept, 1):.0%} of what links two columns ({scale})"


def comparison_cards(comparison: TableComparison) -> str:
    """The few numbers that matter most."""
    items = [("Columns", f"{comparison.column_score:.3f}", _columns_verdict(comparison)[0])]
    if comparison.pairs:
        halves, independent = comparison.mean("pairs", "halves"), comparison.mean("pairs", "independent")
        scale = f"independent columns {independent:.3f}, two real halves {halves:.3f}"
        items.append(("Pairs of columns", f"{comparison.pair_score:.3f}", scale))
    if comparison.prediction is not None:
        found = comparison.prediction
        items.append(
            (f"{found.measure} for {found.label}", f"{found.synthetic:.3g}", f"trained on real rows: {found.real:.3g}")
        )
    if comparison.attack is not None:
        attack = comparison.attack
        items.append(
            (
                "Membership attack",
                f"{attack.auc:.2f}",
                f"95% interval {attack.lower:.2f} to {attack.upper:.2f}; guessing 0.5",
            )
        )
    return cards(items)


def comparison_sections(page: Page, comparison: TableComparison, *, most_auc: float | None = None) -> None:
    """Columns, values, pairs, associations, prediction and attack; most_auc: what the guarantee allows an attack."""
    page.section("Columns", paragraph("Worst first. " + " ".join(comparison.rules)))
    page.figure(scores([(c.name, c.score, c.halves) for c in comparison.columns]))
    page.add(_column_table(comparison))
    page.section("Values of the columns")
    page.figure(marginals([Marginal(c.name, c.labels, c.synthetic, c.real) for c in comparison.columns]))
    if comparison.pairs:
        page.section("Pairs of columns", _pair_tables(comparison))
        page.section("Associations")
        order = [c.name for c in sorted(comparison.columns, key=lambda column: column.name)]
        paired = {name for pair in comparison.pairs for name in (pair.first, pair.second)}
        links = [(p.first, p.second, p.association, p.association_synthetic) for p in comparison.pairs]
        page.figure(associations([name for name in order if name in paired], links))
    page.section("Prediction", _prediction(comparison))
    page.section("Membership attack", _attack(comparison, most_auc))


def _column_table(comparison: TableComparison) -> str:
    rows: list[Sequence[str]] = []
    for column in comparison.columns:
        words, _ = verdicts.of_column(column.score, column.uniform, column.halves)
        moved = "" if column.shift is None else f"{column.shift:.3f}"
        rows.append((column.name, f"{column.score:.3f}", f"{column.halves:.3f}", f"{column.uniform:.3f}", moved, words))
    head = ("column", "score", "two real halves", "uniform", "moved", "verdict")
    return table(head, rows, caption="Scores of the columns, worst first; higher is better, but for moved")


def _pair_tables(comparison: TableComparison) -> str:
    head = ("pair", "score", "two real halves", "independent", "uniform", "association: real", "synthetic", "verdict")
    rows = []
    for pair in comparison.pairs:
        words, _ = verdicts.of_pair(pair.score, pair.independent, pair.halves)
        numbers = (pair.score, pair.halves, pair.independent, pair.uniform)
        links = (pair.association, pair.association_synthetic)
        rows.append(
            (f"{pair.first} × {pair.second}", *(f"{n:.3f}" for n in numbers), *(f"{n:.2f}" for n in links), words)
        )
    worst = table(
        head, rows[:_SHOWN_PAIRS], caption=f"The {min(_SHOWN_PAIRS, len(rows))} worst pairs; higher is better"
    )
    if len(rows) <= _SHOWN_PAIRS:
        return worst
    rest = table(head, rows[_SHOWN_PAIRS:], caption="The other pairs, worst first")
    return f"{worst}<details><summary>The other {len(rows) - _SHOWN_PAIRS} pairs</summary>{rest}</details>"


def _prediction(comparison: TableComparison) -> str:
    found = comparison.prediction
    if found is None:
        return paragraph(f"Not measured: {comparison.missing['prediction']}.")
    words, _ = verdicts.of_prediction(found)
    better = "higher is better" if found.measure == "AUC" else "lower is better"
    rows = [
        ("synthetic rows", f"{found.synthetic:.4g}", words),
        ("as many real rows", f"{found.real:.4g}", "as good as it gets"),
        ("nothing", f"{found.guess:.4g}", "a guess that looks at no column"),
    ]
    tested = f"Tested on {found.rows:,} real rows, {_tested(found)}."
    return table(
        ("trained on", found.measure, "verdict"), rows, caption=f"Predicting {found.label}; {better}"
    ) + paragraph(tested)


def _tested(found: Prediction) -> str:
    if found.held_out:
        return "held out: the table was not made from them"
    return "a half of those that the table was made from, which flatters it (hold rows out with data.test_fraction)"


def _attack(comparison: TableComparison, most_auc: float | None) -> str:
    found = comparison.attack
    if found is None:
        return paragraph(f"Not tried: it {comparison.missing['attack']}.")
    words, _ = verdicts.of_attack(found)
    limit = "" if most_auc is None else f" The guarantee allows no attack an AUC above {most_auc:.3f}."
    return table(
        ("attacker", "AUC", "95% interval", "verdict"),
        [("distance to the closest row", f"{found.auc:.3f}", f"{found.lower:.3f} to {found.upper:.3f}", words)],
        caption="Telling training rows from held-out rows; 0.5 is guessing, and best for the rows",
    ) + paragraph(_attacked(found) + limit)


def _attacked(found: Attack) -> str:
    return (
        f"{found.rows:,} rows of each kind, searched among {found.synthetic:,} synthetic rows. Equal to a synthetic "
        f"row, code for code: {found.copies:.1%} of the training rows, {found.copies_held_out:.1%} of the others."
    )
