"""Links of two columns, by what was released.

The association that noisy counts or a sketch saw, and the table's own.

Associations are what a pair has beyond independence, r in the rows and s in the table, in units of chance and in the
groups of values of `real.scores`: |r|^2 / (g - 1) is Cramer's V^2. What is kept of a link is <r, s> / max(|r|^2, |s|^2)
there and here, so the shape counts. s is known; r is known up to noise:

- **Measured.** The noisy counts y are r plus noise that the model was fitted to as well, so <y, s> is too large. Given
  y, and a relative error that is as large in every cell on average, r is normal; that error's square is what y makes
  likely. Mean and variance of r, and s, give what is kept, and by how much that may be off.
- **Sketched.** |r - s|^2 is shrunk by all sketches together, as the planner does: what looks strongest has most of its
  noise. That share of it is what <r - s, s> has beside noise, half of |r|^2 - |r - s|^2 - |s|^2.

Groups of values that a look saw together show a part of r, as of normal scores in their order (`visible`). Of two
columns with an order the rest is what scores that are linked as much as was seen have there (`_Scores`): of a strong
link much lies inside groups, where the table has nothing. Of other pairs what is kept is that of what groups show.

Of two columns of numbers a correlation is kept as well, at most: by both standard deviations in the rows over those in
the table (`SeenMoments`), or the other way round: noise that a fit leaves on far values widens a column and links
nothing.

Of records of persons a measured pair is looked at among the people who have both values (`among`).

A pair is seen to be linked if the look is beyond noise, for all pairs together, or if a stated rule links it
(`stated_length`), and the association is no weaker than what `verdict` calls a link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Flags
from fedsyn.evaluation.predicted.among import Among, values_there
from fedsyn.evaluation.predicted.effects import Effects, SketchError
from fedsyn.evaluation.predicted.limits import Contrasts, limit, most_said
from fedsyn.evaluation.predicted.looks import Measured, Scores, Sketched, Units, shown_share, stated_length
from fedsyn.evaluation.predicted.moments import SeenMoments
from fedsyn.evaluation.record import percent
from fedsyn.evaluation.scores import few_groups, places
from fedsyn.evaluation.verdict import CHANCE, LEAST_LINK, LOST, Judged, judged_link
from fedsyn.selection.planning import shrunk
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.sums import Groups
from fedsyn.table.schema import CategoricalColumn, Schema
from fedsyn.table.schema.rules import Nested

Floats = npt.NDArray[np.float64]
#: A link is called kept or lost if it is so by this many standard deviations: experiments/verdicts, the tuning side.
LINK_DOUBT = 1.5


@dataclass(frozen=True)
class SeenLink:
    """Two columns that what was released links.

    Attributes:
        columns: of the pair.
        seen: the association of the rows, as noise shows it; 0 to 1.
        made: that of the table.
        kept: share of the link, or of a correlation, that is in the table: whichever is judged worse.
        spread: its standard deviation, by noise.
        widths: whether `kept` is of a correlation, by what the spread of its columns became.
        ruled: whether a stated rule links the columns. It holds in every row, of the table too, so no noise makes the
            link lost.
    """

    columns: Clique
    seen: float
    made: float
    kept: float
    spread: float
    widths: bool = False
    ruled: bool = False

    def judged(self) -> Judged:
        """Returns what became of the link."""
        name, kept = " × ".join(self.columns), max(self.kept, 1.0 - LOST["link"]) if self.ruled else self.kept
        judgement = judged_link(name, self.seen, self.made, kept, LINK_DOUBT * self.spread)
        if self.ruled:
            return replace(judgement, why="a stated rule links them in every row; noise hides how much else does")
        if not self.widths:
            return judgement
        return replace(
            judgement, why=f"about {percent(self.kept)} of the correlation is kept at most, by the columns' spread"
        )


@dataclass(frozen=True)
class SeenLinks:
    """Looks at all pairs.

    Attributes:
        links: those that were seen to be linked.
        pairs: number of pairs.
        looked: pairs that were measured or sketched.
        unlinked: pairs of which it is known that hardly anything links them.
        least: association from which on nine of ten links of theirs would have been seen; 1: there is no such pair.
        joined: unordered columns some of whose values were looked at together.
        orderless: those of them, of more than two values, that nothing released has put in an order.
    """

    links: tuple[SeenLink, ...] = ()
    pairs: int = 0
    looked: int = 0
    unlinked: int = 0
    least: float = 1.0
    joined: tuple[str, ...] = ()
    orderless: tuple[str, ...] = ()

    @property
    def unknown(self) -> int:
        """Pairs of which nothing can be said."""
        return self.pairs - len(self.links) - self.unlinked

    @property
    def hidden(self) -> int:
        """Returns how many pairs may be linked without having been seen.

        The unlinked ones count, too, unless their limit is what the verdict calls a link, to as many digits as it says.
        """
        return self.unknown + (self.unlinked if round(self.least, 1) > LEAST_LINK else 0)

    def hiding(self) -> str:
        """Returns what hides links, in a few words."""
        if not self.hidden:
            return ""
        why = "noise may hide" if self.looked else "nothing released shows"
        return f"{why} links in {f'{self.hidden:,} of ' * (self.hidden < self.pairs)}{_pairs(self.pairs, '')}"

    def sentence(self) -> str:
        """Returns what is known of the other pairs, without a full stop.

        It is empty where all pairs were seen to be linked.
        """
        said, other = list[str](), self.other
        if self.unlinked:
            least = math.ceil(100.0 * self.least) / 100.0
            where = _pairs(self.unlinked, other)
            said.append(
                f"no link was seen in {where}; nine of ten with an association above {least:.2f} would have been"
            )
            other = "other "
        if self.unknown:
            where, missed = _pairs(self.unknown, other), self.pairs - self.looked
            some = f" ({missed:,} of them not looked at)" if 0 < missed < self.unknown else ""
            hides = "nothing can be said" if missed else "the noise was too strong to say anything"
            said.append(f"{hides if self.looked else 'nothing was released'} about links in {where}{some}")
        return ". ".join([*said[:1], *(f"{one[0].upper()}{one[1:]}" for one in said[1:])])

    @property
    def other(self) -> str:
        """The word for pairs beside those that were seen to be linked."""
        return "other " if self.links else ""


def _pairs(count: int, other: str) -> str:
    return f"the {other}pair" if count == 1 else f"{count:,} {other}pairs"


@dataclass(frozen=True)
class Look:
    """One look at a pair.

    Attributes:
        columns: of the pair.
        link: what it showed; None: nothing beyond chance, or less than is called a link.
        limit: the weakest association that nine of ten such looks show; infinite: none.
        groups: of both columns' values, in which it was taken; None: single values.
    """

    columns: Clique
    link: SeenLink | None
    limit: float
    groups: Groups | None


def seen_links(
    effects: Effects,
    sketches: Iterable[SketchError],
    pairs: Sequence[Clique],
    schema: Schema | None,
    moments: Mapping[str, SeenMoments],
) -> SeenLinks:
    """Returns what was seen of some pairs.

    Args:
        effects: of the last model.
        sketches: of it.
        pairs: in domain order.
        schema: says which columns have an order; None: not known but of bins.
        moments: of columns of numbers.
    """
    domain, sketches = effects.domain, list(sketches)
    taken = list(looks(effects, sketches, pairs, schema, moments))
    links = sorted((look.link for look in taken if look.link is not None), key=lambda link: -link.judged().loss)
    unlinked, least = most_said([look.limit for look in taken if look.link is None])
    grouped = {name for look in taken for name in _joined(look.columns, look.groups, schema)}
    joined = tuple(name for name in domain if name in grouped)
    scored = frozenset[str]().union(*(g.scored for g in sketches if len(g.clique) == 2))
    columns = {} if schema is None else schema.columns
    orderless = tuple(n for n in joined if n not in scored and len(getattr(columns[n], "categories", ())) > 2)
    return SeenLinks(tuple(links), len(pairs), len(taken), unlinked, round(least, 3), joined, orderless)


def looks(
    effects: Effects,
    sketches: Sequence[SketchError],
    pairs: Sequence[Clique],
    schema: Schema | None,
    moments: Mapping[str, SeenMoments],
) -> Iterator[Look]:
    """Yields the look at each pair that was measured or sketched.

    The arguments are those of `seen_links`.
    """
    domain = effects.domain
    orders = {name: _order(effects, name, schema) for name in domain}
    few = {name: _few(effects, name, at) for name, at in orders.items()}
    contrasts = {name: Contrasts.of(effects.masses[name], orders[name], few[name]) for name in domain}
    # The released sketches of pairs, with their distances shrunk together.
    sketched = {domain.canonical(g.clique): g for g in sketches if len(g.clique) == 2 and g.alone is not None}
    off = [np.array([getattr(g, name) for g in sketched.values()]) for name in ("squared", "spread")]
    apart = dict(zip(sketched, shrunk(off[0], off[1]).tolist(), strict=True))
    view, chance = ModelView(effects.model), CHANCE / max(1, len(pairs))  # type: ignore[arg-type]
    there = values_there(schema)
    silent = there.keys() & {*schema.rows.columns} if schema is not None and there else frozenset[str]()
    for pair in pairs:
        first, second = pair
        groups: Groups = (few[first], few[second])
        at, sides = (orders[first], orders[second]), (contrasts[first], contrasts[second])
        # Columns that say who has no row are looked at among the people who have both values, where they were measured.
        # A sketch of such a column of the row itself shows who has rows, so nothing is said of it.
        known: Effects | Among = effects
        if not there.keys().isdisjoint(pair):
            among = _among(effects, pair, there, view)
            if among is not None:
                known = among
                groups, at, sides = _sides(among, pair, at)
            elif not silent.isdisjoint(pair):
                continue
        look = _look(known, pair, groups, sketched, apart)
        if look is None:
            continue
        most, shown = max(1.0, float(min(map(max, groups)))), shown_share(known, pair, look.groups, groups)
        least = limit(sides, look.lengths(sides, chance, shown, most), most)
        # The association of the rows, where it is beyond chance and noise.
        squared = min(most, max(0.0, look.squared) / shown) if look.is_beyond(chance) else 0.0
        link, stated = None, stated_length(known, pair, groups)
        if max(squared, stated) >= most * LEAST_LINK**2:
            cells = known.shares.ravel() if isinstance(known, Among) else next(iter(view.each([pair])))
            link = _worse(_link(known, pair, look, groups, at, cells, shown, stated), moments)
            link = replace(link, ruled=_is_ruled(pair, known, schema))
            link = None if math.isclose(link.seen, 0.0) else link  # normal scores left nothing of it
        yield Look(pair, link, least, look.groups)


def _among(effects: Effects, pair: Clique, there: Mapping[str, Flags], view: ModelView) -> Among | None:
    """Returns a measured pair's people with both values."""
    if not effects.is_measured(pair):
        return None
    one, other = (there.get(name, np.ones(effects.domain[name], bool)) for name in pair)
    return Among.of(effects, pair, (one, other), next(iter(view.each([pair]))))


