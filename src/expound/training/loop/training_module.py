"""The module that a Trainer trains: the model together with its objectives, and the log of their terms."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from expound.errors import ExpoundError
from expound.explainers.learned.base import LearnedExplainer
from expound.models import Batch, Capture, ExplainedModel, Outputs
from expound.models.batch import require_finite_logits
from expound.models.layers.architecture import unwrap_adapter
from expound.models.state import get_lock
from expound.objectives import AdaptiveObjective, Constraint, CrossEntropy, Objective, StepContext, TrainingStep
from expound.training.loop import evaluation

LEARNED_FILE = "expound_learned.safetensors"


class TrainingModule(nn.Module):
    """The model and its objectives as one module, whose forward pass returns the loss, its terms and the logits.

    It also has what a Trainer would ask of a model and of a task: predictions, figures and files. Subclasses have
    another forward pass, or more figures or files.

    `learned` has the modules that objectives learn, by the name of the (first) objective that has them, and under
    `NAME_companion` the modules that an objective trains by itself. `log`: the sums of terms that are logged.

    Args:
        explained: the model to train; its Hugging Face model is changed in place and saved.
        objectives: the terms of the loss.
        masked_share: see `mask_random_tokens`.
    """

    # With False the Trainer divides the loss by the number of accumulated batches, as `sum_terms` expects.
    accepts_loss_kwargs = False

    def __init__(self, explained: ExplainedModel, objectives: Sequence[Objective], masked_share: float = 0.0) -> None:
        super().__init__()
        names = [objective.name for objective in objectives]
        if not names or len(set(names)) < len(names):
            raise ExpoundError(f"expected objectives with different names, got: {', '.join(names) or 'none'}")
        for objective in objectives:
            # Masking would change the hash by which a student's held-out examples are recognized.
            if masked_share and objective.companion is not None:
                raise ExpoundError(f"{objective.name} knows its examples by their words: set masked_share to 0")
        self.explained = explained
        self.masked_share = masked_share
        self.log_gradient_norms = False
        # The share of each batch on which terms other than the task's loss are evaluated.
        self.evaluation_share = 1.0
        self.context, self.n_steps = StepContext(), 0
        self.n_parts, self.mean_sizes = 1, cast(Tensor | None, None)
        prepared: list[Objective] = []
        learned: dict[str, nn.Module] = {}
        for each in objectives:
            objective = each.prepare(explained)
            prepared.append(objective)
            module = objective.learned
            # A module that several objectives share is registered, optimized and saved once.
            if module is not None and module not in learned.values():
                learned[objective.name] = module
            if objective.companion is not None:
                learned[f"{objective.name}_companion"] = objective.companion
        self.objectives = tuple(prepared)
        self.learned = nn.ModuleDict(learned)
        self.log = TermLog(self.objectives)

    # -- what the Trainer asks of its model --------------------------------------------------------------------------

    def get_trained_model(self) -> Any:
        """Return the Hugging Face model that is trained."""
        explained: Any = super().__getattr__("explained")
        return explained.model

    def __getattr__(self, name: str) -> Any:
        # The Trainer asks its model for a configuration, gradient checkpointing and more: the Hugging Face model
        # answers what the module itself does not have.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.get_trained_model(), name)

    @property
    def _hf_peft_config_loaded(self) -> bool:
        """Whether adapters are trained; else the Trainer refuses a model whose weights are quantized."""
        return hasattr(self.explained.model, "peft_config")

    def make_collator(self) -> Collator:
        """Return the collator that makes the inputs of `forward` from examples."""
        return Collator(self.explained)

    def attach(self, trainer: Trainer) -> None:
        """Add the callbacks that a Trainer of this module needs; raise ExpoundError for arguments that it refuses."""
        trainer.add_callback(TermCallback(self))

    # -- a step ------------------------------------------------------------------------------------------------------

    def begin(self, args: TrainingArguments, state: TrainerState, batches: Sequence[Batch] = ()) -> None:
        """Note where an evaluation begins, or an optimizer step with its batches, of which it takes the mean size."""
        # The epoch is a sum of fractions: the last step of an epoch may come out a little below the whole number.
        epoch = int((state.epoch or 0) + 1e-6)
        self.context = StepContext(args.seed, state.global_step, args.process_index, epoch=epoch)
        self.n_steps = state.max_steps
        for purpose in ("step", "evaluation"):
            self.log.sums.pop(purpose, None)
        if batches:
            sizes = torch.stack([self._objective_sizes(batch) for batch in batches]).mean(0)
            self.mean_sizes, self.n_parts = reduce(sizes.to(args.device), "mean"), len(batches)

    def next_context(self, *, training: bool) -> StepContext:
        """Return the context of the next batch of the step, or of the evaluation."""
        context = replace(self.context, training=training)
        self.context = replace(self.context, part=context.part + 1)
        return context

    def forward(self, batch: Batch, context: StepContext | None = None) -> dict[str, Any]:
        """Return the `loss` [] and the outputs of `compute_terms`.

        Args:
            batch: B examples.
            context: the step. Default: that of the Trainer's next batch, whose terms are added to the log.

        Raises:
            ExpoundError: a term is not a finite number.
        """
        # Everything that has a gradient happens in this one call, since DDP and autocast wrap `forward`.
        own = self.next_context(training=self.training) if context is None else context
        if own.training and self.masked_share:
            batch = mask_random_tokens(self.explained, batch, self.masked_share, own)
        outputs = self.compute_terms(batch, own)
        if context is None:
            return {"loss": self.sum_terms(outputs, batch, own)} | outputs
        return {"loss": (outputs["terms"] * self._weights(outputs["terms"])).sum()} | outputs

    def sum_terms(self, outputs: Mapping[str, Any], batch: Batch, context: StepContext) -> Tensor:
        """Return Σ weight · term [] for the outputs of `compute_terms`, and add the terms to the log.

        Raises:
            ExpoundError: a term is not a finite number.
        """
        terms: Tensor = outputs["terms"]
        if not torch.isfinite(terms).all():
            broken = compress([each.name for each in self.objectives], (~torch.isfinite(terms)).tolist())
            raise self.not_finite_error(f"{', '.join(broken)} is")
        sizes, weights = self._objective_sizes(batch).to(terms), self._weights(terms)
        if not context.training:
            self.log.add("evaluation", terms * sizes, sizes)
            return (terms * weights).sum()
        for purpose in ("step", "log"):
            self.log.add(purpose, terms * sizes, sizes)
        weights = weights * self.scale_by_size(sizes)
        if self.log_gradient_norms or self._is_probed(context.number):
            self.log.add_norms(gradient_norms(outputs["separate_terms"], weights, self))
        loss = (terms * weights).sum()
        ends_step = context.part + 1 == self.n_parts
        self.log.add(LOSS, loss / self.n_parts, torch.full_like(loss, ends_step))
        return loss

    def _weights(self, terms: Tensor) -> Tensor:
        """Return the weights [number of objectives], which objectives may adapt."""
        return terms.new_tensor([objective.weight for objective in self.objectives])

    def _objective_sizes(self, batch: Batch) -> Tensor:
        """Return the size of the batch for each objective [number of objectives], see `Objective.size`."""
        return torch.stack([objective.size(batch) for objective in self.objectives])

    def scale_by_size(self, sizes: Tensor) -> Tensor:
        """Return the factors [number of objectives] of the terms of a batch with these sizes within its step."""
        # The Trainer averages the batches of a step with equal weights. Scaling by size makes that average equal the
        # mean over one large batch.
        # Outside of the training loop a batch is a whole step.
        if self.mean_sizes is None:
            return torch.ones_like(sizes)
        return sizes / self.mean_sizes.clamp(min=1e-9)

    def _is_probed(self, step: int) -> bool:
        """Return whether the terms' gradient norms are logged in this step: some steps of a run with several terms."""
        # A companion learns in the backward pass, and sharded gradients exist in the Trainer's own backward pass only.
        terms = self.objectives
        if len(terms) < 2 or PartialState().num_processes > 1 or any(each.companion is not None for each in terms):
            return False
        interval = max(1, self.n_steps // PROBED_STEPS)
        return bool(step < FIRST_STEPS or step % interval == interval // 2)

    def adapt_objectives(self) -> None:
        """Tell the adaptive objectives the values of their terms over the whole optimizer step."""
        adaptive = [each for each in self.objectives if isinstance(each, AdaptiveObjective)]
        # Reading the values would make every step wait for the accelerator.
        if adaptive:
            values = self.log.pop("step")
        for objective in adaptive:
            objective.adapt(values[objective.name], self.context.number, self.n_steps)

    def not_finite_error(self, what: str) -> ExpoundError:
        """Return the error for a number of this step that is not finite."""
        return ExpoundError(
            f"{what} not a finite number at step {self.context.number + 1}: the run stops, its last checkpoint is "
            "good. Lower the learning rate, or train in float32"
        )

    # -- figures -----------------------------------------------------------------------------------------------------

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Return for every figure of an evaluation whether higher is better; subclasses add their figures."""
        figures = dict.fromkeys(("loss", *(objective.name for objective in objectives)), False)
        if any(isinstance(each, Constraint) for each in objectives):
            figures |= {"feasible": True, "feasible_cross_entropy": False}
        return figures | evaluation.HIGHER_IS_BETTER[task]

    def pop_logs(self) -> dict[str, float]:
        """Return the values to log since the last log."""
        return self.log.pop_all()

    def pop_evaluation(self) -> dict[str, float]:
        """Return the loss and the terms as means over the last evaluation."""
        terms, loss = self.log.pop("evaluation"), 0.0
        for objective in self.objectives:
            loss += objective.weight * terms[objective.name]
        return {"loss": loss} | terms

    def predict(self, batch: Batch, outputs: Mapping[str, Any]) -> Tensor:
        """Return the predictions [B, ...] of a batch with these outputs of `forward`, by which `score` judges."""
        return evaluation.compute_predictions(self.explained, batch, outputs["logits"].detach())

    def score(self, predicted: Any, dataset: Any, batch_size: int) -> dict[str, float]:
        """Return the figures of predictions in the dataset's order; subclasses that run a model use `batch_size`."""
        return evaluation.score(self.explained.task.name, predicted, dataset)

    def finalize(self) -> bool:
        """Change the trained model before it is saved, and return whether it changed."""
        return False

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Save the Hugging Face model and its processor, and beside it the modules that objectives learned.

        `state_dict`: the weights of the whole module in their shapes, if they were gathered from several processes.
        """
        model, prefix = self.explained.model, "explained.model."
        if state_dict is not None:
            state_dict = {name.removeprefix(prefix): v for name, v in state_dict.items() if name.startswith(prefix)}
        model.save_pretrained(folder, state_dict=state_dict)
        processor = self.explained.processing_class
        if hasattr(processor, "backend_tokenizer"):
            # A fast tokenizer keeps the truncation and padding of its latest call, which depend on resuming.
            with get_lock(processor):
                processor.backend_tokenizer.no_truncation()
                processor.backend_tokenizer.no_padding()
        processor.save_pretrained(folder)
        if hasattr(model, "peft_config"):
            # PEFT does not save the configuration of the model itself, which tells its head and its labels.
            config = copy(model.config)
            config.architectures = [type(unwrap_adapter(model)).__name__]
            config.save_pretrained(folder)
        self.save_learned(folder)

    def load(self, folder: Path) -> None:
        """Load what `save` saved."""
        model: Any = self.explained.model
        if hasattr(model, "peft_config"):
            name = str(model.active_adapter)
            model.load_adapter(folder if name == "default" else folder / name, name, is_trainable=True)
        else:
            # `save_pretrained` renames the weights of some families: a plain load would silently skip those.
            model.load_state_dict(type(model).from_pretrained(folder, dtype=model.dtype).state_dict())
        self.load_learned(folder)

    def save_learned(self, folder: Path) -> None:
        """Save the modules that objectives learned."""
        learned = self.learned.state_dict()
        if learned:
            save_file({name: value.contiguous() for name, value in learned.items()}, folder / LEARNED_FILE)
        for module in self.learned.modules():
            if isinstance(module, LearnedExplainer):
                module.save_pretrained(folder / module.name)

    def load_learned(self, folder: Path) -> None:
        """Load the modules that objectives learned from a checkpoint."""
        if len(self.learned):
            self.learned.load_state_dict(load_file(folder / LEARNED_FILE))

    # -- terms -------------------------------------------------------------------------------------------------------

    def compute_terms(
        self, batch: Batch, context: StepContext, observed: Outputs | None = None, own_loss: Tensor | None = None
    ) -> dict[str, Any]:
        """Return the objectives' unweighted `terms` [number of objectives], the same one by one, and the logits.

        All objectives share one pass through the model. Each share of the batch that some objectives are estimated on
        needs another pass.

        Args:
            batch: B examples.
            context: the step.
            observed: the outputs of a pass of the whole batch that has been run, with what `request` asks for.
            own_loss: the loss [] of the user's own code on that pass.
        """
        shares = [self._share_of(objective, training=context.training) for objective in self.objectives]
        keep_graph = torch.is_grad_enabled()
        steps: dict[float, TrainingStep] = {}
        terms = []
        with torch.set_grad_enabled(keep_graph or self.needs_gradient):
            for share in sorted({1.0, *shares}, reverse=True):
                part, outputs = batch, observed
                if share != 1:
                    part, outputs = sample_share(batch, share, context), None
                if outputs is None:
                    outputs = self.explained(part, capture=self.request(share, training=context.training))
                require_finite_logits(outputs.logits)
                steps[share] = TrainingStep(self.explained, part, outputs, context, own_loss)
            for objective, share in zip(self.objectives, shares, strict=True):
                terms.append(objective(steps[share]))
        return stack_terms(terms) | {"logits": steps[1.0].outputs.logits}

    def _share_of(self, objective: Objective, *, training: bool) -> float:
        """Return the share of a batch that an objective is computed on."""
        if training:
            return objective.batch_fraction
        # The task's loss is computed on all rows; so is every term of a loss without it, as the terms choose the epoch.
        has_task_loss = any(isinstance(each, CrossEntropy) for each in self.objectives)
        if isinstance(objective, CrossEntropy) or not has_task_loss:
            return 1.0
        return self.evaluation_share

    @property
    def needs_gradient(self) -> bool:
        """Whether some explanations are gradients at the embeddings, in evaluation, too."""
        return any(objective.capture.embeddings for objective in self.objectives)

    def request(self, share: float, *, training: bool) -> Capture:
        """Return what the pass of the objectives with this share has to record."""
        capture = Capture()
        for objective in self.objectives:
            if share == self._share_of(objective, training=training):
                capture |= objective.capture
        return capture


class TermCallback(TrainerCallback):
    """Checks the gradients of a step, and tells adaptive objectives their terms, before the optimizer steps."""

    def __init__(self, module: TrainingModule) -> None:
        self.module = module

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Raise ExpoundError if a gradient is not finite; the weights keep their values."""
        # With fp16 gradients may overflow: the scaler then skips the step by itself.
        if not args.fp16:
            gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
            if gradients and not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
                raise self.module.not_finite_error("the gradient is")
        self.module.adapt_objectives()


def stack_terms(terms: Sequence[Tensor]) -> dict[str, Any]:
    """Return the `terms` as one tensor and `separate_terms` as a tuple."""
    # A bfloat16 term would round the sum of the terms. The gradient norm of one term is taken from the separate ones:
    # through the stacked tensor it would run backward through all of them.
    dtype = torch.float32
    for term in terms:
        dtype = torch.promote_types(dtype, term.dtype)
    return {"terms": torch.stack([term.to(dtype) for term in terms]), "separate_terms": tuple(terms)}


class Collator:
    """Encodes examples as {"batch": a `Batch` in main memory}, in the way the model encodes all its inputs."""

    def __init__(self, model: ExplainedModel) -> None:
        self.model = model

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Batch]:
        """Return the examples as a batch on the CPU."""
        # The Trainer moves batches to the device: loader processes must not touch an accelerator.
        return {"batch": self.model.encode(examples, device="cpu")}


def sample_share(batch: Batch, share: float, context: StepContext) -> Batch:
    """Return ⌈share · B⌉ examples of a batch in its order, in training random ones, without padding common to all."""
    if not 0 < share <= 1:
        raise ExpoundError(f"expected a share of the batch above 0 and up to 1, got {share}")
    # Rounding first: 0.07 · 100 = 7.000000000000001 would give eight examples.
    size = math.ceil(round(share * len(batch), 9))
    if context.training:
        order = torch.randperm(len(batch), generator=context.generator("share of the batch"))
    else:
        # Evaluations are compared with each other: always the same examples, of all lengths.
        order = torch.arange(size) * len(batch) // size
    return batch.select(order[:size].sort().values).trim_padding()[0]


def mask_random_tokens(model: ExplainedModel, batch: Batch, share: float, context: StepContext) -> Batch:
    """Return the batch with random tokens masked in a random `share` of its examples (Madsen et al. 2024, §3).

    Masked fine-tuning teaches a model to read inputs from which words were removed, as faithfulness metrics ask it to.
    """
    if model.modality != "text":
        raise ExpoundError("masked fine-tuning replaces words: it does not apply to images")
    generator = context.generator("masked fine-tuning", batch.device)
    # Each masked example has a masking rate of its own, uniform in [0, 1], so that the model sees all rates.
    selection, rate = torch.rand(2, len(batch), 1, generator=generator, device=batch.device)
    draws = torch.rand(batch.content.shape, generator=generator, device=batch.device)
    is_masked = batch.content & (draws < rate) & (selection < share)
    input_ids = batch.inputs["input_ids"].masked_fill(is_masked, model.mask_id)
    return replace(batch, inputs=batch.inputs | {"input_ids": input_ids})


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


def derive_feasibility(objectives: Sequence[Objective], figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a loss with constraints, from its evaluation's figures; none for other losses.

    `feasible` is 1 if all constraints hold, else 0. `feasible_cross_entropy` is infinite for an infeasible epoch, so
    that `metric_for_best_model="feasible_cross_entropy"` never chooses one.
    """
    constraints = [each for each in objectives if isinstance(each, Constraint)]
    if not constraints:
        return {}
    feasible = all(each.is_feasible(figures[each.name]) for each in constraints)
    cross_entropy = figures.get(CrossEntropy.name, math.inf) if feasible else math.inf
    return {"feasible": float(feasible), "feasible_cross_entropy": cross_entropy}
