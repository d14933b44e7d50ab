"""The meta-gradient of a teacher's explainer, through the step of a student that learns from it (SMaT)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from expound.errors import ExpoundError

SMALLEST = 1e-7


def explanation_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Compute KL(teacher ‖ student) of explanations [B, L], the explanation term of SMaT's student (eq. 3).

    Explanations are distributions over positions. The divergence is a sum over positions and a mean over examples.
    """
    return (teacher * (_clipped_log(teacher) - _clipped_log(student))).sum(-1).mean()


def meta_gradient(
    teacher: Tensor,
    coefficients: Sequence[Tensor],
    student: Callable[[Mapping[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    slopes: Mapping[str, Tensor],
    step: float,
) -> tuple[Tensor, ...]:
    """Return the outer loss's gradient at the teacher's coefficients, through one inner step of SGD (eq. 8 and 9).

    The coefficients act on the inner step θ' = θ − η ∇_θ (L_sim + β·KL(e_T ‖ e_S(θ))) through e_T alone, so
    ∂L_outer/∂φ_T = η β ∂/∂φ_T mean_b Σ_m e_T,m D_m, where D is the derivative of log e_S at θ along
    ∇_θ' L_outer: one forward-mode pass, no graph through the inner step and no second backward pass.

    Args:
        teacher: e_T [B, L], with a graph to `coefficients`.
        coefficients: φ_T.
        student: computes e_S [B, L] from weights by name, with the same dropout as the inner step. Its operations
            need forward-mode derivatives: use a pass with `Capture(differentiable_twice=True)`.
        weights: θ, the weights that the inner step changes.
        slopes: ∇_θ' L_outer, by the same names.
        step: η·β, times the factor of gradient clipping, which is treated as a constant.

    Raises:
        ExpoundError: the names differ, or the explanation does not depend on the weights.
    """
    if weights.keys() != slopes.keys():
        differing = ", ".join(sorted(weights.keys() ^ slopes.keys()))
        raise ExpoundError(f"expected one slope for each of the student's weights; without partner: {differing}")
    # Only e_T has a graph here; D is a constant for φ_T, as θ does not depend on it.
    change = _directional_derivative(student, weights, slopes)
    return torch.autograd.grad(step * (teacher * change).sum(-1).mean(), list(coefficients))


@torch.no_grad()
def _directional_derivative(
    student: Callable[[Mapping[str, Tensor]], Tensor], weights: Mapping[str, Tensor], slopes: Mapping[str, Tensor]
) -> Tensor:
    """Return the derivative [B, L] of the student's log-explanation along a direction of its weights, `slopes`."""
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(weight.detach(), slopes[name]) for name, weight in weights.items()}
        tangent: Tensor | None = forward_ad.unpack_dual(_clipped_log(student(duals))).tangent
    if tangent is None:
        raise ExpoundError("the student's explanation does not depend on the weights that the inner step changes")
    return tangent


def _clipped_log(probabilities: Tensor) -> Tensor:
    # A sparse explanation has zeros. Below the clip a student's probability gets no gradient, and none is infinite.
    return probabilities.clamp(SMALLEST, 1 - SMALLEST).log()
