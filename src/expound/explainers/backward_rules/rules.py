"""Representations times derivatives by modified rules: relevance propagation and linearized networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers.base import TokenScores, select_target
from expound.explainers.gradients.paths import DimensionwiseExplainer, Point
from expound.explainers.single_pass import capture_head_input, split_by_target
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.hugging_face import is_changed_by_padding
from expound.models.layers.architecture import get_first_layers, get_layers, get_part_config
from expound.models.layers.backward_rules import apply_backward_rules
from expound.models.layers.held_factors import LINEAR_RULES, DerivativeRules, HeldFactors
from expound.models.passes.capture import intercept_inputs, record_attention
from expound.models.passes.hooks import skip_unread_positions
from expound.models.passes.layer_calls import compute_slopes, cut_graph_at_layers
from expound.models.state import choose_attention_type

CAPTURE = Capture(differentiable_twice=True)
MOST_WEIGHTS = 1 << 28
"""Attention weights (layers × heads × L²) of one example, from which on the values of one layer at a time are kept.

An explicit softmax stores about 6 bytes for each. A fused kernel stores none, but what else a layer keeps grows with L.
"""


class BackwardRules(DimensionwiseExplainer):
    """⟨x_k, ∇̃_k z⟩: representations times the derivative ∇̃ of the target's score z under `rules`.

    For any architecture whose functions the rules explain, see `prove_rules`; in an encoder-decoder both sides are
    starting points, and `layers` is None.
    `TokenScores.bias` [B] is z − Σ_k over all positions: the share of the biases, and what rules without conservation
    lose. `TokenScores.layers` [B, N, L] contains ⟨x_k, ∇̃_k z⟩ at the inputs of every layer, aggregated as `aggregate`
    says.

    If attributions keep a graph, their derivatives with respect to the weights are the true ones: factors are held
    constant in the contributions, not in these derivatives. That takes a second forward pass.
    """

    returns_logits: ClassVar[bool] = True
    assumes: ClassVar = ("answers", "linear_rules")
    start: Literal["hidden", "embeddings"] = "embeddings"

    @property
    def rules(self) -> DerivativeRules:
        """The rules by which derivatives differ from ordinary ones."""
        return LINEAR_RULES

    @property
    def _capture(self) -> Capture:
        """The request of a pass for first derivatives: a fused kernel computes attention if the rules allow it."""
        return replace(CAPTURE, first_derivatives=self.rules.temperature == 1)

    def passes(self, length: int) -> tuple[float, float]:
        """Return one forward and one backward pass."""
        return 1.0, 1.0

    def origin(self, model: ExplainedModel, batch: Batch) -> Tensor | None:
        """Return the point [B, L, d] that the start is measured from; None means zero."""
        return None

    def points(self, model: ExplainedModel, batch: Batch) -> Iterator[Point] | None:
        """Return the embeddings, measured from the origin; None if the method starts at the first layer."""
        if self.start == "hidden":
            return None
        embeddings, origin = model.embed(batch), self.origin(model, batch)
        direction = embeddings if origin is None else embeddings - origin
        return iter([Point(embeddings, direction)])

    def override_derivatives(self, model: ExplainedModel) -> AbstractContextManager[None]:
        """Return a context of the rules, in which each pass measures its own factors."""
        return apply_backward_rules(model.model, HeldFactors(), self.rules)

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute ⟨x_k, ∇̃_k z⟩ at the start and at every layer; the pass's logits are the ordinary ones."""
        if is_changed_by_padding(model) and not batch.attended.all():
            return self._explain_by_length(model, batch, targets)
        keep_graph = torch.is_grad_enabled()
        capture = CAPTURE if keep_graph else self._capture
        # All layers but the last, which `skip_unread_positions` changes for the time of the forward pass only.
        layers = get_layers(model.model)[:-1]
        heads = getattr(get_part_config(model.model), "num_attention_heads", 1)
        weights = len(layers) * heads * batch.attended.shape[1] ** 2
        can_run_again = not (keep_graph or model.is_encoder_decoder) and len(set(layers)) == len(layers)
        if weights > MOST_WEIGHTS and can_run_again:
            explanations = self._explain_layer_by_layer(model, batch, targets, layers)
            if explanations is not None:
                return explanations
        # Factors are held constant in the first derivative only. For the second one they come from an ordinary pass,
        # with their graphs.
        factors = self._record_factors(model, batch) if keep_graph else HeldFactors()
        with (
            torch.enable_grad(),
            skip_unread_positions(model, batch),
            apply_backward_rules(model.model, factors, self.rules),
            self._capture_layer_inputs(model, keep_graph) as inputs,
            capture_head_input(model) as states,
        ):
            embeddings = None
            if self.start == "embeddings":
                embeddings = model.embed_with_gradient(batch, keep_graph=keep_graph)
            outputs = model(batch, embeddings, capture)
        logits, explanations = outputs.logits.detach(), []
        points = inputs if embeddings is None else [embeddings, *inputs]
        with torch.enable_grad():
            selected = [select_target(model, batch, target, logits) for target in targets]
            scores = [self.score(model, outputs, target) for target in selected]
            gradients = None if keep_graph else split_by_target(model, batch, scores, selected, states)
        for number, score in enumerate(scores):
            with torch.enable_grad():
                roots = [score.sum()] if gradients is None else states
                slopes = torch.autograd.grad(
                    roots, points, None if gradients is None else [gradients[number]],
                    create_graph=keep_graph, retain_graph=keep_graph or number < len(targets) - 1,
                )  # fmt: skip
            with torch.set_grad_enabled(keep_graph):
                explanations.append(self._make_explanation(model, batch, score, slopes, points, inputs, logits))
        return explanations

    def _explain_by_length(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None]
    ) -> list[TokenScores]:
        """Explain the examples of each length apart, for models whose predictions padding changes."""
        logits = model(batch).logits.detach()
        lengths = batch.attended.sum(1)
        explanations = []
        for given in targets:
            target = select_target(model, batch, given, logits)
            scores, rest = torch.zeros(batch.attended.shape, dtype=logits.dtype, device=batch.device), logits[:, 0] * 0
            for length in lengths.unique():
                rows = (lengths == length).nonzero().flatten()
                part, columns = batch.select(rows).trim_padding()
                own = self.compute(model, part, [target[rows]])[0]
                scores = scores.index_put(
                    (rows[:, None], torch.arange(batch.length, device=batch.device)[columns]), own.scores.to(scores)
                )
                assert own.bias is not None
                rest = rest.index_put((rows,), own.bias.to(rest))
            explanations.append(TokenScores(scores, bias=rest, logits=logits))
        return explanations

    def _explain_layer_by_layer(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], layers: Sequence[nn.Module]
    ) -> list[TokenScores] | None:
        """Return what `compute` does, with one layer's values at a time in memory, for one more forward pass.

        None if a layer reads more than the output of the layer before, so that layers cannot run again one by one.
        """
        with (
            torch.enable_grad(),
            skip_unread_positions(model, batch),
            apply_backward_rules(model.model, HeldFactors(), self.rules),
            self._capture_layer_inputs(model, keep_graph=False) as inputs,
            cut_graph_at_layers(model, layers) as calls,
        ):
            embeddings = model.embed_with_gradient(batch, keep_graph=False) if self.start == "embeddings" else None
            outputs = model(batch, embeddings, self._capture)
            if len(calls) + 1 != len(inputs):
                return None
            for call, next_input in zip(calls, inputs[1:], strict=True):
                if call.output is not next_input or not call.depends_on_hidden_alone:
                    return None
            logits = outputs.logits.detach()
            resolved = [select_target(model, batch, target, logits) for target in targets]
            scores = [self.score(model, outputs, target) for target in resolved]
            slopes: list[Tensor] = []
            for number, score in enumerate(scores, 1):
                slopes += torch.autograd.grad(score.sum(), [inputs[-1]], retain_graph=number < len(scores))
        # As in the pass: the attention that `run_pass` chooses, and rules on the modules that it then has.
        with (
            choose_attention_type(model.model, batch.length),
            record_attention(model.model, self._capture),
            apply_backward_rules(model.model, HeldFactors(), self.rules),
        ):
            slopes_of_inputs = compute_slopes(calls, slopes)
        explanations = []
        for score, last, before in zip(scores, slopes, slopes_of_inputs, strict=True):
            own, points = [*before, last], inputs
            if embeddings is not None:
                own = [*torch.autograd.grad(inputs[0], embeddings, own[0], retain_graph=True), *own]
                points = [embeddings, *inputs]
            explanations.append(self._make_explanation(model, batch, score, own, points, inputs, logits))
        return explanations

    def _make_explanation(
        self,
        model: ExplainedModel,
        batch: Batch,
        score: Tensor,
        slopes: Sequence[Tensor],
        points: Sequence[Tensor],
        inputs: Sequence[Tensor],
        logits: Tensor,
    ) -> TokenScores:
        """Return scores from the gradients at `points`, which end with the layers' inputs."""
        shares = self._compute_contributions(model, batch, slopes, points, embedded=self.start == "embeddings")
        scores = self.aggregate_dimensions(shares)[:, : batch.length]
        rest = (score - shares[:, : batch.length].sum((1, 2))).detach()
        layers = None
        if not model.is_encoder_decoder:
            layers = self._stack_layers(batch, slopes[-len(inputs) :], inputs)
        return TokenScores(scores, layers=layers, bias=rest, logits=logits)

    def _compute_contributions(
        self, model: ExplainedModel, batch: Batch, slopes: Sequence[Tensor], points: Sequence[Tensor], *, embedded: bool
    ) -> Tensor:
        """Return slopes times the starting points [B, L, d], of both sides of an encoder-decoder."""
        origin = self.origin(model, batch)
        # An encoder-decoder has two first layers, but one row of embeddings.
        starts = points[:1]
        if model.is_encoder_decoder and not embedded:
            starts = points[:2]
        contributions = []
        # `slopes` also has those of the layers, which follow the starts.
        for slope, start in zip(slopes, starts, strict=False):
            contributions.append(slope * (start if origin is None else start - origin))
        return model.scatter_states(batch, contributions)

    def _stack_layers(self, batch: Batch, slopes: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor | None:
        """Return the contributions at the inputs of every layer [B, N, L]."""
        layers = []
        for slope, point in zip(slopes, inputs, strict=True):
            # Gemma 3n has several streams of hidden states.
            if point.ndim != 3:
                return None
            # BigBird pads its inputs to full blocks; nothing depends on that padding.
            layers.append(self.aggregate_dimensions(slope * point).detach()[:, : batch.length])
        if not layers:
            return None
        return torch.stack(layers, 1)

    @contextmanager
    def _capture_layer_inputs(self, model: ExplainedModel, keep_graph: bool) -> Iterator[list[Tensor]]:
        """Collect the inputs of the layers; with start `hidden`, the first one is cut from the graph before it."""

        def change(call: int, value: Tensor) -> Tensor:
            if value.ndim != 3 and self.start == "hidden":
                raise ExpoundError(
                    f"what enters the layers of model type {model.config.model_type!r} is not one vector per position: "
                    "use cp_lrp, or decompx_linear?start=embeddings"
                )
            first = (call == 0 or model.is_encoder_decoder) and self.start == "hidden"
            if first and not (keep_graph and value.requires_grad):
                return value.detach().requires_grad_()
            return value

        watched = get_first_layers(model.model) if model.is_encoder_decoder else get_layers(model.model)
        with intercept_inputs(watched, change) as inputs:
            yield inputs
        if not inputs:
            raise ExpoundError(
                f"the layers of {type(model.model).__name__} are not found: use gradients (input_x_gradient, "
                "integrated_gradients) or removal (occlusion)"
            )

    def _record_factors(self, model: ExplainedModel, batch: Batch) -> HeldFactors:
        """Return the factors of an ordinary pass, with their graphs."""
        factors = HeldFactors(record=True)
        with skip_unread_positions(model, batch), apply_backward_rules(model.model, factors, self.rules):
            model(batch, capture=CAPTURE)
        return factors.make_replay()
