"""Sweeps: many runs of one base configuration.

Each run has a run directory, and tables sum up all of them.
"""

from fedsyn.sweep.execute import run_sweep
from fedsyn.sweep.results import Results, load_results, write_tables
from fedsyn.sweep.spec import Cell, Sweep, load_sweep

__all__ = ["Cell", "Results", "Sweep", "load_results", "load_sweep", "run_sweep", "write_tables"]
