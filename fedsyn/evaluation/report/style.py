"""The look of every page, and what wakes its charts: text that is put into the page, which loads nothing."""

from __future__ import annotations

from typing import Any

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--card:#f6f8fa;--line:#d0d7de;
--link:#0550ae;--bar:#0072b2;--tick:#b34700;--warn:#fff8dc;--warn-line:#9a6700;--good:#1a7f37;--mid:#9a6700;
--bad:#b32424}@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9ba6b2;--paper:#12161b;
--card:#1b2128;--line:#3a434d;--link:#79b8ff;--bar:#56b4e9;--tick:#f0a860;--warn:#332a10;--warn-line:#d9a520;
--good:#5bc273;--mid:#e0b040;--bad:#ff8a80}}*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;margin:0;color:var(--ink);
background:var(--paper)}main,header,footer,nav.toc{max-width:72rem;margin:0 auto;padding:0 1rem}
header{padding-top:1.5rem}h1{font-size:1.6rem;line-height:1.25;margin:0 0 .6rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:2.2rem 0 .5rem;padding-top:.6rem;border-top:1px solid var(--line)}
h3{font-size:1.02rem;margin:1.4rem 0 .3rem}p,li{max-width:46rem;overflow-wrap:anywhere}a{color:var(--link)}
.lead{font-size:1.1rem}.soft,figcaption,caption{color:var(--soft)}figcaption{font-size:.92rem;max-width:46rem}
.skip{position:absolute;left:-999rem;top:0;padding:.6rem 1rem;background:var(--paper);color:var(--link);
z-index:9}.skip:focus{left:0}:focus-visible{outline:3px solid var(--link);outline-offset:2px}
nav.toc ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;padding:0;margin:.8rem 0}
nav.toc a{display:inline-block;padding:.25rem 0}.warn{background:var(--warn);
border-left:4px solid var(--warn-line);padding:.7rem 1rem;margin:1rem 0;max-width:50rem}.warn p{margin:.2rem 0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,14rem),1fr));gap:.8rem;margin:1rem 0;
padding:0;list-style:none}.cards li{background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem .9rem;max-width:none}.cards b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums;
line-height:1.3}.scroll{overflow-x:auto;max-width:100%;margin:.4rem 0 1.2rem}table{border-collapse:collapse;
font-size:.92rem}caption{text-align:left;padding:.2rem 0;font-size:.92rem}
td,th{border-bottom:1px solid var(--line);padding:.3rem .9rem .3rem 0;text-align:left;vertical-align:top}
thead th{border-bottom:2px solid var(--line);white-space:nowrap}tbody th{font-weight:500;min-width:7.5rem}
tbody th.n{min-width:0}caption span{display:inline-block;max-width:calc(100vw - 2rem)}
.n{text-align:right;
font-variant-numeric:tabular-nums;white-space:nowrap}.best{font-weight:700}.long{min-width:16rem}
.good{color:var(--good)}.mid{color:var(--mid)}.bad{color:var(--bad)}figure{margin:.8rem 0 1.4rem}
.panels{display:grid;gap:1rem 1.4rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,17rem),1fr))}
.wide .panels{grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr))}
.one .panels{grid-template-columns:1fr}.panel{min-width:0;break-inside:avoid}.panel p{margin:0 0 .2rem;
font-size:.9rem;font-weight:600;overflow-wrap:anywhere}.chart{width:100%;min-width:0;overflow:hidden}
.chart svg{max-width:100%;display:block}.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;
padding:0;margin:.4rem 0;font-size:.92rem}.legend svg{vertical-align:middle;margin-right:.35rem}
details{margin:.4rem 0 1rem}summary{cursor:pointer;color:var(--link);padding:.25rem 0}
pre{background:var(--card);padding:.8rem;overflow:auto;max-width:100%;font-size:.85rem}code{font-size:.92em;
overflow-wrap:anywhere}dt{font-weight:600;margin-top:.7rem}dd{margin:0;max-width:46rem}
#vg-tooltip-element{background:var(--card);color:var(--ink);border:1px solid var(--line);
font:13px system-ui,sans-serif}@media print{.chart svg text{fill:#000!important}
:root{color-scheme:light;--ink:#000;--soft:#333;--paper:#fff;
--card:#fff;--line:#999;--link:#000;--bar:#0072b2;--tick:#b34700;--warn:#fff;--warn-line:#000;--good:#000;
--mid:#000;--bad:#000}body{font-size:10.5pt}.skip,nav.toc{display:none}.scroll{overflow:visible}
h2,h3{break-after:avoid}tr,.panel{break-inside:avoid}details:not([open]){display:none}}
"""

# Okabe and Ito's colours, which people with colour blindness can tell apart; lighter ones on dark paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PALETTE_DARK = ("#56B4E9", "#F0A860", "#2FC79A", "#E3A0C4", "#F0E442", "#7FA8FF", "#FFFFFF")


def series_colours() -> str:
    """The palettes as variables of CSS, for legends."""
    light, dark = (
        ";".join(f"--s{i}:{colour}" for i, colour in enumerate(palette)) for palette in (PALETTE, PALETTE_DARK)
    )
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}@media print{{:root{{{light}}}}}"


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


# Draws every chart of the page where it stands, in the colours of the reader's theme and again when that changes.
SCRIPT = """
(function(){
const read=id=>JSON.parse(document.getElementById(id).textContent);
const data=read('chart-data'),themes=read('chart-themes'),dark=matchMedia('(prefers-color-scheme: dark)');
let drawn=[];
async function draw(){
 const old=drawn;drawn=[];const config=themes[dark.matches?'dark':'light'];
 for(const box of document.querySelectorAll('.chart')){
  const spec=JSON.parse(box.nextElementSibling.textContent);
  if(spec.data&&spec.data.name)spec.datasets={[spec.data.name]:data[spec.data.name]};
  const result=await vegaEmbed(box,spec,{config:{...config,background:'transparent'},actions:false,renderer:'svg'});
  drawn.push(result);
 }
 old.forEach(one=>one.finalize());
 document.documentElement.dataset.charts='drawn';
}
dark.addEventListener('change',draw);
draw().catch(error=>{document.documentElement.dataset.charts='failed: '+error.message;});
})();
"""
