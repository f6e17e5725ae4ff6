"""Conformance check and awkward tables, for authors of mechanisms."""

from fedsyn.front.testing.conformance import ConformanceCheck, ConformanceReport, check_mechanism, mechanism_checks
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.schemas import AwkwardTable, awkward_names, awkward_table, awkward_tables

__all__ = [
    "AwkwardTable",
    "ConformanceCheck",
    "ConformanceReport",
    "Skipped",
    "awkward_names",
    "awkward_table",
    "awkward_tables",
    "check_mechanism",
    "mechanism_checks",
]
