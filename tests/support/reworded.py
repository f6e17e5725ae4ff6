"""Other words for every refusal: what follows from a refusal must not change with them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from fedsyn.wire.refusals import Kind, Refusal


def _next(kind: Kind) -> Kind:
    kinds = list(Kind)
    return kinds[(kinds.index(kind) + 1) % len(kinds)]


#: Forms of a language: a sentence of each kind.
FORMS: dict[str, Callable[[Kind], str]] = {
    "no words": lambda kind: "",
    "another language": lambda kind: "本节点正在等待持有者批准此运行",
    "another kind's words": lambda kind: f"{_next(kind)}: no reply to 'measure' within 2 s",
    "the words of waiting": lambda kind: "waits: this node waits for its holder to approve; busy; offline; slow",
    "the words of an end": lambda kind: "policy: this node's holder does not want to take part; input; over",
}


def reword(patch: pytest.MonkeyPatch, form: str) -> Callable[[Kind], str]:
    """Have every refusal, made already or later, say something else; return what each kind says."""
    words, real = FORMS[form], Refusal.__init__

    def init(self: Refusal, kind: Kind, sentence: str) -> None:
        real(self, kind, words(kind))

    patch.setattr(Refusal, "__init__", init)
    for name, module in list(sys.modules.items()):
        if name.startswith("fedsyn."):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, Refusal):
                    patch.setattr(module, attribute, Refusal(value.kind, ""))
    return words
