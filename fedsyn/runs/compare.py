"""Runs side by side: what they were told, what they guarantee, and how good their tables are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsyn import yamlio
from fedsyn.errors import DataError
from fedsyn.evaluation.real.metrics import all_metrics
from fedsyn.loading import flattened
from fedsyn.runs.directory import read_facts

_NEEDED = ("config.yaml", "ledger.json", "metrics.json")
# Settings that say where a run happened, and not what it was.
_PLACES = (
    "format",
    "data.schema",
    "runtime.client_cpus",
    "runtime.ray",
    "runtime.operator",
    "runtime.operator_key",
)


@dataclass(frozen=True)
class ComparedRun:
    """One run.

    Attributes:
        name: what to call it: the end of its path by which it differs from the others.
        folder: its directory.
        settings: dotted key -> value of its configuration.
        epsilon, delta: of its ledger.
        private: whether its table may be released.
        metrics: name -> value, None where it is not finite.
        scores: shares of columns and of linked pairs that are kept beside the real rows, where those were compared.
        schema: what its columns are, as text.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]
    epsilon: float
    delta: float
    private: bool
    metrics: Mapping[str, float | None]
    scores: Mapping[str, float]
    schema: str = field(default="", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**{key: value for key, value in vars(self).items() if key != "schema"}, "folder": str(self.folder)}


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Some finished runs.

    Raises:
        DataError: one of them is none; says which.
    """
    return [_read(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def _read(folder: Path, name: str) -> ComparedRun:
    absent = [file for file in _NEEDED if not (folder / file).is_file()]
    if absent:
        raise DataError(f"{folder} is not the directory of a finished run: it has no {absent[0]}")
    try:
        ledger, metrics = read_facts(folder / "ledger.json"), read_facts(folder / "metrics.json")
        return ComparedRun(
            name,
            folder,
            flattened(yamlio.read_mapping(folder / "config.yaml")),
            float(ledger["epsilon"]),
            float(ledger["delta"]),
            bool(ledger["private"]),
            metrics,
            _scores(folder),
            (folder / "schema.yaml").read_text(encoding="utf-8") if (folder / "schema.yaml").is_file() else "",
        )
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder} holds a damaged ledger.json or metrics.json") from None


def _scores(folder: Path) -> dict[str, float]:
    from fedsyn.evaluation.real.comparison import TableComparison
    from fedsyn.runs.report import load_evaluation

    comparison = load_evaluation(folder, TableComparison)
    if comparison is None:
        return {}
    said = comparison.verdict()
    kinds = {"columns kept": said.columns, "linked pairs kept": said.links}
    return {name: sum(one.state == "kept" for one in some) / len(some) for name, some in kinds.items() if some}


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ; the whole paths where the same run is given twice."""
    paths = [folder.resolve() for folder in folders]
    longest = max(len(path.parts) for path in paths)
    for length in range(1, longest + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


Rows = list[tuple[str, list[str]]]


def rows_of(runs: Sequence[ComparedRun]) -> list[tuple[str, Rows]]:
    """What a comparison shows: (group, [(what, one text a run)]). The best of each metric has a star.

    Settings that all runs share are left out, but for mechanism and source. Runs whose schemas differ have no stars:
    a table whose columns say less is nearer to rows that are read by them.
    """
    alike = len({run.schema for run in runs}) == 1
    settings = dict.fromkeys(key for run in runs for key in run.settings)
    shown = ["mechanism.name", "data.source"]
    shown += [key for key in settings if key not in (*shown, *_PLACES) and _differs(key, runs)]
    given = [(key, [_setting(run.settings.get(key)) for run in runs]) for key in shown]
    guarantee = [
        ("epsilon", [f"{run.epsilon:.4g}" for run in runs]),
        ("delta", [f"{run.delta:g}" for run in runs]),
        ("may be released", ["yes" if run.private else "NO" for run in runs]),
    ]
    known = all_metrics()
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    values: Rows = []
    for name in [*(n for n in names if n in known), *(n for n in names if n not in known)]:
        lower = known[name].lower_is_better if alike and name in known else None
        values.append((name, _marked([run.metrics.get(name, math.nan) for run in runs], lower)))
    scored = dict.fromkeys(name for run in runs for name in run.scores)
    scores = [
        (name, _marked([run.scores.get(name, math.nan) for run in runs], False if alike else None)) for name in scored
    ]
    return [("settings", given), ("guarantee", guarantee), ("metrics", scores + values)]


def _differs(key: str, runs: Sequence[ComparedRun]) -> bool:
    return len({json.dumps(run.settings.get(key), sort_keys=True, default=str) for run in runs}) > 1


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name if "/" in value else value
    return "-" if value is None else json.dumps(value, default=str).replace('"', "")


def _marked(values: Sequence[float | None], lower_is_better: bool | None) -> list[str]:
    """Numbers as text: a dash for a missing one, a star at the best if it is known which end is better."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    best = None
    if lower_is_better is not None and len(finite) > 1:
        best = min(finite) if lower_is_better else max(finite)
    texts = []
    for value in values:
        if value is None:
            texts.append("not finite")
        elif math.isnan(value):
            texts.append("-")
        else:
            texts.append(f"{value:.4g}" + ("*" if value == best else ""))
    return texts
