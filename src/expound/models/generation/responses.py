"""Tokens of responses that are given as text, as ids, or generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from expound.data.alignment import trim_span
from expound.errors import ExpoundError
from expound.models.encoding.template import tokenize_text
from expound.models.generation.conversation import find_parts
from expound.models.layers.architecture import find_cache_argument
from expound.models.state import preserve_random_state
from expound.reports.records import Part


@dataclass(frozen=True, slots=True)
class Response:
    """R token `ids`, their `text`, each token's `spans` in it, without white space at its ends, and its `parts`."""

    ids: tuple[int, ...]
    text: str
    spans: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]


def tokenize_response(
    tokenizer: Any,
    prompt: str,
    prompt_ids: Sequence[int],
    text: str,
    *,
    special: bool,
    literal: Sequence[tuple[int, int]] = (),
) -> Response:
    """Return the tokens that the tokenizer appends to a prompt when a text follows it; `literal`: see `tokenize_text`.

    Raises:
        ExpoundError: it appends no token, or tokenizes the prompt differently when the text follows.
    """
    # The response is tokenized together with the prompt: alone it could begin with another token.
    whole = tokenize_text(tokenizer, prompt + text, special=special, literal=literal)
    # Special tokens that the tokenizer adds at the end are no part of the response.
    end = 0
    for place in range(len(whole.ids)):
        if not whole.special_tokens_mask[place] or whole.offsets[place][1]:
            end = place + 1
    ids, count = whole.ids[:end], len(prompt_ids)
    if ids[:count] != list(prompt_ids) or len(ids) == count:
        raise ExpoundError(
            f"the tokenizer does not continue {prompt[-20:]!r} by tokens of the response {text[:20]!r}: move white "
            "space between the two, or give the response as ids"
        )
    spans: list[tuple[int, int]] = []
    for first, last in whole.offsets[count:end]:
        spans.append(trim_span(text, max(first - len(prompt), 0), last - len(prompt)))
    return Response(tuple(ids[count:]), text, tuple(spans), find_parts(text))


def tokenize_decoder_response(tokenizer: Any, text: str, start: Sequence[int]) -> Response:
    """Return the tokens of a text that a decoder generates, with special tokens before it that are not its start.

    Raises:
        ExpoundError: the text has no token.
    """
    whole = tokenize_text(tokenizer, text, target=True)
    # mBART's tokenizer begins with the language code, which is the forced first token of the decoder.
    first = 1 if whole.ids[:1] == list(start[1:2]) else 0
    end = 0
    for place, is_special in enumerate(whole.special_tokens_mask):
        if not is_special:
            end = place + 1
    ids, offsets = whole.ids[first:end], whole.offsets[first:end]
    if not ids:
        raise ExpoundError(f"the tokenizer makes no token of the response {text[:20]!r}")
    return Response(tuple(ids), text, tuple(trim_span(text, *offset) for offset in offsets), find_parts(text))


def decode_response(tokenizer: Any, ids: Sequence[int]) -> Response:
    """Return ids with their text; special tokens have no characters."""

    def decode(part: Sequence[int]) -> str:
        return str(tokenizer.decode(part, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    text = decode(ids)
    # A token's characters are what it adds to the text. The first bytes of a character decode to "�", hence the
    # common prefix.
    ends = [len(commonprefix([text, decode(ids[:count])])) for count in range(len(ids) + 1)]  # noqa: RUF071
    spans = tuple(trim_span(text, start, end) for start, end in pairwise(ends))
    return Response(tuple(ids), text, spans, find_parts(text))


@torch.no_grad()
def generate_responses(
    model: Any, prompt_ids: Sequence[int], pad_id: int, max_new_tokens: int, temperature: float, seed: int,
    start: Sequence[int] = (), stopping_criteria: Sequence[StoppingCriteria] = (), count: int = 1,
) -> list[list[int]]:  # fmt: skip
    """Return the tokens of responses that a Hugging Face model generates, each with the end-of-text token if it ends.

    Args:
        model: a model with `generate`.
        prompt_ids: the prompt.
        pad_id: the padding token.
        max_new_tokens: the most tokens.
        temperature: 0 takes the likeliest token; otherwise tokens are drawn.
        seed: of the draws.
        start: ids that a decoder reads first.
        stopping_criteria: transformers' criteria, called after each token; they can end the response.
        count: the number of responses.
    """
    # top_k=0: by default transformers draws from the 50 likeliest tokens only.
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    decoder: dict[str, Any] = {}
    if start:
        # transformers makes a cache of as many layers as the encoder has; this one grows with the decoder.
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        decoder = {"decoder_input_ids": torch.tensor([list(start)], device=model.device)}
        name = find_cache_argument(model)
        if name is not None:
            decoder[name] = cache
    # Explicit, because checkpoints (BART's) come with beam search and length limits of their own.
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, pad_token_id=pad_id, eos_token_id=model.generation_config.eos_token_id,
        num_beams=1, no_repeat_ngram_size=0, min_length=0, **sampling,
    )  # fmt: skip
    ids = torch.tensor([list(prompt_ids)] * count, device=model.device)
    with preserve_random_state():
        torch.manual_seed(seed)
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config,
            stopping_criteria=StoppingCriteriaList(stopping_criteria), **decoder,
        )  # fmt: skip
    ends = model.generation_config.eos_token_id
    end_ids = ends if isinstance(ends, list) else [ends]
    responses = list[list[int]]()
    for tokens in output[:, len(start or prompt_ids) :].tolist():
        # Padding follows the end of a response that is shorter than another.
        length = next((place for place, token in enumerate(tokens, 1) if token in end_ids), len(tokens))
        responses.append(tokens[:length])
    return responses
