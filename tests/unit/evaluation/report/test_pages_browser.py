"""Pages in a real browser, where one is installed: no overflow on a phone, a tablet, a desktop; charts are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from test_report import CONFIG, NASTY, nasty_quality

from fedsyn.config import RunConfig
from fedsyn.evaluation.report.evaluations import evaluation_page
from fedsyn.evaluation.report.figures import drawable
from fedsyn.runs.engines import run
from fedsyn.sweep import load_sweep, run_sweep
from fedsyn.sweep.report import report_folder
from support.browser import CHROMIUM, Browser, browser

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
    pytest.mark.skipif(not drawable(), reason="altair and vl-convert are not installed"),
]
WIDTHS = (390, 768, 1280)
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
# Charts without a drawing: no SVG, or none with a mark in it.
EMPTY = """[...document.querySelectorAll('.chart')].filter(c => !c.querySelector(
'svg .mark-rect path, svg .mark-symbol path, svg .mark-line path, svg .mark-rule line')).length"""
# Text that can hardly be read: the contrast of every element's own text with what lies behind it (WCAG 2, 4.5 to 1).
FAINT = """(() => {
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const light = c => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255;
  return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
const found = [];
for (const e of document.querySelectorAll('body *')) {
  if (e.closest('svg, script, .skip')) continue;
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) found.push(e.tagName + ': ' + e.textContent.slice(0, 40));
}
return found.join('; ');
})()"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run's page, the one for publication, a sweep's, and one of a table with long and nasty names."""
    folder = tmp_path_factory.mktemp("pages")
    run(RunConfig(**CONFIG), folder / "run")
    (folder / "whole").mkdir()
    whole = folder / "whole" / "report.html"
    whole.write_bytes((folder / "run" / "report.html").read_bytes())
    report_folder(folder / "run", real=False)
    grid = {
        "mechanism.name": ["naive_flaim", "augflaim", "sketch_aim"],
        "privacy.epsilon": [0.5, 1.0, 4.0],
        "federation.clients": [3, 4],
    }
    base = {**CONFIG, "federation": {"partition": "iid"}, "runtime": {}}
    (folder / "s.yaml").write_text(yaml.safe_dump({"base": base, "grid": grid, "seeds": [0, 1]}), encoding="utf-8")
    assert run_sweep(load_sweep(folder / "s.yaml"), folder / "sweep") == 0
    return {
        "run": whole,
        "public": folder / "run" / "report.html",
        "sweep": report_folder(folder / "sweep")[0],
        "nasty": evaluation_page(nasty_quality()[1], folder / "nasty.html", NASTY + "long" * 40),
    }


@pytest.mark.parametrize("name", ["run", "public", "sweep", "nasty"])
@pytest.mark.parametrize("width", [WIDTHS[0], *(pytest.param(width, marks=pytest.mark.slow) for width in WIDTHS[1:])])
def test_nothing_overflows_and_every_chart_is_drawn(
    tab: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    tab.open(pages[name], width)
    assert tab.value("innerWidth") == width and tab.value(OVERFLOW) <= 0
    # A sweep's page has tables alone.
    least = 0 if name == "sweep" else 2
    assert tab.value("document.querySelectorAll('.chart').length") >= least and tab.value(EMPTY) == 0
    outside = "[...document.querySelectorAll('.chart svg')].filter(s => s.getBoundingClientRect().right > innerWidth)"
    assert tab.value(f"{outside}.length") == 0


@pytest.mark.parametrize("name", ["run", "public"])
@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_the_light_and_in_the_dark(
    tab: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    tab.open(pages[name], 1280, dark=dark)
    assert tab.value(FAINT) == ""
    paper = tab.value("getComputedStyle(document.body).backgroundColor")
    assert np.mean([int(v) for v in paper[4:-1].split(",")]) < 60 if dark else paper == "rgb(255, 255, 255)"
    label = tab.value("getComputedStyle(document.querySelector('.chart svg .role-axis-label text')).fill")
    assert bool(np.mean([int(v) for v in label[4:-1].split(",")]) > 128) is dark


def test_print_is_dark_on_white_whatever_the_theme(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["run"], 768, dark=True, media="print")
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.querySelector('.chart svg text')).fill") == "rgb(0, 0, 0)"


def test_the_checks_themselves_find_what_they_look_for(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    meta = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    page.write_text(
        f'<!doctype html><html><head>{meta}</head><body><div style="width:2000px;color:#bbb">faint</div>'
        '<div class="chart"></div></body></html>',
        encoding="utf-8",
    )
    tab.open(page, 390)
    assert tab.value(OVERFLOW) > 1000 and tab.value(EMPTY) == 1 and "DIV: faint" in tab.value(FAINT)
