"""The audit log of a node.

One JSON line for each request and each answer, with public facts and no data value.

It is for people and their tools; what binds is the ledger. A line is on the disk before the answer it tells of leaves.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import math
import os
import stat
import time
from pathlib import Path
from typing import Any

from fedsyn.errors import CannotWrite
from fedsyn.files import append_synced

FORMAT = 1
_MOST = 200  # characters of a text that a server chose
#: Lines a minute about what cost nothing: whoever asks without end must not fill the disk. Charges are always told.
MOST_LINES = 120
Fact = str | int | float | bool | None


class Audit:
    """Appends to a node's audit log.

    Args:
        path: of the file; made, for its owner alone, with the first line. Move it away to rotate it: the next line
            begins a new one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **facts: Fact) -> None:
        """Writes one line: `format`, `time` (UTC), and the facts.

        Texts are cut after 200 characters.

        Only so many lines without a positive `rho` are written a minute; the next one says how many were `left_out`.

        Raises:
            TypeError: a fact that is no text, number or None: an array or a list could hold data.
            CannotWrite: it cannot be written; then nothing may be answered.
        """
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        plain = {key: _plain(key, fact) for key, fact in facts.items()}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(0, "it is not a file")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                rho = facts.get("rho")
                left_out = 0 if isinstance(rho, float) and rho > 0 else self._left_out()
                if left_out is None:
                    return
                extra = {"left_out": left_out} if left_out else {}
                line = json.dumps({"format": FORMAT, "time": now, **plain, **extra})
                append_synced(descriptor, (line + "\n").encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CannotWrite(
                f"the audit log {self.path} cannot be written ({error.strerror}): nothing is answered", error
            ) from None

    def _left_out(self) -> int | None:
        """Returns how many lines were left out since the last one.

        None means that this one is to be left out, too. The caller holds the file's lock.

        The count stands beside the log, since each request has a process of its own. Losing it costs a minute's limit.
        """
        beside, minute = self.path.with_name(self.path.name + ".rate"), int(time.time() // 60)
        try:
            noted = json.loads(beside.read_text(encoding="ascii"))
            written, left_out = (int(noted["written"]) if noted["minute"] == minute else 0), int(noted["left_out"])
        except (OSError, ValueError, TypeError, KeyError):
            written = left_out = 0
        full = written >= MOST_LINES
        counts = {"minute": minute, "written": written + (not full), "left_out": left_out + 1 if full else 0}
        beside.write_text(json.dumps(counts), encoding="ascii")
        return None if full else left_out


def _plain(key: str, fact: Any) -> Fact:
    if isinstance(fact, str):
        return fact[:_MOST]
    if fact is None or type(fact) in (bool, int):
        return fact  # type: ignore[no-any-return]
    if type(fact) is float:
        return fact if math.isfinite(fact) else str(fact)
    raise TypeError(f"the audit log takes texts and numbers only, not what '{key}' is")
