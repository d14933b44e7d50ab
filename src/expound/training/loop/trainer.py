"""The training loop: transformers' Trainer with a module that computes its own loss, and its execution in a folder."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer import TRAINING_ARGS_NAME

from expound.data.hub import push
from expound.data.provenance import write_json
from expound.errors import ExpoundError, Stopped
from expound.models import Batch, ExplainedModel
from expound.models.encoding import encode as encoding
from expound.models.layers.architecture import unwrap_adapter
from expound.objectives import Constraint
from expound.reports.hub_card import format_hub_card
from expound.reports.text import is_interactive
from expound.training.loop.callbacks import (
    EvaluationLog,
    FeasibleStopping,
    Forecast,
    ProgressBar,
    SlowStepWarning,
    StopAfterStep,
)
from expound.training.loop.data import OrderedSampler, log_once, shuffle_by_length, sort_longest_first, text_lengths
from expound.training.loop.options import RunOptions
from expound.training.loop.run import HISTORY, TrainingRun, read_final_step
from expound.training.loop.training_module import TrainingModule, derive_feasibility

logger = logging.getLogger(__name__)

AUXILIARY_ROWS = 200
"""Dev rows on which terms other than the task's loss are evaluated, about."""
SHARDING_ERRORS = re.compile("DTensor|setStorage")
"""Words in torch's errors about weights that are sharded over processes."""


