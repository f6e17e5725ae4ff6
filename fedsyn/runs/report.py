"""The page of a run, from its directory: as the run writes it, and again by `fedsyn report`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn import yamlio
from fedsyn.bounded import read_bytes
from fedsyn.config import FORMAT, RunConfig
from fedsyn.domain import Clique
from fedsyn.errors import FedsynError, InputError
from fedsyn.evaluation.labels import axis_labels
from fedsyn.evaluation.predicted import PredictedQuality
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.real.scores import Grouping, association, shares
from fedsyn.evaluation.report.charts import MOST_MARGINALS, Links, Marginal
from fedsyn.evaluation.report.html import read_facts, read_rounds
from fedsyn.evaluation.report.readme import readme
from fedsyn.evaluation.report.run_page import RunFacts, alarms, run_page
from fedsyn.evaluation.report.tables import latex_table, number
from fedsyn.inference import AnyModel, Model
from fedsyn.loading import released_config
from fedsyn.runs.directory import (
    COMPARISON_FILE,
    FEDERATED_FILE,
    PREDICTED_FILE,
    README_FILE,
    evaluation_file,
    load_evidence,
    load_model,
    synthetic_file,
    write_json,
)
from fedsyn.runs.open_tables import encoded_by
from fedsyn.runs.prepare import encoded_table, public_schema
from fedsyn.runs.run_config import published_config
from fedsyn.table.schema import Schema

Codes = npt.NDArray[np.integer]
Scales = Mapping[str, Mapping[str, float | None]]

# A fixed seed: the same tables have the same scores. Nothing private hangs on it.
COMPARISON_SEED = 0
DRAWN_ROWS = 200_000  # of the synthetic table, where it is drawn alone
_LINKED_COLUMNS = 40  # of the table whose associations are drawn alone
_PRIVATE = "Read from the real rows, exactly: not for publication."


def save_comparison(out: Path, found: TableComparison, scales: Scales) -> None:
    """Write comparison.json: scores against the real rows and the scale of each metric, not for publication."""
    write_json(out / COMPARISON_FILE, {"private": _PRIVATE, "quality": found.to_dict(), "scales": scales})


def load_comparison(out: Path) -> tuple[TableComparison, Scales] | None:
    """Return what `save_comparison` wrote, or None."""
    file = out / COMPARISON_FILE
    if not file.is_file():
        return None
    facts = read_facts(file)
    return TableComparison.from_dict(facts["quality"]), facts["scales"]


def save_predicted_quality(out: Path, predicted: PredictedQuality) -> None:
    """Write predicted_quality.json: what is predicted of the table from released values, which may be published."""
    write_json(out / PREDICTED_FILE, predicted.to_dict())


def load_predicted_quality(out: Path) -> PredictedQuality | None:
    """Return what `save_predicted_quality` wrote, or None.

    An old quality.json may hold scores against real rows instead: then the answer is None, too.
    """
    file = evaluation_file(out, PREDICTED_FILE)
    if not file.is_file():
        return None
    facts = read_facts(file)
    return None if "private" in facts else PredictedQuality.from_dict(facts)


def load_federated_evaluation(out: Path) -> Mapping[str, Any] | None:
    """Return what federated_evaluation.json holds, or None where the holders were not asked."""
    file = evaluation_file(out, FEDERATED_FILE)
    return read_facts(file) if file.is_file() else None


def write_full_report(out: Path, *, real: bool = True, formats: Sequence[str] = ()) -> list[Path]:
    """Rewrites report.html and writes metrics.csv and metrics.tex; the figures as files of these formats too.

    Args:
        out: the run directory.
        real: show what reads a simulation's real rows; otherwise the page is for publication, and no metric is written.
        formats: of `svg`, `pdf`, `png`.

    Returns:
        The paths.
    """
    config = _config(out)
    note = ""
    read_facts(out / "ledger.json")  # a damaged one is said before anything is written
    if real and config.runtime.engine != "deployment" and not (out / COMPARISON_FILE).is_file():
        note = _measure(config, out)
    paths = write_run_page(out, config=config, public=not real, note=note, formats=formats)
    if not real:
        return paths
    metrics = read_facts(out / "metrics.json")
    with (out / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("metric", "value"), *metrics.items()])
    rows = [(name, "not finite" if value is None else number(value)) for name, value in metrics.items()]
    (out / "metrics.tex").write_text(latex_table(("metric", "value"), rows), encoding="utf-8")
    return [paths[0], out / "metrics.csv", out / "metrics.tex", *paths[1:]]


def write_run_page(
    out: Path,
    *,
    config: RunConfig | None = None,
    synthetic: Codes | None = None,
    public: bool = False,
    draw: bool = True,
    note: str = "",
    formats: Sequence[str] = (),
) -> list[Path]:
    """Writes report.html from the files of a run directory. Returns its path, and those of the figures.

    Args:
        out: the run directory.
        config: its configuration, where that is at hand.
        synthetic: (rows, d) codes of the synthetic table, where they are at hand.
        public: leave out all that reads private rows.
        draw: with charts.
        note: a sentence that the page shows.
        formats: of figures that are written as files.
    """
    config = config or _config(out)
    notes = [note] if note else []
    found = None if public else load_comparison(out)
    try:
        schema = _schema(config, out)
    except InputError as error:
        schema = None
        why = "the schema is not at hand" if public else str(error)
        notes.append(f"The values of the columns are not shown: {why}.")
    model = load_model(out / "model.npz") if (out / "model.npz").is_file() else None
    file = synthetic_file(out)
    marginals: list[Marginal] = []
    links: Links = ()
    if found is None and schema is not None and draw and (synthetic is not None or file.is_file()):
        marginals, links = _alone(schema, _first_rows(file, schema) if synthetic is None else synthetic)
    facts = RunFacts(
        source=published_config(config)["data"]["source"],
        config=_shown_config(config, out, public),
        mechanism=config.mechanism.name,
        clients=config.federation.clients,
        ledger=read_facts(out / "ledger.json"),
        metrics={} if public else read_facts(out / "metrics.json"),
        rounds=read_rounds(out, measured=not public),
        rows=_rows(config, model),
        domain={} if model is None else dict(zip(model.domain.attributes, model.domain.shape, strict=True)),
        total=None if model is None else model.total,
        edges=None if model is None else _edges(model, schema, _measured(out, model)),
        marginals=marginals,
        links=links,
        comparison=None if found is None else found[0],
        scales={} if found is None else found[1],
        predicted=load_predicted_quality(out),
        federated=load_federated_evaluation(out),
        notes=notes,
        public=public,
    )
    (out / README_FILE).write_text(readme(facts), encoding="utf-8")
    page = run_page(facts, draw=draw)
    return [page.write(out / "report.html"), *page.save_figures(out / "figures", tuple(formats))]


def run_alarms(out: Path, config: RunConfig) -> list[tuple[str, str]]:
    """What the page of a run warns of (`fedsyn.evaluation.report.run_page.alarms`), to be said aloud, too."""
    if not (out / "model.npz").is_file():
        return []
    model, found = load_model(out / "model.npz"), load_comparison(out)
    facts = RunFacts(
        source="",
        config="",
        mechanism=config.mechanism.name,
        clients=config.federation.clients,
        ledger=read_facts(out / "ledger.json"),
        metrics={},
        rounds=[],
        rows=None,
        domain=dict(zip(model.domain.attributes, model.domain.shape, strict=True)),
        total=model.total,
        edges=None,
        comparison=None if found is None else found[0],
    )
    return alarms(facts)


def _measure(config: RunConfig, out: Path) -> str:
    """Writes comparison.json of a run that has none; a sentence that says why not where that fails."""
    if not synthetic_file(out).is_file():
        return "The synthetic table was not kept, so it cannot be compared with the real rows."
    try:
        table, schema = encoded_table(config.data), _schema(config, out)
        train = encoded_by(schema, table.schema, table.train, table.own)
        test = encoded_by(schema, table.schema, table.test, table.test_own)
        codes = _first_rows(synthetic_file(out), schema)
        rng = np.random.default_rng(COMPARISON_SEED)
        save_comparison(out, compare_tables(schema, train, codes, holdout=test, rng=rng), {})
    except (FedsynError, OSError) as error:
        return f"The real rows are not at hand: {error}"
    return ""


def _config(out: Path) -> RunConfig:
    return released_config(yamlio.read_mapping(out / "config.yaml"), str(out / "config.yaml"))


def _schema(config: RunConfig, out: Path) -> Schema:
    kept = out / "schema.yaml"
    return Schema.load(kept) if kept.is_file() else public_schema(config)


def _rows(config: RunConfig, model: AnyModel | None) -> int | None:
    if config.synthesis.rows is not None or model is None:
        return config.synthesis.rows
    return max(1, round(model.total))


def _shown_config(config: RunConfig, out: Path, public: bool) -> str:
    """The configuration as it stands; for publication, without the folders and machines of the run."""
    if public:
        return yamlio.dumps({"format": FORMAT, **published_config(config)})
    return read_bytes(out / "config.yaml").decode("utf-8")


def _first_rows(file: Path, schema: Schema) -> Codes:
    """Codes of the first rows of a synthetic table."""
    from fedsyn.table.data import encoded_blocks

    blocks: list[Codes] = []
    for block in encoded_blocks(file, schema):
        blocks.append(block.codes)
        if sum(map(len, blocks)) >= DRAWN_ROWS:
            break
    return np.concatenate(blocks)[:DRAWN_ROWS]


def _alone(schema: Schema, codes: Codes) -> tuple[list[Marginal], Links]:
    """One-way marginals and associations of the synthetic table alone."""
    codes = codes[:DRAWN_ROWS]
    found = shares(codes, schema.domain)
    names = list(schema.domain)
    marginals = [
        Marginal(name, axis_labels(schema.columns[name]), [float(f"{x:.4g}") for x in share], None)
        for name, share in zip(names[:MOST_MARGINALS], found, strict=False)
    ]
    grouping = Grouping.of(schema, found, names[:_LINKED_COLUMNS])
    tables = grouping.count(codes)
    links = [
        (names[a], names[b], float("nan"), association(table, len(codes)))
        for (a, b), table in zip(grouping.pairs, tables, strict=True)
    ]
    return marginals, links


def _measured(out: Path, model: AnyModel) -> list[Clique]:
    """The cliques that the model was fitted to; of a folder that does not have them, those of its potentials.

    A model that was smoothed has potentials on the cliques of its junction tree, which are more.
    """
    file = out / "measurements.npz"
    if file.is_file():
        return [m.clique for m in load_evidence(file, model.domain).measurements]
    return list(model.potentials) if isinstance(model, Model) else []


def _edges(model: AnyModel, schema: Schema | None, cliques: Sequence[Clique]) -> list[tuple[str, str, float]] | None:
    """Pairs of columns that were measured together, with their association in the model; None without potentials."""
    if not isinstance(model, Model):
        return None
    pairs = sorted({pair for clique in cliques for pair in combinations(model.domain.canonical(clique), 2)})
    if not pairs:
        return []
    names = sorted({name for pair in pairs for name in pair}, key=model.domain.attributes.index)
    singles = {name: table / model.total for name, table in _projected(model, [(name,) for name in names])}
    groups = _groups(schema, model, singles, names)
    rows = max(2, round(model.total))
    return [
        (a, b, association(_folded(model.project((a, b)) / model.total, groups.get(a), groups.get(b)), rows))
        for a, b in pairs
    ]


def _projected(model: Model, cliques: list[tuple[str, ...]]) -> list[tuple[str, npt.NDArray[Any]]]:
    return [(clique[0], table) for clique, table in zip(cliques, model.project_many(cliques), strict=True)]


def _groups(
    schema: Schema | None, model: Model, singles: Mapping[str, npt.NDArray[Any]], names: Sequence[str]
) -> dict[str, npt.NDArray[np.int64]]:
    if schema is None or set(schema.domain) != set(model.domain):
        return {}
    every = [singles.get(name, np.ones(schema.domain[name])) for name in schema.domain]
    grouping = Grouping.of(schema, every, names)
    return dict(zip(names, grouping.groups, strict=True))


def _folded(table: npt.NDArray[Any], rows: npt.NDArray[Any] | None, columns: npt.NDArray[Any] | None) -> Any:
    for axis, groups in ((0, rows), (1, columns)):
        if groups is not None and int(groups.max()) + 1 < table.shape[axis]:
            order = np.argsort(groups, kind="stable")
            starts = np.searchsorted(groups[order], np.arange(int(groups.max()) + 1))
            table = np.add.reduceat(np.take(table, order, axis=axis), starts, axis=axis)
    return table