def _sides(
    among: Among, pair: Clique, at: tuple[Floats | None, Floats | None]
) -> tuple[Groups, tuple[Floats | None, Floats | None], tuple[Contrasts, Contrasts]]:
    """Returns few groups, places and contrasts of the values that are there."""
    first, second = (None if place is None else place[there] for place, there in zip(at, among.there, strict=True))
    least, masses = 1.0 / math.sqrt(max(1.0, among.rows)), [among.masses[name] for name in pair]
    one, other = (few_groups(mass, place, least) for mass, place in zip(masses, (first, second), strict=True))
    contrasts = Contrasts.of(masses[0], first, one), Contrasts.of(masses[1], second, other)
    return (one, other), (first, second), contrasts


def _link(
    effects: Effects | Among,
    pair: Clique,
    look: Measured | Sketched,
    few: Groups,
    at: tuple[Floats | None, Floats | None],
    cells: npt.NDArray[np.floating],
    shown: float,
    stated: float,
) -> SeenLink:
    """Returns a link with both associations and its kept share.

    Rows and table have what rules make of it, and of the rest as much as the look says.

    Args:
        effects: of the last model, or of a part of the people.
        pair: of columns.
        look: at it.
        few: groups of both columns' values.
        at: their places.
        cells: the table's marginal.
        shown: share of an association that the look shows.
        stated: |r|^2 that stated rules make by themselves.
    """
    most = max(1.0, float(min(map(max, few))))
    squared, (share, spread) = min(most, max(0.0, look.squared) / shown), look.kept(cells, most)
    table_squared = float((Units.of(effects.masses, pair, few).of_cells(cells) ** 2).sum())
    first, second = at
    # Two ordered columns seen in coarse groups: normal scores fill in what the groups hide.
    if look.groups is not None and first is not None and second is not None and 1.0 - share < LOST["link"]:
        scores = Scores(effects.masses, pair, (first, second), look.groups, few)
        squared, shown, left = scores.whole(look.squared, cells)
        squared = min(most, squared)
        share = max(share * left, 1.0 - LOST["link"])  # scores need not be normal: they lose no link
    spread = math.hypot(spread, (1.0 - shown) / math.sqrt(12.0))  # of what no group showed, anything may be kept
    squared = min(most, max(squared, stated))
    if stated:  # so much is kept by rules alone; of the rest, all or nothing may be
        ruled = min(1.0, stated / max(squared, table_squared))
        share, spread = max(share, ruled), min(spread, (1.0 - ruled) / math.sqrt(12.0))
    seen, now = math.sqrt(squared / most), min(1.0, math.sqrt(table_squared / most))
    return SeenLink(pair, round(seen, 3), round(now, 3), round(share, 3), round(spread, 3))


