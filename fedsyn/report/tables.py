"""Numbers and tables as text: for terminals, HTML and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
    "ε": r"$\varepsilon$", "δ": r"$\delta$",
}  # fmt: skip


def number(value: float) -> str:
    """Four significant digits; a dash for a value that does not exist."""
    if math.isnan(value):
        return "–"
    return "not finite" if math.isinf(value) else f"{value:.4g}"


def plus_minus(mean: float, sd: float) -> str:
    """Mean ± standard deviation, the mean to the deviation's second digit; the mean alone where there is no spread."""
    if not math.isfinite(mean) or not math.isfinite(sd):
        return number(mean)
    if sd == 0:
        return f"{number(mean)} ± 0"
    digits = min(12, max(0, 1 - math.floor(math.log10(sd))))
    return f"{mean:.{digits}f} ± {sd:.{digits}f}"


def latex_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A tabular with booktabs' rules."""
    lines = [r"\begin{tabular}{" + "l" * len(head) + "}", r"\toprule", _latex_row(head), r"\midrule"]
    lines += [_latex_row(row) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join("".join(_LATEX.get(letter, letter) for letter in cell) for cell in cells) + r" \\"
