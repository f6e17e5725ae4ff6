"""Runs an experiment of this folder, compares its results with expected.yaml, and draws them.

    python experiments/check.py NAME [--out DIR] [--workers N] [--accept]

It runs experiments/NAME/sweep.yaml (finished cells of DIR are not run again), and writes table.md and plot.png into
DIR. Clustered cells take the split that is shipped (splits.py). Exit code: 0 if the page prints every expected value,
every mean is within two standard errors of it (of the difference of two such means, at least a hundredth), and every
claim held or failed as recorded; 1 if not, or if cells failed; 2 where the experiment's files or options are bad, or a
table is another one than that whose split is shipped. `--accept` then writes what came out into expected.yaml: each
mean, and which claims held.

An experiment that has a program in place of a sweep is run by that program: in its fast mode where it has one, or as
its entry in claims/experiments.yaml says.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.drawing import Point, against, write_chart
from experiments.splits import with_splits
from fedsyn import yamlio
from fedsyn.errors import ConfigError, FedsynError
from fedsyn.evaluation.report.tables import plus_minus
from fedsyn.registry import contract_class
from fedsyn.sweep import Cell, Sweep, load_results, load_sweep, run_sweep, write_tables
from fedsyn.sweep.results import UNSET, Results, Summary, failures
from fedsyn.sweep.tables import summary_table

HERE = Path(__file__).resolve().parent
Where = dict[str, Any]  # dotted key of a resolved configuration -> value
_VALUE = re.compile(r"(\bexpected: *)([-+.\de]+)")
_NUMBER = re.compile(r"(?<![\w.,-])-?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
_HELD = re.compile(r"(held: *)(true|false)")
_LOOKS = ("color", "shape", "strokeDash", "x", "y")  # every panel has its own lines and axes


@dataclass(frozen=True)
class Value:
    """A mean over seeds, as the experiment's page prints it; `paper` and `code` are what others published.

    `metric` A + B is the mean of both.
    """

    where: Where
    metric: str
    expected: float
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

    def over_seeds(self, where: Where, metric: str) -> np.ndarray:
        """Returns a metric of each seed; nan where cells are missing. A + B is the mean of both metrics."""
        summary = self.summary(self.lookup.combination(where))
        found = [summary.values.get(name, np.empty(0)) for name in metric.split(" + ")]
        values: np.ndarray = np.mean(found, axis=0) if len({each.size for each in found}) == 1 else np.empty(0)
        return values if values.size else np.array([math.nan])

    def mean_sd(self, where: Where, metric: str) -> tuple[float, float]:
        values = self.over_seeds(where, metric)
        return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else math.nan

    def error(self, value: Value) -> float:
        """Returns two standard errors of the difference of two means like the value's, at least a hundredth of it."""
        values = self.over_seeds(value.where, value.metric)
        spread = 2 * float(values.std(ddof=1)) * math.sqrt(2 / values.size) if values.size > 1 else 0.0
        return max(spread, 0.01 * abs(value.expected), 1e-9)


def check_values(outcome: Outcome, expected: Expected) -> tuple[list[list[str]], bool]:
    """Rows of the table of values, and whether each mean is within its error of what is expected."""
    rows, good = [], True
    for value in expected.values:
        (mean, sd), error = outcome.mean_sd(value.where, value.metric), outcome.error(value)
        fine = abs(mean - value.expected) <= error
        good &= fine
        published = ["-" if number is None else f"{number:g}" for number in (value.paper, value.code)]
        bounds = f"{value.expected:g} ± {error:.2g}"
        own = {k: v for k, v in value.where.items() if (k, v) not in expected.where.items()}
        rows.append([_name(own), value.metric, *published, plus_minus(mean, sd), bounds, _yes(fine)])
    return rows, good


def unprinted(expected: Expected, page: str) -> list[str]:
    """Returns a sentence for each value that a page does not print: none of its numbers is the value, rounded."""
    numbers = set(_NUMBER.findall(page))
    absent = [value for value in expected.values if not any(rounds_to(value.expected, each) for each in numbers)]
    return [f"the page does not print {value.expected:g}, {value.metric} of {value.where}" for value in absent]


