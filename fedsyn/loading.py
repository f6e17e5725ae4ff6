"""Loading of a checked configuration.

It comes from YAML, `--set` or a dictionary. Every file name becomes absolute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsyn import yamlio
from fedsyn.config import DEFAULT_MECHANISM, FORMAT, DataNode, RunConfig, check_format, explain, is_node
from fedsyn.errors import ConfigError, nearest
from fedsyn.registry import contract_class, metric, partitioner

#: Keys of `privacy` that may stand at the top.
BUDGET = ("epsilon", "delta")


def load_config(path: Path | str, assignments: Sequence[str] = (), folder: Path | None = None) -> RunConfig:
    """Reads a YAML configuration and applies `--set` assignments.

    Args:
        path: of the file. File names in it are relative to its folder.
        assignments: KEY.KEY=VALUE each, the value in YAML. The last one wins.
        folder: what file names in assignments are relative to; default: the current folder.

    Raises:
        ConfigError: the file, an assignment or the configuration is bad; names every problem of a configuration.
    """
    document = written_out(yamlio.read_mapping(path), str(path))
    anchor_files(document, Path(path).resolve().parent)
    read_cards(document, Path(path).resolve().parent)
    for assignment in assignments:
        where = f"--set {assignment}"
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{where}: expected KEY.KEY=VALUE")
        assign(document, key.strip(), yamlio.loads(text, where), where)
    read_cards(document, folder or Path.cwd())
    anchor_files(document, folder)
    find_schema(document)
    return parse_config(document, f"{path} with --set" if assignments else str(path), folder)


def parse_config(document: Any, where: str = "config", folder: Path | None = None) -> RunConfig:
    """Returns a checked configuration from a mapping of keys.

    Opens no file, and looks for none.

    Args:
        document: the keys, as in YAML; left as it is.
        where: what to call it in an error message.
        folder: what file names are relative to; default: the current folder. They are absolute in the result.

    Raises:
        ConfigError: names every problem.
    """
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: expected a mapping of keys, found {type(document).__name__}")
    # A node without keys (`federation:`, all of its keys commented out) is YAML's null and means the defaults.
    nodes = {key for key, field in RunConfig.model_fields.items() if is_node(field.annotation)}
    document = {key: value for key, value in document.items() if value is not None or key not in nodes}
    check_format({"format": FORMAT, **document}, where)  # nobody has to write it
    document.pop("format", None)
    document = written_out(document, where)
    anchor_files(document, folder)
    try:
        config = RunConfig(**protected(document))
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig, where)) from None
    except TypeError:
        raise ConfigError(f"{where}: keys must be text; put quotes around names like 1 or true") from None
    check_config(config)
    return config


def released_config(document: Any, where: str) -> RunConfig:
    """Returns the configuration of a finished run from its mapping.

    Its plug-ins are not looked at.

    The mechanism's name may be the path of any module: none is imported, and its options are not checked.

    Raises:
        ConfigError: names every other problem.
    """
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{where}: expected a mapping of keys")
    check_format(document, where)
    try:
        return RunConfig.model_validate({key: value for key, value in document.items() if key != "format"})
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig, where)) from None


def check_config(config: RunConfig) -> None:
    """Checks what the models of `fedsyn.config` cannot know.

    These are names, options of plug-ins, and combinations.
    """
    contract = contract_class(config.mechanism.name)
    contract.options_of(config)
    contract.trusted(config).check(config.federation.clients)
    contract.check(config)
    if config.runtime.engine != "deployment":
        # A SuperNode never partitions, and the base install need not hold what partitioners and metrics import.
        partitioner(config.federation.partition.name, **config.federation.partition.options)
        # Whether the table has a label is known once its schema is read; `runs.prepare` checks that.
        for name in config.evaluation.metrics:
            metric(name).require(bool(config.data.test_fraction), "unknown yet")


def protected(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration with a protocol that trusts nobody.

    Nothing changes if it names a protocol. Trust is asked for, never assumed.
    """
    node = document.get("aggregation", {})
    if not isinstance(node, dict) or node.get("protocol") is not None:
        return document
    mechanism = document.get("mechanism", DEFAULT_MECHANISM)
    chosen = mechanism.get("name", DEFAULT_MECHANISM) if isinstance(mechanism, dict) else mechanism
    if not isinstance(chosen, str):
        return document  # the model says what is wrong
    federation = document.get("federation")
    alone = isinstance(federation, dict) and federation.get("clients") == 1
    defaults = contract_class(chosen).default_aggregation(alone=alone)
    return {**document, "aggregation": {**defaults, **{key: value for key, value in node.items() if key != "protocol"}}}


