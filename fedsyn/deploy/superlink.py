"""`fedsyn deploy link`: the SuperLink under supervision.

It keeps the registry of nodes as federation.yaml has it.

Whatever stands in federation.yaml is what the SuperLink is made to know, at every start and at every change: holders
that are there are registered, keys that were replaced or revoked are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from fedsyn.deploy.federation import FederationFile, OperatorFolder
from fedsyn.errors import ConfigError, FedsynError, RunError
from fedsyn.files import is_locked, locked, write_text
from fedsyn.flower.control import ONLINE, UNREGISTERED, Control, NodeFacts
from fedsyn.flower.launch import environment
from fedsyn.flower.superlink import HEADER
from fedsyn.health import Health, Metric, Pages, pages_of
from fedsyn.keys.certificates import days_left

if TYPE_CHECKING:
    import httpx

_LOCK, _FACTS = "link.lock", "link.json"
#: Seconds between two looks at who is online. Twice `INTERVAL` and this one: a lost node is told of within a minute.
_LOOK = 15.0
_AWAITED = 5.0  # the same while somebody is missing
#: Seconds between two tries to start: doubled each time, up to the last; healthy for as long as that, it starts anew.
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
#: Seconds that a SuperLink may be silent before it is started again.
SILENCE = 30.0
#: The same of one that has not answered since it was started: on a busy machine that takes a minute, and to start it
#: again costs the machine as much again.
START = 300.0
#: Seconds between two questions for its health while it has answered the last one.
ASK = 20.0
#: How often the SuperLink's helper looks for a ServerApp to start, in seconds; Flower's default is 1. Each look costs
#: the SuperLink some milliseconds, and a run starts once.
_TASK_POLL = "5"
_KEPT_DAYS = "14"  # of the SuperLink's log
Say = Callable[[str], None]


class SuperLinkProcess:
    """A SuperLink that is started again whenever it is gone.

    `tend` is to be called about once a second.

    Attributes:
        restarts: how often it was started again.
        healthy: whether it answered the last time it was asked.
    """

    def __init__(self, place: OperatorFolder, federation: FederationFile) -> None:
        self.place, self.federation = place, federation
        self.restarts, self.healthy = 0, False
        self._process: subprocess.Popen[bytes] | None = None
        self._pause, self._next, self._started, self._answered = FIRST_PAUSE, 0.0, 0.0, 0.0
        self._client: httpx.Client | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def tend(self) -> str | None:
        """Starts the process if it is not running; returns what happened.

        Raises:
            RunError: what runs is not behind the gate.
        """
        now = time.monotonic()
        if self._process is None:
            if now >= self._next:
                self._start(now)
            return None
        code = self._process.poll()
        if code is not None:
            return self._gone(f"the SuperLink ended with code {code}", now)
        if self.healthy and now - self._answered < ASK:
            return None
        was, self.healthy = self.healthy, self._answers()
        if self.healthy:
            self._answered = now
            if now - self._started > LAST_PAUSE:
                self._pause = FIRST_PAUSE
            return None if was else "the SuperLink answers"
        patience = START if self._answered == self._started else SILENCE
        if now - self._answered > patience:
            self._end()
            return self._gone(f"the SuperLink was silent for {patience:g} s", now)
        return None

    def stop(self) -> None:
        """Ends it, politely first; nothing that it started is left."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(8.0)
            self._end()
            self._process = None

    def _start(self, now: float) -> None:
        self.place.flower.mkdir(mode=0o700, parents=True, exist_ok=True)
        variables = environment() | {
            "FLWR_HOME": str(self.place.flower),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _TASK_POLL,
            "TMPDIR": str(self._scratch()),
        }
        with (self.place.state / "superlink.out").open("wb") as out:  # of this process alone: it may hold a traceback
            self._process = subprocess.Popen(
                _command(self.place, self.federation, os.getpid()),
                env=variables,
                cwd=self.place.state,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started = self._answered = now

    def _scratch(self) -> Path:
        """Returns an empty folder for a run's temporary files.

        A killed run cannot tidy up.
        """
        folder = self.place.state / "tmp"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def _gone(self, why: str, now: float) -> str:
        self._end()  # its helpers, which would go on for a dead SuperLink
        self._process, self.healthy = None, False
        self._next, waiting = now + self._pause, self._pause
        self._pause = min(2.0 * self._pause, LAST_PAUSE)
        self.restarts += 1
        return f"{why}; starting it again in {waiting:g} s (its output: {self.place.state / 'superlink.out'})"

    def _end(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10.0)

    def _answers(self) -> bool:
        """Returns whether the SuperLink answers.

        Raises RunError if it does without the gate.
        """
        import httpx

        facts = self.federation.superlink
        if self._client is None:
            trust = False if facts.insecure else ssl.create_default_context(cafile=str(self.place.ca))
            self._client = httpx.Client(verify=trust, timeout=5.0, trust_env=False)
        try:
            answer = self._client.get(f"{'http' if facts.insecure else 'https'}://{facts.local}/health")
        except (httpx.HTTPError, OSError):
            return False
        if answer.is_success and answer.headers.get(HEADER[0].decode()) != HEADER[1].decode():
            raise RunError(
                f"what answers at {facts.local} is not behind fedsyn's gate: another SuperLink uses the port, or this "
                "Flower is of a version that fedsyn does not know"
            )
        return bool(answer.is_success)


def _command(place: OperatorFolder, federation: FederationFile, parent: int) -> list[str]:
    """Returns the SuperLink's command line."""
    facts = federation.superlink
    command = [sys.executable, "-m", "fedsyn.flower.superlink", "--parent", str(parent)]
    if facts.insecure:
        command += ["--insecure"]
    else:
        command += ["--ssl-ca-certfile", str(place.ca), "--ssl-certfile", str(place.operator / "link.crt")]
        command += ["--ssl-keyfile", str(place.operator / "link.key"), "--enable-supernode-auth"]
    command += ["--host", facts.listen, "--port", str(facts.port), "--database", str(place.state / "superlink.db")]
    command += ["--log-file", str(place.state / "superlink.log"), "--log-rotation-interval-hours", "24"]
    return [*command, "--log-rotation-backup-count", _KEPT_DAYS, "--disable-runtime-dependency-installation"]


class SuperLinkService:
    """A federation's SuperLink, its nodes' registrations and its pages.

    Args:
        place: the operator's folder.
        say: called with a sentence for whatever happens.

    Raises:
        ConfigError: federation.yaml is none, a file is missing, or nobody can listen there.
    """

    def __init__(self, place: OperatorFolder, say: Say) -> None:
        self.place, self.say = place, say
        self.federation = place.load()
        self._require_files()
        self.superlink = SuperLinkProcess(place, self.federation)
        self.nodes: list[NodeFacts] = []
        self.agreed = False
        self._changed, self._looked = place.file.stat().st_mtime_ns, 0.0
        self._online: dict[str, bool] = {}
        self._told: str | None = None
        self._control = control_of(place, self.federation)

    def run(self, stopping: Event, every: float = 1.0) -> None:
        """Tends the SuperLink until `stopping` is set; leaves nothing running."""
        address = self.federation.superlink.metrics
        web = None if address is None else Pages(address, pages_of(self.look), "superlink.metrics")
        try:
            while not stopping.is_set():
                self.tend()
                stopping.wait(every)
        finally:
            self._control.close()
            self.superlink.stop()
            if web is not None:
                web.close()

    def tend(self) -> None:
        """Does what is due about once a second."""
        happened = self.superlink.tend()
        if happened is not None:
            self.agreed = False
            self.say(happened)
        self._write_facts()
        if not self.superlink.healthy:
            return
        self._reread()
        often = _LOOK if all(self.online().values()) else _AWAITED
        if not self.agreed or time.monotonic() - self._looked > often:
            try:
                if not self.agreed and not self.federation.superlink.insecure:
                    for sentence in agree(self._control, self.federation):
                        self.say(sentence)
                self.nodes = self._control.nodes()
            except RunError as error:
                self._once(str(error))
                return
            self.agreed, self._looked = True, time.monotonic()
            self._tell_who_is_there()

    # What others read ------------------------------------------------------------------------------------------------

    def online(self) -> dict[str, bool]:
        """Holder -> whether its node is online."""
        by_key = {node.key: node.status == ONLINE for node in self.nodes}
        return {holder.name: by_key.get(holder.node, False) for holder in self.federation.present}

    def look(self) -> Health:
        """Returns how the SuperLink is, and who is online."""
        online, fine = self.online(), self.superlink.healthy and self.agreed
        problems = () if fine else ("the SuperLink does not answer, or does not know its nodes yet",)
        there = [({"node": name}, float(there)) for name, there in online.items()]
        figures: dict[str, Metric] = {
            "up": ("gauge", "Whether the SuperLink answers.", float(self.superlink.healthy)),
            "restarts_total": ("counter", "Starts of the SuperLink after its first.", self.superlink.restarts),
            "node_online": ("gauge", "Whether a holder's node is online.", there),
            "nodes_online": ("gauge", "Nodes online.", float(sum(online.values()))),
            "nodes_expected": ("gauge", "Holders that were not revoked.", float(len(online))),
        }
        if not self.federation.superlink.insecure:
            left = days_left((self.place.operator / "link.crt").read_text(encoding="utf-8"))
            figures["certificate_days_left"] = ("gauge", "Days until the certificate ends.", left)
        return Health("link", self.federation.name, problems, facts={"online": online}, figures=figures)

    # Inside ----------------------------------------------------------------------------------------------------------

    def _require_files(self) -> None:
        self.place.state.mkdir(mode=0o700, exist_ok=True)
        if self.federation.superlink.insecure:
            return
        for path in (self.place.ca, self.place.operator / "link.crt", self.place.operator / "link.key"):
            if not path.is_file():
                raise ConfigError(
                    f"no such file: {path}; 'fedsyn deploy init' writes it, 'deploy rotate-keys --link' anew"
                )
        _require_pair(self.place.operator)
        if days_left((self.place.operator / "link.crt").read_text(encoding="utf-8")) < 0:
            raise ConfigError("link.crt has ended; make a new one: fedsyn deploy rotate-keys --link")

    def _reread(self) -> None:
        """Takes a changed federation.yaml.

        A bad one is reported once, and the old one stands.
        """
        changed = self.place.file.stat().st_mtime_ns
        if changed == self._changed:
            return
        self._changed = changed
        try:
            loaded = self.place.load()
        except FedsynError as error:
            self.say(f"{error}; going on as before")
            return
        if loaded.superlink != self.federation.superlink:
            self.say("federation.yaml: superlink has changed, which counts from the next start of 'fedsyn deploy link'")
            loaded = loaded.model_copy(update={"superlink": self.federation.superlink})
        self.federation, self.agreed = loaded, False

    def _tell_who_is_there(self) -> None:
        self._told = None
        for name, there in self.online().items():
            if there != self._online.get(name, False):
                self.say(f"{name} is {'online' if there else 'offline'}")
            self._online[name] = there

    def _once(self, sentence: str) -> None:
        if sentence != self._told:
            self.say(sentence)
        self._told = sentence

    def _write_facts(self) -> None:
        facts = {"pid": os.getpid(), "superlink": self.superlink.pid, "restarts": self.superlink.restarts}
        facts["healthy"] = self.superlink.healthy
        text = json.dumps(facts)
        path = self.place.state / _FACTS
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)


