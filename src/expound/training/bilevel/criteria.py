"""Training for criteria of explanations, which also choose the best epoch, and the criterion of a student (IvRA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from datasets import Dataset
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers import explainer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.metrics import Metric, metric
from expound.metrics.simulatability import simulatability
from expound.models import Batch, ExplainedModel
from expound.models.loading.checkpoint import digest_weights
from expound.models.state import is_checkpointed
from expound.objectives import ComprehensivenessLoss, Criterion, Objective, TrainingStep
from expound.training.bilevel.lookahead import (
    LookaheadStep,
    Student,
    clip_factor,
    make_inner_optimizer,
    seeded_random_state,
)
from expound.training.loop.data import sample_evenly, sort_longest_first, text_lengths
from expound.training.loop.trainer import AUXILIARY_ROWS
from expound.training.loop.training_module import TrainingModule

InnerOptimizerName = Literal["sgd", "adamw"]
HASH_MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
"""2^64 divided by the golden ratio, the odd multiplier of Fibonacci hashing, as a signed 64-bit integer."""


class SimulatingStudent(nn.Module):
    """A student with an optimizer of its own, whose weights require gradients inside `requiring_gradients` only.

    Weights that require none when it is made, as weights under adapters, are not trained.

    Args:
        model: a pretrained model that was not fine-tuned, with the tokenizer of the explained model.
        weight: β, the weight of the explanations in its loss.
        optimizer: `sgd` (without momentum) or `adamw` (without decay).
        special_tokens: whether its explanation r* includes special tokens, as the explanations it learns from do.
    """

    # The weights are frozen so that the Trainer's optimizer leaves them out; AdamW's moments are buffers, which
    # checkpoints save with the module.

    def __init__(
        self, model: ExplainedModel, weight: float, optimizer: InnerOptimizerName, special_tokens: bool
    ) -> None:
        super().__init__()
        own = InterpretableAttention.for_model(model, normalizer="softmax", special_tokens=special_tokens).to(
            model.device
        )
        network = Student(model, own, weight)
        self.trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.network = network.requires_grad_(False)
        self.kind = optimizer
        self.moments = nn.ModuleList()
        if optimizer == "adamw":
            self.moments.extend(map(_AdamWState, self.trained))

    @contextmanager
    def requiring_gradients(self) -> Iterator[Student]:
        """Yield the student, whose weights require gradients inside the block."""
        for weight in self.trained:
            weight.requires_grad_(True)
        try:
            yield self.network
        finally:
            self.network.requires_grad_(False)

    def optimizer(self, rate: float) -> torch.optim.Optimizer:
        """Return the optimizer of the student's weights, with the state after its last step."""
        if self.kind == "sgd":
            return torch.optim.SGD(self.trained, lr=rate)
        optimizer = torch.optim.AdamW(self.trained, lr=rate, weight_decay=0.0)
        for weight, own in zip(self.trained, self.moments, strict=True):
            optimizer.state[weight] = dict(own.named_buffers())
        return optimizer


