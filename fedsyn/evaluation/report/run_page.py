"""The page of a run, from the facts that it left.

It knows no run directory: `fedsyn.runs.report` reads that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from fedsyn.evaluation.federated.intervals import FederatedQuality
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.real.metrics import COSTS, all_metrics, is_quality
from fedsyn.evaluation.real.scales import placed
from fedsyn.evaluation.record import Evaluation, sentence
from fedsyn.evaluation.report.charts import Links, Marginal, associations, budget, by_round, graph, marginals
from fedsyn.evaluation.report.evaluations import NOT_FOR_PUBLICATION, cards, sections, summary
from fedsyn.evaluation.report.figures import Figure
from fedsyn.evaluation.report.page import Page, Part
from fedsyn.evaluation.report.tables import Table, number
from fedsyn.output import counted, filled
from fedsyn.privacy.against import in_words
from fedsyn.privacy.unit import not_persons, promised, unit_from_dict


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
        rows, columns: of the synthetic table; None: not at hand.
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
    edges: Sequence[tuple[str, str, float]] | None = None
    marginals: Sequence[Marginal] = ()
    links: Links = ()
    evaluations: Sequence[Evaluation] = ()
    layout: str = ""
    notes: Sequence[str] = ()
    public: bool = False

    @property
    def comparison(self) -> TableComparison | None:
        """The comparison with real rows, where there is one."""
        return next((evaluation for evaluation in self.evaluations if isinstance(evaluation, TableComparison)), None)


def run_page(facts: RunFacts, *, draw: bool = True) -> Page:
    """Returns the whole page, not yet written."""
    compared, ledger = facts.comparison, facts.ledger
    page = Page(
        f"Synthetic table: {facts.source} by {facts.mechanism}",
        Part("lead", first_sentence(facts)),
        odds(facts),
        *_warnings(facts),
        _guarantee(facts) if compared is None else cards(compared),
        *(Part("soft", note) for note in facts.notes),
        draw=draw,
    )
    if compared is None and facts.marginals:
        page.section("Values of the columns", marginals(facts.marginals))
        if facts.links:
            page.section("Associations", associations([column.name for column in facts.marginals], facts.links))
    for evaluation in facts.evaluations:
        page.sections += sections(evaluation, _most_auc(ledger))
    if not facts.public and (metrics := _metrics(facts)).rows:
        page.section("Metrics", metrics)
    if facts.edges is not None:
        alone = "The model joins no columns: it draws each one independently of the others."
        page.section("Model", graph(list(facts.domain), facts.edges) if facts.edges else alone)
    page.section("Privacy", *_privacy(facts))
    page.section("Rounds", *_rounds(facts))
    if not facts.public and (costs := _costs(facts)).rows:
        page.section("Costs", costs)
    if compared is not None:
        page.section("What the scores mean", Part("definitions"))
    page.section("Configuration", Part("verbatim", facts.config))
    return page


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
        first=first_sentence(public_facts),
        odds=odds(public_facts),
        faced=who_faces_what(public_facts),
        evaluations=[(sentence(evaluation.sentence()), evaluation, summary(evaluation)) for evaluation in public],
    )


def first_sentence(facts: RunFacts) -> str:
    """Returns what the table is fit for, then its origin.

    It also says what the table was made from, and for whom it is private.
    """
    size = "a synthetic table" if facts.rows is None else f"a synthetic table of {counted(facts.rows, 'row')}"
    holders = f"the rows of {facts.clients:,} holders" if facts.clients > 1 else "the rows of one holder"
    if facts.joined is not None and facts.joined < facts.clients:
        holders = f"the rows of {facts.joined:,} of {facts.clients:,} holders"
    ledger = facts.ledger
    run = f" in run {ledger['run']}" if "run" in ledger else ""  # of a deployment
    good = "How good it is was not measured."
    if facts.evaluations:  # holders answer for distances, released values for links: both are said
        last = next(
            (n for n, evaluation in enumerate(facts.evaluations) if not isinstance(evaluation, FederatedQuality)), 0
        )
        good = " ".join(sentence(evaluation.sentence()) for evaluation in reversed(facts.evaluations[: last + 1]))
    size += "" if facts.columns is None else f" and {counted(facts.columns, 'column')}"
    text = f"This is {size}. {good} "
    text += f"It was made by {facts.mechanism} from {holders} of {facts.source}{run}; "
    epsilon, unit = promised(ledger)
    guarantee = f"epsilon = {epsilon:.4g} and delta = {ledger['delta']:g}"
    if ledger["private"]:
        persons = f", {words}" if (words := not_persons(ledger)) else ""
        return f"{text}it keeps private {unit}, with {guarantee}{persons}."
    return f"{text}it is not private ({'; '.join(ledger['not_private_because'])}): {guarantee} hold for nobody."


def odds(facts: RunFacts) -> str:
    """The guarantee in plain words; empty where nothing is private."""
    ledger = facts.ledger
    if not ledger["private"]:
        return ""
    epsilon, unit = promised(ledger)
    added = unit == ledger["unit"]
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 50 else "any number"
    text = (
        f"In plain words: whatever somebody concludes from the table and all that was released, "
        f"{'the presence of the protected unit' if added else 'the protected unit, instead of another one,'} "
        f"makes it at most {factor} times as likely (e to the power of epsilon), but for a chance of "
        f"delta = {ledger['delta']:g}. {ledger['adjacency'].capitalize()}."
    )
    if added and "epsilon_replace_one" in ledger:
        exchanged = unit_from_dict(ledger).exchanged
        text += f" Where {exchanged}, epsilon is {ledger['epsilon_replace_one']:.4g}."
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
            f"What other holders face could not be computed ({ledger['against_unknown']}): this epsilon is against "
            "somebody outside, who knows what is released."
        )
    if "against" not in ledger:
        return ""
    return " ".join(in_words(ledger["against"], float(ledger["epsilon"])))


def _warnings(facts: RunFacts) -> Iterator[Part]:
    if facts.public:
        text = "This page was made without the real rows: it shows what was released and paid for."
        yield Part("warning", ("For publication.", text))
    else:
        measured = "It shows bytes and times as they were measured, which follow the rows of the holders."
        compared = facts.comparison is not None or any(map(is_quality, facts.metrics))
        yield NOT_FOR_PUBLICATION if compared else Part("warning", ("Not for publication.", measured))
        yield Part("soft", "fedsyn report RUN --no-real writes the page for publication.")
    if not facts.ledger["private"]:
        reasons = "; ".join(facts.ledger["not_private_because"])
        yield Part("warning", ("This run is not private.", f"Do not release the table: {reasons}."))
    yield from (Part("warning", alarm) for alarm in alarms(facts))


def alarms(facts: RunFacts) -> list[tuple[str, str]]:
    """Returns (title, text) of each alarm.

    There is one where noise outweighs signal, and one where delta promises too little.
    """
    entries, ledger, compared = [], facts.ledger, facts.comparison
    # The number of rows: the real one if it is known, else the run's estimate.
    rows, known = facts.total, "the run's estimate"
    if compared is not None:
        rows, known = float(compared.real_rows), "the real number"
    if rows is None:
        return []
    if rows > 0:
        noise, size = _least_noise(ledger), median(facts.domain.values())
        if noise is not None and noise >= rows / size:
            text = (
                f"Even the least noisy count carries noise of standard deviation {noise:.4g}, while an average "
                f"value of a column is held by {rows / size:.4g} rows. The table says next to nothing about the "
                "real rows: raise epsilon, use fewer bins, or bring more rows."
            )
            entries.append(("Noise outweighs signal.", text))
        if ledger["delta"] > 1 / rows:
            text = (
                f"delta = {ledger['delta']:g} is more than one in {rows:,.0f} rows ({known}): a mechanism that "
                f"publishes a random row in the open would meet it. Choose delta below {1 / rows:.1g}."
            )
            entries.append(("Delta is large.", text))
    for name, holders, each in (("sizes", facts.joined or facts.clients, " a holder"), ("rows", 1, "")):
        sigma = next((r["sigma"] for r in ledger["releases"] if r["name"] == name and "sigma" in r), 0.0)
        if sigma and sigma * math.sqrt(holders) >= rows / 2:
            text = f"It was released with noise of standard deviation {sigma:.4g}{each}."
            entries.append(("The number of rows is not known.", text))
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


def _guarantee(facts: RunFacts) -> Part:
    ledger = facts.ledger
    items = [("Epsilon", f"{promised(ledger)[0]:.4g}", "smaller protects more"), ("Delta", f"{ledger['delta']:g}", "")]
    if facts.rows is not None:
        wide = "" if facts.columns is None else counted(facts.columns, "column")
        items.append(("Rows", f"{facts.rows:,}", wide))
    return Part("cards", items)


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


def _privacy(facts: RunFacts) -> Iterator[str | Table | Figure]:
    ledger = facts.ledger
    yield (
        f"Spent: rho = {ledger['rho']:.6g}, which is epsilon = {ledger['epsilon']:.6g} at "
        f"delta = {ledger['delta']:g} (budget: epsilon = {ledger['budget']['epsilon']:g})."
    )
    yield who_faces_what(facts)
    releases, whole = ledger["releases"], max(float(ledger["rho"]), 1e-300)
    if releases:
        unspent = 1 - ledger["spent"] / ledger["capacity"] if ledger["capacity"] > 0 else 0.0
        paid = of_one_client(releases)
        yield budget(spending(paid, whole, max(unspent, 0.0)), unspent)
        if len(paid) < len(releases):
            yield "Shown is what a row pays whose client paid most; others took part in other rounds."
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


def _rounds(facts: RunFacts) -> Iterator[str | Table | Figure]:
    lines, constant, rounds = {}, [], [r for r in facts.rounds if r["round"] > 0]
    for key, title in _BY_ROUND.items():
        values = [(r["round"], float(r[key])) for r in rounds if r.get(key) is not None]
        if key == "sigma":
            noise = {round: _least_noise(facts.ledger, round) for round, _ in values}
            values = [(round, sigma) for round, sigma in noise.items() if sigma is not None]
        if len({value for _, value in values}) > 1:
            lines[title] = values
        elif values:
            when = "every round" if len(values) == len(rounds) else f"round {', '.join(str(t) for t, _ in values)}"
            constant.append(f"{title}: {values[0][1]:.4g} in {when}")
    if lines:
        yield by_round(lines)
    if constant:
        yield "; ".join(constant).capitalize() + "."
    measured = any("seconds" in record for record in facts.rounds)
    head = ["round", "cohort", "dropped", "selected", *(["kB up", "kB down", "seconds"] if measured else [])]
    yield Table(head, [_round(record, measured) for record in facts.rounds], "Round by round")


def _round(record: Mapping[str, Any], measured: bool) -> Sequence[str]:
    dropped = "; ".join(f"{k}: {why['kind']}: {why['sentence']}" for k, why in record["dropped"].items())
    cells = [str(record["round"]), str(len(record["cohort"])), dropped or "0", ", ".join(record["selected"])]
    if measured:
        cells += [f"{record[key] / 1e3:.1f}" if key in record else "" for key in ("bytes_up", "bytes_down")]
        cells.append(f"{sum(record['seconds'].values()):.2f}" if "seconds" in record else "")
    return cells
