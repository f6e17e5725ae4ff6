"""The base of every server half.

It is a Flower `Strategy` that a generator of requests drives. A mechanism writes `protocol()` in the order of its
paper's pseudo-code and yields `Ask` and `Sum` requests; the base class turns each into messages on whatever Grid it is
given, charges what it costs, checks the replies, and sends the answer back into the generator. A reply that is late,
missing or malformed costs that client only, and is recorded.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.evaluation.predicted import SketchError
from fedsyn.flower import FLOWER_LOG, Array, ArrayRecord, ConfigRecord, Grid, MetricRecord, Result
from fedsyn.inference import AnyModel, EstimateConfig, Measurement, Model, estimate
from fedsyn.inference.capacity import Capacity
from fedsyn.inference.engines import Fits, engine_of
from fedsyn.inference.estimation import estimate_config
from fedsyn.inference.shrinkage import least_shares, of_measurements, smoothed
from fedsyn.protocol.client import TableClient, indices
from fedsyn.protocol.common import RowTotal, Sizes
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.driving import Driver, Steps
from fedsyn.protocol.joining import Participant
from fedsyn.protocol.plan import Step
from fedsyn.protocol.record import Observer, RoundCosts, RoundRecord
from fedsyn.protocol.recorder import Journal
from fedsyn.randomness import Randomness
from fedsyn.selection.views import pack_model
from fedsyn.wire.envelope import Reply
from fedsyn.wire.requests import Request, Sum, Summed, SumRequest, Yielded

Protocol = Generator[Yielded, Any, None]
#: Flower's type: round and the model's arrays, to figures about them.
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class MechanismStrategy(Driver):
    """Server half of a mechanism.

    Class attributes that a mechanism sets:
        Client: its client half, whose contract (options, accountant, requests, statement) this half works under.
        stop_at_noise_level: whether fits end when the noise explains what is left, unless the run's `inference` says.
        shrinks: whether they are shrunk towards the independent model, unless the run's `inference` says.
        smooths: whether the last model is kept away from probability zero, unless the run's `inference` says.
        has_factors: whether fits may start from hidden factors.

    Args:
        config: the run's configuration.
        domain: the schema's domain.
        schema_hash: hash of the schema, which every client must have approved.
        randomness: the server's source of randomness.
        observer: called with record and costs of each finished round.
        after: who found what was private in the schema, and has joined the clients.
        journal: see `Driver`.
    """

    Client: ClassVar[type[TableClient]]
    stop_at_noise_level: ClassVar[bool] = False
    shrinks: ClassVar[bool] = False
    smooths: ClassVar[bool] = False
    has_factors: ClassVar[bool] = False

    def __init__(
        self,
        config: RunConfig,
        domain: Domain,
        schema_hash: str,
        *,
        randomness: Randomness,
        observer: Observer | None = None,
        after: Driver | None = None,
        journal: Journal | None = None,
    ) -> None:
        contract = self.Client.Contract(config, domain)
        self.require_engine(contract)
        self.engine = engine_of(config.inference)
        super().__init__(contract, schema_hash, randomness, observer, after, journal)
        self.workload = contract.workload
        self.candidates = contract.candidates
        self.capacity = Capacity(domain, config.inference)
        self.model: Model | None = None
        self.base: Model | None = None  # what fits are shrunk towards, up to its one-way marginals; None: independence
        self.measured: tuple[Measurement, ...] = ()  # what it was fitted to
        self.afterwards: Callable[[], Steps] | None = None  # what the clients are asked once there is a model

    # What a mechanism defines ----------------------------------------------------------------------------------------

    @abstractmethod
    def protocol(self) -> Protocol:
        """Yields requests, receives answers, leaves the result in `self.model`.

        To a reader of Flower it is the body of `Strategy.start`, from its first round to its last: `answer = yield
        request` stands for `configure_train`, the Grid's `send_and_receive` and `aggregate_train`. The generator only
        says what is asked next, as `httpx.Auth.auth_flow` does; `run` asks, charges and checks.

        The answer to an `Ask` is `dict[partition, Reply]`; to a `Sum` it is `Summed`, not `opened` when too few
        clients answered: then nothing was opened and nothing was charged. Those of a store stand with `Deal`, `Choose`
        and `Open`.
        """

    @classmethod
    def fits_model(cls, contract: Contract) -> bool:
        """Returns whether these options make the mechanism fit a graphical model."""
        return True

    @classmethod
    def require_engine(cls, contract: Contract) -> None:
        """Raises ConfigError unless the configured engine can make this run's fits."""
        node = contract.config.inference
        engine = engine_of(node)
        if engine is None:
            return
        if not cls.fits_model(contract):
            raise ConfigError(
                f"inference.engine: {node.engine} fits graphical models, and mechanism "
                f"'{contract.config.mechanism.name}' fits none with its options; leave inference.engine: native"
            )
        ends = cls.stop_at_noise_level if node.stop_at_noise_level is None else node.stop_at_noise_level
        shrinks = cls.shrinks if node.shrinkage is None else bool(node.shrinkage)
        engine.require(Fits(bool(contract.at_largest().domain.zeros), shrinks, ends, cls.has_factors))

    # What a mechanism uses --------------------------------------------------------------------------------------------

    @property
    def remaining_rho(self) -> float:
        """The zCDP that one row has left."""
        return self.ledger.remaining_rho

    def steps(self, *requests: Request) -> dict[type[Request], Step]:
        """Returns the plan's steps for what is left of the budget.

        They are keyed by the records of their requests.

        Args:
            requests: of which some are told from others of the same record (`Step.where`).
        """
        plan = tuple(self.contract.plan(self.remaining_rho, self.total))
        first = {step.request: step for step in reversed(plan)}
        return first | {type(one): next(step for step in plan if step.matches(one)) for one in requests}

    def expansion(self, sums: Summed) -> float:
        """Returns the factor that brings a sum to the federation's total.

        The contributors are public, and stand for everybody.
        """
        return self.total / max(1.0, self.rows(sums.contributors))

    def opened(self, sums: Summed, cliques: Sequence[Clique]) -> list[Measurement]:
        """Returns opened marginals as measurements of the whole federation.

        Their noise is scaled with them. There are none if nothing was opened.
        """
        if not self.is_open(sums, "marginals"):
            return []
        factor = self.expansion(sums)
        triples = zip(cliques, sums.arrays, sums.sigmas, strict=True)
        share = min(1.0, 1.0 / factor)
        return [Measurement(q, values * factor, sigma * factor, share=share) for q, values, sigma in triples]

    def rows_known(self, measurements: Sequence[Measurement]) -> float:
        """Returns the rows of the federation, at least 1.

        The number is public, or the least-variance mean of all that was released of it. Many clients' noisy counts add
        up to little: K of them have a noise of sigma sqrt(K). A one-way marginal of everybody sums to the same number,
        with its own noise sqrt(cells) sigma, independent of theirs.
        """
        noise = self._noise_of_rows
        if noise is None:
            return self.total
        whole = [m for m in measurements if len(m.clique) == 1 and m.share >= 1.0 and m.noises is None]
        known = [(self.total, noise**2), *((float(np.sum(m.values)), m.count * m.sigma**2) for m in whole)]
        weights = math.fsum(1.0 / variance for _, variance in known)
        return max(1.0, math.fsum(rows / variance for rows, variance in known) / weights)

    @property
    def _noise_of_rows(self) -> float | None:
        """Standard deviation of the noise on the row counts' sum.

        None means that they are public.
        """
        sizes = {r.name: r.sigma for r in self.ledger.releases if r.name in (Sizes.name, RowTotal.name)}
        sigma = next(iter(sizes.values()), None)
        return None if sigma is None else sigma * math.sqrt(len(self.clients) if Sizes.name in sizes else 1)

    def sketch_errors(self) -> Sequence[SketchError]:
        """Returns released sketches' errors of the last model.

        They serve to predict its quality.
        """
        return ()

    @property
    def limited(self) -> float:
        """Share of the predicted error that the model's limits cost."""
        return 0.0

    def measurements_of(self, cohort: Sequence[int], request: SumRequest, sigma: float) -> Steps:
        """Asks a cohort for marginals.

        Returns them as measurements of the whole federation.
        """
        sums = yield Sum(cohort, request, sigma)
        return self.opened(sums, request.layout(self.contract, ()).cliques)

    def packed(self) -> list[np.ndarray]:
        """Returns the model as a request brings it."""
        assert self.model is not None
        return pack_model(self.model)

    def choices(
        self, replies: Mapping[int, Reply], parameter: str, eligible: Sequence[int], most: int = 1
    ) -> dict[int, list[int]]:
        """Returns each client's choice of the eligible candidates.

        A client may choose up to `most`; a reply with any other choice drops its client.
        """

        def read(reply: Reply) -> list[int]:
            chosen = indices(reply.params.get(parameter), len(self.candidates), parameter)
            if not chosen or len(chosen) > most or not set(chosen) <= set(eligible):
                raise ProtocolError("the reply does not choose as many eligible cliques as it was asked for")
            return chosen

        return self.accept(replies, read)

    def selected(self, cliques: Iterable[Clique]) -> None:
        """Puts the chosen cliques into the round's record."""
        self.record.selected = [" × ".join(clique) for clique in cliques]

    def estimate(self, measurements: Sequence[Measurement], last: bool = False, shrinkage: float | None = None) -> None:
        """Fits `self.model` to the measurements, from the previous model on.

        The mechanism's options `iterations` and `final_iterations` say how long, unless the run's `inference` does, and
        where it has no such options the fit's own default. Without measurements nothing happens.

        Args:
            measurements: all of the run so far.
            last: whether this is the model that is handed on.
            shrinkage: in pseudo-records, where the mechanism knows better than its measurements.
        """
        if not measurements:
            return
        self.measured = tuple(measurements)
        node, options = self.config.inference, self.options
        name = "final_iterations" if last else "iterations"
        iterations = getattr(node, name) or getattr(options, name, EstimateConfig.iterations)
        settings = estimate_config(node, iterations, stop_at_noise_level=self.stop_at_noise_level)
        with self.timed("estimate"):
            fitted = self.recorder.past("model")
            if fitted is not None:
                self.model = Model.from_arrays(self.domain, fitted["arrays"])
                return
            prior, shrinkage = self.shrunk_towards(measurements, settings, shrinkage)
            self.model = estimate(
                self.fitted_domain,
                measurements,
                total=self.rows_known(measurements),
                config=settings,
                warm_start=self.model,
                prior=prior,
                shrinkage=shrinkage,
                engine=self.engine,
            )
        if self.recorder.is_on:
            self.recorder.add("model", arrays=self.model.to_arrays())

    @property
    def fitted_domain(self) -> Domain:
        """The table's domain, with what `base` hides."""
        return self.domain if self.base is None else self.base.domain

    @property
    def is_shrunk(self) -> bool:
        """True if fits are shrunk towards the independent model."""
        shrinkage = self.config.inference.shrinkage
        return bool(shrinkage) if shrinkage is not None else self.shrinks

    def shrunk_towards(
        self, measurements: Sequence[Measurement], settings: EstimateConfig, shrinkage: float | None
    ) -> tuple[Model | None, float]:
        """Returns the model that the fit is shrunk towards, and how much.

        It is `base` with the measured one-way marginals; without shrinkage it is `base` alone.
        """
        setting: float | str | None = self.config.inference.shrinkage
        if setting is None:
            setting = "released" if self.is_shrunk else 0.0
        joint = any(len(m.clique) > 1 for m in measurements)
        if not (setting and joint):
            return self.base, 0.0
        one_way, total = [m for m in measurements if len(m.clique) == 1], self.rows_known(measurements)
        prior = estimate(self.fitted_domain, one_way, total=total, config=settings, prior=self.base)
        if isinstance(setting, float | int):
            return prior, float(setting)
        return prior, of_measurements(measurements, prior) if shrinkage is None else shrinkage

    def smooth(self) -> None:
        """Keeps possible rows away from probability zero.

        It concerns only what is handed on (`fedsyn.inference.shrinkage`).
        """
        smoothing = self.config.inference.smoothing
        if (
            not (self.smooths if smoothing is None else smoothing)
            or not self.measured
            or not isinstance(self.model, Model)
        ):
            return
        with self.timed("estimate"):
            self.model = smoothed(self.model, least_shares(self.domain, self.measured, self.model.total))

    # Driving ----------------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Runs the mechanism to its end on a Grid.

        A ServerApp starts it as any Strategy. Rounds are told to Flower's logger. The model is then in `self.model` and
        in the result's arrays.

        Args:
            grid: with the nodes.
            initial_arrays, num_rounds, train_config, evaluate_config: of Flower's signature; refused, each by name.
            timeout: seconds that a node has for one request; None: `federation.timeout`.
            evaluate_fn: called after each round that has a model, with the round and the model's arrays, which follow
                from released values alone. An exception of its own ends the run, and what was released stays spent.

        Returns:
            The last model's arrays, and of each round: cohort, dropped replies, selected marginals and epsilon so far
            (`train_metrics_clientapp`), and what `evaluate_fn` returned (`evaluate_metrics_serverapp`).

        Raises:
            ConfigError: an argument that a mechanism has no use for.
            RunError: too few clients answered.
        """
        from fedsyn.flower.patient import patient  # a deployment's Grid: what fedsyn starts has it already

        unused = {
            "initial_arrays": initial_arrays,
            "num_rounds": num_rounds,
            "train_config": train_config,
            "evaluate_config": evaluate_config,
        }
        for name, value in unused.items():
            if value is not None:
                raise ConfigError(f"start({name}=...): {_UNUSED[name]}")
        result, told = Result(), self._observer

        def observe(record: RoundRecord, costs: RoundCosts) -> None:
            if told is not None:
                told(record, costs)
            self._enter(result, record, evaluate_fn)

        self._observer = observe
        self.summary()
        self.run(patient(grid), timeout)
        assert self.model is not None
        result.arrays = _record_of(self.model)
        FLOWER_LOG.info("finished: epsilon %.6g at delta %g", self.ledger.epsilon(), self.ledger.budget.delta)
        return result

    def _enter(self, result: Result, record: RoundRecord, evaluate_fn: EvaluateFn | None) -> None:
        """Adds a finished round to a result, and logs it."""
        t = record.round
        metrics = {
            "clients": len(record.cohort),
            "dropped": len(record.dropped),
            "selected": len(record.selected),
            "epsilon": self.ledger.epsilon(),
        }
        result.train_metrics_clientapp[t] = MetricRecord(metrics)
        FLOWER_LOG.info("[ROUND %d] %s", t, ", ".join(f"{name} {value:g}" for name, value in metrics.items()))
        if evaluate_fn is not None and self.model is not None:
            found = evaluate_fn(t, _record_of(self.model))
            FLOWER_LOG.info("\tevaluate_fn: %s", found)
            if found is not None:
                result.evaluate_metrics_serverapp[t] = found

    def run(self, grid: Grid, timeout: float | None = None) -> None:
        """Runs the mechanism to its end on a Grid, and logs nothing.

        The model is then in `self.model`.
        """
        seconds = self.config.federation.timeout if timeout is None else timeout
        if not seconds > 0:
            raise ConfigError(f"timeout: expected more than 0 seconds, found {seconds:g}")
        try:
            if self._after is None:
                self.join(grid, seconds)
            else:
                self.require_feasible()
                self.announce(0.0)
            joined = self._messages
            self.drive(self.protocol(), grid, seconds)
            was_asked = self._messages > joined
            self.smooth()
            if self.afterwards is not None and self.model is not None:
                self.begin_round(self.round + 1)
                self.drive(self.afterwards(), grid, seconds)
        finally:
            for party in self.kept:
                party.close()
        self._close_round()
        if self.model is None:
            # With a journal these rounds are answered for good.
            raise RunError(self._nothing(was_asked), False)

    @property
    def _messages(self) -> int:
        return sum(costs.messages for costs in self.costs)

    def _nothing(self, was_asked: bool) -> str:
        """Returns a sentence on why there is no model.

        `was_asked` tells whether the mechanism sent a client anything.
        """
        if not was_asked:
            return "the mechanism asked no client for anything: there is nothing to estimate a model from"
        reasons = [str(reason) for record in self.records for reason in record.dropped.values()]
        reasons = reasons or [note for record in self.records for note in record.notes]
        if not reasons:
            return "every client answered what it was asked, and the mechanism left no model"
        return f"no round got enough replies: there is nothing to estimate a model from (for instance: {reasons[-1]})"


#: Reasons why a mechanism has no use for an argument of `start`.
_UNUSED = {
    "initial_arrays": "a mechanism starts from what it measures, not from a model; leave it out",
    "num_rounds": "the rounds follow from the configuration, whose hash every client checks; leave it out, and set "
    "`rounds` of the mechanism where it has that option",
    "train_config": "clients answer the mechanism's own requests; leave it out, and set the mechanism's options in the "
    "configuration",
    "evaluate_config": "clients evaluate nothing for it, as that would be another release; leave it out",
}


def _record_of(model: AnyModel) -> ArrayRecord:
    """Returns a model's arrays under their names, as `fedsyn.inference.read_model` takes them."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in model.to_arrays().items()})


__all__ = ["MechanismStrategy", "Observer", "Participant", "Protocol", "RoundCosts", "RoundRecord", "Steps"]
