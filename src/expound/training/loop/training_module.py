"""The module that a Trainer trains: the model together with its objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers.learned.base import LearnedExplainer, UntrainedExplainer
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.outputs import require_finite_logits
from expound.objectives import Constraint, CrossEntropy, Objective, StepContext, TrainingStep


class TrainingModule(nn.Module):
    """The model and its objectives as one module whose forward pass computes all terms of the loss.

    `evaluation_share`: the share of each batch on which terms other than the task's loss are evaluated.

    `learned` has the modules that objectives learn, by the name of the (first) objective that has them, and under
    `NAME_companion` the modules that an objective trains by itself.
    """

    # With False the Trainer divides the loss by the number of accumulated batches, as `compute_loss` expects.
    accepts_loss_kwargs = False

    @property
    def _hf_peft_config_loaded(self) -> bool:
        """Whether adapters are trained; else the Trainer refuses a model whose weights are quantized."""
        return hasattr(self.explained.model, "peft_config")

    def __init__(self, explained: ExplainedModel, objectives: Sequence[Objective], masked_share: float = 0.0) -> None:
        super().__init__()
        names = [objective.name for objective in objectives]
        if not names or len(set(names)) < len(names):
            raise ExpoundError(f"expected objectives with different names, got: {', '.join(names) or 'none'}")
        for objective in objectives:
            # Masking would change the hash by which a student's held-out examples are recognized.
            if masked_share and objective.companion is not None:
                raise ExpoundError(f"{objective.name} knows its examples by their words: set masked_share to 0")
        self.explained = explained
        self.masked_share = masked_share
        self.evaluation_share = 1.0
        made: list[tuple[UntrainedExplainer, LearnedExplainer]] = []
        prepared: list[Objective] = []
        learned: dict[str, nn.Module] = {}
        for each in objectives:
            objective = create_explainer(each, explained, made).prepare(explained)
            prepared.append(objective)
            module = objective.learned
            # A module that several objectives share is registered, optimized and saved once.
            if module is not None and module not in learned.values():
                learned[objective.name] = module
            if objective.companion is not None:
                learned[f"{objective.name}_companion"] = objective.companion
        self.objectives = tuple(prepared)
        self.learned = nn.ModuleDict(learned)

    def __getattr__(self, name: str) -> Any:
        # The Trainer asks its model for a configuration, gradient checkpointing and more: the Hugging Face model
        # answers what the module itself does not have.
        try:
            return super().__getattr__(name)
        except AttributeError:
            explained: Any = super().__getattr__("explained")
            return getattr(explained.model, name)

    def forward(self, batch: Batch, context: StepContext) -> dict[str, Any]:
        """Return the terms of a batch, see `compute_terms`."""
        # Everything that has a gradient happens in this one call, since DDP and autocast wrap `forward`.
        if context.training and self.masked_share:
            batch = mask_random_tokens(self.explained, batch, self.masked_share, context)
        return self.compute_terms(batch, context)

    def compute_terms(
        self, batch: Batch, context: StepContext, observed: Outputs | None = None, own_loss: Tensor | None = None
    ) -> dict[str, Any]:
        """Return the objectives' unweighted `terms` [number of objectives], the same one by one, and the logits.

        All objectives share one pass through the model. Each share of the batch that some objectives are estimated on
        needs another pass.

        Args:
            batch: B examples.
            context: the step.
            observed: the outputs of a pass of the whole batch that has been run, with what `request` asks for.
            own_loss: the loss [] of the user's own code on that pass.
        """
        shares = [self._share_of(objective, training=context.training) for objective in self.objectives]
        keep_graph = torch.is_grad_enabled()
        steps: dict[float, TrainingStep] = {}
        terms = []
        with torch.set_grad_enabled(keep_graph or self.needs_gradient):
            for share in sorted({1.0, *shares}, reverse=True):
                part, outputs = batch, observed
                if share != 1:
                    part, outputs = sample_share(batch, share, context), None
                if outputs is None:
                    request = self.request(share, training=context.training)
                    outputs = self._run_model(part, request, keep_graph=keep_graph)
                require_finite_logits(outputs.logits)
                steps[share] = TrainingStep(self.explained, part, outputs, context, own_loss)
            for objective, share in zip(self.objectives, shares, strict=True):
                terms.append(objective(steps[share]))
        return stack_terms(terms) | {"logits": steps[1.0].outputs.logits}

    def _share_of(self, objective: Objective, *, training: bool) -> float:
        """Return the share of a batch that an objective is computed on."""
        if training:
            return objective.batch_fraction
        # The task's loss is computed on all rows; so is every term of a loss without it, as the terms choose the epoch.
        has_task_loss = any(isinstance(each, CrossEntropy) for each in self.objectives)
        if isinstance(objective, CrossEntropy) or not has_task_loss:
            return 1.0
        return self.evaluation_share

    @property
    def needs_gradient(self) -> bool:
        """Whether some explanations are gradients at the embeddings, in evaluation, too."""
        return any(objective.needs_embeddings for objective in self.objectives)

    def request(self, share: float, *, training: bool) -> tuple[Capture, bool]:
        """Return what the objectives with this share need of their pass: its capture, and whether embeddings."""
        capture, needs_embeddings = Capture(), False
        for objective in self.objectives:
            if share == self._share_of(objective, training=training):
                capture |= objective.capture
                needs_embeddings = needs_embeddings or objective.needs_embeddings
        return capture, needs_embeddings

    def _run_model(self, batch: Batch, request: tuple[Capture, bool], *, keep_graph: bool) -> Outputs:
        """Run a pass that records what is requested."""
        capture, needs_embeddings = request
        embeddings = None
        if needs_embeddings:
            embeddings = self.explained.embed_with_gradient(batch, keep_graph=keep_graph)
        outputs: Outputs = self.explained(batch, embeddings, capture)
        return outputs


def create_explainer(
    objective: Objective, model: ExplainedModel, made: list[tuple[UntrainedExplainer, LearnedExplainer]]
) -> Objective:
    """Return the objective with its `ID?untrained` explainer, if it has one, created for the model, to be trained.

    Equal specs become the same explainer, which is in `made` then.
    """
    if isinstance(objective, Constraint):
        return replace(objective, objective=create_explainer(objective.objective, model, made))
    spec = getattr(objective, "explainer", None)
    if not isinstance(spec, UntrainedExplainer):
        return objective
    found = [explainer for known, explainer in made if known == spec]
    if not found:
        found = [spec.for_model(model)]
        made.append((spec, found[0]))
    changed: Any = objective
    return cast(Objective, replace(changed, explainer=found[0]))


def require_recomputable(objectives: Sequence[Objective]) -> None:
    """Raise ExpoundError for terms that gradient checkpointing would break."""
    # Checkpointing runs layers again in the backward pass, when attention is no longer captured for these terms.
    blocked = []
    for each in objectives:
        if each.needs_embeddings or each.capture.attentions or each.capture.differentiable_twice:
            blocked.append(each.name)
    if blocked:
        raise ExpoundError(
            f"gradient checkpointing runs layers again without what {', '.join(blocked)} looks at in them: "
            "set gradient_checkpointing=False"
        )


def stack_terms(terms: Sequence[Tensor]) -> dict[str, Any]:
    """Return the `terms` as one tensor and `separate_terms` as a tuple."""
    # A bfloat16 term would round the sum of the terms. The gradient norm of one term is taken from the separate ones:
    # through the stacked tensor it would run backward through all of them.
    dtype = torch.float32
    for term in terms:
        dtype = torch.promote_types(dtype, term.dtype)
    return {"terms": torch.stack([term.to(dtype) for term in terms]), "separate_terms": tuple(terms)}


def sample_share(batch: Batch, share: float, context: StepContext) -> Batch:
    """Return ⌈share · B⌉ examples of a batch in its order, in training random ones, without padding common to all."""
    if not 0 < share <= 1:
        raise ExpoundError(f"expected a share of the batch above 0 and up to 1, got {share}")
    # Rounding first: 0.07 · 100 = 7.000000000000001 would give eight examples.
    size = math.ceil(round(share * len(batch), 9))
    if context.training:
        order = torch.randperm(len(batch), generator=context.generator("share of the batch"))
    else:
        # Evaluations are compared with each other: always the same examples, of all lengths.
        order = torch.arange(size) * len(batch) // size
    return batch.select(order[:size].sort().values).trim_padding()[0]


def mask_random_tokens(model: ExplainedModel, batch: Batch, share: float, context: StepContext) -> Batch:
    """Return the batch with random tokens masked in a random `share` of its examples (Madsen et al. 2024, §3).

    Masked fine-tuning teaches a model to read inputs from which words were removed, as faithfulness metrics ask it to.
    """
    if model.modality != "text":
        raise ExpoundError("masked fine-tuning replaces words: it does not apply to images")
    generator = context.generator("masked fine-tuning", batch.device)
    # Each masked example has a masking rate of its own, uniform in [0, 1], so that the model sees all rates.
    selection, rate = torch.rand(2, len(batch), 1, generator=generator, device=batch.device)
    draws = torch.rand(batch.content.shape, generator=generator, device=batch.device)
    is_masked = batch.content & (draws < rate) & (selection < share)
    input_ids = batch.inputs["input_ids"].masked_fill(is_masked, model.mask_id)
    return replace(batch, inputs=batch.inputs | {"input_ids": input_ids})
