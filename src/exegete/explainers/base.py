"""The interface of all attribution methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn

from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError, unknown
from exegete.models import Batch, Capture, ExplainedModel, Outputs
from exegete.models.loading.digest import weights_digest
from exegete.models.outputs import finite
from exegete.models.passes.preserve import weights_fixed
from exegete.models.passes.readout import answer_only
from exegete.models.tasks import Output
from exegete.models.windowed import WindowedModel

Aggregate = Literal["sum", "l2", "abs"]
TOKENS_OF_WINDOWS = 2048
"""Windows of so many tokens are explained together."""
_BACKWARD_AGAIN: ContextVar[bool] = ContextVar("exegete_backward_again", default=False)
"""Whether the pass whose gradient is taken will be gone back through once more."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The attributions of a batch by one method.

    `scores` [B, L], zero outside content; `delta` [B]: how far the scores are from adding up to what they should
    (methods with a completeness property); `layers` [B, N, L]: scores layer by layer; `bias` [B]: the part of the
    target's score that belongs to no position (methods that keep it apart); `logits`: the model's answer, where the
    method's own pass gave it; `pairs` [B, L, L]: what two positions add together (methods of interactions).
    """

    scores: Tensor
    delta: Tensor | None = None
    layers: Tensor | None = None
    bias: Tensor | None = None
    logits: Tensor | None = None
    pairs: Tensor | None = None


Chosen = Callable[[Tensor | None], Tensor]
"""From the model's logits, or None where the method has none yet, to the target."""


def given(target: Tensor) -> Chosen:
    """This target, whatever the logits are."""
    return lambda logits: target


