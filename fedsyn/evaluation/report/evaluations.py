"""Evaluations on a page, in a terminal and in a README.

The same sections, whichever way found them.

To word a verdict anew, change `fedsyn.evaluation.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedsyn.evaluation.federated.intervals import FederatedQuality
from fedsyn.evaluation.predicted import PredictedError, PredictedQuality
from fedsyn.evaluation.predicted.unlisted import clauses
from fedsyn.evaluation.real.attack import Attack
from fedsyn.evaluation.real.columns import ColumnScore
from fedsyn.evaluation.real.columns import number as written
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.real.constraints import ConstraintScore, words_of
from fedsyn.evaluation.real.pairs import MOST_DRAWN, PairScore, TwoWay
from fedsyn.evaluation.real.persons import PersonsScore
from fedsyn.evaluation.real.prediction import Prediction
from fedsyn.evaluation.real.propensity import Propensity
from fedsyn.evaluation.real.regressions import RegressionScore
from fedsyn.evaluation.record import Evaluation, percent, sentence
from fedsyn.evaluation.report.charts import (
    MOST_MARGINALS,
    Columns,
    Cross,
    HeatMap,
    Histogram,
    Intervals,
    Links,
    Marginal,
    Mark,
    Range,
    in_groups,
)
from fedsyn.evaluation.report.page import Details, Folded, Page, Part, Section
from fedsyn.evaluation.report.tables import Table, number
from fedsyn.evaluation.verdict import LOST, Judged, State, Verdict
from fedsyn.output import counted
from fedsyn.table.schema.persons import COUNT, is_along

_SHOWN = 12
_SPOKEN_OF = 0.1  # loss of a column, below which both numbers of its sentence would read alike
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
    "unknown": "nothing but its columns",
}
#: What makes a page unfit for publication.
SHOWS_REAL_ROWS = "It shows real rows."
#: What a comparison looks at -> its title.
_TITLES = {
    "prediction": "Training a model",
    "attack": "Membership attack",
    "propensity": "Real or synthetic?",
    "regressions": "Regressions",
    "repeats": "Rows that repeat others",
    "persons": "People",
}
_MARKS: dict[bool | None, Mark] = {True: "good", False: "bad", None: "mid"}
#: State of a column -> its mark, and its word.
_STATES: dict[State, tuple[Mark, str]] = {
    "kept": ("good", "kept"),
    "changed": ("mid", "changed"),
    "lost": ("bad", "lost"),
}


def evaluation_page(comparison: TableComparison, path: Path, title: str) -> Path:
    """Writes a page about a table beside real rows.

    `fedsyn evaluate` and `Synthesizer.evaluate(...)` write it.

    Args:
        comparison: what was found.
        path: HTML file to write.
        title: of the page, such as the table's name.
    """
    size = f"{comparison.synthetic_rows:,} synthetic rows and {len(comparison.columns)} columns"
    page = Page(
        f"{title} beside real rows, not for publication",
        Part("lead", f"{size}, compared with {comparison.real_rows:,} real rows."),
        Part("answers", [("bad", "This page may not be released.", SHOWS_REAL_ROWS)]),
        *answers(comparison),
        glance(comparison),
    )
    page.sections += sections(comparison)
    page.section("What the words mean", Part("definitions"))
    page.section("Not looked at", Part("list", left_out) if (left_out := not_looked_at(comparison)) else "")
    return page.write(path)


def verdict_of(evaluation: Evaluation) -> Verdict | None:
    """Returns what a table is fit for; None: the evaluation cannot say."""
    if isinstance(evaluation, PredictedQuality):
        return None if evaluation.workload_error is None else evaluation.verdict()
    return evaluation.verdict() if isinstance(evaluation, TableComparison) else None


def figure_of(evaluation: Evaluation) -> str:
    """Returns the one figure of a public evaluation, as a clause.

    It is empty for an evaluation of real rows.
    """
    if isinstance(evaluation, PredictedQuality) and evaluation.workload_error is not None:
        return evaluation.error()
    return evaluation.sentence() if evaluation.PUBLIC else ""


def answers(evaluation: Evaluation) -> list[Part]:
    """Returns each use of a table, and what to do next.

    There is nothing of an evaluation without a verdict.
    """
    verdict = verdict_of(evaluation)
    if verdict is None:
        return []
    uses, known = list[tuple[str, ...]](), set[str]()
    at_the_end = evaluation.missing.values() if isinstance(evaluation, TableComparison) else ()
    for use in verdict.told():
        why = "not looked at" if use.why in at_the_end else "" if use.counted and use.why in known else use.why
        uses.append((_MARKS[use.fit], f"{use.name[:1].upper()}{use.name[1:]}", use.counted, why))
        known.add(use.why)
    return [Part("uses", uses), *([Part("next", ("Next", verdict.next))] if verdict.next else [])]


def glance(comparison: TableComparison) -> Part:
    """Returns all columns and all links in two pictures, real beside synthetic."""
    first = [] if comparison.persons is None else _marginals(comparison.persons.columns[:1], "person")
    drawn = [*first, *_marginals(comparison.columns)]
    pictures: list[Columns | HeatMap] = [Columns(drawn, len(first) + len(comparison.columns))]
    if comparison.pairs:
        real = {(pair.first, pair.second): pair.association for pair in comparison.pairs}
        synthetic = {(pair.first, pair.second): pair.association_synthetic for pair in comparison.pairs}
        lost = [(pair.first, pair.second) for pair in comparison.pairs if pair.linked and pair.judged().state == "lost"]
        pictures.append(_heat_map(real, synthetic, "real rows", lost))
    return Part("glance", pictures)


def glance_of_released(marginals: Sequence[Marginal], of: int, links: Links, quality: PredictedQuality | None) -> Part:
    """Returns both pictures without a real row.

    Above the diagonal stand the links that released values show.
    """
    pictures: list[Columns | HeatMap] = [Columns(marginals, of)]
    if links:
        known = [] if quality is None else [link for link in quality.seen.links if link.columns in links]
        lost = [link.columns for link in known if link.judged().state == "lost"]
        seen: Links = {(link.columns[0], link.columns[1]): link.seen for link in known}
        pictures.append(_heat_map(seen, links, "released values (blank: not known)", lost))
    return Part("glance", pictures)


def judged_marginals(marginals: Sequence[Marginal], quality: PredictedQuality | None) -> list[Marginal]:
    """Returns the table's marginals with what released values say of each."""
    judged = {} if quality is None else {one.name: one for one in judged_columns(quality)}
    found = []
    for place, each in enumerate(marginals, start=1):
        mark, words = _STATES[judged[each.name].state] if each.name in judged else ("", "")
        found.append(replace(each, mark=mark, words="in doubt" if mark == "mid" else words, anchor=f"column-{place}"))
    return found


