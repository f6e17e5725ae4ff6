"""Fed DP-CTGAN: its gradients, its plan, its runs. Without the extra `deep` only what needs no JAX is tested."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.inference import MixtureModel
from fedsyn.plugins.clients.fed_dp_ctgan import STEPS_OF_CLIP, CtganClient, CtganContract, Descent, require_deep
from fedsyn.privacy import SAMPLED, PrivacyBudget
from fedsyn.privacy.accountant import RenyiAccountant
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.plan import allowed
from fedsyn.randomness import Randomness
from fedsyn.wire.envelope import ANSWER, Envelope
from fedsyn.wire.holder import Holder
from support.pair_runs import table_of

deep = pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="the extra deep is not installed")
SHAPE, BUDGET = (3, 2, 4), PrivacyBudget(1.0, 1e-5)
SMALL = {"rounds": 3, "rate": 0.5, "hidden": 8, "noise_dim": 4, "batch": 16, "components": 50}


def codes_of(rows: int, seed: int = 0) -> np.ndarray:
    """Rows whose columns follow each other."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 2, rows)
    return np.stack([first * 2, first, first * 3], axis=1).astype(np.uint8)


def run(options: dict[str, Any], rows: int = 60, clients: int = 2, **nodes: Any) -> Outcome:
    codes = codes_of(rows)
    federation = Federation(table_of(codes, SHAPE), tuple(codes[k::clients] for k in range(clients)))
    return execute(config_of("fed_dp_ctgan", clients, {**SMALL, **options}, **nodes), federation)


def contract(**nodes: Any) -> CtganContract:
    return CtganContract(config_of("fed_dp_ctgan", 2, SMALL, **nodes), Domain(("a", "b", "c"), SHAPE))


# The contract needs no JAX -------------------------------------------------------------------------------------------


def test_the_plan_spends_the_budget_to_the_last_step() -> None:
    own = contract()
    multiplier, accountant = own.multiplier(own.budget.table), own.accountant_of(BUDGET)
    (sigma,) = (step.sigma for step in own.plan(own.budget.table) if step.request is OneWay)
    assert isinstance(accountant, RenyiAccountant)
    (release,) = step_of(multiplier).releases(own)
    layout = OneWay().layout(own, ())
    one_way = accountant.order * layout.count / (2 * sigma**2)
    total = one_way + own.options.rounds * accountant.cost(release)
    assert one_way == pytest.approx(0.1 * accountant.capacity, rel=1e-6)
    assert total == pytest.approx(accountant.capacity, rel=1e-6) and total <= accountant.capacity * (1 + 1e-9)


def step_of(multiplier: float) -> Descent:
    return Descent(attribute=0, multiplier=multiplier)


def test_private_row_counts_are_paid_from_the_same_budget() -> None:
    public, private = contract(), contract(privacy={"client_sizes": "private"})
    z = [own.multiplier(own.budget.mechanism) for own in (public, private)]
    assert z[0] < z[1] < 1.1 * z[0]


def test_the_planned_limits_are_those_of_the_plan() -> None:
    own = contract()
    once, in_all = allowed(own.steps, step_of(1.0), None)
    assert in_all == pytest.approx(3 * once)
    assert once == pytest.approx(1 / (2 * own.multiplier(own.budget.mechanism) ** 2))
    assert allowed(own.steps, OneWay(), OneWay().layout(own, ()))[0] > 0.0


def test_a_smaller_budget_of_a_holder_pays_for_fewer_steps() -> None:
    own = contract()
    less = own.accountant_of(PrivacyBudget(0.9, 1e-5))
    assert less.order == own.order and less.capacity < own.accountant_of(BUDGET).capacity


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jax_privacy" else object())
    with pytest.raises(ConfigError, match=r"'jax_privacy': pip install '.*\.whl\[deep\]'"):
        require_deep()
    with pytest.raises(ConfigError, match="deep"):
        run({})


