"""The page of a run, from the facts that the run left. It knows no run directory: `fedsyn.runs.report` reads that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import median
from typing import Any

from fedsyn.evaluation.predicted import PredictedQuality
from fedsyn.evaluation.real import verdicts
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.real.metrics import all_metrics
from fedsyn.evaluation.report.charts import Links, Marginal, associations, budget, by_round, graph, marginals
from fedsyn.evaluation.report.comparison_page import (
    DEFINITIONS,
    comparison_cards,
    comparison_sections,
    how_good,
    not_for_publication,
)
from fedsyn.evaluation.report.federated_evaluation_page import federated_section
from fedsyn.evaluation.report.html import Page, listed, settings
from fedsyn.evaluation.report.predicted_quality_page import predicted_section
from fedsyn.evaluation.report.tables import number
from fedsyn.evaluation.report.text import cards, definitions, paragraph, table, warning
from fedsyn.privacy import unit_from_dict
from fedsyn.privacy.against import in_words

COSTS = {
    "seconds": "seconds from the start of the run to its end",
    "peak_mb": "largest memory of this process, in megabytes",
    "client_mb_up": "megabytes that an average client sent",
    "client_mb_down": "megabytes that an average client received",
    "dropped": "replies that could not be used",
    "seconds_deal": "seconds of clients and store for dealing shares",
    "seconds_choose": "seconds of the store for choosing",
    "seconds_open": "seconds of clients and store for opening sums",
    "party_mb": "megabytes that the busiest party sent to the others",
    "party_rounds": "rounds of messages between the parties",
    "party_cpu": "seconds of processor of the busiest party",
}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a page of a run is made from.

    Attributes:
        source: name of the data source.
        config: the configuration, as it is shown.
        mechanism, clients: of the configuration.
        ledger: ledger.json.
        metrics: metrics.json; None for a value that is not finite.
        rounds: the lines of rounds.jsonl; on a page that is not public with those of measured.jsonl.
        rows: of the synthetic table; None: not at hand.
        domain: column -> number of codes.
        total: rows that the model stands for; None without a model.
        edges: (column, column, association) of the model's graph; None without one.
        marginals, links: of the synthetic table, where there is no `comparison`.
        comparison: beside the real rows; None: not computed.
        scales: metric -> name of a reference -> value.
        predicted: predicted_quality.json: what released values say of the table; None: nothing was predicted.
        federated: federated_evaluation.json: what the holders' noisy sums say of it; None: they were not asked.
        notes: why something is missing, one sentence each.
        public: whether everything that reads private rows is left out.
    """

    source: str
    config: str
    mechanism: str
    clients: int
    ledger: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    rounds: Sequence[Mapping[str, Any]]
    rows: int | None
    domain: Mapping[str, int]
    total: float | None
    edges: Sequence[tuple[str, str, float]] | None
    marginals: Sequence[Marginal] = ()
    links: Links = ()
    comparison: TableComparison | None = None
    scales: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    predicted: PredictedQuality | None = None
    federated: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    public: bool = False


def run_page(facts: RunFacts, *, draw: bool = True) -> Page:
    """The whole page, not yet written."""
    page = Page(f"Synthetic table: {facts.source} by {facts.mechanism}", draw=draw)
    page.add(
        f'<p class="lead">{escape(first_sentence(facts))}</p>',
        paragraph(odds(facts)) if facts.ledger["private"] else "",
        _warnings(facts),
    )
    shown = None if facts.public else facts.comparison
    page.add(comparison_cards(shown) if shown is not None else _public_cards(facts))
    page.add(*(paragraph(note, "soft") for note in facts.notes))
    if shown is not None:
        comparison_sections(page, shown, most_auc=_most_auc(facts.ledger))
    elif facts.marginals:
        page.section("Values of the columns")
        page.figure(marginals(facts.marginals))
        if facts.links:
            page.section("Associations")
            page.figure(associations([column.name for column in facts.marginals], facts.links))
    if facts.predicted is not None:
        predicted_section(page, facts.predicted)
    if facts.federated is not None:
        federated_section(page, facts.federated)
    if not facts.public:
        _metrics(page, facts)
    _model(page, facts)
    _privacy(page, facts)
    _rounds(page, facts)
    if not facts.public:
        _costs(page, facts)
    if shown is not None:
        page.section("What the scores mean", definitions(DEFINITIONS))
    page.section("Configuration", settings(facts.config))
    return page


