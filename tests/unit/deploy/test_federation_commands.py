"""What `fedsyn deploy` says: status in 80 columns, changes, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedsyn.deploy.federation import place_of
from fedsyn.deploy.status import HolderStatus, RunStatus, Status
from fedsyn.deploy.superlink import only_one
from fedsyn.front.cli import app
from fedsyn.front.cli.deploy import _show_status
from fedsyn.front.cli.ending import ended
from fedsyn.health import Pages
from fedsyn.keys.holder_keys import new_keys
from fedsyn.loading import load_config


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = ended(lambda: app(list(words), standalone_mode=False))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def study(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed(capsys, "deploy", "init", "--holders", "north", "south,lake", "--out", "study")
    assert code == 0, err
    assert "epsilon 1.46 at delta 1e-06, for 2 runs of epsilon 1; a failed run uses up what it released" in out
    assert "NEVER send it" in out and "SEEN EVERY PRIVATE KEY" in err and out.count("send all of it to") == 3
    return tmp_path / "study"


def test_what_is_wrong_is_one_sentence(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = study.parent / "card.yaml"
    card.write_text(new_keys("south").card.dumps(), encoding="utf-8")
    for words, says in {
        ("deploy", "run", "study"): "no SuperLink: start it on this machine, and keep it running: fedsyn deploy link",
        ("deploy", "run", "study", "--set", "federation.clients=4"): "this federation has 3 holders",
        ("deploy", "stop", "study"): "no 'fedsyn deploy link' runs on this machine",
        ("deploy", "status", "elsewhere"): "elsewhere: no such folder; name the folder that 'fedsyn deploy init",
        ("deploy", "remove", "noth", "--folder", "study"): "no holder 'noth' (did you mean 'north'?)",
        (
            "deploy",
            "rotate-keys",
            "--folder",
            "study",
        ): "expected NAME --card FILE for a holder's or a party's new keys",
        (
            "deploy",
            "rotate-keys",
            "south",
            "--card",
            "card.yaml",
            "--folder",
            "study",
        ): "there is nobody to ask: has south",
        ("deploy", "init", "--holders", "a", "b", "--out", "x", "--approval", "by persn"): "did you mean 'by person'?",
    }.items():
        code, _, err = typed(capsys, *words)
        assert code == 2 and says in err and err.strip().count("\n") == 0, (words, err)
    broken = study / "operator" / "federation.yaml"
    broken.write_text(broken.read_text(encoding="utf-8").replace("listen:", "lisen:"), encoding="utf-8")
    code, _, err = typed(capsys, "deploy", "status", "study")
    assert code == 2 and "lisen" in err and "did you mean 'listen'" in err.replace('"', "'")


def test_changes_say_who_has_to_hear_of_them(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = new_keys("south").card
    (study.parent / "card.yaml").write_text(card.dumps(), encoding="utf-8")
    words = ("deploy", "rotate-keys", "south", "--card", "card.yaml", "--folder", "study", "--yes")
    code, out, _ = typed(capsys, *words)
    assert code == 0 and "to north, lake" in out and out.splitlines()[-1] == f"1: {card.identity}"
    code, out, _ = typed(capsys, "deploy", "remove", "lake", "--folder", "study")
    assert code == 0 and "tell north, south to delete this line" in out and "run.yaml asks for 2 holders now" in out
    code, out, _ = typed(capsys, "deploy", "status", "study", "--json")
    assert code == 1  # nobody serves it: for scripts that ask whether it goes on
    holders = {holder["name"]: holder["status"] for holder in json.loads(out)["holders"]}
    assert holders == {"north": "unknown", "south": "unknown", "lake": "revoked"}
    code, out, _ = typed(capsys, "deploy", "rotate-keys", "--link", "--folder", "study")
    assert code == 0 and "nobody has to hear of it" in out
    place = place_of(study)
    with only_one(place):
        code, _, err = typed(capsys, "deploy", "link", "study")
        assert code == 2 and "is running already" in err


def test_a_holder_makes_keys_of_its_own(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "node", "new-keys", "study/holders/north/node.yaml")
    assert code == 0 and "rotate-keys north --card north.card.yaml" in out
    assert (study / "holders" / "north" / "north.card.yaml").is_file()


def test_a_late_joiner_makes_keys_and_the_operator_takes_them(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (study.parent / "west").mkdir()
    monkeypatch.chdir(study.parent / "west")
    code, out, _ = typed(capsys, "node", "new-keys", "--name", "west")
    assert code == 0 and "fedsyn deploy add west --card west.card.yaml" in out
    assert {path.name for path in Path().iterdir()} == {"node.key", "identity.key", "west.card.yaml"}
    words = ("deploy", "add", "west", "--card", "west.card.yaml", "--folder", str(study))
    code, _, err = typed(capsys, *words)
    assert code == 2 and "there is nobody to ask: has west" in err
    code, out, err = typed(capsys, *words, "--yes")
    identity = new_roster_line(study, "west")
    assert code == 0 and "west takes part as number 3" in out and "to north, south, lake" in out, err
    assert out.splitlines()[-1] == f"3: {identity}" and "run.yaml asks for 4 holders now" in out
    for words, says in {
        ("node", "new-keys"): "expected NODE.yaml of the node whose keys are replaced, or --name",
        ("deploy", "add", "west"): "missing option '--card'",
    }.items():
        code, _, err = typed(capsys, *words)
        assert code == 2 and says in err, err


def new_roster_line(study: Path, name: str) -> str | None:
    return place_of(study).load().holder(name).identity


def test_a_party_has_new_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = str(tmp_path / "study")
    parties = [word for name in "abc" for word in ("--parties", f"{name}={name}.example.org:7443")]
    code, out, err = typed(capsys, "deploy", "init", "--holders", "north,south", *parties, "--out", study)
    assert code == 0 and "each party's has epsilon 1.46" in out, err
    folder = tmp_path / "study" / "parties" / "b"
    assert typed(capsys, "party", "rotate", str(folder))[0] == 0
    card = str(folder / "card.yaml")
    code, out, _ = typed(capsys, "deploy", "rotate-keys", "b", "--card", card, "--folder", study, "--yes")
    assert code == 0 and "to north, south, a, c: it takes the place of their parties/b.yaml" in out
    assert out.splitlines()[-1] == load_config(tmp_path / "study" / "operator" / "run.yaml").sha256


def test_the_status_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsyn.front.cli import console

    monkeypatch.setattr(console.out_console, "_width", 80)
    holders = tuple(
        HolderStatus(f"hospital-{k}", k, status, 3600.0 * k, "2546-a06b-054e-a312-b477")
        for k, status in enumerate(("online", "offline", "never seen", "not registered", "revoked"))
    )
    runs = (RunStatus("18446744073709551615", "3f9c2a1b7d", "finished (completed)", 86400.0, "/srv/fedsyn/first", 10),)
    _show_status(Status("study", "superlink.example.org:8000", "up", 2, 24.0, holders, runs))
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines()), said
    assert (
        "its certificate ends in 24 days" in said
        and "hospital-4" in said
        and "never seen" in said
        and "3f9c2a1b7d finished" in said
        and "18446744073709551615" not in said  # Flower's number is for programs: --json
    )


def test_pages_for_whoever_watches() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    web = Pages(
        address,
        {"/healthz": lambda: (200, "text/plain", "ok\n"), "/readyz": lambda: (503, "text/plain", "not yet\n")},
    )
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as answer:
            assert answer.read() == b"ok\n"
        for path, status in (("/readyz", 503), ("/", 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://{address}{path}", timeout=5)
            assert caught.value.code == status
    finally:
        web.close()
