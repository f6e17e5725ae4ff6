"""The client half of Distributed AIM: local scores and exact marginals, both for sums only.

Sedimo & Near, "Efficient Distributed Differentially Private Synthetic Data with High Utility via Secure Aggregation",
Protocols 1 and 2. The server half is `strategies/distributed_aim.py`.
"""

from __future__ import annotations

import numpy as np

from fedsyn.aggregation import Contribution
from fedsyn.aggregation.fixed_point import LARGEST, encode, encoded_moves
from fedsyn.counting.candidates import Candidates
from fedsyn.counting.reductions import norm
from fedsyn.errors import ProtocolError
from fedsyn.protocol.client import TableClient, answers, indices
from fedsyn.selection.scores import l1_distances
from fedsyn.selection.views import ModelView
from fedsyn.wire.holder import Call


class DistributedAimClient(TableClient):
    """Nothing of a client is seen but its part in a sum: it releases nothing by itself."""

    @answers("scores")
    def scores(self, call: Call) -> Contribution:
        """Protocol 1, steps 1-2: w_r ||M_r(D_i) - n_i p_r||_1 of every eligible r, in integers of 1 / `scale`.

        The model is scaled to this client's size n_i, a public or an already released number, so one row moves the
        distance by at most 1 and the score by at most w_r. Rounded, it moves by at most N_r = `encoded_moves(w_r)`; all
        scores move together, so the L2 sensitivity of the vector is sqrt(sum_r N_r^2). The penalty is the same for all
        clients: the server subtracts it, once.
        """
        candidates = Candidates.of(self.workload, self.domain)
        eligible = indices(call.params.get("eligible"), len(candidates), "eligible")
        if not eligible:
            raise ProtocolError("parameter 'eligible' names no clique")
        scale, weights = self.options.scale, candidates.weights[eligible]
        if 2.0 * self.size * float(weights.max()) * scale > LARGEST:  # decided by public numbers
            raise ProtocolError("mechanism.scale is too large for this client's size: its scores would not be exact")
        view = ModelView.of(self.domain, call.arrays)
        cliques = [candidates.cliques[i] for i in eligible]
        encoded = encode(weights * l1_distances(self.codes, self.domain, cliques, view, self.size), scale)
        moves = encoded_moves(weights, scale).astype(np.float64)
        return Contribution.of_vector(encoded, norm(moves))

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        """Protocol 2, step 2b: the exact marginals of the selected cliques; each is a count, L2 sensitivity 1.

        Counts are integers as they are: no scale, no rounding.
        """
        return self.asked_marginals(call)
