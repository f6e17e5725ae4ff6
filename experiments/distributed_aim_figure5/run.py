"""Figure 5 of the Distributed AIM paper: clients and k, the number of cliques of a round.

    python experiments/distributed_aim_figure5/run.py [--fast] [--out DIR] [--workers N]

k T is the same everywhere, and the T of central AIM, which measures one clique a round. Exit code: 0 if ratios, slopes
and claims are as expected.yaml has them, 1 if not, 2 where something is bad.
"""

from __future__ import annotations

import sys
from math import log
from pathlib import Path

from experiments.timed import CENTRAL, Case, Job, main, mean

HERE = Path(__file__).resolve().parent

PROTOCOLS = {"plain": "without masks", "run": "committee", "full": "Bonawitz"}


def work(job: Job) -> tuple[list[str], dict[str, float]]:
    """The table over clients and k, ratios to central AIM, and slopes over clients."""
    wanted = job.settings
    measured, sizes, ks = wanted["measured"], wanted["clients"], wanted["ks"]
    cases = {(key, n, k): Case(name, n, measured // k, k) for key, name in PROTOCOLS.items() for n in sizes for k in ks}
    baseline = [Case(CENTRAL, sizes[-1], measured, 1, seed) for seed in range(wanted["trials"])]
    found = job.measure([*cases.values(), *baseline])
    central = mean(found[case].alone for case in baseline)
    lines = [
        f"Central AIM, T = {measured}: {central:.2f} CPU s. Cells: CPU s of everybody, seconds side by side.\n",
        "| protocol | k | T | " + " | ".join(f"{n} clients" for n in sizes) + " | exchanges |",
        "|---" * (4 + len(sizes)) + "|",
    ]
    facts = {"central": central}
    for key, name in PROTOCOLS.items():
        for k in ks:
            row = [found[cases[key, n, k]] for n in sizes]
            cells = [f"{one.alone:.1f}, {one.side_by_side:.2f}" for one in row]
            lines.append(f"| {name} | {k} | {measured // k} | " + " | ".join(cells) + f" | {len(row[-1].exchanges)} |")
            for count in ("alone", "side_by_side"):
                facts[f"slope {key} {count} k={k}"] = slope(sizes, [getattr(one, count) for one in row])
                for n, one in zip(sizes, row, strict=True):
                    facts[f"{key} {count} n={n} k={k}"] = getattr(one, count) / central
        for n in sizes:
            first, last = (found[cases[key, n, k]].side_by_side for k in (ks[0], ks[-1]))
            facts[f"k {key} n={n}"] = first / last
    return lines, facts


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Of log seconds over log clients, by least squares: 1 is linear."""
    xs, ys = [log(n) for n in sizes], [log(s) for s in seconds]
    x, y = mean(xs), mean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


if __name__ == "__main__":
    sys.exit(main(HERE, work))
