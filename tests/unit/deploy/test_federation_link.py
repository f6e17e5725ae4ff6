"""The gate before the SuperLink, and the registry as federation.yaml has it (real ones: tests/e2e/test_deploy.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from fedsyn.deploy import ordering, status
from fedsyn.deploy import superlink as supervised
from fedsyn.deploy.federation import FederationFile, HolderEntry, OperatorFolder, SuperLinkNode, place_of
from fedsyn.deploy.init import init
from fedsyn.deploy.plan import FederationPlan
from fedsyn.deploy.status import found_run, name_of
from fedsyn.deploy.superlink import SuperLinkProcess, agree, link_pid, only_one
from fedsyn.errors import ConfigError, RunError
from fedsyn.flower import private
from fedsyn.flower import superlink as gate
from fedsyn.flower.control import Control, NodeFacts, RunState
from fedsyn.flower.guard import GUARDED
from fedsyn.flower.superlink import HEADER, Gate, allowed
from fedsyn.health import Pages
from fedsyn.keys.holder_keys import new_keys
from fedsyn.loading import parse_config
from fedsyn.runs.deployment import FOLDER
from fedsyn.runs.run_config import run_config_of

EVERYWHERE, HERE = "0.0.0.0", "192.0.2.1"
PRIVILEGED = (
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/runtime/acquire-task",
    "/docs",
    "/openapi.json",
    "/",
)


@pytest.mark.parametrize("path", PRIVILEGED)
@pytest.mark.parametrize("caller", ["192.0.2.7", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.7", "not an address"])
def test_others_get_the_fleet_api_and_nothing_else(path: str, caller: str) -> None:
    for listen in (EVERYWHERE, HERE, "::", "", "link.example.org"):
        assert not allowed(path, (caller, 1), listen)
        assert allowed("/v1/fleet/pull-messages", (caller, 1), listen)
        assert not allowed("/v1/fleet", (caller, 1), listen) and not allowed("/V1/Fleet/x", (caller, 1), listen)


@pytest.mark.parametrize("caller", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", "::ffff:192.0.2.1"])
def test_this_machine_gets_all(caller: str) -> None:
    assert all(allowed(path, (caller, 1), HERE) for path in PRIVILEGED)
    local = "192" not in caller  # listening everywhere, only loopback is sure to be this machine
    assert all(allowed(path, (caller, 1), EVERYWHERE) is local for path in PRIVILEGED)
    assert not allowed(PRIVILEGED[0], None, HERE)


LATE = """
import http.server, sys, time
port, header, value = int(sys.argv[1]), sys.argv[2], sys.argv[3]
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if time.monotonic() > until:
            time.sleep(60)
        self.send_response(200)
        self.send_header(header, value)
        self.end_headers()
    def log_message(self, *_):
        pass
