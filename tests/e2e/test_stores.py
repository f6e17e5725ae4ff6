"""A store under whole runs: parties that see nothing open what a trusted server would, bit for bit, on every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsyn.config import RuntimeNode
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.front.testing.bench import equal_arrays
from fedsyn.front.testing.faults import garble, vanish
from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.loading import load_config, parse_config
from fedsyn.protocol import exchange
from fedsyn.protocol.stored import Answers
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.runs.engines import run
from fedsyn.stores.parties.local import LocalParties
from fedsyn.wire.holder import Holder
from support.halves import asked as call_of
from support.loopback import fedsyn_run
from support.run_folders import read_lines

pytestmark = pytest.mark.xdist_group("flower")

CONFIG = """\
mechanism: {name: distaim, rounds: 3}
data: {source: synthfs, bins: 6, options: {beta: 1.0, clients: 6, rows: 600, features: 4}}
federation: {clients: 6, sampling_rate: 0.6, minimum_cohort: 3, partition: native}
privacy: {epsilon: 5.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
aggregation: {protocol: mpc, noise: distributed}
evaluation: [workload_error, nll]
runtime: {engine: inprocess, seed: 3}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("stores") / "run.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def parties(config: Path) -> Path:
    out = config.parent / "parties"
    run(load_config(config), out)
    assert all(record["dropped"] == {} for record in read_lines(out / "rounds.jsonl"))
    return out


def same_result(one: Path, two: Path) -> None:
    """Tables, models, released facts and charges."""
    assert (one / "synthetic.csv").read_bytes() == (two / "synthetic.csv").read_bytes()
    with np.load(one / "model.npz") as ours, np.load(two / "model.npz") as theirs:
        assert equal_arrays(dict(ours), dict(theirs))
    ledgers = [json.loads((folder / "ledger.json").read_text(encoding="utf-8")) for folder in (one, two)]
    assert ledgers[0]["releases"] == ledgers[1]["releases"] and ledgers[0]["epsilon"] == ledgers[1]["epsilon"]
    assert (one / "rounds.jsonl").read_bytes() == (two / "rounds.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("score", "sizes"),
    [("l1", "private"), pytest.param("l1", "public", marks=pytest.mark.slow), ("squared_l2", "public")],
)
def test_who_keeps_the_store_does_not_change_its_bits(config: Path, score: str, sizes: str) -> None:
    """Shares add up exactly, scores are integers, and each party draws the noise that the simulation draws for it."""
    sets = [f"mechanism.score={score}", f"privacy.client_sizes={sizes}"]
    outs = [config.parent / f"{score}-{sizes}-{protocol}" for protocol in ("mpc", "plain")]
    for out, protocol in zip(outs, ("mpc", "plain"), strict=True):
        run(load_config(config, [*sets, f"aggregation.protocol={protocol}"]), out)
    same_result(*outs)
    # It does change what is sent, or the comparison would be of a store with itself.
    metrics = [json.loads((out / "metrics.json").read_text(encoding="utf-8")) for out in outs]
    assert metrics[0]["client_mb_up"] > metrics[1]["client_mb_up"]
    assert metrics[0]["party_mb"] > 0 and metrics[0]["party_rounds"] > 0 and "party_mb" not in metrics[1]


def test_a_malicious_threat_model_opens_the_same(config: Path, parties: Path) -> None:
    out = config.parent / "malicious"
    run(load_config(config, ["aggregation.threat=malicious"]), out)
    same_result(out, parties)


@pytest.mark.slow  # test_engines runs another mechanism on Ray by default
def test_ray_gives_the_serial_result(config: Path, parties: Path) -> None:
    out = config.parent / "ray"
    fedsyn_run(config, out, "runtime.engine=ray")
    same_result(out, parties)


# Clients -------------------------------------------------------------------------------------------------------------

TABLE = awkward_table("missing_values")
CODES = TABLE.encode()
MPC = {"protocol": "mpc", "noise": "distributed"}


def federation(clients: int = 6) -> Federation:
    return Federation(TABLE, tuple(CODES[k::clients] for k in range(clients)))


@pytest.mark.parametrize("kind", range(4))
def test_a_client_that_deals_nonsense_costs_itself_only(kind: int) -> None:
    """What is opened is that of the same run without it."""
    config = config_of("distaim", 6, {"rounds": 3}, aggregation=MPC)
    outcome = finished(execute(config, federation(), faults={2: garble(1, kind)}))
    without = finished(execute(config, federation(), faults={2: vanish(1)}))
    assert outcome.dropped == {2} == without.dropped
    assert equal_arrays(outcome.arrays, without.arrays)


def test_a_client_that_never_deals_is_missing_and_that_is_all() -> None:
    config = config_of("distaim", 6, {"rounds": 3}, aggregation=MPC)
    outcome = finished(execute(config, federation(), faults={0: vanish(1), 5: vanish(1)}))
    assert outcome.dropped == {0, 5}
    assert outcome.strategy.store is not None and list(outcome.strategy.store.dealt) == [1, 2, 3, 4]


def test_too_few_deals_open_nothing() -> None:
    config = config_of("distaim", 6, {"rounds": 3}, aggregation=MPC, federation={"minimum_cohort": 5})
    outcome = execute(config, federation(), faults={k: vanish(1) for k in (0, 1)})
    assert outcome.error is not None and not outcome.strategy.ledger.releases


# Parties -------------------------------------------------------------------------------------------------------------


def test_a_party_that_fails_ends_the_run_in_one_sentence_and_what_was_charged_stands(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, asked = LocalParties.choose, []

    def fails(self: LocalParties, order: Any) -> int:
        asked.append(order)
        if len(asked) == 2:
            assert self.network is not None
            self.network.abort("party 1 is gone")
        return choose(self, order)

    monkeypatch.setattr(LocalParties, "choose", fails)
    out = config.parent / "gone"
    with pytest.raises(RunError) as caught:
        run(load_config(config), out)
    assert "party" in str(caught.value) and "\n" not in str(caught.value)
    assert not (out / "synthetic.csv").exists()
    ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    names = [entry["name"] for entry in ledger["releases"]]
    assert names == ["sizes", "one-way", "select", "measure", "select"]  # the second choice was charged, never opened


# The server's inbox --------------------------------------------------------------------------------------------------


def dealt_bytes(monkeypatch: pytest.MonkeyPatch, protocol: str) -> list[bytes]:
    """The largest array of each client's deal, as it reaches the server, in several runs."""
    seen: list[bytes] = []
    checked = exchange._checked

    def kept(partition: int, name: str, answer: Any) -> Any:
        if name == "deal":
            seen.append(max((array.tobytes() for array in answer.read()[0]), key=len))
        return checked(partition, name, answer)

    monkeypatch.setattr(exchange, "_checked", kept)
    config = config_of("distaim", 6, {"rounds": 1}, aggregation={"protocol": protocol, "noise": "distributed"})
    for _ in range(20):
        finished(execute(config, federation()))
    monkeypatch.setattr(exchange, "_checked", checked)
    return seen


@pytest.mark.slow
def test_what_the_server_carries_is_uniform_though_the_tables_hold_small_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chi-square over the 256 bytes: 20 runs of 6 clients with thousands of bytes each. False-alarm rate 1e-6."""
    for protocol, uniform in (("mpc", True), ("plain", False)):
        letters = dealt_bytes(monkeypatch, protocol)
        assert len(letters) == 120
        hits = np.bincount(np.frombuffer(b"".join(letters), np.uint8), minlength=256)
        assert (stats.chisquare(hits).pvalue > 1e-6) == uniform
    assert len(set(dealt_bytes(monkeypatch, "mpc"))) == 120  # and never the same twice


def test_a_real_client_takes_no_partys_key_from_the_server() -> None:
    config = config_of("distaim", 2, {"rounds": 1}, aggregation=MPC, runtime={"seed": None})
    config = config.model_copy(update={"runtime": RuntimeNode(engine="deployment", superlink="x")})
    with pytest.raises(ConfigError, match=r"aggregation\.parties"):  # its author would have been told
        parse_config(config.to_dict())
    holder = Holder(0, CODES, TABLE.schema.domain, TABLE.schema.sha256, Randomness(None))
    client = client_class("distaim")(config, holder)
    keys = b"".join(LocalParties(Randomness(None)).keys)
    arrays = [np.zeros(32, np.uint8), np.frombuffer(keys, np.uint8), np.array([0])]
    with pytest.raises(ProtocolError, match=r"aggregation\.parties is missing"):
        client._deal(client.deal, call_of(client, Answers(rho=1e-3), arrays))
    assert not client.ledger.releases
