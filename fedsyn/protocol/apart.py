"""Rows that a holder keeps out of a run, to test on: `evaluation.held_out`."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fedsyn.wire.holder import Holder

#: Where a holder keeps the secret of its coins.
APART = "rows apart"

Codes = npt.NDArray[np.integer]


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
