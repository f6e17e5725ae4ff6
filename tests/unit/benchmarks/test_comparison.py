"""docs/comparison.md: all mechanisms are listed, and costs are those of real messages."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedsyn.registry import contract_class, mechanisms

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def comparison() -> ModuleType:
    path = ROOT / "benchmarks" / "comparison.py"
    spec = importlib.util.spec_from_file_location("benchmarks_comparison", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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
    assert comparison.row(comparison.BEST_AIM, facts, "nll", 2).startswith(f"| {comparison.BEST_AIM} | ∞ | - |")
