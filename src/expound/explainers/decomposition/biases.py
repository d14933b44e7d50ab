"""Rules that share a bias among the components whose sum a vector is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

# A rule gets the inner products ⟨x_k, b⟩ and the lengths ‖x_k‖ of the components, and returns shares w_k that sum to 1
# (DecompX, Modarressi et al. 2023, whose default is absdot).
Bias = Literal["absdot", "dot", "norm", "abssim", "equal", "first", "token", "none"]
Rule = Callable[[Tensor, Tensor], Tensor]
TINY = 1e-12
"""The authors' guard against a division by zero."""


def _share_first(inner: Tensor, lengths: Tensor) -> Tensor:
    return torch.zeros_like(inner).index_fill(-1, torch.tensor(0, device=inner.device), 1.0)


def _share_by_absolute_dot(inner: Tensor, lengths: Tensor) -> Tensor:
    return inner.abs() / (inner.abs().sum(-1, keepdim=True) + TINY)


RULES: Mapping[str, Rule] = {
    "absdot": _share_by_absolute_dot,
    "dot": lambda inner, lengths: inner / (inner.sum(-1, keepdim=True) + TINY),
    "norm": lambda inner, lengths: lengths / (lengths.sum(-1, keepdim=True) + TINY),
    "abssim": lambda inner, lengths: _share_by_absolute_dot(inner / lengths.clamp(min=TINY), lengths),
    "equal": lambda inner, lengths: torch.full_like(inner, 1 / inner.shape[-1]),
    "first": _share_first,
    "token": lambda inner, lengths: _share_first(inner, lengths).flip(-1),
    "none": lambda inner, lengths: torch.zeros_like(inner),
}
NEED_LENGTHS = frozenset({"norm", "abssim"})


def compute_bias_shares(rule: str, components: Tensor, bias: Tensor) -> Tensor:
    """Return each component's share [..., K] of a bias [..., d], for components [..., K, d]."""
    inner = (components @ bias.unsqueeze(-1)).squeeze(-1)
    # Lengths cost another pass over the components, so they are computed for the rules that use them only.
    lengths = components.square().sum(-1).sqrt() if rule in NEED_LENGTHS else inner
    return RULES[rule](inner, lengths)


def add_bias(rule: str, components: Tensor, bias: Tensor | None) -> Tensor:
    """Add the bias [..., d] to the components [..., K, d] in place, shared among them by the rule."""
    if bias is None:
        return components
    return components.addcmul_(compute_bias_shares(rule, components, bias)[..., None], bias[..., None, :])
