"""The client half of sketch_aim: exact one-way marginals, sketches and chosen marginals, each for a sum only.

The server half is `strategies/sketch_aim.py`; docs/sketch_aim.md describes the mechanism.
"""

from __future__ import annotations

from fedsyn.aggregation import Contribution
from fedsyn.errors import ProtocolError
from fedsyn.protocol.client import TableClient, answers
from fedsyn.wire.holder import Call


class SketchAimClient(TableClient):
    """Contributes to sums and selects nothing. All one-way marginals are the base class's answer `one-way`."""

    @answers("sketch")
    def sketch(self, call: Call) -> Contribution:
        """The sketches of the cliques that are asked for, one after the other.

        One row adds one row of each public matrix, so the vector moves by sqrt(sum of (c_q r)^2) in L2, exactly,
        whatever groups or seed the server names: every row of a matrix has the same norm r.
        """
        cliques = self.asked_cliques(call)
        if not cliques or not all(self.options.weight_of(q) for q in cliques):
            raise ProtocolError("parameter 'cliques' names a clique that these options do not sketch, or none")
        groups = self.options.sketch == "groups"
        if len(call.arrays) != groups:
            raise ProtocolError("the request does not bring the groups of the sketches, or more than them")
        sketcher = self.options.sketcher(self.domain, cliques, *call.arrays)
        return Contribution.of_vector(sketcher.of_rows(self.codes), sketcher.sensitivity)

    @answers("measure")
    def measure(self, call: Call) -> Contribution:
        """The chosen marginals, exact; each is a count, L2 sensitivity 1."""
        return self.asked_marginals(call)
