"""The run's configuration on its way through Flower.

This module decides what is submitted, and how both doors read it.

`fedsyn run` submits the resolved configuration itself, as JSON. `flwr run` typed by hand names a file of the app, which
server and clients then read each for itself; only a simulation may be started so. Clients import this module for every
message: it stays light. `published_config` is the configuration as it may be published: in a saved model, and on a page
that is for publication.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.loading import load_config, parse_config

if TYPE_CHECKING:
    from fedsyn.table.schema import Schema


#: The folder of the app: the checkout, or where Flower unpacked what was submitted.
APP_DIR = Path(__file__).resolve().parents[2]


def run_config_of(
    config: RunConfig,
    *,
    store: Path | None = None,
    schema: Schema | None = None,
    out: Path | None = None,
    run: str = "",
    order: str = "",
    reply: str = "",
    resume: bool = False,
) -> dict[str, str]:
    """Returns the Flower run configuration of a prepared run.

    It is the resolved configuration itself, and what the run needs beside it.

    Args:
        config: the configuration.
        store: folder of a simulation's prepared tables.
        schema: a deployment's schema.
        out: run directory.
        run: a deployment's own name of the run, the same when it is resumed.
        order: the operator's signature under the run.
        reply: public key of the starter, to which the run directory is sent if it does not share the disk.
        resume: the run was begun before; its journal must be there.
    """
    document = config.to_dict()
    document["runtime"].pop("operator_key", None)  # the place of a secret is nobody else's business
    return {
        "resolved": json.dumps(document, separators=(",", ":")),
        "store": "" if store is None else str(store),
        "schema": "" if schema is None else schema.dumps(),
        "out": "" if out is None else str(out),
        "run": run,
        "order": order,
        "reply": reply,
        "resume": "yes" if resume else "",
    }


def config_of(run_config: Mapping[str, Any], nodes: int = 0) -> RunConfig:
    """Returns the run's configuration from Flower's.

    It is `resolved`, or else `config`, a file of the app, with `set` assignments.

    Args:
        run_config: of the context.
        nodes: number of simulated nodes. `flwr run` typed by hand decides it before this app is asked, so a simulation
            that was not prepared by `fedsyn run` has that many clients, whatever its file says.

    Raises:
        ConfigError: a bad configuration; or a file outside the app, or one for a deployment.
    """
    if is_resolved(run_config):
        return _resolved(str(run_config["resolved"]))
    return _from_app(str(run_config.get("config", "")), str(run_config.get("set", "")), nodes)


def is_resolved(run_config: Mapping[str, Any]) -> bool:
    """Returns whether the configuration itself travels with the run.

    Then reading it opens no file.
    """
    return bool(run_config.get("resolved"))


def store_of(run_config: Mapping[str, Any]) -> Path:
    """Returns the encoded table's folder for a typed `flwr run`.

    Both sides derive it.
    """
    from fedsyn.table.data.fetch import cache_dir

    named = json.dumps([str(run_config.get(key, "")) for key in ("config", "set")])
    return cache_dir() / "stores" / hashlib.sha256(named.encode()).hexdigest()[:24]


@lru_cache(maxsize=4)
def _resolved(text: str) -> RunConfig:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("the run's resolved configuration is not JSON") from None
    return parse_config(document, "the run's configuration")


@lru_cache(maxsize=4)
def _from_app(name: str, assignments: str, nodes: int) -> RunConfig:
    file = (APP_DIR / name).resolve()
    if not file.is_relative_to(APP_DIR):
        raise ConfigError("config: 'flwr run' takes a configuration of the app's own folder; 'fedsyn run' takes any")
    overrides = [text.strip() for text in assignments.split(";") if text.strip()]
    if nodes:
        overrides.append(f"federation.clients={nodes}")
    # Server and clients run in folders of Flower's choice: file names in assignments are relative to the app's, too.
    config = load_config(file, overrides, APP_DIR)
    if config.runtime.engine == "deployment":
        raise ConfigError(
            "'fedsyn run' starts a deployment, not 'flwr run': its nodes open no file of the run's choice"
        )
    return config


# Where it ran, and on what: nobody who gets the table needs to know.
_PLACES = ("operator", "operator_key", "ray", "superlink")


def published_config(config: RunConfig) -> dict[str, Any]:
    """Returns the configuration without its run's folders and machines.

    `RunConfig.model_validate` takes it.

    Of files there is the name alone, whatever system wrote the path; of a key not even that. A mechanism or a
    partitioner that is named by the path of a module stays, and so do the parties' cards, which are public.

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
    for key in ("holders", "persons"):
        if data.get(key):
            data[key] = [_name(file) for file in data[key]]
    data["options"].pop("key_file", None)
    for key in _PLACES:
        runtime.pop(key, None)
    return document


def _name(path: str) -> str:
    """Returns the last part of a path, with either slash."""
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return parts[-1] if parts else path
