"""How long a holder takes to say how good a table is: it depends on its number of rows, never on what stands in them.

The table, the boxes and the trees are the server's, so it could choose them to make one value slow: a node rounds the
time of its answers up to powers of two (docs/node.md), and a walk of 62 steps instead of 1 goes over any of them.
Counted are calls of functions, of numpy's too: the same for every table of so many rows, to the last one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.evaluation.boxes import Boxes
from fedsyn.evaluation.federated.question import TableQuestion, compared_cliques
from fedsyn.evaluation.federated.statistics import Entries, vector
from fedsyn.evaluation.trees import Trees
from fedsyn.table.counting.workload import all_kway

SHAPE = (4, 3, 2)
DEEPEST = 62


def chains(trees: int = 3) -> Trees:
    """Trees in which a row with code 3 in the first column walks 31 steps, and any other one."""
    nodes = np.zeros((trees, DEEPEST + 1, 4), np.int32)
    for node in range(0, DEEPEST, 2):  # an inner node, and a leaf for whoever is not looked for
        nodes[:, node] = 0, 2, node + 1, node + 2
    return Trees(nodes, np.ones((trees, DEEPEST + 1)), np.zeros(1), np.array([0, 1], np.int32))


def question() -> TableQuestion:
    domain = Domain(("a", "b", "c"), SHAPE)
    table = np.random.default_rng(0).integers(0, SHAPE, (50, 3)).astype(np.uint8)
    axes, low = np.array([[0, 1], [1, 2]], np.int32), np.array([[3, 0], [0, 1]], np.int32)
    made = TableQuestion(
        domain, compared_cliques(all_kway(domain, 2)), table, Boxes(axes, low, low + 1 - 1), chains(), 2
    )
    made.check()
    return made


def calls(work: Callable[[], Any]) -> int:
    """Functions that are called, in Python and in C, without those that a collection of garbage would call."""
    found, collects = 0, gc.isenabled()

    def count(*_: Any) -> None:
        nonlocal found
        found += 1

    gc.disable()  # libraries hang callbacks on it, and when it runs is not the work's doing
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    return found


def tables() -> dict[str, np.ndarray]:
    """Of 40 rows: nobody whom the server looks for, one, and everybody."""
    none = np.random.default_rng(1).integers(0, (3, 3, 2), (40, 3)).astype(np.uint8)
    one, all_ = none.copy(), none.copy()
    one[7, 0], all_[:, 0] = 3, 3
    return {"none": none, "one": one, "all": all_}


@pytest.mark.parametrize("name", ["one", "all"])
def test_a_row_that_is_looked_for_makes_no_answer_longer(name: str) -> None:
    asked, found = question(), tables()
    entries = Entries.of(asked, True)
    answers = {each: vector(asked, entries, rows, 40.0, 100.0) for each, rows in found.items()}  # everything is warm
    assert not np.array_equal(answers["none"], answers[name])
    took = {
        each: calls(lambda rows=rows: vector(asked, entries, rows, 40.0, 100.0))  # type: ignore[misc]
        for each, rows in found.items()
    }
    assert took["none"] == took[name]
    assert answers["none"].shape == answers[name].shape


def test_a_tree_of_chains_is_walked_as_its_nodes_say() -> None:
    trees = chains()
    trees.check(SHAPE, 2)
    leaves = np.zeros((3, DEEPEST + 1))
    leaves[:, DEEPEST] = 1.0  # the end of the chain alone
    leaves[:, 1] = -1.0
    sees = Trees(trees.nodes, leaves, np.zeros(1), trees.classes)
    rows = np.array([[0, 0, 0], [3, 2, 1], [2, 1, 0]], np.uint8)
    assert sees.predict(rows).tolist() == [0, 1, 0]
    assert sees.predict(rows[:0]).shape == (0,) and Trees.none().values.shape == (0, 1)
