"""The page of a run from what it released, alone or beside real rows that somebody has at hand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from fedsyn.errors import DataError
from fedsyn.front.archive import Release
from fedsyn.runs.directory import append_line, save_model, write_json
from fedsyn.runs.report import save_comparison, write_run_page

if TYPE_CHECKING:
    from fedsyn.evaluation.real.comparison import TableComparison


def page_of(release: Release, codes: npt.NDArray[Any], found: TableComparison | None = None) -> str:
    """HTML, self-contained.

    Args:
        release: of the run.
        codes: (n, d) codes of synthetic rows, to draw.
        found: their scores beside real rows; without them nothing on the page is private.
    """
    with tempfile.TemporaryDirectory(prefix="fedsyn-") as folder:
        out = Path(folder) / "model"
        out.mkdir()
        release.config.save(out / "config.yaml")
        release.schema.save(out / "schema.yaml")
        write_json(out / "ledger.json", release.ledger)
        write_json(out / "metrics.json", {})
        (out / "rounds.jsonl").touch()
        for line in release.rounds:
            append_line(out / "rounds.jsonl", line)
        save_model(out / "model.npz", release.model)
        if found is not None:
            save_comparison(out, found, {})
        try:
            paths = write_run_page(out, config=release.config, synthetic=codes, public=found is None)
        except (KeyError, TypeError, AttributeError):
            raise DataError("no page: what was kept of the ledger or of the rounds is damaged") from None
        return paths[0].read_text(encoding="utf-8")
