"""The function `fedsyn.run`: a whole configuration from Python.

The configuration may be an object, a dictionary or a path. A folder for the result is optional.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.front.synthesizer import Synthesizer, heard, load, schema_of, tables_of
from fedsyn.loading import find_schema, load_config, parse_config, written_out
from fedsyn.notebook import Bar, Shown, View
from fedsyn.runs.engines import run as run_config
from fedsyn.runs.serve import Progress
from fedsyn.table.schema import Schema
from fedsyn.table.schema.frames import Kind, kind_of

if TYPE_CHECKING:
    from fedsyn.table.schema.frames import AnyFrame


class RunResult(dict[str, float], Shown):
    """The metrics of a run by name, and where its files are.

    Attributes:
        folder: the run directory. One that nobody named is removed when this object is.
    """

    folder: Path

    def __init__(
        self, metrics: Mapping[str, float], folder: Path, kind: Kind = "pandas", *, temporary: bool = False
    ) -> None:
        super().__init__(metrics)
        self.folder, self._kind = folder, kind
        if temporary:
            weakref.finalize(self, shutil.rmtree, folder.parent, True)

    @cached_property
    def synthesizer(self) -> Synthesizer[Any]:
        """The fitted model of the run, as a `Synthesizer`.

        It samples rows of the kind of `table`, has the ledger, and can be saved.
        """
        loaded: Synthesizer[Any] = load(self.folder)
        loaded._kind = self._kind
        return loaded

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:.6g}" for name, value in self.items())
        return f"RunResult({self.folder}: {self.synthesizer.ledger_.summary}; {shown})"

    def _view(self) -> View:
        rows = [(name, f"{value:.6g}") for name, value in self.items()]
        notes = [f"In {self.folder}.", "What metrics read of real rows is not private."]
        bars = [Bar(*item) for item in self.items()]
        return View(self.synthesizer.ledger_.summary, ("metric", "value"), rows, notes, "value", bars)


def run(
    config: RunConfig | Mapping[str, Any] | str | Path,
    out: Path | str | None = None,
    progress: Progress | None = None,
    *,
    table: AnyFrame | Sequence[AnyFrame] | None = None,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
) -> RunResult:
    """Runs a configuration on its engine and leaves the run directory `out`.

    Args:
        config: what `load_config` gives, the same keys as a dictionary, or the path of a YAML file.
        out: the run directory, made if it does not exist; None: a temporary one, which goes with the result.
        progress: called with the record of each finished round.
        table: a simulation's rows, in place of `data.source`: a DataFrame of pandas or Polars, an Arrow table, a DuckDB
            relation, or a list with one of each client.
        schema: what describes them, in place of `data.schema`.

    Returns:
        The metrics, a dictionary that also knows the folder and the fitted model.

    Raises:
        InputError: bad configuration, schema or data; nothing was run.
        FedsynError: the run failed; what had finished is in `out`.
    """
    checked = _checked(config, table)
    described = None if schema is None else schema_of(schema)
    kind, table = kind_of(table), tables_of(table)
    if out is not None:
        with heard():
            metrics = run_config(checked, out, progress, table=table, schema=described)
        return RunResult(metrics, Path(out).resolve(), kind)
    folder = Path(tempfile.mkdtemp(prefix="fedsyn-")) / "run"
    try:
        with heard():
            metrics = run_config(checked, folder, progress, table=table, schema=described)
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise
    return RunResult(metrics, folder, kind, temporary=True)


def _checked(config: Any, table: Any) -> RunConfig:
    if isinstance(config, str | Path):
        config = load_config(config)
    if isinstance(config, RunConfig):
        return config
    if not isinstance(config, Mapping):
        raise ConfigError(f"config: expected a configuration, a dictionary or a path, found {type(config).__name__}")
    document = written_out(dict(config), "config")
    if table is not None:
        document.setdefault("data", {"source": "table"})
    if isinstance(table, list | tuple) and isinstance(document.get("federation") or {}, Mapping):
        # Each table is a client; a configuration that says something else is refused by the partitioner.
        document["federation"] = {"clients": len(table), "partition": "native"} | dict(document.get("federation") or {})
    find_schema(document)
    return parse_config(document)