class _AdamWState(nn.Module):
    """The state of AdamW for one weight, under torch's names."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0.0))
        self.register_buffer("exp_avg", torch.zeros_like(weight))
        self.register_buffer("exp_avg_sq", torch.zeros_like(weight))


@dataclass(frozen=True)
class Simulatability(Criterion):
    """A student's loss on held-out examples, after a step that explanations shape (IvRA, eq. 7, 14 and 15).

    In every training step the student first takes an inner step on CE(S(x), ỹ) + β·KL(r ‖ r*), where x are the
    batch's inner examples and ỹ the model's predictions. A lookahead step leads on to θ', and the term is
    CE(S_θ'(x'), ỹ') on the held-out examples x', see `select_held_out`. Its gradient reaches the explanations through
    the lookahead step, see `LookaheadStep`. In evaluation the term is the student's CE on the whole batch.

    Args:
        explainer: see `Criterion`, as for `weight` and `lr_multiplier`.
        student: the pretrained model that the student starts from; or the student, see `with_student`.
        student_optimizer: `sgd` (without momentum), as the paper, or `adamw` (without decay).
        student_learning_rate: learning rate of the student; with AdamW try 1e-4.
        student_weight: β, the weight of the explanations in the student's loss; SMaT has 5.
        max_norm: clipping norm of the student's gradients.
        held_out: the share of examples in the outer loss.
        outer_divergence: whether the outer loss also has β·KL(r' ‖ r*') at θ' (IvRA's eq. 15; SMaT's loss has not).
            With it explanations also become more like the student's own.
    """

    # Equation 7 prints the cross-entropy without its minus sign.

    student: str | SimulatingStudent | None = field(default=None, kw_only=True, repr=False)
    student_optimizer: InnerOptimizerName = "sgd"
    student_learning_rate: float = 5e-3
    student_weight: float = 1.0
    max_norm: float = 5.0
    held_out: float = 0.5
    outer_divergence: bool = True
    name: ClassVar[str] = "simulatability"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.held_out < 1:
            raise ExpoundError(f"expected a held-out share between 0 and 1, got {self.held_out}")
        for name in ("student_learning_rate", "student_weight"):
            if getattr(self, name) <= 0:
                raise ExpoundError(f"expected a {name} above 0, got {getattr(self, name)}")

    def with_student(self, model: ExplainedModel, special_tokens: bool = True) -> Self:
        """Return the criterion with a student that starts from this model, see `SimulatingStudent`."""
        student = SimulatingStudent(model, self.student_weight, self.student_optimizer, special_tokens)
        return replace(self, student=student)

    @property
    def companion(self) -> SimulatingStudent:
        """The student, which the criterion trains by itself. Raises ExpoundError if it is not loaded yet."""
        if not isinstance(self.student, SimulatingStudent):
            raise ExpoundError("simulatability has no student yet: train by the recipe ivra, which loads its model")
        return self.student

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the criterion, and the student's starting point."""
        student = self.companion.network
        start = {"model": student.explained.config.model_type, "weights": digest_weights(student.explained.model)}
        return super().params | {"student": start | {"special_tokens": student.explainer.params["special_tokens"]}}

    def __call__(self, step: TrainingStep) -> Tensor:
        """Compute the student's loss, a scalar; in training on held-out examples, after its inner step."""
        batch = label_with_predictions(step.model, step.batch, step.outputs.logits)
        if not step.context.training:
            with self.companion.network.explained.evaluation_mode():
                return self.companion.network("simulation", batch)  # type: ignore[no-any-return]
        if step.context.rank:
            raise ExpoundError("a student learns in one process: start one")
        explained = self.explain_prediction(step).masked_fill(~batch.attended, 0.0)
        held_out = select_held_out(batch, self.held_out)
        # Without inner or held-out examples the term is 0, but keeps the graph that a backward pass needs.
        if held_out.all() or not held_out.any():
            return explained.sum() * 0
        inner, outer = (batch.select(rows.nonzero().flatten()) for rows in (~held_out, held_out))
        teacher_explanation, judged = explained[~held_out], explained[held_out]
        own = judged.detach().requires_grad_() if self.outer_divergence else None
        gradient, loss = self._teach_student(step, inner, teacher_explanation.detach(), outer, own)
        through = (teacher_explanation * gradient).sum()
        if own is not None:
            assert own.grad is not None
            through = through + (judged * own.grad).sum()
        # The value of the loss, with the gradient of `through`.
        return loss + through - through.detach()

    def _teach_student(
        self, step: TrainingStep, inner: Batch, teacher_explanation: Tensor, outer: Batch, own: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Take the student's step; return the outer gradient [B, L] and loss after one more, a lookahead step.

        `own` are the explanations of the held-out examples, if they are part of the loss, see `LookaheadStep.gradient`.
        """
        seeds = [step.generator(f"student's {what}").initial_seed() for what in ("step", "lookahead")]
        with torch.enable_grad(), self.companion.requiring_gradients() as student:
            if is_checkpointed(step.model.model) and not is_checkpointed(student.explained.model):
                student.explained.model.gradient_checkpointing_enable()
            weights, optimizer = student.trainable_weights(), self.companion.optimizer(self.student_learning_rate)
            with seeded_random_state(seeds[0]):
                loss = student("loss", inner, teacher_explanation)
            found = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            factor = clip_factor(found, self.max_norm)
            for weight, slope in zip(weights.values(), found, strict=True):
                weight.grad = slope.mul_(factor)
            optimizer.step()
            optimizer.zero_grad()
            lookahead = LookaheadStep(student, make_inner_optimizer(optimizer, weights), max_norm=self.max_norm)
            return lookahead.gradient(inner, teacher_explanation, outer, seeds[1], own)


def select_held_out(batch: Batch, share: float) -> Tensor:
    """Return which examples of a batch are held out from the student [B], bool: about that share of all.

    The choice is a hash of an example's tokens, so that the student never learns from a held-out example in any epoch.
    """
    # Pixels are hashed by their bits. Padding is left out, since its length differs from batch to batch.
    inputs = next(iter(batch.inputs.values())).flatten(1)
    tokens = inputs.float().view(torch.int32).long() if inputs.is_floating_point() else inputs
    real = batch.attended
    if tokens.shape != batch.attended.shape:
        real = torch.ones_like(tokens, dtype=torch.bool)
    powers = torch.full_like(tokens, HASH_MULTIPLIER).masked_fill(~real, 1).cumprod(1)
    mixed = (powers * (tokens + 1) * real).sum(1)
    # Two rounds of xor-shift and multiply, as in splitmix64, spread the sum over the upper bits that are compared.
    for shift in (33, 29):
        mixed = (mixed ^ (mixed >> shift)) * HASH_MULTIPLIER
    return (mixed >> 40) & 0xFFFFFF < share * 2**24


def label_with_predictions(model: ExplainedModel, batch: Batch, logits: Tensor) -> Batch:
    """Return the batch with the model's own predictions as labels."""
    if model.task.is_generated or not model.task.supports("one_target"):
        raise ExpoundError(
            "students learn one class, a value or a span per example, not several labels at once or text"
        )
    if model.task.predicts_number:
        return replace(batch, labels=logits.detach().squeeze(-1))
    return replace(batch, labels=model.resolve_target(batch, "predicted", logits))


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
