"""Lint of the pages, the configurations that they name, and the experiments: part of `make lint`.

    python tests/docs_lint.py

Prints each finding as `FILE:LINE: what is wrong` and exits with 1 if there is one. Nothing is run: the code that pages
show is executed by tests (tests/unit/docs, tests/e2e/test_tutorials.py, tests/e2e/test_deploy_docs.py).
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import yaml

from fedsyn.config import RunConfig
from fedsyn.errors import FedsynError
from fedsyn.loading import load_config
from fedsyn.registry import MECHANISMS
from fedsyn.registry import metric as metric_named
from fedsyn.sweep import load_sweep
from fedsyn.sweep.spec import Sweep
from fedsyn.table.schema import Schema
from support.typed_commands import parse

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "experiments/**/*.md", "benchmarks/*.md")
#: Metrics of a sweep that no evaluation has to ask for.
COSTS = {"seconds", "peak_mb", "client_mb_up", "client_mb_down", "party_mb", "party_rounds", "party_cpu"}

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.*)$")
_LEAD = re.compile(r"^(?:[-*] |\d+\. )?\*\*([A-Z][^*]*\.)\*\*")
_NAV = re.compile(r"[\w/.]+\.md")


@dataclass(frozen=True, order=True)
class Finding:
    """A mistake, and where it stands."""

    page: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        line: the number of its first line.
    """

    language: str
    line: int
    text: str


