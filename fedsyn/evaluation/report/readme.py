"""README.md of a run: what may be published about its table. Nothing in it was read from real rows."""

from __future__ import annotations

from dataclasses import replace

from fedsyn.evaluation.record import sentence
from fedsyn.evaluation.report.evaluations import summary
from fedsyn.evaluation.report.run_page import RunFacts, first_sentence, odds, who_faces_what
from fedsyn.output import filled


def readme(facts: RunFacts) -> str:
    """Return the README.md of a run, in Markdown."""
    public = [found for found in facts.evaluations if found.PUBLIC]
    told = replace(facts, public=True, evaluations=public, metrics={})
    return filled(
        "evaluation/report",
        "readme.md",
        facts=told,
        first=first_sentence(told),
        odds=odds(told),
        faced=who_faces_what(told),
        evaluations=[(sentence(found.sentence()), found, summary(found)) for found in public],
    )
