"""A Ray cluster, already running or started here.

It connects, ships work, and notices machines that are lost.

This is the only module that imports Ray, and it does so when a cluster is asked for.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsyn.errors import ConfigError, RunError
from fedsyn.version import __version__, installing

_GB = 10**9
_LOOK_EVERY = 5.0  # seconds without any result after which somebody looks at the machines
_STARTS = 3  # how often a Ray of one's own is started before somebody hears of it


@dataclass(frozen=True)
class Needs:
    """Resources that a task needs of a cluster.

    Attributes:
        cpus: that its machine must have free.
        memory: gigabytes, likewise; None for whatever there is.
        retries: how often it may be lost, with its machine or its process.
        wait: seconds that the cluster may be without any machine that is large enough.
    """

    cpus: float
    memory: float | None
    retries: int
    wait: float

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs" + (f" and {self.memory:g} GB of memory" if self.memory else "")

    def how_many(self, machine: Mapping[str, float]) -> int:
        """Returns how many such tasks a machine can run at once.

        A task needs these resources.
        """
        number = machine.get("CPU", 0.0) / self.cpus
        return int(number if self.memory is None else min(number, machine.get("memory", 0.0) / (self.memory * _GB)))


class Cluster:
    """A connection to Ray.

    `close` ends it, and a Ray that was started here with it.

    A process that is connected already (a notebook, a task of Ray's own) keeps its connection, whatever the address.

    Args:
        address: 'auto' or HOST:PORT of a cluster of which this machine is a node; None starts Ray here.
        where: the key or flag that asked for it, for messages.
        runtime_env: what Ray is to set up on the machines for this run, as Ray's documentation describes it.

    Raises:
        ConfigError: Ray is not installed, or the address cannot be reached.
    """

    def __init__(self, address: str | None, where: str, runtime_env: Mapping[str, Any] | None = None) -> None:
        # Ray reads these when it is imported: nothing phones home, and no advice about accelerators is printed.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ConfigError(f"{where} needs Ray, which is not installed: {installing('simulation')}") from None
        self.where, self.started = where, False
        self._too_small_since: float | None = None
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
            self._start({**options, "runtime_env": runtime_env or None}, tries=_STARTS if address is None else 1)
            self._hush()
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            self.ray.shutdown()
            what = "cannot start Ray" if address is None else f"cannot connect to the Ray cluster '{address}'"
            raise ConfigError(f"{self.where}: {what}: {_one_line(error)}") from None
        self.started = address is None

    def _start(self, options: dict[str, Any], tries: int) -> None:
        """Calls `ray.init`, again after a start that was too slow.

        Ray allows its processes the same seconds on any machine.

        Raises:
            RuntimeError: they took too long each time.
        """
        for left in reversed(range(tries)):
            try:
                self.ray.init(**options)
                return
            except Exception as error:
                if "timed out" not in str(error).lower():  # Ray says so in errors of several classes, or of none
                    raise
                self.ray.shutdown()
                if not left:
                    raise RuntimeError(f"after {tries} tries, {error}") from None

    def _hush(self) -> None:
        """Stops Ray from printing a dead machine's last log lines.

        No option turns them off.
        """
        printer: Any = importlib.import_module("ray._private.worker")
        if hasattr(printer, "print_to_stdstream"):
            printer.print_to_stdstream = lambda *arguments, **options: None

    def remote(self, path: str, needs: Needs) -> Any:
        """Returns the function 'module:name' as a Ray task.

        It is tried once; its result is for `result` to read.

        Raises:
            ConfigError: a Ray that was started here has less than it needs, and always will.
        """
        if self.started and not any(needs.how_many(machine) for machine in self._machines()):
            raise ConfigError(f"{self.where}: a task needs {needs}, and this machine has less")
        options = {} if needs.memory is None else {"memory": round(needs.memory * _GB)}
        return self.ray.remote(_shipped(path, __version__)).options(num_cpus=needs.cpus, max_retries=0, **options)

    def some_of(self, references: Iterable[Any], needs: Iterable[Needs]) -> list[Any]:
        """Waits until some of the tasks have ended, and returns them.

        `needs` are the resources that they need.

        Raises:
            RunError: for too long there has been no machine on which any of them could run.
        """
        waiting = list(references)
        while True:
            done: list[Any] = self.ray.wait(waiting, num_returns=1, timeout=_LOOK_EVERY)[0]
            if done:
                self._too_small_since = None
                return done
            self._require(set(needs))

    def result(self, reference: Any) -> Any:
        """Returns a task's result.

        Raises:
            LostTask: its machine or its process is gone, or what it returned; the same task may be submitted again.
            RunError: anything else that went wrong.
        """
        errors = self.ray.exceptions
        machine = (errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError)
        process = (errors.WorkerCrashedError, errors.OutOfMemoryError)
        try:
            misfit, value = self.ray.get(reference)
        except errors.OwnerDiedError:
            # What a task is given stays in this process until it is fetched, from the address that Ray told everybody.
            raise RunError(
                f"{self.where}: the machines of the Ray cluster cannot reach this process; it must run on a machine of "
                "the cluster, under the address by which the others know it"
            ) from None
        except (*machine, errors.ObjectFetchTimedOutError) as error:
            raise LostTask(f"Ray lost a machine ({type(error).__name__})") from None
        except process as error:
            raise LostTask(f"Ray lost a process, to want of memory perhaps ({type(error).__name__})") from None
        except errors.RayTaskError as error:
            # The text might quote what the task worked on; that of a failed import does not.
            cause = error.cause if isinstance(error.cause, Exception) else error
            detail = f": {_one_line(cause)}" if isinstance(cause, ImportError) else ""
            raise RunError(f"a task failed on a Ray worker with {type(cause).__name__}{detail}") from None
        except errors.RayError as error:
            raise RunError(f"Ray could not run a task ({type(error).__name__}): {_one_line(error)}") from None
        if misfit:
            raise RunError(misfit)
        return value

    def slots(self, needs: Needs) -> int:
        """Returns how many such tasks can run at once now.

        It is at least 1.
        """
        return max(1, sum(needs.how_many(machine) for machine in self._machines()))

    def _require(self, wanted: set[Needs]) -> None:
        machines = self._machines()
        if any(needs.how_many(machine) for needs in wanted for machine in machines):
            self._too_small_since = None
            return
        self._too_small_since = self._too_small_since or time.monotonic()
        patience = max(needs.wait for needs in wanted)
        if time.monotonic() - self._too_small_since > patience:
            smallest = min(wanted, key=lambda needs: (needs.cpus, needs.memory or 0.0))
            raise RunError(
                f"the Ray cluster has had no machine with {smallest} for {patience:g} s: its machines died, or never "
                "were as large as a task needs"
            )

    def cancel(self, references: list[Any]) -> None:
        """Gives up tasks; those under way are stopped."""
        if self.ray.is_initialized() and not self.started:
            for reference in references:
                self.ray.cancel(reference, force=True)

    def close(self) -> None:
        if self._own:
            self.ray.shutdown()

    def _machines(self) -> list[dict[str, float]]:
        """The resources of each machine that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]


class LostTask(Exception):
    """A task that did not end; nothing of it was received."""


def _shipped(path: str, version: str) -> Callable[..., tuple[str, Any]]:
    """Returns a function that Ray ships by value.

    It finds out whether the machine has this fedsyn before it calls `path`.

    Without it, a machine that lacks the package would fail inside Ray, with an error that names neither.
    """

    def call(*arguments: Any) -> tuple[str, Any]:
        import importlib
        import socket

        try:
            installed = importlib.import_module("fedsyn.version").__version__
        except ImportError:
            installed = "none"
        if installed != version:
            here = f"the Ray worker on {socket.gethostname()} has fedsyn {installed}"
            return f"{here}, the run has {version}: install the same version on every machine of the cluster", None
        importlib.import_module("fedsyn.output").no_tracebacks()  # Ray keeps what its workers write
        module, _, name = path.partition(":")
        return "", getattr(importlib.import_module(module), name)(*arguments)

    return call


def _knock(address: str, where: str) -> None:
    """Checks in seconds that a cluster can be reached.

    Ray tries for a long time to reach one that is not there.

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


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
