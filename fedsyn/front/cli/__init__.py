"""The command line, `fedsyn COMMAND`.

Each group of commands has a module. They are put together here.

Exit codes: 0 success, 1 the run failed, 2 bad configuration or bad data, 70 a bug, 130 interrupted, 143 told to end;
each with one message and no traceback (`fedsyn.front.cli.ending`).
"""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import typer

from fedsyn.front.cli.console import out_console, say_what_is_logged
from fedsyn.front.cli.deploy import app as deploy_app
from fedsyn.front.cli.ending import ended
from fedsyn.front.cli.init import init
from fedsyn.front.cli.ledger import app as ledger_app
from fedsyn.front.cli.lists import datasets, identity, mechanisms, operator_key
from fedsyn.front.cli.new import new
from fedsyn.front.cli.node import app as node_app
from fedsyn.front.cli.party import app as party_app
from fedsyn.front.cli.plan import plan
from fedsyn.front.cli.runs import demo, explain, partition, run
from fedsyn.front.cli.schemas import app as schema_app
from fedsyn.front.cli.sweeps import compare, report, sweep
from fedsyn.front.cli.tables import analyse, evaluate, sample
from fedsyn.output import no_tracebacks
from fedsyn.version import __version__

app = typer.Typer(
    name="fedsyn",
    help="Federated, differentially private synthetic tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
#: New objects before Python looks for unreachable cycles: at its own 700 an ordinary run looks 600 times, at 50,000 it
#: looks seven times for 0.2 s, mostly at modules as they are imported, and finds next to nothing.
_OBJECTS_BETWEEN_COLLECTIONS = 500_000
# In the order in which `fedsyn --help` lists them.
for command in (
    demo,
    init,
    run,
    sample,
    analyse,
    evaluate,
    compare,
    report,
    sweep,
    partition,
    explain,
    plan,
    identity,
    operator_key,
    mechanisms,
    new,
    datasets,
):
    app.command()(command)
app.add_typer(schema_app, name="schema")
app.add_typer(party_app, name="party")
app.add_typer(deploy_app, name="deploy")
app.add_typer(node_app, name="node")
app.add_typer(ledger_app, name="ledger")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        out_console.print(__version__)
        raise typer.Exit


def main() -> None:
    """Runs the command line as the program's entry point.

    Any failure becomes one message and an exit code.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    no_tracebacks()
    say_what_is_logged()
    sys.exit(ended(lambda: app(prog_name="fedsyn", standalone_mode=False)))
