"""The client half of the FLAIM family: local selection by the exponential mechanism, then a share in a secure sum.

Maddock et al. 2024, Algorithm 1, lines 4-13. The server half is `strategies/flaim.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation import Contribution
from fedsyn.counting.candidates import Candidates
from fedsyn.counting.marginals import count
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.protocol.client import TableClient, answers, indices, marginal_contribution, positive
from fedsyn.selection.scores import expected_noise, l1_distances, penalised_cells
from fedsyn.selection.views import ModelView, check_model_size
from fedsyn.wire.holder import Call
from fedsyn.wire.messages import Arrays


class FlaimClient(TableClient):
    """Selects cliques of its own table (lines 4-10) and contributes their exact marginals to sums (lines 11-13)."""

    # One row moves w_q * ||M_q(D_k) - n_k p_q||_1 by at most w_q, n_k being a public or released number.
    moves_per_row = 1.0

    def heterogeneity(self, cliques: list[Clique], view: ModelView) -> npt.NDArray[np.float64]:
        """Line 7: what is subtracted from the distances, (m,) records. Nothing in the naive variant."""
        return np.zeros(len(cliques))

    @answers("select")
    def select(self, call: Call) -> tuple[Arrays, dict[str, Any]]:
        """Lines 4-10: s choices, each by the exponential mechanism; returns their candidate indices.

        Sensitivity of the score: `moves_per_row` * w_q; the mechanism uses the largest w_q of the eligible cliques.
        """
        candidates = Candidates.of(self.workload, self.domain)
        eligible = indices(call.params.get("eligible"), len(candidates), "eligible")
        epsilon = positive(call.params.get("epsilon"), "epsilon")
        sigma = positive(call.params.get("sigma"), "sigma")
        local_rounds = self.options.local_rounds
        if not eligible:
            raise ProtocolError("parameter 'eligible' names no clique")
        model_arrays, measured = _split(call.arrays, call.params)
        view = ModelView.of(self.domain, model_arrays, self.config.inference)
        past = _measurements(measured, call.params, self.domain) if measured else []
        check_model_size(self.domain, [m.clique for m in past], self.config.inference)
        chosen: list[int] = []
        steps = min(local_rounds, len(eligible))
        for step in range(steps):
            open_ = [i for i in eligible if i not in chosen]  # a choice is released, so leaving it out costs nothing
            cliques = [candidates.cliques[i] for i in open_]
            weights = candidates.weights[open_]
            distances = l1_distances(self.codes, self.domain, cliques, view, self.size)
            cells = penalised_cells(self.options.penalty, candidates, open_, view)
            penalty = expected_noise(sigma, cells) + self.heterogeneity(cliques, view)
            best = self.ledger.exponential(
                weights * (distances - penalty),
                epsilon=epsilon,
                sensitivity=self.moves_per_row * float(weights.max()),
                name="select",
                round=call.round,
                source=call.source,
            )
            chosen.append(open_[best])
            if step + 1 < steps:  # line 10 after the last choice would fit a model that nothing reads
                past.append(self._measure_locally(cliques[best], sigma, call, view.model.total))
                view = ModelView(self._local_model(view.model, past))
        self.holder.state["chosen"] = {"round": call.round, "candidates": chosen}
        return [], {"chosen": chosen}

    def _measure_locally(self, clique: Clique, sigma: float, call: Call, total: float) -> Measurement:
        """Line 9: a noisy marginal that never leaves the client but steers the next choice: a release of its own."""
        exact = count(self.codes, self.domain, [clique])[0]
        noisy = self.ledger.gaussian(
            exact, sigma=sigma, sensitivity=1.0, name="local measure", round=call.round, source=call.source
        )
        scale = total / max(1.0, self.size)
        return Measurement(clique, noisy * scale, sigma * scale)

    def _local_model(self, model: Model, measurements: list[Measurement]) -> Model:
        """Line 10: the server's measurements and this client's own, fitted together."""
        return estimate(
            self.domain,
            measurements,
            total=model.total,
            config=self.options.local_fit(self.config.inference),
            warm_start=model,
        )

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        """Lines 11-13: all one-way marginals (if asked for) and the marginals of its own choices, exact.

        One row touches each of them once, and each is a count: L2 sensitivity 1 per marginal.
        """
        candidates = Candidates.of(self.workload, self.domain)
        asked = indices(call.params.get("cliques"), len(candidates), "cliques")
        with_one_way = call.params.get("one_way") is True
        state = self.holder.state.get("chosen", {})
        own = set(state["candidates"]) if state.get("round") == call.round else set()
        one_way = [(name,) for name in self.domain] if with_one_way else []
        cliques = one_way + [candidates.cliques[i] for i in asked]
        active = [*range(len(one_way)), *(len(one_way) + j for j, i in enumerate(asked) if i in own)]
        return marginal_contribution(self.codes, self.domain, cliques, active)


class AugFlaimClient(FlaimClient):
    """AugFLAIM (Private): penalises a clique by the average distance of its attributes' one-way marginals."""

    # The penalty uses the rows a second time (Lemma 4.1).
    moves_per_row = 2.0

    def heterogeneity(self, cliques: list[Clique], view: ModelView) -> npt.NDArray[np.float64]:
        """Line 7, Private: tau_k(q) = mean over j in q of ||M_j(D_k) - n_k p_j||_1; one row moves it by at most 1."""
        attributes = list(self.domain)
        distances = l1_distances(self.codes, self.domain, [(name,) for name in attributes], view, self.size)
        by_name = dict(zip(attributes, distances, strict=True))
        return np.array([np.mean([by_name[name] for name in q]) for q in cliques])


