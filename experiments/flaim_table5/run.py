"""Heterogeneity of 100 clients by partition, Table 5 of Maddock et al. 2024, against expected.yaml.

    python experiments/flaim_table5/run.py [--out DIR]

The caption speaks of an L1 distance over the workload; the numbers are total variation distances (half of L1) over ALL
1-, 2- and 3-way marginals. Exit code: 0 if every value lies within its tolerance, 1 if not, 2 on a bad configuration.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments.splits import FILE
from fedsyn import yamlio
from fedsyn.errors import FedsynError
from fedsyn.evaluation.real.marginals import client_heterogeneity
from fedsyn.loading import parse_config
from fedsyn.runs.prepare import split_tables
from fedsyn.table.counting.workload import Workload, all_kway


def total_variation(source: str, partition: dict[str, Any], seed: int, clients: int) -> float:
    """Mean total variation distance between a client's and the pooled marginals, over clients and marginals."""
    if partition["name"] == "clustering":
        partition = {**partition, "splits": str(FILE)}
    document = {
        "mechanism": {"name": "augflaim"},
        "data": {"source": source, "test_fraction": 0.1},
        "federation": {"clients": clients, "partition": partition},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "runtime": {"seed": seed},
    }
    config = parse_config(document, "table 5")
    tables = split_tables(config)
    domain = tables.schema.domain
    workload = Workload.uniform([q for k in (1, 2, 3) for q in all_kway(domain, k).cliques])
    return float(np.mean(client_heterogeneity(tables.train, domain, workload, tables.parts))) / 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/flaim_table5"), help="results folder")
    out: Path = parser.parse_args().out
    document = yamlio.read_mapping(Path(__file__).parent / "expected.yaml")
    lines = ["| table | partition | the paper | fedsyn | tolerance | as expected |", "|---|---|---|---|---|---|"]
    means, good = [], True
    for value in document["values"]:
        partition = value["partition"]
        # The clustered split belongs to the table, not to the seed.
        seeds = [0] if partition["name"] == "clustering" else document["seeds"]
        try:
            draws = [total_variation(value["source"], partition, seed, document["clients"]) for seed in seeds]
        except FedsynError as error:
            print(error, file=sys.stderr)
            return 2
        mean = float(np.mean(draws))
        fine = abs(mean - value["paper"]) <= value["tolerance"]
        good &= fine
        means.append(mean)
        spread = f" ± {np.std(draws, ddof=1):.3f}" if len(draws) > 1 else ""
        lines.append(
            f"| {value['source']} | {describe(partition)} | {value['paper']:.3f} | {mean:.3f}{spread} "
            f"| {value['tolerance']} | {'yes' if fine else '**no**'} |"
        )
        print(lines[-1], flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw(document["values"], means, out / "plot.png")
    print(f"table.md and plot.png are in {out}; " + ("as expected" if good else "NOT as expected"))
    return 0 if good else 1


def describe(partition: dict[str, Any]) -> str:
    return f"label skew, beta = {partition['beta']}" if "beta" in partition else str(partition["name"])


def draw(values: list[dict[str, Any]], means: list[float], path: Path) -> None:
    """Our means and the paper's numbers side by side."""
    import altair as alt

    from experiments.drawing import write_chart

    pairs = zip(values, means, strict=True)
    rows = [
        {"table": f"{value['source']}, {describe(value['partition'])}", "from": source, "distance": number}
        for value, mean in pairs
        for source, number in (("the paper", value["paper"]), ("fedsyn", mean))
    ]
    chart = alt.Chart(alt.InlineData(values=rows), width={"step": 16}, height=260).mark_bar()
    encoded = chart.encode(
        x=alt.X("table:N", sort=None, axis=alt.Axis(title=None, labelAngle=-35, labelLimit=260)),
        xOffset=alt.XOffset("from:N", sort=None),
        y=alt.Y("distance:Q", title="mean total variation distance"),
        color=alt.Color("from:N", sort=None, title=None),
    )
    write_chart(encoded.to_dict(), path)


if __name__ == "__main__":
    sys.exit(main())
