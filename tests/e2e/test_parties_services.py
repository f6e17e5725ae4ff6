"""Three `fedsyn party serve` processes with TLS on localhost, driven as a deployment's server drives them.

Whatever goes wrong is one sentence at the server, nothing is opened, and the parties' ledgers are right afterwards.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedsyn.config import load_options
from fedsyn.errors import RunError
from fedsyn.keys.party_keys import load_credentials
from fedsyn.keys.tls import channel_to
from fedsyn.privacy import PrivacyBudget
from fedsyn.registry import contract_class
from fedsyn.settings import PartyCard
from fedsyn.stores.parties import messages
from fedsyn.stores.parties.interface import Announcement
from fedsyn.stores.parties.lines import LINE, LOST, TAG, cut
from fedsyn.stores.parties.serving import METHOD
from support.party_services import DOMAIN, NAMES, RHO, Driven, Services, at, one_sentence, spent


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Shared by the tests that leave all three running."""
    started = Services(tmp_path_factory.mktemp("parties"), operators=("operator", "second"), idle=600.0)
    try:
        yield started
    finally:
        started.close()
        assert all(process.poll() is not None for process in started.processes.values())


# A run ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run(services: Services) -> None:
    before = spent(services)
    run = Driven(services)
    run.deal()
    assert [run.parties.choose(run.choice(best=best)) for best in (3, 0, 5)] == [3, 0, 5]
    order = run.opening()
    assert run.is_right(order, run.parties.open(order))
    assert all(cost.bytes_sent > 10_000 and cost.rounds > 20 and cost.cpu > 0 for cost in run.parties.costs)
    run.parties.end()
    run.parties.end()
    expected = 3 * 0.01**2 / 8 + len(DOMAIN) / (2 * 10.0**2)
    assert np.array(spent(services)) - before == pytest.approx(expected)
    for name in NAMES:
        services.wait_for(name, "the run is over: its server has ended it")
        assert services.book(name).open is None
        assert services.book(name).runs[run.run.hex()] == [pytest.approx(RHO), pytest.approx(expected)]


def test_a_run_whose_products_are_checked(services: Services) -> None:
    run = Driven(services, aggregation={"threat": "malicious"})
    run.deal()
    assert run.parties.choose(run.choice(best=4)) == 4
    order = run.opening()
    assert run.is_right(order, run.parties.open(order))
    run.parties.end()


def test_another_run_is_refused_while_one_is_under_way(services: Services) -> None:
    run = Driven(services)
    run.deal()
    with pytest.raises(RunError) as caught:
        Driven(services, services.remote("second"))
    one_sentence(caught, at(services, "alder"), "is busy with another run", "nothing was opened")
    order = run.opening()
    assert run.is_right(order, run.parties.open(order)), "the first run goes on"
    run.parties.end()
    Driven(services, services.remote("second")).parties.end()


@pytest.mark.slow
def test_an_abandoned_run_is_dropped_and_makes_room(services: Services) -> None:
    times = [services.log(name).count("the connection to its server broke") for name in NAMES]
    run = Driven(services)
    run.deal()
    for channel in run.parties._channels:  # as if the server's machine had stopped
        channel.close()
    for name, before in zip(NAMES, times, strict=True):
        services.wait_for(name, "the connection to its server broke", before + 1)
        assert services.book(name).runs[run.run.hex()][1] == 0.0
    Driven(services).parties.end()


# Refused -------------------------------------------------------------------------------------------------------------


def test_a_deal_of_an_earlier_run_is_worth_nothing(services: Services) -> None:
    old = Driven(services)
    deals = old.deal()
    old.parties.end()
    run = Driven(services)
    refused = run.parties.deal({0: deals[0], 1: run.sealed(1), 2: run.sealed(2, old.run)})
    assert refused.keys() == {0, 2}
    assert all("was not sealed for this run" in why and why.startswith("party 'alder'") for why in refused.values())
    run.parties.end()


def test_a_replayed_order_ends_the_run(services: Services) -> None:
    run = Driven(services)
    run.deal()
    order = run.opening()
    run.parties.open(order)
    before = spent(services)
    with pytest.raises(RunError) as caught:
        run.parties.open(order)
    one_sentence(caught, at(services, "alder"), "order 0 is not later than order 0", "nothing was opened")
    with pytest.raises(RunError, match="the parties have no run"):
        run.parties.open(run.opening())
    assert spent(services) == before and all(services.book(name).open is None for name in NAMES)


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_an_order_by_another_norm_than_the_runs_score(services: Services, threat: str) -> None:
    """Its noise would be for other scores than the parties compute: with it a server reads exact counts."""
    run = Driven(services, aggregation={"threat": threat})
    run.deal()
    before, order = spent(services), run.choice()
    with pytest.raises(RunError) as caught:
        run.parties.choose(replace(order, terms=replace(order.terms, norm="squared_l2")))
    one_sentence(caught, at(services, "alder"), "another norm is ordered, and this run's score is l1")
    assert spent(services) == before and all(services.book(name).open is None for name in NAMES)


