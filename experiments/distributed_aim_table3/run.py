"""Table 3 of the Distributed AIM paper: what a whole run takes, semi-honest against malicious.

    python experiments/distributed_aim_table3/run.py [--fast] [--out DIR] [--workers N]

Each line is a whole run; all protocols of a line open the same bits, which is checked. Exit code: 0 if the ratios and
claims are as expected.yaml has them, 1 if not, 2 where something is bad.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from experiments.timed import PROTOCOLS, Case, Job, Taken, main, mean

HERE = Path(__file__).resolve().parent

PAIRS = {  # semi-honest: malicious, what the two differ in being the threat model and what it needs
    "run": ("committee", "committee, malicious"),
    "sum": ("Bonawitz", "Bonawitz, malicious"),
    "sparse": ("Bell", "Bonawitz, malicious"),
}


def work(job: Job) -> tuple[list[str], dict[str, float]]:
    """The table, and the ratios of malicious to semi-honest."""
    wanted = job.settings
    cases = {
        name: [
            Case(name, clients, wanted["rounds"], wanted["top"], seed)
            for clients in wanted["clients"]
            for seed in range(wanted["trials"])
        ]
        for name in PROTOCOLS
    }
    found = job.measure([case for of in cases.values() for case in of])
    paper = job.document["paper"]
    lines = [
        f"The paper: semi-honest {paper['semi_honest']} s, malicious {paper['malicious']} s (its simulator's).\n",
        "| protocol | "
        + " | ".join(f"{n} clients: CPU s, side by side" for n in wanted["clients"])
        + " | mean ± sd, CPU s | side by side | exchanges | MB up and down per client |",
        "|---" * (len(wanted["clients"]) + 5) + "|",
    ]
    for name, of in cases.items():
        taken = [found[case] for case in of]
        each = [_cell([found[case] for case in of if case.clients == n]) for n in wanted["clients"]]
        spread = [_spread([one.alone for one in taken]), _spread([one.side_by_side for one in taken])]
        traffic = mean((found[case].up + found[case].down) / case.clients / 1e6 for case in of)
        exchanges = f"{mean(len(one.exchanges) for one in taken):.0f}"
        lines.append("| " + " | ".join([name, *each, *spread, exchanges, f"{traffic:.2f}"]) + " |")
    facts: dict[str, float] = {}
    for count in ("alone", "side_by_side"):
        of = {name: mean(getattr(found[case], count) for case in own) for name, own in cases.items()}
        for key, (semi_honest, malicious) in PAIRS.items():
            facts[f"{key} {count}"] = of[malicious] / of[semi_honest]
        facts[f"full over run {count}"] = of[PAIRS["sum"][0]] / of[PAIRS["run"][0]]
        facts[f"malicious sum over run {count}"] = of[PAIRS["sum"][1]] / of[PAIRS["run"][1]]
    return lines, facts


def _cell(taken: list[Taken]) -> str:
    return f"{mean(one.alone for one in taken):.1f}, {mean(one.side_by_side for one in taken):.2f}"


def _spread(values: list[float]) -> str:
    return f"{mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    sys.exit(main(HERE, work))
