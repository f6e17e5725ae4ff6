"""How good a run's table is, said from what the run released anyway: no row is read, nothing is spent."""

from fedsyn.statement.effects import Glimpse
from fedsyn.statement.quality import Said, Statement, stated

__all__ = ["Glimpse", "Said", "Statement", "stated"]
