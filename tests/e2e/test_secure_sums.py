"""Secure sums under whole runs: the same bits on every engine and as plain sums, dropouts, and the server's inbox."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsyn.flower import Message
from fedsyn.flower.messages import read_reply
from fedsyn.front.testing.bench import equal_arrays
from fedsyn.front.testing.faults import Fault, garble, vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.keys.holder_keys import new_identity
from fedsyn.loading import load_config
from fedsyn.runs.engines import run
from fedsyn.table.schema import CategoricalColumn, Schema
from fedsyn.table.schema.columns import Column
from support.loopback import BIN, fedsyn_run
from support.loopback import Federation as Loopback
from support.run_folders import assert_same_result, read_lines, without_times

pytestmark = pytest.mark.xdist_group("flower")

# Engines -----------------------------------------------------------------------------------------------------------

CONFIG = """\
mechanism: {name: augflaim, rounds: 2}
data: {source: synthfs, bins: 6, options: {beta: 1.0, clients: 6, rows: 600, features: 3}}
federation: {clients: 6, sampling_rate: 0.8, minimum_cohort: 3, partition: native}
privacy: {epsilon: 5.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
aggregation: {protocol: secagg, noise: distributed, corrupted: 0.2, dropout: 0.2}
evaluation: [workload_error, nll]
runtime: {engine: inprocess, seed: 3}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secure") / "run.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def serial(config: Path) -> Path:
    out = config.parent / "serial"
    run(load_config(config), out)
    _, rounds, _ = without_times(out)
    assert all(record["dropped"] == {} for record in rounds)
    return out


@pytest.mark.slow  # test_engines runs another mechanism on Ray by default
def test_ray_gives_the_serial_result(config: Path, serial: Path) -> None:
    out = config.parent / "ray"
    fedsyn_run(config, out, "runtime.engine=ray")
    assert_same_result(out, serial)


@pytest.mark.parametrize(
    "sets",
    [
        ["aggregation.protocol=plain"],
        ["aggregation.threat=malicious"],
    ],
    ids=["plain", "malicious"],
)
def test_how_a_sum_is_protected_does_not_change_its_bits(config: Path, serial: Path, sets: list[str]) -> None:
    """Masks cancel exactly, and a client draws the same share of the noise under every protocol."""
    out = config.parent / "-".join(sets)
    run(load_config(config, sets), out)
    assert (out / "synthetic.csv").read_bytes() == (serial / "synthetic.csv").read_bytes()
    with np.load(out / "model.npz") as ours, np.load(serial / "model.npz") as theirs:
        assert equal_arrays(dict(ours), dict(theirs))
    ledgers = [json.loads((folder / "ledger.json").read_text(encoding="utf-8")) for folder in (out, serial)]
    assert ledgers[0]["releases"] == ledgers[1]["releases"] and ledgers[0]["epsilon"] == ledgers[1]["epsilon"]
    (ours_metrics, ours_rounds, ours_costs), (metrics, rounds, costs) = without_times(out), without_times(serial)
    for name in ("workload_error", "nll"):
        assert ours_metrics[name] == metrics[name]
    assert [r["cohort"] for r in ours_rounds] == [r["cohort"] for r in rounds]
    # It does change what is sent, or the comparison would be of a protocol with itself.
    assert [c["bytes_up"] for c in ours_costs] != [c["bytes_up"] for c in costs]


# Dropouts ----------------------------------------------------------------------------------------------------------

CLIENTS = 10
SIZES = (5, 7, 4)
STAGES = ("enrol", "deal", "masked", "unmask")
AGGREGATION = {"noise": "distributed", "corrupted": 0.1, "dropout": 0.2}  # 8 of 10 are needed, 2 may drop out
MODE = {"protocol": "secagg", **AGGREGATION}


def federation(sizes: tuple[int, ...] = SIZES, rows: int = 300) -> Federation:
    """Ten clients; the last one has no rows."""
    columns: dict[str, Column] = {
        f"c{i}": CategoricalColumn(categories=tuple(range(n)), other=False) for i, n in enumerate(sizes)
    }
    schema = Schema(columns=columns)
    rng = np.random.default_rng(7)
    codes = (rng.random((rows, len(sizes))) ** 2 * np.array(sizes)).astype(schema.dtype)
    table = AwkwardTable("ten clients", schema, schema.decode(codes, rng))
    holding = CLIENTS - 1
    return Federation(table, (*(codes[k::holding] for k in range(holding)), codes[:0]))


def run_with(
    aggregation: Mapping[str, Any], faults: Mapping[int, Fault] | None = None, tables: Federation | None = None
) -> Outcome:
    configuration = config_of("augflaim", CLIENTS, {"rounds": 1}, aggregation=dict(aggregation))
    return execute(configuration, tables or federation(), faults=faults)


def vanishing(after: Mapping[int, int]) -> dict[int, Fault]:
    return {k: vanish(replies) for k, replies in after.items()}


def assert_same_model(one: Outcome, other: Outcome) -> None:
    assert equal_arrays(finished(one).arrays, finished(other).arrays)
    np.testing.assert_array_equal(one.synthetic, other.synthetic)


@pytest.mark.parametrize("stage", range(4), ids=STAGES)
def test_clients_that_vanish_in_a_stage_cost_themselves_only(stage: int) -> None:
    """The run goes on as if they had vanished from plain sums: before their vector was sent, or after it."""
    joined = 1
    secure = run_with(MODE, vanishing({3: joined + stage, 7: joined + stage}))
    sent = 1 if STAGES[stage] == "unmask" else 0  # their vectors are in the first sum, and in no other
    plain = run_with({"protocol": "plain", **AGGREGATION}, vanishing({3: joined + sent, 7: joined + sent}))
    assert_same_model(secure, plain)
    assert secure.dropped == plain.dropped == {3, 7}
    nobody = run_with(MODE)
    assert nobody.dropped == set()
    assert not equal_arrays(finished(secure).arrays, finished(nobody).arrays)


def test_clients_may_vanish_in_different_stages() -> None:
    secure = run_with(MODE, vanishing({0: 1, 9: 3}))
    plain = run_with({"protocol": "plain", **AGGREGATION}, vanishing({0: 1, 9: 1}))
    assert_same_model(secure, plain)


NONSENSE = [
    pytest.param(stage, kind, marks=[] if kind % 4 == stage else [pytest.mark.slow])
    for stage in range(4)
    for kind in range(6)
]


@pytest.mark.parametrize(("stage", "kind"), NONSENSE)
def test_a_client_that_answers_nonsense_costs_itself_only(stage: int, kind: int) -> None:
    secure = run_with(MODE, {5: garble(1 + stage, kind)})
    sent = 1 if STAGES[stage] == "unmask" else 0
    plain = run_with({"protocol": "plain", **AGGREGATION}, vanishing({5: 1 + sent}))
    assert_same_model(secure, plain)
    assert secure.dropped == {5}


@pytest.mark.parametrize("after", [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4), (1, 2, 3), (2, 3, 4)], ids=str)
def test_one_dropout_too_many_opens_nothing(after: tuple[int, ...]) -> None:
    outcome = run_with(MODE, vanishing(dict(zip((2, 4, 8), after, strict=True))))
    assert outcome.error is not None and outcome.strategy.model is None
    assert "was not opened" in str(outcome.error)
    assert all(f"client {k} (" in str(outcome.error) for k in (2, 4, 8))
    assert {2, 4, 8} <= outcome.dropped
    # What the server charged is at most the sum whose opening had begun; nobody got a result for it.
    charged = [release.name for release in outcome.strategy.ledger.releases]
    assert charged == (["one-way"] if max(after) == 4 else [])
    # Without one of them the same run ends well.
    finished(run_with(MODE, vanishing(dict(zip((2, 4), after, strict=False)))))


