"""YAML that people write: a key counts once, and scalars are those of YAML 1.2."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsyn import yamlio
from fedsyn.errors import ConfigError
from fedsyn.keys.holder_keys import load_identities, new_identity
from fedsyn.loading import load_config
from fedsyn.sweep import load_sweep
from fedsyn.table.schema import Schema

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "experiments").glob("**/*.md")]
CONFIG = "mechanism: augflaim\ndata: {source: synthfs}\nprivacy:\n  epsilon: 1.0\n  delta: 1e-5\n"
KEY = "ab" * 32


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value) and "yaml.org" not in str(caught.value)
    return str(caught.value)


# A key given twice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        (f"{CONFIG}  epsilon: 9.0\n", "epsilon", "4 and 6"),
        (f"{CONFIG}mechanism: aim\n", "mechanism", "1 and 6"),
        (CONFIG.replace("synthfs}", "synthfs, options: {rows: 9, rows: 8}}"), "rows", "2"),
        (f"{CONFIG}federation: {{partition: {{true: 1, True: 2}}}}\n", "True", "6"),
        (f"{CONFIG}'mechanism': aim\n", "mechanism", "1 and 6"),
    ],
)
def test_a_configuration_with_a_key_twice_is_refused(tmp_path: Path, text: str, key: str, lines: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    assert (
        message(lambda: load_config(file))
        == f"{file}: the key '{key}' is given twice, in line{chr(115) * (len(lines) > 1)} {lines}"
    )


def test_an_assignment_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    told = message(lambda: load_config(tmp_path / "run.yaml", ["data.options={rows: 9, rows: 8}"]))
    assert told.startswith("--set data.options=") and "the key 'rows' is given twice" in told


@pytest.mark.parametrize("broken", ["sweep.yaml", "base.yaml"])
def test_a_sweep_or_its_base_with_a_key_twice_is_refused(tmp_path: Path, broken: str) -> None:
    texts = {"sweep.yaml": "base: base.yaml\nseeds: [1]\n", "base.yaml": CONFIG}
    texts[broken] += texts[broken].splitlines()[0] + "\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    told = message(lambda: load_sweep(tmp_path / "sweep.yaml"))
    assert told.startswith(str(tmp_path / broken)) and "is given twice" in told


def test_a_roster_with_a_holder_twice_is_refused_without_its_content(tmp_path: Path) -> None:
    """The error travels to the server, so it says nothing of what stands in the file."""
    new_identity(tmp_path / "key")
    for again in ("4711", "04711", "'4711'"):
        (tmp_path / "roster.yaml").write_text(f"4711: {KEY}\n{again}: {'cd' * 32}\n", encoding="utf-8")
        told = message(lambda: load_identities(str(tmp_path / "key"), str(tmp_path / "roster.yaml")))
        assert "one line for each data holder" in told and "4711" not in told


def test_keys_of_different_mappings_are_not_doubled_and_an_alias_is_what_it_names() -> None:
    text = "one: {x: 1}\ntwo: &two\n  x: &deep {y: 1}\nthree: {a: *deep, b: *two, c: [*deep]}\n"
    two = {"x": {"y": 1}}
    assert yamlio.loads(text, "here") == {
        "one": {"x": 1},
        "two": two,
        "three": {"a": {"y": 1}, "b": two, "c": [{"y": 1}]},
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: &a {x: 1}\nb:\n  <<: *a\n", "here: a merge key (<<) stands in line 3: write the keys out"),
        ("a: &a [*a]", "not valid YAML at line 1"),
        ("a: *b", "not valid YAML at line 1"),
        ("a: 1\nb: [1, 2\nc: 3\n", "not valid YAML at line 3: did not find expected ',' or ']'"),
        ("a: b: c\n", "not valid YAML at line 1: mapping values are not allowed in this context"),
        ("a: &a 1\nb: &a 2\n", "not valid YAML at line 2"),
        ("a: 1\n---\nb: 2\n", "not valid YAML at line 2"),
        ("a: !!binary aGk=", "not valid YAML at line 1"),
        ("a: !!set {x, y}", "not valid YAML at line 1"),
        (f"a: {'9' * 5000}", "not valid YAML"),
    ],
)
def test_what_no_file_of_ours_needs_is_refused(text: str, told: str) -> None:
    assert told in message(lambda: yamlio.loads(text, "here"))


def test_a_tag_that_says_what_is_there_is_read() -> None:
    text = "[!!str 1, !!int 1, ! 2, !!float 1e3, !!null ~, !!bool true]"
    assert yamlio.loads(text, "") == ["1", 1, "2", 1e3, None, True]


# What scalars mean -------------------------------------------------------------------------------------------------


def test_no_file_or_page_of_ours_means_something_else_in_yaml_1_1() -> None:
    """PyYAML's own reader, which knows YAML 1.1 alone, gives the same documents, types included.

    But for dates, which a schema takes as text and as dates.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "configs").glob("**/*.yaml")}
    texts |= {path: path.read_text(encoding="utf-8") for path in (ROOT / "experiments").glob("**/*.yaml")}
    for page in PAGES:
        for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)):
            texts[page / str(number)] = block
    assert len(texts) > 60
    for path, text in texts.items():
        assert repr(yamlio.loads(text, str(path))) == repr(_with_dates_as_text(yaml.safe_load(text))), path


