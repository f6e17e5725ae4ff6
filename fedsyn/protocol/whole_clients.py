"""A whole client as the unit of privacy: which mechanisms may have it, and which of a holder's rows take part.

What a ledger makes of it is `fedsyn.privacy.unit`.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.privacy import Unit, kept_rows
from fedsyn.wire.holder import Holder

KEPT = "kept_rows"  # of the holder's state: what its coins are keyed by


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


def check_unit(config: RunConfig, store: bool, central: bool, not_private: str, accountant: str) -> None:
    """Refuses a whole client as the unit where what is released of it is not derived; ConfigError says why.

    Args:
        config: of the run.
        store: whether the mechanism keeps a store.
        central: whether there is one holder.
        not_private: why it is not private at all; else empty.
        accountant: the name of its contract's.
    """
    if config.privacy.unit == "row":
        return
    reasons = {
        "keeps a store of exact answers, whose parties account for single rows": store,
        "has one holder of all rows: there is no client to hide among others": central,
        f"protects nobody: {not_private}": bool(not_private),
        "has an accountant whose costs are those of single rows": accountant not in ("zcdp", "gaussian"),
        "can form its sums under aggregation.protocol: plain or secagg; the crypto party of fhe accounts for single "
        "rows": config.aggregation.protocol not in ("plain", "secagg"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(f"privacy.unit: client: mechanism '{config.mechanism.name}' {reason}")
