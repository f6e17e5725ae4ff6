"""Both halves of mechanisms and the partitioners, under one name.

Wherever their folders lie.

`strategies`, `clients` and `partitioners` are folders at the root of the repository, so that `flwr run .` ships them as
they are. In a wheel they lie in here: a Flower user has folders of these names, and must not find ours in their place.
(The links in this folder are for type checkers, and for building the wheel.)
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent

if not (_HERE / "clients" / "__init__.py").is_file():  # the app that Flower unpacked, or a system without links
    __path__ = [str(_HERE.parents[1])]
