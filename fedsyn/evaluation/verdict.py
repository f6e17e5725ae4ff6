"""One verdict on what a table is fit for.

It follows from the losses of the columns and of the linked pairs.

Every loss is in units of what a person would call lost: 1 is `LOST`, from half of it on a column or a link has
changed. Whoever finds the losses, from real rows or from released values alone, hands them to the same `Verdict`.

| what | lost beyond |
|---|---|
| a link of two columns | shrunk by more than half, or linked in another way |
| a correlation of two numbers | shrunk or grown so, beyond what chance does |
| the mean of a column | moved by more than 0.2 standard deviations of the real values |
| its standard deviation | multiplied or divided by more than 1.5, beyond what chance and one row do |
| its tails, beyond the middle 98% of the real rows | fewer than half of the rows, beyond what chance does |
| a tail of fewer than half a percent, a word that few rows share | never: it has changed |
| the share of a value that many rows share, or of missing | moved by more than 10 points |
| its shares together | more than a fifth of the rows fall into another group of values |
| values that are `other`, or in no real row | more than a fifth of the rows |
| rows that repeat others | four fifths more than of real rows; a sample with replacement has 1/e, under half of it |

A use needs nearly all of what it rests on (`NEEDED`) to be kept, and no foremost one to be lost: "changed"
is not kept. Of released values alone some is in doubt and some was not seen: a use is then called fit only where
doubt cannot make it unfit, and not fit only where doubt cannot make it fit; else it is not known. So real rows, which
leave no doubt, never judge more mildly than released values that are right about what they are sure of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedsyn.output import first_of, shortened
from fedsyn.table.schema import CategoricalColumn
from fedsyn.table.schema.columns import Column

#: The loss that is called lost, in its own unit.
LOST = {
    **{"link": 0.5, "mean": 0.2, "spread": math.log(1.5), "tail": 0.5, "share": 0.1, "rows": 0.2, "other": 0.2},
    "repeats": 0.8,
}
#: A weaker association (Cramér's V) is no link, however many rows show it.
LEAST_LINK = 0.1
#: Chance of one false link among all pairs of a table.
CHANCE = 0.05
#: Share of its columns or linked pairs that a use needs kept: of nine or fewer all, of ten to nineteen all but one.
NEEDED = 0.9
#: Characters of one sentence of a verdict: two lines of a terminal.
LONGEST = 160
_LONGEST_NAME = 30  # of a pair among others

State = Literal["kept", "changed", "lost"]


@dataclass(frozen=True)
class Judged:
    """A column, or a pair of columns.

    Attributes:
        name: such as "age" or "age × ward".
        loss: 1 is lost, 0.5 is changed.
        why: what became of it, in words.
    """

    name: str
    loss: float
    why: str

    @property
    def state(self) -> State:
        """Word for the state."""
        return "kept" if self.loss <= 0.5 else "changed" if self.loss <= 1.0 else "lost"

    @property
    def became(self) -> str:
        """Predicate that says the state."""
        return "has changed" if self.state == "changed" else f"is {self.state}"


def judged(name: str, losses: Sequence[tuple[str, float, str]]) -> Judged:
    """Returns the worst of some losses, of equal ones the first.

    Each loss is (kind, amount in its own unit, words).

    >>> judged("cost", [("mean", 0.53, "mean 4,801 became 8,268"), ("rows", 0.1, "10% of the rows moved")])
    Judged(name='cost', loss=2.65, why='mean 4,801 became 8,268')
    """
    scaled = [(round(amount / LOST[kind], 4), why) for kind, amount, why in losses if math.isfinite(amount)]
    return Judged(name, *max(scaled, key=lambda loss: loss[0], default=(0.0, "")))


@dataclass(frozen=True)
class Correlation:
    """Change of Pearson's correlation of two columns of numbers.

    Regressions rest on it, and outliers shrink it.

    Attributes:
        was, now: of the rows and of the table.
        kept: the smaller over the larger, negative where the sign turned, and a standard error more: up to there
            chance may have moved it (experiments/verdicts, the tuning side).
    """

    was: float
    now: float
    kept: float

    @classmethod
    def of(cls, was: float, now: float, error: float) -> Correlation | None:
        """Returns the finding from two correlations.

        `error` is the standard error of their difference. Returns None where the first one is below 0.1.
        """
        if not abs(was) >= LEAST_LINK:
            return None
        now = now if math.isfinite(now) else 0.0
        most = max(abs(was), abs(now))
        kept = was * now / most**2 + (error / most if math.isfinite(error) else 0.0)
        return cls(round(was, 4), round(now, 4), round(min(1.0, kept), 4))


def doubtful(kind: str, amount: float, doubt: float) -> float:
    """Returns a loss, moved by its doubt towards the undecided.

    Doubt alone makes it neither none nor a whole one.
    """
    return min(max(0.75 * LOST[kind], amount - doubt), amount + doubt)


def judged_link(
    name: str, was: float, now: float, share: float, doubt: float = 0.0, linear: Correlation | None = None
) -> Judged:
    """Returns what became of a link.

    The worse of its association and its correlation counts.

    >>> judged_link("a × b", 0.3, 0.26, 0.82), judged_link("a × b", 0.3, 0.26, 0.82, doubt=0.1).state
    (Judged(name='a × b', loss=0.36, why='association 0.30 became 0.26'), 'changed')

    Args:
        name: of the pair.
        was, now: association of the rows and of the table.
        share: of the link that is in the table; of another shape, less than the associations say.
        doubt: by how much `share` may be off: a link is called neither kept nor lost that may be changed.
        linear: of two columns of numbers.
    """
    shape = ", between other values" if now > 0.75 * was and share < 0.75 else ""
    gone = min(1.0, 1.0 - share)  # no more than all of it: of links that are gone, chance would name the worst
    losses = [("link", doubtful("link", gone, doubt), f"association {was:.2f} became {now:.2f}{shape}")]
    if linear is not None:
        losses.append(("link", 1.0 - linear.kept, f"correlation {linear.was:.2f} became {linear.now:.2f}"))
    return judged(name, losses)


@dataclass(frozen=True)
class Use:
    """A use that people make of tables, and the fitness for it.

    Attributes:
        name: such as "regression".
        fit: whether the table is fit for it; None: not known.
        kept, of: what it needs, and how much of it is kept; 0 of 0 where nothing was counted.
        why: the ground in one short clause; empty where all is kept.
        what: counted things, such as "linked pairs".
    """

    name: str
    fit: bool | None
    kept: int = 0
    of: int = 0
    why: str = ""
    what: str = ""

    @property
    def counted(self) -> str:
        """Words such as "15 of 51 linked pairs kept".

        Empty where nothing was counted.
        """
        return f"{self.kept:,} of {self.of:,} {self.what} kept" if self.of else ""


@dataclass(frozen=True)
class OfPersons:
    """Whole persons, where a table has several rows of each.

    Attributes:
        people: number of rows, own columns, whether they are the same in all rows, links of these.
        steps: links of a row and the next one.
        facts: aggregates of a person's rows, such as the mean.
        foremost: those of `people` that make a person: none may be lost.
        hidden: of links of people, and of steps: how many others may be there without having been seen.
        unseen: of both, what was not seen, as one clause.
    """

    people: Sequence[Judged]
    steps: Sequence[Judged] = ()
    facts: Sequence[Judged] = ()
    foremost: Sequence[Judged] = ()
    hidden: tuple[int, int] = (0, 0)
    unseen: tuple[str, str] = ("", "")

    @property
    def every(self) -> tuple[Judged, ...]:
        """All of it."""
        return *self.people, *self.steps, *self.facts


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on what a table is fit for.

    Attributes:
        columns: all of them.
        links: the pairs that something links.
        foremost: those of them that matter most: the strongest link, and the label's. None may be lost.
        questions: regressions that somebody named. None may be lost where one regresses.
        rows: what became of the rows as a whole. No use may lose them.
        persons: of a table that has several rows of one person; None: each row stands for itself.
        doubt: whether columns and links between kept and lost may be anything: noise leaves it open.
        hidden: how many other pairs may be linked without having been seen.
        unseen: what was not seen, as one clause; empty where all was.
        sure: pairs that are kept, and both of their columns, whatever became of the others; the strongest first.
        training: what a model learns from the table: how good, 1 as from real rows, and the words for it; None: `why`.
        why: why training cannot be judged.
        next: what to do next, as one clause; empty where nothing is amiss.
    """

    columns: Sequence[Judged]
    links: Sequence[Judged]
    foremost: Sequence[Judged] = ()
    questions: Sequence[Judged] = ()
    rows: Sequence[Judged] = ()
    persons: OfPersons | None = None
    doubt: bool = False
    hidden: int = 0
    unseen: str = ""
    sure: Sequence[str] = ()
    training: tuple[float, str] | None = None
    why: str = ""
    next: str = ""

    def uses(self) -> tuple[Use, ...]:
        """Returns people's uses of tables, and the fitness for each."""
        counts = self._needing("counts of single columns", "columns", self.columns, unseen=self.unseen)
        pairs = self._needing("tables of two columns", "linked pairs", self.links, self.hidden, self.unseen)
        # A regression rests on columns and links together, and one that is lost turns its coefficients.
        lost = worst([one for one in self._of_rows if one.state == "lost"], self._first)
        fits = (counts.fit, pairs.fit)
        fit = False if lost or False in fits else None if None in fits else True
        ground = pairs if pairs.fit is not True or counts.fit is True else counts
        regression = replace(ground, name="regression", fit=fit, why=_named(lost) if lost else ground.why)
        learned = None if self.training is None else self.training[0] >= NEEDED
        training = Use("training", learned, why=self.why if self.training is None else self.training[1])
        return counts, pairs, regression, training, *self._of_persons()

    def _of_persons(self) -> tuple[Use, ...]:
        """Returns the uses of whole persons."""
        if (of := self.persons) is None:
            return ()
        unseen = of.unseen[1] or "no row says anything of the next one beyond chance"
        people = self._needing("counts of people", "facts of people", of.people, of.hidden[0], of.unseen[0])
        steps = self._needing("next rows", "linked steps", of.steps, of.hidden[1], unseen)
        return people, steps, *([self._needing("aggregates of people", "aggregates", of.facts)] if of.facts else ())

    def told(self) -> tuple[Use, ...]:
        """Returns the uses as they are said.

        Where nobody knows of tables of two columns in general, those are named that are known to be kept.
        """
        counts, pairs, *others = self.uses()
        if pairs.fit is not None or not self.sure:
            return counts, pairs, *others
        tables = "table" if len(self.sure) == 1 else "tables"
        named = first_of([shortened(name, _LONGEST_NAME) for name in self.sure], 2)
        return counts, Use(f"the {tables} of {named}", True), replace(pairs, name=f"other {pairs.name}"), *others

    @property
    def _first(self) -> tuple[Judged, ...]:
        """Columns, links, persons and rows whose loss is said first."""
        return *self.foremost, *self.questions, *self.rows, *(self.persons.foremost if self.persons else ())

    @property
    def _of_rows(self) -> tuple[Judged, ...]:
        return *self.columns, *self.links, *self.questions, *self.rows

    @property
    def _every(self) -> tuple[Judged, ...]:
        return *self._of_rows, *(self.persons.every if self.persons else ())

    def _needing(self, name: str, what: str, some: Sequence[Judged], hidden: int = 0, unseen: str = "") -> Use:
        """Returns a use that needs nearly all of something kept.

        `hidden` others may be there: `unseen` says why nobody saw them.
        """
        kept, lost = (sum(one.state == state for one in some) for state in ("kept", "lost"))
        # Whatever is in doubt or hidden may be kept, and may be lost.
        most = len(some) + hidden - (lost if self.doubt else len(some) - kept)
        first = [one.state for one in self._first if one in some or one in self.rows]
        fit: bool | None = None
        if some and ("lost" in first or most < NEEDED * (len(some) + hidden)):
            fit = False
        elif some and kept >= NEEDED * len(some) and not hidden and (not self.doubt or {*first} <= {"kept"}):
            fit = True
        amiss = worst([one for one in (*some, *self.rows) if one.state != "kept"], self._first)
        if fit is None:
            why = unseen if hidden or not some else f"{len(some) - kept - lost} in doubt"
        else:
            why = _named(amiss) if amiss else ""
        return Use(name, fit, kept, len(some), why, what)

    def good(self) -> tuple[Use, ...]:
        """Returns the uses that the table is fit for."""
        return tuple(use for use in self.told() if use.fit is True)

    def bad(self) -> tuple[Use, ...]:
        """Returns the uses that it is not fit for."""
        return tuple(use for use in self.told() if use.fit is False)

    def unknown(self) -> tuple[Use, ...]:
        """Returns the uses of which nobody knows."""
        return tuple(use for use in self.told() if use.fit is None)

    def sentences(self) -> tuple[str, ...]:
        """Returns at most four short sentences.

        Good for, not good for, not known, next. The loss of a foremost link is said first.
        """
        good, bad, unknown = self.good(), self.bad(), self.unknown()
        said = [_fitting([f"Good for {_listed(good, counts=counts)}" for counts in (True, False)])] if good else []
        if bad:
            first = worst([one for one in self._first if one.state == "lost"])
            needed = [one for one in self._needed(bad) if one.state != "kept"] if bad[0].of else []
            noun = "" if first is None else "The regression" if first in self.questions else "The link"
            noun = "The" if first in self.rows or (self.persons and first in self.persons.foremost) else noun
            said.insert(0 if first else len(said), _refused(bad, first or worst(needed), noun))
        if unknown:
            whys = {use.name: use.why for use in unknown if use.name != "regression"}
            some = {name: why for name, why in whys.items() if why != self.unseen}
            texts = [_listed(unknown, whys=told) for told in (whys, some, {})] + [_listed(unknown, counts=False)]
            said.append(_fitting([f"Not known: {text}" for text in texts]))
        return (*said, _fitting([f"Next: {self.next}"])) if self.next else tuple(said)

    def _needed(self, uses: Sequence[Use]) -> tuple[Judged, ...]:
        """Returns what some uses rest on."""
        of_persons = {use.name for use in self._of_persons()}
        if self.persons is None or not of_persons & {use.name for use in uses}:
            return self._of_rows
        return self.persons.every if of_persons >= {use.name for use in uses} else self._every

    def sentence(self) -> str:
        """Returns all sentences, without the last full stop."""
        return " ".join(self.sentences()).removesuffix(".")


