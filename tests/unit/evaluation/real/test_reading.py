"""What a judge sees that no schema shows it: words, zeros, missing values, limits and units, as files have them."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.real.columns import ColumnScore, ReadColumn
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.evaluation.real.reading import NEW, SHARED, UNNAMED, Reading
from fedsyn.evaluation.verdict import LOST
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema
from fedsyn.table.schema.vocabulary import FEW_ROWS

ROWS = 4_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def compared(real: pd.DataFrame, made: pd.DataFrame, **options: object) -> TableComparison:
    return compare_tables(real, made, rng=rng(), **options)  # type: ignore[arg-type]


def column(real: object, made: object) -> ColumnScore:
    """The score of one column of two tables."""
    (found,) = compared(pd.DataFrame({"x": real}), pd.DataFrame({"x": made})).columns
    return found


def claims(rows: int, seed: int) -> pd.DataFrame:
    """Of 100 rows 92 have no claim and no amount; amounts have a tail."""
    number = rng(seed).choice([0, 1, 2], rows, p=[0.92, 0.06, 0.02])
    amount = np.where(number > 0, np.round(rng(seed + 1).lognormal(7.0, 1.0, rows) * number, 2), 0.0)
    return pd.DataFrame({"ClaimNb": number, "ClaimAmount": amount, "region": rng(seed + 2).choice(["a", "b"], rows)})


def in_bins(frame: pd.DataFrame, atoms: tuple[float, ...] = (), **bins: object) -> pd.DataFrame:
    """The table that columns with such bins make of it, without any noise."""
    columns = {
        name: NumericColumn(lower=0, upper=float(frame[name].max()), bins=cuts, dtype="float", atoms=atoms)
        for name, cuts in bins.items()
    }
    schema = Schema(columns=columns, approved=True)  # type: ignore[arg-type]
    return frame.assign(**schema.decode(schema.encode(frame), rng()))


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [10, 32, 100])
def test_zeros_that_bins_smear_are_lost_in_every_binning(cuts: int) -> None:
    """The mean of 32 bins is nearly right; an edge behind zero keeps the zeros, and is liked better."""
    real = claims(ROWS, 1)
    smeared = in_bins(real, ClaimAmount=cuts)
    assert (real["ClaimAmount"] == 0).mean() > 0.9 and (smeared["ClaimAmount"] == 0).mean() < 0.05
    score = column(real["ClaimAmount"], smeared["ClaimAmount"])
    assert score.common is not None and score.common.label == "0" and score.judged().state == "lost"
    top = float(real["ClaimAmount"].max())
    right = in_bins(real, atoms=(0.0,), ClaimAmount=(0.0, *np.geomspace(100.0, top, cuts)))
    liked = column(real["ClaimAmount"], right["ClaimAmount"])
    assert liked.judged().state == "kept", liked.judged()


def test_95_of_100_zeros_that_become_1_are_the_loss_that_is_said() -> None:
    zeros = np.arange(ROWS) < 0.95 * ROWS
    real, made = (
        np.where(zeros, 0, rng().integers(1, 9, ROWS)),
        np.where(rng().random(ROWS) < 0.01, 0, 1 + np.arange(ROWS) % 3),
    )
    judged = column(real, made).judged()
    assert judged.state == "lost" and column(real, rng(1).permutation(real)).judged().loss == 0


def test_a_limit_of_detection_and_a_default_are_values_by_themselves() -> None:
    real = np.maximum(rng().normal(40.0, 30.0, ROWS).round(2), 20.0)
    made = np.where(real == 20.0, rng(1).uniform(0.0, 20.0, ROWS), real)
    judged = column(real, made).judged()
    assert (
        judged.state == "lost" and judged.why.startswith("'20' had 2") and judged.why.endswith("of the rows and has 0%")
    )
    default = np.where(rng(2).random(ROWS) < 0.2, 37.5, rng(3).normal(40.0, 5.0, ROWS).round(2))
    invented = column(rng(4).normal(40.0, 5.0, ROWS).round(2), default).judged()
    assert invented.why == "'37.5' had 0.05% of the rows and has 20%" or invented.why.startswith("'37.5' had 0")
    assert invented.state == "lost"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: x * 2.2046, "its mean moved by"),
        (lambda x: np.minimum(x, np.quantile(x, 0.7)), "had 0"),
        (lambda x: 80.0 - (x - 80.0), None),
        (lambda x: np.clip(x, *np.quantile(x, [0.01, 0.99])), "2% of the real rows lie far out, and 0% of its rows do"),
        (lambda x: np.where(x > 90, np.nan, x), "it was missing in 0% of the rows and is in 2"),
        (lambda x: x + np.where(rng(5).random(ROWS) < 0.02, 2_000.0, 0.0), "its mean moved by"),
        (lambda x: rng(6).choice(x, ROWS), None),
    ],
    ids=["pounds", "a cap", "tails", "nothing of a symmetric column", "missing", "outliers", "new rows"],
)
def test_what_becomes_of_numbers(change: Callable[[np.ndarray], np.ndarray], why: str | None) -> None:
    real = rng().normal(80.0, 15.0, ROWS).round(1)
    judged = column(real, change(real)).judged()
    assert (judged.state == "kept") if why is None else (judged.state == "lost" and why in judged.why), judged


@pytest.mark.parametrize(("share", "state"), [(0.001, "kept"), (0.004, "changed"), (0.008, "lost")])
def test_a_tail_of_one_row_in_two_hundred_is_lost_and_a_smaller_one_changes_a_column(share: float, state: str) -> None:
    claims = np.repeat([0, 1, 2], [9_000, 1_000 - round(share * 10_000), round(share * 10_000)])
    assert column(claims, np.minimum(claims, 1)).judged().state == state


def test_words_that_no_real_row_has_are_seen_and_rare_ones_are_allowed_for() -> None:
    """Of 2,000 names about as many are new in the next rows as are held once."""
    words = rng().choice(["north", "south", "west"], ROWS)
    recoded = column(words, np.char.upper(words))
    assert recoded.judged().why == "100% of its rows hold words that no real row has" and recoded.gone == 1.0
    names = [f"n{i}" for i in rng().zipf(1.3, 2 * ROWS) % 2_000]
    alike = column(names[:ROWS], names[ROWS:])
    assert alike.new < 0.02 and alike.judged().state == "kept"
    mixed = column(
        rng().normal(5, 1, ROWS).round(1),
        np.where(np.arange(ROWS) % 3, rng().normal(5, 1, ROWS).round(1).astype(str), "other"),
    )
    assert mixed.judged().why == "33% of its rows hold numbers beyond all real ones, or words"
    assert mixed.real[mixed.labels.index(NEW)] == 0.0


def test_no_and_yes_in_several_spellings_are_one_column_and_in_one_they_are_words() -> None:
    """One holder writes no and yes, another True and False; the table turned those of the other into yes."""
    smokes = rng().random(ROWS) < 0.2
    spelled = np.where(np.arange(ROWS) % 2, np.where(smokes, "yes", "no"), np.where(smokes, "True", "False"))
    right, wrong = (np.where(made, "yes", "no") for made in (rng(1).permutation(smokes), rng(2).random(ROWS) < 0.61))
    assert column(spelled, right).judged().state == "kept"
    judged = column(spelled, wrong).judged()
    assert judged.state == "lost" and judged.why == "'yes' had 21% of the rows and has 61%"
    assert column(np.where(smokes, "yes", "no"), smokes).judged().state == "lost"  # recoded


def test_what_a_schema_alone_loses_is_no_matter_of_epsilon() -> None:
    real = pd.DataFrame({"smoker": rng().choice(["ja", "nein", "früher"], ROWS), "cost": rng().lognormal(3, 2, ROWS)})
    columns = {"smoker": CategoricalColumn(categories=("ja", "nein"), other="nein")}
    columns["cost"] = NumericColumn(lower=0, upper=100, dtype="float")  # type: ignore[assignment]
    schema = Schema(columns=columns, approved=True)
    made = schema.decode(schema.encode(real), rng())
    found = compared(real[["smoker"]], made[["smoker"]], schema=schema)
    assert found.columns[0].judged().why.startswith("'früher' had 3") and found.columns[0].gone > 0.3
    assert found.verdict().next == "in the schema, list the values of smoker"
    found = compared(real.assign(smoker="ja"), made.assign(smoker="ja"), schema=schema)
    assert found.columns[0].name == "cost" and found.columns[0].by_schema
    assert (
        found.verdict().next == "set other bounds and bins for cost. The real rows lose as much to them without noise"
    )
    missed = compared(real, real.assign(cost=real["cost"] * 3.0), schema=schema)
    assert missed.verdict().next.startswith("set other bounds and bins")


def test_dates_that_shift_and_digits_that_no_real_number_has() -> None:
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng().integers(0, 300, ROWS), unit="D")
    for form in ("%Y-%m-%d", "%d.%m.%Y"):
        texts = days.strftime(form)
        assert column(texts, rng(1).permutation(texts)).judged().loss == 0
        shifted = column(texts, (days + pd.Timedelta(days=30)).strftime(form))
        assert shifted.ordered and shifted.judged().state == "lost"
    salary = 100 * rng().integers(300, 900, ROWS)
    spent = column(salary, salary + rng(1).integers(1, 99, ROWS) / 7)
    assert spent.judged().state == "changed"  # the mean is there
    assert "% of its numbers stand in no real row (real ones have 0 decimals" in spent.judged().why


def test_text_of_a_file_and_typed_values_are_the_same_values() -> None:
    frame = claims(500, 3).assign(at=pd.Timestamp("2024-01-01"), yes=lambda some: some["ClaimNb"] > 0)
    frame.loc[:20, "ClaimAmount"] = np.nan
    text = pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype=str, keep_default_na=False)
    coded = text.astype("category")  # as files are read
    assert [score.ordered for score in compared(coded, coded).columns].count(True) == 3
    for real, made in ((frame, text), (text, frame), (coded, frame), (frame, coded)):
        found = compared(real, made)
        assert all(score.judged().loss == 0 for score in found.columns), [s.judged() for s in found.columns]
        assert all(pair.kept == 1.0 for pair in found.pairs if pair.linked)


def test_a_value_has_a_code_of_its_own_from_half_of_a_lost_share_on() -> None:
    assert LOST["share"] / 2 == SHARED
    values = np.concatenate([np.full(51, 7.0), np.full(49, 3.0), rng().normal(0, 50, 900)])
    reading = ReadColumn.of([pd.Series(values)]).reading
    assert reading.lows[reading.alone].tolist() == [7.0]
    assert reading.counts.sum() == 1_000 and reading.counts[np.flatnonzero(reading.alone)[0]] == 51
    assert len(set(reading.groups.tolist())) <= 10


# Pairs ---------------------------------------------------------------------------------------------------------------


def test_zero_with_zero_is_a_link_and_its_loss_is_said_first() -> None:
    """In bins of 9,375 the zeros of both were one bin, so nobody saw the link."""
    real = claims(ROWS, 1)
    smeared = in_bins(real, ClaimAmount=32)
    apart = smeared.assign(ClaimAmount=rng().permutation(smeared["ClaimAmount"]))
    found = compared(real, apart)
    pair = next(pair for pair in found.pairs if {pair.first, pair.second} == {"ClaimNb", "ClaimAmount"})
    assert pair.linked and pair.association > 0.5 and pair.judged().state == "lost"
    assert found.sentence().startswith("The link ClaimNb × ClaimAmount is lost")
    kept = compared(real, claims(ROWS, 11)).pairs
    assert all(pair.judged().state == "kept" for pair in kept if pair.linked)


def test_missing_with_missing_is_a_link() -> None:
    missing = rng().random(ROWS) < 0.4
    real = pd.DataFrame({name: np.where(missing, np.nan, rng(at).normal(0, 1, ROWS)) for at, name in enumerate("ab")})
    apart = real.assign(b=rng(9).permutation(real["b"]))
    (pair,) = compared(real, apart).pairs
    assert pair.linked and pair.association > 0.3 and pair.judged().state == "lost"


def test_the_loss_of_the_label_s_link_comes_first_though_others_are_stronger() -> None:
    """A trial: pressure falls by 2, 8 or 14 by arm, and the visits before are linked far more strongly."""
    arm = rng().choice(["placebo", "low", "high"], ROWS)
    before = rng(1).normal(150, 12, (ROWS, 1)) + rng(2).normal(0, 0.3, (ROWS, 3))
    change = pd.Series(arm).map({"placebo": -2.0, "low": -8.0, "high": -14.0}).to_numpy() + rng(3).normal(0, 3, ROWS)
    real = pd.DataFrame({"arm": arm, **{f"v{i}": before[:, i] for i in range(3)}, "change": change})
    made = real.sample(ROWS, replace=True, random_state=1).reset_index(drop=True)
    made["change"] = rng(4).permutation(made["change"])
    found = compared(real, made, label="arm")
    first = found.sentence()
    assert (
        first.startswith("The link arm × change is lost (association 0.")
        and "). Not good for tables of two columns" in first
    )
    pairs = found.verdict().uses()[1]
    assert (pairs.kept, pairs.of, pairs.fit) == (3, 4, False)
    assert len(found.verdict().foremost) == 2  # and the strongest link, of two visits


def test_an_association_is_the_one_of_the_values_themselves() -> None:
    """Of a level and a status code, of few values each: Cramer's V, corrected for bias, of all of them."""
    level = rng().choice(["INFO", "WARN", "ERROR"], ROWS, p=[0.8, 0.1, 0.1])
    status = np.where(level == "ERROR", rng(1).choice([500, 503], ROWS), np.where(level == "WARN", 429, 200))
    table = pd.crosstab(level, status).to_numpy()
    share = table / ROWS
    expected = np.outer(share.sum(1), share.sum(0))
    rows, columns = table.shape
    squared = ((share - expected) ** 2 / expected).sum() - (rows - 1) * (columns - 1) / (ROWS - 1)
    smaller = min(size - (size - 1) ** 2 / (ROWS - 1) for size in table.shape) - 1
    real = pd.DataFrame({"level": level, "status": status})
    (pair,) = compared(real, real).pairs
    assert pair.association == pytest.approx(np.sqrt(squared / smaller), abs=1e-9)
    assert pair.association == pair.association_synthetic > 0.7


