"""The server half of sketch_aim, our own mechanism.

The client half, with the contract of both, is `clients/sketch_aim.py`.

docs/mechanisms/sketch_aim.md has the algorithm, the proof of its privacy, and the estimator's mean and variance.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import pi, prod, sqrt
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import DisjointSet
from scipy.special import chdtrc, ndtri

from fedsyn.domain import Floats
from fedsyn.evaluation.predicted import SketchError
from fedsyn.evaluation.predicted.effects import independent
from fedsyn.inference import Model, estimate
from fedsyn.inference.capacity import PLANNED_ATTRIBUTES, Capacity, PlannedTree
from fedsyn.inference.estimation import estimate_config
from fedsyn.inference.junction_tree import model_size, pass_cost
from fedsyn.inference.shrinkage import Departure, released_shrinkage
from fedsyn.mechanism import Clique, Measurement, MechanismStrategy, ModelView, Protocol, Sum, Summed
from fedsyn.plugins.clients.sketch_aim import (
    FINEST,
    Arrangement,
    FirstLook,
    MeasureAll,
    Residuals,
    SketchAimClient,
    SketchAimContract,
    Sketches,
    residual_weights,
)
from fedsyn.protocol.cohorts import cohort_size
from fedsyn.randomness import RandomSource
from fedsyn.selection.coarse import CoarseMarginals, has_order
from fedsyn.selection.factors import Cuts, SketchedPair, correlations, factor_model, factors, looks, scores
from fedsyn.selection.halves import halves
from fedsyn.selection.planning import MeasurementPlan, ModelErrors, OneByOne, Planner, shrunk
from fedsyn.selection.resolution import Ladders
from fedsyn.selection.scores import contained_in
from fedsyn.selection.sketches import Sketcher, sketched_sizes, squared_distances, width_of
from fedsyn.selection.views import effective_cells_of_each
from fedsyn.table.counting.sums import Groups, cost
from fedsyn.table.counting.workload import Workload

#: Of what the rounds have, what rounding may leave for the last one: nothing can be asked with it.
_ROUNDING_ERROR = 1e-12
_BELOW_NOISE_LEVEL = "noise would hide even a perfect association: one-way marginals alone, with all of the budget"
# Of runs on independent attributes, those that may take noise for an association.
_CHANCE = 0.05
# Error that a plan with a spanning forest may foresee, in units of that of a plan without one: chosen on held_out's
# tuning side, where it is at most 1.3 on the tables that a forest makes better, and 2.3 on the one that it makes worse.
_FOREST = 1.5
#: One part of a request: a candidate, the groups it is counted in (None: cells), and its mu^2.
Part = tuple[int, Groups | None, float]
#: A model of hidden factors, its tree, and the factors' loadings.
Linked = tuple[Model, Capacity, list[dict[str, float]]]


class SketchAim(MechanismStrategy):
    """Selection from linear statistics, without a choice by any client.

    A sum over clients gives what one holder of all rows would have. Before the first round every client contributes to
    two sums: all one-way marginals, and sketches of the candidates. A sketch is linear in the table, so the sum of the
    clients' sketches is the pooled table's, however the rows are spread. It depends on no model: it is paid for once,
    and after every fit the server compares it with the sketch of its current model, which estimates without bias how
    far the model is off (`squared_distances`). Each round plans for all that is left of the budget (`Planner`),
    measures the most useful part of the plan, and fits.
    """

    Client = SketchAimClient
    contract: SketchAimContract
    stop_at_noise_level = True
    shrinks = True
    smooths = True
    has_factors = True
    sketches: Sketched | None = None  # the last sketches
    limited = 0.0  # the last plan for the whole tree sets it
    _view: ModelView | None = None

    def protocol(self) -> Protocol:
        if self.config.federation.max_participations is not None:
            yield from self.by_cohorts()
            return
        which = self.sketched()
        arranging = self.contract.arranging_share(self.total) if which else 0.0
        share = self.contract.sketch_share(self.total)
        whole = 2.0 * self.contract.rho_of_rounds(self.remaining_rho, share, arranging)  # mu^2 of the rounds
        first = FirstLook(alone=bool(self.contract.sketchable) and not which)
        steps = self.steps(first)
        self.begin_round(1)
        layout = first.layout(self.contract, [])
        sigma = steps[FirstLook].sigma * layout.sensitivity * sqrt(layout.count)
        sums = yield Sum(self.everyone(), first, sigma)  # step 1
        measurements = self.opened_first(sums)
        self.estimate(measurements)
        if self.model is None or not which:
            self.record.notes.extend([_BELOW_NOISE_LEVEL] * first.alone)
            return
        if arranging:
            first_sketches = Arrangement(cliques=self.contract.arranged(which), width=self.options.width)
            sums = yield self.sum_of_sketches(first_sketches, steps[Arrangement].first_sigma)  # step 2
            if self.is_open(sums, "sketches"):
                self.arrange(self.sketches_of(first_sketches, sums))
        sketches = Sketches(cliques=which, width=self.width)
        sums = yield self.sum_of_sketches(sketches, steps[Sketches].sigma)  # step 3
        if not self.is_open(sums, "sketches"):
            return
        sketched, left = self.sketches_of(sketches, sums), whole
        with self.timed("select"):
            sketched = self.link(sketched, measurements, left)
        departures = sketched.departures(self.view)
        for t in range(1, self.options.rounds + 1):  # step 4
            self.begin_round(t)
            cohort = self.sample(self.config.federation.sampling_rate)
            spendable, last = left > _ROUNDING_ERROR * whole, t == self.options.rounds
            with self.timed("select"):  # of a plan without a budget the last one's notes alone are of use
                plan = self.plan(sketched, measurements, left, t) if spendable or last else {}
            if plan and spendable:
                request, sigma, groups = self.asked(plan)
                left -= sum(plan.values())
                self.record.sigma = sigma
                sums = yield Sum(cohort, request, sigma, groups)
                measurements += self.opened_residuals(sums, request, groups)
                self.selected(request.chosen(self.contract))
            self.estimate(measurements, last, self.shrinkage_of(departures, measurements))

    @property
    def view(self) -> ModelView:
        """Marginals of the last model, each computed once."""
        assert self.model is not None
        if self._view is None or self._view.model is not self.model:
            self._view = ModelView(self.model, self.config.inference.max_cells_at_once)
        return self._view

    # The first look ---------------------------------------------------------------------------------------------------

    def sketched(self) -> list[int]:
        """Returns the candidates whose sketches can show something with n rows.

        The number n is public or released.
        """
        which = self.contract.sketchable
        if not which:
            return []
        sizes = [len(self.candidates.cliques[i]) for i in which]
        mu2, squared, rows = self.means(which)
        if self.contract.below_noise_level(which, rows):
            return []
        chosen = sketched_sizes(mu2, squared, rows, self.options.width)
        return [i for i, size in zip(which, sizes, strict=True) if size in chosen]

    def means(self, which: Sequence[int]) -> tuple[float, dict[int, float], float]:
        """Returns the arguments of `width_of`.

        They are mu^2 of all sketches, for how many each clique size pays (`as_pairs`), and the rows.
        """
        mu2, rows = 2.0 * self.contract.budget.mechanism * self.contract.sketch_share(self.total), self.total
        if self.config.federation.max_participations is not None:
            mu2 = self.contract.budget.mechanism / self.contract.paid(self.options.rounds)  # half of a round's
            rows *= self.share_of_cohort
        return mu2, self.contract.as_pairs(which), rows

    def opened_first(self, sums: Summed) -> list[Measurement]:
        """Returns the first look's one-way marginals, each with its noise."""
        ones, factors = [(name,) for name in self.domain], self.contract.factors
        if factors is None or not self.is_open(sums, "one-way marginals"):
            return self.opened(sums, ones)
        parts = np.split(sums.arrays[0], np.cumsum(self.domain.shape)[:-1])
        values = [part / f for part, f in zip(parts, factors, strict=True)]
        apart = replace(sums, arrays=values, sigmas=tuple(sums.sigmas[0] / f for f in factors))
        return [self.residual_of(one) for one in self.opened(apart, ones)]

    def residual_of(self, measured: Measurement) -> Measurement:
        """Returns a noisy residual in the form that a fit takes.

        One attribute's residual becomes its counts: the total is known.
        """
        if len(measured.clique) > 1:
            return replace(measured, beyond=True)
        values = np.asarray(measured.values)
        return replace(measured, values=values + (self.total - values.sum()) / values.size)

    # Sketches ---------------------------------------------------------------------------------------------------------

    @cached_property
    def width(self) -> int:
        """Entries of a sketch; their number follows from public or released rows."""
        return width_of(*self.means(self.sketched()), self.options.width)

    def sum_of_sketches(self, request: Sketches, per_sensitivity: float, cohort: Sequence[int] | None = None) -> Sum:
        """Returns the sum of all sketches, with noise for their sensitivity.

        It is over everybody, or over a cohort.
        """
        arrays = self.groups([self.candidates.cliques[i] for i in request.cliques], request.width)
        sensitivity = request.layout(self.contract, arrays).sensitivity
        contributors = self.everyone() if cohort is None else cohort
        return Sum(contributors, request, per_sensitivity * sensitivity, arrays)

    def groups(self, cliques: Sequence[Clique], width: int) -> list[npt.NDArray[np.generic]]:
        """Returns the packed groups of neighbouring values of equal released mass."""
        return self.contract.groups(cliques, width, self.masses(), self.scores)

    def masses(self) -> dict[str, npt.NDArray[np.float64]]:
        """Returns (values,) counts of each attribute in the last model."""
        assert self.model is not None
        ones = self.model.project_many([(name,) for name in self.domain])
        return dict(zip(self.domain, ones, strict=True))

    def sketches_of(self, request: Sketches, sums: Summed) -> Sketched:
        """Returns the opened sketches.

        The model, and so the groups, must still be those of the request.
        """
        arrays = self.groups([self.candidates.cliques[i] for i in request.cliques], request.width)
        sketcher, factor = request.sketcher(self.contract, arrays), self.expansion(sums)
        values = sketcher.split(sums.arrays[0] * factor)
        self.sketches = Sketched(sketcher, values, sums.sigmas[0] * factor)
        return self.sketches

    def sketch_errors(self) -> Sequence[SketchError]:
        if not self.sketches or self.model is None:
            return ()
        errors = self.sketches.sketch_errors(self.view)
        return [replace(error, scored=[name for name in error.clique if name in self.scores]) for error in errors]

    # The order of values without one ----------------------------------------------------------------------------------

    def arrange(self, sketched: Sketched) -> None:
        """Orders the values of attributes that have no order."""
        sketched_pairs = list(sketched.looks(self.masses(), self.total))
        self.scores.update(scores(sketched_pairs, self.cuts(), self.contract.unordered))

    @cached_property
    def scores(self) -> dict[str, npt.NDArray[np.float64]]:
        """Places of each unordered attribute's values, (values,).

        The sketches of an `Arrangement` give them; without one there are none.
        """
        return {}

    def cuts(self) -> dict[str, Cuts]:
        """Returns the cuts of each attribute's values along its normal score."""
        cuts = {}
        for name, mass in self.masses().items():
            places = np.arange(len(mass))
            if not has_order(self.domain, name):
                places = np.unique(self.scores.get(name, np.zeros(len(mass))), return_inverse=True)[1]
            elif len(mass) > 2:
                places[self.domain.ordered[name] :] = -1
            cuts[name] = Cuts.of(mass, places)
        return cuts

    # Hidden factors ---------------------------------------------------------------------------------------------------

    def link(self, sketched: Sketched, measurements: Sequence[Measurement], left: float) -> Sketched:
        """Starts the fits from the hidden factors that the sketches show.

        They go unless a trial speaks for them.

        Returns:
            The sketches, which then know what was fitted to them.
        """
        if (linked := self.linked(sketched)) is None:
            return sketched
        if self.evidence(sketched.pairs(), measurements, left) <= 0.0:
            self.record.notes.append("columns share a factor, but pairs alone explain the sketches better")
            return sketched
        self.model, self.capacity, shown = linked
        self.base, self.sketches = self.model, sketched.fitted_to(shown)
        sizes = ", ".join(f"{len(loadings)} columns" for loadings in shown)
        self.record.notes.append(f"what links columns is seen as {len(shown)} hidden factor(s), of {sizes}")
        return self.sketches

    def linked(self, sketched: Sketched, of: int = 1) -> Linked | None:
        """Returns the factors' model, its tree, and their loadings.

        None: no factor shows, or the tree has no room for all of its columns.

        Args:
            sketched: sketches of pairs.
            of: how many such looks there are. A factor shows if it would in so many that are like this one.
        """
        assert self.model is not None
        cuts, sketched_pairs = self.cuts(), list(sketched.looks(self.masses(), self.total))
        known = correlations(sketched_pairs, cuts, self.total)
        shown = factors(replace(known, precision=of * known.precision))
        if not shown:
            return None
        model = factor_model(self.domain, cuts, shown, self.model.total)
        capacity = Capacity(model.domain, self.config.inference)
        star = [clique for clique in model.potentials if len(clique) > 1]
        return (model, capacity, shown) if len(capacity.add_while_fitting(star)) == len(star) else None

    def evidence(self, pairs: Sketched, measurements: Sequence[Measurement], left: float) -> float:
        """Returns the log-likelihood that factors add in the worse trial.

        What is planned from noisy sketches flatters itself on them. So their noise is split in two halves: each in turn
        finds the factors, plans pairs and fits, with the factors and without, and the other judges. The judge's noise
        is independent and its variance known, so a model's log-likelihood is half its squared distance over that
        variance, over all pairs together. The difference of two models is linear in the judge's noise: weak links add
        up, though no sketch alone shows one. What both halves would show together need not be beyond the noise of one,
        so a half takes what two of its kind would show; one that shows nothing even then says nothing.

        A trial fits pairs as they were sketched, with more noise than rounds will leave. One trial takes the pairs that
        this noise lets it take. It may find a factor good because it takes few others: many strong links are measured
        later. The other trial plans as rounds do. It may find a factor good because its rival is full of noise that no
        round will have. So both must speak for the factors.

        Args:
            pairs: sketches of pairs.
            measurements: so far.
            left: mu^2 that is left.
        """
        one, other = pairs.halves(self.randomness.ordinary("halves"))
        assert self.model is not None
        apart, seen = ModelView(self.model, self.config.inference.max_cells_at_once), list[Judged]()
        for planned, judged in ((one, other), (other, one)):
            if (linked := self.linked(planned, of=2)) is not None:
                model, capacity, shown = linked
                view = ModelView(model, self.config.inference.max_cells_at_once)
                without = Trial(planned, self.capacity, {(): apart})
                seen.append((judged, without, Trial(planned.fitted_to(shown), capacity, {(): view})))
        evidence = self.evidence_of(seen, measurements, left, Sketched.pays)
        return min(evidence, self.evidence_of(seen, measurements, left)) if evidence > 0.0 else evidence

    def evidence_of(
        self,
        seen: Sequence[Judged],
        measurements: Sequence[Measurement],
        left: float,
        taken: Callable[[Sketched, ModelView], Container[Clique]] | None = None,
    ) -> float:
        """Returns the log-likelihood that hidden factors add to sketches.

        It is the sum over the halves that judge.

        Args:
            seen: the half that judges, and trials of the other one, without the factors that it shows and with them.
            measurements: so far.
            left: mu^2 that is left.
            taken: gives the pairs that may be planned beside a model; None: any.
        """
        evidence = 0.0
        for judged, without, beside in seen:
            evidence -= judged.likelihood(self.tried(without, measurements, left, taken))
            evidence += judged.likelihood(self.tried(beside, measurements, left, taken))
        return evidence

    def tried(
        self,
        trial: Trial,
        measurements: Sequence[Measurement],
        left: float,
        taken: Callable[[Sketched, ModelView], Container[Clique]] | None = None,
    ) -> list[Floats]:
        """Returns the sketches of a fit of planned pairs.

        Each pair is fitted as it was sketched. The strongest links come first, as a spanning forest, then what a plan
        adds to them. A plan of all at once takes a link between the ends of a chain for as much worth as one inside it.
        What was fitted to the same plans before, with other pairs to choose from, is not fitted again.

        Args:
            trial: where it starts, and its sketches to plan from and to fit.
            measurements: so far.
            left: mu^2 that is left.
            taken: gives the pairs that may be planned beside a model; None: any.
        """
        cliques, planned, before = self.candidates.cliques, trial.planned, self.capacity
        plans: Plans = ()
        self.capacity, new, steps = trial.capacity.copy(), list[int](), dict[int, int]()
        pairs = [i for i, q in enumerate(cliques) if len(q) == 2]
        for forest in (True, False):
            view = trial.fits[plans]
            errors = self.errors(planned, measurements, view)
            budget = left + errors.paid
            errors.parts[new] = 0.0
            errors = replace(errors, noisy=dict.fromkeys(new, 0.0) | errors.noisy, steps=steps)
            inside = contained_in([cliques[i] for i in new])
            these = None if taken is None else taken(planned, view)
            which = [i for i in pairs if (these is None or cliques[i] in these) and not inside(cliques[i])]
            if forest:
                which = self.strongest_links(errors, which, 1.0)
            plan = self.planner.best(errors, which, self.room(1.0), budget)
            new, steps, plans = [*new, *plan.cliques], plan.steps, (*plans, tuple(plan.cliques))
            self.capacity.add([cliques[i] for i in plan.cliques])
            if forest and plans not in trial.fits:
                trial.fits[plans] = self.fitted_to_plan(trial, new, measurements, view)
        self.capacity = before
        if plans not in trial.sketches:
            trial.sketches[plans] = planned.seen(self.fitted_to_plan(trial, new, measurements, view))
        return trial.sketches[plans]

    def fitted_to_plan(
        self, trial: Trial, plan: Sequence[int], measurements: Sequence[Measurement], last: ModelView
    ) -> ModelView:
        """Returns a trial's model, fitted to the sketches of planned pairs."""
        start, node = trial.fits[()].model, self.config.inference
        settings = estimate_config(node, node.iterations or self.options.iterations, stop_at_noise_level=True)
        inside = contained_in([self.candidates.cliques[i] for i in plan])
        fitted, prior = [*measurements, *trial.planned.residuals(inside)], start if start.domain.hidden else None
        model = estimate(start.domain, fitted, total=start.total, config=settings, warm_start=last.model, prior=prior)
        return ModelView(model, node.max_cells_at_once)

    def strongest_links(self, errors: ModelErrors, pairs: Sequence[int], share: float) -> list[int]:
        """Returns the pairs of the maximum spanning forest, by missed error.

        Each has room beside the measurements alone.
        """
        forest, fits = DisjointSet(self.domain), self.capacity.test(share, PLANNED_ATTRIBUTES)

        def joins(clique: Clique) -> bool:
            return not forest.connected(*clique) and fits(clique) and forest.merge(*clique)

        strongest = sorted((i for i in pairs if errors.parts[i] > 0.0), key=lambda i: -float(errors.parts[i]))
        return [i for i in strongest if joins(self.candidates.cliques[i])]

    # Planning ---------------------------------------------------------------------------------------------------------

    def plan(self, sketched: Sketched, measurements: Sequence[Measurement], left: float, t: int) -> dict[int, float]:
        """Returns this round's candidates, with mu^2 of each.

        They are the most useful part of a plan for all that is left of mu^2. The first round also buys the plan's
        one-way marginals; the last round spends what is left.
        """
        share = self.share_of_tree(t)
        errors = self.errors(sketched, measurements, self.view)
        inside = contained_in(self.capacity.cliques)
        eligible = [i for i, q in enumerate(self.candidates.cliques) if len(q) > 1 and not inside(q)]
        budget = left + errors.paid
        new = (self.forest_first if t == 1 else self.chosen)(errors, eligible, share, budget)
        self.say(new, t)
        return self.divided(errors, new, left, t)

    def share_of_tree(self, t: int) -> float:
        """Returns the part of the tree that a round's plan may fill.

        A plan takes each clique to tell nothing of the others, so given all of the tree at once it foresees less error
        than there will be. Fits of earlier rounds show what is missed beside them. Structural zeros fill a part of the
        tree from the start, so the rounds share what is left: a first round that had room for nothing would spend the
        whole budget on one-way marginals.
        """
        rounds: int = self.options.rounds
        filled = self.filled
        return 1.0 if t == rounds else filled + (1.0 - filled) * t / rounds  # of the whole tree notes are taken

    @cached_property
    def filled(self) -> float:
        """Part of the tree that structural zeros take; 0 without any."""
        if not self.domain.zeros:
            return 0.0
        node = self.config.inference
        cells, cost = model_size(self.domain, []), pass_cost(self.domain, [])
        return min(1.0, max(cells / node.max_cells, cost / node.max_message_passing_cost))

    @cached_property
    def planner(self) -> Planner:
        """The planner for the workload.

        A query counts again for every column that one of its attributes determines.
        """
        cliques, known = self.workload.cliques, self.domain.coarser
        again = [prod(1 + len(known.get(name, ())) for name in clique) for clique in cliques]
        return Planner(Workload(cliques, tuple(np.multiply(self.workload.weights, again))), self.candidates)

    def errors(self, sketched: Sketched, measurements: Sequence[Measurement], view: ModelView) -> ModelErrors:
        """Returns the model's errors on candidates, with the attributes' noise.

        A candidate's error is counted beyond the errors of its parts.
        """
        cliques = self.candidates.cliques
        place = {q: i for i, q in enumerate(cliques)}
        noisy = {place[q]: known for q, known in precision(measurements).items() if q in place}

        def support(i: int) -> float:
            return float(view.effective_cells([cliques[i]])[0])

        parts = self.missed(sketched, view)
        # One attribute: the expected squared L1 norm of the noise that is left on it.
        for i, known in noisy.items():
            if len(cliques[i]) == 1:
                parts[i] = 2.0 / pi * support(i) ** 2 / known
        errors = self.graded(ModelErrors(parts, support, noisy))
        for i in noisy:
            if len(cliques[i]) == 1:
                errors.parts[i] *= errors.cost(i)
        return errors

    def missed(self, sketched: Sketched, view: ModelView) -> npt.NDArray[np.float64]:
        """Returns the model's squared L1 error on each candidate, (m,).

        It is the error beyond that of the candidate's parts, and 0 for a candidate without a sketch.
        """
        cliques = self.candidates.cliques
        place = {q: i for i, q in enumerate(cliques)}
        parts = np.zeros(len(cliques))
        for clique, squared in zip(sketched.sketcher.cliques, sketched.errors(view), strict=True):
            parts[place[clique]] = max(0.0, float(squared))
        return parts

    def graded(self, errors: ModelErrors) -> ModelErrors:
        """Returns the errors, with what residuals cost and what groups do.

        Groups save cells, but miss the differences inside of them.
        """
        ladders, cliques = self.resolutions, self.candidates.cliques
        return replace(
            errors,
            costs=self.prices,
            ladder=lambda i: ladders.ladder(cliques[i]),
            rows=self.total,
            steps=dict(self.measured_in),
        )

    @cached_property
    def resolutions(self) -> Ladders:
        """Resolutions from the first model; every later round keeps them."""
        return Ladders(self.domain, self.masses(), beyond=True)

    @cached_property
    def measured_in(self) -> dict[int, int]:
        """The ladder's step of each candidate that is measured in groups."""
        return {}

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        """The mu^2 that 1/sigma^2 = 1 costs for each residual, (m,).

        These residuals are in cells, not in groups.
        """
        return np.array([cost(self.domain.shape_of(clique)) for clique in self.candidates.cliques])

    def chosen(self, errors: ModelErrors, eligible: Sequence[int], share: float, budget: float) -> list[int]:
        """Returns the plan's new cliques, by gain."""
        return self.noted(self.best(errors, eligible, share, budget), errors, share, budget)

    def forest_first(self, errors: ModelErrors, eligible: Sequence[int], share: float, budget: float) -> list[int]:
        """Returns the first plan's new cliques, a spanning forest's links first.

        A plan takes a clique to tell nothing of the others. So of a chain of links it wants the ends as much as what
        lies between, and often a column that is linked to all others with each of them: only a fit shows that the rest
        follows. The strongest spanning forest is therefore planned by itself, then what gains beside it. For the same
        reason the error that is foreseen so is the larger one; where it is more than `_FOREST` times that of the plan
        without a forest, more than links that follow is missed, and that plan is taken.
        """
        cliques, alone = self.candidates.cliques, self.best(errors, eligible, share, budget)
        links = self.strongest_links(errors, [i for i in eligible if len(cliques[i]) == 2], share)
        planned = self.best(errors, links, share, budget)
        if not (forest := planned.cliques):
            return self.noted(alone, errors, share, budget)
        before, self.capacity = self.capacity, self.capacity.copy()
        self.capacity.add([cliques[i] for i in forest])
        inside = contained_in([cliques[i] for i in forest])
        noisy, steps = dict.fromkeys(forest, 0.0) | errors.noisy, errors.steps | planned.steps
        beside = replace(errors, parts=errors.parts.copy(), noisy=noisy, steps=steps)
        beside.parts[forest] = 0.0
        rest = self.best(beside, [i for i in eligible if not inside(cliques[i])], share, budget)
        taken = rest.error <= _FOREST * alone.error
        new = [*forest, *self.noted(rest, beside, share, budget)] if taken else []
        self.capacity = before
        if not taken:
            return self.noted(alone, errors, share, budget)
        errors.steps.update(beside.steps)
        return new

    def noted(self, plan: MeasurementPlan, errors: ModelErrors, share: float, budget: float) -> list[int]:
        """Returns a plan's cliques, and notes what the tree left out.

        If the whole tree was this plan's share, and something had no room, the record says what a larger tree would be
        worth.
        """
        if share == 1.0 and (plan.full or plan.too_large):
            inside = contained_in(self.capacity.cliques)
            every = [i for i, q in enumerate(self.candidates.cliques) if len(q) > 1 and not inside(q)]
            unlimited = self.planner.best(errors, every, OneByOne(), budget).error
            self.limited = max(0.0, 1.0 - unlimited / plan.error)
        if self.limited:
            self.record.notes.append(
                "some cliques promised a gain and would make the model larger than inference.max_cells or "
                "max_message_passing_cost allow; without these limits the predicted error would be "
                f"{self.limited:.0%} less"
            )
        errors.steps.update(plan.steps)
        return plan.cliques

    def best(self, errors: ModelErrors, eligible: Sequence[int], share: float, budget: float) -> MeasurementPlan:
        """Returns the better of two plans by predicted error.

        The first goes by gain alone; the second, made only where the first fills the tree, by gain per cell.
        """
        plan = self.planner.best(errors, eligible, self.room(share), budget)
        if not plan.full:
            return plan
        other = self.planner.best(errors, eligible, self.room(share), budget, self.candidates.cells)
        return replace(min(plan, other, key=lambda one: one.error), full=True)

    def room(self, share: float) -> PlannedTree:
        """Returns a tree for a plan of its own."""
        return PlannedTree(self.capacity, self.candidates.cliques, self.pairs, share)

    @cached_property
    def pairs(self) -> npt.NDArray[np.int64]:
        """Candidates of two attributes as the tree knows them."""
        return self.capacity.pairs(self.candidates.cliques)

    def say(self, new: Sequence[int], t: int) -> None:
        """Notes in the round's record what readers should know."""
        if not new and not self.capacity.cliques and t == self.options.rounds:
            self.record.notes.append("no clique promised more than its noise: the table has one-way marginals alone")

    def divided(self, errors: ModelErrors, new: Sequence[int], left: float, t: int) -> dict[int, float]:
        """Returns this round's mu^2 of each candidate of a plan.

        It is a part of what the plan gives its new cliques and the attributes.
        """
        cliques = self.candidates.cliques
        every = self.planner.precisions(errors, new, left)
        if t < self.options.rounds:
            now = {i: more for i, more in every.items() if t == 1 and len(cliques[i]) == 1}
            # New cliques until this round's share of the budget is spent.
            budget, spent = left / (self.options.rounds - t + 1), 0.0
            for i in new:
                if i in every and spent < budget:
                    now[i] = every[i]
                    spent += every[i]
            every = now
        self.capacity.add([cliques[i] for i in every if len(cliques[i]) > 1])
        self.measured_in.update({i: errors.steps[i] for i in every if i in errors.steps})
        return {i: every[i] for i in sorted(every)}

    # The request ------------------------------------------------------------------------------------------------------
    #
    # In groups of values where the plan has them (`fedsyn/selection/resolution.py`), without what the parts say
    # (`fedsyn/table/counting/sums.py`). A clique keeps the groups of its first measurement.

    def asked(self, plan: Mapping[int, float]) -> tuple[Residuals, float, list[npt.NDArray[Any]]]:
        """Returns the request for a plan, its noise, and its groups.

        There are no groups if every candidate is measured in cells.
        """
        which, groups, budgets = map(list, zip(*self.parts(plan), strict=True))
        cliques = [self.candidates.cliques[i] for i in which]
        cells = [tuple(map(np.arange, self.domain.shape_of(clique))) for clique in cliques]
        coarse = CoarseMarginals.in_groups(
            self.domain, cliques, [g or values for g, values in zip(groups, cells, strict=True)]
        )
        grouped = any(groups)
        request, sigma = self.request(which, budgets, coarse.shapes, grouped)
        return request, sigma, [coarse.pack()] if grouped else []

    def parts(self, plan: Mapping[int, float]) -> list[Part]:
        """Returns each candidate with its groups (None: cells) and its mu^2."""
        cliques, steps = self.candidates.cliques, self.measured_in
        return [
            (i, self.resolutions.groups(cliques[i], steps[i]) if i in steps else None, mu2) for i, mu2 in plan.items()
        ]

    def request(
        self, which: list[int], budgets: list[float], shapes: Sequence[tuple[int, ...]], grouped: bool
    ) -> tuple[Residuals, float]:
        """Returns the request for candidates of these shapes, and its noise."""
        weights, sigma = residual_weights(budgets, shapes)
        return Residuals(shapes=[list(s) for s in shapes] if grouped else [], cliques=which, weights=weights), sigma

    # The measurements -------------------------------------------------------------------------------------------------

    def opened_residuals(self, sums: Summed, request: Residuals, groups: list[npt.NDArray[Any]]) -> list[Measurement]:
        """Returns the marginals inside an opened vector.

        Each comes with its own noise, and its groups.
        """
        if not self.is_open(sums, "marginals"):
            return []
        factor, coarse, residuals = self.expansion(sums), request.coarse(self.contract, groups), []
        parts = zip(coarse.cliques, request.weights, coarse.split(sums.arrays[0]), coarse.groups, strict=True)
        for clique, weight, part, clique_groups in parts:
            unit = weight * part.size
            one = expanded(clique, part / unit, (sums.sigmas[0] / unit) ** 2, self.total, factor)
            residuals.append(replace(self.residual_of(one), groups=None if in_cells(clique_groups) else clique_groups))
        return residuals

    def shrinkage_of(self, departures: Mapping[Clique, Departure], measurements: Iterable[Measurement]) -> float | None:
        """Returns the shrinkage that the measured cliques' sketches imply.

        It is None where no measured clique has a sketch. Sketches of other pairs are left out: most pairs are close to
        independent, a measured one was chosen because it is not, and nothing else is pulled.
        """
        inside = contained_in([m.clique for m in measurements])
        measured = [one for clique, one in departures.items() if inside(clique)]
        return released_shrinkage(measured, self.total) if measured else None

    # Cohorts ----------------------------------------------------------------------------------------------------------
    #
    # Where `federation.max_participations` is set. Nobody is asked before it takes part, and nobody takes part in more
    # than m rounds.

    def by_cohorts(self) -> Protocol:
        """Runs the schedule by cohorts.

        The first cohort tells what to measure, and all later ones measure the same.

        A clique that one cohort of unlike clients measures is biased towards that cohort, more than any noise that it
        saves is worth. So there is one choice, after the first cohort's one-way marginals and sketches, and every later
        cohort is asked for the same marginals: their sums add up to those of all clients but the first cohort's.
        One-way marginals are asked of every cohort. A client sends one vector in all, or two.
        """
        contract, steps = self.contract, self.steps()
        ones = [CohortPool((name,)) for name in self.domain]
        pooled: list[CohortPool] = []
        departures: Mapping[Clique, Departure] = {}
        which = self.sketched()
        request = None if which else MeasureAll(one_way=[1] * len(ones), cliques=[], weights=[])
        for t in range(1, self.options.rounds + 1):
            self.begin_round(t)
            cohort = self.sample(self.config.federation.sampling_rate)
            if request is None:  # no choice yet: this cohort tells what to measure
                self.record.sigma = steps[FirstLook].sigma
                sums = yield Sum(cohort, FirstLook(alone=False), self.record.sigma)
                if not self.is_open(sums, "one-way marginals"):
                    continue
                self.pool(ones, sums.arrays, [sums.sigmas[0]] * len(ones), sums)
                self.model = None
                self.estimate(measurements(ones, self.total))
                sketches = Sketches(cliques=which, width=self.width)
                sums = yield self.sum_of_sketches(sketches, steps[Sketches].sigma, cohort)
                if self.is_open(sums, "sketches"):
                    with self.timed("select"):
                        sketched = self.sketches_of(sketches, sums)
                        departures = sketched.departures(self.view)
                        later = self.later_mu2(steps[MeasureAll].rho, t)
                        request = self.request_of(self.planned_of_cohorts(sketched, later))
                    pooled = [CohortPool(clique) for clique in request.measured(contract)[len(ones) :]]
                    self.selected([pool.clique for pool in pooled])
                continue
            # Later cohorts: the same marginals of each, added up.
            self.record.sigma = steps[MeasureAll].noise(request.layout(contract, ()))
            sums = yield Sum(cohort, request, self.record.sigma)
            if self.is_open(sums, "marginals"):
                weights = np.array([*request.one_way, *request.weights])
                parts = self.parts_of(request.measured(contract), sums.arrays[0])
                values = [part / weight for part, weight in zip(parts, weights, strict=True)]
                self.pool([*ones, *pooled], values, sums.sigmas[0] / weights, sums)
        self.model = None  # its one-way marginals were those of one cohort
        self.estimate(measurements(ones, self.total))
        every = measurements([*ones, *pooled], self.total)
        self.estimate(every, True, self.shrinkage_of(departures, every))

    @property
    def share_of_cohort(self) -> float:
        """The share of the clients that a cohort has."""
        node = self.config.federation
        return cohort_size(node.sampling_rate, node.minimum_cohort, len(self.clients)) / len(self.clients)

    def pool(
        self,
        pools: Sequence[CohortPool],
        arrays: Sequence[npt.NDArray[np.float64]],
        sigmas: Sequence[float] | npt.NDArray[np.float64],
        sums: Summed,
    ) -> None:
        """Adds the marginals of an opened sum to their pools."""
        for pool, values, sigma in zip(pools, arrays, sigmas, strict=True):
            pool.add(values, float(sigma), self.rows(sums.contributors))

    def later_mu2(self, each: float, t: int) -> float:
        """Returns the mu^2 that cohorts after round t give together.

        It is the precision 1/sigma^2 on the federation's counts. A sum over one of F cohorts' worth of rows has noise
        sigma. The sum of c of them has variance c sigma^2 and is brought to the federation by F/c: a precision of c/F^2
        times 1/sigma^2.
        """
        left: int = self.options.rounds - t
        return 2.0 * each * left * self.share_of_cohort**2

    def planned_of_cohorts(self, sketched: Sketched, mu2: float) -> dict[int, float]:
        """Returns one plan for all later cohorts.

        It counts nothing as measured, since one cohort's one-way marginals are not everybody's: the planner's errors of
        one attribute are those that it will have if nothing else is measured. One cohort's sketches are noisy: where
        the strongest is not above what noise alone shows, the plan has one-way marginals alone.
        """
        cliques, view = self.candidates.cliques, self.view
        errors = self.errors(sketched, [], view)
        ones = [i for i, q in enumerate(cliques) if len(q) == 1]
        errors = ModelErrors(errors.parts, errors.support, dict.fromkeys(ones, 0.0))
        for i, known in self.planner.precisions(errors, [], mu2).items():
            errors.parts[i] = 2.0 / pi * errors.support(i) ** 2 / known
        eligible = [i for i, q in enumerate(cliques) if len(q) > 1] if sketched.shows(view) else []
        new = self.chosen(errors, eligible, 1.0, mu2)
        self.say(new, self.options.rounds)
        self.capacity.add([cliques[i] for i in new])
        return self.planner.precisions(errors, new, mu2)

    def request_of(self, plan: Mapping[int, float]) -> MeasureAll:
        """Returns the request that divides a cohort's budget as planned.

        Integer weights make the division exact up to their rounding. An attribute of no query of the workload has the
        least of the other attributes' shares.
        """
        cliques = self.candidates.cliques
        ones = {cliques[i][0]: share for i, share in plan.items() if len(cliques[i]) == 1}
        chosen = [i for i in plan if len(cliques[i]) > 1]
        least = min(ones.values(), default=max(plan.values(), default=1.0))
        shares = [*(ones.get(name, least) for name in self.domain), *(plan[i] for i in chosen)]
        weights = integer_weights(shares)
        d = len(self.domain)
        return MeasureAll(one_way=weights[:d], cliques=chosen, weights=weights[d:])

    def parts_of(self, cliques: Sequence[Clique], vector: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        """Returns the marginals inside a vector, still times their weights."""
        shapes = [self.domain.shape_of(q) for q in cliques]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]


