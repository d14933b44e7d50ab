"""Methods that explain all targets by one forward pass, and the backward passes for these targets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers.base import Explainer, OutputExplainer, TokenScores
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.batch import (
    find_predicting_columns,
    find_response_positions,
    require_finite_logits,
    require_response,
)
from expound.models.hugging_face import get_tolerance
from expound.models.passes.hooks import skip_unread_positions

TOKENS_PER_BACKWARD_PASS, FEWEST_TARGETS = 768, 4
"""Token budget of a backward pass for several targets, and the fewest targets for which such a pass is worth it.

Measured on a Llama of 6 layers and 384 dimensions, one thread of a CPU, 32 targets, relative to one target at a time:
rows of 64 tokens .71, 96 .79, 160 .88, 288 1.06, 1,056 1.09.
"""


class SinglePass(Explainer):
    """Base of methods that need one forward pass and the quantities captured in it.

    All targets share the pass, from which the prediction is read too. A training step can hand its own pass to
    `compute`, so that guidance costs no further pass.
    """

    returns_logits: ClassVar[bool] = True

    @property
    def capture(self) -> Capture:
        """The quantities to capture in the forward pass."""
        return Capture()

    def gradient_points(self, outputs: Outputs) -> Sequence[Tensor]:
        """Return the tensors [B, ...] at which the gradient of the target's score is taken; by default none."""
        return ()

    @abstractmethod
    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor | TokenScores:
        """Compute scores [B, L], or an explanation with more than scores, from one pass.

        `gradients`: the gradients of the target's score at `gradient_points`.
        """

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute the explanations, with scores [B, L], from one pass; they keep a graph if gradients are enabled."""
        keep_graph = torch.is_grad_enabled()
        with torch.set_grad_enabled(keep_graph or self.needs_gradient), capture_head_input(model) as states:
            if outputs is None:
                outputs = self.run_pass(model, batch, keep_graph=keep_graph)
            logits, explanations = outputs.logits.detach(), []
            resolved = [model.task.predict(logits, batch) if given is None else given for given in targets]
            points, task = self.gradient_points(outputs), model.task.with_output(self.output)
            scores = [task.score(outputs.logits, target) for target in resolved] if points else []
            slopes = None if keep_graph else split_by_target(model, batch, scores, resolved, states)
            for number, target in enumerate(resolved):
                gradients: Sequence[Tensor] = ()
                if points:
                    # Examples do not see each other: the gradient of the sum is that of each example's own score.
                    roots, weights = (scores[number].sum(), None) if slopes is None else (states[0], slopes[number])
                    # Autograd frees the graph in a backward pass unless another one follows.
                    retain_graph = keep_graph or number + 1 < len(resolved)
                    gradients = torch.autograd.grad(
                        roots, points, weights, create_graph=keep_graph, retain_graph=retain_graph
                    )
                found = self.scores_from_outputs(model, batch, outputs, target, gradients)
                explanation = found if isinstance(found, TokenScores) else TokenScores(found)
                explanations.append(replace(explanation, logits=logits))
        return explanations

    def run_pass(self, model: ExplainedModel, batch: Batch, *, keep_graph: bool) -> Outputs:
        """Run the pass that the method needs; `keep_graph`: its scores will be differentiated."""
        # Without gradients all layers' maps are captured, for `TokenScores.layers`; a graph through them costs memory.
        last_only = self.capture.last_only and (keep_graph or self.needs_gradient)
        capture = replace(self.capture, differentiable_twice=keep_graph, last_only=last_only)
        embeddings = model.embed_with_gradient(batch, keep_graph=keep_graph) if self.needs_gradient else None
        # Without the positions that the head does not read, the last hidden states would be incomplete.
        with nullcontext() if capture.hidden_states else skip_unread_positions(model, batch):
            outputs: Outputs = model(batch, embeddings, capture)
        require_finite_logits(outputs.logits)
        return outputs


def count_targets_per_pass(tokens: int) -> int:
    """Return how many targets one backward pass through a batch of `tokens` tokens serves."""
    count = TOKENS_PER_BACKWARD_PASS // tokens
    if count < FEWEST_TARGETS:
        return 1
    return count


def sum_gradient(slope: Tensor) -> Tensor:
    """Return the sums [..., L] of gradients [..., L, d] over their dimensions.

    Raises:
        ExpoundError: all sums are zero but for rounding, as in a model whose LayerNorms subtract any constant that is
            added to an embedding.
    """
    total, size = slope.sum(-1), slope.detach().abs().sum(-1)
    rounding = min(100 * torch.finfo(slope.dtype).eps, 0.02)
    if size.any() and bool((total.detach().abs() <= rounding * size).all()):
        raise ExpoundError(
            "expected an aggregate of gradients other than 'sum', which is zero but for rounding where a LayerNorm "
            "follows the embeddings: use 'l2' or 'abs', or input_x_gradient for a sign"
        )
    return total


class EmbeddingGradient(OutputExplainer, SinglePass):
    """Base of methods that make scores of the input embeddings and the gradient of the target's score at them."""

    @abstractmethod
    def scores_from_gradient(self, slope: Tensor, embeddings: Tensor) -> Tensor:
        """Compute scores [..., L] from the gradient and the embeddings, both [..., L, d]."""

    def passes(self, length: int) -> tuple[float, float]:
        """Return one forward and one backward pass."""
        return 1.0, 1.0

    def gradient_points(self, outputs: Outputs) -> Sequence[Tensor]:
        """Return the input embeddings [B, L, d]."""
        assert outputs.embeddings is not None
        return [outputs.embeddings]

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Compute the scores [B, L] from this pass."""
        return self.scores_from_gradient(gradients[0], *self.gradient_points(outputs))

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute scores [B, L] of each target from one forward pass; targets of short inputs share backward passes."""
        count = count_targets_per_pass(batch.attended.numel())
        if min(count, len(targets)) == 1 or torch.is_grad_enabled():
            return super().compute(model, batch, targets, outputs)
        with torch.enable_grad(), capture_head_input(model) as states:
            outputs = outputs or self.run_pass(model, batch, keep_graph=False)
            logits = outputs.logits
            resolved = [model.task.predict(logits.detach(), batch) if given is None else given for given in targets]
            scores = [self.score(model, outputs, target) for target in resolved]
            whole = torch.stack([score.sum() for score in scores])
            slopes = split_by_target(model, batch, scores, resolved, states)
        root, weights = whole, torch.eye(len(targets), dtype=whole.dtype, device=whole.device)
        if slopes is not None:
            root, weights = states[0], torch.stack(slopes)
        (embeddings,), explanations = self.gradient_points(outputs), list[TokenScores]()
        # With `is_grads_batched` (vmap), one backward pass serves several targets.
        for selection in weights.split(count):
            (gradients,) = torch.autograd.grad(root, embeddings, selection, retain_graph=True, is_grads_batched=True)
            for each in self.scores_from_gradient(gradients, embeddings.detach()).unbind():
                explanations.append(TokenScores(each, logits=logits.detach()))
        return explanations


