"""The interface of all attribution methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.models import Batch, Capture, ExplainedModel, Outputs
from exegete.models.digest import weights_digest
from exegete.models.outputs import finite
from exegete.models.readout import answer_only
from exegete.models.tasks import Output


@dataclass(frozen=True, slots=True)
class Explanation:
    """The attributions of a batch by one method.

    `scores` [B, L], zero outside content; `delta` [B]: how far the scores are from adding up to what they should
    (methods with a completeness property); `layers` [B, N, L]: scores layer by layer; `bias` [B]: the part of the
    target's score that belongs to no position (methods that keep it apart); `logits`: the model's answer, where the
    method's own pass gave it.
    """

    scores: Tensor
    delta: Tensor | None = None
    layers: Tensor | None = None
    bias: Tensor | None = None
    logits: Tensor | None = None


Chosen = Callable[[Tensor | None], Tensor]
"""From the model's logits, or None where the method has none yet, to the target."""


class Explainer(ABC):
    """An attribution method with its parameters; subclasses are frozen dataclasses and registered by `card.name`.

    A method implements `scores` (or `explanation`, when it has more to say). It is called in evaluation mode, on a
    resolved target, with gradients enabled exactly when its attributions shall keep a graph to the model's weights.
    """

    card: ClassVar[MethodCard]
    output: Output | None = None
    brings_logits: ClassVar[bool] = False
    """Whether explanations bring the model's logits along, so that no other pass is needed for the prediction."""

    @property
    def name(self) -> str:
        """The id of the explainer in the registry."""
        return self.card.name

    @property
    def differentiable(self) -> bool:
        """Whether attributions keep a graph to the model's weights, so that a loss can be made of them."""
        return self.card.differentiable

    @property
    def signed(self) -> bool:
        """Whether negative scores mean evidence against the target."""
        return self.card.signed

    @property
    def params(self) -> dict[str, Any]:
        """The method's parameters by name, as plain values."""
        return {each.name: getattr(self, each.name) for each in fields(self)} if is_dataclass(self) else {}

    def passes(self, length: int) -> tuple[float, float]:
        """Forward and backward passes for an example with `length` content positions, its target given."""
        return 1.0, 0.0

    @property
    def _needs_gradient(self) -> bool:
        return self.passes(1)[1] > 0

    def attribute(self, model: ExplainedModel, batch: Batch, target: Any = None) -> Tensor:
        """Scores [B, L], zero outside content.

        Args:
            model: the model to explain; it leaves the call as it came.
            batch: B examples.
            target: what to explain, see `ExplainedModel.target`; default: the prediction.

        The scores keep a graph to the model's weights when the method is differentiable and gradients are enabled.
        """
        return self.explain(model, batch, target).scores

    def explain(self, model: ExplainedModel, batch: Batch, target: Any = None) -> Explanation:
        """Scores and what else the method has to say; see `attribute`."""
        explanation = self.explain_all_positions(model, batch, target)
        return replace(explanation, scores=explanation.scores.masked_fill(~batch.content, 0.0))

    def explain_all_positions(self, model: ExplainedModel, batch: Batch, target: Any = None) -> Explanation:
        """As `explain`, but special tokens keep what the method gives them; anything at padding.

        Explanation regularisation and its analyses look at these: there, special tokens are part of the input.
        """
        if torch.is_inference_mode_enabled() and self._needs_gradient:
            raise ExegeteError(f"{self.name} takes gradients: call it outside torch.inference_mode(), or in no_grad()")
        keep_graph = torch.is_grad_enabled() and self.differentiable

        def chosen(logits: Tensor | None) -> Tensor:
            return model.target(batch, target, None if logits is None else finite(logits))

        with model.evaluating(), torch.set_grad_enabled(keep_graph):
            return self.explanation_of(model.with_output(self.output), batch, chosen)

    def explanation_of(self, model: ExplainedModel, batch: Batch, chosen: Chosen) -> Explanation:
        """The explanation of the target that `chosen` gives; methods that answer give it the logits of their pass."""
        return self.explanation(model, batch, chosen(None))

    def explanation(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Explanation:
        """For methods that say more than scores."""
        return Explanation(self.scores(model, batch, target))

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """The method's formula: [B, L], anything outside content."""
        raise NotImplementedError(f"{type(self).__name__} implements neither scores nor explanation")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """A learned explainer from the folder it was saved in."""
        raise ExegeteError(f"{cls.card.name} is not learned: it takes no path")

    def configured(self, **given: Any) -> Self:
        """A learned explainer with parameters of inference set, as values or as text; most have none."""
        if given:
            raise ExegeteError(f"a saved {self.name} takes no parameter, got {', '.join(given)}")
        return self


@dataclass(frozen=True)
class OfOutput(Explainer):
    """A method that explains a number of the target which can be chosen.

    Args:
        output: `logit`, `log_prob` or `prob`; default: the task's own, for classes the logit (removal: the
            probability), for generated text the log-probability.
    """

    output: Output | None = field(default=None, kw_only=True)

    def score(self, model: ExplainedModel, outputs: Outputs, target: Tensor) -> Tensor:
        """The number that is explained, from one pass: [B]."""
        return model.task.with_output(self.output).score(outputs.logits, target)


class SinglePass(Explainer):
    """A method that needs one forward pass and what was captured in it.

    A training step can hand its own pass to `from_outputs`, so that guidance costs no pass of its own.
    """

    brings_logits: ClassVar[bool] = True

    @property
    def capture(self) -> Capture:
        """The quantities to capture in the forward pass."""
        return Capture()

    @property
    def on_embeddings(self) -> bool:
        """Whether the pass has to run on input embeddings given to it, because their gradient is needed."""
        return False

    @abstractmethod
    def from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """[B, L] from one pass; `keep_graph`: the scores themselves will be differentiated."""

    def explanation_from(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Explanation:
        """For methods that say more than scores; see `from_outputs`."""
        return Explanation(self.from_outputs(model, batch, outputs, target, keep_graph=keep_graph))

    def explanation_of(self, model: ExplainedModel, batch: Batch, chosen: Chosen) -> Explanation:
        """One pass of the method's own, from which the prediction is read too."""
        keep_graph = torch.is_grad_enabled()
        sloped = self.on_embeddings or self._needs_gradient
        capture = replace(
            self.capture,
            differentiable_twice=keep_graph,
            last_only=self.capture.last_only and (keep_graph or sloped),
        )
        with torch.set_grad_enabled(keep_graph or sloped):
            embeddings = embeddings_with_gradient(model, batch, keep_graph=keep_graph) if sloped else None
            with nullcontext() if capture.hidden_states else answer_only(model):
                outputs = model(batch, embeddings, capture)
            found = self.explanation_from(model, batch, outputs, chosen(outputs.logits), keep_graph=keep_graph)
        scores = found.scores if keep_graph else found.scores.detach()
        return replace(found, scores=scores, logits=outputs.logits.detach())


def embeddings_with_gradient(model: ExplainedModel, batch: Batch, *, keep_graph: bool) -> Tensor:
    """Input embeddings [B, L, d] that a gradient can be taken at; with a graph to the embedding table if wanted."""
    embeddings = model.embed(batch)
    return embeddings if keep_graph and embeddings.requires_grad else embeddings.detach().requires_grad_()


def gradient(of: Tensor, at: Tensor, *, keep_graph: bool) -> Tensor:
    """∂ Σ_b of_b / ∂ at: every example's own gradient, since examples do not see each other."""
    (result,) = torch.autograd.grad(of.sum(), at, create_graph=keep_graph)
    return result


def recorded(explainer: Explainer) -> dict[str, Any]:
    """A method for the record of a run: its name, its parameters, and a digest of its weights where it has some."""
    weights = {"digest": weights_digest(explainer)} if isinstance(explainer, nn.Module) else {}
    return {"method": explainer.name, **explainer.params, **weights}
