"""What the documentation says exists: links, commands, configurations, code, and every mechanism."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from fedsyn.config import RunConfig
from fedsyn.loading import load_config
from fedsyn.registry import MECHANISMS
from fedsyn.table.schema import Schema
from support.typed_commands import parse

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    page for name in ("*.md", "docs/**/*.md", "experiments/**/*.md", "benchmarks/*.md") for page in ROOT.glob(name)
)
PRINTED = sorted((ROOT / "configs" / "printed").glob("*.yaml"))
FILES = sorted([*(ROOT / "configs").glob("*.yaml"), *PRINTED])
SCHEMAS = [path for path in FILES if "columns" in yaml.safe_load(path.read_text(encoding="utf-8"))]
CONFIGS = [path for path in FILES if path not in SCHEMAS]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def own_configuration() -> str:
    """A run.yaml as docs/running.md shows it."""
    return blocks(ROOT / "docs" / "running.md", "yaml")[0]


def shell_lines(page: Path) -> list[str]:
    """Command lines of a page's shell blocks: continuation lines joined, comments and variables left out."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    words = (shlex.split(line, comments=True) for line in text.splitlines())
    stripped = (list(_without_variables(line)) for line in words)
    return [shlex.join(line) for line in stripped if line]


def _without_variables(words: list[str]) -> list[str]:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


FEDSYN_LINES = sorted(
    {line for page in PAGES for line in shell_lines(page) if line.split()[0] in ("fedsyn", ".venv/bin/fedsyn")}
)


def test_the_readme_starts_with_its_two_commands() -> None:
    readme = ROOT / "README.md"
    first = [line.split("#")[0].strip() for line in blocks(readme, "sh")[0].splitlines()]
    assert first == ["make demo", "make test"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    made = {line.split()[1] for page in PAGES for line in shell_lines(page) if line.startswith("make ")}
    assert {"demo", "test"} <= made <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}"
        assert path.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {link} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_blocks_compile(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")
    for text in blocks(page, "yaml"):
        yaml.safe_load(text)


def test_there_are_commands_to_check() -> None:
    assert any(line.startswith("fedsyn run configs/") for line in FEDSYN_LINES)
    with pytest.raises(click.UsageError):
        parse("fedsyn run configs/demo.yaml --no-such-option")
    with pytest.raises(click.UsageError):
        parse("fedsyn no-such-command")


@pytest.mark.parametrize("line", FEDSYN_LINES)
def test_documented_commands_parse(line: str, tmp_path: Path) -> None:
    context = parse(line)
    file = context.params.get("config")
    if file is None:
        return
    path = ROOT / file
    if not str(file).startswith("configs/"):  # the reader's own run.yaml
        path = tmp_path / "run.yaml"
        path.write_text(own_configuration(), encoding="utf-8")
    load_config(path, context.params.get("set_") or ())


def test_the_configuration_of_running_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(own_configuration(), encoding="utf-8")
    assert load_config(path).runtime.seed is None


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_configurations_parse_and_survive_saving(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    config.save(tmp_path / "again.yaml")
    assert isinstance(config, RunConfig) and load_config(tmp_path / "again.yaml") == config


@pytest.mark.parametrize("path", SCHEMAS, ids=name_of)
def test_example_schemas_are_usable_as_they_are(path: Path) -> None:
    Schema.load(path).require_approved()


def mechanism_sections() -> dict[str, str]:
    """The section of each mechanism on its family's page; options are in docs/reference/options.md."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "mechanisms").glob("*.md"))
    return dict(re.findall(r"^##? (\w+)\n(.*?)(?=^##? \w+\n|\Z)", text, re.MULTILINE | re.DOTALL))


def test_every_mechanism_is_described_and_configured() -> None:
    sections = mechanism_sections()
    configured = {load_config(path).mechanism.name for path in CONFIGS}
    for name, entry in MECHANISMS.items():
        if entry.strategy.startswith("fedsyn.plugins.strategies."):  # not those that another test registers
            assert name in sections, f"docs/mechanisms has no section '{name}'"
            assert name in configured, f"no configuration in configs/ runs '{name}'"


def test_what_is_printed_is_named_where_its_mechanism_is_described() -> None:
    sections = mechanism_sections()
    for path in PRINTED:
        assert f"(../../{name_of(path)})" in sections[path.stem], f"docs/mechanisms does not link {name_of(path)}"


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


def test_nobody_is_told_to_install_fedsyn_by_its_name() -> None:
    """Whoever registers that name on a package index runs code beside all rows: a file is named, with its hash."""
    by_name = re.compile(r"pip install[^`\n]*[ '\"]fedsyn(?![-\w./])|\bfedsyn\[")
    assert all(by_name.search(f"{start}fedsyn{end}") for start, end in (("pip install ", ""), ("install ", "[fhe]")))
    folders = (
        "docs",
        "fedsyn",
        "strategies",
        "clients",
        "partitioners",
        "configs",
        "experiments",
        "benchmarks",
        "deploy",
    )
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")]
    read = [
        path for path in files if path.suffix in (".md", ".py", ".yaml", ".ipynb", ".service", "") and path.is_file()
    ]
    assert len(read) > 500
    told = [f"{p.relative_to(ROOT)}: {found[0]}" for p in read for found in by_name.finditer(p.read_text("utf-8"))]
    assert told == []
