"""Inputs that the model sees as alike shall be explained alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from exegete.errors import ExegeteError, unknown
from exegete.models import Batch, Capture, Outputs
from exegete.objectives.base import TrainingStep
from exegete.objectives.criterion import Criterion

MIN_PROBABILITY = 1e-7
Distance = Literal["l2", "l1"]


@dataclass(frozen=True)
class PairCriterion(Criterion):
    """A criterion that compares the explanations of every two examples with the model's inner states."""

    exact_gradient: ClassVar[bool] = False
    separable: ClassVar[bool] = False

    @property
    def capture(self) -> Capture:
        """The explainer's, and hidden states."""
        return super().capture | Capture(hidden_states=True)

    def size(self, batch: Batch) -> Tensor:
        """The number of pairs of examples in the batch."""
        return torch.tensor(len(batch) * (len(batch) - 1) / 2, device=batch.device)


@dataclass(frozen=True)
class ConsistencyLoss(PairCriterion):
    """KL(r_i ‖ r_j) / (‖H_i − H_j‖ + ε), mean over all pairs i < j of a batch (IvRA, eq. 13 and 19).

    H is the mean of the hidden states over layers and real positions. Explanations are compared position by position,
    each from its own first one on; logarithms are of scores clipped to [1e-7, 1], since sparse ones hold zeros. A batch
    of one has no pairs: 0. So is the term where all explanations are equal, which sparse ones soon are, all of them on
    one special token: softmax gets there later, and the epoch is to be chosen by the metric.

    Args:
        explainer: see `Criterion`, as `weight` and `lr_multiplier`.
        epsilon: ε, which the paper does not give.
        symmetric: the mean of both orders of KL; as printed, the earlier example of a batch comes first.
        distance: the norm: `l2`, or `l1`, which the paper found worse (B.4.2).
        detach_distances: whether distances are held still; otherwise pushing hidden states apart meets the criterion.
    """

    epsilon: float = 1e-6
    symmetric: bool = False
    distance: Distance = "l2"
    detach_distances: bool = True
    name: ClassVar[str] = "consistency"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon <= 0:
            raise ExegeteError(f"epsilon is above 0, got {self.epsilon}")
        if self.distance not in get_args(Distance):
            raise unknown("distance", self.distance, get_args(Distance))

    def __call__(self, step: TrainingStep) -> Tensor:
        """The mean over all pairs of the batch, a scalar."""
        scores = align_left(self.explain_prediction(step), step.batch.attended)
        divergence = pairwise_kl(scores)
        if self.symmetric:
            divergence = (divergence + divergence.T) / 2
        inside = pool_hidden_states(step.outputs, step.batch)
        inside = inside.detach() if self.detach_distances else inside
        order = 2.0 if self.distance == "l2" else 1.0
        distance = torch.cdist(inside, inside, order, compute_mode="donot_use_mm_for_euclid_dist")
        pairs = (divergence / (distance + self.epsilon)).triu(1)
        return pairs.sum() / self.size(step.batch).clamp(min=1)


def pairwise_kl(scores: Tensor) -> Tensor:
    """KL(r_i ‖ r_j) of every pair [B, B], from distributions [B, L]."""
    logarithms = scores.clamp(MIN_PROBABILITY, 1).log()
    own = (scores * logarithms).sum(1, keepdim=True)
    return own - scores @ logarithms.T


def pool_hidden_states(outputs: Outputs, batch: Batch) -> Tensor:
    """H [B, d]: hidden states, mean over layers and real positions."""
    precise = torch.promote_types(outputs.hidden_states[0].dtype, torch.float32)
    states = torch.stack([layer.to(precise) for layer in outputs.hidden_states]).mean(0)
    real = batch.attended[..., None]
    return (states * real).sum(1) / real.sum(1)


def align_left(values: Tensor, attended: Tensor) -> Tensor:
    """[B, L] Each row from its first real position on, 0 behind the last one, wherever the padding was."""
    start = attended.long().argmax(1, keepdim=True)
    columns = torch.arange(values.shape[1], device=values.device) + start
    inside = columns.clamp(max=values.shape[1] - 1)
    real = attended.gather(1, inside) & (columns < values.shape[1])
    return values.gather(1, inside).masked_fill(~real, 0.0)
