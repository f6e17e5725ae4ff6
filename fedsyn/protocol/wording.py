"""Words of privacy statements that are the same for every family of mechanisms."""

from __future__ import annotations

from dataclasses import replace

from fedsyn.config import RunConfig
from fedsyn.privacy import AUTO, PrivacyStatement, Unit

#: What placeholders of a statement stand for in documents.
GENERAL: dict[str, object] = {
    "public": "schema with bounds and bins, workload, configuration, who takes part in which round (row counts where "
    "`privacy.client_sizes` is `public`)",
    "trust": "as `aggregation` says",
    "server": "of every sum, what `aggregation` shows it",
    "noise": "whom `aggregation.noise` names",
    "sampler": "the operating system's; seeded, and not private, in a simulation with a seed",
}


class _Name(str):
    """A placeholder's own name, however its value would have been formatted."""

    def __format__(self, spec: str) -> str:
        return str(self)


class General(dict[str, object]):
    """Words for a statement; what is unknown stands for itself."""

    def __missing__(self, key: str) -> object:
        return _Name(f"`{key}`")


def public_facts(config: RunConfig) -> str:
    """The `public` line of a privacy statement under this configuration."""
    privacy = config.privacy
    sizes = " (row counts are private: each client releases its own once, with noise)"
    if privacy.client_sizes == "public":
        sizes = ", and the clients' row counts"
    elif privacy.unit == "client":
        sizes = " (row counts are private: released with noise, once)"
    return f"schema with bounds and bins, workload, configuration, who takes part in which round{sizes}"


def of_clients(filled: PrivacyStatement, unit: Unit, config: RunConfig) -> PrivacyStatement:
    """The statement of a run that protects a whole client; c stands for what is not found yet."""
    privacy, c = config.privacy, f"{unit.rows:,}" if unit.caps else "c"
    cost = f"a client pays {c}^2 times what is said here for one row: {filled.cost}"
    if privacy.rows_per_client != AUTO:
        return replace(filled, unit=unit.text, cost=cost)
    return replace(
        filled,
        unit=unit.text,
        server_sees=f"first, noisy counts of clients by how many rows they have; {filled.server_sees}",
        client_sees=f"those counts, and how many of its rows take part; {filled.client_sees}",
        cost=f"finding how many rows of a client take part, at most {privacy.largest_cap:,}: once 1/(2 sigma^2), of a "
        f"client, {privacy.cap_share:g} of rho; of the rest {cost}",
    )
