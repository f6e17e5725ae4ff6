"""Coverage and widths of the intervals, as tables in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.timed import judge
from fedsyn import yamlio

Lines = Sequence[Mapping[str, str]]
Floats = npt.NDArray[np.float64]

# Fewer intervals say nothing of a place.
_ENOUGH = 50
_PLACE = ("population", "rows", "epsilon", "mechanism")
_KINDS = ("mean", "proportion", "linear", "logistic")
_HEAD = "n | honest | corrected | naive | real | width / real's | error / real's half"

#: What intervals are compared: the honest one without and with the bootstrap's correction, the naive, the real rows'.
INTERVALS = ("honest", "corrected", "naive", "real")


def interval(lines: Lines, which: str) -> tuple[Floats, Floats]:
    """Lower and upper ends.

    The corrected one is moved by as much as draws lie beside the centre that they scatter about, as
    `fedsyn.combine(..., centre=)` does: right for refits, whose mean has the bias of a fit a second time.
    """
    if which in ("naive", "real"):
        return _numbers(lines, f"{which}_low"), _numbers(lines, f"{which}_high")
    low, high = _numbers(lines, "low"), _numbers(lines, "high")
    moved = 2.0 * (_numbers(lines, "centre") - (low + high) / 2) if which == "corrected" else 0.0
    return low + moved, high + moved


def coverage(lines: Lines, which: str) -> float:
    """Share of intervals that hold the population's value."""
    (low, high), truth = interval(lines, which), _numbers(lines, "truth")
    return float(np.mean((low <= truth) & (truth <= high)))


def width(lines: Lines) -> float:
    """Median of the honest width over that of the real rows' interval."""
    (low, high), (real_low, real_high) = interval(lines, "honest"), interval(lines, "real")
    return float(np.median((high - low) / (real_high - real_low)))


def error(lines: Lines) -> float:
    """Mean error of the honest estimate in half widths of the real rows' interval."""
    (low, high), (real_low, real_high) = interval(lines, "honest"), interval(lines, "real")
    return float(np.mean(((low + high) / 2 - _numbers(lines, "truth")) / (real_high - real_low)) * 2)


def tables_of(lines: Lines, *, by_term: bool = False) -> list[str]:
    """One row per place and kind, over terms that the model holds; or per term, held or not."""
    out: list[str] = []
    for drawing in dict.fromkeys(line["drawing"] for line in lines):
        own = [line for line in lines if line["drawing"] == drawing]
        runs = {key: len({line["run"] for line in group}) for key, group in _grouped(own, _PLACE).items()}
        keys = (*_PLACE, "kind", "term", "held") if by_term else (*_PLACE, "kind")
        used = own if by_term else [line for line in own if line["held"] == "1"]
        out += ["", f"{drawing}, {min(runs.values())} to {max(runs.values())} runs a place", ""]
        out += _table(used, keys)
        if not by_term:
            for title, held in (("over all places", "1"), ("where the model does not hold the term", "0")):
                out += ["", f"{drawing}, {title}", "", *_table([x for x in own if x["held"] == held], ("kind",))]
    return out


def _table(lines: Lines, keys: Sequence[str]) -> list[str]:
    out = [f"| {' | '.join(keys)} | {_HEAD} |", "|---" * (len(keys) + 7) + "|"]
    for key, group in sorted(_grouped(lines, keys).items(), key=lambda item: _order(item[0])):
        shares = " | ".join(f"{100 * coverage(group, which):.0f}%" for which in INTERVALS)
        out.append(f"| {' | '.join(key)} | {len(group)} | {shares} | {width(group):.2f} | {error(group):+.2f} |")
    return out


def _order(key: tuple[str, ...]) -> tuple[tuple[float, str], ...]:
    """Numbers by size, kinds in their order."""
    places = {kind: float(i) for i, kind in enumerate(_KINDS)}
    return tuple((float(word) if word.replace(".", "").isdigit() else places.get(word, -1.0), word) for word in key)


def facts_of(lines: Lines) -> dict[str, float]:
    """What expected.yaml is about: the posterior, held terms; extremes over places and kinds with fifty lines."""
    own = [line for line in lines if line["held"] == "1" and line["drawing"] == "posterior"]
    facts: dict[str, float] = {}
    for kind in _KINDS:
        group = [line for line in own if line["kind"] == kind]
        facts |= {f"{kind} {which}": coverage(group, which) for which in INTERVALS}
    groups = {key: group for key, group in _grouped(own, (*_PLACE, "kind")).items() if len(group) >= _ENOUGH}
    for which in INTERVALS:
        shares = [coverage(group, which) for group in groups.values()]
        facts |= {f"lowest {which}": min(shares), f"highest {which}": max(shares)}
        facts[f"within {which}"] = float(np.mean([0.92 <= share <= 0.98 for share in shares]))
    widths = [width(group) for key, group in groups.items() if key[1:3] == ("40000", "3.0")]
    facts["width"] = max(widths, default=float("nan"))
    return facts


def judged(folder: Path, lines: Lines) -> tuple[list[str], bool]:
    """The tables of facts and claims of expected.yaml, and whether all are as recorded."""
    return judge(yamlio.read_mapping(folder / "expected.yaml"), "full", facts_of(lines))


def _numbers(lines: Lines, name: str) -> Floats:
    return np.array([float(line[name]) for line in lines])


def _grouped(lines: Iterable[Mapping[str, str]], keys: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, str]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[key] for key in keys)].append(line)
    return dict(groups)
