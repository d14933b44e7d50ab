"""A causal language model, explained in what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.explained import ExplainedModel
from exegete.models.generation import examples as generation_examples
from exegete.models.generation.from_ids import make_batch
from exegete.models.loading.adapters import unwrap_adapter
from exegete.models.outputs import Outputs
from exegete.models.passes.capture import Capture
from exegete.models.response_positions import find_predicting_columns, find_response_positions, require_response
from exegete.models.state.locks import with_lock
from exegete.models.tasks import Generation


class GeneratingModel(ExplainedModel):
    """A causal language model whose response to a prompt is explained.

    The target is a span of response tokens, (start, end) counted from the response's first token: its log-probability
    given everything before it (its logits' sum, or its probability, with `output`). Each token is read at the position
    before it, all of them in one pass. The response is never removed or replaced.

    Args:
        model: a causal language model.
        processing_class: its tokenizer; without it only batches made from ids work.
        max_length: tokens that prompt and response may have together, where that shall be fewer than the model takes.

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
        """The ids between prompt and response; only decoders behind an encoder have some."""
        return ()

    def max_prompt_length(self, response: int) -> int:
        """How many tokens a prompt may have before a response of so many; none or less where that is too long."""
        return self.max_length - response

    @property
    def labels(self) -> tuple[str, ...]:
        """A text has none."""
        return ()

    @property
    def is_decoder(self) -> bool:
        """Padding goes left."""
        return True

    @property
    def _is_read_at_last_token(self) -> bool:
        return False

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Prompts or chats with their responses as one left-padded batch; what has no response is answered first.

        An example is a prompt, or a row: `prompt`, or `messages` for the tokenizer's chat template; `sources`, texts by
        name, see `parse_prompt` for where they go; `response`, a text or token ids. Only visible texts are content. Too
        long a prompt is cut at the end of its longest visible text, and a warning says so.

        Raises:
            ExegeteError: a source that is empty or has no place, a response that is no continuation, no tokenizer.
        """
        return generation_examples.encode(self, examples, device)

    def respond(
        self, examples: Sequence[Any], max_new_tokens: int = 64, temperature: float = 0.0, seed: int = 0
    ) -> list[dict[str, Any]]:
        """The examples as rows, each with a response: what it came with, or else what the model says, as token ids.

        `temperature` 0 takes the likeliest token every time; others are drawn, by `seed` and the prompt alone.
        """
        return generation_examples.respond(self, examples, max_new_tokens, temperature, seed)

    def batch(
        self, prompt_ids: Any, response_ids: Any, content: Any = None, *, unit_of: Any = None, foil_ids: Any = None
    ) -> Batch:
        """Prompts and responses made elsewhere as one left-padded batch on the model's device.

        Args:
            prompt_ids: ids of one example, or a row for each; lists, arrays or tensors, rows of any length.
            response_ids: the same for what the model said, or might have said.
            content: booleans in rows as long as the prompt, or prompt and response: what can carry attribution;
                default: the whole prompt, special tokens included, because ids alone do not tell them apart.
            unit_of: integers in rows as `content`: the number of each position's unit (source, sentence), -1 for none.
            foil_ids: another token in each response token's place; scores then are differences, response − foil.

        Raises:
            ExegeteError: rows of other lengths, an empty prompt or response.
        """
        made = make_batch(prompt_ids, response_ids, self.pad_id, content, unit_of, foil_ids, self.decoder_start_ids)
        if (ids := made.inputs["input_ids"]).max() >= self.config.get_text_config().vocab_size or ids.min() < 0:
            raise ExegeteError(f"expected token ids from 0 to {self.config.get_text_config().vocab_size - 1}")
        return self.add_position_ids(made.to(self.device))

    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """Weights [B, L] of the positions that predict the span's tokens, the same for each, 1 in all."""
        positions, _ = find_response_positions(require_response(batch))
        step = torch.arange(positions.shape[1], device=batch.device)
        inside = ((step >= target[:, :1]) & (step < target[:, 1:])).to(self.dtype)
        weights = torch.zeros(batch.attended.shape, device=batch.device, dtype=self.dtype)
        return weights.scatter_add(1, positions - 1, inside / inside.sum(1, keepdim=True))

    @with_lock
    def forward_with_cache(self, batch: Batch, past: DynamicCache) -> tuple[Outputs, DynamicCache]:
        """One pass over texts [B, S] whose beginnings were read before, and all that was read then and now.

        `past` has their keys and values, at its right end; `attention_mask` covers it too, and positions are explicit.
        """
        arguments = self._forward_arguments(batch, Capture()) | {"use_cache": True, "past_key_values": past}
        output = self.model(**arguments)
        return Outputs(self.task.logits(output, batch)), output.past_key_values

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        columns = find_predicting_columns(require_response(batch))
        only_needed = {"logits_to_keep": columns} if self.accepts("logits_to_keep") else {}
        return super()._forward_arguments(batch, capture) | only_needed
