"""Predicts what to expect of a run before a row is touched.

The run is rehearsed on tables that stand in for the holders' rows.

A rehearsal is the run itself, by its own mechanism, noise, holders and protocol, over public or drawn rows. So it knows
whatever the mechanism knows of noise, sketches, groups and plans, and none of that is written down a second time. What
it cannot know is the table. In its place stand rows of a public table, rows of an earlier release, or tables drawn from
what tables are like (`fedsyn.front.standin`).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedsyn.capabilities import PLAIN
from fedsyn.config import DataNode, EvaluationNode, RunConfig, RuntimeNode, SynthesisNode
from fedsyn.errors import ConfigError, SchemaError
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.predicted.links import SeenLinks
from fedsyn.evaluation.real.marginals import kway_error, workload_error
from fedsyn.evaluation.verdict import LOST
from fedsyn.front.archive import ReleasedRun, read_release
from fedsyn.front.several import frame_of
from fedsyn.front.standin import TYPICAL, drawn_rows
from fedsyn.inference import EmpiricalModel, Evidence
from fedsyn.privacy.unit import counted_as
from fedsyn.randomness import Randomness
from fedsyn.runs.directory import read_rounds
from fedsyn.runs.engines import run
from fedsyn.runs.prepare import encoded_table, public_schema
from fedsyn.runs.synthesis import expected_rows
from fedsyn.settings import PartitionNode
from fedsyn.table.counting.workload import build_workload
from fedsyn.table.data.alike import column_names
from fedsyn.table.data.readers import options_for, require_table
from fedsyn.table.data.records import RecordMaker
from fedsyn.table.schema import Schema
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.joined import persons_first

if TYPE_CHECKING:
    import pandas as pd

Basis = Literal["typical tables", "an earlier release", "a public table"]
#: The true workload error is between the expected one divided by this and times this, in nine runs of ten: what held
#: on the tuning side of experiments/held_out (`python experiments/plan/run.py --side tuning` prints it anew).
SPREADS: Mapping[Basis, float] = {"typical tables": 1.5, "an earlier release": 1.35, "a public table": 1.2}
#: Epsilons that are looked at, times the run's own, where none are named.
FACTORS = (0.5, 1.0, 2.0, 4.0)
_MOST_ROWS = 10_000_000
#: Epsilon of a fit to public rows that are fewer than the run's: without it their chance would count as association.
#: Chosen on the same side.
SMOOTHING = 10.0
#: Seconds that a deployment takes for an exchange of messages, beside what is computed for it.
EXCHANGE = 0.5
_SEED = 1


@dataclass(frozen=True)
class Rehearsal:
    """Results of one rehearsed run, or of several stand-ins together.

    For several stand-ins `measured` and `shown` are means. Messages, megabytes and seconds are those of the
    stand-in in the middle. All else is a geometric mean.

    Attributes:
        error: workload error, 0 to 2.
        columns, pairs: mean L1 distance of the columns' and of the pairs' marginals.
        measured: pairs of columns that were measured, alone or in larger combinations.
        seen: the association (Cramér's V) from which on nine of ten links would be seen; 1: none.
        shown: pairs of which that holds.
        bins, side: most even bins of a column, and of each column of a measured pair, in which noise alone moves less
            than a tenth of the rows; 0: not known.
        messages, up, down: messages of an average holder, and megabytes.
        seconds: of computing, on this machine, one holder after the other.
        limits: what to do about limits on the model's size that cost much, as one clause; empty where none do.
    """

    error: float
    columns: float
    pairs: float
    measured: float
    seen: float
    shown: float
    bins: float
    side: float
    messages: float
    up: float
    down: float
    seconds: float
    limits: str = ""


Rehearsed = tuple[Rehearsal, ReleasedRun]


@dataclass(frozen=True)
class Expected:
    """Expected results at one epsilon.

    The workload error is between `low` and `high` in nine runs of ten.
    """

    epsilon: float
    low: float
    high: float
    run: Rehearsal


@dataclass(frozen=True)
class Plan:
    """Expected results of a run.

    Attributes:
        mechanism: its name.
        rows, holders, columns: of the run.
        basis: what stood in for its table.
        expected: by epsilon.
        own: place of the run's own epsilon.
        protocol: that its messages are of.
        of: what `rows` counts: 'rows', or 'people' where the run protects them.
    """

    mechanism: str
    rows: int
    holders: int
    columns: int
    basis: Basis
    expected: tuple[Expected, ...]
    own: int
    protocol: str
    of: str = "rows"

    @property
    def minutes(self) -> float:
        """Least minutes that a deployment takes.

        They are spent on computing, and on each exchange (`EXCHANGE`).
        """
        rehearsal = self.expected[self.own].run
        return (rehearsal.seconds + EXCHANGE * rehearsal.messages) / 60.0

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return asdict(self) | {"minutes": self.minutes}


def plan(
    config: RunConfig,
    rows: int | None = None,
    *,
    epsilons: Sequence[float] = (),
    like: Path | None = None,
    public: Path | Sequence[Path] | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Plan:
    """Returns what to expect of a run.

    Args:
        config: of the run; its own rows are not read.
        rows: of all holders together; None: as many as the release or the public table has.
        epsilons: to look at beside the run's own; none: `FACTORS` times that.
        like: a run's directory, or a saved model, of the same schema.
        public: a table of the same schema that is public, or two, of persons and of their rows.
        advance: called with how many rehearsals are done, and of how many.

    Raises:
        InputError: the schema is not public yet, nothing says how many rows, or the tables do not fit.
    """
    stands = stand_ins(config, public_schema(config), rows, like, public)
    budget = config.privacy.epsilon
    every = sorted({budget, *(epsilons or (budget * factor for factor in FACTORS))})
    most, steps = len(every) * len(stands.tables), count(1)

    def done() -> None:
        if advance is not None:
            advance(next(steps), most)

    return Plan(
        config.mechanism.name,
        stands.rows,
        config.federation.clients,
        len(stands.schema.domain),
        stands.basis,
        tuple(expectation(config, stands, epsilon, done) for epsilon in every),
        every.index(budget),
        config.aggregation.protocol,
        counted_as(config.privacy.unit)[1],
    )


def expectation(config: RunConfig, stands: StandIns, epsilon: float, done: Callable[[], None]) -> Expected:
    """Averages the rehearsals at one epsilon over the stand-ins.

    The stand-in in the middle is also rehearsed with the run's protocol, at the run's epsilon. `done` is called after
    each.
    """
    rehearsals = []
    for table in stands.tables:
        protocol = epsilon == config.privacy.epsilon and table is stands.middle
        rehearsals.append(rehearse(rehearsing(config, epsilon, protocol=protocol), stands.schema, table)[0])
        done()
    over = {what: sum(getattr(one, what) for one in rehearsals) / len(rehearsals) for what in ("measured", "shown")}
    for name in ("error", "columns", "pairs", "seen", "bins", "side"):
        known = [value for one in rehearsals if (value := getattr(one, name)) > 0]
        over[name] = math.prod(known) ** (1.0 / len(known)) if known else 0.0
    again = stands.missed * min(1.0, stands.budget / (epsilon * stands.rows))
    over["error"] = math.hypot(over["error"], math.sqrt(again))
    spread, middle = SPREADS[stands.basis], rehearsals[len(rehearsals) // 2]
    return Expected(epsilon, over["error"] / spread, min(2.0, over["error"] * spread), replace(middle, **over))


# The stand-ins ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StandIns:
    """Tables that stand in for a run's own.

    Attributes:
        basis: what they come from.
        schema: of all of them.
        tables: an odd number.
        missed: squared workload error that they lack, as an earlier release says.
        budget: rows times epsilon of that.
    """

    basis: Basis
    schema: Schema
    tables: list[pd.DataFrame]
    missed: float = 0.0
    budget: float = 0.0

    @property
    def middle(self) -> pd.DataFrame:
        return self.tables[len(self.tables) // 2]

    @property
    def rows(self) -> int:
        """Rows of a table, or people where the run protects them."""
        persons = self.schema.of_persons
        return len(self.middle) if persons is None else int(self.middle[persons.id].nunique())


def stand_ins(
    config: RunConfig,
    schema: Schema,
    rows: int | None = None,
    like: Path | None = None,
    public: Path | Sequence[Path] | None = None,
) -> StandIns:
    """Returns the stand-ins for a run.

    Arguments and errors are those of `plan`.
    """
    if schema.open:
        raise ConfigError(
            f"plan: the run itself finds what is private of column '{next(iter(schema.open))}'; write public bins or "
            "categories into the schema to plan with them"
        )
    if like is not None and public is not None:
        raise ConfigError("plan: expected --like RUN or --public TABLE, got both")
    # A draft will do, rare categories too: none of the holders' rows meets it here.
    described = schema.to_dict()
    described["columns"] = {n: {**column, "drafted": []} for n, column in described["columns"].items()}
    schema = Schema.from_dict(described)
    basis: Basis = "typical tables"
    missed = budget = 0.0
    if like is not None:
        release = read_release(like)
        released_domain, planned_domain = release.schema.domain, schema.domain
        if (released_domain.attributes, released_domain.shape) != (planned_domain.attributes, planned_domain.shape):
            raise SchemaError(f"--like {like}: expected a run of this schema, got one with other columns or values")
        basis, models = "an earlier release", [release.model]
        rows = rows or expected_rows(release.model)
        missed, budget = _missed(config, schema, release)
    elif public is not None:
        source = _source_of([public] if isinstance(public, Path) else public, schema.rows)
        codes = encoded_table(source, schema=schema.rows, persons=schema.of_persons is not None).train
        basis, models = "a public table", [EmpiricalModel(schema.domain, codes)]
        rows = rows or len(codes)
        if rows > len(codes):
            table = (
                schema.decode(np.asarray(codes), np.random.default_rng(_SEED))
                if schema.of_persons is None
                else frame_of(schema, EmpiricalModel(schema.domain, codes), len(codes), Randomness(_SEED))
            )
            models = [rehearse(rehearsing(config, SMOOTHING), schema, table)[1].model]
    elif rows is None:
        raise ConfigError("plan: expected the rows of all holders together, --rows N (or --like, --public)")
    else:
        require_few(rows)
        rng = np.random.default_rng(_SEED)
        models = [EmpiricalModel(schema.domain, drawn_rows(schema.domain, rows, kind, rng)) for kind in TYPICAL]
    require_few(rows)
    return StandIns(
        basis, schema, [frame_of(schema, model, rows, Randomness(_SEED)) for model in models], missed, budget
    )


def _source_of(files: Sequence[Path], schema: Schema) -> DataNode:
    """Returns the source that public files are.

    Raises:
        ConfigError: there are several, and they are not the tables of persons and of their rows.
    """
    seeds: dict[str, Any] = {"test_fraction": 0.0, "split_seed": _SEED}  # which rows of a person its record shows, too
    if len(files) == 1:
        return DataNode(source=str(files[0]), **seeds)
    known = len(files) == 2 and schema.persons is not None and schema.persons.tables is not None
    paths, names = [require_table(file) for file in files], [*schema.every_column]
    columns = {str(path): column_names(path, options_for(path, {}), names) for path in paths} if known else {}
    if (both := persons_first(columns, schema) if known else None) is None:
        raise ConfigError(
            "plan: expected one public table; two only of persons and of their rows, as the schema has them in `tables`"
        )
    return DataNode(source=both[1], persons=(both[0],), **seeds)


def require_few(rows: int) -> None:
    """Raises ConfigError for more rows than a rehearsal holds in memory."""
    if rows > _MOST_ROWS:
        raise ConfigError(
            f"plan: expected at most {_MOST_ROWS:,} rows, got {rows:,}: with more the error hardly changes"
        )


def _missed(config: RunConfig, schema: Schema, release: ReleasedRun) -> tuple[float, float]:
    """Returns the error that an earlier release admits, and its budget.

    The error is what the release misses of the rows, squared. Both are as `StandIns` has them, and 0 if
    the release predicts no error or has another workload.

    The statement of a release predicts its error. A rehearsal on rows of its own model has less error,
    because these rows lack what the model missed. The difference is taken to be missed again. With a
    larger budget, which is rows times epsilon, only a part in proportion is.
    """
    prediction = None if release.predicted is None else release.predicted.workload_error
    if prediction is None or release.config.workload != config.workload:
        return 0.0, 0.0
    epsilon, rows = release.config.privacy.epsilon, expected_rows(release.model)
    require_few(rows)
    table = frame_of(schema, release.model, rows, Randomness(_SEED))
    again, _ = rehearse(rehearsing(config, epsilon), schema, table)
    return max(0.0, prediction.value**2 - again.error**2), rows * epsilon


# Rehearsals -------------------------------------------------------------------------------------------------------


def rehearsing(config: RunConfig, epsilon: float, *, protocol: bool = False, seed: int = _SEED) -> RunConfig:
    """Returns the configuration of a rehearsal.

    It is the run's own, on one table in this process. The noise is the run's under any protocol
    (`fedsyn.aggregation.plain`). The messages are the run's only with `protocol`.
    """
    node, clear = config.aggregation, dict[str, Any]({"roster": None, "parties": None, "crypto": None})
    if not protocol and config.federation.columns is None:
        clear |= {"protocol": PLAIN.name, "threat": PLAIN.threats[0]}
    return config.model_copy(
        update={
            "data": DataNode(source="stand-in", test_fraction=0.0, split_seed=seed),
            "privacy": config.privacy.model_copy(update={"epsilon": epsilon}),
            "federation": config.federation.model_copy(update={"partition": PartitionNode(name="iid")}),
            "aggregation": node.model_copy(update=clear),
            "evaluation": EvaluationNode(federated=config.evaluation.federated, share=config.evaluation.share),
            "runtime": RuntimeNode(seed=seed),
            "synthesis": SynthesisNode(rows=1),
        }
    )


def rehearse(config: RunConfig, schema: Schema, table: pd.DataFrame) -> Rehearsed:
    """Runs a configuration over a stand-in table.

    Returns its results, and its release.
    """
    with tempfile.TemporaryDirectory(prefix="fedsyn-") as folder:
        out = Path(folder) / "run"
        started = time.process_time()
        costs = run(config, out, table=table, schema=schema.rows, full_page=False)
        seconds = time.process_time() - started
        release = read_release(out)
        messages = sum(line["messages"] for line in read_rounds(out))
    # The error is that of the model beside the stand-in rows.
    codes, domain = _codes(schema, table), schema.domain
    data = EvaluationInput(
        train=codes, domain=domain, workload=build_workload(config.workload, domain), model=release.model
    )
    # What was measured, and how finely its noise leaves it readable.
    one, several = _resolution(release.evidence, len(codes))
    cliques = [] if release.evidence is None else [m.clique for m in release.evidence.measurements]
    measured = {pair for clique in cliques for pair in combinations(domain.canonical(clique), 2)}
    seen = SeenLinks() if release.predicted is None else release.predicted.seen
    rehearsal = Rehearsal(
        workload_error(data),
        kway_error(data, 1),
        kway_error(data, 2),
        float(len(measured)),
        seen.least,
        float(seen.unlinked + len(seen.links)),
        one,
        math.sqrt(several),
        messages / config.federation.clients,
        costs["client_mb_up"],
        costs["client_mb_down"],
        seconds,
        "" if release.predicted is None else release.predicted.limits(),
    )
    return rehearsal, release


def _codes(schema: Schema, table: pd.DataFrame) -> npt.NDArray[np.integer]:
    """Returns the codes of a table's rows, or of its records."""
    if schema.of_persons is None:
        return np.asarray(schema.block(table).codes)
    maker = RecordMaker(schema.rows, np.random.default_rng(_SEED))
    Holding(schema.rows, maker).encoded(table)
    return maker.record().codes


def _resolution(evidence: Evidence | None, rows: int) -> tuple[float, float]:
    """Returns the most even cells of a column and of a pair.

    The noise moves less than half of what is called lost in that many cells.

    Noise of sigma in each of g cells of n rows is an L1 distance of sqrt(2 / pi) g sigma / n, twice the rows moved.
    """
    precision: dict[tuple[str, ...], float] = {}
    for m in () if evidence is None else evidence.measurements:
        precision[m.clique] = precision.get(m.clique, 0.0) + m.sigma**-2
    cells = []
    for size in (1, 2):
        known = [value for clique, value in precision.items() if len(clique) == size]
        cells.append(LOST["rows"] * rows * math.sqrt(math.pi / 2.0 * float(np.median(known))) if known else 0.0)
    return cells[0], cells[1]
