"""The library's posterior beside exact ones and beside normal approximations in potentials, on small tables.

    python experiments/posterior_oracle/run.py --out FILE.csv [--runs N] [--report]

Needs jax and numpyro; FEDSYN_DATA names the folder of Adult. What FILE has is not run again. Exit code: 0 if what
expected.yaml says holds, 1 if not.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.honest_intervals.honest_populations import POPULATIONS, counts
from experiments.posterior_oracle.sampler import FlatMeans, NormalPotentials, Potentials, Prior, Pulled, cells_of
from fedsyn import yamlio
from fedsyn.domain import Domain
from fedsyn.inference import Evidence, Measurement, Model, Posterior, estimate
from fedsyn.inference.shrinkage import of_measurements
from fedsyn.privacy.conversion import gaussian_mu

HERE = Path(__file__).resolve().parent

Floats = npt.NDArray[np.float64]
FIELDS = ("place", "run", "posterior", "estimand", "truth", "low", "high", "sd", "seconds")
#: Population -> the tree that is measured: pairs of its columns, and their one-way marginals.
TREES = {
    "generated": (("age", "smoker"), ("sex", "smoker"), ("age", "readmitted")),
    "adult": (("age", "income"), ("sex", "income")),
}
ROWS, DELTA, DRAWS = 5000, 1e-5, 400


@dataclass(frozen=True, eq=False)
class Place:
    """A population's columns and a budget."""

    population: str
    epsilon: float

    @property
    def name(self) -> str:
        return f"{self.population}, epsilon {self.epsilon:g}"

    def truth(self) -> tuple[Domain, Floats]:
        """The columns of the tree, and the (cells,) probabilities of their cells."""
        whole = POPULATIONS[self.population]()
        names = tuple(name for name in whole.domain if any(name in pair for pair in TREES[self.population]))
        domain = whole.domain.project(names)
        return domain, whole.joint(names).ravel()

    def measured(self, rng: np.random.Generator) -> tuple[Domain, tuple[Measurement, ...], Floats]:
        """The tree measured on fresh rows, each marginal with the same noise; and the truth."""
        domain, p = self.truth()
        cells, pairs = cells_of(domain), TREES[self.population]
        rows = cells[rng.choice(len(cells), ROWS, p=p)]
        cliques = [(name,) for name in domain.attributes] + list(pairs)
        sigma = np.sqrt(len(cliques)) / gaussian_mu(self.epsilon, DELTA)
        found = []
        for clique in cliques:
            exact = counts(rows, domain, clique)
            found.append(Measurement(clique, exact + rng.normal(0, sigma, exact.shape), sigma))
        return domain, tuple(found), p


def estimands(domain: Domain, pairs: tuple[tuple[str, str], ...], p: Floats) -> dict[str, Floats]:
    """(draws,) of each: means of columns, and slopes of a pair's second column on its first; p: (draws, cells)."""
    cells = cells_of(domain)
    value = {name: cells[:, domain.attributes.index(name)].astype(np.float64) for name in domain.attributes}
    found = {f"mean of {name}": p @ value[name] for name in domain.attributes}
    for x, y in pairs:
        mean = found[f"mean of {x}"]
        together = p @ (value[x] * value[y]) - mean * found[f"mean of {y}"]
        found[f"{y} on {x}"] = together / (p @ value[x] ** 2 - mean**2)
    return found


def draws_of(
    domain: Domain, evidence: Evidence, rng: np.random.Generator, kept: dict[str, Potentials]
) -> Iterator[tuple[str, Floats]]:
    """The posteriors that are compared, by name, each with (DRAWS, cells) probabilities."""
    model = estimate(domain, evidence.measurements, total=evidence.total)
    yield "library", _library(model, evidence, rng)
    ones = [m for m in evidence.measurements if len(m.clique) == 1]
    alone = estimate(domain, ones, total=evidence.total)
    kappa = of_measurements(evidence.measurements, alone)
    towards = alone.project(domain.attributes).ravel() / evidence.total
    napsu, flat = NormalPotentials(), FlatMeans()
    priors: dict[str, tuple[Prior, bool]] = {
        "sampler, flat in means": (flat, True),
        "sampler, flat in means, pulled": (Pulled(flat, kappa, towards), True),
        "Laplace in potentials, N(0, 10^2)": (napsu, False),
        "Laplace in potentials, N(0, 10^2), pulled": (Pulled(napsu, kappa, towards), False),
    }
    for name, (prior, exact) in priors.items():
        if name not in kept or isinstance(prior, Pulled):
            kept[name] = Potentials(model, evidence, prior)
        values = Potentials(model, evidence, prior).values
        yield name, (kept[name].draws if exact else kept[name].laplace)(rng, DRAWS, values=values)


