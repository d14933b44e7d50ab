"""Training for criteria of explanations, which also choose the best epoch (IvRA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from expound.explainers import explainer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.metrics import Metric, metric
from expound.metrics.simulatability import simulatability
from expound.models import Batch, ExplainedModel
from expound.objectives import ComprehensivenessLoss, Criterion, Objective
from expound.training.bilevel.simulatability import Simulatability
from expound.training.loop.data import sample_evenly, sort_longest_first, text_lengths
from expound.training.loop.trainer import AUXILIARY_ROWS
from expound.training.loop.training_module import TrainingModule

CRITERION_METRICS: Mapping[str, Metric] = {
    "comprehensiveness": metric("aopc_comprehensiveness", keep_question=True),
    "sufficiency": metric("aopc_sufficiency", keep_question=True),
    "consistency": metric("consistency"),
    "rank_consistency": metric("consistency"),
    "clustering_consistency": metric("consistency"),
}
MIN_DEFINED = 0.5
CONTROL_ROWS = 64
"""Dev rows on which random scores are judged."""


class CriterionModule(TrainingModule):
    """A TrainingModule that evaluates explanations by the metric of each criterion it trains for (IvRA, §3).

    Evaluations have a figure `criterion_NAME` for each criterion, the mean of its metric over the dev data, and
    `criterion`, their sum with reversed signs of metrics for which lower is better. Use it as `metric_for_best_model`.
    Trained coefficients are saved in a subfolder of their name, for the id `NAME:FOLDER`.
    """

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Add a figure for each criterion, and `criterion`, their signed sum."""
        own = {}
        for each in objectives:
            if isinstance(each, Criterion):
                own[f"criterion_{each.name}"] = _higher_is_better(each.name)
        return super().higher_is_better(task, objectives) | own | {"criterion": True}

    @torch.no_grad()
    def score(self, predicted: Any, dataset: Any, batch_size: int) -> dict[str, float]:
        """Return the task's figures, `criterion_NAME` for each criterion of the loss, and their signed sum `criterion`.

        `constant_explanations` is the share of explanations whose scores are all equal, `coefficient_change` the
        largest change of a coefficient by the training. `random_comprehensiveness_replaced` and `…_removed` are the
        comprehensiveness of random scores if words are replaced as in training, and if they are removed: a model that
        loses its prediction at any replaced word has a high value of the former.
        """
        judged = [each for each in self.objectives if isinstance(each, Criterion)]
        batches = list(self._batches(sample_evenly(dataset, AUXILIARY_ROWS), batch_size)) if judged else []
        self._constant: list[Tensor] = []
        figures, means = super().score(predicted, dataset, batch_size), dict[str, float]()
        for each in judged:
            found = torch.cat([self._evaluate_criterion(each, batch).cpu() for batch in batches])
            means[each.name] = summarize_criterion(each.name, self.explained.task.name, found)
            figures[f"criterion_{each.name}"] = means[each.name]
        figures["criterion"] = sum_criteria(means)
        for each in judged:
            if isinstance(each.explainer, InterpretableAttention):
                figures["coefficient_change"] = each.explainer.measure_change()
            if isinstance(each, ComprehensivenessLoss):
                figures |= self._judge_random_scores(each, dataset, batch_size)
        if self._constant:
            figures["constant_explanations"] = float(torch.cat(self._constant).double().mean())
        return figures

    def _evaluate_criterion(self, criterion: Criterion, batch: Batch) -> Tensor:
        """Return the metric's values [B]; for simulatability the predictions of student and model [B, 2, …]."""
        if isinstance(criterion, Simulatability):
            student = criterion.companion.network.explained
            return torch.stack([_predict(student, batch), _predict(self.explained, batch)], 1)
        scores, judge = criterion.explainer.attribute(self.explained, batch), CRITERION_METRICS[criterion.name]
        values = judge.evaluate(self.explained, batch, scores)[judge.name]
        # Scores that are all equal rank nothing: a metric would rank the words by their place in the text.
        is_constant = ~has_variance(scores, batch.content)
        self._constant.append(is_constant.cpu())
        return values.masked_fill(is_constant, torch.nan)

    def _judge_random_scores(
        self, criterion: ComprehensivenessLoss, data: Dataset, batch_size: int
    ) -> dict[str, float]:
        """Return the comprehensiveness of random scores by the criterion's replacement, and by removal."""
        replacement = "mask" if criterion.perturbation == "mixture" else criterion.perturbation
        batches = list(self._batches(sample_evenly(data, CONTROL_ROWS), batch_size))
        figures = {}
        for name, perturbation in (("replaced", replacement), ("removed", "remove")):
            judge = metric("aopc_comprehensiveness", keep_question=True, perturbation=perturbation)
            found = []
            for batch in batches:
                scores = explainer("random").attribute(self.explained, batch)
                found.append(judge.evaluate(self.explained, batch, scores)[judge.name].cpu())
            figures[f"random_comprehensiveness_{name}"] = float(torch.cat(found).nanmean())
        return figures

    def _batches(self, data: Dataset, size: int) -> Iterator[Batch]:
        order = sort_longest_first(text_lengths(data))
        for start in range(0, len(order), size):
            yield self.explained.encode([data[row] for row in order[start : start + size]])


def summarize_criterion(name: str, task: str, found: Tensor) -> float:
    """Return a criterion's figure on dev: the mean of its metric, or the student's simulatability.

    The mean is NaN if the metric is undefined for more than half of the examples.
    """
    if name == Simulatability.name:
        student, model = found.unbind(1)
        return simulatability(task, student.numpy(), model.numpy())
    # A mean over the few rows that happen to be defined would choose the epoch.
    is_mostly_defined = found.isfinite().double().mean() >= MIN_DEFINED
    return float(found.nanmean()) if is_mostly_defined else math.nan


def has_variance(scores: Tensor, content: Tensor) -> Tensor:
    """Return which examples' scores [B, L] differ between content positions [B] bool."""
    low = scores.masked_fill(~content, torch.inf).amin(1)
    return scores.masked_fill(~content, -torch.inf).amax(1) > low


def sum_criteria(means: Mapping[str, float]) -> float:
    """Return the sum of the criteria's figures, with reversed signs of metrics for which lower is better."""
    total = 0.0
    for name, value in means.items():
        # A metric that is undefined for all dev data counts as the worst value.
        if math.isnan(value):
            total -= 1.0
        elif _higher_is_better(name):
            total += value
        else:
            total -= value
    return total


def _higher_is_better(name: str) -> bool:
    """Return whether higher is better for a criterion; true also for simulatability, which has no metric."""
    return name not in CRITERION_METRICS or CRITERION_METRICS[name].card.higher_is_better


def _predict(model: ExplainedModel, batch: Batch) -> Tensor:
    """Return the predicted classes or values [B], or spans [B, 2]."""
    if model.task.predicts_number:
        return model.probabilities(batch)[:, 0]
    return model.predict(batch)
