"""FHAIM in whole runs: equal to AIM where it must be, and nobody sees more than the statement says."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsyn.errors import ConfigError, RunError
from fedsyn.front.testing.bench import equal_arrays
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.loading import load_config, parse_config
from fedsyn.privacy import DistributedNoise, _noise
from fedsyn.protocol.driving import Driver
from fedsyn.runs.engines import run
from fedsyn.runs.prepare import split_tables
from fedsyn.table.counting.marginals import count
from fedsyn.wire.requests import Choose, Open
from support.loopback import fedsyn_run

pytest.importorskip("tenseal")
pytestmark = pytest.mark.xdist_group("fhe")

TABLE = awkward_table("missing_values")
CODES = TABLE.encode()
FHE = {"protocol": "fhe", "noise": "distributed"}
PLAIN = {"protocol": "plain", "noise": "server"}
ROWS = {"privacy": {"client_sizes": "public"}, "workload": {"degree": 2}}


def federation(clients: int = 1) -> Federation:
    return Federation(TABLE, tuple(CODES[k::clients] for k in range(clients)))


def fhaim(clients: int = 1, fhe: dict[str, str] | None = None, **options: Any) -> Outcome:
    config = config_of("fhaim", clients, options, aggregation={**FHE, "fhe": fhe or {}}, **ROWS)
    return execute(config, federation(clients))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise off: what is left is what a store computes."""
    monkeypatch.setattr(_noise, "gaussian", lambda values, sigma, source: values.astype(np.float64))
    monkeypatch.setattr(_noise, "discrete", lambda values, s, source: values.copy())
    monkeypatch.setattr(_noise, "gumbel_steps", lambda size, scale, source: np.zeros(size, np.int64))
    monkeypatch.setattr(_noise, "exponential", lambda scores, epsilon, sensitivity, source: int(np.argmax(scores)))
    monkeypatch.setattr(DistributedNoise, "sigma_of", lambda self, contributors: self.sigma)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every choice and every opened marginal of a run."""
    seen: list[Any] = []
    answered = Driver._stored

    def watched(self: Driver, asked: Any, *facts: Any) -> Any:
        answer = answered(self, asked, *facts)
        if isinstance(asked, Choose):
            seen.append(asked.terms.cliques[answer])
        elif isinstance(asked, Open):
            seen.append(answer.arrays)
        return answer

    monkeypatch.setattr(Driver, "_stored", watched)
    return seen


# Equal to AIM --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("compute", "rounds"), [("client", None), pytest.param("client", 4, marks=pytest.mark.slow), ("packed", 3)]
)
def test_without_noise_it_is_aim_with_the_squared_score(
    quiet: None, clients: int, compute: str, rounds: int | None
) -> None:
    encrypted = finished(fhaim(clients, {"compute": compute}, rounds=rounds))
    config = config_of("fhaim", clients, {"rounds": rounds}, aggregation=PLAIN, **ROWS)
    plain = finished(execute(config, federation(clients)))
    assert equal_arrays(encrypted.arrays, plain.arrays)
    assert np.array_equal(encrypted.synthetic, plain.synthetic)
    assert [r.selected for r in encrypted.strategy.records] == [r.selected for r in plain.strategy.records]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["compas", "breast_cancer", "diabetes"])
def test_without_noise_on_the_papers_tables(
    quiet: None, stored: list[Any], fedsyn_data: Path, tmp_path: Path, table: str
) -> None:
    """Ciphertexts open AIM's counts and choose its cliques, to the last bit of the table."""
    document = {
        "mechanism": "fhaim",
        "data": {"source": table, "bins": 5},
        "federation": {"clients": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "client_sizes": "public"},
        "workload": {"degree": 2},
        "evaluation": [],
        "runtime": {"seed": 0},
    }
    runs, made = [], []
    for node in (PLAIN, FHE):
        stored.clear()
        config, out = parse_config({**document, "aggregation": node}), tmp_path / str(len(runs))
        run(config, out)
        runs.append(list(stored))
        made.append((out / "synthetic.csv").read_bytes())
    assert made[0] == made[1]
    for one, other in zip(runs[0], runs[1], strict=True):
        same = equal_arrays(dict(enumerate(one)), dict(enumerate(other))) if isinstance(one, list) else one == other
        assert same


