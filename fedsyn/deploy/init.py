"""`fedsyn deploy init`: a folder for each of the people who never met, with exactly its files and its one command."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsyn import yamlio
from fedsyn.aggregation.secagg.primitives import Identity
from fedsyn.config import RunConfig
from fedsyn.deploy import readmes
from fedsyn.deploy.authority import fingerprint, new_authority, new_link
from fedsyn.deploy.federation import FILE, FederationFile, HolderEntry, LinkNode, PartyEntry, Place, joined
from fedsyn.deploy.plan import Plan
from fedsyn.errors import ConfigError
from fedsyn.loading import load_config
from fedsyn.node.book import init_book
from fedsyn.node.keys import Card, new_keys, roster_text, write_private, write_text
from fedsyn.parties.keys import CARD, CERTIFICATE, new_operator, new_party
from fedsyn.settings import PartyNode


@dataclass(frozen=True)
class Made:
    """What stands in a new federation's folder.

    Attributes:
        federation: its description.
        place: the operator's folder.
        authority: fingerprint of the CA's certificate; None without TLS.
    """

    federation: FederationFile
    place: Place
    authority: str | None


def init(plan: Plan, out: Path) -> Made:
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
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None
    try:
        federation, authority = _write(plan, made)
        if out.exists():
            out.rmdir()
        made.rename(out)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Made(federation, Place(out / "operator"), authority)


def _write(plan: Plan, root: Path) -> tuple[FederationFile, str | None]:
    operator = root / "operator"
    operator.mkdir(mode=0o700)
    certificate = None if plan.insecure else _authority(plan, operator)
    signer = Identity.generate()
    write_private(operator / "operator.key", signer.to_bytes().hex() + "\n")
    cards = _parties(plan, root, operator)
    write_text(operator / "run.yaml", plan.run_config())
    if plan.schema is not None:
        shutil.copyfile(plan.schema, operator / "schema.yaml")
    config = load_config(operator / "run.yaml")
    keys = {name: new_keys(name, identity=plan.signed) for name in plan.holders}
    federation = FederationFile(
        name=plan.name,
        superlink=LinkNode(
            hosts=plan.hosts,
            port=plan.port,
            listen=plan.listen,
            insecure=plan.insecure,
            health=f"127.0.0.1:{plan.port + 1}",
            metrics=f"127.0.0.1:{plan.port + 2}",
        ),
        operator=signer.public.hex(),
        holders=tuple(_entry(number, keys[name].card) for number, name in enumerate(plan.holders)),
        parties=tuple(PartyEntry(name=card.name, fingerprint=card.fingerprint) for card in cards),
    )
    write_text(operator / FILE, federation.dumps())
    ca = None if certificate is None else fingerprint(certificate)
    for number, name in enumerate(plan.holders):
        folder = root / "holders" / name
        folder.mkdir(mode=0o700, parents=True)
        made = keys[name]
        write_private(folder / "node.key", made.key)
        if made.identity is not None:
            write_private(folder / "identity.key", made.identity)
            write_text(folder / "roster.yaml", roster_text(federation.roster))
        if certificate is not None:
            write_text(folder / "ca.crt", certificate)
        if plan.schema is not None:
            shutil.copyfile(plan.schema, folder / "schema.yaml")
        (folder / "state").mkdir(mode=0o700)
        init_book(folder / "state" / "ledger.jsonl")
        write_text(folder / "node.yaml", node_text(plan, federation, number, config))
        write_text(folder / "README.md", _holder_readme(plan, federation, name, ca))
    if (root / "holders").exists():
        (root / "holders").chmod(0o700)
    write_text(operator / "README.md", _operator_readme(plan))
    return federation, ca


def _entry(number: int, card: Card) -> HolderEntry:
    return HolderEntry(name=card.name, partition=number, node=card.node, identity=card.identity)


def _authority(plan: Plan, operator: Path) -> str:
    """The CA and the SuperLink's certificate; the CA's, PEM."""
    authority = new_authority(plan.name)
    link = new_link(authority, plan.name, plan.hosts)
    for name, made in (("ca", authority), ("link", link)):
        write_private(operator / f"{name}.key", made.key)
        write_text(operator / f"{name}.crt", made.certificate)
    return authority.certificate


def _parties(plan: Plan, root: Path, operator: Path) -> list[PartyNode]:
    """The parties' folders, and their cards in the operator's."""
    if not plan.parties:
        return []
    new_operator(operator / "party", plan.name)
    cards = [new_party(root / "parties" / name, name, address) for name, address in plan.parties]
    (root / "parties").chmod(0o700)
    (operator / "parties").mkdir(mode=0o700)
    role = "compute" if plan.protocol == "mpc" else "crypto"
    for card in cards:
        folder = root / "parties" / card.name
        shutil.copyfile(folder / CARD, operator / "parties" / f"{card.name}.yaml")
        shutil.copyfile(operator / "party" / CERTIFICATE, folder / "operator.pem")
        others = [other.name for other in cards if other is not card]
        for other in others:
            shutil.copyfile(root / "parties" / other / CARD, folder / f"{other}.yaml")
        policy = {
            "epsilon_per_run": plan.epsilon,
            "epsilon_total": plan.epsilon,
            "delta": plan.delta,
            "mechanisms": [plan.mechanism],
            "minimum_clients": plan.minimum_cohort,
        }
        document: dict[str, object] = {"role": role, "operators": ["operator.pem"]}
        if others:
            document["parties"] = [f"{name}.yaml" for name in others]
        document |= {"listen": f"0.0.0.0:{card.address.rpartition(':')[2]}", "policy": policy}
        head = "# What this party allows, whatever a server asks. Raise epsilon_total for more than one run.\n"
        write_text(folder / "party.yaml", head + yamlio.dumps(document))
        write_text(folder / "README.md", _party_readme(plan, card, cards))
    return cards


def node_text(plan: Plan, federation: FederationFile, number: int, config: RunConfig) -> str:
    """The text of a holder's node.yaml, with a policy that allows this run and nothing more."""
    holder = federation.holders[number]
    head: dict[str, object] = {"format": 1, "name": holder.name, "superlink": federation.superlink.address}
    head |= {"insecure": True} if plan.insecure else {"root_certificates": "ca.crt"}
    head |= {"key": "node.key", "data": "rows.csv", "schema": "schema.yaml", "partition": number}
    if plan.signed:
        head |= {"identity": "identity.key", "roster": "roster.yaml"}
    head |= {"state": "state", "listen": f"127.0.0.1:{9100 + number}"}
    pinned = plan.approval == "by hash" or bool(plan.parties)
    budget = {"epsilon": plan.epsilon, "delta": plan.delta}
    lines: list[tuple[str, object, str]] = [
        ("per_run", budget, "the most that one run may ask for"),
        ("lifetime", budget, "the most of all runs together: raise it before a second one"),
        ("mechanisms", [plan.mechanism], ""),
        ("protocols", [plan.protocol], "how sums are formed: nobody sees this table's own"),
        ("noise", ["distributed"], ""),
        ("threat", "malicious" if plan.signed else None, "malicious: protected even if the operator cheats"),
        ("minimum_cohort", plan.minimum_cohort, "fewest holders in a sum"),
        ("approval", plan.approval, "by person: a run waits until you type 'fedsyn node approve'"),
        ("configurations", [config.sha256] if pinned else None, "hash of the agreed run.yaml ('fedsyn explain')"),
        ("operators", [federation.operator], "who may order a run"),
    ]
    text = yamlio.dumps(head) + "policy:\n"
    for key, value, comment in lines:
        line = f"  {key}: {_flow(value)}"
        text += f"{line:<58}  # {comment}\n" if comment else f"{line}\n"
    return f"# The node of {holder.name}: what its holder decides, and no server can change.\n{text}"


