"""The bi-level loop: the student steps, and the teacher's explainer steps after it (SMaT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from expound.errors import ExpoundError
from expound.metrics.simulatability import simulatability
from expound.models import Batch, ExplainedModel
from expound.models.passes.hooks import skip_unread_positions
from expound.objectives import CrossEntropy, Objective, StepContext
from expound.training.bilevel.inner_optimizers import make_inner_optimizer
from expound.training.bilevel.lookahead import LookaheadStep, Student, seeded_random_state
from expound.training.bilevel.scaffold import Scaffold, Scaffolding, require_single_process
from expound.training.bilevel.teacher_outputs import (
    RowCollator,
    TeacherBatch,
    compare_form,
    get_teacher_predictions,
    restore_gold,
)
from expound.training.loop.trainer import ObjectiveTrainer


class ScaffoldTrainer(ObjectiveTrainer):
    """Trains a student on data labeled by `label_by_teacher`, and a learned teacher explainer with it.

    After every `interval`-th inner step, of the student (SMaT, eq. 6 and 7), one outer step updates the teacher's
    coefficients (eq. 8 and 9) on a batch of dev data. The student is never reset. Without a lookahead step, the outer
    step comes between the student's backward pass and its step.

    Evaluations have the figure `simulatability`. The task's figures are against people's labels if the data has them,
    else against the teacher's predictions.
    """

    def __init__(
        self,
        model: ExplainedModel,
        args: TrainingArguments,
        objectives: Sequence[Objective] = (CrossEntropy(),),
        **kwargs: Any,
    ) -> None:
        prepared: list[Objective] = []
        self.scaffolding: Scaffolding | None = None
        for objective in objectives:
            if isinstance(objective, Scaffolding):
                self.scaffolding = objective.prepare_for(model)
                prepared.append(self.scaffolding)
            else:
                prepared.append(objective)
        if self.scaffolding is not None and args.gradient_checkpointing:
            # The student's passes skip positions that no answer depends on, which checkpointing would run again.
            raise ExpoundError("gradient checkpointing does not apply to students: set gradient_checkpointing=False")
        self.teacher_batch: TeacherBatch | None = None
        self.rows = torch.zeros(0, dtype=torch.long)
        self.outer_losses: list[float] = []
        super().__init__(model, args, prepared, **({"data_collator": RowCollator(model)} | kwargs))
        if self.scaffolding is not None and self.scaffolding.teacher is not None:
            require_single_process(
                self.args.gradient_accumulation_steps, self.args.world_size, self.options.masked_share
            )
            if self.scaffolding.without_lookahead and self.accelerator.scaler is not None:
                # The backward pass leaves gradients times the scaler's factor in `.grad`.
                raise ExpoundError("fp16 scales the student's gradients: keep the lookahead step, or train in bf16")
            self.add_callback(_OuterStepCallback(self))

    @staticmethod
    def make_stopping_callback(patience: int, threshold: float) -> TrainerCallback:
        """Return a callback that stops once evaluations without an improvement exceed `patience`."""
        # SMaT's code stops after patience + 1 bad epochs.
        return EarlyStoppingCallback(patience + 1, threshold)

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Add the figure `simulatability`; higher is better. The scaffolding term has no dev figure."""
        figures = super().higher_is_better(task, objectives) | {"simulatability": True}
        figures.pop(Scaffolding.name, None)
        return figures

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the loss; a training batch gets the teacher's explanations of its examples."""
        if self.scaffolding is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch, self.rows = inputs["batch"], inputs["rows"]
        with torch.no_grad():
            self.teacher_batch = TeacherBatch.from_batch(
                batch, self.scaffolding.explain_rows(self.rows, batch.attended)
            )
        drawn = seeded_random_state(self._seed("student")) if self.scaffolding.without_lookahead else nullcontext()
        with skip_unread_positions(self.explained, batch), drawn:
            return super().compute_loss(model, {"batch": self.teacher_batch}, return_outputs, num_items_in_batch)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run forward and backward; without a lookahead step, the outer step follows before the gradients are used."""
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.scaffolding is not None and self.scaffolding.without_lookahead:
            self.outer_step(self.state.global_step + 1)
        return loss

    @property
    def scaffold(self) -> Scaffold | None:
        """The explainers of student and teacher, or None for a student without explanations."""
        return None if self.scaffolding is None else self.scaffolding.scaffold

    def outer_step(self, number: int) -> None:
        """Take the outer step that belongs to inner step `number` (from 1), if `number` is a multiple of `interval`.

        It uses the student's last batch and the next held-out batch of the dev data.
        """
        scaffolding, scaffold, teacher_batch = self.scaffolding, self.scaffold, self.teacher_batch
        if scaffolding is None or scaffold is None or scaffold.teacher is None or teacher_batch is None:
            return
        if number % scaffolding.interval:
            return
        # Outer steps are counted in the teacher's optimizer state, so that a resumed run takes the same batches.
        held_out = self._held_out_batch(int(scaffold.teacher.count))
        student = Student(self.explained, scaffold.student, scaffolding.weight)
        weights = student.trainable_weights()
        lookahead = LookaheadStep(student, make_inner_optimizer(self.optimizer, weights), self.args.max_grad_norm)
        with self.accelerator.autocast(), scaffold.teacher.requiring_gradients() as coefficients:
            teacher_explanation = scaffolding.explain_rows(self.rows, teacher_batch.attended)
            chosen: dict[str, Any] = {"seed": self._seed("lookahead")}
            if scaffolding.without_lookahead:
                found = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
                chosen = {"seed": self._seed("student"), "gradients": found}
            slope, loss = lookahead.gradient(teacher_batch, teacher_explanation, held_out, **chosen)
            (gradient,) = torch.autograd.grad(teacher_explanation, coefficients, slope.to(teacher_explanation))
        if not torch.isfinite(gradient).all():
            raise self._not_finite_error("the gradient of the teacher's explainer is")
        scaffold.teacher.step(gradient, scaffolding.rate, scaffolding.max_norm)
        self.outer_losses.append(float(loss))

    def _seed(self, purpose: str) -> int:
        """Return the seed of the numbers drawn for a purpose in this step."""
        context = StepContext(self.args.seed, self.state.global_step, self.args.process_index)
        return context.generator(purpose).initial_seed()

    def _held_out_batch(self, number: int) -> Batch:
        """Return the batch of dev data for outer step `number` (from 0): shuffled epochs, one after the other."""
        data: Any = self.eval_dataset
        size = min(self.args.train_batch_size, len(data))
        epoch, part = divmod(number, len(data) // size)
        order = torch.randperm(len(data), generator=StepContext(self.args.seed, epoch).generator("held out"))
        rows = order[part * size : (part + 1) * size].tolist()
        batch: Batch = self.data_collator([data[row] for row in rows])["batch"]
        return batch.to(self.args.device)

    def score_predictions(self, predicted: Any, dataset: Any) -> dict[str, float]:
        """Return the figures against people's labels if there are any, and the simulatability of the teacher."""
        task, gold = self.explained.task, restore_gold(dataset)
        sim = simulatability(task.name, compare_form(task, predicted), get_teacher_predictions(dataset))
        return super().score_predictions(predicted, gold or dataset) | {"simulatability": sim}

    def _loss_and_terms(self) -> dict[str, float]:
        """Return the figures without the scaffolding term, since dev data has no explanations of the teacher."""
        figures = super()._loss_and_terms()
        figures.pop(Scaffolding.name, None)
        return figures

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the mean outer loss since the last log, and the number of heads that the teacher's explainer uses."""
        teacher = None if self.scaffold is None else self.scaffold.teacher
        if "loss" in logs and self.outer_losses and teacher is not None:
            active = int((teacher.explainer.head_weights() > 0).sum())
            mean = sum(self.outer_losses) / len(self.outer_losses)
            logs = logs | {"outer_simulation": mean, "active_heads": float(active)}
            self.outer_losses = []
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.scaffold is not None and self.args.should_save:
            self.scaffold.save(Path(output_dir or self.args.output_dir))


class _OuterStepCallback(TrainerCallback):
    """Takes the outer step after the student's step."""

    def __init__(self, trainer: ScaffoldTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the outer step before this step is evaluated or saved."""
        scaffolding = self.trainer.scaffolding
        if scaffolding is not None and not scaffolding.without_lookahead:
            self.trainer.outer_step(state.global_step)