def written_out(document: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns a configuration's short forms in full.

    Short are `data: FILE`, and `epsilon` and `delta` at the top.

    A list of files, `data: [FILE, FILE]`, has one of each client.

    Raises:
        ConfigError: a budget is given in both places.
    """
    document = dict(document)
    if isinstance(document.get("data"), str | list):
        document["data"] = {"source": document["data"]}
    _one_file_a_client(document)
    for key in BUDGET:
        privacy = document.get("privacy") or {}
        if key in document and isinstance(privacy, dict):
            if key in privacy:
                raise ConfigError(
                    f"{where}: '{key}' is given twice, at the top and as 'privacy.{key}'; keep one of them"
                )
            document["privacy"] = {**privacy, key: document.pop(key)}
    return document


def _one_file_a_client(document: dict[str, Any]) -> None:
    """Writes out a list of files under `data.source`.

    Each is a client's, and nobody has to say how many there are.
    """
    data, federation = document.get("data"), document.get("federation")
    if not isinstance(data, dict) or not isinstance(data.get("source"), list):
        return
    files = data["source"]
    if not files or not all(isinstance(file, str) for file in files):
        return  # the model says what is expected
    document["data"] = {**data, "source": files[0], "holders": files}
    if federation is None or isinstance(federation, dict):
        document["federation"] = {"clients": len(files), "partition": "native", **(federation or {})}


def find_schema(document: dict[str, Any]) -> None:
    """Adds the schema beside a table's file to a configuration.

    Nothing changes if the configuration names a schema.

    The schema is NAME.schema.yaml of NAME.csv, else schema.yaml. It is looked for where a configuration is read
    from a file or handed over in Python, never where one arrives in a message.
    """
    data = document.get("data")
    if not isinstance(data, dict) or data.get("schema") is not None or not isinstance(data.get("source"), str):
        return
    if names_file(data["source"]):
        source = Path(data["source"])
        beside = (source.with_name(f"{source.name.split('.')[0]}.schema.yaml"), source.with_name("schema.yaml"))
        schema_file = next((file for file in beside if file.is_file()), None)
        if schema_file is not None:
            document["data"] = {**data, "schema": str(schema_file)}


def assign(document: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Sets a value at a dotted key of a configuration.

    Groups of keys on the way are made where they are missing.

    Raises:
        ConfigError: `key` is none, or goes through a value; `where` says who asked for it.
    """
    keys = key.split(".") if isinstance(key, str) else []
    if len(keys) == 1 and keys[0] in BUDGET:
        keys = ["privacy", *keys]
    if not all(keys) or not keys:
        raise ConfigError(f"{where}: '{key}' is not a key like privacy.epsilon")
    if keys[0] not in RunConfig.model_fields:
        raise ConfigError(f"{where}: unknown key '{key}'{nearest(keys[0], [*RunConfig.model_fields, *BUDGET])}")
    node = document
    for part in keys[:-1]:
        child = node.get(part)
        if isinstance(child, str) and part in ("mechanism", "partition", "data"):
            child = {"source" if part == "data" else "name": child}
        if part == "evaluation" and isinstance(child, str | list):
            child = {"metrics": child}
        if child is None:
            child = {}
        if not isinstance(child, dict):
            raise ConfigError(f"{where}: '{key}': '{part}' is a value, not a group of keys")
        node[part] = child
        node = child
    node[keys[-1]] = value


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of nested keys by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def anchor_files(document: dict[str, Any], folder: Path | None = None) -> None:
    """Makes the file names of a configuration absolute.

    They are those of the table, the schema and the operator's folder.

    A name means one place: it is not looked for, so that no file elsewhere can take its place unnoticed.

    Args:
        document: the configuration's keys; its nodes with files are replaced.
        folder: what relative names are relative to; default: the current folder.
    """
    named = (
        ("data", "source", names_file),
        ("data", "schema", bool),
        ("runtime", "operator", bool),
        ("runtime", "operator_key", bool),
    )
    for node, key, is_file in named:
        value = document[node].get(key) if isinstance(document.get(node), dict) else None
        if isinstance(value, str) and is_file(value):
            document[node] = {**document[node], key: str((folder or Path.cwd()) / value)}
    data = document.get("data")
    if isinstance(data, dict) and data.get("persons") and isinstance(data["persons"], str | list):
        files = data["persons"] if isinstance(data["persons"], list) else [data["persons"]]
        files = [str((folder or Path.cwd()) / file) if isinstance(file, str) else file for file in files]
        document["data"] = data = {**data, "persons": files}
    if isinstance(data, dict) and isinstance(data.get("holders"), list):
        files = [str((folder or Path.cwd()) / file) if isinstance(file, str) else file for file in data["holders"]]
        document["data"] = {**data, "holders": files}


def read_cards(document: dict[str, Any], folder: Path) -> None:
    """Replaces files' names by the computing parties' cards in them.

    They stand under `aggregation.parties` and `aggregation.crypto`.

    Who agrees to the configuration then agrees to their keys.

    Raises:
        ConfigError: a file is not there, or is no YAML.
    """
    node = document.get("aggregation")
    if isinstance(node, dict) and isinstance(node.get("parties"), list):
        cards = [yamlio.read_mapping(folder / card) if isinstance(card, str) else card for card in node["parties"]]
        document["aggregation"] = node = {**node, "parties": cards}
    if isinstance(node, dict) and isinstance(node.get("crypto"), str):
        document["aggregation"] = {**node, "crypto": yamlio.read_mapping(folder / node["crypto"])}


def names_file(source: str) -> bool:
    """Returns whether a data source is a file's name.

    It is not if the table is registered, generated or downloaded.
    """
    from fedsyn.table.data.opening import SUFFIXES

    return not source.startswith(("openml:", "sklearn:")) and ("/" in source or source.lower().endswith(SUFFIXES))


def require_files(data: DataNode, *, source: bool = True) -> None:
    """Looks for the files that a configuration names.

    Args:
        data: of the configuration.
        source: whether its table is needed, too; a deployment's server has none.

    Raises:
        ConfigError: names the place that was looked at, and says which places a name can mean.
    """
    files = [("source", file) for file in data.holders or [data.source] if source and names_file(file)]
    files += [("persons", file) for file in data.persons or () if source]
    for key, file in [*files, ("schema", data.schema_file)]:
        if file and not Path(file).is_file():
            path = Path(file)
            if path.is_dir():
                raise ConfigError(f"data.{key}: {path} is a folder: name a file in it")
            if path.exists():
                raise ConfigError(f"data.{key}: {path} is a pipe or a device, not a file: copy it to a file")
            present = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
            raise ConfigError(
                f"data.{key}: no such file: {path}{nearest(path.name, present)}; a file name in a configuration is "
                f"relative to its folder, one in --set or from Python to the current one ({Path.cwd()})"
            )