class Page:
    """A page of Markdown below the root of a tree."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path, self.name = path, path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8")

    def at(self, offset: int) -> int:
        """The number of the line at an offset."""
        return self.text.count("\n", 0, offset) + 1

    def finding(self, line: int, what: str) -> Finding:
        return Finding(self.name, line, what)

    def blocks(self, language: str) -> Iterator[Block]:
        for match in _FENCED.finditer(self.text):
            if match[1] == language:
                yield Block(language, self.at(match.start(2)), match[2])

    def prose(self) -> Iterator[tuple[int, str]]:
        """Yields (number, line) outside of fenced blocks."""
        blank = _FENCED.sub(lambda match: "\n" * match[0].count("\n"), self.text)
        yield from enumerate(blank.splitlines(), 1)

    def headings(self) -> Iterator[tuple[int, int, str]]:
        """Yields (line, level, text) of each heading."""
        for number, line in self.prose():
            if match := _HEADING.match(line):
                yield number, len(match[1]), match[2].strip()

    def anchors(self) -> set[str]:
        """Anchors of the headings, as GitHub makes them."""
        return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for _, _, text in self.headings()}

    def commands(self) -> Iterator[tuple[int, list[str]]]:
        """Yields (line, words) of each command of the shell blocks, without variables that are set before it."""
        for block in self.blocks("sh"):
            typed, first = "", block.line
            for number, line in enumerate(block.text.splitlines(), block.line):
                first = first if typed else number
                typed += line.removesuffix("\\") + " "
                if not line.endswith("\\"):
                    words = shlex.split(typed, comments=True)
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0], re.DOTALL):
                        words = words[1:]
                    if words:
                        yield first, words
                    typed = ""


def pages(root: Path) -> list[Page]:
    """Every page of a tree."""
    return [Page(root, path) for pattern in PAGES for path in sorted(root.glob(pattern))]


# Pages ---------------------------------------------------------------------------------------------------------------


def links(root: Path) -> Iterator[Finding]:
    """Finds relative links to nothing, to what is outside of the tree, and to headings that are not there."""
    everything = {page.path.resolve(): page for page in pages(root)}
    for page in everything.values():
        for match in re.finditer(r"\]\(([^)\s]+)\)", page.text):
            link, line = match[1], page.at(match.start())
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            path = (page.path.parent / target).resolve() if target else page.path.resolve()
            if not path.exists() or not path.is_relative_to(root):
                yield page.finding(line, f"the link {link} leads nowhere")
            elif anchor and (path not in everything or anchor not in everything[path].anchors()):
                yield page.finding(line, f"the link {link} leads to no heading")


def code(root: Path) -> Iterator[Finding]:
    """Finds Python that does not compile and YAML that cannot be read."""
    for page in pages(root):
        for block in page.blocks("python"):
            try:
                compile(block.text, page.name, "exec")
            except SyntaxError as error:
                yield page.finding(block.line + (error.lineno or 1) - 1, f"Python does not compile: {error.msg}")
        for block in page.blocks("yaml"):
            try:
                yaml.safe_load(block.text)
            except yaml.MarkedYAMLError as error:
                line = error.problem_mark.line if error.problem_mark else 0
                yield page.finding(block.line + line, f"YAML cannot be read: {error.problem}")


def commands(root: Path) -> Iterator[Finding]:
    """Finds commands that fedsyn and make would refuse, and configurations that they name and cannot read."""
    targets = set(re.findall(r"^([\w-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    with tempfile.TemporaryDirectory() as folder:
        typed_by_the_reader = Path(folder) / "run.yaml"  # the run.yaml that docs/running.md shows
        if (running := root / "docs" / "running.md").is_file():
            shown = next(iter(Page(root, running).blocks("yaml")))
            typed_by_the_reader.write_text(shown.text, encoding="utf-8")
        for page in pages(root):
            for line, words in page.commands():
                if words[0] == "make" and words[1] not in targets:
                    yield page.finding(line, f"the Makefile has no target {words[1]}")
                if words[0] in ("fedsyn", ".venv/bin/fedsyn"):
                    try:
                        context = parse(shlex.join(words))
                        file = context.params.get("config")
                        if file is not None:
                            shipped = str(file).startswith("configs/")
                            load_config(root / file if shipped else typed_by_the_reader, context.params["set_"] or ())
                    except (click.UsageError, FedsynError) as error:
                        sentence = error.format_message() if isinstance(error, click.UsageError) else str(error)
                        yield page.finding(line, f"{shlex.join(words)}: {sentence}")


def headlines(root: Path) -> Iterator[Finding]:
    """Finds headings, and bold sentences that open a paragraph, that stand twice in the prose of docs/."""
    first: dict[str, str] = {}
    for page in pages(root):
        if not page.name.startswith("docs/") or page.name.startswith("docs/reference/"):
            continue
        leads = [(line, match[1]) for line, text in page.prose() if (match := _LEAD.match(text))]
        for line, text in sorted([*leads, *((line, text) for line, _, text in page.headings())]):
            before = first.setdefault(text.lower(), f"{page.name}:{line}")
            if before != f"{page.name}:{line}":
                yield page.finding(line, f"'{text}' stands at {before}, too")


def navigation(root: Path) -> Iterator[Finding]:
    """Finds pages of docs/ that mkdocs.yml does not list."""
    text = re.sub(r"!!python\S* \{.*?\}\}?", "x", (root / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = set(_NAV.findall(yaml.safe_dump(yaml.safe_load(text)["nav"])))
    for path in sorted((root / "docs").glob("**/*.md")):
        if path.relative_to(root / "docs").as_posix() not in listed:
            yield Finding(path.relative_to(root).as_posix(), 1, "mkdocs.yml does not list this page")


def first_commands(root: Path) -> Iterator[Finding]:
    """Finds a README that does not start with the two commands that set everything up."""
    typed = [shlex.join(words) for _, words in Page(root, root / "README.md").commands()]
    if typed[:2] != ["make demo", "make test"]:
        yield Finding("README.md", 1, "its first two commands are not `make demo` and `make test`")


# Configurations ------------------------------------------------------------------------------------------------------


def shipped(root: Path) -> tuple[list[Path], list[Path]]:
    """The configurations and the schemas of configs/, those of configs/printed included."""
    files = sorted([*(root / "configs").glob("*.yaml"), *(root / "configs" / "printed").glob("*.yaml")])
    schemas = [path for path in files if "columns" in yaml.safe_load(path.read_text(encoding="utf-8"))]
    return [path for path in files if path not in schemas], schemas


@cache
def _read(path: Path) -> RunConfig | FedsynError:
    try:
        return load_config(path)
    except FedsynError as error:
        return error


def configurations(root: Path) -> Iterator[Finding]:
    """Finds configurations and schemas of configs/ that cannot be used as they are."""
    configs, schemas = shipped(root)
    for path in configs:
        if isinstance(error := _read(path), FedsynError):
            yield Finding(path.relative_to(root).as_posix(), 1, str(error))
    for path in schemas:
        try:
            Schema.load(path).require_approved()
        except FedsynError as error:
            yield Finding(path.relative_to(root).as_posix(), 1, str(error))


def mechanisms(root: Path) -> Iterator[Finding]:
    """Finds mechanisms that no section of docs/mechanisms describes, no configuration runs, or no section links."""
    texts = "".join(path.read_text(encoding="utf-8") for path in (root / "docs" / "mechanisms").glob("*.md"))
    sections = dict(re.findall(r"^##? (\w+)\n(.*?)(?=^##? \w+\n|\Z)", texts, re.MULTILINE | re.DOTALL))
    read = [_read(path) for path in shipped(root)[0]]
    configured = {config.mechanism.name for config in read if isinstance(config, RunConfig)}
    for name, entry in MECHANISMS.items():
        if entry.strategy.startswith("fedsyn.plugins.strategies."):  # not those that somebody else registers
            if name not in sections:
                yield Finding("docs/mechanisms", 1, f"there is no section '{name}'")
            if name not in configured:
                yield Finding("configs", 1, f"no configuration runs '{name}'")
    for path in (root / "configs" / "printed").glob("*.yaml"):
        if f"(../../{path.relative_to(root).as_posix()})" not in sections.get(path.stem, ""):
            yield Finding("docs/mechanisms", 1, f"the section '{path.stem}' does not link {path.relative_to(root)}")


#: Anyone who registers that name on a package index runs code beside all rows: a file is named, with its hash.
BY_NAME = re.compile(r"pip install[^`\n]*[ '\"]fedsyn(?![-\w./])|\bfedsyn\[")
TOLD = ("docs", "fedsyn", "strategies", "clients", "partitioners", "configs", "experiments", "benchmarks", "deploy")


def installs(root: Path) -> Iterator[Finding]:
    """Finds texts that have somebody install fedsyn by its name."""
    files = [path for folder in TOLD for path in (root / folder).rglob("*")]
    files += [root / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")]
    for path in files:
        if path.suffix in (".md", ".py", ".yaml", ".ipynb", ".service", "") and path.is_file():
            text = path.read_text(encoding="utf-8")
            for match in BY_NAME.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield Finding(path.relative_to(root).as_posix(), line, f"{match[0]!r}: name a file, with its hash")


# Experiments ---------------------------------------------------------------------------------------------------------


#: Folders of experiments/ that are no experiment: what several of them use.
SHARED = {"variants"}


@cache
def sweep_of(folder: Path) -> Sweep:
    """An experiment's sweep: parsed, and the configuration of every cell checked."""
    return load_sweep(folder / "sweep.yaml")