def test_an_operator_whose_certificate_is_not_pinned(services: Services) -> None:
    services.keygen("stranger", "--operator")
    with pytest.raises(RunError) as caught:
        Driven(services, services.remote("stranger"))
    one_sentence(caught, at(services, "alder"), "does not accept the certificate of this side")


def test_another_certificate_than_the_card_has(services: Services) -> None:
    services.keygen("other", "--address", services.cards[2].address)
    wrong = services.cards[2].model_copy(
        update={"certificate": load_options(PartyCard, services.folder / "other/card.yaml").certificate}
    )
    with pytest.raises(RunError) as caught:
        Driven(services, services.remote(cards=[*services.cards[:2], wrong]))
    one_sentence(caught, at(services, "cedar"), "shows another certificate than its card has")


def test_a_configuration_with_another_key_for_a_party(services: Services) -> None:
    """A server that would have clients seal to a key of its own: the parties see it, before any client is asked."""
    wrong = services.cards[1].model_copy(update={"key": "ab" * 32})
    with pytest.raises(RunError) as caught:
        Driven(services, cards=[services.cards[0], wrong, services.cards[2]])
    one_sentence(caught, at(services, "alder"), "another key for 'birch' than this party has pinned")


def test_a_configuration_that_the_policy_forbids(services: Services) -> None:
    with pytest.raises(RunError) as caught:
        Driven(services, federation={"clients": 10**6})
    one_sentence(caught, at(services, "alder"), "its policy allows 10000 clients")


# Hostile callers -----------------------------------------------------------------------------------------------------


def call(
    services: Services, caller: str, method: str, frames: list[bytes], tag: str | None = "0" * 32
) -> grpc.RpcError:
    """The error of one call by whoever has the keys in a folder, to the first party."""
    channel = channel_to(
        services.cards[0].address, services.cards[0].certificate, load_credentials(services.folder / caller)
    )
    try:
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(method)(iter(frames), timeout=10.0, metadata=((TAG, tag),) if tag else ())
        return caught.value
    finally:
        channel.close()


@pytest.mark.parametrize(
    ("caller", "method", "said"),
    [
        ("birch", METHOD + "begin", "a party is not an operator"),
        ("birch", METHOD + "end", "a party is not an operator"),
        ("operator", LINE, "an operator is not a party"),
        ("operator", METHOD + "nonsense", "Method not found!"),
    ],
)
def test_nobody_plays_another_role(services: Services, caller: str, method: str, said: str) -> None:
    assert call(services, caller, method, [b"\1x"]).details() == said


JUNK = [b"", b"\0", b"\xff" * 40, messages.message_of({}), messages.message_of([]), messages.message_of([{}])]


@pytest.mark.parametrize("method", ["begin", "deal", "choose", "open"])
def test_malformed_calls_end_neither_the_service_nor_the_run_and_quote_nothing(services: Services, method: str) -> None:
    run = Driven(services)
    run.deal()
    tag = run.announcement.nonce.hex()
    junk = [*JUNK, messages.message_of([{"kind": method, "number": "Alice", "name": ["Alice"], "cliques": "Alice"}])]
    for message in junk:
        error = call(services, "operator", METHOD + method, list(cut(message)), tag)
        assert error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert re.search("malformed|different versions|busy", error.details()) and "Alice" not in error.details()
    for frames in ([], [b""], [b"\7x"], [b"\0x"]):
        assert re.search("malformed|busy", call(services, "operator", METHOD + method, frames, tag).details())
    assert "does not name its run" in call(services, "operator", METHOD + method, [b"\1x"], None).details() or (
        method == "begin"
    )
    assert "Alice" not in services.log("alder") and "Traceback" not in services.log("alder")
    order = run.opening()
    assert run.is_right(order, run.parties.open(order))
    run.parties.end()


@pytest.mark.slow
def test_a_party_that_sends_lines_of_unknown_runs_disturbs_nobody(services: Services) -> None:
    run = Driven(services)
    run.deal()
    for index in range(12):
        call_with_lines(services, f"{index:032x}")
    order = run.opening()
    assert run.is_right(order, run.parties.open(order))
    run.parties.end()