def _with_dates_as_text(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _with_dates_as_text(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_dates_as_text(value) for value in node]
    return node.isoformat() if type(node) is dt.date else node


def test_the_readers_differ_where_people_stumble() -> None:
    assert yamlio.loads("[1e-5, yes, 010, 12:30, null, ~, 1.0e-5]", "") == [
        1e-5,
        "yes",
        "010",
        "12:30",
        None,
        None,
        1e-5,
    ]
    assert yaml.safe_load("[1e-5, yes, 010, 12:30]") == ["1e-5", True, 8, 750]


def test_numbers_and_switches_keep_their_meaning_in_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG + "workload: {size: null}\n", encoding="utf-8")
    sets = ["privacy.epsilon=5e-1", "evaluation.federated=yes", "mechanism.measure_fraction=8e-1"]
    config = load_config(tmp_path / "run.yaml", sets)
    assert (config.privacy.epsilon, config.privacy.delta) == (0.5, 1e-5) and config.workload.size is None
    assert config.evaluation.federated is True
    same = load_config(tmp_path / "run.yaml", [*sets, "mechanism.measure_fraction=0.8"])
    assert config.sha256 == same.sha256  # the same number, however it is written


def test_text_survives_writing_and_reading() -> None:
    document = {"a": ["yes", "1e5", "010", "12:30", "null", "true", "<<", "=", "", " x", "# no comment", "1_000", "ä"]}
    document |= {"<<": "merged?", "b": [1e-5, 1e300, 3, True, None, float("inf")], "c": {"1": 2}}
    assert yamlio.loads(yamlio.dumps(document), "written") == document


# What cannot be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a: [1, 2\nb: 3\n", "a: !!int x\n", "a: !!python/object:os.system {}\n", "{[1]: 2}"])
def test_what_is_not_yaml_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    assert message(lambda: yamlio.read_mapping(tmp_path / "bad.yaml")).startswith(f"{tmp_path / 'bad.yaml'}: not valid")


def test_a_schema_keeps_its_own_kind_of_error() -> None:
    from fedsyn.errors import SchemaError

    with pytest.raises(SchemaError, match=r"^s.yaml: the key 'a' is given twice, in lines 2 and 3$"):
        Schema.loads("columns:\n  a: {}\n  a: {}\n", "s.yaml")


@pytest.mark.parametrize("text", ["[" * 50_000, "- " * 50_000, "{a: " * 50_000], ids=["flow", "block", "mapping"])
def test_deep_nesting_is_refused_and_does_not_end_the_process(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml: nested more than 100 levels deep"):
        yamlio.loads(text, "x.yaml")
