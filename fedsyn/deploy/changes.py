"""A holder's new keys, a holder who is out, a new certificate.

federation.yaml is changed first, then the SuperLink; then people hear of it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from fedsyn.deploy.authority import new_link
from fedsyn.deploy.federation import FederationFile, HolderEntry, Place
from fedsyn.deploy.link import follows
from fedsyn.errors import ConfigError
from fedsyn.node.keys import load_card, roster_text, write_text
from fedsyn.parties.keys import Credentials


@dataclass(frozen=True)
class Change:
    """What a command has changed.

    Attributes:
        holder: as it stands now.
        federation: as it stands now.
        followed: whether the running SuperLink has followed; None: none runs here, and its next start will.
    """

    holder: HolderEntry
    federation: FederationFile
    followed: bool | None


def rotate_keys(place: Place, name: str, card_file: Path) -> Change:
    """Takes a holder's new public keys.

    Raises:
        ConfigError: no such holder, a revoked one, or no card of new keys of this holder.
    """
    card = load_card(card_file)
    with place.changing() as federation:
        old = federation.holder(name)
        if card.name != name:
            raise ConfigError(f"{card_file} is the card of '{card.name}', not of '{name}'")
        if old.revoked is not None:
            raise ConfigError(f"{name} was revoked on {old.revoked}, for good; a new holder needs a name of its own")
        if card.node == old.node:
            raise ConfigError(
                f"{card_file}: that is the node key that {name} has already; fedsyn node new-keys makes one"
            )
        if (card.identity is None) != (old.identity is None):
            raise ConfigError(
                f"{card_file}: identity: {'missing' if card.identity is None else 'this federation has none'}"
            )
        new = old.model_copy(update={"node": card.node, "identity": card.identity})
        return _changed(place, federation, new)


def revoke(place: Place, name: str, now: datetime.datetime | None = None) -> Change:
    """Takes a holder out, for good; ConfigError if there is no such holder, or it is out already."""
    with place.changing() as federation:
        old = federation.holder(name)
        if old.revoked is not None:
            raise ConfigError(f"{name} was revoked already, on {old.revoked}")
        when = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y-%m-%d %H:%M:%SZ")
        return _changed(place, federation, old.model_copy(update={"revoked": when}))


def renew_link(place: Place) -> FederationFile:
    """A new key and certificate for the SuperLink, from the same authority: nobody has to hear of it.

    Raises:
        ConfigError: the authority's key is not here, or the federation has no TLS.
    """
    with place.changing() as federation:
        if federation.superlink.insecure:
            raise ConfigError("--link: this federation is insecure by its owner's wish, it has no certificate")
        try:
            authority = Credentials((place.operator / "ca.key").read_text("utf-8"), place.ca.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"--link: the authority's key is needed: {error.filename}: {error.strerror}") from None
        made = new_link(authority, federation.name, federation.superlink.hosts)
        write_text(place.operator / "link.key", made.key, 0o600)
        write_text(place.operator / "link.crt", made.certificate)
        return federation


def _changed(place: Place, federation: FederationFile, holder: HolderEntry) -> Change:
    """Writes the change down, before anybody hears of it, and has a running SuperLink follow."""
    changed = federation.replaced(holder)
    place.save(changed)
    if changed.roster:
        write_text(place.operator / "roster.yaml", roster_text(changed.roster))
    for entry in changed.present:
        roster = place.handed_out / entry.name / "roster.yaml"
        if roster.is_file():
            write_text(roster, roster_text(changed.roster))
    return Change(holder, changed, follows(place, changed))