def test_the_order_of_a_run_is_that_of_its_configuration_and_may_be_set() -> None:
    own = contract()
    assert own.order == type(own).order_of(own.config)
    for order in (20, 30):
        other = CtganContract(config_of("fed_dp_ctgan", 2, {**SMALL, "order": order}), own.domain)
        assert other.order == order and other.accountant_of(BUDGET).order == order


@deep
def test_with_constraints_the_model_is_a_table_that_keeps_to_them() -> None:
    from fedsyn.plugins.strategies.fed_dp_ctgan import FedDpCtgan

    strategy = object.__new__(FedDpCtgan)
    strategy.randomness, strategy.clients = Randomness(0), {0: SimpleNamespace(rows=500.0)}  # type: ignore[dict-item]
    strategy.config = contract().config
    components = np.full((4, 9), [1 / 3] * 3 + [0.5] * 2 + [0.25] * 4, np.float32)
    zeros = ((("a", "b"), np.array([[True, False], [False, True], [False, False]])),)
    strategy.domain = Domain(("a", "b", "c"), SHAPE, zeros=zeros)  # type: ignore[arg-type]
    made = strategy.obeying(components)
    assert len(made.sample(500, np.random.default_rng(0))) == 500
    assert not strategy.domain.violated(made.sample(500, np.random.default_rng(0))).any()
    strategy.domain = Domain(("a", "b", "c"), SHAPE, zeros=((("a",), np.array([True] * 3)),))  # type: ignore[arg-type]
    with pytest.raises((RunError, ValueError)):
        strategy.obeying(components)


# Gradients -----------------------------------------------------------------------------------------------------------


def parameters(seed: int = 0, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(scale * rng.standard_normal(shape)).astype(np.float32) for shape in contract().shapes]


@pytest.mark.slow
@deep
def test_a_sum_of_clipped_gradients_is_what_autodiff_says() -> None:
    """On the dense discriminator, one row after the other; off by the room that is left for the rounding of norms."""
    import jax
    import jax.numpy as jnp

    from fedsyn.plugins.clients.ctgan_discriminator import clipped_sum, score

    own, codes, clip, attribute = parameters(), np.array([[0, 1, 3], [2, 0, 1], [1, 1, 0]] * 15, np.uint8), 1.5, 2

    def loss(weights: Any, row: np.ndarray) -> Any:
        seen = np.zeros(18, np.float32)
        places = np.array([0, 3, 5]) + row
        seen[[*places, 9 + places[attribute]]] = 1.0
        return jax.nn.softplus(-score(weights, jnp.asarray(seen)))

    expected, longest = np.zeros(contract().length), 0.0
    for row in codes.astype(int):
        gradient = np.concatenate([np.ravel(g) for g in jax.grad(loss)(tuple(map(jnp.asarray, own)), row)])
        norm = float(np.linalg.norm(gradient.astype(np.float64)))
        longest = max(longest, norm)
        expected += gradient * min(1.0, clip / norm)
    ours = clipped_sum(own, codes, SHAPE, attribute, clip, STEPS_OF_CLIP) * clip / STEPS_OF_CLIP
    assert longest > clip, "no row's gradient was long enough to be clipped"
    assert ours == pytest.approx(expected, abs=45 * clip * 1e-4)


@deep
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6, 1e30, math.inf, math.nan])
def test_no_parameters_make_a_row_move_the_sum_farther(scale: float) -> None:
    from fedsyn.plugins.clients.ctgan_discriminator import clipped_sum

    with np.errstate(invalid="ignore", over="ignore"):
        own = [table * np.float32(scale) for table in parameters()]
    for row in codes_of(4):
        alone = clipped_sum(own, row[None], SHAPE, 1, 0.3, STEPS_OF_CLIP)
        assert alone.dtype == np.int64 and np.linalg.norm(alone.astype(float)) <= STEPS_OF_CLIP
    many = codes_of(70)
    whole, rest = (
        clipped_sum(own, many, SHAPE, 1, 0.3, STEPS_OF_CLIP),
        clipped_sum(own, many[:-1], SHAPE, 1, 0.3, STEPS_OF_CLIP),
    )
    assert np.linalg.norm((whole - rest).astype(float)) <= STEPS_OF_CLIP * (1 + 1e-9)
    assert not clipped_sum(own, many[:0], SHAPE, 1, 0.3, STEPS_OF_CLIP).any()


