"""A Ray cluster, one that runs already or one started here: connecting, shipping work, machines that are lost.

This is the only module that imports Ray, and it does so when a cluster is asked for.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from fedsyn.errors import ConfigError, RunError
from fedsyn.version import __version__

_GB = 10**9


class Cluster:
    """A connection to Ray. `close` ends it, and a Ray that was started here with it.

    A process that is connected already (a notebook, a task of Ray's own) keeps its connection, whatever the address.

    Args:
        address: 'auto' or HOST:PORT of a cluster of which this machine is a node; None starts Ray here.
        where: the key or flag that asked for it, for messages.
        runtime_env: what Ray is to set up on the machines for this run, as Ray's documentation describes it.

    Raises:
        ConfigError: Ray is not installed, or the address cannot be reached.
    """

    def __init__(
        self, address: str | None, where: str, runtime_env: Mapping[str, Any] | None = None, patience: float = 300.0
    ) -> None:
        # Ray reads these when it is imported: nothing phones home, and no advice about accelerators is printed.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ConfigError(f"{where} needs Ray, which is not installed: pip install 'fedsyn[simulation]'") from None
        self.where, self.patience, self.started = where, patience, False
        self._unfit_since: float | None = None
        self._own = not self.ray.is_initialized()
        if self._own:
            self._connect(address, dict(runtime_env or {}))

    def _connect(self, address: str | None, runtime_env: dict[str, Any]) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address is None:
            options |= {"address": "local", "include_dashboard": False}
        else:
            _knock(address, self.where)
            # Machines of a cluster do not share this one's environment; a Ray started here inherits it.
            shared = {name: os.environ[name] for name in ("FEDSYN_DATA", "FEDSYN_CACHE") if name in os.environ}
            runtime_env["env_vars"] = {**shared, **runtime_env.get("env_vars", {})}
            options["address"] = address
        try:
            self.ray.init(**options, runtime_env=runtime_env or None)
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            self.ray.shutdown()
            what = "cannot start Ray" if address is None else f"cannot connect to the Ray cluster '{address}'"
            raise ConfigError(f"{self.where}: {what}: {_one_line(error)}") from None
        self.started = address is None

    def remote(self, path: str, *, cpus: float, memory: float | None) -> Any:
        """The function 'module:name' as a Ray task that is tried once; its result is for `result` to read.

        Args:
            path: of a function of an importable module.
            cpus: that a machine must have free for it.
            memory: gigabytes, likewise.

        Raises:
            ConfigError: a Ray that was started here has less than that, and always will.
        """
        if self.started and not self._fits(cpus, memory):
            raise ConfigError(f"{self.where}: this machine has less than the {_needs(cpus, memory)} that a task needs")
        options = {} if memory is None else {"memory": round(memory * _GB)}
        return self.ray.remote(_shipped(path, __version__)).options(num_cpus=cpus, max_retries=0, **options)

    def result(self, reference: Any) -> Any:
        """What a task returned.

        Raises:
            Lost: its machine or its process is gone, or what it returned; the same task may be submitted again.
            RunError: anything else that went wrong.
        """
        errors = self.ray.exceptions
        machine = (errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError)
        process = (errors.WorkerCrashedError, errors.OutOfMemoryError)
        try:
            misfit, value = self.ray.get(reference)
        except (*machine, errors.ObjectFetchTimedOutError) as error:
            raise Lost(f"Ray lost a machine ({type(error).__name__})") from None
        except process as error:
            raise Lost(f"Ray lost a process, to want of memory perhaps ({type(error).__name__})") from None
        except errors.RayTaskError as error:
            # The text might quote what the task worked on; that of a failed import does not.
            cause = error.cause if isinstance(error.cause, Exception) else error
            told = f": {_one_line(cause)}" if isinstance(cause, ImportError) else ""
            raise RunError(f"a task failed on a Ray worker with {type(cause).__name__}{told}") from None
        except errors.RayError as error:
            raise RunError(f"Ray could not run a task ({type(error).__name__}): {_one_line(error)}") from None
        if misfit:
            raise RunError(misfit)
        return value

    def slots(self, cpus: float, memory: float | None) -> int:
        """How many such tasks the machines of now can run at a time; at least 1."""
        total = 0
        for have in self._machines():
            number = have.get("CPU", 0.0) / cpus
            total += int(number if memory is None else min(number, have.get("memory", 0.0) / (memory * _GB)))
        return max(1, total)

    def require(self, cpus: float, memory: float | None) -> None:
        """Asked now and then by somebody who waits for tasks: no machine may come for `patience` seconds, not longer.

        Raises:
            RunError: for so long there has been no machine on which such a task could ever run.
        """
        if self._fits(cpus, memory):
            self._unfit_since = None
            return
        self._unfit_since = self._unfit_since or time.monotonic()
        if time.monotonic() - self._unfit_since > self.patience:
            raise RunError(
                f"the Ray cluster has had no machine with {_needs(cpus, memory)} for {self.patience:g} s: its machines "
                "died, or never were as large as a task needs"
            )

    def cancel(self, references: list[Any]) -> None:
        """Gives up tasks; those under way are stopped."""
        if self.ray.is_initialized() and not self.started:
            for reference in references:
                self.ray.cancel(reference, force=True)

    def close(self) -> None:
        if self._own:
            self.ray.shutdown()

    def _fits(self, cpus: float, memory: float | None) -> bool:
        need = 0.0 if memory is None else memory * _GB
        return any(have.get("CPU", 0.0) >= cpus and have.get("memory", 0.0) >= need for have in self._machines())

    def _machines(self) -> list[dict[str, float]]:
        """The resources of each machine that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]


class Lost(Exception):
    """A task that did not come to its end; nothing of what it did was received."""


def _shipped(path: str, version: str) -> Callable[..., tuple[str, Any]]:
    """A function that Ray ships by value: it finds out whether the machine has this fedsyn before it calls `path`.

    Without it, a machine that lacks the package would fail inside Ray, with an error that names neither.
    """

    def call(*arguments: Any) -> tuple[str, Any]:
        import importlib
        import socket

        try:
            found = importlib.import_module("fedsyn.version").__version__
        except ImportError:
            found = "none"
        if found != version:
            here = f"the Ray worker on {socket.gethostname()} has fedsyn {found}"
            return f"{here}, the run has {version}: install the same version on every machine of the cluster", None
        module, _, name = path.partition(":")
        return "", getattr(importlib.import_module(module), name)(*arguments)

    return call


def _knock(address: str, where: str) -> None:
    """Ray tries for a long time to reach a cluster that is not there; this finds out in seconds.

    Raises:
        ConfigError: nobody listens at HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    if address == "auto" or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{where}: no Ray cluster answers at '{address}': {_one_line(error)}") from None


def _needs(cpus: float, memory: float | None) -> str:
    return f"{cpus:g} CPUs" if memory is None else f"{cpus:g} CPUs and {memory:g} GB of memory"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
