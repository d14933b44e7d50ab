"""A student that learns from a teacher, whose explainer steps after the student does (SMaT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback

from expound.errors import ExpoundError
from expound.metrics.simulatability import simulatability
from expound.models import Batch, ExplainedModel
from expound.models.passes.hooks import skip_unread_positions
from expound.objectives import Objective, StepContext
from expound.training.bilevel.inner_optimizers import make_inner_optimizer
from expound.training.bilevel.lookahead import LookaheadStep, Student, seeded_random_state
from expound.training.bilevel.scaffold import Scaffolding, require_single_process
from expound.training.bilevel.teacher_outputs import (
    RowCollator,
    TeacherBatch,
    compare_form,
    get_teacher_predictions,
    restore_gold,
)
from expound.training.loop.data import Collator
from expound.training.loop.training_module import TrainingModule


class ScaffoldModule(TrainingModule):
    """A student of data labeled by `label_by_teacher`; `OuterStep` trains a learned teacher explainer with it.

    Evaluations have the figure `simulatability`. The task's figures are against people's labels if the data has them,
    else against the teacher's predictions.
    """

    def __init__(self, explained: ExplainedModel, objectives: Sequence[Objective], masked_share: float = 0.0) -> None:
        super().__init__(explained, objectives, masked_share)
        self.scaffolding = next((each for each in self.objectives if isinstance(each, Scaffolding)), None)
        self.teacher_batch: TeacherBatch | None = None
        self.rows = torch.zeros(0, dtype=torch.long)
        self.outer_losses: list[float] = []

    def make_collator(self) -> Collator:
        """Return a collator that also returns the numbers of examples."""
        return RowCollator(self.explained)

    def attach(self, trainer: Trainer) -> None:
        """Add the outer step if the teacher's explainer learns; raise ExpoundError for arguments that it refuses."""
        super().attach(trainer)
        args, scaffolding = trainer.args, self.scaffolding
        if scaffolding is None:
            return
        if args.gradient_checkpointing:
            # The student's passes skip positions that no answer depends on, which checkpointing would run again.
            raise ExpoundError("gradient checkpointing does not apply to students: set gradient_checkpointing=False")
        if scaffolding.teacher is not None:
            require_single_process(args.gradient_accumulation_steps, args.world_size, self.masked_share)
            if scaffolding.without_lookahead and trainer.accelerator.scaler is not None:
                # The backward pass leaves gradients times the scaler's factor in `.grad`.
                raise ExpoundError("fp16 scales the student's gradients: keep the lookahead step, or train in bf16")
            trainer.add_callback(OuterStep(trainer, self, scaffolding))

    @classmethod
    def higher_is_better(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Add the figure `simulatability`; higher is better. The scaffolding term has no dev figure."""
        figures = super().higher_is_better(task, objectives) | {"simulatability": True}
        figures.pop(Scaffolding.name, None)
        return figures

    def forward(self, batch: Batch, context: StepContext | None = None, rows: Tensor | None = None) -> dict[str, Any]:
        """Return the outputs; a training batch gets the explanations of the teacher of its examples, the `rows` [B]."""
        if self.scaffolding is None or rows is None or not self.training:
            return super().forward(batch, context)
        self.rows = rows
        # The teacher's explanations keep their precision under autocast.
        with torch.no_grad(), torch.autocast(batch.device.type, enabled=False):
            self.teacher_batch = TeacherBatch.from_batch(batch, self.scaffolding.explain_rows(rows, batch.attended))
        drawn: Any = nullcontext()
        if self.scaffolding.without_lookahead:
            drawn = seeded_random_state(self.context.generator("student").initial_seed())
        with skip_unread_positions(self.explained, batch), drawn:
            return super().forward(self.teacher_batch, context)

    def score(self, predicted: Any, dataset: Any, batch_size: int) -> dict[str, float]:
        """Return the figures against people's labels if there are any, and the simulatability of the teacher."""
        task, gold = self.explained.task, restore_gold(dataset)
        sim = simulatability(task.name, compare_form(task, predicted), get_teacher_predictions(dataset))
        return super().score(predicted, gold or dataset, batch_size) | {"simulatability": sim}

    def pop_evaluation(self) -> dict[str, float]:
        """Return the figures without the scaffolding term, since dev data has no explanations of the teacher."""
        figures = super().pop_evaluation()
        figures.pop(Scaffolding.name, None)
        return figures

    def pop_logs(self) -> dict[str, float]:
        """Add the mean outer loss since the last log, and the number of heads that the teacher's explainer uses."""
        logs = super().pop_logs()
        if self.outer_losses and self.scaffolding is not None and self.scaffolding.learned_teacher is not None:
            active = int((self.scaffolding.learned_teacher.explainer.head_weights() > 0).sum())
            mean = sum(self.outer_losses) / len(self.outer_losses)
            logs |= {"outer_simulation": mean, "active_heads": float(active)}
            self.outer_losses = []
        return logs

    def save(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Save also the explainers of student and teacher."""
        super().save(folder, state_dict)
        if self.scaffolding is not None and self.scaffolding.scaffold is not None:
            self.scaffolding.scaffold.save(folder)


class OuterStep(TrainerCallback):
    """Trains the teacher's explainer: the outer steps of the bi-level loop (Fernandes et al. 2022).

    After every `interval`-th inner step, of the student (SMaT, eq. 6 and 7), one outer step updates the teacher's
    coefficients (eq. 8 and 9) on a batch of dev data. The student is never reset. Without a lookahead step, the outer
    step comes between the student's backward pass and its step.
    """

    def __init__(self, trainer: Any, module: ScaffoldModule, scaffolding: Scaffolding) -> None:
        self.trainer, self.module, self.scaffolding = trainer, module, scaffolding

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the outer step before the gradients are used, if it has no lookahead step."""
        if self.scaffolding.without_lookahead:
            self.take(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the outer step before this step is evaluated or saved."""
        if not self.scaffolding.without_lookahead:
            self.take(state.global_step)

    def take(self, number: int) -> None:
        """Take the outer step that belongs to inner step `number` (from 1), if `number` is a multiple of `interval`.

        It uses the student's last batch and the next held-out batch of the dev data.
        """
        trainer, module, scaffolding = self.trainer, self.module, self.scaffolding
        teacher, batch = scaffolding.learned_teacher, module.teacher_batch
        if number % scaffolding.interval or teacher is None or batch is None or scaffolding.scaffold is None:
            return
        # Outer steps are counted in the teacher's optimizer state, so that a resumed run takes the same batches.
        held_out = self.held_out_batch(int(teacher.count))
        student = Student(module.explained, scaffolding.scaffold.student, scaffolding.weight)
        weights = student.trainable_weights()
        chosen: dict[str, Any] = {"seed": self.seed("lookahead")}
        max_norm = trainer.args.max_grad_norm
        if scaffolding.without_lookahead:
            # These gradients are clipped already.
            found = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
            chosen, max_norm = {"seed": self.seed("student"), "gradients": found}, None
        lookahead = LookaheadStep(student, make_inner_optimizer(trainer.optimizer, weights), max_norm)
        with trainer.accelerator.autocast(), teacher.requiring_gradients() as coefficients:
            teacher_explanation = scaffolding.explain_rows(module.rows, batch.attended)
            slope, loss = lookahead.gradient(batch, teacher_explanation, held_out, **chosen)
            (gradient,) = torch.autograd.grad(teacher_explanation, coefficients, slope.to(teacher_explanation))
        if not torch.isfinite(gradient).all():
            raise module.not_finite_error("the gradient of the teacher's explainer is")
        teacher.step(gradient, scaffolding.rate, scaffolding.max_norm)
        module.outer_losses.append(float(loss))

    def seed(self, purpose: str) -> int:
        """Return the seed of the numbers drawn for a purpose in this step."""
        args, state = self.trainer.args, self.trainer.state
        return StepContext(args.seed, state.global_step, args.process_index).generator(purpose).initial_seed()

    def held_out_batch(self, number: int) -> Batch:
        """Return the batch of dev data for outer step `number` (from 0): shuffled epochs, one after the other."""
        args, data = self.trainer.args, self.trainer.eval_dataset
        size = min(args.train_batch_size, len(data))
        epoch, part = divmod(number, len(data) // size)
        order = torch.randperm(len(data), generator=StepContext(args.seed, epoch).generator("held out"))
        rows = order[part * size : (part + 1) * size].tolist()
        return self.module.explained.encode([data[row] for row in rows]).to(args.device)
