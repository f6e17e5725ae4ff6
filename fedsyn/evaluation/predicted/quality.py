"""predicted_quality.json: predicted quality of a run's table.

It is released values, and public.

What is said of a column, a pair and a clique of the workload is the L1 distance, 0 to 2, between the model's marginal
and that of the rows that the run was made from; `workload_error` is their weighted mean over the workload, the metric
of that name. An interval holds the true value for nine tables of ten (one table's predictions may all lean one way).
It reaches as far as the least and the largest associations that the noise of the run's own sketches leaves open, and
beyond them as far as predictions may be off otherwise (`SPREADS`); `experiments/quality` says how often it held.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, gammaln, ndtr

from fedsyn.domain import Clique, Domain
from fedsyn.evaluation.predicted.drawn import DrawnColumn, DrawnRows
from fedsyn.evaluation.predicted.effects import Effects, Released, Scenario, SketchError, Source
from fedsyn.evaluation.predicted.links import SeenLinks, seen_links
from fedsyn.evaluation.predicted.moments import MOMENT_DOUBT, QUANTILE, SeenMoments, seen_moments
from fedsyn.evaluation.predicted.unlisted import UnlistedShare, clauses, unlisted_shares
from fedsyn.evaluation.record import (
    LIMITED,
    PREDICTED_FILE,
    Evaluation,
    of_limits,
    of_unlisted,
    percent,
    sentence,
    short,
)
from fedsyn.evaluation.verdict import LOST, Judged, OfPersons, Verdict, folded, foremost, judged
from fedsyn.inference import AnyModel, Evidence, MixtureModel
from fedsyn.notebook import Bar, View
from fedsyn.output import first_of
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.workload import Workload, subsets
from fedsyn.table.schema import CategoricalColumn, Schema
from fedsyn.table.schema.persons import COUNT, is_along, next_name, person_attributes, row_columns

Floats = npt.NDArray[np.float64]

#: Standard deviations of log(predicted / true), beyond the noise of sketches: of the workload's error, and of one
#: marginal's. Each is the smallest that holds nine of ten on the tuning side of `experiments/quality`.
SPREADS = {"all": 0.14, "one": 0.20}
#: From the firmest to none.
SOURCES: tuple[Source, ...] = ("measured", "sketched", "inferred", "unknown")
LEVEL = 0.9
_MOST = 1000  # pairs, cliques that are listed
_MOST_ASKED = 2000  # cliques of the workload, evenly spaced, that its error is predicted from
_LARGEST = 1 << 22  # cells of a marginal that is formed
_CELLS = 1 << 26  # of all of them
#: Cells of the marginals that are formed at the same time.
_CELLS_AT_ONCE = 1 << 21
# Counts whose logarithms are taken at once: what a core's cache holds several times.
_COUNTS_AT_ONCE = 1 << 14
# Cells that are looked at one by one, and of more of them the step between logarithms of counts that stand together,
# from a count that is as good as none.
_FEW_CELLS, _ALIKE, _LEAST_COUNT = 1 << 11, 0.01, 1e-9
_MAD = math.sqrt(2.0 / math.pi)
#: 5%, the middles of twelve parts of a distribution, 95%.
_POINTS = np.concatenate([[0.05], (np.arange(12) + 0.5) / 12, [0.95]])
_LARGE = 50.0  # records of a cell, from which Poisson and normal deviations agree to a thousandth
_FACTORIALS = gammaln(np.arange(_LARGE) + 1.0)  # their logarithms
#: What might be changed, and the words for it.
SCENARIOS = {
    "twice the rows": Scenario(rows=2.0),
    "twice the epsilon": Scenario(noise=0.5),
    "every association that was seen": Scenario(all_seen=True),
}
#: The least and the largest associations that sketches leave open, all of them together.
WORLDS = (Scenario(world=0), Scenario(world=1))


@dataclass(frozen=True)
class PredictedError:
    """A predicted error and where it is for nine tables of ten.

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
    """Predicted quality of a table.

    Attributes:
        workload_error: of all cliques together; its columns are ().
        columns, pairs, cliques: of each.
        scenarios: the workload error that would have been, by what is changed.
        left_out: cliques of the workload that are too large to say anything of, or too many.
        seen: the pairs that what was released links.
        moments: of columns of numbers.
        other: of each column of categories, the share of the table's rows that have an unlisted value.
        numbers: those of them whose categories are mostly numbers.
        unlisted: of each column with `unlisted: true`, the share of the rows whose value its schema does not list.
        why: why nothing is said; everything else is empty then.
        label: the column to predict, whose links matter most; None: the schema names none.
        of: what the shares are of: 'rows', or 'people' where a table of records has one of each.
        people, steps: the links of persons, and of a row and the next one, in such a table; `seen` has those inside
            rows then.
        limited: share of the predicted error that the limits on the model's size cost, as the mechanism's plan foresaw.
        widest: columns that fill the model most, where limits cost something.
        drawn: of persons with several rows, each column of the rows that were drawn, beside the records.
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
    unlisted: tuple[UnlistedShare, ...] = ()
    why: str = ""
    label: str | None = None
    of: str = "rows"
    people: SeenLinks = field(default_factory=SeenLinks)
    steps: SeenLinks = field(default_factory=SeenLinks)
    limited: float = 0.0
    widest: tuple[str, ...] = ()
    drawn: Mapping[str, DrawnColumn] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        document = {**super().to_dict(), "level": LEVEL, "read": "released values alone: it may be published"}
        if self.workload_error is not None:
            document["verdict"] = self._told()
        elif self.unlisted:
            document["verdict"] = "; ".join(clauses(self.unlisted, self.of))
        if self.of == "rows":
            del document["of"], document["people"], document["steps"], document["drawn"]
        if not self.unlisted:  # a schema without such columns has nothing to say of them
            del document["unlisted"]
        if not self.limited:
            del document["limited"], document["widest"]
        return {key: value for key, value in document.items() if value not in ("", None)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """Returns the record that `to_dict` wrote. Raises ValueError if it did not."""
        quality = super().from_dict(facts)
        for error in (quality.workload_error, *quality.columns, *quality.pairs, *quality.cliques):
            if not (quality.why if error is None else 0.0 <= error.low <= error.value <= error.high <= 2.0):
                raise ValueError("no error of a marginal")
        return quality

    def _view(self) -> View:
        errors = sorted((*self.columns, *self.pairs), key=lambda error: -error.value)
        named = [(" × ".join(error.columns), error) for error in errors]
        rows = [
            (name, f"{error.value:.4g}", f"{error.low:.4g}", f"{error.high:.4g}", error.source) for name, error in named
        ]
        bars = [Bar(name, error.value, error.low, error.high) for name, error in named]
        head = ("column or pair", "distance", "from", "to", "rests on")
        return View(sentence(self.sentence()), head, rows, self.explained(), "predicted L1 distance, 0 to 2", bars)

    def worst(self, most: int = 5) -> list[PredictedError]:
        """The pairs with the largest predicted errors."""
        return sorted(self.pairs, key=lambda error: -error.value)[:most]

    def judged_columns(self, doubt: float = MOMENT_DOUBT) -> list[Judged]:
        """Returns what became of each column.

        `doubt` is in standard deviations of its moments.
        """
        judgements, unlisted = [], {one.column: one.value for one in self.unlisted if one.seen}
        for one in self.columns:
            (name,), other = one.columns, self.other.get(one.columns[0], 0.0)
            losses = [
                (
                    "rows",
                    one.value / 2.0,
                    f"about {percent(one.value / 2.0)} of its {self.of} differ from the real ones in bin or value",
                )
            ]
            losses.append(("other", other, f"{percent(other)} of its {self.of} are 'other', an unlisted value"))
            if share := unlisted.get(name):
                losses.append(
                    (
                        "other",
                        share,
                        f"about {percent(share)} of its {self.of} hold values that the schema does not list",
                    )
                )
            losses += self.moments[name].losses(doubt) if name in self.moments else []
            losses += self.drawn[name].losses() if name in self.drawn else []
            judgements.append(judged(name, losses))
        return judgements

    def verdict(self) -> Verdict:
        """Returns what the table is fit for, by released values."""
        links = self.seen.links
        names, columns = [link.columns for link in links], self.judged_columns()
        persons = None
        if self.of == "people":
            persons = self._persons(replace(self, drawn={}).judged_columns())  # of people a record says all
            every = [one.name for one in columns]
            columns = [one for one in columns if not is_along(one.name, every)]
        kept = {one.name for one in columns if one.state == "kept"}
        sure = [link for link in links if link.judged().state == "kept" and kept.issuperset(link.columns)]
        return Verdict(
            columns=columns,
            links=[link.judged() for link in links],
            foremost=[links[at].judged() for at in foremost(names, [link.seen for link in links], self.label)],
            persons=persons,
            doubt=True,
            hidden=self.seen.hidden,
            unseen=self.seen.hiding(),
            sure=[" × ".join(link.columns) for link in sorted(sure, key=lambda link: -link.seen)],
            why="it needs real rows",
            next=self.remedy(),
        )

    def with_rows(self, rows: DrawnRows) -> Self:
        """Returns the quality with what the drawn rows of persons add."""
        if self.workload_error is None:
            return self
        return replace(self, drawn=rows.columns(), seen=replace(self.seen, links=rows.links(self.seen.links)))

    def _persons(self, columns: Sequence[Judged]) -> OfPersons:
        """Returns what became of whole persons.

        A record has one row of each person and the next one, so nothing is said of aggregates.
        """
        names, numbers = [one.name for one in columns], [one for one in columns if one.name == COUNT]
        own = [one for one in columns if not is_along(one.name, names) and next_name(one.name) not in names]
        people = [*numbers, *(replace(one, name=f"{one.name} of people") for one in own)]
        return OfPersons(
            people=[*people, *(link.judged() for link in self.people.links)],
            steps=[link.judged() for link in self.steps.links],
            foremost=numbers,
            hidden=(self.people.hidden, self.steps.hidden),
            unseen=(self.people.hiding(), self.steps.hiding()),
        )

    def remedy(self) -> str:
        """Returns what would help most, as one clause."""
        folded = [name for name, share in self.other.items() if share > LOST["other"]]
        unlisted = [one for one in self.unlisted if one.seen and one.value > LOST["other"]]
        folded += [one.column for one in unlisted if not one.ordered]
        if folded or unlisted:
            return of_unlisted(folded, self.numbers, [one.column for one in unlisted if one.ordered])
        if limits := self.limits():
            return limits
        gains = {name: error for name, error in self.scenarios.items() if name.startswith("twice")}
        best = f"run with {min(gains, key=lambda name: gains[name])}" if gains else "raise epsilon or bring more rows"
        best = best.replace("rows", self.of)
        orderless = self.seen.orderless
        if orderless:
            have = "has" if len(orderless) == 1 else "have"
            return f"if {first_of(orderless, 3)} {have} an order, list the values in it (ordered: true). Else {best}"
        return best

    def limits(self) -> str:
        """Returns what to do about costly limits, as one clause."""
        return of_limits(self.widest) if self.limited >= LIMITED else ""

    def sentence(self) -> str:
        """Returns the verdict and the predicted error, as one clause."""
        if self.workload_error is None:
            return "; ".join([f"nobody can say how good it is, because {self.why}", *clauses(self.unlisted, self.of)])
        said = [self._told(), *map(sentence, filter(None, [self.seen.sentence()])), sentence(self.error())]
        return f"{' '.join(said)} All of this rests on released values"

    def _told(self) -> str:
        """Returns the verdict's sentences, and one on unlisted values."""
        return " ".join([*self.verdict().sentences(), *map(sentence, clauses(self.unlisted, self.of))])

    def seen_unlisted(self) -> list[str]:
        """Returns a clause on each column with unlisted rows."""
        return [one.sentence(self.of) for one in self.unlisted if one.seen]

    def error(self) -> str:
        """Returns the predicted workload error, as one clause."""
        assert self.workload_error is not None
        error = self.workload_error
        if error.source == "unknown":
            return (
                f"the workload error is at least {error.low:.3g} and at most {error.high:.3g}. Nothing was released "
                "about some pairs of columns. `evaluation.federated` asks the holders"
            )
        interval = f"{error.low:.3g} to {error.high:.3g} for nine tables of ten"
        return f"the workload error is about {error.value:.3g} ({interval})"

    def explained(self) -> tuple[str, ...]:
        """Returns the distances, their grounds, and what would lower them."""
        if self.workload_error is None:
            return ()
        made_from = "the rows that it was made from"
        if self.of == "people":
            made_from = "one record of each person, which it was made from ('next ...' is the row after)"
        text = (
            f"A distance is between the released model and {made_from}: 0 is equal, 2 is the "
            "furthest. The workload error is the mean over the combinations of columns that the run was asked for. All "
            "are estimated from released values, so they cost no privacy and may be published."
        )
        groups = ""
        if joined := self.seen.joined:
            groups = (
                f"Some values of {first_of(joined, 3)} were counted together. A distance that rests on a sketch "
                "omits what links single values of such a group."
            )
        return tuple(filter(None, (text, groups, self.advice())))

    def advice(self) -> str:
        """Returns what would lower the error most."""
        if self.workload_error is None or self.workload_error.source == "unknown" or not self.scenarios:
            return ""
        gains = {name: 1.0 - error / self.workload_error.value for name, error in self.scenarios.items()}
        gains["no limits"] = self.limited
        words = {
            "no limits": "about {} smaller without the limits on the model's size",
            "twice the rows": "about {} smaller with twice the " + self.of,
            "twice the epsilon": "about {} smaller with twice the epsilon",
            "every association that was seen": "up to {} smaller if the model had every association that was seen",
        }
        clauses = [
            words[name].format(percent(gain))
            for name, gain in sorted(gains.items(), key=lambda g: -g[1])
            if gain >= 0.01
        ]
        if not clauses:
            return ""
        more = " Such a run also measures more. That often gains more, and is not counted."
        listed = ", ".join(clauses[:-1]) + " and " * (len(clauses) > 1) + clauses[-1]
        return f"The error would be {listed}.{more if 'twice' in listed else ''}"


