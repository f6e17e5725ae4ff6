"""Imports point one way, and files and functions stay readable: what CONTRIBUTING.md says, read from the sources.

Every import counts, also one inside a function or under TYPE_CHECKING: a reader follows those too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import pytest

from support.parsed import PACKAGES, ROOT, nodes_of, sources

pytestmark = pytest.mark.xdist_group("sources")  # on one worker, which parses them once
AROUND = ("tests", "experiments", "benchmarks", "claims", "docs")

# The floors, from the top down: top folders and single files of `fedsyn`, and the plug-ins' folders. A module imports
# from its own folder and from the floors below it; folders of one floor do not know each other.
# docs/architecture.md draws the same floors.
Levels = tuple[tuple[str, ...], ...]
LEVELS: Levels = (
    ("fedsyn",),  # the public face: fedsyn/__init__.py alone
    ("fedsyn.testing",),
    ("fedsyn.front",),
    ("fedsyn.server_app", "fedsyn.client_app", "fedsyn.sweep", "fedsyn.node", "fedsyn.deploy"),
    ("fedsyn.runs",),
    ("fedsyn.plugins.strategies",),
    ("fedsyn.plugins.clients",),
    ("fedsyn.mechanism",),
    ("fedsyn.protocol",),
    ("fedsyn.stores",),
    ("fedsyn.aggregation", "fedsyn.flower"),
    ("fedsyn.wire",),
    ("fedsyn.keys", "fedsyn.loading", "fedsyn.plugins.partitioners"),
    ("fedsyn.evaluation", "fedsyn.crypto"),
    ("fedsyn.selection",),
    ("fedsyn.inference", "fedsyn.private_bins"),
    ("fedsyn.ledgers", "fedsyn.table"),
    ("fedsyn.config",),
    ("fedsyn.settings", "fedsyn.registry"),
    ("fedsyn.capabilities", "fedsyn.privacy", "fedsyn.yamlio"),
    ("fedsyn.randomness", "fedsyn.files", "fedsyn.health", "fedsyn.bounded", "fedsyn.notebook"),
    ("fedsyn.errors",),
    ("fedsyn.output", "fedsyn.version", "fedsyn.domain", "fedsyn.lazy", "fedsyn.plugins"),
)

# The floors inside of `evaluation`: what real rows, holders and released values have in common is the ground, its own
# modules; above it the analysis of several tables, whose formulas name regressions beside real rows, too; the three
# readers do not know each other; pages stand above.
INSIDE_EVALUATION: Levels = (
    ("fedsyn.evaluation.report",),
    ("fedsyn.evaluation.real", "fedsyn.evaluation.federated", "fedsyn.evaluation.predicted"),
    ("fedsyn.evaluation.analysis",),
    ("fedsyn.evaluation",),
)

# Plug-ins: the core names their classes by path and imports none of them.
PLUG_INS = ("fedsyn.plugins.strategies", "fedsyn.plugins.clients", "fedsyn.plugins.partitioners")

# Arrows against the order that work under way removes. Each goes when it is gone from the tree; none is added.
KNOWN: frozenset[str] = frozenset()

# A module is judged by its story, not by its length: one that tells two is cut, one that tells one stays whole. These
# bounds only make somebody look. Why a file may have more than 600 lines, or a function more than 60:
LONG_FILES = {
    "strategies/sketch_aim.py": "the default mechanism in one file, its second schedule by cohorts among it",
    "fedsyn/evaluation/predicted/quality.py": "predicted quality, from released values to the sentence about a table",
    "fedsyn/flower/fleet.py": "a node's connection: one loop, its requests and its replies",
    "fedsyn/front/synthesizer.py": "the Python door: one class, whose docstrings are its manual",
}
LONG_FUNCTIONS: dict[str, str] = {}
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 600, 60


# The tree ------------------------------------------------------------------------------------------------------------


@cache
def arrows_of_the_tree() -> frozenset[tuple[str, str]]:
    return frozenset(arrows(sources()))


def module_of(path: str) -> str:
    """A module's name; the folders of plug-ins at the root go by that of `fedsyn/plugins`."""
    path = path if path.startswith("fedsyn/") else f"fedsyn/plugins/{path}"
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def arrows(files: Mapping[str, str]) -> set[tuple[str, str]]:
    """(importer, imported) for every import of one module of the tree by another."""
    modules = {module_of(path) for path in files}
    found = set()
    for path, text in files.items():
        for node in nodes_of(text):
            found |= {(module_of(path), name) for name in _imported(node, modules)}
    return {(a, b) for a, b in found if a != b}


