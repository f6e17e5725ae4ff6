"""The third step of a run.

It samples the synthetic table, measures it in a simulation, and writes the run directory.
"""

from __future__ import annotations

import logging
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.errors import FedsynError
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.predicted import predict_quality
from fedsyn.evaluation.real.metrics import INDEPENDENT, evaluate
from fedsyn.inference import AnyModel, Evidence, Measurement, estimate
from fedsyn.output import counted, wants_tracebacks
from fedsyn.privacy.unit import counted_as
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.randomness import Randomness
from fedsyn.runs.directory import LOOKS_FILE, reading_of, save_fit, synthetic_file, write_json
from fedsyn.runs.federated_evaluation import FederatedEvaluation, table_file, table_rows, with_rows
from fedsyn.runs.prepare import Prepared, randomness_of
from fedsyn.runs.report import DRAWN_ROWS, compare, keep_looks, save_evaluation, with_drawn_rows, write_run_page
from fedsyn.runs.serve import Progress, at_stage
from fedsyn.runs.synthesis import decoding, whole_persons, write_synthetic
from fedsyn.table.counting.marginals import count
from fedsyn.table.data.options import written_as
from fedsyn.table.data.readers import raw_rows
from fedsyn.table.schema import Schema

log = logging.getLogger("fedsyn")
_MAXRSS_PER_MB = 1024**2 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere


