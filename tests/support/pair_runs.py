"""Tables with known dependencies, and runs of the mechanisms that measure pairs on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.variants.privsyn import FedPairChoices
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.selection.indif import all_pairs
from fedsyn.table.counting.marginals import count
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema

DELTA = 1e-5
#: Who has the options of `FedPairChoices`, which the mechanisms themselves do not have.
VARIANTS = {
    "privsyn": "experiments.variants.privsyn:PrivSynVariant",
    "fed_privsyn": "experiments.variants.privsyn:FedPrivSynVariant",
    "ada_fed_privsyn": "experiments.variants.privsyn:AdaFedPrivSynVariant",
}


def table_of(codes: np.ndarray, shape: tuple[int, ...]) -> AwkwardTable:
    columns = {f"x{i}": CategoricalColumn(categories=tuple(range(size))) for i, size in enumerate(shape)}
    schema = Schema(columns=columns)
    return AwkwardTable("made", schema, schema.decode(codes.astype(schema.dtype), np.random.default_rng(0)))


def chain(rows: int = 2000) -> AwkwardTable:
    """x0 - x1 - x2 - x3 copy each other nine times out of ten; x4 copies x5 seven times out of ten; x6 is alone."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 4, (rows, 7))
    for target, origin, kept in ((1, 0, 0.9), (2, 1, 0.9), (3, 2, 0.9), (5, 4, 0.7)):
        copy = rng.random(rows) < kept
        codes[copy, target] = codes[copy, origin]
    return table_of(codes, (4,) * 7)


def numbers(rows: int = 3000) -> AwkwardTable:
    """Two skewed numeric attributes of 40 bins, one of them with missing values, and a category."""
    rng = np.random.default_rng(5)
    skewed = {"u": rng.exponential(8.0, rows), "v": rng.exponential(3.0, rows)}
    frame = pd.DataFrame({**skewed, "w": rng.integers(0, 3, rows)})
    frame.loc[rng.random(rows) < 0.1, "v"] = np.nan
    numeric = {"lower": 0.0, "upper": 40.0, "bins": 40}
    columns = {
        "u": NumericColumn(**numeric),
        "v": NumericColumn(**numeric, missing=True),
        "w": CategoricalColumn(categories=(0, 1, 2)),
    }
    return AwkwardTable("numbers", Schema(columns=columns), frame)


CHAIN = chain()
NUMBERS = numbers()


def run(
    name: str,
    table: AwkwardTable = CHAIN,
    clients: int = 5,
    epsilon: float = 1.0,
    faults: Any = None,
    nodes: Any = None,
    **options: Any,
) -> Outcome:
    codes = table.encode()
    clients = 1 if name == "privsyn" else clients
    name = name if options.keys().isdisjoint(FedPairChoices.model_fields) else VARIANTS[name]
    federation = Federation(table, tuple(codes[k::clients] for k in range(clients)))
    config = config_of(name, clients, options, **{"privacy": {"epsilon": epsilon, "delta": DELTA}, **(nodes or {})})
    return execute(config, federation, faults=faults)


def selected(outcome: Outcome) -> list[tuple[int, ...]]:
    """The selected pairs by the numbers of their attributes, in order, each once."""
    texts = [text for record in outcome.strategy.records for text in record.selected]
    return [tuple(int(name[1:]) for name in text.split(" × ")) for text in dict.fromkeys(texts)]


def releases(outcome: Outcome, name: str) -> list[Any]:
    return [release for release in outcome.strategy.ledger.releases if release.name == name]


def pair_error(outcome: Outcome) -> float:
    """Mean L1 distance between the normalised pairs of the table and of the synthetic rows."""
    domain, real = outcome.federation.domain, np.concatenate(outcome.federation.parts)
    pairs = all_pairs(domain)
    both = zip(count(real, domain, pairs), count(outcome.synthetic, domain, pairs), strict=True)
    return float(np.mean([np.abs(a / len(real) - b / len(outcome.synthetic)).sum() for a, b in both]))


def assert_the_ledger_adds_up(name: str, options: dict[str, Any], noise: str) -> None:
    """The budget is spent, on each kind of release the share that the options say, and every client pays as much."""
    outcome = finished(run(name, nodes={"aggregation": {"noise": noise}}, **options))
    ledger = outcome.strategy.ledger
    scored = options.get("select", "scores") == "scores"
    # Shares of a distributed noise are a little larger than asked for, and cost a little less.
    room = 0.02 if noise == "distributed" else 1e-6
    assert ledger.accountant.name == "one Gaussian mechanism"
    assert ledger.epsilon() <= 1.0 + 1e-9 and ledger.spent == pytest.approx(ledger.accountant.capacity, rel=room)
    shares = {key: sum(r.rho for r in releases(outcome, key)) for key in {r.name for r in ledger.releases}}
    total = 0.5 * ledger.accountant.capacity
    one_way = options.get("one_way_share", 0.5)
    assert shares["one-way"] == pytest.approx(one_way * total, rel=room)
    scores = shares.get("project", 0.0) + shares.get("indif", 0.0)
    assert scores == pytest.approx(options.get("score_share", 0.1) * total if scored else 0.0, rel=room)
    for client in outcome.ledgers.values():
        assert client.spent == pytest.approx(ledger.spent, rel=room) and client.epsilon() <= 1.0 + 1e-9
