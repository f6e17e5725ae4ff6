"""Whatever text a schema holds comes back from its file: categories that are found have any characters."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsyn import yamlio

# Breaks, spaces and signs of YAML's own come up often.
_SIGNS = st.sampled_from(
    [*"\x00\t\n\x0b\r\x1c\x1f \x7f\x85\xa0\u2028\u2029\ufeff\ufffe\uffff", *":#-?!&*|>%@`'\"{}[],~=<"]
)
texts = st.text(st.one_of(_SIGNS, st.characters(exclude_categories=["Cs"])), max_size=12)


@settings(max_examples=150, deadline=None)
@given(texts)
@example("a\x85b")
@example("\u2028x")
@example("\ufeff")
@example("a\x85" * 80)
@example("1e5")
@example("=")
def test_a_text_comes_back_as_it_is(text: str) -> None:
    document = {"values": [text, "x"], "nested": {text: [{"a": text}]}, "alone": text}
    assert yamlio.loads(yamlio.dumps(document), "here") == document


def test_each_character_of_the_first_plane_comes_back() -> None:
    texts = [f"a{chr(number)}b" for number in range(0x10000) if not 0xD800 <= number < 0xE000]
    assert yamlio.loads(yamlio.dumps(texts), "here") == texts
    assert yamlio.loads(yamlio.dumps({"x": [f"a{chr(0x85)}b"]}), "here") == {"x": ["a\x85b"]}
