"""`fedsyn deploy init`: a folder for each person of a federation.

These people never met. Each folder has exactly that person's files and one command.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsyn.capabilities import Capabilities
from fedsyn.config import RunConfig
from fedsyn.crypto.primitives import Identity
from fedsyn.deploy.federation import (
    FILE,
    FederationFile,
    HolderEntry,
    OperatorFolder,
    PartyEntry,
    SuperLinkNode,
    joined,
)
from fedsyn.deploy.plan import INSECURE, SEEN, Approval, FederationPlan, yaml_text
from fedsyn.errors import ConfigError
from fedsyn.files import write_new, write_text
from fedsyn.keys.certificates import fingerprint, new_authority, new_link
from fedsyn.keys.holder_keys import HolderCard, new_keys, roster_text
from fedsyn.keys.party_keys import CARD, CERTIFICATE, new_operator, new_party
from fedsyn.ledgers.node_ledger import init_ledger
from fedsyn.loading import load_config
from fedsyn.output import filled
from fedsyn.settings import PartyCard
from fedsyn.table.schema import Schema
from fedsyn.table.schema.review import without_remarks


@dataclass(frozen=True)
class NewFederation:
    """Contents of a new federation's folder.

    Attributes:
        federation: its description.
        place: the operator's folder.
        authority: fingerprint of the CA's certificate; None without TLS.
    """

    federation: FederationFile
    place: OperatorFolder
    authority: str | None


def init(plan: FederationPlan, out: Path) -> NewFederation:
    """Writes a federation's folder, all of it or nothing.

    Raises:
        ConfigError: the plan cannot be built, or there is something at `out` already.
    """
    plan.check()
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out: {out} exists already, and keys are never overwritten; name another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None
    try:
        federation, authority = _write(plan, staging)
        if out.exists():
            out.rmdir()
        staging.rename(out)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return NewFederation(federation, OperatorFolder(out / "operator"), authority)


def _write(plan: FederationPlan, root: Path) -> tuple[FederationFile, str | None]:
    operator = root / "operator"
    operator.mkdir(mode=0o700)
    if plan.wheel is not None:
        shutil.copyfile(plan.wheel, operator / plan.wheel.name)
    # The operator's keys, the parties' cards, the run and its schema.
    certificate = None if plan.insecure else _authority(plan, operator)
    signer = Identity.generate()
    write_new(operator / "operator.key", signer.to_bytes().hex() + "\n")
    cards = _parties(plan, root, operator)
    write_text(operator / "run.yaml", plan.run_config())
    if plan.schema is not None:
        write_text(operator / "schema.yaml", without_remarks(Path(plan.schema).read_text(encoding="utf-8")))
    config = load_config(operator / "run.yaml")
    # The holders' keys, and federation.yaml with their public halves.
    keys = {name: new_keys(name, identity=plan.signed) for name in plan.holders}
    federation = FederationFile(
        name=plan.name,
        superlink=SuperLinkNode(
            hosts=plan.hosts,
            port=plan.port,
            listen=plan.listen,
            insecure=plan.insecure,
            metrics=f"127.0.0.1:{plan.port + 2}",
        ),
        operator=signer.public.hex(),
        holders=tuple(_entry(number, keys[name].card) for number, name in enumerate(plan.holders)),
        parties=tuple(PartyEntry(name=card.name, fingerprint=card.fingerprint) for card in cards),
    )
    write_text(operator / FILE, federation.dumps())
    # A folder for each holder; its private keys go into no other.
    terms = Terms(config, plan.approval, plan.lifetime)
    for entry in federation.holders:
        holder_keys = keys[entry.name]
        folder = root / "holders" / entry.name
        holder_folder(OperatorFolder(operator), federation, entry, terms, folder)
        write_new(folder / "node.key", holder_keys.key)
        if holder_keys.identity is not None:
            write_new(folder / "identity.key", holder_keys.identity)
    (root / "holders").chmod(0o700)
    for party in federation.parties:
        _shared(operator, root / "parties" / party.name)
    seen = " ".join(SEEN.split())
    write_text(operator / "README.md", _readme(operator, plan.capabilities, "operator.md", plan=plan, seen=seen))
    return federation, None if certificate is None else fingerprint(certificate)


def _entry(number: int, card: HolderCard) -> HolderEntry:
    return HolderEntry(name=card.name, partition=number, node=card.node, identity=card.identity)


def _authority(plan: FederationPlan, operator: Path) -> str:
    """Writes the CA and the SuperLink's certificate.

    Returns the CA's certificate, PEM.
    """
    authority = new_authority(plan.name)
    link = new_link(authority, plan.name, plan.hosts)
    for name, credentials in (("ca", authority), ("link", link)):
        write_new(operator / f"{name}.key", credentials.key)
        write_text(operator / f"{name}.crt", credentials.certificate)
    return authority.certificate


def _parties(plan: FederationPlan, root: Path, operator: Path) -> list[PartyCard]:
    """Writes the parties' folders, and their cards into the operator's."""
    if plan.capabilities.parties is None:
        return []
    new_operator(operator / "party", plan.name)
    cards = [new_party(root / "parties" / name, name, address) for name, address in plan.parties]
    (root / "parties").chmod(0o700)
    (operator / "parties").mkdir(mode=0o700)
    for card in cards:
        folder = root / "parties" / card.name
        shutil.copyfile(folder / CARD, operator / "parties" / f"{card.name}.yaml")
        shutil.copyfile(operator / "party" / CERTIFICATE, folder / "operator.pem")
        others = [f"parties/{other.name}.yaml" for other in cards if other is not card]
        listen = f"0.0.0.0:{card.address.rpartition(':')[2]}"
        text = yaml_text("party.yaml", plan=plan, others=others, listen=listen)
        write_text(folder / "party.yaml", text)
        readme = _readme(operator, plan.capabilities, "party.md", plan=plan, card=card, cards=cards)
        write_text(folder / "README.md", readme)
    return cards


@dataclass(frozen=True)
class Terms:
    """Contents of a holder's first policy.

    Attributes:
        config: of the run that it allows.
        approval: who approves a run.
        lifetime: epsilon of the table's life, at the run's delta.
    """

    config: RunConfig
    approval: Approval
    lifetime: float

    @property
    def signed(self) -> bool:
        """Returns whether holders sign.

        They do in secure sums under the malicious threat model.
        """
        return self.config.aggregation.signs_masks

    @property
    def pinned(self) -> bool:
        """Returns whether a policy names the run's hash.

        Without a person who approves it, nothing else fixes the parties.
        """
        parties = self.config.aggregation.capabilities.parties is not None
        return self.approval == "by hash" or (parties and self.approval != "by person")


def holder_folder(
    place: OperatorFolder, federation: FederationFile, holder: HolderEntry, terms: Terms, folder: Path
) -> None:
    """Writes a holder's folder, without a key.

    It gets node.yaml, a roster, an empty ledger and the operator's public files.
    """
    folder.mkdir(mode=0o700, parents=True)
    if terms.signed:
        write_text(folder / "roster.yaml", roster_text(federation.roster))
    ca = None
    if not federation.superlink.insecure:
        ca = fingerprint(place.ca.read_text(encoding="utf-8"))
        shutil.copyfile(place.ca, folder / "ca.crt")
    _shared(place.operator, folder)
    (folder / "state").mkdir(mode=0o700)
    init_ledger(folder / "state" / "ledger.jsonl")
    files = _tables(place.operator / "schema.yaml")
    write_text(folder / "node.yaml", node_text(federation, holder, terms, files))
    capabilities = terms.config.aggregation.capabilities
    facts = {"federation": federation, "authority": ca, "files": files}
    write_text(folder / "README.md", _readme(place.operator, capabilities, "holder.md", holder=holder, **facts))


def _shared(operator: Path, folder: Path) -> None:
    """Writes the public files that everybody gets into a folder.

    They are the run, its schema, the parties' cards and the wheel.
    """
    for file in (operator / "run.yaml", operator / "schema.yaml", *operator.glob("fedsyn-*.whl")):
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    if (operator / "parties").is_dir():
        shutil.copytree(operator / "parties", folder / "parties")


def _tables(schema: Path) -> list[str]:
    """Returns the names of a holder's files.

    That of the persons stands first, where persons and rows are apart.
    """
    persons = Schema.load(schema).persons if schema.is_file() else None
    return ["rows.csv"] if persons is None or persons.tables is None else [f"{name}.csv" for name in persons.tables]


def node_text(federation: FederationFile, holder: HolderEntry, terms: Terms, files: Sequence[str]) -> str:
    """Returns the text of a holder's node.yaml.

    Its policy allows this run and nothing more.
    """
    pinned = [terms.config.sha256] if terms.pinned else None
    # As large as it comes for any number of holders that 'deploy add' makes of these; minimum_cohort binds, too.
    dropout = max(terms.config.aggregation.dropout, 0.25)
    facts = {"federation": federation, "holder": holder, "terms": terms, "files": files}
    return yaml_text("node.yaml", pinned=pinned, dropout=dropout, **facts)


def _readme(operator: Path, protocol: Capabilities, template: str, **values: object) -> str:
    """Returns a folder's README.md.

    install.md says which wheel everybody installs, and the extra that it needs.
    """
    wheel, digest = wheel_of(operator) or (None, None)
    schema = (operator / "schema.yaml").is_file()
    shared = {"wheel": wheel, "digest": digest, "extra": protocol.extra, "schema": schema, "joined": joined}
    return filled("deploy", template, insecure=" ".join(INSECURE.split()), **shared, **values)


def wheel_of(operator: Path) -> tuple[str, str] | None:
    """Returns name and SHA-256 of the wheel that everybody installs.

    Returns None if there is no wheel.
    """
    wheels = sorted(operator.glob("fedsyn-*.whl"))
    return (wheels[0].name, digest_of(wheels[0])) if wheels else None


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
