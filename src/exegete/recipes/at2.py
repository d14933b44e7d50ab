"""Attention, or a probe, that learns from ablations what another model's answers come from (AT2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from datasets import Dataset

from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError, unknown
from exegete.explainers.learned.attention_to_source import AttentionToSource
from exegete.explainers.learned.base import FittedExplainer
from exegete.explainers.learned.hidden_state_probe import HiddenStateProbe
from exegete.explainers.perturbation.context_cite import ContextCite
from exegete.models.perturbation.run import RemovalMethod
from exegete.recipes.base import Recipe
from exegete.recipes.explained_model import load_explained_model
from exegete.training import RunOptions, TrainResult
from exegete.training.ablation_effects import FitOptions, train_source_attention
from exegete.training.loop.starting_model import Source

Learner = Literal["attention_to_source", "hidden_state_probe"]
LEARNERS: Mapping[str, type[FittedExplainer]] = {
    "attention_to_source": AttentionToSource,
    "hidden_state_probe": HiddenStateProbe,
}
ARGUMENTS = ("max_steps", "learning_rate", "per_device_train_batch_size", "disable_tqdm", "use_cpu")
DEPARTURES = (
    "Units that are taken away leave no gap, or another token takes their place; the paper hides them from attention.",
    "Features and answers keep their precision; the authors' program stores half of it.",
)
PROBED = "Products of hidden states take the place of attention."


@dataclass(frozen=True, kw_only=True)
class At2Recipe(Recipe):
    """Fits `attention_to_source` (Cohen-Wang et al. 2025) or a probe to a model, which stays as it is."""

    ablated: ContextCite
    learner: Learner = "attention_to_source"
    task: Literal["generation"] | None = None
    uses_trainer_defaults: ClassVar[bool] = False

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Measures ablations and fits coefficients; see `train_source_attention`.

        Raises:
            ExegeteError: a model from scratch, or options that are about training the model itself.
        """
        given = {**self.arguments, **options.arguments}
        wrong = next((name for name in given if name not in ARGUMENTS), None)
        if wrong is not None:
            raise unknown("argument of at2", wrong, ARGUMENTS)
        options.forbid_model_options()
        if options.early_stopping_patience:
            raise ExegeteError("at2 fits in so many steps as it is told: early stopping does not apply")
        fit = FitOptions(given["max_steps"], given["learning_rate"], given["per_device_train_batch_size"])
        explained = load_explained_model(self.name, model, options, self.task)
        learner = LEARNERS[self.learner].for_model(explained)
        return train_source_attention(explained, train, dev, folder, self.ablated, fit, options, learner)


def at2(
    ablations: Annotated[int, "Of each example.", {"min": 2}] = 32,
    granularity: Annotated[
        Granularity | None, "What is taken away. Default: words; sentences of a prompt where an answer is generated."
    ] = None,
    perturbation: Annotated[RemovalMethod, "What happens to it."] = "remove",
    keep: Annotated[float, "The probability that a unit stays."] = 0.5,
    task: Annotated[Literal["generation"] | None, "generation: explain what a language model says."] = None,
    learner: Annotated[
        Learner, "What is fitted: AT2's attention of all heads, or a probe of hidden states to compare it with."
    ] = "attention_to_source",
) -> Recipe:
    """Fit attention to the effects of ablations, so that one pass says what an answer comes from (AT2).

    --model is what is explained, and stays as it is. --set max_steps=1000, --learning-rate and --batch-size are those
    of the fit. The result is an explainer: exegete explain --methods attention_to_source:OUTPUT,
    or hidden_state_probe:OUTPUT.

    Example: exegete train at2 --model runs/sst --data sst:data/sst --limit 500 --output-dir runs/at2
    """
    if learner not in LEARNERS:
        raise unknown("learner", learner, LEARNERS)
    return At2Recipe(
        name="at2",
        trains_language_models=True,
        paper="Cohen-Wang et al. 2025",
        arguments={"max_steps": 1000, "learning_rate": 1e-3, "per_device_train_batch_size": 512},
        departures=DEPARTURES if learner == "attention_to_source" else (*DEPARTURES, PROBED),
        ablated=ContextCite(n_samples=ablations, granularity=granularity, perturbation=perturbation, keep=keep),
        learner=learner,
        task=task,
    )
