"""`check_mechanism`: what every mechanism must keep, whatever it computes, on tables that are awkward in one way each.

    from fedsyn.testing import check_mechanism
    check_mechanism("my_mechanism")

runs the registered mechanism in the in-process engine and raises one AssertionError that lists every failed check.
`mechanism_checks` yields the same checks one by one, for a test framework to parametrize over. Each check is a
function of a `Bench` in `checks.py`; its docstring says what must hold.

The two strongest checks replay a run on other rows with the ledgers' outputs held fixed. What then still differs has
come past the ledger (`check_released_values_only`); how far the values that enter the ledger differ for one row more
or less is their sensitivity (`check_sensitivity`). They look at one run: a failure is a proof, a pass is evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedsyn.registry import client_class, strategy_class
from fedsyn.testing.bench import Bench
from fedsyn.testing.checks import ONCE, PER_TABLE
from fedsyn.testing.schemas import AwkwardTable, awkward_names, awkward_table

Tables = Iterable[str | AwkwardTable] | None


def check_mechanism(name: str, *, tables: Tables = None, options: Mapping[str, Any] | None = None) -> None:
    """Runs every conformance check of a registered mechanism.

    Args:
        name: the mechanism's registered name.
        tables: names of awkward tables, or tables; all awkward tables when omitted.
        options: the mechanism's options; its own defaults, but only 2 `rounds`, when omitted.

    Raises:
        AssertionError: one or more checks failed; the message lists all of them.
        ConfigError: no such mechanism, or options that it refuses.
    """
    failures: dict[tuple[str, str], list[str]] = {}  # checks that fail for one reason make one line
    for check in mechanism_checks(name, tables=tables, options=options):
        try:
            check()
        except Exception as error:  # also what a mechanism throws by mistake is a finding
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            failures.setdefault((check.bench.table.name, f"{kind}{error}"), []).append(check.name)
    if failures:
        lines = [f"  {table}: {', '.join(checks)}: {reason}" for (table, reason), checks in failures.items()]
        total = sum(len(checks) for checks in failures.values())
        raise AssertionError(f"mechanism '{name}' fails {total} conformance check(s):\n" + "\n".join(lines))


def mechanism_checks(
    name: str, *, tables: Tables = None, options: Mapping[str, Any] | None = None
) -> Iterator[ConformanceCheck]:
    """The single checks of `check_mechanism`, each a callable that raises AssertionError.

    Checks of one table share its runs, so they are fastest one after the other in one process.
    """
    strategy_class(name), client_class(name)
    given = awkward_names() if tables is None else tables
    all_tables = [awkward_table(table) if isinstance(table, str) else table for table in given]
    for number, table in enumerate(all_tables):
        bench = Bench(name, table, options)
        for run in PER_TABLE + (ONCE if number == 0 else ()):
            yield ConformanceCheck(run.__name__.removeprefix("check_"), bench, run)


@dataclass(frozen=True)
class ConformanceCheck:
    """One check on one table. `str` is 'table: check'."""

    name: str
    bench: Bench
    run: Callable[[Bench], None]

    def __call__(self) -> None:
        self.run(self.bench)

    def __str__(self) -> str:
        return f"{self.bench.table.name}: {self.name}"