def judged_columns(quality: PredictedQuality) -> list[Judged]:
    """Returns the columns as they are judged, with the number of rows."""
    verdict = quality.verdict()
    return [*verdict.columns, *(verdict.persons.foremost if verdict.persons else ())]


def in_detail(marginals: Sequence[Marginal], what: Mapping[str, Sequence[str | Table]]) -> Details:
    """Returns a chart of each column under its name, and more."""
    parts = (
        Folded(each.name, (Histogram(each), *what.get(each.name, ())), each.anchor, each.mark, each.words)
        for each in marginals
    )
    return Details(tuple(parts))


def _heat_map(above: Links, below: Links, of_above: str, lost: Sequence[tuple[str, ...]]) -> HeatMap:
    names = in_groups(sorted({name for pair in below for name in pair}), below if len(above) < len(below) else above)
    return HeatMap(names, above, below, of_above, "synthetic table", frozenset(map(frozenset, lost)))


def not_looked_at(evaluation: Evaluation) -> list[str]:
    """Returns what was not looked at and why, a sentence each."""
    if not isinstance(evaluation, TableComparison):
        return []
    lacking: dict[str, list[str]] = {}
    for what, why in evaluation.missing.items():
        lacking.setdefault(why, []).append(_TITLES[what])
    rules = [*evaluation.rules, *(evaluation.persons.rules if evaluation.persons else ())]
    return [*rules, *(f"{', '.join(names)}: {why}." for why, names in lacking.items())]


