"""How far the answer moves under the small perturbation of the input that moves it most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from exegete.errors import ExegeteError, unknown
from exegete.models.state.restore import isolate_random_state
from exegete.objectives.base import Objective, TrainingStep

Form = Literal["literal", "smart"]
MIN_NORM = 1e-30


@dataclass(frozen=True)
class VirtualAdversarialLoss(Objective):
    """max_δ ℓ(f(E + δ), f(E)), mean over examples (Li et al. 2023, REGEX, eq. 3; Jiang et al. 2020, SMART).

    δ starts as N(0, `deviation`²) and climbs `steps` times along g = ∇_δ ℓ(f(E + δ), f(E)), where f(E) is held still.
    It is zero at padding and is itself held still in the term, whose gradient goes through both answers. No labels are
    needed. ℓ is `answer_divergence`.

    All passes are the objective's own, with the same kernels and the same dropout: before each of them the global
    generators (of the CPU and of every CUDA device) are seeded with one number that `step.generator` draws, and put
    back after it. Otherwise the term would measure dropout.

    Args:
        weight: λ3.
        form: `literal`: δ ← clamp(δ + η · g / ‖g‖∞, −ε, ε), so that any η well above ε leaves little but signs;
            `smart`: δ ← u / (‖u‖∞ + ε) with u = δ + η · g, as the authors' code of SMART, where ε only keeps the
            division stable and δ may grow to 1. Norms are each position's, over d.
        steps: of ascent; 0 leaves the noise.
        step_size: η.
        radius: ε.
        deviation: σ.
        share: see `Objective.share`.

    The paper's ε vanishes in half-precision embeddings; mixed precision keeps them in float32.

    Raises:
        ExegeteError: an unknown form, or a number out of range.
    """

    weight: float = 0.5
    form: Form = "literal"
    steps: int = 2
    step_size: float = 1e-3
    radius: float = 1e-5
    deviation: float = 1e-5
    share: float = 1.0
    name: ClassVar[str] = "virtual_adversarial"
    exact_gradient: ClassVar[bool] = False
    separable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise unknown("form of virtual adversarial training", self.form, get_args(Form))
        least = {"steps": self.steps, "deviation": self.deviation, "step_size": self.step_size, "radius": self.radius}
        low = next((name for name, value in least.items() if value < 0), None)
        if low is not None:
            raise ExegeteError(f"{low} is at least 0, got {least[low]}")

    def __call__(self, step: TrainingStep) -> Tensor:
        """Divergence between the answers at clean and perturbed embeddings, a scalar: a mean over the batch."""
        embeddings = step.model.embed(step.batch)
        answer = _make_answer_function(step)
        clean = answer(embeddings)
        delta = self.find_perturbation(step, embeddings.detach(), clean.detach(), answer)
        return answer_divergence(step, answer(embeddings + delta), clean).mean()

    def find_perturbation(
        self, step: TrainingStep, embeddings: Tensor, clean: Tensor, answer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """δ [B, L, d], without a graph."""
        real = step.batch.attended[..., None]
        noise = torch.randn(
            embeddings.shape,
            generator=step.generator("virtual adversarial noise"),
            device=embeddings.device,
            dtype=embeddings.dtype,
        )
        delta = self.deviation * noise * real
        for _ in range(self.steps):
            with torch.enable_grad():
                at = delta.requires_grad_()
                (slope,) = torch.autograd.grad(answer_divergence(step, answer(embeddings + at), clean).sum(), at)
            delta = self.update_perturbation(delta.detach(), slope) * real
        return delta

    def update_perturbation(self, delta: Tensor, slope: Tensor) -> Tensor:
        """δ after one step along the slope; both [B, L, d]."""
        if self.form == "smart":
            aim = delta + self.step_size * slope
            return aim / (_max_norm(aim) + self.radius).clamp(min=MIN_NORM)
        aim = delta + self.step_size * slope / _max_norm(slope).clamp(min=MIN_NORM)
        return aim.clamp(-self.radius, self.radius)


def answer_divergence(step: TrainingStep, one: Tensor, other: Tensor) -> Tensor:
    """[B] How different two answers (logits) to one batch are; at least 0, 0 for the same answer.

    KL(P ‖ Q) + KL(Q ‖ P) = Σ (p − q)(log p − log q): over classes; of start and end, mean of both; of each label being
    on or off, mean over the labels. Regression: squared difference.
    """
    precise = torch.promote_types(one.dtype, torch.float32)
    one, other = one.to(precise), other.to(precise)
    task = step.model.task.name
    if task == "regression":
        return (one - other).square().mean(-1)
    if task == "multi_label":
        return ((one.sigmoid() - other.sigmoid()) * (one - other)).mean(-1)
    one, other = F.log_softmax(one, -1), F.log_softmax(other, -1)
    each = ((one.exp() - other.exp()) * (one - other)).sum(-1)
    return each.mean(-1) if task == "span" else each


def _make_answer_function(step: TrainingStep) -> Callable[[Tensor], Tensor]:
    """Logits at input embeddings, with the same dropout in every call."""
    generator = step.generator("virtual adversarial dropout")
    seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))

    def answer(embeddings: Tensor) -> Tensor:
        with step.model.lock(), isolate_random_state():
            torch.manual_seed(seed)
            logits: Tensor = step.model(step.batch, embeddings).logits
        return logits

    return answer


def _max_norm(values: Tensor) -> Tensor:
    """Each position's largest magnitude [B, L, 1]."""
    largest: Tensor = values.abs().amax(-1, keepdim=True)
    return largest
