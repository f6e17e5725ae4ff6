"""What the people who receive a folder are warned of, and its YAML files; `templates` has their text, and READMEs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fedsyn import yamlio

if TYPE_CHECKING:
    from jinja2 import Environment

SEEN = """\
WHOEVER MADE THIS FOLDER HAS SEEN EVERY PRIVATE KEY IN IT, those of the holders too. Until each holder has made its own
('fedsyn node new-keys node.yaml' there, 'fedsyn deploy rotate-keys NAME --card FILE' here), the maker could pass for
any of them, and secure sums protect nobody from the maker.
"""

INSECURE = """\
INSECURE, AS YOU ASKED: no encryption and no authentication of nodes. Anyone who reaches the port can read what nodes
send, change it, and pass for a node or for the SuperLink. For trials with made-up rows only.
"""


def yaml_text(template: str, /, **values: Any) -> str:
    """Return a file of `templates`, in which each value is written as YAML, on one line."""
    return str(_templates().get_template(f"{template}.md").render(values))


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("fedsyn", "deploy/templates"),
        finalize=_on_one_line,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )


def _on_one_line(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_on_one_line, value)) + "]"
    return yamlio.dumps(value).splitlines()[0]