@pytest.mark.slow
@deep
def test_made_rows_are_clipped_as_jax_privacy_clips() -> None:
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipped_grad

    from fedsyn.plugins.clients.ctgan_discriminator import score
    from fedsyn.plugins.strategies.ctgan_networks import fake_gradient

    own, seen = (
        tuple(map(jnp.asarray, parameters())),
        jnp.asarray(np.random.default_rng(1).random((20, 18)), jnp.float32),
    )
    for clip in (0.5, 5.0, 500.0):
        slope = clipped_grad(lambda w, x: jax.nn.softplus(score(w, x[0])), l2_clip_norm=clip, normalize_by=20.0)
        for ours, theirs in zip(fake_gradient(own, seen, clip), slope(own, seen), strict=True):
            assert np.asarray(ours) == pytest.approx(np.asarray(theirs), rel=1e-3, abs=1e-5)


# Runs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@deep
def test_a_run_ends_with_a_mixture_and_full_ledgers() -> None:
    outcome = finished(run({}))
    model, ledger = outcome.strategy.model, outcome.strategy.ledger
    assert isinstance(model, MixtureModel) and model.total == 60.0 and len(model.weights) == 50
    steps = [release for release in ledger.releases if release.mechanism == SAMPLED]
    assert [(release.name, release.rate) for release in steps] == [("step", 0.5)] * 3
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-6) and ledger.epsilon() <= 1.0
    assert ledger.report()["assumptions"]["amplification_by_sampling"] is True
    for own in outcome.ledgers.values():
        assert [r.count for r in own.releases if r.mechanism == SAMPLED] == [3]
    assert "jax-privacy's PLD accountant" in outcome.strategy.records[1].notes[0]
    again = finished(run({}))
    assert {k: v.tobytes() for k, v in again.arrays.items()} == {k: v.tobytes() for k, v in outcome.arrays.items()}


@pytest.mark.slow
@deep
def test_what_clients_send_has_the_noise_that_their_ledgers_say() -> None:
    """The clients' own noise over 3 rounds, 2 clients, P numbers each: its standard deviation to 4 of its own."""
    outcome = finished(run({"clip": 0.1}))
    z = outcome.strategy.contract.multiplier(outcome.strategy.contract.budget.table)
    sent = [e.reply_arrays[0] for e in outcome.tape.exchanges if e.envelope["request"] == "step"]
    values = np.concatenate(sent).astype(float)
    # At most 15 rows of norm 0.1 add to a vector of P = 240 numbers: next to nothing beside the noise.
    signal = (15 * 0.1) ** 2 / contract().length
    assert len(sent) == 6 and z > 3
    assert np.mean(values**2) == pytest.approx((0.1 * z) ** 2 + signal / 2, rel=4 * math.sqrt(2 / len(values)) + 0.05)


def client_of(config: Any, rows: np.ndarray) -> CtganClient:
    domain = table_of(rows, SHAPE).schema.domain
    return CtganClient(config, Holder(0, rows, domain, "", Randomness(0)))


def asked(client: CtganClient, number: int, **params: Any) -> dict[str, Any]:
    envelope = Envelope("step", "ask", number, client.config.sha256, params, number)
    _, _, scalars = client.fit(parameters(), envelope.to_scalars())
    answer: dict[str, Any] = json.loads(scalars[ANSWER])
    return answer


