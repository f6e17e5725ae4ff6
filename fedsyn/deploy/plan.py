"""Plan of a federation, and the run configuration that follows.

Its defaults protect the holders.

Secure sums against a malicious server are what holders who never met need: noise that nobody knows, one of them may
collude with the operator, and nobody's contribution is seen. With `--parties` three computing parties, or one crypto
party, take the place of the sums.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedsyn import yamlio
from fedsyn.capabilities import CAPABILITIES, Capabilities
from fedsyn.config import DEFAULT_MECHANISM
from fedsyn.errors import ConfigError
from fedsyn.keys.certificates import require_host, split_address
from fedsyn.keys.holder_keys import NAME
from fedsyn.ledgers.limits import epsilon_of, rho_of
from fedsyn.privacy import PrivacyBudget, zcdp_epsilon
from fedsyn.registry import contract_class
from fedsyn.settings import AggregationNode

if TYPE_CHECKING:
    from jinja2 import Environment

    from fedsyn.table.schema.persons import Persons

Approval = Literal["by person", "by hash", "always"]
APPROVALS: tuple[Approval, ...] = ("by person", "by hash", "always")
#: Of holders, who may collude with the operator; one at least.
CORRUPTED = AggregationNode().corrupted


@dataclass(frozen=True)
class FederationPlan:
    """Answers to what `fedsyn deploy init` asks.

    Attributes:
        name: of the federation.
        holders: names, in the order of their partition ids.
        parties: (name, HOST:PORT) of three computing parties, or of one crypto party.
        hosts: names and addresses of the SuperLink, as the holders reach it.
        port: of the SuperLink.
        listen: address on which it listens.
        schema: the agreed schema's file, if there is one already.
        epsilon: of a run, at delta.
        delta: of a run, and of the limits for life.
        rounds: of the mechanism.
        runs: how many such runs the limits for life have room for, those of holders and those of parties.
        approval: what the holders' files say.
        insecure: no TLS, no authentication of nodes.
        wheel: of the fedsyn that everybody installs; it goes into each folder.
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
    runs: int = 2
    approval: Approval = "by person"
    insecure: bool = False
    wheel: Path | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the protocol that hides the holders' numbers."""
        counts = {one.parties.count if one.parties else 0: one for one in CAPABILITIES.values() if one.hides}
        return counts[len(self.parties)]

    @property
    def mechanism(self) -> str:
        return DEFAULT_MECHANISM if self.capabilities.sums else "distaim"

    @property
    def signed(self) -> bool:
        """Returns whether holders sign.

        They do in secure sums under the malicious threat model.
        """
        return self.capabilities.masks

    @property
    def budget(self) -> PrivacyBudget:
        """Budget of one run."""
        return PrivacyBudget(self.epsilon, self.delta)

    @property
    def accountant(self) -> str:
        return str(contract_class(self.mechanism).accountant)

    @property
    def persons(self) -> Persons | None:
        """The persons of the agreed schema; None: it has none."""
        from fedsyn.table.schema import Schema

        return None if self.schema is None else Schema.load(self.schema).persons

    @property
    def lifetime(self) -> float:
        """Epsilon, at delta, of a holder's life.

        It is the epsilon of `runs` runs that spend all they may.
        """
        return lifetime(self.budget, self.accountant, self.runs)

    @property
    def party_total(self) -> float:
        """Epsilon, at delta, of a party's life, which holds `runs` runs.

        A party's ledger adds up zCDP whatever the run's accountant. A run of Gaussian noise alone is counted exactly by
        itself, and its rho is above what zCDP grants for the same epsilon; so this is above epsilon for one run, too.
        """
        return rounded_up(zcdp_epsilon(self.runs * rho_of(self.budget, self.accountant), self.delta))

    @property
    def tolerated(self) -> tuple[int, int]:
        """Numbers of holders that may collude, and that may be missing.

        The first collude with the operator, the second are missing from a sum.
        """
        count = len(self.holders)
        if not self.signed:
            return 0, 0
        return max(1, math.floor(CORRUPTED * count + 1e-9)), max(1, count // 10) if count > 3 else 0

    @property
    def minimum_cohort(self) -> int:
        return len(self.holders) - self.tolerated[1]

    @property
    def who(self) -> str:
        """Words for who is trusted with what, heading run.yaml."""
        colluding, missing = self.tolerated
        if not self.signed:
            return "The parties and their addresses stand in parties/"
        holders = len(self.holders)
        return (
            f"{colluding} of the {holders} holders may collude with the operator, {missing} may be missing from a sum"
        )

    @property
    def numbers(self) -> dict[str, float]:
        """Keys of run.yaml that depend on the number of holders."""
        count, (_, missing) = len(self.holders), self.tolerated
        numbers: dict[str, float] = {"clients": count, "minimum_cohort": self.minimum_cohort}
        if self.signed:
            numbers |= {"corrupted": CORRUPTED, "dropout": share(missing, count)}
        return numbers

    def check(self) -> None:
        """Raises ConfigError, in one sentence, for what cannot be built."""
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
                f"--out: the folder's name is the federation's; '{self.name}' is not valid: use letters, digits, . _ -"
            )
        for host in self.hosts:
            require_host(host)
        if not 1 <= self.port <= 65533:
            raise ConfigError("--port: expected a number from 1 to 65533; the next two are used as well")
        if not (0 < self.epsilon <= 1000 and 0 < self.delta < 1):
            raise ConfigError("--epsilon and --delta: expected 0 < epsilon <= 1000 and 0 < delta < 1")
        if not 1 <= self.rounds <= 10_000:
            raise ConfigError("--rounds: expected a number from 1 to 10000")
        if not 1 <= self.runs <= 1000:
            raise ConfigError("--runs: expected a number from 1 to 1000")
        if self.lifetime > 1000 or (self.parties and self.party_total > 1000):
            raise ConfigError(f"--runs: {self.runs} runs of epsilon {self.epsilon:g} come to more than epsilon 1000")
        if self.wheel is not None and not re.fullmatch(r"fedsyn-[A-Za-z0-9.+!_-]+\.whl", self.wheel.name):
            raise ConfigError(f"--wheel: expected a file fedsyn-VERSION-py3-none-any.whl, found '{self.wheel.name}'")
        if self.wheel is not None and not self.wheel.is_file():
            raise ConfigError(f"--wheel: no such file: {self.wheel}")
        if self.schema is not None:
            from fedsyn.table.schema import Schema

            Schema.load(self.schema).require_approved()

    def run_config(self) -> str:
        """Returns the text of run.yaml."""
        cards = [f"parties/{name}.yaml" for name, _ in self.parties]
        return yaml_text("run.yaml", plan=self, cards=cards if len(cards) > 1 else "".join(cards))


