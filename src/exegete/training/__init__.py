"""The loops, on transformers' Trainer: objectives, checkpoints that a run goes on from, stopping with nothing lost."""

from exegete.training.constrained import Constrained, ConstrainedTrainer
from exegete.training.criteria import CriterionTrainer
from exegete.training.fine_tune import TrainResult, fine_tune, train_baseline
from exegete.training.trainer import ObjectiveTrainer

__all__ = [
    "Constrained",
    "ConstrainedTrainer",
    "CriterionTrainer",
    "ObjectiveTrainer",
    "TrainResult",
    "fine_tune",
    "train_baseline",
]
