"""The server side of the contest: every way of forming the sum in one simulation, one after the other.

What is timed begins and ends at the server with everything already running: one plain exchange with every client comes
first on each side, so that no side pays for starting processes or importing modules.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.compat.common.parameter import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.default_workflows import default_fit_workflow

from fedsyn.flower import Context, Grid, Message, ServerApp

from .vector import LARGEST, Clock, Facts, Taken, counts, from_text, make_strategy, write_results

SHARES, THRESHOLD = 21, 11
Workflow = Callable[[Grid, Any], None]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs fedsyn's sides in the order of the run configuration, then Flower's two."""
    out = Path(str(context.run_config["out"]))
    try:
        write_results(out, contest(grid, context))
    except Exception:
        out.write_text(traceback.format_exc(), encoding="utf-8")  # Flower's own log would have to be asked for it
        raise


def contest(grid: Grid, context: Context) -> dict[str, list[Taken]]:
    sides = [facts for facts, _ in from_text(str(context.run_config["facts"])).values()]
    results = {}
    for facts in sides:
        strategy = make_strategy(facts, Clock(cpu_of_everything))  # it asks everybody to join first
        strategy.run(grid)
        results[f"fedsyn {facts.protocol}"] = strategy.taken
    secagg_plus = SecAggPlusWorkflow(SHARES, THRESHOLD, max_weight=1.0, clipping_range=float(LARGEST))
    for name, workflow in (("flower plain", default_fit_workflow), ("flower secagg+", secagg_plus)):
        results[name] = flower(sides[0], grid, context, workflow)
    return results


def flower(facts: Facts, grid: Grid, context: Context, workflow: Workflow) -> list[Taken]:
    """Flower's federated averaging of the same vectors with weights of 1, which is their sum over their number."""
    clock, traffic, averages = Clock(cpu_of_everything), Traffic(grid), Averages(facts.clients, facts.length)
    legacy = LegacyContext(context, ServerConfig(num_rounds=facts.repeats + 1), averages)
    loads = []

    def timed(_: Grid, inner: Any) -> None:
        traffic.reset()
        with clock:
            workflow(traffic, inner)
        loads.append((traffic.up, traffic.down))

    def first_plain(_: Grid, inner: Any) -> None:
        (timed if averages.rounds else default_fit_workflow)(grid, inner)

    DefaultWorkflow(fit_workflow=first_plain)(grid, legacy)
    exact = sum((counts(k, facts.length) for k in range(facts.clients)), np.zeros(facts.length, np.int64))
    taken = []
    for (seconds, cpu), (up, down), average in zip(clock.taken, loads, averages.rounds[1:], strict=True):
        error = float(np.max(np.abs(average * facts.clients - exact)))
        digest = hashlib.sha256(average.tobytes()).hexdigest()
        taken.append(Taken(seconds, cpu, up / facts.clients, down / facts.clients, error, 0.0, digest))
    return taken


class Averages(FedAvg):
    """Federated averaging over everybody, which remembers the average of each round."""

    def __init__(self, clients: int, length: int) -> None:
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            accept_failures=False,
            initial_parameters=ndarrays_to_parameters([np.zeros(1)]),  # nothing is learned from: send no vector down
        )
        self.rounds: list[np.ndarray] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        if parameters is None:
            raise RuntimeError(f"Flower formed no average: {failures[:1]}")
        self.rounds.append(parameters_to_ndarrays(parameters)[0])
        return ndarrays_to_parameters([np.zeros(1)]), metrics


class Traffic:
    """A Grid that counts what passes."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.reset()

    def reset(self) -> None:
        self.up = self.down = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = list(messages)
        self.down += sum(content_size(message) for message in sent)
        received = list(self._grid.send_and_receive(sent, timeout=timeout))
        self.up += sum(content_size(message) for message in received if message.has_content())
        return received


def content_size(message: Message) -> int:
    """Bytes of a payload, counted as fedsyn counts its own: array data, texts, 8 for a number, and all keys."""
    return sum(_size(record) for record in message.content.values())


def _size(value: Any) -> int:
    if hasattr(value, "items"):
        return sum(len(key) + _size(entry) for key, entry in value.items())
    if hasattr(value, "data") and hasattr(value, "stype"):
        return len(value.data)
    if isinstance(value, str | bytes):
        return len(value)
    return sum(_size(entry) for entry in value) if isinstance(value, list) else 8


def cpu_of_everything() -> float:
    """CPU seconds so far of all processes of this simulation: they share one Flower home of their own."""
    mark = f"FLWR_HOME={os.environ['FLWR_HOME']}".encode()
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    ticks += int(fields[11]) + int(fields[12])  # utime, stime
            except OSError:
                continue
    return ticks / os.sysconf("SC_CLK_TCK")
