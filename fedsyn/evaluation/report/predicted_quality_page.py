"""The predicted quality of a table, on its page and in its README: made from released values."""

from __future__ import annotations

from collections.abc import Sequence

from fedsyn.evaluation.predicted import PredictedError, PredictedQuality
from fedsyn.evaluation.report.html import Page
from fedsyn.evaluation.report.tables import number
from fedsyn.evaluation.report.text import paragraph, table

_SHOWN = 12
SOURCES = {
    "measured": "its own noisy counts",
    "sketched": "a sketch",
    "inferred": "what is known of others",
    "unknown": "nothing: its parts alone",
}
_WHAT = (
    "Distances are between the released model and the rows that it was made from, 0 to 2 (0 is equal). They are "
    "predicted from what the run released anyway: nobody's rows were read for them, they cost no privacy, and they may "
    "be published."
)


def predicted_section(page: Page, predicted: PredictedQuality) -> None:
    """The overall error, what would lower it, and the worst pairs, columns and cliques."""
    page.section(
        "How good it is, from what was released",
        paragraph(f"{predicted.sentence()[:1].upper()}{predicted.sentence()[1:]}."),
    )
    if predicted.workload_error is None:
        return
    page.add(paragraph(_WHAT, "soft"), paragraph(predicted.advice()))
    for name, some in (("columns", predicted.columns), ("pairs", predicted.pairs), ("cliques", predicted.cliques)):
        shown = sorted(some, key=lambda said: -said.value)[:_SHOWN]
        head = (name, "distance", "from", "to", "rests on")
        caption = f"The {len(shown)} worst {name} of {len(some):,}; all of them are in predicted_quality.json"
        page.add(
            f"<details><summary>{name.capitalize()}</summary>{table(head, rows(shown), caption=caption)}</details>"
        )


def rows(some: Sequence[PredictedError]) -> list[tuple[str, ...]]:
    """Rows of a table: columns, value, interval, source."""
    return [(" × ".join(s.columns), number(s.value), number(s.low), number(s.high), SOURCES[s.source]) for s in some]
