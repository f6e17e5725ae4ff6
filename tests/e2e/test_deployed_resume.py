"""Runs whose SuperLink, ServerApp or node is killed: they end with the cause, are resumed, and nobody pays twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsyn.ledgers.node_ledger import NodeLedger
from fedsyn.node.file import load_node_file
from support.loopback import BIN
from support.resuming import Machines, ended, rounds, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]

LEFT = {
    "README.md",
    "config.yaml",
    "ledger.json",
    "measured.jsonl",
    "metrics.json",
    "measurements.npz",
    "model.npz",
    "predicted_quality.json",
    "report_public.html",
    "rounds.jsonl",
    "schema.yaml",
    "synthetic.csv",
}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    started = Machines(tmp_path)
    try:
        yield started
    finally:
        started.close()


def check_finished(machines: Machines, out: Path, done: tuple[int, str, str]) -> None:
    """The run has finished as if nothing had happened, and each node has paid what the server has entered."""
    assert done[0] == 0, done[2] + machines.logs()
    assert {file.name for file in out.iterdir()} == LEFT
    ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] and ledger["epsilon"] <= 1.0
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]
    # The plan leaves rounds out in which nothing is worth its noise; round 1 looks, and may measure, too.
    measured, names = sum(1 for line in lines[2:] if line["selected"]), [entry["name"] for entry in ledger["releases"]]
    looks = [*["arrange"] * ("arrange" in names), "sketch"]  # how many rows there are, and so whether, is released
    before = ["sizes", "one-way", *looks]
    assert names == [*before, *["measure"] * (len(names) - len(before))]
    assert measured <= len(names) - len(before) <= measured + 1
    for number in range(3):
        spent = node_rho(machines, number)
        assert spent == pytest.approx(ledger["rho"], rel=0.02), f"node {number} has paid another amount"


def node_rho(machines: Machines, number: int) -> float:
    """What a node has paid in its table's life, by its own ledger."""
    file = load_node_file(machines.folder / f"node-{number}" / "node.yaml")
    return NodeLedger(file.ledger_file, file.policy.limits).spent


def check_stopped(done: tuple[int, str, str], cause: str) -> None:
    code, _, said = done
    assert code == 1 and "Traceback" not in said, said
    named, why = said.strip().splitlines()  # the run's name, and why it ended
    assert named.startswith("run ") and cause in why and "--resume" in why, said


def test_a_killed_superlink_costs_nothing_but_time(machines: Machines, tmp_path: Path) -> None:
    """Its database is all that it keeps. A node is killed as well, and comes back."""
    out = tmp_path / "out"
    run = machines.run(out)
    wait_for(lambda: rounds(out) >= 1, "round 0", run, machines)  # the later ones may need nobody
    machines.kill("superlink")
    machines.kill("node-1")
    check_stopped(ended(run), "has not answered for 6 s")
    again = subprocess.run(
        [sys.executable, "-m", "fedsyn.front.cli", "run", str(machines.folder / "run.yaml"), "--out", str(out)],
        env=machines.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 2 and "--resume" in again.stderr and "--force" in again.stderr
    machines.start_link()
    machines.start_node(1)
    check_finished(machines, out, ended(machines.run(out, "--resume")))
    done = ended(machines.run(out, "--resume"))
    assert done[0] == 2 and "has finished" in done[2]


def test_a_killed_server_app_is_noticed_and_goes_on(machines: Machines, tmp_path: Path) -> None:
    """The SuperLink notices that the ServerApp's heartbeat is missing, and calls the run failed."""
    out = tmp_path / "out"
    run = machines.run(out)
    wait_for(lambda: rounds(out) >= 2, "round 1", run, machines)
    os.kill(machines.server_app(), signal.SIGKILL)
    check_stopped(ended(run, 400), "ended without a result")
    other = machines.run(out, "--resume", "--set", "privacy.epsilon=2")
    done = ended(other)
    assert done[0] == 2 and "another configuration" in done[2]
    check_finished(machines, out, ended(machines.run(out, "--resume")))


def test_a_superlink_without_a_database_forgets_the_run(tmp_path: Path) -> None:
    machines = Machines(tmp_path, database=False)
    try:
        out = tmp_path / "out"
        run = machines.run(out, "--set", "runtime.patience=60")
        wait_for(lambda: rounds(out) >= 1, "round 0", run, machines)  # the later ones may need nobody
        machines.kill("superlink")
        machines.start_link()
        check_stopped(ended(run), "knows no run")
        check_finished(machines, out, ended(machines.run(out, "--resume")))
    finally:
        machines.close()


def test_the_directory_comes_back_from_another_machine(machines: Machines, tmp_path: Path) -> None:
    """The starter has a disk of its own: a mount that no other process sees."""
    out, copy = tmp_path / "mine" / "out", tmp_path / "copy"
    (tmp_path / "mine").mkdir()
    command = f"{sys.executable} -m fedsyn.front.cli run {tmp_path}/run.yaml --out {out}"
    script = f"mount -t tmpfs none {tmp_path}/mine && {command} && ls -A {out} && cp -r {out} {copy}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=machines.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip("this system lets nobody mount")
    assert done.returncode == 0, done.stderr + machines.logs()
    assert not out.exists() and {file.name for file in copy.iterdir()} == LEFT
    (there,) = (tmp_path / "runs").iterdir()
    assert {file.name for file in there.iterdir()} == LEFT, "the journal is gone there, too"
    for name in LEFT:
        assert (copy / name).read_bytes() == (there / name).read_bytes()
    assert "bytes_up" not in machines.log("superlink")


def test_what_cannot_begin_says_why_in_one_sentence(machines: Machines, tmp_path: Path) -> None:
    done = ended(machines.run(tmp_path / "a", "--set", "runtime.superlink=loopbak"))
    assert done[0] == 2 and "did you mean 'loopback'" in done[2] and "Traceback" not in done[2]
    assert len(done[2].strip().splitlines()) == 1 and not (tmp_path / "a").exists()
    machines.kill("superlink")
    done = ended(machines.run(tmp_path / "b"))
    assert done[0] == 1 and "does not answer" in done[2] and "nothing was submitted" in done[2]
    machines.start_link()
    # What `flwr run` submits is read by the ServerApp alone: the cause is in its folder, and in its log.
    out = tmp_path / "c"
    text = f"config = 'configs/nope.yaml'\nout = '{out}'\n"
    (tmp_path / "flower.toml").write_text(text, encoding="utf-8")
    app = Path(__file__).resolve().parents[2]
    flwr = [str(BIN / "flwr"), "run", str(app), "loopback", "--stream", "--run-config", str(tmp_path / "flower.toml")]
    streamed = subprocess.run(
        flwr, env=machines.environment, capture_output=True, text=True, timeout=200, check=False
    ).stdout
    error = json.loads((out / "error.json").read_text(encoding="utf-8"))
    assert error["kind"] == "input" and "nope.yaml" in error["sentence"]
    assert error["sentence"] in streamed.replace("\n", " ") or "nope.yaml" in streamed
    assert streamed.count("Traceback") <= 1
