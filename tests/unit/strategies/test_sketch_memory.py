"""Memory of comparing a model with all candidates: as much as one of them takes, however many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from fedsyn.domain import Clique, Domain
from fedsyn.inference import EstimateConfig, Measurement, estimate
from fedsyn.plugins.strategies.sketch_aim import Sketched
from fedsyn.selection.coarse import grouping_of
from fedsyn.selection.scores import l1_distances
from fedsyn.selection.sketches import Interactions
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.workload import all_kway

DOMAIN = Domain(tuple("abcdefghij"), (16,) * 10)
TRIPLES = list(all_kway(DOMAIN, 3).cliques)
AT_ONCE = 1 << 14


def view() -> ModelView:
    rng = np.random.default_rng(0)
    pairs = [("a", "b"), ("b", "c"), ("c", "d")]
    measured = [Measurement(q, rng.random((16, 16)) + 0.1, 1.0) for q in pairs]
    return ModelView(estimate(DOMAIN, measured, total=500.0, config=EstimateConfig(iterations=3)), AT_ONCE)


def sketched(cliques: list[Clique]) -> None:
    grouping = grouping_of(DOMAIN, cliques, 8, {name: np.ones(16) for name in DOMAIN})
    sketcher = Interactions(DOMAIN, tuple(cliques), 8, grouping)
    sketches = Sketched(sketcher, [np.zeros(length) for length in sketcher.lengths], 1.0)
    model = view()
    assert len(sketches.errors(model)) == len(sketches.departures(model)) == len(sketches.sketch_errors(model))


def supported(cliques: list[Clique]) -> None:
    assert len(view().effective_cells(cliques)) == len(cliques)


def compared(cliques: list[Clique], rows: int = 600) -> None:
    codes = np.random.default_rng(1).integers(0, 16, (rows, 10)).astype(np.uint8)
    assert len(l1_distances(codes, DOMAIN, cliques, view(), 500.0)) == len(cliques)


@pytest.mark.parametrize("work", [sketched, supported, compared])
def test_a_further_candidate_takes_less_than_its_cells(work: Callable[[list[Clique]], None]) -> None:
    """An array over all cells takes 8 bytes for each."""
    peaks, cliques = [], (TRIPLES[:24], TRIPLES)
    work(TRIPLES[:2])  # what is kept for the next time
    for some in cliques:
        tracemalloc.start()
        try:
            work(some)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    cells = [sum(map(DOMAIN.size, some)) for some in cliques]
    assert peaks[1] - peaks[0] < 1.0 * (cells[1] - cells[0])


def test_parts_change_no_bit() -> None:
    """Nothing depends on what is formed together, unless very many pairs are."""
    model = view().model
    whole, parts = (list(ModelView(model, at_once).each(TRIPLES)) for at_once in (1 << 24, AT_ONCE))
    assert all(one.tobytes() == other.tobytes() for one, other in zip(whole, parts, strict=True))
