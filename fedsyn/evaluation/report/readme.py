"""README.md of a run: what may be published about its table. Nothing in it was read from real rows."""

from __future__ import annotations

from dataclasses import replace

from fedsyn.evaluation.report.predicted_quality_page import rows
from fedsyn.evaluation.report.run_page import RunFacts, first_sentence, odds, who_faces_what
from fedsyn.output import filled


def readme(facts: RunFacts) -> str:
    """Return the README.md of a run, in Markdown."""
    told, predicted = replace(facts, public=True, comparison=None, metrics={}), facts.predicted
    return filled(
        "evaluation/report",
        "readme.md",
        facts=told,
        first=first_sentence(told),
        odds=odds(told),
        faced=who_faces_what(told),
        said="" if predicted is None else predicted.sentence(),
        worst=None if predicted is None or predicted.workload_error is None else rows(predicted.worst()),
    )
