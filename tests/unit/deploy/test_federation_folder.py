"""`fedsyn deploy init` and what changes its folder: files, modes, keys, certificates, rosters, bad input."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import shutil
import ssl
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedsyn import yamlio
from fedsyn.aggregation.base import Limits
from fedsyn.aggregation.secagg.size import derive
from fedsyn.capabilities import FHE
from fedsyn.config import load_options
from fedsyn.deploy.changes import add, remove, renew_link, rotate_keys, rotate_party
from fedsyn.deploy.federation import place_of
from fedsyn.deploy.init import NewFederation, init
from fedsyn.deploy.plan import FederationPlan
from fedsyn.deploy.superlink import _require_pair
from fedsyn.errors import BudgetExceeded, ConfigError, InputError, NodeError, SchemaError
from fedsyn.keys.certificates import new_authority, new_link
from fedsyn.keys.holder_keys import HolderCard, load_identities, load_operator_key, new_keys, replace_keys
from fedsyn.keys.party_keys import load_party
from fedsyn.keys.party_keys import rotate_party as renew_party
from fedsyn.ledgers.limits import rho_of
from fedsyn.ledgers.node_ledger import NodeLedger
from fedsyn.ledgers.node_lines import LedgerRun
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.loading import load_config
from fedsyn.node.file import load_node_file, require_files
from fedsyn.node.policy import Policy
from fedsyn.privacy import GAUSSIAN, PrivacyBudget, Release
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.settings import AggregationNode, PartyCard
from fedsyn.stores.parties.checks import Host, check_announcement, check_configuration
from fedsyn.stores.parties.interface import Announcement
from fedsyn.stores.parties.policy import load_party_file
from fedsyn.table.schema import Schema
from fedsyn.wire.orders import signed_order
from support.node_folders import header_of

SCHEMA = (
    "columns:\n  age: {kind: numeric, lower: 0, upper: 9, bins: 2}\n  sex: {kind: categorical, categories: [f, m]}\n"
)
NAMES = ("north", "south", "lake")


def made(folder: Path, **named: Any) -> NewFederation:
    schema = folder / "agreed.yaml"
    schema.write_text(SCHEMA, encoding="utf-8")
    options: dict[str, Any] = {"hosts": ("link.example.org", "192.0.2.1"), "schema": schema} | named
    return init(FederationPlan("study", options.pop("holders", NAMES), **options), folder / "study")


OF_PERSONS = """\
columns:
  id: {kind: identifier}
  sex: {kind: categorical, categories: [f, m]}
  ward: {kind: categorical, categories: [a, b]}