def _library(model: Model, evidence: Evidence, rng: np.random.Generator) -> Floats:
    posterior, names = Posterior(model, evidence), model.domain.attributes
    drawn = np.array([posterior.draw(rng).project(names).ravel() for _ in range(DRAWS)])
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True))


def work(file: Path, runs: int) -> None:
    """The runs that the file does not have."""
    done = {(row["place"], int(row["run"])) for row in read(file)}
    kept: dict[str, dict[str, Potentials]] = {}
    with file.open("a", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        if not file.stat().st_size:
            writer.writeheader()
        for run in range(runs):
            for number, place in enumerate(Place(p, e) for p in TREES for e in (1.0, 3.0)):
                if (place.name, run) in done:
                    continue
                rng = np.random.default_rng([run, number])
                domain, measurements, p = place.measured(rng)
                true = estimands(domain, TREES[place.population], p[None, :])
                lines, started = [], time.process_time()
                for name, drawn in draws_of(
                    domain, Evidence(measurements, float(ROWS)), rng, kept.setdefault(place.name, {})
                ):
                    now = time.process_time()
                    for estimand, found in estimands(domain, TREES[place.population], drawn).items():
                        low, high = np.quantile(found, (0.025, 0.975))
                        values = (true[estimand][0], low, high, found.std(), now - started)
                        lines.append((place.name, run, name, estimand, *values))
                    started = now
                writer.writerows(dict(zip(FIELDS, line, strict=True)) for line in lines)
                out.flush()


def read(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def report(rows: list[dict[str, str]], expected: Mapping[str, Any]) -> bool:
    """Prints the table; whether each posterior's slopes are as wide, and cover as often, as expected."""
    good, exact, widest = True, "sampler, flat in means", dict[str, float]()
    spread = {(r["place"], r["run"], r["estimand"]): float(r["sd"]) for r in rows if r["posterior"] == exact}
    print("| place | posterior | runs | means: cover | sd / exact's | slopes: cover | sd / exact's | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for place in [*dict.fromkeys(r["place"] for r in rows), ""]:
        for name in dict.fromkeys(r["posterior"] for r in rows):
            those = [r for r in rows if place in ("", r["place"]) and r["posterior"] == name]
            columns = []
            for slopes in (False, True):
                kind = [r for r in those if slopes == (" on " in r["estimand"])]
                inside = np.mean([float(r["low"]) <= float(r["truth"]) <= float(r["high"]) for r in kind])
                wide = np.median([float(r["sd"]) / spread[r["place"], r["run"], r["estimand"]] for r in kind])
                columns += [f"{inside:.0%} of {len(kind)}", f"{wide:.2f}"]
                if not place and slopes:
                    good &= abs(float(inside) - expected["cover"][name]) <= expected["cover"]["tolerance"]
                elif slopes:
                    widest[name] = max(widest.get(name, 0.0), float(wide))
            runs, seconds = len({r["run"] for r in those}), np.median([float(r["seconds"]) for r in those])
            print(f"| {place or 'all'} | {name} | {runs} | {' | '.join(columns)} | {seconds:.1f} |")
    ratios = [widest[name] / expected["widest"][name] for name in widest]
    return good and all(1.0 / expected["widest"]["factor"] <= r <= expected["widest"]["factor"] for r in ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    if not options.report:
        work(options.out, options.runs)
    return 0 if report(read(options.out), yamlio.read_mapping(HERE / "expected.yaml")) else 1


if __name__ == "__main__":
    sys.exit(main())