@dataclass(frozen=True, eq=False)
class Sketched:
    """The opened sketches, brought to the federation's total.

    Attributes:
        sketcher: that made them.
        values: one vector per sketch, in records.
        sigma: standard deviation of their noise before weights.
        fitted: parameters per sketch that were fitted to these very values, and are in the model.
        doubt: what is taken from the mean of three attributes' distances, in its standard deviations.
    """

    sketcher: Sketcher
    values: list[npt.NDArray[np.float64]]
    sigma: float
    fitted: Mapping[Clique, float] = field(default_factory=dict)
    doubt: float = float(ndtri(1.0 - _CHANCE))
    # Of the sketcher alone: what is replaced by other values of it shares them.
    _coarse: WeakKeyDictionary[ModelView, list[Floats]] = field(repr=False, default_factory=WeakKeyDictionary)

    def coarse(self, view: ModelView, *, carried: bool = False) -> list[Floats]:
        """Returns the model's coarse marginals, of each clique.

        The marginals themselves are formed once for each view, and one after the other: together they may have
        thousands of times the model's cells. `carried`: as of `ModelView.each`.
        """
        if view not in self._coarse:
            marginals = enumerate(view.each(self.sketcher.cliques, carried=carried))
            self._coarse[view] = [self.sketcher.coarse(i, marginal) for i, marginal in marginals]
        return self._coarse[view]

    def distances(self, view: ModelView) -> Floats:
        """Returns the model's distances, their noise, and supports, (3, sketches).

        Distances are unbiased squared L2 ones, and noise is their standard deviation. A parameter that was fitted to
        the sketches has taken one dimension's noise out of the distance to them, and put it into the distance to the
        table (Mallows' C_p): twice sigma^2 each.
        """
        squared, spread, support = distances = np.empty((3, len(self.values)))
        fitted = np.array([self.fitted.get(clique, 0.0) for clique in self.sketcher.cliques])
        for which, coarse, seen in self.sketcher.together(self.coarse(view)):
            noises = self.sketcher.noises(which[0])
            support[which] = effective_cells_of_each(coarse)
            sigma = np.array([self.sketcher.sigma_of(i, self.sigma) for i in which])
            squared[which] = self.off(which, view.model.total * seen, sigma) + 2.0 * fitted[which] * sigma * sigma
            spread[which] = sqrt(2.0 * noises) * sigma * sigma
        return distances

    def off(self, which: npt.NDArray[np.int64], seen: Floats, sigma: Floats) -> Floats:
        """Returns unbiased squared distances of sketches of one shape, (b,).

        They are distances from `seen`, (b, k): a model's sketches.
        """
        residual = np.stack([self.values[i] for i in which]) - seen
        return squared_distances(residual, sigma, self.sketcher.noises(which[0]))

    def errors(self, view: ModelView) -> npt.NDArray[np.float64]:
        """Returns squared L1 errors of the model, (sketches,) records^2.

        They are shrunk squared distances times the effective support. Cliques of two attributes are shrunk apart from
        those of three, and those that structural zeros restrict apart from both: what is related has more than the
        zeros say. Cliques of three mostly have nothing of their own, and noise may give each of a thousand a little:
        from their mean is taken what noise exceeds in one run of twenty. The L1 norm of an error that is spread like
        sqrt(p) is its L2 norm times the root of the effective support; no error is larger than 2 n, whatever the noise
        says.
        """
        self.coarse(view, carried=True)  # which a plan asks for, clique by clique
        squared, spread, support = self.distances(view)
        known = view.model.domain.impossible
        kinds = np.array([2 * len(q) + (known(q) is not None) for q in self.sketcher.cliques])
        for kind in np.unique(kinds):
            doubt = self.doubt if kind >= 2 * 3 else 0.0
            squared[kinds == kind] = shrunk(squared[kinds == kind], spread[kinds == kind], doubt)
        return np.asarray(np.minimum(squared * support, (2.0 * view.model.total) ** 2))

    def shows(self, view: ModelView) -> bool:
        """Returns whether any sketch is farther off than noise explains.

        Noise alone does so in at most one run of twenty: with k noises, the squared distance is sigma^2 times a
        chi-square with k degrees of freedom.
        """
        squared, _, _ = self.distances(view)
        entries = np.array([self.sketcher.noises(i) for i in range(len(self.values))], np.float64)
        sigmas = np.array([self.sketcher.sigma_of(i, self.sigma) for i in range(len(self.values))])
        chances = chdtrc(entries, np.maximum(squared / sigmas**2 + entries, 0.0))
        return bool(len(chances) * chances.min() < _CHANCE)

    # Hidden factors ---------------------------------------------------------------------------------------------------

    def looks(self, counts: Mapping[str, npt.NDArray[np.float64]], total: float) -> Iterator[SketchedPair]:
        """Yields the sketched pairs, each beside what independence would show."""
        masses = {name: mass / mass.sum() for name, mass in counts.items()}
        return looks(self.sketcher, self.values, self.sigma, masses, total)

    def fitted_to(self, factors: Sequence[Mapping[str, float]]) -> Sketched:
        """Returns these sketches, with the factors' loadings fitted to them.

        An attribute has one loading in a factor, which its pairs share.
        """
        shares: dict[Clique, float] = {}
        for loadings in factors:
            pairs = [q for q in self.sketcher.cliques if len(q) == 2 and loadings.keys() >= set(q)]
            shares |= dict.fromkeys(pairs, len(loadings) / max(1, len(pairs)))
        return replace(self, fitted=shares)

    # Trials of plans --------------------------------------------------------------------------------------------------

    def pairs(self) -> Sketched:
        """Returns the sketches of pairs alone."""
        which = [i for i, clique in enumerate(self.sketcher.cliques) if len(clique) == 2]
        sketcher = replace(self.sketcher, cliques=tuple(self.sketcher.cliques[i] for i in which))
        return Sketched(sketcher, [self.values[i] for i in which], self.sigma)

    def pays(self, view: ModelView) -> set[Clique]:
        """Returns the cliques whose sketch is worth fitting.

        Put into the model, it takes away more than its noise. What it takes away is the posterior mean of the squared
        distance; its noise is that of all its entries.
        """
        squared, spread, _ = self.distances(view)
        noises = np.array([self.sketcher.noises(i) for i in range(len(self.values))], np.float64)
        more = shrunk(squared, spread) > np.sqrt(noises / 2.0) * spread
        return {clique for clique, pays in zip(self.sketcher.cliques, more, strict=True) if pays}

    def halves(self, coins: RandomSource) -> tuple[Sketched, Sketched]:
        """Returns two looks at the same numbers, with independent noise."""
        one, other, sigma = halves(self.sketcher, self.values, self.sigma, coins)
        return replace(self, values=one, sigma=sigma), replace(self, values=other, sigma=sigma)

    def seen(self, view: ModelView) -> list[Floats]:
        """Returns a model's sketches, in records."""
        out = [np.zeros(0)] * len(self.values)
        for which, _, sketches in self.sketcher.together(self.coarse(view)):
            for i, sketch in zip(which.tolist(), sketches, strict=True):
                out[i] = view.model.total * sketch
        return out

    def likelihood(self, seen: Sequence[Floats]) -> float:
        """Returns the log-likelihood of a model's sketches, up to a constant."""
        sigmas = [self.sketcher.sigma_of(i, self.sigma) for i in range(len(self.values))]
        off = zip(self.values, seen, sigmas, strict=True)
        return -0.5 * sum(float(np.square((y - x) / sigma).sum()) for y, x, sigma in off)

    def residuals(self, some: Callable[[Clique], bool]) -> list[Measurement]:
        """Returns some sketches as measured residuals, in their own groups."""
        sketcher, residuals = self.sketcher, list[Measurement]()
        for i, (clique, shape) in enumerate(zip(sketcher.cliques, sketcher.shapes, strict=True)):
            if some(clique):
                groups = tuple(np.asarray(sketcher.grouping[key]) for key in zip(clique, shape, strict=True))
                values, sigma = self.values[i].reshape(shape), sketcher.sigma_of(i, self.sigma)
                residuals.append(Measurement(clique, values, sigma, groups=groups, beyond=True))
        return residuals

    # For the run's records and the shrinkage --------------------------------------------------------------------------

    def sketch_errors(self, view: ModelView) -> list[SketchError]:
        """Returns the distances, with what turns them into errors."""
        sketcher, rows = self.sketcher, view.model.total
        masses = dict(zip(view.model.domain, view.each([(name,) for name in view.model.domain]), strict=True))
        alone = np.empty(len(self.values))
        coarse = [sketcher.coarse(i, independent(masses, clique)) for i, clique in enumerate(sketcher.cliques)]
        for which, _, apart in sketcher.together(coarse):
            alone[which] = self.off(which, rows * apart, np.array([sketcher.sigma_of(i, self.sigma) for i in which]))
        errors = []
        for i, (clique, *distance) in enumerate(zip(sketcher.cliques, *self.distances(view), strict=True)):
            squared, spread, support = map(float, distance)
            groups = None
            if sketcher.grouping:
                groups = tuple(sketcher.grouping[pair] for pair in zip(clique, sketcher.shapes[i], strict=True))
            scatter = rows * sketcher.spread(i)
            noises = sketcher.noises(i)
            errors.append(SketchError(clique, squared, spread, scatter, support, groups, float(alone[i]), noises))
        return errors

    def departures(self, view: ModelView) -> dict[Clique, Departure]:
        """Returns the sketches' departures from a model's, in the sketches' own cells."""
        sketcher, departures = self.sketcher, dict[Clique, Departure]()
        for which, _, seen in sketcher.together(self.coarse(view)):
            for i, probabilities in zip(which.tolist(), seen, strict=True):
                sigma = sketcher.sigma_of(i, self.sigma)
                spread, noises = sketcher.spread(i), sketcher.noises(i)
                departures[sketcher.cliques[i]] = Departure(probabilities, self.values[i], sigma, spread, noises)
        return departures


