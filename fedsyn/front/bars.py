"""A bar while a model is fitted, in a terminal or a notebook."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedsyn.config import RunConfig
from fedsyn.output import console
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
    # In a notebook, rich draws with ipywidgets.
    notebook = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    if wanted is False or (wanted is None and not notebook and not sys.stderr.isatty()):
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console(error=True), transient=True) as progress:
        task = progress.add_task(f"fitting {config.mechanism.name}", total=planned_rounds(config))
        yield lambda record: progress.update(task, completed=record.round)