def finish(
    config: RunConfig,
    prepared: Prepared,
    strategy: MechanismStrategy,
    out: Path,
    started: float,
    *,
    full_page: bool = True,
    baseline: bool = False,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Samples the synthetic table, writes the run directory, returns the metrics.

    A simulation that measures anything (`evaluation.metrics` is not empty) also compares its table with the real rows,
    for its page: comparison.json. Without `full_page` it does not, and the page draws no table; `fedsyn report` adds
    both. With `baseline` the metrics are those of independent columns, too. Once the table is written the budget is
    spent: what fails then is warned of, and left to `fedsyn report`.
    """
    prepared, model = prepared.closed, strategy.model
    assert model is not None
    evaluated = prepared.simulated and bool(config.evaluation.metrics)
    # Where nothing is measured, only the page's charts want rows, and a sample does for them.
    keep, most = evaluated or full_page, None if evaluated else DRAWN_ROWS
    evaluation, schema = strategy.afterwards, prepared.schema
    evidence = Evidence(strategy.measured, model.total) if strategy.measured else None
    # What the holders were asked about is drawn already, and is what is left.
    whole = None
    if isinstance(evaluation, FederatedEvaluation):
        synthetic, config = evaluation.synthetic, evaluation.config
    else:
        save_fit(out, schema, model, strategy.measured)
        config = with_rows(config, schema, strategy, out)
        file, rows = table_file(config, out), table_rows(config, model)
        layout = written_as(config.data.options, schema.rows)
        at_stage(progress, f"drawing {counted(rows, *counted_as(config.privacy.unit))}")
        decoded = decoding(schema, model)
        whole, drawn = whole_persons(decoded, model), (file, decoded, model, rows, randomness_of(config))
        synthetic = write_synthetic(*drawn, keep=keep, most=most, layout=layout, whole=whole)
    write_apart(out, schema)
    metrics: dict[str, float] = {}
    with said_if_it_fails("the predicted quality", progress):
        keep_looks(out, looks := strategy.sketch_errors(), shrunk=strategy.is_shrunk, limited=strategy.limited)
        known = (strategy.workload, strategy.is_shrunk, schema, strategy.limited)
        save_evaluation(out, with_drawn_rows(predict_quality(model, evidence, looks, *known), schema, model, whole))
        (out / LOOKS_FILE).unlink()
    if evaluated:
        assert synthetic is not None
        data = evaluation_input(prepared, strategy, model, synthetic)
        with said_if_it_fails("a metric", progress):
            metrics = judged(config, data, baseline)
    metrics |= costs(strategy, prepared.clients, started)
    # Strict JSON knows no infinity (the likelihood of a row that the model rules out): null says "not finite".
    write_json(out / "metrics.json", {k: v if np.isfinite(v) else None for k, v in metrics.items()})
    if evaluated and full_page:
        with said_if_it_fails("the comparison with the real rows", progress):
            assert prepared.real is not None
            compare(config, schema, data, prepared.real, out)
    with said_if_it_fails("the page", progress):
        write_run_page(out, config=config, synthetic=synthetic, draw=full_page)
    return metrics


def files_apart(out: Path, schema: Schema) -> list[Path]:
    """Returns the files of persons and of their rows.

    There are none where the schema does not name two tables, and none of single rows: without whole persons each row
    would be a person of its own.

    Args:
        out: the run directory.
        schema: of the run.
    """
    whole, names = synthetic_file(out), () if schema.of_persons is None else schema.of_persons.tables or ()
    return [out / f"{whole.stem}_{re.sub(r'[^A-Za-z0-9_-]', '_', name)}{whole.suffix}" for name in names]


def write_apart(out: Path, schema: Schema) -> None:
    """Writes the tables of persons and of rows.

    They are synthetic_NAME.csv, or .parquet, with the cells of the joined table.
    """
    if not (files := files_apart(out, schema)):
        return
    from fedsyn.table.schema.joined import apart

    whole = synthetic_file(out)
    tables = apart(raw_rows(whole, reading_of(whole, schema.rows), None), schema.rows).values()
    for file, table in zip(files, tables, strict=True):
        if whole.suffix == ".parquet":
            table.to_parquet(file, index=False)
        else:
            table.to_csv(file, index=False)


@contextmanager
def said_if_it_fails(what: str, progress: Progress | None) -> Iterator[None]:
    """Turns any failure inside into a warning.

    So it does not take with it what was paid for. Progress hears what is made.
    """
    at_stage(progress, f"making {what}")
    try:
        yield
    except Exception as error:
        if wants_tracebacks():
            raise
        # Of a text that is no FedsynError nothing is quoted: it may hold a value of a row.
        why = str(error) if isinstance(error, FedsynError) else f"a bug of fedsyn, {type(error).__name__}"
        log.warning("%s could not be made (%s); the table and its ledger are whole: run fedsyn report", what, why)


def evaluation_input(
    prepared: Prepared,
    strategy: MechanismStrategy,
    model: AnyModel,
    synthetic: npt.NDArray[np.integer],
) -> EvaluationInput:
    """Returns a simulation's real rows, model and synthetic rows together."""
    from fedsyn.table.data import EncodedTable

    table = EncodedTable(prepared.folder)
    return EvaluationInput.of(
        prepared.schema,
        train=table.pooled(),
        test=np.load(prepared.folder / "test.npy", allow_pickle=False),
        workload=strategy.workload,
        model=model,
        synthetic=synthetic,
        partition=[range(a, b) for a, b in pairwise(map(int, table.offsets))],
        test_numbers=np.load(prepared.folder / "test_numbers.npy", allow_pickle=False),
    )


def judged(config: RunConfig, data: EvaluationInput, baseline: bool) -> dict[str, float]:
    """Returns the run's metrics, with `baseline` those of independent columns, too."""
    metrics = evaluate(config.evaluation.metrics, data)
    if baseline:
        apart = evaluate(config.evaluation.metrics, independent(data, randomness_of(config)))
        metrics |= {f"{INDEPENDENT}_{name}": value for name, value in apart.items()}
    return metrics


def independent(data: EvaluationInput, randomness: Randomness) -> EvaluationInput:
    """Returns what a table with independent columns is judged by.

    Its model has the exact one-way marginals of the real rows, and nothing else: it is no release, and not private.
    """
    ones = [(name,) for name in data.domain]
    exact = [Measurement(q, values, 1.0) for q, values in zip(ones, count(data.train, data.domain, ones), strict=True)]
    model = estimate(data.domain, exact, total=float(len(data.train)))
    rows = model.sample(len(data.train), randomness.ordinary("independent columns"))
    return replace(data, model=model, synthetic=rows, cache={})


def costs(strategy: MechanismStrategy, clients: int, started: float) -> dict[str, float]:
    """Returns the costs of a run, by name.

    They are seconds, peak megabytes of this process, megabytes of an average client, and the number of
    replies that could not be used.

    Where parties compute on a store, also what the busiest of them spent: megabytes sent to the other two, rounds of
    their messages, seconds of processor; and of a store the seconds of its three steps.
    """
    up = sum(costs.bytes_up for costs in strategy.costs)
    down = sum(costs.bytes_down for costs in strategy.costs)
    return {
        "seconds": round(time.perf_counter() - started, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MAXRSS_PER_MB, 1),
        "client_mb_up": up / clients / 1e6,
        "client_mb_down": down / clients / 1e6,
        "dropped": float(sum(len(record.dropped) for record in strategy.records)),
        **_steps(strategy),
        **_parties([costs.parties for costs in strategy.costs if costs.parties]),
    }


def _steps(strategy: MechanismStrategy) -> dict[str, float]:
    """Returns the seconds of dealing, choosing and opening.

    They are those of clients and store together. Without a store there are none.
    """
    if strategy.store is None:
        return {}
    steps = {"seconds_deal": ("deal",), "seconds_choose": ("select",), "seconds_open": ("one-way", "measure")}
    spent = [costs.seconds for costs in strategy.costs]
    return {step: round(sum(s.get(name, 0.0) for s in spent for name in names), 3) for step, names in steps.items()}


def _parties(rounds: list[list[dict[str, float]]]) -> dict[str, float]:
    if not rounds:
        return {}
    busiest = {
        key: max(sum(cost[key] for cost in party) for party in zip(*rounds, strict=True)) for key in rounds[0][0]
    }
    return {
        "party_mb": busiest["bytes_sent"] / 1e6,
        "party_rounds": float(busiest["rounds"]),
        "party_cpu": round(busiest["cpu"], 3),
    }
