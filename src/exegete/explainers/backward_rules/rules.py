"""Representations times derivatives by other rules: relevance propagation and linearised networks on one code path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Literal

import torch
from torch import Tensor

from exegete.explainers.base import (
    DimensionwiseExplainer,
    Explanation,
    Point,
    TargetSelector,
    constant_target,
    embed_with_gradient,
)
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.layers.architecture import get_first_layers, get_layers
from exegete.models.layers.backward_rules import LINEAR_RULES, DerivativeRules, HeldFactors, apply_backward_rules
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.models.passes.module_inputs import intercept_inputs

CAPTURE = Capture(differentiable_twice=True)


class BackwardRules(DimensionwiseExplainer):
    """⟨x_k, ∇̃_k z⟩: representations times the derivative ∇̃ of the target's score by `rules`; F + B.

    Any family with a record; in an encoder-decoder both sides start, and there are no `layers`. `Explanation.bias` [B]
    is z − Σ_k over all positions: what the biases add, and what rules that do not conserve shed. `Explanation.layers`
    [B, N, L] holds ⟨x_k, ∇̃_k z⟩ at the inputs of every layer. Both are of sums, `layers` as `aggregate` says.

    When attributions keep a graph, their derivatives with respect to the weights are the true ones: what is held still
    for the contributions is not held still for them. That takes a second forward pass.
    """

    returns_logits: ClassVar[bool] = True
    start: Literal["hidden", "embeddings"] = "embeddings"

    @property
    def rules(self) -> DerivativeRules:
        """Where derivatives depart from the ordinary ones."""
        return LINEAR_RULES

    def passes(self, length: int) -> tuple[float, float]:
        """One forward and one backward pass."""
        return 1.0, 1.0

    def origin(self, model: ExplainedModel, batch: Batch) -> Tensor | None:
        """The point [B, L, d] from which the start is measured; none is zero."""
        return None

    def points(self, model: ExplainedModel, batch: Batch) -> Iterator[Point] | None:
        """The embeddings, measured from the origin; a start behind them is no point of theirs."""
        if self.start == "hidden":
            return None
        embeddings, origin = model.embed(batch), self.origin(model, batch)
        return iter([Point(embeddings, embeddings if origin is None else embeddings - origin)])

    def override_derivatives(self, model: ExplainedModel) -> AbstractContextManager[None]:
        """Each pass measures its own factors."""
        return apply_backward_rules(model.model, HeldFactors(), self.rules)

    def compute(self, model: ExplainedModel, batch: Batch, select_target: TargetSelector) -> Explanation:
        """⟨x_k, ∇̃_k z⟩, at the start and at every layer, from a pass that answers as ever."""
        return self._explanations(model, batch, [select_target])[0]

    def compute_each(self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor]) -> list[Tensor]:
        """One pass for all targets, and a backward pass for each."""
        return [
            found.scores for found in self._explanations(model, batch, [constant_target(target) for target in targets])
        ]

    def _explanations(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[TargetSelector]
    ) -> list[Explanation]:
        keep_graph = torch.is_grad_enabled()
        factors = self._record_factors(model, batch) if keep_graph else HeldFactors()
        with (
            torch.enable_grad(),
            apply_backward_rules(model.model, factors, self.rules),
            self._capture_layer_inputs(model, keep_graph) as inputs,
        ):
            embedded = self.start == "embeddings"
            embeddings = embed_with_gradient(model, batch, keep_graph=keep_graph) if embedded else None
            with skip_unread_positions(model):
                outputs = model(batch, embeddings, CAPTURE)
        logits, found = outputs.logits.detach(), []
        for left, select_target in zip(range(len(targets) - 1, -1, -1), targets, strict=True):
            with torch.enable_grad():
                score = self.score(model, outputs, select_target(logits))
                points = inputs if embeddings is None else [embeddings, *inputs]
                slopes = torch.autograd.grad(
                    score.sum(), points, create_graph=keep_graph, retain_graph=keep_graph or left > 0
                )
            with torch.set_grad_enabled(keep_graph):
                shares = self._compute_contributions(model, batch, slopes, points, embedded=embedded)
                scores = self.aggregate_dimensions(shares)[:, : batch.length]
                rest = (score - shares[:, : batch.length].sum((1, 2))).detach()
            layered = None if model.is_encoder_decoder else self._stack_layers(batch, slopes[-len(inputs) :], inputs)
            found.append(Explanation(scores, layers=layered, bias=rest, logits=logits))
        return found

    def _compute_contributions(
        self, model: ExplainedModel, batch: Batch, slopes: Sequence[Tensor], points: Sequence[Tensor], *, embedded: bool
    ) -> Tensor:
        """[B, L, d] Slopes times what they start from, of both sides where there are two."""
        origin = self.origin(model, batch)
        starts = points[: 2 if model.is_encoder_decoder and not embedded else 1]
        moved = [slope * (x if origin is None else x - origin) for slope, x in zip(slopes, starts, strict=False)]
        return model.scatter_states(batch, moved)

    def _stack_layers(self, batch: Batch, slopes: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor | None:
        """[B, N, L] At the inputs of every layer; BigBird pads to full blocks, whence nothing comes."""
        by_layer = [
            self.aggregate_dimensions(slope * point).detach()[:, : batch.length]
            for slope, point in zip(slopes, inputs, strict=True)
        ]
        return torch.stack(by_layer, 1) if by_layer else None

    @contextmanager
    def _capture_layer_inputs(self, model: ExplainedModel, keep_graph: bool) -> Iterator[list[Tensor]]:
        """The inputs of the layers; where the start is the first one, nothing is asked of what came before it."""

        def change(call: int, value: Tensor) -> Tensor:
            first = (call == 0 or model.is_encoder_decoder) and self.start == "hidden"
            return value.detach().requires_grad_() if first and not (keep_graph and value.requires_grad) else value

        watched = get_first_layers(model.model) if model.is_encoder_decoder else get_layers(model.model)
        with intercept_inputs(watched, change) as inputs:
            yield inputs

    def _record_factors(self, model: ExplainedModel, batch: Batch) -> HeldFactors:
        """The factors to hold the network at, with their graphs."""
        factors = HeldFactors(record=True)
        with apply_backward_rules(model.model, factors, self.rules), skip_unread_positions(model):
            model(batch, capture=CAPTURE)
        return factors.replayed()
