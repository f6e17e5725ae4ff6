"""report.html: one self-contained page about a run, made from the files beside it. It holds no plot of real data."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedsyn.config import check_format
from fedsyn.evaluation import all_metrics

_MOST_ROWS = 1000
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{border-bottom:1px solid #ddd;padding:.2rem .8rem .2rem 0;
text-align:left;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}
.warn{background:#fff3cd;border-left:4px solid #d39e00;padding:.6rem 1rem}
img{max-width:100%}pre{background:#f6f6f6;padding:.8rem;overflow:auto}
"""


def write_report(out: Path, figures: str = "") -> Path:
    """Writes report.html into a run directory from its config.yaml, ledger.json, metrics.json and rounds.jsonl.

    Args:
        out: the run directory.
        figures: HTML that follows the metrics; `fedsyn report` puts plots there.
    """
    ledger = read_facts(out / "ledger.json")
    metrics = read_facts(out / "metrics.json")
    rounds = read_rounds(out)
    config = (out / "config.yaml").read_text(encoding="utf-8")
    warning = ""
    if not ledger["private"]:
        reasons = "; ".join(ledger["not_private_because"])
        warning = f'<p class="warn"><b>This run is not private:</b> {escape(reasons)}.</p>'
    statement = [(key.replace("_", " "), value) for key, value in (ledger["statement"] or {}).items()]
    replaced = (
        f" Where a row can only be exchanged for another, it is epsilon = {ledger['epsilon_replace_one']:.6g}."
        if "epsilon_replace_one" in ledger
        else ""
    )
    total = (
        f"<p>Spent: rho = {ledger['rho']:.6g}, which is epsilon = {ledger['epsilon']:.6g} at "
        f"delta = {ledger['delta']:g} (budget: epsilon = {ledger['budget']['epsilon']:g}).{replaced}</p>"
    )
    parts = [
        f"<h1>{escape(out.name)}</h1>{warning}",
        "<h2>Metrics</h2>",
        "<p>Metrics compare with the real rows: they are outside the guarantee and are not for publication.</p>"
        if any(name in all_metrics() for name in metrics)
        else "",
        table(("metric", "value"), ((name, "not finite" if v is None else f"{v:.6g}") for name, v in metrics.items())),
        figures,
        "<h2>Privacy</h2>",
        table(("", ""), statement),
        total,
        table(
            ("round", "release", "mechanism", "scale", "count", "rho", "noise by"),
            (_release(release) for release in ledger["releases"]),
        ),
        "<h2>Rounds</h2>",
        table(("round", "cohort", "dropped", "selected", "kB up", "kB down", "seconds"), map(_round, rounds)),
        f"<h2>Configuration</h2><pre>{escape(config)}</pre>",
    ]
    return write_page(out / "report.html", out.name, "".join(parts))


def write_page(path: Path, title: str, body: str) -> Path:
    """Writes one self-contained page."""
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{body}</body></html>"
    )
    path.write_text(page, encoding="utf-8")
    return path


def picture(png: bytes, alternative: str) -> str:
    """An image inside the page."""
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{escape(alternative)}" src="data:image/png;base64,{data}">'


def _release(release: Mapping[str, Any]) -> Sequence[str]:
    scale = f"sigma {release['sigma']:.5g}" if "sigma" in release else f"epsilon {release['epsilon']:.5g}"
    return (
        str(release["round"]),
        release["name"],
        release["mechanism"],
        scale,
        str(release["count"]),
        f"{release['rho']:.4g}",
        release["noise_by"],
    )


def read_facts(path: Path) -> dict[str, Any]:
    """A JSON file of a run; DataError if it is of a later format."""
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    check_format(facts, str(path))
    facts.pop("format", None)
    return facts


def read_rounds(out: Path) -> list[dict[str, Any]]:
    """The rounds of a run: what was released of each, and what was measured where that is at hand."""
    lines = (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    measured = out / "measured.jsonl"
    costs = measured.read_text(encoding="utf-8").splitlines() if measured.is_file() else []
    return [{**json.loads(line), **(json.loads(costs[i]) if i < len(costs) else {})} for i, line in enumerate(lines)]


def _round(record: Mapping[str, Any]) -> Sequence[str]:
    dropped = "; ".join(f"{k}: {reason}" for k, reason in record["dropped"].items())
    return (
        str(record["round"]),
        str(len(record["cohort"])),
        dropped or "0",
        ", ".join(record["selected"]),
        *(f"{record[key] / 1e3:.1f}" if key in record else "" for key in ("bytes_up", "bytes_down")),
        f"{sum(record['seconds'].values()):.2f}" if "seconds" in record else "",
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; of a very long one the first rows, so that a page stays below 2 MB."""
    rows = list(rows)
    header = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    shown = rows[:_MOST_ROWS]
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in shown)
    more = (
        f"<p>{len(rows) - len(shown)} more rows are in the files beside this page.</p>"
        if len(rows) > len(shown)
        else ""
    )
    return f"<table><tr>{header}</tr>{body}</table>{more}"
