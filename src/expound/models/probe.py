"""One example on which facts about a loaded model are measured, once, and what counts as rounding of its passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError, ModelFailedError
from expound.models.batch import PER_POSITION, Batch, require_finite_logits
from expound.models.layers.architecture import unwrap_adapter
from expound.models.layers.head_activation import HEAD_KEY
from expound.models.state import freeze_weights

MODEL_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a model raises when it is given an input that it does not take."""
LEAST, MOST = 4, 16
"""Positions of the example on which a model is checked: with fewer, first and last could be the same."""
# Many models compute norms and softmaxes in float32, whatever their type.
TOLERANCE = {8: 1e-6, 4: 1e-4, 2: 5e-2}
"""The difference that counts as rounding, as a share of the largest number, by the bytes of the model's type."""

_FOUND = WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], dict[str, Any]]]()
"""Facts by name, of each model and of the parts that it had when they were measured."""


@dataclass
class Probe:
    """One example, and the model's prediction on it, which are the same for all checks of one call."""

    model: Any
    batch: Batch

    @property
    def kind(self) -> str:
        """What facts are named by: prompts with images take another way through the model than texts."""
        return "" if self.batch.images is None else " of images"

    @cached_property
    def alone(self) -> Batch:
        """The example, see `take_example`."""
        return take_example(self.model, self.batch)

    @cached_property
    def answer(self) -> Tensor:
        """The logits of the example."""
        before = torch.get_rng_state()
        logits = require_finite_logits(self.model(self.alone).logits).double()
        # Reformer hashes positions at random, which changes the prediction on some texts only.
        if not torch.equal(before, torch.get_rng_state()):
            raise ExpoundError("it draws random numbers in every pass, so that equal texts get different predictions")
        return logits

    @cached_property
    def size(self) -> float:
        """The largest magnitude of the example's logits, or of the logits for zero embeddings: scales tolerances."""
        try:
            blank = self.model(self.alone, torch.zeros_like(self.model.embed(self.alone))).logits
        except (ExpoundError, *MODEL_ERRORS):
            return _find_largest(self.answer)
        return max(_find_largest(self.answer), _find_largest(blank))


def get_facts(model: Any) -> dict[str, Any]:
    """Return what checks found about a model with its present parts; a new head makes it another model."""
    parts = (
        model.config._attn_implementation,
        getattr(model.config, HEAD_KEY, None),
        *map(type, model.model.modules()),
    )
    return _FOUND.setdefault(model.model, {}).setdefault(parts, {})


def remember(model: Any, name: str, measure: Callable[[], Any]) -> Any:
    """Return a fact about a loaded model, measured at the first call, in evaluation mode with fixed weights."""
    with model.lock():
        facts = get_facts(model)
        if name not in facts:
            with ExitStack() as scope:
                scope.enter_context(model.evaluation_mode())
                scope.enter_context(freeze_weights(model.model))
                scope.enter_context(torch.inference_mode(False))
                scope.enter_context(torch.no_grad())
                # The tolerances are those of the model's own type.
                scope.enter_context(torch.autocast(model.device.type, enabled=False))
                facts[name] = measure()
        return facts[name]


def take_example(model: Any, batch: Batch) -> Batch:
    """Return the shortest example of at least four positions, or else the longest, without padding.

    Where the head reads one position, or their mean, the example is cut to 16 positions, and a prompt to its last 16.
    """
    lengths = batch.attended.sum(1)
    enough = lengths >= LEAST
    row = lengths.argmax()
    if enough.any():
        row = lengths.masked_fill(~enough, batch.length + 1).argmin()
    alone = batch.select([int(row)]).trim_padding()[0]
    is_decoder = model.task.is_generated and not model.is_encoder_decoder
    # The tokens of an image are not cut.
    if alone.images is not None:
        return alone
    # Without a response the pass says what is missing.
    if is_decoder and alone.response is not None and PER_POSITION.issuperset(alone.inputs):
        end = int(alone.response.sum()) + MOST
        # The positions of the whole text would not be those of its end.
        inputs = {name: values for name, values in alone.inputs.items() if name != "position_ids"}
        return replace(alone, inputs=inputs)._map_tensors(lambda values: values[:, -end:], PER_POSITION)
    if not model.has_text_head or model.modality == "image":
        return alone
    return alone._map_tensors(lambda values: values[:, :MOST], PER_POSITION)