def lifetime(budget: PrivacyBudget, accountant: str, runs: int) -> float:
    """Returns the lifetime epsilon that leaves room for `runs` runs.

    It is an epsilon at the budget's delta.

    >>> lifetime(PrivacyBudget(1.0, 1e-6), "gaussian", 1), lifetime(PrivacyBudget(1.0, 1e-6), "gaussian", 2)
    (1.0, 1.46)
    """
    if runs == 1:
        return budget.epsilon
    if accountant not in ("gaussian", "zcdp"):  # its order is the run's to choose; the sum is never too little
        return rounded_up(runs * budget.epsilon)
    return rounded_up(epsilon_of(runs * rho_of(budget, accountant), budget.delta, accountant))


def rounded_up(epsilon: float) -> float:
    """Returns the next number of three significant digits that is no smaller."""
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return float(f"{math.ceil(epsilon / unit) * unit:.3g}")


def share(count: int, of: int) -> float:
    """Returns the smallest share that leaves `count` of `of`, rounded down.

    The share is a number of thousandths.

    >>> share(1, 3), int(share(1, 3) * 3), int(share(1, 7) * 7), share(0, 5)
    (0.334, 1, 1, 0.0)
    """
    return math.ceil(1000 * count / of) / 1000


def split_names(words: Sequence[str]) -> tuple[str, ...]:
    """Splits names typed as several words, as one with commas, or both.

    >>> split_names(["north,south", "lake"])
    ('north', 'south', 'lake')
    """
    return tuple(name.strip() for text in words for name in text.split(",") if name.strip())


def split_parties(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Splits parties typed as NAME=HOST:PORT.

    >>> split_parties(["alder=alder.example.org:7443"])
    (('alder', 'alder.example.org:7443'),)
    """
    parties = []
    for text in split_names(words):
        name, equals, address = text.partition("=")
        if not equals:
            raise ConfigError(f"--parties: expected NAME=HOST:PORT, as in alder=alder.example.org:7443, found '{text}'")
        parties.append((name, address))
    return tuple(parties)


def _check_names(option: str, names: Sequence[str]) -> None:
    for name in names:
        if not re.match(NAME, name):
            raise ConfigError(
                f"{option}: '{name}' is not a valid name: up to 40 letters, digits, dots, - and _, a letter first"
            )
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(f"{option}: a name stands twice")


# What the people who receive a folder are warned of, and its YAML files -----------------------------------------------

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
    """Fills a file of `templates` with values.

    Each value is written as YAML, on one line.
    """
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
