"""The request of a forward pass and its results, and a batch of encoded, padded examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import torch
from PIL import Image
from torch import Tensor

from expound.data.alignment import Alignment
from expound.errors import ExpoundError
from expound.models.regions import Region
from expound.reports.records import Exchange


@dataclass(frozen=True, slots=True)
class Capture:
    """The quantities that a forward pass should record, layer by layer.

    Args:
        attentions: attention weights [B, H, L, L] after the softmax and before dropout.
        heads: queries, keys and values [B, H, L, d_h] (after rotary embedding, keys and values repeated under grouped
            queries), and the factor that q·k is multiplied by.
        hidden_states: hidden states [B, L, d], the output of the embeddings first.
        embeddings: the input embeddings [B, L, d] that the pass runs on, at which a gradient can be taken.
        differentiable_twice: use attention that has a second derivative; fused kernels lack it.
        last_only: only the last layer's attentions are needed, so that fused kernels can compute the others.
        heads_only: the pass may end without logits once all `heads` are recorded.
        distribution: the scores of all choices: logits of classes and of a span's ends, of generated text [B, R, V].
        first_derivatives: only first derivatives are needed, so that a fused kernel computes attention in spite of
            `differentiable_twice`.
        first_query: the first position that attends in `attentions`, which are [B, H, L − first_query, L]. All weights
            of a long prompt can exceed the memory.
    """

    attentions: bool = False
    heads: bool = False
    hidden_states: bool = False
    embeddings: bool = False
    differentiable_twice: bool = False
    last_only: bool = False
    heads_only: bool = False
    distribution: bool = False
    first_derivatives: bool = False
    first_query: int = 0

    def __or__(self, other: Capture) -> Capture:
        """Return a request for everything that at least one of the two asks for."""
        return Capture(
            self.attentions or other.attentions,
            self.heads or other.heads,
            self.hidden_states or other.hidden_states,
            self.embeddings or other.embeddings,
            self.differentiable_twice or other.differentiable_twice,
            # A request without attentions says nothing about which layers' attentions are needed.
            all(request.last_only for request in (self, other) if request.attentions),
            self.heads_only and other.heads_only,
            self.distribution or other.distribution,
            self.first_derivatives and other.first_derivatives,
            min((request.first_query for request in (self, other) if request.attentions), default=0),
        )

    @property
    def needs_own_attention(self) -> bool:
        """Whether our attention function has to replace the model's."""
        return self.attentions or self.heads or self.differentiable_twice

    @property
    def allows_fused_kernel(self) -> bool:
        """Whether attention whose weights are not needed can be computed by a kernel without second derivatives."""
        return not self.differentiable_twice or self.first_derivatives


@dataclass(frozen=True)
class Outputs:
    """The outputs of one forward pass; what `Capture` did not ask for is empty.

    Args:
        logits: [B, C] (spans: [B, 2, L]).
        embeddings: the input embeddings [B, L, d] of the pass, if they were passed in.
        attentions: one tensor per layer, as are `queries`, `keys` and `values`.
        blocks: attentions in the order in which they ran, in models with several per layer. Each is between the
            positions of its sides: an encoder's [B, H, S, S], then alternately its decoder's self-attention
            [B, H, T, T] and cross-attention [B, H, T, S].
        scalings: the factor that q·k is multiplied by, per layer.
        masks: the mask [B, 1, L, L] that attention was called with, per layer, True or 0 where a query sees a key; None
            if a layer needs none. Empty for attention that is recorded by hooks.
        hidden_states: the embeddings' output, then one tensor per layer.
        distribution: the scores of all choices, see `Capture`.
    """

    logits: Tensor
    embeddings: Tensor | None = None
    attentions: tuple[Tensor, ...] = ()
    blocks: tuple[Tensor, ...] = ()
    queries: tuple[Tensor, ...] = ()
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    scalings: tuple[float, ...] = ()
    masks: tuple[Tensor | None, ...] = ()
    hidden_states: tuple[Tensor, ...] = ()
    distribution: Tensor | None = None