class Explainer(ABC):
    """An attribution method with its parameters; subclasses are frozen dataclasses and registered by `card.name`.

    A method implements `scores` (or `explanation`, when it has more to say). It is called in evaluation mode, on a
    resolved target, with gradients enabled exactly when its attributions shall keep a graph to the model's weights.
    """

    card: ClassVar[MethodCard]
    output: Output | None = None
    contrasts: ClassVar[bool] = False
    """Whether it explains the difference of two outputs."""
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

        Raises:
            ExegeteError: a score that is no finite number.
        """
        scores = self.explain(model, batch, target).scores
        require_finite(self, model, scores)
        return scores

    def explain(self, model: ExplainedModel, batch: Batch, target: Any = None) -> Explanation:
        """Scores, finite or not, and what else the method has to say; see `attribute`."""
        explanation = self.explain_all_positions(model, batch, target)
        return replace(explanation, scores=explanation.scores.masked_fill(~batch.content, 0.0))

    def explain_all_positions(self, model: ExplainedModel, batch: Batch, target: Any = None) -> Explanation:
        """As `explain`, but special tokens keep what the method gives them; anything at padding.

        Explanation regularisation and its analyses look at these: there, special tokens are part of the input.
        Raises ExegeteError as `explain` does.
        """
        self._check_gradients()
        if isinstance(model, WindowedModel):
            return self._in_windows(model, batch, target)
        keep_graph = torch.is_grad_enabled() and self.differentiable

        def chosen(logits: Tensor | None) -> Tensor:
            found = model.target(batch, target, None if logits is None else finite(logits))
            if model.task.is_contrast(found) and not self.contrasts:
                raise ExegeteError(
                    f"{self.name} does not explain a difference of outputs: give it one target, not a pair"
                )
            return found

        held = nullcontext() if keep_graph else weights_fixed(model.model)
        with model.evaluating(), held, torch.set_grad_enabled(keep_graph):
            found = self.explanation_of(model.with_output(self.output), batch, chosen)
        self._check_shape(found.scores, batch)
        return found

    def _in_windows(self, model: WindowedModel, batch: Batch, target: Any) -> Explanation:
        """The target explained in each window; a position's score is the mean over the windows that hold it."""
        with model.evaluating(), torch.no_grad():
            logits = finite(model(batch).logits)
        target, windows, inner = model.target(batch, target, logits), model.windows(batch), model.of_a_window
        if windows is None:
            return replace(self.explain_all_positions(inner, batch, target), logits=logits, delta=None, pairs=None)
        parts = torch.arange(len(windows.owner)).split(max(1, TOKENS_OF_WINDOWS // windows.batch.length))
        found = [
            self.explain_all_positions(inner, windows.batch.select(part), target[windows.owner[part]]) for part in parts
        ]
        scores = windows.means(torch.cat([each.scores for each in found]))
        layers = (
            None if found[0].layers is None else torch.cat([each.layers for each in found if each.layers is not None])
        )
        return Explanation(scores, layers=None if layers is None else windows.means(layers), logits=logits)

    def explanation_of(self, model: ExplainedModel, batch: Batch, chosen: Chosen) -> Explanation:
        """The explanation of the target that `chosen` gives; methods that answer give it the logits of their pass."""
        return self.explanation(model, batch, chosen(None))

    @torch.no_grad()
    def attribute_each(self, model: ExplainedModel, batch: Batch, targets: Tensor) -> Tensor:
        """Scores [T, B, L] for each of T targets [T, B, ...], zero outside content and without a graph.

        They cost less than one by one: passes and perturbed inputs that do not depend on the target are run once.
        """
        self._check_gradients()
        if isinstance(model, WindowedModel):
            return torch.stack([self.explain(model, batch, target).scores for target in targets])
        with model.evaluating(), model.remember(), weights_fixed(model.model):
            checked = [model.target(batch, target) for target in targets]
            found = self.scores_each(model.with_output(self.output), batch, checked)
        for scores in found:
            self._check_shape(scores, batch)
        return torch.stack(found).masked_fill(~batch.content, 0.0)

    def scores_each(self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor]) -> list[Tensor]:
        """Scores [B, L] for each target."""
        return [self.explanation_of(model, batch, given(target)).scores for target in targets]

    def _check_shape(self, scores: Tensor, batch: Batch) -> None:
        got = list(scores.shape) if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        if got != (expected := list(batch.content.shape)):
            formula = "from_outputs" if isinstance(self, SinglePass) else "scores"
            raise ExegeteError(f"{self.name}.{formula} returned {got}, expected {expected}: a score for each position")

    def _check_gradients(self) -> None:
        if torch.is_inference_mode_enabled() and self._needs_gradient:
            raise ExegeteError(f"{self.name} takes gradients: call it outside torch.inference_mode(), or in no_grad()")

    def explanation(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Explanation:
        """For methods that say more than scores [B, L]."""
        return Explanation(self.scores(model, batch, target))

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """The method's formula: [B, L], anything outside content."""
        kind = type(self)
        if kind.explanation is Explainer.explanation and kind.explanation_of is Explainer.explanation_of:
            raise TypeError(f"{kind.__name__} defines neither scores nor explanation")
        return self.explanation_of(model, batch, given(target)).scores

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """A learned explainer from the folder it was saved in; ExegeteError for methods that learn nothing."""
        raise ExegeteError(f"{cls.card.name} is not learned: it takes no path")

    def configured(self, **given: Any) -> Self:
        """A learned explainer with parameters of inference set, as values or as text; most have none (ExegeteError)."""
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
    contrasts: ClassVar[bool] = True

    def score(self, model: ExplainedModel, outputs: Outputs, target: Tensor) -> Tensor:
        """The number that is explained, from one pass: [B]."""
        return model.task.with_output(self.output).score(outputs.logits, target)


class Point(NamedTuple):
    """A point in embedding space, `at` [B, L, d], and the `direction` [B, L, d] its gradient is multiplied by."""

    at: Tensor
    direction: Tensor


@dataclass(frozen=True)
class OverDimensions(OfOutput):
    """A method that finds a contribution [B, L, d] of every embedding dimension, and makes one number a position of it.

    Args:
        output: see `OfOutput`.
        aggregate: `sum` over the dimensions, signed; `l2`, their norm; `abs`, the sum of their magnitudes.
    """

    aggregate: Aggregate = field(default="sum", kw_only=True)

    @property
    def signed(self) -> bool:
        """Sums have a sign, magnitudes have none."""
        return self.aggregate == "sum"

    def points(self, model: ExplainedModel, batch: Batch) -> Iterator[Point] | None:
        """Where gradients are taken, if scores are Σ_points Σ_d direction ⊙ gradient; None where they are not."""
        return None

    def following(self, model: ExplainedModel) -> AbstractContextManager[None]:
        """Inside the block derivatives follow the method's rules."""
        return nullcontext()

    def together(self, contributions: Tensor) -> Tensor:
        """[..., d] over the dimensions: [...]."""
        return summarised(contributions, self.aggregate)


def summarised(contributions: Tensor, aggregate: Aggregate) -> Tensor:
    """The sum, norm or sum of magnitudes of contributions [..., d] over the dimensions: [...]."""
    if aggregate == "sum":
        return contributions.sum(-1)
    if aggregate not in get_args(Aggregate):
        raise unknown("aggregate", aggregate, get_args(Aggregate))
    norms: Tensor = torch.linalg.vector_norm(contributions, ord=2 if aggregate == "l2" else 1, dim=-1)
    return norms


class SinglePass(Explainer):
    """A method that needs one forward pass and what was captured in it.

    A training step can hand its own pass to `from_outputs`, so that guidance costs no pass of its own. Where gradients
    are taken, it is by `gradient`: several targets go back through one pass.
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
        """For methods that say more than scores [B, L]; see `from_outputs`."""
        return Explanation(self.from_outputs(model, batch, outputs, target, keep_graph=keep_graph))

    def explanation_of(self, model: ExplainedModel, batch: Batch, chosen: Chosen) -> Explanation:
        """One pass of the method's own, from which the prediction is read too."""
        return self._explanations(model, batch, [chosen])[0]

    def scores_each(self, model: ExplainedModel, batch: Batch, targets: Sequence[Tensor]) -> list[Tensor]:
        """Scores [B, L] for each target from one pass; where gradients are taken, a backward pass for each."""
        return [found.scores for found in self._explanations(model, batch, [given(target) for target in targets])]

    def _explanations(self, model: ExplainedModel, batch: Batch, targets: Sequence[Chosen]) -> list[Explanation]:
        keep_graph, backward = torch.is_grad_enabled(), self.on_embeddings or self._needs_gradient
        last_only = self.capture.last_only and (keep_graph or backward)
        capture = replace(self.capture, differentiable_twice=keep_graph, last_only=last_only)
        with torch.set_grad_enabled(keep_graph or backward):
            embeddings = embeddings_with_gradient(model, batch, keep_graph=keep_graph) if backward else None
            with nullcontext() if capture.hidden_states else answer_only(model):
                outputs = model(batch, embeddings, capture)
            logits, explanations = outputs.logits.detach(), []
            for left, chosen in zip(range(len(targets) - 1, -1, -1), targets, strict=True):
                token = _BACKWARD_AGAIN.set(left > 0)
                try:
                    found = self.explanation_from(model, batch, outputs, chosen(logits), keep_graph=keep_graph)
                finally:
                    _BACKWARD_AGAIN.reset(token)
                scores = found.scores if keep_graph else found.scores.detach()
                explanations.append(replace(found, scores=scores, logits=logits))
        return explanations


def embeddings_with_gradient(model: ExplainedModel, batch: Batch, *, keep_graph: bool) -> Tensor:
    """Input embeddings [B, L, d] that a gradient can be taken at; with a graph to the embedding table if wanted."""
    embeddings = model.embed(batch)
    return embeddings if keep_graph and embeddings.requires_grad else embeddings.detach().requires_grad_()


def gradient(of: Tensor, at: Tensor, *, keep_graph: bool) -> Tensor:
    """∂ Σ_b of_b / ∂ at: every example's own gradient, since examples do not see each other."""
    (result,) = gradients(of, (at,), keep_graph=keep_graph)
    return result


def gradients(of: Tensor, at: Sequence[Tensor], *, keep_graph: bool) -> tuple[Tensor, ...]:
    """As `gradient`, at several tensors."""
    again = keep_graph or _BACKWARD_AGAIN.get()
    return torch.autograd.grad(of.sum(), at, create_graph=keep_graph, retain_graph=again)


def not_finite(scores: Tensor) -> list[int]:
    """The rows of scores [B, L] with a number that is not finite."""
    return (~scores.detach().isfinite()).any(1).nonzero().flatten().tolist()


def require_finite(method: Explainer, model: ExplainedModel, scores: Tensor, numbers: Sequence[int] = ()) -> None:
    """Raises ExegeteError for scores [B, L] that hold NaN or an infinite number; `numbers`: of the examples."""
    rows = not_finite(scores)
    if rows:
        first, more = numbers[rows[0]] if numbers else rows[0], f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        raise ExegeteError(
            f"{method.name} gives scores that are no finite numbers for example {first}{more}, in "
            f"{str(model.dtype).removeprefix('torch.')}: load the model in float32 (--dtype float32), or let such "
            "examples be counted and left out, with allow_nan=True (--allow-nan)"
        )


def recorded(explainer: Explainer) -> dict[str, Any]:
    """A method for the record of a run: its name, its parameters, and a digest of its weights where it has some."""
    weights = {"digest": weights_digest(explainer)} if isinstance(explainer, nn.Module) else {}
    return {"method": explainer.name, **explainer.params, **weights}
