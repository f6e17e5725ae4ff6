"""What a link of two columns is, beside the same by other means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from fedsyn.evaluation.scores import association, few_groups, link

COUNTS = np.array([[30, 12, 5], [9, 21, 14], [3, 8, 28], [10, 0, 2]])
OTHER = np.array([[40, 20, 15], [10, 22, 19], [12, 16, 30], [4, 4, 8]])


def test_the_chance_of_a_link_is_that_of_the_chi_square_test() -> None:
    rows = int(COUNTS.sum())
    expected = chi2_contingency(COUNTS, correction=False)
    assert link(COUNTS / rows, rows, OTHER / 200, 200).chance == pytest.approx(expected.pvalue, rel=1e-6)
    empty = np.vstack([COUNTS, [0, 0, 0]])  # a value that no row has is no degree of freedom
    assert link(empty / rows, rows, empty / rows, rows).chance == pytest.approx(expected.pvalue, rel=1e-6)
    constant = np.array([[0.5], [0.5]])
    assert link(constant, 100, constant, 100).chance == 1.0


def test_an_association_is_corrected_for_bias() -> None:
    """Bergsma's formula, written down again; independent columns have 0 on average, a function has 1."""
    n = int(COUNTS.sum())
    phi = chi2_contingency(COUNTS, correction=False).statistic / n
    rows, columns = (k - (k - 1) ** 2 / (n - 1) for k in COUNTS.shape)
    assert association(COUNTS / n, n) == pytest.approx(np.sqrt((phi - 3 * 2 / (n - 1)) / (min(rows, columns) - 1)))
    assert association(np.eye(3) / 3, 10**6) == pytest.approx(1.0, abs=1e-3)
    assert association(np.full((3, 4), 1 / 12), 10**6) == 0.0


def test_what_is_kept_is_the_part_along_the_real_link_of_the_larger_one() -> None:
    """By definition, in units of chance, without what chance adds; the weaker and the stronger of two tables."""
    n, m = int(COUNTS.sum()), int(OTHER.sum())

    def beyond(counts: np.ndarray) -> np.ndarray:
        shares = counts / counts.sum()
        apart = np.outer(shares.sum(1), shares.sum(0))
        return (shares - apart) / np.sqrt(apart)

    r, s = beyond(COUNTS), beyond(OTHER)
    lengths = float((r**2).sum()) - 6 / (n - 1), float((s**2).sum()) - 6 / (m - 1)
    assert link(COUNTS / n, n, OTHER / m, m).kept == pytest.approx(float((r * s).sum()) / max(lengths))
    assert link(OTHER / m, m, COUNTS / n, n).kept == pytest.approx(float((r * s).sum()) / max(lengths))
    found = link(COUNTS / n, n, OTHER / m, m)
    assert (found.real, found.synthetic) == (association(COUNTS / n, n), association(OTHER / m, m))


def test_few_groups_hold_about_equally_many_rows_in_order_and_rare_ones_join() -> None:
    at, shares = np.arange(32.0), np.full(32, 1 / 32)
    assert np.bincount(few_groups(shares, at, 0.0)).tolist() == [4] * 8
    missing = few_groups(np.append(shares * 0.8, 0.2), np.append(at, np.nan), 0.0)
    assert missing[-1] == 7 and len(np.unique(missing)) == 8
    words = np.array([0.3, 0.02, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.01])
    groups = few_groups(words, None, 0.0)
    assert groups[[1, 8, 9]].tolist() == [7, 7, 7] and len(np.unique(groups)) == 8  # the seven likeliest, and the rest
    assert len(np.unique(few_groups(np.array([0.9, 0.06, 0.04]), None, 0.05))) == 2
