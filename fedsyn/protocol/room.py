"""Nothing starts that could not finish: all that a run's plan may ask for is tried before its first charge.

A ring has so many bits, a message so many bytes, a crypto party decrypts so many ciphertexts. Who would refuse a
request in mid-run is asked about it here, by the same functions (`Aggregation.room`, `Store.room_of_choice`, ...), with
the request at its largest (`Contract.foreseen`): before anybody is asked for anything with what is public by then, and
again as soon as it is known how many rows there are. No message is sent for it, and no bound stands here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from fedsyn.aggregation.base import Aggregation
from fedsyn.config import FederationNode
from fedsyn.errors import ConfigError
from fedsyn.evaluation.federated.question import MOST_ROWS
from fedsyn.evaluation.federated.statistics import UNIT
from fedsyn.privacy.release import COUNTS
from fedsyn.private_bins.facts import PrivateColumns
from fedsyn.private_bins.prefixes import FOLLOWED, SYMBOLS
from fedsyn.private_bins.ranges import MOST_CELLS, tree
from fedsyn.protocol.cohorts import cohort_size
from fedsyn.protocol.common import Evaluate, RowTotal
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.plan import Foreseen, ForeseenChoice, ForeseenOpening, ForeseenSum
from fedsyn.stores import make_store
from fedsyn.stores.base import Store
from fedsyn.wire.envelope import check_message
from fedsyn.wire.requests import Layout

# Standard deviations of a cohort's size that chance never makes (2^-100).
_FAR = 12.0


def require_feasible(contract: Contract, clients: int, rows: float = 1.0, largest: float = 1.0) -> None:
    """Asks every check that could refuse in mid-run about everything that the plan may hold.

    Args:
        contract: of the run.
        clients: that take part.
        rows: most rows that they have together; 1: nothing is known of them.
        largest: most rows of one of them; likewise.

    Raises:
        ConfigError: something of it has no room; one sentence, which says what to change.
    """
    config, sums = contract.config, contract.sums()
    store = make_store(config) if contract.store else None
    asked: list[Foreseen] = list(_beside(contract))
    if contract.finding is not None:
        asked += _found(contract, contract.finding)
        contract = type(contract)(config, contract.finding.largest().domain)
    where = f"mechanism '{config.mechanism.name}' over aggregation.protocol: {config.aggregation.protocol}"
    if rows > 1.0:
        where += f" with {rows:,.0f} rows or fewer"
    try:
        asked += contract.foreseen(max(1, math.ceil(rows)))
        contract.require_size(largest)
        if store is not None:
            store.room_of_deals(contract, largest)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    cohorts = [1] if contract.central else _cohorts(config.federation, clients)
    for one in asked:
        try:
            if isinstance(one, ForeseenSum):
                assert sums is not None
                check_message(8.0 * one.layout.length, "a vector", simulated=config.runtime.engine != "deployment")
                _try_sum(sums, one, cohorts, rows)
            elif store is not None:
                _try_store(store, one, rows)
        except ConfigError as error:
            raise ConfigError(f"{where}: its request '{one.name}' could not be answered: {error}") from None


def _try_sum(sums: Aggregation, one: ForeseenSum, cohorts: Iterable[int], rows: float) -> None:
    """At the ends of its noise, and where the resolution that least noise needs is just still needed.

    Resolution times values falls with sigma; resolution times sigma is below twice what least noise has as long as the
    resolution is above 1, and grows with sigma from there on (`DistributedNoise.of`).
    """
    least, most = one.sigma
    for sigma in sorted({least, min(most, 2.0 * least), most}):
        for clients in cohorts:
            sums.room(one.layout.spec(sigma, clients, 0), rows)


def _try_store(store: Store, one: Foreseen, rows: float) -> None:
    if isinstance(one, ForeseenChoice):
        store.room_of_choice(one.terms, one.epsilon)
    elif isinstance(one, ForeseenOpening):
        store.room_of_opening(one.sigma, count=one.count, length=one.cells, rows=math.ceil(rows))


def _cohorts(node: FederationNode, clients: int) -> list[int]:
    """Sizes of a cohort: the largest, the smallest that chance makes."""
    if node.max_participations is not None:
        return [cohort_size(node.sampling_rate, node.minimum_cohort, clients), clients]
    spread = _FAR * math.sqrt(clients * node.sampling_rate * (1.0 - node.sampling_rate))
    fewest = max(1, node.minimum_cohort, math.floor(clients * node.sampling_rate - spread))
    return sorted({min(fewest, clients), clients})


# What is no mechanism's ----------------------------------------------------------------------------------------------


def _beside(contract: Contract) -> Iterator[ForeseenSum]:
    """Row counts before the mechanism, evaluation after it."""
    config = contract.config
    if contract.sums_rows:
        yield ForeseenSum.of(RowTotal.name, RowTotal().layout(contract, ()), contract.budget.sizes)
    if config.evaluation.federated:
        d = len(contract.domain)
        check_message(2.0 * d * MOST_ROWS, "evaluation.federated")
        layout = Layout.of_vector(d + 6, float(UNIT), magnitude=float(UNIT))
        yield ForeseenSum.of(Evaluate.name, layout, contract.budget.evaluation)


def _found(contract: Contract, finding: PrivateColumns) -> Iterator[ForeseenSum]:
    """The sums by which what is private of a schema is found, each as if it had all of their share."""
    rho = contract.budget.finding
    if finding.ranges:
        shapes = tuple((len(column.edges) - 1,) for column in finding.ranges)
        yield ForeseenSum.of("find-ranges", Layout(shapes, len(shapes), replaced=COUNTS), rho)
    if finding.binned:
        shapes = tuple((length,) for _ in finding.binned for length in tree(MOST_CELLS).lengths)
        yield ForeseenSum.of("find-bins", Layout(shapes, len(shapes), replaced=COUNTS), rho)
    if finding.texts:
        shapes = tuple((FOLLOWED * column.wanted.most * SYMBOLS,) for column in finding.texts)
        layout = Layout(shapes, len(shapes), replaced=COUNTS)
        yield ForeseenSum.of("find-categories", layout, rho, times=finding.levels)
