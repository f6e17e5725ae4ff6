"""`fedsyn init FILE`: a configuration and a drafted schema for one's own table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsyn.front.cli.console import ForceOption, may_write, out_console, writing
from fedsyn.front.cli.schemas import (
    BinsOption,
    DecimalOption,
    EncodingOption,
    HeaderOption,
    KeepOption,
    LabelOption,
    SeparatorOption,
    SheetOption,
    SkipRowsOption,
    drafted,
    file_options,
)
from fedsyn.output import say

# Digits of 1 / delta, until somebody says otherwise: fewer rows than that are in most tables of people.
_DELTA = "1.0e-6"


def init(
    files: Annotated[list[str], typer.Argument(help="Your table, or one file per holder.", metavar="FILE")],
    label: LabelOption = None,
    keep: KeepOption = None,
    bins: BinsOption = None,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    decimal: DecimalOption = None,
    sheet: SheetOption = None,
    header: HeaderOption = None,
    skip_rows: SkipRowsOption = None,
    force: ForceOption = False,
) -> None:
    """Write run.yaml and a draft schema.yaml for your own table to this folder, and print the next steps."""
    from fedsyn.front.cli.drafts import show_draft

    config, described = Path("run.yaml"), Path("schema.yaml")
    for path in (config, described):
        may_write(path, force)
    options = file_options(separator, encoding, decimal, sheet, header, skip_rows)
    cells, guesses, holding, draft = drafted(files, options, bins, label, keep or ())
    text = config_text(files, cells.options.said())
    for path, content in ((described, draft), (config, text)):
        with writing(path):
            path.write_text(content, encoding="utf-8")
    show_draft(out_console, guesses, holding, cells.notes, len(cells.frame), files[0] if len(files) == 1 else "")
    data = " ".join(f"--data {shlex.quote(file)}" for file in files)
    say(
        f"run.yaml, schema.yaml: written. Put public knowledge in place of what schema.yaml lists under 'drafted', "
        f"and look at epsilon and delta in run.yaml. Then:\n"
        f"  fedsyn schema review schema.yaml {data}\n"
        f"  fedsyn run run.yaml"
    )


def config_text(files: Sequence[str], options: dict[str, Any]) -> str:
    """A configuration: the three keys that are needed, and every other one as a comment with its default."""
    from fedsyn import yamlio
    from fedsyn.loading import parse_config

    written: dict[str, Any] = {"source": files[0] if len(files) == 1 else list(files), "schema": "schema.yaml"}
    written |= {"options": options} if options else {}
    data = yamlio.dumps({"data": written}).rstrip()
    needed: dict[str, Any] = {"data": written["source"], "epsilon": 1.0, "delta": float(_DELTA)}
    alone = len(files) == 1
    defaults = parse_config(needed | ({"federation": {"clients": 1}} if alone else {})).to_dict()
    known = {"data": ("source", "schema", "holders", "options"), "privacy": ("epsilon", "delta")}
    known["federation"] = ("clients",) if alone else ("clients", "partition")
    parts = []
    for node, why in _NODES.items():
        value = defaults[node]
        if isinstance(value, dict):
            value = {key: inner for key, inner in value.items() if key not in known.get(node, ())}
        comments = [f"# {line}" for line in yamlio.dumps({node: value}).rstrip().splitlines()]
        if node == "data":
            parts.append("\n".join(comments[1:]))
        elif node == "federation" and alone:
            parts.append(f"# {why}\n{_ALONE}\n" + _indented("\n".join(comments[1:])))
        elif node == "synthesis" and all(file.lower().endswith(".parquet") for file in files):
            parts.append(f"# {why}\n{_PARQUET}")
        else:
            parts.append(f"# {why}\n" + "\n".join(comments))
    own = f"{_HEAD}{data}\n{_indented(parts[0])}\n{_BUDGET}"
    return own + "\n\n" + "\n\n".join(parts[1:]) + "\n"


def _indented(comments: str) -> str:
    """Comments that stand inside the mapping above them: `#   key: value` becomes `  # key: value`."""
    return "\n".join(f"  # {line.removeprefix('#   ')}" for line in comments.splitlines())


_HEAD = """\
# A run: fedsyn run run.yaml
# What is written out is needed; what is commented out shows its default.
"""
_BUDGET = f"""\
# The promise: (epsilon, delta)-differential privacy of each row. 1 is strong, 10 is weak.
epsilon: 1.0
# Well below 1 / the number of rows; choose it by public knowledge of how many there are, not by counting.
delta: {_DELTA}"""
_ALONE = """\
federation:
  clients: 1 # one file is one holder, who adds the noise; 10, say, would be a simulation of ten"""
_PARQUET = """\
synthesis:
  format: parquet # as the table came, with its types
  # rows: null"""
#: Groups of keys, in the order of a file, with what they are for.
_NODES = {
    "data": "",
    "mechanism": "How the synthetic table is learned (fedsyn mechanisms; docs/mechanisms.md).",
    "federation": "How many holders there are, and how one table is split between them in a simulation.",
    "privacy": "More about the promise; epsilon and delta stand at the top.",
    "workload": "Which combinations of columns should come out well.",
    "aggregation": "Who can see what: secure sums, and noise that no single party knows. Trust has to be asked for.",
    "inference": "How the model is fitted.",
    "synthesis": "The table that is written; rows: as many as there are, with noise, unless a number is given.",
    "evaluation": "Metrics against the real rows (docs/metrics.md). They are not private.",
    "runtime": "Where it runs. A seed makes a run repeatable, and its table unfit for release.",
}