def predict_quality(
    model: AnyModel,
    evidence: Evidence | None,
    sketch_errors: Iterable[SketchError],
    workload: Workload,
    shrunk: bool = True,
    schema: Schema | None = None,
    limited: float = 0.0,
) -> PredictedQuality:
    """Returns the predicted quality of a run's table.

    Args:
        model: the last one.
        evidence: what it was made from; None where the mechanism released no marginals.
        sketch_errors: of the last model, by sketches that were released.
        workload: of the run.
        shrunk: whether its fit was shrunk towards independence.
        schema: of the table; None: what `other` and an order are is not known.
        limited: share of the predicted error that the limits on the model's size cost.
    """
    sketch_errors = list(sketch_errors)
    unlisted = _unlisted(schema, model, evidence)
    if evidence is None or isinstance(model, MixtureModel):
        return PredictedQuality(unlisted=unlisted, why="the mechanism releases no marginals")
    # Columns, pairs and cliques whose marginals are small enough to be formed.
    domain = model.domain
    ones = [(name,) for name in domain]
    cliques, weights = _formed(workload, domain)
    pairs = _pairs(domain, cliques)
    places = list(dict.fromkeys([*ones, *pairs, *cliques]))
    # Errors of the run as it was, and as it might have been.
    predictor = Predictor(model, evidence, sketch_errors, places, shrunk)
    predicted, least, most, *might = predictor.errors(Scenario(), *WORLDS, *SCENARIOS.values())
    at = {clique: place for place, clique in enumerate(places)}

    def errors_of(some: Sequence[Clique]) -> tuple[PredictedError, ...]:
        return tuple(_one(clique, at[clique], predicted, predictor) for clique in some)

    index, share = [at[q] for q in cliques], np.array(weights) / max(math.fsum(weights), 1e-300)
    if not cliques:
        known, why = (errors_of(ones), errors_of(pairs)), "its marginals are too large"
        return PredictedQuality(None, *known, left_out=len(workload.cliques), unlisted=unlisted, why=why)
    # The workload's mean, and the other grounds of the verdict.
    moments = {} if schema is None else seen_moments(predictor.effects, schema)
    others = {name: float(share @ one.errors[index]) for name, one in zip(SCENARIOS, might, strict=True)}
    return PredictedQuality(
        _whole(index, share, predicted, (least, most), predictor),
        errors_of(ones),
        errors_of(pairs),
        errors_of(cliques[:_MOST]),
        others,
        len(workload.cliques) - len(cliques),
        seen_links(predictor.effects, sketch_errors, _apart(schema, pairs)[0], schema, moments),
        moments,
        *(({}, ()) if schema is None else _other(schema, predictor.effects.masses)),
        unlisted,
        label=None if schema is None else schema.label,
        **_of_limits(domain, schema, limited) | _of_persons(schema, predictor.effects, sketch_errors, pairs, moments),
    )


