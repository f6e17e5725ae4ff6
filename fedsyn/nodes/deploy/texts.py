"""What the people who receive a folder are warned of, and its YAML files; `templates` has their text, and READMEs."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from fedsyn import yamlio
from fedsyn.output import filled

SEEN = """\
WHOEVER MADE THIS FOLDER HAS SEEN EVERY PRIVATE KEY IN IT, those of the holders too. Until each holder has made its own
('fedsyn node new-keys node.yaml' there, 'fedsyn deploy rotate-keys NAME --card FILE' here), the maker could pass for
any of them, and secure sums protect nobody from the maker.
"""

INSECURE = """\
INSECURE, AS YOU ASKED: no encryption and no authentication of nodes. Anyone who reaches the port can read what nodes
send, change it, and pass for a node or for the SuperLink. For trials with made-up rows only.
"""


def yaml_text(template: str, **values: Any) -> str:
    """Return a file of `templates`, in which `y(VALUE)` is YAML on one line, and a text alone stands as it is."""
    raw = {key: Markup(value) if isinstance(value, str) else value for key, value in values.items()}
    return filled("nodes/deploy", template, y=_on_one_line, **raw)


def _on_one_line(value: object) -> Markup:
    if isinstance(value, list):
        return Markup("[" + ", ".join(map(_on_one_line, value)) + "]")
    return Markup(yamlio.dumps(str(value) if isinstance(value, Markup) else value).splitlines()[0])
