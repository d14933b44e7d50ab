"""A Hugging Face model with its tokenizer or image processor: its parts, tokens, labels and input embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from typing import Any, ClassVar, Literal, Self, SupportsIndex
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.errors import ExpoundError, ModelFailedError
from expound.models.batch import PER_POSITION, Batch, require_finite_logits
from expound.models.layers.activations import HEAD_KEY
from expound.models.layers.architecture import (
    find_last_attention,
    get_embedding,
    get_first_position,
    get_part_config,
    unwrap_adapter,
)
from expound.models.state import Lock, evaluation_mode, freeze_weights, get_lock, with_lock
from expound.models.tasks import OutputKind, Task, make_task

Reference = Literal["mask", "pad", "zero"]
Baselines = Reference | tuple[int, ...]
UNLIMITED = 1 << 20
REMOVAL_ONLY = "choose a method that removes input (occlusion, lime, kernel_shap, shapley_sampling, context_cite)"


def find_equal_names(name: str, known: Sequence[str]) -> list[int]:
    """Return the indices of the known names that equal the name, else of the names that differ from it in case only."""
    for form in (str.strip, lambda text: text.strip().casefold()):
        equal = [number for number, other in enumerate(known) if form(other) == form(name)]
        if equal:
            return equal
    return []


class HuggingFaceModel(nn.Module):
    """A Hugging Face model with its tokenizer or image processor: embeddings, labels, limits, state.

    The base of `ExplainedModel`, which documents the arguments and adds the forward passes.
    """

    is_checked = True
    """Whether the model is checked against what methods assume before a method is first used."""
    is_encoder_decoder: ClassVar[bool] = False
    """Whether an encoder and a decoder share the row of a batch."""
    is_remote: ClassVar[bool] = False
    """Whether the weights are behind a server, see `CompletionsModel`."""
    black_box_reason: ClassVar[str] = ""
    """Why the model gives answers only, neither gradients nor hidden states; empty if its weights are at hand."""

    def __init__(
        self,
        model: PreTrainedModel,
        processing_class: Any = None,
        task: str | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        if (model.config.is_encoder_decoder and not self.is_encoder_decoder) or model.config.model_type == "xlnet":
            raise ExpoundError(
                f"expected an encoder or a decoder alone, and not XLNet, got {type(model).__name__}; encoder-decoders "
                "are explained in what they say (task='generation')"
            )
        inner = unwrap_adapter(model)
        if not self.black_box_reason:
            get_embedding(model)
        self.requested_max_length = check_max_length(max_length)
        self.model = model
        self.config: Any = model.config
        # Wrappers, PEFT models and other heads around the same weights have this object in common.
        self.body_config: Any = inner.base_model.config
        self.processing_class = processing_class
        self.task: Task = make_task(inner, task)
        self.modality: Literal["text", "image"] = "image" if inner.main_input_name == "pixel_values" else "text"
        # Read from the inner model: a PEFT wrapper's forward takes any argument.
        self.forward_parameters = frozenset(inspect.signature(inner.forward).parameters)

    def __repr__(self) -> str:
        names = self.labels
        shown = ", ".join(names[:6])
        if len(names) > 6:
            shown += f" and {len(names) - 6} more"
        name = self.config._name_or_path or type(self.model).__name__
        length = f"up to {self.max_length} tokens" if self.max_length < UNLIMITED else ""
        facts = (self.task.name, shown, self.config.model_type, length, str(self.device))
        return f"{type(self).__name__}({name}: {'; '.join(fact for fact in facts if fact)})"

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of the model, to which batches are moved; with offloaded weights, the one that computes."""
        if self.black_box_reason:
            return torch.device("cpu")
        place = getattr(getattr(self.embedding, "_hf_hook", None), "execution_device", None)
        if place is None:
            return next(self.embedding.parameters()).device
        return torch.device(place)

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating point type; double precision where only answers are given, to keep their digits."""
        dtype: torch.dtype = torch.float64 if self.black_box_reason else self.model.dtype
        return dtype

    @property
    def embedding(self) -> nn.Module:
        """The layer whose output is the input embeddings: word embeddings, or an image's patch embeddings."""
        layer: nn.Module = self.model.get_input_embeddings()
        return layer

    @cached_property
    def is_decoder(self) -> bool:
        """Whether attention is causal: the prediction is read at the last position, and padding goes to the left."""
        return any(getattr(module, "is_causal", False) for module in self.model.modules())

    @cached_property
    def last_attention(self) -> int:
        """The number of the attention call with which the last layer begins, see `find_last_attention`."""
        return find_last_attention(self.model)

    @cached_property
    def attention_shape(self) -> tuple[int, int]:
        """The number of layers, and of heads per layer, whose attention reaches the positions of the readout."""
        config = get_part_config(self.model)
        return config.num_hidden_layers, config.num_attention_heads

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, besides the weights, that the model's predictions depend on, as plain values."""
        return {"task": self.task.name, "max_length": self.max_length}

    def lock(self) -> Lock:
        """Return the re-entrant lock that every call takes; all objects around the same weights share it."""
        return get_lock(self.body_config)

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Set evaluation mode inside the block; afterwards every module's mode and the random state are restored."""
        with self.lock(), evaluation_mode(self.model):
            yield

    def with_max_length(self, max_length: int) -> Self:
        """Return a model that shares the weights, with another limit of tokens per text."""
        other = copy(self)
        other.requested_max_length = check_max_length(max_length)
        return other

    def without_checks(self) -> Self:
        """Return a model that shares the weights, and for which no method's assumptions are checked."""
        other = copy(self)
        other.is_checked = False
        return other

    def with_output(self, output: OutputKind | None) -> Self:
        """Return a model that shares the weights, explained in this output (logit, log_prob, prob); None: the same."""
        if output is None:
            return self
        other = copy(self)
        other.task = self.task.with_output(output)
        return other

    # -- tokens and labels -------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Any:
        """The tokenizer.

        Raises:
            ExpoundError: the model has no tokenizer, or one that does not give the characters of its tokens.
        """
        if self.processing_class is None:
            raise ExpoundError(
                "the model came without a tokenizer: save one in its folder, or pass it as processing_class"
            )
        # Slow tokenizers of transformers are asked part by part, see `encode_slowly`.
        if not (
            getattr(self.processing_class, "is_fast", False) or hasattr(self.processing_class, "prepare_for_model")
        ):
            name = type(self.processing_class).__name__
            raise ExpoundError(f"{name} is no tokenizer of transformers: give one, or token ids (Batch.from_ids)")
        return self.processing_class

    @property
    def max_length(self) -> int:
        """The most tokens of a text, special tokens included."""
        positions = getattr(self.config, "max_position_embeddings", None) or getattr(self.config, "n_positions", None)
        limit = int(positions) - self.first_position if positions else UNLIMITED
        if self.requested_max_length is not None:
            limit = min(limit, self.requested_max_length)
        return min(limit, getattr(self.processing_class, "model_max_length", limit) or limit)

    @cached_property
    def first_position(self) -> int:
        """The position id of the first position of a text."""
        return get_first_position(self.model)

    @property
    def pad_id(self) -> int:
        """The token id for padding; since padding is never attended to, 0 for models without one."""
        for source in (self.processing_class, self.config, self.config.get_text_config()):
            token = getattr(source, "pad_token_id", None)
            if token is not None:
                return int(token)
        return 0

    @property
    def mask_id(self) -> int:
        """The id of the token for a missing word: the mask token, else the unknown token, else the end-of-text token.

        Raises:
            ExpoundError: the model has no such token.
        """
        for name in ("mask_token_id", "unk_token_id", "eos_token_id"):
            for source in (self.processing_class, self.config, self.config.get_text_config()):
                token = getattr(source, name, None)
                if token is not None:
                    # Llama 3 has a list of end-of-text tokens.
                    if isinstance(token, list):
                        token = token[0]
                    return int(token)
        raise ExpoundError("the tokenizer has no mask, unknown or end-of-text token: use the reference 'zero'")

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that never carry attribution."""
        tokenizer = self.tokenizer
        special, unknown = frozenset(tokenizer.all_special_ids), tokenizer.unk_token_id
        # An unknown token is a word of the text, unless it doubles as another special token, as GPT-2's does.
        doubles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
        return special if unknown in doubles else special - {unknown}

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the model's outputs, in their order."""
        # A dict that was set by hand, or read from JSON, may have its numbers as text.
        names = {int(number): str(name) for number, name in self.config.id2label.items()}
        return tuple(names.get(number, f"LABEL_{number}") for number in range(self.config.num_labels))

    def label_id(self, label: SupportsIndex | str) -> int:
        """Return the index of a label given by index or by name (in any case, unless a name is equal).

        Raises:
            ExpoundError: the model does not have the label, or has several of this name.
        """
        if isinstance(label, str):
            found = find_equal_names(label, self.labels)
            if len(found) > 1:
                numbers = " and ".join(map(str, found))
                raise ExpoundError(f"the labels {numbers} of the model are both called {label!r}: give the number")
            if found:
                return found[0]
        elif hasattr(label, "__index__") and 0 <= index(label) < len(self.labels):
            return index(label)
        valid = ", ".join(f"{number} ({name})" for number, name in enumerate(self.labels))
        raise ExpoundError(f"the model does not know the label {label!r}. It knows: {valid}")

    # -- inputs ------------------------------------------------------------------------------------------------------

    def add_position_ids(self, batch: Batch) -> Batch:
        """Return the batch with explicit position ids where left padding would shift the model's own."""
        if "position_ids" in batch.inputs or not (self.is_decoder and "position_ids" in self.forward_parameters):
            return batch
        positions = (batch.attended.long().cumsum(1) - 1).clamp(min=0) + self.first_position
        return replace(batch, inputs=batch.inputs | {"position_ids": positions})

    @with_lock
    def embed(self, batch: Batch) -> Tensor:
        """Return the input embeddings [B, L, d], before positions are added; differentiable.

        Texts: word embeddings. Images: patch embeddings, with zeros before them (the class token has no pixels).
        """
        if self.modality == "text":
            return self._look_up(batch.inputs["input_ids"])
        patches = self._look_up(batch.inputs["pixel_values"])
        return nn.functional.pad(patches, (0, 0, batch.length - patches.shape[1], 0))

    def embed_with_gradient(self, batch: Batch, *, keep_graph: bool) -> Tensor:
        """Return input embeddings [B, L, d] that require a gradient; `keep_graph`: attached to the embedding table."""
        embeddings = self.embed(batch)
        if keep_graph and embeddings.requires_grad:
            return embeddings
        return embeddings.detach().requires_grad_()

    def _look_up(self, inputs: Tensor) -> Tensor:
        embeddings = self.embedding(inputs)
        # I-BERT's layer also returns the scale of quantized numbers, Swin's the shape of the grid of patches, and
        # SigLIP's is a convolution whose output still has height and width.
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 3:
            raise ExpoundError(f"the input embeddings of {type(self.model).__name__} are not one vector per position")
        return embeddings

    @with_lock
    def embed_reference(self, batch: Batch, kind: Baselines = "mask") -> Tensor:
        """Return the embeddings [B, L, d] of an uninformative input.

        Args:
            batch: B examples.
            kind: `mask` or `pad` replace every content position by that token and keep special tokens (images: patches
                of zero pixels); `zero` is zeros everywhere. Token ids, one for each position with special tokens, are
                embedded themselves.

        Raises:
            ExpoundError: another kind, or token ids that are not as many as an example has.
        """
        embeddings = self.embed(batch)
        if not isinstance(kind, str):
            return self._embed_ids(batch, embeddings, kind)
        if kind == "zero":
            return torch.zeros_like(embeddings)
        if kind not in ("mask", "pad"):
            raise ExpoundError(f"unknown reference {kind!r}. Valid choices: mask, pad, zero")
        if self.modality == "image":
            blank = self.embed(replace(batch, inputs={"pixel_values": torch.zeros_like(batch.inputs["pixel_values"])}))
        else:
            token = self.mask_id if kind == "mask" else self.pad_id
            blank = self.embedding(torch.tensor(token, device=batch.device)).expand_as(embeddings)
        return torch.where(batch.content[..., None], blank, embeddings)

    def _embed_ids(self, batch: Batch, embeddings: Tensor, ids: Sequence[int]) -> Tensor:
        """Return `embeddings` [B, L, d] with the embeddings of `ids` at the attended positions of every example."""
        if self.modality == "image":
            raise ExpoundError("images have no token ids: choose the baselines mask or zero")
        for length in batch.attended.sum(1).tolist():
            if length != len(ids):
                raise ExpoundError(f"expected as many baseline ids as the example has tokens, {length}, got {len(ids)}")
        rows = getattr(self.embedding, "num_embeddings", None)
        if min(ids) < 0 or (rows is not None and max(ids) >= rows):
            raise ExpoundError(f"expected baseline ids from 0 to {rows}, got {min(ids)} to {max(ids)}")
        reference = embeddings.clone()
        reference[batch.attended] = self.embedding(torch.tensor(ids, device=batch.device)).repeat(len(batch), 1)
        return reference

    def blend(self, batch: Batch, keep: Tensor, perturbation: Reference = "mask") -> Tensor:
        """Return E·keep + E_ref·(1 − keep) [B, L, d] for keep [B, L], bool or in [0, 1]; E outside `removable`."""
        embeddings = self.embed(batch)
        reference = (
            torch.zeros_like(embeddings) if perturbation == "zero" else self.embed_reference(batch, perturbation)
        )
        if keep.dtype == torch.bool:
            # Selected, not multiplied: 0·∞ would be NaN, and kept embeddings stay bit for bit the same.
            return torch.where((keep | ~batch.removable)[..., None], embeddings, reference)
        keep = torch.where(batch.removable, keep.to(embeddings.dtype), 1.0)[..., None]
        return embeddings * keep + reference * (1 - keep)


def check_max_length(max_length: int | None) -> int | None:
    """Return the length.

    Raises:
        ExpoundError: it is below 8 tokens.
    """
    if max_length is not None and max_length < 8:
        raise ExpoundError(f"expected a max_length of at least 8 tokens, got {max_length}")
    return max_length


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
