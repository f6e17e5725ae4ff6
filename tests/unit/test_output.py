"""What may reach a terminal, a page or a log: no control character, no markup of others, no traceback unasked."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from jinja2 import UndefinedError

from fedsyn.deploy.federation import joined
from fedsyn.errors import ConfigError
from fedsyn.evaluation.report.charts import Bars, Columns, HeatMap, Histogram, Intervals, Lines, Marginal, Range
from fedsyn.evaluation.report.page import Details, Folded, Page, Part
from fedsyn.evaluation.report.tables import Table
from fedsyn.output import filled, markdown, plain, reason, watched
from support.parsed import ROOT, nodes_of, sources

pytestmark = pytest.mark.xdist_group("sources")  # on one worker, which parses them once
HOSTILE = "age\x1b[2J\x1b]0;pwned\x07\x9b1m\u202e\u2066\r\x00"
SECRET = "row-value-1234"


def trees() -> dict[str, tuple[ast.AST, ...]]:
    """Every node of every module of the product."""
    return {path: nodes_of(text) for path, text in sources().items()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ä, 年齢, 😀, \u00a0", "plain, ä, 年齢, 😀, \u00a0"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb\x07\x9b", r"a\x0db\x07\x9b"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("a\nb", "a\nb"),
        ("\U000e0041\ud800\u2028", r"\U000e0041\ud800\u2028"),
    ],
)
def test_plain_escapes_what_commands_a_terminal_and_nothing_else(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_name_is_one_line() -> None:
    assert plain("a\nb\tc", keep="") == r"a\x0ab\x09c"
    assert str(ConfigError(f"no column {HOSTILE!s}\nerror: another")).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a|b](javascript:alert(3))", r"a\|b\](javascript:alert(3))"),
        ("![x](y) `code`", r"!\[x\](y) \`code\`"),
        ("&lt;", "&amp;lt;"),
        ("a\nb\x1b", r"a\\x0ab\\x1b"),
    ],
)
def test_markdown_shows_markup_instead_of_obeying_it(text: str, shown: str) -> None:
    assert markdown(text) == shown


def test_a_reason_quotes_fedsyns_own_errors_only() -> None:
    assert reason(ConfigError("epsilon: must be positive")) == "ConfigError: epsilon: must be positive"
    try:
        int(SECRET)
    except ValueError as error:
        assert reason(error).startswith("ValueError in test_output.py:")


# Processes ------------------------------------------------------------------------------------------------------------

FAILURES = {
    "the end": f"int('{SECRET}')",
    "a thread": f"import threading; t = threading.Thread(target=int, args=('{SECRET}',)); t.start(); t.join()",
    "a finalizer": f"""
class A:
    def __del__(self): int('{SECRET}')
A()""",
    "a logger of others": f"""
import logging
logging.basicConfig()
try: int('{SECRET}')
except ValueError: logging.getLogger('others').exception('it failed')""",
    "a traceback logged as text": f"""
import logging, traceback
logging.basicConfig()
try: int('{SECRET}')
except ValueError: logging.getLogger('others').error(traceback.format_exc())""",
    "Flower's logger": f"""
