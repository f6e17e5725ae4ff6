"""Which of a holder's rows take part in a run: with a cap on rows, and with rows kept out to test on."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fedsyn.privacy import Unit, kept_rows
from fedsyn.protocol.wire.holder import Holder

#: Where a holder's state keeps the secrets that its coins are keyed by: of rows kept out, and of a cap on rows.
APART, KEPT = "rows apart", "kept_rows"

Codes = npt.NDArray[np.integer]


def rows_that_count(holder: Holder, unit: Unit) -> npt.NDArray[np.int64] | None:
    """Positions of the holder's rows that take part in the run, ascending; None: all of them do.

    Where a whole client is protected they are the same in every message of a run (`fedsyn.privacy.unit.kept_rows`): the
    coins are keyed by a secret that the holder draws in its first message. Nothing about privacy rests on it.
    """
    if not unit.caps:
        return None
    secret = bytes.fromhex(holder.state.setdefault(KEPT, os.urandom(16).hex()))
    place = -1 if holder.partition is None else holder.partition
    coins = holder.randomness.keyed(secret).ordinary("kept rows", place)
    return None if len(holder.codes) <= unit.rows else kept_rows(len(holder.codes), unit.rows, coins)


def set_apart(codes: Codes, holder: Holder, share: float) -> tuple[Codes, Codes]:
    """(rows that the run is made from, rows that it does without), the same in every message of a run.

    Each row has a coin of its own, keyed by a secret that the holder draws in its first message: one row more or less
    changes no other row's side, in distribution. Given the coins the mechanism is run on the first part alone, so its
    guarantee holds for a row that is there; a row on the other side is in one entry of one later sum. Nothing is
    charged less for that: the ledger adds both up.
    """
    if not share:
        return codes, codes[:0]
    secret = bytes.fromhex(holder.state.setdefault(APART, os.urandom(16).hex()))
    place = (holder.partition or 0) if holder.randomness.seeded else 0  # a node learns its partition on the way
    coins = holder.randomness.keyed(secret).ordinary("rows apart", place).random(len(codes)) < share
    return codes[~coins], codes[coins]
