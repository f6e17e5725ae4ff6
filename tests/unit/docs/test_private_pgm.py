"""docs/private_pgm.md, followed literally: its Python runs from top to bottom and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedsyn.inference.engines import ESTIMATORS
from fedsyn.loading import parse_config
from fedsyn.yamlio import loads

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "private_pgm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("mbi")
    program = "".join(text for language, text in BLOCKS if language == "python")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(text for language, text in BLOCKS if language == "text")


def test_the_page_names_every_estimator() -> None:
    assert all(f"`{name}`" in PAGE for name in ESTIMATORS)
    (node,) = (text for language, text in BLOCKS if language == "yaml")
    document = {"privacy": {"epsilon": 1, "delta": 1e-6}, "data": {"source": "a.csv"}, **loads(node, "the page")}
    assert parse_config(document).inference.engine == "mbi"
