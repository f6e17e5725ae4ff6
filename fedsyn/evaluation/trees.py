"""A classifier that travels as arrays: boosted trees on codes.

Nothing of it is code, and nothing is unpickled.

A data holder that gets one checks that it is one: every step down a tree goes to a later node, so that it ends.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.version import installing

#: Trees, nodes of one, and classes that a message may bring.
MOST_TREES, MOST_NODES, MOST_CLASSES = 3_200, 63, 32
#: The largest value of a leaf; those of a classifier that was trained are log odds.
LARGEST = 1e100
#: FLAIM's setting of scikit-learn's histogram gradient boosting; it is deterministic.
LEARNER = {"max_iter": 100, "max_depth": 4, "early_stopping": False, "random_state": 0}
# Rows that are classified at a time.
_ROWS_AT_ONCE = 1 << 16


def one_thread() -> AbstractContextManager[object]:
    """Keeps learners on one thread.

    No result depends on the number of cores, and on busy cores threads cost time.
    """
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def classifier() -> Any:
    """Returns the untrained classifier of the metrics `auc`, `f1` and `accuracy`."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(**LEARNER)


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees.

    Tree t adds the value of a row's leaf to the score of class t modulo the number of scores.

    Attributes:
        nodes: (T, M, 4) int32: column, threshold, left, right of every node; a row whose code is at most the threshold
            goes left. A leaf has left = right = 0.
        values: (T, M) float64 of the leaves.
        base: (S,) float64 scores before any tree: one for two classes, else one for each class.
        classes: (C,) int32 label codes, ascending. Of two, the second one is predicted where the score is positive.
    """

    nodes: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]
    base: npt.NDArray[np.float64]
    classes: npt.NDArray[np.int32]

    @classmethod
    def none(cls) -> Trees:
        """No classifier."""
        return cls(np.zeros((0, 1, 4), np.int32), np.zeros((0, 1)), np.zeros(0), np.zeros(0, np.int32))

    @property
    def there(self) -> bool:
        return self.classes.size > 0

    def arrays(self) -> list[npt.NDArray[np.generic]]:
        return [self.nodes, self.values, self.base, self.classes]

    def check(self, shape: tuple[int, ...], label: int | None) -> None:
        """Raises ValueError unless these are trees over such a domain.

        They must not look at the label.

        Args:
            shape: cardinalities of the domain.
            label: column of the label; None: there must be no classifier.
        """
        nodes, values, base, classes = self.nodes, self.values, self.base, self.classes
        if [a.dtype for a in self.arrays()] != [np.int32, np.float64, np.float64, np.int32]:
            raise ValueError("the classifier's arrays have wrong types")
        if nodes.ndim != 3 or nodes.shape[2] != 4 or values.shape != nodes.shape[:2]:
            raise ValueError("the classifier's arrays have wrong shapes")
        if base.ndim != 1 or classes.ndim != 1:
            raise ValueError("the classifier's arrays have wrong shapes")
        count, most = values.shape
        if count > MOST_TREES or not 1 <= most <= MOST_NODES or len(classes) > MOST_CLASSES:
            raise ValueError("the classifier is too large")
        if not self.there:
            if count or base.size:
                raise ValueError("the classifier has trees and no classes")
            return
        if label is None or classes.min() < 0 or classes.max() >= shape[label] or (np.diff(classes) <= 0).any():
            raise ValueError("the classifier's classes must be ascending codes of the label")
        if len(base) != (len(classes) if len(classes) > 2 else 1) or count % len(base):
            raise ValueError("expected one score for each class of the classifier")
        # Sums of larger ones may overflow, and NumPy would warn of that for some rows and not for others.
        if not (np.abs(values) <= LARGEST).all() or not (np.abs(base) <= LARGEST).all():
            raise ValueError(f"the classifier's values must be finite, and {LARGEST:g} at most")
        column, left, right = nodes[..., 0], nodes[..., 2], nodes[..., 3]
        inner = (left != 0) | (right != 0)
        later = np.arange(most)[None, :]
        if ((left <= later) | (right <= later) | (left >= most) | (right >= most))[inner].any():
            raise ValueError("a tree of the classifier leads back")
        if ((column < 0) | (column >= len(shape)) | (column == label))[inner].any():
            raise ValueError("a tree of the classifier looks at a column that it may not see")

    def predict(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """(n,) label codes of the rows of an (n, d) table."""
        blocks = [self._predict(codes[at : at + _ROWS_AT_ONCE]) for at in range(0, len(codes), _ROWS_AT_ONCE)]
        return np.concatenate([np.zeros(0, np.int32), *blocks])

    @cached_property
    def _walks(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.intp], list[int]]:
        """Returns the nodes' columns, thresholds and successors.

        (T, M) column and threshold of each node, (2, T, M) the nodes after it, (T) steps of a walk in each tree.

        A leaf leads to itself, so all walks of a tree have as many steps as its longest one: how long rows take to be
        classified depends on their number and on the trees, which are public, and not on where the rows go.
        """
        left, right = self.nodes[..., 2].astype(np.intp), self.nodes[..., 3].astype(np.intp)
        inner = (left != 0) | (right != 0)
        index = np.broadcast_to(np.arange(left.shape[1]), left.shape)
        column = np.where(inner, self.nodes[..., 0], 0).astype(np.int64)
        steps, trees = np.zeros(left.shape, np.int64), np.arange(len(left))
        for node in range(left.shape[1] - 1, -1, -1):  # what a node leads to comes later
            longest = np.maximum(steps[trees, left[:, node]], steps[trees, right[:, node]])
            steps[:, node] = np.where(inner[:, node], 1 + longest, 0)
        after = np.stack([np.where(inner, right, index), np.where(inner, left, index)])
        return column, self.nodes[..., 1].astype(np.int64), after, steps[:, 0].tolist()

    def _predict(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        rows, table = np.arange(len(codes)), codes.astype(np.int64)
        scores = np.repeat(self.base[None, :], len(codes), axis=0)
        column, threshold, after, steps = self._walks
        for tree in range(len(self.values)):
            at = np.zeros(len(codes), np.intp)
            for _ in range(steps[tree]):
                goes = table[rows, column[tree][at]] <= threshold[tree][at]
                at = after[goes.astype(np.intp), tree, at]
            scores[:, tree % len(self.base)] += self.values[tree, at]
        if len(self.classes) > 2:
            chosen = np.argmax(scores, axis=1)
        else:
            chosen = np.where(scores[:, 0] > 0, len(self.classes) - 1, 0)
        labels: npt.NDArray[np.int32] = self.classes[chosen]
        return labels


def train_trees(codes: npt.NDArray[np.integer], label: int) -> Trees | str:
    """Trains the classifier of `accuracy` on a table.

    The trees are arrays, which need no scikit-learn to be followed.

    Args:
        codes: (n, d) codes of the table.
        label: column that is predicted.

    Returns:
        The trees, or why there are none.
    """
    classes, counts = np.unique(codes[:, label], return_counts=True)
    if len(classes) > MOST_CLASSES:
        return f"accuracy is asked of labels with at most {MOST_CLASSES} values"
    if len(classes) < 2 or codes.shape[1] < 2:
        return replace(Trees.none(), base=np.zeros(1), classes=classes[np.argmax(counts)][None].astype(np.int32))
    if find_spec("sklearn") is None:
        return f"accuracy needs scikit-learn, which is not installed: {installing('evaluation')}"
    columns = np.delete(np.arange(codes.shape[1]), label)
    with one_thread():
        learner = classifier().fit(codes[:, columns].astype(np.float64), codes[:, label])
    # scikit-learn has no public way to these nodes: `_predictors` and `_baseline_prediction` are read here alone, and a
    # test compares what `predict` says of them with what scikit-learn says.
    grown = [tree.nodes for step in learner._predictors for tree in step]
    nodes = np.zeros((len(grown), max(map(len, grown)), 4), np.int32)
    values = np.zeros(nodes.shape[:2])
    for tree, tree_nodes in enumerate(grown):
        inner = tree_nodes["is_leaf"] == 0
        values[tree, : len(tree_nodes)] = tree_nodes["value"]
        nodes[tree, : len(tree_nodes), 0] = np.where(inner, columns[tree_nodes["feature_idx"]], 0)
        nodes[tree, : len(tree_nodes), 1] = np.where(
            inner, np.floor(np.where(inner, tree_nodes["num_threshold"], 0.0)), 0
        )
        nodes[tree, : len(tree_nodes), 2] = np.where(inner, tree_nodes["left"], 0)
        nodes[tree, : len(tree_nodes), 3] = np.where(inner, tree_nodes["right"], 0)
    base = np.asarray(learner._baseline_prediction, np.float64).ravel()
    return Trees(nodes, values, base, learner.classes_.astype(np.int32))
