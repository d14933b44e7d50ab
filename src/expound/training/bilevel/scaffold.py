"""A student that learns from a teacher, and the teacher's explainer that learns to teach (SMaT)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from datasets import ClassLabel, Dataset, List, Value
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS, Explainer, explainer
from expound.explainers.learned.learned_attention import LearnedAttention, softmax_over
from expound.explainers.learned.parameterized_attention import Layers, Normalizer, ParameterizedAttention
from expound.metrics.simulatability import simulatability
from expound.models import Batch, Capture, ExplainedModel
from expound.models.batch import to_float32
from expound.models.encoding.encode import make_batches
from expound.models.encoding.labels import renumber_labels
from expound.models.passes.hooks import skip_unread_positions
from expound.models.tasks import Task
from expound.objectives import Objective, StepContext, TrainingStep
from expound.training.bilevel.lookahead import (
    LookaheadStep,
    Student,
    clip_factor,
    explanation_divergence,
    make_inner_optimizer,
    seeded_random_state,
)
from expound.training.loop import evaluation
from expound.training.loop.run import vocabulary_digest
from expound.training.loop.training_module import Collator, TrainingModule

ROW, GOLD = "row", "gold"
Array = NDArray[Any]


@dataclass(frozen=True)
class TeacherBatch(Batch):
    """A batch with the teacher's predictions as labels, and its explanation [B, L], zero at padding."""

    teacher_explanation: Tensor | None = None

    @classmethod
    def from_batch(cls, batch: Batch, teacher_explanation: Tensor) -> Self:
        """Return the batch with an explanation."""
        return cls(
            **{field.name: getattr(batch, field.name) for field in fields(Batch)},
            teacher_explanation=teacher_explanation,
        )


class RowCollator(Collator):
    """A collator that also returns the numbers of a batch's examples in the dataset."""

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return {"batch", "rows" [B]}, without "rows" for data that has no numbers."""
        batch: dict[str, Any] = dict(super().__call__(rows))
        if ROW in rows[0]:
            batch["rows"] = torch.tensor([row[ROW] for row in rows])
        return batch


class TeacherOutputs:
    """K values for every position of every example, in a memory-mapped file.

    Args:
        values: [positions, K], one example after the other, in any order.
        starts: the first position of each example in `values`.
        lengths: the number of positions of each example.
    """

    def __init__(self, values: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        self.values, self.starts, self.lengths = values, starts, lengths

    # It never changes, so that copies of an objective can share it.
    def __deepcopy__(self, memory: Any) -> Self:
        return self

    def read(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return the values of examples [B, K, L] on the device of `attended` [B, L], zero at padding.

        Raises:
            ExpoundError: an example has another number of positions than the teacher saw.
        """
        result = torch.zeros(*attended.shape, self.values.shape[1])
        real = attended.cpu()
        for place, row in enumerate(rows.tolist()):
            start, length, expected = self.starts[row], self.lengths[row], int(real[place].sum())
            if length != expected:
                raise ExpoundError(
                    f"the teacher cuts row {row} into {length} positions, the student into {expected}: "
                    "give both the same tokenizer, picture size and max_length"
                )
            # Copied, since torch does not support the read-only memory of the map.
            result[place, real[place]] = torch.from_numpy(np.array(self.values[start : start + length]))
        return result.transpose(1, 2).to(attended.device)


def teacher_outputs(
    teacher: ExplainedModel, data: Dataset, compute: Callable[[Batch], Tensor], folder: Path | None = None
) -> TeacherOutputs:
    """Compute values for every position of every example.

    Args:
        teacher: the model that encodes the examples.
        data: examples in canonical form.
        compute: returns values [B, K, L] of a batch.
        folder: folder of the file that keeps the values until the process ends. Default: the folder of temporary files.
    """
    starts, lengths, filled, channels = [0] * len(data), [0] * len(data), 0, 0
    with tempfile.TemporaryFile(dir=folder) as file, torch.no_grad():
        for indices, batch in encode_batches(teacher, data):
            values = compute(batch).transpose(1, 2).float()
            channels = values.shape[2]
            for place, row in enumerate(indices):
                own = values[place, batch.attended[place]].cpu().numpy()
                starts[row], lengths[row] = filled, len(own)
                filled += len(own)
                file.write(own.tobytes())
        file.flush()
        # The map stays valid after its temporary file is closed and removed; the disk space is freed with it.
        return TeacherOutputs(np.memmap(file, np.float32, "r", shape=(filled, channels)), starts, lengths)


