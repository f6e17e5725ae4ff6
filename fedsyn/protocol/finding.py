"""The client's side of finding an open schema's private values.

It answers sums of counts for ranges, bins and categories, and takes over what came out of them.

Before the schema is closed a client answers these requests and none of its mechanism's; afterwards the reverse. What it
may be asked follows from its own schema and configuration alone (`fedsyn.private_bins.private_columns`): it refuses
anything else, anything twice or out of order, a prefix that begins with none of those that it was asked about before,
and more than `privacy.schema_share` of the budget.

Why a server gains nothing by telling a client of other pieces than it released: the pieces fix a public schema, and
every mechanism is private under any public schema, chosen however the server likes. They are public knowledge to the
mechanism, as bounds in a file would be; a category that was made up is a question with noise on its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, ValidationInfo

from fedsyn.aggregation import Contribution
from fedsyn.config import RunConfig
from fedsyn.errors import ProtocolError, SchemaError, refuse
from fedsyn.privacy import GAUSSIAN, Release
from fedsyn.privacy.budget import require_budget
from fedsyn.privacy.release import COUNTS
from fedsyn.private_bins.prefixes import FOLLOWED, SYMBOLS, level_counts
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.private_bins.ranges import MOST_CELLS, histogram, tree
from fedsyn.protocol.client import Answer, Join, RowTotal, Sizes, TableClient, answers, shared_contract
from fedsyn.protocol.common import beside
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.plan import Step
from fedsyn.table.schema.encoding import OwnRows
from fedsyn.wire.envelope import Arrays, Envelope
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.requests import AskRequest, Layout, Request, SumRequest

#: Of the holder's state: what it was asked of its open columns, the prefixes that it was asked about last, and what was
#: found.
ASKED, BEFORE, FOUND = "find_asked", "find_followed", "found"
# Shares of the noise are sized with room for rounding.
_ROOM = 1.0 + 1e-6


def finding_of(contract: Contract) -> PrivateColumns:
    """Returns what the contract's schema leaves to be found.

    It raises ProtocolError if that is nothing.
    """
    if contract.finding is None:
        raise ProtocolError("nothing of this schema is private: there is nothing to find")
    return contract.finding


def _checked(check: str) -> AfterValidator:
    """Returns a check of `PrivateColumns`, made where a contract is at hand."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        if info.context is not None:
            getattr(finding_of(info.context), check)(value)
        return value

    return AfterValidator(validate)


_Count = Annotated[int, Field(ge=0)]
_CELLS = "of each ordered column, cells of a grid for each bucket of its public universe"
AllottedCells = Annotated[list[list[_Count]], _checked("check_cells"), Field(description=_CELLS)]
_PREFIXES = "of each column of categories, prefixes of one length, in hexadecimal digits"
Prefixes = Annotated[list[list[str]], _checked("check_prefixes"), Field(description=_PREFIXES)]
_CUTS = "of each ordered column, edges of its grid"
Cuts = Annotated[list[list[_Count]], Field(description=_CUTS)]
_ATOMS = "of each ordered column, cells of its grid that hold one value, which many rows share"
Atoms = Annotated[list[list[_Count]], Field(description=_ATOMS)]
_CATEGORIES = "of each column of categories, those that were found"
Categories = Annotated[list[list[str]], _checked("check_categories"), Field(description=_CATEGORIES)]


class FindRanges(SumRequest):
    """Rows of open ordered columns by sign and power of two.

    They are counted between what is public of a column's bounds.
    """

    name = "find-ranges"
    takes_part = False
    leaves = "counts of c open columns over a public universe, in a sum; once"
    costs = "c vectors of sensitivity 1 (a row is in one bucket of each): rho c/(2 sigma^2), mu^2 twice that"

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns one vector of counts for each column.

        A row adds 1 to one bucket of each vector, or to none where it is missing.
        """
        return _layout((len(column.edges) - 1,) for column in finding_of(contract).ranges)


class FindBins(SumRequest):
    """Rows of columns whose bins are found, by grid cell.

    They are also counted in blocks of 4, 16, 64, ... cells.
    """

    name = "find-bins"
    takes_part = False
    leaves = "counts of a grid over the released range of each such column, at L widths in all, in a sum; once"
    costs = "L vectors of sensitivity 1 (a row is in one block of each width): rho L/(2 sigma^2), mu^2 twice that"

    cells: AllottedCells

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns one vector of counts for each width of each column.

        Whatever grid is named, its cells are disjoint.
        """
        finding = finding_of(contract)
        trees = [finding.ranges[i].tree(self.cells[i]) for i in finding.binned]
        return _layout((length,) for tree in trees for length in tree.lengths)

    @classmethod
    def largest(cls, contract: Contract) -> Iterable[Layout]:
        return [_layout((length,) for _ in finding_of(contract).binned for length in tree(MOST_CELLS).lengths)]


