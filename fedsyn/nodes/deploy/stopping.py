"""`fedsyn deploy stop`: the SuperLink, or a run of it; and which run a name means."""

from __future__ import annotations

import os
import signal
import time

from fedsyn.errors import ConfigError, RunError
from fedsyn.nodes.deploy.federation import Place
from fedsyn.nodes.deploy.link import control_of, link_pid
from fedsyn.nodes.flower.control import Control, RunState


def stop_link(place: Place, patience: float = 30.0) -> None:
    """Ends the `deploy link` of this folder, and waits until it has ended.

    Raises:
        ConfigError: none runs on this machine.
        RunError: it did not end in time.
    """
    pid = link_pid(place)
    if pid is None:
        raise ConfigError(f"{place.operator}: no 'fedsyn deploy link' runs on this machine")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while link_pid(place) is not None:
        if time.monotonic() > deadline:
            raise RunError(f"'fedsyn deploy link' (process {pid}) has not ended within {patience:g} s")
        time.sleep(0.1)


def stop_run(place: Place, run: str) -> str:
    """Stops a run; its name.

    Raises:
        ConfigError: no such run, or several.
        RunError: the SuperLink does not answer, or refuses.
    """
    with control_of(place, place.load()) as control:
        found = found_run(control, run)
        control.stop(found.id)
        return name_of(found)


def found_run(control: Control, run: str) -> RunState:
    """The run of this name, or the one whose name begins so; Flower's number is taken, too.

    Raises:
        ConfigError: no such run, or several.
        RunError: the SuperLink does not answer.
    """
    runs = control.runs(100)
    found = [each for each in runs if run in (str(each.id), each.settings.get("run"))]
    if not found and run:
        found = [each for each in runs if str(each.settings.get("run", "")).startswith(run)]
    names = sorted({name_of(each) for each in found})
    if len(names) > 1:
        raise ConfigError(f"--run: several runs begin with '{run}': {', '.join(names)}")
    if not found:
        raise ConfigError(f"--run: no run '{run}' among the last {len(runs)}; fedsyn deploy status lists them")
    return found[0]  # the newest of a run that was resumed


def name_of(run: RunState) -> str:
    """A run's own name; Flower's number of one that has none."""
    return run.settings.get("run") or str(run.id)
