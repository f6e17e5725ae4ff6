"""A run's configuration as it may be published: in a saved model, and on a page that is for publication."""

from __future__ import annotations

import re
from typing import Any

from fedsyn.config import RunConfig

# Where it ran, and on what: nobody who gets the table needs to know.
_PLACES = ("operator", "operator_key", "ray", "superlink")


def published_config(config: RunConfig) -> dict[str, Any]:
    """The configuration without the folders and machines of its run; `RunConfig.model_validate` takes it.

    Of files there is the name alone, whatever system wrote the path. A mechanism or a partitioner that is named by the
    path of a module stays, and so do the parties' cards, which are public.

    >>> from fedsyn.loading import parse_config
    >>> given = {"data": {"source": "C:/ward 3/rows.csv", "schema": "~/me/s.yaml"}, "epsilon": 1, "delta": 1e-6}
    >>> data = published_config(parse_config(given))["data"]
    >>> data["source"], data["schema"]
    ('rows.csv', 's.yaml')
    """
    document = config.to_dict()
    data, runtime = document["data"], document.get("runtime", {})
    for key in ("source", "schema"):
        if data.get(key):
            data[key] = _name(data[key])
    if data.get("holders"):
        data["holders"] = [_name(file) for file in data["holders"]]
    for key in _PLACES:
        runtime.pop(key, None)
    return document


def _name(path: str) -> str:
    """The last part of a path, with either kind of slash."""
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return parts[-1] if parts else path