def name_outputs(output: Any, *, is_span: bool = False) -> Any:
    """Return the output of a Hugging Face model with its logits as attributes: many models return tuples or dicts.

    Raises:
        ExpoundError: a dict without logits, or another value.
    """
    names = ("start_logits", "end_logits") if is_span else ("logits",)
    if all(hasattr(output, name) for name in names):
        return output
    named: dict[str, Any] = {}
    if isinstance(output, Mapping):
        named = dict(output)
    elif isinstance(output, tuple | list | Tensor):
        # The order of transformers' tuples; there is no loss without labels.
        values = [output] if isinstance(output, Tensor) else [value for value in output if value is not None]
        named = dict(zip(names, values, strict=False))
    if not all(isinstance(named.get(name), Tensor) for name in names):
        raise ExpoundError(
            f"expected a forward that returns {' and '.join(names)}, as an output of transformers, in a dict or first "
            f"in a tuple, got {type(output).__name__} {', '.join(map(str, named))}".rstrip()
        )
    return SimpleNamespace(**named)


def require_finite_logits(logits: Tensor) -> Tensor:
    """Return the logits.

    Raises:
        ExpoundError: a logit is NaN or +∞, so that no explanation of the model would mean anything.
    """
    # −∞ is allowed: it masks outputs.
    if (torch.isnan(logits) | torch.isposinf(logits)).any():
        raise ExpoundError("the model predicts NaN: its weights or its floating point type are broken")
    return logits


