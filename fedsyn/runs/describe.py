"""`fedsyn partition`: what a run's clients look like. For simulations; it reads the real rows."""

from __future__ import annotations

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.evaluation.real.marginals import client_heterogeneity
from fedsyn.runs.prepare import split_tables
from fedsyn.table.counting.candidates import build_workload


def describe_partition(config: RunConfig) -> dict[str, float | int | str]:
    """Splits the table as the run would; sizes and heterogeneity of the clients."""
    tables = split_tables(config)
    domain = tables.schema.domain
    sizes = np.array([len(part) for part in tables.parts])
    workload = build_workload(config.workload, domain)
    return {
        "rows": int(sizes.sum()),
        "clients": len(sizes),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "heterogeneity": float(np.mean(client_heterogeneity(tables.train, domain, workload, tables.parts))),
    }