#: Plans that were made one after the other, each the candidates that it chose.
Plans = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Trial:
    """A first model that fits of planned pairs start from.

    Attributes:
        planned: sketches to plan from and to fit.
        capacity: the first model's tree.
        fits: the first model, without a plan, and those that were fitted to a forest's.
        sketches: of the models that were fitted to all plans, in records. The models, which may be large, are not kept.
    """

    planned: Sketched
    capacity: Capacity
    fits: dict[Plans, ModelView]
    sketches: dict[Plans, list[Floats]] = field(default_factory=dict)


#: Sketches that judge, and two trials on others: without hidden factors, and with them.
Judged = tuple[Sketched, Trial, Trial]


class CohortPool:
    """Sums of one marginal over cohorts, added up.

    The total is the marginal of all clients that were in one of the cohorts. Each brings noise of its own, so the noise
    of c cohorts' total is the root of c times that of one; but it no longer has the error of a cohort that is unlike
    the others.

    Args:
        clique: of the marginal.
    """

    def __init__(self, clique: Clique) -> None:
        self.clique = clique
        self.total: npt.NDArray[np.float64] | None = None
        self.variance = self.rows = 0.0

    def add(self, values: npt.NDArray[np.float64], sigma: float, rows: float) -> None:
        """Adds a cohort's noisy sum, with its standard deviation and rows."""
        self.total = values if self.total is None else self.total + values
        self.variance += sigma * sigma
        self.rows += rows

    def measurement(self, total: float) -> list[Measurement]:
        """Returns the pool, brought to the federation's total.

        The clients that were asked stand for all; without any the list is empty.
        """
        if self.total is None:
            return []
        return [expanded(self.clique, self.total, self.variance, total, total / max(1.0, self.rows))]


