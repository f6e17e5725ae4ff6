"""Shows runs side by side.

It shows their settings, what they guarantee, and how good their tables are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsyn import yamlio
from fedsyn.errors import DataError
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.real.metrics import all_metrics
from fedsyn.evaluation.report.tables import number
from fedsyn.loading import flattened
from fedsyn.runs.directory import load_metrics, read_facts
from fedsyn.runs.report import load_evaluation

# Settings that say where a run happened, and not what it was.
_PLACES = ("format", "data.schema", "runtime.ray", "runtime.operator", "runtime.operator_key")
Rows = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared with others.

    Attributes:
        folder: its directory.
        settings: dotted key -> value of its configuration.
        epsilon, delta: of its ledger.
        private: whether its table may be released.
        metrics: name -> value.
        scores: shares of columns, linked pairs and so on that are kept beside real rows, where those were compared.
        schema: what its columns are, as text.
    """

    folder: Path
    settings: Mapping[str, Any]
    epsilon: float
    delta: float
    private: bool
    metrics: Mapping[str, float]
    scores: Mapping[str, float]
    schema: str = field(default="", repr=False)

    @classmethod
    def read(cls, folder: Path) -> ComparedRun:
        """Reads a finished run.

        Raises DataError if the folder has none.
        """
        absent = [file for file in ("config.yaml", "ledger.json", "metrics.json") if not (folder / file).is_file()]
        if absent:
            raise DataError(f"{folder} is not the directory of a finished run: it has no {absent[0]}")
        comparison, scores = load_evaluation(folder, TableComparison), dict[str, float]()
        if comparison is not None:
            verdict = comparison.verdict()
            kinds = {"columns kept": verdict.columns, "linked pairs kept": verdict.links}
            if (of := verdict.persons) is not None:
                kinds |= {"facts of people kept": of.people, "linked steps kept": of.steps, "aggregates kept": of.facts}
            scores = {
                what: sum(one.state == "kept" for one in some) / len(some) for what, some in kinds.items() if some
            }
        schema = folder / "schema.yaml"
        try:
            ledger = read_facts(folder / "ledger.json")
            return cls(
                folder,
                flattened(yamlio.read_mapping(folder / "config.yaml")),
                float(ledger["epsilon"]),
                float(ledger["delta"]),
                bool(ledger["private"]),
                load_metrics(folder),
                scores,
                schema.read_text(encoding="utf-8") if schema.is_file() else "",
            )
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{folder} holds a damaged ledger.json or metrics.json") from None

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        metrics = {name: value if math.isfinite(value) else None for name, value in self.metrics.items()}
        facts = {key: value for key, value in vars(self).items() if key != "schema"}
        return facts | {"folder": str(self.folder), "metrics": metrics}


def rows_of(runs: Sequence[ComparedRun]) -> dict[str, Rows]:
    """Returns the rows of a comparison, by group.

    A row is (what, one text a run). The best of each metric has a star.

    Settings that all runs share are left out, but for mechanism and source. Runs whose schemas differ have no stars:
    a table whose columns say less is nearer to rows that are read by them.
    """
    alike, known = len({run.schema for run in runs}) == 1, all_metrics()
    settings = dict.fromkeys(key for run in runs for key in run.settings)
    shown = ["mechanism.name", "data.source"]
    shown += [key for key in settings if key not in (*shown, *_PLACES) and _differs(key, runs)]
    measured = dict.fromkeys(name for run in runs for name in run.metrics)
    metrics: Rows = []
    for name in dict.fromkeys(name for run in runs for name in run.scores):
        metrics.append((name, _marked([run.scores.get(name, math.nan) for run in runs], False if alike else None)))
    for name in sorted(measured, key=lambda name: name not in known):
        lower = known[name].lower_is_better if alike and name in known else None
        metrics.append((name, _marked([run.metrics.get(name, math.nan) for run in runs], lower)))
    schemas: Rows = [] if alike else [("schema differs in", ["-", *(_other(runs[0], run) for run in runs[1:])])]
    return {
        "settings": [*((key, [_setting(run.settings.get(key)) for run in runs]) for key in shown), *schemas],
        "guarantee": [
            ("epsilon", [f"{run.epsilon:.4g}" for run in runs]),
            ("delta", [f"{run.delta:g}" for run in runs]),
            ("may be released", ["yes" if run.private else "NO" for run in runs]),
        ],
        "metrics": metrics,
    }


def _other(first: ComparedRun, run: ComparedRun) -> str:
    """Returns the columns in which schemas of runs differ.

    What is said of no column goes by its key, such as constraints.
    """
    if run.schema == first.schema:
        return "nothing"
    parts = []
    for one in (first, run):
        known = yamlio.loads(one.schema, str(one.folder / "schema.yaml"))
        known = dict(known) if isinstance(known, Mapping) else {}
        columns = known.pop("columns", None)
        parts.append((dict(columns) if isinstance(columns, Mapping) else {}, known))
    both = zip(*parts, strict=True)
    names = [name for here, there in both for name in {**here, **there} if here.get(name) != there.get(name)]
    return ", ".join(map(str, names)) or "the order of columns"


def _differs(key: str, runs: Sequence[ComparedRun]) -> bool:
    return len({json.dumps(run.settings.get(key), sort_keys=True, default=str) for run in runs}) > 1


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name if "/" in value else value
    return "-" if value is None else json.dumps(value, default=str).replace('"', "")


def _marked(values: Sequence[float], lower_is_better: bool | None) -> list[str]:
    """Returns numbers as text, the best of several with a star.

    There is no star where it is not known which end is better.
    """
    finite = [value for value in values if math.isfinite(value)]
    best = math.nan
    if lower_is_better is not None and len(finite) > 1:
        best = min(finite) if lower_is_better else max(finite)
    return [number(value) + "*" * (value == best) for value in values]
