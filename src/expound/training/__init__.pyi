from .bilevel.criteria import CriterionTrainer as CriterionTrainer
from .inputs import MaskCollator as MaskCollator
from .loop.execute import TrainResult as TrainResult
from .loop.fine_tune import fine_tune as fine_tune
from .loop.fine_tune import train_baseline as train_baseline
from .loop.options import RunOptions as RunOptions
from .loop.trainer import ObjectiveTrainer as ObjectiveTrainer
from .terms import TermValues as TermValues
