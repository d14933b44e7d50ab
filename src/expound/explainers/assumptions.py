"""What methods assume about a model, each checked once when a method relies on it, and checks of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers.registry import is_removal_method
from expound.models import Batch, ExplainedModel
from expound.models.hugging_face import REMOVAL_ONLY
from expound.models.probe import Probe, find_failure

if TYPE_CHECKING:
    from expound.explainers.base import Explainer

OF_ATTENTION = ("answers", "readout", "attention")
"""Assumptions of methods that read attention maps where the prediction is read."""
OF_DECOMPOSITION = (*OF_ATTENTION, "decomposition")
"""Assumptions of methods that follow the parts of hidden states through the layers."""
TOKEN_FAMILIES = ("attention", "gradients", "decomposition")
"""Families of methods that score every token, those of a response too."""
OTHERS = "use gradients (input_x_gradient, integrated_gradients) or removal (occlusion)"
OF_IMAGES = ("attention", "gradients", "control")
"""Families of methods, besides removal, whose scores of image tokens are summed by region."""
OR_INSIDE = "gradients or attention (input_x_gradient, integrated_gradients, attention_rollout)"
INSTEAD = {
    "answers": "load a causal language model, or a model of another task",
    "gradients": "use removal (occlusion?perturbation=remove)",
    "readout": OTHERS,
    "attention": f"load it with attn_implementation='eager' if it has that, or {OTHERS}",
    "decomposition": OTHERS,
    "head": f"take decompx, which leaves the head out, or {OTHERS}",
    "linear_rules": OTHERS,
    "shared_rules": OTHERS,
    "second_derivatives": "explain it inside torch.no_grad(), without a graph to the weights",
}
"""What works where an assumption is broken."""


def require_assumptions(method: Explainer, model: ExplainedModel, batch: Batch) -> None:
    """Raise ExpoundError if the model breaks one of the method's assumptions."""
    require_removal(method, model)
    # Rules follow what depends on words, and embeddings of images come later.
    reads_images = method.card.family in OF_IMAGES and not {"linear_rules", "shared_rules"}.intersection(method.assumes)
    if batch.images is not None and not is_removal_method(type(method)) and not reads_images:
        raise ExpoundError(f"{method.name} is refused for prompts with images: {REMOVAL_ONLY}, or {OR_INSIDE}")
    # Checked now, because later passes run inside hooks of the method, which would see the passes of the check.
    probe = Probe(model, batch)
    find_failure(model, "padding", probe)
    needed = list(method.assumes)
    if method.needs_gradient:
        needed.append("gradients")
    if method.differentiable and torch.is_grad_enabled():
        needed.append("second_derivatives")
    for assumption in needed:
        reason = find_failure(model, assumption, probe)
        if reason:
            name = model.config.model_type
            raise ExpoundError(f"{method.name} is refused for model type {name!r}: {reason}; {INSTEAD[assumption]}")


def require_removal(method: Explainer, model: ExplainedModel) -> None:
    """Raise ExpoundError if the model gives answers only, and the method needs more than those to changed inputs."""
    needs_more = not (is_removal_method(type(method)) or method.card.family == "control")
    if model.black_box_reason and needs_more:
        raise ExpoundError(f"{method.name} is refused: {model.black_box_reason}")


def find_nonfinite(scores: Tensor) -> list[int]:
    """Return the rows of scores [B, L] that contain NaN or an infinite number."""
    return (~scores.detach().isfinite()).any(1).nonzero().flatten().tolist()


def require_finite(method: Explainer, model: ExplainedModel, scores: Tensor, numbers: Sequence[int] = ()) -> None:
    """Raise ExpoundError if scores [B, L] contain NaN or an infinite number; `numbers`: indices of the examples."""
    rows = find_nonfinite(scores)
    if rows:
        first = numbers[rows[0]] if numbers else rows[0]
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        dtype = str(model.dtype).removeprefix("torch.")
        advice = "load the model in float32 (--dtype float32)" if model.dtype.itemsize < 4 else "choose another method"
        raise ExpoundError(
            f"{method.name} gives scores that are no finite numbers for example {first}{more}, in {dtype}: {advice}, "
            "or let such examples be counted and left out, with allow_nan=True (--allow-nan)"
        )


def require_token_scores(method: Explainer) -> None:
    """Raise ExpoundError for a method that scores only units of the prompt."""
    if method.card.family not in TOKEN_FAMILIES or "unit" in method.params:
        raise ExpoundError(
            f"{method.name} gives no scores to a response's own tokens: choose one of {', '.join(TOKEN_FAMILIES)}"
        )
