"""Figures of a page: charts, with their words and numbers.

Charts are Vega-Lite, built with altair where it is installed (extra `report`). A page carries the Vega runtime once, so
that it needs no network. Every figure has its numbers as a table beside it: that is what a screen reader reads, and all
there is where altair is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from fedsyn.evaluation.report.tables import Table
from fedsyn.table.data.fetch import cache_dir
from fedsyn.version import installing

# Okabe and Ito's colours, which people with colour blindness can tell apart; lighter ones on dark paper.
# `templates/style.css.md` has those of pages.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PALETTE_DARK = ("#56B4E9", "#F0A860", "#2FC79A", "#E3A0C4", "#F0E442", "#7FA8FF", "#FFFFFF")
Spec = dict[str, Any]
INSTALL = installing("report")


@dataclass(frozen=True)
class Panel:
    """One chart of a figure.

    It has a heading, a sentence on what it shows, and what builds it.

    That gives a chart of altair, or its specification.
    """

    title: str
    says: str
    build: Callable[[], Any]

    def spec(self) -> Spec:
        """Returns the specification with its data inside."""
        # altair's validation would cost more than everything else here; the tests draw every chart.
        built = self.build()
        spec: Spec = built if isinstance(built, dict) else built.to_dict(validate=False)
        datasets = spec.pop("datasets", {})
        for key in ("$schema", "config"):
            spec.pop(key, None)
        return _with_values(spec, datasets)


@dataclass(frozen=True)
class Swatch:
    """A key of a legend, 24 by 12.

    Attributes:
        colour: of CSS.
        path: its shape, as SVG has it.
    """

    colour: str
    path: str


@dataclass(frozen=True)
class Figure:
    """A figure of one or more charts.

    Attributes:
        name: within the page.
        caption: what it shows and how to read it.
        panels: its charts.
        head, rows: its numbers; none where a table of the page has them.
        layout: 'many' small panels, a few 'wide' ones, or 'one' below the other.
        legend: (swatch, text) pairs.
        data: named tables that the charts of the figure share.
    """

    kind: ClassVar[str] = "figure"
    name: str
    caption: str
    panels: Sequence[Panel]
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    layout: Literal["many", "wide", "one"] = "many"
    legend: Sequence[tuple[Swatch, str]] = ()
    data: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def numbers(self) -> Table:
        """The figure's numbers as a table."""
        return Table(self.head, self.rows, f"Numbers: {self.caption}")


def drawable() -> bool:
    """Returns whether altair and vl-convert are installed."""
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def _with_values(spec: Spec, datasets: Mapping[str, Any]) -> Spec:
    """Gives each chart of a concatenation its own data.

    altair gathers the data of a chart's layers under names.
    """
    result: Spec = {}
    for key, value in spec.items():
        if key == "data" and value.get("name") in datasets:
            result[key] = {"values": datasets[value["name"]]}
        elif key == "layer":
            result[key] = [_with_values(part, datasets) for part in value]
        else:
            result[key] = value
    return result


def runtime() -> str:
    """Returns Vega, Vega-Lite and Vega-Embed as one text.

    Made once (a second), then read from the cache folder.
    """
    vl_convert: Any = import_module("vl_convert")  # its stubs lack the version, and a default
    cached = cache_dir() / f"vega-{vl_convert.__version__}.js"
    try:
        return cached.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    bundle: str = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        temporary = cached.with_name(f".{cached.name}.{os.getpid()}")
        temporary.write_text(bundle, encoding="utf-8")
        temporary.replace(cached)
    except OSError:
        pass  # a cache that cannot be written costs a second the next time
    return bundle


def chart_config(dark: bool = False) -> dict[str, Any]:
    """Returns Vega-Lite's configuration of all charts.

    Colours by theme, so that a chart itself names none.
    """
    ink, soft, line = ("#e6edf3", "#9ba6b2", "#3a434d") if dark else ("#1b1f24", "#57606a", "#d0d7de")
    palette = PALETTE_DARK if dark else PALETTE
    middle = "#232a32" if dark else "#f3f4f6"
    font = "system-ui, Segoe UI, Roboto, Liberation Sans, sans-serif"
    return {
        "background": "transparent" if dark else "white",
        "font": font,
        "view": {"stroke": None},
        "mark": {"color": palette[0]},
        "bar": {"color": palette[0]},
        "tick": {"color": palette[1], "thickness": 2},
        "text": {"color": ink},
        "rule": {"color": soft},
        "axis": {
            "labelColor": soft,
            "titleColor": soft,
            "titleFontWeight": "normal",
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelFontSize": 11,
            "titleFontSize": 11,
        },
        "legend": {"labelColor": ink, "titleColor": soft, "titleFontWeight": "normal", "labelLimit": 300},
        "title": {"color": ink, "anchor": "start", "fontSize": 12, "subtitleColor": soft},
        "header": {"labelColor": ink, "titleColor": soft},
        "range": {
            "category": list(palette),
            "heatmap": [middle, palette[0]] if dark else [middle, "#6baed6", "#08519c"],
            "ramp": [middle, palette[0]],
            "diverging": [palette[1], middle, palette[0]],
        },
    }
