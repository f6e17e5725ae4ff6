"""Writes the references in docs/reference from the models: configuration, options, services, schema, commands, fields.

Names, types, defaults and limits are those of the pydantic models, the texts those of their docstrings ("Attributes:"),
so nothing of it is written twice. `python docs/site/reference.py` writes the pages, `--check` says which are not
current (a test does).
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedsyn.config import DEFAULT_MECHANISM
from fedsyn.registry import contract_class
from fedsyn.settings import AggregationNode

FOLDER = Path(__file__).resolve().parents[1] / "reference"
_NOTE = "<!-- written by `python docs/site/reference.py`: change the docstrings of the models instead -->\n\n"
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n(?: {5,}.*)?)*)", re.MULTILINE)
_NULL = re.compile(r"\bNone(?=:| leaves| writes|$)")
_PAGE = re.compile(r"docs/(\w+)\.md")
_LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    dict: "mapping",
    Any: "any value",
}


#: What a configuration gets that names no protocol.
SAFE = contract_class(DEFAULT_MECHANISM).default_aggregation()

# What a model says --------------------------------------------------------------------------------------------------


def texts_of(model: type) -> dict[str, str]:
    """What the docstrings of a class and of its bases say under "Attributes", by name."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        documented = kind.__dict__.get("__doc__") or ""
        _, _, block = inspect.cleandoc(documented).partition("Attributes:\n")
        for names, text in _ENTRY.findall(re.split(r"^\S", block, maxsplit=1, flags=re.MULTILINE)[0]):
            for name in names.split(", "):
                found[name] = _PAGE.sub(r"[\1](../\1.md)", _NULL.sub("null", " ".join(text.split())))
    return found


def first_paragraph(model: type) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0].split())


def kind_of(annotation: Any) -> str:
    """A type in words."""
    if isinstance(annotation, str):
        return annotation
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(inner[0])
    if origin is Literal:
        return ", ".join(f"`{_plain(value)}`" for value in inner)
    if origin in (Union, types.UnionType):
        if {bool, int, float, str} <= set(map(_bare, inner)):
            return "value"
        return " or ".join(dict.fromkeys(kind_of(item) for item in inner if item is not type(None)))
    if origin in (tuple, list):
        items = list(dict.fromkeys(kind_of(item) for item in inner if item is not Ellipsis))
        count = "" if Ellipsis in inner or origin is list else f"{len(inner)} times "
        if items == ["keys of its own"]:
            return f"list of {len(inner)} such nodes"
        return f"list of {count}{' and '.join(items)}"
    if origin is dict or annotation is dict:
        return f"mapping of {kind_of(inner[0])} to {kind_of(inner[1])}" if inner else "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "keys of its own"
    if annotation in _WORDS:
        return _WORDS[annotation]
    return str(getattr(annotation, "__name__", annotation))


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def allowed(field: FieldInfo) -> str:
    """Type and limits of a field."""
    words = kind_of(field.annotation)
    limits = [
        f"{sign} {getattr(part, name)}"
        for part in field.metadata
        for name, sign in _LIMITS.items()
        if getattr(part, name, None) is not None
    ]
    return f"{words}, {', '.join(limits)}" if limits else words


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default_factory() if field.default_factory is not None else field.default  # type: ignore[call-arg]
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    return f"`{_plain(value)}`" if value != "" else "empty"


def _plain(value: Any) -> str:
    """A value as YAML has it."""
    if value in ("\u00a0", "\u202f", " "):
        return f"U+{ord(value):04X}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(_plain(item) for item in value)}]"
    if isinstance(value, dict) and not value:
        return "{}"
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(model: type[BaseModel], skip: tuple[str, ...] = (), prefix: str = "") -> list[str]:
    """The fields of a model as a Markdown table; [] without fields."""
    texts, rows = texts_of(model), []
    for name, field in model.model_fields.items():
        shown = field.alias or name
        if name in skip or _node(field) is not None:
            continue
        if model is AggregationNode and name in SAFE:
            field = FieldInfo.from_annotated_attribute(field.annotation, SAFE[name])
        cells = (f"`{prefix}{shown}`", allowed(field), default(field), texts.get(name, texts.get(shown, "")))
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return ["| key | allowed | default | what |", "|---|---|---|---|", *rows, ""] if rows else []


