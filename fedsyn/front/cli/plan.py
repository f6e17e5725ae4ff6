"""The command `fedsyn plan`.

It says what to expect of a run before a row is touched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn.front.cli.console import (
    ConfigArgument,
    ForceOption,
    JsonOption,
    SetOption,
    may_write,
    working,
    wrapped,
    writing,
)
from fedsyn.output import say

if TYPE_CHECKING:
    from fedsyn.evaluation.report.tables import Table
    from fedsyn.front.plan import Plan

_STANDS = {
    "typical tables": "Nothing is known of the table. Three drawn ones stand in for it: weakly, typically and "
    "strongly linked, by the tables that fedsyn was tuned on. Rows of an earlier release (--like) or of a public table "
    "(--public) tell more.",
    "an earlier release": "Rows drawn from an earlier release stand in for the table.",
    "a public table": "Rows of a public table stand in for the table.",
}


def plan(
    config: ConfigArgument,
    rows: Annotated[
        int | None,
        typer.Option(min=2, help="Rows of all holders together, as publicly known; of people, their number."),
    ] = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(min=0.001, max=1000, help="Epsilon to look at beside the run's own; may be repeated."),
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="Directory of an earlier run, or saved model, of this schema.", metavar="RUN")
    ] = None,
    public: Annotated[
        list[Path] | None,
        typer.Option(
            help="Table of this schema that you declare public; twice where people and their rows are two.",
            metavar="TABLE",
        ),
    ] = None,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Also write a page to this file.", metavar="PAGE.html")] = None,
    as_json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Rehearse a run on public or drawn rows.

    It shows the error, links, bins and traffic to expect. This costs no privacy.
    """
    from fedsyn.front.plan import plan as planned
    from fedsyn.loading import load_config
    from fedsyn.registry import installed_only

    if out is not None:
        may_write(out, force)
    with installed_only(), working("rehearsing") as following:
        loaded = load_config(config, set_ or ())

        def advance(done: int, of: int) -> None:
            following(f"rehearsed {done} of {of}")

        plan = planned(loaded, rows, epsilons=epsilon or (), like=like, public=public or None, advance=advance)
    if out is not None:
        with writing(out):
            _page(plan, out)
    if as_json:
        say(json.dumps(plan.to_dict(), indent=1))
        return
    table = _table(plan)
    sizes = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, sizes)) for row in (table.head, *table.rows)]
    for text in _texts(plan):
        lines += ["", wrapped(text)]
    say("\n".join([_title(plan), "", *lines]))


def _title(plan: Plan) -> str:
    columns = "columns" if plan.of == "rows" else "columns of a person's record"
    return f"{plan.mechanism}, {plan.of}: {plan.rows:,}, holders: {plan.holders:,}, {columns}: {plan.columns:,}"


def _table(plan: Plan) -> Table:
    from fedsyn.evaluation.report.tables import Table

    head = ["epsilon", "workload error", "range", "columns", "pairs", "pairs measured", "links from"]
    every, rows = plan.columns * (plan.columns - 1) // 2, list[list[str]]()
    for one in plan.expected:
        run, cells = one.run, [f"{one.epsilon:g}", f"{one.run.error:.3f}", f"{one.low:.3f}-{one.high:.3f}"]
        cells += [f"{run.columns:.3f}", f"{run.pairs:.3f}", f"{run.measured:,.0f} of {every:,}"]
        rows.append([*cells, f"{run.seen:.2f} in {run.shown:,.0f}" if run.seen < 1.0 else "none"])
    return Table(head, rows)


def _texts(plan: Plan) -> list[str]:
    expected, minutes = plan.expected[plan.own], plan.minutes
    lasts = f"{60.0 * minutes:,.0f} seconds" if minutes < 2.0 else f"{minutes:,.0f} minutes"
    limits = expected.run.limits
    return [
        *([f"A larger model would be better: {limits}."] if limits else []),
        "Errors are distances of marginals, 0 (equal) to 2; the range held the true one in nine of ten runs of "
        "sketch_aim on the tables that chose it. 'links from 0.3 in 20': in 20 pairs nine of ten links with an "
        "association (Cramér's V) above 0.3 would be seen; nothing can be said about the others.",
        _STANDS[plan.basis] if plan.of == "rows" else _STANDS[plan.basis].replace("Rows", "People", 1),
        f"At epsilon {expected.epsilon:g} {_bins(expected.run.bins, expected.run.side, plan.of)}.",
        f"Each holder gets {expected.run.messages:,.0f} messages over {plan.protocol}, {expected.run.down:.2g} MB, and "
        f"sends {expected.run.up:.2g} MB; the run takes {lasts} or more: computed here, one holder after the "
        "other, and half a second for each exchange of a deployment.",
    ]


def _bins(bins: float, side: float, of: str) -> str:
    """Returns a clause on how many bins noise leaves readable."""
    if bins < 2.0:
        return f"noise moves more than a tenth of the {of} of any column, or nothing is known of it"
    text = f"noise moves less than a tenth of the {of} of a column with up to {bins:,.0f} even bins"
    return f"{text}, and of a measured pair with up to {side:,.0f} x {side:,.0f}" if side >= 2.0 else text


def _page(plan: Plan, path: Path) -> None:
    from fedsyn.evaluation.report.page import Page, Part

    page = Page(f"What to expect of {plan.mechanism}", Part("lead", f"{_title(plan)}; before a row is touched."))
    page.section("By epsilon", _table(plan), *_texts(plan))
    page.write(path)
