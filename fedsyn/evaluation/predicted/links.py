"""What links two columns, by what was released: the association that noisy counts or a sketch saw, and the table's own.

A look (a noisy marginal, or a sketch) says how far the rows are from independent columns, without bias, in the squared
units of `effects`: R^2. The model's marginal, read through the same look, says how far the table is. A pair is seen to
be linked if the look is beyond noise, for all pairs together, and the association (sqrt(R^2 / (g - 1)), g the smaller
effective number of values) is no smaller than what `verdict` calls a link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri

from fedsyn.domain import Clique
from fedsyn.evaluation.predicted.effects import Effects, SketchError, independent, visible
from fedsyn.evaluation.verdict import CHANCE, LEAST_LINK, Judged, judged
from fedsyn.selection.views import ModelView, effective_cells
from fedsyn.table.counting.groups import Groups, group_of_cells
from fedsyn.table.schema import CategoricalColumn, Schema

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SeenLink:
    """Two columns that what was released links.

    Attributes:
        columns: of the pair.
        seen: the association of the rows, as noise shows it; 0 to 1.
        made: that of the table.
    """

    columns: Clique
    seen: float
    made: float

    def judged(self) -> Judged:
        """Return what became of the link."""
        kept = min(self.seen, self.made) / max(self.seen, self.made, 1e-12)
        why = f"association {self.seen:.2f} became {self.made:.2f}"
        return judged(" × ".join(self.columns), [("link", 1.0 - kept, why)])


@dataclass(frozen=True)
class SeenLinks:
    """What was seen of all pairs.

    Attributes:
        links: those that were seen to be linked.
        pairs: number of pairs.
        looked: pairs that were measured or sketched.
        least: the association that half of these would have shown; 1: none would have.
        arranged: unordered columns of four values or more that were looked at in groups of neighbouring values.
    """

    links: tuple[SeenLink, ...] = ()
    pairs: int = 0
    looked: int = 0
    least: float = 1.0
    arranged: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return what was not seen, as one clause; empty where there are no pairs."""
        rest = self.pairs - len(self.links)
        if not rest:
            return ""
        if not self.looked:
            return f"nothing was released of its {self.pairs:,} pairs of columns, so nobody knows what links them"
        which = f"the other {rest:,} pairs" if self.links else f"its {rest:,} pairs of columns"
        text = f"in {which} no link was seen, but one weaker than {self.least:.2f} would not be seen"
        if self.least >= 1.0:
            text = f"in {which} no link was seen, nor could any be: noise outweighs it"
        if self.looked < self.pairs:
            text += f", and {self.pairs - self.looked:,} were not looked at"
        return f"{text}, nor one that does not follow the listed order of values" if self.arranged else text


def seen_links(
    effects: Effects, sketches: Iterable[SketchError], pairs: Sequence[Clique], schema: Schema | None
) -> SeenLinks:
    """Return what was seen of some pairs.

    Args:
        effects: of the last model.
        sketches: of it.
        pairs: in domain order.
        schema: says which columns have an order; None: not known.
    """
    columns = {} if schema is None else schema.columns
    domain, rows = effects.domain, effects.rows
    sketched = {domain.canonical(g.clique): g for g in sketches if len(g.clique) == 2 and g.alone is not None}
    view, found = ModelView(effects.model), list[SeenLink]()  # type: ignore[arg-type]
    least, grouped, looked = list[float](), set[str](), 0
    for pair in pairs:
        effect, scale = effects[pair], max(min(effects.supports[name] for name in pair) - 1.0, 1e-9)
        groups: Groups | None = None
        if effect.precision > 0:
            cells = domain.size(pair)
            squared, off = effect.squared, math.sqrt(2.0 * cells) / effect.precision * effects.cells(pair) / rows**2
        elif pair in sketched:
            g = sketched[pair]
            groups, cells = g.groups if g.clique == pair else None, g.noises
            unit = g.support / (rows**2 * _visible(effects, pair, groups))
            squared, off = ((g.alone or 0.0) - g.rows) * unit, (g.spread + g.rows * math.sqrt(2.0 / cells)) * unit
        else:
            continue
        looked += 1
        if groups is not None:
            for column, name in ((columns.get(name), name) for name in pair):
                if isinstance(column, CategoricalColumn) and not column.ordered and domain[name] > 3:
                    grouped.add(name)
        beyond = off * (chdtri(cells, CHANCE / len(pairs)) - cells) / math.sqrt(2.0 * cells)
        least.append(min(1.0, math.sqrt(beyond / scale)))
        seen = math.sqrt(max(squared, 0.0) / scale)
        if squared <= beyond or seen < LEAST_LINK:
            continue
        (marginal,) = view.probabilities([pair])
        made = _apart(marginal, independent(effects.masses, pair), groups) / _visible(effects, pair, groups)
        found.append(SeenLink(pair, round(min(seen, 1.0), 3), round(min(math.sqrt(made / scale), 1.0), 3)))
    limit = max(LEAST_LINK, float(np.median(least))) if least else 1.0
    found.sort(key=lambda link: -link.judged().loss)
    return SeenLinks(
        tuple(found), len(pairs), looked, round(limit, 3), tuple(name for name in domain if name in grouped)
    )


def _visible(effects: Effects, pair: Clique, groups: Groups | None) -> float:
    """Share of an association that groups of values can show, in their order."""
    if groups is None:
        return 1.0
    return math.prod(visible(effects.masses[name], own) for name, own in zip(pair, groups, strict=True))


def _apart(marginal: Floats, alone: Floats, groups: Groups | None) -> float:
    """R^2 of a model's marginal, as a look through groups of values sees it."""
    off = np.asarray(marginal, np.float64).ravel() - alone
    if groups is not None:
        index, _ = group_of_cells(groups)
        off, alone = (np.bincount(index, own).astype(np.float64) for own in (off, alone))
    return float(off @ off) * float(effective_cells(alone))
