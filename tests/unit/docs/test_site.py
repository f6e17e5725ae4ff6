"""The docs site: it builds strictly and fetches nothing, and its references say what the code says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel, Field

import fedsyn
from support.browser import CHROMIUM, browser

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "site" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module("reference")


def test_the_references_are_current(reference: ModuleType) -> None:
    for name, text in reference.written().items():
        assert (DOCS / "reference" / name).read_text(encoding="utf-8") == text, (
            f"docs/reference/{name} is not current: run `python docs/site/reference.py`"
        )


def test_every_key_of_a_reference_says_what_it_is(reference: ModuleType) -> None:
    for name, text in reference.written().items():
        bare = [line for line in text.splitlines() if re.fullmatch(r"\| `.*\|\s*\|", line)]
        assert not bare, f"docs/reference/{name}: no text for {bare}"


def test_a_reference_has_types_limits_and_defaults_of_the_model(reference: ModuleType) -> None:
    class Given(BaseModel):
        """One.

        Attributes:
            size: how many, and
                which.
        """

        size: int | None = Field(default=None, ge=1, le=9)

    assert reference.table(Given)[2] == "| `size` | whole number, ≥ 1, ≤ 9 | `null` | how many, and which. |"


def test_the_safe_aggregation_is_what_the_reference_calls_the_default(reference: ModuleType) -> None:
    text = reference.written()["configuration.md"]
    assert re.search(r"^\| `protocol` \|[^|]*\| `secagg` \|", text, re.MULTILINE)
    assert re.search(r"^\| `noise` \|[^|]*\| `distributed` \|", text, re.MULTILINE)


def test_the_python_page_has_every_public_name() -> None:
    shown = re.findall(
        r"^::: fedsyn\.(\w+)$", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(fedsyn.__all__) - {"__version__"} <= set(shown)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning fails."""
    pytest.importorskip("mkdocs", reason="the site needs the extra 'docs'")
    pytest.importorskip("mkdocstrings", reason="the site needs the extra 'docs'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.thorough
def test_the_site_fetches_nothing(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]+src=\"?(https?:[^\s\">]+)", text)
        fetched += re.findall(r"<link[^>]+rel=\"?(?:stylesheet|preconnect|icon)[^>]+href=\"?(https?:[^\s\">]+)", text)
        assert not fetched, f"{page.name}: {fetched[0]}"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("page", ["index.html", "reference/api.html"])
def test_a_site_that_is_opened_from_a_folder_can_be_searched(site: Path, page: str) -> None:
    """On a desktop, in the light and in the dark, without a server."""
    if CHROMIUM is None:
        pytest.skip("NOBODY LOOKED AT THE SITE: no chromium is installed (apt-get install chromium)")
    field, found = ".md-search__input", "document.querySelectorAll('.md-search-result__item').length"
    with browser() as tab:
        for dark in (False, True):
            tab.open(site / page, 1300, dark=dark)
            assert tab.value(f"document.querySelector('{field}').getBoundingClientRect().width") > 150
            assert all(address.startswith(("file:", "data:", "blob:", "about:")) for address in tab.requests)
        tab.value(f"document.querySelector('{field}').focus()")
        for letter in "epsilon":
            tab.press(letter, ord(letter.upper()), letter)
        until = time.monotonic() + 60
        while not tab.value(found) and time.monotonic() < until:
            time.sleep(0.2)
        assert tab.value(found) > 3


@pytest.mark.slow
@pytest.mark.thorough
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    """Also those that mkdocs does not check, into the files of the repository."""
    for page in site.glob("**/*.html"):
        if page.name == "404.html":
            continue
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"<(?:a|img)[^>]+(?:href|src)=\"?([^\s\">]+)", text):
            target = link.partition("#")[0]
            if not target or re.match(r"[a-z]+:", target):
                continue
            assert (page.parent / target).resolve().exists(), f"{page.relative_to(site)}: {link}"


@pytest.mark.slow
@pytest.mark.thorough
def test_docstrings_stand_on_the_python_page(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "api.html").read_text(encoding="utf-8"))
    assert "samples from it" in text and "where" in text and "conditions that every row meets" in text
    assert "conformance" in text or "check_mechanism" in text
