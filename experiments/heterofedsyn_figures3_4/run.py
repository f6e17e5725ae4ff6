"""Real and synthetic rows of Insurance in the plane of their principal components, and its label: Figures 3 and 4 of
Li et al. 2026 (HeteroFedSyn).

    python experiments/heterofedsyn_figures3_4/run.py [--out DIR]

The paper shows pictures and no numbers. This draws them, and says in numbers what they show; values and claims are
checked against expected.yaml. Exit code: 0 if all are as expected, 1 if not, 2 on a bad configuration.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

import fedsyn
from fedsyn import yamlio
from fedsyn.domain import Domain
from fedsyn.errors import FedsynError
from fedsyn.loading import parse_config
from fedsyn.runs.prepare import split_tables

Array = npt.NDArray[np.float64]
Found = dict[str, dict[str, list[float]]]  # whose rows -> measure -> one number per seed
MEASURES = ("spread", "distance", "label_spread", "label_distance", "peak")
_LABEL_BINS = 20


@dataclass(frozen=True)
class Plane:
    """The first two principal components of the real rows: numeric attributes standardised, categories one-hot.

    Attributes:
        domain: of the codes.
        mean: (w,) of the real rows' features.
        scale: (w,) their deviations, 1 where there is none.
        axes: (w, 2) orthonormal.
    """

    domain: Domain
    mean: Array
    scale: Array
    axes: Array

    @classmethod
    def of(cls, codes: npt.NDArray[np.integer], domain: Domain) -> Plane:
        raw = _features(codes, domain)
        mean, scale = raw.mean(axis=0), raw.std(axis=0)
        scale[scale == 0] = 1.0
        axes = np.linalg.svd((raw - mean) / scale, full_matrices=False)[2][:2].T
        return cls(domain, mean, scale, axes)

    def project(self, codes: npt.NDArray[np.integer]) -> Array:
        """(n, 2) coordinates of n rows of codes."""
        points: Array = ((_features(codes, self.domain) - self.mean) / self.scale) @ self.axes
        return points


def _features(codes: npt.NDArray[np.integer], domain: Domain) -> Array:
    """(n, w): the bin of an ordered attribute, an indicator for each category of another."""
    parts = [
        codes[:, [axis]].astype(np.float64) if name in domain.ordered else np.eye(size)[codes[:, axis]]
        for axis, (name, size) in enumerate(zip(domain.attributes, domain.shape, strict=True))
    ]
    return np.concatenate(parts, axis=1)


def distance(left: Array, right: Array) -> float:
    """Wasserstein distance of two samples of a number: that of their quantiles."""
    levels = (np.arange(1000) + 0.5) / 1000
    return float(np.abs(np.quantile(left, levels) - np.quantile(right, levels)).mean())


def measures(real: npt.NDArray[np.integer], made: npt.NDArray[np.integer], plane: Plane) -> dict[str, float]:
    """What the two figures show of the rows `made`.

    `spread` and `distance`: deviation over the real rows', and Wasserstein distance in real deviations, both means over
    the two components; the same of the label; `peak`: rows in the fullest twentieth of the real label's range, over
    the real ones'.
    """
    ours, theirs = plane.project(made), plane.project(real)
    deviations = theirs.std(axis=0)
    axis = plane.domain.attributes.index("label")
    label, real_label = made[:, axis].astype(np.float64), real[:, axis].astype(np.float64)
    edges = np.linspace(0, plane.domain.shape[axis], _LABEL_BINS + 1)
    shares = [np.histogram(values, edges)[0] / values.size for values in (label, real_label)]
    fullest = int(shares[1].argmax())
    return {
        "spread": float((ours.std(axis=0) / deviations).mean()),
        "distance": float(np.mean([distance(ours[:, c], theirs[:, c]) / deviations[c] for c in (0, 1)])),
        "label_spread": float(label.std() / real_label.std()),
        "label_distance": distance(label, real_label) / float(real_label.std()),
        "peak": float(shares[0][fullest] / shares[1][fullest]),
    }


def gather(document: dict[str, Any]) -> tuple[Found, list[dict[str, Any]]]:
    """The measures of every mechanism and seed, and the points of the first seed to draw."""
    found: Found = {}
    points: list[dict[str, Any]] = []
    for seed, (name, settings) in itertools.product(document["seeds"], document["rows"].items()):
        config = parse_config(document["base"] | settings | {"runtime": {"seed": seed}}, name)
        tables = split_tables(config)
        plane = Plane.of(tables.train, tables.schema.domain)
        result = fedsyn.run(config)
        codes = tables.schema.encode(pd.read_csv(result.folder / "synthetic.csv"))
        for rows, shown in (("held-out", tables.test), (name, codes)):
            for measure, number in measures(tables.train, shown, plane).items():
                found.setdefault(rows, {}).setdefault(measure, []).append(number)
        if seed == document["seeds"][0]:
            points += _points(name, tables.train, codes, plane)
    return found, points


def _points(
    name: str, real: npt.NDArray[np.integer], made: npt.NDArray[np.integer], plane: Plane
) -> list[dict[str, Any]]:
    axis = plane.domain.attributes.index("label")
    return [
        {"mechanism": name, "rows": kind, "x": float(x), "y": float(y), "label": int(label)}
        for kind, codes in (("real", real), ("synthetic", made))
        for (x, y), label in zip(plane.project(codes), codes[:, axis], strict=True)
    ]


def check(document: dict[str, Any], found: Found) -> tuple[list[str], bool]:
    """Lines of the tables of values and claims, and whether all are as expected."""
    lines = ["| rows | " + " | ".join(MEASURES) + " | as expected |", "|---" * (len(MEASURES) + 2) + "|"]
    good = True
    for name, by_measure in found.items():
        cells, fine = [], True
        for measure, numbers in by_measure.items():
            cells.append(f"{np.mean(numbers):.3f} ± {np.std(numbers, ddof=1):.3f}")
            if name in document["values"]:
                expected = document["values"][name][measure]
                fine &= abs(float(np.mean(numbers)) - expected) <= document["tolerance"][measure]
        good &= fine
        lines.append(f"| {name} | {' | '.join(cells)} | {'yes' if fine else '**no**'} |")
    lines += ["", "| claim | measure | means | held | held when recorded |", "|---|---|---|---|---|"]
    for claim in document["claims"]:
        means = [float(np.mean(found[name][claim["measure"]])) for name in claim["descending"]]
        held = all(one >= other for one, other in itertools.pairwise(means))
        good &= held == claim["held"]
        shown = ", ".join(f"{mean:.3f}" for mean in means)
        recorded = "yes" if claim["held"] else "no"
        lines.append(f"| {claim['says']} | {claim['measure']} | {shown} | {'yes' if held else 'no'} | {recorded} |")
    return lines, good


def draw(points: list[dict[str, Any]], names: list[str], path: Path) -> None:
    """Figure 3 above (rows in the plane), Figure 4 below (the label in twentieths of its range); first seed."""
    import altair as alt

    from experiments.drawing import write_chart

    color = alt.Color("rows:N", sort=["real", "synthetic"], title=None)
    columns = alt.Column("mechanism:N", sort=names, title=None)
    plane = alt.Chart(alt.InlineData(values=points), width=190, height=170).mark_point(size=6, opacity=0.5)
    label = alt.Chart(alt.InlineData(values=points), width=190, height=120).mark_line(interpolate="step")
    step = alt.Bin(step=5, extent=[0, 100])
    above = plane.encode(x=alt.X("x:Q", title="component 1"), y=alt.Y("y:Q", title="component 2"), color=color)
    below = label.encode(
        x=alt.X("label:Q", bin=step, title="label, bin"), y=alt.Y("count()", title="rows"), color=color
    )
    write_chart((above.encode(column=columns) & below.encode(column=columns)).to_dict(), path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/heterofedsyn_figures3_4"), help="results folder")
    out: Path = parser.parse_args().out
    document = yamlio.read_mapping(Path(__file__).parent / "expected.yaml")
    try:
        found, points = gather(document)
    except FedsynError as error:
        print(error, file=sys.stderr)
        return 2
    lines, good = check(document, found)
    print("\n".join(lines))
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw(points, list(document["rows"]), out / "plot.png")
    print(f"table.md and plot.png are in {out}; " + ("as expected" if good else "NOT as expected"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
