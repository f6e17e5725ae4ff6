"""The server half of the baseline `each_alone`.

The client half, with the contract of both, is `clients/each_alone.py`.
"""

from __future__ import annotations

import numpy as np

from fedsyn.inference import EmpiricalModel, rows_for
from fedsyn.mechanism import MechanismStrategy, Protocol
from fedsyn.plugins.clients.each_alone import EachAloneClient
from fedsyn.plugins.strategies.sketch_aim import SketchAim


class EachAlone(MechanismStrategy):
    """Each holder alone, tables put together.

    It is what a consortium has without a federation, and what a federation has to beat. Every holder makes a synthetic
    table of its own rows, by `sketch_aim` with one holder and with the whole budget; the tables, each with as many rows
    as its holder's public or released number, are one table then. The server plans and fits for one holder after the
    other from that holder's noisy vectors alone, which is post-processing: a holder could do it by itself, to the same
    table. Nothing that one holder released is used for another one's table.

    The privacy of a row is that of its own holder's run: other holders' requests and releases do not depend on it, so
    the ledger charges each holder by itself (`Contract.alone`).
    """

    Client = EachAloneClient

    def protocol(self) -> Protocol:
        rho, everybody = self.ledger.remaining_rho, rows_for(self.domain, self.total)
        tables = []
        for k in self.everyone():
            if self.rows([k]) == 0.0:
                continue  # by its public or released number it has no rows
            turn = Turn(self, k, rho)
            yield from turn.protocol()
            turn.smooth()
            if turn.model is not None:
                rows = max(1, round(everybody * turn.model.total / self.total))
                tables.append(turn.model.sample(rows, self.randomness.ordinary("alone", k)))
        if tables:
            self.model = EmpiricalModel(self.domain, np.concatenate(tables), self.total)  # type: ignore[assignment]


class Turn(SketchAim):
    """One holder's own run, within the run of all.

    It shares their ledger, records and journal. Each of its rounds is a round of the whole run.
    """

    Client = EachAloneClient

    def __init__(self, whole: EachAlone, client: int, rho: float) -> None:
        facts = (whole.config, whole.domain, whole.schema_hash)
        super().__init__(*facts, randomness=whole.randomness, observer=whole._observer, after=whole)
        self.clients = {client: whole.clients[client]}
        self._rho, self._before = rho, whole.round

    @property
    def remaining_rho(self) -> float:
        """The zCDP that every holder's rows have left before their turn."""
        return self._rho

    def begin_round(self, t: int) -> None:
        super().begin_round(self._before + t)
