"""A table that was made elsewhere, in the place of a mechanism: the holders are asked how good it is, nothing else.

In a deployment it travels with the run's configuration, as codes: holders see it anyway, it is what they are asked
about. An operator's order (`fedsyn.wire.orders`) binds the configuration and so what the question costs, not the table.
"""

from __future__ import annotations

import base64
import hashlib
import io
import time
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, RunError
from fedsyn.evaluation.record import FEDERATED_FILE
from fedsyn.flower import Grid
from fedsyn.inference import EmpiricalModel
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.registry import strategy_class
from fedsyn.runs.directory import GIVEN_FILE, write_json
from fedsyn.runs.finish import costs
from fedsyn.runs.prepare import Prepared
from fedsyn.runs.serve import serve

Codes = npt.NDArray[np.integer]
#: Of the budget: the rest is there for row counts that are private.
SHARE = 0.95
#: Numbers of a table that travels, and its bytes on the way.
MOST_CODES, MOST_BYTES = 1 << 26, 1 << 26


def with_federated_evaluation(config: RunConfig) -> RunConfig:
    """The same federation and budget, for the question alone."""
    node = config.evaluation.model_copy(update={"metrics": (), "federated": True, "share": SHARE})
    return config.model_copy(update={"evaluation": node})


def ask(config: RunConfig, prepared: Prepared, grid: Grid, out: Path, codes: Codes) -> None:
    """Asks the holders behind a Grid; writes federated_evaluation.json, ledger.json, metrics.json, then `GIVEN_FILE`.

    Args:
        config: of `with_federated_evaluation`; its mechanism is not run.
        prepared: the schema, and the rows of a simulation.
        grid: to the holders.
        out: the folder.
        codes: (n, d) the table.

    Raises:
        RunError: too few holders answered.
    """
    started = time.perf_counter()
    strategy = serve(config, prepared, grid, out, None, make=_given(strategy_class(config.mechanism.name), codes))
    if not (out / FEDERATED_FILE).is_file():
        raise RunError("too few holders answered: nothing is known of the table")
    write_json(out / "metrics.json", costs(strategy, prepared.clients, started))
    digest = hashlib.sha256(np.ascontiguousarray(codes, np.dtype("<u4")).tobytes()).hexdigest()
    write_json(out / GIVEN_FILE, {"rows": len(codes), "columns": codes.shape[1], "sha256": digest})


def sent(codes: Codes) -> str:
    """The table as text of a run's configuration.

    Raises:
        ConfigError: it is too large for that.
    """
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(codes, np.min_scalar_type(int(codes.max(initial=0)))), allow_pickle=False)
    text = base64.b85encode(zlib.compress(file.getvalue(), 6)).decode()
    if codes.size > MOST_CODES or len(text) > MOST_BYTES:
        raise ConfigError(f"the table is too large to travel to a deployment ({len(codes):,} rows): ask about a part")
    return text


def received(text: str, domain: Domain) -> Codes:
    """The table that `sent` made a text of.

    Raises:
        RunError: it is damaged, or does not fit the schema.
    """
    try:
        unpacker = zlib.decompressobj()
        packed = base64.b85decode(text) if len(text) <= MOST_BYTES else b""
        file = io.BytesIO(unpacker.decompress(packed, 4 * MOST_CODES + 4096))
        codes: Codes = np.load(file, allow_pickle=False)
        fits = codes.dtype.kind == "u" and codes.ndim == 2 and codes.shape[1] == len(domain) and len(codes) > 0
        if not fits or np.any(codes.max(axis=0) >= np.array(domain.shape)):
            raise ValueError("other columns or values than the schema's")
    except (ValueError, EOFError, MemoryError, zlib.error):
        raise RunError("the table that the holders are to be asked about is damaged, or of another schema") from None
    return codes


def _given(family: type[MechanismStrategy], codes: Codes) -> type[MechanismStrategy]:
    """The server half of a family that asks its clients nothing: its model is the table."""

    class GivenTable(family):  # type: ignore[misc, valid-type]
        def protocol(self) -> Protocol:
            self.model = EmpiricalModel(self.domain, codes)
            yield from ()

    return GivenTable


__all__ = ["SHARE", "ask", "received", "sent", "with_federated_evaluation"]
