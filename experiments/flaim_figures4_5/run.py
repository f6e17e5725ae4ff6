"""SynthFS over beta, and Adult's embedding with its clients: Figures 4 and 5 of Maddock et al. 2024 (FLAIM).

    python experiments/flaim_figures4_5/run.py [--out DIR]

Draws figure4.png and figure5.png, and prints the share of a feature's variance that lies between clients.
Exit code: 0 if each share is that of expected.yaml to three digits, 1 if not, 2 where a table is missing. UMAP embeds
Adult on this machine, a minute the first time; who holds which row is shipped (experiments/splits.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments.drawing import write_chart
from experiments.splits import FILE
from fedsyn import yamlio
from fedsyn.errors import FedsynError
from fedsyn.loading import parse_config
from fedsyn.plugins.partitioners.clustering import Clustering
from fedsyn.runs.prepare import SplitTable, split_tables
from fedsyn.table.data.partition import PartitionInput
from fedsyn.table.data.sources import SynthFSOptions, synthfs

_SHOWN = 3000  # points of a picture
_SIDE = 190


def between(values: np.ndarray, client: np.ndarray) -> float:
    """Returns the share of a feature's variance that lies between clients, 0 to 1."""
    sizes, sums = np.bincount(client), np.bincount(client, values)
    means = sums[sizes > 0] / sizes[sizes > 0]
    return float(np.average((means - values.mean()) ** 2, weights=sizes[sizes > 0]) / values.var())


def adult() -> tuple[SplitTable, np.ndarray]:
    """Returns Adult and the client of each training row, as the experiments' clustered sweeps have it."""
    document = {
        "mechanism": {"name": "augflaim"},
        "data": {"source": "adult_flaim", "test_fraction": 0.1},
        "federation": {"clients": 100, "partition": {"name": "clustering", "splits": str(FILE)}},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "runtime": {"seed": 0},
    }
    tables = split_tables(parse_config(document, "figure 5"))
    client = np.empty(len(tables.train), dtype=np.int64)
    for number, rows in enumerate(tables.parts):
        client[rows] = number
    return tables, client


def panel(places: np.ndarray, colours: np.ndarray, title: str, scale: str) -> Any:
    """Returns a scatter of some of the points."""
    import altair as alt

    chosen = np.random.default_rng(0).permutation(len(places))[:_SHOWN]
    rows = [{"x": float(places[i, 0]), "y": float(places[i, 1]), "of": float(colours[i])} for i in chosen]
    x, y = (make(f"{name}:Q", title=None, scale=alt.Scale(zero=False)) for name, make in (("x", alt.X), ("y", alt.Y)))
    colour = alt.Color("of:Q", legend=None, scale=alt.Scale(scheme=scale))
    chart = alt.Chart(alt.InlineData(values=rows), width=_SIDE, height=_SIDE, title=title)
    return chart.mark_circle(size=8, opacity=0.7).encode(x, y, color=colour)


def figure(panels: list[Any], path: Path) -> None:
    import altair as alt

    whole = alt.hconcat(*panels).resolve_scale(x="independent", y="independent", color="independent")
    write_chart(whole.to_dict(validate=False), path)


def shares(out: Path, betas: list[float], columns: list[str]) -> dict[str, float]:
    """Draws both figures; returns the share of each SynthFS and of each column of Adult."""
    found, panels = dict[str, float](), []
    for beta in betas:
        frame, client = synthfs(SynthFSOptions(rows=50_000, clients=100, features=2, beta=beta, seed=0))
        values = frame.to_numpy()
        found[f"SynthFS, β = {beta:g}"] = float(np.mean([between(column, client) for column in values.T]))
        panels.append(panel(values, client, f"beta = {beta:g}", "turbo"))
    figure(panels, out / "figure4.png")
    tables, client = adult()
    domain = tables.schema.domain
    places = Clustering().embedding(PartitionInput(tables.train, domain), 0)
    panels = [panel(places, client, "clients", "turbo")]
    for name in columns:
        codes = tables.train[:, domain.axes((name,))[0]].astype(float)
        found[f"Adult, {name}"] = between(codes, client)
        panels.append(panel(places, codes, name, "viridis"))
    figure(panels, out / "figure5.png")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/flaim_figures4_5"), help="folder of the pictures")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    document = yamlio.read_mapping(Path(__file__).parent / "expected.yaml")
    try:
        found = shares(out, document["betas"], document["columns"])
    except FedsynError as error:
        print(error, file=sys.stderr)
        return 2
    print("| | variance between clients |\n|---|---|")
    print(*(f"| {name} | {share:.3f} |" for name, share in found.items()), sep="\n")
    good = all(abs(found[name] - share) < 0.0006 for name, share in document["shares"].items())
    print(f"figure4.png and figure5.png are in {out}; " + ("as expected" if good else "NOT as expected"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
