"""What each aggregation protocol says that it can do is what its classes and configurations do."""

from __future__ import annotations

import pytest

from fedsyn.aggregation import PROTOCOLS
from fedsyn.capabilities import CAPABILITIES, Capabilities
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.loading import parse_config
from fedsyn.registry import contract_class
from fedsyn.selection.terms import NORMS
from fedsyn.stores import STORES, store_class

ALL = pytest.mark.parametrize("one", CAPABILITIES.values(), ids=list(CAPABILITIES))


def configured(one: Capabilities, store: bool, **aggregation: object) -> RunConfig:
    """A run over three holders; its mechanism keeps a store or forms sums."""
    return parse_config(
        {
            "mechanism": {"name": "distaim", "score": one.scores[-1]} if store else "sketch_aim",
            "data": "conformance.csv",
            "federation": {"clients": 3},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
            "aggregation": {"protocol": one.name, **aggregation},
        }
    )


def checked(config: RunConfig) -> None:
    contract_class(config.mechanism.name).trusted(config).check(3)


def test_classes_are_those_of_the_facts() -> None:
    assert set(PROTOCOLS) == {one.name for one in CAPABILITIES.values() if one.sums}
    assert set(STORES) == {one.name for one in CAPABILITIES.values() if one.store}
    classes = PROTOCOLS | {name: store_class(name) for name in STORES}
    assert all(kind.capabilities is CAPABILITIES[name] for name, kind in classes.items())
    assert all(set(one.scores) <= set(NORMS) and bool(one.scores) == one.store for one in CAPABILITIES.values())


@ALL
@pytest.mark.parametrize("store", [False, True])
def test_a_protocol_alone_is_valid_with_its_first_noise(one: Capabilities, store: bool) -> None:
    if not (one.store if store else one.sums):
        return
    alone, written = configured(one, store), configured(one, store, noise=one.noises[0])
    assert alone.aggregation.noise == one.noises[0]
    assert (alone.sha256, alone.to_dict()) == (written.sha256, written.to_dict())
    checked(alone)


@ALL
@pytest.mark.parametrize("store", [False, True])
def test_other_noises_and_threats_are_refused_with_what_is_allowed(one: Capabilities, store: bool) -> None:
    if not (one.store if store else one.sums):
        return
    for noise in {"server", "local"} - set(one.noises):
        with pytest.raises(ConfigError, match=r"allowed.*: distributed$"):
            checked(configured(one, store, noise=noise))
    for threat in {"malicious"} - set(one.threats):
        with pytest.raises(ConfigError, match=f"cannot go with protocol: {one.name}.*; allowed: ") as refused:
            checked(configured(one, store, threat=threat))
        allowed = str(refused.value).rpartition("allowed: ")[2].split(", ")
        assert allowed == (["mpc"] if store else ["secagg"])
