"""Prompts with their responses as batches: rows are read, encoded and answered, and responses become tokens."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import Encoding
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from expound.data.alignment import Alignment, align, find_text_of_tokens, trim_span
from expound.data.readers.exchanges import join_text_parts
from expound.data.spans import CONVERSATION_UNITS
from expound.errors import ExpoundError, check_choice
from expound.models.batch import Batch
from expound.models.encoding import encode as encoding
from expound.models.encoding.encode import check_keys
from expound.models.encoding.template import SpecialTokens, TemplateEncoding, fit_template, tokenize_text
from expound.models.generation.conversation import find_parts, find_thought_field, list_calls
from expound.models.generation.prompt import Prompt, number_duplicates
from expound.models.layers.architecture import find_cache_argument
from expound.models.state import preserve_random_state
from expound.reports.records import Exchange, Part

if TYPE_CHECKING:
    from expound.models.generation.model import GeneratingModel


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
    marks = enumerate(zip(whole.special_tokens_mask, whole.offsets, strict=True), 1)
    end = max((place for place, (is_special, (_, last)) in marks if not is_special or last), default=0)
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
    end = max((place for place, is_special in enumerate(whole.special_tokens_mask, 1) if not is_special), default=0)
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
    """Return the tokens of `count` responses that a model generates, each with the end-of-text token if it ends.

    A `temperature` of 0 takes the likeliest token; otherwise tokens are drawn. `start`: ids that a decoder reads first;
    `stopping_criteria`: transformers' criteria, called after each token, which can end the response.
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


logger = logging.getLogger(__name__)
UNLIMITED = 1 << 30


def prompt_to_row(example: Any) -> dict[str, Any]:
    """Return a prompt, a pair (prompt, response) or a row as a row; an assistant's last message is the response.

    Raises:
        ExpoundError: another kind of example, or unknown keys.
    """
    if isinstance(example, str):
        return {"prompt": example}
    if isinstance(example, tuple) and len(example) == 2:
        return {"prompt": example[0], "response": example[1]}
    if not isinstance(example, Mapping):
        raise ExpoundError(f"an example is a prompt, or a row with 'prompt' or 'messages', not {example!r:.80}")
    check_keys(example)
    row = {name: value for name, value in example.items() if value is not None}
    if "completion" in row:
        _read_completion(row)
    messages = row.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return row
    row["messages"] = messages = [_read_message(message) for message in messages]
    if "response" in row:
        return row
    last = messages[-1]
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        return row
    # The chat template writes tool calls and thoughts; a content alone is the text that follows the prompt.
    answer = last if list_calls(last) or find_thought_field(last) else last.get("content")
    return row | {"messages": messages[:-1], "response": answer} if answer else row


def show_units(row: Mapping[str, Any], unit: Any) -> Mapping[str, Any]:
    """Return the row with a unit of a conversation, whose texts all become visible; with another unit as it is."""
    return dict(row) | {"unit": unit} if isinstance(unit, str) and unit in CONVERSATION_UNITS else row


def _read_message(message: Any) -> Any:
    """Return a message as chat templates read it: without empty fields, texts joined, tool calls from JSON."""
    if not isinstance(message, Mapping):
        return message
    read = {key: value for key, value in message.items() if value is not None or key == "content"}
    if "content" in read:
        read["content"] = join_text_parts(read["content"])
    if isinstance(read.get("tool_calls"), str):
        with suppress(ValueError):
            read["tool_calls"] = json.loads(read["tool_calls"])
    if isinstance(read.get("tool_calls"), list):
        read["tool_calls"] = list(map(_read_call, read["tool_calls"]))
    return read


def _read_call(call: Any) -> Any:
    """Return a tool call in OpenAI's form; AgentDojo calls the name `function` and the arguments `args`."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), str):
        return call
    function = {"name": call["function"], "arguments": call.get("args") or {}}
    return {"id": call.get("id"), "type": "function", "function": function}


def _read_completion(row: dict[str, Any]) -> None:
    """Change a row with TRL's `prompt` and `completion`, two texts or two lists of messages, to one with a response."""
    completion = row.pop("completion")
    if "response" in row:
        raise ExpoundError("a row has either a 'response' or a 'completion', which mean the same")
    if isinstance(row.get("prompt"), Sequence) and not isinstance(row["prompt"], str):
        row["messages"] = row.pop("prompt")
    if isinstance(completion, Sequence) and not isinstance(completion, str):
        contents = [message.get("content") for message in completion if isinstance(message, Mapping)]
        if len(completion) != 1 or len(contents) != 1:
            raise ExpoundError(f"expected a completion as a text or as one message, got {completion!r:.80}")
        completion = join_text_parts(contents[0])
    row["response"] = completion


def count_prompt_tokens(model: GeneratingModel, row: Mapping[str, Any]) -> int:
    """Return the number of tokens of a row's whole prompt, however many the model reads."""
    return len(fit_prompt(model, model.parse_prompt(row), UNLIMITED, 0)[0].ids)