def _pairs(domain: Domain, cliques: Sequence[Clique]) -> list[Clique]:
    """Returns the listed pairs: of many columns those in cliques."""
    pairs: list[Clique] = [*combinations(domain, 2)]
    if len(pairs) > _MOST:
        inside: set[Clique] = {pair for q in cliques for pair in combinations(q, 2)}
        pairs = sorted(inside, key=domain.axes)[:_MOST]
    return [pair for pair in pairs if domain.size(pair) <= _LARGEST]


def _of_persons(
    schema: Schema | None,
    effects: Effects,
    sketches: Sequence[SketchError],
    pairs: Sequence[Clique],
    moments: Mapping[str, SeenMoments],
) -> dict[str, Any]:
    """Returns what is known of records alone; nothing of rows."""
    if schema is None or schema.of_persons is None:
        return {}
    people, steps = (seen_links(effects, sketches, some, schema, moments) for some in _apart(schema, pairs)[1:])
    return {"of": "people", "people": people, "steps": steps}


def _apart(schema: Schema | None, pairs: Sequence[Clique]) -> tuple[list[Clique], list[Clique], list[Clique]]:
    """Returns pairs inside rows, of people, and of next rows.

    Without records all are pairs inside rows. Of records those are left out that say the same again, of the next row,
    and those of the number of rows before one.
    """
    if schema is None or schema.of_persons is None:
        return [*pairs], [], []
    own, row = {*person_attributes(schema.rows)}, {*row_columns(schema.rows)}
    after = {*map(next_name, row)}
    inside = [pair for pair in pairs if own | row >= {*pair}]
    people = [pair for pair in pairs if COUNT in pair and own | {COUNT} >= {*pair}]
    steps = [pair for pair in pairs if row & {*pair} and after & {*pair}]
    return inside, people, steps


