"""Reports of runs."""

from fedsyn.report.html import write_report

__all__ = ["write_report"]
