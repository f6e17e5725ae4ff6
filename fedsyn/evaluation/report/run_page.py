"""The page of a run, from the facts that it left.

It knows no run directory: `fedsyn.runs.report` reads that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from fedsyn.evaluation.predicted import PredictedQuality
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.real.metrics import COSTS, all_metrics, is_quality
from fedsyn.evaluation.real.scales import placed
from fedsyn.evaluation.record import Evaluation, sentence
from fedsyn.evaluation.report.charts import Bars, Lines, Links, Marginal, Mark
from fedsyn.evaluation.report.evaluations import (
    SHOWS_REAL_ROWS,
    answers,
    glance,
    glance_of_released,
    in_detail,
    in_short,
    judged_columns,
    judged_marginals,
    not_looked_at,
    sections,
)
from fedsyn.evaluation.report.page import Folded, Page, Part, Piece
from fedsyn.evaluation.report.tables import Table, number
from fedsyn.output import counted, filled, first_of
from fedsyn.privacy.against import in_words
from fedsyn.privacy.unit import promised, protects, unit_from_dict
from fedsyn.table.schema.persons import is_along


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts from which a page of a run is made.

    Attributes:
        source: name of the data source.
        config: the configuration, as it is shown.
        mechanism, clients: of the configuration.
        joined: clients that took part in a deployment, which may begin without some; None: all.
        ledger: ledger.json.
        metrics: metrics.json; None for a value that is not finite.
        rounds: the lines of rounds.jsonl; on a page that is not public with those of measured.jsonl.
        rows, columns: of the synthetic table; None: not at hand. Where persons are protected, the number of them.
        rows_each: how many rows a person has, in words; empty where no persons are protected.
        tables: names of the tables of persons and of their rows, where they are apart.
        domain: column -> number of codes.
        total: rows that the model stands for; None without a model.
        edges: (column, column, association) of the model's graph; None without one.
        marginals, links: of the synthetic table, where there is no `comparison`.
        evaluations: how good the table is, the surest way to know first; public ones alone on a public page.
        layout: of the table's CSV file, in words; empty for a plain one.
        notes: why something is missing, one sentence each.
        public: whether everything that reads private rows is left out.
    """

    source: str
    mechanism: str
    clients: int
    ledger: Mapping[str, Any]
    domain: Mapping[str, int]
    total: float | None
    joined: int | None = None
    config: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    rounds: Sequence[Mapping[str, Any]] = ()
    rows: int | None = None
    columns: int | None = None
    rows_each: str = ""
    tables: Sequence[str] = ()
    edges: Sequence[tuple[str, str, float]] | None = None
    marginals: Sequence[Marginal] = ()
    links: Links = field(default_factory=dict)
    evaluations: Sequence[Evaluation] = ()
    layout: str = ""
    notes: Sequence[str] = ()
    public: bool = False

    @property
    def comparison(self) -> TableComparison | None:
        """The comparison with real rows, where there is one."""
        return next((evaluation for evaluation in self.evaluations if isinstance(evaluation, TableComparison)), None)

    @property
    def predicted(self) -> PredictedQuality | None:
        """The quality by released values, where it could be predicted."""
        known = (one for one in self.evaluations if isinstance(one, PredictedQuality))
        return next((one for one in known if one.workload_error is not None), None)


