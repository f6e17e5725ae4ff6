"""Sweeps: many runs of one base configuration, one run directory each, and tables over them."""

from fedsyn.sweep.execute import run_sweep
from fedsyn.sweep.results import Results, load_results, write_tables
from fedsyn.sweep.spec import Cell, Sweep, load_sweep

__all__ = ["Cell", "Results", "Sweep", "load_results", "load_sweep", "run_sweep", "write_tables"]
