"""Conformance check of a mechanism's contract.

It must have a complete privacy statement for every configuration, and options that are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from fedsyn.capabilities import CAPABILITIES
from fedsyn.config import RunConfig, is_node
from fedsyn.errors import ConfigError
from fedsyn.front.testing.bench import Bench
from fedsyn.front.testing.harness import config_of
from fedsyn.privacy import PrivacyStatement
from fedsyn.protocol.contract import public_facts
from fedsyn.randomness import SEEDED_LABEL


def check_statement(bench: Bench) -> None:
    """Requires a complete privacy statement under every aggregation and option.

    The ledger must repeat it. Requests must say in words what leaves a client, and what it costs.
    """
    statement = getattr(bench.contract, "statement", None)
    assert isinstance(statement, PrivacyStatement), "the contract has no privacy statement (Contract.statement)"
    for request in bench.client.requests.values():
        for fact in ("leaves", "costs"):
            assert getattr(request, fact, "").strip(), (
                f"the request '{request.name}' does not say what '{fact}' a client"
            )
    for config in _configurations(bench):
        _filled(bench, config)
    base = bench.base()
    report = base.strategy.ledger.report()
    assert report["statement"] == _filled(bench, base.config).to_dict(), "the run's ledger holds another statement"
    assert report["unit"] == report["statement"]["unit"], "the statement names another unit than the ledger"
    declared = {SEEDED_LABEL, bench.contract.not_private} - {""}
    assert set(report["not_private_because"]) == declared, (
        f"the ledger says why the run is not private: {report['not_private_because']}; with the contract and the seed "
        f"it should be: {sorted(declared)}"
    )


def _filled(bench: Bench, config: RunConfig) -> PrivacyStatement:
    """Returns the privacy statement of a configuration.

    Asserts that its general parts are those of the configuration.
    """
    aggregation = bench.contract.trusted(config)
    contract = bench.contract(config, bench.federation.domain)
    node = config.aggregation
    where = f"under protocol '{node.protocol}', noise '{node.noise}' and options {config.mechanism.options}"
    try:
        filled: PrivacyStatement = contract.filled(SEEDED_LABEL)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise AssertionError(
            f"the privacy statement cannot be filled in {where}: {type(error).__name__} {error}"
        ) from None
    lines = filled.to_dict()
    for title, text in lines.items():
        assert not set("{}") & set(text), f"the privacy statement keeps a placeholder in '{title}' {where}"
    seen = aggregation.who_sees_what()
    facts = {
        "unit": PrivacyStatement.unit,
        "public": public_facts(config),
        "trust": seen["trust"],
        "server_sees": seen["server"],
        "sampler": SEEDED_LABEL,
    }
    for title, fact in facts.items():
        assert fact in lines[title], f"the privacy statement's '{title}' does not say '{fact}' {where}"
    return filled


def _configurations(bench: Bench) -> Iterator[RunConfig]:
    """Yields the configurations that the contract allows.

    They have every aggregation with the ordinary options, and every option changed by itself.
    """
    clients = len(bench.federation.parts)
    trusts = [
        {"protocol": one.name, "noise": noise, "threat": threat}
        for one in CAPABILITIES.values()
        for noise, threat in product(one.noises, one.threats)
    ]
    nodes = [{"aggregation": t, "privacy": {"client_sizes": p}} for t, p in product(trusts, ("public", "private"))]
    options = [{**(bench.options or {}), **change} for change in _changes(bench.contract.Options)]
    choices: list[tuple[Any, Any]] = [(bench.options, node) for node in nodes] + [(option, {}) for option in options]
    for option, node in choices:
        try:
            config = config_of(bench.name, clients, option, **node)
            _ = bench.contract(config, bench.federation.domain).budget
        except ConfigError:
            continue  # a combination that the contract, its options or its budget refuse
        yield config


def _changes(model: Any) -> Iterator[dict[str, Any]]:
    """Yields options that differ from the defaults in one key.

    There is one for every value that could read differently.
    """
    for name, field in model.model_fields.items():
        if is_node(field.annotation):
            yield from ({name: change} for change in _changes(field.annotation))
        else:
            yield from ({name: value} for value in _others(field.annotation, field.default))


def _others(annotation: Any, default: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if value != default]
    members = get_args(annotation)
    if NoneType in members:
        inner = [other for member in members if member is not NoneType for other in _others(member, default)]
        return inner if default is None else [None, *inner]
    if annotation is bool:
        return [not default]
    if annotation is int:
        return [default + 1] if isinstance(default, int) else [2]
    return []
