"""Hooks for the time of a pass: other embeddings, a decoder's last token, a last layer that computes what is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.batch import Batch, find_last_tokens
from expound.models.hugging_face import MODEL_ERRORS, HuggingFaceModel, is_exact, remember
from expound.models.layers.architecture import get_layers
from expound.models.passes.layer_calls import find_record

NO_ID = -1
# Blocks may be nested; the hooks of two blocks on one layer would cut its positions twice.
_SHORTENED: ContextVar[tuple[nn.Module, ...]] = ContextVar("expound_shortened_layers", default=())


@contextmanager
def replace_embeddings(layer: nn.Module, embeddings: Tensor) -> Iterator[None]:
    """Let the embedding layer return these embeddings [B, L, d] at its first call inside the block.

    Ids are still passed, so that positions, padding and pooling are the model's own in every family.

    Raises:
        ExpoundError: the layer was not called, so that these embeddings were never read.
    """
    is_replaced = False

    def replace_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        nonlocal is_replaced
        # Later calls keep their output: GPT-2 looks up token types in the same layer.
        if is_replaced:
            return output
        is_replaced = True
        own, length = output.shape[1], embeddings.shape[1]
        # BigBird pads ids to full blocks.
        if own > length:
            return torch.cat([embeddings.to(output.dtype), output[:, length:]], 1)
        # An image's patch layer does not return the class token, which stands before the patches.
        given = embeddings[:, length - own :].to(output.dtype)
        # A model may multiply its embeddings in place, which autograd forbids for a leaf.
        return given.clone() if given.requires_grad and embeddings.is_leaf else given

    with layer.register_forward_hook(replace_output):
        yield
    if not is_replaced:
        raise ExpoundError("the model did not read the input embeddings given to it: it looks words up somewhere else")


@contextmanager
def mark_last_token(model: PreTrainedModel, layer: nn.Module, batch: Batch) -> Iterator[Tensor]:
    """Yield ids [B, L] in which a decoder's head finds the last token, even without a padding token.

    transformers' heads read at the last id that is not the padding token, and refuse batches if the model has none.
    Inside the block, ids after the last token are −1, and −1 is the padding token; the embedding layer still reads the
    batch's own ids.
    """
    # Heads of models that also read images ask the configuration of their text part.
    ids, config = batch.inputs["input_ids"], model.config.get_text_config()
    before = config.pad_token_id
    after = torch.arange(batch.length, device=ids.device) > find_last_tokens(batch, before)[:, None]
    is_replaced = False

    def replace_ids(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal is_replaced
        if is_replaced:
            return None
        is_replaced = True
        return ids, *inputs[1:]

    config.pad_token_id = NO_ID
    try:
        with layer.register_forward_pre_hook(replace_ids):
            yield ids.masked_fill(after, NO_ID)
    finally:
        config.pad_token_id = before


@contextmanager
def skip_unread_positions(model: HuggingFaceModel, batch: Batch) -> Iterator[None]:
    """Let the last layer compute, inside the block, only the positions at which the head reads.

    This saves most of a layer, and logits stay the same. It applies to heads that read the first position, where the
    part of a layer that adds the residual to attention's output is a module, and to language models with norms first.
    Where this model predicts otherwise when the skipped positions are NaN, passes run in full.

    Args:
        model: a model whose last layer's hidden states are not needed inside the block.
        batch: examples, on one of which the shortcut is tried at the first call.
    """
    paths: list[str] = remember(model, "parts of single positions", lambda: _find_parts(model, batch))
    shorten = _compute_predicting_columns if model.task.is_generated else _compute_first_position
    if not paths:
        yield
        return

    def run(alone: Batch) -> Tensor:
        with ExitStack() as trial:
            shorten(model, paths, torch.nan, trial)
            logits: Tensor = model(alone).logits
        return logits

    before = _SHORTENED.get()
    with ExitStack() as scope:
        if model.model not in before and is_exact(model, "unread positions", batch, run):
            scope.callback(_SHORTENED.reset, _SHORTENED.set((*before, model.model)))
            last: Any = model.model.get_submodule(paths[0])
            if getattr(last, "gradient_checkpointing", False):
                # The backward pass would run the layer again after this block, at all positions.
                last.gradient_checkpointing = False
                scope.callback(setattr, last, "gradient_checkpointing", True)
            shorten(model, paths, 0.0, scope)
        yield


def _find_parts(model: HuggingFaceModel, batch: Batch) -> list[str]:
    """Return the paths of the last layer and of its parts that compute single positions and can be cut, or nothing."""
    if model.task.is_read_at_positions and not model.task.is_generated:
        return []
    try:
        last = find_record(model, batch).layers[-1]
    except (ExpoundError, *MODEL_ERRORS):
        return []
    attention, feed_forward = last.attention, last.feed_forward
    if attention.value is None or feed_forward is None or feed_forward.into is None or feed_forward.experts:
        return []
    if model.task.is_generated:
        found = [attention.output, feed_forward.into.rpartition(".")[0]] if last.norm_first else []
    else:
        found = [attention.output.rpartition(".")[0]]
    # A part that has the values, too, reads all positions.
    if not found or any(not path or attention.value.startswith(f"{path}.") for path in found):
        return []
    layer = get_layers(model.model)[-1]
    name = next(name for name, module in model.model.named_modules() if module is layer)
    return [name, *(f"{name}.{path}" for path in found)]


def _compute_first_position(model: HuggingFaceModel, paths: list[str], _: float, scope: ExitStack) -> None:
    """Let the last layer compute only the first position after its attention."""
    last, part = map(model.model.get_submodule, paths)
    length = 0

    def read_length(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal length
        length = inputs[0].shape[1]

    def keep_first_position(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        first = []
        for value in inputs:
            first.append(value[:, :1] if isinstance(value, Tensor) else value)
        return tuple(first)

    def widen(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, Tensor):
            return (widen(module, inputs, output[0]), *output[1:])
        # A head that reads these positions in longer texts only must not predict. In training they are not NaN, since
        # a zero gradient times NaN would reach the weights of modules after the layer.
        is_trained = torch.is_grad_enabled() and any(weight.requires_grad for weight in model.parameters())
        fill = 0.0 if is_trained else torch.nan
        return nn.functional.pad(output, (0, 0, 0, length - output.shape[1]), value=fill)

    scope.enter_context(last.register_forward_pre_hook(read_length))
    scope.enter_context(part.register_forward_pre_hook(keep_first_position))
    scope.enter_context(last.register_forward_hook(widen))


def _compute_predicting_columns(model: HuggingFaceModel, paths: list[str], fill: float, scope: ExitStack) -> None:
    """Let the last layer's output projection and feed-forward compute only columns that predict response tokens."""
    columns, length = slice(None), 0

    def read_columns(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal columns
        # `logits_to_keep` names the columns that the head reads, see `GeneratingModel`.
        kept = kwargs.get("logits_to_keep")
        columns = slice(None)
        if isinstance(kept, Tensor):
            columns = slice(int(kept[0]), int(kept[-1]) + 1)

    def narrow(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal length
        length = inputs[0].shape[1]
        # Copied once here; each projection of the feed-forward would copy a strided input anew.
        return (inputs[0][:, columns].contiguous(), *inputs[1:])

    def widen(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        start = columns.start or 0
        return nn.functional.pad(output, (0, 0, start, length - start - output.shape[1]), value=fill)

    scope.enter_context(model.model.register_forward_pre_hook(read_columns, with_kwargs=True))
    for part in map(model.model.get_submodule, paths[1:]):
        scope.enter_context(part.register_forward_pre_hook(narrow))
        scope.enter_context(part.register_forward_hook(widen))
