"""Reads SWEEP.yaml, and makes its cells.

The file has a base configuration, the axes along which it varies, and seeds.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fedsyn import yamlio
from fedsyn.config import DEFAULT_CLIQUES, DEFAULT_MECHANISM, RunConfig, explain
from fedsyn.errors import ConfigError, nearest
from fedsyn.evaluation.real.metrics import INDEPENDENT
from fedsyn.loading import anchor_files, assign, flattened, names_file, parse_config, require_files, written_out
from fedsyn.settings import Node
from fedsyn.sweep.results import text

Combination = dict[str, Any]  # dotted key -> value

_SEED = "runtime.seed"
_MOST_CELLS = 100_000
_MOST_PROBLEMS = 8


class SweepNode(Node):
    """A sweep file.

    Cells are (list x grid x paired) x seeds. Every part may be left out.

    Attributes:
        base: path of a configuration, relative to the sweep file, or a configuration's keys themselves. File names
            are relative to the file that they stand in.
        overrides: `set` in YAML: dotted keys that replace values of the base in every cell.
        grid: dotted key -> values; every combination of them is taken.
        combinations: `list` in YAML: each entry is one combination of dotted keys.
        paired: groups of dotted keys whose value lists advance together.
        keep: `all` files of every cell, or `metrics`: no synthetic table and no model, which take most of the disk.
        baseline: each run also tells the metrics of independent columns, with the real rows' own marginals and without
            noise, and the tables have a line of them.
        labels: names for people, of keys, metrics, and values of axes; `independent` is the baseline's.
        caption: what the tables show, in words.
        seeds: run seeds; without them, the base's own (or none, and then noise is the operating system's).
    """

    base: str | dict[str, Any]
    overrides: Combination = Field(default_factory=dict, alias="set")
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    combinations: list[Combination] = Field(default_factory=list, alias="list")
    paired: list[dict[str, list[Any]]] = Field(default_factory=list)
    seeds: list[int] = Field(default_factory=list)
    keep: Literal["all", "metrics"] = "all"
    baseline: bool = False
    labels: dict[str, str] = Field(default_factory=dict)
    caption: str = ""

    @field_validator("overrides", "grid", "combinations", "paired", "seeds", mode="before")
    @classmethod
    def _commented_out(cls, value: Any, info: Any) -> Any:
        # A node whose entries are all commented out is YAML's null.
        return ({} if info.field_name in ("overrides", "grid") else []) if value is None else value

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: list[int]) -> list[int]:
        if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
            raise ValueError("seeds must be different integers of at least 0")
        return seeds

    @model_validator(mode="after")
    def _axes(self) -> SweepNode:
        for key, values in self.grid.items():
            _require_values(f"grid: '{key}'", values)
        for number, group in enumerate(self.paired):
            lengths = {key: len(values) for key, values in group.items()}
            for key, values in group.items():
                _require_values(f"paired {number + 1}: '{key}'", values, repeats=True)
            if len(set(lengths.values())) > 1:
                raise ValueError(f"paired {number + 1}: lists of equal length are needed, found {lengths}")
        listed = {key for entry in self.combinations for key in entry}
        groups = [listed, *({key} for key in self.grid), *(set(group) for group in self.paired)]
        if self.seeds:
            groups.append({_SEED})
        for one, other in itertools.combinations(groups, 2):
            for key, again in itertools.product(sorted(one), sorted(other)):
                if _overlap(key, again):
                    raise ValueError(f"the axes '{key}' and '{again}' set the same key")
        return self


def _require_values(where: str, values: list[Any], repeats: bool = False) -> None:
    if not values:
        raise ValueError(f"{where} has no values")
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    if not repeats and len(set(texts)) < len(texts):
        raise ValueError(f"{where} has the same value twice")


def _overlap(key: str, other: str) -> bool:
    return f"{other}.".startswith(f"{key}.") or f"{key}.".startswith(f"{other}.")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        id: stable: the same resolved configuration has the same id in every sweep and on every machine.
        axes: dotted key -> value of every key that the sweep's axes set for this cell.
        seed: the run's seed.
        config: the checked configuration.
    """

    id: str
    axes: Combination
    seed: int | None
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """A checked sweep.

    Attributes:
        name: of its file.
        document: the file's content with the base written out, for the record.
        cells: in the order list, grid, paired, seed, the last one fastest.
        keep, baseline: see `SweepNode`.
    """

    name: str
    document: dict[str, Any]
    cells: tuple[Cell, ...]
    keep: str = "all"
    baseline: bool = False


def load_sweep(path: Path | str) -> Sweep:
    """Reads a sweep and checks the configurations of all of its cells.

    Raises:
        ConfigError: the sweep or any cell's configuration is bad; the message names every kind of problem.
    """
    file = Path(path)
    document = yamlio.read_mapping(file)
    try:
        node = SweepNode(**document)
    except ValidationError as error:
        raise ConfigError(explain(error, SweepNode, str(file))) from None
    except TypeError:
        raise ConfigError(f"{file}: keys must be text; put quotes around names like 1 or true") from None
    folder = file.resolve().parent
    base = _base(node, folder, file)
    for key, value in node.overrides.items():
        assign(base, key, value, f"{file}: set")
    anchor_files(base, folder)
    cells = _cells(node, base, folder, file)
    _require_labels(node.labels, cells, file)
    return Sweep(file.stem, {**document, "base": base}, cells, node.keep, node.baseline)