def call_with_lines(services: Services, tag: str) -> None:
    """A line of party birch to alder, full of what nobody waits for."""
    channel = channel_to(
        services.cards[0].address, services.cards[0].certificate, load_credentials(services.folder / "birch")
    )
    frames = (b"\1" + bytes(1 << 18) for _ in range(64))
    channel.stream_unary(LINE)(frames, timeout=10.0, metadata=((TAG, tag),))
    channel.close()


# Parties that are gone -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_party_that_was_killed_between_orders(services: Services) -> None:
    run = Driven(services)
    run.deal()
    run.parties.choose(run.choice())
    before = spent(services)
    services.kill("cedar")
    try:
        with pytest.raises(RunError) as caught:
            run.parties.open(run.opening())
        one_sentence(caught, at(services, "cedar"), f"{LOST}; nothing was opened")
        assert spent(services) == before
        with pytest.raises(RunError) as caught:
            Driven(services)
        one_sentence(caught, at(services, "cedar"), "does not listen there")
    finally:
        services.start("cedar")
    assert services.book("cedar").open is None, "the next start ended the run that the killed process had"
    assert spent(services) == before
    for name in ("alder", "birch"):
        assert services.book(name).open is None
    again = Driven(services)
    again.deal()
    order = again.opening()
    assert again.is_right(order, again.parties.open(order))
    again.parties.end()


@pytest.mark.slow
def test_a_party_that_is_killed_in_the_middle_of_an_order(services: Services) -> None:
    """It stands still while the others have charged or wait, and then dies: what was charged stays charged."""
    run = Driven(services)
    run.deal()
    before = spent(services)
    os.killpg(services.processes["birch"].pid, signal.SIGSTOP)
    timer = threading.Timer(0.3, services.kill, ["birch"])
    timer.start()
    try:
        with pytest.raises(RunError) as caught:
            run.parties.open(run.opening())
        one_sentence(caught, at(services, "birch"), f"{LOST}; nothing was opened")
    finally:
        timer.join()
        services.start("birch")
    cost = len(DOMAIN) / (2 * 10.0**2)
    for name, old, new in zip(NAMES, before, spent(services), strict=True):
        assert new - old in (0.0, pytest.approx(cost)), name
        assert services.book(name).open is None
    Driven(services).parties.end()


@pytest.mark.slow
def test_a_party_started_anew_has_lost_its_run(services: Services) -> None:
    run = Driven(services)
    run.deal()
    services.kill("alder")
    services.start("alder")
    time.sleep(0.3)
    with pytest.raises(RunError) as caught:
        run.parties.open(run.opening())
    one_sentence(
        caught, at(services, "alder"), f"{LOST}|no such run here: it has ended, was dropped, or this party was"
    )
    Driven(services).parties.end()


# Parties of their own ------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[..., Services]]:
    """Starts services for one test."""
    started: list[Services] = []

    def start(**named: Any) -> Services:
        started.append(Services(tmp_path, **named))
        return started[-1]

    try:
        yield start
    finally:
        for services in started:
            services.close()


@pytest.mark.slow
def test_a_partys_total_budget_holds_over_runs_and_restarts(fresh: Callable[..., Services]) -> None:
    services = fresh(policy={"epsilon_total": 1.2}, idle=1.0)
    run = Driven(services)
    run.deal()
    run.parties.open(run.opening(sigma=10.0))
    run.parties.end()
    once = len(DOMAIN) / (2 * 10.0**2)
    assert spent(services) == pytest.approx([once] * 3)
    services.kill("birch")
    services.start("birch")
    with pytest.raises(RunError) as caught:
        Driven(services)
    one_sentence(
        caught, "party '(alder|birch|cedar)'", r"over all runs this party may release epsilon = 1\.2", "opened"
    )
    assert spent(services) == pytest.approx([once] * 3)
    assert all(services.book(name).open is None for name in NAMES)
    # A run without an order for `idle` seconds is dropped; a smaller run still fits.
    small = PrivacyBudget(1.2, 1e-5).rho - once
    config = services.config()
    cliques = contract_class("distaim")(config, DOMAIN).stored.cliques
    parties = services.remote()
    parties.begin(Announcement(config, DOMAIN, cliques, small, 1, secrets.token_bytes(16), config.federation.clients))
    for name in NAMES:
        services.wait_for(name, "no order came for 1 s")
    parties.end()


@pytest.mark.slow
def test_a_run_that_waits_for_slow_clients_is_still_there(tmp_path: Path) -> None:
    """45 seconds without a message, as while clients count and seal: pings alone must not end a connection."""
    services = Services(tmp_path)
    try:
        run = Driven(services)
        time.sleep(45.0)
        run.deal()
        assert len(run.parties.open(run.opening())) == sum(DOMAIN.shape)
    finally:
        services.close()
