"""A federation with TLS and authentication to which something happens; in the end each ledger is what its node let out.

Four holders, sketch_aim over secure sums against a malicious server, each party in a network namespace of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.deployed import Deployed, check_table, deployed, online
from support.loopback import ROOT
from support.namespaces import Namespaces, namespaces_or_skip

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]
NAMES = ("north", "south", "lake", "hill")
ALWAYS = ("--approval", "always")


@pytest.fixture(scope="module")
def places() -> Iterator[Namespaces]:
    with namespaces_or_skip(1 + len(NAMES)) as made:
        yield made


@pytest.fixture
def federation(tmp_path: Path, places: Namespaces) -> Iterator[Deployed]:
    with deployed(tmp_path, NAMES, places, ALWAYS) as made:
        made.wait_online()
        yield made


def finish(federation: Deployed, run: subprocess.Popen[bytes], patience: float = 900.0) -> None:
    """Waits for an ordered run; it must have succeeded."""
    assert run.wait(patience) == 0, federation.log("run") + federation.logs()


def order(federation: Deployed, rounds: int, *words: str) -> subprocess.Popen[bytes]:
    """`deploy run` in the background."""
    sets = ("--set", f"mechanism.rounds={rounds}", *words)
    return federation.start("run", "deploy", "run", "study", "--out", "out", *sets)


def until_round(federation: Deployed, number: int) -> None:
    federation.wait_for(lambda: any(line["round"] >= number for line in federation.rounds()), 300.0)


def test_ten_rounds_with_four_nodes(federation: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    federation.run("out", timeout=500)
    with capsys.disabled():
        print(f"\nsketch_aim, malicious secure sums, 4 nodes, 10 rounds: {time.monotonic() - started:.1f} s")
    check_table(federation)
    federation.check_ledgers("out")
    # The plan leaves rounds out in which nothing is worth its noise.
    looked, *measured = [line for line in federation.rounds() if line["selected"]]
    assert len(federation.rounds()) == 11 and looked["round"] == 1
    names = [release["name"] for release in federation.ledger()["releases"]]
    first = ["sizes", "one-way", *["arrange"] * ("arrange" in names), "sketch"]  # the released rows say whether
    assert names == [*first, *["measure"] * (len(names) - len(first))]
    assert len(measured) <= len(names) - len(first) <= len(measured) + 1  # round 1 may measure, too
    # The first policy allows epsilon 1 a run: a larger one is refused by every holder, and costs nothing.
    before = {name: federation.charged(name) for name in NAMES}
    refused = federation.run("second", "--set", "privacy.epsilon=1.5", code=1)
    assert "the holder's limit for one run is epsilon = 1 " in refused.stderr, refused.stderr
    assert {name: federation.charged(name) for name in NAMES} == before


def test_a_node_killed_in_every_stage_of_a_sum(federation: Deployed) -> None:
    """North is killed at each new request that it is asked (sizes, enrol, deal, masked, unmask, masked); restarted."""
    run = order(federation, 3)
    seen: set[str] = set()

    def asked_anew() -> bool:
        return bool(set(federation.asked("north")) - seen) or run.poll() is not None

    for _ in range(6):
        federation.wait_for(asked_anew, 300.0)
        assert run.poll() is None, federation.log("run") + federation.logs()
        federation.kill("north")
        seen |= set(federation.asked("north"))
        federation.serve("north")
    finish(federation, run)
    assert len(seen) >= 6
    check_table(federation)  # nobody was dropped
    federation.check_ledgers("out")


def test_the_superlink_killed_in_round_three(federation: Deployed) -> None:
    run = order(federation, 6)
    until_round(federation, 2)
    federation.kill("link")
    time.sleep(1.0)
    federation.link()
    code = run.wait(900.0)
    if code != 0:
        federation.run("out", "--set", "mechanism.rounds=6", "--resume")
    check_table(federation)
    federation.check_ledgers("out")


def test_the_superlinks_process_killed_is_started_again(federation: Deployed) -> None:
    """`deploy link` itself lives: it starts the SuperLink again, which knows its nodes and its runs."""
    run = order(federation, 6)
    until_round(federation, 2)
    facts = federation.operator / "state" / "link.json"
    os.kill(json.loads(facts.read_text(encoding="utf-8"))["superlink"], signal.SIGKILL)
    if run.wait(900.0) != 0:
        federation.run("out", "--set", "mechanism.rounds=6", "--resume")
    assert federation.status()["restarts"] == 1
    check_table(federation)
    federation.check_ledgers("out")


def test_a_late_joiner_and_a_wrong_schema(tmp_path: Path, places: Namespaces) -> None:
    with deployed(tmp_path, NAMES, places, ALWAYS) as federation:
        federation.end("lake")
        federation.end("hill")
        schema = federation.holder("hill") / "schema.yaml"
        schema.write_text(schema.read_text(encoding="utf-8").replace("skin", "bone"), encoding="utf-8")
        federation.serve("hill")
        federation.wait_online("north", "south", "hill")
        run = order(federation, 1)
        time.sleep(6.0)
        federation.serve("lake")
        finish(federation, run)
        joined, first = federation.rounds()
        assert joined["cohort"] == [0, 1, 2] and first["dropped"] == {}
        (missing,) = joined["not_joined"]
        assert "schema" in missing["why"]["sentence"]
        assert federation.charged("hill") == []
        federation.names = NAMES[:3]
        federation.check_ledgers("out")


def test_a_cut_network(federation: Deployed, places: Namespaces) -> None:
    run = order(federation, 6)
    until_round(federation, 2)
    places.cut(1)
    time.sleep(10.0)
    places.cut(1, "up")
    finish(federation, run)
    federation.check_ledgers("out")


def test_a_full_disk(tmp_path: Path, places: Namespaces) -> None:
    """A node that cannot write its charge down lets nothing out; the others go on, and so does it with room again."""
    made = Deployed(tmp_path, NAMES, places, ALWAYS)
    state = made.holder("north") / "state"
    kept = {path.name: path.read_bytes() for path in state.iterdir()}
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "none", str(state)], check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        for name, content in kept.items():
            (state / name).write_bytes(content)
            (state / name).chmod(0o600)
        made.link()
        made.serve()
        made.wait_online()
        run = order(made, 5)
        until_round(made, 2)
        with (state / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"0" * 512)
        finish(made, run)
        made.check_ledgers("out")
        dropped = [line for line in made.rounds() if "0" in line["dropped"]]
        assert dropped, "a full disk went unnoticed"
        assert all(line["round"] >= 2 and "a disk is full" in line["dropped"]["0"]["sentence"] for line in dropped), (
            dropped
        )
        assert dropped[-1] == made.rounds()[-1], "it came back without room"
    finally:
        made.close()
        subprocess.run(["umount", "-l", str(state)], check=True)


SKEW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long skew(void) { const char *text = getenv("SKEW"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, out);
    if (!code && id == CLOCK_REALTIME) out->tv_sec += skew();
    return code;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


def test_a_clock_that_is_off(tmp_path: Path, places: Namespaces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's authentication signs the time: a node an hour ahead is refused, says so, and joins once it is right."""
    if shutil.which("gcc") is None:
        pytest.skip("a clock that is off needs a C compiler here: time namespaces do not cover the time of day")
    (tmp_path / "skew.c").write_text(SKEW, encoding="utf-8")
    library = tmp_path / "skew.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "skew.c"), "-ldl"], check=True)
    made = Deployed(tmp_path, NAMES[:3], places, ALWAYS)
    try:
        made.link()
        made.serve("north", "south")
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("SKEW", "3600")
        made.serve("lake")
        monkeypatch.undo()
        made.wait_online("north", "south")
        made.wait_for(lambda: "clock" in made.log("lake"), 60.0)
        assert made.last_said("lake") is None
        made.end("lake")
        made.serve("lake")
        made.wait_online("lake")
        made.run("out", "--set", "mechanism.rounds=1")
        made.check_ledgers("out")
    finally:
        made.close()


