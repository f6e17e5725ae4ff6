"""The SuperLink's process: started, asked for its health, started again when it is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fedsyn.errors import RunError
from fedsyn.nodes.deploy.federation import FederationFile, Place
from fedsyn.nodes.flower.launch import environment
from fedsyn.nodes.flower.superlink import HEADER

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
_TASK_POLL = "2"

if TYPE_CHECKING:
    import httpx


class SuperLink:
    """A SuperLink that is started again whenever it is gone; `tend` is to be called about once a second.

    Attributes:
        restarts: how often it was started again.
        healthy: whether it answered the last time it was asked.
    """

    def __init__(self, place: Place, federation: FederationFile) -> None:
        self.place, self.federation = place, federation
        self.restarts, self.healthy = 0, False
        self._process: subprocess.Popen[bytes] | None = None
        self._pause, self._next, self._started, self._answered = FIRST_PAUSE, 0.0, 0.0, 0.0
        self._client: httpx.Client | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def tend(self) -> str | None:
        """Starts it if it is not running; what happened, if anything did.

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
                command(self.place, self.federation, os.getpid()),
                env=variables,
                cwd=self.place.state,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started = self._answered = now

    def _scratch(self) -> Path:
        """An empty folder for what a run writes while it goes on: a killed one cannot tidy up."""
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
        """Whether it answers. Raises RunError if it does without the gate."""
        import httpx

        link = self.federation.superlink
        if self._client is None:
            self._client = httpx.Client(verify=trust(self.place, self.federation), timeout=5.0, trust_env=False)
        try:
            answer = self._client.get(f"{'http' if link.insecure else 'https'}://{link.local}/health")
        except (httpx.HTTPError, OSError):
            return False
        if answer.is_success and answer.headers.get(HEADER[0].decode()) != HEADER[1].decode():
            raise RunError(
                f"what answers at {link.local} is not behind fedsyn's gate: another SuperLink uses the port, or this "
                "Flower is of a version that fedsyn does not know"
            )
        return bool(answer.is_success)


def command(place: Place, federation: FederationFile, parent: int) -> list[str]:
    """The SuperLink's command line."""
    link = federation.superlink
    made = [sys.executable, "-m", "fedsyn.nodes.flower.superlink", "--parent", str(parent)]
    if link.insecure:
        made += ["--insecure"]
    else:
        made += ["--ssl-ca-certfile", str(place.ca), "--ssl-certfile", str(place.operator / "link.crt")]
        made += ["--ssl-keyfile", str(place.operator / "link.key"), "--enable-supernode-auth"]
    made += ["--host", link.listen, "--port", str(link.port), "--database", str(place.state / "superlink.db")]
    made += ["--log-file", str(place.state / "superlink.log"), "--log-rotation-interval-hours", "24"]
    made += ["--log-rotation-backup-count", str(link.keep_logs), "--disable-runtime-dependency-installation"]
    if link.health is not None:
        made += ["--health-server-address", link.health]
    return made


def trust(place: Place, federation: FederationFile) -> ssl.SSLContext | bool:
    """What httpx is to trust: the federation's own authority; nothing to check without TLS."""
    if federation.superlink.insecure:
        return False
    return ssl.create_default_context(cafile=str(place.ca))


def authority_of(place: Place, federation: FederationFile) -> str | None:
    """PEM of the federation's authority; None without TLS."""
    return None if federation.superlink.insecure else Path(place.ca).read_text(encoding="utf-8")