@contextmanager
def capture_head_input(model: ExplainedModel) -> Iterator[list[Tensor]]:
    """Collect the input of a language model's head in the passes inside the block; empty for other models."""
    states: list[Tensor] = []
    head = model.model.get_output_embeddings() if model.task.is_generated and not model.is_encoder_decoder else None
    if not isinstance(head, nn.Module):
        yield states
        return

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        states.extend(inputs[:1])

    with head.register_forward_pre_hook(keep):
        yield states


def split_by_target(
    model: ExplainedModel, batch: Batch, scores: Sequence[Tensor], targets: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Tensor] | None:
    """Return the gradient of each score [B] at the input of the head, from one backward pass through the vocabulary.

    Each token of a response is read at its own position, so the gradient of the sum of all scores has those of targets
    without a token in common side by side. None if targets overlap, or if the first target's own gradient is not its
    part of the whole.
    """
    if len(states) != 1 or len(scores) < 2:
        return None
    positions, _ = find_response_positions(require_response(batch))
    columns, index = find_predicting_columns(require_response(batch)), positions - 1
    if states[0].shape[1] == len(columns):
        index = torch.searchsorted(columns, index)
    step, masks = torch.arange(positions.shape[1], device=index.device), []
    for target in targets:
        inside = (step >= target[:, :1]) & (step < target[:, 1:])
        mask = torch.zeros(states[0].shape[:2], dtype=states[0].dtype, device=index.device)
        masks.append(mask.scatter_add(1, index, inside.to(mask))[..., None])
    if (torch.stack(masks).sum(0) > 1).any():
        return None
    total = torch.stack([score.sum() for score in scores]).sum()
    (whole,) = torch.autograd.grad(total, states[0], retain_graph=True)
    (first,) = torch.autograd.grad(scores[0].sum(), states[0], retain_graph=True)
    if float((first - whole * masks[0]).abs().max()) > get_tolerance(model) * float(first.abs().max()):
        return None
    return [whole * mask for mask in masks]
