"""What a run logs of the terms of its loss: their means, the norms of their gradients, and which of them are idle."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.utils import reduce
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainingArguments

from expound.objectives import AdaptiveObjective, Objective

logger = logging.getLogger(__name__)
SUMS_FILE = "expound_sums.safetensors"
NORMS, LOSS = "gradient norms", "loss"
FIRST_STEPS, PROBED_STEPS = 3, 5
"""Steps at the beginning of a run, and over all of it, in which the gradient norm of each term is measured."""
IDLE_SHARE = 0.01
"""A term whose gradient is below this share of the first term's is reported."""
LOGGED = ("log", NORMS, LOSS)
"""Sums that are saved with a checkpoint, so that the next log of a resumed run covers the steps before it, too."""


class TermLog:
    """Sums over batches, from which means over all processes are logged.

    Terms are summed for each purpose: `log`, `step` (one optimizer step) and `evaluation`.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.objectives = objectives
        self.sums: dict[str, Tensor] = {}
        self.first_norms: list[Tensor] = []

    def add(self, purpose: str, values: Tensor, sizes: Tensor) -> None:
        """Add values and sizes, both [K] or [], to their sums [2, K] or [2]."""
        # Kept on the device: reading values here would make every step wait for the accelerator.
        summed = torch.stack([values.detach(), sizes])
        self.sums[purpose] = self.sums.get(purpose, torch.zeros_like(summed)) + summed

    def pop(self, purpose: str) -> dict[str, float]:
        """Return each objective's mean since the last call, over all processes; 0 for an objective of size 0."""
        if purpose not in self.sums:
            return {}
        sums, sizes = reduce(self.sums.pop(purpose), "sum")
        means = (sums / sizes.clamp(min=1e-9)).tolist()
        return {objective.name: mean for objective, mean in zip(self.objectives, means, strict=True)}

    def pop_all(self) -> dict[str, float]:
        """Return the loss, the terms, their gradient norms and the values of adaptive objectives since the last log."""
        # The Trainer's own loss leaves out the steps before a resumed run's checkpoint; this sum is saved with it.
        loss, steps = reduce(self.sums.pop(LOSS), "sum").tolist()
        logs = {LOSS: loss / steps} | self.pop("log")
        logs |= {f"{name}_gradient_norm": value for name, value in self.pop(NORMS).items()}
        for objective in self.objectives:
            if isinstance(objective, AdaptiveObjective):
                logs |= objective.logged_values
        return logs

    def save(self, folder: str, args: TrainingArguments) -> None:
        """Save the sums since the last log beside a checkpoint; every process calls this, and one writes."""
        sums = {name: reduce(self.sums[name], "sum") for name in LOGGED if name in self.sums}
        if sums and args.should_save:
            save_file(sums, Path(folder) / SUMS_FILE)

    def load(self, folder: str | None, args: TrainingArguments) -> None:
        """Load the sums of a checkpoint, if it has any."""
        if folder is None or not (Path(folder) / SUMS_FILE).is_file():
            return
        for name, sums in load_file(Path(folder) / SUMS_FILE).items():
            # The saved sums are over all processes; they must enter the next sum once.
            self.sums[name] = sums.to(args.device) * (args.process_index == 0)

    def add_norms(self, norms: Tensor) -> None:
        """Add the gradient norms [K] of the terms, and say after the first steps which terms hardly move the model."""
        self.add(NORMS, norms, torch.ones_like(norms))
        self.first_norms.append(norms)
        if len(self.first_norms) != FIRST_STEPS:
            return
        task, *others = torch.stack(self.first_norms).mean(0).tolist()
        for objective, own in zip(self.objectives[1:], others, strict=True):
            if objective.weight and own < IDLE_SHARE * task:
                advice = objective.remedy
                if own and not isinstance(objective, AdaptiveObjective):
                    advice = f"At a weight of {objective.weight * task / own / 10:.2g} it would be 10 %. {advice}"
                logger.warning(
                    "%s hardly moves the model: in the first steps its gradient is %.2g %% of that of %s. %s",
                    objective.name, 100 * own / task, self.objectives[0].name, advice,
                )  # fmt: skip


def gradient_norms(terms: Sequence[Tensor], weights: Tensor, module: nn.Module) -> Tensor:
    """Return the norm of each weighted term's gradient [number of terms] at a module's weights; graphs are kept."""
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    norms = []
    for term, weight in zip(terms, weights, strict=True):
        used: list[Tensor] = []
        # A constant term, such as one without examples in this batch, has no gradient.
        if term.requires_grad:
            # As in the Trainer's own backward pass, no autocast.
            with torch.autocast(term.device.type, enabled=False):
                gradients = torch.autograd.grad(term * weight, trained, retain_graph=True, allow_unused=True)
            used = [gradient for gradient in gradients if gradient is not None]
        norms.append(torch.nn.utils.get_total_norm(used).to(weights))
    return torch.stack(norms)
