"""AT2: attention, or a probe of hidden states, fitted to the effects of ablations on another model's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from datasets import Dataset

from expound.data.spans import UnitName
from expound.errors import ExpoundError, check_choice
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.learned.base import FittedExplainer
from expound.explainers.learned.hidden_state_probe import HiddenStateProbe
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.explainers.perturbation.context_cite import ContextCite, default_unit
from expound.models import ExplainedModel
from expound.models.perturbation.run import RemovalMethod
from expound.recipes.base import Effect, Recipe, load_explained_model
from expound.training import RunOptions, TrainResult
from expound.training.citations import THRESHOLD_ROWS, choose_threshold
from expound.training.loop.data import is_generation_data
from expound.training.loop.starting_model import Source
from expound.training.source_attention import FitOptions, train_source_attention

Learner = Literal["attention_to_source", "hidden_state_probe"]
LEARNERS: Mapping[str, type[FittedExplainer]] = {
    "attention_to_source": AttentionToSource,
    "hidden_state_probe": HiddenStateProbe,
}
ARGUMENTS = ("max_steps", "learning_rate", "per_device_train_batch_size", "disable_tqdm", "use_cpu")
EQUATION = r"\min_w \sum_s \ell ( f(x_S), \sum_{k \in S} \sum_h w_h A^h[q, k] )"
USE = "One model answers many prompts or texts; after fitting, one forward pass cites."
AVOID = "Few texts; `context_cite` asks the model itself."
DEPARTURES = (
    "Units that are taken away leave no gap, or another token takes their place; the paper hides them from attention.",
    "Features and answers keep their precision; the authors' program stores half of it.",
)
PROBED = "Products of hidden states take the place of attention."


@dataclass(frozen=True, kw_only=True)
class At2Recipe(Recipe):
    """A fit of `attention_to_source` (Cohen-Wang et al. 2025) or of a probe to a model that is not changed."""

    ablated: ContextCite
    explainer: Learner = "attention_to_source"
    task: Literal["generation"] | None = None
    uses_trainer_defaults: ClassVar[bool] = False
    keeps_model: ClassVar[bool] = True

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Measure the effects of ablations and fit the coefficients, see `train_source_attention`.

        Raises:
            ExpoundError: a model from scratch, or options that are about training the model itself.
        """
        arguments = {**self.arguments, **options.arguments}
        for name in arguments:
            check_choice("argument of at2", name, ARGUMENTS)
        options.forbid_model_options()
        if options.early_stopping_patience:
            raise ExpoundError("at2 always fits max_steps steps: early stopping does not apply")
        fit = FitOptions(arguments["max_steps"], arguments["learning_rate"], arguments["per_device_train_batch_size"])
        explained = load_explained_model(self.name, model, options, self.task)
        learner = LEARNERS[self.explainer].for_model(explained)
        result = train_source_attention(explained, train, dev, folder, self.ablated, fit, options, learner)
        is_saved = result.reused and (folder / TrainedCitation.card.name).is_dir()
        if is_generation_data(train) and result.finished and not is_saved:
            self._save_citation(explained, train, folder)
        return result

    def _save_citation(self, model: ExplainedModel, train: Dataset, folder: Path) -> None:
        """Save the fitted method as a citation, whose small scores are 0, beside it."""
        unit = self.ablated.unit or default_unit(model.encode([train[0]]))
        rows = list(train.take(min(THRESHOLD_ROWS, len(train))))
        method = LEARNERS[self.explainer].from_pretrained(folder).to(model.device)
        threshold = choose_threshold(model, method, rows, unit, self.ablated.perturbation)
        TrainedCitation(method, unit, threshold).save_pretrained(folder, self.explainer)


def at2(
    n_samples: Annotated[int, "Number of ablations per example.", {"min": 2}] = 32,
    unit: Annotated[
        UnitName | None, "Unit that is removed. Default: words; sentences of a prompt for generated answers."
    ] = None,
    perturbation: Annotated[RemovalMethod, "What happens to a removed unit."] = "remove",
    keep_probability: Annotated[float, "Probability that a unit is kept."] = 0.5,
    task: Annotated[Literal["generation"] | None, "generation: explain the responses of a language model."] = None,
    explainer: Annotated[
        Learner, "Explainer that is fitted: AT2's attention of all heads, or a probe of hidden states as a baseline."
    ] = "attention_to_source",
) -> Recipe:
    """Fit attention to the effects of ablations: one pass then attributes an answer to its sources (AT2).

    --model is the model that is explained; it is not changed. --set max_steps=1000, --learning-rate and --batch-size
    are those of the fit. The result is an explainer: expound explain --methods attention_to_source:OUTPUT,
    or hidden_state_probe:OUTPUT. For generated responses, citation:OUTPUT is the same with small scores set to 0.

    Example: expound train at2 --model runs/sst --data sst:data/sst --limit 500 --output-dir runs/at2
    """
    check_choice("explainer", explainer, LEARNERS)
    return At2Recipe(
        name="at2",
        trains_language_models=True,
        paper="Cohen-Wang et al. 2025",
        arguments={"max_steps": 1000, "learning_rate": 1e-3, "per_device_train_batch_size": 512},
        effect=Effect("lds", f"{explainer}:{{run}}", "attention_last"),
        departures=DEPARTURES if explainer == "attention_to_source" else (*DEPARTURES, PROBED),
        ablated=ContextCite(
            n_samples=n_samples, unit=unit, perturbation=perturbation, keep_probability=keep_probability
        ),
        explainer=explainer,
        task=task,
    )
