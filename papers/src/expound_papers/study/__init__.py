"""Studies as Python functions: calls of `train` and `judge` are recorded as runs, which a scheduler executes."""

from expound_papers.study.display import Axis, Significance
from expound_papers.study.loading import register
from expound_papers.study.parts import Data, Explainer, Model, Noisy, Prompt, Runs, Spec, Training
from expound_papers.study.study import Study, choose

__all__ = [
    "Axis", "Data", "Explainer", "Model", "Noisy", "Prompt", "Runs", "Significance", "Spec", "Study", "Training",
    "choose", "register",
]  # fmt: skip
