"""The page of a run from what it released, without its real rows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from fedsyn.front.archive import Release
from fedsyn.randomness import Randomness
from fedsyn.runs.directory import append_line, save_model, write_json
from fedsyn.runs.report import write_run_page

_MOST_ROWS = 200_000  # that are drawn for the page's charts


def page_of(release: Release) -> str:
    """HTML, self-contained."""
    with tempfile.TemporaryDirectory(prefix="fedsyn-") as folder:
        out = Path(folder) / "model"
        out.mkdir()
        release.config.save(out / "config.yaml")
        release.schema.save(out / "schema.yaml")
        write_json(out / "ledger.json", json.loads(json.dumps(release.ledger)))
        write_json(out / "metrics.json", {})
        (out / "rounds.jsonl").touch()
        for line in release.rounds:
            append_line(out / "rounds.jsonl", line)
        save_model(out / "model.npz", release.model)
        rows = min(_MOST_ROWS, max(1, round(release.model.total)))
        codes = release.model.sample(rows, Randomness(None).ordinary("synthesize"))
        page = write_run_page(out, config=release.config, synthetic=codes, public=True)[0]
        return page.read_text(encoding="utf-8")
