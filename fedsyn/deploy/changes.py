"""Changes of a federation.

A holder joins or leaves; a holder's or party's keys, or the SuperLink's certificate, are replaced.

federation.yaml is changed first, then the SuperLink; then people hear of it.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fedsyn.config import RunConfig, load_options
from fedsyn.deploy.federation import FederationFile, HolderEntry, OperatorFolder, PartyEntry
from fedsyn.deploy.init import Terms, holder_folder
from fedsyn.deploy.plan import FederationPlan, lifetime
from fedsyn.deploy.superlink import follows
from fedsyn.errors import ConfigError
from fedsyn.files import PRIVATE, PUBLIC, replace_all, write_text
from fedsyn.keys.certificates import Credentials, new_link
from fedsyn.keys.holder_keys import HolderCard, roster_text
from fedsyn.loading import load_config
from fedsyn.registry import contract_class
from fedsyn.settings import PartyCard

Card = TypeVar("Card", HolderCard, PartyCard)


@dataclass(frozen=True)
class HolderChange:
    """Result of a command that changes a holder.

    Attributes:
        holder: as it stands now.
        federation: as it stands now.
        followed: whether the running SuperLink has followed; None: none runs here, and its next start will.
        run: hash of run.yaml where that has changed with it; None: it has not.
        problem: why run.yaml could not follow; None: it could, or need not.
    """

    holder: HolderEntry
    federation: FederationFile
    followed: bool | None
    run: str | None = None
    problem: str | None = None


def rotate_keys(place: OperatorFolder, name: str, card_file: Path) -> HolderChange:
    """Takes a holder's new public keys.

    Raises:
        ConfigError: no such holder, a revoked one, or no card of new keys of this holder.
    """
    with place.changing() as federation:
        old, card = federation.holder(name), _card_of(HolderCard, card_file, name)
        if old.revoked is not None:
            raise ConfigError(f"{name} was removed on {old.revoked}, for good; a new holder needs a name of its own")
        if card.node == old.node:
            raise ConfigError(
                f"{card_file}: that is the node key that {name} has already; fedsyn node new-keys makes one"
            )
        if (card.identity is None) != (old.identity is None):
            raise ConfigError(
                f"{card_file}: identity: {'missing' if card.identity is None else 'this federation has none'}"
            )
        new = old.model_copy(update={"node": card.node, "identity": card.identity})
        return _changed(place, federation.replaced(new), new)


def add(place: OperatorFolder, name: str, card_file: Path, runs: int = 2) -> HolderChange:
    """Takes in a holder who has made its own keys.

    Its folder, its line in the others' rosters and `clients` of run.yaml are written.

    Args:
        place: the operator's folder.
        name: of the new holder.
        card_file: that `fedsyn node new-keys --name NAME` wrote at the new holder's.
        runs: how many runs its limit for life has room for.

    Raises:
        ConfigError: the name or a key is taken, the card is another's, or run.yaml does not say how many take part.
    """
    with place.changing() as federation:
        if any(old.name.lower() == name.lower() for old in federation.holders):
            raise ConfigError(f"there is, or was, a holder '{name}' already; a new one needs a name of its own")
        card = _card_of(HolderCard, card_file, name)
        # The card must fit the federation: signing keys for all holders or for none.
        signed = any(old.identity is not None for old in federation.holders)
        if signed != (card.identity is not None):
            wants = "with an identity" if signed else "with --no-identity: this federation has none"
            raise ConfigError(f"{card_file}: expected a card {wants}; fedsyn node new-keys --name {name} makes one")
        folder = place.handed_out / name
        if folder.exists():
            raise ConfigError(f"{folder} exists already: delete it, or move it away")
        number = 1 + max(old.partition for old in federation.holders)
        # run.yaml is changed before the SuperLink is told, the folder to hand out is written last.
        entry = HolderEntry(name=name, partition=number, node=card.node, identity=card.identity)
        changed = federation.added(entry)
        config = _with_holders(place, federation, changed)
        change = _changed(place, changed, entry)
        room = lifetime(config.privacy.budget, contract_class(config.mechanism.name).accountant, runs)
        place.handed_out.mkdir(mode=0o700, exist_ok=True)
        holder_folder(place, changed, entry, Terms(config, "by person", room), folder)
        return replace(change, run=config.sha256)


def remove(place: OperatorFolder, name: str, now: datetime.datetime | None = None) -> HolderChange:
    """Removes a holder for good.

    Raises ConfigError if it is unknown, or removed already.
    """
    with place.changing() as federation:
        old = federation.holder(name)
        if old.revoked is not None:
            raise ConfigError(f"{name} was removed already, on {old.revoked}")
        when = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y-%m-%d %H:%M:%SZ")
        out = old.model_copy(update={"revoked": when})
        changed = federation.replaced(out)
        change = _changed(place, changed, out)  # first of all: its keys may have been stolen
        try:
            return replace(change, run=_with_holders(place, federation, changed).sha256)
        except ConfigError as error:
            return replace(change, problem=str(error))


def rotate_party(place: OperatorFolder, name: str, card_file: Path) -> str:
    """Takes a party's new card.

    The card is replaced here and in the folders that were not sent yet, and so is the hash that they pin.

    Returns:
        The hash of run.yaml, which names the party's card.

    Raises:
        ConfigError: no such party, or no card of new keys of this party.
    """
    card = _card_of(PartyCard, card_file, name)
    with place.changing() as federation:
        stored = place.operator / "parties" / f"{name}.yaml"
        if load_options(PartyCard, stored) == card:
            raise ConfigError(
                f"{card_file}: that is the card that {name} has already; fedsyn party rotate makes new keys"
            )
        before = load_config(place.operator / federation.run).sha256
        text = card_file.read_text(encoding="utf-8")
        write_text(stored, text)
        changed = federation.with_party(PartyEntry(name=name, fingerprint=card.fingerprint))
        place.save(changed)
        for folder in place.still_here:
            if (folder / "parties").is_dir():
                write_text(folder / "parties" / f"{name}.yaml", text)
        return _pinned_anew(place, changed, before)


def renew_link(place: OperatorFolder) -> FederationFile:
    """Makes a new key and certificate for the SuperLink.

    They come from the same authority, so nobody has to hear of it.

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
        link = new_link(authority, federation.name, federation.superlink.hosts)
        key, certificate = place.operator / "link.key", place.operator / "link.crt"
        replace_all({key: (link.key, PRIVATE), certificate: (link.certificate, PUBLIC)})
        return federation


