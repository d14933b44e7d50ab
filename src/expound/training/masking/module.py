"""The module of a masking model, which learns to mask another model's input, and the callback of its search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import TrainerCallback

from expound.errors import ExpoundError
from expound.explainers.attributive_masking import AttributiveMasking
from expound.explainers.learned.base import WEIGHTS
from expound.metrics import Metric
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.outputs import require_finite_logits
from expound.models.passes.hooks import skip_unread_positions
from expound.objectives import StepContext
from expound.objectives.masking import MaskingStep, concat_inverse, masking_objectives, repeat_batch
from expound.training.loop.lora import merge_lora
from expound.training.loop.training_module import TrainingModule, stack_terms

MEAN_MASK, COLLAPSE = "mean_mask", 0.02
"""The dev figure of the share that masks keep; a run stops below this value, and later above 1 minus this value."""
MASK_SPREAD, FLAT = "mask_spread", 0.05
"""The dev figure of the difference between an example's highest and lowest mask; below FLAT it ranks nothing."""


class MaskCollapseError(ExpoundError):
    """Masks that are all 0, or all 1."""


class MaskingModule(TrainingModule):
    """A masking model that is trained on the predictions of the model it explains; labels are not used.

    The explained model stays frozen and in evaluation mode. Evaluations have a figure for each metric of the maps,
    `mean_mask`, the share that masks keep, and `mask_spread`, by how much an example's masks differ. Masks that keep
    nothing stop the run, and so do masks that keep everything in its second half. Files have the masking model only.

    Args:
        explained: the model to explain, a text classifier. Its weights must not require gradients (see
            `freeze_weights`), so that the optimizer leaves them out.
        masking: the masking model to train.
        metrics: the metrics of an evaluation, each logged under its name.
    """

    def __init__(self, explained: ExplainedModel, masking: AttributiveMasking, metrics: Sequence[Metric]) -> None:
        super().__init__(explained, masking_objectives(masking.settings.weights))
        if not metrics:
            raise ExpoundError("a masking model is chosen by a metric: give at least one")
        self.masking, self.metrics = masking, tuple(metrics)

    def get_trained_model(self) -> Any:
        """Return the masking model's backbone."""
        masking: Any = nn.Module.__getattr__(self, "masking")
        return masking.reader.model

    def train(self, mode: bool = True) -> MaskingModule:
        """Set the mode of the masking model only."""
        super().train(mode)
        self.explained.train(False)
        return self

    def compute_terms(
        self, batch: Batch, context: StepContext, observed: Outputs | None = None, own_loss: Tensor | None = None
    ) -> dict[str, Any]:
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

    @torch.no_grad()
    def predict(self, batch: Batch, outputs: Mapping[str, Any]) -> Tensor:
        """Return every metric's values, the share that each mask keeps, and its spread [B, number of metrics + 2]."""
        target = self.explained.task.predict(outputs["logits"], batch)
        scores, values = outputs["scores"], []
        with self.explained.cache_perturbed():
            for metric in self.metrics:
                values.append(metric.evaluate(self.explained, batch, scores, target)[metric.name])
        highest, lowest = (scores.masked_fill(~batch.content, edge) for edge in (-torch.inf, torch.inf))
        values += [scores.sum(1) / batch.content.sum(1), highest.amax(1) - lowest.amin(1)]
        return torch.stack([each.double() for each in values], 1)

    def score(self, predicted: Any, dataset: Any, batch_size: int) -> dict[str, float]:
        """Return each metric's mean over the examples for which it is defined, `mean_mask` and `mask_spread`."""
        means = torch.from_numpy(predicted).nanmean(0).tolist()
        self._require_no_collapse(means[-2])
        return dict(zip([*(metric.name for metric in self.metrics), MEAN_MASK, MASK_SPREAD], means, strict=True))

    def _require_no_collapse(self, mean: float) -> None:
        """Raise MaskCollapseError if the masks keep nothing, or in the second half of the run everything."""
        # Near 0 the gradients of all terms vanish, and masks stay there. Near 1 that of sparsity (`bce`) does not, and
        # many masks that keep nearly everything at first keep less later.
        is_first_half = self.context.number <= self.n_steps / 2
        if COLLAPSE < mean < 1 - COLLAPSE or (mean > COLLAPSE and is_first_half):
            return
        kept, weight = ("nothing", "lower") if mean <= COLLAPSE else ("everything", "raise")
        raise MaskCollapseError(
            f"the masks collapsed at step {self.context.number}: they keep {kept} (mean {mean:.3f}). "
            f"{weight.capitalize()} --sparsity-weight, lower --learning-rate, or use --masking omit"
        )

    def finalize(self) -> bool:
        """Merge the adapters of the masking model, if it has any; it is saved as a whole."""
        has_adapters = any(".lora_" in name for name, _ in self.masking.named_parameters())
        return has_adapters and merge_lora(self.masking.reader.model)

    def save(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Save the masking model."""
        self.masking.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Load the masking model's weights."""
        self.masking.load_state_dict(load_file(folder / WEIGHTS))


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