def run_page(facts: RunFacts) -> Page:
    """Returns the whole page, not yet written.

    Its first screen answers what may be published, what the table is good for and what to do next.
    """
    compared, predicted = facts.comparison, facts.predicted
    marginals = judged_marginals(facts.marginals, predicted)
    pictures = [] if not marginals else [glance_of_released(marginals, _of_columns(facts), facts.links, predicted)]
    page = Page(
        title_of(facts),
        Part("lead", origin(facts)),
        Part("answers", may_be_released(facts)),
        *(Part("warning", alarm) for alarm in alarms(facts)),
        *next((parts for one in facts.evaluations if (parts := answers(one))), _no_answers(facts)),
        *([glance(compared)] if compared is not None else pictures),
    )
    for evaluation in facts.evaluations:
        page.sections += sections(evaluation, _most_auc(facts.ledger))
    if compared is None and marginals:
        judged = [] if predicted is None else judged_columns(predicted)
        page.section("Columns", in_detail(marginals, {one.name: [sentence(one.why)] for one in judged if one.why}))
    if not facts.public and (metrics := _metrics(facts)).rows:
        page.section("Metrics", metrics)
    page.section("Privacy", *_privacy(facts))
    page.section("How it was made", *_made(facts))
    if compared is not None:
        page.section("What the words mean", Part("definitions"))
    left_out = [*facts.notes, *(text for one in facts.evaluations for text in not_looked_at(one))]
    page.section("Not looked at", Part("list", left_out) if left_out else "")
    return page


def title_of(facts: RunFacts) -> str:
    """Returns the title, which tells both pages of a run apart."""
    if not facts.public:
        return f"Synthetic table of {facts.source} beside real rows, not for publication"
    return f"Synthetic table of {facts.source}" + (", for publication" if facts.ledger["private"] else "")


def readme(facts: RunFacts) -> str:
    """Returns the README.md of a run, in Markdown.

    It says what may be published about its table.
    """
    public = [evaluation for evaluation in facts.evaluations if evaluation.PUBLIC]
    public_facts = replace(facts, public=True, evaluations=public, metrics={})
    return filled(
        "evaluation/report",
        "readme.md",
        facts=public_facts,
        title=title_of(public_facts),
        origin=origin(public_facts),
        table=may_be_released(public_facts)[0],
        odds=odds(public_facts),
        faced=who_faces_what(public_facts),
        sentences=[text for one in public for text in in_short(one)],
        file=PredictedQuality.FILE,
    )


def origin(facts: RunFacts) -> str:
    """Returns the size of the table, and what it was made from."""
    size = [] if facts.rows is None else [counted(facts.rows, *unit_from_dict(facts.ledger).counted)]
    if size and facts.rows_each:
        size[0] += f", {facts.rows_each},"
    size += [] if facts.columns is None else [counted(facts.columns, "column")]
    holders = f"{facts.clients:,} holders" if facts.clients > 1 else "one holder"
    if facts.joined is not None and facts.joined < facts.clients:
        holders = f"{facts.joined:,} of {facts.clients:,} holders"
    run = f", in run {facts.ledger['run']}" if "run" in facts.ledger else ""  # of a deployment
    return f"{' and '.join(size) or 'Rows'}, made by {facts.mechanism} from the rows of {holders}{run}."


def may_be_released(facts: RunFacts) -> list[tuple[Mark, str, str]]:
    """Returns whether the table may be released, then whether the page may."""
    ledger = facts.ledger
    epsilon, _ = promised(ledger)
    guarantee = f"Epsilon {epsilon:.4g} at delta {ledger['delta']:g}"
    table: tuple[Mark, str, str]
    if ledger["private"]:
        table = ("good", "The table may be released.", f"{guarantee}, {protects(ledger)}.")
    else:
        why = sentence("; ".join(ledger["not_private_because"]))
        table = ("bad", "Do not release the table.", f"{why} {guarantee} holds for nobody.")
    if not facts.public:
        return [table, ("bad", "This page may not.", f"{SHOWS_REAL_ROWS} {_THE_OTHER}")]
    if not ledger["private"]:
        return [table, ("bad", "Do not release this page.", "It shows the table.")]
    return [table, ("good", "This page may, too.", "It rests on released values alone.")]


_THE_OTHER = "fedsyn report RUN --no-real writes one that may."


def _of_columns(facts: RunFacts) -> int:
    """Returns how many columns there are to draw.

    Of persons they are those of their rows, and the number of rows.
    """
    if not facts.rows_each:
        return len(facts.domain)
    return sum(not is_along(name, facts.domain) for name in facts.domain) + 1