def agree(control: Control, federation: FederationFile) -> Iterator[str]:
    """Makes the SuperLink know exactly a federation's holders.

    Returns what was done.
    """
    listed = {node.key: node for node in control.nodes()}
    wanted = {holder.node: holder for holder in federation.present}
    for key, node in listed.items():
        if key not in wanted and node.status != UNREGISTERED:
            control.unregister(node.id)
            yield f"unregistered a node that federation.yaml does not have: {node.name or node.id}"
    for key, holder in wanted.items():
        known = listed.get(key)
        if known is None:
            control.register(key, holder.name)
            yield f"registered {holder.name} ({holder.card.fingerprint})"
        elif known.status == UNREGISTERED:
            yield (
                f"{holder.name}'s key was unregistered, and Flower never takes it again: it needs new ones "
                "(fedsyn node new-keys)"
            )


def control_of(place: OperatorFolder, federation: FederationFile) -> Control:
    """The Control API of a federation's SuperLink, from its own machine."""
    authority = None if federation.superlink.insecure else place.ca.read_text(encoding="utf-8")
    return Control.at(federation.superlink.local, authority)


@contextmanager
def only_one(place: OperatorFolder) -> Iterator[None]:
    """Holds the folder for one `deploy link`.

    Raises ConfigError if there is another.
    """
    place.state.mkdir(mode=0o700, exist_ok=True)
    with locked(place.state / _LOCK, patience=1.0) as alone:
        if not alone:
            raise ConfigError(f"{place.operator}: 'fedsyn deploy link' is running already (process {link_pid(place)})")
        write_text(place.state / _FACTS, json.dumps({"pid": os.getpid()}))  # the rest once the SuperLink has started
        try:
            yield
        finally:
            (place.state / _FACTS).unlink(missing_ok=True)


