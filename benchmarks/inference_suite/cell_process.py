"""What a process that runs one library on one encoded table is given, and how its job is run: NumPy, nothing else.

python SOME_cell.py TABLE.npz SETTINGS_AS_JSON OUT
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Head = dict[str, Any]
Settings = dict[str, Any]
Job = Callable[[], Any]
Prepare = Callable[[Head, np.ndarray, Settings], Job]


@dataclass(frozen=True, eq=False)
class Outcome:
    """A job's end.

    Attributes:
        head: of the table: `attributes`, `shape`, `workload`.
        codes: (n, d) its rows.
        settings: as given.
        out: file for the result.
        made: what the job returned; None where the library is not there.
        absent: what could not be imported, or "".
        cpu, wall: seconds of the job, without imports.
    """

    head: Head
    codes: np.ndarray
    settings: Settings
    out: Path
    made: Any
    absent: str
    cpu: float
    wall: float


def run_job(prepare: Callable[[Settings], Prepare]) -> Outcome:
    """Reads the command line, prepares the job that the settings name, runs it."""
    table, given, out = sys.argv[1:]
    settings = json.loads(given)
    with np.load(table) as file:
        head, codes = json.loads(file["head"].tobytes()), file["codes"]
    try:
        job = prepare(settings)(head, codes, settings)
    except ImportError as error:
        return Outcome(head, codes, settings, Path(out), None, str(error.name), 0.0, 0.0)
    cpu, wall = time.process_time(), time.perf_counter()
    made = job()
    seconds = time.process_time() - cpu, time.perf_counter() - wall
    return Outcome(head, codes, settings, Path(out), made, "", *seconds)
