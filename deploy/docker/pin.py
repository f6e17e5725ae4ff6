"""Prints the versions of everything that fedsyn's base install needs, as they are installed and tested here.

    python deploy/docker/pin.py > deploy/docker/constraints.txt

Run it where the tests have passed. An image is built with these versions and no others.
"""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def closure(asked: list[str]) -> dict[str, str]:
    """Name and version of each requirement, and of what they require in turn, where its marker holds here."""
    found: dict[str, str] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in asked]
    while waiting:
        requirement = waiting.pop()
        extras = frozenset(requirement.extras)
        name = canonicalize_name(requirement.name)
        if (name, extras) in done or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        done.add((name, extras))
        distribution = importlib.metadata.distribution(requirement.name)
        found[name] = distribution.version
        for text in distribution.requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                needed.marker = None
                waiting.append(needed)
    return dict(sorted(found.items()))


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["fhe"]]
    print("# Written by deploy/docker/pin.py: what the tests ran with. Builds use exactly these versions.")
    for name, version in closure(asked).items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