def _marginals(columns: Sequence[ColumnScore], anchor: str = "column") -> list[Marginal]:
    marginals = []
    for place, column in enumerate(columns[:MOST_MARGINALS], start=1):
        judged = column.judged()
        mark, words = _STATES[judged.state]
        facts = (column.name, column.labels, column.synthetic, column.real)
        marginals.append(Marginal(*facts, mark, words, f"{anchor}-{place}", column.of))
    return marginals


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
        yield Section("From released values", tuple(_predicted(evaluation)))


def in_short(evaluation: Evaluation) -> list[str]:
    """Returns what a public evaluation says in its README: a few sentences."""
    verdict = verdict_of(evaluation)
    return [*(verdict.sentences() if verdict else ()), *unlisted(evaluation), sentence(figure_of(evaluation))]


def unlisted(evaluation: Evaluation) -> list[str]:
    """Returns sentences on values that are not listed."""
    if not isinstance(evaluation, PredictedQuality) or evaluation.workload_error is None:
        return []
    return [*map(sentence, clauses(evaluation.unlisted, evaluation.of))]


# From real rows ------------------------------------------------------------------------------------------------------


def _compared(comparison: TableComparison, most_auc: float | None) -> Iterator[Section]:
    yield Section("Columns", (_columns(comparison.columns), _drawn(comparison.columns)))
    if comparison.pairs:
        yield Section("Pairs of columns", tuple(_pairs(comparison.pairs)))
    if comparison.persons is not None:
        yield from _persons(comparison.persons)
    if comparison.constraints:
        yield Section("Constraints", (words_of(comparison.constraints), _constraints(comparison.constraints)))
    if comparison.prediction is not None:
        yield Section(_TITLES["prediction"], _prediction(comparison.prediction))
    if comparison.regressions:
        yield Section(
            _TITLES["regressions"], tuple(piece for one in comparison.regressions for piece in _regression(one))
        )
    if comparison.propensity is not None:
        yield Section(_TITLES["propensity"], (_propensity(comparison.propensity),))
    if comparison.attack is not None:
        yield Section(_TITLES["attack"], _attack(comparison.attack, most_auc))


def _persons(persons: PersonsScore) -> Iterator[Section]:
    """Yields what is said of whole persons."""
    judged, (most, most_made) = persons.judged(), persons.most
    rows = [(one.name, one.state, one.why if one.loss >= _SPOKEN_OF else "") for one in _worst_first(judged.people)]
    size = (
        f"{counted(persons.real, 'real person', 'real people')}, up to {counted(most, 'row')} each; "
        f"in the table {counted(persons.synthetic, 'person', 'people')}, up to {counted(most_made, 'row')} each."
    )
    table = Table(("fact of people", "verdict", "largest change"), rows, "Facts of people, the largest change first")
    yield Section("People", (size, table, _drawn(persons.columns, "person")))
    order = {True: "A row of a person and the one after it.", False: "Any two rows of a person: they have no order."}
    along = f"A row of a person and the next one, by '{persons.order}'."
    steps = list(_pairs(persons.steps, "step"))
    gap = () if persons.gap is None else (_drawn([persons.gap], "gap"),)
    if steps or gap:
        said = along if isinstance(persons.order, str) else order[persons.order]
        yield Section("From row to row", (said, *gap, *steps))
    if persons.facts:
        facts = sorted(persons.facts, key=lambda one: -one.judged().loss)
        caption = "Aggregates of the rows of each person, the largest change first"
        yield Section("Aggregates of people", (_columns(facts, "aggregate", caption), _drawn(facts, "aggregate")))


def _worst_first(some: Sequence[Judged]) -> list[Judged]:
    return sorted(some, key=lambda one: -one.loss)


