"""The conformance check of mechanisms, `check_mechanism`.

Every mechanism must pass it, whatever it computes. Its tables are awkward in one way each.

    from fedsyn.testing import check_mechanism
    check_mechanism("my_mechanism")

runs a mechanism in the in-process engine. It prints what was checked and what was not, or raises one AssertionError
that lists what was found. `mechanism_checks` yields the same checks one by one, for a test framework to parametrize
over. Each check is a function of `fedsyn.front.testing.checks`; its docstring says what must hold.

The strongest checks replay a run on other rows with the ledgers' outputs held fixed. What then still differs has come
past the ledger (`check_released_values_only`, `check_released_files`); how far the values that enter the ledger differ
for one row more or less is their sensitivity (`check_sensitivity`). They look at one run: a failure is a proof, a pass
is evidence.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedsyn.front.testing.bench import SETTINGS, Bench
from fedsyn.front.testing.checks import ONCE, PER_TABLE
from fedsyn.front.testing.failures import ProvokedError, Skipped, described, errors_kept, raised_by
from fedsyn.front.testing.schemas import AwkwardTable, awkward_names, awkward_table
from fedsyn.output import counted, say
from fedsyn.registry import client_class, strategy_class

Tables = Iterable[str | AwkwardTable] | None
Seen = dict[str, list[str]]  # check -> tables
_MOST_TOLD = 8  # of the sentences that follow from one exception


@dataclass
class Finding:
    """One cause of failed checks.

    Attributes:
        cause: the error, with its place, or the sentence of a check.
        is_error: whether it is an exception, and not what a check found.
        seen: check -> the tables on which it failed for this.
        follows: what the checks said of it, if it is an exception.
    """

    cause: str
    is_error: bool
    seen: Seen = field(default_factory=dict)
    follows: list[str] = field(default_factory=list)

    def lines(self, number: int) -> Iterator[str]:
        yield f"{number}. {self.cause}"
        yield from (f"   seen by {checks} on {', '.join(tables)}" for tables, checks in _by_tables(self.seen))
        kinds = {_told_apart(sentence): sentence for sentence in reversed(self.follows)}  # the first of each
        told = list(reversed(kinds.values()))
        yield from (f"   so that {sentence}" for sentence in told[:_MOST_TOLD])
        if len(told) > _MOST_TOLD:
            yield f"   and {len(told) - _MOST_TOLD} sentences more"


@dataclass
class ConformanceReport:
    """Report of `check_mechanism`.

    Attributes:
        mechanism: its name.
        tables: names of the tables.
        passed: check -> the tables on which it held.
        skipped: reason -> check -> the tables on which it did not apply.
        failed: what was found, by its place or words; empty in a report that is returned.
    """

    mechanism: str
    tables: tuple[str, ...]
    passed: Seen = field(default_factory=dict)
    skipped: dict[str, Seen] = field(default_factory=dict)
    failed: dict[str, Finding] = field(default_factory=dict)

    def render(self, width: int = 80) -> str:
        """Returns plain text, at most `width` columns wide."""
        lines = [f"{self.mechanism} passes {len(self.passed)} checks on {len(self.tables)} table(s)."]
        lines.append("Tables: " + ", ".join(self.tables))
        lines += [f"Checked on {self._named(tables)}: {checks}" for tables, checks in _by_tables(self.passed)]
        for reason, seen in self.skipped.items():
            lines += [f"Skipped on {self._named(tables)}, {reason}: {checks}" for tables, checks in _by_tables(seen)]
        wrapped = partial(textwrap.fill, width=width, subsequent_indent="  ", break_on_hyphens=False)
        return "\n".join(map(wrapped, lines))

    def findings(self) -> str:
        """Returns the failures as text, exceptions first.

        Each comes with the checks and tables that it was seen in.
        """
        total = len({check for found in self.failed.values() for check in found.seen})
        reasons = sorted(self.failed.values(), key=lambda finding: not finding.is_error)
        lines = [
            f"mechanism '{self.mechanism}' fails {total} conformance check(s) for {counted(len(reasons), 'reason')}"
        ]
        for number, found in enumerate(reasons, 1):
            lines += found.lines(number)
        return "\n".join(lines)

    def place_of(self, error: Exception) -> Seen:
        """Returns where a failed check is entered.

        Checks that fail by one exception are one finding, whatever they say of it.
        """
        root = root_of(error)
        if root is None:
            return self.failed.setdefault(str(error), Finding(str(error), False)).seen
        finding = self.failed.setdefault(raised_by(root), Finding(described(root), True))
        if root is not error:
            finding.follows.append(str(error))
        return finding.seen

    def _named(self, tables: tuple[str, ...]) -> str:
        if tables == self.tables:
            return "all tables" if len(tables) > 1 else tables[0]
        return ", ".join(tables) if len(tables) <= 3 else f"{len(tables)} tables"


def check_mechanism(name: str, *, tables: Tables = None, options: Mapping[str, Any] | None = None) -> ConformanceReport:
    """Runs every conformance check of a mechanism.

    Prints and returns what was checked.

    Args:
        name: the mechanism's registered name, or 'package.module:Strategy'.
        tables: names of awkward tables, or tables; all awkward tables when omitted.
        options: the mechanism's options; its own defaults, but only 2 `rounds`, when omitted.

    Raises:
        AssertionError: something was found; the message lists it, each finding with the checks and tables it is from.
        ConfigError: no such mechanism, or options that it refuses.
    """
    report = ConformanceReport(name, ())
    for check in mechanism_checks(name, tables=tables, options=options):
        table = check.bench.table.name
        report.tables = tuple(dict.fromkeys([*report.tables, table]))
        try:
            check()
        except Skipped as reason:
            seen = report.skipped.setdefault(str(reason), {})
        except Exception as error:  # also what a mechanism throws by mistake is a finding
            seen = report.place_of(error)
        else:
            seen = report.passed
        seen.setdefault(check.title, []).append(table)
    if report.failed:
        raise AssertionError(report.findings())
    say(report.render())
    return report


def mechanism_checks(
    name: str, *, tables: Tables = None, options: Mapping[str, Any] | None = None
) -> Iterator[ConformanceCheck]:
    """Yields the single checks of `check_mechanism`.

    Each is a callable that raises AssertionError, or `Skipped`.

    Checks of one table share its runs, so they are fastest one after the other in one process.
    """
    strategy_class(name), client_class(name)
    chosen = awkward_names() if tables is None else tables
    all_tables = [awkward_table(table) if isinstance(table, str) else table for table in chosen]
    for number, table in enumerate(all_tables):
        yield from checks_on(Bench(name, table, options), (ONCE if number == 0 else ()) + PER_TABLE)


def checks_on(bench: Bench, checks: Sequence[Callable[..., None]]) -> Iterator[ConformanceCheck]:
    """Yields each check for one table, once for each setting."""
    for check in checks:
        for setting in getattr(check, "settings", (None,)):
            yield ConformanceCheck(check.__name__.removeprefix("check_"), bench, check, setting)


@dataclass(frozen=True)
class ConformanceCheck:
    """One check on one table.

    It has a setting if the check is made under several. `str` is 'table: title'.
    """

    name: str
    bench: Bench
    run: Callable[..., None]
    setting: str | None = None

    def __call__(self) -> None:
        errors: list[BaseException] = []
        with errors_kept(errors):
            try:
                self.bench.require_taken()
                self.run(self.bench, *([] if self.setting is None else [SETTINGS[self.setting]]))
            except AssertionError as error:
                first = next((one for one in errors if not isinstance(one, ProvokedError)), error.__cause__)
                if first is None:
                    raise
                raise error from first

    @property
    def title(self) -> str:
        return self.name if self.setting is None else f"{self.name} ({self.setting})"

    def __str__(self) -> str:
        return f"{self.bench.table.name}: {self.title}"


def root_of(error: Exception) -> BaseException | None:
    """Returns the exception behind a failed check.

    None means that the check itself found something.
    """
    if error.__cause__ is not None:
        return error.__cause__
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    inside = step is not None and Path(step.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parent)
    return None if inside and isinstance(error, AssertionError) else error


def _told_apart(sentence: str) -> str:
    """Returns a sentence without numbers, nor the clients that its brackets name."""
    return re.sub(r"\d+", "", sentence.partition(" (")[0])


def _by_tables(seen: Seen) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields tables, and the checks that share them in one line.

    Several settings of one check are only counted.
    """
    for tables in dict.fromkeys(map(tuple, seen.values())):
        titles = [title for title, shared in seen.items() if tuple(shared) == tables]
        yield (
            tables,
            ", ".join(
                settings[0] if len(settings := list(group)) == 1 else f"{name} ({len(settings)} settings)"
                for name, group in itertools.groupby(titles, lambda title: title.partition(" (")[0])
            ),
        )
