"""Feasibility of a whole plan before its first charge.

Nothing starts that could not finish.

A ring has so many bits, a message so many bytes, a crypto party decrypts so many ciphertexts. Who would refuse a
request in mid-run is asked about it here, by the same functions (`Aggregation.room`, `Store.room_of_choice`, ...), with
each step of the plan at its largest (`Contract.plan`, `Request.largest`). It is done with what is public before anybody
is asked for anything, and again as soon as the number of rows is known. No message is sent for it, and no bound stands
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from fedsyn.aggregation.base import Aggregation
from fedsyn.config import FederationNode
from fedsyn.errors import ConfigError
from fedsyn.privacy import epsilon_for_rho, sigma_for_rho
from fedsyn.protocol.cohorts import cohort_size
from fedsyn.protocol.common import Evaluate, RowTotal, beside
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.finding import steps_of
from fedsyn.protocol.plan import Step, largest_measured
from fedsyn.stores import make_store
from fedsyn.stores.base import Store
from fedsyn.wire.envelope import check_message
from fedsyn.wire.requests import Layout

# Standard deviations of a cohort's size that chance never makes (2^-100).
_FAR = 12.0


def require_feasible(contract: Contract, clients: int, rows: float = 1.0, largest: float = 1.0) -> None:
    """Tries everything that the plan may hold.

    It makes every check that could refuse in mid-run.

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
    # Steps around the mechanism run on the schema as it is, the mechanism's own on the largest that it may become.
    steps: list[tuple[Contract, Step]] = [(contract, step) for step in _beside(contract)]
    if contract.finding is not None:
        steps += [(contract, step) for step in steps_of(contract)]
        contract = contract.at_largest()
    where = f"mechanism '{config.mechanism.name}' over aggregation.protocol: {config.aggregation.protocol}"
    if rows > 1.0:
        where += f" with {rows:,.0f} rows or fewer"
    rows_at_most = max(1, math.ceil(rows))
    try:
        # The plan itself, the largest client, and what clients deal into a store.
        steps += [(contract, step) for step in contract.plan(contract.budget.mechanism, rows_at_most)]
        contract.require_size(largest)
        _require_formed(contract)
        if store is not None:
            store.room_of_deals(contract, largest)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    # Every step, at the ends of its noise and for the cohorts that may be drawn.
    cohorts = [1] if contract.central or contract.alone else _cohorts(config.federation, clients)
    for agreed, step in steps:
        try:
            layouts, kind = step.request.largest(agreed), step.request.kind
            if kind == "sum":
                assert sums is not None
                for layout in layouts:
                    check_message(8.0 * layout.length, "a vector", simulated=config.runtime.engine != "deployment")
                    _try_sum(sums, layout, step.sigmas(layout), cohorts, rows)
            elif store is not None and kind in ("choose", "open"):
                _try_store(store, step, contract, rows_at_most)
        except ConfigError as error:
            raise ConfigError(f"{where}: its request '{step.request.name}' could not be answered: {error}") from None


def _require_formed(contract: Contract) -> None:
    """Raises ConfigError for a candidate that may be measured, but not formed.

    Many candidates take no more memory than one: they are formed one after the other (`ModelView.each`).
    """
    node, domain, candidates = contract.config.inference, contract.domain, contract.candidates
    cells = largest_measured(contract)
    if cells > node.max_cells_at_once:
        columns = next(clique for clique in candidates.cliques if domain.size(clique) == cells)
        raise ConfigError(
            f"the columns {', '.join(columns)} have {cells:,} cells together, and at most {node.max_cells_at_once:,} "
            "are formed at once: give these columns fewer bins or categories, lower inference.max_cells, so that their "
            "marginal is not measured, or raise inference.max_cells_at_once (a cell takes 8 bytes)"
        )


def _try_sum(
    sums: Aggregation, layout: Layout, sigmas: tuple[float, float], cohorts: Iterable[int], rows: float
) -> None:
    """Tries the smallest and the largest noise, and one between.

    That one is the largest noise at which full resolution still applies.

    Resolution times values falls with sigma; resolution times sigma is below twice what least noise has as long as the
    resolution is above 1, and grows with sigma from there on (`DistributedNoise.of`).
    """
    least, most = sigmas
    for sigma in sorted({least, min(most, 2.0 * least), most}):
        for clients in cohorts:
            sums.room(layout.spec(sigma, clients, 0), rows)


def _try_store(store: Store, step: Step, contract: Contract, rows: int) -> None:
    """Tries both ends of the noise.

    What lies between them reaches no farther.
    """
    for rho in {step.first_rho, step.rho}:
        if step.request.kind == "choose":
            store.room_of_choice(contract.largest_terms(rho / step.rho, rows), epsilon_for_rho(rho))
            continue
        for layout in step.request.largest(contract):
            store.room_of_opening(sigma_for_rho(rho), count=layout.count, length=layout.length, rows=rows)


def _cohorts(node: FederationNode, clients: int) -> list[int]:
    """Returns a cohort's sizes: the smallest that chance makes, the largest."""
    if node.max_participations is not None:
        return [cohort_size(node.sampling_rate, node.minimum_cohort, clients), clients]
    spread = _FAR * math.sqrt(clients * node.sampling_rate * (1.0 - node.sampling_rate))
    fewest = max(1, node.minimum_cohort, math.floor(clients * node.sampling_rate - spread))
    return sorted({min(fewest, clients), clients})


def _beside(contract: Contract) -> Iterator[Step]:
    """Yields row counts before the mechanism, and evaluation after it."""
    steps = beside(contract)
    if contract.sums_rows:
        yield steps[RowTotal]
    if contract.config.evaluation.federated:
        yield steps[Evaluate]
