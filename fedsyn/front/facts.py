"""A ledger as it was written down: the dictionary of ledger.json, with a few words about itself."""

from __future__ import annotations

from typing import Any


class LedgerFacts(dict[str, Any]):
    """What ledger.json holds. As a dictionary it has every key; the properties are what people ask for first."""

    @property
    def epsilon(self) -> float:
        """Spent, at `delta`."""
        return float(self["epsilon"])

    @property
    def delta(self) -> float:
        return float(self["delta"])

    @property
    def private(self) -> bool:
        """Whether the result may be released under this guarantee."""
        return bool(self["private"])

    @property
    def releases(self) -> list[dict[str, Any]]:
        """Every release: its round, mechanism, noise and cost."""
        return list(self["releases"])

    @property
    def summary(self) -> str:
        """One clause."""
        spent = f"epsilon {self.epsilon:.4g} at delta {self.delta:g}"
        return spent if self.private else f"{spent}, not private ({'; '.join(self['not_private_because'])})"

    def __repr__(self) -> str:
        return f"LedgerFacts({self.summary}; {len(self.releases)} releases; unit: {self['unit']})"