REPLAY = """
import base64, datetime, sys
import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

address, ca, key_file = sys.argv[1:]
key = serialization.load_ssh_private_key(open(key_file, "rb").read(), None)
public = public_key_to_bytes(key.public_key())
for minutes in (0, 10):
    then = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)).isoformat()
    headers = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(key, then.encode())).decode(),
        TIMESTAMP_HEADER: then,
        "content-type": PROTOBUF_MEDIA_TYPE,
        "accept": PROTOBUF_MEDIA_TYPE,
    }
    body = ActivateNodeRequest(public_key=public, heartbeat_interval=30.0).SerializeToString()
    answer = httpx.post(f"https://{address}/v1/fleet/activate-node", content=body, headers=headers, verify=ca)
    print(minutes, answer.status_code)
"""


def test_what_a_node_once_signed_is_refused_later(federation: Deployed, places: Namespaces) -> None:
    """Whoever has recorded a node's headers cannot pass for it: the time in them is over."""
    key, ca = federation.holder("north") / "node.key", federation.operator / "ca.crt"
    federation.end("north")
    done = subprocess.run(
        [*places.prefix(2), sys.executable, "-c", REPLAY, f"{federation.host}:{federation.port}", str(ca), str(key)],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    now, later = (line.split()[1] for line in done.stdout.splitlines())
    assert now != "401" and later == "401", done.stdout + done.stderr


def test_a_node_upgraded_in_the_middle(federation: Deployed, tmp_path: Path) -> None:
    """North goes on with another checkout of fedsyn, of another version, while a run is under way."""
    tree = tmp_path / "upgraded"
    for package in ("fedsyn", "strategies", "clients", "partitioners", "configs"):
        shutil.copytree(ROOT / package, tree / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    version = tree / "fedsyn" / "version.py"
    version.write_text(version.read_text(encoding="utf-8").replace("0.1.0", "0.1.1"), encoding="utf-8")
    run = order(federation, 5)
    until_round(federation, 2)
    federation.end("north")
    federation.serve("north", tree=tree)
    finish(federation, run)
    check_table(federation)
    federation.check_ledgers("out")


def test_new_keys_and_a_removed_holder_in_a_running_federation(federation: Deployed) -> None:
    """South makes keys of its own, and hill is removed, while the SuperLink runs; it is restarted in between."""
    federation.end("south")
    subprocess.run(
        [sys.executable, "-m", "fedsyn.front.cli", "node", "new-keys", "node.yaml"],
        cwd=federation.holder("south"),
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )
    card = federation.holder("south") / "south.card.yaml"
    said = federation.call("deploy", "rotate-keys", "south", "--card", str(card), "--folder", "study", "--yes").stdout
    assert "the SuperLink knows" in said
    said = federation.call("deploy", "remove", "hill", "--folder", "study").stdout
    assert "hill is out, for good" in said and "the SuperLink knows" in said
    federation.wait_for(lambda: "hill" not in online(federation), 60.0)
    assert "unregistered a node that federation.yaml does not have: hill" in federation.log("link")
    for name in ("north", "lake"):  # the operator's command has written their rosters here; they read them anew
        federation.end(name)
    federation.call("deploy", "stop", "study")
    federation.processes.pop("link").wait(10.0)
    federation.link()
    federation.serve("north", "south", "lake")
    federation.wait_for(lambda: online(federation) == {"north", "south", "lake"}, 60.0)
    federation.run("out", "--set", "mechanism.rounds=1")  # for three holders, as the command has written it
    assert federation.rounds()[0]["cohort"] == [0, 1, 2]
    assert federation.charged("hill") == []
