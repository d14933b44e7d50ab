"""The outputs of a frozen teacher on a dataset, computed once: its predictions, and values for every position."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from datasets import ClassLabel, Dataset, List, Value
from numpy.typing import NDArray
from torch import Tensor

from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel
from expound.models.encoding.encode import make_batches
from expound.models.encoding.labels import renumber_labels
from expound.models.tasks import Task
from expound.training.loop import evaluation
from expound.training.loop.data import Collator

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