def _no_answers(facts: RunFacts) -> list[Part]:
    """Returns the line of a table of which nothing is known."""
    why = next((sentence(one.sentence()) for one in facts.evaluations), "Nothing was measured or predicted.")
    return [Part("uses", [("mid", "Not known: what it is good for", "", why)])]


def odds(facts: RunFacts) -> str:
    """The guarantee in plain words; empty where nothing is private."""
    ledger = facts.ledger
    if not ledger["private"]:
        return ""
    epsilon, unit = promised(ledger)
    change = "Adding or removing" if unit == ledger["unit"] else "Exchanging"
    factor = f"at most {math.exp(epsilon):.3g} times as likely" if epsilon < 50 else "more likely by any factor"
    meaning = "e to the power of epsilon, plus delta"
    text = f"{change} {unit_from_dict(ledger).hidden} makes any outcome {factor}, plus {ledger['delta']:g} ({meaning})."
    if unit == ledger["unit"] and "epsilon_replace_one" in ledger:
        text += f" Where {unit_from_dict(ledger).exchanged}, epsilon is {ledger['epsilon_replace_one']:.4g}."
    return text


def who_faces_what(facts: RunFacts) -> str:
    """Returns epsilon against outsiders, holders, and the server's friends.

    It is empty for one holder, where nothing is private, and where the ledger does not say it.
    """
    ledger = facts.ledger
    if not ledger["private"]:
        return ""
    if "against_unknown" in ledger:
        return (
            f"What other holders face could not be computed ({ledger['against_unknown']}). This epsilon is against "
            "somebody outside, who knows what is released."
        )
    if "against" not in ledger:
        return ""
    return " ".join(in_words(ledger["against"], float(ledger["epsilon"]), unit_from_dict(ledger).counted[1]))


def alarms(facts: RunFacts) -> list[tuple[str, str]]:
    """Returns (title, text) of each alarm.

    There is one where noise outweighs signal, and one where delta promises too little.
    """
    entries, ledger, compared = [], facts.ledger, facts.comparison
    # The number of rows: the real one if it is known, else the run's estimate.
    rows, known = facts.total, "the run's estimate"
    one, many = unit_from_dict(ledger).counted
    if compared is not None and many == "rows":
        rows, known = float(compared.real_rows), "the real number"
    if rows is None:
        return []
    if rows > 0:
        noise, size = _least_noise(ledger), median(facts.domain.values())
        if noise is not None and noise >= rows / size:
            text = (
                f"Even the least noisy count carries noise of standard deviation {noise:.4g}, while an average "
                f"value of a column is held by {rows / size:.4g} {many}. The table says next to nothing about the "
                f"real rows. Raise epsilon, use fewer bins, or bring more {many}."
            )
            entries.append(("Noise outweighs signal.", text))
        if ledger["delta"] > 1 / rows:
            text = (
                f"delta = {ledger['delta']:g} is more than one in {rows:,.0f} {many} ({known}). A mechanism that "
                f"publishes a random {one} in the open would meet it. Choose delta below {1 / rows:.1g}."
            )
            entries.append(("Delta is large.", text))
    for name, holders, each in (("sizes", facts.joined or facts.clients, " a holder"), ("rows", 1, "")):
        sigma = next((r["sigma"] for r in ledger["releases"] if r["name"] == name and "sigma" in r), 0.0)
        if sigma and sigma * math.sqrt(holders) >= rows / 2:
            text = f"It was released with noise of standard deviation {sigma:.4g}{each}."
            entries.append((f"The number of {many} is not known.", text))
    return entries


def _least_noise(ledger: Mapping[str, Any], round: int | None = None) -> float | None:
    """Returns the smallest noise of a count, in rows.

    Sigma by what one row moves, of the releases other than row counts.

    `round`: in that round alone.
    """
    rows = unit_from_dict(ledger).rows
    noisy = [
        rows * release["sigma"] / release["sensitivity"]
        for release in ledger["releases"]
        if "sigma" in release and release["name"] not in ("sizes", "rows", "row-counts") and release["sensitivity"] > 0
        if round is None or release["round"] == round
    ]
    return min(noisy, default=None)