def _drawn(columns: Sequence[ColumnScore], anchor: str = "column") -> Details:
    """Returns a chart of each column, and all of its changes."""
    losses = {column.name: [_losses(column.losses())] for column in columns}
    return in_detail(_marginals(columns, anchor), losses)


_COLUMNS = "The columns, the largest change first; a score of 1 is equal"


def _columns(columns: Sequence[ColumnScore], anchor: str = "column", caption: str = _COLUMNS) -> Table:
    rows, links = [], dict[str, str]()
    for place, column in enumerate(columns, start=1):
        judged = column.judged()
        known = column.moments if column.plain and column.moments else ()
        moments = [written(value) for pair in known for value in pair] or [""] * 4
        why = judged.why if judged.loss >= _SPOKEN_OF else ""
        rows.append((column.name, _STATES[judged.state][1], why, f"{column.score:.3f}", *moments))
        links |= {column.name: f"#{anchor}-{place}"} if place <= MOST_MARGINALS else {}
    head = (anchor, "verdict", "largest change", "score", "mean: real", "sd", "mean: synthetic", "sd")
    return Table(head, rows, caption, links=links, narrow=4)


def _losses(losses: Sequence[tuple[str, float, str]]) -> Table:
    """Returns what a column lost, the most first."""
    each = sorted(((amount / LOST[kind], words) for kind, amount, words in losses), reverse=True)
    rows = [(words, "beyond 9" if loss > 9 else f"{loss:.2f}") for loss, words in each]
    return Table(("change", "loss"), rows, "All changes; above 0.5 it has changed, above 1 it is lost")


def _cross(table: TwoWay) -> Cross:
    return Cross(table.rows, table.columns, {"real rows": table.real, "synthetic table": table.synthetic})


def _pair(pair: PairScore) -> Table:
    """Returns what became of a linked pair."""
    rows = [("association (Cramér's V)", f"{pair.association:.2f}", f"{pair.association_synthetic:.2f}")]
    if pair.correlation is not None:
        rows.append(("correlation", f"{pair.correlation.was:.2f}", f"{pair.correlation.now:.2f}"))
    caption = f"{percent(max(pair.kept, 0.0))} of the link is in the table; a row of the picture adds up to 100%"
    return Table(("", "real rows", "synthetic table"), rows, caption)


def _pairs(pairs: Sequence[PairScore], anchor: str = "pair") -> Iterator[Table | Details]:
    """Yields the associations of pairs, and pictures of linked ones."""
    if not pairs:
        return
    head = (anchor, "verdict", "real", "synthetic", "kept", "score")
    rows = []
    for pair in pairs:
        words = pair.judged().state if pair.linked else "not linked"
        share = percent(max(pair.kept, 0.0)) if pair.linked else ""
        both = (f"{pair.association:.2f}", f"{pair.association_synthetic:.2f}")
        rows.append((pair.name, words, *both, share, f"{pair.score:.3f}"))
    worst, rest = rows[:MOST_DRAWN], rows[MOST_DRAWN:]
    links = {pair.name: f"#{anchor}-{place}" for place, pair in enumerate(pairs, start=1) if pair.table}
    of = f"{len(worst)} of {len(rows):,} {anchor}s"
    caption = f"Associations of {of}. Linked ones stand first, the worst of them on top."
    yield Table(head, worst, caption, links=links, narrow=4)
    if rest:
        yield Table(
            head,
            rest,
            f"Associations of the other {anchor}s",
            folded=f"The other {len(rest):,} {anchor}s" if len(rest) > 1 else f"The other {anchor}",
        )
    drawn = tuple(
        Folded(pair.name, (_cross(pair.table), _pair(pair)), f"{anchor}-{place}", *_STATES[pair.judged().state])
        for place, pair in enumerate(pairs, start=1)
        if pair.table is not None
    )
    if drawn:
        yield Details(drawn)


