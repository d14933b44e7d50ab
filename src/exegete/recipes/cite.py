"""Citations that are trained to foretell what happens to an answer when its sources go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from datasets import Dataset
from torch import nn

from exegete.data.granularity import Granularity
from exegete.explainers import Explainer, explainer
from exegete.explainers.learned.attention_to_source import AttentionToSource
from exegete.explainers.learned.trained_citation import TrainedCitation
from exegete.explainers.perturbation.context_cite import default_granularity
from exegete.models import ExplainedModel
from exegete.models.perturbation.run import RemovalMethod
from exegete.objectives import AblationFidelity, CrossEntropy, KlToOriginal, Objective
from exegete.recipes.base import Recipe
from exegete.recipes.lora import LoraRecipe
from exegete.training import RunOptions, TrainResult
from exegete.training.citations import (
    THRESHOLD_ROWS,
    calibrate_bounds,
    choose_threshold,
    compute_coverage,
    measure_citations,
)
from exegete.training.loop.data import is_generation_data
from exegete.training.loop.lora import add_lora
from exegete.training.loop.starting_model import Source

LEARNED_METHOD = AttentionToSource.card.name


@dataclass(frozen=True, kw_only=True)
class CiteRecipe(LoraRecipe):
    """The task's loss, λ times the disagreement of citations and ablations, and how far answers went from the original.

    `rank` 0: all weights are trained.
    """

    citation: str = "decompx_linear"
    fidelity: AblationFidelity
    drift: float
    alpha: float

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train the model, then choose the sparsity of citations and calibrate their lower bounds."""
        run = super().run if self.rank else super(LoraRecipe, self).run
        result = run(model, train, dev, folder, options)
        if result.finished and not (result.reused and (folder / TrainedCitation.card.name).is_dir()):
            self._calibrate(result, train, dev)
        return result

    def _calibrate(self, result: TrainResult, train: Dataset, dev: Dataset) -> None:
        model, how = result.model, self.fidelity.perturbation
        method = explainer(f"{LEARNED_METHOD}:{result.folder}" if self.citation == LEARNED_METHOD else self.citation)
        method = method.to(model.device) if isinstance(method, nn.Module) else method
        unit = self._unit(train) or default_granularity(model.encode([train[0]]))
        found = TrainedCitation(
            method, unit, choose_threshold(model, method, list(train.take(min(THRESHOLD_ROWS, len(train)))), unit, how)
        )
        if not is_generation_data(dev):
            found.save_pretrained(result.folder, self.citation)
            return
        prompts = [measure_citations(model, found, row, how) for row in dev]
        kept = replace(found, lower_bound=calibrate_bounds(prompts, self.alpha))
        kept.save_pretrained(result.folder, self.citation, coverage=compute_coverage(prompts, self.alpha))

    def _unit(self, data: Dataset) -> Granularity | None:
        return self.fidelity.granularity or ("source" if "sources" in data.column_names else None)

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Made for the model that training starts from."""
        if self.rank:
            add_lora(model, self.rank, 2 * self.rank)
        learned = self.citation == LEARNED_METHOD
        made: Explainer = AttentionToSource.for_model(model) if learned else explainer(self.citation)
        fidelity = replace(self.fidelity, explainer=made, granularity=self._unit(train))
        return [CrossEntropy(), fidelity, *([KlToOriginal(self.drift)] if self.drift else [])]


def cite(
    citation: Annotated[
        str, "What learns to foretell ablations: decompx_linear, input_x_gradient, attention_to_source, …"
    ] = "decompx_linear",
    fidelity_weight: Annotated[float, "λ, of the correlation of citations and effects.", {"min": 0}] = 10.0,
    drift_weight: Annotated[float, "Of the divergence from the original model's answers; 0 leaves it out."] = 10.0,
    masks: Annotated[int, "Ablations of each example.", {"min": 2}] = 8,
    lifetime: Annotated[
        int, "Epochs for which an example's ablations are kept; 0: new ones in every step.", {"min": 0}
    ] = 0,
    every: Annotated[int, "Citations are trained in every so-manieth step, so many times as hard.", {"min": 1}] = 1,
    granularity: Annotated[
        Granularity | None, "What is taken away. Default: sources, where there are some; else sentences, or words."
    ] = None,
    perturbation: Annotated[RemovalMethod, "What happens to it."] = "remove",
    keep: Annotated[float, "The probability that a unit stays."] = 0.5,
    alpha: Annotated[float, "How often a promised fall may be missed.", {"min": 0.001, "max": 0.5}] = 0.1,
    rank: Annotated[int, "Of adapters (LoRA); 0: all weights are trained.", {"min": 0}] = 0,
) -> Recipe:
    """Train a model so that a citation of one pass foretells the effect of removing each source (or word).

    --data with prompts, sources and responses trains what a language model says; data with labels a classifier.

    Example: exegete train cite --model runs/answering/model --data generated?task=retrieval --output-dir runs/cite
    """
    return CiteRecipe(
        name="cite",
        paper="",
        trains_language_models=True,
        arguments={"learning_rate": 3e-4, "per_device_train_batch_size": 16, "metric_for_best_model": "loss"},
        citation=citation,
        fidelity=AblationFidelity(
            weight=fidelity_weight,
            masks=masks,
            keep=keep,
            granularity=granularity,
            perturbation=perturbation,
            lifetime=lifetime,
            interval=every,
        ),
        drift=drift_weight,
        alpha=alpha,
        rank=rank,
    )
