"""Numbers and tables as text: for terminals, HTML and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
    "ε": r"$\varepsilon$", "δ": r"$\delta$",
    "<": r"$<$", ">": r"$>$", "×": r"$\times$",
}  # fmt: skip
_NUMERIC = re.compile(r"[-–]?[\d.]|–|not finite|$")


def number(value: float) -> str:
    """Four significant digits; a dash for a value that does not exist."""
    if math.isnan(value):
        return "–"
    return "not finite" if math.isinf(value) else f"{value:.4g}"


def plus_minus(mean: float, sd: float) -> str:
    """Mean ± standard deviation, the mean to the deviation's second digit but to at most four of its own.

    >>> plus_minus(0.41753, 0.01342), plus_minus(17.4677872, 0.0000084)
    ('0.418 ± 0.013', '17.47 ± <0.01')
    """
    if not math.isfinite(mean) or not math.isfinite(sd):
        return number(mean)
    if max(abs(mean), sd) >= 1e6:
        return f"{mean:.3g} ± {sd:.2g}"
    if sd == 0:
        return f"{number(mean)} ± 0"
    digits = max(0, 1 - math.floor(math.log10(sd)))
    if mean:
        digits = min(digits, max(0, 3 - math.floor(math.log10(abs(mean)))))
    digits = min(digits, 12)
    least = 10.0**-digits
    spread = f"<{least:.{digits}f}" if sd < least / 2 else f"{sd:.{digits}f}"
    return f"{mean:.{digits}f} ± {spread}"


def latex_table(head: Sequence[str], rows: Iterable[Sequence[str]], best: Iterable[tuple[int, int]] = ()) -> str:
    """A tabular with booktabs' rules; (row, column) of `best` in bold, columns of numbers to the right."""
    cells, bold = [list(row) for row in rows], set(best)
    numeric = [bool(cells) and all(_NUMERIC.match(row[j]) for row in cells) for j in range(len(head))]
    lines = [r"\begin{tabular}{" + "".join("r" if right else "l" for right in numeric) + "}", r"\toprule"]
    lines += [_latex_row([_latex(cell) for cell in head]), r"\midrule"]
    for i, row in enumerate(cells):
        shown = [rf"\textbf{{{_latex(cell)}}}" if (i, j) in bold else _latex(cell) for j, cell in enumerate(row)]
        lines.append(_latex_row(shown))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(cell: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in cell)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
