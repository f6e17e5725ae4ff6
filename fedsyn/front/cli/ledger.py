"""Commands on ledgers for life: `fedsyn ledger ...`.

They show what a holder's table, or a party, has given away. They are for its owner and an ethics
board.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedsyn.errors import ConfigError, LedgerDamaged
from fedsyn.front.cli.console import print_table, writing
from fedsyn.output import say

if TYPE_CHECKING:
    from fedsyn.ledgers.accounts import LedgerReading
    from fedsyn.ledgers.chain import Head
    from fedsyn.node.file import NodeFile

_CUT: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}  # what is longer than the terminal is wide

app = typer.Typer(help="Show, verify and export lifetime ledgers.", no_args_is_help=True)

FileArgument = Annotated[
    Path, typer.Argument(help="A ledger, or the node.yaml or party.yaml it belongs to.", metavar="FILE")
]


@app.command()
def show(
    file: FileArgument,
    run: Annotated[str | None, typer.Option(help="Print the releases of this run only.", metavar="NAME")] = None,
) -> None:
    """Print the runs of a ledger and what each spent.

    What the limits leave is printed, too.
    """
    from fedsyn.ledgers.accounts import rows, summary

    opened, _ = _opened(file)
    facts = summary(opened)
    if run is not None:
        named = [
            one["run"] for one in facts["runs"] if any((one.get(key) or "").startswith(run) for key in ("run", "name"))
        ]
        if run not in named and len(named) != 1:
            raise ConfigError(f"--run: {'several runs begin' if named else 'no run begins'} with '{run}'")
        _print_releases(rows(opened, run if run in named else named[0]))
        return
    _print_runs(facts)
    say(f"Unit: {facts['unit']}.")
    for limit in facts["limits"]:
        say(
            f"{limit['limit']}: epsilon {limit['spent_epsilon']:.4g} of {limit['epsilon']:g} at delta "
            f"{limit['delta']:g} is spent; {100 * limit['left_share']:.1f}% is left"
        )
    if not facts["limits"]:
        guarantee = "" if facts["epsilon"] is None else f", epsilon {facts['epsilon']:.4g} at delta {facts['delta']:g}"
        say(f"spent: rho {facts['rho']:.6g}{guarantee}")
    if opened.lines.torn:
        say(f"the last line is torn: it counts as rho {opened.lines.torn_rho:.4g}")


@app.command()
def verify(
    file: FileArgument,
    head: Annotated[
        Path | None, typer.Option(help="Head that 'export --head' wrote and you kept elsewhere.", metavar="HEAD.json")
    ] = None,
) -> None:
    """Check that no line was changed, removed, moved or cut off.

    If one was, its number is printed, and the exit code is 1.
    """
    from fedsyn.ledgers.accounts import verify as verified

    try:
        opened, node = _opened(file)
        facts = verified(opened, None if head is None else _read_head(head), _remembered(node))
    except LedgerDamaged as error:
        say(str(error), error=True)
        raise typer.Exit(1) from None
    say(f"{opened.path}: {facts['entries']} lines, each follows the one before it")
    unsent = (
        f", {facts['charged_only']} charged whose reply is not known to have left" if "charged_only" in facts else ""
    )
    say(f"{facts['released']} releases{unsent}; {facts['torn']} torn lines, counted at their worst")
    if head is not None:
        say("and it goes on from the head that was kept")
    else:
        say("an older copy, or one written anew, shows only against a head kept elsewhere: --head")


@app.command()
def export(
    file: FileArgument,
    kind: Annotated[
        Literal["json", "csv"], typer.Option("--format", help="json: everything; csv: one line per release.")
    ] = "json",
    out: Annotated[Path | None, typer.Option(help="Output file; default: standard output.")] = None,
    head: Annotated[
        bool,
        typer.Option(
            "--head", help="Export only the head that 'verify --head' compares with; keep it on another machine."
        ),
    ] = False,
) -> None:
    """Export a ledger, for example for an ethics board, or its head."""
    from fedsyn.ledgers.accounts import COLUMNS, head_of, rows, summary

    opened, _ = _opened(file)
    if head:
        text = json.dumps(head_of(opened)) + "\n"
    elif kind == "json":
        text = json.dumps({**summary(opened), "releases": rows(opened)}, indent=1) + "\n"
    else:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(opened))
        text = buffer.getvalue()
    if out is None:
        say(text.rstrip("\n"))
        return
    with writing(out):
        out.write_text(text, encoding="utf-8")
    say(f"wrote {out}")


def _opened(file: Path) -> tuple[LedgerReading, NodeFile | None]:
    """Reads the ledger that a file is or names.

    The file is the ledger itself, a node.yaml (which is also returned) or a party.yaml.
    """
    from fedsyn import yamlio
    from fedsyn.ledgers.accounts import open_ledger
    from fedsyn.node.file import load_node_file
    from fedsyn.stores.parties.policy import load_party_file

    if not file.is_file():
        raise ConfigError(
            f"{file} {'is a folder' if file.is_dir() else 'does not exist'}: name a ledger, or its YAML file"
        )
    if file.suffix.lower() not in (".yaml", ".yml"):
        return open_ledger(file), None
    document = yamlio.read_mapping(file)
    if isinstance(document.get("superlink"), str):
        node = load_node_file(file)
        return open_ledger(node.ledger_file, node.policy.limits), node
    if "role" not in document:
        raise ConfigError(f"{file} is not a ledger, nor a node's or a party's YAML file")
    party = load_party_file(file)
    return open_ledger(Path(party.ledger), budget=party.policy.total_budget), None


def _remembered(node: NodeFile | None) -> list[Head]:
    """Returns the heads that the memories of a node keep.

    The node's next start compares them, too.
    """
    from fedsyn.node.memory import Memory

    if node is None:
        return []
    return Memory(node.state_folder / "runs", node.data_key, look=True).heads()


def _read_head(path: Path) -> dict[str, Any]:
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        head = None
    if not isinstance(head, dict):
        raise ConfigError(f"--head: {path} is not what 'fedsyn ledger export --head' wrote")
    return head


def _print_runs(facts: dict[str, Any]) -> None:
    from fedsyn.ledgers.party_ledger import called

    print_table(
        ("run", "begun", "mechanism", "asked", "spent", "releases", "state"),
        [
            (
                called(one["run"], one["name"]) if "name" in one else one["run"],
                (one["begun"] or "")[:10],
                one["mechanism"] or "",
                f"{one['epsilon']:g}" if "epsilon" in one else "",
                "" if one["spent_epsilon"] is None else f"{one['spent_epsilon']:.4g}",
                f"{one['released']}+{one['charged_only']}" if one.get("charged_only") else str(one.get("released", "")),
                one["state"],
            )
            for one in facts["runs"]
        ],
        **_CUT,
    )
    if any(one.get("charged_only") for one in facts["runs"]):
        say("releases a+b: b were charged, and no reply with them is known to have left.")


def _print_releases(releases: list[dict[str, Any]]) -> None:
    print_table(
        ("time", "request", "round", "noise", "scale", "rho", "state"),
        [
            (
                row["time"][:19].replace("T", " "),
                row.get("request") or "",
                str(row.get("round", "")),
                row.get("noise") or "",
                f"{row['sigma']:.5g}" if row.get("sigma") else f"e {row['epsilon']:.5g}" if row.get("epsilon") else "",
                f"{row['rho']:.4g}",
                {"released": "out", "charged only": "kept", "torn line": "torn"}[row["state"]],
            )
            for row in releases
        ],
        **_CUT,
    )
    say("scale: sigma, or e and the epsilon of a choice. kept: charged, no reply with it is known to have left.")