def link_pid(place: OperatorFolder) -> int | None:
    """Returns the process of the running `deploy link`.

    Returns None if it does not run on this machine.
    """
    return link_facts(place).get("pid") if is_locked(place.state / _LOCK) else None


def link_facts(place: OperatorFolder) -> dict[str, int]:
    """Returns what the running `deploy link` wrote about itself."""
    try:
        facts: dict[str, int] = json.loads((place.state / _FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts


def follows(place: OperatorFolder, federation: FederationFile, patience: float = 30.0) -> bool | None:
    """Returns whether the running SuperLink followed a change.

    `deploy link` alone carries out a change of federation.yaml.

    Returns:
        True: it knows these holders and nobody else; False: not within `patience` seconds; None: none runs here, and
        the next start will do it.
    """
    if link_pid(place) is None:
        return None
    if federation.superlink.insecure:
        return True
    deadline, wanted = time.monotonic() + patience, {holder.node for holder in federation.present}
    while time.monotonic() < deadline:
        with contextlib.suppress(RunError), control_of(place, federation) as control:
            if {node.key for node in control.nodes() if node.status != UNREGISTERED} == wanted:
                return True
        time.sleep(0.3)
    return False


def stop_link(place: OperatorFolder, patience: float = 30.0) -> None:
    """Ends the `deploy link` of this folder, and waits for it.

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


def _require_pair(operator: Path) -> None:
    """Raises ConfigError unless the SuperLink's key fits its certificate.

    The two are written one after the other.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(operator / "link.crt", operator / "link.key")
    except (ssl.SSLError, OSError):
        raise ConfigError(
            "link.key is not the key of link.crt; make a new pair: fedsyn deploy rotate-keys --link"
        ) from None
