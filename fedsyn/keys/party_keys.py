"""Keys of a party and of an operator.

They are made once, replaced by `rotate` alone, and readable by their owner alone.

A party's folder holds `tls.key` and `certificate.pem`, by which others know it; `seal.key`, with which it opens what
clients seal to it; and `card.yaml`, the public half of both, for everybody else. An operator's folder holds the first
two.

A rotation writes all new files beside the old ones first, and then puts them in their places, the card last: one that
was interrupted is made anew by the next one, with other keys. Deals that were sealed to the old key and recorded on
their way can then be opened by nobody, also by an attacker who takes the machine. The old card is kept, as
`card-N.yaml`: it is public, and says who the party was in its ledger's past. Nobody else learns of it by itself: until
the others have the new card they refuse the party, and from then on they refuse the old key.
"""

from __future__ import annotations

from pathlib import Path

from fedsyn import yamlio
from fedsyn.config import load_options, parse_options
from fedsyn.crypto.primitives import KeyPair
from fedsyn.errors import ConfigError
from fedsyn.files import PRIVATE, PUBLIC, is_open_to_others, replace_all, sync_folder, write_new
from fedsyn.keys.certificates import Credentials, is_certificate, name_of, new_pinned, split_address
from fedsyn.settings import PartyCard
from fedsyn.table.data.sealed import key_of

TLS_KEY, CERTIFICATE, SEAL_KEY, CARD = "tls.key", "certificate.pem", "seal.key", "card.yaml"


def new_party(folder: Path, name: str, address: str) -> PartyCard:
    """Makes a party's folder, and returns its card.

    Raises:
        ConfigError: if one of the files exists, or the folder cannot be written.
    """
    card, files = _made(name, address)
    _write(folder, files)
    return card


def new_operator(folder: Path, name: str) -> None:
    """Makes an operator's folder, with its key.

    Parties know by that key the server that gives orders.
    """
    _write(folder, _files(new_pinned(name, "operator")))


def load_credentials(folder: Path) -> Credentials:
    """Reads the TLS key and certificate of a folder.

    Raises:
        ConfigError: if they are missing, readable by others, or not a pair.
    """
    credentials = Credentials(_read_secret(folder / TLS_KEY), _read(folder / CERTIFICATE))
    if not credentials.is_pair:
        raise ConfigError(f"{folder}: {TLS_KEY} and {CERTIFICATE} are not what 'fedsyn party keygen' wrote")
    return credentials


def load_party(folder: Path) -> tuple[PartyCard, Credentials, KeyPair]:
    """Reads everything of a party's folder.

    Raises ConfigError if its files do not belong together.
    """
    card, credentials = _card_in(folder), load_credentials(folder)
    try:
        pair: KeyPair | None = KeyPair(key_of(_read_secret(folder / SEAL_KEY)))
    except ValueError:
        pair = None
    if pair is None or card.key != pair.public.hex() or card.certificate.strip() != credentials.certificate.strip():
        raise ConfigError(f"{folder}: {CARD} is not the card of {SEAL_KEY} and {CERTIFICATE}")
    return card, credentials, pair


def certificate_of(path: Path) -> str:
    """Reads an operator's certificate, PEM.

    Raises ConfigError if the file is not one.
    """
    if not path.is_file():
        raise ConfigError(
            f"operators: no such file: {path}; it is the {CERTIFICATE} that the operator gives to the parties, and its "
            "name is relative to this party's file"
        )
    text = _read(path)
    if not is_certificate(text):
        raise ConfigError(f"{path}: expected a certificate, the operator's {CERTIFICATE}")
    return text


# Rotation -------------------------------------------------------------------------------------------------------------


def rotate_party(folder: Path, address: str | None = None) -> tuple[PartyCard, PartyCard]:
    """Replaces a party's keys, under the same name.

    Returns the old card and the new one.

    Args:
        folder: made by `fedsyn party keygen`.
        address: a new HOST:PORT; None keeps the old one.

    Raises:
        ConfigError: if it is not a party's folder, or cannot be written; the old keys are still there then.
    """
    old, text, number = _card_in(folder), _read(folder / CARD), 1
    while (backup := folder / f"card-{number}.yaml").exists() and _read(backup) != text:
        number += 1
    card, files = _made(old.name, address or old.address)
    _replace(folder, {backup.name: text, **files})
    return old, card


def rotate_operator(folder: Path) -> None:
    """Replace an operator's key and certificate.

    Raises:
        ConfigError: if it is not an operator's folder, or cannot be written; the old key is still there then.
    """
    _replace(folder, _files(new_pinned(name_of(_certificate_in(folder)), "operator")))


# Files ----------------------------------------------------------------------------------------------------------------


def _made(name: str, address: str) -> tuple[PartyCard, dict[str, str]]:
    """Makes a party's keys: its card and its files.

    The card is the last of the files.
    """
    host, _ = split_address(address)
    credentials, pair = new_pinned(name, host), KeyPair()
    options = {"name": name, "address": address, "key": pair.public.hex(), "certificate": credentials.certificate}
    card: PartyCard = parse_options(PartyCard, options, "party keygen")
    public = yamlio.dumps(card.model_dump())
    return card, {SEAL_KEY: pair.secret.hex() + "\n", **_files(credentials), CARD: public}


def _files(credentials: Credentials) -> dict[str, str]:
    return {TLS_KEY: credentials.key, CERTIFICATE: credentials.certificate}


def _mode_of(name: str) -> int:
    return PRIVATE if name.endswith(".key") else PUBLIC


def _write(folder: Path, files: dict[str, str]) -> None:
    """Writes new files, keys for their owner alone.

    Writes nothing if one of them exists. They are on the disk at the end.
    """
    for name in files:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} exists: a key is never overwritten; choose another folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in files.items():
            write_new(folder / name, text, _mode_of(name))
        sync_folder(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from None


def _replace(folder: Path, files: dict[str, str]) -> None:
    """Replaces files, all of them or none."""
    try:
        replace_all({folder / name: (text, _mode_of(name)) for name, text in files.items()})
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}; type the same command again") from None


def _card_in(folder: Path) -> PartyCard:
    if not (folder / CARD).is_file():
        raise ConfigError(
            f"{folder} is not the folder of a party's keys: it has no {CARD}; make one: fedsyn party keygen {folder} "
            "--name NAME --address HOST:PORT"
        )
    return load_options(PartyCard, folder / CARD)


def _certificate_in(folder: Path) -> str:
    text = _read(folder / CERTIFICATE)
    if not is_certificate(text):
        raise ConfigError(f"{folder}: {TLS_KEY} and {CERTIFICATE} are not what 'fedsyn party keygen' wrote")
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}; make it: fedsyn party keygen {path.parent} ...") from None
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"cannot read {path}") from None


def _read_secret(path: Path) -> str:
    text = _read(path)
    if is_open_to_others(path):
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}")
    return text
