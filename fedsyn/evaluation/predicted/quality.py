"""What predicted_quality.json says: how good a run's table is predicted to be. It is released values, and public.

What is said of a column, a pair and a clique of the workload is the L1 distance, 0 to 2, between the model's marginal
and that of the rows that the run was made from; `workload_error` is their weighted mean over the workload, the metric
of that name. An interval holds the true value in nine runs of ten: it is the predicted value times or divided by a
factor, of what the noise of sketches leaves open and of how far predictions may be off beyond it (`SPREADS`);
`experiments/quality` says how often it held, and how that was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, gammaln

from fedsyn.domain import Clique, Domain
from fedsyn.evaluation.predicted.effects import Scenario, SketchError, Source
from fedsyn.evaluation.predicted.errors import Predicted, Predictor
from fedsyn.evaluation.predicted.links import SeenLinks, seen_links
from fedsyn.evaluation.predicted.moments import DOUBT, SeenMoments, seen_moments
from fedsyn.evaluation.record import PREDICTED_FILE, Evaluation, of_unlisted, sentence
from fedsyn.evaluation.verdict import LOST, Judged, Verdict, few, folded, judged
from fedsyn.inference import AnyModel, Evidence, MixtureModel
from fedsyn.notebook import Bar, View
from fedsyn.table.counting.workload import Workload
from fedsyn.table.schema import CategoricalColumn, Schema

Floats = npt.NDArray[np.float64]

#: Standard deviations of log(predicted / true), beyond the noise of sketches: of the workload's error, and of one
#: marginal's. 0.13 holds nine runs of ten on the tuning side, where single tables have fewer than three of four; 0.18
#: is what a factor of 2 over the whole interval leaves room for, noise of sketches included.
SPREADS = {"all": 0.18, "one": 0.33}
#: From the firmest to none.
SOURCES: tuple[Source, ...] = ("measured", "sketched", "inferred", "unknown")
LEVEL = 0.9
QUANTILE = 1.6449
_MOST = 1000  # pairs, cliques that are listed
_MOST_ASKED = 2000  # cliques of the workload, evenly spaced, that its error is predicted from
_LARGEST = 1 << 22  # cells of a marginal that is formed
_CELLS = 1 << 26  # of all of them
#: What might be changed, and the words for it.
SCENARIOS = {
    "twice the rows": Scenario(rows=2.0),
    "twice the epsilon": Scenario(noise=0.5),
    "every association that was seen": Scenario(all_seen=True),
}


@dataclass(frozen=True)
class PredictedError:
    """A predicted error and where it is in nine runs of ten.

    Attributes:
        columns: of the marginal.
        value, low, high: L1 distance, 0 to 2.
        source: what it rests on: its own measurement, a sketch, what is known of others, or nothing: then the value is
            what noise and rows alone make of it, and `high` a bound.
    """

    columns: Clique
    value: float
    low: float
    high: float
    source: Source


@dataclass(frozen=True)
class PredictedQuality(Evaluation):
    """How good a table is predicted to be.

    Attributes:
        workload_error: of all cliques together; its columns are ().
        columns, pairs, cliques: of each.
        scenarios: the workload error that would have been, by what is changed.
        left_out: cliques of the workload that are too large to say anything of, or too many.
        seen: the pairs that what was released links.
        moments: of columns of numbers.
        other: of each column of categories, the share of the table's rows that have an unlisted value.
        numbers: those of them whose categories are mostly numbers.
        why: why nothing is said; everything else is empty then.
    """

    FILE = PREDICTED_FILE
    LABEL = "predicted"

    workload_error: PredictedError | None = None
    columns: tuple[PredictedError, ...] = ()
    pairs: tuple[PredictedError, ...] = ()
    cliques: tuple[PredictedError, ...] = ()
    scenarios: Mapping[str, float] = field(default_factory=dict)
    left_out: int = 0
    seen: SeenLinks = field(default_factory=SeenLinks)
    moments: Mapping[str, SeenMoments] = field(default_factory=dict)
    other: Mapping[str, float] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        document = {**super().to_dict(), "level": LEVEL, "read": "released values alone: it may be published"}
        if self.workload_error is not None:
            document["verdict"] = self.verdict().sentence()
        return {key: value for key, value in document.items() if value not in ("", None)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """Return the record that `to_dict` wrote. Raises ValueError if it did not."""
        found = super().from_dict(facts)
        for said in (found.workload_error, *found.columns, *found.pairs, *found.cliques):
            if not (found.why if said is None else 0.0 <= said.low <= said.value <= said.high <= 2.0):
                raise ValueError("no error of a marginal")
        return found

    def _view(self) -> View:
        found = sorted((*self.columns, *self.pairs), key=lambda said: -said.value)
        named = [(" × ".join(said.columns), said) for said in found]
        rows = [(name, f"{said.value:.4g}", f"{said.low:.4g}", f"{said.high:.4g}", said.source) for name, said in named]
        bars = [Bar(name, said.value, said.low, said.high) for name, said in named]
        head = ("column or pair", "distance", "from", "to", "rests on")
        return View(sentence(self.sentence()), head, rows, self.explained(), "predicted L1 distance, 0 to 2", bars)

    def worst(self, most: int = 5) -> list[PredictedError]:
        """The pairs with the largest predicted errors."""
        return sorted(self.pairs, key=lambda said: -said.value)[:most]

    def judged_columns(self, doubt: float = DOUBT) -> list[Judged]:
        """Return what became of each column; doubt: in standard deviations of its moments."""
        found = []
        for one in self.columns:
            (name,), other = one.columns, self.other.get(one.columns[0], 0.0)
            losses = [
                ("rows", one.value / 2.0, f"{one.value / 2.0:.0%} of the rows would have to change, as predicted")
            ]
            losses.append(("other", other, f"{other:.0%} of its rows are 'other', an unlisted value"))
            losses += self.moments[name].losses(doubt) if name in self.moments else []
            found.append(judged(name, losses))
        return found

    def verdict(self) -> Verdict:
        """Return what the table is fit for, as far as released values say it."""
        return Verdict(
            columns=self.judged_columns(),
            links=[link.judged() for link in self.seen.links],
            doubt=True,
            unseen=self.seen.sentence(),
            why="it needs real rows",
            remedy=self.remedy(),
        )

    def remedy(self) -> str:
        """Return what would help most, as one clause."""
        folded = [name for name, share in self.other.items() if share > LOST["other"]]
        if folded:
            return of_unlisted(folded, self.numbers)
        gains = {name: error for name, error in self.scenarios.items() if name.startswith("twice")}
        best = min(gains, key=lambda name: gains[name]) if gains else "a larger epsilon or more rows"
        if orderless := self.seen.orderless:
            return f"values in their order (ordered: true), if they have one, in {few(orderless)}, else {best}"
        return best

    def sentence(self) -> str:
        """Return the verdict and the predicted error, as one clause."""
        if self.workload_error is None:
            return f"how good it is cannot be said: {self.why}"
        return f"by what was released, {self.verdict().sentence()}; {self.error()}"

    def error(self) -> str:
        """Return the predicted workload error, as one clause."""
        assert self.workload_error is not None
        said = self.workload_error
        if said.source == "unknown":
            return (
                f"workload error of at least {said.low:.3g} and at most {said.high:.3g}: nothing was released of some "
                "pairs of columns, so nobody can say more; `evaluation.federated` asks the holders"
            )
        return f"predicted workload error {said.value:.3g} ({said.low:.3g} to {said.high:.3g} in nine runs of ten)"

    def explained(self) -> tuple[str, ...]:
        """Return what the distances are and rest on, and what would lower them."""
        if self.workload_error is None:
            return ()
        text = (
            "Distances are between the released model and the rows that it was made from, 0 to 2 (0 is equal); the "
            "workload error is their mean over the combinations of columns that the run was asked for. They are "
            "predicted from what the run released anyway: nobody's rows were read for them, they cost no privacy, "
            "and they may be published."
        )
        groups = ""
        if joined := self.seen.joined:
            groups = (
                f"Values of {few(joined)} were looked at in groups: a distance that rests on a sketch knows nothing of "
                "what links values inside of a group, and neither does its interval."
            )
        return tuple(filter(None, (text, groups, self.advice())))

    def advice(self) -> str:
        """What would lower the error most."""
        if self.workload_error is None or self.workload_error.source == "unknown" or not self.scenarios:
            return ""
        gains = {name: 1.0 - error / self.workload_error.value for name, error in self.scenarios.items()}
        words = {
            "twice the rows": "about {} with twice the rows at the same epsilon",
            "twice the epsilon": "about {} with twice the epsilon",
            "every association that was seen": "up to {} if the model had every association that was seen",
        }
        said = [
            words[name].format(f"{gain:.0%}")
            for name, gain in sorted(gains.items(), key=lambda g: -g[1])
            if gain >= 0.01
        ]
        if not said:
            return ""
        more = " A run that has more of either also measures more; that is not counted." if "twice" in str(said) else ""
        return f"The error would be smaller by {'; by '.join(said)}.{more}"


def predict_quality(
    model: AnyModel,
    evidence: Evidence | None,
    sketch_errors: Iterable[SketchError],
    workload: Workload,
    shrunk: bool = True,
    schema: Schema | None = None,
) -> PredictedQuality:
    """Return the predicted quality of a run's table.

    Args:
        model: the last one.
        evidence: what it was made from; None where the mechanism released no marginals.
        sketch_errors: of the last model, by sketches that were released.
        workload: of the run.
        shrunk: whether its fit was shrunk towards independence.
        schema: of the table; None: what `other` and an order are is not known.
    """
    sketch_errors = list(sketch_errors)
    if evidence is None or isinstance(model, MixtureModel):
        return PredictedQuality(why="the mechanism releases no marginals")
    domain = model.domain
    ones = [(name,) for name in domain]
    cliques, weights = _formed(workload, domain)
    pairs = list(combinations(domain, 2))
    if len(pairs) > _MOST:
        pairs = sorted({pair for q in cliques for pair in combinations(q, 2)}, key=domain.axes)[:_MOST]
    pairs = [pair for pair in pairs if domain.size(pair) <= _LARGEST]
    places = list(dict.fromkeys([*ones, *pairs, *cliques]))
    predictor = Predictor(model, evidence, sketch_errors, places, shrunk)
    found, *might = predictor.errors(Scenario(), *SCENARIOS.values())
    at = {clique: place for place, clique in enumerate(places)}

    def said(some: Sequence[Clique]) -> tuple[PredictedError, ...]:
        return tuple(_one(clique, at[clique], found, predictor) for clique in some)

    index, share = [at[q] for q in cliques], np.array(weights) / max(math.fsum(weights), 1e-300)
    if not cliques:
        left_out, why = len(workload.cliques), "its marginals are too large"
        return PredictedQuality(columns=said(ones), pairs=said(pairs), left_out=left_out, why=why)
    moments = {} if schema is None else seen_moments(predictor.effects, schema)
    others = {name: float(share @ one.errors[index]) for name, one in zip(SCENARIOS, might, strict=True)}
    return PredictedQuality(
        _whole(index, share, found, predictor),
        said(ones),
        said(pairs),
        said(cliques[:_MOST]),
        others,
        len(workload.cliques) - len(cliques),
        seen_links(predictor.effects, sketch_errors, pairs, schema, moments),
        moments,
        *(({}, ()) if schema is None else _other(schema, predictor.effects.masses)),
    )


def _formed(workload: Workload, domain: Domain) -> tuple[list[Clique], list[float]]:
    """Cliques of the workload whose marginals are formed, and their weights."""
    asked = [domain.canonical(clique) for clique in workload.cliques]
    cliques, weights, cells = list[Clique](), list[float](), 0
    apart = -(-len(asked) // _MOST_ASKED)
    for clique, weight in zip(asked[::apart], workload.weights[::apart], strict=True):
        size = domain.size(clique)
        if size <= _LARGEST and cells + size <= _CELLS:
            cliques.append(clique)
            weights.append(float(weight))
            cells += size
    return cliques, weights


def _other(schema: Schema, masses: Mapping[str, Floats]) -> tuple[dict[str, float], tuple[str, ...]]:
    """What is `other`, and where that hides numbers."""
    shares = {name: folded(column, masses[name]) for name, column in schema.columns.items()}
    found = {name: round(share, 4) for name, share in shares.items() if share}
    columns = {name: column for name, column in schema.columns.items() if isinstance(column, CategoricalColumn)}
    return found, tuple(name for name in found if columns[name].lists_numbers)


def _whole(index: Sequence[int], share: Floats, found: Predicted, predictor: Predictor) -> PredictedError:
    """The mean over the workload. Noise of one sketch moves all cliques that hold it together."""
    value = float(share @ found.errors[index])
    moved: dict[Clique, float] = {}
    for weight, place in zip(share, index, strict=True):
        for part, slope in found.slopes[place].items():
            moved[part] = moved.get(part, 0.0) + float(weight) * slope
    own = math.fsum((gain * predictor.effects[part].spread) ** 2 for part, gain in moved.items())
    noise = math.sqrt(own + predictor.effects.together(moved)) / max(value, 1e-300)
    source = max((found.sources[i] for i in index), key=SOURCES.index)
    said = _between((), value, [math.hypot(QUANTILE * SPREADS["all"], QUANTILE * noise)] * 2, source)
    unknown = np.array([found.sources[place] == "unknown" for place in index])
    if not unknown.any():
        return said
    factor = said.high / max(said.value, 1e-300)
    highest = np.where(unknown, found.bounds[index], np.minimum(factor * found.errors[index], 2.0))
    lowest = min(said.low, _short(said.low * float(share @ found.floors[index]) / max(said.value, 1e-300)))
    return replace(said, low=lowest, high=max(said.value, _short(float(share @ highest))))


def _one(clique: Clique, place: int, found: Predicted, predictor: Predictor) -> PredictedError:
    """One marginal. Errors of d dimensions scatter as the root of a chi-square with d degrees of freedom over d."""
    value, source = float(found.errors[place]), found.sources[place]
    free = max(1.0, predictor.effects.cells(clique) - 1.0) / 2.0
    mean = math.exp(gammaln(free + 0.5) - gammaln(free))
    scatter = [math.log(math.sqrt(gammaincinv(free, p)) / mean) for p in (0.05, 0.95)]
    known = [math.log(max(bound, 1e-300) / max(value, 1e-300)) for bound in (found.lows[place], found.highs[place])]
    spreads = [math.hypot(a, b, QUANTILE * SPREADS["one"]) for a, b in zip(scatter, known, strict=True)]
    said = _between(clique, value, spreads, source)
    return replace(said, high=_short(max(said.high, float(found.bounds[place])))) if source == "unknown" else said


def _between(clique: Clique, value: float, logs: Sequence[float], source: Source) -> PredictedError:
    low, high = value * math.exp(-logs[0]), min(2.0, value * math.exp(logs[1]))
    return PredictedError(clique, _short(value), _short(low), _short(high), source)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