def _most_auc(ledger: Mapping[str, Any]) -> float | None:
    """Returns the largest expected AUC of a membership attack.

    It tells training rows from others.

    Let x be a training row, y another one, and p the chance that the attack ranks x above y. Exchanging the two is
    one replacement, after which y is the training row, so p <= e^eps (1 - p) + delta, with the
    epsilon of a replacement.
    """
    if not ledger["private"] or "epsilon_replace_one" not in ledger or ledger["epsilon_replace_one"] > 50:
        return None
    factor = math.exp(ledger["epsilon_replace_one"])
    return min(1.0, (factor + float(ledger["delta"])) / (1 + factor))


def _metrics(facts: RunFacts) -> Table:
    """The metrics that the configuration asked for, with their scale."""
    known, rows = all_metrics(), []
    scales = {} if facts.comparison is None else facts.comparison.scales
    for name, value in facts.metrics.items():
        if not is_quality(name):
            continue
        metric = known.get(name)
        scale = scales.get(name, {})
        references = [scale.get(key) for key in ("training rows", "independent columns", "uniform table")]
        numbers = [math.nan if one is None else one for one in (value, *references)]
        words = placed(*numbers) if scale else "no scale is computed"
        what, direction = ("", "") if metric is None else (metric.summary, f"{metric.better} is better")
        if name == "heterogeneity":
            direction, words = "neither", "how much the holders differ, not how good the table is"
        rows.append((name, what, direction, *map(number, (value, *references)), words))
    head = ("metric", "what", "direction", "value", "training rows", "independent", "uniform", "verdict")
    return Table(head, rows, "What the configuration asked for, and where it stands")


def _costs(facts: RunFacts) -> Table:
    costs = [(name, what, number(facts.metrics[name])) for name, what in COSTS.items() if name in facts.metrics]
    return Table(("cost", "what", "value"), costs, "What the run took; not a release")


def _privacy(facts: RunFacts) -> Iterator[Piece]:
    ledger = facts.ledger
    yield odds(facts)
    if ledger["private"]:
        yield f"{ledger['adjacency'].capitalize()}."
    yield (
        f"Spent: rho = {ledger['rho']:.6g}, which is epsilon = {ledger['epsilon']:.6g} at "
        f"delta = {ledger['delta']:g} (budget: epsilon = {ledger['budget']['epsilon']:g})."
    )
    yield who_faces_what(facts)
    releases, whole = ledger["releases"], max(float(ledger["rho"]), 1e-300)
    if releases:
        unspent = max(0.0, 1 - ledger["spent"] / ledger["capacity"]) if ledger["capacity"] > 0 else 0.0
        paid = of_one_client(releases)
        shares: dict[str, float] = {}
        for _, name, share in spending(paid, whole, unspent):
            shares[name] = shares.get(name, 0.0) + share
        yield Bars("The privacy budget, by what it bought", [*shares.items(), ("not spent", unspent)])
        if len(paid) < len(releases):
            yield "The chart is of the client that paid most. Others took part in other rounds."
    statement = [(key.replace("_", " "), value) for key, value in (ledger["statement"] or {}).items()]
    yield Table(("", ""), statement, "The privacy statement")
    folded = f"Every release ({len(releases)})"
    yield Table(RELEASE_HEAD, list(map(release_row, releases)), "Every release of the ledger", folded=folded)


