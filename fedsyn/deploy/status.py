"""`fedsyn deploy status`, `log` and `stop --run`.

They show who is online, which runs there are, and what one says, and end one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsyn.deploy.federation import FederationFile, OperatorFolder
from fedsyn.deploy.superlink import control_of, link_facts, link_pid
from fedsyn.errors import ConfigError, RunError
from fedsyn.flower.control import ONLINE, UNREGISTERED, Control, NodeFacts, RunState, Unreachable
from fedsyn.keys.certificates import days_left
from fedsyn.protocol.record import Waiting
from fedsyn.runs.directory import load_waiting
from fedsyn.runs.returned import is_sealed
from fedsyn.runs.submitted import runs_folder
from fedsyn.wire.orders import is_run_name


@dataclass(frozen=True)
class HolderStatus:
    """A holder as the SuperLink sees it.

    Attributes:
        name: of the holder.
        partition: its number.
        status: 'online', 'offline', 'never seen', 'not registered' or 'revoked'; 'unknown' without a SuperLink.
        since: seconds that it has been so; None: not known.
        fingerprint: of its card.
    """

    name: str
    partition: int
    status: str
    since: float | None
    fingerprint: str


@dataclass(frozen=True)
class RunStatus:
    """A run as the SuperLink and its folder show it.

    Attributes:
        id: the SuperLink's number of it.
        name: its own, the same when it is resumed.
        status: as Flower says.
        since: seconds since it was submitted.
        out: its run directory, on the machine that ordered it.
        rounds: finished rounds, by its rounds.jsonl; None: not to be seen from here.
        waits: for whom a running one waits, and why; None: for nobody, or not to be seen from here.
    """

    id: str
    name: str
    status: str
    since: float | None
    out: str
    rounds: int | None
    waits: Waiting | None = None


@dataclass(frozen=True)
class Status:
    """Present state of a federation.

    Attributes:
        name: of the federation.
        address: of its SuperLink.
        link: 'up', 'starting' (it does not answer yet) or 'down' (no `deploy link` runs).
        restarts: of the SuperLink, since the link began.
        certificate: days until the SuperLink's certificate ends; None without TLS.
        holders: see there.
        runs: the newest first.
    """

    name: str
    address: str
    link: str
    restarts: int
    certificate: float | None
    holders: tuple[HolderStatus, ...]
    runs: tuple[RunStatus, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def status(place: OperatorFolder) -> Status:
    """Asks the SuperLink, if there is one."""
    federation = place.load()
    nodes: list[NodeFacts] | None = None
    runs: list[RunState] = []
    running = link_pid(place) is not None
    if running:
        try:
            with control_of(place, federation) as control:
                nodes, runs = control.nodes(), control.runs(5)
        except RunError:
            nodes = None
    link = "down" if not running else "starting" if nodes is None else "up"
    crt = place.operator / "link.crt"
    return Status(
        federation.name,
        federation.superlink.address,
        link,
        int(link_facts(place).get("restarts", 0)) if running else 0,
        None if federation.superlink.insecure or not crt.is_file() else days_left(crt.read_text(encoding="utf-8")),
        tuple(_holders(federation, nodes)),
        tuple(map(_run, runs)),
    )


def follow_log(place: OperatorFolder, run: str, echo: Callable[[str], None]) -> None:
    """Passes each line that a run's ServerApp prints to a function.

    It ends when the run has finished. The lines in which files come back are left out: they are sealed, and long.

    Raises:
        ConfigError: no such run, or several.
        RunError: the SuperLink does not answer.
    """
    rest = ""

    def take(text: str) -> None:
        nonlocal rest
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            if not is_sealed(line):
                echo(line)

    with control_of(place, place.load()) as control:
        state = found_run(control, run)
        try:
            control.follow(str(state.id), take)
        except Unreachable as error:
            raise RunError(f"the log of run {name_of(state)} cannot be read: {error.why}") from None
    take("\n" if rest else "")


def stop_run(place: OperatorFolder, run: str) -> str:
    """Stops a run, and returns its name.

    Raises:
        ConfigError: no such run, or several.
        RunError: the SuperLink does not answer, or refuses.
    """
    with control_of(place, place.load()) as control:
        state = found_run(control, run)
        control.stop(state.id)
        return name_of(state)


def found_run(control: Control, run: str) -> RunState:
    """Returns the run of this name, or prefix of a name.

    Flower's number of a run finds it, too.

    Raises:
        ConfigError: no such run, or several.
        RunError: the SuperLink does not answer.
    """
    runs = control.runs(100)
    matches = [each for each in runs if run in (str(each.id), each.settings.get("run"))]
    if not matches and run:
        matches = [each for each in runs if str(each.settings.get("run", "")).startswith(run)]
    names = sorted({name_of(each) for each in matches})
    if len(names) > 1:
        raise ConfigError(f"--run: several runs begin with '{run}': {', '.join(names)}")
    if not matches:
        raise ConfigError(f"--run: no run '{run}' among the last {len(runs)}; fedsyn deploy status lists them")
    return matches[0]  # the newest of a run that was resumed


def name_of(run: RunState) -> str:
    """Returns a run's own name, or else Flower's number."""
    return run.settings.get("run") or str(run.id)


def _holders(federation: FederationFile, nodes: list[NodeFacts] | None) -> list[HolderStatus]:
    by_key = {node.key: node for node in nodes or ()}
    statuses = []
    for holder in federation.holders:
        node = by_key.get(holder.node)
        since = None if node is None else node.since
        if holder.revoked is not None:
            state, since = "revoked", None
        elif nodes is None or federation.superlink.insecure:
            state = "unknown"
        elif node is None or node.status == UNREGISTERED:
            state = "not registered"
        else:
            state = {"registered": "never seen", ONLINE: "online"}.get(node.status, "offline")
        statuses.append(HolderStatus(holder.name, holder.partition, state, since, holder.card.fingerprint))
    return statuses


def _run(run: RunState) -> RunStatus:
    out, name = run.settings.get("out", ""), run.settings.get("run", "")
    state = f"{run.status} ({run.outcome})" if run.outcome else run.status
    # Where the starter's directory is on another machine, its ServerApp works in a folder of its own on this one.
    places = [Path(out)] * bool(out) + [runs_folder() / name] * is_run_name(name)
    waits = None if run.outcome else next((waiting for place in places if (waiting := load_waiting(place))), None)
    return RunStatus(str(run.id), name, state, run.since, out, _rounds(Path(out)) if out else None, waits)


def _rounds(out: Path) -> int | None:
    """Returns the last finished round of a run directory.

    It is 0 before the first round, and None where there is no record.
    """
    try:
        lines = (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        return int(json.loads(lines[-1])["round"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return None
