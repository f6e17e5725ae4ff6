"""Runs an experiment of this folder, compares its results with expected.yaml, and draws them.

    python experiments/check.py NAME [--out DIR] [--workers N] [--accept]

It runs experiments/NAME/sweep.yaml (finished cells of DIR are not run again), and writes table.md and plot.png into
DIR. Exit code: 0 if every value lies within its tolerance and every claim held or failed as recorded; 1 if not, or if
cells failed; 2 where the experiment's files or options are bad. `--accept` then writes what came out into
expected.yaml: each mean, two of its standard errors as its tolerance (at least a hundredth), and which claims held.

An experiment that has a program with a fast mode in place of a sweep is run by that program, in that mode.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.drawing import Point, against, write_chart
from fedsyn import yamlio
from fedsyn.errors import ConfigError, FedsynError
from fedsyn.evaluation.report.tables import plus_minus
from fedsyn.registry import contract_class
from fedsyn.sweep import Cell, Sweep, load_results, load_sweep, run_sweep, write_tables
from fedsyn.sweep.results import UNSET, Results, Summary
from fedsyn.sweep.tables import summary_table

HERE = Path(__file__).resolve().parent
Where = dict[str, Any]  # dotted key of a resolved configuration -> value
_VALUE = re.compile(r"(expected: *)([-+.\de]+)(,?\s+tolerance: *)([-+.\de]+)")
_HELD = re.compile(r"(held: *)(true|false)")
_LOOKS = ("color", "shape", "strokeDash", "x", "y")  # every panel has its own lines and axes


@dataclass(frozen=True)
class Value:
    """A mean over seeds that is expected within +- tolerance; `paper` and `code` are what others published."""

    where: Where
    metric: str
    expected: float
    tolerance: float
    paper: float | None = None
    code: float | None = None


@dataclass(frozen=True)
class Claim:
    """That a metric's mean falls along `descending`, by at least `factor` a step; `held`: whether it does here."""

    says: str
    metric: str
    descending: list[Where]
    held: bool
    where: Where = field(default_factory=dict)
    factor: float = 1.0

    def means(self, outcome: Outcome) -> list[float]:
        return [outcome.mean_sd(self.where | step, self.metric)[0] for step in self.descending]

    def holds(self, means: list[float]) -> bool:
        """Whether they fall; a mean that is missing (nan) makes no claim hold."""
        return all(one >= self.factor * other for one, other in itertools.pairwise(means))