def _card_of(kind: type[Card], file: Path, name: str) -> Card:
    card = load_options(kind, file)
    if card.name != name:
        raise ConfigError(f"{file} is the card of '{card.name}', not of '{name}'")
    return card


def _changed(place: OperatorFolder, changed: FederationFile, holder: HolderEntry) -> HolderChange:
    """Writes the change down, then has a running SuperLink follow.

    It is written before anybody hears of it.
    """
    place.save(changed)
    if changed.roster:
        write_text(place.operator / "roster.yaml", roster_text(changed.roster))
    for entry in changed.present:
        roster = place.handed_out / entry.name / "roster.yaml"
        if roster.is_file():
            write_text(roster, roster_text(changed.roster))
    return HolderChange(holder, changed, follows(place, changed))


def _with_holders(place: OperatorFolder, before: FederationFile, after: FederationFile) -> RunConfig:
    """Makes run.yaml ask for the present holders.

    Returns the new configuration.

    `clients` follows. What `deploy init` computed from their number is computed again, unless somebody has written
    something else there; only `minimum_cohort` may not be above `clients`.
    """
    path = place.operator / before.run
    now = load_config(path)
    text = path.read_text(encoding="utf-8")
    signed = now.aggregation.signs_masks
    old, new = (_planned(federation, signed) for federation in (before, after))
    # A number that differs from the plan's was written by a person, and stays.
    stands = {"clients": old.numbers["clients"], "minimum_cohort": now.federation.minimum_cohort}
    stands |= {"corrupted": now.aggregation.corrupted, "dropout": now.aggregation.dropout} if signed else {}
    for key, number in new.numbers.items():
        if key != "clients" and stands[key] != old.numbers[key]:
            number = min(stands[key], new.numbers["clients"]) if key == "minimum_cohort" else stands[key]
        text, count = re.subn(rf"^(\s*{key}:\s*)[0-9.]+", rf"\g<1>{number}", text, flags=re.MULTILINE)
        if count != 1 and (key == "clients" or stands[key] != number):
            raise ConfigError(f"{path}: {key}: expected a line of its own with a number; write {key}: {number} there")
    # The new text is checked beside run.yaml before it takes its place.
    tried = path.with_name(f".{path.name}.tried")
    try:
        write_text(tried, text.replace(old.who, new.who))
        config = load_config(tried)
        tried.replace(path)
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(tried), str(path))) from None
    finally:
        tried.unlink(missing_ok=True)
    _pinned_anew(place, before, now.sha256)
    return config


def _planned(federation: FederationFile, signed: bool) -> FederationPlan:
    """Returns the plan of `deploy init` for this many holders."""
    parties = () if signed else (("party", "localhost:1"),)
    return FederationPlan(federation.name, tuple(entry.name for entry in federation.present), parties)


def _pinned_anew(place: OperatorFolder, federation: FederationFile, before: str) -> str:
    """Gives unsent folders today's run.yaml, and its new hash.

    Only folders that pin the earlier hash get the new one. Returns the new hash.
    """
    path = place.operator / federation.run
    now, text = load_config(path).sha256, path.read_text(encoding="utf-8")
    for folder in place.still_here:
        if (folder / "run.yaml").is_file():
            write_text(folder / "run.yaml", text)
        for policy in (folder / "node.yaml", folder / "party.yaml"):
            if policy.is_file() and before in (pinned := policy.read_text(encoding="utf-8")):
                write_text(policy, pinned.replace(before, now))
    return now
