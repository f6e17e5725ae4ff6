"""What people's words say: orders, no answer, persons, numbers that stand for a missing value, several spellings."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import pytest

from fedsyn.table.schema import CategoricalColumn
from fedsyn.table.schema.conditions import grid_of
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.vocabulary import (
    codes_apart,
    is_person,
    numbers_the_rows,
    places_on_earth,
    plainly_written,
    reading_in_order,
    sentinel,
    text_hints,
    word_lists,
)


def profile(values: list[str], name: str = "x", times: int = 20) -> Profile:
    return Profile.of(pd.Series(values * times, name=name))


@pytest.mark.parametrize(
    "ordered",
    [
        ["strongly disagree", "disagree", "neither agree nor disagree", "agree", "Strongly agree"],
        ["stimme gar nicht zu", "teils/teils", "stimme eher zu", "stimme voll zu"],
        ["pas du tout d’accord", "plutôt d'accord", "tout à fait d'accord"],
        ["totalmente en desacuerdo", "en desacuerdo", "de acuerdo", "muy de acuerdo"],
        ["totalmente in disaccordo", "in disaccordo", "d'accordo", "molto d'accordo"],
        ["never", "rarely", "sometimes", "often", "always"],
        ["no", "Sometimes", "Frequently", "Always"],
        ["nie", "selten", "manchmal", "oft", "immer"],
        ["jamais", "parfois", "toujours"],
        ["nunca", "a veces", "siempre"],
        ["mai", "spesso", "sempre"],
        ["very dissatisfied", "neutral", "satisfied", "very satisfied"],
        ["sehr unzufrieden", "zufrieden", "sehr zufrieden"],
        ["poor", "fair", "good", "excellent"],
        ["mangelhaft", "ausreichend", "befriedigend", "gut", "sehr gut"],
        ["unlikely", "likely", "very likely"],
        ["low", "mid", "high"],
        ["XS", "S", "M", "L", "XL"],
        ["Jan", "Feb", "Dec"],
        ["Montag", "Dienstag", "Sonntag"],
        ["lundi", "mardi", "dimanche"],
        ["< 10k", "10-20k", "20k to 50k", ">50k"],
        ["under 18", "18-24", "25–34", "65+"],
        ["unter 1.000 €", "1.000 - 1.999 €", "ab 2.000 €"],
        ["moins de 18", "18 à 64", "65 et plus"],
        ["0-4 years", "5-9 years", "10 and over"],
        ["0", "1-2", "3 or more"],
        ["Menos de 1 año", "1-5 años", "6-10 años", "Más de 20 años"],
        ["unter 1 Jahr", "1-5 Jahre", "über 20 Jahre"],
        ["1 - bad", "2 - fair", "3 - good"],
        ["0 (never)", "1 (seldom)", "2 (daily)"],
        ["I", "II", "IV", "X"],
        ["Q1", "Q2", "Q4"],
        ["trifft nicht zu", "trifft eher nicht zu", "trifft eher zu", "trifft zu"],
        ["stimme nicht zu", "stimme eher nicht zu", "stimme eher zu", "stimme zu"],
        ["disagree", "mostly disagree", "mostly agree", "agree"],
        ["En desacuerdo", "Algo en desacuerdo", "Algo de acuerdo", "De acuerdo"],
        ["pas du tout satisfait", "plutôt pas satisfait", "plutôt satisfait", "tout à fait satisfait"],
        ["not at all satisfied", "slightly satisfied", "moderately satisfied", "very satisfied", "extremely satisfied"],
        ["slightly important", "moderately important", "very important", "extremely important"],
        ["überhaupt nicht wichtig", "eher nicht wichtig", "eher wichtig", "sehr wichtig"],
        ["never", "almost never", "sometimes", "fairly often", "very often"],
        ["never", "less than once a month", "monthly", "weekly", "daily"],
        ["not at all", "slightly", "somewhat", "moderately", "very", "extremely"],
        ["low", "medium", "high", "critical"],
        ["none", "primary", "secondary", "tertiary"],
        ["underweight", "normal", "overweight", "obese"],
        ["[0, 10)", "[10, 20)", "[20, inf)"],
        ["(-inf, -1.5]", "(-1.5, 0.0]", "(0.0, 3.25]"],
    ],
    ids=lambda words: words[0],
)
def test_words_come_in_their_order(ordered: list[str]) -> None:
    """Whatever the order of the rows, and with no answer at the end, which has no place in the order."""
    for words in (ordered, ordered[::-1]):
        reading = reading_in_order(profile(words))
        assert reading is not None and reading.keys == {"categories": tuple(ordered), "ordered": True}
        reading = reading_in_order(profile(["Prefer not to say", *words]))
        assert reading is not None and reading.keys["categories"] == (*ordered, "Prefer not to say")
        assert reading.keys["unordered"] == ("Prefer not to say",)


@pytest.mark.parametrize(
    "words",
    [
        ["north", "south"],
        ["M", "S"],  # married, single
        ["A", "B", "C"],  # of no grade, by the column's name
        ["agree", "blue"],
        ["10-20", "15-30"],  # they overlap
        ["12 Main Street", "3 Oak Lane"],
        ["0", "1", "2"],
        ["agree", "don't know"],  # one word is no order
        ["yes", "no"],
    ],
)
def test_other_words_have_none(words: list[str]) -> None:
    assert reading_in_order(profile(words)) is None


@pytest.mark.parametrize(
    "word", ["Prefiero no contestar", "Je préfère ne pas répondre", "Möchte ich nicht sagen", "Preferisco non dirlo"]
)
def test_no_answer_is_known_in_each_language(word: str) -> None:
    reading = reading_in_order(profile(["1", "2-3", "4+", word]))
    assert reading is not None and reading.keys["unordered"] == (word,)


def test_letters_are_grades_where_the_column_says_so() -> None:
    reading = reading_in_order(profile(["A", "B", "C"], "final_grade"))
    assert reading is not None and reading.keys["categories"] == ("C", "B", "A")


def test_words_on_one_step_are_no_order() -> None:
    """Of two words that mean the same the alphabet decides, and the reason says so."""
    reading = reading_in_order(profile(["Jan", "January", "Feb", "March"]))
    assert reading is not None and "order of the alphabet" in reading.why
    reading = reading_in_order(profile(["Jan", "Feb", "March"]))
    assert reading is not None and reading.why.endswith("in order")


def test_no_word_has_two_places_on_a_scale() -> None:
    for scale in word_lists()["scales"].values():
        places = [(plainly_written(word), step) for step, words in enumerate(scale["steps"]) for word in words]
        assert len({word for word, _ in places}) == len(set(places))


def test_what_is_unordered_has_no_place() -> None:
    values = ("low", "high", "don't know")
    column = CategoricalColumn(categories=values, ordered=True, unordered=("don't know",), other="other")
    grid = grid_of(column)
    assert grid is not None and grid.absent.tolist() == [False, False, True, True]
    for wrong in ({"unordered": ("lo",), "ordered": True}, {"unordered": ("low",)}):
        with pytest.raises(ValueError, match="not one of the categories of an ordered column"):
            CategoricalColumn(categories=values, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["patient_id", "PatientID", "pid", "subject", "Kunden-Nr", "participant no", "case_id"]
)
def test_persons_are_named(name: str) -> None:
    assert is_person(name)


@pytest.mark.parametrize("name", ["ward", "people", "patients", "id", "order_id", "personal", "subjective"])
def test_others_are_not(name: str) -> None:
    assert not is_person(name)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([18, 40, 97, 999], "999"),
        ([-1, 0, 3, 8], "-1"),
        ([0.5, 2.5, 3.5, -99], "-99"),
        ([80, 90, 98, 99], None),
        ([100, 5000, 999, 3000], None),
        ([18, 40, 97, 1234], None),
        ([999], None),
    ],
)
def test_a_number_far_from_the_rest_is_said(numbers: list[float], found: str | None) -> None:
    said = sentinel(numbers, [30] * len(numbers))
    assert (said is None) if found is None else said is not None and said.startswith(f"{found} stands apart")
    assert sentinel(numbers, [2] * len(numbers)) is None  # what few rows hold is not named


def test_a_peak_far_from_neighbours_is_said_though_the_rest_reaches_further() -> None:
    """As 999 among credit scores of 359 to 850: 149 from the next, three times as frequent as any."""
    scores = [*range(360, 850, 2), 999]
    often = [10] * (len(scores) - 1)
    assert "999 stands apart" in str(sentinel(scores, [*often, 40]))
    assert sentinel(scores, [*often, 25]) is None
    assert sentinel([*range(360, 998, 2), 999], [*[10] * 319, 400]) is None


def test_a_few_whole_numbers_far_apart_may_be_codes() -> None:
    assert "5 different whole numbers, far apart: codes?" in str(codes_apart([4111, 5411, 5812, 5999, 7995], [99] * 5))
    assert codes_apart([1, 2, 3, 4, 5], [99] * 5) is None
    assert codes_apart([4111, 5411, 5812.5], [99] * 3) is None
    assert codes_apart([4111, 5411, 5812], [99, 99, 9]) is None  # what few rows hold


@pytest.mark.parametrize(
    ("values", "numbered"),
    [
        (range(50_001, 50_301), True),
        ([n for n in range(50_001, 50_301) if n != 50_100], True),  # one row is missing
        (range(50_001, 50_601, 2), True),
        (range(0, 3_000_000, 10_000), False),  # numbers of three million are hardly ever equal
        ([*range(300), 299], False),
    ],
)
def test_whole_numbers_that_never_repeat_though_they_would_number_the_rows(
    values: Iterable[int], numbered: bool
) -> None:
    assert (numbers_the_rows(profile(list(map(str, values)), times=1)) == "numbers the rows") is numbered


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (["12:32", "7:05", "101:59"], "minutes and seconds?"),
        (["Yes", "Y", "no", "N", "ja"], "kind: boolean, texts: [no, Yes]"),
        (["Yes", "no", "TRUE", "0", "1"], "kind: boolean, texts: [no, Yes]"),
        (["North", "north", "South"], "groups: {North: [north]}"),
        (["self-employed", "Self employed", "none at all"], "groups: {Self employed: [self-employed]}"),
        (["web", "app", "web;app", "app;mail", "mail"], "several answers in one cell"),
        (["120/80", "130/90", "95/60"], "two numbers in one cell"),
        (["120/80 mmHg", "130/90 mmHg", "95/60 mmHg"], "two numbers in one cell"),
        (["52.1, 13.4", "48.9, 2.35", "-33.8, 151.2"], "a latitude and a longitude in one cell"),
        (["$(1,234.00)", "$12.00", "$3.50"], "the currency outside of the parentheses"),
        (["(1,234.00) €", "12.00 €"], "the currency outside of the parentheses"),
        (["31.12.2024", "01.02.2024", "2024-03-01"], "dates in several formats"),
    ],
)
def test_what_a_person_should_look_at(values: list[str], part: str) -> None:
    assert part in " ".join(text_hints(profile(values)))


@pytest.mark.parametrize(
    "values",
    [
        ["yes", "no"],
        ["a;b", "c"],
        ["north", "south"],
        ["1/2", "3/4"],
        ["<=5K", ">5K"],
        ["A+", "A-", "A"],
        ["Q1 (2024)", "Q2 (2024)"],
    ],
)
def test_nothing_is_said_of_plain_words(values: list[str]) -> None:
    assert text_hints(profile(values)) == ()


def test_answers_are_named_only_if_many_rows_hold_them() -> None:
    values = ["web", "app", "web;app"] * 20 + ["secret;app"]
    assert "secret" not in " ".join(text_hints(Profile.of(pd.Series(values, name="x"))))


def test_a_place_is_two_columns() -> None:
    said = places_on_earth({"lat": (47.0, 50.0), "site lon": (8.0, 14.0), "long": (0.0, 900.0), "age": (0.0, 90.0)})
    assert set(said) == {"lat", "site lon"} and "'site lon'" in said["lat"]
    assert "may point at a person" in said["lat"]
