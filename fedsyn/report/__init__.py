"""Reports of runs and sweeps."""

from __future__ import annotations

from pathlib import Path

from fedsyn.errors import DataError
from fedsyn.report.html import write_report


def report_folder(folder: Path | str, *, real: bool = True) -> list[Path]:
    """Reports on a run directory or a sweep's folder; returns the files written.

    Args:
        folder: what `fedsyn run` or `fedsyn sweep` left.
        real: draw a simulation's real rows beside the synthetic ones.

    Raises:
        DataError: the folder holds neither.
    """
    folder = Path(folder)
    if (folder / "sweep.json").is_file():
        from fedsyn.report.sweep import write_sweep_report

        return write_sweep_report(folder)
    needed = ("config.yaml", "metrics.json", "ledger.json", "rounds.jsonl", "synthetic.csv")
    missing = [name for name in needed if not (folder / name).is_file()]
    if len(missing) == len(needed):
        raise DataError(f"{folder} is neither the directory of a run nor of a sweep")
    if missing:
        raise DataError(f"{folder} is not a finished run: {', '.join(missing)} is missing")
    from fedsyn.report.run import write_full_report

    return write_full_report(folder, real=real)


__all__ = ["report_folder", "write_report"]
