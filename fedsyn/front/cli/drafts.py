"""Shows a draft on a screen of 80 columns, with remarks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsyn.config import DEFAULT_CLIQUES, DEFAULT_MECHANISM
from fedsyn.evaluation.predicted.limits import Foreseen
from fedsyn.evaluation.verdict import LEAST_LINK
from fedsyn.output import counted
from fedsyn.privacy.budget import PrivacyBudget
from fedsyn.registry import contract_class
from fedsyn.table.schema.approval import who_hold
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import AsideColumn
from fedsyn.table.schema.draft import Guess
from fedsyn.table.schema.drafted_bins import DELTA, EPSILON
from fedsyn.table.schema.drafting import Draft
from fedsyn.table.schema.vocabulary import FEW_ROWS

_WIDEST_NAME = 22


def show_draft(
    console: Console,
    draft: Draft,
    notes: Sequence[str],
    rows: int,
    file: str = "",
) -> None:
    """Prints one line a column, and remarks below them.

    `file` stands before notes that do not name theirs.
    """
    for note in notes:
        console.print(Text(f"{file}: {note}" if file else note))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    table.add_column("column", max_width=_WIDEST_NAME, overflow="fold")
    table.add_column("kind", no_wrap=True)
    table.add_column("values", justify="right", no_wrap=True)
    table.add_column("missing", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for name, guess in draft.guesses.items():
        apart = isinstance(guess.column, AsideColumn)
        out = ", new" if name in draft.schema.order else ", out" if guess.column.kind != "drop" else ""
        kind = f"{guess.column.kind}{out if apart else ''}"
        why = f"{guess.why}; computed" if name in draft.schema.derived else _why(guess)
        row = (name, kind, f"{guess.values:,}", _share(guess.missing), why)
        table.add_row(*map(Text, row), style="dim" if apart else None)
    console.print(table)
    for sentence in sentences(draft, rows):
        console.print(Text(sentence))


def sentences(draft: Draft, rows: int) -> list[str]:
    """Returns what a person should know of a draft, in sentences.

    The only values of a column that they quote are those that many rows hold.
    """
    guesses, holding = draft.guesses, draft.holding
    apart = [name for name, guess in guesses.items() if _is_left_out(name, guess, draft)]
    folded = {name: guess.folded for name, guess in guesses.items() if guess.folded[0]}
    rare = {name: guess.rare for name, guess in guesses.items() if guess.rare}
    lines = list[str]()
    if rows and draft.persons is not None:
        lines = [f"{counted(draft.persons.people, 'person', 'people')} with {counted(rows, 'row')} were read."]
    elif rows:
        lines = [f"{counted(rows, 'row')} {'was' if rows == 1 else 'were'} read.{carried(draft, rows)}"]
    if apart:
        name = apart[0] if len(apart) == 1 else "NAME"
        keeps = "keeps it" if len(apart) == 1 else "keeps one of them"
        lines.append(f"Left out of the synthetic table: {', '.join(apart)}; --keep {shlex.quote(name)} {keeps}.")
    for name, (values, held) in folded.items():
        folds = "is not listed and becomes" if values == 1 else "are not listed and become"
        holders = f"in {counted(held, 'row')}" if draft.persons is None else f"of {counted(held, 'person', 'people')}"
        lines.append(f"{name}: {counted(values, 'value')}, {holders} together, {folds} 'other'.")
    if rare:
        named = ", ".join(f"{name} ({count})" for name, count in rare.items())
        lines.append(
            f"Categories that fewer than {FEW_ROWS} {who_hold(draft.schema)} hold: {named}. "
            "They are approved only with a reason (public: WHY), or folded into 'other'."
        )
    lines += [f"{name}: {hint}." for name, hints in draft.schema.hints.items() for hint in hints]
    for one in holding:
        breaks = f"{100 * one.breaks:.1f}% would break it if its columns were independent."
        known = (
            f"{counted(one.rows, 'row')} in which no side is missing" if one.rows < rows else counted(one.rows, "row")
        )
        lines.append(f"Holds in all {known}: {one.rule.text}. {breaks} {one.better}".strip())
    if holding:
        lines.append("State those that must hold in every row: `fedsyn schema review` asks about each.")
    return lines


def _is_left_out(name: str, guess: Guess, draft: Draft) -> bool:
    return isinstance(guess.column, AsideColumn) and name not in draft.schema.order


def carried(draft: Draft, rows: int) -> str:
    """Returns a sentence on the links between columns that noise hides.

    It is empty for one column.
    """
    guesses, options = draft.guesses, contract_class(DEFAULT_MECHANISM).Options()
    missing = {name: guess.missing for name, guess in guesses.items()}
    mu2 = PrivacyBudget(EPSILON, DELTA).mu ** 2 * options.sketch_share
    foreseen = Foreseen(draft.schema, missing, rows, mu2, options.width, DEFAULT_CLIQUES)
    if not (pairs := foreseen.pairs):
        return ""
    shown, least = foreseen.said(pairs)
    if not shown:
        return f" With {counted(rows, 'row')} and epsilon {EPSILON:g}, noise hides every link between columns."
    where = f"{shown:,} of {pairs:,} pairs" if shown < pairs else f"all {pairs:,} pairs" if pairs > 1 else "the pair"
    few = foreseen.most() if least > LEAST_LINK or shown < pairs else 0
    rest = "" if shown == pairs else " Of the others nothing can be said."
    more = f" Choose {'about ' * (few > 1)}{counted(few, 'pair')} to see links down to {LEAST_LINK:g}." if few else ""
    return (
        f" With {counted(rows, 'row')} and epsilon {EPSILON:g}, nine of ten links with an association (Cramér's V) "
        f"above {least:.2f} are seen in {where} of columns.{rest}{more}"
    )


def _why(guess: Guess) -> str:
    if isinstance(guess.column, BinnedColumn):
        atoms = guess.column.atoms
        round_ = "round " if isinstance(guess.column.bins, tuple) else ""
        count = guess.column.size - len(guess.column.sides) - len(atoms)
        bins = f"{count} values, no others" if guess.column.values else counted(count, f"{round_}bin")
        step = getattr(guess.column, "multiple_of", None) or 1
        bins = f"multiples of {step:,.15g}; {bins}" if step != 1 else bins
        return f"{guess.why}; {bins}{f'; {_shown(atoms)} by itself' if atoms else ''}"
    if guess.folded[0]:
        return f"{guess.why}; {counted(guess.folded[0], 'value')} in 'other'"
    return f"{guess.why}; {guess.rare} rare" if guess.rare else guess.why


def _shown(atoms: Sequence[float | str]) -> str:
    """Returns the values that have a bin each, as people write them."""
    return ", ".join(f"{atom:.15g}" if isinstance(atom, float) else str(atom) for atom in atoms)


def _share(share: float) -> str:
    if not share:
        return "-"
    return "<0.1%" if share < 0.001 else f"{100 * share:.1f}%"
