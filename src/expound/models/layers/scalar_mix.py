"""The scalar mix: a head that reads a learned mean of all layers instead of the last one's hidden states."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.layers.architecture import get_layers
from expound.models.state import is_checkpointed

MIX_KEY = "scalar_mix"
"""The name of the mix in a model, and of the setting in its configuration."""
PREFIX = "ScalarMix"
"""Class names with it tell other programs that these weights are not those of the architecture alone."""


class ScalarMix(nn.Module):
    """γ · Σ_k softmax(c)_k · mean of h_k over a text's positions (Peters et al. 2018, eq. 1; SMaT, §5).

    h_0 are the input embeddings, h_k the states after layer k. Every position of the last layer gets the result, so
    that a head which reads one position, or their mean, reads the mix.

    Args:
        model: a model with a head for the whole input, whose passes are watched.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        layers = get_layers(model)
        self.coefficients = nn.Parameter(torch.zeros(len(layers) + 1, dtype=model.dtype, device=model.device))
        self.scale = nn.Parameter(torch.ones((), dtype=model.dtype, device=model.device))
        self._shares: list[Tensor] = []
        self._attended: Tensor | None = None
        self._mixed: Any = 0.0
        # Bound methods, so that a copied model has hooks of its own mix.
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.register_forward_hook(self._end, always_call=True)
        layers[0].register_forward_pre_hook(self._read_embeddings)
        # ALBERT runs one layer many times.
        for layer in dict.fromkeys(layers):
            layer.register_forward_hook(self._read_layer)

    def _begin(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if model.training and is_checkpointed(model):
            # The backward pass runs checkpointed layers again, alone.
            raise ExpoundError("a scalar mix reads all layers in one pass: train it without gradient checkpointing")
        self._attended = kwargs.get("attention_mask")
        if self._attended is not None and self._attended.ndim != 2:
            raise ExpoundError("a scalar mix needs an attention mask per position, not one per pair of positions")
        self._shares, self._mixed = list(self.coefficients.softmax(0)), 0.0

    def _end(self, *_: Any) -> None:
        self._shares, self._attended, self._mixed = [], None, 0.0

    def _read_embeddings(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(self._shares) == len(self.coefficients):
            self._add(inputs[0])

    def _read_layer(self, layer: nn.Module, inputs: Any, output: Any) -> Any:
        # Methods also run single layers, outside of a pass.
        if not self._shares:
            return output
        states = output[0] if isinstance(output, tuple) else output
        self._add(states)
        if self._shares:
            return output
        mixed = (self.scale * self._mixed).to(states.dtype)[:, None].expand_as(states)
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    def _add(self, states: Tensor) -> None:
        """Add the share of the next hidden states [B, L, d] to the mix."""
        if self._attended is None:
            mean = states.mean(1)
        else:
            # BigBird pads texts to full blocks.
            padding = max(0, states.shape[1] - self._attended.shape[1])
            weights = nn.functional.pad(self._attended.to(states.dtype), (0, padding))
            mean = torch.einsum("bl,bld->bd", weights / weights.sum(1, keepdim=True), states)
        self._mixed = self._mixed + self._shares.pop(0) * mean


def has_scalar_mix(model: PreTrainedModel) -> bool:
    """Return whether the head reads a mix of all layers, according to the model's configuration."""
    return bool(getattr(model.config, MIX_KEY, False))


def add_scalar_mix(model: PreTrainedModel) -> None:
    """Let the head read a mix with equal shares of all layers; the model is changed in place, and saved with it."""
    if not has_scalar_mix(model):
        kind: Any = type(model)
        model.config.scalar_mix, model.__class__ = True, _make_class(kind)
        model.add_module(MIX_KEY, ScalarMix(model))


def restore_scalar_mix(loader: Any, config: Any) -> Any:
    """Return the class that loads a saved model with its mix, or the auto class `loader` for one without."""
    if not getattr(config, MIX_KEY, False):
        return loader
    return _make_class(loader._model_mapping[type(config)])


@cache
def _make_class(kind: Any) -> Any:
    """Return the subclass of a model's class that has a mix from the start, as transformers needs to load weights."""

    def initialize(self: PreTrainedModel, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, config, *args, **kwargs)
        self.add_module(MIX_KEY, ScalarMix(self))

    return type(PREFIX + kind.__name__, (kind,), {"__init__": initialize, "__module__": kind.__module__})