def foremost(pairs: Sequence[tuple[str, ...]], associations: Sequence[float], label: str | None) -> list[int]:
    """Returns which links matter most.

    They are the strongest, and the label's that are half as strong as its strongest: to lose such a link is to lose
    as much as is called lost of the strongest.

    >>> foremost([("a", "b"), ("a", "y"), ("b", "y"), ("c", "y")], [0.9, 0.2, 0.6, 0.4], "y")
    [0, 2, 3]
    """
    strongest = max(range(len(pairs)), key=associations.__getitem__, default=None)
    of_label = [at for at, pair in enumerate(pairs) if label in pair]
    least = (1.0 - LOST["link"]) * max((associations[at] for at in of_label), default=0.0)
    return [at for at in range(len(pairs)) if at == strongest or (at in of_label and associations[at] >= least)]


def worst(some: Sequence[Judged], foremost: Sequence[Judged] = ()) -> Judged | None:
    """Returns what lost most, a lost foremost one before all others.

    Returns None of none.
    """
    return max(some, key=lambda one: (one.state == "lost" and one in foremost, one.loss), default=None)


def folded(column: Column, share: Sequence[float] | Any) -> float:
    """Returns the share of rows in a column's `other`.

    It is 0 where `other` is one of several listed values.
    """
    if not isinstance(column, CategoricalColumn) or column.other_value is None:
        return 0.0
    if len(column.values) == len(column.categories) > 1:
        return 0.0
    return float(share[len(column.values) - 1])


