"""Figure 6 of the Distributed AIM paper: limited bandwidth, by a model that is checked over shaped links.

    python experiments/distributed_aim_figure6/run.py [--fast] [--out DIR] [--workers N]

A run's time is the seconds side by side, and of each exchange the time that the requests and then the replies need on
the narrowest link: the server's, which carries everybody's, or the client's own. The bytes are those that a run sent.
The same bytes are then sent over a real link of limited bandwidth ([links.py](links.py); root, `ip` and `tc`). Exit
code: 0 if ratios and claims are as expected.yaml has them, 1 if not, 2 where something is bad.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiments.distributed_aim_figure6 import links
from experiments.timed import Case, Job, Taken, main, payloads_of
from fedsyn.errors import ConfigError

HERE = Path(__file__).resolve().parent

PROTOCOLS = {
    "plain": "without masks",
    "run": "committee",
    "sum": "Bell",
    "full": "Bonawitz",
}
UNLIMITED = 1e6  # Mbps, the paper's highest
FRAME = links.LENGTH.size


@dataclass(frozen=True)
class Way:
    """Bytes of one direction of an exchange: all clients' together, and the largest single one's."""

    together: int
    largest: int

    def seconds(self, server: float, client: float) -> float:
        """On links of so many megabits a second."""
        return max(self.together / server, self.largest / client) * 8e-6


def ways_of(recorded: Path) -> list[Way]:
    """Requests and replies of each exchange."""
    found = []
    for exchange in links.load(recorded, sys.maxsize):
        for place in (1, 2):
            sizes = [len(one[place]) + FRAME for one in exchange]  # type: ignore[arg-type]
            found.append(Way(sum(sizes), max(sizes)))
    return found


def network_seconds(ways: list[Way], server: float = UNLIMITED, client: float = UNLIMITED) -> float:
    """The model: every exchange is two ways, each of which waits for the one before."""
    return sum(way.seconds(server, client) for way in ways)


def table_of_model(job: Job, taken: dict[str, Taken], ways: dict[str, list[Way]], facts: dict[str, float]) -> list[str]:
    """Seconds of whole runs over the server's and over the clients' bandwidth."""
    servers, own = job.settings["server_mbps"], job.settings["client_mbps"]
    heads = [f"server {mbps:g} Mbps" for mbps in servers] + [f"clients {mbps:g} Mbps" for mbps in own]
    lines = [
        "| protocol | exchanges | MB through the server | computing, side by side | " + " | ".join(heads) + " |",
        "|---" * (4 + len(heads)) + "|",
    ]
    for key, name in PROTOCOLS.items():
        computing = taken[key].side_by_side
        cells = []
        for which, choices in (("server", servers), ("client", own)):
            for mbps in choices:
                added = network_seconds(ways[key], **{which: float(mbps)})
                facts[f"{key} {which} {mbps:g}"] = computing + added
                facts[f"{key} {which} {mbps:g} added"] = added
                facts[f"{key} {which} {mbps:g} over unlimited"] = (computing + added) / computing
                cells.append(f"{computing + added:.2f}")
        total = sum(way.together for way in ways[key]) / 1e6
        facts[f"{key} MB"], facts[f"{key} exchanges"] = total, len(ways[key]) / 2
        lines.append(f"| {name} | {len(ways[key]) // 2} | {total:.1f} | {computing:.2f} | " + " | ".join(cells) + " |")
    return lines


def table_of_links(job: Job, recorded: dict[str, Path], facts: dict[str, float]) -> list[str]:
    """The model beside the same bytes on shaped links: everybody's, and those of one client alone."""
    if (reason := links.reason_against()) is not None:
        return ["", f"The model was not checked: shaping links {reason}."]
    lines = ["", "| link | protocol | MB | model, s | measured, s | measured / model |", "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one.pickle"
        for key in job.settings["checked"]:
            exchanges = links.load(recorded[key], sys.maxsize)
            client = exchanges[0][0][0]
            one.write_bytes(pickle.dumps([kept for each in exchanges if (kept := [x for x in each if x[0] == client])]))
            chosen = [("server", mbps, recorded[key]) for mbps in job.settings["checked_server_mbps"]]
            chosen += [("client", mbps, one) for mbps in job.settings["checked_client_mbps"]]
            for which, mbps, path in chosen:
                ways = ways_of(path)
                model = network_seconds(ways, server=float(mbps))
                try:
                    found = links.measured(path, len(ways) // 2, float(mbps))
                except (OSError, ValueError) as error:
                    raise ConfigError(f"links could not be shaped: {error}") from None
                facts[f"check {key} {which} {mbps:g}"] = found / model
                size = sum(way.together for way in ways) / 1e6
                cells = [f"{which}, {mbps:g} Mbps", PROTOCOLS[key], f"{size:.2f}", f"{model:.2f}", f"{found:.2f}"]
                lines.append("| " + " | ".join([*cells, f"{found / model:.2f}"]) + " |")
    return lines


def work(job: Job) -> tuple[list[str], dict[str, float]]:
    """Both tables; what an exchange's latency adds."""
    wanted = job.settings
    cases = {key: Case(name, wanted["clients"], wanted["rounds"], wanted["top"]) for key, name in PROTOCOLS.items()}
    found = job.measure(list(cases.values()), keep=True)
    taken = {key: found[case] for key, case in cases.items()}
    recorded = {key: payloads_of(case, job.out) for key, case in cases.items()}
    ways = {key: ways_of(path) for key, path in recorded.items()}
    facts: dict[str, float] = {}
    lines = table_of_model(job, taken, ways, facts)
    facts["exchanges: sum over run"] = facts["sum exchanges"] / facts["run exchanges"]
    facts["MB: run over sum"] = facts["run MB"] / facts["sum MB"]
    slow = wanted["server_mbps"][0]
    facts[f"full over run, server {slow:g} Mbps"] = facts[f"full server {slow:g}"] / facts[f"run server {slow:g}"]
    return lines + table_of_links(job, recorded, facts), facts


if __name__ == "__main__":
    sys.exit(main(HERE, work))