time.sleep(1.5)
until = time.monotonic() + 1.0
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_superlink_that_starts_slowly_is_let_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers late, which is waited for; then falls silent, and is started again."""
    root = tmp_path / "study"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    init(FederationPlan("study", ("north", "south"), port=port, insecure=True), root)
    place = place_of(root)
    place.state.mkdir(exist_ok=True)
    header = [each.decode() for each in HEADER]
    monkeypatch.setattr(supervised, "_command", lambda *_: [sys.executable, "-c", LATE, str(port), *header])
    monkeypatch.setattr(supervised, "SILENCE", 0.5)
    link, said, deadline = SuperLinkProcess(place, place.load()), list[str](), time.monotonic() + 60.0
    monkeypatch.setattr(supervised, "ASK", 0.1)
    try:
        while not any("silent" in each for each in said):
            assert time.monotonic() < deadline, said
            if what := link.tend():
                said.append(what)
            time.sleep(0.05)
    finally:
        link.stop()
    assert said[0] == "the SuperLink answers" and said[1].startswith("the SuperLink was silent for 0.5 s; starting")


async def _asked(
    path: str, caller: str, headers: list[tuple[bytes, bytes]], kind: str = "http", past: bool = False
) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"let through"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        assert path.startswith("/v1/fleet/"), "nobody reads a refused request"
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": kind, "path": path, "client": (caller, 1), "server": (HERE, 8000), "headers": headers}
    scope["extensions"] = {} if past else {GUARDED: {}}
    await Gate(app)(scope, receive, send)
    return sent


def test_the_gate_answers_before_the_app_does() -> None:
    import asyncio

    def ask(*given: Any, **named: Any) -> list[dict[str, Any]]:
        return asyncio.run(_asked(*given, **named))

    past_the_door = ask("/v1/control/start-run", "127.0.0.1", [], past=True)
    assert all(name != b"x-fedsyn-gate" for name, _ in past_the_door[0]["headers"])  # a supervisor takes it for none
    through = ask("/v1/control/start-run", "127.0.0.1", [])
    assert through[0]["status"] == 200 and (b"x-fedsyn-gate", b"1") in through[0]["headers"]
    for path, caller, headers in (
        ("/v1/control/start-run", "192.0.2.7", []),
        ("/v1/control/start-run", "127.0.0.1", [(b"x-forwarded-for", b"127.0.0.1")]),
        ("/v1/runtime/acquire-task", "127.0.0.1", [(b"forwarded", b"for=127.0.0.1")]),
    ):
        refused = ask(path, caller, headers)
        assert refused[0]["status"] == 403 and b"let through" not in refused[1]["body"]
    assert ask("/v1/fleet/heartbeat", "192.0.2.7", [(b"via", b"proxy")])[0]["status"] == 200
    assert ask("/v1/control/x", "127.0.0.1", [], kind="websocket") == [{"type": "websocket.close", "code": 1008}]


class Registry:
    """A SuperLink's registry with Flower's rule: a key is registered once, for good."""

    def __init__(self) -> None:
        self.listed: list[NodeFacts] = []

    def nodes(self) -> list[NodeFacts]:
        return list(self.listed)

    def register(self, key: str, name: str) -> int:
        assert all(node.key != key for node in self.listed), "Flower refuses a key that it has seen"
        self.listed.append(NodeFacts(len(self.listed) + 1, name, key, "registered", 0.0))
        return len(self.listed)

    def unregister(self, node: int) -> None:
        old = self.listed[node - 1]
        self.listed[node - 1] = NodeFacts(old.id, old.name, old.key, "unregistered", 0.0)

    @property
    def known(self) -> list[str]:
        return [node.name for node in self.listed if node.status != "unregistered"]


def federation(*names: str) -> FederationFile:
    cards = [new_keys(name).card for name in names]
    holders = tuple(
        HolderEntry(name=card.name, partition=k, node=card.node, identity=card.identity) for k, card in enumerate(cards)
    )
    return FederationFile(name="f", superlink=SuperLinkNode(hosts=("localhost",)), operator="0" * 64, holders=holders)


def test_the_superlink_is_made_to_agree_and_asked_twice_does_nothing() -> None:
    registry = Registry()
    control, stands = cast("Control", registry), federation("north", "south")
    assert [sentence.split(" (")[0] for sentence in agree(control, stands)] == ["registered north", "registered south"]
    assert list(agree(control, stands)) == []

    south = stands.holder("south")
    new = new_keys("south").card
    rotated = stands.replaced(south.model_copy(update={"node": new.node, "identity": new.identity}))
    told = list(agree(control, rotated))
    assert told[0] == "unregistered a node that federation.yaml does not have: south"
    assert registry.known == ["north", "south"] and registry.listed[-1].key == new.node
    assert list(agree(control, rotated)) == []

    revoked = rotated.replaced(rotated.holder("north").model_copy(update={"revoked": "2026-01-01"}))
    list(agree(control, revoked))
    assert registry.known == ["south"]
    assert list(agree(control, revoked)) == []  # also after a restart
    told = list(agree(control, rotated))  # somebody has edited the file
    assert len(told) == 1 and "north's key was unregistered, and Flower never takes it again" in told[0]


def test_a_stranger_is_unregistered() -> None:
    registry = Registry()
    registry.register(new_keys("stranger").card.node, "stranger")
    list(agree(cast("Control", registry), federation("north")))
    assert registry.known == ["north"]


def test_an_app_that_flower_made_early_is_behind_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    app, answers = FastAPI(), list[int]()
    app.add_api_route("/{path:path}", lambda path: path)

    async def ask(app: Any, caller: str) -> None:
        transport = httpx.ASGITransport(app, client=(caller, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://link") as client:
            answers.extend([(await client.get(path)).status_code for path in PRIVILEGED])

    def run(app: Any, **named: Any) -> None:
        for caller in ("192.0.2.7", named["host"]):
            asyncio.run(ask(app, caller))

    command = SimpleNamespace()
    command.flower_superlink = lambda: command.uvicorn.run(app=app, host=HERE, port=1)
    for name, value in (("superlink_command", command), ("update_console_handler", lambda *_, **__: None)):
        monkeypatch.setattr(private, name, value, raising=False)
    monkeypatch.setattr(gate, "guarded_run", run)
    monkeypatch.setattr(gate, "no_tracebacks", lambda: None)
    monkeypatch.setattr(sys, "argv", ["superlink"])
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "")
    gate.main()
    assert answers == [403] * len(PRIVILEGED) + [200] * len(PRIVILEGED)


def test_what_answers_without_the_gate_is_not_taken_for_the_superlink(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    made = init(FederationPlan("study", ("a", "b"), port=port, insecure=True), tmp_path / "study")
    superlink = SuperLinkProcess(made.place, made.federation)
    stranger = Pages(f"127.0.0.1:{port}", {"/health": lambda: (200, "text/plain", "")})
    try:
        with pytest.raises(RunError, match="is not behind fedsyn's gate"):
            superlink._answers()
    finally:
        stranger.close()
        superlink.stop()
    assert not superlink._answers()
    superlink.stop()


def test_one_link_at_a_time(tmp_path: Path) -> None:
    init(FederationPlan("study", ("a", "b")), tmp_path / "study")
    place = place_of(tmp_path / "study")
    assert link_pid(place) is None
    with only_one(place), pytest.raises(ConfigError, match="is running already"), only_one(place):
        pass
    assert link_pid(place) is None


def placed(folder: Path, *names: str) -> tuple[OperatorFolder, FederationFile]:
    stands = federation(*names)
    (folder / "federation.yaml").write_text(stands.dumps(), encoding="utf-8")
    return OperatorFolder(folder), stands


def test_a_run_asks_its_holders_and_no_other_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three clients a fourth holder, who has just been added, is left out: the others do not know it yet."""
    place, stands = placed(tmp_path, "north", "south", "lake", "west")
    registry = Registry()
    list(agree(cast("Control", registry), stands))
    monkeypatch.setattr(ordering, "control_of", lambda *_: contextlib.nullcontext(registry))
    config = parse_config({"data": {"source": "study"}, "epsilon": 1, "delta": 1e-6, "federation": {"clients": 3}})
    asked, absent = ordering.addressed(config, place, stands)
    assert absent == ["north", "south", "lake"]  # of those that are asked
    assert asked.runtime.holders == {0: "north", 1: "south", 2: "lake"}
    assert asked.runtime.nodes == {1: 0, 2: 1, 3: 2} and asked.sha256 == config.sha256
    again = parse_config(json.loads(run_config_of(asked)["resolved"]))  # as it arrives at the ServerApp
    assert again.runtime.nodes == {1: 0, 2: 1, 3: 2}
    away = stands.replaced(stands.holder("south").model_copy(update={"revoked": "2026-01-01"}))
    assert ordering.addressed(config, place, away)[0].runtime.nodes == {1: 0, 3: 2, 4: 3}
    registry.unregister(3)
    with pytest.raises(RunError, match="the SuperLink does not know lake: see what 'fedsyn deploy link' says"):
        ordering.addressed(config, place, stands, patience=0.0)


