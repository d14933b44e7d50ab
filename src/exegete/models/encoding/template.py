"""Texts in places of a larger one: templates, and their tokens seen from the texts in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from exegete.errors import ExegeteError
from exegete.models.encoding.tokenize import tokenize_text

SpecialTokens = Literal["all", "before"] | None
FIELD = re.compile(r"\{(text|text_pair)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with a place for the text, and one for the second text of a pair. Other braces are only characters."""

    pieces: tuple[str, ...]
    sides: tuple[int, ...]

    @classmethod
    def parse(cls, template: str) -> Template:
        """From text with `{text}` once, and `{text_pair}` at most once."""
        parts = FIELD.split(template)
        names = parts[1::2]
        if sorted(names) not in (["text"], ["text", "text_pair"]):
            raise ExegeteError(
                f"a template has {{text}} once and {{text_pair}} at most once, got {template!r:.80} with "
                + (", ".join(f"{{{name}}}" for name in names) or "neither")
            )
        return cls(tuple(parts[::2]), tuple(("text", "text_pair").index(name) for name in names))

    def filled(self, texts: tuple[str, ...]) -> tuple[str, dict[int, tuple[int, int]]]:
        """The whole prompt, and where in it each text stands."""
        if len(texts) != len(self.sides):
            raise ExegeteError(f"the template has {len(self.sides)} place(s) for texts, the example has {len(texts)}")
        whole, places = self.pieces[0], {}
        for side, after in zip(self.sides, self.pieces[1:], strict=True):
            places[side] = (len(whole), len(whole) + len(texts[side]))
            whole += texts[side] + after
        return whole, places


@dataclass(frozen=True, slots=True)
class TemplateEncoding:
    """The `Encoding` of a prompt, seen from the texts in it: everything else is special."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    sequence_ids: list[int | None]
    special_tokens_mask: list[int]
    type_ids: list[int]
    overflowing: tuple[()] = ()


def encode_template(
    tokenizer: Any, template: Template, texts: tuple[str, ...], *, special: SpecialTokens = "all"
) -> TemplateEncoding:
    """The tokens of the texts in the template; `special`: which of those that the tokenizer adds of its own accord.

    A token that holds characters of both a text and what is around it belongs to neither text.
    """
    whole, places = template.filled(texts)
    found = tokenize_text(tokenizer, whole, special=special is not None)
    stop = len(found.ids)
    while special == "before" and stop and found.special_tokens_mask[stop - 1] and not found.offsets[stop - 1][1]:
        stop -= 1
    sides = [_side(span, whole, places) for span in found.offsets[:stop]]
    sides = [None if added else side for side, added in zip(sides, found.special_tokens_mask, strict=False)]
    offsets = [
        (0, 0) if side is None else (max(start - places[side][0], 0), end - places[side][0])
        for side, (start, end) in zip(sides, found.offsets, strict=False)
    ]
    outside = [int(side is None) for side in sides]
    return TemplateEncoding(found.ids[:stop], found.tokens[:stop], offsets, sides, outside, [0] * stop)


def fit_template(
    tokenizer: Any, template: Template, texts: tuple[str, ...], max_length: int, *, special: SpecialTokens = "all"
) -> tuple[TemplateEncoding, tuple[str, ...]]:
    """The texts in their template, the longest cut at its end until all fits; and what is left of them.

    Raises:
        ExegeteError: the template leaves no room for a text.
    """
    found = encode_template(tokenizer, template, texts, special=special)
    while (excess := len(found.ids) - max_length) > 0:
        longest = max(range(len(texts)), key=found.sequence_ids.count)
        own = [i for i, side in enumerate(found.sequence_ids) if side == longest]
        if len(own) <= excess:
            raise ExegeteError(
                f"the prompt without the text has {len(found.ids) - len(own)} of at most {max_length} "
                "tokens: use a shorter template or fewer shots"
            )
        end = found.offsets[own[-excess]][0]
        texts = (*texts[:longest], texts[longest][:end].rstrip(), *texts[longest + 1 :])
        found = encode_template(tokenizer, template, texts, special=special)
    return found, texts


def _side(span: tuple[int, int], whole: str, places: Mapping[int, tuple[int, int]]) -> int | None:
    """The text that a token's characters are in, white space before them aside."""
    start, end = span
    lead = len(whole[start:end]) - len(whole[start:end].lstrip())
    begin = min(start + lead, end - 1)
    return next((side for side, (first, last) in places.items() if first <= begin and start < end <= last), None)
