"""What a party agrees to, whatever a server asks: its file, its limits, its pinned cards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.crypto.primitives import KeyPair
from fedsyn.domain import Domain
from fedsyn.errors import BudgetExceeded, ConfigError, FedsynError, ProtocolError, RunError
from fedsyn.keys.party_keys import load_party, new_operator, new_party
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.settings import PartyCard
from fedsyn.stores.parties.checks import Host, check_announcement, plan_choice
from fedsyn.stores.parties.interface import Announcement
from fedsyn.stores.parties.policy import LimitsNode, PartyPolicy, load_party_file
from support.parties_bench import CLIENTS, DOMAIN, RHO, Bench, announced, mpc_config, policy, three_hosts

GOOD = """\
role: compute
parties: [b.yaml, c.yaml]
operators: [operator.pem]
policy:
  epsilon_per_run: 1.0
  epsilon_total: 3.0
  delta: 1.0e-5
  mechanisms: [distaim]
"""


def host(**changes: Any) -> Host:
    return Host(KeyPair(), policy(**changes), Randomness(None))


# party.yaml ----------------------------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "party.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_names_are_relative_to_the_file(tmp_path: Path) -> None:
    loaded = load_party_file(written(tmp_path, GOOD))
    assert loaded.parties == (str(tmp_path / "b.yaml"), str(tmp_path / "c.yaml"))
    assert loaded.ledger == str(tmp_path / "ledger.jsonl") and loaded.folder == str(tmp_path)
    assert loaded.policy.minimum_clients == 2 and loaded.policy.configurations is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epsilon_total", "epsilon_totl", r"unknown key 'policy.epsilon_totl' \(did you mean 'epsilon_total'\?\)"),
        ("operators", "operator", r"unknown key 'operator' \(did you mean 'operators'\?\)"),
        ("mechanisms: [distaim]", "mechanisms: []", "mechanisms"),
        ("mechanisms: [distaim]", "mechanisms: [distam]", r"'distam'.*did you mean 'distaim'\?.*allowed: aim, distaim"),
        ("mechanisms: [distaim]", "mechanisms: [augflaim]", "no mechanism 'augflaim' computes on a store"),
        ("epsilon_total: 3.0", "epsilon_total: 0.5", "epsilon_per_run is more than policy.epsilon_total"),
        ("mechanisms: [distaim]", "mechanisms: [distaim]\n  limits: {cell: 5}", r"did you mean 'cells'"),
        ("mechanisms: [distaim]", "mechanisms: [distaim]\n  limits: {cells: 0}", "limits.cells"),
        ("mechanisms: [distaim]", "mechanisms: [distaim]\n  configurations: [abc]", "64 lower-case hex digits"),
        ("mechanisms: [distaim]", "mechanisms: [distaim]\n  threat: semi_honest", "threat"),
        ("epsilon_total: 3.0", "epsilon_total: .inf", "epsilon_total"),
        ("epsilon_total: 3.0", "epsilon_total: 0", "epsilon_total"),
        ("delta: 1.0e-5", "delta: 1.0", "delta"),
        ("role: compute", "role: decrypt", "role"),
        ("[b.yaml, c.yaml]", "[b.yaml]", "parties"),
        ("role: compute", "role: compute\nidle: 0", "idle"),
        ("role: compute", "1: 2", "every key must be a string"),
    ],
)
def test_what_a_file_may_not_say(old: str, new: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        load_party_file(written(tmp_path, GOOD.replace(old, new)))


# Announcements -------------------------------------------------------------------------------------------------------


def test_a_run_that_the_policy_allows() -> None:
    assert check_announcement(announced(mpc_config()), host()).domain == DOMAIN


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"mechanisms": ["aim"]}, "its policy allows 'aim' only"),
        ({"configurations": ["0" * 64]}, "has not pinned this configuration's hash"),
        ({"threat": "malicious"}, "its policy demands aggregation.threat: malicious"),
        ({"limits": {"clients": CLIENTS - 1}}, f"its policy allows {CLIENTS - 1} clients"),
        ({"limits": {"candidates": 2}}, "its policy allows 2 candidates"),
        ({"limits": {"entries": 10}}, "its policy allows 10 entries of a client"),
        ({"limits": {"candidates": 10}}, "its policy allows 10 candidates, and a choice may have 11"),
        ({"limits": {"cells": 30}}, "its policy allows orders of 30 cells, and a choice may have"),
        ({"epsilon_per_run": 0.99}, r"which is 0\.\d+ rho"),
    ],
)
def test_what_a_policy_refuses(rules: dict[str, Any], said: str) -> None:
    with pytest.raises((ProtocolError, BudgetExceeded), match=said):
        check_announcement(announced(mpc_config()), host(**rules))


def test_limits_are_met_exactly() -> None:
    asked, most = announced(mpc_config()), contract_class("distaim")(mpc_config(), DOMAIN).candidates
    limits = {"clients": CLIENTS, "entries": asked.length, "candidates": len(most), "cells": int(most.cells.sum())}
    rules = {"configurations": [asked.config.sha256], "limits": limits, "epsilon_per_run": 1.0}
    check_announcement(asked, host(**rules))
    for name in limits:
        with pytest.raises(ProtocolError, match=name):
            check_announcement(asked, host(limits={**limits, name: limits[name] - 1}))


def test_a_pinned_configuration_is_not_another_one() -> None:
    pinned = mpc_config()
    rules = {"configurations": [pinned.sha256], "epsilon_per_run": 5.0, "epsilon_total": 5.0}
    check_announcement(announced(pinned), host(**rules))
    for other in (mpc_config({"rounds": 3}), mpc_config(privacy={"epsilon": 1.1})):
        with pytest.raises(ProtocolError, match="pinned"):
            check_announcement(announced(other), host(**rules))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rho": 0.0}, "malformed"),
        ({"rho": float("nan")}, "malformed"),
        ({"rho": float("inf")}, "malformed"),
        ({"rho": -1.0}, "malformed"),
        ({"nonce": b"short"}, "malformed"),
        ({"minimum": 0}, "malformed"),
        ({"cliques": ()}, "entries"),
        ({"cliques": ((DOMAIN.attributes[0],),)}, "not those that the mechanism stores"),
        ({"cliques": (("nobody",),)}, "an attribute that the schema does not have"),
        ({"cliques": ((),)}, "a clique is empty"),
        ({"domain": Domain(("a", "b"), (2, 3))}, "an attribute that the schema does not have"),
    ],
)
def test_announcements_that_do_not_fit(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        check_announcement(replace(announced(mpc_config()), **change), host())


def test_a_large_schema_is_refused_before_its_candidates_are_listed() -> None:
    domain = Domain(tuple(f"a{i}" for i in range(3000)), (2,) * 3000)
    config = mpc_config(workload={"degree": 3, "size": None})
    with pytest.raises(ProtocolError, match="its policy allows 20000 candidates"):
        check_announcement(replace(announced(mpc_config()), config=config, domain=domain), host())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol": "plain"}, "does not have aggregation.protocol: mpc"),
        ({"noise": "server"}, "does not have aggregation.noise: distributed"),
    ],
)
def test_only_distributed_noise_over_mpc(change: dict[str, Any], said: str) -> None:
    """Such a configuration does not even parse; a server that made one up would be told."""
    config = mpc_config()
    node = config.aggregation.model_copy(update=change)
    with pytest.raises(ProtocolError, match=said):
        check_announcement(replace(announced(config), config=config.model_copy(update={"aggregation": node})), host())


def test_a_run_may_not_release_more_than_its_own_epsilon() -> None:
    with pytest.raises(RunError, match=r"the run may release more than its own privacy\.epsilon"):
        Bench(rho=1.01 * RHO, hosts=three_hosts_of(epsilon_per_run=5.0))


def three_hosts_of(**changes: Any) -> tuple[Host, Host, Host]:
    return host(**changes), host(**changes), host(**changes)


def test_a_mechanism_that_fails_is_named_by_its_error_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsyn.plugins.clients.aim import DistAimContract

    def broken(self: Any) -> Any:
        raise ValueError("secret text")

    monkeypatch.setattr(DistAimContract, "stored", property(broken))
    with pytest.raises(ProtocolError) as caught:
        check_announcement(Announcement(mpc_config(), DOMAIN, (DOMAIN.attributes[:1],), RHO, 1, bytes(16), 4), host())
    assert str(caught.value) == "the mechanism does not take the configuration (ValueError)"


# The limits of an order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limits", "said"), [("cells", "orders of 125 cells"), ("candidates", "1 to 11 cliques")])
def test_orders_beyond_the_limits_are_refused(limits: str, said: str, tmp_path: Path) -> None:
    """The server orders more than a run of its configuration does, which is refused before it begins."""
    bench = Bench(hosts=three_hosts(tmp_path, limits={limits: 125 if limits == "cells" else 11}))
    bench.deal()
    names = DOMAIN.attributes
    order = bench.opening(cliques=tuple((name,) for name in names) * 30)
    assert len(order.cliques) > 11 and sum(map(DOMAIN.size, order.cliques)) > 125
    with pytest.raises(RunError, match=said):
        bench.parties.open(order)


def test_one_client_too_many_is_refused_alone(tmp_path: Path) -> None:
    hosts = three_hosts(tmp_path)
    few = Host(hosts[1].pair, policy(limits={"clients": 4}), hosts[1].randomness, hosts[1].book)
    bench = Bench(hosts=(hosts[0], few, hosts[2]))
    deals = {k: bench.sealed(k) for k in range(CLIENTS)} | {9: bench.sealed(9)}
    assert bench.parties.deal(deals) == {9: "party 1: more clients have dealt than a party's policy allows"}


def test_a_choice_has_bits_for_what_a_party_could_add() -> None:
    """A deviating party's share of the noise fits `noise_bits`, and three such shares beside the scores do not wrap."""
    bench = Bench()
    bench.deal()
    order = bench.choice()
    honest, bounded = (plan_choice(order, bench.layout, LimitsNode(), None, bounded=b) for b in (False, True))
    assert honest.noise.reach <= 2 ** (honest.noise_bits - 1)
    assert 2 * (order.terms.reach + honest.noise.reach) < 2 ** (honest.score_bits - 1)
    assert 2 * (order.terms.reach + 3 * 2 ** (bounded.noise_bits - 1)) < 2 ** (bounded.score_bits - 1)
    ones = np.ones_like(order.terms.weights)
    far = replace(order.terms, weights=ones, penalties=np.full(len(ones), 2**62 - 2**52))
    large = replace(order, terms=far, epsilon=1601 * 2 * (far.moved + 2) / 2**51)
    assert plan_choice(large, bench.layout, LimitsNode(), None, bounded=False).score_bits == 64
    with pytest.raises(ConfigError, match="noise that a party could add"):
        plan_choice(large, bench.layout, LimitsNode(), None, bounded=True)


