"""The command `fedsyn new NAME`.

It writes a mechanism of one's own to start from: the files that docs/own_mechanism.md explains.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from fedsyn.errors import ConfigError
from fedsyn.files import shipped
from fedsyn.front.cli.console import writing
from fedsyn.output import say

_FILES = re.compile(r"^```(?:python|yaml|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def new(
    name: Annotated[str, typer.Argument(help="Its name, also that of its Python package.", metavar="NAME")],
) -> None:
    """Write a mechanism to start from, as a package of its own.

    It goes into a new folder, and passes the conformance check.
    """
    folder = Path(name)
    for path, text in package_files(name).items():
        file = folder / path
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    say(f"{name}: written; docs/own_mechanism.md explains each file. Then:\n  cd {name}\n  python -m pytest -q")


def package_files(name: str) -> dict[str, str]:
    """Returns the files of a new mechanism, by path.

    Raises:
        ConfigError: no package can have this name, there is one, or a file or folder of it is in the way.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(
            f"a mechanism's name is that of a Python package, like my_mechanism, which '{name}' cannot be"
        )
    if Path(name).exists():
        raise ConfigError(f"{name} is there already; choose another name, or another folder to be in")
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(f"a Python module '{name}' is installed already; choose another name")
    title = "".join(word.capitalize() for word in name.split("_"))
    page = shipped("docs/own_mechanism.md").read_text(encoding="utf-8")
    renamed = page.replace("robust", name).replace("Robust", title)
    return dict(_FILES.findall(renamed))