class ModuleTrainer(Trainer):
    """A Trainer that tells a `TrainingModule` of its steps, and logs and saves what the module notes."""

    module: TrainingModule

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of one optimizer step, and tell the module of them."""
        samples, items = super().get_batch_samples(*args, **kwargs)
        self.module.begin(self.args, self.state, [self.read_batch(inputs) for inputs in samples])
        return samples, items

    def read_batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the collator's inputs as a batch."""
        batch: Batch = inputs["batch"]
        return batch

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, for training steps, also what the module logs."""
        super().log(logs | self.module.pop_logs() if "loss" in logs else logs, start_time)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.module.log.save(output_dir, self.args)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self.module.log.load(checkpoint, self.args)


class ObjectiveTrainer(ModuleTrainer):
    """Trains a `TrainingModule` on Σ weight · objective with transformers' Trainer.

    Datasets are in canonical form. Each objective's unweighted term is logged under its name, in evaluation with the
    prefix `eval_`, along with the module's figures (see `evaluation.score`). Predictions are returned in the dataset's
    order: probabilities, values, or answers as character spans (see `evaluation.compute_predictions`).

    With `gamma` in `lr_scheduler_kwargs` the learning rate is multiplied by it after every `epochs` epochs, from its
    peak after the warm-up.

    Args:
        module: the model to train with the terms of its loss.
        args: the Trainer's arguments; with `train_sampling_strategy="group_by_length"` the order of batches depends
            on (seed, epoch) alone, so that resumed runs see the same batches.
        options: used are `head_lr_multiplier` (see `set_head_learning_rate`), `log_gradient_norms`, `compute_metrics`
            and early stopping.
        kwargs: further arguments of the Trainer, such as `train_dataset`, `eval_dataset`, `callbacks`.
    """

    lr_scheduler: Any

    def __init__(
        self, module: TrainingModule, args: TrainingArguments, options: RunOptions | None = None, **kwargs: Any
    ) -> None:
        if args.label_smoothing_factor:
            raise ExpoundError("label smoothing is not supported: set label_smoothing_factor=0")
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
        # Accelerate wraps the module in others: this one stays the same.
        self.module, self.options = module, options
        module.log_gradient_norms = options.log_gradient_norms
        collator, processor = module.make_collator(), module.explained.processing_class
        super().__init__(module, args, **({"data_collator": collator, "processing_class": processor} | kwargs))
        self._save_unsharded()
        module.attach(self)
        # The Trainer's own callbacks print to stdout, which belongs to the results of a command.
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar if is_interactive() else EvaluationLog)
            self.add_callback(SlowStepWarning)
            self.add_callback(Forecast)
        if options.early_stopping_patience is not None:
            patience, threshold = options.early_stopping_patience, options.early_stopping_threshold
            stopping: TrainerCallback = EarlyStoppingCallback(patience, threshold or 0.0)
            if any(isinstance(each, Constraint) for each in module.objectives):
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

    # -- a step ------------------------------------------------------------------------------------------------------

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer, with parameter groups for the head and for learned parameters with their own rates."""
        # The Trainer may call this several times; only the first call makes the optimizer.
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new and self.options.head_lr_multiplier not in (None, 1):
            set_head_learning_rate(optimizer, self.module.explained.model, self.options.head_lr_multiplier)
        if is_new:
            set_learned_rates(optimizer, self.module, self.args.learning_rate)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule: steps down every few epochs if `gamma` is given, else the Trainer's."""
        steps = dict(self.args.lr_scheduler_kwargs or {})
        if "gamma" not in steps:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            step_size = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            # IvRA decays every two epochs; the schedule counts optimizer steps.
            every = steps.get("epochs", 2) * math.ceil(len(self.train_dataset) / step_size)
            gamma = float(steps["gamma"])
            rising = self.args.get_warmup_steps(num_training_steps)

            def factor(step: int) -> float:
                return float((step / rising if step < rising else 1.0) * gamma ** (step // every))

            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
            # With this flag the Trainer makes a new schedule for each call of `train`, as for its own ones.
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run forward and backward and return the loss [].

        Raises:
            ExpoundError: a term that does not work on sharded weights.
        """
        try:
            loss: Tensor = super().training_step(*args, **kwargs)
        except RuntimeError as error:
            if not SHARDING_ERRORS.search(str(error)):
                raise
            names = ", ".join(objective.name for objective in self.module.objectives)
            raise ExpoundError(
                f"a term among {names} reads weights, runs parts of the model or differentiates twice, which sharded "
                "weights do not allow: train without fsdp, or with terms that use the step's own pass only"
            ) from error
        return loss

    # -- figures -----------------------------------------------------------------------------------------------------

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, Tensor, None]:
        """Return the loss [] and the module's predictions [B, ...] of one batch."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            outputs = model(**inputs)
            return outputs["loss"].detach(), self.module.predict(inputs["batch"], outputs), None

    def evaluation_loop(self, dataloader: Any, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> Any:
        """Run the Trainer's evaluation; return the terms and the task's figures, predictions in the dataset's order."""
        module, dataset = self.module, dataloader.dataset
        module.begin(self.args, self.state)
        module.evaluation_share = min(1.0, AUXILIARY_ROWS / max(1, len(dataset)))
        # A data loader draws random numbers: those of training do not depend on an evaluation before it.
        with torch.random.fork_rng(enabled=self.state.global_step == 0):
            output = super().evaluation_loop(dataloader, "Evaluation", False, metric_key_prefix=metric_key_prefix)
            predicted = np.empty_like(output.predictions)
            # Evaluation goes from the longest example to the shortest: put the predictions back in order.
            predicted[sort_longest_first(text_lengths(dataset))] = output.predictions
            figures = module.pop_evaluation()
            figures |= derive_feasibility(module.objectives, figures)
            with self.accelerator.autocast():
                figures |= module.score(predicted, dataset, self.args.eval_batch_size)
        figures |= self._compute_own_metrics(predicted, dataset)
        for name, value in figures.items():
            output.metrics[f"{metric_key_prefix}_{name}"] = value
        return output._replace(predictions=predicted)

    def _compute_own_metrics(self, predicted: Any, dataset: Any) -> dict[str, float]:
        """Return the figures of the user's `compute_metrics`, which gets probabilities or values, and the labels."""
        if self.options.compute_metrics is None:
            return {}
        labels = None
        if "label" in dataset.column_names:
            labels = np.asarray(dataset["label"][:])
        figures = self.options.compute_metrics(EvalPrediction(predictions=predicted, label_ids=labels))
        return {name.removeprefix("eval_"): value for name, value in figures.items()}

    def evaluate_finished(self) -> dict[str, float]:
        """Return the figures of the trained model: its checkpoint's, if that was evaluated."""
        if not self.module.finalize() and self.args.load_best_model_at_end:
            for entry in self.state.log_history:
                if entry.get("step") == self.state.best_global_step and "eval_loss" in entry:
                    return {name: value for name, value in entry.items() if name.startswith("eval_")}
        figures: dict[str, float] = self.evaluate()
        return figures

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

    # -- files: the module saves and loads its own -------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            self.module.save(folder, state_dict)
            torch.save(self.args, folder / TRAINING_ARGS_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, self.model)
            self.module.load_learned(Path(resume_from_checkpoint))
        else:
            self.module.load(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        folder = Path(self.state.best_model_checkpoint or "")
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_best_model()
            self.module.load_learned(folder)
        else:
            self.module.load(folder)


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


def set_learned_rates(optimizer: torch.optim.Optimizer, module: TrainingModule, rate: float) -> None:
    """Move what objectives with an `lr_multiplier` learn to groups with that multiple of a rate, and without decay."""
    for objective in module.objectives:
        if objective.lr_multiplier is None or objective.name not in module.learned:
            continue
        own = [weight for weight in module.learned[objective.name].parameters() if weight.requires_grad]
        if own:
            # A set finds tensors by identity: `in` a list would compare them by value.
            learned = set(own)
            for group in optimizer.param_groups:
                group["params"] = [weight for weight in group["params"] if weight not in learned]
            optimizer.add_param_group({"params": own, "lr": rate * objective.lr_multiplier, "weight_decay": 0.0})


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run: the best model and its figures.

    `model`: the best model, in evaluation mode, as saved in `output_dir`. `metrics`: its figures on the dev split.
    `finished`: False after a stop by a signal; the same call resumes the run. `reused`: whether the run was finished
    before this call.
    """

    output_dir: Path
    model: ExplainedModel
    metrics: Mapping[str, Any]
    steps: int = 0
    seconds: float = 0.0
    finished: bool = True
    reused: bool = False
    signal: int | None = None

    def require_finished(self, training: str) -> None:
        """Raise Stopped if a signal stopped the run; `training` names it in the message."""
        if not self.finished:
            raise Stopped(f"{training} was stopped: the same call resumes it", self.signal)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Everything that a finished run logged, in order; infinite numbers are None."""
        history: list[dict[str, Any]] = json.loads((self.output_dir / HISTORY).read_text(encoding="utf-8"))["history"]
        return history

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Push the folder, with a model card, to a repository of the hub and return its URL. See `expound push`."""
        return push(self.output_dir, repo_id, format_hub_card(self.output_dir, repo_id), private=private, token=token)


def execute(
    run: TrainingRun,
    args: TrainingArguments,
    options: RunOptions,
    make_module: Callable[[], TrainingModule],
    data: tuple[Dataset, Dataset],
    load_finished: Callable[[], ExplainedModel],
) -> TrainResult:
    """Train to the end or to a signal; a finished run of the same configuration is not repeated.

    Args:
        run: the folder and the configuration that the outcome depends on.
        args: the Trainer's arguments.
        options: the options of the trainer, and whether to resume or to replace what the folder holds.
        make_module: makes the module to train; called before the first step.
        data: the data to train on, and the data to evaluate on.
        load_finished: loads the model of a run that was finished before.
    """
    metrics = run.finished_metrics() if options.resume and not options.overwrite else None
    if metrics is not None:
        logger.warning("%s holds the finished run of this configuration: nothing to do", run.folder)
        return TrainResult(run.folder, load_finished(), metrics, reused=True)
    stop = StopAfterStep()
    with run.writing(writes=args.should_save):
        # The main process clears the folder before the others look for a checkpoint in it.
        with args.main_process_first(local=False):
            checkpoint = run.begin(resume=options.resume, overwrite=options.overwrite, writes=args.should_save)
        callbacks = [stop, *options.callbacks]
        trainer = ObjectiveTrainer(
            make_module(), args, options, train_dataset=data[0], eval_dataset=data[1], callbacks=callbacks
        )
        return _train_and_save(trainer, run, checkpoint, stop)


def _train_and_save(
    trainer: ObjectiveTrainer, run: TrainingRun, checkpoint: Path | None, stop: StopAfterStep
) -> TrainResult:
    started, model = time.monotonic(), trainer.module.explained
    with log_once(encoding.__name__):
        with stop.listening():
            _train(trainer, checkpoint)
        model.eval()
        steps = trainer.state.global_step
        if stop.stopped and steps < trainer.state.max_steps:
            seconds = time.monotonic() - started
            return TrainResult(run.folder, model, {}, steps, seconds, finished=False, signal=stop.signal)
        figures = trainer.evaluate_finished()
    seconds = time.monotonic() - started
    metrics = {}
    for name, value in figures.items():
        # The others are about the machine, as the seconds of the evaluation.
        if name.startswith("eval_") and not name.endswith(("_runtime", "_per_second", "_preparation_time")):
            metrics[name.removeprefix("eval_")] = value
    staging = run.empty_staging_folder()
    trainer.save_model(str(staging))
    if trainer.args.should_save:
        # The Trainer's summary covers its last call only, which may have begun at a checkpoint.
        history = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
        write_json(staging / HISTORY, {"history": history})
        run.finish(staging, metrics)
    return TrainResult(run.folder, model, metrics, steps, seconds)


def _train(trainer: ObjectiveTrainer, checkpoint: Path | None) -> None:
    """Train to the end, from a checkpoint if there is one."""
    if checkpoint is None:
        trainer.train()
        return
    original_args, final_step = trainer.args, read_final_step(checkpoint)
    trainer.args = copy(original_args)
    trainer.args.eval_on_start = False
    # If early stopping ended the training with this checkpoint, no step may follow. The Trainer would take one, since
    # it clears the restored stop flag when training begins.
    if final_step is not None:
        trainer.args.max_steps = final_step
    trainer.train(resume_from_checkpoint=str(checkpoint))
    trainer.args = original_args
