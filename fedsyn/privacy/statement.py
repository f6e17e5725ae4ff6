"""The privacy statement of a mechanism.

It is data on a contract, which each run fills, and docs and ledger render.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

#: Whose presence the guarantee hides. Every ledger and statement names it.
UNIT = "one row, added or removed, at one client"

_TITLES = {
    "unit": "Unit",
    "public": "Public",
    "trust": "Trusted not to collude",
    "server_sees": "The server sees",
    "client_sees": "A client sees",
    "cost": "Cost of each release",
    "sampler": "Sampler",
}


@dataclass(frozen=True)
class PrivacyStatement:
    """A mechanism's promise, and its assumptions.

    Its form is fixed, to be compared line by line. A contract states what is its own; the words in braces stand for
    what follows from a run's configuration and plan.

    Attributes:
        server_sees: everything that reaches the server.
        client_sees: everything that reaches a client.
        cost: what each kind of release costs, in rho or mu, and how many of them one row takes part in.
        public: what is not protected (schema, bounds, workload, configuration, client row counts, ...).
        trust: which parties must keep to the protocol and not pool what they see.
        sampler: where the noise comes from; `Randomness.label`.
        unit: whose presence is hidden.
    """

    server_sees: str
    client_sees: str
    cost: str = "{cost}"
    public: str = "{public}"
    trust: str = "{trust}"
    sampler: str = "{sampler}"
    unit: str = UNIT

    def __post_init__(self) -> None:
        for field in fields(self):
            if not str(getattr(self, field.name)).strip():
                raise ValueError(f"a privacy statement must say something under '{_TITLES[field.name]}'")

    def filled(self, words: Mapping[str, object]) -> PrivacyStatement:
        """Returns the statement with its placeholders, `{name}`, replaced.

        It raises KeyError for a placeholder that has no word.
        """
        return PrivacyStatement(**{f.name: str(getattr(self, f.name)).format_map(words) for f in fields(self)})

    def render(self) -> str:
        """Returns seven lines, 'Title: text', in the fixed order."""
        return "\n".join(f"{title}: {text}" for title, text in self.titled().items())

    def titled(self) -> dict[str, str]:
        """Returns title -> text, in the fixed order."""
        return {title: getattr(self, name) for name, title in _TITLES.items()}

    def to_dict(self) -> dict[str, str]:
        values = asdict(self)
        return {name: values[name] for name in _TITLES}

    @classmethod
    def from_dict(cls, values: Mapping[str, str]) -> PrivacyStatement:
        return cls(**{name: values[name] for name in _TITLES})
