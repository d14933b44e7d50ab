"""Training of citations: attributions that predict how an answer changes when its sources are removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from datasets import Dataset
from torch import nn

from expound.data.spans import UnitName
from expound.explainers import Explainer, explainer
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.explainers.perturbation.context_cite import default_unit
from expound.models import ExplainedModel
from expound.models.perturbation.run import RemovalMethod
from expound.objectives import AblationFidelity, CrossEntropy, KlToOriginal, Objective
from expound.recipes.base import Recipe
from expound.training import RunOptions, TrainResult
from expound.training.citations import (
    THRESHOLD_ROWS,
    calibrate_bounds,
    choose_threshold,
    compute_coverage,
    measure_citations,
)
from expound.training.loop.data import is_generation_data
from expound.training.loop.starting_model import Source

LEARNED_METHOD = AttentionToSource.card.name

EQUATION = r"\text{CE} - \lambda \, \text{Pearson}_m ( \sum_{u \in m} s_u, f_m ) + \mu \, \text{KL}(p_0 \Vert p)"
USE = "A language model's answers are cited often, one pass each, and what a citation says about removal must hold."
AVOID = "The model may not change; fit `at2`, or ask `context_cite`."


@dataclass(frozen=True, kw_only=True)
class CiteRecipe(Recipe):
    """The task's loss, ablation fidelity of the citations, and the divergence of answers from the original model's.

    `explainer`: the explainer's spec. `fidelity`: the objective that trains it. `kl_weight`: the weight of the
    divergence. `error_rate`: how often a calibrated lower bound may be violated.
    """

    explainer: str = "decompx_linear"
    fidelity: AblationFidelity
    kl_weight: float
    error_rate: float

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train the model, then choose the sparsity of citations and calibrate their lower bounds."""
        result = super().run(model, train, dev, folder, options)
        if result.finished and not (result.reused and (folder / TrainedCitation.card.name).is_dir()):
            self._calibrate(result, train, dev)
        return result

    def _calibrate(self, result: TrainResult, train: Dataset, dev: Dataset) -> None:
        model, perturbation = result.model, self.fidelity.perturbation
        # a learned explainer was saved in the folder of the run
        spec = self.explainer
        if self.explainer == LEARNED_METHOD:
            spec = f"{LEARNED_METHOD}:{result.output_dir}"
        method = explainer(spec)
        if isinstance(method, nn.Module):
            method = method.to(model.device)
        unit = self._find_unit(train) or default_unit(model.encode([train[0]]))
        rows = list(train.take(min(THRESHOLD_ROWS, len(train))))
        citation = TrainedCitation(method, unit, choose_threshold(model, method, rows, unit, perturbation))
        if not is_generation_data(dev):
            citation.save_pretrained(result.output_dir, self.explainer)
            return
        # the threshold is chosen on train and the bounds are calibrated on dev, as conformal prediction requires
        prompts = [measure_citations(model, citation, row, perturbation) for row in dev]
        calibrated = replace(citation, lower_bound=calibrate_bounds(prompts, self.error_rate))
        calibrated.save_pretrained(
            result.output_dir, self.explainer, coverage=compute_coverage(prompts, self.error_rate)
        )

    def _find_unit(self, data: Dataset) -> UnitName | None:
        return self.fidelity.unit or ("source" if "sources" in data.column_names else None)

    def build_objectives(self, model: ExplainedModel, train: Dataset, seed: int) -> Sequence[Objective]:
        """Return the terms for the model that training starts from."""
        if self.explainer == LEARNED_METHOD:
            citation: Explainer = AttentionToSource.for_model(model)
        else:
            citation = explainer(self.explainer, model)
        fidelity = replace(self.fidelity, explainer=citation, unit=self._find_unit(train))
        objectives: list[Objective] = [CrossEntropy(), fidelity]
        if self.kl_weight:
            # the original is copied when training starts, so a term of weight 0 would cost its memory
            objectives.append(KlToOriginal(self.kl_weight))
        return objectives


def cite(
    explainer: Annotated[
        str, "Explainer that learns to predict ablations: decompx_linear, input_x_gradient, attention_to_source, …"
    ] = "decompx_linear",
    fidelity_weight: Annotated[float, "λ, weight of the correlation of citations and effects.", {"min": 0}] = 10.0,
    kl_weight: Annotated[float, "Weight of the divergence from the original model's answers; 0 leaves it out."] = 10.0,
    n_samples: Annotated[int, "Number of ablations per example.", {"min": 2}] = 8,
    lifetime: Annotated[
        int, "Epochs for which an example's ablations are kept; 0: new ones in every step.", {"min": 0}
    ] = 0,
    interval: Annotated[int, "Train citations in every N-th step, with N times the weight.", {"min": 1}] = 1,
    unit: Annotated[
        UnitName | None, "Unit that is removed. Default: sources, if the data has them; else sentences, or words."
    ] = None,
    perturbation: Annotated[RemovalMethod, "What happens to a removed unit."] = "remove",
    keep_probability: Annotated[float, "Probability that a unit is kept."] = 0.5,
    error_rate: Annotated[float, "How often a lower bound may be violated.", {"min": 0.001, "max": 0.5}] = 0.1,
    lora_rank: Annotated[int, "Rank of LoRA adapters; 0: train all weights.", {"min": 0}] = 0,
) -> Recipe:
    """Train a model so that a citation, made in one pass, predicts the effect of removing each source (or word).

    Data with prompts, sources and responses trains a language model; data with labels trains a classifier.

    Example: expound train cite --model runs/answering/model --data generated?task=retrieval --output-dir runs/cite
    """
    return CiteRecipe(
        name="cite",
        paper="",
        trains_language_models=True,
        arguments={"learning_rate": 3e-4, "per_device_train_batch_size": 16, "metric_for_best_model": "loss"},
        explainer=explainer,
        fidelity=AblationFidelity(
            weight=fidelity_weight,
            n_samples=n_samples,
            keep_probability=keep_probability,
            unit=unit,
            perturbation=perturbation,
            lifetime=lifetime,
            interval=interval,
        ),
        kl_weight=kl_weight,
        error_rate=error_rate,
        lora_rank=lora_rank,
    )
