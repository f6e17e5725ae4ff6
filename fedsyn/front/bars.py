"""A bar while a model is fitted: tqdm's where it is installed (notebooks, too), else rich's in a terminal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedsyn.config import RunConfig
from fedsyn.output import console, plain
from fedsyn.protocol.record import RoundRecord
from fedsyn.registry import contract_class


def planned_rounds(config: RunConfig) -> int | None:
    """How many rounds a run will have, where that is known before it."""
    rounds = getattr(contract_class(config.mechanism.name).options_of(config), "rounds", None)
    return rounds if isinstance(rounds, int) else None


@contextmanager
def fitting_bar(wanted: bool | None, config: RunConfig) -> Iterator[Callable[[RoundRecord], None] | None]:
    """A callback for finished rounds, or None.

    Args:
        wanted: None: where somebody watches, in a notebook or a terminal.
        config: of the run.
    """
    notebook = "ipykernel" in sys.modules
    if wanted is False or (wanted is None and not notebook and not sys.stderr.isatty()):
        yield None
        return
    total = planned_rounds(config)
    title = f"fitting {config.mechanism.name}"
    if importlib.util.find_spec("tqdm") is not None:
        # The notebook's own widget needs ipywidgets; without it, text does.
        widget = notebook and importlib.util.find_spec("ipywidgets") is not None
        tqdm = getattr(importlib.import_module("tqdm.auto" if widget else "tqdm"), "tqdm")  # noqa: B009
        with tqdm(total=total, desc=title, unit="round", leave=False) as bar:
            yield lambda record: _to(bar, record)
        return
    from rich.progress import Progress

    with Progress(console=console(error=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda record: progress.update(task, completed=record.round)


def _to(bar: object, record: RoundRecord) -> None:
    bar.n = record.round  # type: ignore[attr-defined]
    bar.set_postfix_str(plain(record.selected[0], keep="") if record.selected else "")  # type: ignore[attr-defined]
