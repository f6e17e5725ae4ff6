"""Sends a run directory back to the run's starter.

It travels through the log of the run on the SuperLink.

Where the SuperLink is another machine, its ServerApp writes its results there. Two ways back were considered. A file
service of our own beside the SuperLink would need a port, certificates and rights of its own. The run's log needs
nothing: whoever may start a run on a SuperLink may read the run's log there, over the same connection with the same
authentication. So the files travel in it, as marked lines.

**Who can read them.** A log stays in the SuperLink's database, and whoever may read logs there reads it. Most of the
files are for publication; measured.jsonl is not (its bytes and times follow the rows): the operator of the SuperLink
may know it, readers of its log not. So the files are encrypted to a key that the starter made for this run and keeps
in its run.json: X25519 with a fresh key of the ServerApp, HKDF-SHA256, ChaCha20-Poly1305, bound to the run's name. The
sender is not authenticated beyond that: who could forge a log could as well have served the run. What is unpacked is
therefore a closed list of names, of bounded size, into one folder.

**Limits.** All files together, compressed, at most `MOST` bytes: a log is kept in memory by a SuperLink without a
database. A larger table stays behind; model.npz and schema.yaml give as many rows anywhere (`fedsyn sample`).
"""

from __future__ import annotations

import base64
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedsyn.errors import RunError
from fedsyn.files import PUBLIC, replace_synced
from fedsyn.runs.directory import RESULTS

#: Bytes of all files of a run directory that come back, compressed and unpacked.
MOST, MOST_UNPACKED = 64 * 2**20, 2**30
_NAMES = re.compile(
    rf"({'|'.join(re.escape(name) for name in RESULTS)}|config\.yaml|ledger-[0-9]{{1,4}}\.json|too-large\.txt)"
)
_TABLES = ("synthetic.csv", "synthetic.parquet")  # left behind first
_CHUNK = 48 * 1024  # bytes of a line, before base64
_MARK = "fedsyn-files"
_LINE = re.compile(rf"^{_MARK} ([A-Za-z0-9._-]+) (\d+)/(\d+) ([A-Za-z0-9+/]+={{0,2}})\n", re.MULTILINE)
_BOUND = b"fedsyn: a run directory comes back"


def packed(out: Path, most: int = MOST) -> bytes:
    """Returns one archive of the files that come back.

    They are files of a run directory. If they are too large, the table stays behind. Raises RunError if
    the rest is too large, too.
    """
    files = sorted(file for file in out.iterdir() if file.is_file() and _NAMES.fullmatch(file.name))
    data = _zipped(files)
    if len(data) > most:
        tables = [file.name for file in files if file.name in _TABLES]
        text = (
            f"{', '.join(tables)} is too large to come back through the run's log. It is in {out} on the SuperLink's "
            "machine; model.npz gives as many rows as you like: fedsyn sample\n"
        )
        data = _zipped([file for file in files if file.name not in _TABLES], {"too-large.txt": text})
    if len(data) > most:
        raise RunError(f"the files of the run are too large to come back; they are in {out} on the SuperLink's machine")
    return data


def _zipped(files: Sequence[Path], texts: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.name)
        for name, text in (texts or {}).items():
            archive.writestr(name, text)
    return buffer.getvalue()


def is_sealed(line: str) -> bool:
    """Returns whether a log's line is a piece of returning files."""
    return line.startswith(f"{_MARK} ")


def lines_of(data: bytes, run: str, public: bytes) -> list[str]:
    """Returns log lines that only a public key's owner can read.

    Args:
        data: of `packed`.
        run: name of the run.
        public: X25519 key of its starter.
    """
    from fedsyn.crypto.primitives import KeyPair, seal

    pair = KeyPair()
    sealed = pair.public + seal(_key(pair.agree(public), run, pair.public, public), data, run.encode())
    chunks = [sealed[i : i + _CHUNK] for i in range(0, len(sealed), _CHUNK)]
    return [f"{_MARK} {run} {i}/{len(chunks)} {base64.b64encode(c).decode()}\n" for i, c in enumerate(chunks)]


def unpacked(log: str, run: str, secret: bytes, out: Path) -> list[Path]:
    """Puts the files that came back into the run directory.

    Args:
        log: of the run.
        run: its name.
        secret: X25519 key of its starter.
        out: where they go; only files of a run directory, and nothing else, are written there.

    Returns:
        The files; none where the log has none, or not all of them.

    Raises:
        RunError: they were not sent to this key, or are no files of a run.
    """
    from fedsyn.crypto.primitives import KEY, KeyPair, unseal

    sealed = _together(log, run)
    if sealed is None:
        return []
    pair, sender = KeyPair(secret), sealed[:KEY]
    data = unseal(_key(pair.agree(sender), run, sender, pair.public), sealed[KEY:], run.encode())
    if data is None:
        raise RunError("the files of the run came back damaged, or were sent to somebody else")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if not all(_NAMES.fullmatch(i.filename) for i in infos) or sum(i.file_size for i in infos) > MOST_UNPACKED:
                raise RunError("what came back from the SuperLink's machine is not a run directory")
            for info in infos:
                replace_synced(out / info.filename, archive.read(info), PUBLIC)
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, RuntimeError):  # encrypted, or an unknown method
        raise RunError("the files of the run came back damaged") from None
    return [out / info.filename for info in infos]


def _together(log: str, run: str) -> bytes | None:
    """Returns the last complete sequence of lines of a run's log.

    The log may also have the lines of an earlier try. Returns None without a complete sequence.
    """
    last: list[bytes] | None = None
    parts: list[bytes] = []
    for name, place, total, text in _found(log):
        if name != run:
            continue
        if place == 0:
            parts = []
        if place == len(parts):
            parts.append(base64.b64decode(text))
        if len(parts) == total and place == total - 1:
            last = parts
    return None if last is None else b"".join(last)


def _found(log: str) -> Iterable[tuple[str, int, int, str]]:
    return ((m[1], int(m[2]), int(m[3]), m[4]) for m in _LINE.finditer(log))


def _key(shared: bytes, run: str, sender: bytes, receiver: bytes) -> bytes:
    from fedsyn.crypto.primitives import derive

    return derive(shared, _BOUND, run.encode(), (), (sender, receiver))
