"""Reader and writer of YAML 1.2, without silent surprises.

PyYAML follows YAML 1.1, where `yes` and `no` are booleans, `12:30` is the number 750, `010` is 8, `1e-5` is text and
`2020-01-01` is a date; and of a key given twice it takes the last. Here scalars are what people expect (in a schema,
`no` is a category of somebody's table), and a key given twice is an error.

Everything that a person writes is read here: configurations and `--set`, sweeps, schemas, rosters, the registry. So the
module stands below all of them. Much of it comes from others, so a document is bounded while it is read: its bytes, its
depth, its values, an alias counted as all that it stands for. Merge keys (`<<`) are refused.

ruamel.yaml (0.19.1) would not do: it reads YAML 1.2 and refuses a doubled key, but bounds neither depth (20,000
brackets end in a RecursionError) nor aliases (nine lines that stand for 10^9 values are read), takes merge keys, reads
010 as 10 and 2020-01-01 as a date, and needs seven times as long (100,000 lines: 5.6 s, here 0.8 s).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedsyn.bounded import MOST_BYTES, read_bytes
from fedsyn.errors import ConfigError, DataError
from fedsyn.output import plain

# Levels of a document. A configuration has five, a schema a few more.
_DEEPEST = 100
_TOO_DEEP = f"nested more than {_DEEPEST} levels deep"
#: Values of a document, of which a schema of many categories has most.
MOST_VALUES = 500_000
_CORE = "tag:yaml.org,2002:"
# What plain text looks like, and with which characters that may begin.
_SCALARS = (
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), ("t", "T", "f", "F")),
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ("~", "n", "N", "")),
    # A number with a leading 0 stays text: PyYAML would read it as octal.
    ("int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), tuple("-+0123456789")),
    (
        "float",
        re.compile(
            r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        tuple("-+0123456789."),
    ),
)
_Events = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as a parser of events alone


def read_mapping(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file whose document is a mapping of keys.

    Raises:
        ConfigError: no such file, no regular file or one that is too long, or what `loads` refuses, or no mapping; one
            sentence with the file's name and, where there is one, the line.
    """
    try:
        document = loads(read_bytes(path).decode("utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not valid YAML: not text in UTF-8") from None
    except DataError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(document, dict):
        kind = "nothing: it is empty" if document is None else "a list" if isinstance(document, list) else "one value"
        raise ConfigError(f"{path}: expected a mapping of keys (key: value), found {kind}")
    return document


def loads(text: str, where: str) -> Any:
    """Parses one YAML document.

    Args:
        text: the document.
        where: what to call it in an error message.

    Raises:
        ConfigError: the text is not YAML, or a mapping has a key twice, or it is larger than documents are: nested too
            deeply, or of too many values, those counted that an alias stands for.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{where}: longer than {MOST_BYTES:,} characters, which is the most that is read")
    reader = _DocumentReader(yaml.parse(text, Loader=_Events))
    try:
        return reader.document()
    except _Refused as error:
        raise ConfigError(f"{where}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of more digits than Python reads
        if "nesting" in (getattr(error, "problem", None) or ""):  # libyaml 0.2.6 looks ahead, and no deeper than 1,000
            raise ConfigError(f"{where}: {_TOO_DEEP}") from None
        mark = getattr(error, "problem_mark", None)
        at = _at(text, mark.line, getattr(error, "problem", None)) if mark else ""
        raise ConfigError(f"{where}: not valid YAML{at}") from None


def _at(text: str, number: int, problem: str | None) -> str:
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        problem = "a tab stands there, and YAML indents with spaces"
    return f" at line {number + 1}" + (f": {problem}" if problem else "")


def dumps(data: Any, width: int = 110) -> str:
    """Writes plain data as YAML.

    Keys keep their order, flat lists stand on one line, text is Unicode.
    """
    return escaped(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=width))


def in_one_line(data: Any) -> str:
    """Writes plain data as YAML in one line."""
    line = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1 << 30)
    line = escaped(line.strip().removesuffix("\n..."))
    return plain(json.dumps(data, ensure_ascii=False), keep="") if "\n" in line else line  # JSON escapes line breaks


def escaped(document: str) -> str:
    """Escapes odd characters in a document that `Dumper` wrote.

    They stand between double quotes alone.
    """
    return plain(document, keep="\n\t")


class _Refused(Exception):
    """A YAML document that is not read; the text says why."""


@dataclass
class _Anchored:
    """A value that an anchor names.

    Attributes:
        value: of it; not there while it is being read.
        size: how many values it has, itself counted.
    """

    value: Any = None
    size: int = 0
    done: bool = False


class _DocumentReader:
    """Builds a document from a parser's events.

    It counts what it builds before it builds it.

    PyYAML's own composer and constructor do the same with nodes in between: they unfold merge keys before anything can
    be counted, and go as deep as a document says.
    """

    def __init__(self, events: Iterator[Any]) -> None:
        self._events, self._count, self._anchors = events, 0, dict[str, _Anchored]()

    def document(self) -> Any:
        """Returns the one document; None for an empty text."""
        next(self._events)  # of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), 0)
        next(self._events)  # of the document
        last = next(self._events)
        if not isinstance(last, yaml.StreamEndEvent):
            raise yaml.MarkedYAMLError(problem="a second document", problem_mark=last.start_mark)
        return value

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event)
        anchored = _Anchored()
        if event.anchor is not None:
            if event.anchor in self._anchors:
                raise _bad(event, "an anchor is given twice")
            self._anchors[event.anchor] = anchored
        before = self._count
        self._more(1)
        if isinstance(event, yaml.ScalarEvent):
            anchored.value = _scalar(event)
        else:
            if depth >= _DEEPEST:
                raise _Refused(_TOO_DEEP)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            if event.tag not in (None, "!", f"{_CORE}seq" if is_list else f"{_CORE}map"):
                raise _bad(event, "a tag")
            anchored.value = self._list(depth + 1) if is_list else self._mapping(depth + 1)
        anchored.size, anchored.done = self._count - before, True
        return anchored.value

    def _aliased(self, event: Any) -> Any:
        anchored = self._anchors.get(event.anchor)
        if anchored is None or not anchored.done:  # unknown, or it would hold itself
            raise _bad(event, "an alias of nothing")
        self._more(anchored.size)
        return anchored.value

    def _more(self, values: int) -> None:
        self._count += values
        if self._count > MOST_VALUES:
            raise _Refused(f"it unfolds to more than {MOST_VALUES:,} values")

    def _list(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == "<<":
                raise _Refused(f"a merge key (<<) stands in line {line}: write the keys out, merge keys are not read")
            key = self._value(event, depth)
            if isinstance(key, list | dict):
                raise _bad(event, "a key that is not a scalar")
            # As written and as read: 1 and '1' look the same to a person, true and True to Python.
            names = {key, event.value} if isinstance(event, yaml.ScalarEvent) else {key}
            for name in names & lines.keys():
                at = f"line {line}" if line == lines[name] else f"lines {lines[name]} and {line}"
                raise _Refused(f"the key '{getattr(event, 'value', key)}' is given twice, in {at}")
            lines |= dict.fromkeys(names, line)
            mapping[key] = self._value(next(self._events), depth)
        return mapping


def _bad(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _scalar(event: Any) -> Any:
    """Returns the value of a scalar.

    Quoted text is text, plain text is what it looks like, a tag is what it says.
    """
    text: str = event.value
    if event.tag is None or event.tag == "!":
        kind = "str" if event.tag == "!" or not event.implicit[0] else _kind(text)
    else:
        kind = event.tag.removeprefix(_CORE)
        if kind != "str" and kind != _kind(text):
            raise _bad(event, "a tag that does not fit")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _kind(text: str) -> str:
    """Returns the kind that plain text looks like."""
    for kind, pattern, first in _SCALARS:
        if text[:1] in first and pattern.match(text):
            return kind
    return "str"


class Dumper(yaml.SafeDumper):
    """Writes scalars so that `loads` reads them back as they were."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)


for _kind_, _pattern, _first in _SCALARS:
    Dumper.add_implicit_resolver(f"{_CORE}{_kind_}", _pattern, list(_first))
# Written between quotes: plain, it would be a merge key, which is refused.
Dumper.add_implicit_resolver(f"{_CORE}merge", re.compile("^<<$"), ["<"])


def _represent_list(dumper: yaml.SafeDumper, items: Sequence[Any]) -> yaml.Node:
    flat = not any(isinstance(item, dict | list | tuple) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


# Characters that YAML folds into a space, takes for the end of a line, or does not allow as they are. PyYAML escapes
# them between double quotes, and writes some of them as they are elsewhere.
_ODD = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Represents text so that it is read back unchanged.

    Odd characters stand between double quotes, as escapes.
    """
    odd = _ODD.search(text) or plain(text, keep="\n\t") != text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if odd else None)


Dumper.add_representer(str, _represent_text)
Dumper.add_representer(list, _represent_list)
Dumper.add_representer(tuple, _represent_list)
