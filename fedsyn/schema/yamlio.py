"""Reading and writing YAML the way people expect it: YAML 1.2 scalars, and no silent surprises.

PyYAML follows YAML 1.1, where `yes` and `no` are booleans, `12:30` is the number 750, `010` is 8 and
`2020-01-01` is a date. In a schema those are categories of somebody's table and must stay the text they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

_SCALARS = (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key '{key.value}' appears twice", key.start_mark
                    )
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))
# Merge keys (<<) are YAML 1.1 too, but harmless and useful.
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^(?:<<)$"), ["<"])
# PyYAML's int constructor would read digits with a leading 0 as octal; the pattern above keeps those as text.


def _represent_list(dumper: yaml.SafeDumper, items: Sequence[Any]) -> yaml.Node:
    flat = not any(isinstance(item, dict | list | tuple) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(tuple, _represent_list)


def loads(text: str) -> Any:
    """Parses one YAML document.

    Raises:
        yaml.YAMLError: the text is not YAML, or a mapping has the same key twice. Callers turn it into their
        own
            user-facing error.
    """
    return yaml.load(text, Loader=_Loader)


def dumps(data: Any) -> str:
    """Writes plain data as YAML: keys in their own order, flat lists on one line, text in Unicode."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
