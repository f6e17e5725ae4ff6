"""The class `fedsyn.Synthesizer`.

Tables in memory go in, and a private synthetic table comes out, by the conventions of scikit-learn.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, overload

import numpy as np
import numpy.typing as npt

from fedsyn.config import DEFAULT_MECHANISM, MOST_ROWS, RunConfig, SynthesisNode
from fedsyn.errors import ConfigError, DataError, NotFittedError, SchemaError, UnknownParameter, nearest
from fedsyn.loading import parse_config
from fedsyn.notebook import Bar, Shown, View
from fedsyn.output import counted, progress_bar
from fedsyn.privacy.unit import not_persons
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.table.schema import Schema
from fedsyn.table.schema.frames import Kind, kind_of, require_text_names

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import TypeVar

    from fedsyn.evaluation.predicted import PredictedQuality
    from fedsyn.evaluation.real.comparison import TableComparison
    from fedsyn.front.archive import ReleasedRun
    from fedsyn.inference import AnyModel, Measurement
    from fedsyn.table.schema.frames import AnyFrame, ArrowStream

    #: What `sample` gives: DataFrames of pandas until something else was fitted.
    F = TypeVar("F", default=pd.DataFrame)
else:
    from typing import TypeVar

    F = TypeVar("F")

log = logging.getLogger("fedsyn")
# Keywords that are nodes of a configuration; every other one is an option of the mechanism.
_NODES = ("workload", "federation", "aggregation", "inference", "privacy", "synthesis", "runtime")
# Rows that a page is drawn from.
_MOST_DRAWN = 200_000
_OWN = ("epsilon", "delta", "schema", "mechanism", "seed", "progress")


class Synthesizer(Generic[F]):
    """Fits a differentially private model to tables, and samples from it.

    It fits one table, or the tables of several holders.

    A DataFrame is one of pandas or Polars, an Arrow table, a DuckDB relation, or anything else that gives Arrow's C
    stream. One is the table of one holder, who adds the noise. A list of DataFrames is a federation: each frame is a
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
        progress: whether to show a bar while fitting and drawing tables; None: in notebooks and terminals.
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
        self._require_known(options)

    # scikit-learn's conventions ---------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the parameters by name, as they were passed.

        `deep` is there for scikit-learn and changes nothing.
        """
        return {**{name: getattr(self, name) for name in _OWN}, **self._options}

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; those that are not the class's own are options.

        Raises:
            UnknownParameter: neither these nor the mechanism have such a parameter; nothing was set.
        """
        self._require_known(params, params.get("mechanism"))
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
        settings = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        if not self.__sklearn_is_fitted__():
            return f"Synthesizer({settings}), not fitted"
        return f"Synthesizer({settings}), fitted: {counted(self.n_features_in_, 'column')}, {self.ledger_.summary}"

    # fit --------------------------------------------------------------------------------------------------------------

    @overload
    def fit(self, X: pd.DataFrame | Sequence[pd.DataFrame], y: None = None) -> Synthesizer[pd.DataFrame]: ...

    @overload
    def fit(self, X: ArrowStream | Sequence[ArrowStream], y: None = None) -> Synthesizer[Any]: ...

    def fit(self, X: AnyFrame | Sequence[AnyFrame], y: None = None) -> Synthesizer[Any]:
        """Fits the model, and spends the budget.

        Names, order and dtypes of the result are the schema's alone (`stored`, or what the kind has by default). Those
        of a frame are not looked at: one row more makes another dtype of a column (a missing cell, a fraction, a
        word), so what was taken from them would be a release without noise.

        Args:
            X: the table, or a list with one table of each holder. Where the schema has two tables, of persons and of
                their rows, each is a mapping of their names to tables.
            y: ignored; scikit-learn passes it.

        Raises:
            InputError: bad parameters, schema or table; nothing was spent.
            FedsynError: the run failed.
        """
        from fedsyn.front.archive import read_release
        from fedsyn.runs.engines import run

        held_by_many, schema = isinstance(X, list | tuple), self._given_schema()
        with heard():
            frames = frames_of(X, schema)
        config = self._config(len(frames) if held_by_many else None)
        with tempfile.TemporaryDirectory(prefix="fedsyn-") as folder:
            out = Path(folder) / "run"
            title = f"fitting {config.mechanism.name}"
            with heard(), progress_bar(title, planned_rounds(config), self.progress) as advance:
                table = frames if held_by_many else frames[0]
                # Rows are sampled when they are asked for; a run wants to write one at least.
                briefly = config.model_copy(update={"synthesis": SynthesisNode(rows=1)})
                heard_of = None if advance is None else lambda record: advance(record.round)
                run(briefly, out, heard_of, table=table, schema=schema, full_page=False)
            self._take(dataclasses.replace(read_release(out), config=config), kind_of(_one_of(X)))
        with heard():
            for clause in () if self.predicted_quality is None else self.predicted_quality.seen_unlisted():
                log.warning("%s", clause)
        return self

    def _given_schema(self) -> Schema:
        source = self.schema
        if source is None:
            raise SchemaError(
                "a schema is needed: look at fedsyn.Schema.draft(frame), correct and approve it, and pass it as schema="
            )
        schema = schema_of(source)
        try:
            schema.require_approved()
        except SchemaError as error:
            raise SchemaError(f"{error}; in Python: schema.edited(...) and schema.approve(...)") from None
        return schema

    def _config(self, holders: int | None) -> RunConfig:
        """Returns the run's configuration.

        `holders` is None for one table.
        """
        nodes = {name: value for name, value in self._options.items() if name in _NODES}
        options = {name: value for name, value in self._options.items() if name not in _NODES}
        for name, value in nodes.items():
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name}: expected the keys of that node of a configuration, as a dict")
        self._require_known(options)
        contract = self._contract()
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
        return parse_config(document, "Synthesizer")

    def _contract(self, mechanism: Any = None) -> Any:
        name = self.mechanism if mechanism is None else mechanism
        if not isinstance(name, str):
            raise ConfigError(f"mechanism: expected a name, found {type(name).__name__}")
        return contract_class(name)

    def _require_known(self, names: Iterable[str], mechanism: Any = None) -> None:
        """Refuses parameters that neither this class nor its mechanism has.

        `mechanism` names another mechanism than the class's own.

        Options of a mechanism that is named by the path of a module are checked by `fit`: a saved model may name any
        module, and until then none is imported.

        Raises:
            UnknownParameter: names the nearest.
        """
        if ":" in str(mechanism or self.mechanism):
            return
        others = [name for name in names if name not in (*_OWN, *_NODES)]
        options = list(self._contract(mechanism).Options.model_fields) if others else []
        refuse(
            [name for name in others if name not in options],
            [*_OWN, *_NODES, *options],
            f"; options of {mechanism or self.mechanism}: {', '.join(options)}; "
            f"nodes of a configuration: {', '.join(_NODES)}",
        )

    def _take(self, release: ReleasedRun, kind: Kind = "pandas") -> None:
        """Becomes fitted with the release of a run.

        `kind` is the library whose tables `sample` returns.
        """
        self._release, self._kind = release, kind
        self.schema_, self.model_, self.config_ = release.schema, release.model, release.config
        self.ledger_ = LedgerFacts(release.ledger)
        self.feature_names_in_ = np.array(release.schema.rows.order, dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

    def _fitted(self, what: str) -> ReleasedRun:
        if "_release" not in self.__dict__:
            raise NotFittedError(f"this Synthesizer is not fitted yet: call fit(table) before {what}")
        return self._release

    # What a fitted one gives ------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> LedgerFacts:
        """Ledger of all releases.

        It says what was released, what each release cost, and whether the result is private.
        """
        self._fitted("ledger")
        return self.ledger_

    @property
    def predicted_quality(self) -> PredictedQuality | None:
        """Predicted quality of the table.

        It follows from what was released: it reads no row and may be published. None if the run did not
        predict it.
        """
        return self._fitted("predicted_quality").predicted

    @property
    def model(self) -> AnyModel:
        """The fitted model.

        It has marginals by `project`, and codes of the schema by `sample`.
        """
        self._fitted("model")
        return self.model_

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Noisy marginals that the model was fitted to, for the whole federation.

        There are none of a mechanism without marginals. `to_mbi` gives each in Private-PGM's form.
        """
        evidence = self._fitted("measurements").evidence
        return () if evidence is None else evidence.measurements

    @overload
    def sample(self, n: int | None = None, where: Mapping[str, Any] | None = None, *, seed: int | None = None) -> F: ...

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
        **unknown: Any,
    ) -> Any:
        """Draws synthetic rows, or persons with all of their rows.

        Columns, order and dtypes are the schema's. It costs nothing, however often it is done.

        What was fitted to Polars frames gives Polars frames; to Arrow tables, DuckDB relations or anything else with an
        Arrow stream: Arrow tables; what was loaded from a file: DataFrames of pandas.

        Args:
            n: how many, of persons where they are protected; None: as many as the model estimates that there are (that
                meet the conditions).
            where: conditions that every row meets: {"ward": "children", "age": (0, 16), "sex": ["f", "m"]}; a pair is a
                range, both ends included (None: open), a list any of its values, None a missing value. Rows are drawn
                from the model's exact conditional distribution, none is thrown away.
            seed: for the same rows again; None: the synthesizer's own.
            tables: so many tables for `fedsyn.analyse`, each of another draw of what the noise leaves uncertain, with
                rows drawn independently; n None: five times as many rows each as there are real ones. They are
                DataFrames of pandas, which carry beside the rows what the analysis must know of the model.

        Raises:
            NotFittedError: before `fit`.
            InputError: an unknown column or value, conditions that no row meets, a bad n, or tables of a model that was
                not fitted to marginals.
        """
        from fedsyn.front.conditions import restrict
        from fedsyn.front.several import frames_of_posterior, tables_of
        from fedsyn.runs.synthesis import expected_rows

        refuse(list(unknown), ("n", "where", "seed", "tables"))
        release = self._fitted("sample()")
        conditions, rows = {} if where is None else where, None if n is None else _count(n)
        randomness = Randomness(self.seed if seed is None else seed)
        if tables is not None:
            return list(frames_of_posterior(release, tables, rows, conditions, randomness, self.progress))
        schema, model = restrict(release.schema, release.model, conditions)
        return tables_of(schema, model, expected_rows(model) if rows is None else rows, randomness, self._kind)

    def evaluate(
        self,
        real: AnyFrame | Sequence[AnyFrame],
        label: str | None = None,
        *,
        regressions: Sequence[str] = (),
    ) -> TableComparison:
        """Compares synthetic rows with real ones.

        The result says what they are fit for: a verdict, columns and pairs (docs/metrics.md).

        What it returns is computed from the real rows without noise: it is not private.

        Args:
            real: rows to compare with, one table or several.
            label: column to predict; the schema's own by default.
            regressions: formulas whose coefficients to compare, such as ["sbp ~ age + arm"]; none: the label's.
        """
        return self._compared(self._fitted("evaluate()"), real, label, regressions)

    def _compared(
        self, release: ReleasedRun, real: Any, label: str | None = None, regressions: Sequence[str] = ()
    ) -> TableComparison:
        """Compares real rows with as many synthetic ones, both as frames."""
        from fedsyn.evaluation.real.comparison import compare_tables
        from fedsyn.front.conditions import restrict
        from fedsyn.front.several import frame_of
        from fedsyn.lazy import pd
        from fedsyn.table.schema.joined import require_both

        with heard():
            frames = frames_of(real, release.schema.rows)
        rows = frames[0] if len(frames) == 1 else pd.concat([frame.astype(object) for frame in frames], join="inner")
        require_both(rows.columns, release.schema.rows, "the table", "{{'{}': ..., '{}': ...}}")
        release.schema.rows.require_columns(rows.columns)
        schema, model = restrict(release.schema, release.model, {})
        persons = release.schema.of_persons
        drawn = len(rows) if persons is None else rows[persons.id].nunique()
        synthetic = frame_of(schema, model, max(1, drawn), Randomness(self.seed))
        rng = Randomness(self.seed).ordinary("evaluate")
        schema = release.schema.rows.adjusted(None, label)
        return compare_tables(rows, synthetic, schema=schema, regressions=regressions, rng=rng)

    @overload
    def report(self, path: None = None, real: AnyFrame | Sequence[AnyFrame] | None = None) -> str: ...

    @overload
    def report(self, path: str | Path, real: AnyFrame | Sequence[AnyFrame] | None = None) -> Path: ...

    def report(self, path: str | Path | None = None, real: AnyFrame | Sequence[AnyFrame] | None = None) -> str | Path:
        """Makes the page of the run.

        It is returned as text, or written to `path`, which is then returned.

        Made of what was released alone, so it may be published with the table.

        Args:
            path: of an HTML file; one that exists is replaced.
            real: real rows to compare with; such a page is not for publication, and says so.
        """
        from fedsyn.runs.synthesis import expected_rows

        release = self._fitted("report()")
        rows = min(expected_rows(release.model), _MOST_DRAWN)
        codes = _codes_of(release, rows, Randomness(self.seed).ordinary("report"))
        page = page_of(release, codes, None if real is None else self._compared(release, real))
        if path is None:
            return page
        target = path_of(path)
        try:
            target.write_text(page, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {target}: {error.strerror}") from None
        return target

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes the fitted model into ONE file for `fedsyn.load`.

        The file has model, schema, ledger and configuration. It holds no real row.

        Raises:
            ConfigError: there is such a file already, or it cannot be written.
        """
        from fedsyn.front.archive import save_release

        release, path = self._fitted("save()"), path_of(path)
        if path.exists() and not overwrite:
            raise ConfigError(f"{path} exists; choose another name, or pass overwrite=True")
        try:
            save_release(path, release)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        return path


def _codes_of(release: ReleasedRun, rows: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Draws codes of a release's rows, as its table would have them."""
    from fedsyn.runs.synthesis import decoding

    codes = release.model.sample(rows, rng)
    return decoding(release.schema, release.model).placed(codes, rng)


def load(path: str | Path) -> Synthesizer:
    """Loads a fitted `Synthesizer`.

    It reads what `save` wrote, or the directory of a run. It needs no real table, and runs no code.

    Raises:
        DataError: there is none, or it is damaged, too large or something else.
    """
    from fedsyn.front.archive import read_release

    release = read_release(path_of(path))
    config = release.config
    nodes = {name: config.to_dict()[name] for name in ("workload", "federation", "aggregation", "inference")}
    loaded = Synthesizer(
        config.privacy.epsilon,
        config.privacy.delta,
        release.schema,
        config.mechanism.name,
        seed=config.runtime.seed,
        **nodes,
    )
    # Set past the check of their names, which would import a mechanism that the file names.
    loaded._options |= config.mechanism.options
    loaded._take(release)
    return loaded


def refuse(unknown: Sequence[str], known: Iterable[str], more: str = "") -> None:
    """Raises UnknownParameter if there is an unknown one.

    For random_state the message says that it is called seed here.
    """
    if unknown:
        hint = ": use seed" if unknown[0] == "random_state" else nearest(unknown[0], known)
        raise UnknownParameter(f"unknown parameter '{unknown[0]}'{hint}{more}")


def _count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= MOST_ROWS:
        raise ConfigError(f"n: expected a number of rows from 1 to {MOST_ROWS:,}, found {n!r}")
    return int(n)


class LedgerFacts(dict[str, Any], Shown):
    """Contents of ledger.json.

    As a dictionary it has every key. The properties are what people ask for first.
    """

    @property
    def epsilon(self) -> float:
        """Epsilon that was spent, at `delta`."""
        return float(self["epsilon"])

    @property
    def delta(self) -> float:
        return float(self["delta"])

    @property
    def private(self) -> bool:
        """True if the result may be released under this guarantee."""
        return bool(self["private"])

    @property
    def releases(self) -> list[dict[str, Any]]:
        """Every release: its round, mechanism, noise and cost."""
        return list(self["releases"])

    @property
    def summary(self) -> str:
        """Spent budget in one clause.

        If the result is not private, the clause also says why.
        """
        spent = f"epsilon {self.epsilon:.4g} at delta {self.delta:g}"
        return spent if self.private else f"{spent}, not private ({'; '.join(self['not_private_because'])})"

    def __repr__(self) -> str:
        return f"LedgerFacts({self.summary}; {len(self.releases)} releases; unit: {self._unit})"

    @property
    def _unit(self) -> str:
        return "; ".join(filter(None, [self["unit"], not_persons(self)]))

    def _view(self) -> View:
        from fedsyn.evaluation.report.run_page import RELEASE_HEAD, release_row

        paid: dict[str, float] = {}
        for release in self.releases:
            paid[release["name"]] = paid.get(release["name"], 0.0) + release["rho"]
        title, unit = f"Spent: {self.summary}", f"Unit: {self._unit}"
        rows, bars = list(map(release_row, self.releases)), [Bar(name, rho) for name, rho in paid.items()]
        return View(title, RELEASE_HEAD, rows, [unit], "rho of the releases of one name", bars)


def page_of(release: ReleasedRun, codes: npt.NDArray[Any], comparison: TableComparison | None = None) -> str:
    """Returns the page of a run as self-contained HTML.

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
        if comparison is not None:
            save_evaluation(out, comparison)
        try:
            page = write_run_page(out, config=release.config, synthetic=codes, public=comparison is None)
        except (KeyError, TypeError, AttributeError):
            raise DataError("no page: what was kept of the ledger or of the rounds is damaged") from None
        return page.read_text(encoding="utf-8")


def _one_of(tables: Any) -> Any:
    """Returns one of the fitted tables, for its library."""
    first = tables[0] if isinstance(tables, list | tuple) else tables
    return next(iter(first.values())) if isinstance(first, Mapping) else tables


def frames_of(tables: Any, schema: Schema | None = None) -> list[pd.DataFrame]:
    """Returns one or several tables as DataFrames.

    Two tables of one schema, by their names, are joined.

    Raises:
        DataError: something else, nothing, columns whose names are no text, or other tables than the schema names.
    """
    if isinstance(tables, list | tuple) and not tables:
        raise DataError("expected a DataFrame, or a list with one DataFrame of each holder; the list is empty")
    from fedsyn.table.schema.joined import one_table

    frames = [one_table(table, schema) for table in (tables if isinstance(tables, list | tuple) else [tables])]
    for frame in frames:
        require_text_names(frame)
    return frames


def tables_of(tables: Any) -> pd.DataFrame | Sequence[pd.DataFrame] | None:
    """Returns tables as `frames_of` does, but one table by itself.

    Returns None for None. Raises DataError as `frames_of`.
    """
    if tables is None:
        return None
    frames = frames_of(tables)
    return frames if isinstance(tables, list | tuple) else frames[0]


def schema_of(source: Any) -> Schema:
    """Returns a schema, from a Schema, plain data, or a file.

    The file is named by its path.

    Raises:
        SchemaError: something else, or a schema that cannot be.
    """
    if isinstance(source, Schema):
        return source
    if isinstance(source, Mapping):
        return Schema.from_dict(source)
    if isinstance(source, str | Path):
        return Schema.load(source)
    raise SchemaError(f"schema: expected a Schema, its plain data or a path, found {type(source).__name__}")


def path_of(path: Any) -> Path:
    """Returns a path.

    Raises ConfigError for anything but a text or a path.
    """
    if not isinstance(path, str | Path):
        raise ConfigError(f"expected the path of a file, found {type(path).__name__}")
    return Path(path)


def planned_rounds(config: RunConfig) -> int | None:
    """Returns the number of rounds of a run.

    Returns None where it is not known before the run.
    """
    rounds = getattr(contract_class(config.mechanism.name).options_of(config), "rounds", None)
    return rounds if isinstance(rounds, int) else None


class _Heard(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def heard() -> Iterator[None]:
    """Repeats logged warnings as Python's, for somebody without handlers of the log.

    What a run logs of the caller's own rows would go unheard in a session of Python.
    """
    handlers = [*log.handlers, *logging.getLogger().handlers]
    if any(not isinstance(handler, logging.NullHandler) for handler in handlers):
        yield
        return
    handler = _Heard()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
    for text in dict.fromkeys(handler.texts):
        warnings.warn(text, stacklevel=4)
