"""Operating a party: what its probes say, and how its keys are replaced. Services and connections are real ones."""

from __future__ import annotations

import errno
import json
import re
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from fedsyn import files
from fedsyn.config import load_options
from fedsyn.errors import ConfigError
from fedsyn.keys.certificates import Credentials
from fedsyn.keys.party_keys import (
    load_credentials,
    load_party,
    new_operator,
    new_party,
    rotate_operator,
    rotate_party,
)
from fedsyn.keys.tls import channel_to
from fedsyn.settings import PartyCard
from fedsyn.stores.parties.lines import TAG
from fedsyn.stores.parties.policy import PartyFile, PartyPolicy
from fedsyn.stores.parties.serving import METHOD, Service
from support.typed_commands import entry_point

POLICY = PartyPolicy(epsilon_per_run=1.0, epsilon_total=4.0, delta=1e-5, mechanisms=("distaim",))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


NAMES = ("alder", "birch", "cedar")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts a party by the folders that stand in tmp_path; its ledger stays the same."""
    for name in NAMES:
        new_party(tmp_path / name, name, f"127.0.0.1:{free_port()}")
    new_operator(tmp_path / "operator", "operator")
    started: list[Service] = []

    def make(name: str = "alder", health: str | None = None) -> Service:
        file = PartyFile(
            folder=name,
            parties=tuple(f"{other}/card.yaml" for other in NAMES if other != name),
            operators=("operator/certificate.pem",),
            ledger=f"{name}/ledger.jsonl",
            listen_health=health,
            policy=POLICY,
        )
        service = Service(file.anchored(tmp_path))
        service.start()
        started.append(service)
        return service

    yield make
    for service in started:
        service.stop()


def called(party: PartyCard, own: Credentials, method: str, *, refused: bool = False) -> str:
    """What a party says to a call that has no sense; `refused`: where nothing is expected to come about."""
    channel = channel_to(party.address, party.certificate, own)
    try:
        grpc.channel_ready_future(channel).result(1 if refused else 20)
        call = channel.stream_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(iter([b"nonsense"]), metadata=((TAG, "0" * 32),), timeout=10)
        return str(caught.value.details())
    except grpc.FutureTimeoutError:
        return "no connection"
    finally:
        channel.close()


def get(address: str, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


# Probes --------------------------------------------------------------------------------------------------------------


def test_a_party_says_how_it_is(start: Callable[..., Service], tmp_path: Path) -> None:
    health = f"127.0.0.1:{free_port()}"
    service = start(health=health)
    assert get(health, "/healthz") == (200, "alive\n") and get(health, "/secrets")[0] == 404
    status, text = get(health, "/readyz")
    facts = json.loads(text)
    assert status == 200 and facts["ready"] and facts["name"] == "alder" and not facts["busy"]
    assert facts["budget"] == {"epsilon": 0.0, "limit": 4.0, "delta": 1e-5, "runs": 0}

    operator = load_credentials(tmp_path / "operator")
    assert "malformed" in called(service.cards[0], operator, METHOD + "begin")
    service.book.begin("ab" * 32, 0.01)
    service.book.charge("ab" * 32, 0.01, name="choose", round=1, number=0)
    status, text = get(health, "/metrics")
    values = dict(re.findall(r"^(fedsyn_party_\S+) (\S+)$", text, re.MULTILINE))
    assert values['fedsyn_party_orders_total{order="begin",outcome="refused"}'] == "1.0"
    assert float(values['fedsyn_party_epsilon_spent{delta="1e-05"}']) == service.book.epsilon > 0
    assert values['fedsyn_party_epsilon_limit{delta="1e-05"}'] == "4.0" and values["fedsyn_party_runs_total"] == "1.0"
    assert values["fedsyn_party_ready"] == "1.0" and float(values["fedsyn_party_certificate_expires_seconds"]) > 2e9
    for name in values:  # every figure is explained, as Prometheus wants it
        bare = name.partition("{")[0]
        assert f"# HELP {bare} " in text and f"# TYPE {bare} " in text
    secrets = [(tmp_path / "alder" / file).read_text("utf-8").strip() for file in ("seal.key", "tls.key")]
    shown = "".join(get(health, page)[1] for page in ("/readyz", "/status", "/metrics"))
    assert not any(secret[:20] in shown or secret in shown for secret in secrets)


def test_a_party_whose_ledger_was_touched_is_not_ready(start: Callable[..., Service], tmp_path: Path) -> None:
    health = f"127.0.0.1:{free_port()}"
    service = start(health=health)
    for number in range(3):
        service.book.begin(f"{number:064x}", 0.001)
        service.book.end(f"{number:064x}")
    ledger = tmp_path / "alder" / "ledger.jsonl"
    lines = ledger.read_text("utf-8").splitlines(keepends=True)
    ledger.write_text("".join([lines[0].replace("0.001", "0.0001"), *lines[1:]]), encoding="utf-8")
    status, text = get(health, "/readyz")
    assert status == 503 and "ledger's file is damaged" in json.loads(text)["problems"][0]
    assert get(health, "/healthz")[0] == 200 and get(health, "/metrics")[0] == 200


def test_an_address_that_is_taken_is_one_sentence(start: Callable[..., Service]) -> None:
    health = f"127.0.0.1:{free_port()}"
    start("alder", health)
    with pytest.raises(ConfigError, match=rf"^listen_health: cannot listen on {health} \(Address already in use\)$"):
        start("birch", health)


# Keys ----------------------------------------------------------------------------------------------------------------


def test_an_old_key_is_refused_once_the_others_have_the_new_card(start: Callable[..., Service], tmp_path: Path) -> None:
    birch = start("birch")
    stolen = load_credentials(tmp_path / "alder")
    shutil.copytree(tmp_path / "alder", tmp_path / "thief")
    assert called(birch.cards[0], stolen, METHOD + "begin") == "a party is not an operator", "birch knows alder"
    birch.stop()

    old, new = rotate_party(tmp_path / "alder")
    assert (old.name, old.address) == (new.name, new.address) and old.fingerprint != new.fingerprint
    assert old.key != new.key and old.certificate != new.certificate
    assert (
        load_options(PartyCard, tmp_path / "alder" / "card-1.yaml") == old and load_party(tmp_path / "alder")[0] == new
    )
    assert not (tmp_path / "alder" / "next").exists()
    for secret in ("seal.key", "tls.key"):  # the old secrets are in no file of the party any more
        lost = (tmp_path / "thief" / secret).read_bytes()
        assert all(lost not in file.read_bytes() for file in (tmp_path / "alder").iterdir())

    birch = start("birch")  # with the new card in the place of the old one
    assert (
        called(birch.cards[0], load_credentials(tmp_path / "alder"), METHOD + "begin") == "a party is not an operator"
    )
    assert called(birch.cards[0], stolen, METHOD + "begin", refused=True) == "no connection"


def test_an_operators_old_key_is_refused(start: Callable[..., Service], tmp_path: Path) -> None:
    stolen = load_credentials(tmp_path / "operator")
    rotate_operator(tmp_path / "operator")
    alder = start("alder")
    assert "malformed" in called(alder.cards[0], load_credentials(tmp_path / "operator"), METHOD + "begin")
    assert called(alder.cards[0], stolen, METHOD + "begin", refused=True) == "no connection"


@pytest.mark.parametrize("step", range(5))
def test_a_rotation_that_was_interrupted_is_finished_by_the_next(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, folder, moves = new_party(tmp_path / "alder", "alder", "127.0.0.1:7443"), tmp_path / "alder", [0]
    inner = Path.replace

    def stops(part: Path, target: Path) -> Path:
        if moves[0] == step:
            raise KeyboardInterrupt
        moves[0] += 1
        return inner(part, target)

    monkeypatch.setattr(Path, "replace", stops)
    with pytest.raises(KeyboardInterrupt):
        rotate_party(folder)
    monkeypatch.undo()
    old, new = rotate_party(folder)
    assert old == first and new.key != first.key and load_party(folder)[0] == new
    assert {file.name for file in folder.iterdir()} == {
        "seal.key",
        "tls.key",
        "certificate.pem",
        "card.yaml",
        "card-1.yaml",
    }


def test_a_rotation_that_cannot_write_keeps_the_old_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, folder = new_party(tmp_path / "alder", "alder", "127.0.0.1:7443"), tmp_path / "alder"

    inner, written = files.write_new, list[Path]()

    def full(path: Path, content: bytes | str, mode: int) -> None:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        inner(path, content, mode)

    monkeypatch.setattr(files, "write_new", full)
    with pytest.raises(ConfigError, match="No space left"):
        rotate_party(folder)
    monkeypatch.undo()
    assert load_party(folder)[0] == first
    assert rotate_party(folder, "alder.example.org:7443")[1].address == "alder.example.org:7443"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fedsyn = entry_point(capsys, monkeypatch)
    fedsyn("party", "keygen", tmp_path / "alder", "--name", "alder", "--address", "127.0.0.1:7443")
    done = fedsyn("party", "rotate", tmp_path / "alder")
    assert done.code == 0 and load_options(PartyCard, tmp_path / "alder" / "card.yaml").fingerprint in done.out
    assert "start the party anew" in done.out
    fedsyn("party", "keygen", tmp_path / "operator", "--name", "operator", "--operator")
    before = (tmp_path / "operator" / "certificate.pem").read_text("utf-8")
    assert fedsyn("party", "rotate", tmp_path / "operator").code == 0
    assert (tmp_path / "operator" / "certificate.pem").read_text("utf-8") != before
    refused = fedsyn("party", "rotate", tmp_path / "nobody")
    assert refused.code == 2 and "is not the folder of a party's keys" in refused.err
