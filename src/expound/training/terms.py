"""Explanation losses in a training loop of the user's own, or in a subclass of the user's Trainer class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from transformers import Trainer

from expound.errors import ExpoundError, check_choice
from expound.models import Batch, ExplainedModel, load
from expound.models.generation.model import GeneratingModel
from expound.models.layers.architecture import unwrap_adapter
from expound.models.observe import observe_pass, read_observed
from expound.objectives import AdaptiveObjective, CrossEntropy, Objective, StepContext, TrainingStep
from expound.training.loop.trainer import ModuleTrainer
from expound.training.loop.training_module import TrainingModule

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
MASKS = ("content_mask", "rationale_mask")


def require_supported(model: ExplainedModel) -> None:
    """Raise ExpoundError unless the model reads texts and gives a class, a value or a text."""
    if model.modality != "text" or model.task.reads_context or type(model) not in (ExplainedModel, GeneratingModel):
        raise ExpoundError(
            f"explanation terms need a model that classifies or scores texts, or a causal language model, got {model}"
        )
    if any(config.is_prompt_learning for config in getattr(model.model, "peft_config", {}).values()):
        raise ExpoundError("soft prompts add positions that no token explains: use LoRA or another adapter")
    if getattr(model.model, "_compiled_call_impl", None) is not None:
        raise ExpoundError("a compiled model hides what explanations look at: leave out model.compile()")


def read_batch(model: ExplainedModel, inputs: Mapping[str, Any], *, needs_labels: bool) -> Batch:
    """Return inputs as a batch; see `ExplanationTerms.forward`. Labels of another form than the task's are left out.

    Raises:
        ExpoundError: an input is missing, of a wrong shape or out of range.
    """
    missing = [name for name in ("input_ids", "attention_mask") if name not in inputs]
    if needs_labels and "labels" not in inputs:
        missing.append("labels")
    if missing:
        packed = ": batches are padded, not packed (padding_free=False, packing=False)" if "labels" in inputs else ""
        raise ExpoundError(f"the batch lacks {', '.join(missing)}{packed}")
    ids = inputs["input_ids"]
    for name in (*MODEL_INPUTS, *MASKS):
        if name in inputs and inputs[name].shape != ids.shape:
            raise ExpoundError(f"expected {name} of shape {list(ids.shape)}, got {list(inputs[name].shape)}")
    rows = int(getattr(model.embedding, "num_embeddings", ids.max() + 1))
    if int(ids.max()) >= rows:
        raise ExpoundError(f"input_ids go up to {int(ids.max())}, the model has {rows} tokens: use its own tokenizer")
    labels = inputs.get("labels")
    if labels is not None:
        _check_labels(model, ids, labels)
    response = None
    if model.task.is_generated:
        response, labels = _find_response(labels), None
    content = inputs.get("content_mask")
    if content is None:
        special = torch.tensor(sorted(model.special_ids), device=ids.device)
        content = inputs["attention_mask"].bool() & ~torch.isin(ids, special)
        content = content if response is None else content & ~response
    rest = {name: inputs[name] for name in MODEL_INPUTS if name in inputs and name != "input_ids"}
    batch = Batch.from_ids(ids, content=content, response=response, **rest)
    rationale = inputs.get("rationale_mask")
    if rationale is not None:
        annotated = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        batch = replace(batch, rationale_mask=rationale.bool() & batch.content, has_rationale=annotated)
    return replace(batch, labels=labels)


def _check_labels(model: ExplainedModel, ids: Tensor, labels: Tensor) -> None:
    task, shape, classes = model.task, [len(ids)], model.config.num_labels
    if task.is_generated:
        shape = list(ids.shape)
    elif not task.supports("one_target"):
        shape = [len(ids), classes]
    if list(labels.shape) != shape:
        raise ExpoundError(f"expected labels of shape {shape}, got {list(labels.shape)}")
    if task.supports("classes") and labels.is_floating_point():
        raise ExpoundError(f"expected whole numbers from 0 to {classes - 1} as labels, got {labels.dtype}")
    if task.supports("classes") and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ExpoundError(
            f"expected labels from 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}: load the model "
            "with num_labels= of the data"
        )


def _find_response(labels: Tensor | None) -> Tensor:
    """Return the positions [B, L] of the response: the positions with labels."""
    if labels is None:
        raise ExpoundError("the batch lacks labels: the response's ids, and -100 at the prompt and at padding")
    response: Tensor = labels != -100
    if response[:, 0].any():
        raise ExpoundError(
            "a response follows a prompt, and a label at the first token leaves none: set the labels of the prompt to "
            "-100 (TRL: prompt-completion data)"
        )
    if (response[:, 1:] & ~response[:, :-1]).sum(1).ne(1).any():
        raise ExpoundError("expected one response per example, its labels side by side: split chats of several turns")
    return response


class MaskCollator:
    """Pads the masks of examples to their tokens, and leaves all else to another data collator."""

    def __init__(self, collate: Callable[..., Any]) -> None:
        self.collate = collate

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> Any:
        """Return the other collator's batch, with masks [B, L] of the names in `MASKS` that all examples have.

        Raises:
            ExpoundError: a mask does not have as many entries as its example has tokens.
        """
        others, given = [], set(MASKS)
        for example in examples:
            others.append({key: value for key, value in example.items() if key not in MASKS})
            given &= example.keys()
        batch = self.collate(others)
        for name in sorted(given):
            mask = torch.zeros_like(batch["input_ids"])
            for row, example in enumerate(examples):
                ids, values = torch.as_tensor(example["input_ids"]), torch.as_tensor(example[name])
                columns = _find_columns(mask.shape[1], batch["input_ids"][row], ids)
                if columns is None or len(values) != len(ids):
                    raise ExpoundError(
                        f"expected {name} with an entry for each of the {len(ids)} input_ids of a row that is not "
                        f"truncated later, got {len(values)}"
                    )
                mask[row, columns] = values.to(mask)
            batch[name] = mask
        return batch


def _find_columns(length: int, padded: Tensor, ids: Tensor) -> slice | None:
    """Return where a row [L] of `length` has these ids, at its left or its right end; None if it does not."""
    for start in (0, length - len(ids)):
        if start >= 0 and torch.equal(padded[start : start + len(ids)], ids.to(padded)):
            return slice(start, start + len(ids))
    return None


@dataclass(frozen=True)
class TermValues:
    """The losses of one batch.

    Attributes:
        loss: [] the task's loss plus Σ weight · term; call `backward` on it.
        logits: [B, C] the model's output; for generated text [B, R, 2], the log-probability and the logit of each token
            of the response.
        terms: the unweighted value [] of each objective by name, for logging; `cross_entropy` is the task's loss.
    """

    loss: Tensor
    logits: Tensor
    terms: dict[str, Tensor]


class ExplanationTerms(nn.Module):
    """Computes the task's loss and explanation losses of a batch in one forward pass, for any PyTorch training loop.

    Example:
        explained = expound.load((model, tokenizer))
        guidance = expound.objective("rationale_alignment", explainer="attention_last", weight=10.0)
        terms = expound.ExplanationTerms(explained, [guidance])
        for inputs in loader:  # dictionaries with input_ids, attention_mask, labels and rationale_mask
            step = terms(inputs)
            step.loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The model is used in its own mode, on its own device and under the caller's autocast; its state is restored after
    the call. A call under `torch.no_grad()` is an evaluation, any other is a training step. Objectives that learn have
    parameters in `terms.parameters()`, which also has the model's parameters.

    Args:
        model: a classifier or regression model of texts, or a causal language model (task="generation"), see
            `expound.load`; also one with adapters. Of several processes each wraps the terms, not the model, in
            DistributedDataParallel.
        objectives: the terms to add to the task's loss. A `CrossEntropy` among them replaces the task's own loss.
        seed: random numbers of the objectives depend on it and on the number of the step.
        total_steps: the number of training steps, if a `Constraint` is to have a linear learning rate.

    Raises:
        ExpoundError: a model or an objective that cannot be used.
    """

    def __init__(
        self, model: ExplainedModel, objectives: Sequence[Objective], seed: int = 0, total_steps: int | None = None
    ) -> None:
        super().__init__()
        require_supported(model)
        if not any(isinstance(objective, CrossEntropy) for objective in objectives):
            objectives = (CrossEntropy(), *objectives)
        self.module = TrainingModule(model, objectives)
        self.seed, self.number, self.total_steps = seed, 0, total_steps

    @property
    def model(self) -> ExplainedModel:
        """The model that is trained."""
        return self.module.explained

    def forward(self, inputs: Mapping[str, Tensor]) -> TermValues:
        """Return the losses of a batch.

        Args:
            inputs: `input_ids` [B, L], `attention_mask` [B, L], `labels` [B] (generated text: [B, L], the ids of the
                response and -100 elsewhere), optionally `token_type_ids`, `position_ids`, `rationale_mask` [B, L] (the
                tokens that people marked) and `content_mask` [B, L] (the tokens that can carry attribution; default:
                all but padding, the tokenizer's special tokens and the response).

        Raises:
            ExpoundError: a missing or unknown input, or one of a wrong shape.
        """
        for name in inputs:
            check_choice("input", name, (*MODEL_INPUTS, *MASKS, "labels"))
        batch = read_batch(self.model, inputs, needs_labels=True)
        # Without a graph no backward pass can follow. The mode of the model does not tell: some train without dropout.
        training = torch.is_grad_enabled()
        # Gradient accumulation calls this several times per optimizer step; each call draws its own numbers.
        context = StepContext(seed=self.seed, number=self.number, training=training)
        outputs = self.module(batch, context)
        terms = {}
        for objective, value in zip(self.module.objectives, outputs["terms"].detach(), strict=True):
            terms[objective.name] = value
            # Reading values would make every step wait for the accelerator.
            if training and isinstance(objective, AdaptiveObjective):
                objective.adapt(float(_mean_over_processes(value)), self.number, self.total_steps)
        self.number += training
        return TermValues(outputs["loss"], outputs["logits"], terms)


def _mean_over_processes(value: Tensor) -> Tensor:
    if not distributed.is_initialized():
        return value
    total = value.clone()
    distributed.all_reduce(total, distributed.ReduceOp.SUM)
    return total / distributed.get_world_size()


T = TypeVar("T", bound=Trainer)
LEARNED = "expound_learned"


def with_objectives(
    trainer_class: type[T], objectives: Sequence[Objective], *, log_gradient_norms: bool = False
) -> type[T]:
    """Return a subclass of a Trainer class whose loss is the class's own loss plus Σ weight · term.

    The class computes its own loss as before, in its own pass through the model (label smoothing, class weights, an
    own `compute_loss`); the terms are computed from that same pass. Terms that perturb the input, and those with a
    `batch_fraction` below 1, run passes of their own. Each term is logged and evaluated under its name, the class's own
    loss under `task_loss`, and what objectives learn is saved with each checkpoint and restored when training resumes.

    Example:
        guidance = expound.objective("rationale_alignment", explainer="attention_last", weight=10.0)
        trainer_class = expound.with_objectives(Trainer, [guidance])
        trainer = trainer_class(model, args, train_dataset=rows, processing_class=tokenizer)  # as before
        trainer.train()

    Rows may have the columns `rationale_mask` and `content_mask`, with a number per token (see
    `ExplanationTerms.forward`); they are kept, padded, and hidden from the class. Models are those of
    `ExplanationTerms`. With `log_gradient_norms` the norm of each term's gradient is logged as `NAME_gradient_norm`, of
    the class's own loss as `task_loss_gradient_norm`; it takes a backward pass per term.

    Raises:
        ExpoundError: the class is no Trainer, or an objective is the task's own loss.
    """
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, Trainer)):
        raise ExpoundError(f"expected a class derived from transformers.Trainer, got {trainer_class!r}")
    if issubclass(trainer_class, ModuleTrainer):
        raise ExpoundError(f"{trainer_class.__name__} has objectives already: give it all of them at once")
    if any(isinstance(objective, CrossEntropy) for objective in objectives):
        raise ExpoundError(f"the task's own loss comes from {trainer_class.__name__}: leave out cross_entropy")
    members = {"added": tuple(objectives), "log_norms": log_gradient_norms, "__doc__": trainer_class.__doc__}
    name = f"{trainer_class.__name__}WithObjectives"
    return cast(type[T], type(name, (AddedTermsTrainer, trainer_class), members))


@dataclass(frozen=True)
class OwnLoss(Objective):
    """The loss that a Trainer class computes itself."""

    weight: float = 1.0
    name: ClassVar[str] = "task_loss"

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the class's loss []."""
        assert step.own_loss is not None
        return step.own_loss


class OwnLossModule(TrainingModule):
    """A model of which a Trainer class computes the first term itself, and weighs its batches."""

    def scale_by_size(self, sizes: Tensor) -> Tensor:
        """Return the factors of the terms, and 1 for the class's own loss."""
        return torch.cat([sizes.new_ones(1), super().scale_by_size(sizes)[1:]])


class AddedTermsTrainer(ModuleTrainer):
    """The part of a class made by `with_objectives` that adds terms to what the Trainer class computes."""

    added: ClassVar[tuple[Objective, ...]]
    log_norms: ClassVar[bool]
    model: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check_arguments()
        # A causal language model could also classify: here it is trained to respond.
        task = "generation" if type(unwrap_adapter(self.model)).__name__.endswith("ForCausalLM") else None
        self.explained: ExplainedModel = load((self.model, self.processing_class), task=task)
        require_supported(self.explained)
        # The Trainer itself trains and saves the Hugging Face model alone.
        self.module = OwnLossModule(self.explained, (OwnLoss(), *self.added))
        self.module.log_gradient_norms = self.log_norms
        self.module.attach(self)
        self.data_collator: Any = MaskCollator(self.data_collator)

    def _check_arguments(self) -> None:
        if self.model_init is not None:
            raise ExpoundError("terms belong to one model: pass model=, not model_init=")
        if self.args.torch_compile:
            raise ExpoundError("a compiled model hides what explanations look at: set torch_compile=False")
        # Without GPUs Accelerate ignores both arguments silently, and each process would train a whole copy.
        asked = self.args.deepspeed or self.args.fsdp
        if asked or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ExpoundError("terms on sharded weights need expound.train: start without DeepSpeed and FSDP")
        if self.args.n_gpu > 1:
            raise ExpoundError("one process cannot share a batch among GPUs here: start one for each, by torchrun")

    def read_batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the collator's inputs as a batch."""
        return read_batch(self.explained, inputs, needs_labels=False)

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the class's own loss plus the weighted terms, and with `return_outputs` also the class's outputs.

        Raises:
            ExpoundError: a term is not a finite number, or the class does not run the model on the whole batch.
        """
        batch, module, training = self.read_batch(inputs), self.module, model.training
        capture = module.request(1.0, training=training)
        keep_graph = torch.is_grad_enabled()
        own = {name: value for name, value in inputs.items() if name not in MASKS}
        with torch.set_grad_enabled(keep_graph or module.needs_gradient):
            with observe_pass(self.explained, capture) as observed:
                result = super().compute_loss(
                    model, own, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
                )
            outputs = read_observed(self.explained, batch, observed, capture)
        own_loss, parts = result, 1
        if return_outputs:
            own_loss = result[0]
        # A loss that the class has divided by the number of batches of the step is a mean again, for the logs.
        if training and self._divides_loss(num_items_in_batch):
            parts = getattr(self, "current_gradient_accumulation_steps", 1)
        # The class's autocast ended with the pass.
        with self.accelerator.autocast():
            context = module.next_context(training=training)
            terms = module.compute_terms(batch, context, outputs, own_loss * parts)
        loss = module.sum_terms(terms, batch, context) / parts
        if not keep_graph:
            loss = loss.detach()
        return (loss, result[1]) if return_outputs else loss

    def _divides_loss(self, num_items_in_batch: Any) -> bool:
        """Return whether the loss is already divided by the number of accumulated batches."""
        stated = getattr(self, "loss_is_scaled_for_ga", None)
        if stated is not None:
            return bool(stated)
        return (self.model_accepts_loss_kwargs and num_items_in_batch is not None) or self.compute_loss_func is not None

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Run the class's evaluation, and add the terms to its figures."""
        self.module.begin(self.args, self.state)
        # A data loader draws random numbers: those of training do not depend on an evaluation before it.
        with torch.random.fork_rng(enabled=self.state.global_step == 0):
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        # A class that computes no loss of a batch without labels has no terms of it, either.
        if "evaluation" in self.module.log.sums:
            for name, value in self.module.pop_evaluation().items():
                output.metrics[f"{metric_key_prefix}_{name}"] = value
        return output

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns += [name for name in MASKS if name not in self._signature_columns]

    # -- what objectives learn is a part of the model while it trains, and only then ---------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train the model and what objectives learn."""
        if not len(self.module.learned):
            return super().train(*args, **kwargs)
        # As a part of the model it is optimized, clipped, and synchronized between processes with it.
        self.model.add_module(LEARNED, self.module.learned.to(self.args.device))
        try:
            return super().train(*args, **kwargs)
        finally:
            delattr(self.model, LEARNED)

    @contextmanager
    def _without_learned(self) -> Iterator[None]:
        """Take what objectives learn out of the model inside the block."""
        learned = self.model._modules.pop(LEARNED, None)
        try:
            yield
        finally:
            if learned is not None:
                self.model.add_module(LEARNED, learned)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        with self._without_learned():
            super()._save(output_dir, state_dict)
        if self.args.should_save:
            self.module.save_learned(Path(output_dir or self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with self._without_learned():
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.module.load_learned(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        with self._without_learned():
            super()._load_best_model()
        self.module.load_learned(Path(self.state.best_model_checkpoint or ""))