import logging
from flwr.common.logger import log
try: int('{SECRET}')
except ValueError as error: log(logging.ERROR, '%s raised an exception', 'ServerApp', exc_info=error)""",
    "a page": f"""
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): int('{SECRET}')
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
try: urllib.request.urlopen(f'http://127.0.0.1:{{server.server_address[1]}}', timeout=20)
except Exception: pass
server.shutdown()""",
}


@pytest.mark.parametrize("where", FAILURES)
@pytest.mark.parametrize("debug", ["", "1"])
def test_no_traceback_unless_it_is_asked_for(where: str, debug: str) -> None:
    code = f"from fedsyn.output import no_tracebacks\nno_tracebacks()\n{FAILURES[where]}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"FEDSYN_DEBUG": debug}, capture_output=True, text=True
    )
    if debug:
        assert "Traceback" in done.stderr and SECRET in done.stderr
    else:
        assert "ValueError" in done.stderr and "Traceback" not in done.stderr and SECRET not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_every_process_begins_without_tracebacks() -> None:
    """Whatever `python -m`, a console script or Flower starts, and what a pool of processes does first."""
    files = sources()
    starts = {path for path, text in files.items() if '__name__ == "__main__"' in text}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    apps = project["tool"]["flwr"]["app"]["components"].values()
    for named in (*project["project"]["scripts"].values(), *apps):
        module = named.partition(":")[0].replace(".", "/")
        starts.add(f"{module}.py" if f"{module}.py" in files else f"{module}/__init__.py")
    starts |= {path for path, text in files.items() if "ProcessPoolExecutor(" in text}
    assert len(starts) >= 6
    assert not {path for path in starts if "no_tracebacks()" not in files[path]}


def test_a_traceback_is_made_in_one_place() -> None:
    """`exc_info`, `logging.exception` and `traceback.print_exc` write what a frame holds: `log_failure` alone may."""
    found = set()
    for path, nodes in trees().items():
        for node in nodes:
            named = isinstance(node, ast.keyword) and node.arg in ("exc_info", "stack_info")
            called = isinstance(node, ast.Attribute) and (
                node.attr in ("print_exc", "format_exc", "print_exception", "format_exception", "print_stack")
                or (node.attr == "exception" and isinstance(node.value, ast.Name) and "log" in node.value.id)
            )
            if named or called:
                found.add(path)
    assert found == {"fedsyn/output.py", "fedsyn/front/cli/ending.py"}, (
        "the second is FEDSYN_DEBUG=1 of the command line"
    )


def test_one_module_prints() -> None:
    """`print`, standard output and error, rich's consoles and click's `echo` are used in `fedsyn/output.py` alone."""
    found = set()
    for path, nodes in trees().items():
        for node in nodes:
            called = node.func if isinstance(node, ast.Call) else None
            prints = isinstance(called, ast.Name) and called.id in ("print", "Console", "StreamHandler")
            prints |= isinstance(called, ast.Attribute) and called.attr in (
                "echo",
                "secho",
                "basicConfig",
                "Console",
                "StreamHandler",
            )
            if isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr", "__stdout__", "__stderr__"):
                prints |= isinstance(node.value, ast.Name) and node.value.id == "sys"
            if prints:
                found.add(path)
    assert found == {"fedsyn/output.py"}


def test_what_writes_markdown_escapes_it() -> None:
    """A module that names a Markdown file writes it by `filled`, or is listed with the reason why it need not."""
    listed = {
        "fedsyn/runs/directory.py": "the name alone; what is written is made by report/run_page.py",
        "fedsyn/front/cli/new.py": "reads the page that a new mechanism's files stand on",
        "fedsyn/front/archive.py": "writes what report/run_page.py made",
        "fedsyn/deploy/plan.py": "YAML, each value as yamlio writes it",
    }
    named = {
        path
        for path, nodes in trees().items()
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".md")
    }
    fills = {path for path in named if "filled(" in sources()[path]}
    assert fills | set(listed) == named >= {"fedsyn/evaluation/report/run_page.py", "fedsyn/deploy/init.py"}


def test_what_writes_html_is_a_template() -> None:
    """No module spells a tag, and neither a module nor a template says that a text is markup."""
    tags = "a|div|p|span|table|t[dhr]|section|svg|h[1-6]|li|ul|html|body|script|style|b|strong"
    tag = re.compile(rf"(?<!\?P)</?({tags})[ >]")
    spelled = {
        path
        for path, nodes in trees().items()
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and tag.search(node.value)
        and not path.startswith("fedsyn/front/testing/")  # names that break a page which puts them in as they are
    }
    assert not spelled - {"fedsyn/output.py"}
    assert not {path for path, text in sources().items() if "Markup" in text or "html_safe" in text}
    templates = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in ROOT.glob("fedsyn/**/templates/*.md")}
    unescaped = re.compile(r"\|\s*safe|autoescape|forceescape")
    assert len(templates) > 10 and not [path for path, text in templates.items() if unescaped.search(text)]


def test_what_is_put_into_a_page_is_text(tmp_path: Path) -> None:
    """Titles, cells, addresses, captions, pictures: each is shown, none is markup or commands a reader."""
    nasty = f"</script><img src=x onerror=alert(1)>\" onfocus=alert(2) '&{HOSTILE}"
    shown = Table((nasty, ""), [(nasty, nasty)], nasty, links={nasty: nasty}, folded=nasty)
    column = Marginal(nasty, (nasty, nasty), (0.5, 0.5), (0.1, 0.9), "mid", nasty, nasty)
    links = {(nasty, "b"): 0.5}
    pictures = [
        Columns([column], 2),
        Histogram(column),
        HeatMap([nasty, "b"], links, links, nasty, nasty, frozenset([frozenset([nasty, "b"])])),
        Bars(nasty, [(nasty, 0.5)]),
        Intervals(nasty, (nasty, nasty), [(nasty, Range(1.0, 0.5, 2.0), Range(1.0, 0.5, 2.0))]),
        Lines({nasty: [(1, 0.5), (2, 0.7)]}),
    ]
    kinds: tuple[Any, ...] = get_args(get_type_hints(Part)["kind"])
    marked = [("bad", nasty, nasty)]
    values = {"warning": (nasty, nasty), "next": (nasty, nasty), "answers": marked, "uses": marked}
    values |= {"glance": pictures[:1], "list": [nasty]}
    page = Page(nasty, nasty, *(Part(kind, values.get(kind, nasty)) for kind in kinds))
    page.section(nasty, shown, *pictures, Details((Folded(nasty, (nasty,), nasty, "bad", nasty),)))
    page.section("another", nasty)
    text = page.write(tmp_path / "page.html").read_text(encoding="utf-8")
    assert plain(text, keep="\n") == text and text.count("alert(1)") > 50
    assert text.count("<h2") == 2 and text.count("<dl>") == 1 and text.count("<figure") == 7
    assert "<img" not in text and "<script" not in text
    opened = re.findall(r"""<[a-z][^<>]*>""", text)
    assert not [tag for tag in opened if "alert" in re.sub(r'"[^"]*"', "", tag)], "a value leaves its attribute"


def test_what_is_put_into_a_template_is_text() -> None:
    """A name in a README neither commands a terminal nor makes a link, a heading or HTML; a value is never left out."""
    hostile = f"a](http://x) <script>{HOSTILE}\n# b"
    plan = SimpleNamespace(name=hostile, port=1, hosts=["h"], parties=[("[p](q)", "host:1")], insecure=False)
    values = {"plan": plan, "seen": "w", "schema": True, "joined": joined, "wheel": None, "digest": None, "extra": ""}
    text = filled("deploy", "operator.md", **values)
    assert plain(text) == text and "<script>" not in text and "\n# b" not in text
    assert "](http" not in text.replace("\\]", "") and r"\[p\](q)" in text
    with pytest.raises(UndefinedError, match="seen"):
        filled("deploy", "operator.md", **{name: value for name, value in values.items() if name != "seen"})


def test_a_bar_stands_where_somebody_watches_and_goes_when_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int | None] = []

    class Bar:
        def __init__(self, **named: object) -> None:
            assert named["transient"]

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *args: object) -> None:
            shown.append(None)

        def add_task(self, title: str, total: int) -> int:
            assert (title, total) == ("estimating", 3)
            return 0

        def update(self, task: int, completed: int) -> None:
            shown.append(completed)

    monkeypatch.setattr("rich.progress.Progress", Bar)
    assert list(watched("abc", "estimating")) == ["a", "b", "c"] and not shown  # nobody watches a test
    assert list(watched("abc", "estimating", True)) == ["a", "b", "c"] and shown == [1, 2, 3, None]
    shown.clear()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(watched("abc", "estimating")) == ["a", "b", "c"] and shown == [1, 2, 3, None]
    assert list(watched("abc", "estimating", False)) == ["a", "b", "c"] and shown == [1, 2, 3, None]
