"""Training on transformers' Trainer: objectives, resumable runs, students, and masking models."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.training.bilevel.criteria import CriterionTrainer
    from expound.training.inputs import MaskCollator
    from expound.training.loop.constrained import ConstrainedTrainer
    from expound.training.loop.execute import TrainResult
    from expound.training.loop.fine_tune import fine_tune, train_baseline
    from expound.training.loop.options import RunOptions
    from expound.training.loop.trainer import ObjectiveTrainer
    from expound.training.terms import TermValues
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "ConstrainedTrainer", "CriterionTrainer", "MaskCollator", "ObjectiveTrainer", "RunOptions", "TermValues",
    "TrainResult", "fine_tune", "train_baseline"
]  # fmt: skip
