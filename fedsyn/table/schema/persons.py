"""Columns that point at single persons: identifiers, names, addresses, free text. They are proposed to be left out."""

from __future__ import annotations

from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.vocabulary import is_person, words_of

# Words of a column's name. Of the first ones the values themselves point at a person, whoever shares them.
_PERSONAL = """
email mail phone telephone tel mobile fax mrn ssn nhs iban passport uuid guid surname lastname firstname
forename givenname maidenname fullname vorname nachname geburtsname strasse street address anschrift adresse
telefon handy username login ip url versicherungsnummer steuernummer licence license plate kennzeichen
"""
_NUMBERED = "id ids key index no nr number nummer identifier record rownum row name"
_EMAIL = r"^[^@\s]+@[^@\s]+\.[A-Za-z]{2,}$"
_UUID = r"^\{?[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\}?$"
_PHONE = r"^(\+|00|\(?0)[\d]{1,4}[\d ()/.-]{5,}$"
_ADDRESS = r"^(\d{1,3}\.){3}\d{1,3}$|^https?://"

# Values that a column of names may have before they are taken for those of persons.
_FEW = 20
# Share of rows that would be left if every value stood once, from which on values point at rows.
_NEARLY_UNIQUE = 0.5
# Rows that it takes to say so.
_ENOUGH = 20
# A sentence has so many words, or so many characters.
_WORDS, _LENGTH = 4, 40


def personal_by_name(profile: Profile) -> str | None:
    """Why a column's name makes its values those of persons, or None."""
    words = words_of(profile.name)
    joined = "".join(words)
    if profile.values <= _FEW:
        return None
    if {*words, joined} & set(_PERSONAL.split()) or is_person(profile.name):
        return "named like personal data"
    if set(words) & set(_NUMBERED.split()) and profile.unlike > 0.1:
        return "named like an identifier"
    return None


def personal_by_values(profile: Profile) -> str | None:
    """Why a column of text holds identifiers, whatever it is called; or None."""
    for pattern, what in ((_EMAIL, "e-mail addresses"), (_UUID, "UUIDs"), (_ADDRESS, "network addresses")):
        if profile.values > 1 and profile.share_matching(pattern) > 0.8:
            return what
    if profile.values > _FEW and profile.share_matching(_PHONE) > 0.8 and profile.share_matching(r"[ ()/+-]") > 0.5:
        return "telephone numbers"
    return None


def is_free_text(profile: Profile) -> bool:
    """Whether a column holds sentences: long, and mostly different from each other."""
    import pyarrow.compute as pc

    if profile.values <= _FEW or profile.unlike < 0.2:
        return False
    words = pc.mean(pc.add(pc.count_substring(profile.tried, " "), 1)).as_py()
    length = pc.mean(pc.utf8_length(profile.tried)).as_py()
    return bool(words >= _WORDS or length >= _LENGTH)


def nearly_unique(profile: Profile) -> bool:
    """Whether nearly every row has a value of its own."""
    return profile.present >= _ENOUGH and profile.unlike > _NEARLY_UNIQUE


def numbers_the_rows(profile: Profile) -> str | None:
    """Why a column of whole numbers is a count of the rows (as many in a row as there are rows, each once), or None."""
    import pyarrow.compute as pc

    if profile.present < _ENOUGH or profile.values != profile.present or not profile.all_match(r"^\d{1,15}$"):
        return None
    ends = pc.min_max(profile.texts.cast("int64"))
    counts = int(ends["max"].as_py()) - int(ends["min"].as_py()) == profile.values - 1
    return "numbers the rows" if counts else None


def shown_share(profile: Profile) -> str:
    """`unique`, or how many of 100 rows have a value of their own."""
    if profile.values == profile.present:
        return "a different value in every row"
    return f"{profile.values:,} values in {profile.present:,} rows"
