"""Explanation losses in a subclass of the user's own Trainer class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import Trainer

from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel, load
from expound.models.layers.architecture import unwrap_adapter
from expound.models.observe import observe_pass, read_observed
from expound.objectives import CrossEntropy, Objective, TrainingStep
from expound.training.inputs import MASKS, MaskCollator, read_batch, require_supported
from expound.training.loop.prepare import require_recomputable
from expound.training.loop.trainer import ObjectiveTrainer
from expound.training.loop.training_module import TrainingModule

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
    if issubclass(trainer_class, ObjectiveTrainer | AddedTermsTrainer):
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


class AddedTermsTrainer(Trainer):
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
        if self.args.gradient_checkpointing:
            require_recomputable(self.module.objectives)
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

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of one optimizer step, and tell the module of them."""
        samples, items = super().get_batch_samples(*args, **kwargs)
        self.module.begin(self.args, self.state, [self.read_batch(inputs) for inputs in samples])
        return samples, items

    def read_batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the collator's inputs as a batch."""
        return read_batch(self.explained, inputs, needs_labels=False)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, for training steps, also what the module logs."""
        super().log(logs | self.module.pop_logs() if "loss" in logs else logs, start_time)

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the class's own loss plus the weighted terms, and with `return_outputs` also the class's outputs.

        Raises:
            ExpoundError: a term is not a finite number, or the class does not run the model on the whole batch.
        """
        batch, module, training = self.read_batch(inputs), self.module, model.training
        capture, needs_embeddings = module.request(1.0, training=training)
        keep_graph = torch.is_grad_enabled()
        own = {name: value for name, value in inputs.items() if name not in MASKS}
        with torch.set_grad_enabled(keep_graph or module.needs_gradient):
            with observe_pass(
                self.explained, capture, needs_embeddings=needs_embeddings, keep_graph=keep_graph
            ) as observed:
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

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.module.log.save(output_dir, self.args)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self.module.log.load(checkpoint, self.args)