@dataclass(frozen=True)
class Ranks:
    """Mean rank (1: lowest metric) of each of `of` among them, over the combinations `over` and the seeds."""

    metric: str
    of: list[Where]
    over: list[Where]
    expected: list[float]
    tolerance: float
    paper: list[float]
    where: Where = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One axes of the plot: a metric against `x`, a line (or a set of bars) per value of `series`."""

    metric: str
    x: str
    where: Where = field(default_factory=dict)
    series: str | None = None
    title: str = ""
    log: bool = False


@dataclass(frozen=True)
class Expected:
    """expected.yaml. `where` holds for every entry that does not say otherwise."""

    values: list[Value]
    claims: list[Claim]
    ranks: list[Ranks]
    panels: list[Panel]
    where: Where

    @classmethod
    def load(cls, path: Path) -> Expected:
        """Reads the file; an unknown or a missing key is a ConfigError."""
        document = yamlio.read_mapping(path)
        common: Where = document.get("where", {})

        def entries(key: str, kind: type) -> list[Any]:
            return [kind(**{**entry, "where": common | entry.get("where", {})}) for entry in document.get(key, [])]

        try:
            ranks = entries("ranks", Ranks)
            return cls(entries("values", Value), entries("claims", Claim), ranks, entries("panels", Panel), common)
        except TypeError as error:
            raise ConfigError(f"{path}: {error}") from None


def flat(tree: Mapping[str, Any], prefix: str = "") -> Where:
    """A nested mapping as dotted keys."""
    leaves: Where = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def facts_of(cell: Cell) -> Where:
    """The cell's configuration as dotted keys, the mechanism's options with their defaults included."""
    options = contract_class(cell.config.mechanism.name).options_of(cell.config).model_dump()
    return flat({"mechanism": options}) | flat(cell.config.model_dump(mode="json", by_alias=True))


class Lookup:
    """Finds the cells of a sweep by keys of their resolved configurations, whether or not an axis set them."""

    def __init__(self, sweep: Sweep) -> None:
        self.facts = {cell.id: facts_of(cell) for cell in sweep.cells}
        self.cells = sweep.cells

    def matching(self, where: Where) -> list[Cell]:
        absent = object()
        return [
            cell
            for cell in self.cells
            if all(self.facts[cell.id].get(key, absent) == value for key, value in where.items())
        ]

    def combination(self, where: Where) -> Cell:
        """The first cell of the one combination that matches (all seeds of it).

        Raises:
            ConfigError: no combination matches, or several do.
        """
        cells = self.matching(where)
        if not cells:
            raise ConfigError(f"no cell of the sweep has {where}")
        if any(cell.axes != cells[0].axes for cell in cells):
            raise ConfigError(f"several combinations of the sweep have {where}")
        return cells[0]


class Outcome:
    """The sweep's results by combination."""

    def __init__(self, sweep: Sweep, results: Results) -> None:
        self.lookup = Lookup(sweep)
        self._of_axes = {repr(sorted(s.axes.items())): s for s in results.summaries}
        self._keys = results.axes

    def summary(self, cell: Cell) -> Summary:
        return self._of_axes[repr(sorted((key, cell.axes.get(key, UNSET)) for key in self._keys))]

    def mean_sd(self, where: Where, metric: str) -> tuple[float, float]:
        summary = self.summary(self.lookup.combination(where))
        return summary.mean(metric), summary.sd(metric)


def check_values(outcome: Outcome, expected: Expected) -> tuple[list[list[str]], bool]:
    """Rows of the table of values, and whether all lie within their tolerances."""
    rows, good = [], True
    for value in expected.values:
        mean, sd = outcome.mean_sd(value.where, value.metric)
        fine = abs(mean - value.expected) <= value.tolerance
        good &= fine
        published = ["-" if number is None else f"{number:g}" for number in (value.paper, value.code)]
        bounds = f"{value.expected:g} ± {value.tolerance:g}"
        own = {k: v for k, v in value.where.items() if (k, v) not in expected.where.items()}
        rows.append([_name(own), value.metric, *published, plus_minus(mean, sd), bounds, _yes(fine)])
    return rows, good


def check_claims(outcome: Outcome, claims: list[Claim]) -> tuple[list[list[str]], bool]:
    """Rows of the table of claims, and whether each held or failed as recorded."""
    rows, good = [], True
    for claim in claims:
        means = claim.means(outcome)
        held = claim.holds(means)
        good &= held == claim.held and not any(map(math.isnan, means))
        rows.append([claim.says, claim.metric, ", ".join(f"{m:.4g}" for m in means), _yes(held), _yes(claim.held)])
    return rows, good


def check_ranks(outcome: Outcome, ranks: list[Ranks]) -> tuple[list[list[str]], bool]:
    """Rows of the table of mean ranks, and whether all lie within their tolerances."""
    rows, good = [], True
    for rank in ranks:
        means = np.mean([_places(outcome, rank, table) for table in rank.over], axis=(0, 2))
        for which, mean, expected, paper in zip(rank.of, means, rank.expected, rank.paper, strict=True):
            fine = bool(abs(mean - expected) <= rank.tolerance)
            good &= fine
            bounds = f"{expected:g} ± {rank.tolerance:g}"
            rows.append([_name(rank.where | which), rank.metric, f"{paper:g}", f"{mean:.2f}", bounds, _yes(fine)])
    return rows, good


def _places(outcome: Outcome, rank: Ranks, table: Where) -> np.ndarray:
    """(m, seeds) places 1 to m of the m combinations in one table; nan where cells are missing."""
    cells = [outcome.lookup.combination(rank.where | table | which) for which in rank.of]
    found = [outcome.summary(cell).values.get(rank.metric, np.empty(0)) for cell in cells]
    if len({values.size for values in found}) > 1 or not found[0].size:
        return np.full((len(found), 1), math.nan)
    places: np.ndarray = np.argsort(np.argsort(found, axis=0), axis=0) + 1.0
    return places


