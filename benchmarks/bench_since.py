"""Whole commands at another commit and at this one: the goals of the default mechanism, before and after.

    python benchmarks/bench_since.py COMMIT [--repeats 3] [--only NAME ...] [--rows N] [--limit SECONDS]

The other commit is checked out beside this checkout and runs in the same Python, with the same files. Both take turns,
so that what else the machine does meets both. Each command is a process of its own with one thread; CPU seconds and
peak memory are the smallest of `--repeats`. A goal is what users asked for, not a bound that a test holds; "–" is a
command of which nothing was asked but that it becomes no slower. `--rows` is the most rows of any table. A command that
takes more than `--limit` CPU seconds is stopped, and not repeated: "> 300".
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import bench_growth, bench_ordinary, bench_wide
from benchmarks.inference_suite.cells import LAUNCHER
from fedsyn import yamlio

ROOT = Path(__file__).resolve().parents[1]
COMMAND = """
import json, resource, sys
from fedsyn.front.cli import main
sys.argv = ["fedsyn", *sys.argv[1:]]
try:
    code = main()
except SystemExit as left:
    code = left.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
sys.exit(code)
"""
RUN = ("run", "run.yaml", "--out", "out", "--force")
_MOST_ROWS = 2_000_000
#: CPU seconds and peak megabytes.
Spent = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """A command, and what was asked of it.

    Attributes:
        make: writes what it reads into a folder; the argument beside it is the most rows of a table.
        command: the words behind `fedsyn`; {rows}: the most rows of a table.
        seconds: CPU seconds asked for; None: nothing.
        megabytes: peak memory asked for; None: nothing.
        first: a command that comes before it and is not timed.
        bytecode: whether Python keeps what it compiles.
    """

    make: Callable[[Path, int], None]
    command: tuple[str, ...] = RUN
    seconds: float | None = None
    megabytes: float | None = None
    first: tuple[str, ...] = ()
    bytecode: bool = True


def ordinary(folder: Path, most: int, holders: int = 1) -> None:
    table = next(table for table in bench_ordinary.TABLES if table.columns == 15 and table.holders == holders)
    table = replace(table, rows=min(table.rows, most))
    bench_ordinary.write(folder, table)
    bench_ordinary.run_file(folder, "sketch_aim", table)


def wide(folder: Path, most: int, columns: int, mechanism: str) -> None:
    bench_wide.write_table(folder, columns, min(bench_wide.ROWS, most))
    save(folder, {**bench_wide.document(folder, mechanism, columns), "evaluation": []})


def grown(folder: Path, most: int, mechanism: str = "sketch_aim", **sizes: int) -> None:
    sizes = {**bench_growth.BASE, **{name.replace("_", " "): size for name, size in sizes.items()}}
    sizes["rows"] = min(sizes["rows"], most)
    bench_growth.write_table(folder, sizes, bench_growth.TABLES["one factor"])
    save(folder, bench_growth.config_of(mechanism, "plain", folder, sizes))


def save(folder: Path, document: dict[str, Any]) -> None:
    (folder / "run.yaml").write_text(yamlio.dumps(document), encoding="utf-8")


CASES = {
    "`fedsyn demo`": Case(lambda folder, most: None, ("demo", "--out", "out", "--force"), 3.0),
    "30,000 x 15 x 32": Case(ordinary, RUN, 3.5, 512.0),
    "30,000 x 15 x 32, without bytecode": Case(ordinary, bytecode=False),
    "30,000 x 15 x 32, twelve holders": Case(partial(ordinary, holders=12)),
    "20,000 x 20 x 64": Case(partial(grown, columns=20, values=64), megabytes=1024.0),
    "a column of 20,000 values": Case(partial(grown, values_of_one_column=20_000), RUN, 5.0, 512.0),
    "a column of 300,000 values": Case(partial(grown, values_of_one_column=300_000)),
    "`privsyn`, 60 columns": Case(partial(wide, columns=60, mechanism="privsyn"), RUN, 8.0),
    "`privsyn`, 200 columns": Case(partial(wide, columns=200, mechanism="privsyn"), RUN, 45.0),
    "`sketch_aim`, 60 columns": Case(partial(wide, columns=60, mechanism="sketch_aim")),
    "`sketch_aim`, 200 columns": Case(partial(wide, columns=200, mechanism="sketch_aim")),
    "`sketch_aim`, 500 columns": Case(partial(wide, columns=500, mechanism="sketch_aim")),
    "`sketch_aim`, 2,000 clients": Case(partial(grown, clients=2_000)),
    "`augflaim`, 2,000,000 rows": Case(partial(grown, mechanism="augflaim", rows=_MOST_ROWS, rounds=1)),
    "`fedsyn sample`, 2,000,000 rows": Case(
        partial(grown, mechanism="augflaim", rows=20_000, columns=15),
        ("sample", "out", "--rows", "{rows}", "--out", "sampled.csv"),
        first=RUN,
    ),
}


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as name:
        files = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", name], input=files, check=True)
        yield Path(name)


def fedsyn(words: Sequence[str], folder: Path, code: Path, limit: int, bytecode: bool = True) -> Spent | None:
    """What a command took of the code in a folder; None: it failed. It is infinite where the command was stopped."""
    variables = {**bench_ordinary.one_thread(None if bytecode else folder / "none"), "PYTHONPATH": str(code)}
    command = [*LAUNCHER, sys.executable, "-c", COMMAND, *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
    )
    if done.returncode in (128 + signal.SIGXCPU, 128 + signal.SIGKILL):  # as a shell says it
        return math.inf, math.inf
    if done.returncode:
        print(f"{code.name}: {' '.join(words)}: {done.stderr.strip()[-600:]}", file=sys.stderr, flush=True)
        return None
    cpu, megabytes = json.loads(done.stdout.splitlines()[-1])
    return cpu, megabytes


def alternating(case: Case, codes: Sequence[Path], most: int, repeats: int, limit: int) -> list[Spent | None]:
    """The smallest that a command took of each code."""
    found: list[list[Spent]] = [[] for _ in codes]
    for repeat in range(repeats + 1):
        for code, spent in zip(codes, found, strict=True):
            if any(math.isinf(cpu) for cpu, _ in spent):
                continue
            with tempfile.TemporaryDirectory() as name:
                case.make(Path(name), most)
                if case.first:
                    fedsyn(case.first, Path(name), code, limit)
                words = [word.format(rows=most) for word in case.command]
                took = fedsyn(words, Path(name), code, limit, case.bytecode)
            # The first of all makes the bytecode.
            if took is not None and (repeat or repeats == 1 or not case.bytecode or math.isinf(took[0])):
                spent.append(took)
    return [(min(cpu for cpu, _ in spent), min(mb for _, mb in spent)) if spent else None for spent in found]


def line(what: str, case: Case, before: Spent | None, now: Spent | None, limit: int) -> str:
    """A row of the table."""
    words = [what]
    for index, (digits, goal) in enumerate(((".2f", case.seconds), (",.0f", case.megabytes))):
        then, here = (None if spent is None else spent[index] for spent in (before, now))
        for value in (then, here):
            stopped = "–" if index else f"> {limit}"
            words.append("failed" if value is None else stopped if math.isinf(value) else format(value, digits))
        both = None not in (then, here) and not math.isinf(then + here)
        ratio = f"{here / then:.2f}" if both else "–"
        words += [ratio, "–" if goal is None else f"{goal:g}"]
    return f"| {' | '.join(words)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", metavar="NAME", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rows", type=int, default=_MOST_ROWS, help="at most, of every table")
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help="CPU seconds of one command")
    options = parser.parse_args()
    print("| command | CPU s before | now | ratio | goal | peak MB before | now | ratio | goal |\n" + "|---" * 9 + "|")
    with checked_out(options.commit) as before:
        for name in options.only:
            spent = alternating(CASES[name], (before, ROOT), options.rows, options.repeats, options.limit)
            print(line(name, CASES[name], *spent, options.limit), flush=True)


if __name__ == "__main__":
    main()
