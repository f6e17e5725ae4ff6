"""`fedsyn analyse`: intervals from the tables that `fedsyn sample --tables` drew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsyn.front.cli.console import JsonOption
from fedsyn.output import say


def analyse(
    tables: Annotated[
        Path, typer.Argument(help="Folder made by: fedsyn sample RUN --tables 20 --out DIR.", metavar="DIR")
    ],
    formula: Annotated[
        str, typer.Argument(help="'readmitted ~ age + ward', 'mean(age)' or 'proportion(ward)'.", metavar="FORMULA")
    ],
    model: Annotated[
        str | None, typer.Option(help="ols or logit; default: logit for an outcome of two values.", metavar="NAME")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """Estimate means, proportions and regressions, with intervals that include the noise. This costs no privacy."""
    from fedsyn.evaluation.analysis import analyse as analysed

    found = analysed(tables, formula, model, level=level)
    text = json.dumps(found.to_dict(), indent=1) if as_json else str(found)
    say(text)