def _yes(fact: bool) -> str:
    return "yes" if fact else "**no**"


def _name(where: Where) -> str:
    return ", ".join(f"{key.removesuffix('.name').rpartition('.')[2]} {value}" for key, value in where.items())


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(outcome: Outcome, expected: Expected, path: Path) -> None:
    """One axes per panel: lines over a numeric x, otherwise points; error bars are one standard deviation."""
    import altair as alt

    drawn: list[Any] = []
    for panel in expected.panels:
        points, numeric = _points(outcome, expected, panel)
        if points:
            lines = list(dict.fromkeys(point.line for point in points))
            axis = panel.x.rpartition(".")[2]
            drawn += against(panel.metric, points, axis, lines=lines, numeric=numeric, log_y=panel.log)
    whole = alt.concat(*drawn, columns=2).resolve_scale(**dict.fromkeys(_LOOKS, "independent"))
    write_chart(whole.to_dict(validate=False), path)


def _points(outcome: Outcome, expected: Expected, panel: Panel) -> tuple[list[Point], bool]:
    """What a panel shows, and whether its axis has numbers."""
    facts = outcome.lookup.facts
    groups: dict[Any, dict[Any, Cell]] = {}
    where = {key: value for key, value in panel.where.items() if key != panel.x}
    for cell in outcome.lookup.matching(where):
        x, name = facts[cell.id].get(panel.x), facts[cell.id].get(panel.series or "")
        groups.setdefault(name, {}).setdefault(x, cell)
    numeric = all(isinstance(x, int | float | None) for points in groups.values() for x in points)
    every = sorted({x for points in groups.values() for x in points if x is not None}) if numeric else []
    found = []
    for name, points in groups.items():
        label = "fedsyn" if name is None else str(name)
        unset = points.pop(None, None)
        if unset is not None:
            # A value left to the mechanism (rounds: null, annealing) has no place on the axis: a line across it.
            mean = outcome.summary(unset).mean(panel.metric)
            across = [every[0], every[-1]] if every else []
            found += [Point(f"{label}, left to it", panel.title, float(x), mean, math.nan) for x in across]
        for x in sorted(points) if numeric else list(points):
            summary = outcome.summary(points[x])
            at = float(x) if numeric else str(x)
            found.append(Point(label, panel.title, at, summary.mean(panel.metric), summary.sd(panel.metric)))
    return (found if numeric else [*found, *_published(expected, panel)]), numeric


def _published(expected: Expected, panel: Panel) -> list[Point]:
    """The published numbers of the same panel beside ours."""
    return [
        Point(
            "the paper" if source == "paper" else "its code", panel.title, str(value.where[panel.x]), number, math.nan
        )
        for source in ("paper", "code")
        for value in expected.values
        if value.metric == panel.metric
        and panel.x in value.where
        and panel.where.items() <= value.where.items()
        and (number := getattr(value, source)) is not None
    ]


def accepted(text: str, values: list[tuple[float, float, int]], held: list[bool]) -> str:
    """expected.yaml with the (mean, sd, seeds) of its values and what its claims came to, in its order.

    Raises:
        ConfigError: the file has another number of values or claims.
    """
    found = [_as_expected(*value) for value in values]
    verdicts = [str(fact).lower() for fact in held]
    for pattern, wanted, what in ((_VALUE, len(found), "values"), (_HELD, len(verdicts), "claims")):
        if (seen := len(pattern.findall(text))) != wanted:
            raise ConfigError(f"expected.yaml has {wanted} {what}, of which {seen} can be rewritten")
    numbers, facts = iter(found), iter(verdicts)

    def value(match: re.Match[str]) -> str:
        mean, tolerance = next(numbers)
        return f"{match[1]}{mean}{match[3]}{tolerance}"

    return _HELD.sub(lambda match: match[1] + next(facts), _VALUE.sub(value, text))


