"""The scenarios of `test_parties_services` between three network namespaces, and a network that goes away.

Each party has a network of its own, joined by a bridge: addresses differ, nothing is shared but the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_parties_services as base

from support.namespaces import Namespaces, namespaces_or_skip
from support.party_services import Driven, Services, at, one_sentence, spent

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with namespaces_or_skip(3) as made:
        yield made


@pytest.fixture(scope="module")
def services(namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("parties")
    operators = ("operator", "second")
    started = Services(folder, namespaces.hosts, namespaces.prefix, operators=operators, idle=600.0)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def fresh(namespaces: Namespaces, tmp_path: Path) -> Iterator[Callable[..., Services]]:
    started: list[Services] = []

    def start(**named: Any) -> Services:
        started.append(Services(tmp_path, namespaces.hosts, namespaces.prefix, **named))
        return started[-1]

    try:
        yield start
    finally:
        for services in started:
            services.close()


# The same, over a network.
for _name, _test in list(vars(base).items()):
    if _name.startswith("test_"):
        globals()[_name] = _test


def test_a_party_whose_network_goes_away(services: Services, namespaces: Namespaces) -> None:
    """No connection is closed: only silence tells, and keepalive asks. The parties drop the run by themselves."""
    run = Driven(services)
    run.deal()
    before = spent(services)
    namespaces.cut(1)
    started = time.monotonic()
    try:
        with pytest.raises(base.RunError) as caught:
            run.parties.open(run.opening())
        one_sentence(caught, "party 'birch'", "nothing was opened")
        assert time.monotonic() - started < 60.0
        with pytest.raises(base.RunError) as caught:
            Driven(services)
        one_sentence(caught, at(services, "birch"), "does not answer|cannot be reached")
    finally:
        namespaces.cut(1, "up")
    services.wait_for("birch", "the connection to its server broke")
    assert spent(services) == before
    for attempt in range(4):  # a connection that the cut left behind is known to be dead after a keepalive, not before
        try:
            Driven(services).parties.end()
        except base.RunError:
            assert attempt < 3
            time.sleep(10.0)
        else:
            break
