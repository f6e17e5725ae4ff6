"""`fedsyn deploy stop`: the SuperLink, or a run of it."""

from __future__ import annotations

import os
import signal
import time

from fedsyn.deploy.federation import Place
from fedsyn.deploy.link import control_of, link_pid
from fedsyn.errors import ConfigError, RunError


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


def stop_run(place: Place, run: str) -> None:
    """Stops a run by the SuperLink's number of it, or by its own name.

    Raises:
        ConfigError: no such run.
        RunError: the SuperLink does not answer, or refuses.
    """
    with control_of(place, place.load()) as control:
        runs = control.runs(100)
        found = [each for each in runs if run in (str(each.id), each.settings.get("run"))]
        if not found:
            raise ConfigError(f"--run: no run '{run}' among the last {len(runs)}; fedsyn deploy status lists them")
        control.stop(found[0].id)
