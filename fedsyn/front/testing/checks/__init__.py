"""The conformance checks.

Each `check_...` of these modules is one, and its docstring says what must hold.

A check takes a `Bench` (and, with `under`, the nodes of one setting), raises AssertionError where it finds something,
and `Skipped` where there is nothing that it could look at.
"""

from collections.abc import Callable

from fedsyn.front.testing.checks import contract, contributions, replay, runs

#: On the first table only.
ONCE: tuple[Callable[..., None], ...] = (contract.check_statement,)
PER_TABLE: tuple[Callable[..., None], ...] = tuple(
    check
    for module in (runs, contributions, replay)
    for name, check in vars(module).items()
    if name.startswith("check_")
)
