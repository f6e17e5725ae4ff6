"""What a result must be: the same for the same seed, whatever the order of replies, and a table of the schema."""

from __future__ import annotations

import numpy as np

from fedsyn.front.testing.bench import Bench, Nodes, equal_arrays, under
from fedsyn.front.testing.harness import Outcome, execute, finished


def check_reproducible(bench: Bench) -> None:
    """The same seed gives the same synthetic table and model, bit for bit; another seed gives other noise."""
    base = bench.base()
    same(base, finished(execute(bench.config(), bench.federation)), "the same seed, run twice,")
    other = finished(execute(bench.config(runtime={"seed": 1}), bench.federation))
    assert noise_of(base) != noise_of(other), "two seeds give the same noise"


@under("as configured", "sampled cohorts", "local noise")
def check_order_of_replies(bench: Bench, nodes: Nodes) -> None:
    """The order in which clients work and replies arrive changes nothing."""
    bench.require_several()
    straight = bench.base(**nodes)
    turned = finished(execute(straight.config, bench.federation, reverse=True))
    same(straight, turned, "another order of replies")


def same(one: Outcome, two: Outcome, what: str) -> None:
    assert equal_arrays(one.arrays, two.arrays), f"{what} gives another model"
    assert np.array_equal(one.synthetic, two.synthetic), f"{what} gives another synthetic table"
    releases = [[release.to_dict() for release in o.strategy.ledger.releases] for o in (one, two)]
    assert releases[0] == releases[1], f"{what} gives another ledger"


def noise_of(outcome: Outcome) -> list[bytes]:
    """What came out of every release that carries Gaussian noise."""
    draws = [draw for party in sorted(outcome.tape.draws) for draw in outcome.tape.draws[party]]
    outputs = [draw.output for draw in draws if draw.kind == "gaussian"]
    return [np.asarray(a).tobytes() for out in outputs for a in (out if isinstance(out, list) else [out])]


def check_synthetic_table(bench: Bench) -> None:
    """The synthetic table has the schema's columns and values and the right number of rows."""
    base = bench.base()
    model, schema = base.strategy.model, bench.table.schema
    assert model is not None
    shape = np.array(schema.domain.shape)
    assert base.synthetic.shape == (max(1, round(model.total)), len(shape)), "the model samples fewer or more rows"
    assert abs(model.total - bench.federation.rows) <= 0.5, (
        f"row counts are public and sum to {bench.federation.rows}, the model's total is {model.total:g}"
    )
    assert np.all(base.synthetic >= 0) and np.all(base.synthetic < shape), "synthetic codes leave the domain"
    frame = schema.decode(base.synthetic, np.random.default_rng(0))
    assert list(frame.columns) == list(schema.order), "the synthetic table has other columns than the schema"
    assert list(frame.dtypes) == list(bench.table.frame.dtypes), "the synthetic table has other types than the schema's"
    assert np.array_equal(schema.encode(frame), base.synthetic), "the synthetic table does not encode to its own codes"
    broken = {text: rows for text, rows in schema.violations(frame).items() if rows}
    assert not broken, f"the synthetic table breaks constraints of the schema: {broken}"
    for name in schema.domain:
        marginal = model.project((name,))
        assert np.all(np.isfinite(marginal)) and np.all(marginal >= 0), (
            f"the model's marginal of '{name}' is not a marginal"
        )
        assert np.isclose(marginal.sum(), model.total), f"the model's marginal of '{name}' does not sum to its total"
    more = finished(execute(bench.config(synthesis={"rows": 7}), bench.federation))
    assert len(more.synthetic) == 7, "synthesis.rows is not the number of synthetic rows"
