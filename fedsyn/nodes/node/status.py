"""`fedsyn node status`: asks a node that runs, or says what its files tell of one that does not."""

from __future__ import annotations

import datetime
import json
from typing import Any

from fedsyn.nodes.node.file import NodeFile
from fedsyn.nodes.node.serve import is_served


def look(file: NodeFile) -> dict[str, Any]:
    """Return how a node is, as /status tells it; with `problems` of its own if nothing answers there."""
    if not is_served(file):
        return {"name": file.name, "ready": False, "problems": ["it is not running: fedsyn node serve"]}
    if file.listen is None:
        return {"name": file.name, "ready": True, "problems": [], "note": "it runs; with 'listen' it would say more"}
    import httpx

    try:
        answer = httpx.get(f"http://{file.listen}/status", timeout=5.0, trust_env=False)
        facts: dict[str, Any] = json.loads(answer.text)
    except (httpx.HTTPError, ValueError):
        return {"name": file.name, "ready": False, "problems": [f"it runs, and does not answer at {file.listen} yet"]}
    return facts


def said(facts: dict[str, Any]) -> str:
    """Return the same as text for people."""
    lines = [f"node '{facts['name']}': {'ready' if facts['ready'] else 'NOT ready'}"]
    lines += [f"  {problem}" for problem in facts["problems"]]
    if "note" in facts:
        lines.append(f"  {facts['note']}")
    if facts.get("last_contact"):
        when = datetime.datetime.fromtimestamp(facts["last_contact"], datetime.UTC)
        lines.append(f"  last contact with the SuperLink: {when:%Y-%m-%d %H:%M:%S} UTC, as node {facts['node']}")
    if "requests" in facts:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in facts["requests"].items())
        lines.append(f"  requests: {counts}; worker restarted {facts['worker_restarts']} times")
    budget = facts.get("budget")
    if budget is not None:
        lines.append(
            f"  spent: epsilon {budget['epsilon']:.4g} of {budget['limit']:g} at delta {budget['delta']:g} in "
            f"{budget['runs']} runs"
        )
    return "\n".join(lines)
