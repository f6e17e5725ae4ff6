"""The colours of charts, in the light and in the dark; `templates/style.css.md` has those of pages."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colours, which people with colour blindness can tell apart; lighter ones on dark paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PALETTE_DARK = ("#56B4E9", "#F0A860", "#2FC79A", "#E3A0C4", "#F0E442", "#7FA8FF", "#FFFFFF")


def chart_config(dark: bool = False) -> dict[str, Any]:
    """Vega-Lite's configuration of all charts: colours by theme, so that a chart itself names none."""
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
