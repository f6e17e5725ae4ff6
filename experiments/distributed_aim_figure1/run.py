"""Gaussian top-k against the peeled exponential mechanism, Figures 1 and 2 of the Distributed AIM paper.

    python experiments/distributed_aim_figure1/run.py [--out DIR]

Both spend the same budget on one choice of the k best of m options, and are compared with the k that really score best
(Jaccard overlap, mean over draws of the noise). Values and claims are checked against expected.yaml. Exit code: 0 if
all are as expected, 1 if not, 2 on a bad configuration.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn import yamlio
from fedsyn.errors import FedsynError
from fedsyn.inference import Measurement, estimate
from fedsyn.loading import parse_config
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    Ledger,
    PrivacyBudget,
    Release,
    accountant_for,
    epsilon_for_rho,
    sigma_for_rho,
)
from fedsyn.randomness import Randomness
from fedsyn.runs.prepare import split_tables
from fedsyn.selection.scores import l1_distances
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import Candidates, build_workload

Array = npt.NDArray[np.float64]
Result = dict[tuple[str, str, float, int], float]  # scores, mechanism, epsilon, k -> mean overlap
MECHANISMS = ("exponential", "gaussian", "as printed", "exact")


@dataclass(frozen=True)
class Scores:
    """Options to choose from.

    Attributes:
        values: (m,) scores.
        moves: (m,) how far one row moves each of them.
    """

    values: Array
    moves: Array


def adult_scores(facts: dict[str, Any]) -> Scores:
    """AIM's first scores on Adult, w_q ||M_q(D) - n p_q||_1, against uniform or exact one-way marginals."""
    document = {
        "mechanism": {"name": "aim"},
        "data": {"source": facts["source"], **facts.get("data", {})},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": facts["workload"],
        "runtime": {"seed": 0},
    }
    config = parse_config(document, "figure 1")
    tables = split_tables(config)
    domain, rows = tables.schema.domain, float(len(tables.train))
    ones = [(name,) for name in domain] if facts["model"] == "one_way" else []
    exact = [Measurement(q, values, 1.0) for q, values in zip(ones, count(tables.train, domain, ones), strict=True)]
    view = ModelView(estimate(domain, exact, total=rows))
    candidates = Candidates.of(build_workload(config.workload, domain), domain)
    distances = l1_distances(tables.train, domain, candidates.cliques, view, rows)
    return Scores(candidates.weights * distances, candidates.weights)


def synthetic_scores(facts: dict[str, Any]) -> Scores:
    """m scores drawn uniformly from [0, largest]; one row moves every one of them by 1."""
    rng = np.random.default_rng(facts["seed"])
    return Scores(rng.random(facts["options"]) * facts["largest"], np.ones(facts["options"]))


def top_k(scores: Array, k: int) -> list[int]:
    """Returns the indices of the k largest scores, best first; of equal scores the smaller index comes first."""
    return [int(i) for i in np.argsort(-scores, kind="stable")[:k]]


def top_k_overlap(scores: Array, chosen: list[int]) -> float:
    """Returns |A ∩ B| / |A ∪ B| of a choice and as many best scores (Sedimo & Near, Section 6.1, U(T, A))."""
    a, b = set(top_k(scores, len(chosen))), set(chosen)
    return len(a & b) / len(a | b) if a | b else 1.0


def choose(name: str, scores: Scores, k: int, budget: PrivacyBudget, source: Any) -> list[int]:
    """k options chosen with the whole budget."""
    ledger = Ledger(budget, accountant_for("gaussian" if name == "exact" else "zcdp", budget))
    rho = ledger.remaining_rho
    if name == "exponential":
        # Peeling: k choices, each without those before it, at rho / k each.
        left, chosen = scores.values.copy(), []
        sensitivity = float(scores.moves.max())
        for step in range(k):
            epsilon = epsilon_for_rho(rho / k)
            entry = Release("choose", step + 1, EXPONENTIAL, sensitivity, epsilon=epsilon)
            best = ledger.exponential(left, entry, source)
            chosen.append(best)
            left[best] = -np.inf
        return chosen
    sensitivity = float(np.linalg.norm(scores.moves))
    # Algorithm 2, line 1: |R| times the square of the largest sensitivity of one score.
    noise_for = float(np.sqrt(len(scores.moves)) * scores.moves.max()) if name == "as printed" else sensitivity
    sigma = sigma_for_rho(rho, noise_for)
    entry = Release("scores", 1, GAUSSIAN, sensitivity, sigma=sigma)
    (noisy,) = ledger.gaussian([scores.values], entry, source)
    return top_k(noisy, k)