def test_rows_of_the_same_kind_are_called_right() -> None:
    """Two samples of one population, of every kind of column: what a tail decides may have moved, by chance."""

    def rows(seed: int) -> pd.DataFrame:
        frame, some = claims(ROWS, seed), rng(seed)
        frame["cost"] = some.lognormal(3.0, 2.0, ROWS)
        frame["seen"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(some.integers(0, 1500, ROWS), unit="D")
        frame["code"] = [f"c{i:03d}" for i in some.zipf(1.4, ROWS) % 800]
        frame["asked"] = np.where(some.random(ROWS) < 0.3, None, some.choice(["yes", "no"], ROWS))
        return frame

    for seed in (100, 200, 300):
        found = compared(rows(seed), rows(seed + 50))
        states = {score.name: score.judged() for score in found.columns if score.judged().state != "kept"}
        assert all(judged.state == "changed" and "deviation" in judged.why for judged in states.values()), states
        assert len(states) <= 1  # tails of amounts and costs
        pairs = [pair.judged() for pair in found.pairs if pair.linked]
        assert pairs and all(judged.state == "kept" or "correlation" in judged.why for judged in pairs)
        assert all(judged.state != "lost" for judged in pairs)


def test_a_category_that_became_other_needs_its_values_listed() -> None:
    real = pd.DataFrame({"ward": rng().choice(["a", "b", "c"], ROWS), "age": rng().integers(0, 99, ROWS)})
    columns = {
        "ward": CategoricalColumn(categories=("a", "other")),
        "age": NumericColumn(lower=0, upper=99, dtype="integer"),
    }
    schema = Schema(columns=columns, approved=True)
    found = compared(real, schema.decode(schema.encode(real), rng()), schema=schema)
    assert found.columns[0].judged().state == "lost" and found.columns[0].new == pytest.approx(0.67, abs=0.02)
    assert found.verdict().next == "in the schema, list the values of ward"


# Codes ---------------------------------------------------------------------------------------------------------------


def reading(values: object) -> Reading:
    return ReadColumn.of([pd.Series(values)]).reading


def test_numbers_lie_in_48_cells_and_a_hundred_words_have_a_code() -> None:
    cells = reading(rng().normal(0.0, 1.0, 9_600))
    assert len(cells.lows) == 48 and cells.counts[:48].min() > 190
    words = reading([f"w{i:03d}" for i in range(150) for _ in range(2 if i < 120 else 1)])
    assert len(words.words) == 100 and len(words.rare) == 50
    assert words.unshared == pytest.approx(30 / 270)  # thirty rows have a word that no other row has


def test_a_word_of_few_rows_is_not_written_anywhere() -> None:
    found = reading(["a"] * 50 + ["b"] * FEW_ROWS + ["c"] * (FEW_ROWS - 1))
    assert found.labels[:3] == ("a", "b", UNNAMED)


def test_a_value_of_an_eighth_of_the_rows_is_a_group_by_itself() -> None:
    """And numbers on either side of it are two groups; few missing ones join others, many do not."""
    rest = np.sort(rng().normal(0.0, 1.0, 880)).round(6)
    for same, alone in ((130, True), (115, False)):
        found = reading(np.r_[np.full(same, 0.5), rest, np.full(130 - same, 9.0)])
        (at,) = np.flatnonzero(found.alone & (found.lows == 0.5))
        group, others = found.groups[at], found.groups[: len(found.lows)]
        assert ((others == group).sum() == 1) == alone
        if alone:
            below, above = (set(others[found.lows < 0.5].tolist()), set(others[found.lows > 0.5].tolist()))
            assert not below & above
    for gone, alone in ((20, False), (60, True)):
        found = reading(np.r_[rest, np.full(gone, np.nan)])
        assert ((found.groups == found.groups[-2]).sum() == 1) == alone


def test_new_words_are_among_the_rest_where_new_rows_bring_them() -> None:
    """From the root of the rows on: 31 of 961 of them have a word of their own."""
    for singles, together in ((29, False), (33, True)):
        words = reading(["a"] * 480 + ["b"] * (481 - singles) + [f"w{i}" for i in range(singles)])
        assert (words.groups[-1] == words.groups[-3]) == together


def test_a_picture_ends_where_99_of_100_rows_lie() -> None:
    values = rng().uniform(0.0, 1_000.0, 20_000)
    column = ReadColumn.of([pd.Series(values)])
    drawn = column.reading.drawn(column.tables[0])
    low, high = np.quantile(values, [0.005, 0.995])
    assert 10 <= len(drawn.lows) <= 25 and drawn.lows[-1] <= high < drawn.lows[-1] + 50 and drawn.lows[1] >= low
    assert np.diff(drawn.lows[1:]) == pytest.approx(50.0)
