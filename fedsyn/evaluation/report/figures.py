"""Figures: what is drawn, what it says in words and numbers, how it stands in a page and in a file.

Charts are Vega-Lite, built with altair where it is installed (extra `report`). A page carries the Vega runtime once, so
that it needs no network; a file (SVG, PDF, PNG) is drawn by vl-convert, which needs no browser. Every figure has its
numbers as a table beside it: that is what a screen reader reads, and all there is where altair is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedsyn.errors import ConfigError
from fedsyn.evaluation.report.style import chart_config
from fedsyn.evaluation.report.tables import Table
from fedsyn.files import PUBLIC, make_folder, replace_synced
from fedsyn.table.data.fetch import cache_dir
from fedsyn.version import installing

Spec = dict[str, Any]
FORMATS = ("svg", "pdf", "png")
INSTALL = installing("report")
_FILE_WIDTH, _FILE_COLUMNS = 230, 3
_LONGEST = 100  # characters of a figure's name that its file's name keeps


@dataclass(frozen=True)
class Panel:
    """One chart of a figure: its heading, what it shows in one sentence, and what builds it.

    That gives a chart of altair, or its specification.
    """

    title: str
    says: str
    build: Callable[[], Any]

    def spec(self, *, legend: bool = True) -> Spec:
        """Return its specification with its data inside; without the chart's legend where the page has its own."""
        # altair's validation would cost more than everything else here; the tests draw every chart.
        built = self.build()
        spec: Spec = built if isinstance(built, dict) else built.to_dict(validate=False)
        datasets = spec.pop("datasets", {})
        for key in ("$schema", "config"):
            spec.pop(key, None)
        spec = _with_values(spec, datasets)
        return spec if legend else _without_legend(spec)


@dataclass(frozen=True)
class Swatch:
    """A key of a legend, as a page draws it: 24 by 12.

    Attributes:
        colour: of CSS.
        path: its shape, as SVG has it.
        dash: of the line behind it; None: there is no line.
    """

    colour: str
    path: str
    dash: str | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of one or more charts.

    Attributes:
        name: of its file.
        caption: what it shows and how to read it.
        panels: its charts.
        head, rows: its numbers; none where a table of the page has them.
        layout: 'many' small panels, a few 'wide' ones, or 'one' below the other.
        legend: (swatch, text) pairs.
        data: named tables that the charts of the figure share.
        columns: panels side by side in a file.
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
    columns: int = _FILE_COLUMNS

    @property
    def numbers(self) -> Table:
        """Its numbers as a table."""
        return Table(self.head, self.rows, f"Numbers: {self.caption}")


def drawable() -> bool:
    """Whether charts can be drawn: altair and vl-convert are installed."""
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def require_formats(formats: Sequence[str]) -> None:
    """Refuses formats of figures that cannot be written, before a page is.

    Raises:
        ConfigError: altair or vl-convert is not installed, or a format is unknown.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ConfigError(f"figures: '{unknown[0]}' is not a format; use svg, pdf or png, or several: svg,pdf")
    if formats and not drawable():
        raise ConfigError(f"figures need altair and vl-convert, which are not installed: {INSTALL}")


def save_figures(figures: Sequence[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes each figure as a file of each format into a folder. Returns the paths.

    Raises:
        ConfigError: altair or vl-convert is not installed, a format is unknown, or the folder is a link.
    """
    require_formats(formats)
    make_folder(folder)
    drawn = [figure for figure in figures if figure.panels]
    paths = []
    for figure, stem in zip(drawn, file_stems([figure.name for figure in drawn]), strict=True):
        spec = file_spec(figure)
        paths += [write_chart(spec, folder / f"{stem}.{name}") for name in formats]
    return paths


def file_stems(names: Sequence[str]) -> list[str]:
    """Return a file name, without its suffix, for each name of a figure, which may be a stranger's metric.

    >>> file_stems(["loss", "../loss", ".._loss"])
    ['loss', '.._loss', '.._loss-2']
    """
    stems: list[str] = []
    for name in names:
        plain, number = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST], 1
        while (stem := plain if number == 1 else f"{plain}-{number}") in stems:
            number += 1
        stems.append(stem)
    return stems


def write_chart(spec: Spec, path: Path) -> Path:
    """Draws a Vega-Lite specification into a file; its suffix says the format."""
    import vl_convert

    config, content = chart_config(), b""
    if path.suffix == ".svg":
        content = vl_convert.vegalite_to_svg(spec, config=config, show_warnings=False).encode()
    elif path.suffix == ".pdf":
        content = vl_convert.vegalite_to_pdf(spec, config=config)
    else:
        content = vl_convert.vegalite_to_png(spec, config=config, scale=2, show_warnings=False)
    replace_synced(path, content, PUBLIC)
    return path


def file_spec(figure: Figure) -> Spec:
    """All panels of a figure as one specification of fixed size."""
    parts = []
    for panel in figure.panels:
        spec = panel.spec()
        spec.pop("autosize", None)
        spec["title"] = panel.title
        if spec.get("width") == "container":
            spec["width"] = _FILE_WIDTH if figure.layout == "many" else 2 * _FILE_WIDTH
        parts.append(spec)
    whole: Spec = {"concat": parts, "columns": figure.columns, "datasets": dict(figure.data)}
    if not figure.legend:
        whole["resolve"] = {"scale": {"color": "independent"}}
    else:
        whole["resolve"] = {"legend": {"color": "shared", "shape": "shared"}}
    return whole


def _with_values(spec: Spec, datasets: Mapping[str, Any]) -> Spec:
    """altair gathers the data of a chart's layers under names; where charts are put together each keeps its own."""
    result: Spec = {}
    for key, value in spec.items():
        if key == "data" and value.get("name") in datasets:
            result[key] = {"values": datasets[value["name"]]}
        elif key == "layer":
            result[key] = [_with_values(part, datasets) for part in value]
        else:
            result[key] = value
    return result


def _without_legend(spec: Spec) -> Spec:
    result = dict(spec)
    if "encoding" in spec:
        keys = ("color", "shape", "strokeDash")
        result["encoding"] = {k: {**v, "legend": None} if k in keys else v for k, v in spec["encoding"].items()}
    if "layer" in spec:
        result["layer"] = [_without_legend(part) for part in spec["layer"]]
    return result


def runtime() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one text; made once (a second), then read from the cache folder."""
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