class AugFlaimOracleClient(FlaimClient):
    """AugFLAIM (Oracle): penalises a clique by the client's true distance from the pooled table. Not private."""

    moves_per_row = 2.0  # Lemma 4.1; the pooled marginals are treated as given, which is why this is no mechanism

    def heterogeneity(self, cliques: list[Clique], view: ModelView) -> npt.NDArray[np.float64]:
        """Line 7, Oracle: tau_k(q) = ||M_q(D_k) - n_k M_q(D) / n||_1."""
        if self.holder.pooled is None:
            raise ProtocolError("the oracle needs the pooled table, which only a simulation has")
        return l1_distances(self.codes, self.domain, cliques, self.holder.pooled(), self.size)


class FlaimRandomClient(FlaimClient):
    """FLAIM (Random): chooses without looking at its rows."""

    @answers("select")
    def select(self, call: Call) -> tuple[Arrays, dict[str, Any]]:
        """s distinct eligible cliques, uniformly."""
        candidates = Candidates.of(self.workload, self.domain)
        eligible = indices(call.params.get("eligible"), len(candidates), "eligible")
        order = call.source.permutation(len(eligible))
        chosen = [eligible[int(i)] for i in order[: self.options.local_rounds]]
        self.holder.state["chosen"] = {"round": call.round, "candidates": chosen}
        return [], {"chosen": chosen}


def _split(arrays: Arrays, params: dict[str, Any]) -> tuple[Arrays, Arrays]:
    """The arrays of the model and, for s > 1, those of the measurements behind it."""
    length = params.get("model_arrays", len(arrays))
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= len(arrays):
        raise ProtocolError("parameter 'model_arrays' must count arrays of the request")
    return arrays[:length], arrays[length:]


def _measurements(arrays: Arrays, params: dict[str, Any], domain: Domain) -> list[Measurement]:
    """The server's past measurements, which it sends when local rounds refit the model (s > 1)."""
    names, sigmas = params.get("measured"), params.get("sigmas")
    if not isinstance(names, list) or not isinstance(sigmas, list) or not len(names) == len(sigmas) == len(arrays):
        raise ProtocolError("parameters 'measured' and 'sigmas' must match the request's arrays")
    past = []
    for names_of_clique, sigma, values in zip(names, sigmas, arrays, strict=True):
        clique = tuple(str(name) for name in names_of_clique)
        if any(name not in domain for name in clique) or values.shape != domain.shape_of(clique):
            raise ProtocolError("a measurement of the request does not fit the domain")
        past.append(Measurement(clique, values.astype(np.float64), positive(sigma, "sigmas")))
    return past
