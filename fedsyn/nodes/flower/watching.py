"""One run on a SuperLink that others operate, watched from outside: what became of it, and its log.

`flwr list` and `flwr log` say the same at two CPU seconds a call. Here Flower's own client of the Control API asks,
over the connection that the user's Flower configuration names, and every ending is told apart: a SuperLink that does
not answer, a run that it does not know (any more), one that failed, was stopped or is complete.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fedsyn.errors import ConfigError, RunError, nearest
from fedsyn.nodes.flower import Grid, private

T = TypeVar("T")
FINISHED, COMPLETED, STOPPED = "finished", "completed", "stopped"


class Unreachable(RunError):
    """The SuperLink does not answer; it may later."""


@dataclass(frozen=True)
class RunState:
    """What a SuperLink says of a run.

    Attributes:
        status: 'pending', 'starting', 'running' or 'finished'.
        outcome: of a finished one: 'completed', 'failed' or 'stopped'; else empty.
        details: Flower's own words.
    """

    status: str
    outcome: str = ""
    details: str = ""


class SuperLink:
    """A SuperLink by its name in the user's Flower configuration.

    Raises:
        ConfigError: there is no such connection, or it cannot be used.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._connection = _connection(name)

    @property
    def address(self) -> str:
        return str(self._connection.address)

    def state(self, run: str) -> RunState | None:
        """What became of a run; None where the SuperLink knows no such run.

        Raises:
            Unreachable: it does not answer.
            RunError: it refuses.
        """
        answer = self._call(lambda client: client.ListRuns(private.ListRunsRequest(run_id=int(run))))
        if answer is None or int(run) not in answer.run_dict:
            return None
        status = answer.run_dict[int(run)].status
        return RunState(status.status, status.sub_status, " ".join(status.details.split()))

    def log(self, run: str) -> str:
        """Everything that a finished run has logged; empty where there is no such run."""
        parts = list[str]()
        self.follow(run, parts.append)
        return "".join(parts)

    def follow(self, run: str, said: Callable[[str], None]) -> None:
        """Hands over what a run has logged, piece by piece, until it has finished.

        Raises:
            Unreachable: the SuperLink does not answer, or not any more.
            RunError: it refuses.
        """

        def read(client: Any) -> None:
            for part in client.StreamLogs(private.StreamLogsRequest(run_id=int(run))):
                said(part.log_output)

        self._call(read)

    def _call(self, ask: Callable[[Any], T]) -> T | None:
        import httpx

        try:
            with self._client() as client:
                return ask(client)
        except httpx.HTTPStatusError as error:
            with contextlib.suppress(httpx.HTTPError):
                error.response.read()
            told = private.FlowerError.from_json(error.response.text)
            if told is not None and told.code == private.ApiErrorCode.RUN_ID_NOT_FOUND:
                return None
            if error.response.status_code >= 500:
                raise Unreachable(f"HTTP {error.response.status_code}") from None
            why = told.message if told is not None else f"HTTP {error.response.status_code}"
            raise RunError(f"the SuperLink '{self.name}' at {self.address} refused: {why}") from None
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(" ".join(str(error).split())[:200] or type(error).__name__) from None

    @contextmanager
    def _client(self) -> Iterator[Any]:
        import click

        with contextlib.redirect_stdout(io.StringIO()):  # it says which SuperLink it uses
            try:
                client = private.init_http_client_from_connection(self._connection)
            except click.ClickException as error:
                raise ConfigError(f"runtime.superlink: '{self.name}': {_flat(error.format_message())}") from None
        try:
            yield client
        finally:
            client.close()


def _connection(name: str) -> Any:
    import click

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            document, path = private.read_flower_config()
            known = [key for key, value in document.get("superlink", {}).items() if isinstance(value, dict)]
            if name not in known:
                raise ConfigError(
                    f"runtime.superlink: no SuperLink connection '{name}' in {path}{nearest(name, known)}; it has "
                    f"{', '.join(known) or 'none'}"
                )
            return private.read_superlink_connection(name)
        except click.ClickException as error:
            raise ConfigError(f"runtime.superlink: '{name}': {_flat(error.format_message())}") from None


def _flat(text: str) -> str:
    return " ".join(text.split())


def add_to_log(grid: Grid, run: int, lines: Sequence[str], at_once: int = 2**18) -> None:
    """Puts lines into the log of the run that this ServerApp serves, and waits until the SuperLink has them.

    Printed lines go the same way, but a process that ends has three seconds for all that it has printed.

    Args:
        grid: the ServerApp's.
        run: Flower's number of the run.
        lines: with their ends.
        at_once: characters of one message.
    """
    client = private.runtime_client(getattr(grid, "_grid", grid))
    waiting, size = list[str](), 0
    for line in [*lines, None]:
        if line is not None:
            waiting.append(line)
            size += len(line)
        if waiting and (line is None or size >= at_once):
            client.PushLogs(private.PushLogsRequest(node=private.Node(node_id=0), run_id=run, logs=waiting))
            waiting, size = [], 0
