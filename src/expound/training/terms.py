"""Explanation losses in a training loop of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from expound.errors import check_choice
from expound.models import ExplainedModel
from expound.models.state import is_checkpointed
from expound.objectives import AdaptiveObjective, CrossEntropy, Objective, StepContext
from expound.training.inputs import MASKS, MODEL_INPUTS, read_batch, require_supported
from expound.training.loop.prepare import require_recomputable
from expound.training.loop.training_module import TrainingModule


@dataclass(frozen=True)
class TermValues:
    """The losses of one batch.

    Attributes:
        loss: [] the task's loss plus Σ weight · term; call `backward` on it.
        logits: [B, C] the model's output; for generated text [B, R, 2], the log-probability and the logit of each token
            of the response.
        terms: the unweighted value [] of each objective by name, for logging; `cross_entropy` is the task's loss.
    """

    loss: Tensor
    logits: Tensor
    terms: dict[str, Tensor]


class ExplanationTerms(nn.Module):
    """Computes the task's loss and explanation losses of a batch in one forward pass, for any PyTorch training loop.

    Example:
        explained = expound.load((model, tokenizer))
        guidance = expound.objective("rationale_alignment", explainer="attention_last", weight=10.0)
        terms = expound.ExplanationTerms(explained, [guidance])
        for inputs in loader:  # dictionaries with input_ids, attention_mask, labels and rationale_mask
            step = terms(inputs)
            step.loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The model is used in its own mode, on its own device and under the caller's autocast; its state is restored after
    the call. A call under `torch.no_grad()` is an evaluation, any other is a training step. Objectives that learn have
    parameters in `terms.parameters()`, which also has the model's parameters.

    Args:
        model: a classifier or regression model of texts, or a causal language model (task="generation"), see
            `expound.load`; also one with adapters. Of several processes each wraps the terms, not the model, in
            DistributedDataParallel.
        objectives: the terms to add to the task's loss. A `CrossEntropy` among them replaces the task's own loss.
        seed: random numbers of the objectives depend on it and on the number of the step.
        total_steps: the number of training steps, if a `Constraint` is to have a linear learning rate.

    Raises:
        ExpoundError: a model or an objective that cannot be used.
    """

    def __init__(
        self, model: ExplainedModel, objectives: Sequence[Objective], seed: int = 0, total_steps: int | None = None
    ) -> None:
        super().__init__()
        require_supported(model)
        if not any(isinstance(objective, CrossEntropy) for objective in objectives):
            objectives = (CrossEntropy(), *objectives)
        self.module = TrainingModule(model, objectives)
        self.seed, self.number, self.total_steps = seed, 0, total_steps

    @property
    def model(self) -> ExplainedModel:
        """The model that is trained."""
        return self.module.explained

    def forward(self, inputs: Mapping[str, Tensor]) -> TermValues:
        """Return the losses of a batch.

        Args:
            inputs: `input_ids` [B, L], `attention_mask` [B, L], `labels` [B] (generated text: [B, L], the ids of the
                response and -100 elsewhere), optionally `token_type_ids`, `position_ids`, `rationale_mask` [B, L] (the
                tokens that people marked) and `content_mask` [B, L] (the tokens that can carry attribution; default:
                all but padding, the tokenizer's special tokens and the response).

        Raises:
            ExpoundError: a missing or unknown input, or one of a wrong shape.
        """
        for name in inputs:
            check_choice("input", name, (*MODEL_INPUTS, *MASKS, "labels"))
        batch = read_batch(self.model, inputs, needs_labels=True)
        # Without a graph no backward pass can follow. The mode of the model does not tell: some train without dropout.
        training = torch.is_grad_enabled()
        if training and is_checkpointed(self.model.model):
            require_recomputable(self.module.objectives)
        # Gradient accumulation calls this several times per optimizer step; each call draws its own numbers.
        context = StepContext(seed=self.seed, number=self.number, training=training)
        outputs = self.module(batch, context)
        terms = {}
        for objective, value in zip(self.module.objectives, outputs["terms"].detach(), strict=True):
            terms[objective.name] = value
            # Reading values would make every step wait for the accelerator.
            if training and isinstance(objective, AdaptiveObjective):
                objective.adapt(float(_mean_over_processes(value)), self.number, self.total_steps)
        self.number += training
        return TermValues(outputs["loss"], outputs["logits"], terms)


def _mean_over_processes(value: Tensor) -> Tensor:
    if not distributed.is_initialized():
        return value
    total = value.clone()
    distributed.all_reduce(total, distributed.ReduceOp.SUM)
    return total / distributed.get_world_size()