def _node(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a key that has keys of its own."""
    parts = [field.annotation, *get_args(field.annotation)]
    found = [kind for kind in parts if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return found[0] if found and get_origin(field.annotation) is not tuple else None


# The pages ----------------------------------------------------------------------------------------------------------


def configuration() -> str:
    """Every key of a run's configuration."""
    from fedsyn.config import RunConfig
    from fedsyn.settings import PartyCard

    lines = ["# Every key of a configuration", "", *_intro()]
    top = table(RunConfig)
    lines += ["## At the top", "", *top] if top else []
    for name, node in _nodes(RunConfig):
        lines += [f"## {name}", "", first_paragraph(node), "", *table(node)]
        if name == "aggregation":
            lines += [
                "Where no protocol is named, a run gets the one that trusts nobody. The default above is that of most",
                "mechanisms; [options](options.md) has each one's.",
                "",
            ]
        if name == "mechanism":
            lines += ["Its other keys are [options of the mechanism](options.md).", ""]
        if name == "federation.partition":
            lines += ["Its other keys are [options of the partitioner](options.md#partitioners).", ""]
    lines += ["## aggregation.parties[], aggregation.crypto", "", first_paragraph(PartyCard), "", *table(PartyCard)]
    return "\n".join(line for line in lines if line is not None)


def _intro() -> list[str]:
    return [
        "A configuration is a YAML file for `fedsyn run`, or a dictionary for `fedsyn.run`. Three keys are enough:",
        "",
        "```yaml",
        "data: patients.csv   # stands for data.source; schema.yaml lies beside it",
        "epsilon: 1           # stands for privacy.epsilon",
        "delta: 1e-6          # stands for privacy.delta",
        "```",
        "",
        "`--set KEY.KEY=VALUE` changes a key for one run. An unknown key is an error that names the nearest valid one.",
        "File names are relative to the configuration's folder.",
        "",
    ]


def _nodes(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        node = _node(field)
        if node is not None and node.__name__ != "PartyCard":
            yield f"{prefix}{field.alias or name}", node
            yield from _nodes(node, f"{prefix}{name}.")


def options() -> str:
    """The options of every mechanism and partitioner."""
    from fedsyn.registry import MECHANISMS, PARTITIONERS, load

    lines = [
        "# Options of mechanisms and partitioners",
        "",
        "They stand beside the name: `mechanism: {name: sketch_aim, rounds: 5}`. What they mean in the algorithm is in",
        "[mechanisms](../mechanisms.md). Options that only serve a comparison are in `experiments/variants`.",
        "",
    ]
    seen: dict[type, str] = {}
    for name, entry in MECHANISMS.items():
        if not entry.strategy.startswith("fedsyn.plugins."):
            continue
        contract = contract_class(name)
        model, safe = contract.Options, contract.default_aggregation()
        shown = ", ".join(f"`{key}: {value}`" for key, value in safe.items())
        lines += [
            f"## {name}",
            "",
            f"{entry.summary[:1].upper() + entry.summary[1:]} ({entry.source}). Without `aggregation`: {shown}.",
            "",
        ]
        if model in seen:
            lines += [f"The options of [`{seen[model]}`](#{seen[model]}).", ""]
            continue
        seen[model] = name
        lines += table(model) or ["No options.", ""]
        for key, node in _nodes(model):
            lines += [f"Below `{key}`:", "", *table(node, prefix=f"{key}.")]
    lines += [
        "## Partitioners",
        "",
        "How a simulation splits a table: `federation: {partition: {name: dirichlet}}`.",
        "",
    ]
    for name, path in PARTITIONERS.items():
        kind = load(path, "partitioner")
        lines += [f"### {name}", "", first_paragraph(kind), ""]
        lines += table(kind) or ["No options.", ""]
    return "\n".join(lines)


def services() -> str:
    """The files of a node and of a party, with their policies."""
    from fedsyn.node.file import NodeFile
    from fedsyn.stores.parties.policy import PartyFile

    lines = [
        "# Every key of node.yaml and party.yaml",
        "",
        "What a [node](../node.md) and a [party](../parties.md) agree to; no server can loosen any of it. An unknown",
        "key is an error that names the nearest valid one.",
        "",
    ]
    for file, model in (("node.yaml", NodeFile), ("party.yaml", PartyFile)):
        lines += [f"## {file}", "", first_paragraph(model), "", *table(model), ""]
        for name, node in _nodes(model):
            lines += [f"## {file}: {name}", "", first_paragraph(node), "", *table(node), ""]
    return "\n".join(lines)


def metrics() -> str:
    """The metrics that a configuration may name."""
    from fedsyn.evaluation.inputs import PROJECTS
    from fedsyn.registry import METRICS, metric

    needs = {
        "test": "held-out rows",
        "label": "label",
        "model": "model",
        "partition": "clients",
        "two_attributes": "2 attributes",
        "three_attributes": "3 attributes",
        "two_numeric": "2 numeric attributes",
        "label_values": "numeric label",
    }
    lines = [
        "# Metrics",
        "",
        "Names for `evaluation: [NAME, ...]`. How they are computed: [quality and metrics](../metrics.md#metrics).",
        "",
        "| name | what | better | needs |",
        "|---|---|---|---|",
    ]
    for name in METRICS:
        found = metric(name)
        words = [needs[part] for part in needs if part in found.needs]
        words += [PROJECTS[package][0] for package in found.packages]
        better = "-" if "partition" in found.needs else found.better
        lines.append(f"| `{name}` | {found.summary} | {better} | {', '.join(words) or '-'} |")
    return "\n".join(lines)


def schema() -> str:
    """Every key of a schema."""
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema import rules as constraints
    from fedsyn.table.schema.column_base import ASIDE, ColumnBase
    from fedsyn.table.schema.columns import KINDS

    own = ("aside", "derived", "table", "open", "columns", "constraints")
    lines = [
        "# Every key of a schema",
        "",
        "A schema is a YAML file: `columns`, a mapping of each column's name to its keys in the table's order, and",
        "what concerns the whole table. `fedsyn init` and `fedsyn schema draft` propose one.",
        "",
        "```yaml",
        "columns:",
        "  age:  {kind: integer, lower: 0, upper: 110}",
        "  ward: {kind: categorical, categories: [north, south], other: false}",
        "  name: {kind: drop}",
        "constraints: ['age <= 110']",
        "label: ward",
        "```",
        "",
        "## The table",
        "",
        "| key | allowed | default | what |",
        "|---|---|---|---|",
        "| `columns` | mapping | **required** | Each column's name and its keys, below. |",
        "| `constraints` | list | `[]` | What holds in every row; [forms below](#constraints). |",
        *table(Schema, skip=own)[2:],
        "## Every column",
        "",
        *table(ColumnBase, skip=("kind",)),
    ]
    lines += _kinds({**KINDS, **ASIDE})
    lines += ["## Constraints", ""]
    for rule in (
        constraints.Comparison,
        constraints.SumRule,
        constraints.Determined,
        constraints.Impossible,
        constraints.When,
        constraints.Dropout,
        constraints.MissingWhere,
        constraints.ZeroTogether,
        constraints.Nested,
    ):
        lines += [f"- {first_paragraph(rule)}"]
    lines += ["", "```text", *_forms(constraints.__doc__ or ""), "```", ""]
    return "\n".join(lines)


def _kinds(kinds: dict[str, Any]) -> list[str]:
    """A section of each kind of column; what a family shares stands once."""
    from fedsyn.table.schema.binned import BinnedColumn
    from fedsyn.table.schema.column_base import ColumnBase
    from fedsyn.table.schema.columns import CategoricalColumn

    lines = [
        "## Ordered kinds",
        "",
        "`numeric`, `integer`, `decimal`, `date`, `time`, `datetime` and `duration` share these keys. Bounds and edges",
        "are numbers, or text in ISO 8601. `private` in the place of bounds or bins has the run find them.",
        "",
        *table(BinnedColumn, skip=tuple(ColumnBase.model_fields)),
    ]
    for name, kind in kinds.items():
        skip = {"kind", *ColumnBase.model_fields}
        lines += [f"## kind: {name}", "", first_paragraph(kind), ""]
        if issubclass(kind, BinnedColumn):
            skip |= set(BinnedColumn.model_fields)
            lines += ["The keys of [ordered kinds](#ordered-kinds), and:", ""]
        elif issubclass(kind, CategoricalColumn) and kind is not CategoricalColumn:
            skip |= set(CategoricalColumn.model_fields)
            lines += [
                "The keys of [categorical](#kind-categorical), and:"
                if name != "boolean"
                else "It has no categories of its own.",
                "",
            ]
        rows = table(kind, skip=tuple(skip))
        lines += rows or ["No further keys.", ""]
    return lines


def _forms(text: str) -> list[str]:
    return [line[4:] for line in text.splitlines() if line.startswith("    ")]


def fields() -> str:
    """Every field of every message, and why its receiver need not trust it."""
    from docs.site.fields import CHAPTERS
    from fedsyn.registry import client_class, mechanisms

    names: dict[str, str] = {}
    for name in mechanisms():
        for record in client_class(name).requests.values():
            names[f"{record.__module__.rpartition('.')[2]}.{record.__name__}"] = record.name
    lines = [
        "# Every field of a message",
        "",
        "A server may send anything. Each field of what a node, a client, a computing party or a crypto party gets is",
        "*derived* by its receiver from the configuration that it pinned, and compared; or *bounded*: whatever passes",
        "the check costs what the receiver's own ledger says; or it is *the sender's word*, and the last column says",
        "what a lie buys. `tests/unit/wire/test_fields.py` finds the fields in the code, fails on one that is",
        "missing here, and names an attack on every word. Who colludes with whom is in [privacy](../privacy.md),",
        "[secure sums](../secure_sums.md), [parties](../parties.md) and [fhe](../fhe.md).",
        "",
    ]
    for title, (about, messages) in CHAPTERS.items():
        lines += [f"## {title}", "", about, ""]
        lines += ["| message | field | is | by what | what a lie buys |", "|---|---|---|---|---|"]
        for message, register in messages.items():
            shown = f"`{names[message]}` ({message})" if message in names else message
            if not register:
                lines += [f"| {shown} | none | - | - | - |"]
            for line in register:
                whose = ", ".join(f"`{field}`" for field in line.fields)
                trust = f"**{line.trust}**" if line.buys else line.trust
                cells = (shown, whose, trust, line.check, line.buys or "-")
                lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments and options."""
    from fedsyn.front.cli import app

    lines = [
        "# Every command",
        "",
        "`fedsyn COMMAND --help` prints the same. Exit codes: 0 done, 1 it failed, 2 wrong",
        "input (one sentence says what to change; nothing was spent).",
        "",
    ]
    root = typer.main.get_command(app)
    for name, command in _commands(root, "fedsyn"):
        lines += [
            f"## {name}",
            "",
            inspect.cleandoc(command.help or ""),
            "",
            "```text",
            _usage(name, command),
            "```",
            "",
        ]
        options = [
            parameter
            for parameter in command.params
            if isinstance(parameter, click.Option) or parameter.param_type_name == "option"
        ]
        rows = [_option(parameter) for parameter in options if not getattr(parameter, "hidden", False)]
        lines += ["| option | default | what |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for own, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from _commands(inner, f"{name} {own}")
        else:
            yield f"{name} {own}", inner


def _usage(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    return " ".join([name, "[OPTIONS]", *(_shown(p) for p in arguments)]).strip()


def _shown(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    value = "" if parameter.is_flag else f" {parameter.metavar or str(parameter.type.name).upper()}"
    shown = "required" if parameter.required else ""
    if not shown and parameter.default not in (None, False, ()) and not callable(parameter.default):
        shown = f"`{_plain(parameter.default)}`"
    return f"| `{parameter.opts[0]}{value}` | {shown} | {_cell(parameter.help or '')} |"


PAGES = {
    "configuration.md": configuration,
    "options.md": options,
    "services.md": services,
    "metrics.md": metrics,
    "schema.md": schema,
    "commands.md": commands,
    "fields.md": fields,
}


def written() -> dict[str, str]:
    """Every page by name, as it has to be."""
    tidy = {name: re.sub(r"\n{3,}", "\n\n", make()).strip() + "\n" for name, make in PAGES.items()}
    return {name: text.replace("\n", "\n\n" + _NOTE.strip() + "\n", 1) for name, text in tidy.items()}


def main(check: bool) -> int:
    stale = [name for name, text in written().items() if _now(FOLDER / name) != text]
    if check:
        print(f"not current: {', '.join(stale)}" if stale else "current")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in written().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _now(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
