"""Prompts, chats and their responses become batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import Encoding
from torch import Tensor

from exegete.data.alignment import Alignment, align
from exegete.data.exchange import Exchange
from exegete.errors import ExegeteError, unknown
from exegete.models.batch import Batch
from exegete.models.encoding import encode as encoding
from exegete.models.encoding.template import SpecialTokens, TemplateEncoding, fit_template
from exegete.models.generation.prompt import Prompt, parse_prompt
from exegete.models.generation.response import (
    Response,
    decode_response,
    generate_response,
    tokenize_decoder_response,
    tokenize_response,
)

if TYPE_CHECKING:
    from exegete.models.generation.model import GeneratingModel

logger = logging.getLogger(__name__)


def prompt_to_row(given: Any) -> dict[str, Any]:
    """A prompt, a pair (prompt, response) or a row of columns as a row; an assistant's last message is the response.

    Raises:
        ExegeteError: anything else.
    """
    if isinstance(given, str):
        return {"prompt": given}
    if isinstance(given, tuple) and len(given) == 2:
        return {"prompt": given[0], "response": given[1]}
    if not isinstance(given, Mapping):
        raise ExegeteError(f"an example is a prompt, or a row with 'prompt' or 'messages', not {given!r:.80}")
    row = {name: value for name, value in given.items() if value is not None}
    messages = row.get("messages")
    if "response" in row or not isinstance(messages, Sequence) or not messages:
        return row
    last = messages[-1]
    if isinstance(last, Mapping) and last.get("role") == "assistant" and last.get("content"):
        return row | {"messages": messages[:-1], "response": last["content"]}
    return row


def respond(
    model: GeneratingModel, examples: Sequence[Any], max_new_tokens: int, temperature: float, seed: int
) -> list[dict[str, Any]]:
    """See `GeneratingModel.respond`."""
    if max_new_tokens < 1 or temperature < 0:
        raise ExegeteError(
            f"expected max_new_tokens of at least 1 and a temperature of at least 0, got {max_new_tokens}, "
            f"{temperature}"
        )
    rows = [prompt_to_row(example) for example in examples]
    for number, row in enumerate(rows):
        if "response" not in row:
            longest = model.max_prompt_length(max_new_tokens)
            placed, _ = _fitted(model, parse_prompt(row, model.tokenizer), longest, number)
            ids = generate_response(
                model.generator, placed.ids, model.pad_id, max_new_tokens, temperature, seed, model.decoder_start_ids
            )
            rows[number] = row | {"response": ids, "prompt_length": longest}
    return rows


def encode(model: GeneratingModel, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
    """See `GeneratingModel.encode`."""
    rows = model.respond(examples)
    read = [_read(model, row, number) for number, row in enumerate(rows)]

    def tokenized(*_: Any) -> encoding.TokenizedRows:
        return [placed for placed, _, _ in read], tuple(alignment for _, alignment, _ in read)

    batch = encoding.encode(model, [{} for _ in rows], tokenized, device)
    count = torch.tensor([len(exchange.tokens) for _, _, exchange in read], device=batch.device)
    place = torch.arange(batch.length, device=batch.device) - batch.length + count[:, None]
    response, decoded = place >= 0, place >= -len(model.decoder_start_ids) if model.decoder_start_ids else None
    exchanges = tuple(exchange for _, _, exchange in read)
    unit_of = _sources(batch, exchanges)
    marked, known = _evidence(rows, exchanges, unit_of)
    made = replace(batch, response=response, decoder_mask=decoded, unit_of=unit_of, exchanges=exchanges)
    return replace(made, rationale_mask=marked, has_rationale=known)


def _read(model: GeneratingModel, row: Mapping[str, Any], number: int) -> tuple[TemplateEncoding, Alignment, Exchange]:
    """An example's tokens, its visible texts aligned with them, and the whole as text."""
    prompt = parse_prompt(row, model.tokenizer)
    placed, texts = _fitted(model, prompt, 1 << 30, number)
    response = _response(model, prompt, placed, texts, row["response"], number)
    longest = min(model.max_prompt_length(len(response.ids)), row.get("prompt_length", model.max_length))
    if len(placed.ids) > longest:
        if longest < 1:
            raise ExegeteError(
                f"the response of example {number} has {len(response.ids)} tokens; prompt and response "
                f"{'each' if model.is_encoder_decoder else 'together'} have at most {model.max_length}"
            )
        placed, texts = _fitted(model, prompt, longest, number)
        response = _response(model, prompt, placed, texts, row["response"], number)
    behind = [*model.decoder_start_ids, *response.ids]
    tokens, more = model.tokenizer.convert_ids_to_tokens(behind), len(behind)
    whole = TemplateEncoding(
        [*placed.ids, *behind],
        [*placed.tokens, *tokens],
        [*placed.offsets, *[(0, 0)] * more],
        [*placed.sequence_ids, *[None] * more],
        [*placed.special_tokens_mask, *[1] * more],
        [0] * (len(placed.ids) + more),
    )
    alignment = align(texts, cast("Encoding", whole), truncated=texts != prompt.texts)
    text, places = prompt.template.filled(texts)
    exchange = Exchange(
        text, prompt.names, tuple(places.values()), prompt.is_source, response.text,
        tuple(tokens[len(model.decoder_start_ids) :]), response.spans,
    )  # fmt: skip
    return whole, alignment, exchange


