"""What a first step imports and an install brings: names of what is heavy and must not be there, and no seconds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
_CHARTS = ["altair", "matplotlib", "vl_convert", "ray", "jax"]
_LEARNERS = ["scipy.stats", "sklearn", "statsmodels", "formulaic"]  # which predict, or estimate a regression
_PARTIES = ["fedsyn.stores.crypto", "fedsyn.stores.mpc", "fedsyn.crypto.fhe", "fedsyn.crypto.mpc", "cryptography.x509"]
_RUN = "from fedsyn.front.cli import app; app(['run', 'run.yaml', '--out', '{}', *{}], standalone_mode=False)"
_RUNS = ["flwr", "grpc", "cryptography", "scipy.stats", "pandas", "pyarrow", "jinja2", "rich", "fedsyn.runs"]


RUN = """
mechanism: {name: sketch_aim, rounds: 2}
data: {source: table.csv, schema: schema.yaml}
federation: {clients: 1}
privacy: {epsilon: 1.0, delta: 1.0e-6}
aggregation: {protocol: plain, noise: server}
runtime: {seed: 0}
"""


#: What is typed, and what it leaves out. The steps of a chain are taken in one process: what one of them brings, all
#: after it have, so none of them may bring what a later one leaves out.
CHAINS: dict[str, list[tuple[str, list[str]]]] = {
    "--help": [
        (
            "import fedsyn.front.cli as cli\ntry: cli.app(['--help'], standalone_mode=False)\nexcept SystemExit: pass",
            ["numpy", "pydantic", "yaml", "scipy", "flwr", "pandas", "pyarrow", "fedsyn.config", "fedsyn.table"],
        )
    ],
    "a file": [
        (
            "from fedsyn.table.data.sources import read_cells; read_cells('rows.csv', {'separator': ';'})",
            ["fedsyn.config", "scipy", "flwr"],
        )
    ],
    "Schema, Synthesizer, engines, a whole run, one with a label": [
        ("import fedsyn; fedsyn.Schema", [*_RUNS, "scipy", "fedsyn.config"]),
        ("import fedsyn; fedsyn.Synthesizer()", _RUNS),
        (  # what a holder's node leaves out: tests/unit/flower/test_client_app.py
            "import fedsyn.runs.engines, fedsyn.front.archive",
            ["flwr.superlink", "sqlalchemy", "fastapi", "alembic", *_CHARTS, *_LEARNERS],
        ),
        (_RUN.format("out", []), [*_CHARTS, *_LEARNERS, *_PARTIES, "scipy.optimize"]),  # to its page
        (_RUN.format("labelled", ["--set", "data.label=b"]), [*_CHARTS, "statsmodels.api", "statsmodels.tsa"]),
    ],
}


@pytest.mark.parametrize("steps", CHAINS.values(), ids=CHAINS)
def test_a_first_step_leaves_out_what_it_does_not_need(steps: list[tuple[str, list[str]]], tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a;b\n1;2\n")
    (tmp_path / "table.csv").write_text("a,b\n" + "1,1\n2,2\n2,1\n" * 200)
    (tmp_path / "schema.yaml").write_text("columns: {a: &two {kind: categorical, categories: [1, 2]}, b: *two}\n")
    (tmp_path / "run.yaml").write_text(RUN)
    found = "print('found:', [name for name in {} if name in sys.modules])"
    code = "\n".join(["import sys", *(f"{step}\n{found.format(absent)}" for step, absent in steps)])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("found: ")]
    assert said == ["found: []"] * len(steps)


def brought(asked: list[str], extra: str = "", known: set[tuple[str, str]] | None = None) -> set[str]:
    """Names of all distributions that requirements bring, as far as they are installed here."""
    known = set() if known is None else known
    for one in map(Requirement, asked):
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            for more in {"", *one.extras} - {more for name, more in known if name == one.name.lower()}:
                known.add((one.name.lower(), more))
                brought(_required(one.name, more), more, known)
    return {name for name, _ in known}


def _required(name: str, extra: str) -> list[str]:
    """Of fedsyn what pyproject.toml says, of others what is installed."""
    if name == "fedsyn":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return list(project["optional-dependencies"][extra] if extra else project["dependencies"])
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def test_what_few_ask_for_is_in_no_other_extra() -> None:
    heavy = {"xgboost", "pot", "jaxlib", "ray", "llvmlite", "scikit-learn", "statsmodels", "tenseal"}
    for extra, brings in {
        "fedsyn": set(),
        "fedsyn[report]": {"altair"},
        "fedsyn[evaluation]": {"altair", "scikit-learn"},
        "fedsyn[papers]": {"altair", "scikit-learn", "xgboost", "pot"},
    }.items():
        assert brought([extra]) & {*heavy, "altair"} == brings
    assert not brought(["fedsyn[simulation]"]) & {"xgboost", "pot", "jaxlib"}