def _prediction(prediction: Prediction) -> tuple[Table, str]:
    better = "higher is better" if prediction.measure == "AUC" else "lower is better"
    rows = [
        ("synthetic rows", f"{prediction.synthetic:.4g}", prediction.words()),
        ("as many real rows", f"{prediction.real:.4g}", "as good as it gets"),
        ("nothing", f"{prediction.guess:.4g}", "a guess that looks at no column"),
    ]
    tested = "that the table was not made from"
    if not prediction.held_out:
        tested = "that the table was made from, which flatters it. data.test_fraction holds rows out"
    table = Table(
        ("trained on", prediction.measure, "verdict"), rows, f"Predicting {prediction.label}; {better}", narrow=2
    )
    return table, f"Tested on {prediction.rows:,} real rows {tested}."


def _regression(regression: RegressionScore) -> Iterator[str | Intervals | Table]:
    """Yields the coefficients of a regression, drawn and as numbers."""
    words = sentence(regression.words())
    if regression.failed:
        yield words
        return
    drawn = [
        (one.name, Range(one.synthetic, *one.interval(False)), Range(one.real, *one.interval(True)))
        for one in regression.coefficients
    ]
    caption = f"{regression.about}, with 95% intervals as if the table were real rows. The dotted line is zero"
    yield Intervals(caption, ("synthetic table", "real rows"), drawn)
    head = ("term", "real (95% interval)", "synthetic", "overlap", "difference in standard errors")
    yield Table(head, regression.rows(), words, narrow=4)


def _constraints(scores: Sequence[ConstraintScore]) -> Table:
    worst = sorted(scores, key=lambda one: (-(one.synthetic or 0), -(one.real or 0)))
    rows = [
        (one.constraint, *("not known" if n is None else f"{n:,}" for n in (one.synthetic, one.real))) for one in worst
    ]
    return Table(("constraint", "synthetic", "real"), rows, "Rows that break a constraint")


def _propensity(propensity: Propensity) -> Table:
    rows = [(percent(propensity.told), f"{propensity.ratio:.1f}", f"{propensity.rows:,}")]
    head = ("rows put on the right side", "pMSE, times chance", "rows")
    return Table(head, rows, f"{sentence(propensity.words())} Fresh real rows have a ratio of 1.")


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
        f"{attack.rows:,} rows of each kind, searched among {attack.synthetic:,} synthetic rows. "
        f"{percent(attack.copies)} of the training rows equal a synthetic row in every code, and "
        f"{percent(attack.copies_held_out)} of the others do."
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
    caption = f"Asked of {holders}, with noise; {percent(quality.confidence)} intervals"
    return Table(("figure", "from", "to", "at the holders", "what"), rows, caption, narrow=4)


def _predicted(quality: PredictedQuality) -> Iterator[str | Part | Table]:
    if quality.workload_error is None:
        yield sentence(quality.sentence())
        return
    yield from (sentence(quality.error()), *unlisted(quality))
    yield from quality.explained()
    if quality.steps.links:
        rows = [
            (" × ".join(link.columns), link.judged().state, f"{link.seen:.2f}", f"{link.made:.2f}")
            for link in quality.steps.links
        ]
        caption = "A row and the next one of a person, the worst step first: association"
        yield Table(("step", "verdict", "as released values show it", "in the table"), rows, caption, narrow=4)
    names = [one.columns[0] for one in quality.columns]
    columns = [one for one in quality.columns if one.columns == (COUNT,) or not is_along(one.columns[0], names)]
    columns = columns if quality.of == "people" else [*quality.columns]
    for name, some in (("columns", columns), ("pairs", quality.pairs), ("cliques", quality.cliques)):
        shown = sorted(some, key=lambda error: -error.value)[:_SHOWN]
        caption = f"The {len(shown)} worst {name} of {len(some):,}; all of them are in {quality.FILE}"
        yield _errors(name, shown, caption, name.capitalize())


def _errors(what: str, some: Sequence[PredictedError], caption: str = "", folded: str = "") -> Table:
    rows = [(" × ".join(s.columns), *map(number, (s.value, s.low, s.high)), _RESTS_ON[s.source]) for s in some]
    return Table((what, "distance", "from", "to", "rests on"), rows, caption, folded=folded)
