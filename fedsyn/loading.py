"""From YAML and `--set` to a checked configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedsyn.aggregation import make_aggregation
from fedsyn.config import RunConfig, explain, is_node
from fedsyn.errors import ConfigError
from fedsyn.registry import contract_class, partitioner


def _set(document: dict[str, Any], assignment: str) -> None:
    """Applies one `a.b=c` assignment; the value is read as YAML."""
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {assignment}: expected KEY.KEY=VALUE")
    keys = path.strip().split(".")
    node = document
    for key in keys[:-1]:
        child = node.setdefault(key, {})
        if isinstance(child, str) and key in ("mechanism", "partition"):
            child = node[key] = {"name": child}
        if child is None:
            child = node[key] = {}
        if not isinstance(child, dict):
            raise ConfigError(f"--set {assignment}: '{key}' is a value, not a group of keys")
        node = child
    try:
        node[keys[-1]] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {assignment}: the value is not valid YAML") from None


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
    check_config(config)
    return config


def check_config(config: RunConfig) -> None:
    """Checks what the models of `fedsyn.config` cannot know: names, options of plug-ins, combinations."""
    contract = contract_class(config.mechanism.name)
    contract.options_of(config)
    contract.check(config)
    make_aggregation(config.aggregation, config.federation.minimum_cohort).check(config.federation.clients)
    if config.runtime.engine != "deployment":
        # A SuperNode never partitions, and the base install need not hold what partitioners and metrics import.
        from fedsyn.evaluation import validate_metrics

        partitioner(config.federation.partition.name, **config.federation.partition.options)
        # Whether the table has a label is known once its schema is read; `runs.prepare` checks that.
        validate_metrics(config.evaluation, has_test=config.data.test_fraction > 0, label="unknown yet")


def load_config(path: Path | str, assignments: Sequence[str] = ()) -> RunConfig:
    """Reads a YAML configuration and applies `--set` assignments. File paths in it are relative to its folder."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"config: no such file: {file}")
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{file}: not valid YAML{at}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: expected a mapping of keys, found an empty or scalar document")
    _resolve_paths(document, file.resolve().parent)
    for assignment in assignments:
        _set(document, assignment)
    return parse_config(document, str(file))


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
