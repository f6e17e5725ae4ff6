"""Says which published figures are stale, and measures them again: `make claims`.

    python -m claims                   # takes all fingerprints, lists what is stale or wrong; 1 if anything is
    python -m claims --only planner    # takes that one
    python -m claims --minutes 30      # then measures the stalest again, as many as fit into that time
    python -m claims --accept NAME     # entry NAME was measured at this commit, and its page says what came out
    python -m claims --accept all      # keeps every commit and takes the fingerprints as they are: after a measuring
    python -m claims --elsewhere NAME  # runs entry NAME under another processor's code, with an empty cache
    python -m claims --notes           # writes the notes of stale figures into the pages, and removes the others

A measured entry is fresh where its command says so by its exit code (`exits`), or where each number of its tables lies
within its tolerance of what was printed in the row with the same name. Otherwise it stays stale, with what has moved.
What a command printed is kept in claims/measured/ENTRY.txt, outside git. One that takes three times its minutes is
stopped, and its entry stays stale. An entry is portable once its figures came out `--elsewhere`, until it is measured
at another commit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from claims.derived import missing
from claims.fingerprints import FINGERPRINTS, same
from claims.register import (
    HERE,
    NEVER,
    ROOT,
    SHARDS,
    STRICT,
    TAKEN,
    Page,
    Run,
    current,
    load,
    noted,
    pages,
    problems,
    stale,
    taken,
)

_LABEL = re.compile(r"[^\w/.,= ]+")
#: A command is stopped after so many times the minutes that its entry gives, and not before so many minutes.
_LIMIT, _LEAST_LIMIT = 3.0, 2.0
#: OpenBLAS and Numba then make code for another processor than this one.
_OTHER_PROCESSOR = {"OPENBLAS_CORETYPE": "Nehalem", "NUMBA_CPU_NAME": "generic"}


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


# Fingerprints ---------------------------------------------------------------------------------------------------------


def take(name: str) -> dict[str, Any]:
    """One fingerprint, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-W", "ignore", "-m", "claims.fingerprints", name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"fingerprint {name} failed:\n{done.stderr[-2000:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def changed(before: dict[str, Any] | None, now: dict[str, Any]) -> list[str]:
    """What differs, a line each."""
    if before is None or same(before, now):
        return []
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return [f"    {key}: {before.get(key, '-')} -> {now.get(key, '-')}" for key in keys[:6]]


def take_all(names: list[str]) -> None:
    """Takes them two at a time; one that says the same as before keeps what was taken, so that its digest stays."""
    known = taken()
    with ThreadPoolExecutor(2) as pool:
        for name, facts in zip(names, pool.map(take, names), strict=True):
            before = known.get(name)
            if before is None or not same(before, facts):
                known[name] = facts
            if lines := changed(before, facts):
                print(f"fingerprint {name} has changed:", *lines, sep="\n")
    for gone in set(known) - set(FINGERPRINTS):
        del known[gone]
    head = "# What `make claims` took last: claims/fingerprints.py. No entry is edited by hand.\n"
    TAKEN.write_text(head + yaml.safe_dump(known, sort_keys=True, width=120), encoding="utf-8")


# Entries --------------------------------------------------------------------------------------------------------------


def written(run: Run, changes: dict[str, str]) -> None:
    """Replaces lines of an entry in its file, and leaves everything else of it as it is."""
    text = run.file.read_text(encoding="utf-8")
    start = re.search(rf"^{re.escape(run.name)}:$", text, re.MULTILINE)
    assert start is not None
    stop = re.compile(r"^\w", re.MULTILINE).search(text, start.end())
    end = stop.start() if stop else len(text)
    entry = text[start.start() : end]
    for old, new in changes.items():
        entry, times = re.subn(old, lambda _, new=new: new, entry, flags=re.MULTILINE)
        if times != 1:
            raise SystemExit(f"{run.file.name}, {run.name}: {old} is there {times} times")
    run.file.write_text(text[: start.start()] + entry + text[end:], encoding="utf-8")


def accept(run: Run, commit: str | None) -> None:
    """What the entry measures is as it is now; with a commit, it was measured there."""
    now = current()
    before = {**run.fingerprints, **dict.fromkeys(missing(run), NEVER)}
    known = {name: NEVER if then == NEVER and commit is None else now[name] for name, then in before.items()}
    pairs = ", ".join(f'{name}: "{then}"' if then != NEVER else f"{name}: {then}" for name, then in known.items())
    changes = {r"^  fingerprints: .*$": f"  fingerprints: {{{pairs}}}"}
    if commit is not None:
        changes[r"^  commit: .*$"] = f'  commit: "{commit}"'
    for figure in run.figures:
        page = Page.read(figure.page)
        span = figure.span(page)
        if figure.phrase is None and span is not None and page.digits(span) != figure.digits:
            changes[rf'digits: "{figure.digits}"'] = f'digits: "{page.digits(span)}"'
    written(run, changes)


def rows_of(text: str) -> list[tuple[str, list[str]]]:
    """Label and the numbers behind it, of each line that could be a table's."""
    found = []
    for line in text.splitlines():
        bar = "|" if "|" in line else "  "
        label, _, rest = line.strip().strip("|").partition(bar)
        numbers = re.findall(r"(?<![\w.])-?[\d,]*\d(?:\.\d+)?(?: \(\d[\d.]*\))?", rest)
        name = " ".join(_LABEL.sub(" ", label).split())
        if numbers and name:
            found.append((name, numbers))
    return found


def by_label(text: str) -> dict[str, list[list[str]]]:
    """Label -> the numbers of each of its lines, in their order."""
    found: dict[str, list[list[str]]] = {}
    for label, numbers in rows_of(text):
        found.setdefault(label, []).append(numbers)
    return found


def tolerance(run: Run, cell: str) -> float:
    """By how much a cell may move: two standard errors of its mean, or the entry's share of its value."""
    value, _, spread = cell.replace(",", "").partition(" (")
    if spread and run.runs:
        return 2.0 * math.sqrt(2.0) * float(spread.rstrip(")")) / math.sqrt(run.runs)
    return (run.tolerance or 0.0) * abs(float(value))


def moved(run: Run, printed: str) -> list[str]:
    """Cells of the entry's tables that what was printed does not bear out; what cannot be found is one, too.

    A label's first row is compared with its first printed line, the second with the second: within the printed table
    that begins as the page's does, or where none does, within all that was printed.
    """
    lines = list[str]()
    for figure in run.figures:
        page = Page.read(figure.page)
        span = figure.span(page)
        if figure.phrase is not None or span is None:
            lines.append(f"    read by eye: {figure.where}")
            continue
        like = Page("printed", printed)
        where = like.table(figure.table) if figure.table else None
        left = by_label(like.text[slice(*where)] if where else like.text)
        for label, cells in rows_of(page.text[slice(*span)]):
            candidates = left.get(label, [])
            new = candidates.pop(0) if candidates else []
            if len(new) < len(cells):
                lines.append(f"    {label}: not found in what was printed")
                continue
            for old, now in zip(cells, new, strict=False):
                off = abs(float(old.split(" ")[0].replace(",", "")) - float(now.split(" ")[0].replace(",", "")))
                if off > tolerance(run, old) + 1e-12:
                    lines.append(f"    {label}: {old} -> {now}")
    return lines


def measure(run: Run, elsewhere: bool = False) -> bool:
    """Runs an entry's command; True: what is published still holds, and the entry says so.

    Elsewhere is under another processor's code, with an empty cache.
    """
    print(f"{run.name}: {run.command} ({run.minutes:g} min)", flush=True)
    kept = HERE / "measured" / f"{run.name}.txt"
    kept.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as out:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = {**os.environ, "OUT": out, "PYTHONPATH": str(ROOT), "PATH": path}
        if elsewhere:
            caches = {"FEDSYN_CACHE": f"{out}/cache", "NUMBA_CACHE_DIR": f"{out}/numba"}
            environment |= caches | _OTHER_PROCESSOR
        started = time.monotonic()
        done = subprocess.Popen(
            run.command,
            shell=True,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, said = done.communicate(timeout=60 * max(_LEAST_LIMIT, _LIMIT * run.minutes))
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            printed, said = done.communicate()
            said += f"stopped after {(time.monotonic() - started) / 60:.1f} minutes\n"
    kept.write_text(printed + said, encoding="utf-8")
    took = (time.monotonic() - started) / 60
    if run.exits:
        lines = [] if done.returncode == 0 else [f"    exit code {done.returncode}: {kept.relative_to(ROOT)}"]
    else:
        lines = ["    the command failed"] if done.returncode else moved(run, printed)
    if lines:
        print(f"  has moved ({took:.1f} min):", *lines[:20], sep="\n")
        return False
    if elsewhere:
        both = f'  commit: "{run.commit}"\n  elsewhere: "{run.commit}"\n'
        written(run, {r"^  commit: .*\n(  elsewhere: .*\n)?": both})
    else:
        accept(run, git("rev-parse", "--short", "HEAD"))
    print(f"  holds ({took:.1f} min)")
    return True


def age(run: Run) -> tuple[int, float]:
    """Sort key: entries of which nobody knows the age first, then by the time of their commit."""
    known = git("log", "-1", "--format=%ct", run.commit) if run.commit != "unknown" else ""
    return int(known or 0), run.minutes


def shards() -> list[str]:
    """When each shard of `make test-all` last passed, a line each."""
    passed = yaml.safe_load(SHARDS.read_text(encoding="utf-8")) if SHARDS.exists() else {}
    lines = []
    for name, commit in (passed or {}).items():
        since = git("rev-list", "--count", f"{commit}..HEAD") if commit else ""
        said = f"passed at {commit}, {since or '?'} commits ago" if commit else "no pass is recorded"
        lines.append(f"  {name:12} {said}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(FINGERPRINTS), help="fingerprints")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--accept", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--elsewhere", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--notes", action="store_true")
    options = parser.parse_args()
    take_all(options.only or list(FINGERPRINTS))
    if unknown := ({*options.accept} - {"all"} | {*options.elsewhere}) - {run.name for run in load()}:
        sys.exit(f"there is no entry {sorted(unknown)[0]!r}")
    for run in load():
        if run.name in options.accept:
            accept(run, git("rev-parse", "--short", "HEAD"))
        elif "all" in options.accept:
            accept(run, None)
    for run in load():
        if run.name in options.elsewhere:
            measure(run, elsewhere=True)
    left = options.minutes
    for run in sorted(stale(), key=age) if left else ():
        if 0 < run.minutes <= left:
            left -= run.minutes
            measure(run)
    if options.notes:
        for name in {*pages(), *(figure.page for run in load() for figure in run.figures)}:
            page = ROOT / name
            page.write_text(noted(page.read_text(encoding="utf-8"), name), encoding="utf-8")
    return report()


def report() -> int:
    """Prints what is stale and what is wrong; 1 if anything may not be so."""
    now, entries = current(), load()
    old, wrong = stale(entries, now), problems(entries)
    wrong += [f"{run.name}: its sweep rests on fingerprint {name}, too" for run in entries for name in missing(run)]
    print(f"{sum(len(run.figures) for run in entries)} claims in {len(entries)} entries; {len(old)} entries are stale")
    print("portable:", ", ".join(run.name for run in entries if run.portable) or "none")
    for run in old:
        why = ", ".join(run.moved(now)) or "no commit"
        excuse = f"; may be, {run.may_be_stale}" if run.may_be_stale else ""
        print(f"  {run.name} (measured at {run.commit}, {run.minutes:g} min): {why}{excuse}")
        if not run.may_be_stale and any(figure.page.startswith(STRICT) for figure in run.figures):
            wrong.append(f"{run.name} is stale: measure it again (make claims MINUTES=…), or say until when it may be")
    print("shards of make test-all:", *shards(), sep="\n")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
