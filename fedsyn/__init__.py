"""Federated, differentially private synthetic tables on Flower.

The names of `__all__` are the public face. Each is loaded when it is first used, so `import fedsyn` costs nothing.
Errors that a user can mend are classes of `fedsyn.errors`; they say what is wrong and where:

>>> import fedsyn
>>> from fedsyn.errors import ConfigError
>>> try:
...     fedsyn.load_config("configs/nowhere.yaml")
... except ConfigError as error:
...     print(error)
no such file: configs/nowhere.yaml
>>> privacy = {"epsilon": 1.0, "delta": 1e-5}
>>> try:
...     fedsyn.parse_config({"data": {"source": "adult"}, "mechanism": "agflaim", "privacy": privacy})
... except ConfigError as error:
...     print(str(error).partition(";")[0])
mechanism.name: unknown mechanism 'agflaim' (did you mean 'augflaim'?)
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsyn.version import __version__

if TYPE_CHECKING:
    from fedsyn.config import RunConfig
    from fedsyn.evaluation.analysis.combining import combine
    from fedsyn.evaluation.analysis.whole import analyse
    from fedsyn.front.flower_app import FlowerApp
    from fedsyn.front.running import RunResult, run
    from fedsyn.front.synthesizer import Synthesizer, load
    from fedsyn.loading import load_config, parse_config
    from fedsyn.runs.directory import load_model
    from fedsyn.table.schema import Schema
    from fedsyn.testing import check_mechanism

__all__ = [
    "FlowerApp",
    "RunConfig",
    "RunResult",
    "Schema",
    "Synthesizer",
    "__version__",
    "analyse",
    "check_mechanism",
    "combine",
    "load",
    "load_config",
    "load_model",
    "parse_config",
    "run",
]

# Where each name lives. The imports above say the same to type checkers, which cannot read this.
_MODULES = {
    "FlowerApp": "fedsyn.front.flower_app",
    "RunConfig": "fedsyn.config",
    "RunResult": "fedsyn.front.running",
    "Schema": "fedsyn.table.schema",
    "Synthesizer": "fedsyn.front.synthesizer",
    "analyse": "fedsyn.evaluation.analysis.whole",
    "check_mechanism": "fedsyn.testing",
    "combine": "fedsyn.evaluation.analysis.combining",
    "load": "fedsyn.front.synthesizer",
    "load_config": "fedsyn.loading",
    "load_model": "fedsyn.runs.directory",
    "parse_config": "fedsyn.loading",
    "run": "fedsyn.front.running",
}


# Rounds are told to this logger at INFO; nothing is printed unless an application asks for it.
logging.getLogger("fedsyn").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedsyn' has no attribute '{name}'")
    return globals().setdefault(name, getattr(import_module(_MODULES[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