def make_empty_error(tokenizer: Any, row: Mapping[str, Any], number: int) -> ExpoundError:
    """Return the error for an example that the model answers by an empty text, with what to try."""
    advice = "another prompt, a temperature above 0 (--temperature), or a response of your own (--response)"
    if "messages" not in row and getattr(tokenizer, "chat_template", None):
        advice = f"the prompt as 'messages', in the chat template (without --raw-prompt), {advice}"
    return ExpoundError(
        f"the model's answer to example {number} is empty, so there is nothing to explain: try {advice}"
    )


def encode_rows(model: GeneratingModel, rows: Sequence[Mapping[str, Any]], device: str | torch.device | None) -> Batch:
    """Return rows with responses as one batch; see `GeneratingModel.encode`."""
    encoded = [_encode_row(model, row, number) for number, row in enumerate(rows)]

    def tokenize(*_: Any) -> encoding.TokenizedRows:
        return [tokens for tokens, _, _ in encoded], tuple(alignment for _, alignment, _ in encoded)

    # Empty rows: what texts have besides tokens (labels, rationales) does not apply.
    batch = encoding.encode(model, [{} for _ in rows], tokenize, device)
    exchanges = tuple(exchange for _, _, exchange in encoded)
    count = torch.tensor([len(exchange.tokens) for exchange in exchanges], device=batch.device)
    # Padding is on the left, so a response ends every row; its tokens are counted from 0.
    place = torch.arange(batch.length, device=batch.device) - batch.length + count[:, None]
    unit_of = _number_sources(batch, exchanges)
    rationale_mask, has_rationale = _mark_evidence(rows, exchanges, unit_of)
    return replace(
        batch,
        response=place >= 0,
        decoder_mask=place >= -len(model.decoder_start_ids) if model.decoder_start_ids else None,
        unit_of=unit_of,
        exchanges=exchanges,
        rationale_mask=rationale_mask,
        has_rationale=has_rationale,
    )


def _encode_row(
    model: GeneratingModel, row: Mapping[str, Any], number: int
) -> tuple[TemplateEncoding, Alignment, Exchange]:
    """Return an example's tokens, its visible texts aligned with them, and its prompt with the response."""
    prompt = model.parse_prompt(row)
    tokens, texts = fit_prompt(model, prompt, UNLIMITED, number)
    response = _encode_response(model, prompt, tokens, texts, row["response"], number)
    longest = min(model.max_prompt_length(len(response.ids)), row.get("prompt_length", model.max_length))
    if len(tokens.ids) > longest:
        if longest < 1:
            raise ExpoundError(
                f"the response of example {number} has {len(response.ids)} tokens; prompt and response "
                f"{'each' if model.is_encoder_decoder else 'together'} have at most {model.max_length}"
            )
        tokens, texts = fit_prompt(model, prompt, longest, number)
        # Encoded again: its tokens may depend on the end of the prompt.
        response = _encode_response(model, prompt, tokens, texts, row["response"], number)
    prompt_text, places = prompt.template.fill(texts)
    is_cut, extents = texts != prompt.texts, list(places.values())
    if row.get("unit") == "thought" and not model.is_encoder_decoder:
        tokens, response, moved, thoughts = _move_thoughts(model.tokenizer, tokens, response, len(texts))
        extents += [(len(prompt_text) + start, len(prompt_text) + end) for start, end in thoughts]
        texts = (*texts, *(moved[start:end] for start, end in thoughts))
        prompt_text += moved
    kinds = (*prompt.kinds, *["thought"] * (len(texts) - len(prompt.kinds)))
    names = (*prompt.names, *kinds[len(prompt.kinds) :])
    start = len(tokens.ids) + len(model.decoder_start_ids)
    added = [*model.decoder_start_ids, *response.ids]
    whole = _append_tokens(model.tokenizer, tokens, added, [(0, 0)] * len(added), [None] * len(added))
    alignment = align(texts, cast("Encoding", whole), truncated=is_cut)
    exchange = Exchange(
        prompt_text, number_duplicates(names), tuple(extents), kinds, response.text,
        tuple(whole.tokens[start:]), response.spans, response.parts,
    )  # fmt: skip
    return whole, alignment, exchange


def _append_tokens(
    tokenizer: Any,
    tokens: TemplateEncoding,
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    sides: Sequence[int | None],
) -> TemplateEncoding:
    """Return the tokens with further ones after them; those without a text are special."""
    return TemplateEncoding(
        [*tokens.ids, *ids],
        [*tokens.tokens, *tokenizer.convert_ids_to_tokens(list(ids))],
        [*tokens.offsets, *offsets],
        [*tokens.sequence_ids, *sides],
        [*tokens.special_tokens_mask, *(int(side is None) for side in sides)],
        [0] * (len(tokens.ids) + len(ids)),
    )


