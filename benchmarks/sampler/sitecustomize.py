"""Samples whose code a process runs, where SAMPLES names a folder: for benchmarks/bench_flower.py.

Python imports this module when it starts, if its folder is on PYTHONPATH. Fifty times a second each thread that has
used processor time since the last look is counted, with that time, under the code of its innermost known frame.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

OURS, FLOWER, RAY = ("/fedsyn/", "/strategies/", "/clients/"), "/flwr/", "/ray/"


def owner(frame: FrameType) -> str:
    """Whose code it is: imports belong to who asked for them, a library to its caller."""
    files = [frame.f_code.co_filename]
    while frame.f_back is not None:
        frame = frame.f_back
        files.append(frame.f_code.co_filename)
    is_ours = [any(part in file for part in OURS) and "site-packages" not in file for file in files]
    if any("importlib" in file for file in files):
        return "imports by fedsyn" if any(is_ours) else "imports by others"
    for ours, file in zip(is_ours, files, strict=True):
        if ours or FLOWER in file or RAY in file:
            return "fedsyn" if ours else "Flower" if FLOWER in file else "Ray"
    return "other"


def ticks(thread: int) -> int:
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def sample(file: Path) -> None:
    counts, last, written = Counter[str](), dict[int, int](), 0.0
    while True:
        time.sleep(0.02)
        frames = sys._current_frames()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.ident in frames and thread.native_id is not None:
                now = ticks(thread.native_id)
                if now > last.get(thread.native_id, 0):
                    counts[owner(frames[thread.ident])] += now - last.get(thread.native_id, 0)
                    last[thread.native_id] = now
        if time.monotonic() - written > 0.5:
            part, written = file.with_suffix(".part"), time.monotonic()
            part.write_text(json.dumps(counts))
            part.replace(file)  # a process may be killed at any time


if "SAMPLES" in os.environ:
    started = Path("/proc/self/cmdline").read_bytes()
    kind = "simulation" if b"flwr-simulation" in started else "actor" if b"default_worker" in started else None
    if kind is not None:
        target = Path(os.environ["SAMPLES"]) / f"{kind}-{os.getpid()}.json"
        threading.Thread(target=sample, args=(target,), daemon=True).start()
