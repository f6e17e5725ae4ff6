"""`fedsyn deploy run`: Flower's connection to this federation's SuperLink, written by us and used by nobody else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedsyn.config import RunConfig
from fedsyn.deploy.federation import FederationFile, Place
from fedsyn.deploy.link import control_of, link_pid
from fedsyn.errors import ConfigError, RunError
from fedsyn.flower.control import ONLINE
from fedsyn.loading import load_config


def configuration(place: Place, federation: FederationFile, file: Path | None, sets: Sequence[str]) -> RunConfig:
    """The run's configuration, of this federation's SuperLink.

    Raises:
        ConfigError: it is none, or of another engine.
    """
    path = file or place.operator / federation.run
    own = [f"runtime.superlink={federation.name}", f"runtime.operator_key={json.dumps(str(place.signing_key))}"]
    config = load_config(path, [*sets, *own])
    if config.runtime.engine != "deployment":
        raise ConfigError(f"{path}: runtime.engine must be 'deployment', found '{config.runtime.engine}'")
    present = len(federation.present)
    if config.federation.clients > present:
        raise ConfigError(
            f"{path}: federation.clients is {config.federation.clients}, and this federation has {present} holders "
            "that were not revoked"
        )
    return config


def require_link(place: Place, federation: FederationFile, patience: float = 60.0) -> None:
    """Waits until the SuperLink answers, as one does that has just been started.

    Raises:
        ConfigError: no `deploy link` runs on this machine.
        RunError: its SuperLink does not answer in time.
    """
    deadline = time.monotonic() + patience
    while True:
        if link_pid(place) is None:
            raise ConfigError(
                f"no SuperLink: start it on this machine, and keep it running: fedsyn deploy link {place.operator}"
            )
        try:
            with control_of(place, federation) as control:
                control.runs(1)
            return
        except RunError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def missing(place: Place, federation: FederationFile) -> list[str]:
    """Names of the holders whose nodes are not online."""
    if federation.superlink.insecure:
        return []
    with control_of(place, federation) as control:
        online = {node.key for node in control.nodes() if node.status == ONLINE}
    return [holder.name for holder in federation.present if holder.node not in online]


@contextmanager
def connected(place: Place, federation: FederationFile) -> Iterator[None]:
    """Gives Flower's command line this federation's connection, and a home of its own, for the time being."""
    link = federation.superlink
    lines = [f"[superlink.{json.dumps(federation.name)}]", f"address = {json.dumps(link.local)}"]
    lines += ["insecure = true"] if link.insecure else [f"root-certificates = {json.dumps(str(place.ca))}"]
    before = os.environ.get("FLWR_HOME")
    try:
        place.flower.mkdir(mode=0o700, parents=True, exist_ok=True)
        (place.flower / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write Flower's connection: {error.filename}: {error.strerror}") from None
    os.environ["FLWR_HOME"] = str(place.flower)
    try:
        yield
    finally:
        if before is None:
            del os.environ["FLWR_HOME"]
        else:
            os.environ["FLWR_HOME"] = before
