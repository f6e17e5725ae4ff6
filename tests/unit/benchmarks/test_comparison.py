"""docs/comparison.md and its peers: potentials give the distribution, an absent library says so, all are listed."""

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.peers import adapter, peer_cell
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.inference import Model
from fedsyn.registry import contract_class, mechanisms

ROOT = Path(__file__).resolve().parents[3]

DOMAIN = Domain(("a", "b", "c"), (2, 3, 4))


@pytest.fixture(scope="module")
def comparison() -> ModuleType:
    path = ROOT / "benchmarks" / "comparison.py"
    spec = importlib.util.spec_from_file_location("benchmarks_comparison", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def rows(n: int = 400) -> np.ndarray:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, DOMAIN.shape, (n, 3))
    codes[:, 1] = np.where(rng.random(n) < 0.8, codes[:, 0], codes[:, 1])
    return codes


def test_potentials_of_another_library_give_its_distribution() -> None:
    rng = np.random.default_rng(1)
    tables = {("b", "a"): rng.normal(size=(3, 2)), ("b", "c"): rng.normal(size=(3, 4))}
    tables["b", "c"][0, 0] = -np.inf
    joint = np.exp(tables["b", "a"].T[:, :, None] + tables["b", "c"][None])
    joint /= joint.sum()
    model = adapter.model_of(DOMAIN, list(tables), list(tables.values()), 50.0)
    assert isinstance(model, Model)
    np.testing.assert_allclose(model.project(("a", "b", "c")), 50.0 * joint, atol=1e-9)
    cells = np.array([[0, 1, 2], [1, 2, 3]])
    np.testing.assert_allclose(model.log_likelihood(cells), np.log(joint[tuple(cells.T)]))


@pytest.mark.parametrize(
    ("peer", "wants"), [("dpsynth MST", "dpsynth"), pytest.param("opendp MST", "polars", marks=pytest.mark.slow)]
)
def test_a_library_that_is_not_there_says_so(peer: str, wants: str) -> None:
    if importlib.util.find_spec(wants) is not None:
        pytest.skip("it is there")
    found = adapter.fit(peer, rows(), DOMAIN, [("a", "b")], epsilon=1.0, delta=1e-5, seed=0)
    assert found.model is None and found.absent == f"not installed: {wants}"


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(ConfigError, match="opendp MST"):
        adapter.fit("opendp", rows(), DOMAIN, [("a", "b")], epsilon=1.0, delta=1e-5, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("peer", peer_cell.PEERS)
def test_a_peer_with_a_large_budget_finds_the_marginals(peer: str) -> None:
    codes = rows()
    found = adapter.fit(peer, codes, DOMAIN, [("a", "b", "c")], epsilon=500.0, delta=1e-5, seed=0)
    if found.model is None:
        pytest.skip(found.absent)
    pair = np.zeros((2, 3))
    np.add.at(pair, (codes[:, 0], codes[:, 1]), 1.0)
    made = found.model.project(("a", "b"))
    assert np.abs(made / made.sum() - pair / pair.sum()).sum() < 0.05
    assert found.cpu > 0 and "mbi" in found.versions


def test_every_mechanism_is_compared_and_its_trust_has_words(comparison: ModuleType) -> None:
    for name in [*mechanisms(), comparison.ONE_WAY]:
        sets = comparison.settings_of(name)
        config = comparison.Cell("few_1", 240, 1.0, 1, name, sets, comparison.CLIENTS).config()
        assert config.mechanism.name in mechanisms() and config.workload.degree == (
            1 if name == comparison.ONE_WAY else 3
        )
        contract = contract_class(config.mechanism.name)
        node = contract.default_aggregation(alone=contract.central)
        assert contract.not_private or (node["protocol"], node["noise"]) in comparison.TRUST
    assert len(comparison.TABLES) == 8 and len(comparison.EPSILONS) == 3


def test_costs_are_of_real_messages(comparison: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "COSTS_ON", "few_1")
    monkeypatch.setattr(comparison, "CLIENTS", 4)
    costs = comparison.costs_of("privsyn")
    assert (costs.protocol, costs.noise) == ("plain", "local")
    assert costs.messages == 2 * costs.exchanges >= 4  # one client: each exchange is a request and a reply
    assert costs.up > 0 and costs.down > 0 and costs.cpu > 0


def test_rows_of_the_page(comparison: ModuleType) -> None:
    facts = [
        {"table": "adult", "workload_error": 0.1, "nll": 1.0},
        {"table": "adult", "workload_error": 0.3, "nll": None},
        {"table": "magic", "error": "not done after 600 CPU s"},
    ]
    assert comparison.row("aim", facts, "workload_error", 3).startswith("| `aim` | 0.200 | - |")
    assert comparison.row("opendp MST", facts, "nll", 2).startswith("| opendp MST | ∞ | - |")


def test_what_is_absent_is_tried_again(comparison: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "peer_facts", lambda *_: {"error": "not installed: dpsynth"})
    cache = comparison.Cache(tmp_path / "cache.jsonl")
    facts = comparison.peer_cell("dpsynth AIM", "few_1", Namespace(no_peer_runs=False), cache)
    assert facts["error"] == "not installed: dpsynth" and not cache.path.exists()
    monkeypatch.setattr(comparison, "peer_facts", lambda *_: {"workload_error": 0.5, "nll": 2.0, "cpu": 1.0})
    comparison.peer_cell("dpsynth AIM", "few_1", Namespace(no_peer_runs=False), cache)
    monkeypatch.setattr(comparison, "peer_facts", lambda *_: pytest.fail("it is in the cache"))
    assert comparison.peer_cell("dpsynth AIM", "few_1", Namespace(no_peer_runs=False), cache)["workload_error"] == 0.5
