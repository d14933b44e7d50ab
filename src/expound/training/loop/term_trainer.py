"""A Trainer whose loss has terms: their weights, logs, gradient norms and files, whatever runs the model."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer

from expound.errors import ExpoundError
from expound.explainers.learned.base import LearnedExplainer
from expound.models import Batch
from expound.objectives import AdaptiveObjective, StepContext
from expound.training.loop.training_module import TrainingModule

logger = logging.getLogger(__name__)
SHARDING_ERRORS = re.compile("DTensor|setStorage")
"""Words in torch's errors about weights of which this process has a shard only."""
LEARNED_FILE = "expound_learned.safetensors"
SUMS_FILE = "expound_sums.safetensors"
NORMS, LOSS = "gradient norms", "loss"
FIRST_STEPS, PROBED_STEPS = 3, 5
"""Steps at the beginning of a run, and over all of it, in which the gradient norm of each term is measured."""
IDLE_SHARE = 0.01
"""A term whose gradient is below this share of the first term's is reported."""
LOGGED = ("log", NORMS, LOSS)
"""Sums that are saved with a checkpoint, so that the next log of a resumed run covers the steps before it, too."""


class TermTrainer(Trainer):
    """A Trainer that weighs, logs, evaluates and saves the objectives of a `TrainingModule`.

    Subclasses set `module`, run the model in `compute_loss` and pass the module's outputs to `sum_terms`.
    """

    module: TrainingModule

    def init_terms(self, *, log_gradient_norms: bool) -> None:
        """Set up the sums of the objectives."""
        self.log_gradient_norms = log_gradient_norms
        self.part, self.mean_sizes = 0, cast(Tensor | None, None)
        self._sums: dict[str, Tensor] = {}
        self._first_norms: list[Tensor] = []

    @property
    def _term_names(self) -> list[str]:
        """The names of the objectives."""
        return [objective.name for objective in self.module.objectives]

    @abstractmethod
    def read_batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the batch of what the data collator returned."""

    def next_context(self, model: nn.Module) -> StepContext:
        """Return the context of the next batch of the step, or of the evaluation."""
        # The epoch is a sum of fractions: the last step of an epoch may come out a little below the whole number.
        epoch = int((self.state.epoch or 0) + 1e-6)
        context = StepContext(
            self.args.seed, self.state.global_step, self.args.process_index, self.part, model.training, epoch
        )
        self.part += 1
        return context

    def sum_terms(self, outputs: Mapping[str, Any], batch: Batch, *, training: bool) -> Tensor:
        """Return Σ weight · term [] for the outputs of the module, and add the terms to the sums.

        Raises:
            ExpoundError: a term is not a finite number.
        """
        terms: Tensor = outputs["terms"]
        self._require_finite(terms)
        sizes = self._objective_sizes(batch).to(terms)
        weights = terms.new_tensor([objective.weight for objective in self.module.objectives])
        for purpose in ("step", "log") if training else ("evaluation",):
            self._add_to_sums(purpose, terms, sizes)
        if training:
            weights = weights * self.scale_by_size(sizes)
        if training and (self.log_gradient_norms or self._is_probed_step()):
            norms = self._gradient_norms(outputs["separate_terms"], weights)
            self._add_to_sums(NORMS, norms, torch.ones_like(sizes))
            self._report_idle_terms(norms)
        return (terms * weights).sum()

    def scale_by_size(self, sizes: Tensor) -> Tensor:
        """Return the factors [number of objectives] of the terms of a batch with these sizes within its step."""
        # The Trainer averages the batches of a step with equal weights. Scaling by size makes that average equal the
        # mean over one large batch.
        # Outside of the training loop a batch is a whole step.
        if self.mean_sizes is None:
            return torch.ones_like(sizes)
        return sizes / self.mean_sizes.clamp(min=1e-9)

    def _is_probed_step(self) -> bool:
        """Return whether the terms' gradient norms are logged in this step: some steps of a run with several terms."""
        # A companion learns in the backward pass, and sharded gradients exist in the Trainer's own backward pass only.
        terms = self.module.objectives
        if len(terms) < 2 or self.args.world_size > 1 or any(each.companion is not None for each in terms):
            return False
        interval, step = max(1, self.state.max_steps // PROBED_STEPS), self.state.global_step
        return bool(step < FIRST_STEPS or step % interval == interval // 2)

    def _report_idle_terms(self, norms: Tensor) -> None:
        """Say, after the first steps, which terms hardly move the model beside the first one; called with each norm."""
        self._first_norms.append(norms)
        if len(self._first_norms) != FIRST_STEPS:
            return
        task, *others = torch.stack(self._first_norms).mean(0).tolist()
        for objective, own in zip(self.module.objectives[1:], others, strict=True):
            if objective.weight and own < IDLE_SHARE * task:
                advice = objective.remedy
                if own and not isinstance(objective, AdaptiveObjective):
                    advice = f"At a weight of {objective.weight * task / own / 10:.2g} it would be 10 %. {advice}"
                logger.warning(
                    "%s hardly moves the model: in the first steps its gradient is %.2g %% of that of %s. %s",
                    objective.name, 100 * own / task, self.module.objectives[0].name, advice,
                )  # fmt: skip

    def _gradient_norms(self, terms: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Return the norm of each weighted term's gradient [number of objectives]; the graphs are kept."""
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        norms = []
        for term, weight in zip(terms, weights, strict=True):
            used: list[Tensor] = []
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
            sizes = torch.stack([self._objective_sizes(self.read_batch(inputs)) for inputs in samples]).mean(0)
            sizes = sizes.to(self.args.device)
            self.mean_sizes = self.accelerator.reduce(sizes, "mean")
        return samples, items

    def _objective_sizes(self, batch: Batch) -> Tensor:
        """Return the size of the batch for each objective [number of objectives], see `Objective.size`."""
        return torch.stack([objective.size(batch) for objective in self.module.objectives])

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward and return the loss [].

        Raises:
            ExpoundError: a gradient is not finite; the weights keep their values.
        """
        try:
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        except RuntimeError as error:
            if not SHARDING_ERRORS.search(str(error)):
                raise
            raise ExpoundError(
                f"a term among {', '.join(self._term_names)} reads weights, runs parts of the model or differentiates "
                "twice, which sharded weights do not allow: train without fsdp, or with terms that use the step's own "
                "pass only"
            ) from error
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
        adaptive = [each for each in self.module.objectives if isinstance(each, AdaptiveObjective)]
        # Reading the values would make every step wait for the accelerator.
        if adaptive:
            values = self._pop_means("step")
        for objective in adaptive:
            objective.adapt(values[objective.name], self.state.global_step, self.state.max_steps)

    def _require_finite(self, terms: Tensor) -> None:
        if not torch.isfinite(terms).all():
            broken = compress(self._term_names, (~torch.isfinite(terms)).tolist())
            raise self._not_finite_error(f"{', '.join(broken)} is")

    def _not_finite_error(self, what: str) -> ExpoundError:
        return ExpoundError(
            f"{what} not a finite number at step {self.state.global_step + 1}: the run stops, its last checkpoint is "
            "good. Lower the learning rate, or train in float32"
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate on the dev data and return the figures."""
        # An evaluation before the first step must not change the random numbers that training draws.
        with torch.random.fork_rng(enabled=self.state.global_step == 0):
            figures: dict[str, float] = super().evaluate(*args, **kwargs)
        return figures

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

    def _loss_and_terms(self) -> dict[str, float]:
        """Return the loss and the terms as means over the last evaluation."""
        terms, loss = self._pop_means("evaluation"), 0.0
        for objective in self.module.objectives:
            loss += objective.weight * terms[objective.name]
        return {"loss": loss} | terms

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
        return dict(zip(self._term_names, means, strict=True))

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

    def save_learned(self, folder: Path) -> None:
        """Save the modules that objectives learned beside the model."""
        learned = self.module.learned.state_dict()
        if learned and self.args.should_save:
            save_file({name: value.contiguous() for name, value in learned.items()}, folder / LEARNED_FILE)
            for module in self.module.learned.modules():
                if isinstance(module, LearnedExplainer):
                    module.save_pretrained(folder / module.name)

    def load_learned(self, folder: str) -> None:
        """Load the modules that objectives learned from a checkpoint."""
        if len(self.module.learned):
            self.module.learned.load_state_dict(load_file(Path(folder) / LEARNED_FILE))
