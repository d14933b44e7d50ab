"""Causal language models, explained in the text that they generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria

from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.explained import ExplainedModel
from exegete.models.generation import examples as generation_examples
from exegete.models.generation.examples import ResponseFormat
from exegete.models.generation.from_ids import make_batch
from exegete.models.layers.architecture import unwrap_adapter
from exegete.models.outputs import Capture, Outputs
from exegete.models.response_positions import find_predicting_columns, find_response_positions, require_response
from exegete.models.state import with_lock
from exegete.models.tasks import Generation


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
        ExegeteError: a model without a language modelling head.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "classification", max_length)
        if unwrap_adapter(model).get_output_embeddings() is None:
            raise ExegeteError(f"{type(model).__name__} has no language modelling head: it generates nothing")
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

    @property
    def response_format(self) -> ResponseFormat:
        """The settings by which prompts and responses are read."""
        vocab_size = self.config.get_text_config().vocab_size
        return ResponseFormat(
            self.tokenizer, self.max_length, vocab_size, self.decoder_start_ids, self.is_encoder_decoder
        )

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode prompts or chats with their responses as one left-padded batch; missing responses are generated.

        An example is a prompt, or a row: `prompt`, or `messages` for the tokenizer's chat template; `sources`, texts by
        name, see `parse_prompt` for their places; `literal`, whether braces are plain text; `response`, a text or token
        ids. Only visible texts are content. A prompt that is too long is cut at the end of its longest visible text,
        and a warning says so.

        Raises:
            ExegeteError: a source that is empty or has no place, a response that is no continuation, no tokenizer.
        """
        return generation_examples.encode(self, self.response_format, self.respond(examples), device)

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
            ExegeteError: a generated response is empty or white space, without `allow_empty`.
        """
        return generation_examples.respond(
            self, self.generator, self.response_format, examples, max_new_tokens, temperature, seed,
            allow_empty=allow_empty, stopping_criteria=stopping_criteria,
        )  # fmt: skip

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
            ExegeteError: rows of other lengths, an empty prompt or response, an id that the model does not have.
        """
        batch = make_batch(prompt_ids, response_ids, self.pad_id, content, unit_of, foil_ids, self.decoder_start_ids)
        ids, size = batch.inputs["input_ids"], self.config.get_text_config().vocab_size
        if ids.max() >= size or ids.min() < 0:
            raise ExegeteError(f"expected token ids from 0 to {size - 1}")
        return self.add_position_ids(batch.to(self.device))

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
        """
        arguments = self._forward_arguments(batch, Capture()) | {"use_cache": True, "past_key_values": past}
        output = self.model(**arguments)
        return Outputs(self.task.logits(output, batch)), output.past_key_values

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._forward_arguments(batch, capture)
        # Logits over the vocabulary are the largest tensor of a pass, so only those that are read are computed.
        columns = find_predicting_columns(require_response(batch))
        if "logits_to_keep" in self.forward_parameters:
            arguments["logits_to_keep"] = columns
        return arguments