@cache
def checker(root: Path) -> ModuleType:
    """The module experiments/check.py of a tree."""
    spec = importlib.util.spec_from_file_location("experiments_check", root / "experiments" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def experiments(root: Path) -> Iterator[Finding]:
    """Finds experiments without expected values or a command, and expected values that do not fit their sweep."""
    for folder in sorted(path for path in (root / "experiments").iterdir() if path.is_dir()):
        if folder.name.startswith("_") or folder.name in SHARED:
            continue
        name = folder.relative_to(root).as_posix()
        if not (folder / "expected.yaml").is_file():
            yield Finding(name, 1, "there is no expected.yaml")
            continue
        swept = (folder / "sweep.yaml").exists()
        command = f"python experiments/{f'check.py {folder.name}' if swept else f'{folder.name}/run.py'}"
        readme = (folder / "README.md").read_text(encoding="utf-8") if (folder / "README.md").is_file() else ""
        if command not in readme:
            yield Finding(f"{name}/README.md", 1, f"it does not name its command: {command}")
        if "/work/" in readme:
            yield Finding(f"{name}/README.md", 1, "it names a folder of one machine: /work/")
        if swept:
            try:
                yield from (Finding(f"{name}/expected.yaml", 1, what) for what in _misfits(root, folder))
                yield from (Finding(f"{name}/sweep.yaml", 1, what) for what in _few_seeds(sweep_of(folder)))
            except FedsynError as error:
                yield Finding(name, 1, str(error))


def _few_seeds(sweep: Sweep) -> Iterator[str]:
    seeds: dict[str, set[int | None]] = {}
    for cell in sweep.cells:
        seeds.setdefault(repr(cell.axes), set()).add(cell.seed)
    for axes, found in seeds.items():
        if len(found) < 3 or None in found:
            yield f"{axes} has fewer than three seeds, or one without"


def _misfits(root: Path, folder: Path) -> Iterator[str]:
    check, sweep = checker(root), sweep_of(folder)
    lookup, expected = check.Lookup(sweep), check.Expected.load(folder / "expected.yaml")
    asked = {metric for cell in sweep.cells for metric in cell.config.evaluation.metrics}
    known = COSTS | {metric_named(name).name for name in asked}
    judged: list[Any] = [*expected.ranks, *expected.values, *expected.claims, *expected.panels]
    named = {name for each in judged for name in each.metric.split(" + ")}
    yield from (f"the sweep does not measure '{name}'" for name in sorted(named - known))
    if not (expected.values or expected.claims):
        yield "it expects neither a value nor a claim"
    for rank in expected.ranks:
        if not len(rank.of) == len(rank.expected) == len(rank.paper):
            yield f"ranks of '{rank.metric}': of, expected and paper differ in length"
        for table in rank.over:
            yield from _same(lookup, (rank.where | table | which for which in rank.of), "a rank")
    for value in expected.values:
        lookup.combination(value.where)
    page = (folder / "README.md").read_text(encoding="utf-8")
    yield from check.unprinted(expected, page)
    for claim in expected.claims:
        if len(claim.descending) < 2:
            yield f"the claim '{claim.says}' compares nothing"
        yield from _same(lookup, (claim.where | step for step in claim.descending), "a claim")
    yield from (f"a panel of '{p.metric}' shows no cell" for p in expected.panels if not lookup.matching(p.where))


def _same(lookup: Any, wheres: Iterable[dict[str, Any]], what: str) -> Iterator[str]:
    cells = [lookup.combination(where).id for where in wheres]
    if len(set(cells)) != len(cells):
        yield f"{what} compares a combination with itself"


CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    links,
    code,
    commands,
    headlines,
    navigation,
    first_commands,
    configurations,
    mechanisms,
    installs,
    experiments,
)


def main() -> int:
    findings = sorted(finding for check in CHECKS for finding in check(ROOT))
    print(*findings, sep="\n", end="\n" if findings else "")
    print(f"docs: {len(findings)} findings" if findings else "docs: all checks passed")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
