"""Explanation losses in a training loop of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from exegete.errors import ExegeteError, unknown
from exegete.models import Batch, ExplainedModel
from exegete.objectives import CrossEntropy, Objective, StepContext
from exegete.training.loop.training_module import TrainingModule

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
MASKS = ("content_mask", "rationale_mask")


@dataclass(frozen=True)
class TermValues:
    """The losses of one batch.

    Attributes:
        loss: [] the task's loss plus Σ weight · term; call `backward` on it.
        logits: [B, C] the model's output.
        terms: the unweighted value [] of each objective by name, for logging; `cross_entropy` is the task's loss.
    """

    loss: Tensor
    logits: Tensor
    terms: dict[str, Tensor]


class ExplanationTerms(nn.Module):
    """Computes the task's loss and explanation losses of a batch in one forward pass, for any PyTorch training loop.

    Example:
        explained = exegete.load((model, tokenizer))
        guidance = exegete.objective("explanation", explainer="attention_last", weight=10.0)
        terms = exegete.ExplanationTerms(explained, [guidance])
        for inputs in loader:  # dictionaries with input_ids, attention_mask, labels and rationale_mask
            step = terms(inputs)
            step.loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The model is used in its own mode, on its own device and under the caller's autocast; its state is restored after
    the call. Objectives that learn have parameters in `terms.parameters()`, which also has those of the model.

    Args:
        model: a classifier or regression model, see `exegete.load`.
        objectives: the terms to add to the task's loss. A `CrossEntropy` among them replaces the task's own loss.
        seed: random numbers of the objectives depend on it and on the number of the step.
    """

    def __init__(self, model: ExplainedModel, objectives: Sequence[Objective], seed: int = 0) -> None:
        super().__init__()
        if model.modality != "text" or model.task.name == "generation":
            raise ExegeteError(f"explanation terms need a model that classifies texts, got {model}")
        if not any(isinstance(objective, CrossEntropy) for objective in objectives):
            objectives = (CrossEntropy(), *objectives)
        self.module = TrainingModule(model, objectives)
        self.seed, self.number = seed, 0

    @property
    def model(self) -> ExplainedModel:
        """The model that is trained."""
        return self.module.explained

    def forward(self, inputs: Mapping[str, Tensor]) -> TermValues:
        """Return the losses of a batch.

        Args:
            inputs: `input_ids` [B, L], `attention_mask` [B, L], `labels` [B], optionally `token_type_ids`,
                `position_ids`, `rationale_mask` [B, L] (the tokens that people marked) and `content_mask` [B, L] (the
                tokens that can carry attribution; default: all but padding and the tokenizer's special tokens).

        Raises:
            ExegeteError: a missing or unknown input, or one of a wrong shape.
        """
        batch = self._to_batch(inputs)
        training = self.model.model.training
        # Gradient accumulation calls this several times per optimizer step; each call draws its own numbers.
        context = StepContext(seed=self.seed, number=self.number, training=training)
        self.number += training
        outputs = self.module(batch, context)
        weights = [objective.weight for objective in self.module.objectives]
        loss = (outputs["terms"] * outputs["terms"].new_tensor(weights)).sum()
        names = [objective.name for objective in self.module.objectives]
        return TermValues(loss, outputs["logits"], dict(zip(names, outputs["terms"].detach(), strict=True)))

    def _to_batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the user's inputs as a batch."""
        for name in inputs:
            if name not in (*MODEL_INPUTS, *MASKS, "labels"):
                raise unknown("input", name, (*MODEL_INPUTS, *MASKS, "labels"))
        missing = [name for name in ("input_ids", "attention_mask", "labels") if name not in inputs]
        if missing:
            raise ExegeteError(f"the batch lacks {', '.join(missing)}")
        ids = inputs["input_ids"]
        for name in set(inputs) - {"labels"}:
            if inputs[name].shape != ids.shape:
                raise ExegeteError(f"expected {name} of shape {list(ids.shape)}, got {list(inputs[name].shape)}")
        labels = inputs["labels"]
        if labels.shape != ids.shape[:1]:
            raise ExegeteError(f"expected labels of shape [{len(ids)}], got {list(labels.shape)}")
        rows = int(getattr(self.model.embedding, "num_embeddings", ids.max() + 1))
        if int(ids.max()) >= rows:
            raise ExegeteError(
                f"input_ids go up to {int(ids.max())}, the model has {rows} tokens: use its own tokenizer"
            )
        content = inputs.get("content_mask")
        if content is None:
            special = torch.tensor(sorted(self.model.special_ids), device=ids.device)
            content = inputs["attention_mask"].bool() & ~torch.isin(ids, special)
        rest = {name: inputs[name] for name in MODEL_INPUTS if name in inputs and name != "input_ids"}
        batch = Batch.from_ids(ids, content=content, **rest)
        rationale = inputs.get("rationale_mask")
        if rationale is not None:
            annotated = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
            batch = replace(batch, rationale_mask=rationale.bool() & batch.content, has_rationale=annotated)
        return replace(batch, labels=labels)
