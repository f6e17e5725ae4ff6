"""A holder without rows takes part as any other: nobody sees from its messages that it has none.

Every mechanism, over every protocol that it allows, is run on a small table with one holder of a single row. Then the
row is taken away. Whatever differs in what the holder sends tells the two apart.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from fedsyn.capabilities import CAPABILITIES, FHE, PLAIN, SECAGG
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, contract_class, mechanisms
from fedsyn.wire.envelope import ANSWER, ENVELOPE, to_json
from fedsyn.wire.holder import Holder

TABLE = "missing_values"
EVERYWHERE = "sketch_aim"
Node = dict[str, Any]


def document(name: str, node: Node, sizes: str, clients: int) -> RunConfig:
    """Returns the configuration of a run, judged by its holders where its mechanism can be.

    Raises ConfigError where mechanism or protocol refuses it.
    """
    contract = contract_class(name)
    options: dict[str, Any] | None = {"score": "squared_l2"} if node["protocol"] == "fhe" and contract.store else None
    nodes: dict[str, Any] = {"aggregation": node, "privacy": {"client_sizes": sizes, "epsilon": 8.0}}
    if not contract.store:
        nodes["evaluation"] = {"federated": True, "share": 0.2, "metrics": []}
    return config_of(name, clients, options, **nodes)


def allowed(name: str) -> dict[str, list[tuple[Node, str]]]:
    """Returns protocol -> aggregations and sizes that a mechanism may have."""
    found: dict[str, list[tuple[Node, str]]] = {}
    for protocol in CAPABILITIES.values():
        for noise, threat in itertools.product(reversed(protocol.noises), protocol.threats):
            for sizes in ("private", "public"):
                node = {"protocol": protocol.name, "noise": noise, "threat": threat}
                try:
                    document(name, node, sizes, 1 if contract_class(name).central else 4)
                except ConfigError:
                    continue
                found.setdefault(protocol.name, []).append((node, sizes))
    return found


def settings() -> Iterator[Any]:
    """Yields mechanism, aggregation, sizes: all that are allowed.

    A protocol carries what any client answers, and a client answers any protocol. So each mechanism is quick over one
    protocol, the next mechanism over the next one, and `EVERYWHERE` over all.
    """
    for number, name in enumerate(mechanisms()):
        protocols = allowed(name)
        quick = [*protocols] if name == EVERYWHERE else [[*protocols][number % len(protocols)]]
        for protocol, each in protocols.items():
            for place, (node, sizes) in enumerate(each):
                marks = [] if protocol in quick and place == 0 else [pytest.mark.slow]
                yield pytest.param(name, node, sizes, id="-".join([name, *node.values(), sizes]), marks=marks)
    packed = {"protocol": "fhe", "noise": "distributed", "fhe": {"compute": "packed"}}
    yield pytest.param("fhaim", packed, "public", id="fhaim-fhe-packed", marks=pytest.mark.slow)


Forms = tuple[list[Any], list[int]]


def form(arrays: Any, text: str) -> Forms:
    """Returns the arrays' types and dimensions, and the sizes of arrays and text.

    A number of the text is a released value, which may have any number of digits.
    """
    sizes = [array.nbytes for array in arrays] + [len(re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", text))]
    return [(array.dtype.str, array.ndim) for array in arrays], sizes


def forms(outcome: Outcome, holder: int) -> Forms:
    """Returns what an observer of the line sees of the replies of a holder."""
    replies = [each for each in outcome.tape.exchanges if each.partition == holder]
    return joined((each.envelope, form(each.reply_arrays, to_json(each.reply))) for each in replies)


def joined(replies: Iterable[tuple[dict[str, Any], Forms]]) -> Forms:
    kinds, sizes = list[Any](), list[int]()
    for envelope, (arrays, lengths) in replies:
        kinds.append((envelope["request"], envelope["round"], arrays))
        sizes += lengths
    return kinds, sizes


def asked_again(outcome: Outcome, federation: Federation, holder: int) -> Forms:
    """Returns the forms of the replies of a holder to the requests of a run, in their order."""
    rows, state, answered = federation.parts[holder], dict[str, Any](), list[Any]()
    for each in outcome.tape.exchanges:
        if each.partition == holder:
            facts = (rows, federation.domain, federation.table.schema.sha256, Randomness(0), state)
            held = Holder(holder, *facts, identities=lambda: simulated_identities(holder, len(federation.parts)))
            client = client_class(outcome.config.mechanism.name)(outcome.config, held)
            arrays, examples, scalars = client.fit(list(each.arrays), {ENVELOPE: to_json(each.envelope)})
            reply = to_json({"num_examples": examples, ANSWER: scalars[ANSWER]})
            answered.append((each.envelope, form(arrays, reply)))
    return joined(answered)


@pytest.mark.parametrize(("name", "node", "sizes"), settings())
def test_a_holder_without_rows_sends_what_one_with_a_row_sends(name: str, node: Node, sizes: str) -> None:
    whole = federation_of(awkward_table(TABLE), contract_class(name).central)
    last = len(whole.parts) - 1
    one_row = whole.with_part(last, whole.parts[0][:1])
    no_row = whole.with_part(last, whole.parts[0][:0])
    one = finished(execute(document(name, node, sizes, len(whole.parts)), one_row))
    # A public number of rows changes what is asked for, and so does the noise of a crypto party, which no tape holds.
    is_replayed = sizes == "private" and node["protocol"] != FHE.name
    none = finished(execute(one.config, no_row, script=one.tape.draws if is_replayed else None))
    assert not none.dropped and none.strategy.clients.keys() == one.strategy.clients.keys()
    assert none.strategy.model is not None and np.isfinite(none.strategy.model.total)
    contract, is_plain = contract_class(name), node["protocol"] == PLAIN.name
    if (node["noise"] == "server" and (is_plain or contract.central)) or (is_plain and contract.store):
        return  # the server is trusted with the exact vector, which has as many cells as the rows have
    if is_replayed:
        assert set(none.tape.problems) == set(one.tape.problems)
        assert forms(none, last) == forms(one, last)
    elif node["protocol"] != SECAGG.name:  # whose messages are for this run's keys
        kinds, lengths = asked_again(one, one_row, last)
        kinds_of_none, lengths_of_none = asked_again(one, no_row, last)
        # A ciphertext is packed, and its length is that of its random coefficients: some bytes of a megabyte.
        assert kinds_of_none == kinds and lengths_of_none == pytest.approx(lengths, rel=1e-3)