def _imported(node: ast.AST, modules: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module is not None, "the tree has absolute imports only"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            name = whole if whole in modules else node.module
            if name in modules:
                yield name


def show(found: Iterable[tuple[str, str]]) -> str:
    """Arrows as lines `a -> b`."""
    return "\n".join(sorted(f"{a} -> {b}" for a, b in found))


# The order -----------------------------------------------------------------------------------------------------------


def place(module: str, levels: Levels = LEVELS) -> tuple[int, str]:
    """(row of the table, room) of a module; the face `fedsyn` is one module and no room."""
    fitting = [
        (len(room), row, room)
        for row, rooms in enumerate(levels)
        for room in rooms
        if module == room or (room != "fedsyn" and module.startswith(f"{room}."))
    ]
    assert fitting, f"{module} has no row in LEVELS: say where it stands"
    _, row, room = max(fitting)
    return row, room


def against_the_order(found: Iterable[tuple[str, str]], levels: Levels = LEVELS) -> set[tuple[str, str]]:
    """Arrows that point up, or across to another room of the same row."""
    places = {module: place(module, levels) for arrow in found for module in arrow}
    return {(a, b) for a, b in found if places[a][1] != places[b][1] and places[a][0] >= places[b][0]}


def into_plug_ins(found: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Arrows from the core into the packages that it only names by path."""
    return {(a, b) for a, b in found if not a.startswith(PLUG_INS) and b.startswith(PLUG_INS)}


def circles(found: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of modules that reach each other (strongly connected components of two or more), each sorted."""
    after: dict[str, set[str]] = {}
    for a, b in found:
        after.setdefault(a, set()).add(b)
    reached = {module: _reachable(after, module) for module in after}
    groups = {
        tuple(sorted({module, *(other for other in reached[module] if module in reached.get(other, ()))}))
        for module in reached
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(after: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = after.get(waiting.pop(), set()) - seen
        seen |= new
        waiting.extend(new)
    return seen


def test_every_row_of_the_table_holds_something() -> None:
    modules = {module_of(path) for path in sources()}
    rooms = {room for row in LEVELS for room in row}
    assert rooms == {place(module)[1] for module in modules}


def within(found: Iterable[tuple[str, str]], folder: str) -> set[tuple[str, str]]:
    """Arrows between two modules of a folder."""
    return {arrow for arrow in found if all(f"{module}.".startswith(f"{folder}.") for module in arrow)}


def test_the_three_readers_of_a_table_do_not_know_each_other() -> None:
    inside = within(arrows_of_the_tree(), "fedsyn.evaluation")
    rooms = {room for row in INSIDE_EVALUATION for room in row}
    assert rooms == {place(module, INSIDE_EVALUATION)[1] for arrow in inside for module in arrow}
    wrong = against_the_order(inside, INSIDE_EVALUATION)
    assert not wrong, f"imports against the order of INSIDE_EVALUATION:\n{show(wrong)}"


def test_arrows_point_down() -> None:
    wrong = {a for a in against_the_order(arrows_of_the_tree()) if show([a]) not in KNOWN}
    assert not wrong, f"imports against the order of LEVELS:\n{show(wrong)}"


def test_the_core_imports_no_plug_in() -> None:
    wrong = {a for a in into_plug_ins(arrows_of_the_tree()) if show([a]) not in KNOWN}
    assert not wrong, f"fedsyn names plug-ins by path and imports none:\n{show(wrong)}"


def test_no_circle() -> None:
    found = circles(a for a in arrows_of_the_tree() if show([a]) not in KNOWN)
    assert not found, "modules that import each other: " + "; ".join(" <-> ".join(group) for group in found)


def test_known_arrows_still_exist() -> None:
    found = arrows_of_the_tree()
    wrong = against_the_order(found) | into_plug_ins(found)
    gone = KNOWN - set(show(wrong).splitlines())
    assert not gone, f"take these out of KNOWN:\n{chr(10).join(sorted(gone))}"


# The lengths ---------------------------------------------------------------------------------------------------------


def long_files(files: Mapping[str, str]) -> dict[str, int]:
    """Path -> lines, of the files over the limit."""
    lengths = {path: len(text.splitlines()) for path, text in files.items()}
    return {path: lines for path, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE}


def long_functions(files: Mapping[str, str]) -> dict[str, int]:
    """`path:function` -> lines, docstring included, of the functions over the limit."""
    found = {}
    for path, text in files.items():
        for node in nodes_of(text):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    found[f"{path}:{node.name}"] = lines
    return found


def check_lengths(found: Mapping[str, int], reasons: Mapping[str, str], most: int) -> None:
    """Raises AssertionError for a length without a reason, and for a reason without a length."""
    without = [f"{name} has {lines} lines" for name, lines in sorted(found.items()) if name not in reasons]
    assert not without, f"more than {most} lines; shorten, or write down the reason:\n" + "\n".join(without)
    needless = sorted(set(reasons) - set(found))
    assert not needless, f"short enough by now: take their reasons out: {', '.join(needless)}"
    assert all(reason.strip() for reason in reasons.values()), "a reason is a sentence"


def test_files_are_short() -> None:
    check_lengths(long_files(sources()), LONG_FILES, MOST_LINES_OF_A_FILE)


def test_functions_are_short() -> None:
    check_lengths(long_functions(sources()), LONG_FUNCTIONS, MOST_LINES_OF_A_FUNCTION)


def test_no_file_bends_the_path() -> None:
    """What an installation from a checkout puts there is enough for tests, experiments, benchmarks and the site."""
    bent = re.compile(r"^\s*sys\.path(\.(insert|append|extend)\(|\[.*\] *=| *\+?=)", re.MULTILINE)
    files = [path for folder in (*PACKAGES, *AROUND) for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 700
    assert [str(path) for path in files if bent.search(path.read_text(encoding="utf-8"))] == []
    assert bent.search("    sys.path.insert(0, '.')") and bent.search("sys.path += ['.']")


# The rules find what breaks them -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("importer", "line", "imported"),
    [
        ("fedsyn/inference/gum.py", "from fedsyn.selection import scores", "fedsyn.selection.scores"),
        ("fedsyn/wire/messages.py", "from fedsyn.aggregation.base import Summed", "fedsyn.aggregation.base"),
        ("clients/aim.py", "import fedsyn.plugins.strategies.aim", "fedsyn.plugins.strategies.aim"),
        ("fedsyn/server_app.py", "def f():\n    from fedsyn.client_app import app", "fedsyn.client_app"),
        ("fedsyn/table/data/sources.py", "if TYPE_CHECKING:\n    from fedsyn import run", "fedsyn"),
        ("fedsyn/private_bins/__init__.py", "from fedsyn.selection.scores import l1", "fedsyn.selection.scores"),
    ],
)
def test_an_arrow_against_the_order_is_found(importer: str, line: str, imported: str) -> None:
    imported_path = "fedsyn/__init__.py" if imported == "fedsyn" else imported.replace(".", "/") + ".py"
    found = arrows({importer: line, imported_path: ""})
    assert show(against_the_order(found)) == f"{module_of(importer)} -> {imported}"


@pytest.mark.parametrize(
    ("importer", "line", "imported"),
    [
        (
            "fedsyn/evaluation/predicted/links.py",
            "import fedsyn.evaluation.real.metrics",
            "fedsyn.evaluation.real.metrics",
        ),
        ("fedsyn/evaluation/scores.py", "import fedsyn.evaluation.real.metrics", "fedsyn.evaluation.real.metrics"),
        ("fedsyn/evaluation/real/metrics.py", "import fedsyn.evaluation.report.page", "fedsyn.evaluation.report.page"),
    ],
)
def test_a_reader_that_knows_another_is_found(importer: str, line: str, imported: str) -> None:
    found = arrows({importer: line, imported.replace(".", "/") + ".py": ""})
    wrong = against_the_order(within(found, "fedsyn.evaluation"), INSIDE_EVALUATION)
    assert show(wrong) == f"{module_of(importer)} -> {imported}" and not against_the_order(found)


def test_arrows_with_the_order_are_none_of_its_business() -> None:
    files = {
        "fedsyn/runs/serve.py": "from fedsyn.runs import prepare\nimport numpy, fedsyn.errors",
        "fedsyn/runs/prepare.py": "",
        "fedsyn/errors.py": "import difflib",
    }
    found = arrows(files)
    assert show(found) == "fedsyn.runs.serve -> fedsyn.errors\nfedsyn.runs.serve -> fedsyn.runs.prepare"
    assert not against_the_order(found)


def test_a_plug_in_imported_by_the_core_is_found_where_the_order_allows_it() -> None:
    found = arrows({"fedsyn/runs/serve.py": "from fedsyn.plugins.strategies.aim import Aim", "strategies/aim.py": ""})
    assert not against_the_order(found)
    assert show(into_plug_ins(found)) == "fedsyn.runs.serve -> fedsyn.plugins.strategies.aim"


def test_a_circle_is_found_inside_one_room() -> None:
    files = {
        "fedsyn/runs/a.py": "import fedsyn.runs.b",
        "fedsyn/runs/b.py": "def f():\n    from fedsyn.runs import c",
        "fedsyn/runs/c.py": "from fedsyn.runs.a import x\nimport fedsyn.runs.d",
        "fedsyn/runs/d.py": "",
    }
    assert circles(arrows(files)) == [["fedsyn.runs.a", "fedsyn.runs.b", "fedsyn.runs.c"]]


def test_a_module_without_a_row_is_found() -> None:
    with pytest.raises(AssertionError, match=r"fedsyn\.novelty has no row"):
        against_the_order(arrows({"fedsyn/novelty.py": "import fedsyn.errors", "fedsyn/errors.py": ""}))


def test_a_length_needs_a_reason_and_a_reason_a_length() -> None:
    files = {
        "fedsyn/a.py": "x = 1\n" * 601,
        "fedsyn/b.py": "def f():\n" + "    pass\n" * 60,
        "fedsyn/c.py": "x = 1\n" * 600,
    }
    assert long_files(files) == {"fedsyn/a.py": 601}
    assert long_functions(files) == {"fedsyn/b.py:f": 61}
    with pytest.raises(AssertionError, match=r"fedsyn/a\.py has 601 lines"):
        check_lengths({"fedsyn/a.py": 601}, {}, 600)
    with pytest.raises(AssertionError, match=r"take their reasons out: fedsyn/c\.py"):
        check_lengths({}, {"fedsyn/c.py": "one table"}, 600)
    check_lengths({"fedsyn/a.py": 601}, {"fedsyn/a.py": "one table"}, 600)


def test_what_tests_share_stands_in_one_folder() -> None:
    """Beside tests there are programs, at the top, and the modules of tests/support."""
    tests = ROOT / "tests"
    programs = {"conftest.py", "docs_lint.py", "flower_minors.py", "planted_faults.py", "shards.py"}
    others = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("*.py")
        if not path.name.startswith("test_") and path.parent != tests / "support"
    }
    assert others == programs
