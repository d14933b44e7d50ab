"""The training loop: transformers' Trainer with a list of objectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainingArguments,
)

from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel
from expound.models.layers.architecture import unwrap_adapter
from expound.models.state import get_lock
from expound.objectives import Constraint, CrossEntropy, Objective
from expound.reports.progress import is_interactive
from expound.training.loop import evaluation
from expound.training.loop.constrained import FeasibleStopping, derive_feasibility
from expound.training.loop.data import Collator, OrderedSampler, shuffle_by_length, sort_longest_first, text_lengths
from expound.training.loop.options import RunOptions
from expound.training.loop.progress import EvaluationLog, Forecast, ProgressBar, SlowStepWarning
from expound.training.loop.term_trainer import TermTrainer
from expound.training.loop.training_module import TrainingModule, require_recomputable

AUXILIARY_ROWS = 200
"""Dev rows on which terms other than the task's loss are evaluated, about."""


class ObjectiveTrainer(TermTrainer):
    """Trains a model on Σ weight · objective with transformers' Trainer.

    Datasets are in canonical form. Each objective's unweighted term is logged under its name, in evaluation with the
    prefix `eval_`, along with the task's figures (see `evaluation.score`). Predictions are returned in the dataset's
    order: probabilities, values, or answers as character spans (see `evaluation.compute_predictions`).

    Args:
        model: the model to train; its Hugging Face model is changed in place and saved.
        args: the Trainer's arguments; with `train_sampling_strategy="group_by_length"` the order of batches depends
            on (seed, epoch) alone, so that resumed runs see the same batches.
        objectives: the terms of the loss.
        options: used are `masked_share` (see `mask_random_tokens`), `head_lr_multiplier` (see
            `set_head_learning_rate`), `log_gradient_norms` and early stopping.
        kwargs: further arguments of the Trainer, such as `train_dataset`, `eval_dataset`, `callbacks`.
    """

    model: Any

    def __init__(
        self,
        model: ExplainedModel,
        args: TrainingArguments,
        objectives: Sequence[Objective] = (CrossEntropy(),),
        options: RunOptions | None = None,
        **kwargs: Any,
    ) -> None:
        if args.label_smoothing_factor:
            raise ExpoundError("label smoothing is not supported: set label_smoothing_factor=0")
        if args.gradient_checkpointing:
            require_recomputable(objectives)
        options = options or RunOptions()
        if options.early_stopping_patience is not None and args.eval_strategy == "no":
            raise ExpoundError("early stopping needs evaluations: set eval_strategy to epoch or steps")
        if args.fsdp and args.world_size < 2:
            raise ExpoundError("fsdp shards a model over processes: start several, by torchrun or accelerate launch")
        args = copy(args)
        # The Trainer would drop columns by the signature of `forward`, which takes a `Batch`.
        args.remove_unused_columns = False
        # On several GPUs the Trainer would wrap the module in DataParallel, which cannot split a `Batch`.
        if args.n_gpu > 1:
            args._n_gpu = 1
        self.explained = model
        self.options = options
        self.init_terms(log_gradient_norms=self.options.log_gradient_norms)
        # Accelerate wraps the module in others: this one stays the same.
        self.module = self.make_module(model, objectives)
        kwargs = {"data_collator": Collator(model), "processing_class": model.processing_class} | kwargs
        super().__init__(self.module, args, **kwargs)
        self._save_unsharded()
        # The Trainer's own callbacks print to stdout, which belongs to the results of a command.
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar if is_interactive() else EvaluationLog)
            self.add_callback(SlowStepWarning)
            self.add_callback(Forecast)
        if self.options.early_stopping_patience is not None:
            patience, threshold = self.options.early_stopping_patience, self.options.early_stopping_threshold
            stopping = self.make_stopping_callback(patience, threshold or 0.0)
            if any(isinstance(each, Constraint) for each in self.module.objectives):
                stopping = FeasibleStopping(patience)
            self.add_callback(stopping)

    def _save_unsharded(self) -> None:
        """Save weights that are sharded over processes (FSDP) as one whole model."""
        if self.is_fsdp_enabled:
            plugin: Any = self.accelerator.state.fsdp_plugin
            plugin.set_state_dict_type("FULL_STATE_DICT")
        # Without GPUs Accelerate ignores `fsdp` silently, and each process would train a whole copy.
        elif self.args.fsdp and not self.is_fsdp_xla_enabled:
            raise ExpoundError(
                "Accelerate shards models over GPUs only, and would train whole copies here: leave fsdp out"
            )

    def make_module(self, model: ExplainedModel, objectives: Sequence[Objective]) -> TrainingModule:
        """Return the module to train; a hook for subclasses with another forward pass."""
        return TrainingModule(model, objectives, self.options.masked_share)

    def read_batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the batch that the collator made."""
        batch: Batch = inputs["batch"]
        return batch

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer, with a parameter group for the head if it has a learning rate of its own."""
        # The Trainer may call this several times; only the first call makes the optimizer.
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and self.options.head_lr_multiplier not in (None, 1):
            set_head_learning_rate(optimizer, self.explained.model, self.options.head_lr_multiplier)
        return optimizer

    @staticmethod
    def make_stopping_callback(patience: int, threshold: float) -> TrainerCallback:
        """Return a callback that stops after `patience` evaluations without an improvement of over `threshold`."""
        return EarlyStoppingCallback(patience, threshold)

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Return for every figure of an evaluation whether higher is better; subclasses add their figures."""
        figures = dict.fromkeys(("loss", *(objective.name for objective in objectives)), False)
        if any(isinstance(each, Constraint) for each in objectives):
            figures |= {"feasible": True, "feasible_cross_entropy": False}
        return figures | evaluation.HIGHER_IS_BETTER[task]

    # -- a step ------------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return Σ weight · term, and with `return_outputs` also the predictions.

        Raises:
            ExpoundError: a term is not a finite number.
        """
        batch = self.read_batch(inputs)
        outputs = model(batch, self.next_context(model))
        loss = self.sum_terms(outputs, batch, training=model.training)
        if not return_outputs:
            return loss
        return loss, {"prediction": evaluation.compute_predictions(self.explained, batch, outputs["logits"].detach())}

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, Tensor | None, None]:
        """Return the loss [] and the predictions [B, ...] of one batch."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.accelerator.autocast():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        if prediction_loss_only:
            return loss.detach(), None, None
        return loss.detach(), outputs["prediction"], None

    def _prepare_input(self, data: Any) -> Any:
        if isinstance(data, Batch):
            return data.to(self.args.device)
        return super()._prepare_input(data)

    # -- figures -----------------------------------------------------------------------------------------------------

    def evaluation_loop(self, dataloader: Any, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> Any:
        """Run the Trainer's evaluation; return the terms and the task's figures, predictions in the dataset's order."""
        self.part = 0
        self._sums.pop("evaluation", None)
        self.module.evaluation_share = min(1.0, AUXILIARY_ROWS / max(1, len(dataloader.dataset)))
        output = super().evaluation_loop(dataloader, "Evaluation", False, metric_key_prefix=metric_key_prefix)
        dataset = dataloader.dataset
        predicted = np.empty_like(output.predictions)
        # Evaluation goes from the longest example to the shortest: put the predictions back in order.
        predicted[sort_longest_first(text_lengths(dataset))] = output.predictions
        figures = self._loss_and_terms() | self.score_predictions(predicted, dataset)
        figures |= derive_feasibility(self.module.objectives, figures) | self._compute_own_metrics(predicted, dataset)
        for name, value in figures.items():
            output.metrics[f"{metric_key_prefix}_{name}"] = value
        return output._replace(predictions=predicted)

    def score_predictions(self, predicted: Any, dataset: Any) -> dict[str, float]:
        """Return the task's figures for predictions in the dataset's order; subclasses add figures."""
        return evaluation.score(self.explained.task.name, predicted, dataset)

    def _compute_own_metrics(self, predicted: Any, dataset: Any) -> dict[str, float]:
        """Return the figures of the user's `compute_metrics`, which gets probabilities or values, and the labels."""
        if self.options.compute_metrics is None:
            return {}
        labels = None
        if "label" in dataset.column_names:
            labels = np.asarray(dataset["label"][:])
        figures = self.options.compute_metrics(EvalPrediction(predictions=predicted, label_ids=labels))
        return {name.removeprefix("eval_"): value for name, value in figures.items()}

    def finalize_model(self) -> bool:
        """Change the trained model before it is saved, and return whether it changed; a hook for subclasses."""
        return False

    def evaluate_finished(self) -> dict[str, float]:
        """Return the figures of the trained model: its checkpoint's, if that was evaluated."""
        if not self.finalize_model() and self.args.load_best_model_at_end:
            for entry in self.state.log_history:
                if entry.get("step") == self.state.best_global_step and "eval_loss" in entry:
                    return {name: value for name, value in entry.items() if name.startswith("eval_")}
        return self.evaluate()

    # -- data --------------------------------------------------------------------------------------------------------

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(dataset)
        sizes = text_lengths(dataset)
        step_size = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return OrderedSampler(len(sizes), lambda: shuffle_by_length(sizes, step_size, seed, int(self.state.epoch or 0)))

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return OrderedSampler(len(eval_dataset), lambda: sort_longest_first(text_lengths(eval_dataset)))

    # -- files: the Hugging Face model is saved, and beside it the modules that objectives learned -------------------

    @contextmanager
    def _hugging_face_model(self) -> Iterator[None]:
        """Make the Trainer's methods see the Hugging Face model inside the block, not the training module."""
        module, self.model = self.model, self.explained.model
        try:
            yield
        finally:
            self.model = module

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder, prefix = Path(output_dir or self.args.output_dir), "explained.model."
        # FSDP gathers the state of the whole training module: keep the Hugging Face model's part, under its own names.
        if state_dict is not None:
            state_dict = {name.removeprefix(prefix): v for name, v in state_dict.items() if name.startswith(prefix)}
        if hasattr(self.processing_class, "backend_tokenizer"):
            # A fast tokenizer keeps the truncation and padding of its latest call, which depend on resuming.
            with get_lock(self.processing_class):
                self.processing_class.backend_tokenizer.no_truncation()
                self.processing_class.backend_tokenizer.no_padding()
        with self._hugging_face_model():
            super()._save(str(folder), state_dict)
        if self.args.should_save and hasattr(self.explained.model, "peft_config"):
            # PEFT does not save the configuration of the model itself, which tells its head and its labels.
            config = copy(self.explained.model.config)
            config.architectures = [type(unwrap_adapter(self.explained.model)).__name__]
            config.save_pretrained(folder)
        self.save_learned(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, self.model)
        elif not self._load_pretrained_weights(resume_from_checkpoint):
            with self._hugging_face_model():
                super()._load_from_checkpoint(resume_from_checkpoint, self.explained.model)
        self.load_learned(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            super()._load_best_model()
        elif not self._load_pretrained_weights(self.state.best_model_checkpoint):
            with self._hugging_face_model():
                super()._load_best_model()
        self.load_learned(self.state.best_model_checkpoint)

    def _load_pretrained_weights(self, folder: str) -> bool:
        """Load a Hugging Face model's weights; return False for models that need the Trainer's own loading."""
        model = self.explained.model
        # `save_pretrained` renames the weights of some families: a plain load would silently skip those.
        if not isinstance(model, PreTrainedModel) or self.is_deepspeed_enabled:
            return False
        saved = type(model).from_pretrained(folder, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
        return True


def set_head_learning_rate(optimizer: torch.optim.Optimizer, model: PreTrainedModel, rate: float) -> None:
    """Move the head's weights to parameter groups of their own, with `rate` times the learning rate of their group.

    The head consists of all parameters outside the model's encoder (`base_model`).

    Raises:
        ExpoundError: a rate of 0 or less, or a model without a head.
    """
    # Call this before a schedule is made: schedulers take each group's initial rate when they are created.
    if rate <= 0:
        raise ExpoundError(f"the head's learning rate is a positive multiple of the encoder's, got {rate}")
    head = set(model.parameters()) - set(unwrap_adapter(model).base_model.parameters())
    if not head:
        raise ExpoundError(f"{type(model).__name__} has no head apart from its encoder")
    for group in list(optimizer.param_groups):
        own = [weight for weight in group["params"] if weight in head]
        if own:
            group["params"] = [weight for weight in group["params"] if weight not in head]
            optimizer.add_param_group(group | {"params": own, "lr": rate * group["lr"]})
