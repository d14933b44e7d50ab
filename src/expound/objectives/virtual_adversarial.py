"""Virtual adversarial training: how far the prediction moves under the worst small perturbation of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models.state import isolate_random_state
from expound.objectives.base import Objective, TrainingStep

Form = Literal["literal", "smart"]
MIN_NORM = 1e-30


@dataclass(frozen=True)
class VirtualAdversarialLoss(Objective):
    """max_δ ℓ(f(E + δ), f(E)), mean over examples (Li et al. 2023, REGEX, eq. 3; Jiang et al. 2020, SMART).

    δ starts as N(0, `stdevs`²) and takes `ascent_steps` ascent steps along g = ∇_δ ℓ(f(E + δ), f(E)), with a constant
    f(E). It is zero at padding, and a constant in the term itself, whose gradient goes through both predictions. No
    labels are needed. ℓ is `prediction_divergence`.

    All passes are the objective's own, with the same attention kernels and the same dropout mask.

    Args:
        weight: λ3, the factor of the term in the total loss.
        form: `literal`: δ ← clamp(δ + η · g / ‖g‖∞, −ε, ε), as printed; `smart`: δ ← u / (‖u‖∞ + ε) with
            u = δ + η · g, as in the code of SMART, where ε only stabilizes the division and |δ| may grow to 1. Norms
            are over the d dimensions of each position.
        ascent_steps: the number of ascent steps; 0 leaves the noise.
        step_size: η.
        radius: ε; the paper's 1e-5 is a hundredth of a step and hardly moves a prediction.
        stdevs: σ.
        batch_fraction: see `Objective.batch_fraction`.

    Raises:
        ExpoundError: an unknown form, or a number out of range.
    """

    weight: float = 0.5
    form: Form = "literal"
    ascent_steps: int = 2
    step_size: float = 1e-3
    radius: float = 1e-3
    stdevs: float = 1e-5
    batch_fraction: float = 1.0
    name: ClassVar[str] = "virtual_adversarial"
    exact_gradient: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    equation: ClassVar[str] = r"\max_{\lVert \delta \rVert \le \epsilon} \ell(f(E + \delta), f(E))"
    use: ClassVar[str] = "Robustness without labels."
    remedy: ClassVar[str] = "Use a radius of 1e-3 or more (--radius), or a higher weight"
    avoid: ClassVar[str] = "Cost matters: each ascent step takes a further pass (`batch_fraction`, `ascent_steps`)."

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ascent_steps", "stdevs", "step_size", "radius"):
            if getattr(self, name) < 0:
                raise ExpoundError(f"{name} is at least 0, got {getattr(self, name)}")

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the divergence of predictions at clean and perturbed embeddings, a scalar: a mean over the batch."""
        embeddings = step.model.embed(step.batch)
        answer = _make_answer_function(step)
        clean = answer(embeddings)
        delta = self.find_perturbation(step, embeddings.detach(), clean.detach(), answer)
        return prediction_divergence(step, answer(embeddings + delta), clean).mean()

    def find_perturbation(
        self, step: TrainingStep, embeddings: Tensor, clean: Tensor, answer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the perturbation δ [B, L, d] that moves the prediction most, without a graph.

        `clean`: logits at the embeddings; `answer`: a function from embeddings to logits.
        """
        attended = step.batch.attended[..., None]
        noise = torch.randn(
            embeddings.shape,
            generator=step.generator("virtual adversarial noise"),
            device=embeddings.device,
            dtype=embeddings.dtype,
        )
        delta = self.stdevs * noise * attended
        for _ in range(self.ascent_steps):
            with torch.enable_grad():
                variable = delta.requires_grad_()
                divergence = prediction_divergence(step, answer(embeddings + variable), clean)
                (gradient,) = torch.autograd.grad(divergence.sum(), variable)
            delta = self.update_perturbation(delta.detach(), gradient) * attended
        return delta

    def update_perturbation(self, delta: Tensor, gradient: Tensor) -> Tensor:
        """Return δ after one ascent step along the gradient; both [B, L, d]."""
        if self.form == "smart":
            moved = delta + self.step_size * gradient
            return moved / (_max_norm(moved) + self.radius).clamp(min=MIN_NORM)
        # with η well above ε, as in the paper, the projection leaves little but the signs of the gradient
        moved = delta + self.step_size * gradient / _max_norm(gradient).clamp(min=MIN_NORM)
        return moved.clamp(-self.radius, self.radius)


def prediction_divergence(step: TrainingStep, logits: Tensor, other_logits: Tensor) -> Tensor:
    """Return the symmetric divergence of two predictions on one batch [B]: at least 0, and 0 for equal predictions.

    KL(P ‖ Q) + KL(Q ‖ P) over classes; for spans the mean over start and end; for several labels the mean over the
    labels, each on or off. Regression: squared difference.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits, other_logits = logits.to(dtype), other_logits.to(dtype)
    task = step.model.task
    if task.predicts_number:
        return (logits - other_logits).square().mean(-1)
    # KL(P ‖ Q) + KL(Q ‖ P) = Σ (p − q)(log p − log q)
    log_p, log_q = task.log_distributions(logits), task.log_distributions(other_logits)
    divergences = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    # several labels, and the two ends of a span, are distributions of their own
    return divergences if divergences.ndim == 1 else divergences.mean(-1)


def _make_answer_function(step: TrainingStep) -> Callable[[Tensor], Tensor]:
    """Return a function from input embeddings to logits that applies the same dropout mask in every call."""
    generator = step.generator("virtual adversarial dropout")
    seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))

    def answer(embeddings: Tensor) -> Tensor:
        # equal dropout in both passes, otherwise the term would measure dropout; dropout draws from the global
        # generators, which are therefore seeded, and restored afterwards
        with step.model.lock(), isolate_random_state():
            torch.manual_seed(seed)
            logits: Tensor = step.model(step.batch, embeddings).logits
        return logits

    return answer


def _max_norm(values: Tensor) -> Tensor:
    """Return the largest magnitude of each position [B, L, 1]."""
    largest: Tensor = values.abs().amax(-1, keepdim=True)
    return largest
