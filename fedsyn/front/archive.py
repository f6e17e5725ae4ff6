"""Reads models in one file, and run directories, without trusting them.

No pickle is opened, no code is run, and no more memory is taken than `LIMITS` allows.

The file is a ZIP of what a run releases: `fedsyn.json` (format), `schema.yaml`, `ledger.json`, `config.yaml`,
`rounds.jsonl`, `model.npz`, `measurements.npz`, `predicted_quality.json`, and a README.md. It holds no row
of a real table and no exact count of one.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fedsyn import yamlio
from fedsyn.bounded import MOST_BYTES, MOST_ROUND_BYTES, Archive, json_lines, open_file, read_bytes
from fedsyn.config import FORMAT, RunConfig, check_format
from fedsyn.errors import DataError
from fedsyn.evaluation.predicted import PredictedQuality
from fedsyn.evaluation.record import PREDICTED_FILE
from fedsyn.evaluation.report.run_page import readme
from fedsyn.inference import AnyModel, Evidence
from fedsyn.loading import released_config
from fedsyn.runs.directory import (
    MOST_MODEL_BYTES,
    parse_facts,
    read_evidence,
    read_released_model,
    save_evidence,
    save_model,
)
from fedsyn.runs.report import evaluation_of, facts_of
from fedsyn.runs.run_config import published_config
from fedsyn.table.schema import Schema
from fedsyn.version import __version__

#: Largest size of each member, in bytes after unpacking. A model of 2^27 cells is of the size of the first.
LIMITS = {
    "model.npz": MOST_MODEL_BYTES,
    "measurements.npz": MOST_MODEL_BYTES,
    "schema.yaml": MOST_BYTES,
    "ledger.json": MOST_BYTES,
    "config.yaml": 1 << 24,
    "rounds.jsonl": MOST_ROUND_BYTES,
    PREDICTED_FILE: 1 << 24,
    "README.md": 1 << 20,
    "fedsyn.json": 1 << 16,
}
# What is read of a ledger when it is shown.
_LEDGER: dict[str, Any] = {
    "epsilon": int | float,
    "delta": int | float,
    "private": bool,
    "not_private_because": list,
    "unit": str,
    "budget": dict,
    "releases": list,
}
_OPTIONAL = ("rounds.jsonl", "measurements.npz", PREDICTED_FILE, "README.md")
# Every file has this time, so that the same model makes the same file.
_TIME = (1980, 1, 1, 0, 0, 0)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ReleasedRun:
    """A run's release, and all that its model needs to draw rows.

    Attributes:
        schema: of the run.
        model: what was fitted.
        ledger: of the server, as in ledger.json.
        config: of the run.
        rounds: what was released of each round, as in rounds.jsonl.
        evidence: what the model was fitted to; None: of a mechanism without such measurements, or not kept.
        predicted: how good the table is predicted to be; None: of a run that did not say.
    """

    schema: Schema
    model: AnyModel
    ledger: dict[str, Any]
    config: RunConfig
    rounds: tuple[dict[str, Any], ...]
    evidence: Evidence | None = None
    predicted: PredictedQuality | None = None

    def readme(self) -> str:
        """Returns the publishable facts about the table, as Markdown."""
        evaluations = () if self.predicted is None else (self.predicted,)
        return readme(facts_of(self.config, self.ledger, self.model, evaluations, self.schema))


def save_release(path: Path, release: ReleasedRun) -> None:
    """Writes the file; the caller has looked whether there is one already."""
    members = {
        "fedsyn.json": json.dumps({"format": FORMAT, "kind": "model", "fedsyn": __version__}).encode(),
        "schema.yaml": release.schema.dumps().encode(),
        "config.yaml": yamlio.dumps({"format": FORMAT, **published_config(release.config)}).encode(),
        "ledger.json": json.dumps({"format": FORMAT, **release.ledger}, indent=1, ensure_ascii=False).encode(),
        "rounds.jsonl": "".join(json.dumps({"format": FORMAT, **line}) + "\n" for line in release.rounds).encode(),
        "model.npz": _bytes_of(save_model, release.model),
    }
    if release.evidence is not None:
        members["measurements.npz"] = _bytes_of(save_evidence, release.evidence)
    if release.predicted is not None:
        members[PREDICTED_FILE] = json.dumps({"format": FORMAT, **release.predicted.to_dict()}, indent=1).encode()
        members["README.md"] = release.readme().encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)


def _bytes_of(save: Callable[[BinaryIO, T], None], what: T) -> bytes:
    """Returns the bytes that `save` writes to a file."""
    buffer = io.BytesIO()
    save(buffer, what)
    return buffer.getvalue()


def read_release(path: str | Path) -> ReleasedRun:
    """Reads a file of `save_release`, or the directory of a run.

    Raises:
        DataError: there is no such file, or it is damaged, of another format, too large, or something else; one
            sentence. Nothing that the file holds is executed or imported.
    """
    path = Path(path)
    try:
        if path.is_dir():
            members = _members_of_folder(path)
        else:
            with open_file(path) as file:
                members = _members_of_archive(file, path)
    except FileNotFoundError:
        raise DataError(f"no file or run directory {path}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or 'it is damaged'}") from None
    return _release(members, str(path))


def _members_of_archive(file: BinaryIO, path: Path) -> dict[str, bytes]:
    archive = Archive(file, LIMITS, str(path), "is not a model that fedsyn saved, or is damaged")
    if "fedsyn.json" not in archive.members:
        raise DataError(f"{path} is not a model that fedsyn saved: it holds other files")
    return {name: archive.read(name, LIMITS[name]) for name in archive.members}


def _members_of_folder(folder: Path) -> dict[str, bytes]:
    present = [name for name in LIMITS if (folder / name).is_file()]
    if "model.npz" not in present:
        raise DataError(f"{folder} is not the directory of a finished run: it has no model.npz")
    return {name: read_bytes(folder / name, LIMITS[name]) for name in present}


def _release(members: Mapping[str, bytes], where: str) -> ReleasedRun:
    needed = [name for name in LIMITS if name not in (*_OPTIONAL, "fedsyn.json")]
    if absent := [name for name in needed if name not in members]:
        raise DataError(f"{where} is incomplete: it lacks {absent[0]}")
    if "fedsyn.json" in members:
        parse_facts(members["fedsyn.json"], f"{where}: fedsyn.json")
    ledger = parse_facts(members["ledger.json"], f"{where}: ledger.json")
    for key, kind in _LEDGER.items():
        if not isinstance(ledger.get(key), kind) or (kind is not bool and isinstance(ledger[key], bool)):
            raise DataError(f"{where}: ledger.json is damaged: it has no usable '{key}'")
    rounds = tuple(json_lines(members.get("rounds.jsonl", b""), f"{where}: rounds.jsonl"))
    for line in rounds:
        check_format(line, f"{where}: rounds.jsonl")
        line.pop("format", None)
    config = released_config(_yaml(members["config.yaml"], "config.yaml", where), f"{where}: config.yaml")
    schema = Schema.from_dict(_yaml(members["schema.yaml"], "schema.yaml", where), f"{where}: schema.yaml")
    model = read_released_model(io.BytesIO(members["model.npz"]), f"{where}: model.npz", schema.domain)
    evidence = None
    if "measurements.npz" in members:
        evidence = read_evidence(io.BytesIO(members["measurements.npz"]), model.domain, f"{where}: measurements.npz")
    return ReleasedRun(schema, model, ledger, config, rounds, evidence, _predicted(members, where))


def _predicted(members: Mapping[str, bytes], where: str) -> PredictedQuality | None:
    """Returns the predicted quality of the table.

    Returns None if the file has none.
    """
    if PREDICTED_FILE not in members:
        return None
    facts = parse_facts(members[PREDICTED_FILE], f"{where}: {PREDICTED_FILE}")
    return evaluation_of(PredictedQuality, facts, f"{where}: {PREDICTED_FILE} is damaged")


def _yaml(content: bytes, name: str, where: str) -> Any:
    try:
        return yamlio.loads(content.decode("utf-8"), f"{where}: {name}")
    except UnicodeDecodeError:
        raise DataError(f"{where}: {name} is not text in UTF-8") from None
