"""The bi-level loop: the student steps, and the teacher's explainer steps after it (SMaT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from exegete.errors import ExegeteError
from exegete.metrics.simulatability import simulatability
from exegete.models import Batch, ExplainedModel
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.objectives import CrossEntropy, Objective, StepContext
from exegete.training.bilevel.inner_optimizers import inner_optimizer_of
from exegete.training.bilevel.lookahead import LookaheadStep, Student, drawing
from exegete.training.bilevel.replayed_pass import RecordedPass
from exegete.training.bilevel.scaffold import Scaffold, Scaffolding, single
from exegete.training.bilevel.teacher_outputs import RowCollator, TaughtBatch, decided, teacher_answers, with_gold
from exegete.training.loop.trainer import ObjectiveTrainer


class ScaffoldTrainer(ObjectiveTrainer):
    """Trains a student on `teacher_outputs.taught` data; with a `Scaffolding` whose teacher learns, that one too.

    After every `interval`-th step of the student (eq. 6 and 7) one of the teacher's coefficients (eq. 8 and 9), on a
    batch of dev data: its epochs follow each other, each in an order of its own. The student is never set back. Where
    there is no lookahead step, the coefficients' own comes between the student's gradients and its step along them.
    Evaluation has `simulatability` beside the task's figures, which are against people's labels where there are any,
    else against the teacher's answers.
    """

    def __init__(
        self,
        model: ExplainedModel,
        args: TrainingArguments,
        objectives: Sequence[Objective] = (CrossEntropy(),),
        **kwargs: Any,
    ) -> None:
        objectives = [each.prepared(model) if isinstance(each, Scaffolding) else each for each in objectives]
        self.scaffolding = next((each for each in objectives if isinstance(each, Scaffolding)), None)
        if self.scaffolding is not None and args.gradient_checkpointing:
            raise ExegeteError("a student's steps leave out what no answer needs: set gradient_checkpointing=False")
        self.taught_batch: TaughtBatch | None = None
        self.rows = torch.zeros(0, dtype=torch.long)
        self.before = RecordedPass()
        self.outer_losses: list[float] = []
        super().__init__(model, args, objectives, **({"data_collator": RowCollator(model)} | kwargs))
        if self.scaffolding is not None and self.scaffolding.teacher is not None:
            single(self.args.gradient_accumulation_steps, self.args.world_size, self.options.masked_share)
            if self.scaffolding.without_lookahead and self.accelerator.scaler is not None:
                raise ExegeteError("fp16 scales the student's gradients: keep the lookahead step, or train in bf16")
            self.add_callback(_AfterTheStudent(self))

    @staticmethod
    def stopping(patience: int, threshold: float) -> TrainerCallback:
        """The run ends when evaluations without an improvement exceed `patience`."""
        return EarlyStoppingCallback(patience + 1, threshold)

    @classmethod
    def directions(cls, task: str, objectives: Sequence[Objective]) -> dict[str, bool]:
        """Adds the figure `simulatability`, of which higher is better."""
        return super().directions(task, objectives) | {"simulatability": True}

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """As ever; a training batch gets the teacher's explanations of its rows."""
        if self.scaffolding is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        batch, self.rows = inputs["batch"], inputs["rows"]
        with torch.no_grad():
            self.taught_batch = TaughtBatch.of(batch, self.scaffolding.explanation(self.rows, batch.attended))
        self.before = RecordedPass()
        with skip_unread_positions(self.explained), ExitStack() as stack:
            if self.scaffolding.without_lookahead:
                stack.enter_context(drawing(self._seed("student")))
                stack.enter_context(self.before)
            return super().compute_loss(model, {"batch": self.taught_batch}, return_outputs, num_items_in_batch)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """As the base class; without a lookahead step the teacher's explainer learns from the step's own gradients."""
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.scaffolding is not None and self.scaffolding.without_lookahead:
            self.outer_step(self.state.global_step + 1)
        return loss

    @property
    def scaffold(self) -> Scaffold | None:
        """The explainers of student and teacher; None where no explanation is learned from."""
        return None if self.scaffolding is None else self.scaffolding.scaffold

    def outer_step(self, number: int) -> None:
        """One step of the teacher's coefficients, from the student's last batch and the next one held out.

        `number`: of the student's step, the first is 1; none but every `interval`-th has one.
        """
        scaffolding, scaffold, taught_batch = self.scaffolding, self.scaffold, self.taught_batch
        if scaffolding is None or scaffold is None or scaffold.teacher is None or taught_batch is None:
            return
        if number % scaffolding.interval:
            return
        held_out = self._held_out(int(scaffold.teacher.count))
        student = Student(self.explained, scaffold.student, scaffolding.weight)
        update = inner_optimizer_of(self.optimizer, student.weights())
        lookahead = LookaheadStep(student, update, max_norm=self.args.max_grad_norm)
        with self.accelerator.autocast(), scaffold.teacher.requiring_gradients() as coefficients:
            taught = scaffolding.explanation(self.rows, taught_batch.attended)
            if scaffolding.without_lookahead:
                slope, loss = lookahead.gradient_of_own_step(
                    taught_batch, taught, held_out, self._seed("student"), self.before
                )
            else:
                slope, loss = lookahead.gradient(taught_batch, taught, held_out, self._seed("lookahead"))
            (gradient,) = torch.autograd.grad(taught, coefficients, slope.to(taught))
        if not torch.isfinite(gradient).all():
            raise self._broken("the gradient of the teacher's explainer is")
        scaffold.teacher.step(gradient, scaffolding.rate, scaffolding.max_norm)
        self.outer_losses.append(float(loss))

    def _seed(self, purpose: str) -> int:
        """Of what is drawn in this step."""
        context = StepContext(self.args.seed, self.state.global_step, self.args.process_index)
        return context.generator(purpose).initial_seed()

    def _held_out(self, number: int) -> Batch:
        """The batch of dev data for outer step `number` (from 0)."""
        data: Any = self.eval_dataset
        size = min(self.args.train_batch_size, len(data))
        epoch, part = divmod(number, len(data) // size)
        order = torch.randperm(len(data), generator=StepContext(self.args.seed, epoch).generator("held out"))
        rows = order[part * size : (part + 1) * size].tolist()
        batch: Batch = self.data_collator([data[row] for row in rows])["batch"]
        return batch.to(self.args.device)

    def scored(self, predicted: Any, dataset: Any) -> dict[str, float]:
        """Figures against people's labels, if there are any, and how well the teacher is foretold."""
        gold, task = with_gold(dataset), self.explained.task.name
        figures = super().scored(predicted, dataset if gold is None else gold)
        return figures | {"simulatability": simulatability(task, decided(task, predicted), teacher_answers(dataset))}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the outer loss since the last log, and how many heads the teacher's explainer looks at."""
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


class _AfterTheStudent(TrainerCallback):
    """Lets the teacher's explainer step."""

    def __init__(self, trainer: ScaffoldTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Before anything of this step is saved or evaluated."""
        scaffolding = self.trainer.scaffolding
        if scaffolding is not None and not scaffolding.without_lookahead:
            self.trainer.outer_step(state.global_step)