class FindCategories(SumRequest):
    """Rows of all open columns by a text's prefix and next byte.

    The end of the text counts as a byte.
    """

    name = "find-categories"
    takes_part = False
    leaves = "counts of the continuations of released prefixes of c open columns, in a sum; once for each length"
    costs = "c vectors of sensitivity 1 (a row has one text, so one prefix and one byte): rho c/(2 sigma^2) a length"

    prefixes: Prefixes

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns one vector of counts for each requested column.

        A row adds 1 to one of its cells, or to none.
        """
        return _layout((len(prefixes) * SYMBOLS,) for prefixes in self.prefixes if prefixes)

    @classmethod
    def largest(cls, contract: Contract) -> Iterable[Layout]:
        return [_layout((FOLLOWED * column.wanted.most * SYMBOLS,) for column in finding_of(contract).texts)]


class Close(AskRequest):
    """The findings, which close the schema.

    From here on the mechanism begins.
    """

    name = "close"
    takes_part = False
    leaves = "nothing"
    costs = "nothing: the reply depends on no row"

    cells: AllottedCells
    cuts: Cuts
    atoms: Atoms
    categories: Categories

    def releases(self, contract: Contract) -> tuple[Release, ...]:
        return ()


class FindingClient(TableClient):
    """Any mechanism's client before the schema is closed.

    Args:
        config: the run's configuration.
        holder: of the rows, with its own values of the open columns.
        family: the mechanism's contract, whose accountant and trust hold here, too.
    """

    def __init__(self, config: RunConfig, holder: Holder, family: type[Contract]) -> None:
        self._family = family
        super().__init__(config, holder)
        assert holder.open_schema is not None and holder.own is not None
        self.own: OwnRows = holder.own if self.kept is None else holder.own.taken(self.kept)

    def agreed(self, config: RunConfig, holder: Holder) -> Contract:
        """Returns the mechanism's contract on the open schema.

        It has placeholders for what is to be found.
        """
        assert holder.open_schema is not None
        return shared_contract(self._family, config, holder.domain).opened(holder.open_schema)

    def _once(self, step: tuple[int, int]) -> None:
        """Remembers a request, whatever becomes of its sum.

        It raises ProtocolError unless the request comes after all earlier ones.

        Args:
            step: 0 ranges, 1 bins, 2 categories, and the length of a prefix.
        """
        steps = self.holder.state.setdefault(ASKED, [])
        if steps and list(step) <= steps[-1]:
            raise ProtocolError(
                "open columns are asked about once in a run, and in order: ranges, bins, categories by length"
            )
        steps.append(list(step))

    def _follow(self, prefixes: list[list[str]]) -> None:
        """Raises ProtocolError for prefixes that do not continue earlier ones.

        Earlier are those of the last sum that this client was asked for. A client that missed a sum knows their
        beginnings only. Before the first one the empty prefix is known.
        """
        known = self.holder.state.get(BEFORE, [[""] for _ in prefixes])
        for before, new in zip(known, prefixes, strict=True):
            length = len(before[0]) if before else 0
            if not {prefix[:length] for prefix in new} <= set(before):
                raise ProtocolError("a prefix goes on from none that this client was asked about before")

    def _sum(self, method: Callable[[Call[Any]], Any], call: Call[Any], envelope: Envelope) -> Arrays:
        def within(call: Call[Any]) -> Any:
            spec = envelope.sum
            assert spec is not None
            cost = Release(envelope.request, 0, GAUSSIAN, spec.sensitivity, sigma=spec.sigma, count=spec.count)
            self._require_share(cost.rho)
            return method(call)

        return super()._sum(within, call, envelope)

    def steps_for(self, request: Request) -> Sequence[Step]:
        """Returns the steps of row counts.

        Sums that find something keep to their share together (`_require_share`).
        """
        step = beside(self.contract).get(type(request))
        return () if step is None else (step,)

    def _require_share(self, rho: float) -> None:
        """Raises BudgetExceeded if sums exceed the share of finding.

        The mechanism would then have less than the run's configuration says. The share is of the run's budget, not of
        this holder's own, which may be less: the ledger keeps to that one.
        """
        unit, releases = self.ledger.unit, [r for r in self.ledger.releases if r.name.startswith("find-")]
        others = [r.rho for r in self.ledger.releases if r not in releases]
        whole = self.contract.budget.table - math.fsum(others) / unit.factor
        fits = math.fsum([rho, *map(unit.row_rho, releases)]) <= self.contract.budget.schema_share * whole * _ROOM
        require_budget(fits, lambda: "this would cost more than privacy.schema_share of the budget")

    @answers(FindRanges)
    def ranges(self, call: Call[FindRanges]) -> Contribution:
        """Contributes counts over each universe.

        One row touches each once, L2 sensitivity 1.
        """
        layout = call.layout
        self._once((0, 0))
        parts = [histogram(np.array(c.edges), self.own.numbers[c.name]) for c in finding_of(self.contract).ranges]
        return _contribution(parts, layout)

    @answers(FindBins)
    def bins(self, call: Call[FindBins]) -> Contribution:
        """Contributes counts of each grid at every width.

        One row touches each width once, L2 sensitivity 1.
        """
        cells, layout = call.request.cells, call.layout
        self._once((1, 0))
        parts = []
        for i in finding_of(self.contract).binned:
            column = finding_of(self.contract).ranges[i]
            counts = histogram(column.grid(cells[i]), self.own.numbers[column.name])
            parts.append(column.tree(cells[i]).apply(counts))
        return _contribution(parts, layout)

    @answers(FindCategories)
    def categories(self, call: Call[FindCategories]) -> Contribution:
        """Contributes counts of what follows each prefix.

        One row touches each column's vector at most once.
        """
        layout = call.layout
        queries = [[bytes.fromhex(prefix) for prefix in group] for group in call.request.prefixes]
        length = next(len(prefix) for group in queries for prefix in group)
        self._follow(call.request.prefixes)
        self._once((2, length))
        self.holder.state[BEFORE] = call.request.prefixes
        columns = zip(finding_of(self.contract).texts, queries, strict=True)
        parts = [
            level_counts(self.own.words[column.name], self.own.word_counts(column.name), prefixes)
            for column, prefixes in columns
            if prefixes
        ]
        return _contribution(parts, layout)

    @answers(Close)
    def close(self, call: Call[Close]) -> Answer:
        """Checks the schema that the findings make, and keeps them.

        The schema is made anew for every later message.
        """
        pieces = call.request.model_dump()
        try:
            finding_of(self.contract).closed(**pieces)
        except ValueError as error:
            raise ProtocolError(f"parameter 'cuts' {error}") from None
        except SchemaError:
            raise ProtocolError("what was found makes no schema") from None
        self.holder.state[FOUND] = pieces
        return [], {}


def _layout(shapes: Iterable[tuple[int]]) -> Layout:
    """Returns the layout of vectors of counts, a row once in each."""
    vectors = tuple(shapes)
    refuse(not vectors, "the schema leaves nothing of that kind to be found, or the request asks for nothing")
    return Layout(vectors, len(vectors), replaced=COUNTS)


def _contribution(parts: Sequence[npt.NDArray[np.int64]], layout: Layout) -> Contribution:
    vector = np.concatenate([np.zeros(0, np.int64), *parts])
    cells = np.flatnonzero(vector)
    return Contribution(cells, vector[cells], tuple(range(len(layout.shapes))), layout)


def steps_of(contract: Contract) -> list[Step]:
    """Returns the steps before the schema is closed.

    Each is planned as if it had the whole share of finding.
    """
    finding, rho = finding_of(contract), contract.budget.finding
    steps = [Step(FindRanges, rho)] if finding.ranges else []
    steps += [Step(FindBins, rho)] if finding.binned else []
    steps += [Step(FindCategories, rho, times=finding.levels)] if finding.texts else []
    return steps


# Nothing of a mechanism is answered before it begins.
_BEFORE = {request.name for request in (Join, Sizes, RowTotal, FindRanges, FindBins, FindCategories, Close)}
for _name in set(FindingClient.requests) - _BEFORE:
    del FindingClient.requests[_name], FindingClient._methods[_name]
