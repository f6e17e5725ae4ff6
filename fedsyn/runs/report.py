"""Makes the page of a run from its directory.

The run itself writes it, and `fedsyn report` writes it again.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn import yamlio
from fedsyn.bounded import read_bytes
from fedsyn.config import FORMAT, DataNode, RunConfig
from fedsyn.domain import Clique
from fedsyn.errors import ConfigError, DataError, FedsynError, InputError
from fedsyn.evaluation.federated.intervals import FederatedQuality
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.predicted import PredictedQuality, SketchError, predict_quality
from fedsyn.evaluation.predicted.among import values_there
from fedsyn.evaluation.predicted.drawn import DrawnRows
from fedsyn.evaluation.real.comparison import MOST_ROWS, TableComparison, compare_tables
from fedsyn.evaluation.real.metrics import evaluate, is_quality
from fedsyn.evaluation.real.scales import scales
from fedsyn.evaluation.record import COMPARISON_FILE, Evaluation
from fedsyn.evaluation.report.charts import MOST_MARGINALS, Links, Marginal
from fedsyn.evaluation.report.run_page import RunFacts, alarms, readme, run_page
from fedsyn.evaluation.scores import Grouping, association, axis_labels, shares
from fedsyn.files import write_text
from fedsyn.inference import AnyModel, Model
from fedsyn.loading import released_config
from fedsyn.output import cell, first_of
from fedsyn.registry import installed_only, reported
from fedsyn.runs.directory import (
    LOOKS_FILE,
    PAGE_FILE,
    PUBLIC_PAGE_FILE,
    README_FILE,
    load_evidence,
    load_model,
    read_facts,
    read_rounds,
    reading_of,
    synthetic_file,
    write_json,
)
from fedsyn.runs.federated_evaluation import table_rows
from fedsyn.runs.persons import WholePersons
from fedsyn.runs.prepare import split_tables
from fedsyn.runs.real_rows import RealRows, rows_of_people
from fedsyn.runs.run_config import published_config
from fedsyn.runs.synthesis import judged_rows
from fedsyn.table.counting.sums import group_of_cells, sums_of_groups
from fedsyn.table.counting.workload import strangers_workload
from fedsyn.table.data.options import shown_layout
from fedsyn.table.data.sources import is_path
from fedsyn.table.schema import Schema
from fedsyn.table.schema.persons import COUNT, rows_of_each
from fedsyn.table.schema.whose import PersonColumn

Codes = npt.NDArray[np.integer]
Found = TypeVar("Found", bound=Evaluation)
#: The ways to know how good a table is, the surest first.
WAYS: tuple[type[Evaluation], ...] = (TableComparison, FederatedQuality, PredictedQuality)

# A fixed seed: the same tables have the same scores. Nothing private hangs on it.
COMPARISON_SEED = 0
DRAWN_ROWS = 200_000  # of the synthetic table, where it is drawn alone
_LINKED_COLUMNS = 40  # of the table whose associations are drawn alone

log = logging.getLogger("fedsyn")


def save_evaluation(out: Path, evaluation: Evaluation) -> None:
    """Writes an evaluation into its file of a run directory."""
    write_json(out / evaluation.FILE, evaluation.document())


def load_evaluation(out: Path, way: type[Found]) -> Found | None:
    """Returns a run directory's evaluation in one of the `WAYS`.

    Returns None if it has none.

    Raises:
        DataError: the file is damaged.
    """
    file = out / way.FILE
    if not file.is_file():
        return None
    return evaluation_of(way, read_facts(file), f"{file} is damaged: remove it, or evaluate the table again")


def evaluation_of(way: type[Found], facts: Mapping[str, Any], damaged: str) -> Found:
    """Returns an evaluation from a file's facts.

    It is one of the `WAYS`.

    Raises:
        DataError: with the sentence `damaged`.
    """
    try:
        return way.of_document(facts)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(damaged) from None


def load_evaluations(out: Path, *, public: bool = False) -> list[Evaluation]:
    """Returns all evaluations in a run directory, the surest first.

    They say how good its table is. With `public` only those that may be published are returned.
    """
    evaluations = (load_evaluation(out, way) for way in WAYS if way.PUBLIC or not public)
    return [one for one in evaluations if one is not None]


def write_full_report(out: Path, *, real: bool = True, data: Sequence[str] = ()) -> list[Path]:
    """Rewrites a page of a run, and with real rows metrics.csv.

    Args:
        out: the run directory.
        real: show what reads a simulation's real rows; otherwise the page is for publication, and no metric is written.
        data: the tables of real rows, one or one of each client, to be measured against anew. Without them no table
            is opened that lies outside the run directory.

    Returns:
        The paths.
    """
    config, table = _config(out), synthetic_file(out)
    if not _lies_in(str(table), out):  # it might be the user's real rows, drawn into a page for publication
        raise DataError(f"{table} is a link to a table outside the run's directory; put the table itself there")
    if data and config.runtime.engine == "deployment":
        raise ConfigError("--data: the real rows of a deployment stay with its holders, and its report reads none")
    note = unread = ""
    read_facts(out / "ledger.json")  # a damaged one is said before anything is written
    with installed_only():  # a directory may be a stranger's
        if (out / LOOKS_FILE).is_file():
            note = _predict(config, out)
        if real and config.runtime.engine != "deployment" and (unread := _measure(config, out, data)):
            log.warning("%s", unread)
    page = write_run_page(out, config=config, public=not real, note=note, unread=unread)
    if not real:
        return [page]
    metrics = read_facts(out / "metrics.json")
    lines = io.StringIO()
    csv.writer(lines).writerows([("metric", "value"), *((cell(name), value) for name, value in metrics.items())])
    write_text(out / "metrics.csv", lines.getvalue())
    return [page, out / "metrics.csv"]


def write_run_page(
    out: Path,
    *,
    config: RunConfig | None = None,
    synthetic: Codes | None = None,
    public: bool = False,
    draw: bool = True,
    note: str = "",
    unread: str = "",
) -> Path:
    """Writes a page from the files of a run directory.

    It is report.html where real rows were read: compared with, or measured. Every other page is report_public.html.

    Args:
        out: the run directory.
        config: its configuration, where that is at hand.
        synthetic: (rows, d) codes of the synthetic table, where they are at hand.
        public: leave out all that reads private rows.
        draw: with the values of the table.
        note: a sentence that the page shows.
        unread: why real rows were not read, which a page for publication keeps to itself.

    Returns:
        Its path.
    """
    config = config or _config(out)
    public = public or not _measured_on_real_rows(out)
    notes = [text for text in (note, "" if public else unread) if text]
    evaluations = load_evaluations(out, public=public)
    schema = _schema_or_why(out, public, notes)
    model = load_model(out / "model.npz") if (out / "model.npz").is_file() else None
    rounds = read_rounds(out, measured=not public)
    # The values of the synthetic table alone, where none beside the real rows are shown.
    compared = next((one for one in evaluations if isinstance(one, TableComparison)), None)
    alone = schema if draw and compared is None else None
    marginals, links = ([], {}) if alone is None else _alone(out, alone, synthetic)
    facts = facts_of(
        config,
        read_facts(out / "ledger.json"),
        model,
        evaluations,
        schema,
        config=_shown_config(config, out, public),
        metrics={} if public else read_facts(out / "metrics.json"),
        rounds=rounds,
        joined=_joined(config, rounds),
        rows=config.synthesis.rows if model is None else table_rows(config, model),
        # A pair has one association on a page: the table's own, where that is known.
        edges=None if model is None else _edges(model, schema, _measured(out, model), compared),
        marginals=marginals,
        links=links,
        notes=notes,
        public=public,
    )
    write_text(out / README_FILE, readme(facts))
    return run_page(facts).write(out / (PUBLIC_PAGE_FILE if public else PAGE_FILE))


def _joined(config: RunConfig, rounds: Sequence[Mapping[str, Any]]) -> int | None:
    """Returns the number of holders that took part in a deployment.

    In a simulation everybody is there, or all rows are one holder's.
    """
    cohorts = [line.get("cohort") for line in rounds[: config.runtime.engine == "deployment"]]
    return next((len(cohort) for cohort in cohorts if isinstance(cohort, list)), None)


def _measured_on_real_rows(out: Path) -> bool:
    """Returns whether a run has figures of real rows."""
    metrics = read_facts(out / "metrics.json") if (out / "metrics.json").is_file() else {}
    return (out / COMPARISON_FILE).is_file() or any(map(is_quality, metrics))


def layout_said(config: RunConfig, schema: Schema | None) -> str:
    """Describes in words how the table of a run is written.

    The text is empty for a plain CSV file, or a Parquet file.
    """
    return (
        "" if schema is None or config.synthesis.format == "parquet" else shown_layout(config.data.options, schema.rows)
    )


def holders_of(run: RunConfig, ledger: Mapping[str, Any]) -> int:
    """Returns the number of holders that a run had.

    It is one where its mechanism took the rows of all clients for one's.
    """
    holders = ledger.get("assumptions", {}).get("holders")
    return holders if isinstance(holders, int) else run.federation.clients


def facts_of(
    run: RunConfig,
    ledger: Mapping[str, Any],
    model: AnyModel | None,
    evaluations: Sequence[Evaluation],
    schema: Schema | None = None,
    **more: Any,
) -> RunFacts:
    """Returns the `RunFacts` of a run.

    `more` are its other fields.
    """
    data, persons = published_config(run)["data"], None if schema is None else schema.of_persons
    return RunFacts(
        source=first_of([*(data.get("persons") or ()), *(data.get("holders") or [data["source"]])], 3),
        mechanism=run.mechanism.name,
        clients=holders_of(run, ledger),
        columns=None if schema is None else len(schema.rows.order),
        rows_each="" if persons is None else rows_of_each(persons),
        tables=() if persons is None else persons.tables or (),
        layout=layout_said(run, schema),
        ledger=ledger,
        domain={} if model is None else dict(zip(model.domain.attributes, model.domain.shape, strict=True)),
        total=None if model is None else model.total,
        evaluations=evaluations,
        **more,
    )


def run_alarms(out: Path, config: RunConfig) -> list[tuple[str, str]]:
    """Returns the warnings on the page of a run.

    They are to be printed, too (`fedsyn.evaluation.report.run_page.alarms`).
    """
    if not (out / "model.npz").is_file():
        return []
    model = load_model(out / "model.npz")
    return alarms(facts_of(config, read_facts(out / "ledger.json"), model, load_evaluations(out)))


def keep_looks(out: Path, sketch_errors: Iterable[SketchError], *, shrunk: bool, limited: float) -> None:
    """Keeps the sketches' errors for `predict_quality`.

    `predict_quality` reads them beside the model and its measurements.
    """
    looks = []
    for one in sketch_errors:
        groups = None if one.groups is None else [np.asarray(group).tolist() for group in one.groups]
        looks.append({**vars(one), "clique": list(one.clique), "groups": groups})
    write_json(out / LOOKS_FILE, {"shrunk": shrunk, "limited": limited, "looks": looks}, indent=None)


def _predict(config: RunConfig, out: Path) -> str:
    """Writes predicted_quality.json of a run that could not.

    Returns a sentence that says so where that fails again, else an empty text.

    The page may be for publication, so the sentence names no file of another folder.
    """
    file = out / "measurements.npz"
    try:
        facts = read_facts(out / LOOKS_FILE)
        model, schema = load_model(out / "model.npz"), _schema(out)
        looks = []
        for one in facts["looks"]:
            groups = None if one["groups"] is None else tuple(map(np.array, one["groups"]))
            looks.append(SketchError(**{**one, "clique": tuple(one["clique"]), "groups": groups}))
        evidence = load_evidence(file, model.domain) if file.is_file() else None
        workload = strangers_workload(config.workload, schema.domain)
        known = (workload, facts["shrunk"], schema, facts.get("limited", 0.0))
        save_evaluation(out, with_drawn_rows(predict_quality(model, evidence, looks, *known), schema, model))
    except (FedsynError, OSError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        return f"The quality could not be predicted from {LOOKS_FILE} ({type(error).__name__})."
    (out / LOOKS_FILE).unlink()
    return ""


def with_drawn_rows(
    quality: PredictedQuality, schema: Schema, model: AnyModel, whole: WholePersons | None = None
) -> PredictedQuality:
    """Returns a predicted quality that knows rows of persons.

    `whole` makes them of records, if that is known already.
    """
    if schema.of_persons is None:
        return quality
    return quality.with_rows(DrawnRows(schema, model, judged_rows(schema, model, whole)))


def compare(config: RunConfig, schema: Schema, data: EvaluationInput, real: RealRows, out: Path) -> None:
    """Writes comparison.json, the table beside the real rows.

    Both are read as they are written, also where the run has records of persons. Each metric's scale is written, too.
    """
    schema = schema.rows
    rng, table = np.random.default_rng(COMPARISON_SEED), synthetic_file(out)
    by = PersonColumn.of(schema)
    synthetic = rows_of_people(table, reading_of(table, schema), schema.order, by, MOST_ROWS, rng)
    rows, held_out = real.read(schema.order, MOST_ROWS, rng, by)
    comparison = compare_tables(rows, synthetic, holdout=held_out, schema=schema, rng=rng)
    predicted = load_evaluation(out, PredictedQuality)
    limits = "" if predicted is None else predicted.limits()
    save_evaluation(out, replace(comparison, limits=limits, scales=scales(config.evaluation.metrics, data, rng)))


def _measure(config: RunConfig, out: Path, named: Sequence[str]) -> str:
    """Writes the comparison and the metrics that a run lacks.

    Returns a sentence that says why not where that fails, else an empty text.

    With tables that the user named both are written anew, and what fails is raised.
    """
    # Is anything missing at all?
    known = read_facts(out / "metrics.json")
    compared = not named and load_evaluation(out, TableComparison) is not None
    missing = [name for name in config.evaluation.metrics if named or reported(name) not in known]
    if not synthetic_file(out).is_file():
        return "" if compared else "The synthetic table was not kept, so it cannot be compared with the real rows."
    if compared and not missing:
        return ""
    # The real rows, read and split again as in the run.
    try:
        if config.data.by_coins:
            raise DataError("coins divided them, and nobody can tell again which ones the run learnt from")
        schema, source = _schema(out), _data_of(config.data, out, named)
        table = split_tables(config.model_copy(update={"data": source}), schema=schema.rows)
        data = EvaluationInput.of(
            schema,
            train=table.train,
            test=table.test,
            workload=strangers_workload(config.workload, schema.domain),
            model=load_model(out / "model.npz"),
            synthetic=_first_rows(synthetic_file(out), schema),
            partition=table.parts,
            test_numbers=table.test_numbers,
        )
        if not compared:
            compare(config, schema, data, table.real, out)
    except (FedsynError, OSError) as error:
        if named:
            raise
        return f"The real rows are not at hand: {error}"
    try:
        measured = {name: v if np.isfinite(v) else None for name, v in evaluate(missing, data).items()}
    except (FedsynError, OSError) as error:
        return f"Not measured, {', '.join(missing)}: {error}"
    write_json(out / "metrics.json", {**measured, **known, **measured})
    return ""


def _data_of(data: DataNode, out: Path, named: Sequence[str]) -> DataNode:
    """Returns the source from which a run's real rows are read.

    It is the tables that the user named, else one inside the run's directory.

    A directory may be a stranger's, whose configuration must not open the user's files or reach for a network.

    Raises:
        DataError: without a named table, if the configuration's lies elsewhere.
    """
    options = {key: value for key, value in data.options.items() if key != "key_file"}
    inside: dict[str, Any] = {"schema_file": None, "bins": None, "label": None, "options": options}
    if named and data.persons is not None:
        if len(named) != 2 * len(data.persons):
            raise ConfigError("--data: persons and their rows are two files; name both, that of the persons first")
        inside["persons"], named = tuple(named[::2]), named[1::2]
    if named:
        holders = tuple(named) if len(named) > 1 else None
        return data.model_copy(update={**inside, "source": named[0], "holders": holders})
    elsewhere = data.source.startswith("openml:") or (is_path(data.source) and not _lies_in(data.source, out))
    if data.holders or elsewhere or not all(_lies_in(file, out) for file in data.persons or ()):
        raise DataError(
            "a report opens no table outside the run's directory unless you name it: fedsyn report RUN --data FILE"
        )
    return data.model_copy(update=inside)


def _lies_in(file: str, folder: Path) -> bool:
    """Returns whether a file lies in a folder.

    All links are followed.
    """
    try:
        return Path(file).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # links in a circle, or a name that no file can have
        return False


def _config(out: Path) -> RunConfig:
    return released_config(yamlio.read_mapping(out / "config.yaml"), str(out / "config.yaml"))


def _schema(out: Path) -> Schema:
    if not (out / "schema.yaml").is_file():
        raise DataError("the run's directory has no schema.yaml")
    return Schema.load(out / "schema.yaml")


def _schema_or_why(out: Path, public: bool, notes: list[str]) -> Schema | None:
    """Returns the schema, or notes why there is none."""
    try:
        return _schema(out)
    except InputError as error:
        why = "the schema is not at hand" if public else str(error)
        notes.append(f"The values of the columns: {why}.")
        return None


def _shown_config(config: RunConfig, out: Path, public: bool) -> str:
    """Returns the text of the configuration as it stands.

    For publication it lacks the folders and machines of the run.
    """
    if public:
        return yamlio.dumps({"format": FORMAT, **published_config(config)})
    return read_bytes(out / "config.yaml").decode("utf-8")


def _first_rows(file: Path, schema: Schema) -> Codes:
    """Returns the codes of the first rows of a synthetic table."""
    from fedsyn.table.data import encoded_blocks

    blocks: list[Codes] = []
    if schema.of_persons is not None:
        from fedsyn.table.data.records import RecordMaker
        from fedsyn.table.schema.holdings import Holding

        maker = RecordMaker(schema.rows, np.random.default_rng(COMPARISON_SEED))
        for _ in encoded_blocks(file, schema.rows, reading_of(file, schema), holding=Holding(schema.rows, maker)):
            pass
        return maker.record().codes[:DRAWN_ROWS]
    for block in encoded_blocks(file, schema, reading_of(file, schema)):
        blocks.append(block.codes)
        if sum(map(len, blocks)) >= DRAWN_ROWS:
            break
    return np.concatenate(blocks)[:DRAWN_ROWS]


def _marginal(schema: Schema, name: str, share: npt.NDArray[np.float64], of: str = "rows") -> Marginal:
    values = [float(f"{x:.4g}") for x in share]
    return Marginal(name, axis_labels(schema.columns[name]), values, None, of=of)


def _alone(out: Path, schema: Schema, codes: Codes | None) -> tuple[list[Marginal], Links]:
    """Returns one-way marginals and associations of the synthetic table.

    Without codes they are those of its file; there are none of a table that was not kept. Of records come the number of
    rows of each, and then their rows, as the table has them.
    """
    file = synthetic_file(out)
    if codes is None and not file.is_file():
        return [], {}
    codes = _first_rows(file, schema) if codes is None else codes[:DRAWN_ROWS]
    marginals = list[Marginal]()
    if schema.of_persons is not None:
        if not file.is_file():
            return [], {}
        numbers = shares(codes, schema.domain)[list(schema.domain).index(COUNT)]
        marginals.append(_marginal(schema, COUNT, numbers, "people"))
        codes, schema = _first_rows(file, schema.rows), schema.rows
    column_shares = shares(codes, schema.domain)
    names = list(schema.domain)
    drawn = zip(names[: MOST_MARGINALS - len(marginals)], column_shares, strict=False)
    marginals += [_marginal(schema, name, share) for name, share in drawn]
    grouping = Grouping.of(schema, column_shares, names[:_LINKED_COLUMNS])
    tables = grouping.count(codes)
    links = {
        (names[a], names[b]): association(table, len(codes))
        for (a, b), table in zip(grouping.pairs, tables, strict=True)
    }
    return marginals, links


def _measured(out: Path, model: AnyModel) -> list[Clique]:
    """Returns the cliques that the model was fitted to.

    If the folder does not have them, they are those of the model's potentials.

    A model that was smoothed has potentials on the cliques of its junction tree, which are more.
    """
    file = out / "measurements.npz"
    if file.is_file():
        return [m.clique for m in load_evidence(file, model.domain).measurements]
    return [q for q in model.potentials if set(q) <= set(model.domain)] if isinstance(model, Model) else []


def _edges(
    model: AnyModel, schema: Schema | None, cliques: Sequence[Clique], compared: TableComparison | None
) -> list[tuple[str, str, float]] | None:
    """Returns the pairs of columns that were measured together.

    Each has its association in the model, or in the table where that was compared. Of records it is that of the model,
    among the people who have both values: that somebody has no row is no link. Returns None for a model without
    potentials.
    """
    if not isinstance(model, Model):
        return None
    pairs = sorted({pair for clique in cliques for pair in combinations(model.domain.canonical(clique), 2)})
    if not pairs:
        return []
    names = sorted({name for pair in pairs for name in pair}, key=model.domain.attributes.index)
    sizes = dict(zip(model.domain.attributes, model.domain.shape, strict=True))
    singles = {
        name: table / model.total
        for name, table in zip(names, model.project_many([(name,) for name in names]), strict=True)
    }
    groups: dict[str, npt.NDArray[np.int64]] = {name: np.arange(size) for name, size in sizes.items()}
    if schema is not None and set(schema.domain) == set(model.domain):
        every = [singles.get(name, np.ones(sizes[name])) for name in schema.domain]
        groups |= dict(zip(names, Grouping.of(schema, every, names).groups, strict=True))
    rows, edges, there = max(2, round(model.total)), [], values_there(schema)
    known = (
        {}
        if compared is None or there
        else {frozenset((p.first, p.second)): p.association_synthetic for p in compared.pairs}
    )
    for a, b in pairs:
        if frozenset((a, b)) in known:
            edges.append((a, b, known[frozenset((a, b))]))
            continue
        index, cells = group_of_cells([groups[a], groups[b]])
        both = np.outer(*(there.get(name, np.ones(sizes[name], bool)) for name in (a, b))).ravel()
        held = np.where(both, np.ravel(model.project((a, b))), 0.0)
        table = sums_of_groups(index, held / max(float(held.sum()), 1e-300), cells)
        edges.append((a, b, association(table.reshape(int(groups[a].max()) + 1, -1), rows)))
    return edges
