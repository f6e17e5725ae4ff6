"""Names of mechanisms, partitioners and metrics, and the path of each.

Nothing is imported before a run asks for it.

A mechanism from outside this repository is found in one of two ways: a Python entry point of the group
`fedsyn.mechanisms` whose object is its server half, or `mechanism: {name: package.module:Strategy}`. A command
that only reads imports nothing of the second kind (`installed_only`). Partitioners and metrics are found in the same
two ways, by the groups `fedsyn.partitioners` and `fedsyn.metrics`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedsyn import yamlio
from fedsyn.errors import ConfigError, nearest

_installed_only: ContextVar[bool] = ContextVar("installed_only", default=False)


@dataclass(frozen=True)
class MechanismEntry:
    """A mechanism's two halves as `module:class`, and its summary.

    Attributes:
        strategy: the server half.
        client: the client half; empty: the server half names it, as its `Client`.
        summary: one line.
        source: the paper, or the package.
    """

    strategy: str
    client: str = ""
    summary: str = ""
    source: str = ""


def _own_mechanisms() -> dict[str, MechanismEntry]:
    """Returns this repository's mechanisms, from the table beside this module."""
    table = yamlio.read_mapping(Path(__file__).with_name("mechanisms.yaml"))
    paths = {"strategy": "fedsyn.plugins.strategies.", "client": "fedsyn.plugins.clients."}
    return {
        name: MechanismEntry(**{key: paths.get(key, "") + text for key, text in row.items()})
        for name, row in table.items()
    }


MECHANISMS = _own_mechanisms()
PARTITIONERS: dict[str, str] = {
    "iid": "fedsyn.plugins.partitioners.iid:Iid",
    "quantity": "fedsyn.plugins.partitioners.quantity:Quantity",
    "dirichlet": "fedsyn.plugins.partitioners.dirichlet:Dirichlet",
    "subpopulation": "fedsyn.plugins.partitioners.subpopulation:Subpopulation",
    "clustering": "fedsyn.plugins.partitioners.clustering:Clustering",
    "native": "fedsyn.plugins.partitioners.native:Native",
}
_OWN_METRICS = (
    *("workload_error", "error_2way", "error_3way", "nll", "heterogeneity"),
    *("auc", "f1", "accuracy", "rmse", "range_query_error"),
)
METRICS: dict[str, str] = {name: f"fedsyn.evaluation.real.metrics:{name}" for name in _OWN_METRICS}


def mechanisms() -> dict[str, MechanismEntry]:
    """Every mechanism by name: this repository's, and those of installed packages."""
    foreign = {
        name: MechanismEntry(point.value, summary=f"from the package {_package(point)}", source=_package(point))
        for name, point in entry_points("fedsyn.mechanisms").items()
    }
    return {**foreign, **MECHANISMS}


def partitioners() -> dict[str, str]:
    """Every partitioner by name, as `module:class`."""
    return {**{name: point.value for name, point in entry_points("fedsyn.partitioners").items()}, **PARTITIONERS}


def metrics() -> dict[str, str]:
    """Every metric by name, as `module:NAME`."""
    return {**{name: point.value for name, point in entry_points("fedsyn.metrics").items()}, **METRICS}


@lru_cache(maxsize=8)
def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points of installed packages in a group, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module


def strategy_class(name: str) -> Any:
    """Returns the server half of a mechanism.

    Raises ConfigError for an unknown name, with the nearest valid one.
    """
    path = _entry(name).strategy
    return _usable(load(path, "mechanism.name"), path)


def client_class(name: str) -> Any:
    """Returns the client half of a mechanism.

    The server half is not imported where the registry knows both.
    """
    entry = _entry(name)
    return load(entry.client, "mechanism.name") if entry.client else strategy_class(name).Client


def contract_class(name: str) -> Any:
    """Returns the contract that both halves of a mechanism agree on."""
    return client_class(name).Contract


