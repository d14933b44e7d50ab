"""The training loop: transformers' Trainer with a list of objectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from exegete.errors import ExegeteError
from exegete.explainers.learned.base import LearnedExplainer
from exegete.models import Batch, ExplainedModel
from exegete.objectives import AdaptiveObjective, CrossEntropy, Objective, StepContext
from exegete.training.loop import evaluation
from exegete.training.loop.data import Collator, OrderedSampler, shuffle_by_length, sort_longest_first, text_lengths
from exegete.training.loop.head import set_head_learning_rate
from exegete.training.loop.options import RunOptions
from exegete.training.loop.progress import ProgressBar, SlowStepWarning
from exegete.training.loop.sharding import explain_sharding_errors, require_processes, save_unsharded
from exegete.training.loop.training_module import TrainingModule, require_recomputable

LEARNED_FILE = "exegete_learned.safetensors"
SUMS_FILE = "exegete_sums.safetensors"
NORMS, LOSS = "gradient norms", "loss"
LOGGED = ("log", NORMS, LOSS)
"""Sums that are saved with a checkpoint, so that the next log of a resumed run covers the steps before it, too."""


class ObjectiveTrainer(Trainer):
    """Trains a model on Σ weight · objective with transformers' Trainer.

    Datasets are in canonical form. Each objective's unweighted term is logged under its name, in evaluation with the
    prefix `eval_`, along with the task's figures (see `evaluation.score`). Predictions are returned in the dataset's
    order: probabilities, values, or answers as character spans (see `evaluation.compute_predictions`).

    Args:
        model: the model to train; its Hugging Face model is changed in place and saved.
        args: the Trainer's arguments; with `train_sampling_strategy="group_by_length"` the order of batches depends
            on (seed, epoch) alone, so that resumed runs see the same batches.
        objectives: the terms of the loss.
        options: used are `masked_share` (see `mask_random_tokens`), `head_rate` (see `set_head_learning_rate`),
            `log_gradient_norms` and early stopping.
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
            raise ExegeteError("label smoothing is not supported: set label_smoothing_factor=0")
        if args.gradient_checkpointing:
            require_recomputable(objectives)
        options = options or RunOptions()
        if options.early_stopping_patience is not None and args.eval_strategy == "no":
            raise ExegeteError("early stopping needs evaluations: set eval_strategy to epoch or steps")
        require_processes(args)
        args = copy(args)
        # The Trainer would drop columns by the signature of `forward`, which takes a `Batch`.
        args.remove_unused_columns = False
        # On several GPUs the Trainer would wrap the module in DataParallel, which cannot split a `Batch`.
        if args.n_gpu > 1:
            args._n_gpu = 1
        self.explained = model
        self.options = options
        self.part, self.mean_sizes = 0, torch.ones(len(objectives))
        self._sums: dict[str, Tensor] = {}
        module = self.make_module(model, objectives)
        kwargs = {"data_collator": Collator(model), "processing_class": model.processing_class} | kwargs
        super().__init__(module, args, **kwargs)
        save_unsharded(self)
        # The Trainer's own callbacks print to stdout, which belongs to the results of a command.
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar)
            self.add_callback(SlowStepWarning)
        if self.options.early_stopping_patience is not None:
            patience, threshold = self.options.early_stopping_patience, self.options.early_stopping_threshold
            self.add_callback(self.make_stopping_callback(patience, threshold or 0.0))

    def make_module(self, model: ExplainedModel, objectives: Sequence[Objective]) -> TrainingModule:
        """Return the module to train; a hook for subclasses with another forward pass."""
        return TrainingModule(model, objectives, self.options.masked_share)

    @property
    def module(self) -> TrainingModule:
        """The module that is trained, without wrappers of Accelerate."""
        module: TrainingModule = self.accelerator.unwrap_model(self.model)
        return module

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer, with a parameter group for the head if it has a learning rate of its own."""
        # The Trainer may call this several times; only the first call makes the optimizer.
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and self.options.head_rate not in (None, 1):
            set_head_learning_rate(optimizer, self.explained.model, self.options.head_rate)
        return optimizer

    @staticmethod
    def make_stopping_callback(patience: int, threshold: float) -> TrainerCallback:
        """Return a callback that stops after `patience` evaluations without an improvement of over `threshold`."""
        return EarlyStoppingCallback(patience, threshold)

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Return for every figure of an evaluation whether higher is better; subclasses add their figures."""
        lower = dict.fromkeys(("loss", *(objective.name for objective in objectives)), False)
        return lower | evaluation.HIGHER_IS_BETTER[task]

    # -- a step ------------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return Σ weight · term, and with `return_outputs` also the predictions.

        Raises:
            ExegeteError: a term is not a finite number.
        """
        batch: Batch = inputs["batch"]
        training = model.training
        # The epoch is a sum of fractions: the last step of an epoch may come out a little below the whole number.
        epoch = int((self.state.epoch or 0) + 1e-6)
        context = StepContext(
            self.args.seed, self.state.global_step, self.args.process_index, self.part, training, epoch
        )
        self.part += 1
        outputs = model(batch, context)
        terms: Tensor = outputs["terms"]
        self._require_finite(terms)
        sizes = self._objective_sizes(batch).to(terms)
        weights = terms.new_tensor([objective.weight for objective in self.module.objectives])
        for purpose in ("step", "log") if training else ("evaluation",):
            self._add_to_sums(purpose, terms, sizes)
        # The Trainer averages the batches of a step with equal weights. Scaling by size makes that average equal the
        # mean over one large batch.
        if training:
            weights = weights * sizes / self.mean_sizes.clamp(min=1e-9)
        if training and self.options.log_gradient_norms:
            self._add_to_sums(NORMS, self._gradient_norms(outputs["separate_terms"], weights), torch.ones_like(sizes))
        loss = (terms * weights).sum()
        if not return_outputs:
            return loss
        return loss, {"prediction": evaluation.compute_predictions(self.explained, batch, outputs["logits"].detach())}

    def _gradient_norms(self, terms: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Return the norm of each weighted term's gradient [number of objectives]; the graphs are kept."""
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        norms = []
        for term, weight in zip(terms, weights, strict=True):
            gradients: Sequence[Tensor | None] = ()
            # A constant term, such as one without examples in this batch, has no gradient.
            if term.requires_grad:
                gradients = torch.autograd.grad(term * weight, trained, retain_graph=True, allow_unused=True)
            used = [gradient for gradient in gradients if gradient is not None]
            norms.append(torch.nn.utils.get_total_norm(used).to(weights))
        return torch.stack(norms)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of one optimizer step, and note the mean of their sizes over all processes."""
        samples, items = super().get_batch_samples(*args, **kwargs)
        self.part = 0
        self._sums.pop("step", None)
        if samples:
            sizes = (
                torch.stack([self._objective_sizes(inputs["batch"]) for inputs in samples]).mean(0).to(self.args.device)
            )
            self.mean_sizes = self.accelerator.reduce(sizes, "mean")
        return samples, items

    def _objective_sizes(self, batch: Batch) -> Tensor:
        """Return the size of the batch for each objective [number of objectives], see `Objective.size`."""
        return torch.stack([objective.size(batch) for objective in self.module.objectives])

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward and return the loss [].

        Raises:
            ExegeteError: a gradient is not finite; the weights keep their values.
        """
        with explain_sharding_errors([each.name for each in self.module.objectives]):
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        # With fp16 gradients may overflow: the scaler then skips the step by itself.
        if self.accelerator.sync_gradients and self.accelerator.scaler is None:
            gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
            if gradients and not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
                raise self._not_finite_error("the gradient is")
        if self.accelerator.sync_gradients:
            self._adapt_objectives()
        # Kept on the device: reading the loss here would make every step wait for the accelerator.
        entry = torch.stack([loss.detach(), torch.full_like(loss, self.accelerator.sync_gradients)])
        self._sums[LOSS] = self._sums.get(LOSS, torch.zeros_like(entry)) + entry
        return loss

    def _adapt_objectives(self) -> None:
        """Tell the adaptive objectives the values of their terms over the whole optimizer step."""
        objectives = self.module.objectives
        if not any(isinstance(objective, AdaptiveObjective) for objective in objectives):
            return
        values = self._pop_means("step")
        for objective in objectives:
            if isinstance(objective, AdaptiveObjective):
                objective.adapt(values[objective.name], self.state.global_step, self.state.max_steps)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, Tensor | None, None]:
        """Return the loss [] and the predictions [B, ...] of one batch."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.accelerator.autocast():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        return loss.detach(), None if prediction_loss_only else outputs["prediction"], None

    def _prepare_input(self, data: Any) -> Any:
        return data.to(self.args.device) if isinstance(data, Batch) else super()._prepare_input(data)

    def _require_finite(self, terms: Tensor) -> None:
        if not torch.isfinite(terms).all():
            names = [objective.name for objective in self.module.objectives]
            broken = [name for name, good in zip(names, torch.isfinite(terms).tolist(), strict=True) if not good]
            raise self._not_finite_error(f"{', '.join(broken)} is")

    def _not_finite_error(self, what: str) -> ExegeteError:
        return ExegeteError(
            f"{what} not a finite number at step {self.state.global_step + 1}: the run stops, its last checkpoint is "
            "good. Lower the learning rate, or train in float32"
        )

    # -- figures -----------------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate on the dev data and return the figures."""
        # An evaluation before the first step must not change the random numbers that training draws.
        with torch.random.fork_rng(enabled=self.state.global_step == 0):
            figures: dict[str, float] = super().evaluate(*args, **kwargs)
        return figures

    def evaluation_loop(self, dataloader: Any, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> Any:
        """Run the Trainer's evaluation; return the terms and the task's figures, predictions in the dataset's order."""
        self.part = 0
        self._sums.pop("evaluation", None)
        output = super().evaluation_loop(dataloader, "Evaluation", False, metric_key_prefix=metric_key_prefix)
        dataset = dataloader.dataset
        predicted = np.empty_like(output.predictions)
        # Evaluation goes from the longest example to the shortest: put the predictions back in order.
        predicted[sort_longest_first(text_lengths(dataset))] = output.predictions
        figures = self._loss_and_terms() | self.score_predictions(predicted, dataset)
        figures |= self.derive_figures(figures)
        named = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        return output._replace(predictions=predicted, metrics=output.metrics | named)

    def _loss_and_terms(self) -> dict[str, float]:
        """Return the loss and the terms as means over the last evaluation."""
        terms = self._pop_means("evaluation")
        return {"loss": sum(objective.weight * terms[objective.name] for objective in self.module.objectives)} | terms

    def score_predictions(self, predicted: Any, dataset: Any) -> dict[str, float]:
        """Return the task's figures for predictions in the dataset's order; subclasses add figures."""
        return evaluation.score(self.explained.task.name, predicted, dataset)

    def finalize_model(self) -> None:
        """Change the trained model before it is evaluated and saved; a hook for subclasses."""

    def derive_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return further figures, derived from those of an evaluation; a hook for subclasses."""
        return {}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the loss, the objectives' terms and the values of adaptive objectives since the last log."""
        if LOSS in logs:
            # The Trainer's own loss leaves out the steps before a resumed run's checkpoint; this sum is saved with it.
            loss, steps = self.accelerator.reduce(self._sums.pop(LOSS), "sum").tolist()
            norms = {f"{name}_gradient_norm": value for name, value in self._pop_means(NORMS).items()}
            logs = logs | {LOSS: loss / steps} | self._pop_means("log") | norms
            for objective in self.module.objectives:
                if isinstance(objective, AdaptiveObjective):
                    logs |= objective.logged_values
        super().log(logs, start_time)

    def _add_to_sums(self, purpose: str, terms: Tensor, sizes: Tensor) -> None:
        """Add to the sums [2, number of objectives] of terms times sizes, and of sizes."""
        summed = torch.stack([terms.detach() * sizes, sizes])
        self._sums[purpose] = self._sums.get(purpose, torch.zeros_like(summed)) + summed

    def _pop_means(self, purpose: str) -> dict[str, float]:
        """Return each objective's mean since the last call, over all processes; 0 for an objective of size 0."""
        if purpose not in self._sums:
            return {}
        sums, sizes = self.accelerator.reduce(self._sums.pop(purpose), "sum")
        means = (sums / sizes.clamp(min=1e-9)).tolist()
        return {each.name: mean for each, mean in zip(self.module.objectives, means, strict=True)}

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

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the optimizer, the schedule and the sums since the last log."""
        super()._save_optimizer_and_scheduler(output_dir)
        sums = {name: self.accelerator.reduce(self._sums[name], "sum") for name in LOGGED if name in self._sums}
        if sums and self.args.should_save:
            save_file(sums, Path(output_dir) / SUMS_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / SUMS_FILE).is_file():
            for name, sums in load_file(Path(checkpoint) / SUMS_FILE).items():
                # The saved sums are over all processes; they must enter the next sum once.
                self._sums[name] = sums.to(self.args.device) * (self.args.process_index == 0)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder, prefix = Path(output_dir or self.args.output_dir), "explained.model."
        # FSDP gathers the state of the whole training module: keep the Hugging Face model's part, under its own names.
        if state_dict is not None:
            state_dict = {name.removeprefix(prefix): v for name, v in state_dict.items() if name.startswith(prefix)}
        learned = self.module.learned.state_dict()
        with self._hugging_face_model():
            super()._save(str(folder), state_dict)
        if learned and self.args.should_save:
            save_file({name: value.contiguous() for name, value in learned.items()}, folder / LEARNED_FILE)
            for module in self.module.learned.modules():
                if isinstance(module, LearnedExplainer):
                    module.save_pretrained(folder / module.name)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, self.model)
        elif not self._load_pretrained_weights(resume_from_checkpoint):
            with self._hugging_face_model():
                super()._load_from_checkpoint(resume_from_checkpoint, self.explained.model)
        self._load_learned(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            super()._load_best_model()
        elif not self._load_pretrained_weights(self.state.best_model_checkpoint):
            with self._hugging_face_model():
                super()._load_best_model()
        self._load_learned(self.state.best_model_checkpoint)

    def _load_pretrained_weights(self, folder: str) -> bool:
        """Load a Hugging Face model's weights; return False for models that need the Trainer's own loading."""
        model = self.explained.model
        # `save_pretrained` renames the weights of some families: a plain load would silently skip those.
        if not isinstance(model, PreTrainedModel) or self.is_deepspeed_enabled:
            return False
        saved = type(model).from_pretrained(folder, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
        return True

    def _load_learned(self, folder: str) -> None:
        if len(self.module.learned):
            self.module.learned.load_state_dict(load_file(Path(folder) / LEARNED_FILE))
