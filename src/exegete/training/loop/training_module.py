"""The module that a Trainer trains: the model together with its objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor, nn

from exegete.errors import ExegeteError
from exegete.explainers.base import embed_with_gradient
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.outputs import require_finite_logits
from exegete.objectives import Objective, StepContext, TrainingStep, task_losses


class TrainingModule(nn.Module):
    """The model and its objectives as one module whose forward pass is a whole step.

    `learned`: what objectives learn, by the name of the objective; what several share, by that of
    the first; `NAME_companion`: what an objective trains in its own way.

    Everything that has a gradient happens inside `forward`, so that wrappers (DDP, autocast) see one call a step. What
    the Trainer asks of a model otherwise (configuration, gradient checkpointing, ...) the Hugging Face model answers.
    """

    accepts_loss_kwargs = False

    def __init__(self, explained: ExplainedModel, objectives: Sequence[Objective], masked_share: float = 0.0) -> None:
        super().__init__()
        names = [objective.name for objective in objectives]
        if not names or len(set(names)) < len(names):
            raise ExegeteError(f"expected objectives with different names, got: {', '.join(names) or 'none'}")
        teaching = next((objective.name for objective in objectives if objective.companion is not None), None)
        if masked_share and teaching:
            raise ExegeteError(f"{teaching} knows its examples by their words: set masked_share to 0")
        self.explained = explained
        self.masked_share = masked_share
        self.objectives = tuple(objective.prepare(explained) for objective in objectives)
        learned: dict[str, nn.Module] = {}
        for objective in self.objectives:
            module = objective.learned
            if module is not None and module not in learned.values():
                learned[objective.name] = module
            if objective.companion is not None:
                learned[f"{objective.name}_companion"] = objective.companion
        self.learned = nn.ModuleDict(learned)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            explained: Any = super().__getattr__("explained")
            return getattr(explained.model, name)

    def forward(self, batch: Batch, context: StepContext) -> dict[str, Any]:
        """The objectives' terms [number of objectives], unweighted, also one by one as `each`, and the logits.

        One pass through the model, and one more for each share of the batch that some objectives are content with.
        """
        if context.training and self.masked_share:
            batch = mask_random_tokens(self.explained, batch, self.masked_share, context)
        shares = [objective.share if context.training else 1.0 for objective in self.objectives]
        gradient_needed = any(objective.needs_embeddings for objective in self.objectives)
        keep_graph = torch.is_grad_enabled()
        with torch.set_grad_enabled(keep_graph or gradient_needed):
            steps = {
                share: self._step(
                    batch if share == 1 else sample_share(batch, share, context),
                    context,
                    [objective for objective, own in zip(self.objectives, shares, strict=True) if own == share],
                    keep_graph=keep_graph,
                )
                for share in sorted({1.0, *shares}, reverse=True)
            }
            terms = [objective(steps[share]) for objective, share in zip(self.objectives, shares, strict=True)]
        return stack_terms(terms) | {"logits": steps[1.0].outputs.logits}

    def _step(
        self, batch: Batch, context: StepContext, served: Sequence[Objective], *, keep_graph: bool
    ) -> TrainingStep:
        """The pass that these objectives have in common."""
        gradient_needed = any(objective.needs_embeddings for objective in served)
        at = embed_with_gradient(self.explained, batch, keep_graph=keep_graph) if gradient_needed else None
        outputs = self.explained(batch, at, reduce(or_, (objective.capture for objective in served), Capture()))
        losses, counted = task_losses(self.explained, batch, require_finite_logits(outputs.logits))
        return TrainingStep(self.explained, batch, outputs, losses, counted, context)


def stack_terms(terms: Sequence[Tensor]) -> dict[str, Any]:
    """`terms` in one tensor, of float32 at least, and `each` by itself: a gradient of one is not led through others."""
    precise = reduce(torch.promote_types, (term.dtype for term in terms), torch.float32)
    return {"terms": torch.stack([term.to(precise) for term in terms]), "each": tuple(terms)}


def sample_share(batch: Batch, share: float, context: StepContext) -> Batch:
    """⌈share · B⌉ random examples of a batch, in its order, without columns that are padding in all of them."""
    if not 0 < share <= 1:
        raise ExegeteError(f"expected a share of the batch above 0 and up to 1, got {share}")
    order = torch.randperm(len(batch), generator=context.generator("share of the batch"))
    size = math.ceil(round(share * len(batch), 9))
    return batch.select(order[:size].sort().values).trim_padding()[0]


def mask_random_tokens(model: ExplainedModel, batch: Batch, share: float, context: StepContext) -> Batch:
    """The batch with the mask token in random places of a `share` of its examples (Madsen et al. 2024, §3).

    A masked example loses each content position with a probability of its own, uniform between 0 and 1.
    """
    if model.modality != "text":
        raise ExegeteError("masked fine-tuning replaces words: it does not apply to images")
    generator = context.generator("masked fine-tuning", batch.device)
    chosen, rate = torch.rand(2, len(batch), 1, generator=generator, device=batch.device)
    drawn = torch.rand(batch.content.shape, generator=generator, device=batch.device)
    lost = batch.content & (drawn < rate) & (chosen < share)
    return replace(
        batch, inputs=batch.inputs | {"input_ids": batch.inputs["input_ids"].masked_fill(lost, model.mask_id)}
    )
