"""What the protocol prints: each mechanism against the yardsticks, cell by cell and in the geometric mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.held_out.held_cells import AIM, MST, ONE_WAY
from experiments.timed import judge
from fedsyn import yamlio

Place = tuple[str, int, float]  # table, rows, epsilon
Facts = Mapping[str, Any]
_TIES = 1.02  # of one-way marginals: what the promise allows


@dataclass
class Compared:
    """One mechanism in one place, beside the yardsticks: means over the seeds that all of them have.

    Attributes:
        place: table, rows, epsilon.
        seeds: how many.
        error, nll: of the mechanism; nll is infinite where it excludes a held-out row.
        aim: the smallest of the six settings' mean errors, and its name.
        one_way, mst_nll: of the yardsticks; None where there are no results.
        cpu: mean CPU seconds of the mechanism.
    """

    place: Place
    seeds: int
    error: float
    nll: float
    aim: tuple[float, str] | None
    one_way: float | None
    one_way_nll: float | None
    mst_nll: float | None
    cpu: float

    @property
    def to_aim(self) -> float | None:
        return self.error / max(self.aim[0], 1e-12) if self.aim else None

    @property
    def to_one_way(self) -> float | None:
        return self.error / max(self.one_way, 1e-12) if self.one_way is not None else None


@dataclass
class Results:
    """Results by place, name of the mechanism, and seed."""

    found: dict[Place, dict[str, dict[int, Facts]]] = field(default_factory=dict)

    def add(self, name: str, facts: Facts) -> None:
        place = facts["table"], facts["rows"], facts["epsilon"]
        self.found.setdefault(place, {}).setdefault(name, {})[facts["seed"]] = facts

    def compared(self, name: str) -> list[Compared]:
        """The mechanism wherever it has results."""
        return [self._one(place, name, by_name) for place, by_name in self.found.items() if _good(by_name, name)]

    def _one(self, place: Place, name: str, by_name: Mapping[str, Mapping[int, Facts]]) -> Compared:
        own = _good(by_name, name)
        seeds = set(own)
        if all(_good(by_name, yardstick) for yardstick in (*AIM, *ONE_WAY)):
            common = seeds.intersection(*(_good(by_name, yardstick) for yardstick in (*AIM, *ONE_WAY)))
            seeds = common or seeds

        def mean(of: str, metric: str) -> float | None:
            values = [facts[metric] for seed, facts in _good(by_name, of).items() if seed in seeds]
            if not values:
                return None
            return math.inf if None in values else sum(values) / len(values)

        errors = [(error, setting) for setting in AIM if (error := mean(setting, "workload_error")) is not None]
        one_way, error, nll = mean(*ONE_WAY, "workload_error"), mean(name, "workload_error"), mean(name, "nll")
        assert error is not None and nll is not None
        cpu = sum(own[seed]["cpu"] for seed in seeds) / len(seeds)
        aim = min(errors) if len(errors) == len(AIM) else None
        nlls = mean(*ONE_WAY, "nll"), mean(*MST, "nll")
        return Compared(place, len(seeds), error, nll, aim, one_way, *nlls, cpu)


def _good(by_name: Mapping[str, Mapping[int, Facts]], name: str) -> dict[int, Facts]:
    return {seed: facts for seed, facts in by_name.get(name, {}).items() if "error" not in facts}


def cells_table(compared: Sequence[Compared]) -> list[str]:
    """A line per place."""
    lines = [
        "| table | n | ε | seeds | error | / best AIM | its setting | / one-way | nll | − one-way | − MST | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        table, rows, epsilon = one.place
        setting = one.aim[1].removeprefix("aim ") if one.aim else ""
        numbers = [_number(one.error, 4), _number(one.to_aim, 3), setting, _number(one.to_one_way, 3)]
        nlls = [_number(one.nll, 2), _less(one.nll, one.one_way_nll), _less(one.nll, one.mst_nll)]
        cells = [table, str(rows), f"{epsilon:g}", str(one.seeds), *numbers, *nlls, _number(one.cpu, 2)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary_table(compared: Sequence[Compared]) -> list[str]:
    """Geometric means and worst cells by epsilon and number of rows, and over all."""
    lines = [
        "| where | cells | / best AIM: mean | worst | above 1.00 | / one-way: mean | worst | above 1.02 "
        "| nll − MST's: median | worst | above 0 | nll − one-way's: worst |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    epsilons = sorted({one.place[2] for one in compared})
    groups: list[tuple[str, list[Compared]]] = [
        ("all", list(compared)),
        ("n >= 1000, ε 0.3 to 10", [c for c in compared if c.place[1] >= 1000 and 0.3 <= c.place[2] <= 10]),
        ("n < 1000", [c for c in compared if c.place[1] < 1000]),
        *((f"ε = {epsilon:g}", [c for c in compared if c.place[2] == epsilon]) for epsilon in epsilons),
    ]
    for title, group in groups:
        if group:
            lines.append(f"| {title} | {len(group)} | {' | '.join(_summary(group))} |")
    return lines


def facts_of(compared: Sequence[Compared]) -> dict[str, float]:
    """What expected.yaml is about, where the promise is: n of 1,000 and more at ε of 0.3 and more, or everywhere."""
    large = [one for one in compared if one.place[1] >= 1000 and one.place[2] >= 0.3]
    facts: dict[str, float] = {}
    for name, ratios in (
        ("aim", _ratios(large, "to_aim")),
        ("one-way", _ratios(compared, "to_one_way")),
    ):
        if ratios:
            facts[f"{name} worst"] = max(ratio for ratio, _ in ratios)
            facts[f"{name} mean"] = math.exp(sum(math.log(max(ratio, 1e-12)) for ratio, _ in ratios) / len(ratios))
    nlls = [one.nll - one.mst_nll for one in compared if one.mst_nll is not None]
    if nlls:
        facts |= {"mst nll worst": max(nlls), "mst nll median": statistics.median(nlls)}
    return facts


def judged(folder: Path, compared: Sequence[Compared]) -> tuple[list[str], bool]:
    """The tables of facts and claims of expected.yaml, and whether all are as recorded."""
    return judge(yamlio.read_mapping(folder / "expected.yaml"), "judging", facts_of(compared))


def _summary(group: Sequence[Compared]) -> list[str]:
    cells = []
    for ratios, bound in ((_ratios(group, "to_aim"), 1.0), (_ratios(group, "to_one_way"), _TIES)):
        if not ratios:
            cells += ["", "", ""]
            continue
        worst, place = max(ratios)
        mean = math.exp(sum(math.log(max(ratio, 1e-12)) for ratio, _ in ratios) / len(ratios))
        above = sum(ratio > bound for ratio, _ in ratios)
        cells += [f"{mean:.3f}", f"{worst:.2f} ({_named(place)})", str(above)]
    to_mst = [(one.nll - one.mst_nll, one.place) for one in group if one.mst_nll is not None]
    to_one_way = [(one.nll - one.one_way_nll, one.place) for one in group if one.one_way_nll is not None]
    if to_mst:
        median, above = statistics.median(d for d, _ in to_mst), sum(d > 0 for d, _ in to_mst)
        cells += [f"{median:+.2f}", _worst(to_mst), str(above)]
    else:
        cells += ["", "", ""]
    return [*cells, _worst(to_one_way) if to_one_way else ""]


def _ratios(group: Sequence[Compared], which: str) -> list[tuple[float, Place]]:
    return [(ratio, one.place) for one in group if (ratio := getattr(one, which)) is not None]


def _worst(differences: Sequence[tuple[float, Place]]) -> str:
    worst, place = max(differences)
    return f"{worst:.2f} ({_named(place)})"


def _named(place: Place) -> str:
    return f"{place[0]}, n {place[1]}, ε {place[2]:g}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _less(value: float, other: float | None) -> str:
    return "" if other is None else f"{value - other:+.2f}"