def get_tolerance(model: Any) -> float:
    """Return the share of the largest number that counts as rounding of the model's passes."""
    # Layers of 8-bit and 4-bit weights round their inputs as well, whatever the type, and so does the mixed precision
    # that Accelerate puts into the model's forward.
    is_quantized = any(getattr(model.model, f"is_loaded_in_{bits}bit", False) for bits in (8, 4))
    if is_quantized or hasattr(model.model, "_original_forward"):
        return TOLERANCE[2]
    return TOLERANCE[model.dtype.itemsize]


def are_close(one: Tensor, other: Tensor, probe: Probe) -> bool:
    """Return whether two predictions of the probe's model differ by no more than rounding."""
    one, other = one.double(), other.double()
    if one.shape != other.shape:
        return False
    tolerance = get_tolerance(probe.model)
    # A prediction near 0 has the rounding of the larger numbers that cancel in it.
    return torch.allclose(one, other, rtol=0, atol=tolerance * _find_largest(other)) or torch.allclose(
        one, other, rtol=0, atol=tolerance * probe.size
    )


def _find_largest(values: Tensor) -> float:
    """Return the largest magnitude."""
    # Some heads give −∞ for outputs that are masked.
    return float(torch.where(values.isfinite(), values, 0).abs().max())


def find_failure(model: Any, assumption: str, probe: Probe) -> str:
    """Return why an assumption does not hold for the model; empty if it holds, or if the model is not checked.

    Args:
        model: an explained model.
        assumption: `answers`: equal texts get equal predictions, and the probability of a response token depends only
            on what precedes it; `gradients`: predictions have a gradient at the input embeddings; `readout`: the head
            reads one position, or the mean of several; `linear_rules` and `shared_rules`: every function of the model
            follows a rule, see `prove_rules`; `attention`: each layer has one attention map; `padding`: padding does
            not change predictions; `second_derivatives`: attention is an explicit softmax.
        probe: the example that is used.

    Raises:
        ModelFailedError: the model fails on the example.
    """
    if not can_be_checked(model):
        return ""

    def measure() -> str:
        try:
            failure: str = model.checks[assumption](model, probe)
            return failure
        except ModelFailedError:
            raise
        except ExpoundError as error:
            return str(error)
        except torch.cuda.OutOfMemoryError:
            raise
        except MODEL_ERRORS as error:
            # Raised, not remembered: the next call may succeed.
            advice = "take another method, or leave the checks out (check=False)"
            raise describe_failure(model, f"in the check of its {assumption}", error, advice) from error

    reason: str = remember(model, assumption + probe.kind, measure)
    return reason


def describe_failure(model: Any, when: str, error: Exception, advice: str) -> ModelFailedError:
    """Return an error that says when a model failed, the first line of its own error, and what to do."""
    name, reason = type(unwrap_adapter(model.model)).__name__, (str(error).strip() or "no message").splitlines()[0]
    return ModelFailedError(f"{name} fails {when} ({type(error).__name__}: {reason:.120}): {advice}")


def can_be_checked(model: Any) -> bool:
    """Return whether the model is to be checked, and computes in its own type, without mixed precision."""
    # Accelerate's mixed precision is inside of the model's own forward, so that predictions are rounded.
    return model.is_checked and not hasattr(model.model, "_original_forward")


def is_changed_by_padding(model: Any) -> bool:
    """Return whether padding is known to change the model's predictions."""
    return model.is_checked and bool(get_facts(model).get("padding"))


def is_exact(model: Any, shortcut: str, batch: Batch, run: Callable[[Batch], Tensor]) -> bool:
    """Return whether a shortcut gives the prediction of the plain pass, compared on one example once per loaded model.

    A shortcut may be taken only where this is true. It is measured even for models that are not to be checked, since it
    refuses no model.

    Args:
        model: an explained model.
        shortcut: its name.
        batch: what the example is taken from at the first call.
        run: a function from the example, without padding, to its logits by the shortcut, one row at least. If it
            raises, the shortcut does not fit the model.
    """

    def compare() -> bool:
        probe = Probe(model, batch)
        try:
            found = run(probe.alone)
            return are_close(found, probe.answer.expand_as(found), probe)
        except torch.cuda.OutOfMemoryError:
            raise
        except (ExpoundError, *MODEL_ERRORS):
            return False

    found: bool = remember(model, f"shortcut {shortcut}", compare)
    return found