persons: {id: id, constant: [sex], most_rows: 20, least_rows: 0, tables: [patients, visits]}
"""


@pytest.mark.parametrize("two", [False, True])
def test_a_schema_of_persons_makes_a_run_and_policies_for_them(tmp_path: Path, two: bool) -> None:
    schema = tmp_path / "persons.yaml"
    text = OF_PERSONS if two else OF_PERSONS.replace(", tables: [patients, visits]", "")
    schema.write_text(text, encoding="utf-8")
    made(tmp_path, schema=schema)
    root = tmp_path / "study"
    config = load_config(root / "operator" / "run.yaml")
    assert config.privacy.unit == "person" and config.workload.degree is None
    for name in NAMES:
        node = load_node_file(root / "holders" / name / "node.yaml")
        assert node.policy.unit == "person"
        assert Path(node.data).name == ("visits.csv" if two else "rows.csv")
        assert (node.persons and Path(node.persons).name) == ("patients.csv" if two else None)
        Policy(node).check_configuration(config)
        readme = (root / "holders" / name / "README.md").read_text(encoding="utf-8")
        assert ("`patients.csv` and `visits.csv`" in readme) == two


def test_each_folder_has_exactly_its_files_and_keys_are_their_owners_alone(tmp_path: Path) -> None:
    made(tmp_path)
    root = tmp_path / "study"
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    operator = {
        "ca.crt",
        "ca.key",
        "link.crt",
        "link.key",
        "operator.key",
        "federation.yaml",
        "run.yaml",
        "schema.yaml",
    }
    holder = {"state/ledger.jsonl", "node.yaml", "node.key", "identity.key", "roster.yaml", "ca.crt"}
    holder |= {"run.yaml", "schema.yaml"}
    wanted = {f"operator/{name}" for name in operator | {"README.md"}}
    wanted |= {f"holders/{name}/{file}" for name in NAMES for file in holder | {"README.md"}}
    assert set(files) == wanted
    for name, path in files.items():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if name.endswith((".key", ".jsonl")) else 0o644), name
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    keys = [path.read_text(encoding="utf-8") for name, path in files.items() if name.endswith(".key")]
    assert len(set(keys)) == len(keys) == 9
    public = "".join(path.read_text(encoding="utf-8") for name, path in files.items() if not name.endswith(".key"))
    assert "BEGIN OPENSSH PRIVATE" not in public and "BEGIN PRIVATE" not in public
    assert not any(key.strip() in public for key in keys)
    assert "$" not in public  # of a template


def test_what_is_written_is_what_the_others_read(tmp_path: Path) -> None:
    federation = made(tmp_path).federation
    root = tmp_path / "study"
    config = load_config(root / "operator" / "run.yaml")
    assert config.federation.clients == config.federation.minimum_cohort == 3
    assert (config.aggregation.protocol, config.aggregation.threat) == ("secagg", "malicious")
    for number, name in enumerate(NAMES):
        file = load_node_file(root / "holders" / name / "node.yaml")
        (root / "holders" / name / "rows.csv").write_text("age,sex\n1,f\n", encoding="utf-8")
        require_files(file)
        assert (file.name, file.partition, file.superlink) == (name, number, "link.example.org:8000")
        assert file.policy.operators == (federation.operator,) and file.policy.threat == "malicious"
        assert file.policy.approval == "by person" and file.policy.protocols == ("secagg",)
        assert file.policy.minimum_cohort == 3 and file.policy.lifetime.epsilon == 1.46  # two runs of 1
        own, roster = load_identities(str(file.identity), str(file.roster))
        assert {k: key.hex() for k, key in roster.items()} == federation.roster
        assert own.public == roster[number]
        key = serialization.load_ssh_private_key(Path(file.key).read_bytes(), None)
        assert key.public_key() == serialization.load_ssh_public_key(federation.holder(name).node.encode())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 9, 10, 11, 19, 20, 21, 40])
def test_a_secure_sum_can_be_planned_for_any_number_of_holders(count: int) -> None:
    """The shares in run.yaml mean the numbers of holders that they are meant to, and such a sum may be asked."""
    plan = FederationPlan("study", tuple(f"h{k}" for k in range(count)))
    colluding, missing = plan.tolerated
    node = AggregationNode.model_validate(yamlio.loads(plan.run_config(), "run.yaml")["aggregation"])
    limits = Limits.of(node, count, plan.minimum_cohort)
    assert (limits.corrupted, limits.dropouts) == (colluding, missing)
    assert colluding == max(1, count // 20) and limits.colluding == (colluding if count > 2 else 0)
    assert derive(count, limits.colluding, missing, 40, malicious=True).protects(malicious=True)
    assert count - limits.colluding - missing >= 2  # honest contributors


def test_a_run_that_counts_on_nobody_is_refused_by_every_node(tmp_path: Path) -> None:
    """The operator's own keys, and `--set aggregation.corrupted=0.0`: policies as init wrote them, but for approval."""
    federation = made(tmp_path, approval="always").federation
    root = tmp_path / "study"
    changes = {
        "aggregation.corrupted=0.0": "aggregation.corrupted is 0, and this node's holder demands at least 0.05",
        "aggregation.dropout=0.4": "aggregation.dropout is 0.4, and this node's holder allows at most 0.25",
        "federation.minimum_cohort=1": "federation.minimum_cohort is 1, and this node's holder demands at least 3",
    }
    key = load_operator_key(root / "operator" / "operator.key")
    for name in NAMES:
        (root / "holders" / name / "rows.csv").write_text("age,sex\n1,f\n", encoding="utf-8")
        file = load_node_file(root / "holders" / name / "node.yaml")
        policy, before = Policy(file), file.ledger_file.read_bytes()
        for change, sentence in {"": "", **changes}.items():
            config = load_config(root / "operator" / "run.yaml", [change] if change else [])
            order = signed_order(key, policy.subject("a-run", config))
            header = header_of(config, "join")
            submitted = header["run_config"] | {"run": "a-run", "order": order}
            if not change:
                assert policy.admit(submitted, header["scalars"]).operator == federation.operator
                continue
            with pytest.raises(NodeError) as refused:
                policy.admit(submitted, header["scalars"])
            assert sentence in str(refused.value)
        assert file.ledger_file.read_bytes() == before