def _of_limits(domain: Domain, schema: Schema | None, limited: float) -> dict[str, Any]:
    """Returns the cost of the model's limits, where there is one."""
    return {"limited": short(limited), "widest": _widest(domain, schema)} if limited else {}


def _widest(domain: Domain, schema: Schema | None) -> tuple[str, ...]:
    """Returns the columns whose bins fill the model most.

    Of stated rules, which no model does without, they are those of the largest; else the two with most values. What
    records add to the columns of a table has no bins that anybody chose.
    """
    names = [*domain] if schema is None else [*schema.rows.order]
    base = {name: name for name in names} | {next_name(name): name for name in names}
    rules = [q for q, _ in domain.zeros if base.keys() >= {*q}]
    if rules:
        return tuple(dict.fromkeys(base[name] for name in max(rules, key=domain.size)))
    return tuple(sorted((name for name in names if name in domain), key=domain.__getitem__, reverse=True)[:2])


def _unlisted(schema: Schema | None, model: AnyModel, evidence: Evidence | None) -> tuple[UnlistedShare, ...]:
    """Returns the unlisted shares, of records without the next row's."""
    if schema is None:
        return ()
    names = () if schema.of_persons is None else tuple(schema.columns)
    return tuple(one for one in unlisted_shares(schema, model, evidence) if not is_along(one.column, names))