def test_a_simulation_takes_everything() -> None:
    anything = PartyPolicy.of_simulation("distaim")
    assert anything.run_budget.rho > 1e5 and anything.minimum_clients == 1


# Cards ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> list[PartyCard]:
    folder = tmp_path_factory.mktemp("cards")
    return [new_party(folder / name, name, f"127.0.0.1:{5000 + i}") for i, name in enumerate("abc")]


def deployed(cards: list[PartyCard], **runtime: Any) -> RunConfig:
    runtime = {"engine": "deployment", "seed": None, **runtime}
    parties = [card.model_dump() for card in cards]
    return mpc_config(aggregation={"parties": parties}, runtime=runtime)


def known(cards: list[PartyCard]) -> Host:
    one, two, three = cards
    return replace(host(), cards=(one, two, three))


def test_a_partys_place_is_that_of_its_key(cards: list[PartyCard]) -> None:
    config = deployed(cards)
    assert [known(cards[i:] + cards[:i]).index_in(config) for i in range(3)] == [0, 1, 2]
    check_announcement(announced(config), known(cards))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"address": "127.0.0.1:9"}, "another address for 'c' than this party has pinned"),
        ({"name": "d"}, "another name for 'd'"),
        (
            {"certificate": "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"},
            "another certificate for 'c'",
        ),
        ({"key": "ab" * 32}, "another key for 'c'"),
    ],
)
def test_a_card_that_was_not_pinned_is_refused(cards: list[PartyCard], change: dict[str, str], said: str) -> None:
    config = deployed([*cards[:2], cards[2].model_copy(update=change)])
    with pytest.raises(ProtocolError, match=said):
        known(cards).index_in(config)