def _is_ruled(pair: Clique, effects: Effects | Among, schema: Schema | None) -> bool:
    """Returns whether a stated rule links two columns."""
    nested = (rule.nested for rule in (() if schema is None else schema.constraints) if isinstance(rule, Nested))
    return effects.impossible_in(pair) is not None or any(set(pair) <= set(names) for names in nested)


def _look(
    effects: Effects | Among,
    pair: Clique,
    few: Groups,
    sketched: Mapping[Clique, SketchError],
    apart: Mapping[Clique, float],
) -> Measured | Sketched | None:
    """Returns the counts of a pair, or else its sketch.

    None where nobody looked at the pair.
    """
    if isinstance(effects, Among) or effects.is_measured(pair):
        return Measured(effects, pair, few)
    return Sketched(effects, pair, sketched[pair], apart[pair]) if pair in sketched else None


def _worse(link: SeenLink, moments: Mapping[str, SeenMoments]) -> SeenLink:
    """Returns the link, or the correlation if it is worse.

    Only two columns of numbers have a correlation.
    """
    if not moments.keys() >= set(link.columns):
        return link
    share, spread = _at_most(*(moments[name] for name in link.columns))
    linear = replace(link, kept=round(share, 3), spread=round(spread, 3), widths=True)
    return max(link, linear, key=lambda one: one.judged().loss)