def test_the_certificate_is_the_superlinks_and_only_that(tmp_path: Path) -> None:
    made(tmp_path)
    operator = tmp_path / "study" / "operator"
    trusting = ssl.create_default_context(cafile=str(operator / "ca.crt"))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    link = x509.load_pem_x509_certificate((operator / "link.crt").read_bytes())
    names = link.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.1", "127.0.0.1", "::1"]
    assert handshake(trusting, operator, "link.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(trusting, operator, "other.example.org")
    other = new_authority("other")
    strange = new_link(other, "study", ["link.example.org"])
    (operator / "link.crt").write_text(strange.certificate, encoding="utf-8")
    (operator / "link.key").write_text(strange.key, encoding="utf-8")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(trusting, operator, "link.example.org")
    _require_pair(operator)
    (operator / "link.key").write_text(new_link(other, "study", ["link.example.org"]).key, encoding="utf-8")
    with pytest.raises(ConfigError, match="rotate-keys --link"):  # as it is left by a death between two writes
        _require_pair(operator)
    renew_link(place_of(operator))
    assert handshake(trusting, operator, "link.example.org")
    assert stat.S_IMODE((operator / "link.key").stat().st_mode) == 0o600


def handshake(trusting: ssl.SSLContext, operator: Path, host: str) -> bool:
    """TLS between two ends in memory; raises what the client raises."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(operator / "link.crt", operator / "link.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    done = {id(client): False, id(server): False}
    for _ in range(20):
        for end in (client, server):
            try:
                end.do_handshake()
                done[id(end)] = True
            except ssl.SSLWantReadError:
                pass
        if all(done.values()):
            return True
    return False


def test_new_keys_reach_the_rosters_of_all_and_the_old_ones_are_out(tmp_path: Path) -> None:
    federation = made(tmp_path).federation
    place, folder = place_of(tmp_path / "study"), tmp_path / "study" / "holders" / "south"
    file = load_node_file(folder / "node.yaml")
    before = (folder / "node.key").read_text(encoding="utf-8")
    card = replace_keys("south", Path(file.key), Path(str(file.identity)), Path(str(file.roster)), file.partition)
    assert (folder / "node.key.old").read_text(encoding="utf-8") == before
    assert stat.S_IMODE((folder / "node.key").stat().st_mode) == 0o600
    own, roster = load_identities(str(file.identity), str(file.roster))
    assert own.public.hex() == card.identity == roster[1].hex()
    (tmp_path / "card.yaml").write_text(card.dumps(), encoding="utf-8")
    assert load_options(HolderCard, tmp_path / "card.yaml") == card and card.fingerprint in card.dumps()

    changed = rotate_keys(place, "south", tmp_path / "card.yaml")
    assert changed.followed is None  # no SuperLink runs
    stands = place.load()
    assert stands.holder("south").node == card.node != federation.holder("south").node
    assert stands.holder("north") == federation.holder("north")
    for name in ("north", "lake"):
        _, theirs = load_identities(*map(str, (folder / "identity.key", folder.parent / name / "roster.yaml")))
        assert theirs[1].hex() == card.identity
    with pytest.raises(ConfigError, match="that is the node key that south has already"):
        rotate_keys(place, "south", tmp_path / "card.yaml")
    with pytest.raises(ConfigError, match="is the card of 'south', not of 'north'"):
        rotate_keys(place, "north", tmp_path / "card.yaml")


def test_who_was_removed_is_out_for_good(tmp_path: Path) -> None:
    made(tmp_path, holders=(*NAMES, "hill"))
    place = place_of(tmp_path / "study" / "operator")
    changed = remove(place, "south", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC))
    assert changed.holder.revoked == "2026-01-02 03:04:05Z"
    assert set(place.load().roster) == {0, 2, 3}  # the numbers of the others stay
    roster = (place.handed_out / "lake" / "roster.yaml").read_text(encoding="utf-8")
    assert str(changed.holder.identity) not in roster
    config = load_config(place.operator / "run.yaml")
    assert (config.federation.clients, config.federation.minimum_cohort, config.aggregation.corrupted) == (3, 3, 0.05)
    assert "# 1 of the 3 holders may collude" in (place.operator / "run.yaml").read_text(encoding="utf-8")
    assert changed.run == config.sha256
    with pytest.raises(ConfigError, match="was removed already, on 2026-01-02"):
        remove(place, "south")
    (tmp_path / "card.yaml").write_text(new_keys("south").card.dumps(), encoding="utf-8")
    with pytest.raises(ConfigError, match="was removed on 2026-01-02 03:04:05Z, for good"):
        rotate_keys(place, "south", tmp_path / "card.yaml")
    with pytest.raises(ConfigError, match=r"no holder 'soth' \(did you mean 'south'\?\)"):
        remove(place, "soth")


@pytest.mark.parametrize("count", [1, 3])
def test_parties_get_folders_of_their_own(tmp_path: Path, count: int) -> None:
    parties = tuple((name, f"{name}.example.org:7443") for name in ("alder", "birch", "cedar")[:count])
    written = made(tmp_path, parties=parties)
    root = tmp_path / "study"
    for name, _ in parties:
        file = load_party_file(root / "parties" / name / "party.yaml")
        assert file.role == ("compute" if count == 3 else "crypto") and len(file.parties) == count - 1
        assert all(Path(path).is_file() for path in (*file.parties, *file.operators))
    config = load_config(root / "operator" / "run.yaml")
    cards = config.aggregation.parties or (config.aggregation.crypto,)
    assert [card.fingerprint for card in cards if card] == [party.fingerprint for party in written.federation.parties]
    node = load_node_file(root / "holders" / "north" / "node.yaml")
    assert node.identity is None and not (root / "holders" / "north" / "identity.key").exists()
    assert node.policy.configurations is None  # a person reads the parties' fingerprints, and approves
    for folder in (root / "holders" / "north", *(root / "parties" / name for name, _ in parties)):
        assert load_config(folder / "run.yaml").sha256 == config.sha256  # with schema and cards beside it
        assert (folder / "schema.yaml").is_file()
        assert "fedsyn explain run.yaml" in (folder / "README.md").read_text(encoding="utf-8")
    said = (root / "operator" / "README.md").read_text(encoding="utf-8")
    assert all(f"{name} at {address}" in said for name, address in parties) and "../parties/" in said


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("approval", ["by person", "by hash", "always"])
def test_the_written_policies_admit_the_written_run(tmp_path: Path, count: int, approval: str) -> None:
    """As often as was asked for, with all that a run may spend; by the checks of nodes and parties themselves."""
    if count == 1:
        pytest.importorskip("tenseal")
    parties = tuple((name, f"{name}.example.org:7443") for name in ("alder", "birch", "cedar")[:count])
    made(tmp_path, parties=parties, approval=approval, runs=3)
    root = tmp_path / "study"
    config, schema = load_config(root / "operator" / "run.yaml"), Schema.load(root / "operator" / "schema.yaml")
    contract = contract_class(config.mechanism.name)(config, schema.domain)
    budget = config.privacy.budget
    rho = rho_of(budget, contract.accountant)
    key = load_operator_key(root / "operator" / "operator.key")
    for name in NAMES:
        file = load_node_file(root / "holders" / name / "node.yaml")
        policy = Policy(file)
        header = header_of(config, "join")
        order = signed_order(key, policy.subject("first", config))
        policy.admit(header["run_config"] | {"order": order}, header["scalars"])
        with pytest.raises(NodeError, match="obeys signed orders only"):
            policy.admit(header["run_config"], header["scalars"])
        book = NodeLedger(file.ledger_file, file.policy.limits)
        facts = LedgerRun(config.sha256, schema.sha256, config.mechanism.name, contract.accountant, budget, "private")
        for number in range(3):
            account = book.account(f"run-{number}", facts)
            account.charge(Release("all", 0, GAUSSIAN, 1.0, sigma=math.sqrt(0.5 / rho) * (1 + 1e-9)))
            book.end(f"run-{number}")
        with pytest.raises(BudgetExceeded, match="nothing was released"):
            book.account("run-3", facts)
    stored = tuple(contract.stored.cliques) if contract.store else ()
    announced = Announcement(
        config, schema.domain, stored, rho, config.federation.minimum_cohort, bytes(16), len(NAMES)
    )
    for name, _ in parties:
        loaded = load_party_file(root / "parties" / name / "party.yaml")
        card, _, pair = load_party(Path(loaded.folder))
        ledger = PartyLedger(Path(loaded.ledger), loaded.policy.total_budget)
        cards = (card, *(load_options(PartyCard, other) for other in loaded.parties))
        host = Host(pair, loaded.policy, Randomness(None), ledger, cards)
        for number in range(3):
            if count == 3:
                check_announcement(announced, host)
            else:
                check_configuration(announced, host, FHE)
                assert config.aggregation.crypto == card
            ledger.begin(f"run-{number}", rho)
            ledger.charge(f"run-{number}", rho if number < 2 else 0.5 * rho)  # the last one failed
            ledger.end(f"run-{number}")
        with pytest.raises(BudgetExceeded, match="over all runs this party may release") as refused:
            check_configuration(announced, host, config.aggregation.capabilities)
        fitting = float(str(refused.value).rpartition("; epsilon = ")[2].partition(" would fit")[0])
        for epsilon, fits in ((fitting, True), (1.02 * fitting, False)):
            smaller = rho_of(PrivacyBudget(epsilon, budget.delta), contract.accountant)
            with contextlib.nullcontext() if fits else pytest.raises(BudgetExceeded):
                check_configuration(replace(announced, rho=smaller), host, config.aggregation.capabilities)
        ledger.close()


@pytest.mark.parametrize("approval", ["by person", "by hash"])
def test_new_keys_of_a_party_reach_every_folder_and_hash(tmp_path: Path, approval: str) -> None:
    made(tmp_path, parties=tuple((name, f"{name}.example.org:7443") for name in "abc"), approval=approval)
    place, root = place_of(tmp_path / "study"), tmp_path / "study"
    before = load_config(place.operator / "run.yaml").sha256
    old, new = renew_party(root / "parties" / "b")
    changed = rotate_party(place, "b", root / "parties" / "b" / "card.yaml")
    config = load_config(place.operator / "run.yaml")
    assert changed == config.sha256 != before and config.aggregation.parties is not None
    assert config.aggregation.parties[1] == new != old
    assert place.load().parties[1].fingerprint == new.fingerprint
    for folder in (root / "parties" / "a", root / "parties" / "c", root / "holders" / "north"):
        assert load_options(PartyCard, folder / "parties" / "b.yaml") == new, folder
        assert load_config(folder / "run.yaml").sha256 == config.sha256
    node = load_node_file(root / "holders" / "lake" / "node.yaml")
    assert node.policy.configurations == ((config.sha256,) if approval == "by hash" else None)
    with pytest.raises(ConfigError, match="that is the card that b has already"):
        rotate_party(place, "b", root / "parties" / "b" / "card.yaml")
    with pytest.raises(ConfigError, match="is the card of 'b', not of 'a'"):
        rotate_party(place, "a", root / "parties" / "b" / "card.yaml")


def test_a_late_joiner_gets_a_folder_without_keys_and_everybody_a_line(tmp_path: Path) -> None:
    made(tmp_path)
    place, root = place_of(tmp_path / "study"), tmp_path / "study"
    own = tmp_path / "west"
    own.mkdir()
    card = replace_keys("west", own / "node.key", own / "identity.key")
    (own / "west.card.yaml").write_text(card.dumps(), encoding="utf-8")
    changed = add(place, "west", own / "west.card.yaml")
    assert changed.holder.partition == 3 and changed.federation == place.load()
    config = load_config(place.operator / "run.yaml")
    assert (config.federation.clients, config.federation.minimum_cohort) == (4, 3)  # as `deploy init` has it for four
    assert (config.aggregation.corrupted, config.aggregation.dropout) == (0.05, 0.25)
    folder = root / "holders" / "west"
    assert not list(folder.rglob("*.key")) and (folder / "state" / "ledger.jsonl").is_file()
    for path in folder.iterdir():  # west puts its keys beside
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, own / path.name)
    (own / "rows.csv").write_text("age,sex\n1,f\n", encoding="utf-8")
    file = load_node_file(own / "node.yaml")
    require_files(file)
    assert (file.partition, file.policy.approval, file.policy.lifetime.epsilon) == (3, "by person", 1.46)
    for holder in (own, *(root / "holders" / name for name in NAMES)):
        _, roster = load_identities(str(own / "identity.key"), str(holder / "roster.yaml"))
        assert roster[3].hex() == card.identity and set(roster) == {0, 1, 2, 3}
        assert load_config(holder / "run.yaml").sha256 == config.sha256 == changed.run
    for name, match in (
        ("west", "there is, or was, a holder 'west'"),
        ("hill", "is the card of 'west', not of 'hill'"),
    ):
        with pytest.raises(ConfigError, match=match):
            add(place, name, own / "west.card.yaml")
    remove(place, "west")
    with pytest.raises(ConfigError, match="a new one needs a name of its own"):
        add(place, "west", own / "west.card.yaml")
    unsigned = new_keys("hill", identity=False).card
    (own / "hill.card.yaml").write_text(unsigned.dumps(), encoding="utf-8")
    with pytest.raises(ConfigError, match="expected a card with an identity; fedsyn node new-keys --name hill"):
        add(place, "hill", own / "hill.card.yaml")


def test_what_somebody_wrote_into_the_run_stays_when_a_holder_comes(tmp_path: Path) -> None:
    made(tmp_path)
    place = place_of(tmp_path / "study")
    run = place.operator / "run.yaml"
    run.write_text(run.read_text("utf-8").replace("corrupted: 0.05", "corrupted: 0.35"), encoding="utf-8")
    (tmp_path / "card.yaml").write_text(new_keys("west").card.dumps(), encoding="utf-8")
    add(place, "west", tmp_path / "card.yaml")
    assert load_config(run).aggregation.corrupted == 0.35 and load_config(run).federation.clients == 4
    (tmp_path / "card.yaml").write_text(new_keys("hill").card.dumps(), encoding="utf-8")
    text = run.read_text("utf-8")
    run.write_text(text.replace("corrupted: 0.35", "corrupted: 0.9"), encoding="utf-8")
    with pytest.raises(ConfigError, match="leave no honest client to draw the noise"):  # and nothing was changed
        add(place, "hill", tmp_path / "card.yaml")
    run.write_text(text.replace("  clients: 4\n", ""), encoding="utf-8")
    with pytest.raises(ConfigError, match="clients: expected a line of its own with a number; write clients: 5 there"):
        add(place, "hill", tmp_path / "card.yaml")
    changed = remove(place, "west")
    assert changed.problem is not None and "write clients: 3 there" in changed.problem and changed.run is None
    assert len(place.load().present) == 3 and not (place.handed_out / "hill").exists()


def test_fedsyn_is_installed_from_a_file_and_its_hash(tmp_path: Path) -> None:
    """Nobody is told to install a name from an index, which anybody may register there."""
    wheel = tmp_path / "fedsyn-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"made of wood")
    digest = hashlib.sha256(b"made of wood").hexdigest()
    made(tmp_path, parties=(("alder", "alder.example.org:7443"),), wheel=wheel)
    folders = [path for path in (tmp_path / "study").rglob("*") if (path / "README.md").is_file()]
    assert len(folders) == 5
    for folder in folders:
        text = (folder / "README.md").read_text(encoding="utf-8")
        assert f"{digest}  {wheel.name}" in text and f"pip install './{wheel.name}[fhe]'" in text, folder
        assert (folder / wheel.name).read_bytes() == b"made of wood"
    made(tmp_path / "other" if (tmp_path / "other").mkdir() is None else tmp_path)
    texts = [path.read_text("utf-8") for path in (tmp_path / "other").rglob("README.md")]
    assert len(texts) == 4 and all(
        "SHA-256 by telephone" in text and "pip install fedsyn" not in text for text in texts
    )


BAD = {
    "one holder": ({"holders": ("a",)}, "at least two data holders"),
    "a doubled one": ({"holders": ("a", "A")}, "a name stands twice"),
    "a path": ({"holders": ("a", "../b")}, "'../b' is not a valid name"),
    "two parties": ({"parties": (("a", "h:1"), ("b", "h:2"))}, "three computing parties, or one crypto party, found 2"),
    "no port": ({"parties": (("a", "h"),)}, "expected HOST:PORT"),
    "anywhere": ({"hosts": ("0.0.0.0",)}, "nobody can reach 0.0.0.0"),
    "a port in a host": ({"hosts": ("link:8000",)}, "without a port"),
    "no epsilon": ({"epsilon": 0.0}, "--epsilon and --delta"),
    "a port": ({"port": 65535}, "--port: expected"),
    "no runs": ({"runs": 0}, "--runs: expected a number from 1 to 1000"),
    "too many runs": ({"runs": 1000, "epsilon": 900.0}, "come to more than epsilon 1000"),
    "no wheel": ({"wheel": Path("fedsyn-1-py3-none-any.whl")}, "--wheel: no such file"),
    "another package": ({"wheel": Path("flwr-1-py3-none-any.whl")}, "--wheel: expected a file fedsyn-VERSION"),
    "no schema": ({"schema": Path("nowhere.yaml")}, "cannot read the schema nowhere.yaml"),
}


@pytest.mark.parametrize(("named", "says"), BAD.values(), ids=BAD)
def test_what_cannot_be_built_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, named: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        made(tmp_path, **named)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["agreed.yaml"]


def test_a_schema_that_nobody_approved_is_not_sent_to_anybody(tmp_path: Path) -> None:
    draft = tmp_path / "draft.yaml"
    draft.write_text(SCHEMA.replace("bins: 2", "bins: 2, drafted: [lower, upper]"), encoding="utf-8")
    with pytest.raises(SchemaError, match="approve"):
        made(tmp_path, schema=draft)
    assert not (tmp_path / "study").exists()


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(ConfigError, match="exists already, and keys are never overwritten"):
        made(tmp_path)


def test_a_full_disk_leaves_no_half_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedsyn.deploy.init.new_keys", full)
    with pytest.raises(ConfigError, match=r"--out: cannot write .*study: No space left on device"):
        made(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["agreed.yaml"]
