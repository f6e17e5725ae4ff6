"""pandas and pyarrow, imported when one of their names is first used.

A node, a SuperNode and `fedsyn --help` start without them (tests/unit/test_startup.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq
else:
    from importlib import import_module

    class _Lazy:
        """A module that is imported when one of its names is used.

        It keeps the names that were used: a loop over cells asks for some of them each time.
        """

        def __init__(self, name):
            self._name = name

        def __getattr__(self, name):
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)
            return value

    pd, pa, pc, pq, pacsv = map(_Lazy, ("pandas", "pyarrow", "pyarrow.compute", "pyarrow.parquet", "pyarrow.csv"))

__all__ = ["pa", "pacsv", "pc", "pd", "pq"]
