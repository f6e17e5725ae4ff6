"""A word mistyped by one letter, or a number out of its range, wherever somebody can type one: named, and put right."""

from __future__ import annotations

import difflib
from pathlib import Path

import annotated_types
import click
import pytest
import typer
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from fedsyn.config import RunConfig
from fedsyn.front import cli
from support.bad_inputs import bad, check, furnish

_SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tree() -> dict[tuple[str, ...], click.Command]:
    """Every command by the words that name it."""
    found: dict[tuple[str, ...], click.Command] = {}
    waiting: list[tuple[tuple[str, ...], click.Command]] = [((), typer.main.get_command(cli.app))]
    while waiting:
        words, command = waiting.pop()
        found[words] = command
        if isinstance(command, click.Group):
            waiting += [((*words, name), each) for name, each in command.commands.items()]
    return found


COMMANDS = tree()
SECTIONS = {
    name: kind
    for name, field in RunConfig.model_fields.items()
    if isinstance(kind := field.annotation, type) and issubclass(kind, BaseModel) and name != "mechanism"
}
#: (section, key, the names beside it) of a configuration's sections; `evaluation` takes names of metrics, too.
KEYS = [
    (section, key, sorted(names))
    for section, kind in SECTIONS.items()
    if section != "evaluation"
    for names in [{field.alias or name for name, field in kind.model_fields.items()}]
    for key in sorted(names)
    if len(key) > 3
]
#: (section, key, the bound, how a message names it, a number beyond it) of every number with a bound.
BOUNDS = [
    (section, name, words, bound, beyond)
    for section, kind in SECTIONS.items()
    for name, field in kind.model_fields.items()
    for limit in field.metadata
    for words, bound, beyond in [
        ("greater than or equal to", getattr(limit, "ge", None), -1),
        ("greater than", getattr(limit, "gt", None), 0),
        ("less than or equal to", getattr(limit, "le", None), 1),
        ("less than", getattr(limit, "lt", None), 0),
    ]
    if isinstance(limit, annotated_types.BaseMetadata) and bound is not None
]


@st.composite
def mistyped(draw: st.DrawFn, word: str) -> str:
    """A word with one letter dropped, doubled, changed, or swapped with the next one; its first letter stays."""
    place = draw(st.integers(1, len(word) - 1))
    before, letter, after = word[:place], word[place], word[place + 1 :]
    changed = draw(
        st.sampled_from([before + after, before + 2 * letter + after, before + draw(st.sampled_from(LETTERS)) + after])
    )
    swapped = before + after[:1] + letter + after[1:]
    return draw(st.sampled_from([changed, swapped]))


def suggested(sentence: str, typed: str, meant: str, names: list[str]) -> None:
    """A sentence suggests a name that is at least as near to what was typed as the one that was meant."""

    def near(name: str) -> float:
        return difflib.SequenceMatcher(None, name, typed).ratio()

    assert any(f"did you mean '{name}'" in sentence for name in names if near(name) >= near(meant) - 1e-9), sentence


class Asking:
    """Types bad commands in one folder and hands on the sentence that came."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        furnish(folder)
        monkeypatch.chdir(folder)
        self.folder, self.capsys, self.monkeypatch = folder, capsys, monkeypatch

    def __call__(self, typed: str, *says: str) -> str:
        return check(bad(typed, *says), self.folder, self.capsys, self.monkeypatch)


@pytest.fixture
def asking(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(tmp_path, capsys, monkeypatch)


@_SETTINGS
@given(data=st.data())
def test_a_mistyped_key_of_a_configuration(asking: Asking, data: st.DataObject) -> None:
    section, key, names = data.draw(st.sampled_from(KEYS))
    typed = data.draw(mistyped(key))
    assume(typed not in names and typed not in SECTIONS[section].model_fields)
    sentence = asking(f"run run.yaml --out out --set {section}.{typed}=1", f"unknown key '{section}.{typed}'")
    suggested(sentence, typed, key, names)


@_SETTINGS
@given(data=st.data())
def test_a_mistyped_section_of_a_configuration(asking: Asking, data: st.DataObject) -> None:
    section = data.draw(st.sampled_from(sorted(SECTIONS)))
    typed = data.draw(mistyped(section))
    assume(typed not in RunConfig.model_fields)
    sentence = asking(f"run run.yaml --out out --set {typed}.x=1", f"unknown key '{typed}.x'")
    suggested(sentence, typed, section, list(RunConfig.model_fields))


@_SETTINGS
@given(data=st.data())
def test_a_mistyped_command(asking: Asking, data: st.DataObject) -> None:
    words = data.draw(st.sampled_from([words for words in COMMANDS if words and len(words[-1]) > 3]))
    group = COMMANDS[words[:-1]]
    assert isinstance(group, click.Group)
    typed = data.draw(mistyped(words[-1]))
    assume(typed not in group.commands and typed.isalpha())
    sentence = asking(" ".join([*words[:-1], typed]), f"no such command: {typed}")
    suggested(sentence, typed, words[-1], [*group.commands, *(" ".join(["fedsyn", *each]) for each in COMMANDS)])


@_SETTINGS
@given(data=st.data())
def test_a_mistyped_option(asking: Asking, data: st.DataObject) -> None:
    words, name, names = data.draw(
        st.sampled_from(
            [
                (words, name, names)
                for words, command in COMMANDS.items()
                if not isinstance(command, click.Group)
                for names in [[each for one in command.params for each in one.opts if each.startswith("--")]]
                for name in names
                if len(name) > 5
            ]
        )
    )
    typed = "--" + data.draw(mistyped(name[2:]))
    assume(typed not in names and typed != "--help")
    sentence = asking(" ".join([*words, typed, "x"]), f"no such option: {typed}")
    suggested(sentence, typed, name, names)


@_SETTINGS
@given(data=st.data())
def test_a_number_beyond_its_bound(asking: Asking, data: st.DataObject) -> None:
    section, key, words, bound, beyond = data.draw(st.sampled_from(BOUNDS))
    further = data.draw(st.integers(0, 10**6)) * (-1 if words.startswith("greater") else 1)
    asking(
        f"run run.yaml --out out --set {section}.{key}={bound + beyond + further}",
        f"{section}.{key}",
        f"{words} {bound:g}" if isinstance(bound, float) else f"{words} {bound}",
    )


def test_there_is_something_to_mistype() -> None:
    assert len(KEYS) > 50 and len(BOUNDS) > 40 and len(COMMANDS) > 30