# The server's inbox --------------------------------------------------------------------------------------------------


@dataclass
class Letter:
    """A reply as it lay in the server's inbox."""

    client: int
    request: str
    params: dict[str, Any]
    arrays: list[np.ndarray]


def recorded(aggregation: Mapping[str, Any], tables: Federation) -> tuple[Outcome, list[Letter]]:
    """A run, and everything that reached its server, in the order of arrival."""
    inbox: list[Letter] = []

    def keep(reply: Message, earlier: int) -> Message:
        arrays, scalars = read_reply(reply)
        answer = json.loads(str(scalars["answer"]))
        assert set(scalars) == {"answer"} and set(answer) == {"request", "ok", "params"} and answer["ok"] is True
        inbox.append(Letter(reply.metadata.src_node_id - 1, answer["request"], answer["params"], arrays))
        return reply

    outcome = finished(run_with(aggregation, dict.fromkeys(range(CLIENTS), keep), tables))
    return outcome, inbox


LENGTH = 700  # of the first sum: all one-way marginals
LARGE = (400, 200, 100)  # their sizes
FALSE_ALARM = 1e-9  # on each side: one call of `uniformity` fails a correct program with probability 2e-9


def uniformity(vectors: list[np.ndarray]) -> float:
    """The p-value of a chi-square test that every byte of independent words is uniform, and on the smaller side.

    Each of the 8 byte places has its own 256 cells with at least 20 expected bytes each: 8 * 255 degrees of freedom.
    """
    words = np.concatenate([np.asarray(vector, np.uint64) for vector in vectors])
    octets = words.view(np.uint8).reshape(-1, 8)
    assert len(octets) >= 20 * 256
    statistic = 0.0
    for place in range(8):
        expected = len(octets) / 256
        statistic += float(np.sum((np.bincount(octets[:, place], minlength=256) - expected) ** 2) / expected)
    return float(stats.chi2.sf(statistic, 8 * 255) if statistic > 8 * 255 else stats.chi2.cdf(statistic, 8 * 255))


