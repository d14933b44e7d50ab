"""Training on transformers' Trainer: objectives, resumable runs, students, and masking models."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.training.bilevel.criteria import CriterionTrainer
    from exegete.training.inputs import MaskCollator
    from exegete.training.loop.constrained import ConstrainedTrainer
    from exegete.training.loop.execute import TrainResult
    from exegete.training.loop.fine_tune import fine_tune, train_baseline
    from exegete.training.loop.options import RunOptions
    from exegete.training.loop.trainer import ObjectiveTrainer
    from exegete.training.terms import TermValues
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "ConstrainedTrainer", "CriterionTrainer", "MaskCollator", "ObjectiveTrainer", "RunOptions", "TermValues",
    "TrainResult", "fine_tune", "train_baseline"
]  # fmt: skip
