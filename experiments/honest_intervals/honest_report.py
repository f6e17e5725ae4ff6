"""Coverage and widths of the intervals, as tables in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Lines = Sequence[Mapping[str, str]]
_PLACE = ("population", "rows", "epsilon", "mechanism")
_KINDS = ("mean", "proportion", "linear", "logistic")


def tables_of(lines: Lines, *, by_term: bool = False) -> list[str]:
    """One row per place and kind, over terms that the model holds; or per term, held or not."""
    out: list[str] = []
    for drawing in dict.fromkeys(line["drawing"] for line in lines):
        own = [line for line in lines if line["drawing"] == drawing]
        runs = {key: len({line["run"] for line in group}) for key, group in _grouped(own, _PLACE).items()}
        out += ["", f"{drawing}: {min(runs.values())} to {max(runs.values())} runs a place", ""]
        keys = (*_PLACE, "kind", "term", "held") if by_term else (*_PLACE, "kind")
        out += [f"| {' | '.join(keys)} | n | honest | corrected | naive | real | width / real's | bias / real's half |"]
        out += ["|---" * (len(keys) + 7) + "|"]
        used = own if by_term else [line for line in own if line["held"] == "1"]
        for key, group in sorted(_grouped(used, keys).items()):
            found = [coverage(group, ""), corrected(group), *(coverage(group, name) for name in ("naive_", "real_"))]
            shares = " | ".join(f"{100 * share:.0f}%" for share in found)
            out.append(f"| {' | '.join(key)} | {len(group)} | {shares} | {width(group):.2f} | {bias(group):+.2f} |")
        out += ["", *(_overall(used) if not by_term else [])]
    return out


def _overall(lines: Lines) -> list[str]:
    parts = []
    for kind in _KINDS:
        own = [line for line in lines if line["kind"] == kind]
        if own:
            shares = [100 * share for share in (coverage(own, ""), corrected(own), coverage(own, "naive_"))]
            parts.append("{} {:.1f}% (corrected {:.1f}%, naive {:.1f}%)".format(kind, *shares))
    return [f"all places: {', '.join(parts)}"]


def coverage(lines: Lines, which: str) -> float:
    """Share of intervals that hold the population's value."""
    low, high, truth = (_numbers(lines, name) for name in (f"{which}low", f"{which}high", "truth"))
    return float(np.mean((low <= truth) & (truth <= high)))


def corrected(lines: Lines) -> float:
    """Share of honest intervals that hold it when they are moved by as much as draws lie beside their own centre.

    A fit has a bias where cells are nearly empty, as none can be negative. Draws are fits to noisier values, so their
    mean has it a second time: mean - centre estimates it (the bootstrap's correction, 2 centre - mean).
    """
    low, high, truth, centre = (_numbers(lines, name) for name in ("low", "high", "truth", "centre"))
    moved = 2.0 * (centre - (low + high) / 2)
    return float(np.mean((low + moved <= truth) & (truth <= high + moved)))


def width(lines: Lines) -> float:
    """Median of the honest width over that of the real rows' interval."""
    honest = _numbers(lines, "high") - _numbers(lines, "low")
    return float(np.median(honest / (_numbers(lines, "real_high") - _numbers(lines, "real_low"))))


def bias(lines: Lines) -> float:
    """Mean error of the honest estimate in half widths of the real rows' interval."""
    middle = (_numbers(lines, "high") + _numbers(lines, "low")) / 2
    return float(
        np.mean((middle - _numbers(lines, "truth")) / (_numbers(lines, "real_high") - _numbers(lines, "real_low"))) * 2
    )


def _numbers(lines: Lines, name: str) -> np.ndarray:
    return np.array([float(line[name]) for line in lines])


def _grouped(lines: Iterable[Mapping[str, str]], keys: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, str]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[key] for key in keys)].append(line)
    return dict(groups)
