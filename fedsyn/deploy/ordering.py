"""`fedsyn deploy run`: Flower's connection to this federation's SuperLink.

fedsyn writes the connection, and nothing else uses it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedsyn.config import RunConfig
from fedsyn.deploy.federation import FederationFile, OperatorFolder
from fedsyn.deploy.superlink import control_of, link_pid
from fedsyn.errors import ConfigError, RunError
from fedsyn.flower.control import ONLINE, UNREGISTERED
from fedsyn.loading import load_config
from fedsyn.runs.deployment import FOLDER


def configuration(
    place: OperatorFolder, federation: FederationFile, file: Path | None, sets: Sequence[str]
) -> RunConfig:
    """Returns the run's configuration on this federation's SuperLink.

    Raises:
        ConfigError: it is none, or of another engine.
    """
    path = file or place.operator / federation.run
    settings = [f"runtime.superlink={federation.name}", f"runtime.operator_key={json.dumps(str(place.signing_key))}"]
    config = load_config(path, [*sets, *settings])
    if config.runtime.engine != "deployment":
        raise ConfigError(f"{path}: runtime.engine must be 'deployment', found '{config.runtime.engine}'")
    present = len(federation.present)
    if config.federation.clients > present:
        raise ConfigError(
            f"{path}: federation.clients is {config.federation.clients}, and this federation has {present} holders "
            "that were not revoked"
        )
    return config


def require_link(place: OperatorFolder, federation: FederationFile, patience: float = 60.0) -> None:
    """Waits until a SuperLink that was just started answers.

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


def addressed(
    config: RunConfig, place: OperatorFolder, federation: FederationFile, patience: float = 30.0
) -> tuple[RunConfig, list[str]]:
    """Returns the configuration with its nodes, and holders that are offline.

    The first `clients` holders of federation.yaml are asked. Others that are registered and online take no part, and
    nobody waits for them. Without authentication nobody knows which node is whose, and all are asked.

    Raises:
        RunError: the SuperLink does not know one of them within `patience` seconds, or does not answer.
    """
    holders, deadline = federation.present[: config.federation.clients], time.monotonic() + patience
    names = {holder.partition: holder.name for holder in holders}
    if federation.superlink.insecure:
        runtime = config.runtime.model_copy(update={"holders": names})
        return config.model_copy(update={"runtime": runtime}), []
    # Wait until the SuperLink knows all of them.
    while True:
        with control_of(place, federation) as control:
            known = {node.key: node for node in control.nodes() if node.status != UNREGISTERED}
        unknown = [holder.name for holder in holders if holder.node not in known]
        if not unknown:
            break
        if time.monotonic() > deadline:
            raise RunError(f"the SuperLink does not know {', '.join(unknown)}: see what 'fedsyn deploy link' says")
        time.sleep(0.5)  # a SuperLink that has just been started registers them
    # Flower's number of each node, by the key in federation.yaml.
    nodes = {known[holder.node].id: holder.partition for holder in holders}
    runtime = config.runtime.model_copy(update={"nodes": nodes, "holders": names})
    absent = [holder.name for holder in holders if known[holder.node].status != ONLINE]
    return config.model_copy(update={"runtime": runtime}), absent


@contextmanager
def connected(place: OperatorFolder, federation: FederationFile) -> Iterator[None]:
    """Gives Flower's command line this federation's connection.

    For that time Flower gets a home of its own, too.
    """
    link = federation.superlink
    lines = [f"[superlink.{json.dumps(federation.name)}]", f"address = {json.dumps(link.local)}"]
    lines += ["insecure = true"] if link.insecure else [f"root-certificates = {json.dumps(str(place.ca))}"]
    wanted = {"FLWR_HOME": str(place.flower), FOLDER: str(place.operator)}
    try:
        place.flower.mkdir(mode=0o700, parents=True, exist_ok=True)
        (place.flower / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write Flower's connection: {error.filename}: {error.strerror}") from None
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
