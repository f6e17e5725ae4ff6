"""Figure 4 of the Distributed AIM paper: how much of a run is AIM's computation, how much the secure sums'.

    python experiments/distributed_aim_figure4/run.py [--fast] [--out DIR] [--workers N]

A run is divided by two others of the same bits: the server's part outside its requests is AIM's (fits and choices), the
rest of the run without masks is the clients' counting and scoring and the messages, and what the run with secure sums
takes more is theirs. Exit code: 0 if shares and claims are as expected.yaml has them, 1 if not, 2 where something is
bad.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from experiments.timed import Case, Job, Taken, main, mean

HERE = Path(__file__).resolve().parent

PLAIN = "without masks"
SECURE = {"run": "committee", "sum": "Bell", "full": "Bonawitz"}


def work(job: Job) -> tuple[list[str], dict[str, float]]:
    """The table of parts, and the shares of the secure sums."""
    wanted = job.settings

    def cases(protocol: str, clients: int) -> list[Case]:
        return [Case(protocol, clients, wanted["rounds"], wanted["top"], seed) for seed in range(wanted["trials"])]

    everything = [c for n in wanted["clients"] for p in (PLAIN, *SECURE.values()) for c in cases(p, n)]
    # The fit that the paper's implementation uses, in one run: what it takes does not depend on how sums form.
    slow = wanted.get("mbi")
    few = [Case(p, slow["clients"], slow["rounds"], wanted["top"]) for p in (PLAIN, *SECURE.values())] if slow else []
    found = job.measure([*everything, *few, *(replace(case, engine="mbi") for case in few[:1])])
    lines = [
        "| clients | protocol | count | AIM at the server, s | clients' counting and messages, s | secure sums, s "
        "| share of the secure sums |",
        "|---" * 7 + "|",
    ]
    facts: dict[str, float] = {}
    for clients in wanted["clients"]:
        for key, protocol in SECURE.items():
            plain, secure = ([found[c] for c in cases(p, clients)] for p in (PLAIN, protocol))
            for count in ("alone", "side_by_side"):
                parts = parts_of(plain, secure, count)
                share = parts[2] / sum(parts)
                facts[f"{key} {count} {clients}"] = share
                cells = [str(clients), protocol, count.replace("_", " "), *(f"{part:.2f}" for part in parts)]
                lines.append("| " + " | ".join([*cells, f"{share:.0%}"]) + " |")
    if few:
        plain, fit = found[few[0]], found[replace(few[0], engine="mbi")].aim
        what = f"{few[0].clients} clients, T = {few[0].rounds}"
        lines.append(f"\nAIM at the server, {what}: {fit:.1f} s with Private-PGM (mbi), {plain.aim:.2f} s with ours.\n")
        facts["mbi over ours"] = fit / plain.aim
        for key, case in zip(SECURE, few[1:], strict=True):
            for count in ("alone", "side_by_side"):
                _, counting, sums = parts_of([plain], [found[case]], count)
                facts[f"{key} {count} mbi"] = sums / (fit + counting + sums)
                cells = [SECURE[key], count.replace("_", " "), f"{facts[f'{key} {count} mbi']:.1%}"]
                lines.append(f"- With Private-PGM, {cells[0]}, {cells[1]}: the secure sums are {cells[2]} of the run.")
    return lines, facts


def parts_of(plain: list[Taken], secure: list[Taken], count: str) -> tuple[float, float, float]:
    """Seconds of AIM at the server, of counting and messages, and of the secure sums."""
    unmasked, whole = (mean(getattr(one, count) for one in of) for of in (plain, secure))
    aim = mean(one.aim for one in plain)
    return aim, unmasked - aim, whole - unmasked


if __name__ == "__main__":
    sys.exit(main(HERE, work))
