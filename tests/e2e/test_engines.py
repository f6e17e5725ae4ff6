"""The engine of a run changes nothing in its result: serial, process pool, Ray, and `flwr run` typed by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsyn.loading import load_config
from fedsyn.runs.engines import run
from support.flower_page import CLIENTS, check_table, exports, write_app
from support.loopback import BIN, ROOT, environment, fedsyn_run
from support.run_folders import assert_same_result, read_lines, without_times
from support.typed_flower import processes_with, run_to_its_end

pytestmark = pytest.mark.xdist_group("flower")

CONFIG = """\
mechanism: {name: augflaim, rounds: 3}
data: {source: synthfs, bins: 6, options: {beta: 1.0, clients: 4, rows: 400, features: 3}}
federation: {clients: 4, sampling_rate: 0.6, max_participations: 2, partition: native}
privacy: {epsilon: 5.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
evaluation: [workload_error, nll]
runtime: {engine: inprocess, seed: 3}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("engines") / "run.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def serial(config: Path) -> Path:
    out = config.parent / "serial"
    run(load_config(config), out)
    return out


def test_the_seed_alone_decides_the_result(config: Path, serial: Path) -> None:
    again, other = config.parent / "again", config.parent / "other"
    run(load_config(config), again)
    run(load_config(config, ["runtime.seed=4"]), other)
    assert_same_result(again, serial)
    assert (other / "synthetic.csv").read_bytes() != (serial / "synthetic.csv").read_bytes()


@pytest.mark.slow
def test_ray_gives_the_serial_result(config: Path, serial: Path) -> None:
    out = config.parent / "ray"
    fedsyn_run(config, out, "runtime.engine=ray")
    assert_same_result(out, serial)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]  # the clients' rows are not left behind


#: Runs a command that hears an interruption, also where a shell has started the tests in the background.
LISTENING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_ray_behind(config: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/environ").exists():
        pytest.skip("finding the processes of Ray needs /proc")
    home, out = tmp_path / "home", tmp_path / "out"
    command = [str(BIN / "fedsyn"), "run", str(config), "--out", str(out), "--set", "mechanism.rounds=5000"]
    command += ["--set", "federation.max_participations=null"]
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, *command, "--set", "runtime.engine=ray"],
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while not (out / "rounds.jsonl").is_file() or len(read_lines(out / "rounds.jsonl")) < 2:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.2)
        assert len(processes_with(home)) > 3  # it, and Ray's
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) != 0
        deadline = time.monotonic() + 30
        while processes_with(home) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not processes_with(home)
        assert not [path for path in out.iterdir() if path.name.startswith(".")]
    finally:
        for left in processes_with(home):
            os.kill(left, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_thousand_clients_on_ray(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    sets = ["data.options.clients=1000", "data.options.rows=20000", "federation.clients=1000"]
    sets += ["federation.sampling_rate=0.1", "runtime.engine=ray"]
    fedsyn_run(file, tmp_path / "out", *sets, timeout=600)
    _, rounds, _ = without_times(tmp_path / "out")
    assert rounds[0]["cohort"] == list(range(1000))
    assert all(record["dropped"] == {} for record in rounds)


@pytest.mark.slow
def test_flwr_run_typed_by_hand_in_a_fresh_clone(clone: Path, own_flower: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    sized = ["--federation-config", "num-supernodes=5"]  # without it, Flower simulates two
    run_to_its_end(["run", ".", "--run-config", f'out="{out}"', *sized], clone, own_flower)
    metrics, rounds, _ = without_times(out)
    assert {"workload_error", "nll"} <= metrics.keys()
    assert len(rounds) == 6 and rounds[0]["cohort"] == list(range(5))


@pytest.mark.slow
def test_the_app_of_the_page_for_flower_users(own_flower: dict[str, str], tmp_path: Path) -> None:
    app = write_app(tmp_path / "app")
    files = f'rows="{app / "rows"}" out="{app / "synthetic.csv"}"'
    sized = ["--federation-config", f"num-supernodes={CLIENTS}"]
    # A SuperLink that is not told so asks a package index for fedsyn: the page has to tell it, not this test.
    mine = {name: value for name, value in own_flower.items() if not name.startswith("FLWR_DISABLE")}
    assert exports()["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    run_to_its_end(["run", ".", "--run-config", files, *sized], app, mine | exports() | {"PYTHONPATH": str(ROOT)})
    check_table(app / "synthetic.csv")