def first_sentence(facts: RunFacts) -> str:
    """What the table is, for whom it is private, and how good it is."""
    size = "a synthetic table" if facts.rows is None else f"a synthetic table of {facts.rows:,} rows"
    holders = f"the rows of {facts.clients:,} holders" if facts.clients > 1 else "the rows of one holder"
    ledger = facts.ledger
    run = f" in run {ledger['run']}" if "run" in ledger else ""  # of a deployment
    text = f"This is {size} and {len(facts.domain)} columns, made by {facts.mechanism} from {holders} of {facts.source}"
    text += f"{run}; "
    guarantee = f"epsilon = {ledger['epsilon']:.4g} and delta = {ledger['delta']:g}"
    if ledger["private"]:
        text += f"it keeps private {ledger['unit']}, with {guarantee}"
    else:
        text += f"it is not private ({'; '.join(ledger['not_private_because'])}): {guarantee} hold for nobody"
    if facts.federated is not None and (facts.public or facts.comparison is None):
        return text + "; what its holders say of how good it is stands below."
    if (
        facts.predicted is not None
        and facts.predicted.workload_error is not None
        and (facts.public or facts.comparison is None)
    ):
        return f"{text}; {facts.predicted.sentence()}."
    if facts.public:
        return text + "; how good it is can be told only beside real rows, which this page leaves out."
    if facts.comparison is None:
        return text + "; how good it is was not measured."
    return f"{text}; {how_good(facts.comparison)}."


def odds(facts: RunFacts) -> str:
    """The guarantee in plain words; empty where nothing is private."""
    ledger = facts.ledger
    if not ledger["private"]:
        return ""
    epsilon = float(ledger["epsilon"])
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 50 else "any number"
    text = (
        f"In plain words: whatever somebody concludes from the table and all that was released, the presence of the "
        f"protected unit makes it at most {factor} times as likely (e to the power of epsilon), but for a chance of "
        f"delta = {ledger['delta']:g}. {ledger['adjacency'].capitalize()}."
    )
    if "epsilon_replace_one" in ledger:
        exchanged = unit_from_dict(ledger).exchanged
        text += f" Where {exchanged}, epsilon is {ledger['epsilon_replace_one']:.4g}."
    return text


def who_faces_what(facts: RunFacts) -> str:
    """Epsilon against somebody outside, against other holders, and against those with the server; empty for one holder,
    where nothing is private, and of a ledger that does not say it."""
    ledger = facts.ledger
    if not ledger["private"] or "against" not in ledger:
        return ""
    return " ".join(in_words(ledger["against"], float(ledger["epsilon"])))


def _warnings(facts: RunFacts) -> str:
    found = []
    ledger = facts.ledger
    if facts.public:
        found.append(
            warning(
                "For publication.", "This page was made without the real rows: it shows what was released and paid for."
            )
        )
    else:
        compared = facts.comparison is not None or any(name in all_metrics() for name in facts.metrics)
        measured = "It shows bytes and times as they were measured, which follow the rows of the holders."
        found.append(not_for_publication() if compared else warning("Not for publication.", measured))
        found.append(paragraph("fedsyn report RUN --no-real writes the page for publication.", "soft"))
    if not ledger["private"]:
        reasons = "; ".join(ledger["not_private_because"])
        found.append(warning("This run is not private.", f"Do not release the table: {reasons}."))
    found += [warning(title, text) for title, text in alarms(facts)]
    return "".join(found)


