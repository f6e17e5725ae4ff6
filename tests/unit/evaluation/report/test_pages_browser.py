"""Pages in a real browser: seen on a phone and a desktop, in the light and the dark, by keyboard and on paper.

The screens are kept in the folder `screens` under pytest's temporary folder, for somebody to look at.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from test_report import CONFIG, NASTY, nasty_quality

from fedsyn.config import RunConfig
from fedsyn.evaluation.real.comparison import compare_tables
from fedsyn.evaluation.report.charts import MOST_NAMED
from fedsyn.evaluation.report.evaluations import evaluation_page
from fedsyn.runs.engines import run
from fedsyn.sweep import load_sweep, run_sweep
from fedsyn.sweep.report import report_folder
from support.browser import CHROMIUM, Browser, browser

pytestmark = pytest.mark.thorough
PHONE, DESKTOP = (390, 844), (1300, 900)
NAMES = ("run", "public", "sweep", "nasty", "wide")
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
# Text that a reader does not see whole: beyond the window, or cut off by a box that does not scroll.
CUT = """(() => {
const found = [], range = document.createRange();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const own = node.parentElement;
  if (!node.textContent.trim() || own.closest('.skip, title, style')) continue;
  if (!own.checkVisibility({contentVisibilityAuto: true})) continue;
  range.selectNodeContents(node);
  for (const r of range.getClientRects()) {
    let box = {left: 0, right: innerWidth};
    for (let a = own; a; a = a.parentElement) {
      const style = getComputedStyle(a).overflowX;
      if (style === 'auto' || style === 'scroll') { box = null; break; }
      if (style !== 'visible') { box = a.getBoundingClientRect(); break; }
    }
    if (box && (r.right > box.right + 1 || r.left < box.left - 1)) found.push(node.textContent.trim().slice(0, 40));
  }
}
return found.join('; ');
})()"""
# Names of a picture that lie over each other.
OVERLAP = """(() => {
const found = [];
for (const list of document.querySelectorAll('.map .heads, .map .rows, .histogram .axis')) {
  const boxes = [...list.children].map(e => e.getBoundingClientRect()).filter(r => r.width);
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5) found.push(list.className);
  }));
}
return found.join('; ');
})()"""
# What can hardly be seen: the contrast of every element's own text with what lies behind it (WCAG 2: 4.5 to 1), and of
# what is drawn (3 to 1).
FAINT = """(() => {
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const light = c => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255;
  return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
const ratio = (one, other) => {
  const [a, b] = [light(one), light(other)].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); };
const found = [];
for (const e of document.querySelectorAll('body *')) {
  if (e.closest('svg, script, .skip')) continue;
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  if (ratio(rgb(getComputedStyle(e).color), behind(e)) < 4.5) found.push(e.tagName + ': ' + e.textContent.slice(0, 40));
}
for (const [what, how] of [['.bars', 'fill'], ['.ticks', 'stroke'], ['.map .ring', 'stroke'], ['.lines path', 'stroke'],
                           ['.shares i', 'backgroundColor']]) {
  const e = document.querySelector(what);
  if (e && ratio(rgb(getComputedStyle(e)[how]), behind(e.closest('figure'))) < 3) found.push(what);
}
return found.join('; ');
})()"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    if CHROMIUM is None:
        why = "NOBODY LOOKED AT THE PAGES: no chromium is installed (apt-get install chromium)"
        warnings.warn(why, stacklevel=1)
        pytest.skip(why)
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("screens")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run's two pages, a sweep's, one of a table with long and nasty names, one of many columns."""
    folder = tmp_path_factory.mktemp("pages")
    run(RunConfig(**CONFIG), folder / "run")
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
        "run": folder / "run" / "report.html",
        "public": folder / "run" / "report_public.html",
        "sweep": report_folder(folder / "sweep")[0],
        "nasty": evaluation_page(nasty_quality()[1], folder / "nasty.html", NASTY + "long" * 40),
        "wide": wide_page(folder),
    }


def wide_page(folder: Path) -> Path:
    """As many columns as a heat map names, most of them linked, with long names."""
    names = [f"a_rather_long_name_{place}" for place in range(MOST_NAMED)]
    rng = np.random.default_rng(0)
    one, other = (rng.integers(0, 2, (400, 1)) ^ (rng.random((400, MOST_NAMED)) < 0.1) for _ in range(2))
    words = np.array(["a rather long value", "another one"])
    frames = [pd.DataFrame(words[codes.astype(int)], columns=names) for codes in (one, rng.permuted(other, axis=0))]
    comparison = compare_tables(*frames, rng=rng)
    return evaluation_page(comparison, folder / "wide.html", "wide.csv")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [PHONE, DESKTOP, pytest.param((768, 900), marks=pytest.mark.slow)])
def test_no_text_is_cut_and_nothing_is_asked_for(
    tab: Browser, pages: dict[str, Path], screens: Path, name: str, size: tuple[int, int]
) -> None:
    for dark in (False, True):
        tab.open(pages[name], size[0], height=size[1], dark=dark)
        tab.screenshot(screens / f"{name}-{size[0]}-{'dark' if dark else 'light'}.png")
    assert tab.value("innerWidth") == size[0] and tab.value(OVERFLOW) <= 0
    tab.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert tab.value(OVERFLOW) <= 0 and tab.value(CUT) == "" and tab.value(OVERLAP) == ""
    assert tab.requests == [pages[name].resolve().as_uri()]
    small = "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height < 16).length"
    drawn = tab.value("document.querySelectorAll('figure svg').length")
    assert tab.value(small) == 0 and (drawn > 3 or name == "sweep")


@pytest.mark.parametrize("name", ["run", "public"])
def test_the_first_screen_answers(tab: Browser, pages: dict[str, Path], name: str) -> None:
    """On a desktop with both pictures, on a phone down to the first of them."""
    end = "document.querySelector('{}').getBoundingClientRect().bottom"
    tab.open(pages[name], DESKTOP[0], height=DESKTOP[1])
    assert tab.value(end.format("figure.heatmap")) <= DESKTOP[1] and tab.value(end.format(".columns")) <= DESKTOP[1]
    tab.open(pages[name], PHONE[0], height=PHONE[1])
    assert tab.value(end.format(".uses")) <= PHONE[1] and tab.value(end.format(".columns figcaption")) <= 1.1 * PHONE[1]
    assert len(tab.value("document.querySelector('main').innerText.split('All columns')[0]")) < 1000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dark", [False, True])
def test_everything_can_be_seen_in_the_light_and_in_the_dark(
    tab: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    tab.open(pages[name], DESKTOP[0], dark=dark)
    tab.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert tab.value(FAINT) == ""
    paper = tab.value("getComputedStyle(document.body).backgroundColor")
    assert np.mean([int(v) for v in paper[4:-1].split(",")]) < 60 if dark else paper == "rgb(255, 255, 255)"


@pytest.mark.parametrize("name", ["run", "public"])
def test_the_keyboard_reaches_what_is_said_of_a_column(tab: Browser, pages: dict[str, Path], name: str) -> None:
    """From the picture of all columns, with Tab and Enter, and back: a line opens and closes."""
    tab.open(pages[name], DESKTOP[0])
    focused = "document.activeElement.getAttribute('href') || document.activeElement.tagName"
    for _ in range(9):
        tab.press("Tab", 9)
        if str(tab.value(focused)).startswith("#column-"):
            break
    anchor = str(tab.value(focused))
    place = f"document.querySelector('{anchor}')"
    assert anchor.startswith("#column-") and not tab.value(f"{place}.checkVisibility()")
    tab.press("Enter", 13, "\r")
    assert tab.value(f"{place}.checkVisibility() && {place}.closest('details').open")
    assert tab.value(f"{place}.querySelector('svg').getBoundingClientRect().height") > 100
    tab.value(f"{place}.closest('details').querySelector('summary').focus()")
    tab.press("Enter", 13, "\r")
    assert not tab.value(f"{place}.closest('details').open")


def test_print_is_dark_on_white_whatever_the_theme(tab: Browser, pages: dict[str, Path], screens: Path) -> None:
    tab.open(pages["run"], 768, dark=True, media="print")
    tab.screenshot(screens / "print.png")
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)" and tab.value(FAINT) == ""


def test_the_checks_themselves_find_what_they_look_for(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    meta = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    over = "position:absolute;left:0;top:0"
    page.write_text(
        f'<!doctype html><html><head>{meta}</head><body><div style="width:2000px;color:#bbb">faint</div>'
        '<div style="width:20px;overflow:hidden;white-space:nowrap">cut off</div><img src="http://example.org/x.png">'
        f'<div class="map"><p class="heads"><span style="{over}">one</span><span style="{over}">two</span></p></div>'
        '<figure><svg><path class="bars" style="fill:#ccc" d="M0 0h9v9z"/></svg></figure></body></html>',
        encoding="utf-8",
    )
    tab.open(page, 390)
    assert tab.value(OVERFLOW) > 1000 and "DIV: faint" in tab.value(FAINT) and ".bars" in tab.value(FAINT)
    assert tab.value(CUT) == "cut off" and tab.value(OVERLAP) == "heads"
    assert tab.requests == [page.resolve().as_uri(), "http://example.org/x.png"]
