"""Minor versions of Flower that this folder knows.

Any other is refused in one sentence when the folder is first imported.

A minor of Flower moves modules and renames records, so that another one would fail somewhere inside a run. What is
allowed here is what `make test-all SHARD=flower` runs the tests on, and what pyproject.toml asks for.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from fedsyn.errors import ConfigError

#: (major, minor) of Flower.
KNOWN = ((1, 41), (1, 42))


def require_known() -> None:
    """Costs below a millisecond, and imports nothing of Flower's.

    Raises:
        ConfigError: Flower is not there, or is of a minor that was never tested.
    """
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        installed = None
    reason = why_not(installed)
    if reason is not None:
        raise ConfigError(reason)


def why_not(installed: str | None) -> str | None:
    """Returns what to say of a Flower version, and to type.

    None means that the version is known.
    """
    numbers = re.match(r"(\d+)\.(\d+)", installed or "")
    if numbers is not None and (int(numbers[1]), int(numbers[2])) in KNOWN:
        return None
    have = "Flower is not installed here" if installed is None else f"this Python has Flower {installed}"
    known = " and ".join(f"{major}.{minor}" for major, minor in KNOWN)
    return f"{have}; this version of fedsyn works with Flower {known}: type pip install '{requirement()}'"


def requirement() -> str:
    """Returns the requirement as pip and pyproject.toml write it."""
    (low_major, low), (high_major, high) = KNOWN[0], KNOWN[-1]
    return f"flwr>={low_major}.{low},<{high_major}.{high + 1}"