@pytest.fixture(scope="module")
def inbox() -> list[Letter]:
    _, letters = recorded(MODE, federation(LARGE))
    return letters


def masked_vectors(inbox: list[Letter]) -> dict[int, np.ndarray]:
    """By client, what it sent in place of its vector in the first sum."""
    found = {}
    for letter in inbox:
        for array in letter.arrays:
            if letter.request == "one-way" and array.size == LENGTH and letter.client not in found:
                found[letter.client] = array
    return found


def test_the_inbox_holds_one_vector_of_each_client_and_its_masks(inbox: list[Letter]) -> None:
    masked = masked_vectors(inbox)
    assert sorted(masked) == list(range(CLIENTS))
    assert all(vector.dtype == np.uint64 and vector.shape == (LENGTH,) for vector in masked.values())
    letters = [letter for letter in inbox if letter.request == "one-way"]
    assert len(letters) == len(STAGES) * CLIENTS
    assert all(letter.params == {} for letter in letters)
    long = [array for letter in letters for array in letter.arrays if array.dtype == np.uint64 or array.size == LENGTH]
    assert all(array.dtype == np.uint64 and array.shape == (LENGTH,) for array in long)
    assert len(long) == 2 * CLIENTS  # everybody is in the committee: the sum of its masks over all contributors


