"""IvRA's consistency: inputs with similar hidden states should have similar explanations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models import Batch, Capture, Outputs
from expound.objectives.base import TrainingStep
from expound.objectives.criterion import Criterion

MIN_PROBABILITY = 1e-7
Distance = Literal["l2", "l1"]


@dataclass(frozen=True)
class PairCriterion(Criterion):
    """A criterion that compares the explanations of every two examples of a batch with the model's hidden states."""

    exact_gradient: ClassVar[bool] = False
    separable: ClassVar[bool] = False

    @property
    def capture(self) -> Capture:
        """The quantities that the explainer needs from the shared pass, and hidden states."""
        return super().capture | Capture(hidden_states=True)

    def size(self, batch: Batch) -> Tensor:
        """Return the number [] of pairs of examples in the batch."""
        return torch.tensor(len(batch) * (len(batch) - 1) / 2, device=batch.device)


@dataclass(frozen=True)
class ConsistencyLoss(PairCriterion):
    """KL(r_i ‖ r_j) / (‖H_i − H_j‖ + ε), mean over all pairs i < j of a batch (IvRA, eq. 13 and 19).

    H is the mean of the hidden states over layers and real positions. Explanations are compared position by position,
    each from its first real position on. A batch of one example has no pairs: the term is 0. It is also 0 if all
    explanations are equal; sparse explanations get there quickly, with all of them on one special token, so choose the
    epoch by the metric and not by this loss.

    Args:
        explainer: see `Criterion`, as `weight` and `lr_multiplier`.
        epsilon: ε, which the paper does not give.
        symmetric: the mean of both orders of KL; in the printed equation the earlier example of a batch comes first.
        distance: the norm: `l2`, or `l1`, which the paper found worse (B.4.2).
        detach_distances: whether distances are constants; otherwise the model can meet the criterion by pushing hidden
            states apart.
    """

    epsilon: float = 1e-6
    symmetric: bool = False
    distance: Distance = "l2"
    detach_distances: bool = True
    name: ClassVar[str] = "consistency"
    equation: ClassVar[str] = r"\frac{\text{KL}(r_i \Vert r_j)}{\lVert H_i - H_j \rVert_2 + \epsilon}"
    use: ClassVar[str] = "Similar inputs should have similar explanations."
    avoid: ClassVar[str] = "Batches of one; there are no pairs."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon <= 0:
            raise ExpoundError(f"epsilon is above 0, got {self.epsilon}")

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over all pairs of the batch, a scalar."""
        scores = align_left(self.explain_prediction(step), step.batch.attended)
        divergence = pairwise_kl(scores)
        if self.symmetric:
            divergence = (divergence + divergence.T) / 2
        states = pool_hidden_states(step.outputs, step.batch)
        if self.detach_distances:
            states = states.detach()
        # the faster mode by matrix products loses the small distances, which are what the quotient is made of
        norm = 2.0 if self.distance == "l2" else 1.0
        distance = torch.cdist(states, states, norm, compute_mode="donot_use_mm_for_euclid_dist")
        pairs = (divergence / (distance + self.epsilon)).triu(1)
        return pairs.sum() / self.size(step.batch).clamp(min=1)


def pairwise_kl(scores: Tensor) -> Tensor:
    """Return KL(r_i ‖ r_j) of every pair [B, B], from distributions [B, L]."""
    # sparsemax scores contain zeros: the logarithm is of scores clipped to [1e-7, 1]
    logarithms = scores.clamp(MIN_PROBABILITY, 1).log()
    # Σ r_i log r_i − Σ r_i log r_j for all pairs in one matrix product, instead of B² sums
    own = (scores * logarithms).sum(1, keepdim=True)
    return own - scores @ logarithms.T


def pool_hidden_states(outputs: Outputs, batch: Batch) -> Tensor:
    """Return H [B, d]: the mean of hidden states over layers and real positions."""
    dtype = torch.promote_types(outputs.hidden_states[0].dtype, torch.float32)
    states = torch.stack([layer.to(dtype) for layer in outputs.hidden_states]).mean(0)
    attended = batch.attended[..., None]
    return (states * attended).sum(1) / attended.sum(1)


def align_left(values: Tensor, attended: Tensor) -> Tensor:
    """Return values [B, L] with each row moved to its first real position, and 0 behind its last one."""
    # decoders are padded on the left: without this, position l would be another word in each example
    start = attended.long().argmax(1, keepdim=True)
    columns = torch.arange(values.shape[1], device=values.device) + start
    inside = columns.clamp(max=values.shape[1] - 1)
    real = attended.gather(1, inside) & (columns < values.shape[1])
    return values.gather(1, inside).masked_fill(~real, 0.0)
