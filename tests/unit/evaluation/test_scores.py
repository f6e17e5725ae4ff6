"""What a link of two columns is, beside the same by other means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from fedsyn.evaluation.scores import Grouping, association, correlations, few_groups, link
from fedsyn.table.schema import CategoricalColumn, Schema

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
    assert few_groups(np.array([0.9, 0.02, 0.02, 0.02, 0.02, 0.01, 0.005, 0.005]), at[:8], 0.0).tolist() == [*range(8)]
    missing = few_groups(np.append(shares * 0.8, 0.2), np.append(at, np.nan), 0.0)
    assert missing[-1] == 7 and len(np.unique(missing)) == 8
    words = np.array([0.3, 0.02, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.01])
    groups = few_groups(words, None, 0.0)
    assert groups[[1, 8, 9]].tolist() == [7, 7, 7] and len(np.unique(groups)) == 8  # the seven likeliest, and the rest
    assert len(np.unique(few_groups(np.array([0.9, 0.06, 0.04]), None, 0.05))) == 2


def test_a_correlation_has_the_error_of_its_rows_influence() -> None:
    """Devlin, Gnanadesikan and Kettenring's influence of each row, over the rows that have both values."""
    rng = np.random.default_rng(0)
    x, noise = rng.exponential(1.0, (2, 3_000))
    y = x + noise
    gone = rng.random(3_000) < 0.3
    r, errors = correlations([x, np.where(gone, np.nan, y)])
    z = (x[~gone] - x.mean()) / x.std(), (y[~gone] - y[~gone].mean()) / y[~gone].std()
    rows = (~gone).sum()
    expected = float((z[0] * z[1]).sum() / np.sqrt((z[0] ** 2).sum() * (z[1] ** 2).sum()))
    assert r[0, 1] == pytest.approx(expected) and r[0, 1] > 0.5
    influence = z[0] * z[1] - expected * (z[0] ** 2 + z[1] ** 2) / 2
    assert errors[0, 1] == pytest.approx(np.sqrt((influence**2).sum()) / rows)


def test_what_is_kept_is_off_by_chance_along_the_link() -> None:
    n, m = int(COUNTS.sum()), int(OTHER.sum())
    longest = max(_squared(COUNTS) - 6 / (n - 1), _squared(OTHER) - 6 / (m - 1))
    assert link(COUNTS / n, n, OTHER / m, m).error == pytest.approx(np.sqrt((1 / n + 1 / m) / longest))
    weak = np.full((2, 2), 0.25)
    assert link(weak, 10, weak, 10).error == 1.0  # nothing is there to keep
    turned = link(np.array([[0.5, 0.0], [0.0, 0.5]]), 20, np.array([[0.0, 0.5], [0.5, 0.0]]), 20)
    assert turned.kept == -1.0 and link(np.eye(2) / 2, 20, np.eye(2) / 2, 20).kept == 1.0


def _squared(counts: np.ndarray) -> float:
    shares = counts / counts.sum()
    apart = np.outer(shares.sum(1), shares.sum(0))
    return float(((shares - apart) ** 2 / apart).sum())


def test_a_group_has_as_many_rows_as_the_root_of_all() -> None:
    """Of 100 rows a value that 9 have joins others, and one that 11 have stands alone."""
    column = CategoricalColumn(categories=("a", "b", "c"), other=False)
    schema = Schema(columns={"x": column})
    for few, groups in ((0.09, 2), (0.11, 3)):
        grouping = Grouping.of(schema, [np.array([0.5, 0.5 - few, few])], ["x"], 100.0)
        assert grouping.domain.shape == (groups,)
