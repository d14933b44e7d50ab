"""The interface of all attribution methods, and what they assume about a model."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.data.registry import check_choices, parse_params, read_fields
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.registry import EXPLAINERS, explainer
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.batch import get_token_budget, pack, require_finite_logits
from expound.models.hugging_face import REMOVAL_ONLY, Probe, find_failure
from expound.models.loading.checkpoint import digest_weights
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

    def __post_init__(self) -> None:
        """Check that each option is one of the choices of its annotation."""
        check_choices(self)

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

    @cached_property
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
    def removes_input(cls) -> bool:
        """Return whether the method runs the model on perturbed inputs, whose predictions serve every target."""
        return "perturbation" in getattr(cls, "__dataclass_fields__", {})

    @classmethod
    def from_spec(cls, path: str, options: dict[str, Any], model: ExplainedModel | None = None) -> Self:
        """Return the explainer of a spec's path and parameters; raises ExpoundError as `explainer` does."""
        if path:
            return cls.from_pretrained(path).with_params(**options)
        return cls(**cls.parse_options(options))

    @classmethod
    def parse_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of a spec without a path as values of their types.

        Raises:
            ExpoundError: an unknown parameter, or a method that must be trained before it explains.
        """
        name = cls.card.name
        if cls.card.learned:
            raise ExpoundError(f"{name} must be trained before it explains: give the folder of one, as {name}:PATH")
        return parse_params(name, cls, options)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load a learned explainer from the folder it was saved in; ExpoundError for methods that are not learned."""
        raise ExpoundError(f"{cls.card.name} is not learned: it takes no path")

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


def describe_explainer(explainer: Explainer) -> dict[str, Any]:
    """Return a method's name, parameters and, for learned ones, a digest of its weights, for the record of a run."""
    weights = {"digest": digest_weights(explainer)} if isinstance(explainer, nn.Module) else {}
    return {"method": explainer.name, **explainer.params, **weights}


def resolve_unit(
    model: ExplainedModel, method: str | Explainer, unit: UnitName | None, params: dict[str, Any]
) -> tuple[Explainer, UnitName]:
    """Return the explainer for a model, and the unit of its scores; default: the method's own unit, or words.

    Methods that remove input remove units of this size; the scores of others are summed over each unit's tokens.
    """
    is_generating = model.task.is_generated
    if isinstance(method, str):
        part, path, options = EXPLAINERS.read(method)
        # A mask token means nothing to most language models, so units are deleted unless the user chooses otherwise.
        if part.removes_input() and (is_generating or model.black_box_reason):
            options = {"perturbation": "remove"} | options
        resolved = part.from_spec(path, options | params, model)
    else:
        resolved = explainer(method, **params)
    # A learned method keeps the unit that it was trained with.
    if "unit" in resolved.params and unit is not None and not resolved.card.learned:
        resolved = resolved.from_spec("", resolved.params | {"unit": unit})
    if not is_generating:
        return resolved, unit or "word"
    return resolved, unit or resolved.params.get("unit") or "word"


OF_ATTENTION = ("answers", "readout", "attention")
"""Assumptions of methods that read attention maps where the prediction is read."""
OF_DECOMPOSITION = (*OF_ATTENTION, "decomposition")
"""Assumptions of methods that follow the parts of hidden states through the layers."""
OTHERS = "use gradients (input_x_gradient, integrated_gradients) or removal (occlusion)"
OF_IMAGES = ("attention", "gradients", "control")
"""Families of methods, besides removal, whose scores of image tokens are summed by region."""
OR_INSIDE = "gradients or attention (input_x_gradient, integrated_gradients, attention_rollout)"
INSTEAD = {
    "answers": "load a causal language model, or a model of another task",
    "gradients": "use removal (occlusion?perturbation=remove)",
    "readout": OTHERS,
    "attention": f"load it with attn_implementation='eager' if it has that, or {OTHERS}",
    "decomposition": OTHERS,
    "head": f"take decompx, which leaves the head out, or {OTHERS}",
    "linear_rules": OTHERS,
    "shared_rules": OTHERS,
    "second_derivatives": "explain it inside torch.no_grad(), without a graph to the weights",
}
"""What works where an assumption is broken."""


def require_assumptions(method: Explainer, model: ExplainedModel, batch: Batch) -> None:
    """Raise ExpoundError if the model breaks one of the method's assumptions."""
    require_removal(method, model)
    # Rules follow what depends on words, and embeddings of images come later.
    reads_images = method.card.family in OF_IMAGES and not {"linear_rules", "shared_rules"}.intersection(method.assumes)
    if batch.images is not None and not method.removes_input() and not reads_images:
        raise ExpoundError(f"{method.name} is refused for prompts with images: {REMOVAL_ONLY}, or {OR_INSIDE}")
    # Checked now, because later passes run inside hooks of the method, which would see the passes of the check.
    probe = Probe(model, batch)
    find_failure(model, "padding", probe)
    needed = list(method.assumes)
    if method.needs_gradient:
        needed.append("gradients")
    if method.differentiable and torch.is_grad_enabled():
        needed.append("second_derivatives")
    for assumption in needed:
        reason = find_failure(model, assumption, probe)
        if reason:
            name = model.config.model_type
            raise ExpoundError(f"{method.name} is refused for model type {name!r}: {reason}; {INSTEAD[assumption]}")


def require_removal(method: Explainer, model: ExplainedModel) -> None:
    """Raise ExpoundError if the model gives answers only, and the method needs more than those to changed inputs."""
    needs_more = not (method.removes_input() or method.card.family == "control")
    if model.black_box_reason and needs_more:
        raise ExpoundError(f"{method.name} is refused: {model.black_box_reason}")


def find_nonfinite(scores: Tensor) -> list[int]:
    """Return the rows of scores [B, L] that contain NaN or an infinite number."""
    return (~scores.detach().isfinite()).any(1).nonzero().flatten().tolist()


def require_finite(method: Explainer, model: ExplainedModel, scores: Tensor, numbers: Sequence[int] = ()) -> None:
    """Raise ExpoundError if scores [B, L] contain NaN or an infinite number; `numbers`: indices of the examples."""
    rows = find_nonfinite(scores)
    if rows:
        first = numbers[rows[0]] if numbers else rows[0]
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        dtype = str(model.dtype).removeprefix("torch.")
        advice = "load the model in float32 (--dtype float32)" if model.dtype.itemsize < 4 else "choose another method"
        raise ExpoundError(
            f"{method.name} gives scores that are no finite numbers for example {first}{more}, in {dtype}: {advice}, "
            "or let such examples be counted and left out, with allow_nan=True (--allow-nan)"
        )