def _select_inputs(data: Dataset) -> Dataset:
    """Return the columns that a model reads, without labels and rationales."""
    return data.select_columns([name for name in ("text", "text_pair", "image") if name in data.column_names])


def encode_batches(model: ExplainedModel, data: Dataset) -> Iterator[tuple[list[int], Batch]]:
    """Yield the data in batches of similar length, with the numbers of their examples."""
    rows = list(_select_inputs(data))
    for indices in make_batches(model, rows):
        yield indices, model.encode([rows[index] for index in indices])


def predict_dataset(model: ExplainedModel, data: Dataset) -> Array:
    """Return a model's predictions in the data's order, see `evaluation.compute_predictions`."""
    return evaluation.predict_rows(model, _select_inputs(data))


def compare_form(task: Task, predicted: Array) -> Array:
    """Return the predictions in the form in which students are compared: classes [n], values [n] or spans [n, 2]."""
    if task.supports("classes"):
        classes: Array = predicted.argmax(-1)
        return classes
    if task.predicts_number:
        return predicted[:, 0]
    return predicted.astype(np.int64)


def label_by_teacher(teacher: ExplainedModel, data: Dataset) -> Dataset:
    """Return the data for a student: labels are the teacher's predictions, people's labels become the column `gold`.

    Labels are numbered as the teacher's outputs, and examples get a column `row`. Rationales are left out.

    Raises:
        ExpoundError: simulatability is not defined for the teacher's task.
    """
    task = teacher.task
    if not task.supports("one_target"):
        raise ExpoundError("students learn one class, a value or a span per example, not several labels at once")
    labels = compare_form(task, predict_dataset(teacher, data))
    column = "answer" if task.reads_context else "label"
    kept = _select_inputs(data)
    if task.reads_context:
        spans = []
        for start, end in labels.tolist():
            spans.append([] if start == end else [[start, end]])
        kept = kept.add_column(column, spans, feature=List(List(Value("int32"))))
    else:
        feature = Value("float32")
        if not task.predicts_number:
            feature = ClassLabel(names=list(teacher.labels))
        kept = kept.add_column(column, labels.tolist(), feature=feature)
    if column in data.column_names:
        gold = [row[column] for row in renumber_labels(teacher, data)]
        kept = kept.add_column(GOLD, gold, feature=kept.features[column])
    kept = kept.add_column(ROW, list(range(len(kept))))
    kept.info.description = data.info.description
    return kept


def restore_gold(data: Dataset) -> Dataset | None:
    """Return a student's data with people's labels restored, or None without such labels."""
    column = "answer" if "answer" in data.column_names else "label"
    if GOLD not in data.column_names:
        return None
    return data.remove_columns(column).rename_column(GOLD, column)


def get_teacher_predictions(data: Dataset) -> Array:
    """Return the teacher's predictions in a student's data, in the form of `compare_form`."""
    if "answer" in data.column_names:
        return np.array([spans[0] if spans else (0, 0) for spans in data["answer"][:]])
    return np.asarray(data["label"][:])


LEARNED, NONE = "learned", "none"
StudentExplainer = Literal["parameterized_attention", "interpretable_attention"]
STATIC: dict[str, Layers] = {"untrained": "all", "untrained_last": "last"}
TEMPERATURES = {"input_x_gradient": 0.1, "integrated_gradients": 0.5}
INTEGRATED: dict[str, Any] = {"n_steps": 10, "baselines": "zero"}
LAST = ("untrained_last", "attention_last")


