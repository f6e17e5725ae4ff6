"""The one reader and writer of YAML: YAML 1.2 scalars, and no silent surprises.

PyYAML follows YAML 1.1, where `yes` and `no` are booleans, `12:30` is the number 750, `010` is 8, `1e-5` is text and
`2020-01-01` is a date; and of a key given twice it takes the last. Here scalars are what people expect (in a schema,
`no` is a category of somebody's table), and a key given twice is an error.

Everything that a person writes is read here: configurations and `--set`, sweeps, schemas, rosters, the registry. So the
module stands beside `errors`, below all of them, and imports nothing else of fedsyn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedsyn.errors import ConfigError

# Levels of a document. A configuration has five, a schema a few more.
_DEEPEST = 100
_MERGE = "tag:yaml.org,2002:merge"
_SCALARS = (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    # A number with a leading 0 stays text: PyYAML's constructor would read it as octal.
    ("tag:yaml.org,2002:int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
    # Merge keys are YAML 1.1 too, but harmless and useful.
    (_MERGE, r"^<<$", "<"),
)


def read_mapping(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file whose document is a mapping of keys.

    Raises:
        ConfigError: no such file, or what it holds is not UTF-8, YAML, or a mapping, or has a key twice; one sentence
            with the file's name and, where there is one, the line.
    """
    try:
        document = loads(Path(path).read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not valid YAML: not text in UTF-8") from None
    if not isinstance(document, dict):
        found = "nothing: it is empty" if document is None else "a list" if isinstance(document, list) else "one value"
        raise ConfigError(f"{path}: expected a mapping of keys (key: value), found {found}")
    return document


def loads(text: str, where: str) -> Any:
    """Parses one YAML document.

    Args:
        text: the document.
        where: what to call it in an error message.

    Raises:
        ConfigError: the text is not YAML, or a mapping has a key twice.
    """
    try:
        if _is_deep(text):
            raise ConfigError(f"{where}: nested more than {_DEEPEST} levels deep")
        return yaml.load(text, Loader=_Loader)
    except _DoubledKey as error:
        raise ConfigError(f"{where}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an explicit tag, as in `!!int x`
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"{where}: not valid YAML{_at(text, mark) if mark else ''}") from None
    except RecursionError:
        raise ConfigError(f"{where}: not valid YAML: brackets stand too deep in one another") from None


def _at(text: str, mark: yaml.Mark) -> str:
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    tab = "\t" in line[: len(line) - len(line.lstrip())]
    return f" at line {mark.line + 1}" + (": a tab stands there, and YAML indents with spaces" if tab else "")


def _is_deep(text: str) -> bool:
    """Whether a document is nested so deeply that reading it would overflow the stack, which ends the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


def dumps(data: Any) -> str:
    """Writes plain data as YAML: keys in their own order, flat lists on one line, text in Unicode."""
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


class _DoubledKey(Exception):
    """A mapping has a key twice; the text names key and lines."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._seen: set[yaml.MappingNode] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # PyYAML calls this before it reads a mapping, to put what a merge key brings in into it. A merged key may be
        # given again, so each mapping is looked at once, as it was written.
        if node not in self._seen:
            self._seen.add(node)
            self._refuse_doubled_keys(node)
        super().flatten_mapping(node)

    def _refuse_doubled_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                # As written and as read: 1 and '1' look the same to a person, true and True to Python.
                names = {key.value} if key.tag == _MERGE else {key.value, self.construct_object(key)}
                for name in names & lines.keys():
                    first = lines[name]
                    at = f"line {line}" if line == first else f"lines {first} and {line}"
                    raise _DoubledKey(f"the key '{key.value}' is given twice, in {at}")
                lines |= dict.fromkeys(names, line)


class Dumper(yaml.SafeDumper):
    """Writes scalars so that `loads` reads them back as they were."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))
    Dumper.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


def _represent_list(dumper: yaml.SafeDumper, items: Sequence[Any]) -> yaml.Node:
    flat = not any(isinstance(item, dict | list | tuple) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


# Characters that YAML folds into a space, takes for the end of a line, or does not allow as they are. PyYAML escapes
# them between double quotes, and writes some of them as they are elsewhere.
_ODD = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Text that is read back as it is; with odd characters between double quotes, as escapes."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _ODD.search(text) else None)


Dumper.add_representer(str, _represent_text)
Dumper.add_representer(list, _represent_list)
Dumper.add_representer(tuple, _represent_list)