def _fitted(
    model: GeneratingModel, prompt: Prompt, longest: int, number: int
) -> tuple[TemplateEncoding, tuple[str, ...]]:
    """The prompt's tokens, and its visible texts, cut where it is too long."""
    every: SpecialTokens = "all" if model.is_encoder_decoder else "before"
    special = every if prompt.special else None
    placed, texts = fit_template(model.tokenizer, prompt.template, prompt.texts, longest, special=special)
    cut = [
        f"{name!r} to {len(short)} of {len(text)} characters"
        for name, text, short in zip(prompt.names, prompt.texts, texts, strict=True)
        if text != short
    ]
    if cut:
        logger.warning("the prompt of example %d is cut to %d tokens: %s", number, longest, ", ".join(cut))
    return placed, texts


def _response(
    model: GeneratingModel, prompt: Prompt, placed: TemplateEncoding, texts: tuple[str, ...], given: Any, number: int
) -> Response:
    """A response from what was given, a text or ids."""
    if isinstance(given, str) and given.strip():
        if model.is_encoder_decoder:
            return tokenize_decoder_response(model.tokenizer, given, model.decoder_start_ids)
        whole = prompt.template.filled(texts)[0]
        return tokenize_response(model.tokenizer, whole, placed.ids, given, special=prompt.special)
    ids = [int(token) for token in given] if isinstance(given, Sequence | Tensor) and not isinstance(given, str) else []
    size = model.config.get_text_config().vocab_size
    if not ids or not all(0 <= token < size for token in ids):
        raise ExegeteError(
            f"expected the response of example {number} as a text or as token ids from 0 to {size - 1}, "
            f"one at least, got {given!r:.80}"
        )
    return decode_response(model.tokenizer, ids)


def _evidence(
    rows: Sequence[Mapping[str, Any]], exchanges: Sequence[Exchange], unit_of: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """[B, L] Which positions stand in sources that are `evidence` by name, and [B] where that is known.

    Raises:
        ExegeteError: evidence that is no source of the example.
    """
    named = [row.get("evidence") for row in rows]
    if all(names is None for names in named):
        return None, None
    marked = torch.zeros_like(unit_of, dtype=torch.bool)
    for row, names, exchange, number in zip(marked, named, exchanges, unit_of, strict=True):
        for name in names or ():
            if name not in exchange.sources:
                raise unknown("source in evidence", name, exchange.sources)
            row.logical_or_(number == exchange.sources.index(name))
    return marked, torch.tensor([names is not None for names in named], device=unit_of.device)


def _sources(batch: Batch, exchanges: Sequence[Exchange]) -> Tensor:
    """[B, L] Numbers of the sources, where there are some; else of the visible texts."""
    found = torch.full_like(batch.word_of, -1)
    for row, exchange, alignment in zip(found, exchanges, batch.alignments or (), strict=True):
        named = [True] * len(exchange.names) if not any(exchange.is_source) else exchange.is_source
        number = [count - 1 if own else -1 for count, own in zip(accumulate(named), named, strict=True)]
        sides = [-1 if span is None else number[span[0]] for span in alignment.spans]
        row[len(row) - len(sides) :] = torch.tensor(sides)
    return found