def _named(one: Judged) -> str:
    return f"{one.name} {one.became} ({one.why})"


def _listed(uses: Sequence[Use], last: str = "and", counts: bool = True, whys: Mapping[str, str] | None = None) -> str:
    """Returns uses in a row, each with its number and ground.

    A regression has no number of its own.
    """
    parts = []
    for use in uses:
        number = use.counted if counts and use.name != "regression" else ""
        details = ", ".join(filter(None, (number, (whys or {}).get(use.name, ""))))
        parts.append(f"{use.name} ({details})" if details else use.name)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def _refused(bad: Sequence[Use], amiss: Judged | None, first: str) -> str:
    """Returns the sentence on what the table is not fit for.

    `first` is what `amiss` is, if it is foremost, lost, and said before everything else; else it is empty.
    """
    uses = [f"Not good for {_listed(bad, 'or', counts)}" for counts in (True, False)]
    uses += [f"Not good for {bad[0].name} and {len(bad) - 1} other uses"] * (len(bad) > 3)
    if amiss is None:  # of training alone
        why = bad[0].why
        return _fitting([f"{uses[0]}. {why[:1].upper()}{why[1:]}", uses[0]])
    short = shortened(amiss.name, 60)
    if first:
        whys = (f" ({amiss.why})", "")
        return _fitting([f"{first} {short} is lost{why}. {use}" for why in whys for use in uses])
    return _fitting([f"{use}. Worst is {short}{why}" for use in uses for why in (f" ({amiss.why})", "")])


def _fitting(texts: Sequence[str]) -> str:
    """Returns the first text that is short enough, as a sentence.

    Else the last one is cut.
    """
    short = next((text for text in texts if len(text) < LONGEST), None)
    return f"{texts[-1][: LONGEST - 1]}…" if short is None else f"{short}."