def test_the_rest_of_the_inbox_does_not_grow_with_the_vector(inbox: list[Letter]) -> None:
    """Keys, sealed and revealed shares are the same number of bytes for another table with a tenth of the cells."""
    _, small = recorded(MODE, federation((40, 20, 10)))

    def rest(letters: list[Letter], length: int) -> list[list[int]]:
        first = [letter for letter in letters if letter.request == "one-way"]
        return [[array.nbytes for array in letter.arrays if array.size != length] for letter in first]

    assert rest(inbox, LENGTH) == rest(small, LENGTH // 10)


def test_masked_vectors_are_uniform_though_the_tables_hold_small_counts(inbox: list[Letter]) -> None:
    """10 vectors of 700 words; and sums and differences of some of them, in which no client's masks cancel either."""
    masked = masked_vectors(inbox)
    vectors = [masked[k] for k in range(CLIENTS)]
    assert uniformity(vectors) > FALSE_ALARM
    partial = [np.add.reduce(vectors[: k + 1]) for k in range(1, CLIENTS - 1)]
    assert uniformity(partial) > FALSE_ALARM
    differences = [vectors[k] - vectors[k - 1] for k in range(1, CLIENTS)]
    assert uniformity(differences) > FALSE_ALARM
    # Even all of them together are uniform until the committee takes the masks off; one such sum is too short for the
    # test above, but no word of it is as small as a noisy count.
    total = np.add.reduce(vectors).view(np.int64)
    assert float(np.median(np.abs(total.astype(float)))) > 2.0**55


def test_the_same_test_sees_vectors_without_masks() -> None:
    """The same tables with plain sums, where every vector carries its share of the noise: the test must fail there."""
    _, letters = recorded({"protocol": "plain", **AGGREGATION}, federation(LARGE))
    vectors = [array for letter in letters for array in letter.arrays if array.size == LENGTH]
    assert len(vectors) >= CLIENTS
    assert uniformity([vector.view(np.uint64) for vector in vectors[:CLIENTS]]) < 1e-100


def test_masks_are_fresh_in_every_run(inbox: list[Letter]) -> None:
    """A seed repeats the noise of a simulation, not its masks: those come from the operating system."""
    _, again = recorded(MODE, federation(LARGE))
    one, two = masked_vectors(inbox), masked_vectors(again)
    assert uniformity([one[k] - two[k] for k in range(CLIENTS)]) > FALSE_ALARM


# A deployment ------------------------------------------------------------------------------------------------------

SCHEMA = """\
columns:
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  smokes: {kind: categorical, categories: ['no', 'yes']}
"""
DEPLOYMENT = """\
mechanism: {name: fed_naive_bayes, rounds: 1}
data: {source: survey, schema: schema.yaml, label: smokes}
federation: {clients: 4, minimum_cohort: 3}
privacy: {epsilon: 4.0, delta: 1.0e-5}
workload: {degree: 1, size: null}
aggregation: {protocol: secagg, noise: distributed, corrupted: 0.0, dropout: 0.25, threat: malicious}
evaluation: []
runtime: {engine: deployment, superlink: loopback}
"""


@pytest.mark.slow
def test_a_malicious_deployment_and_a_holder_with_a_wrong_roster(tmp_path: Path) -> None:
    """Four holders with keys of their own; the last one pinned another key for the first, and trusts nobody's word."""
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(DEPLOYMENT, encoding="utf-8")
    publics = {}
    for k in range(4):
        made = subprocess.run(
            [str(BIN / "fedsyn"), "identity", str(tmp_path / f"key{k}")], capture_output=True, text=True, check=True
        )
        publics[k] = made.stdout.strip()
        assert (tmp_path / f"key{k}").stat().st_mode & 0o077 == 0
    roster = "".join(f"{k}: '{public}'\n" for k, public in publics.items())
    (tmp_path / "roster.yaml").write_text(roster, encoding="utf-8")
    other = new_identity(tmp_path / "other")
    (tmp_path / "wrong.yaml").write_text(roster.replace(publics[0], other), encoding="utf-8")
    federation = Loopback(tmp_path)
    try:
        for k in range(4):
            rng = np.random.default_rng(k)
            table = tmp_path / f"{k}.csv"
            lines = [f"{rng.choice(['clerk', 'driver', 'nurse'])},{rng.choice(['no', 'yes'])}" for _ in range(100)]
            table.write_text("\n".join(["job,smokes", *lines, ""]), encoding="utf-8")
            pinned = tmp_path / ("wrong.yaml" if k == 3 else "roster.yaml")
            keys = {"identity": str(tmp_path / f"key{k}"), "roster": str(pinned)}
            federation.add_node(f"holder{k}", table, tmp_path / "schema.yaml", partition=k, **keys)
        out = tmp_path / "out"
        done = federation.fedsyn_run(tmp_path / "run.yaml", out, timeout=500)
        assert done.returncode == 0, done.stderr + federation.log("superlink") + federation.log("holder0")
        _, first = read_lines(out / "rounds.jsonl")
        assert list(first["dropped"]) == ["3"]
        assert first["dropped"]["3"]["kind"] == "protocol" and "signature" in first["dropped"]["3"]["sentence"]
        ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
        assert ledger["private"] is True and ledger["assumptions"]["threat"] == "malicious"
        assert ledger["releases"] and 0 < ledger["epsilon"] <= 4.0
        assert (out / "synthetic.csv").read_text(encoding="utf-8").startswith("job,smokes")
        for k in range(4):  # no secret of a holder leaves its machine
            secret = (tmp_path / f"key{k}").read_text(encoding="utf-8").strip()
            assert secret not in federation.log("superlink")
    finally:
        federation.close()