def alarms(facts: RunFacts) -> list[tuple[str, str]]:
    """Where noise outweighs signal, and where delta promises too little: (title, text) each."""
    found, ledger = [], facts.ledger
    rows = facts.total if facts.public or facts.comparison is None else float(facts.comparison.real_rows)
    known = "the run's estimate" if facts.public or facts.comparison is None else "the real number"
    if rows is not None and rows > 0:
        noise, size = _least_noise(ledger), median(facts.domain.values())
        if noise is not None and noise >= rows / size:
            found.append(
                (
                    "Noise outweighs signal.",
                    f"Even the least noisy count carries noise of standard deviation {noise:.4g}, while an average "
                    f"value of a column is held by {rows / size:.4g} rows. The table says next to nothing about the "
                    "real rows: raise epsilon, use fewer bins, or bring more rows.",
                )
            )
        if ledger["delta"] > 1 / rows:
            found.append(
                (
                    "Delta is large.",
                    f"delta = {ledger['delta']:g} is more than one in {rows:,.0f} rows ({known}): a mechanism that "
                    f"publishes a random row in the open would meet it. Choose delta below {1 / rows:.1g}.",
                )
            )
    sizes = [release for release in ledger["releases"] if release["name"] == "sizes" and "sigma" in release]
    if rows is not None and sizes and sizes[0]["sigma"] * math.sqrt(facts.clients) >= rows / 2:
        found.append(
            (
                "The number of rows is not known.",
                f"It was released with noise of standard deviation {sizes[0]['sigma']:.4g} a holder.",
            )
        )
    summed = [release for release in ledger["releases"] if release["name"] == "rows" and "sigma" in release]
    if rows is not None and summed and summed[0]["sigma"] >= rows / 2:
        said = f"It was released with noise of standard deviation {summed[0]['sigma']:.4g}."
        found.append(("The number of rows is not known.", said))
    return found


def _least_noise(ledger: Mapping[str, Any]) -> float | None:
    """The smallest noise of a count, in rows: sigma by what one row moves, of the releases other than row counts."""
    rows = unit_from_dict(ledger).rows
    noisy = [
        rows * release["sigma"] / release["sensitivity"]
        for release in ledger["releases"]
        if "sigma" in release and release["name"] not in ("sizes", "rows", "row-counts") and release["sensitivity"] > 0
    ]
    return min(noisy, default=None)


def _most_auc(ledger: Mapping[str, Any]) -> float | None:
    """The largest expected AUC of an attack that tells training rows from others.

    Let x be a training row, y another one, and p the chance that the attack ranks x above y. Exchanging the two is
    one replacement, after which y is the training row, so p <= e^eps (1 - p) + delta, with the
    epsilon of a replacement.
    """
    if not ledger["private"] or "epsilon_replace_one" not in ledger or ledger["epsilon_replace_one"] > 50:
        return None
    factor = math.exp(ledger["epsilon_replace_one"])
    return min(1.0, (factor + float(ledger["delta"])) / (1 + factor))


def _public_cards(facts: RunFacts) -> str:
    ledger = facts.ledger
    items = [("Epsilon", f"{ledger['epsilon']:.4g}", "smaller protects more"), ("Delta", f"{ledger['delta']:g}", "")]
    if facts.rows is not None:
        items.append(("Rows", f"{facts.rows:,}", f"{len(facts.domain)} columns"))
    return cards(items)


def _metrics(page: Page, facts: RunFacts) -> None:
    """The metrics that the configuration asked for, with their scale."""
    known = all_metrics()
    rows = []
    for name, value in facts.metrics.items():
        if name not in known:
            continue
        scale = facts.scales.get(name, {})
        references = [scale.get(key) for key in ("training rows", "independent columns", "uniform table")]
        numbers = [math.nan if reference is None else reference for reference in references]
        words = (
            verdicts.of_metric(math.nan if value is None else value, *numbers)[0] if scale else "no scale is computed"
        )
        direction = "lower is better" if known[name].lower_is_better else "higher is better"
        if name == "heterogeneity":
            direction, words = "neither", "how much the holders differ, not how good the table is"
        cells = [known[name].summary, direction, _value(value), *(_value(reference) for reference in references)]
        rows.append((name, *cells, words))
    if rows:
        head = ("metric", "what", "direction", "value", "training rows", "independent", "uniform", "verdict")
        page.section("Metrics", table(head, rows, caption="What the configuration asked for, and where it stands"))


def _costs(page: Page, facts: RunFacts) -> None:
    known = all_metrics()
    costs = [(name, COSTS.get(name, ""), _value(value)) for name, value in facts.metrics.items() if name not in known]
    if costs:
        page.section("Costs", table(("cost", "what", "value"), costs, caption="What the run took; not a release"))


def _value(value: float | None) -> str:
    return "–" if value is None else number(value)


def _model(page: Page, facts: RunFacts) -> None:
    if facts.edges is None:
        return
    page.section("Model")
    if facts.edges:
        page.figure(graph(list(facts.domain), facts.edges))
    else:
        page.add(paragraph("The model joins no columns: it draws each one independently of the others."))


