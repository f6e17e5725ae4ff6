"""A model that is a table of rows."""

from __future__ import annotations

import numpy as np

from fedsyn.domain import Domain


class EmpiricalModel:
    """EmpiricalModel(domain, codes, total=None): the distribution of a table's rows, scaled to `total` records."""

    def __init__(self, domain: Domain, codes: np.ndarray, total: float | None = None) -> None:
        raise NotImplementedError
