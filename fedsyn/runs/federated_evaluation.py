"""A run's question to its holders: how good is the table?

The table is drawn first, and what is asked is made from it alone.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.errors import RunError
from fedsyn.evaluation.boxes import QUERIES, QUERY_SEED, Boxes, RangeQueries, random_queries
from fedsyn.evaluation.federated.intervals import FederatedQuality
from fedsyn.evaluation.federated.question import MOST_ROWS, TableQuestion, compared_cliques
from fedsyn.evaluation.inputs import ColumnRange, column_ranges, sample_rows
from fedsyn.evaluation.trees import Trees, train_trees
from fedsyn.inference import AnyModel
from fedsyn.protocol.federated_evaluation import federated_evaluation
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.randomness import Randomness
from fedsyn.runs.directory import save_fit, write_json
from fedsyn.runs.prepare import Prepared
from fedsyn.runs.synthesis import decoding, expected_rows, rows_with_room, write_synthetic
from fedsyn.table.data.options import written_as
from fedsyn.table.schema import Schema

log = logging.getLogger("fedsyn")
Codes = npt.NDArray[np.integer]
_SAMPLE_SEED = 20_262  # public: which rows of a very large table are compared


def table_file(config: RunConfig, out: Path) -> Path:
    return out / f"synthetic.{config.synthesis.format or 'csv'}"


def table_rows(config: RunConfig, model: AnyModel) -> int:
    return config.synthesis.rows or expected_rows(model)


def with_rows(config: RunConfig, schema: Schema, strategy: MechanismStrategy, out: Path) -> RunConfig:
    """Returns the configuration of a table that can be written.

    It is the run's own unless that leaves the number of rows open, and the released total is more than a table may
    have. Then it has a number, which config.yaml gets, and a sentence says so.
    """
    model = strategy.model
    assert model is not None
    if config.synthesis.rows is not None:
        return config
    rows = rows_with_room(out, schema, model, written_as(config.data.options, schema.rows))
    if rows >= round(model.total):
        return config
    half = model.total / 2
    large = [f"client {k}: {client.rows:,.0f}" for k, client in strategy.clients.items() if (client.rows or 0.0) > half]
    log.warning(
        "the holders' released row counts come to %s, and a table of %s rows is written%s; synthesis.rows, or fedsyn "
        "sample %s --rows, asks for more",
        f"{model.total:,.0f}",
        f"{rows:,}",
        f" (more than half of them are those of one: {large[0]})" if large else "",
        out,
    )
    chosen = config.model_copy(update={"synthesis": config.synthesis.model_copy(update={"rows": rows})})
    chosen.save(out / "config.yaml")
    return chosen


class FederatedEvaluation:
    """Step after a mechanism that asks holders about the table.

    It draws the table, asks, and keeps table and answers for the end of the run.

    Attributes:
        synthetic: (rows, d) codes of the table that was written; None before it was.
    """

    def __init__(
        self, config: RunConfig, prepared: Prepared, strategy: MechanismStrategy, randomness: Randomness, out: Path
    ) -> None:
        self.config, self.schema, self.strategy, self.out = config, prepared.schema, strategy, out
        self.randomness = randomness
        self.synthetic: Codes | None = None

    def __call__(self) -> Generator[Any, Any, None]:
        model = self.strategy.model
        assert model is not None
        with self.strategy.timed("draw"):
            save_fit(self.out, self.schema, model, self.strategy.measured)
            self.config = with_rows(self.config, self.schema, self.strategy, self.out)
            rows, file = table_rows(self.config, model), table_file(self.config, self.out)
            schema = decoding(self.schema, model)
            layout = written_as(self.config.data.options, self.schema.rows)
            self.synthetic = write_synthetic(file, schema, model, rows, self.randomness, keep=True, layout=layout)
        assert self.synthetic is not None
        with self.strategy.timed("train"):
            question, notes = self._question(self.synthetic)
        self.strategy.record.notes += notes
        try:
            sums = yield from federated_evaluation(self.strategy, question)
            why = "too few contributions" if sums is None else ""
        except RunError as error:
            sums, why = None, str(error)
        if sums is None:
            self.strategy.record.notes.append(f"{why}: nothing is known of how good the table is")
            return
        held_out = self.config.evaluation.held_out if "tested" in sums.values else 0.0
        of = "rows" if self.schema.of_persons is None else "people"
        quality = FederatedQuality(sums.intervals(), sums.holders, tuple(notes), held_out, of=of)
        write_json(self.out / quality.FILE, quality.document())

    def _question(self, synthetic: Codes) -> tuple[TableQuestion, list[str]]:
        """Returns the question to the holders, and notes.

        In a run that goes on it is the one that was asked before.
        """
        recorder, strategy = self.strategy.recorder, self.strategy
        past = recorder.past("question")
        if past is not None:
            label = None if past["label"] is None else int(past["label"])
            arrays = past["arrays"]
            return TableQuestion.read(strategy.domain, strategy.workload, arrays, label), list(past["notes"])
        question, notes = question_about(self.schema, strategy.workload, synthetic)
        if recorder.is_on:
            recorder.add("question", arrays=question.arrays(), label=question.label, notes=notes)
        return question, notes


def question_about(schema: Schema, workload: Any, synthetic: Codes) -> tuple[TableQuestion, list[str]]:
    """Makes the question to holders about a table.

    It comes with notes on what they are not asked, and why.
    """
    domain, notes = schema.domain, list[str]()
    # The rows that holders compare with their own.
    table = sample_rows(synthetic, MOST_ROWS, np.random.default_rng(_SAMPLE_SEED))
    table = np.ascontiguousarray(table, np.min_scalar_type(max(domain.shape) - 1))
    boxes, trees, label = Boxes.none(), Trees.none(), None
    if len(domain) < 2:
        notes.append("range queries need two columns")
    else:
        # Range queries on pairs of columns.
        ranges = column_ranges(schema)
        queries = random_queries(domain, ranges, 2, QUERIES, np.random.default_rng([QUERY_SEED, 2]))
        boxes = boxes_of(queries, schema, ranges)
    if schema.label is None:
        notes.append("accuracy needs a label: set data.label")
    else:
        label = domain.axes((schema.label,))[0]
        # Trees that predict the label, trained on the synthetic rows.
        trained = train_trees(table, label)
        if isinstance(trained, str):
            notes.append(trained)
        else:
            trees = trained
    return TableQuestion(domain, compared_cliques(workload), table, boxes, trees, label), notes


def boxes_of(queries: RangeQueries, schema: Schema, ranges: dict[str, ColumnRange]) -> Boxes:
    """Turns range queries on values into boxes on codes.

    In an ordered column they are the bins whose middle is in the range, else one value.
    """
    low, high = queries.low.copy(), queries.high.copy()
    for name, column in ranges.items():
        chosen = queries.axes == schema.domain.axes((name,))[0]
        middles = column.values[np.isfinite(column.values)]
        low[chosen] = np.searchsorted(middles, low[chosen], side="left")
        high[chosen] = np.searchsorted(middles, high[chosen], side="right") - 1
    return Boxes(queries.axes.astype(np.int32), low.astype(np.int32), high.astype(np.int32))
