"""The client half of central AIM: the one data holder, who selects and whose marginals are measured.

Maddock et al. 2024, Algorithm 2 (after McKenna et al. 2022). The server half is `strategies/aim.py`.
"""

from __future__ import annotations

from typing import Any

from fedsyn.aggregation import Contribution
from fedsyn.counting.candidates import Candidates
from fedsyn.errors import ProtocolError
from fedsyn.protocol.client import TableClient, answers, indices, positive
from fedsyn.selection.scores import expected_noise, l1_distances, penalised_cells
from fedsyn.selection.views import ModelView
from fedsyn.wire.holder import Call
from fedsyn.wire.messages import Arrays


class AimClient(TableClient):
    """Holds the whole table."""

    @answers("select")
    def select(self, call: Call) -> tuple[Arrays, dict[str, Any]]:
        """Line 13: one clique by the exponential mechanism; returns its candidate index.

        Sensitivity: one row moves ||M_q(D) - n p_q||_1 by at most 1 (n is a public or released number), so the score
        by at most w_q; the mechanism uses the largest w_q of the eligible cliques. The penalty depends on no row.
        """
        candidates = Candidates.of(self.workload, self.domain)
        eligible = indices(call.params.get("eligible"), len(candidates), "eligible")
        if not eligible:
            raise ProtocolError("parameter 'eligible' names no clique")
        epsilon = positive(call.params.get("epsilon"), "epsilon")
        sigma = positive(call.params.get("sigma"), "sigma")
        view = ModelView.of(self.domain, call.arrays, self.config.inference)
        weights = candidates.weights[eligible]
        cliques = [candidates.cliques[i] for i in eligible]
        distances = l1_distances(self.codes, self.domain, cliques, view, self.size)
        cells = penalised_cells(self.options.penalty, candidates, eligible, view)
        best = self.ledger.exponential(
            weights * (distances - expected_noise(sigma, cells)),
            epsilon=epsilon,
            sensitivity=float(weights.max()),
            name="select",
            round=call.round,
            source=call.source,
        )
        return [], {"chosen": [eligible[best]]}

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        """Line 14: the exact marginals that are asked for; each is a count, L2 sensitivity 1."""
        return self.asked_marginals(call)
