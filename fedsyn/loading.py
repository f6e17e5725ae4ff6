"""From YAML, `--set` and plain dictionaries to a checked configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsyn import yamlio
from fedsyn.config import RunConfig, explain, is_node
from fedsyn.errors import ConfigError, nearest


def load_config(path: Path | str, assignments: Sequence[str] = ()) -> RunConfig:
    """Reads a YAML configuration and applies `--set` assignments. File paths in it are relative to its folder."""
    document = yamlio.read_mapping(path)
    _resolve_paths(document, Path(path).resolve().parent)
    for assignment in assignments:
        where = f"--set {assignment}"
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{where}: expected KEY.KEY=VALUE")
        assign(document, key.strip(), yamlio.loads(text, where), where)
    return parse_config(document, str(path))


def parse_config(document: Any, where: str = "config") -> RunConfig:
    """A checked configuration from a mapping; ConfigError names every problem."""
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: expected a mapping of keys, found {type(document).__name__}")
    # A node without keys (`federation:`, all of its keys commented out) is YAML's null and means the defaults.
    nodes = {key for key, field in RunConfig.model_fields.items() if is_node(field.annotation)}
    document = {key: value for key, value in document.items() if value is not None or key not in nodes}
    try:
        config = RunConfig(**document)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig, where)) from None
    except TypeError:
        raise ConfigError(f"{where}: every key must be a string") from None
    from fedsyn.registry import check_config

    check_config(config, where)
    return config


def assign(document: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Puts a value at a dotted key of a configuration; groups of keys on the way are made where they are missing.

    Raises:
        ConfigError: `key` is none, or goes through a value; `where` says who asked for it.
    """
    keys = key.split(".") if isinstance(key, str) else []
    if not all(keys) or not keys:
        raise ConfigError(f"{where}: '{key}' is not a key like privacy.epsilon")
    if keys[0] not in RunConfig.model_fields:
        raise ConfigError(f"{where}: unknown key '{key}'{nearest(keys[0], RunConfig.model_fields)}")
    node = document
    for part in keys[:-1]:
        child = node.get(part)
        if isinstance(child, str) and part in ("mechanism", "partition"):
            child = {"name": child}
        if child is None:
            child = {}
        if not isinstance(child, dict):
            raise ConfigError(f"{where}: '{key}': '{part}' is a value, not a group of keys")
        node[part] = child
        node = child
    node[keys[-1]] = value


def _resolve_paths(document: dict[str, Any], folder: Path) -> None:
    """Makes the file names of the data node absolute where they exist beside the configuration file."""
    data = document.get("data")
    if not isinstance(data, dict):
        return
    for key in ("source", "schema"):
        value = data.get(key)
        if isinstance(value, str) and not Path(value).is_absolute():
            beside = folder / value
            looks_like_file = "/" in value or Path(value).suffix in {
                ".csv",
                ".gz",
                ".parquet",
                ".yaml",
                ".yml",
            }
            if looks_like_file and beside.exists():
                data[key] = str(beside)
