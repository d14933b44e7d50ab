"""Where a model's head reads the last hidden states, as the gradients of its logits tell."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch, find_last_tokens
from expound.models.layers.architecture import get_base_model
from expound.models.probe import TOLERANCE, Probe, are_close, remember

Readout = Literal["first", "last", "all", "content"]
"""Positions at which a head for the whole text reads: one of them, or the mean over several."""


def find_readout(model: Any, batch: Batch) -> Readout | None:
    """Return which positions the head for the whole input reads; None for any other readout."""
    readout: Readout | None = take_slopes(model, Probe(model, batch))[1]
    return readout


def take_slopes(model: Any, probe: Probe) -> tuple[str, Readout | None]:
    """Return why gradients cannot be taken, or an empty string, and which positions the head reads."""
    found: tuple[str, Readout | None] = remember(model, "slopes" + probe.kind, lambda: _measure_slopes(model, probe))
    return found


def _measure_slopes(model: Any, probe: Probe) -> tuple[str, Readout | None]:
    states: list[Tensor] = []
    alone, answer = probe.alone, probe.answer

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        last = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
        if isinstance(last, Tensor) and last.ndim == 3:
            states.append(last)

    base = get_base_model(model.model)
    with torch.enable_grad(), base.register_forward_hook(keep):
        embeddings = model.embed(alone).detach().requires_grad_()
        logits = model(alone, embeddings).logits
        if not are_close(logits.detach(), answer, probe):
            return "it reads more of a text than its input embeddings", None
        # A fixed direction, so that the gradients of logits do not cancel.
        direction = torch.linspace(1, 2, logits.shape[-1], dtype=logits.dtype, device=logits.device)
        points = [embeddings, *(state for state in states[-1:] if state.requires_grad)]
        slopes: tuple[Tensor | None, ...] = torch.autograd.grad((logits * direction).sum(), points, allow_unused=True)
    if slopes[0] is None:
        return "its prediction has no gradient at its input embeddings", None
    # BigBird pads texts to full blocks.
    if len(slopes) == 1 or slopes[1] is None or slopes[1].shape[1] < alone.length:
        return "", None
    return "", _name_positions(model, alone, slopes[1][0, : alone.length].double())


def _name_positions(model: Any, alone: Batch, rows: Tensor) -> Readout | None:
    """Return the name of the positions whose gradients [L, d] are not zero, if one name describes them all."""
    size = rows.abs().amax(1)
    tolerance = TOLERANCE[model.dtype.itemsize] * float(size.max())
    read = size > tolerance
    used = rows[read]
    if not len(used) or float((used - used[0]).abs().max()) > tolerance:
        return None
    place = torch.arange(alone.length, device=read.device)
    expected: dict[Readout, Tensor] = {
        "first": place == 0,
        "last": place == _find_last(model, alone)[0],
        "all": alone.attended[0],
        "content": alone.content[0],
    }
    found = [name for name, positions in expected.items() if torch.equal(read, positions)]
    # A text of one token has all of them at one position: then the usual one is taken.
    usual: Readout = "last" if model.is_decoder else "first"
    if usual in found:
        return usual
    return found[0] if found else None


def _find_last(model: Any, batch: Batch) -> Tensor:
    if model.modality == "image":
        return torch.full((len(batch),), batch.length - 1, device=batch.device)
    return find_last_tokens(batch, model.config.get_text_config().pad_token_id)


def make_readout_weights(model: Any, batch: Batch) -> Tensor:
    """Return the weights [B, L] of the positions that the head for the whole text reads.

    Raises:
        ExpoundError: they are neither one position nor a mean of several.
    """
    kind = find_readout(model, batch)
    if kind is None and not model.is_checked:
        kind = "last" if model.is_decoder else "first"
    if kind is None:
        raise ExpoundError(
            f"the head of model type {model.config.model_type!r} does not read one position or a mean of positions"
        )
    if kind in ("all", "content"):
        mask = batch.attended if kind == "all" else batch.content
        return (mask / mask.sum(1, keepdim=True)).to(model.dtype)
    position = batch.attended.long().argmax(1) if kind == "first" else _find_last(model, batch).to(batch.device)
    weights = torch.zeros(batch.attended.shape, device=batch.device, dtype=model.dtype)
    return weights.scatter(1, position[:, None], 1.0)
