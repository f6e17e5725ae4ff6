"""`federation.yaml`, and the folder that it stands in.

It is the one description of a federation on real machines.

The operator's folder holds it; `fedsyn deploy init` writes it, `add`, `rotate-keys` and `remove` change it, and the
SuperLink is made to agree with it by `fedsyn deploy link`, also after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from fedsyn import yamlio
from fedsyn.config import load_options, parse_options
from fedsyn.errors import ConfigError, nearest
from fedsyn.files import locked, write_text
from fedsyn.keys.holder_keys import NAME, HolderCard
from fedsyn.settings import Node

FILE, STATE, OPERATOR = "federation.yaml", "state", "operator"
_HEAD = "# Written by 'fedsyn deploy'. Who takes part, with public keys only; change it with 'fedsyn deploy ...'.\n"


class SuperLinkNode(Node):
    """The SuperLink.

    Attributes:
        hosts: names and IP addresses by which nodes reach it; they stand in its certificate.
        port: of Flower's API, for nodes.
        listen: address to listen on.
        insecure: no TLS and no authentication of nodes: for trials only.
        metrics: HOST:PORT of /healthz, /readyz and /metrics; null: none.
    """

    hosts: tuple[str, ...] = Field(min_length=1)
    port: int = Field(default=8000, ge=1, le=65535)
    listen: str = "0.0.0.0"
    insecure: bool = False
    metrics: str | None = None

    @property
    def address(self) -> str:
        """HOST:PORT by which nodes reach it."""
        return joined(self.hosts[0], self.port)

    @property
    def local(self) -> str:
        """HOST:PORT by which this machine reaches it."""
        known = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return joined(known.get(self.listen, self.listen), self.port)


class HolderEntry(Node):
    """A data holder, by its public keys.

    Attributes:
        name: of the holder; the name of its folder, too.
        partition: its number, for good: a revoked holder's is not given to another one.
        node: public node key.
        identity: public signing key, 64 hex digits; null: sums need none.
        revoked: when it was revoked (UTC); null: it takes part.
    """

    name: str = Field(pattern=NAME)
    partition: int = Field(ge=0)
    node: str
    identity: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    revoked: str | None = None

    @property
    def card(self) -> HolderCard:
        return HolderCard(name=self.name, node=self.node, identity=self.identity)


class PartyEntry(Node):
    """A computing or crypto party.

    Attributes:
        name: of the party; its card stands in `parties/NAME.yaml`.
        fingerprint: of its card.
    """

    name: str = Field(pattern=NAME)
    fingerprint: str


class FederationFile(Node):
    """`federation.yaml`.

    Attributes:
        format: version of this file's format.
        name: of the federation.
        superlink: see there.
        operator: public half of the key that signs orders, 64 hex digits.
        holders: in the order of their partition ids.
        parties: three computing parties, one crypto party, or none.
        run: the run's configuration, relative to this file.
    """

    format: Literal[1] = 1
    name: str = Field(pattern=NAME)
    superlink: SuperLinkNode
    operator: str = Field(pattern="^[0-9a-f]{64}$")
    holders: tuple[HolderEntry, ...] = Field(min_length=1)
    parties: tuple[PartyEntry, ...] = ()
    run: str = "run.yaml"

    @field_validator("holders")
    @classmethod
    def _are_different(cls, holders: tuple[HolderEntry, ...]) -> tuple[HolderEntry, ...]:
        for what in ("name", "partition", "node", "identity"):
            values = [getattr(holder, what) for holder in holders if getattr(holder, what) is not None]
            if len(set(values)) < len(values):
                raise ValueError(f"two holders have the same {what}")
        return holders

    def dumps(self) -> str:
        """Returns the text of federation.yaml."""
        return _HEAD + yamlio.dumps(self.model_dump(mode="json"))

    @property
    def present(self) -> tuple[HolderEntry, ...]:
        """The holders that were not revoked."""
        return tuple(holder for holder in self.holders if holder.revoked is None)

    @property
    def roster(self) -> dict[int, str]:
        """Public signing keys of those who take part, by partition id."""
        return {holder.partition: holder.identity for holder in self.present if holder.identity is not None}

    def holder(self, name: str) -> HolderEntry:
        """Returns a holder by name. Raises ConfigError if the name is unknown."""
        for holder in self.holders:
            if holder.name == name:
                return holder
        names = [holder.name for holder in self.holders]
        raise ConfigError(f"no holder '{name}'{nearest(name, names)}; there are: {', '.join(names)}")

    def replaced(self, holder: HolderEntry) -> FederationFile:
        """Returns a copy with this holder replaced."""
        return self._with(holders=[holder if old.name == holder.name else old for old in self.holders])

    def added(self, holder: HolderEntry) -> FederationFile:
        """Returns a copy with one more holder.

        Raises ConfigError if a name, number or key is taken.
        """
        return self._with(holders=[*self.holders, holder])

    def with_party(self, party: PartyEntry) -> FederationFile:
        """Returns a copy with this party replaced."""
        return self._with(parties=[party if old.name == party.name else old for old in self.parties])

    def _with(self, **entries: Sequence[Node]) -> FederationFile:
        changed = {key: [entry.model_dump() for entry in listed] for key, listed in entries.items()}
        document: FederationFile = parse_options(FederationFile, self.model_dump() | changed, FILE)
        return document


@dataclass(frozen=True)
class OperatorFolder:
    """The operator's folder.

    Attributes:
        operator: folder of federation.yaml.
    """

    operator: Path

    @property
    def file(self) -> Path:
        return self.operator / FILE

    @property
    def state(self) -> Path:
        return self.operator / STATE

    @property
    def flower(self) -> Path:
        """Flower's home (`FLWR_HOME`) for everything that is started here."""
        return self.state / "flwr"

    @property
    def ca(self) -> Path:
        return self.operator / "ca.crt"

    @property
    def signing_key(self) -> Path:
        return self.operator / "operator.key"

    @property
    def handed_out(self) -> Path:
        """Folder of the holders' folders, for the operator to send."""
        return self.operator.parent / "holders"

    @property
    def still_here(self) -> list[Path]:
        """Returns folders of holders and parties that are still here.

        They were written and are not sent, or not deleted here, yet.
        """
        return sorted(path for kind in ("holders", "parties") for path in (self.operator.parent / kind).glob("*"))

    def load(self) -> FederationFile:
        """Reads federation.yaml; a ConfigError names every problem."""
        return load_options(FederationFile, self.file)

    def save(self, federation: FederationFile) -> None:
        write_text(self.file, federation.dumps())

    @contextmanager
    def changing(self) -> Iterator[FederationFile]:
        """Yields the federation, and holds off other commands that change it."""
        self.state.mkdir(mode=0o700, exist_ok=True)
        with locked(self.state / "changes.lock") as alone:
            if not alone:
                raise ConfigError(f"{self.file}: another 'fedsyn deploy' command changes it; try again")
            yield self.load()


def place_of(folder: Path) -> OperatorFolder:
    """Returns the operator's folder, from itself or its parent.

    The parent is the folder that `deploy init` made around it.
    """
    for operator in (folder, folder / OPERATOR):
        if (operator / FILE).is_file():
            return OperatorFolder(operator.resolve())
    what = "no such folder" if not folder.exists() else f"there is no {FILE} in it, nor in {OPERATOR}/"
    raise ConfigError(f"{folder}: {what}; name the folder that 'fedsyn deploy init --out FOLDER' made")


def joined(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
