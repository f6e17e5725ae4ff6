"""Both halves of mechanisms and the partitioners, under one name.

Wherever their folders lie.

`strategies`, `clients` and `partitioners` are folders at the root of the repository, so that `flwr run .` ships them as
they are. In a wheel they lie in here: a Flower user has folders of these names, and must not find ours in their place.
Either way a file is one module: `strategies.flaim` of a checkout is `fedsyn.plugins.strategies.flaim`.
(The links in this folder are for type checkers, and for building the wheel.)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_FOLDERS = ("strategies", "clients", "partitioners")


class _OneModule(Loader, MetaPathFinder):
    """Finds the modules of a checkout's folders under their one name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder, _, module = fullname.partition(".")
        ours = module and folder in _FOLDERS and [*map(Path, path or ())] == [_ROOT / folder]
        return ModuleSpec(fullname, self) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{__name__}.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's spec, which the import system has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


if not (_HERE / "clients" / "__init__.py").is_file() or (_HERE / "clients").is_symlink():  # not in a wheel
    __path__ = [str(_ROOT)]
    sys.meta_path.insert(0, _OneModule())