def _privacy(page: Page, facts: RunFacts) -> None:
    ledger = facts.ledger
    page.section("Privacy")
    page.add(
        paragraph(
            f"Spent: rho = {ledger['rho']:.6g}, which is epsilon = {ledger['epsilon']:.6g} at "
            f"delta = {ledger['delta']:g} (budget: epsilon = {ledger['budget']['epsilon']:g})."
        ),
        paragraph(faced) if (faced := who_faces_what(facts)) else "",
    )
    releases, whole = ledger["releases"], max(float(ledger["rho"]), 1e-300)
    if releases:
        unspent = 1 - ledger["spent"] / ledger["capacity"] if ledger["capacity"] > 0 else 0.0
        paid = of_one_client(releases)
        page.figure(budget(spending(paid, whole, max(unspent, 0.0)), unspent))
        if len(paid) < len(releases):
            page.add(paragraph("Shown is what a row pays whose client paid most; others took part in other rounds."))
    page.add(table(("", ""), listed(ledger["statement"] or {}), caption="The privacy statement"))
    head = ("round", "release", "mechanism", "scale", "count", "rho", "noise by")
    every = table(head, (_release(release) for release in releases), caption="Every release of the ledger")
    page.add(f"<details><summary>Every release ({len(releases)})</summary>{every}</details>")


def of_one_client(releases: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that concern the client which pays most, where releases name clients; else all."""
    paid: dict[int, float] = {}
    for release in releases:
        for client in release.get("clients", ()):
            paid[client] = paid.get(client, 0.0) + release["rho"]
    most = max(sorted(paid), key=lambda k: paid[k], default=None)
    return [r for r in releases if most is None or most in r.get("clients", (most,))]


def spending(releases: Sequence[Mapping[str, Any]], whole: float, unspent: float) -> list[tuple[int, str, float]]:
    """(round, name, share of the budget) of the releases, those of one name and round together."""
    shares: dict[tuple[int, str], float] = {}
    for release in releases:
        key = (int(release["round"]), str(release["name"]))
        shares[key] = shares.get(key, 0.0) + release["rho"] / whole * (1 - unspent)
    return [(*key, share) for key, share in shares.items()]


def _release(release: Mapping[str, Any]) -> Sequence[str]:
    scale = f"sigma {release['sigma']:.5g}" if "sigma" in release else f"epsilon {release['epsilon']:.5g}"
    count, rho = str(release["count"]), f"{release['rho']:.4g}"
    return (str(release["round"]), release["name"], release["mechanism"], scale, count, rho, release["noise_by"])


_BY_ROUND = {
    "workload_error": "workload error",
    "sigma": "noise of a count (sigma, in rows)",
    "epsilon": "epsilon of a selection",
    "bytes_up": "bytes from clients",
    "bytes_down": "bytes to clients",
}


def _rounds(page: Page, facts: RunFacts) -> None:
    page.section("Rounds")
    lines, constant = {}, []
    for key, title in _BY_ROUND.items():
        values = [(r["round"], float(r[key])) for r in facts.rounds if r.get(key) is not None and r["round"] > 0]
        if len({value for _, value in values}) > 1:
            lines[title] = values
        elif values:
            constant.append(f"{title}: {values[0][1]:.4g} in every round")
    if lines:
        page.figure(by_round(lines))
    if constant:
        page.add(paragraph("; ".join(constant).capitalize() + "."))
    measured = any("seconds" in record for record in facts.rounds)
    head = ["round", "cohort", "dropped", "selected", *(["kB up", "kB down", "seconds"] if measured else [])]
    page.add(table(head, (_round(record, measured) for record in facts.rounds), caption="Round by round"))


def _round(record: Mapping[str, Any], measured: bool) -> Sequence[str]:
    dropped = "; ".join(f"{k}: {reason}" for k, reason in record["dropped"].items())
    cells = [str(record["round"]), str(len(record["cohort"])), dropped or "0", ", ".join(record["selected"])]
    if measured:
        cells += [f"{record[key] / 1e3:.1f}" if key in record else "" for key in ("bytes_up", "bytes_down")]
        cells.append(f"{sum(record['seconds'].values()):.2f}" if "seconds" in record else "")
    return cells