def overlaps(name: str, scores: Scores, document: dict[str, Any]) -> Result:
    """Mean overlaps of all mechanisms on one set of scores, which has epsilons of its own."""
    results: Result = {}
    for mechanism in MECHANISMS:
        for epsilon in document["scores"][name]["epsilons"]:
            budget = PrivacyBudget(epsilon, document["delta"])
            for k in document["ks"]:
                draws = []
                for draw in range(document["draws"]):
                    source = Randomness(document["seed"]).generator(name, mechanism, str(epsilon), k, draw)
                    draws.append(top_k_overlap(scores.values, choose(mechanism, scores, k, budget, source)))
                results[name, mechanism, epsilon, k] = float(np.mean(draws))
    return results


def check(document: dict[str, Any], results: Result) -> tuple[list[str], bool]:
    """Lines of the tables of values and claims, and whether all are as expected."""
    lines = ["| scores | mechanism | ε | k | overlap | expected | as expected |", "|---|---|---|---|---|---|---|"]
    good = True
    for value in document["values"]:
        found = results[value["scores"], value["mechanism"], value["epsilon"], value["k"]]
        fine = abs(found - value["expected"]) <= document["tolerance"]
        good &= fine
        bounds = f"{value['expected']} ± {document['tolerance']}"
        where = f"| {value['scores']} | {value['mechanism']} | {value['epsilon']} | {value['k']} "
        lines.append(f"{where}| {found:.3f} | {bounds} | {'yes' if fine else '**no**'} |")
    lines += ["", "| claim | largest loss against the exponential mechanism | held | held when recorded |"]
    lines.append("|---|---|---|---|")
    for claim in document["claims"]:
        loss = max(
            results[claim["scores"], "exponential", epsilon, k] - results[claim["scores"], "gaussian", epsilon, k]
            for epsilon in claim["epsilons"]
            for k in claim["ks"]
        )
        held = loss <= claim["at_most"]
        good &= held == claim["held"]
        lines.append(
            f"| {claim['says']} | {loss:.3f} | {'yes' if held else 'no'} | {'yes' if claim['held'] else 'no'} |"
        )
    return lines, good


def draw_plot(document: dict[str, Any], results: Result, path: Path) -> None:
    """One panel per set of scores and epsilon: overlap against k."""
    import altair as alt

    from experiments.drawing import write_chart

    rows = [
        {"k": k, "overlap": results[name, mechanism, epsilon, k], "mechanism": mechanism, "scores": name, "ε": epsilon}
        for name, facts in document["scores"].items()
        for epsilon in facts["epsilons"]
        for mechanism in MECHANISMS
        for k in document["ks"]
    ]
    chart = alt.Chart(width=190, height=150).mark_line(point=True)
    encoded = chart.encode(
        x="k:Q",
        y=alt.Y("overlap:Q", title="Jaccard overlap", scale=alt.Scale(domain=[0, 1])),
        color=alt.Color("mechanism:N", sort=list(MECHANISMS), title=None),
    )
    faceted = encoded.facet(column="ε:N", row="scores:N", data=alt.InlineData(values=rows))
    write_chart(faceted.to_dict(), path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/distributed_aim_figure1"), help="results folder")
    out: Path = parser.parse_args().out
    document = yamlio.read_mapping(Path(__file__).parent / "expected.yaml")
    results: Result = {}
    try:
        for name, facts in document["scores"].items():
            scores = adult_scores(facts) if "source" in facts else synthetic_scores(facts)
            results |= overlaps(name, scores, document)
    except FedsynError as error:
        print(error, file=sys.stderr)
        return 2
    lines, good = check(document, results)
    lines += ["", "| scores | mechanism | ε | " + " | ".join(f"k = {k}" for k in document["ks"]) + " |"]
    lines.append("|---" * (3 + len(document["ks"])) + "|")
    for name in document["scores"]:
        for mechanism in MECHANISMS:
            for epsilon in document["scores"][name]["epsilons"]:
                row = " | ".join(f"{results[name, mechanism, epsilon, k]:.2f}" for k in document["ks"])
                lines.append(f"| {name} | {mechanism} | {epsilon} | {row} |")
    print("\n".join(lines))
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw_plot(document, results, out / "plot.png")
    print(f"table.md and plot.png are in {out}; " + ("as expected" if good else "NOT as expected"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
