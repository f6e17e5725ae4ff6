"""The conformance checks, one function each; the docstring says what must hold.

A check takes a `Bench` (and, with `under`, the nodes of one setting), raises AssertionError where it finds something,
and `Skipped` where there is nothing that it could look at.
"""

from collections.abc import Callable

from fedsyn.front.testing.checks.contract import check_statement
from fedsyn.front.testing.checks.contributions import check_contributions
from fedsyn.front.testing.checks.files import check_released_files
from fedsyn.front.testing.checks.replay import check_client_unit, check_released_values_only, check_sensitivity
from fedsyn.front.testing.checks.runs import (
    check_everybody_answers,
    check_everyone_vanishes,
    check_failing_client,
    check_ledger,
    check_malformed_client,
    check_noise_comes_through_the_ledger,
    check_order_of_replies,
    check_reproducible,
    check_synthetic_table,
    check_vanishing_client,
)

#: On the first table only.
ONCE: tuple[Callable[..., None], ...] = (check_statement,)
PER_TABLE: tuple[Callable[..., None], ...] = (
    check_everybody_answers,
    check_ledger,
    check_noise_comes_through_the_ledger,
    check_contributions,
    check_reproducible,
    check_order_of_replies,
    check_failing_client,
    check_vanishing_client,
    check_everyone_vanishes,
    check_malformed_client,
    check_synthetic_table,
    check_released_values_only,
    check_sensitivity,
    check_client_unit,
    check_released_files,
)
