"""Figure 7 of the Distributed AIM paper: many clients, beside central AIM.

    python experiments/distributed_aim_figure7/run.py [--fast] [--out DIR] [--workers N]

The full mode takes 10 CPU minutes, most of them 5,000 clients with Bell's protocol. Exit code: 0 if ratios, slopes
and claims are as expected.yaml has them, 1 if not, 2 where something is bad.
"""

from __future__ import annotations

import sys
from math import log
from pathlib import Path

from experiments.timed import CENTRAL, Case, Job, Taken, main, mean

HERE = Path(__file__).resolve().parent

PROTOCOLS = {"plain": "without masks", "run": "committee", "sum": "Bell"}


def work(job: Job) -> tuple[list[str], dict[str, float]]:
    """The table over clients, what is added to central AIM, and slopes over clients."""
    wanted = job.settings
    sizes, top, longer = wanted["clients"], wanted["top"], wanted["rounds"]
    cases = {(key, n, 1): Case(name, n, 1, top) for key, name in PROTOCOLS.items() for n in sizes}
    cases["run", sizes[0], longer] = Case(PROTOCOLS["run"], sizes[0], longer, top)
    baseline = {n: Case(CENTRAL, n, longer * top, 1) for n in (sizes[0], sizes[-1])}
    found = job.measure([*cases.values(), *baseline.values()])
    central = mean(found[case].alone for case in baseline.values())
    lines = [
        f"Central AIM, T = {longer * top}: {central:.2f} CPU s, whatever the number of clients.\n",
        "| clients | protocol | T | CPU s of all parties | a client, ms | side by side, s | exchanges "
        "| kB up, kB down a client |",
        "|---" * 8 + "|",
    ]
    facts = {"central": central}
    for (key, n, rounds), case in sorted(cases.items(), key=lambda item: item[0][1]):
        one = found[case]
        lines.append(
            f"| {n} | {PROTOCOLS[key]} | {rounds} | {one.alone:.1f} | {one.clients / n * 1e3:.1f} | "
            f"{one.side_by_side:.2f} | {len(one.exchanges)} | {one.up / n / 1e3:.1f}, {one.down / n / 1e3:.1f} |"
        )
        facts[f"{key} n={n} T={rounds}"] = one.alone
        facts[f"added {key} n={n} T={rounds} alone"] = one.alone - central
        facts[f"added {key} n={n} T={rounds} side by side"] = one.side_by_side - central
    for key in PROTOCOLS:
        row: list[Taken] = [found[cases[key, n, 1]] for n in sizes]
        for count in ("alone", "side_by_side"):
            ends = [getattr(one, count) for one in (row[0], row[-1])]
            facts[f"slope {key} {count}"] = log(ends[1] / ends[0]) / log(sizes[-1] / sizes[0])
        facts[f"client {key}"] = row[-1].clients / sizes[-1] / (row[0].clients / sizes[0])
    for count in ("alone", "side_by_side"):
        last = [getattr(found[cases[key, sizes[-1], 1]], count) for key in PROTOCOLS]
        facts[f"sum over run {count}"] = last[2] / last[1]
    return lines, facts


if __name__ == "__main__":
    sys.exit(main(HERE, work))