@pytest.mark.slow
@deep
def test_a_client_takes_the_planned_steps_and_no_other() -> None:
    client = client_of(config_of("fed_dp_ctgan", 2, SMALL), codes_of(20))
    z = client.contract.multiplier(client.contract.budget.mechanism)
    less = asked(client, 1, attribute=0, multiplier=0.9 * z)
    assert (less["ok"], less["kind"]) == (False, "protocol") and "less noise" in less["sentence"]
    beyond = asked(client, 1, attribute=3, multiplier=z)
    assert (beyond["ok"], beyond["kind"]) == (False, "protocol") and not client.ledger.releases
    assert all(asked(client, t, attribute=0, multiplier=z)["ok"] for t in (1, 2, 3))
    more = asked(client, 4, attribute=0, multiplier=z)
    assert not more["ok"] and len(client.ledger.releases) == 3


@deep
@pytest.mark.parametrize(
    "arrays", [[], [np.zeros(3, np.float32)], [np.full(10**6, np.inf, np.float32)], [np.zeros((1, 240), np.float32)]]
)
def test_a_reply_that_is_no_gradient_drops_its_client(arrays: list[np.ndarray]) -> None:
    from fedsyn.plugins.strategies.fed_dp_ctgan import FedDpCtgan
    from fedsyn.wire.envelope import Reply

    strategy = object.__new__(FedDpCtgan)
    strategy.contract = contract()
    with pytest.raises(ProtocolError, match="the reply"):
        strategy.gradient_of(Reply(0, arrays, {}))


@deep
@pytest.mark.slow
def test_with_a_large_budget_it_learns_what_links_columns() -> None:
    """Two kinds of rows: an untrained generator, even with the right marginals, gives one of them a quarter at most."""
    learned = {"rounds": 150, "rate": 1.0, "discriminator_learning_rate": 0.01, "generator_learning_rate": 0.01}
    shares = {}
    for name, options in (("untrained", {"rounds": 1}), ("trained", learned)):
        outcome = run(
            {**options, "clip": 5.0, "hidden": 16, "start": "marginals"}, rows=400, privacy={"epsilon": 1000.0}
        )
        model = finished(outcome).strategy.model
        assert model is not None
        shares[name] = float(np.exp(model.log_likelihood(np.array([[0, 0, 0], [2, 1, 3]]))).sum())
    assert shares["untrained"] < 0.35 and shares["trained"] > 0.6, shares


def test_the_module_of_the_contract_is_light() -> None:
    text = (Path(__file__).resolve().parents[3] / "clients" / "fed_dp_ctgan.py").read_text(encoding="utf-8")
    assert "import jax" not in text and "import optax" not in text


@pytest.mark.slow
@deep
def test_a_row_pays_for_the_rounds_that_its_client_takes_part_in() -> None:
    """Four rounds of one client of two, at most two each: steps have the noise of two, and the first one's client alone
    is asked for one-way marginals."""
    bounded = {"federation": {"sampling_rate": 0.5, "max_participations": 2, "minimum_cohort": 1}}
    outcome = finished(run({"rounds": 4}, **bounded))
    own, ledger = outcome.strategy.contract, outcome.strategy.ledger
    assert own.steps_of_a_row == 2 and ledger.epsilon() <= 1.0
    z = {release.sigma / release.sensitivity for release in ledger.releases if release.mechanism == SAMPLED}
    assert z == {contract_of(2).multiplier(contract_of(2).budget.table)}
    asked_of = [e.partition for e in outcome.tape.exchanges if e.envelope["request"] == "one-way"]
    steps = [e.partition for e in outcome.tape.exchanges if e.envelope["request"] == "step"]
    assert len(asked_of) == 1 and steps[0] == asked_of[0] and sorted(steps) == [0, 0, 1, 1]


def contract_of(rounds: int) -> CtganContract:
    config = config_of("fed_dp_ctgan", 2, {**SMALL, "rounds": rounds})
    return CtganContract(config, Domain(("a", "b", "c"), SHAPE))
