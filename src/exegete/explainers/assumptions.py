"""What methods assume about a model; each is checked once per loaded model, when a method first relies on it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from exegete.errors import ExegeteError
from exegete.explainers.registry import is_removal_method
from exegete.models import Batch, ExplainedModel
from exegete.models.checks import Probe, can_be_checked, find_failure, get_tolerance, remember
from exegete.models.generation.completions import make_weights_error

if TYPE_CHECKING:
    from exegete.explainers.base import Explainer

OF_ATTENTION = ("answers", "readout", "attention")
"""Assumptions of methods that read attention maps where the answer is read."""
OF_DECOMPOSITION = (*OF_ATTENTION, "decomposition")
"""Assumptions of methods that follow the parts of hidden states through the layers."""
OTHERS = "use gradients (input_x_gradient, integrated_gradients) or removal (occlusion)"
INSTEAD = {
    "answers": "load a causal language model, or a model of another task",
    "gradients": "use removal (occlusion?perturbation=remove)",
    "readout": OTHERS,
    "attention": f"load it with attn_implementation='eager' if it has that, or {OTHERS}",
    "decomposition": OTHERS,
    "second_derivatives": "explain it inside torch.no_grad(), without a graph to the weights",
}
"""What works where an assumption is broken."""


def require_assumptions(method: Explainer, model: ExplainedModel, batch: Batch) -> None:
    """Raise ExegeteError if the model breaks one of the method's assumptions."""
    require_removal(method, model)
    # Checked now, because later passes run inside hooks of the method, which would see the passes of the check.
    probe = Probe(model, batch)
    find_failure(model, "padding", probe)
    needed = list(method.assumes)
    if method.needs_gradient:
        needed.append("gradients")
    if method.differentiable and torch.is_grad_enabled():
        needed.append("second_derivatives")
    for assumption in needed:
        reason = find_broken_assumption(model, assumption, probe)
        if reason:
            name = model.config.model_type
            raise ExegeteError(f"{method.name} is refused for model type {name!r}: {reason}; {INSTEAD[assumption]}")


def require_removal(method: Explainer, model: ExplainedModel) -> None:
    """Raise ExegeteError if the model is behind a server and the method does not only remove input."""
    if model.is_remote and not is_removal_method(type(method)):
        raise ExegeteError(f"{method.name} is refused: {make_weights_error()}")


def find_broken_assumption(model: ExplainedModel, assumption: str, probe: Probe) -> str:
    """Return why an assumption does not hold for the model; empty if it holds, or if the model is not checked."""
    if assumption != "decomposition":
        return find_failure(model, assumption, probe)
    if not can_be_checked(model):
        return ""
    reason: str = remember(model, assumption, lambda: _check_decomposition(model, probe.alone))
    return reason


def _check_decomposition(model: ExplainedModel, alone: Batch) -> str:
    """Check that the components of all positions sum to the logit, so that no part of a layer is left out."""
    # That module imports the base of explainers, which imports this one.
    from exegete.explainers.decomposition.decompx import DecompXClassifier  # noqa: PLC0415

    # No decomposition of a text's log-probability exists, and none of the head for masked words is complete.
    if model.task.name in ("generation", "masked"):
        return ""
    try:
        explanation = DecompXClassifier().compute(model, alone, partial(model.resolve_target, alone, None))
    except ExegeteError:
        # A family without a record, or a head that it does not take: the method refuses those itself.
        return ""
    assert explanation.delta is not None
    missing, size = float(explanation.delta.abs()), max(1.0, float(explanation.scores.abs().max()))
    if missing <= get_tolerance(model) * size:
        return ""
    return f"a part of its layers is not in the family's record: the sum of all contributions misses {missing:.2g}"