def _joined(pair: Clique, groups: Groups | None, schema: Schema | None) -> Iterator[str]:
    """Returns unordered columns of a pair with joined values.

    Some of their values were looked at together.
    """
    if groups is None or schema is None:
        return
    for name, grouping in zip(pair, groups, strict=True):
        column = schema.columns[name]
        if isinstance(column, CategoricalColumn) and not column.ordered and grouping.max() + 1 < len(grouping):
            yield name


def _order(effects: Effects, name: str, schema: Schema | None) -> Floats | None:
    """Returns each value's place on its axis, (size,).

    NaN for one without a place; None for a column without order.
    """
    if schema is not None:
        return places(schema, name)
    ordered = effects.domain.ordered.get(name, 0)
    at = np.arange(effects.domain[name], dtype=np.float64)
    return np.where(at < ordered, at, np.nan) if ordered else None


def _few(effects: Effects, name: str, at: Floats | None) -> npt.NDArray[np.int64]:
    """Returns the few groups of a column's values, (size,).

    Rows and table are compared in these groups.
    """
    return few_groups(effects.masses[name], at, 1.0 / math.sqrt(max(1.0, effects.rows)))


def _at_most(first: SeenMoments, second: SeenMoments) -> tuple[float, float]:
    """Returns the largest share of a correlation that is kept.

    Returns the share's standard deviation beside it.
    """
    ratio = math.sqrt(first.variance * second.variance)
    off = math.hypot(first.spread_doubt, second.spread_doubt)
    ratio = min(ratio, 1.0 / ratio)
    return ratio, ratio * off