def _base(node: SweepNode, folder: Path, file: Path) -> dict[str, Any]:
    if isinstance(node.base, dict):
        return written_out(copy.deepcopy(node.base), f"{file}: base")
    path = folder / node.base
    if not path.is_file():
        raise ConfigError(f"{file}: base: no such file: {path}")
    base = written_out(yamlio.read_mapping(path), str(path))
    anchor_files(base, path.resolve().parent)
    return base


def _combinations(node: SweepNode) -> list[Combination]:
    """Returns the product of all axes but the seeds."""
    parts: list[list[Combination]] = []
    if node.combinations:
        parts.append(node.combinations)
    parts += [[{key: value} for value in values] for key, values in node.grid.items()]
    for group in node.paired:
        parts.append([dict(zip(group, values, strict=True)) for values in zip(*group.values(), strict=True)])
    size = max(1, len(node.seeds))
    for part in parts:
        size *= len(part)
    if size > _MOST_CELLS:
        raise ConfigError(f"the sweep has {size:,} cells; more than {_MOST_CELLS:,} are refused")
    merged = []
    for chosen in itertools.product(*parts):
        combination: Combination = {}
        for piece in chosen:
            combination |= piece
        merged.append(combination)
    return merged


def _cells(node: SweepNode, base: dict[str, Any], folder: Path, file: Path) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    seeds: list[int | None] = [*node.seeds] or [None]
    problems: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    for combination in _combinations(node):
        for seed in seeds:
            label = _describe(combination, seed)
            try:
                cell = _cell(combination, seed, base, folder)
                if cell.id in seen:
                    raise ConfigError(f"is the same run as ({seen[cell.id]})")
            except ConfigError as error:
                problems.setdefault(str(error), []).append(label)
                continue
            seen[cell.id] = label
            cells.append(cell)
    # One line for each problem, with the first cell that has it.
    if problems:
        bad = sum(map(len, problems.values()))
        lines = [
            f"{text} [{len(labels)} cell{'s' if len(labels) > 1 else ''}, first: {labels[0]}]"
            for text, labels in itertools.islice(problems.items(), _MOST_PROBLEMS)
        ]
        more = len(problems) - len(lines)
        lines += [f"and {more} other problems"] if more else []
        details = f": {lines[0]}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
        raise ConfigError(f"{file}: {bad} of {bad + len(cells)} cells cannot run; nothing was started{details}")
    _require_one_workload(cells, file)
    return tuple(cells)


def _require_one_workload(cells: Sequence[Cell], file: Path) -> None:
    """Refuses cells whose workloads differ by default only.

    Cells may differ in their workload because the sweep says so, not because mechanisms have other
    defaults.
    """
    if len({cell.config.workload for cell in cells}) > 1 and not any(
        key.partition(".")[0] == "workload" for cell in cells for key in cell.axes
    ):
        raise ConfigError(
            f"{file}: names no workload, by default {DEFAULT_MECHANISM} has {DEFAULT_CLIQUES:,} cliques and the others "
            "fewer, and errors on different workloads do not compare: write 'workload.size: 64', say, under 'set'"
        )


def _require_labels(labels: Mapping[str, str], cells: Sequence[Cell], file: Path) -> None:
    """Refuses a label for what no table of the sweep shows."""
    known = {INDEPENDENT, *(name for cell in cells for name in cell.config.evaluation.metrics)}
    known |= {key for cell in cells for key in cell.axes} | {text(v) for cell in cells for v in cell.axes.values()}
    for key in labels:
        if key not in known:
            raise ConfigError(
                f"{file}: labels: the sweep has no key, metric or value '{key}'{nearest(key, sorted(known))}"
            )


def _cell(combination: Combination, seed: int | None, base: dict[str, Any], folder: Path) -> Cell:
    document = copy.deepcopy(base)
    for key, value in combination.items():
        assign(document, key, copy.deepcopy(value), "axis")
    if seed is not None:
        assign(document, _SEED, seed, "seeds")
    config = parse_config(document, "config", folder)
    if config.runtime.engine == "deployment":
        raise ConfigError(
            "runtime.engine: a sweep is for simulations: on real data holders every cell would spend their budget anew"
        )
    check_source(config)
    return Cell(cell_id(config, folder), flattened(combination), config.runtime.seed, config)


def check_source(config: RunConfig) -> None:
    """Refuses a misspelt data source, or a missing file.

    No table is loaded for that.
    """
    from fedsyn.table.data import dataset_names

    require_files(config.data)
    source, known = config.data.source, ["synthfs", *dataset_names()]
    if source not in known and not names_file(source) and not source.startswith(("openml:", "sklearn:")):
        raise ConfigError(f"data.source: unknown data source '{source}'{nearest(source, known)}")


def cell_id(config: RunConfig, folder: Path) -> str:
    """Returns the id of a cell: MECHANISM-SOURCE-sSEED-HASH.

    The hash is that of all settings in which the resolved configuration differs from the defaults.

    Files count by their place relative to the sweep's folder, so that a sweep keeps its ids where it is moved.
    """
    facts = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for key in ("source", "schema"):
        value = facts["data"].get(key)
        if isinstance(value, str) and Path(value).is_absolute():
            facts["data"][key] = Path(os.path.relpath(value, folder)).as_posix()
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]
    source = Path(config.data.source).name.split(".")[0]
    seed = "" if config.runtime.seed is None else f"-s{config.runtime.seed}"
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{config.mechanism.name[:24]}-{source[:24]}{seed}")
    return f"{words}-{digest}"


def _describe(combination: Combination, seed: int | None) -> str:
    parts = [f"{key}={value}" for key, value in combination.items()]
    return ", ".join([*parts, *([] if seed is None else [f"seed={seed}"])]) or "the base"
