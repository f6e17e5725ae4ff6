"""docs/adding_a_mechanism.md runs from top to bottom."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedsyn.registry as registry

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_mechanism.md"


@pytest.mark.thorough
def test_the_example_of_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n# (\S+).*?\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert [where for where, _ in blocks] == ["clients/vote.py", "strategies/vote.py", "anywhere", "anywhere"]
    for where, code in blocks:
        module = ModuleType(where.removesuffix(".py").replace("/", "."))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(code, f"{PAGE.name}: {where}", "exec"), vars(module))  # names: what the page's files would hold
    metrics = vars(sys.modules["anywhere"])["metrics"]
    assert 0 < metrics["workload_error"] < 2
    assert (tmp_path / "runs" / "vote" / "synthetic.csv").is_file()
