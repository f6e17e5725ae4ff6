"""`fedsyn partition`: what a run's clients look like. For simulations; it reads the real rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.evaluation.real.marginals import client_heterogeneity
from fedsyn.registry import partitioner
from fedsyn.runs.prepare import randomness_of, split_tables
from fedsyn.table.counting.candidates import build_workload


def describe_partition(config: RunConfig, plot: Path | None = None) -> dict[str, float | int | str]:
    """Splits the table as the run would; sizes and heterogeneity of the clients, and a picture if asked for.

    Args:
        config: the run's configuration.
        plot: PNG file to draw.
    """
    from fedsyn.table.data.partition import PartitionInput

    tables = split_tables(config)
    codes, schema, parts = tables.train, tables.schema, tables.parts
    domain = schema.domain
    sizes = np.array([len(part) for part in parts])
    workload = build_workload(config.workload, domain)
    heterogeneity = client_heterogeneity(codes, domain, workload, parts)
    if plot is not None:
        from fedsyn.evaluation.report.plots import plot_partition

        node = config.federation.partition
        chosen = partitioner(node.name, **node.options)
        embedding = None
        if hasattr(chosen, "embedding"):
            table = PartitionInput(codes, domain, schema.label, tables.native)
            embedding = chosen.embedding(table, randomness_of(config).ordinary("partition"))
        label = schema.label
        column = None if label is None else codes[:, domain.axes((label,))[0]]
        plot_partition(parts, embedding=embedding, path=plot, labels=column, label_name=label or "label")
    return {
        "rows": int(sizes.sum()),
        "clients": len(parts),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "heterogeneity": float(np.mean(heterogeneity)),
    }
