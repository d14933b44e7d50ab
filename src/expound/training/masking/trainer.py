"""The training loop of a masking model, which learns to mask another model's input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from expound.errors import ExpoundError
from expound.explainers.attributive_masking import AttributiveMasking
from expound.explainers.learned.base import WEIGHTS
from expound.metrics import Metric
from expound.models import Batch, ExplainedModel
from expound.models.outputs import require_finite_logits
from expound.models.passes.hooks import skip_unread_positions
from expound.objectives import Objective, StepContext
from expound.objectives.masking import MaskingStep, concat_inverse, masking_objectives, repeat_batch
from expound.training.loop.lora import merge_lora
from expound.training.loop.trainer import ObjectiveTrainer
from expound.training.loop.training_module import TrainingModule, stack_terms

MEAN_MASK, COLLAPSE = "mean_mask", 0.02
"""The dev figure of the share that masks keep; a run stops below this value, and later above 1 minus this value."""
MASK_SPREAD, FLAT = "mask_spread", 0.05
"""The dev figure of the difference between an example's highest and lowest mask; below FLAT it ranks nothing."""


class MaskCollapseError(ExpoundError):
    """Masks that are all 0, or all 1."""


class MaskingModule(TrainingModule):
    """The masking model together with the model it explains, which stays frozen and in evaluation mode."""

    def __init__(self, explained: ExplainedModel, objectives: Sequence[Objective], masking: AttributiveMasking) -> None:
        super().__init__(explained, objectives)
        self.masking = masking

    def __getattr__(self, name: str) -> Any:
        # The Trainer's questions about its model concern the masking model's backbone.
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            masking: Any = nn.Module.__getattr__(self, "masking")
            return getattr(masking.reader.model, name)

    def train(self, mode: bool = True) -> MaskingModule:
        """Set the mode of the masking model only."""
        super().train(mode)
        self.explained.train(False)
        return self

    def forward(self, batch: Batch, context: StepContext) -> dict[str, Any]:
        """Return the terms [number of objectives], the explained model's logits, and the maps over its tokens."""
        model, masking = self.explained, self.masking
        with torch.no_grad():
            outputs = model(batch)
            answer = model.task.probabilities(require_finite_logits(outputs.logits))
        reading = masking.retokenize(model, batch)
        own = masking(reading, answer)
        scores = masking.map_scores(reading, own)
        generator = context.generator("masking", batch.device)
        drawn = torch.rand(batch.content.shape, generator=generator, device=batch.device)
        reference = masking.masking.reference(model, batch, drawn)
        # Both the masked input and its inverse are read in one pass of twice the batch.
        doubled = None if reference is None else reference.repeat(2, 1, 1)
        with skip_unread_positions(model, batch):
            kept, without = masking.masking.logits(model, repeat_batch(batch), concat_inverse(scores), doubled).chunk(2)
        step = MaskingStep(
            model, batch, outputs, context,
            answer=answer, scores=own, own_content=reading.own.content, kept=kept, without=without,
        )  # fmt: skip
        terms = [objective(step) for objective in self.objectives]
        return stack_terms(terms) | {"logits": outputs.logits, "scores": scores}