def partitioner(name: str, **options: Any) -> Any:
    """The partitioner of this name with these options.

    Raises:
        ConfigError: an unknown name or option (with the nearest valid one), or a value that is not allowed.
    """
    require_importable(name, "federation.partition.name")
    known = partitioners()
    if name not in known and ":" not in name:
        raise ConfigError(
            f"federation.partition.name: unknown partitioner '{name}'{nearest(name, known)}; "
            f"available: {', '.join(sorted(known))}"
        )
    return load(known.get(name, name), "federation.partition.name").with_options(name, options)


def metric(name: str) -> Any:
    """Returns a metric by its name.

    Or by the place of one from outside: `package.module:NAME`.

    Raises:
        ConfigError: there is no such metric.
    """
    require_importable(name, "evaluation")
    known = metrics()
    if ":" not in name and name not in known:
        raise ConfigError(f"evaluation: unknown metric '{name}'{nearest(name, known)}; available: {', '.join(known)}")
    loaded = load(known.get(name, name), "evaluation")
    if getattr(loaded, "name", None) != reported(name) or not hasattr(loaded, "require"):
        raise ConfigError(f"evaluation: '{name}' is not a Metric of that name")
    return loaded


def reported(name: str) -> str:
    """Returns the name under which a metric is reported.

    Of `package.module:NAME` the last part.
    """
    return name.rpartition(":")[2]


@contextmanager
def installed_only() -> Iterator[None]:
    """Refuses plug-ins that are not installed, within this context.

    A `module:class` that a file names is refused, not imported.
    """
    before = _installed_only.set(True)
    try:
        yield
    finally:
        _installed_only.reset(before)


def require_importable(name: str, where: str) -> None:
    """Raises ConfigError for a module's path inside of `installed_only`."""
    if ":" in name and _installed_only.get():
        raise ConfigError(
            f"{where}: '{name}' is the path of a module, and a command that only reads imports no module that a file "
            "names; a plug-in with a name of its own, of an installed package, is known here, too"
        )


def _entry(name: str) -> MechanismEntry:
    require_importable(name, "mechanism.name")
    if ":" in name:
        return MechanismEntry(name)
    known = mechanisms()
    if name not in known:
        raise ConfigError(
            f"mechanism.name: unknown mechanism '{name}'{nearest(name, known)}; "
            f"available: {', '.join(sorted(known))}; or package.module:Strategy"
        )
    return known[name]


def load(path: str, where: str) -> Any:
    """Returns the object at `module:attribute`.

    Raises ConfigError, which names `where`, if it does not exist.
    """
    module, _, attribute = path.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{where}: module '{error.name}' of '{path}' is not installed: install its package, or put its "
                "folder on PYTHONPATH"
            ) from None
        raise ConfigError(f"{where}: importing '{module}' failed: it needs the module '{error.name}'") from None
    except ConfigError:  # a sentence already: of an installation that cannot be used
        raise
    except Exception as error:  # the author's own, at import
        raise ConfigError(f"{where}: importing '{module}' failed: {type(error).__name__}: {error}") from error
    if not hasattr(loaded, attribute):
        raise ConfigError(f"{where}: the module '{module}' has no '{attribute}'")
    return getattr(loaded, attribute)


def _usable(strategy: Any, path: str) -> Any:
    """Returns a server half that names everything it needs.

    Raises ConfigError, which says what is missing.
    """
    client = getattr(strategy, "Client", None)
    contract = getattr(client, "Contract", None)
    missing = (
        ("'Client', its client half", client is None),
        ("'Contract' on its client half", client is not None and contract is None),
        ("'protocol'", inspect.isabstract(strategy)),
        *(
            (f"'releases' or 'layout' on its request '{name}'", inspect.isabstract(request))
            for name, request in getattr(client, "requests", {}).items()
        ),
    )
    for what, absent in missing:
        if absent:
            raise ConfigError(f"mechanism.name: '{path}' is not the server half of a mechanism: it lacks {what}")
    return strategy
