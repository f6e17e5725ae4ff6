"""What the protocol prints of oracles: whether a bound is in reach, what choosing loses, where MST's nll comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.held_out.held_cells import AIM, MST, ONE_WAY
from experiments.held_out.held_oracle import EVERY_PAIR, ORACLES
from experiments.held_out.held_report import Facts, Place, Results

PAIRS = [name for name in ORACLES if "pairs" in name]


@dataclass(frozen=True)
class Reached:
    """Workload errors in one place, means over the seeds that all have; settings are the best, cell by cell.

    Attributes:
        place: table, rows, epsilon.
        seeds: how many.
        ours: of the candidate.
        aim, oracle: of the best setting.
        pairs: of the best oracle that looks at pairs alone.
        one_way: of one-way marginals alone.
        likely: nll of the candidate, of the oracle of the least error, and of MST; None without MST.
    """

    place: Place
    seeds: int
    ours: float
    aim: float
    oracle: float
    pairs: float
    one_way: float
    likely: tuple[float, float, float] | None = None


def reached(results: Results, name: str) -> list[Reached]:
    """The places where everybody has been."""
    found, (mst,) = [], MST
    needed = [name, *AIM, *ORACLES, *ONE_WAY]
    for place, by_name in results.found.items():
        seeds = set.intersection(*(set(_good(by_name, one)) for one in needed))
        if seeds:

            def best(names: Iterable[str], by_name: Mapping[str, Mapping[int, Facts]] = by_name) -> float:
                return min(_mean(by_name[one][seed]["workload_error"] for seed in seeds) for one in names)  # noqa: B023

            errors = [best(names) for names in ([name], AIM, ORACLES, PAIRS, ONE_WAY)]
            likely = None
            if seeds <= {*_good(by_name, mst)}:
                oracle = min(ORACLES, key=lambda one: best([one]))
                ours, told, theirs = (_mean(_nll(by_name[x][seed]) for seed in seeds) for x in (name, oracle, mst))
                likely = ours, told, theirs
            found.append(Reached(place, len(seeds), *errors, likely=likely))
    return found


def reached_cells(cells: Sequence[Reached]) -> list[str]:
    """A line per place."""
    head = "| table | n | ε | seeds | best AIM | ours | oracle | of pairs | oracle / AIM | ours / AIM | ours / oracle |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|---|"]
    for one in cells:
        errors = " | ".join(f"{error:.4f}" for error in (one.aim, one.ours, one.oracle, one.pairs))
        ratios = " | ".join(f"{ratio:.3f}" for ratio in (_to_aim(one), one.ours / one.aim, one.ours / one.oracle))
        lines.append(f"| {one.place[0]} | {one.place[1]} | {one.place[2]:g} | {one.seeds} | {errors} | {ratios} |")
    return lines


def reached_table(cells: Sequence[Reached]) -> list[str]:
    """Geometric means, and how many cells are above a bound with the oracle too.

    "The better" is that of ours and the oracle, cell by cell.
    """
    lines = [
        "| where | cells | ours / AIM | above 1.00 | of these the oracle too | oracle / AIM | above 1.00 | worst "
        "| the better / AIM | above 1.00 | pairs alone / AIM | ours / oracle | oracle / one-way: above 1.02 "
        "| nll above MST's: ours | oracle | both |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    large = [one for one in cells if one.place[1] >= 1000]
    groups = [("all", list(cells)), ("n >= 1000, ε 0.3 to 10", [one for one in large if one.place[2] >= 0.3])]
    groups += [("n < 1000", [one for one in cells if one.place[1] < 1000])]
    for epsilon in sorted({one.place[2] for one in large}):
        groups.append((f"n >= 1000, ε = {epsilon:g}", [one for one in large if one.place[2] == epsilon]))
    for title, group in groups:
        if group:
            above = [one for one in group if one.ours > one.aim]
            worst = max(group, key=_to_aim)
            likely = [(ours > mst, oracle > mst) for ours, oracle, mst in (one.likely for one in group if one.likely)]
            lines.append(
                f"| {title} | {len(group)} | {_geometric(group, lambda one: one.ours / one.aim):.3f} | {len(above)} "
                f"| {sum(one.oracle > one.aim for one in above)} | {_geometric(group, _to_aim):.3f} "
                f"| {sum(one.oracle > one.aim for one in group)} "
                f"| {_to_aim(worst):.2f} ({worst.place[0]}, n {worst.place[1]}, ε {worst.place[2]:g}) "
                f"| {_geometric(group, lambda one: min(one.ours, one.oracle) / one.aim):.3f} "
                f"| {sum(min(one.ours, one.oracle) > one.aim for one in group)} "
                f"| {_geometric(group, lambda one: one.pairs / one.aim):.3f} "
                f"| {_geometric(group, lambda one: one.ours / one.oracle):.3f} "
                f"| {sum(one.oracle > 1.02 * one.one_way for one in group)} "
                f"| {sum(ours for ours, _ in likely)} | {sum(oracle for _, oracle in likely)} "
                f"| {sum(map(all, likely))} |"
            )
    return lines


def likelihood_table(results: Results, name: str) -> list[str]:
    """Where MST's nll is the better one: errors of pairs inside and outside the workload."""
    (mst,), (every,) = MST, EVERY_PAIR
    lines = [
        "| table | n | ε | nll − MST's | oracle of every pair: − MST's | pairs in the workload: ours | MST | oracle "
        "| other pairs: ours | MST | oracle |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for place, by_name in results.found.items():
        columns = [_good(by_name, one) for one in (name, mst, every)]
        seeds = set.intersection(*(set(column) for column in columns))
        if not seeds:
            continue
        ours, theirs, oracle = (_mean(_nll(column[seed]) for seed in seeds) for column in columns)
        if ours > theirs:
            errors = [
                _mean_or_none([column[seed].get(which) for seed in seeds])
                for which in ("inside", "outside")
                for column in columns
            ]
            lines.append(
                f"| {place[0]} | {place[1]} | {place[2]:g} | {ours - theirs:+.2f} | {oracle - theirs:+.2f} "
                f"| {' | '.join(errors)} |"
            )
    return lines


def _to_aim(one: Reached) -> float:
    return one.oracle / one.aim


def _geometric(group: Sequence[Reached], ratio: Callable[[Reached], float]) -> float:
    return math.exp(_mean(math.log(ratio(one)) for one in group))


def _good(by_name: Mapping[str, Mapping[int, Facts]], name: str) -> dict[int, Facts]:
    return {seed: facts for seed, facts in by_name.get(name, {}).items() if "error" not in facts}


def _nll(facts: Facts) -> float:
    return math.inf if facts["nll"] is None else float(facts["nll"])


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _mean_or_none(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return f"{_mean(numbers):.3f}" if numbers else ""