def of_one_client(releases: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the releases of the client that pays most.

    Returns all releases where none names clients.
    """
    paid: dict[int, float] = {}
    for release in releases:
        for client in release.get("clients", ()):
            paid[client] = paid.get(client, 0.0) + release["rho"]
    most = max(sorted(paid), key=lambda k: paid[k], default=None)
    return [r for r in releases if most is None or most in r.get("clients", (most,))]


def spending(releases: Sequence[Mapping[str, Any]], whole: float, unspent: float) -> list[tuple[int, str, float]]:
    """Returns (round, name, share of the budget) of the releases.

    Releases of one name and round are added up.
    """
    shares: dict[tuple[int, str], float] = {}
    for release in releases:
        key = (int(release["round"]), str(release["name"]))
        shares[key] = shares.get(key, 0.0) + release["rho"] / whole * (1 - unspent)
    return [(*key, share) for key, share in shares.items()]


RELEASE_HEAD = ("round", "release", "mechanism", "scale", "count", "rho", "noise by")


def release_row(release: Mapping[str, Any]) -> Sequence[str]:
    """Returns a release of the ledger as texts."""
    scale = f"sigma {release['sigma']:.5g}" if "sigma" in release else f"epsilon {release['epsilon']:.5g}"
    count, rho = str(release["count"]), f"{release['rho']:.4g}"
    return (str(release["round"]), release["name"], release["mechanism"], scale, count, rho, release["noise_by"])


_BY_ROUND = {
    "sigma": "least noise of a count (sigma, in rows)",
    "epsilon": "epsilon of a selection",
    "bytes_up": "bytes from clients",
    "bytes_down": "bytes to clients",
}


def _made(facts: RunFacts) -> Iterator[Piece]:
    if facts.edges is not None and not facts.edges:
        yield "The model joins no columns. It draws each one independently of the others, but for stated rules."
    elif facts.edges:
        joined = {name for edge in facts.edges for name in edge[:2]}
        alone = [name for name in facts.domain if name not in joined]
        yield f"The model describes {counted(len(facts.edges), 'pair')} of columns together." + (
            f" It draws the others independently: {first_of(alone, 3)}." if alone else ""
        )
        rows = [[a, b, f"{v:.2f}"] for a, b, v in sorted(facts.edges, key=lambda edge: -edge[2])]
        caption = "Pairs of the model, the strongest first"
        yield Table(("column", "column ", "association in the model"), rows, caption, folded="The pairs of the model")
    if facts.predicted is not None and (limits := facts.predicted.limits()):
        yield f"A larger model would be better: {limits}."
    yield from _rounds(facts)
    if not facts.public and (costs := _costs(facts)).rows:
        yield costs
    yield Folded("Configuration", (Part("verbatim", facts.config),))


def _rounds(facts: RunFacts) -> Iterator[Piece]:
    lines, constant, rounds = {}, [], [r for r in facts.rounds if r["round"] > 0]
    _, many = unit_from_dict(facts.ledger).counted
    for key, title in _BY_ROUND.items():
        title = title.replace("rows", many)
        values = [(r["round"], float(r[key])) for r in rounds if r.get(key) is not None]
        if key == "sigma":
            noise = {round: _least_noise(facts.ledger, round) for round, _ in values}
            values = [(round, sigma) for round, sigma in noise.items() if sigma is not None]
        if len({value for _, value in values}) > 1:
            lines[title] = values
        elif values:
            when = "every round" if len(values) == len(rounds) else f"round {', '.join(str(t) for t, _ in values)}"
            constant.append(f"{title}: {number(values[0][1])} in {when}")
    if lines:
        yield Lines(lines)
    if constant:
        yield "; ".join(constant).capitalize() + "."
    measured = any("seconds" in record for record in facts.rounds)
    head = ["round", "cohort", "dropped", "selected", *(["kB up", "kB down", "seconds"] if measured else [])]
    rows = [_round(record, measured) for record in facts.rounds]
    yield Table(head, rows, "Round by round", folded=f"Round by round ({len(rounds)})")


def _round(record: Mapping[str, Any], measured: bool) -> Sequence[str]:
    dropped = "; ".join(f"{k}: {why['kind']}: {why['sentence']}" for k, why in record["dropped"].items())
    cells = [str(record["round"]), str(len(record["cohort"])), dropped or "0", ", ".join(record["selected"])]
    if measured:
        cells += [f"{record[key] / 1e3:.1f}" if key in record else "" for key in ("bytes_up", "bytes_down")]
        cells.append(f"{sum(record['seconds'].values()):.2f}" if "seconds" in record else "")
    return cells
