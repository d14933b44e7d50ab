"""The loop: transformers' Trainer with a list of objectives."""

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
from exegete.training.loop.training_module import TrainingModule

LEARNED_FILE = "exegete_learned.safetensors"
SUMS_FILE = "exegete_sums.safetensors"
NORMS, LOSS = "gradient norms", "loss"
LOGGED = ("log", NORMS, LOSS)


class ObjectiveTrainer(Trainer):
    """Trains a model on Σ weight · objective, with everything that transformers' Trainer brings.

    Datasets are in canonical form. Each objective's unweighted term is logged under its name, in evaluation with the
    prefix `eval_`, beside the task's own figures (see `evaluation.score`). Predictions come back in the dataset's
    order: probabilities, values, or answers as characters (see `evaluation.compute_predictions`).

    Args:
        model: what is trained; its Hugging Face model is changed in place and is what gets saved.
        args: the Trainer's arguments; `train_sampling_strategy="group_by_length"` is an order of our own, which
            depends on (seed, epoch) alone, so that resumed runs see the same batches.
        objectives: the terms of the loss.
        options: used are `masked_share` (see `mask_random_tokens`), `head_rate` (see `set_head_learning_rate`),
            `log_gradient_norms` and early stopping count here.
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
            _require_recomputable(objectives)
        options = options or RunOptions()
        if options.early_stopping_patience is not None and args.eval_strategy == "no":
            raise ExegeteError("without evaluations nothing stops early: set eval_strategy to epoch or steps")
        require_processes(args)
        args = copy(args)
        args.remove_unused_columns = False
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
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar)
            self.add_callback(SlowStepWarning)
        if self.options.early_stopping_patience is not None:
            patience, threshold = self.options.early_stopping_patience, self.options.early_stopping_threshold
            self.add_callback(self.make_stopping_callback(patience, threshold or 0.0))

    def make_module(self, model: ExplainedModel, objectives: Sequence[Objective]) -> TrainingModule:
        """The module that is trained; for subclasses whose steps are of another kind."""
        return TrainingModule(model, objectives, self.options.masked_share)

    @property
    def module(self) -> TrainingModule:
        """The module that is trained, without wrappers of Accelerate."""
        module: TrainingModule = self.accelerator.unwrap_model(self.model)
        return module

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """The Trainer's, with the head's weights apart where they have a learning rate of their own."""
        made = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if made and self.options.head_rate not in (None, 1):
            set_head_learning_rate(optimizer, self.explained.model, self.options.head_rate)
        return optimizer

    @staticmethod
    def make_stopping_callback(patience: int, threshold: float) -> TrainerCallback:
        """A callback that stops after `patience` evaluations without an improvement of more than `threshold`."""
        return EarlyStoppingCallback(patience, threshold)

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Whether higher is better, of every figure of an evaluation; for subclasses that have more of them."""
        lower = dict.fromkeys(("loss", *(objective.name for objective in objectives)), False)
        return lower | evaluation.HIGHER_IS_BETTER[task]

    # -- a step ------------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Σ weight · term; with `return_outputs` also the predictions.

        Raises:
            ExegeteError: a term is not a finite number.
        """
        batch: Batch = inputs["batch"]
        training = model.training
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
        weights = weights * (sizes / self.mean_sizes.clamp(min=1e-9) if training else 1)
        if training and self.options.log_gradient_norms:
            self._add_to_sums(NORMS, self._gradient_norms(outputs["separate_terms"], weights), torch.ones_like(sizes))
        loss = (terms * weights).sum()
        if not return_outputs:
            return loss
        return loss, {"prediction": evaluation.compute_predictions(self.explained, batch, outputs["logits"].detach())}

    def _gradient_norms(self, terms: Sequence[Tensor], weights: Tensor) -> Tensor:
        """[number of objectives] Each weighted term's gradient in all that is trained, as its norm; graphs are kept."""
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        norms = []
        for term, weight in zip(terms, weights, strict=True):
            loss = [term * weight] if term.requires_grad else []
            slopes = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True) if loss else ()
            found = [slope for slope in slopes if slope is not None]
            norms.append(torch.nn.utils.get_total_norm(found).to(weights))
        return torch.stack(norms)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The batches of one optimizer step; a smaller one among them, in any process, gets a smaller share of it."""
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
        """[number of objectives], see `Objective.size`."""
        return torch.stack([objective.size(batch) for objective in self.module.objectives])

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward, the loss []; weights are never stepped along a gradient that is not finite."""
        with explain_sharding_errors([each.name for each in self.module.objectives]):
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients and self.accelerator.scaler is None:
            gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
            if gradients and not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
                raise self._not_finite_error("the gradient is")
        if self.accelerator.sync_gradients:
            self._adapt_objectives()
        counted = torch.stack([loss.detach(), torch.full_like(loss, self.accelerator.sync_gradients)])
        self._sums[LOSS] = self._sums.get(LOSS, torch.zeros_like(counted)) + counted
        return loss

    def _adapt_objectives(self) -> None:
        """Tells the adaptive objectives what their terms were over the whole step."""
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
        """Loss [] and predictions of one batch, [B, ...]."""
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
        """The Trainer's; before the first step it changes no draw of the training."""
        with torch.random.fork_rng(enabled=self.state.global_step == 0):
            figures: dict[str, float] = super().evaluate(*args, **kwargs)
        return figures

    def evaluation_loop(self, dataloader: Any, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> Any:
        """The Trainer's, with the objectives' terms and the task's figures; predictions in the dataset's order."""
        self.part = 0
        self._sums.pop("evaluation", None)
        output = super().evaluation_loop(dataloader, "Evaluation", False, metric_key_prefix=metric_key_prefix)
        dataset = dataloader.dataset
        predicted = np.empty_like(output.predictions)
        predicted[sort_longest_first(text_lengths(dataset))] = output.predictions
        figures = self._loss_and_terms() | self.score_predictions(predicted, dataset)
        figures |= self.derive_figures(figures)
        named = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        return output._replace(predictions=predicted, metrics=output.metrics | named)

    def _loss_and_terms(self) -> dict[str, float]:
        """Means over the evaluation that has just run."""
        terms = self._pop_means("evaluation")
        return {"loss": sum(objective.weight * terms[objective.name] for objective in self.module.objectives)} | terms

    def score_predictions(self, predicted: Any, dataset: Any) -> dict[str, float]:
        """The task's figures of predictions in the dataset's order; for subclasses to add to."""
        return evaluation.score(self.explained.task.name, predicted, dataset)

    def finalize_model(self) -> None:
        """Final changes to the trained model before it is evaluated and saved; for subclasses."""

    def derive_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Further figures of an evaluation, made of its figures; for subclasses."""
        return {}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the objectives' terms since the last log, and what adaptive ones have to say.

        The loss is that of all steps since the last log, also of those before a stop.
        """
        if LOSS in logs:
            loss, steps = self.accelerator.reduce(self._sums.pop(LOSS), "sum").tolist()
            adaptive = [objective for objective in self.module.objectives if isinstance(objective, AdaptiveObjective)]
            norms = {f"{name}_gradient_norm": value for name, value in self._pop_means(NORMS).items()}
            logs = (
                logs
                | {LOSS: loss / steps}
                | self._pop_means("log")
                | norms
                | {n: v for each in adaptive for n, v in each.logged_values.items()}
            )
        super().log(logs, start_time)

    def _add_to_sums(self, purpose: str, terms: Tensor, sizes: Tensor) -> None:
        """Adds to the sums [2, number of objectives] of terms times sizes, and of sizes."""
        summed = torch.stack([terms.detach() * sizes, sizes])
        self._sums[purpose] = self._sums.get(purpose, torch.zeros_like(summed)) + summed

    def _pop_means(self, purpose: str) -> dict[str, float]:
        """Each objective's mean since the last call, over all processes; 0 where there was nothing to average."""
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
        together = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return OrderedSampler(len(sizes), lambda: shuffle_by_length(sizes, together, seed, int(self.state.epoch or 0)))

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return OrderedSampler(len(eval_dataset), lambda: sort_longest_first(text_lengths(eval_dataset)))

    # -- files: what is saved is the Hugging Face model, and what objectives learned beside it -----------------------

    @contextmanager
    def _hugging_face_model(self) -> Iterator[None]:
        module, self.model = self.model, self.explained.model
        try:
            yield
        finally:
            self.model = module

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Also the sums since the last log, so that a resumed run logs the terms of an unbroken one."""
        super()._save_optimizer_and_scheduler(output_dir)
        sums = {name: self.accelerator.reduce(self._sums[name], "sum") for name in LOGGED if name in self._sums}
        if sums and self.args.should_save:
            save_file(sums, Path(output_dir) / SUMS_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / SUMS_FILE).is_file():
            for name, sums in load_file(Path(checkpoint) / SUMS_FILE).items():
                self._sums[name] = sums.to(self.args.device) * (self.args.process_index == 0)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder, prefix = Path(output_dir or self.args.output_dir), "explained.model."
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
        """Loads weights saved by `save_pretrained`, which may rename them: a plain load would pass over those."""
        model = self.explained.model
        if not isinstance(model, PreTrainedModel) or self.is_deepspeed_enabled:
            return False
        saved = type(model).from_pretrained(folder, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
        return True

    def _load_learned(self, folder: str) -> None:
        if len(self.module.learned):
            self.module.learned.load_state_dict(load_file(Path(folder) / LEARNED_FILE))


def _require_recomputable(objectives: Sequence[Objective]) -> None:
    """Raises ExegeteError for terms that look into the step's own pass: it is run again outside of what they set up."""
    looking = [
        each.name
        for each in objectives
        if each.needs_embeddings or each.capture.attentions or each.capture.differentiable_twice
    ]
    if looking:
        raise ExegeteError(
            f"gradient checkpointing runs layers again without what {', '.join(looking)} looks at in them: "
            "set gradient_checkpointing=False"
        )
