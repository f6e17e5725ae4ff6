"""The client half of the PrivSyn family: projections, and weighted marginals, of a holder's own rows.

Li et al. 2026, Algorithm 1; Zhang et al. 2021. The server half is `strategies/privsyn.py`. Everything here is the exact
part of a sum; who adds the noise is the configuration's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation import Contribution
from fedsyn.counting.marginals import count, count_one_way, split_one_way
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference import Hierarchy
from fedsyn.protocol.client import ONE_WAY, TableClient, answers, indices
from fedsyn.selection.indif import INDIF_SENSITIVITY, INDIF_UNIT, Projection, all_pairs, indif
from fedsyn.wire.holder import Call

# A weight is at most this large, so that a weighted count stays far below 2^53.
_LARGEST_WEIGHT = 1 << 16


class PairClient(TableClient):
    """What all variants share: one-way marginals at some resolutions, and marginals of the pairs that are asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pairs = all_pairs(self.domain)

    def asked(self, call: Call) -> list[Clique]:
        """The pairs that a request names, by their places among all pairs."""
        return [self.pairs[i] for i in indices(call.params.get("pairs"), len(self.pairs), "pairs")]

    @answers(ONE_WAY)
    def one_way(self, call: Call) -> Contribution:
        """The exact one-way marginals at the resolutions that the request describes, each weighted, as ONE array.

        Sensitivity: one row is in one cell and at most one block of each further resolution of every attribute, so it
        moves the array by at most the root of the sum of all squared weights.
        """
        trees = _resolutions(call.params.get("resolutions"), self.domain)
        counts = split_one_way(count_one_way(self.codes, self.domain), self.domain)
        parts = [tree.apply(own) for tree, own in zip(trees, counts, strict=True)]
        return _one_array(parts, math.sqrt(math.fsum(tree.sensitivity**2 for tree in trees)))

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        """The exact marginals of some pairs, each times a public integer weight, as ONE array.

        Sensitivity: one row is in one cell of each marginal, so it moves the array by sqrt(sum of squared weights).
        """
        pairs = self.asked(call)
        weights = _weights(call.params.get("weights"), len(pairs))
        tables = count(self.codes, self.domain, pairs)
        parts = [weight * table.ravel() for weight, table in zip(weights, tables, strict=True)]
        return _one_array(parts, math.sqrt(sum(weight**2 for weight in weights)))


class PrivSynClient(PairClient):
    """The one holder of central PrivSyn."""

    @answers("indif")
    def indif(self, call: Call) -> Contribution:
        """InDif of every pair, times a public integer and rounded (Zhang et al. 2021, Section 4.1).

        Sensitivity: one row moves a score by at most 4 records, so the multiple by at most the integer 4 times the
        unit, and so its rounding; sqrt(m) times that for all m pairs together.
        """
        pairs = self.asked(call)
        scores = [indif(table) for table in count(self.codes, self.domain, pairs)]
        scaled = np.rint(np.array(scores) * INDIF_UNIT).astype(np.int64)
        return _one_array([scaled], INDIF_SENSITIVITY * INDIF_UNIT * math.sqrt(len(pairs)))


class FedPrivSynClient(PairClient):
    """A client of FedPrivSyn and AdaFedPrivSyn."""

    @answers("project")
    def project(self, call: Call) -> Contribution:
        """The projection of every pair's exact marginal: k integers per pair (Algorithm 1, lines 2 and 4).

        Sensitivity: one row adds one row of each pair's public matrix (`Projection.sensitivity`).
        """
        options = self.options
        projection = Projection(options.projection, options.k, options.projection_seed)
        pairs = self.asked(call)
        parts = projection.project(self.codes, self.domain, pairs)
        return _one_array(parts, projection.sensitivity(self.domain, pairs))


def _one_array(parts: Sequence[npt.NDArray[np.int64]], sensitivity: float) -> Contribution:
    """Some exact integer vectors as one array of a sum."""
    return Contribution.of_vector(np.concatenate([np.zeros(0, np.int64), *parts]), sensitivity)


def _resolutions(value: Any, domain: Domain) -> list[Hierarchy]:
    """Checked hierarchies, one per attribute: [ordered cells, widths, weights]."""
    wrong = ProtocolError("parameter 'resolutions' must hold ordered cells, widths and weights for each attribute")
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(domain):
        raise wrong
    trees = []
    for entry, size in zip(value, domain.shape, strict=True):
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 3:
            raise wrong
        ordered, widths, weights = entry
        if isinstance(ordered, bool) or not isinstance(ordered, int) or not isinstance(widths, Sequence):
            raise wrong
        if any(isinstance(width, bool) or not isinstance(width, int) for width in widths):
            raise wrong
        try:
            checked = tuple(float(weight) for weight in _weights(weights, len(widths)))
            trees.append(Hierarchy(size, ordered, tuple(widths), checked))
        except ValueError:
            raise wrong from None
    return trees


def _weights(value: Any, length: int) -> list[int]:
    """Checked positive integer weights, one for each pair or resolution."""
    valid = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == length and length > 0
    if not valid or any(isinstance(w, bool) or not isinstance(w, int) or not 1 <= w <= _LARGEST_WEIGHT for w in value):
        raise ProtocolError(f"parameter 'weights' must hold one integer from 1 to {_LARGEST_WEIGHT} for each part")
    return list(value)
