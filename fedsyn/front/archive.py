"""A model in one file, and a run directory, read without trusting either: no pickle, no code, no more memory than said.

The file is a ZIP of what a run releases: `fedsyn.json` (format), `schema.yaml`, `ledger.json`, `config.yaml`,
`rounds.jsonl`, `model.npz`, `measurements.npz`, `quality.json`, and a README.md for whoever opens it. It holds no row
of a real table and no exact count of one.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from fedsyn import yamlio
from fedsyn.config import FORMAT, RunConfig, check_format, explain
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, DataError, FedsynError, ProtocolError
from fedsyn.inference import AnyModel, Evidence, model_size, read_model
from fedsyn.report.readme import readme
from fedsyn.report.run_page import RunFacts
from fedsyn.runs.directory import save_evidence, save_model
from fedsyn.runs.prepare import public_schema
from fedsyn.runs.published import published_config
from fedsyn.schema import Schema
from fedsyn.statement import Statement
from fedsyn.version import __version__

#: Largest size of each member, in bytes after unpacking. A model of 2^27 cells is of the size of the first.
LIMITS = {
    "model.npz": 1 << 30,
    "measurements.npz": 1 << 30,
    "schema.yaml": 1 << 26,
    "ledger.json": 1 << 26,
    "config.yaml": 1 << 24,
    "rounds.jsonl": 1 << 28,
    "quality.json": 1 << 24,
    "README.md": 1 << 20,
    "fedsyn.json": 1 << 16,
}
#: Largest model that is unfolded, in cells of its junction tree.
MOST_CELLS = 1 << 27
_MOST_CLIQUES = 100_000
_MOST_TEXT = 1 << 25  # bytes that describe a model
_MOST_NODES = 2_000_000  # values of a YAML document
# Arrays of both npz files; the first two of a model and the first of the measurements describe the others.
_ARRAYS, _EVIDENCE = ("domain", "model", "potentials", "codes"), ("evidence", "values", "groups")
_TEXTS = ("domain", "model", "evidence")
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
_OPTIONAL = ("rounds.jsonl", "measurements.npz", "quality.json", "README.md")
# Every file has this time, so that the same model makes the same file.
_TIME = (1980, 1, 1, 0, 0, 0)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Release:
    """What a run releases, and all that its model needs to give rows.

    Attributes:
        schema: of the run.
        model: what was fitted.
        ledger: of the server, as in ledger.json.
        config: of the run.
        rounds: what was released of each round, as in rounds.jsonl.
        evidence: what the model was fitted to; None: of a mechanism without such measurements, or not kept.
        statement: how good the table is predicted to be; None: of a run from before there were any.
    """

    schema: Schema
    model: AnyModel
    ledger: dict[str, Any]
    config: RunConfig
    rounds: tuple[dict[str, Any], ...]
    evidence: Evidence | None = None
    statement: Statement | None = None

    def readme(self) -> str:
        """What may be told of the table to whoever gets it, in Markdown."""
        facts = RunFacts(
            source=published_config(self.config)["data"]["source"],
            config="",
            mechanism=self.config.mechanism.name,
            clients=self.config.federation.clients,
            ledger=self.ledger,
            metrics={},
            rounds=(),
            rows=None,
            domain=dict(zip(self.model.domain.attributes, self.model.domain.shape, strict=True)),
            total=self.model.total,
            edges=None,
            statement=self.statement,
            public=True,
        )
        return readme(facts)


def save_release(path: Path, release: Release) -> None:
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
    if release.statement is not None:
        members["quality.json"] = json.dumps({"format": FORMAT, **release.statement.to_dict()}, indent=1).encode()
        members["README.md"] = release.readme().encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)


def _bytes_of(save: Callable[[BinaryIO, T], None], what: T) -> bytes:
    """What is written to a file of a run directory."""
    buffer = io.BytesIO()
    save(buffer, what)
    return buffer.getvalue()


def read_release(path: str | Path) -> Release:
    """What `save_release` wrote, or what a run left in its directory.

    Raises:
        DataError: there is no such file, or it is damaged, of a later format, too large, or something else; one
            sentence. Nothing that the file holds is executed or imported.
    """
    path = Path(path)
    if path.is_dir():
        return _release(_members_of_folder(path), str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members_of_archive(archive, path)
    except FileNotFoundError:
        raise DataError(f"there is no file or run directory {path}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or 'it is damaged'}") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, FedsynError):
            raise
        raise DataError(f"{path} is not a model that fedsyn saved, or is damaged") from None
    return _release(members, str(path))


def _members_of_archive(archive: zipfile.ZipFile, path: Path) -> dict[str, bytes]:
    names = archive.namelist()
    if len(set(names)) != len(names) or not set(names) <= set(LIMITS) or "fedsyn.json" not in names:
        raise DataError(f"{path} is not a model that fedsyn saved: it holds other files")
    return {name: _bounded(archive.open(name), name, path) for name in names}


def _members_of_folder(folder: Path) -> dict[str, bytes]:
    present = [name for name in LIMITS if (folder / name).is_file()]
    if "model.npz" not in present:
        raise DataError(f"{folder} is not the directory of a finished run: it has no model.npz")
    return {name: _bounded((folder / name).open("rb"), name, folder) for name in present}


def _bounded(file: Any, name: str, path: Path) -> bytes:
    """The bytes of a member; what it says of its own size is not believed."""
    with file:
        content: bytes = file.read(LIMITS[name] + 1)
    if len(content) > LIMITS[name]:
        raise DataError(f"{path}: {name} is larger than {LIMITS[name]:,} bytes, more than a model needs")
    return content


def _release(members: Mapping[str, bytes], where: str) -> Release:
    needed = [name for name in LIMITS if name not in (*_OPTIONAL, "fedsyn.json", "schema.yaml")]
    absent = [name for name in needed if name not in members]
    if absent:
        raise DataError(f"{where} is not a whole model: it lacks {absent[0]}")
    if "fedsyn.json" in members:
        _json(members["fedsyn.json"], "fedsyn.json", where)
    ledger = _json(members["ledger.json"], "ledger.json", where)
    for key, kind in _LEDGER.items():
        if not isinstance(ledger.get(key), kind) or (kind is not bool and isinstance(ledger[key], bool)):
            raise DataError(f"{where}: ledger.json is damaged: it has no usable '{key}'")
    lines = members.get("rounds.jsonl", b"").splitlines()
    rounds = tuple(_json(line, "rounds.jsonl", where) for line in lines)
    config = _config(members["config.yaml"], where)
    if "schema.yaml" in members:
        schema = Schema.from_dict(_yaml(members["schema.yaml"], "schema.yaml", where), f"{where}: schema.yaml")
    else:
        schema = public_schema(config)  # a run of before there was one in its directory
    model, content = _model(members["model.npz"], schema.domain, where), members.get("measurements.npz")
    evidence = None if content is None else _evidence(content, model.domain, where)
    return Release(schema, model, ledger, config, rounds, evidence, _statement(members.get("quality.json"), where))


def _statement(content: bytes | None, where: str) -> Statement | None:
    """What is predicted of the table; None also for what an older version wrote under that name of real rows."""
    facts = None if content is None else _json(content, "quality.json", where)
    if facts is None or "private" in facts:
        return None
    try:
        return Statement.from_dict(facts)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{where}: quality.json is damaged") from None


def _text(content: bytes, name: str, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: {name} is not text in UTF-8") from None


def _json(content: bytes, name: str, where: str) -> dict[str, Any]:
    try:
        facts = json.loads(_text(content, name, where))
    except (ValueError, RecursionError):
        raise DataError(f"{where}: {name} is damaged: it is not JSON") from None
    if not isinstance(facts, dict):
        raise DataError(f"{where}: {name} is damaged: expected a mapping of keys")
    check_format(facts, f"{where}: {name}")
    facts.pop("format", None)
    return facts


def _yaml(content: bytes, name: str, where: str) -> Any:
    """A document that is of the size of its text: aliases can make a short one as large as one likes."""
    try:
        document = yamlio.loads(_text(content, name, where), f"{where}: {name}")
        left = _MOST_NODES
        waiting = [document]
        while waiting:
            node = waiting.pop()
            children = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else ()
            left -= len(children)
            if left < 0:
                raise DataError(f"{where}: {name} unfolds to more than {_MOST_NODES:,} values")
            waiting.extend(children)
        return document
    except RecursionError:
        raise DataError(f"{where}: {name} is nested too deeply") from None


def _config(content: bytes, where: str) -> RunConfig:
    """The configuration, without a look at its plug-ins: the name of a mechanism may be that of any module."""
    name = f"{where}: config.yaml"
    document = _yaml(content, "config.yaml", where)
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise DataError(f"{name}: expected a mapping of keys")
    check_format(document, name)
    try:
        return RunConfig.model_validate({key: value for key, value in document.items() if key != "format"})
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig, name)) from None


def _model(content: bytes, domain: Domain, where: str) -> AnyModel:
    arrays = _arrays(content, where)
    try:
        facts = json.loads(arrays.pop("domain").tobytes())
        check_format(facts, f"{where}: model.npz")
        own = Domain.described(facts)
        if (own.attributes, own.shape) != (domain.attributes, domain.shape):
            raise DataError(f"{where}: the model and the schema describe different tables")
        head = json.loads(arrays["model"].tobytes())
        cliques = [tuple(clique) for key in ("cliques", "structural_cliques") for clique in head.get(key, ())]
        if len(cliques) > _MOST_CLIQUES or _cells(own, cliques) > MOST_CELLS:
            raise DataError(f"{where}: its model would unfold to more than {MOST_CELLS:,} cells")
        return read_model(own, arrays)
    except FedsynError as error:
        raise DataError(str(error) if str(error).startswith(where) else f"{where}: model.npz: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError):
        raise DataError(f"{where}: model.npz is damaged") from None


def _evidence(content: bytes, domain: Domain, where: str) -> Evidence:
    try:
        return Evidence.from_arrays(domain, _arrays(content, where, "measurements.npz", _EVIDENCE))
    except ProtocolError as error:
        raise DataError(f"{where}: measurements.npz: {error}") from None


def _cells(domain: Domain, cliques: list[tuple[str, ...]]) -> float:
    """Cells of the junction tree; the sum over the cliques alone where that is too much already."""
    apart = sum(domain.size(clique) for clique in cliques)
    return apart if apart > MOST_CELLS else model_size(domain, cliques)


def _arrays(
    content: bytes, where: str, name: str = "model.npz", known: Sequence[str] = _ARRAYS
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz file, of plain numbers only, each of exactly the size that it says."""
    found, left = {}, LIMITS[name]
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if len(set(names)) != len(names) or not set(names) <= {f"{n}.npy" for n in known}:
                raise DataError(f"{where}: {name} holds other arrays than a model has")
            for member in names:
                allowed = min(left, _MOST_TEXT) if member.removesuffix(".npy") in _TEXTS else left
                with archive.open(member) as file:
                    data = file.read(allowed + 1)
                left -= len(data)
                if len(data) > allowed:
                    raise DataError(f"{where}: {name} unpacks to more than a model needs")
                found[member.removesuffix(".npy")] = _array(data)
    except DataError:
        raise
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError, SyntaxError):
        raise DataError(f"{where}: {name} is damaged") from None
    return found


def _array(data: bytes) -> npt.NDArray[Any]:
    """One array in NumPy's format; ValueError for objects, and where the size is not the shape's."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError("only version 1.0 is written")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=4096)
    rest = data[file.tell() :]
    if dtype.hasobject or dtype.kind not in "uif" or dtype.itemsize * math.prod(shape) != len(rest):
        raise ValueError("not an array of numbers of the size that it says")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
