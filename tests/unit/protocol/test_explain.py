"""`fedsyn explain` tells a data holder what a run asks; the statements in the docs are the contracts' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsyn.front.testing.harness import config_of, execute, federation_of
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.loading import load_config
from fedsyn.privacy import PrivacyBudget
from fedsyn.protocol.explain import explain, statements_page
from fedsyn.registry import MECHANISMS, client_class, contract_class, strategy_class
from support.typed_commands import entry_point

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("sizes", ["public", "private"])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_run_asks_nothing_that_was_not_explained(name: str, sizes: str) -> None:
    federation = federation_of(awkward_table("odd_names"), contract_class(name).central)
    options = {"score": "l1"} if (name, sizes) == ("fhaim", "private") else None  # its own score needs public sizes
    config = config_of(name, len(federation.parts), options, privacy={"client_sizes": sizes})
    asked = {one.name: one for one in explain(config, federation.domain, client_class(name)).requests}
    exchanges = execute(config, federation).tape.exchanges
    assert {e.envelope["request"] for e in exchanges} <= set(asked)
    for exchange in exchanges:
        one = asked[exchange.envelope["request"]]
        assert exchange.envelope["kind"] == one.kind
        assert set(exchange.envelope["params"]) <= set(one.parameters)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_request_says_what_leaves_and_what_it_costs(name: str) -> None:
    federation = federation_of(awkward_table("odd_names"), contract_class(name).central)
    meaning = explain(config_of(name, len(federation.parts)), federation.domain, client_class(name))
    for one in meaning.requests:
        assert one.what and one.leaves and one.costs and all(one.parameters.values())
    text = meaning.render(80)
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"{one.name} (" in text and all(f"{p}: " in text for p in one.parameters) for one in meaning.requests)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_both_halves_have_one_contract(name: str) -> None:
    assert strategy_class(name).Client is client_class(name)


def test_the_smallest_noise_is_that_of_the_whole_budget() -> None:
    config = load_config(ROOT / "configs" / "secure.yaml")
    federation = federation_of(awkward_table("odd_names"), False)
    meaning = explain(config, federation.domain, client_class("sketch_aim"))
    assert meaning.smallest_sigma == pytest.approx(1.0 / PrivacyBudget(1.0, 1e-6).mu, rel=1e-9)


@pytest.mark.parametrize(("unit", "one", "several"), [("row", "one row", "rows"), ("person", "one person", "people")])
def test_explain_says_whom_the_budget_hides_and_against_whom(unit: str, one: str, several: str) -> None:
    config = config_of("fed_naive_bayes", 3, privacy={"unit": unit}, aggregation={"noise": "server"})
    domain = federation_of(awkward_table("odd_names"), False).domain
    text = " ".join(explain(config, domain, client_class("fed_naive_bayes")).render(80).split())
    assert f"what it costs {one} " in text and f"protects another one's {several}: epsilon" in text


def test_explain_says_whether_the_crypto_party_adds_noise_of_its_own() -> None:
    config = config_of("sketch_aim", 3, aggregation={"protocol": "fhe", "noise": "distributed"})
    deployed = config.model_copy(update={"runtime": config.runtime.model_copy(update={"engine": "deployment"})})
    node = deployed.aggregation.model_copy(update={"roster": {k: f"{k:064x}" for k in range(3)}})
    pinned = deployed.model_copy(update={"aggregation": node})
    domain = federation_of(awkward_table("odd_names"), False).domain
    limits = [explain(each, domain, client_class("sketch_aim")).limits for each in (config, deployed, pinned)]
    assert ["adds the whole noise once more" in text for text in limits] == [False, True, False]


@pytest.mark.parametrize("name", ["secure.yaml", "deployment.yaml"])
def test_the_command_prints_it_without_reading_a_row(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the table is far away: the configuration of a deployment names a table that only its holders have."""
    fedsyn = entry_point(capsys, monkeypatch)
    path = str(ROOT / "configs" / name)
    text = fedsyn("explain", path).out
    config = load_config(path)
    assert config.sha256 in text and max(map(len, text.splitlines())) <= 80
    facts = json.loads(fedsyn("explain", path, "--json").out)
    assert facts["sha256"] == config.sha256 and "join" in [one["name"] for one in facts["requests"]]


def test_the_statements_in_the_docs_are_the_contracts_own() -> None:
    page = statements_page({name: client_class(name) for name in MECHANISMS})
    assert (ROOT / "docs" / "statements.md").read_text(encoding="utf-8") == page, (
        "fedsyn mechanisms --statements > docs/statements.md"
    )