def test_a_run_is_called_by_its_name_or_how_that_begins() -> None:
    class Runs:
        def runs(self, limit: int) -> list[RunState]:
            names = ("3f9c2a1b7d", "3f00000000", "3f9c2a1b7d")
            return [RunState("running", id=9 - k, settings={"run": name}) for k, name in enumerate(names)]

    control = cast("Control", Runs())
    assert found_run(control, "3f9c").id == found_run(control, "3f9c2a1b7d").id == 9  # resumed: the newest
    assert found_run(control, "8").id == 8 and name_of(found_run(control, "8")) == "3f00000000"
    for run, says in {
        "3f": "several runs begin with '3f': 3f00000000, 3f9c2a1b7d",
        "a": "no run 'a'",
        "": "no run ''",
    }.items():
        with pytest.raises(ConfigError, match=says):
            found_run(control, run)


def test_the_log_of_a_run_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, stands = placed(tmp_path, "north", "south")

    class Client:
        def ListRuns(self, request: Any) -> Any:
            named = SimpleNamespace(string="3f9c2a1b7d")
            run = SimpleNamespace(run_id=77, status=SimpleNamespace(status="running", sub_status="", details=""))
            run.override_config, run.pending_at = {"run": named}, ""
            named.WhichOneof = lambda _: "string"
            return SimpleNamespace(now="2026-01-01T00:00:00+00:00", run_dict={77: run})

        def close(self) -> None:
            """Nothing."""

        def StreamLogs(self, request: Any) -> Iterator[Any]:
            assert request.run_id == 77
            for text in ("one\ntw", "o\nfedsyn-files 3f9c2a1b7d 1/1 AAAA\nthree"):
                yield SimpleNamespace(log_output=text)

    monkeypatch.setattr(status, "control_of", lambda *_: Control(Client(), stands.superlink.local))
    said: list[str] = []
    before = dict(os.environ)
    with ordering.connected(place, stands):
        assert os.environ["FLWR_HOME"] == str(place.flower) and os.environ[FOLDER] == str(tmp_path)
    assert dict(os.environ) == before
    status.follow_log(place, "3f", said.append)
    assert said == ["one", "two", "three"]
