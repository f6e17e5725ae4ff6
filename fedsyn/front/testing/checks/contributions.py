"""Conformance check of what clients add to sums.

Their contributions are counted once more.

In the ordinary run the server draws the noise, so that the exact parts of all clients are on the tape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.front.testing.bench import Bench
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.harness import Codes, Federation, Outcome
from fedsyn.front.testing.tape import TapedExchange
from fedsyn.wire.requests import DealRequest, Layout, Request, SumRequest
from fedsyn.wire.sparse import decode_sparse, split_vector

Vectors = dict[int, list[npt.NDArray[np.int64]]]


def check_contributions(bench: Bench) -> None:
    """Requires exact counts of rows in every sum of marginals.

    A client adds the counts of its rows. No array of other sums may be left out.

    A clique that a client stays away from for a public reason (`Layout.argument`) adds zero.
    """
    base = bench.base()
    seen = False
    for layout, _, exchanges in sums_of(bench, base):
        vectors = {e.partition: _vectors(e, layout) for e in exchanges}
        if layout.cliques:
            for exchange in exchanges:
                _counts_hold(bench.federation, exchange, layout, vectors[exchange.partition])
        seen = seen or len(layout.shapes) > 1 or bool(layout.cliques)
        if len(layout.shapes) > 1:
            _nothing_idle(bench.federation, exchanges, layout, vectors)
    if not seen:
        raise Skipped("every sum of the run is one vector, which only the mechanism can compute")


def sums_of(bench: Bench, base: Outcome) -> Iterator[tuple[Layout, Request, list[TapedExchange]]]:
    """Yields each sum of the run, and each deal into a store.

    Each comes with its layout as the server has it, its request, and what was sent.
    """
    grouped: dict[int, list[TapedExchange]] = {}
    for exchange in base.tape.exchanges:
        if exchange.envelope["kind"] in ("sum", "deal") and exchange.reply["ok"]:
            grouped.setdefault(exchange.envelope["sequence"], []).append(exchange)
    contract = base.strategy.contract
    for exchanges in grouped.values():
        first = exchanges[0]
        record = bench.client.requests[first.envelope["request"]].read(first.envelope["params"], contract)
        if isinstance(record, SumRequest):
            yield record.layout(contract, first.arrays), record, exchanges
        elif isinstance(record, DealRequest):
            yield record.layout(contract), record, exchanges


def _vectors(exchange: TapedExchange, layout: Layout) -> list[npt.NDArray[np.int64]]:
    """Returns the arrays of a sum as one client sent them."""
    length = sum(int(np.prod(shape)) for shape in layout.shapes)
    cells, values = decode_sparse(exchange.reply_arrays, length, signed=layout.signed)
    vector = np.zeros(length, np.int64)
    vector[cells] = values
    return split_vector(vector, layout.shapes)


def _counts_hold(
    federation: Federation, exchange: TapedExchange, layout: Layout, sent: Sequence[npt.NDArray[np.int64]]
) -> None:
    contribution = exchange.contribution
    assert contribution is not None, f"{exchange}: no contribution was computed"
    everything = tuple(range(len(layout.cliques)))
    assert layout.argument or contribution.active == everything, (
        f"{exchange}: the client adds to the arrays {list(contribution.active)}, but was asked for {list(everything)}"
    )
    codes, domain = federation.parts[exchange.partition], federation.domain
    for j, (clique, values) in enumerate(zip(layout.cliques, sent, strict=True)):
        counts = _counted(codes, domain.axes(clique), layout.shapes[j])
        right = counts if j in contribution.active else 0 * counts
        assert np.array_equal(values, right), (
            f"{exchange}: what the client adds for the marginal of {' × '.join(clique)} are not the counts of its rows "
            f"(they sum to {values.sum()}, its rows to {right.sum()})"
        )


def _counted(codes: Codes, axes: Sequence[int], shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Counts a marginal row by row."""
    table = np.zeros(shape, np.int64)
    np.add.at(table, tuple(codes[:, axis].astype(np.int64) for axis in axes), 1)
    return table


def _nothing_idle(federation: Federation, exchanges: Sequence[TapedExchange], layout: Layout, vectors: Vectors) -> None:
    """Asserts that no array of a sum stays zero on all clients.

    Each row pays for each array. Only clients that have rows and add to the array count.
    """
    for j in range(len(layout.shapes)):
        adding = [
            e.partition
            for e in exchanges
            if len(federation.parts[e.partition]) and (not layout.argument or j in (e.active or ()))
        ]
        assert not adding or any(vectors[partition][j].any() for partition in adding), (
            f"'{exchanges[0].envelope['request']}' of round {exchanges[0].envelope['round']}: every row pays for array "
            f"{j} of the sum, but no client adds anything to it"
        )
