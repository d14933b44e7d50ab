"""Causal language models, explained in the text that they generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria

from expound.errors import ExpoundError
from expound.models.batch import (
    Batch,
    Capture,
    Outputs,
    find_predicting_columns,
    find_response_positions,
    require_response,
)
from expound.models.explained import ExplainedModel
from expound.models.generation.examples import (
    decode_response,
    encode_rows,
    fit_prompt,
    generate_responses,
    make_empty_error,
    prompt_to_row,
)
from expound.models.generation.prompt import Prompt, parse_prompt
from expound.models.layers.architecture import find_cache_argument, unwrap_adapter
from expound.models.state import with_lock
from expound.models.tasks import Generation


class GeneratingModel(ExplainedModel):
    """A causal language model whose response to a prompt is explained.

    The target is a span of response tokens, (start, end) counted from the response's first token: its log-probability
    given everything before it (its logits' sum, or its probability, with `output`). Each token is read at the position
    before it, all of them in one pass. The response is never removed or replaced.

    Args:
        model: a causal language model.
        processing_class: its tokenizer; without it only batches made from ids work.
        max_length: the most tokens of prompt and response together, if fewer than the model allows.

    Raises:
        ExpoundError: a model without a language modeling head.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "classification", max_length)
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ExpoundError(
                "a language model with prompt tuning reads virtual tokens before its prompt, which shift positions: "
                "that is not explained; train an adapter of another kind, such as LoRA"
            )
        if unwrap_adapter(model).get_output_embeddings() is None:
            raise ExpoundError(f"{type(model).__name__} has no language modeling head: it generates nothing")
        self.task = Generation()

    @property
    def generator(self) -> PreTrainedModel:
        """The Hugging Face model that generates."""
        return self.model

    @property
    def decoder_start_ids(self) -> tuple[int, ...]:
        """The ids between prompt and response; empty without a decoder of its own."""
        return ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Empty: a text has no labels."""
        return ()

    @property
    def is_decoder(self) -> bool:
        """True: padding goes to the left."""
        return True

    def max_prompt_length(self, response: int) -> int:
        """Return the most tokens of a prompt before a response of this length, 0 or less if that is too long."""
        if not self.is_encoder_decoder:
            return self.max_length - response
        # An encoder-decoder reads as many tokens on either side.
        if response + len(self.decoder_start_ids) <= self.max_length:
            return self.max_length
        return 0

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode prompts or chats with their responses as one left-padded batch; missing responses are generated.

        An example is a prompt, or a row: `prompt`, or `messages` for the tokenizer's chat template; `sources`, texts by
        name, see `parse_prompt` for their places; `literal`, whether braces are plain text; `response`, a text or token
        ids. Content are the visible texts: sources and the user's own (see `parse_prompt`). A prompt that is too long
        is cut at the end of its longest visible text, and a warning says so.

        Raises:
            ExpoundError: a source that is empty or has no place, a response that is no continuation, no tokenizer.
        """
        return encode_rows(self, self.respond(examples), device)

    def parse_prompt(self, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a row, see `parse_prompt` of the module."""
        return parse_prompt(row, self.tokenizer)

    def make_generator(self, row: Mapping[str, Any], prompt_ids: Sequence[int]) -> Any:
        """Return an object that generates a response to the row's prompt."""
        return self.generator

    def respond(
        self,
        examples: Sequence[Any],
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        *,
        allow_empty: bool = False,
        stopping_criteria: Sequence[StoppingCriteria] = (),
    ) -> list[dict[str, Any]]:
        """Return the examples as rows with responses: their own, or else the model's, as token ids.

        `temperature` 0 takes the likeliest token every time; others are drawn, by `seed` and the prompt alone.
        `stopping_criteria` are transformers' own: each is called after every token and can end the response.

        Raises:
            ExpoundError: a generated response is empty or white space, without `allow_empty`.
        """
        if max_new_tokens < 1 or temperature < 0:
            got = f"{max_new_tokens}, {temperature}"
            raise ExpoundError(f"expected max_new_tokens of at least 1 and a temperature of at least 0, got {got}")
        rows = [prompt_to_row(example) for example in examples]
        for number, row in enumerate(rows):
            if "response" not in row:
                longest = self.max_prompt_length(max_new_tokens)
                prompt, _ = fit_prompt(self, self.parse_prompt(row), longest, number)
                (ids,) = generate_responses(
                    self.make_generator(row, prompt.ids), prompt.ids, self.pad_id, max_new_tokens, temperature, seed,
                    self.decoder_start_ids, stopping_criteria,
                )  # fmt: skip
                if not allow_empty and not decode_response(self.tokenizer, ids).text.strip():
                    raise make_empty_error(self.tokenizer, row, number)
                # The response was generated after the cut prompt, so later the prompt is cut at the same length.
                rows[number] = row | {"response": ids, "prompt_length": longest}
        return rows

    def batch(
        self, prompt_ids: Any, response_ids: Any, content: Any = None, *, unit_of: Any = None, foil_ids: Any = None
    ) -> Batch:
        """Return prompts and responses from elsewhere as one left-padded batch on the model's device.

        Args:
            prompt_ids: ids of one example, or one row per example; lists, arrays or tensors, rows of any length.
            response_ids: the same for the model's response, or any other.
            content: booleans in rows as long as the prompt, or as prompt and response: what can carry attribution;
                default: the whole prompt, special tokens included, because ids alone do not tell them apart.
            unit_of: integers in rows like `content`: the number of each position's unit (source, sentence), -1 without.
            foil_ids: another token for each response token; scores then are differences, response − foil.

        Raises:
            ExpoundError: rows of other lengths, an empty prompt or response, an id that the model does not have.
        """
        prompts, responses = _read_rows("prompt_ids", prompt_ids), _read_rows("response_ids", response_ids)
        if len(prompts) != len(responses):
            raise ExpoundError(f"expected a response for each of {len(prompts)} prompts, got {len(responses)}")
        start = torch.tensor(self.decoder_start_ids).long()
        ids: list[Tensor] = []
        lengths: list[tuple[int, int]] = []
        for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            if not len(prompt) or not len(response):
                empty = "response" if len(prompt) else "prompt"
                raise ExpoundError(f"example {number} has an empty {empty}: each needs one token at least")
            ids.append(torch.cat([prompt, start, response]))
            lengths.append((len(prompt), len(response)))
        # Rows end with start and response, so both masks are ends of rows.
        in_response = _pad_left([_mark_end(len(row), count) for row, (_, count) in zip(ids, lengths, strict=True)])
        in_decoder = _pad_left([_mark_end(len(row), len(row) - n) for row, (n, _) in zip(ids, lengths, strict=True)])
        batch = Batch.from_ids(
            _pad_left(ids, self.pad_id),
            _pad_left([torch.ones_like(row) for row in ids]),
            response=in_response,
            content=_extend_rows("content", content, lengths, False, len(start)),
            unit_of=_extend_rows("unit_of", unit_of, lengths, -1, len(start)),
            decoder_mask=in_decoder if len(start) else None,
        )
        padded, size = batch.inputs["input_ids"], self.config.get_text_config().vocab_size
        foil = None if foil_ids is None else _read_foils(foil_ids, lengths)
        if padded.max() >= size or padded.min() < 0:
            raise ExpoundError(f"expected token ids from 0 to {size - 1}")
        return self.add_position_ids(replace(batch, foil=foil).to(self.device))

    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """Return equal weights [B, L] of the positions that predict the span's tokens; their sum is 1."""
        positions, _ = find_response_positions(require_response(batch))
        step = torch.arange(positions.shape[1], device=batch.device)
        inside = ((step >= target[:, :1]) & (step < target[:, 1:])).to(self.dtype)
        weights = torch.zeros(batch.attended.shape, device=batch.device, dtype=self.dtype)
        return weights.scatter_add(1, positions - 1, inside / inside.sum(1, keepdim=True))

    @with_lock
    def forward_with_cache(self, batch: Batch, past: DynamicCache) -> tuple[Outputs, DynamicCache]:
        """Run one pass over texts [B, S] after cached beginnings, and return the outputs and the extended cache.

        Args:
            batch: the new tokens; `attention_mask` covers the cache, too, and position ids are explicit.
            past: keys and values of the beginnings, padded on the left.

        Raises:
            ExpoundError: a model that takes no cache.
        """
        name = find_cache_argument(self.model)
        if name is None:
            raise ExpoundError(f"{type(self.model).__name__} takes no cache of keys and values")
        arguments = self._forward_arguments(batch, Capture()) | {"use_cache": True, name: past}
        output = self.model(**arguments)
        return Outputs(self.task.logits(output, batch)), output[name]

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._forward_arguments(batch, capture)
        # Logits over the vocabulary are the largest tensor of a pass, so only those that are read are computed.
        columns = find_predicting_columns(require_response(batch))
        if "logits_to_keep" in self.forward_parameters:
            arguments["logits_to_keep"] = columns
        return arguments


def _mark_end(length: int, count: int) -> Tensor:
    return torch.arange(length) >= length - count


def _read_rows(name: str, values: Any) -> list[Tensor]:
    """Return the token ids [n] of one example or several, from lists, arrays or tensors."""
    try:
        # A flat list is one example; a list of rows may be ragged, which torch cannot read at once.
        if not isinstance(values, Sequence) or (len(values) and isinstance(values[0], int | bool)):
            values = torch.as_tensor(values)
            if values.ndim == 1:
                values = values[None]
        rows = [torch.as_tensor(row, device="cpu") for row in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ExpoundError(f"{name} cannot be read as rows of integers: {error}") from error
    # torch reads an empty list as floating point.
    if not rows or any(row.ndim != 1 or (len(row) and row.is_floating_point()) for row in rows):
        raise ExpoundError(f"expected {name} as one row of integers or one for each example")
    for number, row in enumerate(rows):
        if row.dtype != torch.bool:
            rows[number] = row.long()
    return rows


def _extend_rows(name: str, values: Any, lengths: list[tuple[int, int]], fill: Any, start: int) -> Tensor | None:
    """Return padded rows over prompt, start and response, from rows over prompt and response or the prompt alone."""
    if values is None:
        return None
    rows = _read_rows(name, values)
    if len(rows) != len(lengths):
        raise ExpoundError(f"expected {name} for {len(lengths)} examples, got {len(rows)} rows")
    extended = []
    for number, (row, (prompt, response)) in enumerate(zip(rows, lengths, strict=True)):
        whole = prompt + response
        if len(row) not in (prompt, whole):
            raise ExpoundError(
                f"expected {name} of example {number} for its {prompt} prompt tokens or all {whole} tokens, "
                f"got {len(row)}"
            )
        after = torch.cat([row[prompt:], row.new_full((whole - len(row),), fill)])
        extended.append(torch.cat([row[:prompt], row.new_full((start,), fill), after]))
    return _pad_left(extended, fill)


def _read_foils(foils: Any, lengths: list[tuple[int, int]]) -> Tensor:
    """Return a foil [B, R] for each token of each response."""
    rows = _read_rows("foil_ids", foils)
    expected = [response for _, response in lengths]
    if [len(row) for row in rows] != expected:
        raise ExpoundError(f"expected a foil for each response token, {expected} of them")
    return pad_sequence(rows, batch_first=True, padding_value=0)


def _pad_left(rows: list[Tensor], fill: Any = 0) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=fill, padding_side="left")