def to_float32(values: Tensor) -> Tensor:
    """Return floating point values in float32, or unchanged if their type is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


# A GPU needs many more tokens per pass than a CPU to be busy.
TOKENS_PER_PASS = {"cpu": 1536, "cuda": 65536}
PER_POSITION = frozenset(
    {"attended", "content", "word_of", "rationale_mask", "answerable", "response", "unit_of", "readout_mask"}
    | {"decoder_mask", "region_of", "input_ids", "attention_mask", "token_type_ids", "position_ids"}
)
"""Fields and inputs that have an entry per position."""
TENSORS = (
    *("attended", "content", "word_of", "rationale_mask", "has_rationale", "labels", "answerable", "response"),
    *("unit_of", "foil", "readout_mask", "decoder_mask", "region_of"),
)


@dataclass(frozen=True)
class Batch:
    """B padded examples of at most L positions.

    Args:
        inputs: the arguments of the model's forward (`input_ids` [B, L], …, or `pixel_values` [B, 3, h, w]).
        attended: [B, L] bool, real positions (no padding).
        content: [B, L] bool, positions that can carry attribution (no special tokens either).
        word_of: [B, L] long, the index of each position's word in its example, -1 without a word.
        alignments: each example's tokens, words and characters.
        rationale_mask: [B, L] bool, positions that people marked as evidence.
        has_rationale: [B] bool, whether people annotated the example.
        labels: [B] (class or value) or [B, 2] (span of tokens; -1 when it was cut off).
        answerable: [B, L] bool, positions of possible answer spans.
        image_shape: the height and width of the grid of patches.
        response: [B, L] bool, tokens of generated text, which are explained and never removed.
        unit_of: [B, L] long, the index of each position's unit (source, sentence) if it is known beforehand, else -1.
        foil: [B, R] long, another token for each response token, to explain the difference.
        exchanges: prompts and responses as text.
        readout_mask: [B, L] bool, the positions at which a head over tokens is read.
        decoder_mask: [B, L] bool, what the decoder of an encoder-decoder reads: its start tokens and the response.
        images: the images in each prompt.
        regions: the regions of each prompt's images, which are removed as a whole.
        region_of: [B, L] long, the index of each position's region in its example, -1 outside images.
    """

    inputs: dict[str, Tensor]
    attended: Tensor
    content: Tensor
    word_of: Tensor
    alignments: tuple[Alignment, ...] | None = None
    rationale_mask: Tensor | None = None
    has_rationale: Tensor | None = None
    labels: Tensor | None = None
    answerable: Tensor | None = None
    image_shape: tuple[int, int] | None = None
    response: Tensor | None = None
    unit_of: Tensor | None = None
    foil: Tensor | None = None
    exchanges: tuple[Exchange, ...] | None = None
    readout_mask: Tensor | None = None
    decoder_mask: Tensor | None = None
    images: tuple[tuple[Image.Image, ...], ...] | None = None
    regions: tuple[tuple[Region, ...], ...] | None = None
    region_of: Tensor | None = None

    @classmethod
    def from_ids(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        content: Tensor | None = None,
        response: Tensor | None = None,
        unit_of: Tensor | None = None,
        decoder_mask: Tensor | None = None,
    ) -> Self:
        """Return a batch of token ids [B, L] from elsewhere; every content position is a word of its own.

        Without `attention_mask` every position is real. Without `content` every real position of the prompt can carry
        attribution, special tokens included, because ids alone do not tell them apart.

        Raises:
            ExpoundError: a response that is empty, interrupted, padded or without a token before it.
        """
        attended = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        inputs = {"input_ids": input_ids, "attention_mask": attended.long()}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        if response is not None:
            response = response.bool()
            _check_response(response, attended)
        if decoder_mask is not None:
            decoder_mask = decoder_mask.bool() & attended
        batch = cls(
            inputs, attended, attended, attended.long(), response=response, unit_of=unit_of, decoder_mask=decoder_mask
        )
        content = batch.prompt_mask if content is None else content.bool() & attended
        return replace(batch, content=content, word_of=torch.where(content, content.long().cumsum(1) - 1, -1))

    def __len__(self) -> int:
        """Return B, the number of examples."""
        return len(self.attended)

    @property
    def length(self) -> int:
        """The padded length L."""
        return self.attended.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.attended.device

    @property
    def prompt_mask(self) -> Tensor:
        """[B, L] Real positions, without a response and without what a decoder reads."""
        mask = self.attended
        if self.response is not None:
            mask = mask & ~self.response
        return mask if self.decoder_mask is None else mask & ~self.decoder_mask

    @property
    def removable(self) -> Tensor:
        """[B, L] Content that perturbations may remove: all but a response."""
        if self.response is None:
            return self.content
        return self.content & ~self.response

    @property
    def erasable(self) -> Tensor:
        """[B, L] Content that metrics may remove: of a question with its context, only the context."""
        if self.answerable is None:
            return self.removable
        return self.removable & self.answerable

    def to(self, device: torch.device | str) -> Self:
        """Return the batch with all tensors on `device`."""
        return self._map_tensors(lambda tensor: tensor.to(device))

    def select(self, rows: Tensor | Sequence[int]) -> Self:
        """Return the examples at `rows` [K], in that order; a row may occur more than once."""
        index = torch.as_tensor(rows, device=self.device)
        selected, order = self._map_tensors(lambda tensor: tensor[index]), index.tolist()
        lists: dict[str, Any] = {}
        for name in ("alignments", "exchanges", "images", "regions"):
            values = getattr(self, name)
            lists[name] = None if values is None else tuple(values[row] for row in order)
        return replace(selected, **lists)

    def trim_padding(self) -> tuple[Self, slice]:
        """Return the batch without the columns that are padding in every row, and the slice of columns that stayed."""
        used = self.attended.any(0).nonzero().flatten()
        if not len(used):
            return self, slice(0, self.length)
        columns = slice(int(used[0]), int(used[-1]) + 1)
        if columns.stop - columns.start == self.length:
            return self, columns
        return self._map_tensors(lambda tensor: tensor[:, columns], PER_POSITION), columns

    def name_positions(self, row: int) -> list[str]:
        """Return names for an example's real positions if they have no text: patches of an image, or token ids."""
        real = self.attended[row].cpu()
        if self.image_shape is None:
            return [str(token) for token in self.inputs["input_ids"][row].cpu()[real].tolist()]
        patches = prod(self.image_shape)
        # Some vision models put register or distillation tokens between the class token and the patches.
        others = [f"token {number}" for number in range(1, int(real.sum()) - patches)]
        return ["class", *others, *(f"patch {number}" for number in range(patches))]

    def _map_tensors(self, change: Callable[[Tensor], Tensor], names: frozenset[str] | None = None) -> Self:
        """Return the batch with all tensors, or only the tensors in `names`, changed."""
        fields: dict[str, Any] = {}
        for name in TENSORS:
            value = getattr(self, name)
            if value is not None and (names is None or name in names):
                fields[name] = change(value)
        inputs = dict(self.inputs)
        for name, value in inputs.items():
            if names is None or name in names:
                inputs[name] = change(value)
        return replace(self, inputs=inputs, **fields)


