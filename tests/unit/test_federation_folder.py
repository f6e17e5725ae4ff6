"""`fedsyn deploy init` and what changes its folder: files, modes, keys, certificates, rosters, bad input."""

from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedsyn.aggregation.committee.size import derive
from fedsyn.aggregation.identities import load_identities
from fedsyn.deploy.authority import new_authority, new_link
from fedsyn.deploy.changes import renew_link, revoke, rotate_keys
from fedsyn.deploy.federation import place_of
from fedsyn.deploy.init import Made, init
from fedsyn.deploy.link import _require_pair
from fedsyn.deploy.plan import Plan, share
from fedsyn.errors import ConfigError, InputError, SchemaError
from fedsyn.loading import load_config
from fedsyn.node.file import load_node_file, require_files
from fedsyn.node.keys import load_card, new_keys, replace_keys
from fedsyn.parties.policy import load_party_file

SCHEMA = (
    "columns:\n  age: {kind: numeric, lower: 0, upper: 9, bins: 2}\n  sex: {kind: categorical, categories: [f, m]}\n"
)
NAMES = ("north", "south", "lake")


def made(folder: Path, **named: Any) -> Made:
    schema = folder / "agreed.yaml"
    schema.write_text(SCHEMA, encoding="utf-8")
    options: dict[str, Any] = {"hosts": ("link.example.org", "192.0.2.1"), "schema": schema} | named
    return init(Plan("study", options.pop("holders", NAMES), **options), folder / "study")


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
    holder = {"state/ledger.jsonl", "node.yaml", "node.key", "identity.key", "roster.yaml", "ca.crt", "schema.yaml"}
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
        assert file.policy.minimum_cohort == 3 and file.policy.lifetime.epsilon == config.privacy.epsilon
        own, roster = load_identities(str(file.identity), str(file.roster))
        assert {k: key.hex() for k, key in roster.items()} == federation.roster
        assert own.public == roster[number]
        key = serialization.load_ssh_private_key(Path(file.key).read_bytes(), None)
        assert key.public_key() == serialization.load_ssh_public_key(federation.holder(name).node.encode())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 9, 10, 11, 19, 20, 21, 40])
def test_a_secure_sum_can_be_planned_for_any_number_of_holders(count: int) -> None:
    """The shares in run.yaml mean the numbers of holders that they are meant to, and such a sum may be asked."""
    plan = Plan("study", tuple(f"h{k}" for k in range(count)))
    colluding, missing = plan.tolerated
    assert int(share(colluding, count) * count) == colluding and int(share(missing, count) * count) == missing
    assert derive(count, colluding, missing, 40, malicious=True).protects(malicious=True)
    assert count - colluding - missing >= 2  # honest contributors


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
    assert load_card(tmp_path / "card.yaml") == card and card.fingerprint in card.dumps()

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


def test_who_was_revoked_is_out_for_good(tmp_path: Path) -> None:
    made(tmp_path, holders=(*NAMES, "hill"))
    place = place_of(tmp_path / "study" / "operator")
    changed = revoke(place, "south", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC))
    assert changed.holder.revoked == "2026-01-02 03:04:05Z"
    assert set(place.load().roster) == {0, 2, 3}  # the numbers of the others stay
    roster = (place.handed_out / "lake" / "roster.yaml").read_text(encoding="utf-8")
    assert str(changed.holder.identity) not in roster
    with pytest.raises(ConfigError, match="was revoked already, on 2026-01-02"):
        revoke(place, "south")
    (tmp_path / "card.yaml").write_text(new_keys("south").card.dumps(), encoding="utf-8")
    with pytest.raises(ConfigError, match="was revoked on 2026-01-02 03:04:05Z, for good"):
        rotate_keys(place, "south", tmp_path / "card.yaml")
    with pytest.raises(ConfigError, match=r"no holder 'soth' \(did you mean 'south'\?\)"):
        revoke(place, "soth")


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
    assert node.policy.configurations == (config.sha256,)


BAD = {
    "one holder": ({"holders": ("a",)}, "at least two data holders"),
    "a doubled one": ({"holders": ("a", "A")}, "a name stands twice"),
    "a path": ({"holders": ("a", "../b")}, "'../b' is no name"),
    "two parties": ({"parties": (("a", "h:1"), ("b", "h:2"))}, "three computing parties, or one crypto party, found 2"),
    "no port": ({"parties": (("a", "h"),)}, "expected HOST:PORT"),
    "anywhere": ({"hosts": ("0.0.0.0",)}, "nobody can reach 0.0.0.0"),
    "a port in a host": ({"hosts": ("link:8000",)}, "without a port"),
    "no epsilon": ({"epsilon": 0.0}, "--epsilon and --delta"),
    "a port": ({"port": 65535}, "--port: expected"),
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