def _formed(workload: Workload, domain: Domain) -> tuple[list[Clique], list[float]]:
    """Cliques of the workload whose marginals are formed, and their weights."""
    workload_cliques = [domain.canonical(clique) for clique in workload.cliques]
    cliques, weights, cells = list[Clique](), list[float](), 0
    apart = -(-len(workload_cliques) // _MOST_ASKED)
    for clique, weight in zip(workload_cliques[::apart], workload.weights[::apart], strict=True):
        size = domain.size(clique)
        if size <= _LARGEST and cells + size <= _CELLS:
            cliques.append(clique)
            weights.append(float(weight))
            cells += size
    return cliques, weights


def _other(schema: Schema, masses: Mapping[str, Floats]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Returns the shares of `other`, and columns whose numbers hide there."""
    shares = {name: folded(column, masses[name]) for name, column in schema.columns.items()}
    nonzero = {name: round(share, 4) for name, share in shares.items() if share}
    columns = {name: column for name, column in schema.columns.items() if isinstance(column, CategoricalColumn)}
    return nonzero, tuple(name for name in nonzero if columns[name].lists_numbers)


def _whole(
    index: Sequence[int], share: Floats, predicted: Predicted, worlds: Sequence[Predicted], predictor: Predictor
) -> PredictedError:
    """Returns the mean error over the workload.

    Noise of one sketch moves all cliques that hold it together, that of all sketches moves all cliques.
    """
    value, *ends = (float(share @ one.errors[index]) for one in (predicted, *worlds))
    moved: dict[Clique, float] = {}
    for weight, place in zip(share, index, strict=True):
        for part, slope in predicted.slopes[place].items():
            moved[part] = moved.get(part, 0.0) + float(weight) * slope
    noise = math.sqrt(math.fsum((gain * predictor.effects[part].spread) ** 2 for part, gain in moved.items()))
    apart = QUANTILE * math.hypot(SPREADS["all"], noise / max(value, 1e-300))
    together = (math.log(max(a, 1e-300) / max(b, 1e-300)) for a, b in ((value, ends[0]), (ends[1], value)))
    source = max((predicted.sources[i] for i in index), key=SOURCES.index)
    error = _between((), value, [math.hypot(apart, max(0.0, log)) for log in together], source)
    unknown = np.array([predicted.sources[place] == "unknown" for place in index])
    if not unknown.any():
        return error
    factor = error.high / max(error.value, 1e-300)
    highest = np.where(unknown, predicted.bounds[index], np.minimum(factor * predicted.errors[index], 2.0))
    lowest = min(error.low, short(error.low * float(share @ predicted.floors[index]) / max(error.value, 1e-300)))
    return replace(error, low=lowest, high=max(error.value, short(float(share @ highest))))


def _one(clique: Clique, place: int, predicted: Predicted, predictor: Predictor) -> PredictedError:
    """Returns the error of one marginal.

    Errors of d dimensions scatter as the root of a chi-square with d degrees of freedom over d.
    """
    value, source = float(predicted.errors[place]), predicted.sources[place]
    free = max(1.0, predictor.effects.cells(clique) - 1.0) / 2.0
    mean = math.exp(gammaln(free + 0.5) - gammaln(free))
    scatter = [math.log(math.sqrt(gammaincinv(free, p)) / mean) for p in (0.05, 0.95)]
    known = [
        math.log(max(bound, 1e-300) / max(value, 1e-300)) for bound in (predicted.lows[place], predicted.highs[place])
    ]
    spreads = [math.hypot(a, b, QUANTILE * SPREADS["one"]) for a, b in zip(scatter, known, strict=True)]
    error = _between(clique, value, spreads, source)
    return replace(error, high=short(max(error.high, float(predicted.bounds[place])))) if source == "unknown" else error


def _between(clique: Clique, value: float, logs: Sequence[float], source: Source) -> PredictedError:
    low, high = value * math.exp(-logs[0]), min(2.0, value * math.exp(logs[1]))
    return PredictedError(clique, short(value), short(low), short(high), source)


# The errors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predicted L1 errors of normalised marginals, 0 to 2.

    Attributes:
        errors: (Q,) of each clique.
        lows, highs: (Q,) where they are in nine of ten, by what is not known of associations.
        floors: (Q,) what noise and rows leave of an error, however the model was fitted.
        slopes: of each clique, effect -> what the error gains when its R^2 grows.
        bounds: (Q,) what an error is at most, whatever was not seen.
        sources: (Q,) the weakest that an error rests on.
    """

    errors: Floats
    lows: Floats
    highs: Floats
    floors: Floats
    slopes: list[dict[Clique, float]]
    bounds: Floats
    sources: tuple[Source, ...]


class Predictor:
    """Predicts errors of a run's last model.

    They are the errors of its effects, added up cell by cell.

    In a cell of clique q that expects lambda records, a share S of the rows' variance is left, and a squared relative
    error Q: the sums of what is left of q's effects. The L1 error is the sum over cells of

        sqrt(S m(lambda)^2 + (2 / pi) Q lambda^2),   at most 2 lambda,

    m the mean absolute deviation of a Poisson variable (2 lambda where lambda is small, sqrt(2 lambda / pi) where it is
    large); sqrt(2 / pi) is that of a normal one.

    A fit that nothing shrinks towards independence does not weigh noise against what it expects: it keeps all of it
    that is the marginal of a table. Its error is at least that of noisy counts projected onto those (`kept_noise`).

    What rests on assumptions, and not on the released values: that errors are spread like this over cells, that what no
    sketch and no measurement saw is like what they saw, and that a fit keeps what least squares would. How far that
    holds was measured (`experiments/quality`), and is in every interval.

    Args:
        model: the last one.
        evidence: what it was fitted to.
        sketch_errors: of it.
        cliques: whose errors are asked for, in domain order.
        shrunk: whether its fit was shrunk towards independence (`fedsyn.inference.shrinkage`).
    """

    def __init__(
        self,
        model: Released,
        evidence: Evidence,
        sketch_errors: Iterable[SketchError],
        cliques: Sequence[Clique],
        shrunk: bool = True,
    ) -> None:
        self.cliques = tuple(cliques)
        self.model, self.shrunk = model, shrunk
        self.effects = Effects(model, evidence, sketch_errors, self.cliques)

    def errors(self, *scenarios: Scenario) -> list[Predicted]:
        """Predicts errors of the run, under some scenarios.

        `Scenario()` is the run as it was. Marginals are formed once.
        """
        foreseen, bounds = [_Foreseen(self, scenario) for scenario in scenarios], np.empty(len(self.cliques))
        sources = tuple(map(self._source, self.cliques))
        for place, marginal in self._marginals():
            bounds[place], expected = self._bound(self.cliques[place], marginal), dict[float, _Expected]()
            lam, cells = alike(marginal * self.model.total)  # of more rows the same cells stand together
            for one in foreseen:
                rows = one.scenario.rows
                if rows not in expected:
                    expected[rows] = _Expected.of(lam * rows, cells)
                one.add(place, expected[rows], sources[place] == "unknown")
        return [Predicted(*self._spread(f), f.floors, f.slopes, bounds, sources) for f in foreseen]

    def _spread(self, foreseen: _Foreseen) -> tuple[Floats, Floats, Floats]:
        """Returns means, 5% and 95% points of errors.

        They are taken over the beliefs about R^2.

        A squared error is linear in the R^2: certain + Y, and Y is taken for a Gamma variable of its mean and variance.
        """
        errors = foreseen.errors
        means, squares = np.zeros((2, len(errors)))
        for place, clique_slopes in enumerate(foreseen.slopes):
            parts = [(2.0 * errors[place] * slope, s) for s, slope in clique_slopes.items()]
            means[place] = math.fsum(gain * foreseen.squared[s] for gain, s in parts)
            squares[place] = math.fsum((gain * self.effects[s].spread) ** 2 for gain, s in parts)
        known = (means <= 0) | (squares <= 0)
        shape = np.where(known, 1.0, means**2 / np.where(known, 1.0, squares))
        certain = np.maximum(errors**2 - means, 0.0)
        points = gammaincinv(shape[:, None], _POINTS) / shape[:, None] * means[:, None]
        quantiles = np.sqrt(certain[:, None] + points)
        low, high = quantiles[:, 0], np.minimum(quantiles[:, -1], 2.0)
        return (
            np.where(known, errors, quantiles[:, 1:-1].mean(axis=1)),
            np.where(known, errors, low),
            np.where(known, errors, high),
        )

    def _noise(self, clique: Clique) -> float:
        """Returns the noise's variance in a cell.

        It is that of least squares over what was measured cell by cell.
        """
        sizes, variance = {name: self.model.domain.size((name,)) for name in clique}, 0.0
        for s in subsets(clique):
            if self.effects[s].precision > 0:
                cells, free = (math.prod(sizes[name] - less for name in s) for less in (0, 1))
                variance += free * cells / math.prod(sizes.values()) ** 2 / self.effects[s].precision
        return variance

    def _source(self, clique: Clique) -> Source:
        if self.effects.is_measured(clique):
            return "measured"
        sources = {self.effects[s].source for s in subsets(clique) if len(s) == 2}
        return next((kind for kind in ("unknown", "inferred", "sketched") if kind in sources), "measured")

    def _bound(self, clique: Clique, marginal: Floats) -> float:
        """Bounds the distance to any table with the model's one-way marginals.

        The bound is Fréchet's.
        """
        least = np.zeros(1)
        for name in clique:
            least = (least[:, None] + self.effects.masses[name]).ravel()
        least -= len(clique) - 1.0
        shared = np.minimum(marginal, np.maximum(least, 0.0, out=least), out=least)
        return float(2.0 - 2.0 * shared.sum())

    def _marginals(self) -> Iterator[tuple[int, Floats]]:
        """(place, probabilities) of each clique, one at a time."""
        view = ModelView(self.model, _CELLS_AT_ONCE)  # type: ignore[arg-type]
        yield from enumerate(view.each(self.cliques))


@dataclass(frozen=True, eq=False)
class _Expected:
    """A clique's expected counts, (counts,).

    Cells with nearly the same count stand together. Scenarios with as many rows share what is computed from them.

    Attributes:
        lam: the counts.
        cells: how many have each.
        most: twice the counts.
        scatter: their squared `deviation`.
        squared: their squares.
        halves: `_MAD` squared times their squares.
        total: their sum.
    """

    lam: Floats
    cells: Floats
    most: Floats
    scatter: Floats
    squared: Floats
    halves: Floats
    total: float

    @classmethod
    def of(cls, lam: Floats, cells: Floats) -> _Expected:
        scatter, squared = deviation(lam), lam**2
        np.square(scatter, out=scatter)
        return cls(lam, cells, 2.0 * lam, scatter, squared, _MAD**2 * squared, float(lam @ cells))


class _Foreseen:
    """Errors of a run as it might have been, clique after clique."""

    def __init__(self, predictor: Predictor, scenario: Scenario) -> None:
        self.predictor, self.scenario, effects = predictor, scenario, predictor.effects
        inside = dict.fromkeys(s for q in predictor.cliques for s in subsets(q))  # cliques share their parts
        self.parts = {s: effects[s].left(scenario) for s in inside}
        self.squared = {s: effects.squared(s, scenario.world) for s in self.parts}
        self.errors, self.floors = np.empty((2, len(predictor.cliques)))
        self.slopes = list[dict[Clique, float]]()

    def add(self, place: int, expected: _Expected, unknown: bool) -> None:
        """Adds the expected error of the clique at a place.

        It follows from the clique's expected counts.
        """
        clique, effects, parts = self.predictor.cliques[place], self.predictor.effects, self.parts
        # What remains of the rows' variance and of R^2, summed over the clique's effects.
        inside = list(subsets(clique))
        rows = sum(parts[s].rows * effects.dimensions(s) for s in inside) / effects.cells(clique)
        relative = sum(parts[s].relative * self.squared[s] for s in inside)
        # Each cell's error is the root of its variance, at most twice its count.
        off = rows * expected.scatter
        off += _MAD**2 * relative * expected.squared
        np.sqrt(off, out=off)
        self.errors[place] = self.floors[place] = (
            float(np.minimum(off, expected.most) @ expected.cells) / expected.total
        )
        # A fit without shrinkage keeps the noise of its measurements.
        if not self.predictor.shrunk and not unknown:
            noise = self.predictor._noise(clique) * self.scenario.noise**2
            self.errors[place] = max(
                self.errors[place], kept_noise(expected.lam, noise, expected.cells) / expected.total
            )
        # Slopes of the error over each uncertain R^2.
        doubtful = [s for s in inside if effects[s].spread > 0]
        gain = 0.0
        if doubtful:
            flat = ~((off > 0) & (off < expected.most))
            off *= 2.0
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = np.divide(expected.halves, off, out=off)
            slope[flat] = 0.0
            gain = float(slope @ expected.cells) / expected.total
        self.slopes.append({s: gain * parts[s].relative for s in doubtful})


def alike(lam: Floats) -> tuple[Floats, Floats]:
    """Returns counts that stand for all cells.

    It returns them and how many cells each stands for, (counts,) both.

    Counts within one percent of each other become their mean. Errors are smooth in a count, so that moves them in
    second order: by a part in 10^4 at most. Few cells stay as they are.
    """
    if len(lam) <= _FEW_CELLS:
        return lam, np.ones(len(lam))
    # Place 0 has the counts that are next to none.
    steps = np.maximum(lam, _LEAST_COUNT)
    steps /= _LEAST_COUNT
    np.log(steps, out=steps)
    steps /= _ALIKE
    steps += lam > _LEAST_COUNT
    place = steps.astype(np.intp)
    cells, sums = np.bincount(place), np.bincount(place, lam)
    held = cells > 0
    return sums[held] / cells[held], cells[held].astype(np.float64)


def deviation(lam: Floats) -> Floats:
    """Returns E|X - lambda| of Poisson variables, (m,).

    2 e^-lambda lambda^(f + 1) / f!, f = floor(lambda) (De Moivre).
    """
    deviations = _MAD * np.sqrt(lam)
    for start in range(0, len(lam), _COUNTS_AT_ONCE):
        block, out = (array[start : start + _COUNTS_AT_ONCE] for array in (lam, deviations))
        few = (block > 0) & (block < _LARGE)
        some = block[few]
        floor = np.floor(some)
        out[few] = np.exp(math.log(2.0) - some + (floor + 1.0) * np.log(some) - _FACTORIALS[floor.astype(np.intp)])
    return deviations


def kept_noise(lam: Floats, variance: float, cells: Floats | None = None) -> float:
    """Returns E ||X - lambda||_1 of projected noisy counts.

    `cells` says how many have each count; None: one.

    X is lambda + N(0, variance), projected onto counts of the same total.

    That is X = max(lambda + noise - tau, 0) with the tau that keeps the total (on average over the noise).
    """
    cells = np.ones(len(lam)) if cells is None else cells
    total, sigma = float(lam @ cells), math.sqrt(variance)
    if sigma <= 0 or total <= 0:
        return 0.0
    low, high = -9.0 * sigma - float(lam.max()), 9.0 * sigma + float(lam.max())
    for _ in range(80):
        tau = (low + high) / 2.0
        over = lam - tau
        mean = over * ndtr(over / sigma) + sigma * _density(over / sigma)
        low, high = (tau, high) if float(mean @ cells) > total else (low, tau)
    # Of y = noise - tau: lambda where y < -lambda, else |y|.
    cut = ndtr((tau - lam) / sigma)
    whole = 2.0 * sigma * _density(np.array([tau / sigma])) + tau * (2.0 * ndtr(tau / sigma) - 1.0)
    below = tau * cut + sigma * _density((tau - lam) / sigma)
    return float((lam * cut + whole - below) @ cells)


def _density(z: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi))
