"""Lint of the docs finds planted mistakes, and shipped configurations are what the pages promise of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import click
import docs_lint
import pytest

from fedsyn.config import RunConfig
from fedsyn.loading import load_config
from support.parsed import ROOT
from support.typed_commands import parse

MAKEFILE = "demo: setup\n\ttrue\n\ntest: setup\n\ttrue\n"
README = "# One\n\n```sh\nmake demo    # first\nmake test\n```\n"
CONFIG = (ROOT / "configs" / "demo.yaml").read_text(encoding="utf-8")
EXPERIMENT = {
    "README.md": "`python experiments/check.py small` prints 0.512",
    "sweep.yaml": """\
base:
  mechanism: {name: aim, rounds: 2}
  data: {source: synthfs, options: {rows: 400, clients: 4, features: 3}, bins: 4}
  federation: {clients: 4, partition: native}
  privacy: {epsilon: 1.0, delta: 1.0e-5}
  workload: {degree: 2, size: 2}
  evaluation: [workload_error]
grid: {privacy.epsilon: [0.1, 100.0]}
seeds: [0, 1, 2]
""",
    "expected.yaml": "values: [{where: {privacy.epsilon: 0.1}, metric: workload_error, expected: 0.512}]\n",
}
Write = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Write:
    """A tree without a mistake, and `tree(NAME=TEXT)`, which writes files into it."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    write({"Makefile": MAKEFILE, "README.md": README, "CONTRIBUTING.md": "", "docs/index.md": "# Index\n"})
    write({"mkdocs.yml": "nav: [index.md]\n", "configs/demo.yaml": CONFIG})
    write({f"experiments/small/{name}": text for name, text in EXPERIMENT.items()})
    write({"experiments/check.py": (ROOT / "experiments" / "check.py").read_text(encoding="utf-8")})
    return write


def found(check: Callable[[Path], object], root: Path) -> list[str]:
    docs_lint.sweep_of.cache_clear()
    docs_lint._read.cache_clear()
    return [str(finding) for finding in check(root)]  # type: ignore[attr-defined]


QUIET = [check for check in docs_lint.CHECKS if check is not docs_lint.mechanisms]  # the tree has none of them


def test_a_tree_without_a_mistake_is_quiet(tree: Write) -> None:
    assert [text for check in QUIET for text in found(check, tree({}))] == []


PAGE = "docs/index.md"
PLANTED = [
    (docs_lint.links, PAGE, "# A\n\n[x](gone.md)", f"{PAGE}:3: the link gone.md leads nowhere"),
    (docs_lint.links, PAGE, "# A\n[x](../../etc)", f"{PAGE}:2: the link ../../etc leads nowhere"),
    (docs_lint.links, PAGE, "# A\n[x](#b)", f"{PAGE}:2: the link #b leads to no heading"),
    (docs_lint.links, PAGE, "# A\n[x](../README.md#two)", f"{PAGE}:2: the link ../README.md#two leads to no heading"),
    (docs_lint.code, PAGE, "\n```python\nx = 1\ny = = 2\n```\n", f"{PAGE}:4: Python does not compile: invalid syntax"),
    (docs_lint.code, PAGE, "```yaml\na: [1\nb: 2\n```\n", f"{PAGE}:3: YAML cannot be read: "),
    (docs_lint.commands, PAGE, "```sh\nmake tests\n```\n", f"{PAGE}:2: the Makefile has no target tests"),
    (docs_lint.commands, PAGE, "```sh\nmake demo\nA=1 fedsyn rnu x\n```\n", f"{PAGE}:3: fedsyn rnu x: No such command"),
    (docs_lint.commands, PAGE, "```sh\nfedsyn run configs/demo.yaml \\\n  --sett a=b\n```\n", f"{PAGE}:2: fedsyn run"),
    (docs_lint.commands, PAGE, "```sh\nfedsyn run configs/absent.yaml\n```\n", "absent.yaml"),
    (docs_lint.commands, PAGE, "```sh\nfedsyn run configs/demo.yaml --set privcay=1\n```\n", "did you mean 'privacy'"),
    (docs_lint.headlines, PAGE, "# Two\n\n## One\n\n```sh\n# one\n```\n\n## one\n", f"{PAGE}:9: 'one' stands at"),
    (docs_lint.headlines, PAGE, "**It is so.** A\n\n- **It is so.** B\n", f"{PAGE}:3: 'It is so.' stands at {PAGE}:1"),
    (docs_lint.navigation, "docs/more.md", "# More\n", "docs/more.md:1: mkdocs.yml does not list this page"),
    (docs_lint.first_commands, "README.md", "```sh\nmake test\n```\n", "README.md:1: its first two commands"),
    (docs_lint.configurations, "configs/demo.yaml", CONFIG.replace("workload", "wrokload"), "did you mean 'workload'"),
    (docs_lint.configurations, "configs/schema.yaml",
     "columns: {age: {kind: integer, lower: 0, upper: 9, drafted: [lower]}}\n", "not approved"),
    (docs_lint.mechanisms, "docs/mechanisms/aim.md", "# aim\n", "docs/mechanisms:1: there is no section 'mst'"),
    (docs_lint.mechanisms, "docs/mechanisms/aim.md", "# aim\n", "configs:1: no configuration runs 'mst'"),
    (docs_lint.mechanisms, "configs/printed/aim.yaml", CONFIG, "the section 'aim' does not link configs/"),
    (docs_lint.installs, "docs/index.md", "\npip install 'fedsyn[fhe]'", "docs/index.md:2: "),
    (docs_lint.installs, "deploy/a.service", "ExecStart=pip install fedsyn", "deploy/a.service:1: "),
    (docs_lint.experiments, "experiments/other/README.md", "", "experiments/other:1: there is no expected.yaml"),
    (docs_lint.experiments, "experiments/small/README.md", "", "experiments/small/README.md:1: it does not name"),
    (docs_lint.experiments, "experiments/small/sweep.yaml", EXPERIMENT["sweep.yaml"].replace("1, 2]", "1]"),
     "fewer than three seeds"),
    (docs_lint.experiments, "experiments/small/sweep.yaml", EXPERIMENT["sweep.yaml"].replace("seeds: [0, 1, 2]", ""),
     "fewer than three seeds, or one without"),
    (docs_lint.experiments, "experiments/small/README.md", EXPERIMENT["README.md"] + " in /work/a", "a folder of one"),
    (docs_lint.experiments, "experiments/small/sweep.yaml", "base: absent.yaml\n", "absent.yaml"),
    (docs_lint.experiments, "experiments/small/expected.yaml",
     EXPERIMENT["expected.yaml"].replace("workload_error", "nll"), "the sweep does not measure 'nll'"),
    (docs_lint.experiments, "experiments/small/expected.yaml", EXPERIMENT["expected.yaml"].replace("0.1", "3.0"),
     "no cell"),
    (docs_lint.experiments, "experiments/small/expected.yaml",
     EXPERIMENT["expected.yaml"].replace("0.512", "0.513"), "0.513"),
    (docs_lint.experiments, "experiments/small/expected.yaml",
     "claims: [{says: c, metric: workload_error, held: true, descending: [{privacy.epsilon: 0.1}]}]",
     "the claim 'c' compares nothing"),
    (docs_lint.experiments, "experiments/small/expected.yaml",
     "claims: [{says: c, metric: workload_error, held: true,"
     " descending: [{privacy.epsilon: 0.1}, {privacy.epsilon: 0.1}]}]",
     "a claim compares a combination with itself"),
    (docs_lint.experiments, "experiments/small/expected.yaml", "panels: [{metric: workload_error, x: privacy.epsilon}]",
     "neither a value nor a claim"),
]  # fmt: skip


