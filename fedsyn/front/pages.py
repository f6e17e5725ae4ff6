"""The page of a run from what it released, without its real rows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from fedsyn.front.archive import Release
from fedsyn.randomness import Randomness
from fedsyn.report.html import write_report
from fedsyn.runs.directory import append_line, save_model, write_json
from fedsyn.runs.synthesis import write_synthetic


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
        rows = max(1, round(release.model.total))
        write_synthetic(out / "synthetic.csv", release.schema, release.model, rows, Randomness(None), keep=False)
        return write_report(out).read_text(encoding="utf-8")
