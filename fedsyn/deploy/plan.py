"""What a federation is asked to be, and the configuration of its run that follows: the defaults protect.

Secure sums against a malicious server are what holders who never met need: noise that nobody knows, one of them may
collude with the operator, and nobody's contribution is seen. With `--parties` three computing parties, or one crypto
party, take the place of the sums.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedsyn import yamlio
from fedsyn.deploy.authority import require_host
from fedsyn.errors import ConfigError
from fedsyn.node.keys import NAME
from fedsyn.parties.keys import split_address

Approval = Literal["by person", "by hash", "always"]
APPROVALS: tuple[Approval, ...] = ("by person", "by hash", "always")
_MECHANISMS = {"secagg": "sketch_aim", "mpc": "distaim", "fhe": "sketch_aim"}


@dataclass(frozen=True)
class Plan:
    """What `fedsyn deploy init` is asked for.

    Attributes:
        name: of the federation.
        holders: names, in the order of their partition ids.
        parties: (name, HOST:PORT) of three computing parties, or of one crypto party.
        hosts: names and addresses of the SuperLink, as the holders reach it.
        port: of the SuperLink.
        listen: address on which it listens.
        schema: the agreed schema's file, if there is one already.
        epsilon: of a run, at delta; a holder's limit for life, too, until the holder raises it.
        delta: of both.
        rounds: of the mechanism.
        approval: what the holders' files say.
        insecure: no TLS, no authentication of nodes.
    """

    name: str
    holders: tuple[str, ...]
    parties: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ("localhost",)
    port: int = 8000
    listen: str = "0.0.0.0"
    schema: Path | None = None
    epsilon: float = 1.0
    delta: float = 1e-6
    rounds: int = 10
    approval: Approval = "by person"
    insecure: bool = False

    @property
    def protocol(self) -> str:
        return {0: "secagg", 1: "fhe", 3: "mpc"}[len(self.parties)]

    @property
    def mechanism(self) -> str:
        return _MECHANISMS[self.protocol]

    @property
    def signed(self) -> bool:
        """Whether holders sign (secure sums under the malicious threat model)."""
        return self.protocol == "secagg"

    @property
    def tolerated(self) -> tuple[int, int]:
        """(holders that may collude with the operator, holders that may be missing from a sum)."""
        count = len(self.holders)
        if not self.signed:
            return 0, 0
        return (1 if count > 2 else 0, max(1, count // 10) if count > 3 else 0)

    @property
    def minimum_cohort(self) -> int:
        return len(self.holders) - self.tolerated[1]

    def check(self) -> None:
        """ConfigError in one sentence for whatever cannot be built."""
        _check_names("--holders", self.holders)
        if len(self.holders) < 2:
            raise ConfigError("--holders: a federation has at least two data holders; one table alone: fedsyn run")
        if len(self.parties) not in (0, 1, 3):
            raise ConfigError(
                f"--parties: expected three computing parties, or one crypto party, found {len(self.parties)}"
            )
        _check_names("--parties", [name for name, _ in self.parties])
        for _, address in self.parties:
            split_address(address)
        if not re.match(NAME, self.name):
            raise ConfigError(
                f"--out: the folder's name is the federation's, and '{self.name}' is none: letters, digits, . _ -"
            )
        for host in self.hosts:
            require_host(host)
        if not 1 <= self.port <= 65533:
            raise ConfigError("--port: expected a number from 1 to 65533; the next two are used as well")
        if not (0 < self.epsilon <= 1000 and 0 < self.delta < 1):
            raise ConfigError("--epsilon and --delta: expected 0 < epsilon <= 1000 and 0 < delta < 1")
        if not 1 <= self.rounds <= 10_000:
            raise ConfigError("--rounds: expected a number from 1 to 10000")
        if self.schema is not None:
            from fedsyn.schema import Schema

            Schema.load(self.schema).require_approved()

    def run_config(self) -> str:
        """The text of run.yaml."""
        colluding, missing = self.tolerated
        count = len(self.holders)
        aggregation: dict[str, Any] = {"protocol": self.protocol, "noise": "distributed"}
        if self.signed:
            aggregation |= {
                "threat": "malicious",
                "corrupted": share(colluding, count),
                "dropout": share(missing, count),
            }
        elif self.protocol == "mpc":
            aggregation["parties"] = [f"parties/{name}.yaml" for name, _ in self.parties]
        else:
            aggregation["crypto"] = f"parties/{self.parties[0][0]}.yaml"
        runtime: dict[str, Any] = {"engine": "deployment", "superlink": self.name}
        if self.parties:
            runtime["operator"] = "party"
        document = {
            "mechanism": {"name": self.mechanism, "rounds": self.rounds},
            "data": {"source": self.name, "schema": "schema.yaml"},
            "federation": {
                "clients": count,
                "minimum_cohort": self.minimum_cohort,
                "timeout": 120,
                "connect_timeout": 300,
            },
            "privacy": {"epsilon": self.epsilon, "delta": self.delta, "client_sizes": "private"},
            "workload": {"degree": 2, "size": None},
            "aggregation": aggregation,
            "evaluation": [],
            "runtime": runtime,
        }
        if self.signed:
            who = (
                f"{colluding} of the {count} holders may collude with the operator, {missing} may be missing from a sum"
            )
        else:
            who = "the parties and their addresses stand in parties/"
        return (
            f"# The run of '{self.name}': everybody may read it, nobody's rows are named in it.\n"
            f"# {who[0].upper()}{who[1:]}.\n"
            f"# What it may ask of a holder, and what that costs: fedsyn explain run.yaml\n{yamlio.dumps(document)}"
        )


def share(count: int, of: int) -> float:
    """The smallest share, in thousandths, of which `count` of `of` are the whole part.

    >>> share(1, 3), int(share(1, 3) * 3), int(share(1, 7) * 7), share(0, 5)
    (0.334, 1, 1, 0.0)
    """
    return math.ceil(1000 * count / of) / 1000


def split_names(given: Sequence[str]) -> tuple[str, ...]:
    """Names given as several words, as one with commas, or both.

    >>> split_names(["north,south", "lake"])
    ('north', 'south', 'lake')
    """
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())


def split_parties(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parties given as NAME=HOST:PORT.

    >>> split_parties(["alder=alder.example.org:7443"])
    (('alder', 'alder.example.org:7443'),)
    """
    found = []
    for text in split_names(given):
        name, equals, address = text.partition("=")
        if not equals:
            raise ConfigError(f"--parties: expected NAME=HOST:PORT, as in alder=alder.example.org:7443, found '{text}'")
        found.append((name, address))
    return tuple(found)


def _check_names(option: str, names: Sequence[str]) -> None:
    for name in names:
        if not re.match(NAME, name):
            raise ConfigError(f"{option}: '{name}' is no name: up to 40 letters, digits, dots, - and _, a letter first")
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(f"{option}: a name stands twice")
