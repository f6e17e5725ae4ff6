"""`fedsyn.Synthesizer`: tables in memory in, a private synthetic table out, by the conventions of scikit-learn."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt

from fedsyn.config import DEFAULT_MECHANISM, MOST_ROWS, RunConfig, SynthesisNode
from fedsyn.errors import ConfigError, DataError, NotFittedError, SchemaError, nearest
from fedsyn.evaluation.predicted import PredictedQuality
from fedsyn.front.archive import ReleasedRun, read_release, save_release
from fedsyn.front.conditions import restrict
from fedsyn.inference import AnyModel
from fedsyn.loading import parse_config
from fedsyn.output import console
from fedsyn.protocol.record import RoundRecord
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.runs.synthesis import expected_rows
from fedsyn.table.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

    from fedsyn.evaluation.real.comparison import TableComparison


# Keywords that are nodes of a configuration; every other one is an option of the mechanism.
_NODES = ("workload", "federation", "aggregation", "inference", "privacy", "synthesis", "runtime")
# Rows that a page is drawn from.
_MOST_DRAWN = 200_000
_OWN = ("epsilon", "delta", "schema", "mechanism", "seed", "progress")


class Synthesizer:
    """Fits a differentially private model to one table, or to the tables of several holders, and samples from it.

    One DataFrame is the table of one holder, who adds the noise. A list of DataFrames is a federation: each frame is a
    holder of its own, counts leave it in secure sums with distributed noise only, as in a deployment, here all in this
    process. Either way the rows go no further than the noisy sums in `ledger`.

    >>> import pandas as pd, fedsyn
    >>> schema = {"columns": {
    ...     "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10},
    ...     "ward": {"kind": "categorical", "categories": ["north", "south"], "other": False}}}
    >>> frame = pd.DataFrame({"age": [34, 61] * 200, "ward": ["north", "south"] * 200})
    >>> synthesizer = fedsyn.Synthesizer(epsilon=2, delta=1e-5, schema=schema).fit(frame)
    >>> list(synthesizer.sample(3, where={"ward": "south", "age": (60, 65)})["ward"])
    ['south', 'south', 'south']

    Args:
        epsilon, delta: the guarantee, for one row added or removed.
        schema: the public description of the columns: a `Schema`, its plain data, or the path of its YAML file.
            `Schema.draft(frame)` proposes one, for a person to look at and approve.
        mechanism: its name (`fedsyn mechanisms`). The default suits one holder as well as many.
        seed: makes everything repeatable. The result is then NOT private, and says so: for tests and studies only.
        progress: whether to show a bar while fitting; None: in notebooks and terminals.
        **options: options of the mechanism (`rounds=5`), or whole nodes of a configuration
            (`workload={"degree": 2}`, `aggregation={...}`).

    Attributes:
        schema_: the schema of the result.
        model_: the fitted model; `model` is the same.
        ledger_: what was released, and what it cost; `ledger` is the same.
        config_: the configuration of the run.
        feature_names_in_: (d,) names of the schema's columns.
        n_features_in_: how many.
    """

    schema_: Schema
    model_: AnyModel
    ledger_: LedgerFacts
    config_: RunConfig

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        mechanism: str = DEFAULT_MECHANISM,
        *,
        seed: int | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.mechanism = mechanism
        self.seed = seed
        self.progress = progress
        self._options = dict(options)

    # scikit-learn's conventions ---------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, as they were given; `deep` is there for scikit-learn and changes nothing."""
        return {**{name: getattr(self, name) for name in _OWN}, **self._options}

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; those that are not the class's own are options."""
        for name, value in params.items():
            if name in _OWN:
                setattr(self, name, value)
            else:
                self._options[name] = value
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "_release" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags  # scikit-learn alone asks

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.get_params().items() if name in ("epsilon", "delta", "mechanism")}
        shown |= {name: value for name, value in self._options.items() if not isinstance(value, Mapping)}
        given = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        if not self.__sklearn_is_fitted__():
            return f"Synthesizer({given}), not fitted"
        return f"Synthesizer({given}), fitted: {self.n_features_in_} columns, {self.ledger_.summary}"

    # fit --------------------------------------------------------------------------------------------------------------

    def fit(self, X: pd.DataFrame | Sequence[pd.DataFrame], y: None = None) -> Self:
        """Fits the model, and spends the budget.

        Names, order and dtypes of the result are the schema's alone (`stored`, or what the kind has by default). Those
        of a frame are not looked at: one row more makes another dtype of a column (a missing cell, a fraction, a
        word), so what was taken from them would be a release without noise.

        Args:
            X: the table, or a list with one table of each holder.
            y: ignored; scikit-learn passes it.

        Raises:
            InputError: bad parameters, schema or table; nothing was spent.
            FedsynError: the run failed.
        """
        from fedsyn.runs.engines import run

        frames = frames_of(X)
        held_by_many = not is_frame(X)
        schema = self._given_schema()
        config = self._config(len(frames) if held_by_many else None)
        with tempfile.TemporaryDirectory(prefix="fedsyn-") as folder:
            out = Path(folder) / "run"
            with fitting_bar(self.progress, config) as advance:
                table = frames if held_by_many else frames[0]
                # Rows are sampled when they are asked for; a run wants to write one at least.
                briefly = config.model_copy(update={"synthesis": SynthesisNode(rows=1)})
                run(briefly, out, advance, table=table, schema=schema, full_page=False)
            self._take(dataclasses.replace(read_release(out), config=config))
        return self

    def _given_schema(self) -> Schema:
        given = self.schema
        if given is None:
            raise SchemaError(
                "a schema is needed: look at fedsyn.Schema.draft(frame), correct and approve it, and pass it as schema="
            )
        schema = schema_of(given)
        try:
            schema.require_approved()
        except SchemaError as error:
            raise SchemaError(f"{error}; in Python: schema.edited(...) and schema.approve(...)") from None
        return schema

    def _config(self, holders: int | None) -> RunConfig:
        """The run's configuration; `holders` is None for one table."""
        nodes = {name: value for name, value in self._options.items() if name in _NODES}
        options = {name: value for name, value in self._options.items() if name not in _NODES}
        for name, value in nodes.items():
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name}: expected the keys of that node of a configuration, as a dict")
        if not isinstance(self.mechanism, str):
            raise ConfigError(f"mechanism: expected a name, found {type(self.mechanism).__name__}")
        contract = contract_class(self.mechanism)
        if contract.central and holders is not None:
            raise ConfigError(
                f"mechanism '{self.mechanism}' has one data holder: give it one DataFrame, or choose "
                f"'{DEFAULT_MECHANISM}' for a list of them"
            )
        document = {
            "mechanism": {"name": self.mechanism, **options},
            "data": {"source": "table", "test_fraction": 0.0},
            "evaluation": [],
            **nodes,
            "privacy": {"epsilon": self.epsilon, "delta": self.delta, **nodes.get("privacy", {})},
            "federation": {"clients": holders or 1, "partition": "native" if holders else "iid"}
            | dict(nodes.get("federation", {})),
            "runtime": {"seed": self.seed, **nodes.get("runtime", {})},
        }
        unknown = [name for name in options if name not in contract.Options.model_fields]
        if unknown:
            known = [*_OWN, *_NODES, *contract.Options.model_fields]
            raise ConfigError(
                f"unknown parameter '{unknown[0]}'{nearest(unknown[0], known)}; options of {self.mechanism}: "
                f"{', '.join(contract.Options.model_fields)}; nodes of a configuration: {', '.join(_NODES)}"
            )
        return parse_config(document, "Synthesizer")

    def _take(self, release: ReleasedRun) -> None:
        """Becomes fitted with what a run released."""
        self._release = release
        self.schema_, self.model_, self.config_ = release.schema, release.model, release.config
        self.ledger_ = LedgerFacts(release.ledger)
        self.feature_names_in_ = np.array(release.schema.order, dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

    def _fitted(self, what: str) -> ReleasedRun:
        if "_release" not in self.__dict__:
            raise NotFittedError(f"this Synthesizer is not fitted yet: call fit(table) before {what}")
        return self._release

    # What a fitted one gives ------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> LedgerFacts:
        """What was released, what each release cost, and whether the result is private."""
        self._fitted("ledger")
        return self.ledger_

    @property
    def predicted_quality(self) -> PredictedQuality | None:
        """How good the table is predicted to be, from what was released: it reads no row and may be published."""
        return self._fitted("predicted_quality").predicted

    @property
    def model(self) -> AnyModel:
        """The fitted model: marginals by `project`, codes of the schema by `sample`."""
        self._fitted("model")
        return self.model_

    @overload
    def sample(
        self, n: int | None = None, where: Mapping[str, Any] | None = None, *, seed: int | None = None
    ) -> pd.DataFrame: ...

    @overload
    def sample(
        self, n: int | None = None, where: Mapping[str, Any] | None = None, *, seed: int | None = None, tables: int
    ) -> list[pd.DataFrame]: ...

    def sample(
        self,
        n: int | None = None,
        where: Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        tables: int | None = None,
    ) -> pd.DataFrame | list[pd.DataFrame]:
        """Synthetic rows: columns, order and dtypes are the schema's. It costs nothing, however often it is done.

        Args:
            n: how many; None: as many as the model estimates that there are (that meet the conditions).
            where: conditions that every row meets: {"ward": "children", "age": (0, 16), "sex": ["f", "m"]}; a pair is a
                range, both ends included (None: open), a list any of its values, None a missing value. Rows are drawn
                from the model's exact conditional distribution, none is thrown away.
            seed: for the same rows again; None: the synthesizer's own.
            tables: so many tables for `fedsyn.analyse`, each of another draw of what the noise leaves uncertain, with
                rows drawn independently; n None: five times as many rows each as there are real ones.

        Raises:
            NotFittedError: before `fit`.
            InputError: an unknown column or value, conditions that no row meets, a bad n, or tables of a model that was
                not fitted to marginals.
        """
        from fedsyn.front.several import frame_of, frames_of_posterior

        release = self._fitted("sample()")
        given, rows = {} if where is None else where, None if n is None else _count(n)
        randomness = Randomness(self.seed if seed is None else seed)
        if tables is not None:
            return list(frames_of_posterior(release, tables, rows, given, randomness))
        schema, model = restrict(release.schema, release.model, given)
        return frame_of(schema, model, expected_rows(model) if rows is None else rows, randomness)

    def evaluate(self, real: pd.DataFrame | Sequence[pd.DataFrame], label: str | None = None) -> TableComparison:
        """What synthetic rows are fit for, beside real ones: a verdict, columns and pairs (docs/metrics.md).

        What it returns is computed from the real rows without noise: it is not private.

        Args:
            real: rows to compare with, one table or several.
            label: column to predict; the schema's own by default.
        """
        return self._compared(self._fitted("evaluate()"), real, label)[1]

    def _compared(
        self, release: ReleasedRun, real: Any, label: str | None = None
    ) -> tuple[npt.NDArray[Any], TableComparison]:
        """As many synthetic rows as real ones, and their scores."""
        from fedsyn.evaluation.real.comparison import compare_tables
        from fedsyn.evaluation.real.scores import moments

        blocks = [release.schema.block(frame) for frame in frames_of(real)]
        real_codes = np.concatenate([block.codes for block in blocks])
        randomness = Randomness(self.seed)
        codes = release.model.sample(max(1, len(real_codes)), randomness.ordinary("evaluate", "rows"))
        known = moments([block.numbers for block in blocks]), None
        rng = randomness.ordinary("evaluate")
        return codes, compare_tables(release.schema.adjusted(None, label), real_codes, codes, moments=known, rng=rng)

    @overload
    def report(self, path: None = None, real: pd.DataFrame | Sequence[pd.DataFrame] | None = None) -> str: ...

    @overload
    def report(self, path: str | Path, real: pd.DataFrame | Sequence[pd.DataFrame] | None = None) -> Path: ...

    def report(
        self, path: str | Path | None = None, real: pd.DataFrame | Sequence[pd.DataFrame] | None = None
    ) -> str | Path:
        """The page of the run: as text, or written to `path`, which is returned.

        Made of what was released alone, so it may be published with the table.

        Args:
            path: of an HTML file; one that exists is replaced.
            real: real rows to compare with; such a page is not for publication, and says so.
        """
        release = self._fitted("report()")
        if real is None:
            rows = min(expected_rows(release.model), _MOST_DRAWN)
            page = page_of(release, release.model.sample(rows, Randomness(self.seed).ordinary("report")))
        else:
            page = page_of(release, *self._compared(release, real))
        if path is None:
            return page
        target = path_of(path)
        try:
            target.write_text(page, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {target}: {error.strerror}") from None
        return target

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes model, schema, ledger and configuration into ONE file for `fedsyn.load`. It holds no real row.

        Raises:
            ConfigError: there is such a file already, or it cannot be written.
        """
        release, path = self._fitted("save()"), path_of(path)
        if path.exists() and not overwrite:
            raise ConfigError(f"{path} exists; choose another name, or pass overwrite=True")
        try:
            save_release(path, release)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        return path


def load(path: str | Path) -> Synthesizer:
    """A fitted `Synthesizer` from what `save` wrote, or from the directory of a run. Needs no real table, runs no code.

    Raises:
        DataError: there is none, or it is damaged, too large or something else.
    """
    release = read_release(path_of(path))
    config = release.config
    nodes = {name: config.to_dict()[name] for name in ("workload", "federation", "aggregation", "inference")}
    loaded = Synthesizer(
        config.privacy.epsilon,
        config.privacy.delta,
        release.schema,
        config.mechanism.name,
        seed=config.runtime.seed,
        **config.mechanism.options,
        **nodes,
    )
    loaded._take(release)
    return loaded


def _count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= MOST_ROWS:
        raise ConfigError(f"n: expected a number of rows from 1 to {MOST_ROWS:,}, found {n!r}")
    return int(n)


class LedgerFacts(dict[str, Any]):
    """What ledger.json holds. As a dictionary it has every key; the properties are what people ask for first."""

    @property
    def epsilon(self) -> float:
        """Spent, at `delta`."""
        return float(self["epsilon"])

    @property
    def delta(self) -> float:
        return float(self["delta"])

    @property
    def private(self) -> bool:
        """Whether the result may be released under this guarantee."""
        return bool(self["private"])

    @property
    def releases(self) -> list[dict[str, Any]]:
        """Every release: its round, mechanism, noise and cost."""
        return list(self["releases"])

    @property
    def summary(self) -> str:
        """One clause."""
        spent = f"epsilon {self.epsilon:.4g} at delta {self.delta:g}"
        return spent if self.private else f"{spent}, not private ({'; '.join(self['not_private_because'])})"

    def __repr__(self) -> str:
        return f"LedgerFacts({self.summary}; {len(self.releases)} releases; unit: {self['unit']})"


def page_of(release: ReleasedRun, codes: npt.NDArray[Any], found: TableComparison | None = None) -> str:
    """HTML, self-contained.

    Args:
        release: of the run.
        codes: (n, d) codes of synthetic rows, to draw.
        found: their scores beside real rows; without them nothing on the page is private.
    """
    from fedsyn.runs.directory import append_line, save_model, write_json
    from fedsyn.runs.report import save_evaluation, write_run_page

    with tempfile.TemporaryDirectory(prefix="fedsyn-") as folder:
        out = Path(folder) / "model"
        out.mkdir()
        release.config.save(out / "config.yaml")
        release.schema.save(out / "schema.yaml")
        write_json(out / "ledger.json", release.ledger)
        write_json(out / "metrics.json", {})
        (out / "rounds.jsonl").touch()
        for line in release.rounds:
            append_line(out / "rounds.jsonl", line)
        save_model(out / "model.npz", release.model)
        if found is not None:
            save_evaluation(out, found)
        try:
            paths = write_run_page(out, config=release.config, synthetic=codes, public=found is None)
        except (KeyError, TypeError, AttributeError):
            raise DataError("no page: what was kept of the ledger or of the rounds is damaged") from None
        return paths[0].read_text(encoding="utf-8")


def is_frame(given: Any) -> bool:
    """Whether it is one table."""
    import pandas as pd

    return isinstance(given, pd.DataFrame)


def frames_of(given: Any) -> list[pd.DataFrame]:
    """The tables that were given, one or several.

    Raises:
        DataError: something else, nothing, or columns whose names are no text.
    """
    frames = [given] if is_frame(given) else given
    if not isinstance(frames, list | tuple) or not frames or not all(map(is_frame, frames)):
        raise DataError(
            f"expected a DataFrame, or a list with one DataFrame of each holder; found {type(given).__name__}"
            f"{' that holds other things, or nothing' if isinstance(given, list | tuple) else ''}"
        )
    for frame in frames:
        if not all(isinstance(name, str) for name in frame.columns):
            raise DataError("column names must be text: frame.columns = frame.columns.astype(str)")
    return list(frames)


def tables_of(given: Any) -> pd.DataFrame | Sequence[pd.DataFrame] | None:
    """The same, one table as it is and None for none; DataError as `frames_of`."""
    if given is None:
        return None
    frames = frames_of(given)
    return frames[0] if is_frame(given) else frames


def schema_of(given: Any) -> Schema:
    """A schema from one, from its plain data, or from the path of its file.

    Raises:
        SchemaError: something else, or a schema that cannot be.
    """
    if isinstance(given, Schema):
        return given
    if isinstance(given, Mapping):
        return Schema.from_dict(given)
    if isinstance(given, str | Path):
        return Schema.load(given)
    raise SchemaError(f"schema: expected a Schema, its plain data or a path, found {type(given).__name__}")


def path_of(given: Any) -> Path:
    """A path. Raises ConfigError for anything else."""
    if not isinstance(given, str | Path):
        raise ConfigError(f"expected the path of a file, found {type(given).__name__}")
    return Path(given)


def planned_rounds(config: RunConfig) -> int | None:
    """How many rounds a run will have, where that is known before it."""
    rounds = getattr(contract_class(config.mechanism.name).options_of(config), "rounds", None)
    return rounds if isinstance(rounds, int) else None


@contextmanager
def fitting_bar(wanted: bool | None, config: RunConfig) -> Iterator[Callable[[RoundRecord], None] | None]:
    """A callback for finished rounds, or None.

    Args:
        wanted: None: where somebody watches, in a notebook or a terminal.
        config: of the run.
    """
    # In a notebook, rich draws with ipywidgets.
    notebook = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    if wanted is False or (wanted is None and not notebook and not sys.stderr.isatty()):
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console(error=True), transient=True) as progress:
        task = progress.add_task(f"fitting {config.mechanism.name}", total=planned_rounds(config))
        yield lambda record: progress.update(task, completed=record.round)