def _as_expected(mean: float, sd: float, seeds: int) -> tuple[str, str]:
    """A mean and its tolerance, to two digits of the tolerance; no exponents, which YAML 1.1 takes for text."""
    tolerance = max(2 * sd / math.sqrt(seeds), 0.01 * abs(mean), 1e-9)
    digits = max(0, 1 - math.floor(math.log10(tolerance)))
    return f"{mean:.{digits}f}", f"{tolerance:.{digits}f}"


def accept(outcome: Outcome, expected: Expected, path: Path) -> None:
    """Writes what came out into the file, and says which claims changed sides."""
    values = []
    for value in expected.values:
        summary = outcome.summary(outcome.lookup.combination(value.where))
        values.append((*outcome.mean_sd(value.where, value.metric), max(1, summary.values[value.metric].size)))
    held = [claim.holds(claim.means(outcome)) for claim in expected.claims]
    path.write_text(accepted(path.read_text(encoding="utf-8"), values, held), encoding="utf-8")
    for claim, fact in zip(expected.claims, held, strict=True):
        if fact != claim.held:
            print(f"{'holds' if fact else 'no longer holds'}: {claim.says}")


def check(name: str, out: Path, workers: int, accepting: bool = False) -> bool:
    """Runs, compares, writes table.md and plot.png. Returns whether everything is as expected."""
    folder = HERE / name
    if not (folder / "sweep.yaml").is_file():
        known = sorted(path.parent.name for path in HERE.glob("*/sweep.yaml"))
        raise ConfigError(f"no experiment '{name}' with a sweep; there are {', '.join(known)}")
    sweep, expected = load_sweep(folder / "sweep.yaml"), Expected.load(folder / "expected.yaml")
    failed = run_sweep(sweep, out, workers=workers, resume=(out / "sweep.json").is_file())
    results = load_results(out)
    write_tables(results, out)
    outcome = Outcome(sweep, results)
    values, values_good = check_values(outcome, expected)
    claims, claims_good = check_claims(outcome, expected.claims)
    ranks, ranks_good = check_ranks(outcome, expected.ranks)
    summarised = summary_table(results)
    where = ["setting", "metric", "the paper", "its code", "fedsyn", "expected", "as expected"]
    parts = [
        f"# {name}: mean ± sd over the seeds\n",
        markdown(where, values) if values else "",
        markdown(["claim", "metric", "means", "held", "held when recorded"], claims) if claims else "",
        markdown(["mean rank of", "metric", "the paper", "fedsyn", "expected", "as expected"], ranks) if ranks else "",
        markdown(summarised.head, summarised.rows),
    ]
    (out / "table.md").write_text("\n".join(part for part in parts if part), encoding="utf-8")
    draw(outcome, expected, out / "plot.png")
    print("\n".join(part for part in parts[:4] if part))
    print(f"table.md and plot.png are in {out}" + (f"; {failed} cells failed" if failed else ""))
    if accepting and not failed:
        accept(outcome, expected, folder / "expected.yaml")
    return values_good and claims_good and ranks_good and not failed


def fast_command(name: str) -> list[str] | None:
    """The command of an experiment whose program has a fast mode; None of any other one."""
    program, expected = HERE / name / "run.py", HERE / name / "expected.yaml"
    has_fast_mode = program.is_file() and expected.is_file() and "fast" in yamlio.read_mapping(expected)
    return [sys.executable, str(program), "--fast"] if has_fast_mode else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", help="folder of experiments/ that has a sweep.yaml, or a fast mode")
    parser.add_argument("--out", type=Path, help="results folder; default runs/NAME")
    parser.add_argument("--workers", type=int, default=1, help="processes that run cells")
    parser.add_argument("--accept", action="store_true", help="write what came out into expected.yaml")
    options = parser.parse_args()
    try:
        if (command := fast_command(options.name)) is not None:
            where = [] if options.out is None else ["--out", str(options.out)]
            return subprocess.run([*command, *where, "--workers", str(max(1, options.workers))], check=False).returncode
        good = check(options.name, options.out or Path("runs") / options.name, max(1, options.workers), options.accept)
    except FedsynError as error:
        print(error, file=sys.stderr)
        return 2
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