def _flow(value: object) -> str:
    """A value on one line, as YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return yamlio.dumps(value).splitlines()[0]


def _holder_readme(plan: Plan, federation: FederationFile, name: str, ca: str | None) -> str:
    prints = [f"{entry.name} {entry.card.fingerprint}" for entry in federation.holders]
    prints += [f"{entry.name} {entry.fingerprint}" for entry in federation.parties]
    prints += [f"authority (ca.crt) {ca}"] if ca is not None else []
    schema = "" if plan.schema is not None else ", and the agreed `schema.yaml` beside it"
    text = readmes.HOLDER.substitute(
        holder=name,
        federation=plan.name,
        install=readmes.install(),
        schema=schema,
        fingerprints="; ".join(prints),
        own_keys=readmes.OWN_KEYS.substitute(holder=name),
    )
    return text + (f"\n**{readmes.INSECURE.strip()}**\n" if plan.insecure else "")


def _party_readme(plan: Plan, card: PartyNode, cards: list[PartyNode]) -> str:
    mpc = plan.protocol == "mpc"
    return readmes.PARTY.substitute(
        party=card.name,
        federation=plan.name,
        role="computing party" if mpc else "crypto party",
        promise="Two parties that pool what they have know everything: keep yours apart from the other two."
        if mpc
        else "You hold the key to the holders' ciphertexts: whoever has it and them reads everything.",
        install=readmes.install(),
        address=card.address,
        port=card.address.rpartition(":")[2],
        whom="the operator and the other two parties" if mpc else "the operator",
        fingerprints="; ".join(f"{each.name} {each.fingerprint}" for each in cards),
    )


def _operator_readme(plan: Plan) -> str:
    schema = "" if plan.schema is not None else "First put the agreed `schema.yaml` here, and send it to every holder. "
    warnings = readmes.SEEN + (readmes.INSECURE if plan.insecure else "")
    return readmes.OPERATOR.substitute(
        federation=plan.name,
        port=plan.port,
        hosts=joined(plan.hosts[0], plan.port),
        schema=schema,
        seen=f"\n**{warnings.strip()}**\n",
    )