def _move_thoughts(
    tokenizer: Any, tokens: TemplateEncoding, response: Response, side: int
) -> tuple[TemplateEncoding, Response, str, list[tuple[int, int]]]:
    """Return the prompt's tokens extended by a response's up to its answer, the answer, and what was moved.

    The thoughts become visible text number `side`, so that they can be removed; their characters come last. Tokens stay
    those of the response. A response without thoughts stays as it is.
    """
    by_kind = {part.kind: part for part in response.parts}
    if not {"thought", "answer"} <= set(by_kind):
        return tokens, response, "", []
    (_, start, end), cut, text = by_kind["thought"], by_kind["answer"].start, response.text
    count = sum(last <= cut for _, last in response.spans)
    offsets, sides = list[tuple[int, int]](), list[int | None]()
    for first, last in response.spans[:count]:
        is_inside = first < end and last > start
        sides.append(side if is_inside else None)
        offsets.append((max(first, start) - start, min(last, end) - start) if is_inside else (0, 0))
    extended = _append_tokens(tokenizer, tokens, response.ids[:count], offsets, sides)
    spans = tuple((first - cut, last - cut) for first, last in response.spans[count:])
    parts = tuple(Part(kind, first - cut, last - cut) for kind, first, last in response.parts if kind != "thought")
    moved = Response(response.ids[count:], text[cut:], spans, parts)
    if not moved.ids:
        raise ExpoundError("the response ends with its thoughts, so there is no answer to explain")
    return extended, moved, text[:cut], [(start, end)]


def fit_prompt(
    model: GeneratingModel, prompt: Prompt, longest: int, number: int
) -> tuple[TemplateEncoding, tuple[str, ...]]:
    """Return the prompt's tokens and its visible texts, cut if the prompt is too long."""
    # A decoder continues the prompt, so an end-of-text token after it would be wrong; an encoder expects one.
    special: SpecialTokens | None = None
    if prompt.special:
        special = "all" if model.is_encoder_decoder else "before"
    tokens, texts = fit_template(
        model.tokenizer, prompt.template, prompt.texts, longest, special=special, literal=prompt.literal
    )
    cut = []
    for name, text, short in zip(prompt.names, prompt.texts, texts, strict=True):
        if text != short:
            cut.append(f"{name!r} to {len(short)} of {len(text)} characters")
    if cut:
        logger.warning("the prompt of example %d is cut to %d tokens: %s", number, longest, ", ".join(cut))
    return tokens, texts


def _encode_response(
    model: GeneratingModel,
    prompt: Prompt,
    tokens: TemplateEncoding,
    texts: tuple[str, ...],
    response: Any,
    number: int,
) -> Response:
    """Return the tokens of a response, which is a text, token ids, or a message that the chat template writes."""
    parts: tuple[Part, ...] | None = None
    if prompt.answer is not None:
        response, parts = prompt.answer
    if isinstance(response, str) and response.strip():
        if model.is_encoder_decoder:
            return tokenize_decoder_response(model.tokenizer, response, model.decoder_start_ids)
        whole, places = prompt.template.fill(texts)
        literal = [places[number] for number in prompt.literal]
        made = tokenize_response(model.tokenizer, whole, tokens.ids, response, special=prompt.special, literal=literal)
        return made if parts is None else replace(made, parts=parts)
    ids: list[int] = []
    if isinstance(response, Sequence | Tensor) and not isinstance(response, str):
        ids = [int(token) for token in response]
    size = model.config.get_text_config().vocab_size
    if not ids or not all(0 <= token < size for token in ids):
        raise ExpoundError(
            f"expected the response of example {number} as a text or as token ids from 0 to {size - 1}, "
            f"one at least, got {response!r:.80}"
        )
    return decode_response(model.tokenizer, ids)


def _mark_evidence(
    rows: Sequence[Mapping[str, Any]], exchanges: Sequence[Exchange], unit_of: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return a mask [B, L] of the sources named in `evidence`, and a mask [B] of the rows that have evidence.

    Raises:
        ExpoundError: evidence that is no source of the example.
    """
    evidence = [row.get("evidence") for row in rows]
    if all(names is None for names in evidence):
        return None, None
    mask = torch.zeros_like(unit_of, dtype=torch.bool)
    for line, names, exchange, units in zip(mask, evidence, exchanges, unit_of, strict=True):
        for name in names or ():
            check_choice("source in evidence", name, exchange.sources)
            line.logical_or_(units == exchange.sources.index(name))
    return mask, torch.tensor([names is not None for names in evidence], device=unit_of.device)


def _number_sources(batch: Batch, exchanges: Sequence[Exchange]) -> Tensor:
    """Return the number [B, L] of each position's source; without sources, of its visible text; else −1."""
    units = torch.full_like(batch.word_of, -1)
    for row, exchange, alignment in zip(units, exchanges, batch.alignments or (), strict=True):
        is_unit = exchange.is_source if any(exchange.is_source) else [True] * len(exchange.names)
        # [T + 1]; the last entry is for special tokens, whose text has the number −1.
        numbers = torch.tensor([*is_unit, False])
        numbers = torch.where(numbers, numbers.cumsum(0) - 1, -1)
        sides = find_text_of_tokens(alignment)
        row[len(row) - len(sides) :] = numbers[sides]
    return units
