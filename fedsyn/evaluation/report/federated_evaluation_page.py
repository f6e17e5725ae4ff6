"""What the holders' noisy sums say of a table, on its page: it was paid for, and may be published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsyn.evaluation.report.html import Page
from fedsyn.evaluation.report.tables import number
from fedsyn.evaluation.report.text import paragraph, table

#: Figure -> what it is, and which way is better.
FIGURES = {
    "workload_error": "mean L1 distance over the workload, 0 to 2: lower is better",
    "range_query_error": "mean difference of 1,000 two-way range queries, 0 to 1: lower is better",
    "accuracy": "rows whose label a classifier trained on the table predicts: higher is better",
    "column_score": "mean score of the columns, 1 is equal: higher is better",
}


def federated_section(page: Page, federated: Mapping[str, Any]) -> None:
    """Every figure with its interval, and what the figures are of."""
    several = federated["holders"] > 1
    head = ("figure", "what", "from", "to", "at the holders")
    rows = []
    for name, figure in federated["figures"].items():
        what = FIGURES.get(name, "1 is equal: higher is better")
        rows.append((name, what, *(number(figure[key]) for key in ("low", "high", "value"))))
    caption = f"Asked of {federated['holders']:,} holders, with noise; {federated['confidence']:.0%} intervals"
    page.section("What the holders say", table(head, rows, caption=caption))
    share = federated.get("held_out", 0)
    apart = f"the classifier was tested on {share:.3g} of their rows, which the run did without" if share else ""
    text = (
        "The holders compared the rows that the table was made from with the table itself; "
        f"{apart or 'none were held out'}. What they counted was summed with noise, from the run's budget: these "
        "figures may be published."
    )
    if several:
        text += (
            " Distances of several holders add up to more than the distance of all their rows together: the last "
            "column is that sum, and an interval reaches down to what is certain."
        )
    page.add(paragraph(text), *(paragraph(f"{note[:1].upper()}{note[1:]}.", "soft") for note in federated["notes"]))