def rounds_to(value: float, number: str) -> bool:
    """Whether a value and a printed number agree in the digits that both have; one digit says too little."""
    number = number.replace(",", "")
    places = [len(text.partition(".")[2]) for text in (np.format_float_positional(value, trim="-"), number)]
    enough = places[1] > 2 or len(number.replace(".", "").lstrip("-0")) > 1 or float(number) == value
    return enough and abs(value - float(number)) <= 0.5000001 * 10.0 ** -min(places)


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
    found = [outcome.over_seeds(rank.where | table | which, rank.metric) for which in rank.of]
    if len({values.size for values in found}) > 1 or np.isnan(found).any():
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
    return _HELD.sub(lambda match: match[1] + next(facts), _VALUE.sub(lambda match: match[1] + next(numbers), text))


def _as_expected(mean: float, sd: float, seeds: int) -> str:
    """A mean to two digits of its error; no exponents, which YAML 1.1 takes for text."""
    error = max(2 * sd / math.sqrt(seeds), 0.01 * abs(mean), 1e-9)
    return f"{mean:.{max(0, 1 - math.floor(math.log10(error)))}f}"


def accept(outcome: Outcome, expected: Expected, path: Path) -> None:
    """Writes what came out into the file, and says which claims changed sides."""
    values = []
    for value in expected.values:
        values.append((*outcome.mean_sd(value.where, value.metric), outcome.over_seeds(value.where, value.metric).size))
    held = [claim.holds(claim.means(outcome)) for claim in expected.claims]
    path.write_text(accepted(path.read_text(encoding="utf-8"), values, held), encoding="utf-8")
    for claim, fact in zip(expected.claims, held, strict=True):
        if fact != claim.held:
            print(f"{'holds' if fact else 'no longer holds'}: {claim.says}")


def check(name: str, out: Path, workers: int, accepting: bool = False) -> bool:
    """Runs, compares, writes table.md and plot.png. Returns whether everything is as expected."""
    folder = HERE / name
    if not (folder / "sweep.yaml").is_file():
        known = sorted(path.parent.name for path in HERE.glob("*/expected.yaml"))
        raise ConfigError(f"no experiment '{name}'; there are {', '.join(known)}")
    sweep, expected = with_splits(load_sweep(folder / "sweep.yaml")), Expected.load(folder / "expected.yaml")
    failed = run_sweep(sweep, out, workers=workers, resume=(out / "sweep.json").is_file())
    results = load_results(out)
    write_tables(results, out)
    outcome = Outcome(sweep, results)
    values, values_good = check_values(outcome, expected)
    claims, claims_good = check_claims(outcome, expected.claims)
    ranks, ranks_good = check_ranks(outcome, expected.ranks)
    absent = unprinted(expected, (folder / "README.md").read_text(encoding="utf-8"))
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
    print(*absent, f"table.md and plot.png are in {out}", sep="\n")
    if failed:
        print(f"{failed} cells failed:", *{failure.message or failure.kind for failure in failures(results)}, sep="\n")
    elif accepting:
        accept(outcome, expected, folder / "expected.yaml")
    return values_good and claims_good and ranks_good and not absent and not failed


def program_of(name: str) -> str | None:
    """Returns the shell command of an experiment that has a program in place of a sweep; None of any other one.

    Its variables: OUT, a folder for results, and WORKERS, a number of processes.
    """
    folder, entries = HERE / name, yamlio.read_mapping(HERE.parent / "claims" / "experiments.yaml")
    if (folder / "sweep.yaml").is_file():
        return None
    expected = folder / "expected.yaml"
    if expected.is_file() and "fast" in yamlio.read_mapping(expected):
        return f"python experiments/{name}/run.py --fast --out $OUT --workers $WORKERS"
    entry: dict[str, str] = entries.get(name, {})
    return entry.get("command")


def run_program(command: str, out: Path, workers: int) -> int:
    """Runs a program with this interpreter, in the root of the repository. Returns its exit code."""
    out.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "OUT": str(out.resolve()), "WORKERS": str(workers), "PATH": path}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(command, shell=True, cwd=HERE.parent, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", help="folder of experiments/")
    parser.add_argument("--out", type=Path, help="results folder; default runs/NAME")
    parser.add_argument("--workers", type=int, default=1, help="processes that run cells")
    parser.add_argument("--accept", action="store_true", help="write what came out into expected.yaml")
    options = parser.parse_args()
    out, workers = options.out or Path("runs") / options.name, max(1, options.workers)
    try:
        if (command := program_of(options.name)) is not None:
            return run_program(command, out, workers)
        good = check(options.name, out, workers, options.accept)
    except FedsynError as error:
        print(error, file=sys.stderr)
        return 2
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