# Columns split over holders ------------------------------------------------------------------------------------------


SPLIT = """\
mechanism: {name: fhaim, rounds: 2}
data: {source: synthfs, bins: 4, options: {beta: 1.0, clients: 2, rows: 300, features: 3}}
federation: {clients: 2, minimum_cohort: 2, columns: COLUMNS}
privacy: {epsilon: 5.0, delta: 1.0e-5, client_sizes: public}
workload: {degree: 2}
aggregation: {protocol: fhe, noise: distributed, corrupted: 0.5, fhe: {compute: packed}}
evaluation: [workload_error]
runtime: {engine: inprocess, seed: 3}
"""


def names_of(tmp_path: Path) -> list[str]:
    from fedsyn.runs.prepare import public_schema

    probe = tmp_path / "probe.yaml"
    probe.write_text(SPLIT.replace("columns: COLUMNS", "").replace("packed", "client").replace(", }", "}"))
    return list(public_schema(load_config(probe)).domain)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    names = names_of(tmp_path)
    file = tmp_path / "split.yaml"
    file.write_text(SPLIT.replace("COLUMNS", json.dumps([names[:2], names[2:]])), encoding="utf-8")
    return file


def test_two_holders_of_columns_give_the_joint_marginals(
    quiet: None, stored: list[Any], split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact, and each holder opens its own columns only."""
    from fedsyn.runs import holders

    held: list[np.ndarray] = []
    own = holders.own_columns
    monkeypatch.setattr(holders, "own_columns", lambda *args: held.append(own(*args)) or held[-1])
    config = load_config(split)
    run(config, tmp_path / "out")
    tables = split_tables(config)
    domain = tables.schema.domain
    for clique, arrays in zip(*[iter(stored[1:])] * 2, strict=True):
        assert np.array_equal(arrays[0], count(tables.train, domain, [clique])[0])
    assert any(len(clique) == 2 for clique in stored[1::2])
    for codes in held:
        mine = [name for name, column in zip(domain, codes.T, strict=True) if (column >= 0).all()]
        assert mine in [list(columns) for columns in config.federation.columns or ()]
        assert all((column == -1).all() for name, column in zip(domain, codes.T, strict=True) if name not in mine)


@pytest.mark.slow
def test_what_a_holder_receives_does_not_depend_on_the_other_ones_columns(split: Path, tmp_path: Path) -> None:
    """Its whole view: a schema hash, then the run's id and public keys, its own number, a budget. No ciphertext."""
    from fedsyn.protocol.client import TableClient

    seen: list[tuple[str, list[int]]] = []
    fit = TableClient.fit

    def watched(self: Any, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        seen.append((json.loads(config["envelope"])["request"], [array.nbytes for array in parameters]))
        return fit(self, parameters, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableClient, "fit", watched)
        run(load_config(split), tmp_path / "out")
    assert [name for name, _ in seen] == ["join", "join", "deal", "deal"]
    for name, sizes in seen[2:]:
        run_id, key, seal, signature, number = sizes
        assert (run_id, seal, signature, number) == (32, 32, 0, 8) and key < 3_000_000, name


# Who sees what -------------------------------------------------------------------------------------------------------


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What the crypto party decrypts, with what it was asked for; and what it answers."""
    from fedsyn.crypto.fhe.bfv import BfvReader
    from fedsyn.stores.parties.crypto import KeyHolder

    seen: dict[str, list[Any]] = {"slots": [], "answers": []}
    slots = BfvReader.slots
    monkeypatch.setattr(
        BfvReader,
        "slots",
        lambda self, asked: seen["slots"].append((asked, slots(self, asked))) or seen["slots"][-1][1],
    )
    for name in ("choose", "open"):
        step = getattr(KeyHolder, name)
        monkeypatch.setattr(KeyHolder, name, _answered(step, name, seen["answers"]))
    return seen


def _answered(step: Callable[..., Any], name: str, answers: list[Any]) -> Callable[..., Any]:
    def answered(self: Any, order: Any, asked: Any) -> Any:
        answers.append((name, order, step(self, order, asked)))
        return answers[-1][2]

    return answered


def test_the_crypto_party_sees_uniform_slots_and_what_the_statement_says(views: dict[str, list[Any]]) -> None:
    """Of an opening nothing is decrypted. Every slot of a choice is uniform: a Kolmogorov-Smirnov test over 16,384 of
    them each; of some 14 tests one falls below 1e-7 by chance once in 700,000 runs."""
    outcome = finished(fhaim(rounds=3))
    modulus = 2.0**60
    assert len(views["slots"]) == 3 and sum(name == "open" for name, *_ in views["answers"]) == 4
    for number, (asked, slots) in enumerate(views["slots"]):
        assert asked.offsets and stats.kstest(slots / modulus, "uniform").pvalue > 1e-7, number
    told = [answer for name, _, answer in views["answers"] if name == "choose"]
    assert all(answer.shape == (1,) for answer in told)  # an index, and nothing else, leaves it
    words = outcome.strategy.ledger.report()["statement"]
    assert "reads the noisy scores" in json.dumps(words)


def test_what_is_opened_carries_the_clients_noise(views: dict[str, list[Any]]) -> None:
    """The opened integers, less the true counts times the factor, are 3 clients' shares: their standard deviation is
    within 5 of its own (1/sqrt(2 m)) of what is announced; a fair one is farther once in a million runs."""
    outcome = finished(fhaim(3, rounds=2))
    opened = [(order, answer) for name, order, answer in views["answers"] if name == "open"]
    factors = {r.round: r for r in outcome.strategy.ledger.releases}
    assert len(opened) == 3 and factors
    residues = []
    for order, answer in opened:
        exact = np.concatenate([cells.ravel() for cells in count(CODES, TABLE.schema.domain, order.cliques)])
        noise = DistributedNoise.of_pool(
            order.sigma, asked=3, fewest=3, corrupted=0, count=len(order.cliques), length=len(exact), most=2**40
        )
        residue = (answer - noise.resolution * exact) / (noise.share * np.sqrt(3))
        assert (residue != 0).all()
        residues.append(residue)
    together = np.concatenate(residues)
    assert abs(together.std() - 1.0) < 5.0 / np.sqrt(2.0 * len(together))
    _, counts = np.unique(together, return_counts=True)
    assert counts.max() == 1  # no share was used twice


def test_the_server_holds_no_key_and_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state in the middle of a run: from the store's server half no secret key can be reached but through the
    crypto party that a simulation plays, and no array in it has the exact counts."""
    from fedsyn.crypto.fhe.seal import SecretKeys
    from fedsyn.stores.fhe_server import FheServer

    found: list[Any] = []
    opened = FheServer.open

    def looked(self: FheServer, asked: Any, layout: Any, round: int) -> Any:
        party, self.crypto._party = self.crypto._party, None
        found.append(_reachable(self))
        self.crypto._party = party
        return opened(self, asked, layout, round)

    monkeypatch.setattr(FheServer, "open", looked)
    finished(fhaim(rounds=1))
    attributes = [(name,) for name in TABLE.schema.domain]
    exact = [cells.astype(np.int64).tobytes() for cells in count(CODES, TABLE.schema.domain, attributes)]
    for things in found:
        assert len(things) > 100
        assert not any(isinstance(thing, SecretKeys) for thing in things)
        raw = [thing.tobytes() for thing in things if isinstance(thing, np.ndarray) and thing.dtype.kind in "iuf"]
        raw += [thing for thing in things if isinstance(thing, bytes)]
        assert not any(cells in piece for cells in exact for piece in raw)


def _reachable(root: Any) -> list[Any]:
    """Objects that can be reached from one, modules and classes left out."""
    seen, waiting = {id(root): root}, [root]
    while waiting:
        for thing in gc.get_referents(waiting.pop()):
            if id(thing) not in seen and not isinstance(thing, type) and not hasattr(thing, "__loader__"):
                if type(thing).__name__ in ("function", "builtin_function_or_method", "module"):
                    continue
                seen[id(thing)] = thing
                waiting.append(thing)
    return list(seen.values())


# Sums ----------------------------------------------------------------------------------------------------------------


def summed(protocol: str, clients: int = 5, faults: Any = None, **nodes: Any) -> Outcome:
    aggregation = {"protocol": protocol, "noise": "distributed", "dropout": 0.4, "corrupted": 0.2}
    config = config_of("sketch_aim", clients, {"rounds": 2}, aggregation=aggregation, **nodes)
    return execute(config, federation(clients), faults=faults)


@pytest.mark.parametrize("faults", [None, {2: vanish(1)}])
def test_a_sum_of_ciphertexts_is_the_secure_sum(faults: Any) -> None:
    """Also where a client is gone in the middle of the run; and each client is asked once for each sum."""
    encrypted = finished(summed("fhe", faults=faults))
    plain = finished(summed("plain", faults=faults))
    assert equal_arrays(encrypted.arrays, plain.arrays)
    assert np.array_equal(encrypted.synthetic, plain.synthetic)
    asked = [e for e in encrypted.tape.exchanges if e.envelope["kind"] == "sum" and e.partition == 0]
    assert len(asked) == len({(e.envelope["round"], e.envelope["request"]) for e in asked}) >= 2
    assert all(e.envelope.get("stage") is None for e in asked)


def test_a_sum_with_too_few_ciphertexts_is_not_opened() -> None:
    outcome = summed("fhe", faults={k: vanish(1) for k in (1, 2, 3)})
    assert isinstance(outcome.error, RunError)
    assert not outcome.strategy.ledger.releases


@pytest.mark.slow  # test_engines runs another mechanism on Ray by default
def test_ray_gives_the_serial_result(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SPLIT.replace(", columns: COLUMNS", "").replace("packed", "client"), encoding="utf-8")
    outs = [tmp_path / engine for engine in ("inprocess", "ray")]
    for out in outs:
        fedsyn_run(file, out, f"runtime.engine={out.name}")
    assert (outs[0] / "synthetic.csv").read_bytes() == (outs[1] / "synthetic.csv").read_bytes()


# Refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mechanism": {"name": "fhaim", "score": "l1"}}, "'l1' needs a comparison"),
        ({"aggregation": {**FHE, "noise": "server"}}, "allowed: distributed"),
        ({"aggregation": {**FHE, "threat": "malicious"}}, "allowed"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-5}}, "client_sizes: public"),
        ({"mechanism": "sketch_aim", "aggregation": {**FHE, "fhe": {"compute": "packed"}}}, "sums are exact"),
        ({"federation": {"clients": 2, "columns": [["a"], ["b"]]}}, "columns split over holders need"),
        ({"federation": {"clients": 2, "columns": [["a"], ["a"]]}}, "no attribute in two of them"),
        ({"aggregation": {**FHE, "corrupted": 0.95}}, "honest"),
        ({"federation": {"clients": 20, "sampling_rate": 0.1}}, "must have dealt before anything is opened"),
        (
            {
                "federation": {"clients": 2, "columns": [["a"], ["b"]]},
                "aggregation": {**FHE, "corrupted": 0.0, "fhe": {"compute": "packed"}},
            },
            "must not rely on each other's share",
        ),
    ],
)
def test_what_ciphertexts_cannot_do_is_refused_in_one_sentence(change: dict[str, Any], said: str) -> None:
    document = {
        "mechanism": "fhaim",
        "data": {"source": "synthfs"},
        "federation": {"clients": 20},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 2},
        "aggregation": FHE,
        **change,
    }
    with pytest.raises(ConfigError, match=said):
        parse_config(document)


def test_without_tenseal_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store needs it; sums do without."""
    import sys

    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    document = {
        "mechanism": "fhaim",
        "data": {"source": "synthfs"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "aggregation": FHE,
    }
    with pytest.raises(ConfigError, match=r"pip install 'fedsyn-.*\.whl\[fhe\]'"):
        parse_config(document)
    finished(summed("fhe"))


@pytest.mark.parametrize("name", ["aim", "distaim"])
def test_its_siblings_compute_on_ciphertexts_too(quiet: None, name: str) -> None:
    """A central mechanism has one holder, however many clients the federation has."""
    nodes = {**ROWS, "federation": {"clients": 3}}
    options = {"rounds": 2, "score": "squared_l2"}
    parts = federation(1 if name == "aim" else 3)
    encrypted, plain = (
        finished(execute(config_of(name, 3, options, aggregation=aggregation, **nodes), parts))
        for aggregation in (FHE, PLAIN)
    )
    assert equal_arrays(encrypted.arrays, plain.arrays)
