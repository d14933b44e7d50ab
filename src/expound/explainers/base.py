"""The interface of all attribution methods."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.data.registry import read_fields
from expound.errors import ExpoundError, check_choice
from expound.explainers.assumptions import require_assumptions, require_finite
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.batch import get_token_budget, pack
from expound.models.loading.digest import digest_weights
from expound.models.outputs import require_finite_logits
from expound.models.state import freeze_weights
from expound.models.tasks import OutputKind
from expound.models.windowed import WindowedModel

Aggregate = Literal["sum", "l2", "abs"]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The attributions of a batch by one method.

    Attributes:
        scores: [B, L], zero outside content.
        convergence_delta: [B], what the scores miss to sum to the change of the output, for complete methods.
        layers: [B, N, L], scores layer by layer.
        bias: [B], the part of the target's score that belongs to no position, for methods that separate it.
        logits: the model's prediction, if the method's own pass computed it.
        pairs: [B, L, L], the interaction of two positions, for methods that score pairs.
        special: [B], the sum of the scores of special tokens, which were set to zero.
    """

    scores: Tensor
    convergence_delta: Tensor | None = None
    layers: Tensor | None = None
    bias: Tensor | None = None
    logits: Tensor | None = None
    pairs: Tensor | None = None
    special: Tensor | None = None


def select_target(model: ExplainedModel, batch: Batch, target: Tensor | None, logits: Tensor) -> Tensor:
    """Return the target, or for None the prediction. Raises ExpoundError if the model predicts NaN."""
    require_finite_logits(logits)
    return model.task.predict(logits.detach(), batch) if target is None else target