def expanded(
    clique: Clique, values: npt.NDArray[np.float64], variance: float, total: float, factor: float
) -> Measurement:
    """Brings a noisy marginal of some clients to the federation's total.

    The rows of all other clients are missing. As if each row were there by chance, a cell of n_c records has a
    variance of n_c (f - 1), f the expansion, which is added to that of the noise.

    Args:
        clique: of the marginal.
        values: its noisy counts.
        variance: of the noise in each of them.
        total: records of the federation.
        factor: f, the federation's records for each of those clients'.
    """
    missing = total * max(0.0, factor - 1.0) / values.size
    return Measurement(clique, values * factor, sqrt(variance * factor * factor + missing))


def integer_weights(shares: Sequence[float]) -> list[int]:
    """Returns integer weights c from 1 to `FINEST` for budget shares.

    c^2 is in proportion to the shares, up to rounding.
    """
    most = max(shares)
    return [max(1, round(FINEST * sqrt(share / most))) for share in shares]


def measurements(pools: Sequence[CohortPool], total: float) -> list[Measurement]:
    return [measured for pool in pools for measured in pool.measurement(total)]


def precision(measurements: Sequence[Measurement]) -> dict[Clique, float]:
    """Returns the sum of 1/sigma^2 over the measurements of each clique."""
    known: dict[Clique, float] = {}
    for m in measurements:
        known[m.clique] = known.get(m.clique, 0.0) + m.sigma**-2
    return known


def in_cells(groups: Groups) -> bool:
    """Returns whether each value is a group of its own."""
    return all(len(values) == int(values.max()) + 1 for values in groups)
