"""Sweeps: many runs of one base configuration, one run directory each, and tables over them."""

from fedsyn.runs.sweep.execute import run_sweep
from fedsyn.runs.sweep.results import Results, load_results
from fedsyn.runs.sweep.spec import Cell, Sweep, load_sweep
from fedsyn.runs.sweep.tables import write_tables

__all__ = ["Cell", "Results", "Sweep", "load_results", "load_sweep", "run_sweep", "write_tables"]