def test_a_party_may_not_play_two_roles(cards: list[PartyCard]) -> None:
    with pytest.raises(FedsynError, match=r"twice|same|different"):
        known(cards).index_in(deployed([cards[0], cards[1], cards[1]]))


def test_a_party_of_a_deployment_takes_part_in_no_simulation(cards: list[PartyCard]) -> None:
    with pytest.raises(ProtocolError, match="takes part in no simulation"):
        check_announcement(announced(mpc_config()), known(cards))


def test_a_seed_is_refused_even_where_the_configuration_was_made_up(cards: list[PartyCard]) -> None:
    config = deployed(cards)
    seeded = config.model_copy(update={"runtime": config.runtime.model_copy(update={"seed": 1})})
    with pytest.raises(ProtocolError, match="draws no noise from a seed"):
        check_announcement(announced(seeded), known(cards))


# Keys ----------------------------------------------------------------------------------------------------------------


def test_keys_are_for_their_owner_and_never_overwritten(tmp_path: Path) -> None:
    new_party(tmp_path / "a", "a", "localhost:1")
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "a").iterdir()} == {
        "card.yaml": "0o644",
        "certificate.pem": "0o644",
        "tls.key": "0o600",
        "seal.key": "0o600",
    }
    with pytest.raises(ConfigError, match="a key is never overwritten"):
        new_party(tmp_path / "a", "b", "localhost:2")
    with pytest.raises(ConfigError, match="a key is never overwritten"):
        new_operator(tmp_path / "a", "b")
    assert load_party(tmp_path / "a")[0].name == "a"


@pytest.mark.parametrize("name", ["tls.key", "seal.key"])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    new_party(tmp_path / "a", "a", "localhost:1")
    (tmp_path / "a" / name).chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others: chmod 600"):
        load_party(tmp_path / "a")


@pytest.mark.parametrize("name", ["tls.key", "seal.key", "card.yaml", "certificate.pem"])
def test_files_of_two_parties_do_not_mix(tmp_path: Path, name: str) -> None:
    for party in "ab":
        new_party(tmp_path / party, party, "localhost:1")
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(ConfigError, match=r"are not what|is not the card of"):
        load_party(tmp_path / "a")


@pytest.mark.parametrize("address", ["localhost", "localhost:0", "localhost:70000", ":5", "h:p", ""])
def test_addresses(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        new_party(tmp_path / "a", "a", address)


def test_a_card_is_public(tmp_path: Path) -> None:
    new_party(tmp_path / "a", "a", "localhost:1")
    card = (tmp_path / "a" / "card.yaml").read_text(encoding="utf-8")
    assert (tmp_path / "a" / "seal.key").read_text(encoding="utf-8").strip() not in card
    assert "PRIVATE" not in card and set(yamlio.loads(card, "card")) == set(PartyCard.model_fields)