def test_planted_mistakes_are_found(tree: Write, tmp_path: Path) -> None:
    good = {path: path.read_text(encoding="utf-8") for path in tree({}).rglob("*") if path.is_file()}
    for check, name, text, words in PLANTED:
        findings = found(check, tree({name: text}))
        assert any(words in finding for finding in findings), f"{name}: {text!r}: {findings}"
        if tmp_path / name in good:
            tree({name: good[tmp_path / name]})
        else:
            (tmp_path / name).unlink()
            if not any((tmp_path / name).parent.iterdir()):
                (tmp_path / name).parent.rmdir()


def test_lint_reads_what_there_is_to_read() -> None:
    typed = [words for page in docs_lint.pages(ROOT) for _, words in page.commands()]
    assert len([words for words in typed if words[:2] == ["fedsyn", "run"] and words[2].startswith("configs/")]) >= 3
    assert {"demo", "test"} <= {words[1] for words in typed if words[0] == "make"}
    configs, schemas = docs_lint.shipped(ROOT)
    assert len(configs) > 20 and schemas
    assert len(list((ROOT / "experiments").glob("*/expected.yaml"))) >= 15
    with pytest.raises(click.UsageError):
        parse("fedsyn run configs/demo.yaml --no-such-option")


def test_configurations_survive_saving(tmp_path: Path) -> None:
    for path in docs_lint.shipped(ROOT)[0]:
        config = load_config(path)
        config.save(tmp_path / "again.yaml")
        assert isinstance(config, RunConfig) and load_config(tmp_path / "again.yaml") == config, path.name


def test_the_configuration_of_running_has_no_seed(tmp_path: Path) -> None:
    shown = next(iter(docs_lint.Page(ROOT, ROOT / "docs" / "running.md").blocks("yaml")))
    (tmp_path / "run.yaml").write_text(shown.text, encoding="utf-8")
    assert load_config(tmp_path / "run.yaml").runtime.seed is None


def test_the_shipped_deployment_is_private_and_asks_for_no_metric() -> None:
    config = load_config(ROOT / "configs" / "deployment.yaml")
    assert config.runtime.engine == "deployment" and config.runtime.seed is None and not config.evaluation.metrics
    assert (config.aggregation.protocol, config.aggregation.noise) == ("secagg", "distributed")


@pytest.mark.parametrize(("benchmark", "settings"), [("bench_mechanisms", "SETTINGS"), ("bench_sketch", "ABLATIONS")])
def test_what_a_benchmark_compares_are_configurations(benchmark: str, settings: str) -> None:
    spec = importlib.util.spec_from_file_location(benchmark, ROOT / "benchmarks" / f"{benchmark}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compared = [load_config(module.CONFIG, sets) for sets in getattr(module, settings)]
    assert len({config.sha256 for config in compared}) == len(compared) > 10