class TeacherExplainer(nn.Module):
    """An explainer that learns to teach, with the state of its AdamW (β .9, .999, ε 1e-8, no decay) in buffers."""

    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, explainer: ParameterizedAttention) -> None:
        super().__init__()
        # Frozen outside of `requiring_gradients`, or the student's optimizer would step the coefficients, too.
        self.explainer = explainer.requires_grad_(False)
        self.register_buffer("mean", torch.zeros_like(explainer.coefficients))
        self.register_buffer("square", torch.zeros_like(explainer.coefficients))
        self.register_buffer("count", torch.tensor(0))

    @contextmanager
    def requiring_gradients(self) -> Iterator[Tensor]:
        """Yield the coefficients, which require gradients inside the block."""
        self.explainer.requires_grad_(True)
        try:
            yield self.explainer.coefficients
        finally:
            self.explainer.requires_grad_(False)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float, max_norm: float) -> None:
        """Take one AdamW step along a gradient clipped to a norm."""
        gradient = gradient * clip_factor([gradient], max_norm)
        self.count += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        scale = (self.square / (1 - 0.999**self.count)).sqrt() + 1e-8
        self.explainer.coefficients.sub_(rate * self.mean / (1 - 0.9**self.count) / scale)


class Scaffold(nn.Module):
    """The modules learned beside the student: its explainer and, if it learns, the teacher's."""

    def __init__(self, student: LearnedAttention, teacher: ParameterizedAttention | None) -> None:
        super().__init__()
        self.student = student
        self.teacher = None if teacher is None else TeacherExplainer(teacher)

    def save(self, folder: Path) -> None:
        """Save each explainer in a folder of its own, for the id `parameterized_attention:PATH`."""
        self.student.save_pretrained(folder / "student_explainer")
        if self.teacher is not None:
            self.teacher.explainer.save_pretrained(folder / "teacher_explainer")