def _check_response(response: Tensor, attended: Tensor) -> None:
    """Raise ExpoundError unless each row has one uninterrupted response of real tokens after a real position."""
    starts = response & ~response.roll(1, 1)
    # A response token is predicted at the position before it, so a response cannot begin a row.
    has_predecessor = attended.roll(1, 1)
    has_predecessor[:, 0] = False
    if not (response.any(1).all() and (attended | ~response).all() and (has_predecessor | ~starts).all()):
        raise ExpoundError("expected a response of one token at least in every row, after a prompt and without padding")
    if (starts.sum(1) > 1).any():
        raise ExpoundError("expected a response's tokens side by side")


class ResponsePositions(NamedTuple):
    """The `positions` [B, R] of the responses' tokens; `real` [B, R] is False after the end of a shorter response."""

    positions: Tensor
    real: Tensor


def find_response_positions(response: Tensor) -> ResponsePositions:
    """Return the positions marked in `response` [B, L]; after a response's end they are 1, a valid index."""
    count = response.sum(1)
    longest = int(count.max())
    real = torch.arange(longest, device=response.device) < count[:, None]
    # A stable sort moves the marked positions to the left without changing their order.
    positions = (~response).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    return ResponsePositions(positions.masked_fill(~real, 1), real)


def find_predicting_columns(response: Tensor) -> Tensor:
    """Return the columns [K] at which any response token of the batch is predicted, ascending."""
    # The logits at a position predict the token after it.
    return response[:, 1:].any(0).nonzero().flatten()


def require_response(batch: Batch) -> Tensor:
    """Return the response's mask [B, L].

    Raises:
        ExpoundError: the batch has no responses.
    """
    if batch.response is None:
        raise _missing_mask_error("generated text", "where the response is", "response=mask")
    return batch.response


def require_decoder_mask(batch: Batch) -> Tensor:
    """Return the mask [B, L] of what the decoder of an encoder-decoder reads.

    Raises:
        ExpoundError: the batch has no responses.
    """
    if batch.decoder_mask is None:
        raise _missing_mask_error(
            "an encoder with a decoder", "what the decoder reads", "response=mask, decoder_mask=mask"
        )
    return batch.decoder_mask


def _missing_mask_error(subject: str, what: str, arguments: str) -> ExpoundError:
    return ExpoundError(
        f"{subject} needs a batch that says {what}: use model.batch(prompt_ids, response_ids), "
        f"or Batch.from_ids(…, {arguments})"
    )


def find_last_tokens(batch: Batch, pad_id: int | None) -> Tensor:
    """Return the position [B] at which a decoder's head reads: the last one whose token is not the padding token.

    It is the first real position if all tokens are the padding token.
    """
    real = batch.attended
    candidates = real if pad_id is None else real & (batch.inputs["input_ids"] != pad_id)
    last = batch.length - 1 - candidates.long().flip(1).argmax(1)
    return torch.where(candidates.any(1), last, real.long().argmax(1))


def get_token_budget(device: torch.device) -> int:
    """Return the padded tokens of a pass without gradients to the weights on a device."""
    return TOKENS_PER_PASS.get(device.type, TOKENS_PER_PASS["cuda"])


def pack(lengths: Sequence[int], budget: int, overhead: int | None = None) -> Iterator[slice]:
    """Yield consecutive slices of rows, each of at most `budget` padded tokens.

    Args:
        lengths: the rows' lengths, longest first.
        budget: padded tokens per pass; a longer row gets a pass of its own.
        overhead: the most tokens that a row is padded by, as many as cost as much as one more pass. By default a pass
            that is half full ends where the rows get shorter: without padding there is no mask to apply either.
    """
    start = 0
    while start < len(lengths):
        longest = max(1, lengths[start])
        half = start + budget // (2 * longest)
        most = min(start + max(1, budget // longest), len(lengths))
        stop = start + 1
        while stop < most:
            if overhead is None:
                joins = stop < half or lengths[stop] == lengths[stop - 1]
            else:
                joins = longest - lengths[stop] <= overhead
            if not joins:
                break
            stop += 1
        yield slice(start, stop)
        start = stop
