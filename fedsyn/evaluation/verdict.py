"""One verdict on what a table is fit for.

It follows from the losses of the columns and of the linked pairs.

Every loss is in units of what a person would call lost: 1 is `LOST`, at half of it a column has moved and a link is
weakened. Whoever finds the losses, from real rows or from released values alone, hands them to the same `Verdict`.

| what | lost beyond |
|---|---|
| a link of two columns | shrunk by more than half, or linked in another way |
| a correlation of two numbers | shrunk or grown so, beyond what chance does |
| the mean of a column | moved by more than 0.2 standard deviations of the real values |
| its standard deviation | multiplied or divided by more than 1.5 |
| the share of its most frequent value | moved by more than 10 points |
| its shares together | more than a fifth of the rows would have to change |
| values that are `other` | more than a fifth of the rows |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedsyn.table.schema import CategoricalColumn
from fedsyn.table.schema.columns import Column

#: The loss that is called lost, in its own unit.
LOST = {"link": 0.5, "mean": 0.2, "spread": math.log(1.5), "share": 0.1, "rows": 0.2, "other": 0.2}
#: A weaker association (Cramér's V) is no link, however many rows show it.
LEAST_LINK = 0.1
#: Chance of one false link among all pairs of a table.
CHANCE = 0.05

State = Literal["kept", "weakened", "lost"]


@dataclass(frozen=True)
class Judged:
    """A column, or a pair of columns.

    Attributes:
        name: such as "age" or "age × ward".
        loss: 1 is lost, 0.5 is weakened.
        why: what became of it, in words.
    """

    name: str
    loss: float
    why: str

    @property
    def state(self) -> State:
        """Word for the state."""
        return "kept" if self.loss <= 0.5 else "weakened" if self.loss <= 1.0 else "lost"


def judged(name: str, losses: Sequence[tuple[str, float, str]]) -> Judged:
    """Returns the worst of some losses.

    Each loss is (kind, amount in its own unit, words).

    >>> judged("cost", [("mean", 0.53, "mean 4,801 became 8,268"), ("rows", 0.1, "10% of the rows moved")])
    Judged(name='cost', loss=2.65, why='mean 4,801 became 8,268')
    """
    scaled = [(round(amount / LOST[kind], 4), why) for kind, amount, why in losses if math.isfinite(amount)]
    return Judged(name, *max(scaled, default=(0.0, "")))


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
    def of(cls, was: float, now: float, rows: int, synthetic_rows: int) -> Correlation | None:
        """Returns the finding from two correlations and row numbers.

        Returns None where the first correlation is below 0.1.
        """
        if not abs(was) >= LEAST_LINK:
            return None
        now = now if math.isfinite(now) else 0.0
        most = max(abs(was), abs(now))
        error = math.hypot((1.0 - was**2) / math.sqrt(rows), (1.0 - now**2) / math.sqrt(synthetic_rows)) / most
        return cls(round(was, 4), round(now, 4), round(min(1.0, was * now / most**2 + error), 4))


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
    (Judged(name='a × b', loss=0.36, why='association 0.30 became 0.26'), 'weakened')

    Args:
        name: of the pair.
        was, now: association of the rows and of the table.
        share: of the link that is in the table; of another shape, less than the associations say.
        doubt: by how much `share` may be off: a link is called neither kept nor lost that may be weakened.
        linear: of two columns of numbers.
    """
    shape = ", in another way" if now > 0.75 * was and share < 0.75 else ""
    gone = min(1.0, 1.0 - share)  # no more than all of it: of links that are gone, chance would name the worst
    losses = [("link", doubtful("link", gone, doubt), f"association {was:.2f} became {now:.2f}{shape}")]
    if linear is not None:
        losses.append(("link", 1.0 - linear.kept, f"correlation {linear.was:.2f} became {linear.now:.2f}"))
    return judged(name, losses)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on what a table is fit for.

    Attributes:
        columns: all of them.
        links: the pairs that something links.
        doubt: whether columns and links between kept and lost may be anything: noise leaves it open.
        unseen: what was not seen of the other pairs, as one clause; empty where all were seen.
        training: what a model learns from the table: how good, 1 as from real rows, and the words for it; None: `why`.
        why: why training cannot be judged.
        remedy: what would help most; empty where nothing is amiss.
    """

    columns: Sequence[Judged]
    links: Sequence[Judged]
    doubt: bool = False
    unseen: str = ""
    training: tuple[float, str] | None = None
    why: str = ""
    remedy: str = ""

    def uses(self) -> dict[str, bool | None]:
        """Returns people's uses of tables, and the fitness for each.

        None is a fitness that is not known.
        """
        columns, links, every = _lost(self.columns), _lost(self.links), len(self.links)
        whole = bool(self.links) and not self.unseen
        fitness: dict[str, bool | None] = {_counts(self.columns): 2 * columns <= len(self.columns)}
        intact = sum(one.state == "kept" for one in self.links)
        # With doubt a link that is not kept may be anything: half of them have to be kept.
        pairs, sure = "tables of two columns", intact if self.doubt else every - links
        if self.links and 2 * sure >= every and (sure < every or self.unseen):
            pairs += f" ({sure} of {every} linked pairs{' seen' if self.unseen else ''})"
        fitness[pairs] = None if not self.links else True if 2 * sure >= every else False if 2 * links > every else None
        few = 4 * intact < 3 * len(self.links)
        bad = links > 0 or columns > 0 or (few and not self.doubt)
        fitness["regression"] = False if bad else True if whole and not few else None
        fitness["training"] = None if self.training is None else self.training[0] >= 0.9
        return fitness

    def sentence(self) -> str:
        """Returns the verdict as one clause.

        What it is fit for, the facts, and what would help most.
        """
        uses = self.uses()
        good, bad, unknown = ([use for use, fit in uses.items() if fit is one] for one in (True, False, None))
        text = f"it is fit for {_listed(good)}" if good else "it is not fit for use"
        text += f", not for {_listed(bad, 'or')}" if good and bad else ""
        facts = [_columns(self.columns, self.doubt), _links(self.links, self.doubt), self.unseen]
        facts += [self.training[1]] if self.training else []
        if text_facts := "; ".join(filter(None, facts)):
            text += f": {text_facts}"
        if unknown and good:
            text += (
                f"; not known: {_listed([use if use != 'training' else f'training ({self.why})' for use in unknown])}"
            )
        return f"{text}; what would help most: {self.remedy}" if self.remedy else text


def folded(column: Column, share: Sequence[float] | Any) -> float:
    """Returns the share of rows in a column's `other`.

    It is 0 where `other` is one of several listed values.
    """
    if not isinstance(column, CategoricalColumn) or column.other_value is None:
        return 0.0
    if len(column.values) == len(column.categories) > 1:
        return 0.0
    return float(share[len(column.values) - 1])


def few(names: Sequence[str]) -> str:
    """Some names, of many the first."""
    return f"{', '.join(names[:3])} and {len(names) - 3} more" if len(names) > 4 else ", ".join(names)


def _lost(some: Sequence[Judged]) -> int:
    return sum(one.state == "lost" for one in some)


def _counts(columns: Sequence[Judged]) -> str:
    """Returns the use, and how many columns support it.

    The number is given where some are lost and most are not.
    """
    lost, use = _lost(columns), "counts of single columns"
    return use if not lost or 2 * lost > len(columns) else f"{use} ({len(columns) - lost} of {len(columns)})"


def _listed(names: Sequence[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _columns(columns: Sequence[Judged], doubt: bool) -> str:
    close, moved, lost = (sum(one.state == state for one in columns) for state in ("kept", "weakened", "lost"))
    if not moved and not lost:
        return ""
    worst = max(columns, key=lambda one: one.loss)
    text = f"columns: {close} close, {moved} moved{' or in doubt' if doubt else ''}, {lost} lost"
    return f"{text} (worst {worst.name}: {worst.why})"


def _links(links: Sequence[Judged], doubt: bool) -> str:
    if not links:
        return ""
    intact, weakened, lost = (sum(one.state == state for one in links) for state in ("kept", "weakened", "lost"))
    worst = max(links, key=lambda one: one.loss)
    text = f"linked pairs: {intact} kept, {weakened} weakened{' or in doubt' if doubt else ''}, {lost} lost"
    return text if worst.state == "kept" else f"{text} (worst {worst.name}: {worst.why})"