@dataclass(frozen=True)
class Scaffolding(Objective):
    """KL(e_T ‖ e_S) of the teacher's and the student's explanations (Fernandes et al. 2022, eq. 2 and 3).

    The term is 0 for a batch without the teacher's explanations, as in evaluation.

    Args:
        method: the teacher's explainer by name.
        teacher_outputs: the teacher's explanation of every training example; for a learned explainer, every head's
            logits, which its coefficients mix.
        teacher: the teacher's coefficients, if they are learned.
        weight: β.
        normalizer: how both explainers normalize their coefficients.
        student_explainer: the student's explainer by id; IvRA's students have `interpretable_attention`.
        used_layers: whether `parameterized_attention` of the student mixes the heads of `all` layers or of the `last`.
        special_tokens: whether the student's explainer scores special tokens, as the teacher's does.
        lookahead: whether the meta-gradient is taken through a further step of the student on the same batch (eq. 8),
            or through the step that the student takes itself, whose gradients exist already.
        interval: number of inner steps per outer step.
        rate: the outer learning rate.
        max_norm: clipping norm of the outer gradient.
        source: digest of the teacher and its explainer, for a run's record.
        vocabulary: digest of the teacher's vocabulary; None for images.
        scaffold: the explainers, made by `prepare`.
    """

    method: str
    teacher_outputs: TeacherOutputs
    teacher: ParameterizedAttention | None = None
    weight: float = 5.0
    normalizer: Normalizer = "sparsemax"
    student_explainer: StudentExplainer = "parameterized_attention"
    used_layers: Layers = "all"
    special_tokens: bool = True
    lookahead: bool = True
    interval: int = 1
    rate: float = 5e-4
    max_norm: float = 5.0
    source: str = ""
    vocabulary: str | None = None
    scaffold: Scaffold | None = None
    name: ClassVar[str] = "scaffolding"

    @property
    def without_lookahead(self) -> bool:
        """Whether the teacher's explainer learns through the student's own steps."""
        return self.teacher is not None and not self.lookahead

    def prepare(self, model: ExplainedModel) -> Self:
        """Return the term with a new explainer for a student, and a copy of the teacher's.

        Raises:
            ExpoundError: the student has another vocabulary.
        """
        # e_T and e_S are compared position by position, which needs the same tokens.
        if vocabulary_digest(model.processing_class) != self.vocabulary:
            raise ExpoundError(
                "teacher and student have different vocabularies, so the student cannot learn from the teacher's "
                "explanations: give both the same tokenizer, or train the student without any (explainer none)"
            )
        kind: Any = EXPLAINERS[self.student_explainer]
        settings: dict[str, Any] = {"normalizer": self.normalizer, "special_tokens": self.special_tokens}
        if kind is ParameterizedAttention:
            settings["used_layers"] = self.used_layers
        own = kind.for_model(model, **settings)
        return replace(self, scaffold=Scaffold(own, deepcopy(self.teacher)))

    @property
    def capture(self) -> Capture:
        """Queries and keys of the attention heads, which the explainers read."""
        return Capture(heads=True, differentiable_twice=self.without_lookahead)

    @property
    def learned(self) -> nn.Module | None:
        """The explainers of student and teacher, which are trained and saved with the student."""
        return self.scaffold

    @property
    def learned_teacher(self) -> TeacherExplainer | None:
        """The teacher's explainer that learns to teach, if it does."""
        return None if self.scaffold is None else self.scaffold.teacher

    @property
    def params(self) -> dict[str, Any]:
        """The settings, without the learned weights."""
        names = ["method", "weight", "normalizer", "student_explainer", "used_layers", "special_tokens", "source"]
        if self.teacher is not None:
            names += ["lookahead", "interval", "rate", "max_norm"]
        return {name: getattr(self, name) for name in names}

    def __call__(self, step: TrainingStep) -> Tensor:
        """Compute KL(e_T ‖ e_S), a scalar; 0 for a batch without the teacher's explanations."""
        batch = step.batch
        if not isinstance(batch, TeacherBatch) or batch.teacher_explanation is None or self.scaffold is None:
            return step.outputs.logits.new_zeros(())
        no_target = torch.zeros(len(batch), dtype=torch.long, device=batch.device)
        (student,) = self.scaffold.student.compute(step.model, batch, [no_target], step.outputs)
        return explanation_divergence(batch.teacher_explanation, student.scores)

    def explain_rows(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return the teacher's explanations e_T [B, L] of training examples, with a graph to trainable coefficients."""
        outputs = self.teacher_outputs.read(rows, attended)
        teacher = self.learned_teacher
        if teacher is None:
            return outputs[:, 0]
        by_layer: Tensor = outputs.unflatten(1, teacher.explainer.coefficients.shape)
        return teacher.explainer.mix_heads(by_layer, attended)


def make_static_explainer(name: str, teacher: ExplainedModel, normalizer: Normalizer = "sparsemax") -> Explainer:
    """Return a teacher's explainer that does not learn to teach.

    `untrained` and `untrained_last` are the mean over the heads of all layers or of the last one. All other names are
    registry ids, such as `parameterized_attention:PATH` for a learned explainer.
    """
    # SMaT's code takes 10 steps from a zero baseline for integrated gradients; parameters in the id override this.
    if name in STATIC:
        return ParameterizedAttention.for_model(teacher, STATIC[name], normalizer)
    if name.partition("?")[0] == "integrated_gradients":
        return explainer(name, **{key: value for key, value in INTEGRATED.items() if f"{key}=" not in name})
    return explainer(name, model=teacher)


def normalize_scores(method: Explainer, scores: Tensor, attended: Tensor) -> Tensor:
    """Return scores [B, L] as distributions over real positions.

    Signed scores go through a softmax, unsigned scores are divided by their sum. All scores of 0 give a uniform
    distribution. `LearnedAttention` gives distributions already.
    """
    scores = to_float32(scores).masked_fill(~attended, 0.0)
    if isinstance(method, LearnedAttention):
        return scores
    # The temperatures are those of the authors' code; the paper has none.
    if method.signed:
        return softmax_over(scores / TEMPERATURES.get(method.name, 0.5), attended)
    total = scores.sum(1, keepdim=True)
    uniform = attended / attended.sum(1, keepdim=True)
    return torch.where(total > 0, scores / total.clamp(min=torch.finfo(scores.dtype).tiny), uniform)


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
        if scaffolding.teacher is not None:
            if args.gradient_accumulation_steps > 1 or args.world_size > 1 or self.masked_share:
                # The lookahead step would differ from the student's steps.
                raise ExpoundError(
                    "a teacher's explainer is learned from whole steps in one process: set "
                    "gradient_accumulation_steps to 1, masked_share to 0, and start one process"
                )
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
