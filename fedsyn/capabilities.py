"""Capabilities of each aggregation protocol, as data.

Every other file asks the object instead of comparing names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedsyn.errors import ConfigError

ProtocolName = Literal["plain", "secagg", "mpc", "fhe"]
Noise = Literal["server", "local", "distributed"]
Threat = Literal["semi_honest", "malicious"]


@dataclass(frozen=True)
class RequiredParties:
    """Machines that a protocol needs beside the server and the holders.

    Attributes:
        count: how many.
        role: `role` in their own files.
        key: key of a configuration's `aggregation` that has their cards.
        words: how a sentence names them.
    """

    count: int
    role: str
    key: str
    words: str


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of one aggregation protocol.

    Attributes:
        name: value of `aggregation.protocol`.
        sums: whether it forms sums over clients.
        store: whether it keeps a store, from which a mechanism chooses.
        noises: allowed values of `aggregation.noise`; the first stands where a configuration has none.
        threats: allowed values of `aggregation.threat`.
        scores: norms that its store computes; empty without a store.
        mixes: whether a run with a store may form sums, too.
        masks: whether clients mask their vectors for each other, so that `corrupted` and `dropout` bound its masks.
        deals_noise: whether the clients deal the shares of a store's noise; else a store's parties draw them.
        pins_clients: whether a party knows the clients by `aggregation.roster`.
        resumable: whether a run without a store can be resumed: its server alone has to remember it.
        units: values of `privacy.unit` of which more than one row may take part, and 'row'.
        finds_bins: whether private bounds, bins and categories can be found by its sums.
        splits_columns: whether holders may have different columns of the same rows.
        parties: machines beside the server and the holders.
        extra: of the package, which must be installed; empty: none.
        only_noise: why other noises are refused.
        only_threat: why other threats are refused, as a relative clause.
    """

    name: ProtocolName
    sums: bool
    store: bool
    noises: tuple[Noise, ...]
    threats: tuple[Threat, ...]
    scores: tuple[str, ...] = ()
    mixes: bool = False
    masks: bool = False
    deals_noise: bool = False
    pins_clients: bool = False
    resumable: bool = False
    units: tuple[str, ...] = ("row",)
    finds_bins: bool = False
    splits_columns: bool = False
    parties: RequiredParties | None = None
    extra: str = ""
    only_noise: str = ""
    only_threat: str = ""

    @property
    def hides(self) -> bool:
        """Returns whether no server reads a single client's numbers."""
        return self.masks or self.parties is not None

    def require(self, noise: str, threat: str, *, store: bool) -> None:
        """Raises ConfigError for a noise or threat that this protocol lacks.

        Args:
            noise: `aggregation.noise`.
            threat: `aggregation.threat`.
            store: whether the mechanism keeps a store.
        """
        if noise not in self.noises:
            raise ConfigError(
                f"aggregation: protocol: {self.name} cannot go with noise: {noise}: {self.only_noise}; allowed: "
                f"{', '.join(self.noises)}"
            )
        if threat not in self.threats:
            able = [one for one in CAPABILITIES.values() if threat in one.threats]
            raise ConfigError(
                f"aggregation: threat: {threat} cannot go with protocol: {self.name}, {self.only_threat}; allowed: "
                f"{', '.join(one.name for one in able if (one.store if store else one.sums))}"
            )


PLAIN = Capabilities(
    "plain",
    sums=True,
    store=True,
    noises=("server", "local", "distributed"),
    threats=("semi_honest",),
    scores=("l1", "squared_l2"),
    mixes=True,
    resumable=True,
    units=("row", "person", "client"),
    finds_bins=True,
    only_threat="which trusts the server with what it is sent",
)
SECAGG = Capabilities(
    "secagg",
    sums=True,
    store=False,
    noises=("server", "local", "distributed"),
    threats=("semi_honest", "malicious"),
    masks=True,
    resumable=True,
    units=("row", "person", "client"),
    finds_bins=True,
)
MPC = Capabilities(
    "mpc",
    sums=False,
    store=True,
    noises=("distributed",),
    threats=("semi_honest", "malicious"),
    scores=("l1", "squared_l2"),
    parties=RequiredParties(3, "compute", "parties", "the three parties"),
    only_noise="nobody could add it without seeing the exact numbers",
)
FHE = Capabilities(
    "fhe",
    sums=True,
    store=True,
    noises=("distributed",),
    threats=("semi_honest",),
    scores=("squared_l2",),
    deals_noise=True,
    pins_clients=True,
    splits_columns=True,
    parties=RequiredParties(1, "crypto", "crypto", "the crypto party"),
    extra="fhe",
    only_noise="the crypto party would see exact totals, or the server would know the noise of what it opens",
    only_threat="whose crypto party checks a server's sums in any case, and whose server is trusted with scores",
)
CAPABILITIES: Mapping[str, Capabilities] = {one.name: one for one in (PLAIN, SECAGG, MPC, FHE)}
