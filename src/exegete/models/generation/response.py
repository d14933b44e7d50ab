"""Responses as tokens: of a text that continues a prompt, of ids, or as the model itself goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig

from exegete.data.alignment import trim_span
from exegete.errors import ExegeteError
from exegete.models.encoding.tokenize import tokenize_text
from exegete.models.state.restore import preserve_random_state


@dataclass(frozen=True, slots=True)
class Response:
    """R token `ids`, the `text` they make, and the characters of each token in it, without white space at its ends."""

    ids: tuple[int, ...]
    text: str
    spans: tuple[tuple[int, int], ...]


def tokenize_response(tokenizer: Any, prompt: str, prompt_ids: Sequence[int], text: str, *, special: bool) -> Response:
    """The tokens by which a tokenizer continues the prompt with the text.

    Raises:
        ExegeteError: it continues it by none, or makes other tokens of the prompt when the text follows.
    """
    found = tokenize_text(tokenizer, prompt + text, special=special)
    own = [place for place in range(len(found.ids)) if not found.special_tokens_mask[place] or found.offsets[place][1]]
    ids, count = [found.ids[place] for place in range((own or [-1])[-1] + 1)], len(prompt_ids)
    if ids[:count] != list(prompt_ids) or len(ids) == count:
        raise ExegeteError(
            f"the tokenizer does not continue {prompt[-20:]!r} by tokens of the response {text[:20]!r}: move white "
            "space between the two, or give the response as ids"
        )
    spans = tuple(
        trim_span(text, max(start - len(prompt), 0), end - len(prompt))
        for start, end in found.offsets[count : len(ids)]
    )
    return Response(tuple(ids[count:]), text, spans)


def tokenize_decoder_response(tokenizer: Any, text: str, start: Sequence[int]) -> Response:
    """The tokens that a decoder says a text with; special ones before them stay, unless they are its start.

    Raises:
        ExegeteError: there are none.
    """
    found = tokenize_text(tokenizer, text, target=True)
    places = [place for place in range(len(found.ids)) if not found.special_tokens_mask[place]]
    first = 1 if found.ids[:1] == list(start[1:2]) else 0
    own = slice(first, (places or [-1])[-1] + 1)
    ids, offsets = found.ids[own], found.offsets[own]
    if not ids:
        raise ExegeteError(f"the tokenizer makes no token of the response {text[:20]!r}")
    return Response(tuple(ids), text, tuple(trim_span(text, *offset) for offset in offsets))


def decode_response(tokenizer: Any, ids: Sequence[int]) -> Response:
    """Ids with the text that they make; special tokens make none."""

    def decoded(part: Sequence[int]) -> str:
        return str(tokenizer.decode(part, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    whole = decoded(ids)
    ends = [_shared(whole, decoded(ids[:count])) for count in range(len(ids) + 1)]
    spans = (trim_span(whole, start, end) for start, end in pairwise(ends))
    return Response(tuple(ids), whole, tuple(spans))


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


@torch.no_grad()
def generate_response(
    model: Any, prompt_ids: Sequence[int], pad_id: int, max_new_tokens: int, temperature: float, seed: int,
    start: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    """The tokens with which a Hugging Face model goes on: the likeliest at `temperature` 0, else drawn by the seed.

    The end-of-text token is the last of them where the model comes to its end. `start`: what a decoder behind an
    encoder reads before them.
    """
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    decoder: dict[str, Any] = {}
    if start:  # a cache that grows: transformers makes one of as many layers as the encoder has
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        decoder = {"decoder_input_ids": torch.tensor([list(start)], device=model.device), "past_key_values": cache}
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, pad_token_id=pad_id, eos_token_id=model.generation_config.eos_token_id,
        num_beams=1, no_repeat_ngram_size=0, min_length=0, **sampled,
    )  # fmt: skip
    ids = torch.tensor([list(prompt_ids)], device=model.device)
    with preserve_random_state():
        torch.manual_seed(seed)
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config, **decoder)
    return [int(token) for token in found[0, len(start or prompt_ids) :]]