class Explainer(ABC):
    """An attribution method with its parameters; subclasses are frozen dataclasses and registered by `card.name`.

    A method implements `scores`, or `compute` if several targets share passes, or the prediction is read from one.
    Both are called in evaluation mode, with gradients enabled exactly if attributions must keep a graph to the model's
    weights.
    """

    card: ClassVar[MethodCard]
    assumes: ClassVar[tuple[str, ...]] = ("answers",)
    """What must hold for a model, see `assumptions`."""
    output: OutputKind | None = None
    supports_contrasts: ClassVar[bool] = False
    """Whether the method can explain the difference of two outputs."""
    returns_logits: ClassVar[bool] = False
    """Whether explanations contain the model's logits, so that no other pass is needed for the prediction."""

    @property
    def name(self) -> str:
        """The id of the explainer in the registry."""
        return self.card.name

    @property
    def differentiable(self) -> bool:
        """Whether attributions keep a graph to the model's weights, so that they can enter a training loss."""
        return self.card.differentiable

    @property
    def signed(self) -> bool:
        """Whether negative scores mean evidence against the target."""
        return self.card.signed

    @property
    def params(self) -> dict[str, Any]:
        """The method's parameters by name, as plain values."""
        return read_fields(self)

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of forward and backward passes for an example with `length` content positions."""
        return 1.0, 0.0

    def cost(self, length: int) -> float:
        """Return the approximate cost in forward passes; one back to the input alone costs about 1.5."""
        return self.passes(length)[0] + 1.5 * self.passes(length)[1]

    @property
    def needs_gradient(self) -> bool:
        """Whether the method runs backward passes."""
        return self.passes(1)[1] > 0

    def attribute(self, model: ExplainedModel, batch: Batch, target: Any = None) -> Tensor:
        """Return scores [B, L], zero outside content.

        The scores keep a graph to the model's weights if the method is differentiable and gradients are enabled.

        Args:
            model: the model to explain; its state is restored after the call.
            batch: B examples.
            target: what to explain, see `ExplainedModel.target`; default: the prediction.

        Raises:
            ExpoundError: a score is not finite.
        """
        scores = self.explain(model, batch, target).scores
        require_finite(self, model, scores)
        return scores

    def explain(
        self, model: ExplainedModel, batch: Batch, target: Any = None, *, special_tokens: bool = False
    ) -> TokenScores:
        """Return the scores, finite or not, with all that the method computes beside them.

        `special_tokens` keeps the scores of special tokens, which are zero otherwise: explanation regularization treats
        them as part of the input. Scores of padding are then arbitrary. See `attribute` for the other arguments.

        Raises:
            ExpoundError: a pair of outputs for a method that cannot explain differences, or scores of a wrong shape.
        """
        (explanation,) = self.explain_each(model, batch, [target], special_tokens=special_tokens)
        return explanation

    def explain_each(
        self, model: ExplainedModel, batch: Batch, targets: Iterable[Any], *, special_tokens: bool = False
    ) -> list[TokenScores]:
        """Return what `explain` does for each of several targets; passes that do not depend on them are run once."""
        # Methods that remove input explain the prediction on the whole text, which is no mean of effects in windows.
        if isinstance(model, WindowedModel) and self.card.family not in ("perturbation", "search", "interactions"):
            return [self._explain_windows(model, batch, each, special_tokens=special_tokens) for each in targets]
        explanations = self._explain_targets(model, batch, targets)
        if special_tokens:
            return explanations
        is_other, found = ~batch.attended | batch.content, list[TokenScores]()
        for each in explanations:
            special = each.scores.masked_fill(is_other, 0.0).sum(1)
            found.append(replace(each, scores=each.scores.masked_fill(~batch.content, 0.0), special=special))
        return found

    @torch.no_grad()
    def attribute_each(self, model: ExplainedModel, batch: Batch, targets: Tensor) -> Tensor:
        """Return scores [T, B, L] for each of T targets [T, B, ...], zero outside content and without a graph.

        Passes and perturbed inputs that do not depend on the target are run once.
        """
        with model.cache_perturbed():
            return torch.stack([each.scores for each in self.explain_each(model, batch, targets)])

    def _explain_targets(self, model: ExplainedModel, batch: Batch, targets: Iterable[Any]) -> list[TokenScores]:
        """Return the explanation of each target, with scores outside content as the method gives them."""
        # Tensors made in inference mode can never enter autograd, unlike those made in no_grad.
        if torch.is_inference_mode_enabled() and self.needs_gradient:
            raise ExpoundError(f"{self.name} takes gradients: call it outside torch.inference_mode(), or in no_grad()")
        require_assumptions(self, model, batch)
        keep_graph = torch.is_grad_enabled() and self.differentiable
        # Fixed weights save the memory of their gradients, and leave the user's `.grad` untouched.
        weights = nullcontext() if keep_graph else freeze_weights(model.model)
        with model.evaluation_mode(), weights, torch.set_grad_enabled(keep_graph):
            resolved = [self._resolve_target(model, batch, target) for target in targets]
            explanations = self.compute(model.with_output(self.output), batch, resolved)
            for explanation in explanations:
                self._check_shape(explanation.scores, batch)
            if batch.region_of is not None and self.card.family in ("attention", "gradients"):
                summed = model.sum_by_region(batch, torch.stack([explanation.scores for explanation in explanations]))
                explanations = [replace(each, scores=own) for each, own in zip(explanations, summed, strict=True)]
        if keep_graph:
            return explanations
        return [replace(explanation, scores=explanation.scores.detach()) for explanation in explanations]

    def _resolve_target(self, model: ExplainedModel, batch: Batch, target: Any) -> Tensor | None:
        """Return a target as a tensor, or None for a prediction that `compute` reads from a pass of its own."""
        is_prediction = target is None or (isinstance(target, str) and target == "predicted")
        if is_prediction and self.returns_logits:
            return None
        resolved = model.resolve_target(batch, target)
        if model.task.is_contrast(resolved) and not self.supports_contrasts:
            raise ExpoundError(f"{self.name} does not explain a difference of outputs: give it one target, not a pair")
        return resolved

    def _explain_windows(self, model: WindowedModel, batch: Batch, target: Any, *, special_tokens: bool) -> TokenScores:
        """Explain the target in each window; a position's score is the mean over the windows that contain it."""
        with model.evaluation_mode(), torch.no_grad():
            logits = require_finite_logits(model(batch).logits)
        target = model.resolve_target(batch, target, logits)
        windows, inner = model.make_windows(batch), model.window_model
        if windows is None:
            explanation = self.explain(inner, batch, target, special_tokens=special_tokens)
            return replace(explanation, logits=logits, convergence_delta=None, pairs=None)
        explanations, numbers = [], torch.arange(len(windows.owner))
        for part in pack([windows.batch.length] * len(numbers), get_token_budget(batch.device)):
            targets, own = target[windows.owner[part]], windows.batch.select(numbers[part])
            explanations.append(self.explain(inner, own, targets, special_tokens=True))
        scores = windows.mean_scores(torch.cat([explanation.scores for explanation in explanations]))
        # Masked here, not per window: the mean needs all positions of each window.
        scores = scores if special_tokens else scores.masked_fill(~batch.content, 0.0)
        layers = [explanation.layers for explanation in explanations if explanation.layers is not None]
        return TokenScores(scores, layers=windows.mean_scores(torch.cat(layers)) if layers else None, logits=logits)

    def compute(
        self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor | None], outputs: Outputs | None = None
    ) -> list[TokenScores]:
        """Compute the explanation of each target, with scores [B, L]; scores outside content are ignored.

        Args:
            model: the model, in evaluation mode.
            batch: B examples.
            targets: resolved targets; None, the prediction, only for methods that return logits. Passes that do not
                depend on the target are run once.
            outputs: a pass that the caller has run, for methods that need one, see `SinglePass`.
        """
        found = [self.scores(model, batch, model.resolve_target(batch, target)) for target in targets]
        return [each if isinstance(each, TokenScores) else TokenScores(each) for each in found]

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor | TokenScores:
        """Compute scores [B, L], or an explanation with more than scores: the short form of `compute`, for one target.

        `target` is resolved; scores outside content are ignored.
        """
        raise TypeError(f"{type(self).__name__} defines neither scores nor compute")

    def _check_shape(self, scores: Tensor, batch: Batch) -> None:
        shape = list(scores.shape) if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        expected = list(batch.content.shape)
        if shape != expected:
            method = "scores_from_outputs" if hasattr(self, "scores_from_outputs") else "scores"
            raise ExpoundError(f"{self.name}.{method} returned {shape}, expected {expected}: a score for each position")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load a learned explainer from the folder it was saved in; ExpoundError for methods that are not learned."""
        raise ExpoundError(f"{cls.card.name} is not learned: it takes no path")

    @classmethod
    def untrained(cls, options: Mapping[str, Any], model: ExplainedModel | None = None) -> Explainer:
        """Return a learned method before any training, for a model if it is given.

        Raises:
            ExpoundError: a method that must be trained before it explains.
        """
        name = cls.card.name
        raise ExpoundError(f"{name} must be trained before it explains: give the folder of one, as {name}:PATH")

    def with_params(self, **params: Any) -> Self:
        """Return the learned explainer with these inference parameters; ExpoundError for methods without any."""
        if params:
            raise ExpoundError(f"a saved {self.name} takes no parameter, got {', '.join(params)}")
        return self


@dataclass(frozen=True)
class OutputExplainer(Explainer):
    """Base of methods whose explained output (logit, log-probability or probability) the user can choose.

    Args:
        output: `logit`, `log_prob` or `prob`; default: the task's own, for classes the logit (for methods that remove
            input: the probability), for generated text the log-probability.
    """

    output: OutputKind | None = field(default=None, kw_only=True)
    supports_contrasts: ClassVar[bool] = True

    def score(self, model: ExplainedModel, outputs: Outputs, target: Tensor) -> Tensor:
        """Return the explained output of each example from one pass: [B]."""
        return model.task.with_output(self.output).score(outputs.logits, target)


class Point(NamedTuple):
    """A point in embedding space, `at` [B, L, d], and the `direction` [B, L, d] its gradient is multiplied by."""

    at: Tensor
    direction: Tensor


@dataclass(frozen=True)
class DimensionwiseExplainer(OutputExplainer):
    """Base of methods that compute a contribution [B, L, d] of every embedding dimension, then one score per position.

    Args:
        output: see `OutputExplainer`.
        aggregate: `sum` over the dimensions, signed; `l2`, their norm; `abs`, the sum of their magnitudes.
    """

    aggregate: Aggregate = field(default="sum", kw_only=True)

    @property
    def signed(self) -> bool:
        """Whether scores have a sign: sums do, magnitudes do not."""
        return self.aggregate == "sum"

    def points(self, model: ExplainedModel, batch: Batch) -> Iterator[Point] | None:
        """Return where gradients are taken if scores are Σ_points Σ_d direction ⊙ gradient, else None."""
        return None

    def override_derivatives(self, model: ExplainedModel) -> AbstractContextManager[None]:
        """Return a context in which the model's derivatives follow the method's rules."""
        return nullcontext()

    def aggregate_dimensions(self, contributions: Tensor) -> Tensor:
        """Reduce contributions [..., d] to [...] as `aggregate` says; ExpoundError for an unknown one."""
        if self.aggregate == "sum":
            return contributions.sum(-1)
        check_choice("aggregate", self.aggregate, get_args(Aggregate))
        norms: Tensor = torch.linalg.vector_norm(contributions, ord=2 if self.aggregate == "l2" else 1, dim=-1)
        return norms


def describe_explainer(explainer: Explainer) -> dict[str, Any]:
    """Return a method's name, parameters and, for learned ones, a digest of its weights, for the record of a run."""
    weights = {"digest": digest_weights(explainer)} if isinstance(explainer, nn.Module) else {}
    return {"method": explainer.name, **explainer.params, **weights}