class MaskingTrainer(ObjectiveTrainer):
    """Trains a masking model on another model's predictions; labels are not used.

    Evaluation computes `metrics` of the maps on the evaluation data, `mean_mask`, the share that masks keep, and
    `mask_spread`, by how much an example's masks differ. Masks
    that keep nothing stop the run, and so do masks that keep everything in its second half. Checkpoints and the final
    folder contain the masking model only.

    Args:
        model: the model to explain, a text classifier. Its weights must not require gradients (see `freeze_weights`),
            so that the optimizer leaves them out.
        args: the Trainer's arguments.
        masking: the masking model to train.
        metrics: the metrics of an evaluation, each logged under its name.
        objectives: the terms of the loss. Default: the three terms, with the masking model's weights.
        kwargs: further arguments of the Trainer.
    """

    def __init__(
        self,
        model: ExplainedModel,
        args: TrainingArguments,
        masking: AttributiveMasking,
        metrics: Sequence[Metric],
        objectives: Sequence[Objective] | None = None,
        **kwargs: Any,
    ) -> None:
        if not metrics:
            raise ExpoundError("a masking model is chosen by a metric: give at least one")
        self.masking, self.metrics = masking, tuple(metrics)
        chosen = masking_objectives(masking.settings.weights) if objectives is None else objectives
        super().__init__(model, args, chosen, **({"processing_class": None} | kwargs))

    def make_module(self, model: ExplainedModel, objectives: Sequence[Objective]) -> TrainingModule:
        """Return a `MaskingModule`."""
        return MaskingModule(model, objectives, self.masking)

    def evaluation_loop(self, dataloader: Any, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> EvalLoopOutput:
        """Return the terms, and each metric's mean over the examples for which it is defined."""
        self.part = 0
        self._sums.pop("evaluation", None)
        module = self.module
        module.eval()
        judged: dict[str, list[Tensor]] = {metric.name: [] for metric in self.metrics}
        judged |= {MEAN_MASK: [], MASK_SPREAD: []}
        for inputs in dataloader:
            for name, values in self._evaluate_batch(module, self._prepare_inputs(inputs)["batch"]).items():
                judged[name].append(self.accelerator.gather_for_metrics(values))
        means = {name: float(torch.cat(values).double().nanmean()) for name, values in judged.items()}
        self._require_no_collapse(means[MEAN_MASK])
        named = {f"{metric_key_prefix}_{name}": value for name, value in (self._loss_and_terms() | means).items()}
        return EvalLoopOutput(None, None, named, len(dataloader.dataset))

    def _require_no_collapse(self, mean: float) -> None:
        """Raise MaskCollapseError if the masks keep nothing, or in the second half of the run everything."""
        # Near 0 the gradients of all terms vanish, and masks stay there. Near 1 that of sparsity (`bce`) does not, and
        # many masks that keep nearly everything at first keep less later.
        is_first_half = self.state.global_step <= self.state.max_steps / 2
        if COLLAPSE < mean < 1 - COLLAPSE or (mean > COLLAPSE and is_first_half):
            return
        kept, weight = ("nothing", "lower") if mean <= COLLAPSE else ("everything", "raise")
        raise MaskCollapseError(
            f"the masks collapsed at step {self.state.global_step}: they keep {kept} (mean {mean:.3f}). "
            f"{weight.capitalize()} --sparsity-weight, lower --learning-rate, or use --masking omit"
        )

    @torch.no_grad()
    def _evaluate_batch(self, module: TrainingModule, batch: Batch) -> dict[str, Tensor]:
        """Return every metric's values [B], and add the terms to the sums."""
        with self.accelerator.autocast():
            outputs = module(batch, self.next_context(module))
        self._require_finite(outputs["terms"])
        self._add_to_sums("evaluation", outputs["terms"], self._objective_sizes(batch).to(outputs["terms"]))
        target = self.explained.task.predict(outputs["logits"], batch)
        scores, values = outputs["scores"], dict[str, Tensor]()
        with self.explained.cache_perturbed():
            for metric in self.metrics:
                values[metric.name] = metric.evaluate(self.explained, batch, scores, target)[metric.name]
        highest, lowest = (scores.masked_fill(~batch.content, edge) for edge in (-torch.inf, torch.inf))
        spread = highest.amax(1) - lowest.amin(1)
        return values | {MEAN_MASK: scores.sum(1) / batch.content.sum(1), MASK_SPREAD: spread}

    def finalize_model(self) -> bool:
        """Merge the adapters of the masking model, which is saved as a whole."""
        return merge_lora(self.masking.reader.model) if self.options.lora_rank else False

    # -- files -------------------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            self.masking.save_pretrained(output_dir or self.args.output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.masking.load_state_dict(load_file(Path(resume_from_checkpoint) / WEIGHTS))

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)


class PruningCallback(TrainerCallback):
    """Reports each evaluation to an Optuna trial, which ends after its epochs, or when its study prunes it."""

    def __init__(self, trial: Any, name: str, epochs: float) -> None:
        self.trial, self.name, self.epochs, self.pruned = trial, name, epochs, False

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """Report the metric to the study, and stop if it prunes the trial."""
        # The evaluation after the last epoch is the trial's value.
        if state.epoch >= self.epochs or self.pruned:
            return
        self.trial.report(metrics[self.name], state.global_step)
        if self.trial.should_prune():
            self.pruned = control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the trial after its last epoch, without another evaluation."""
        if state.epoch >= self.epochs:
            control.should_training_stop = True
            control.should_evaluate = False
