"""Outputs of a frozen teacher on a dataset, computed once: its answers, and scores for every position."""

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

from exegete.errors import ExegeteError
from exegete.explainers.attribute_examples import make_batches
from exegete.models import Batch, ExplainedModel
from exegete.models.encoding.labels import renumber_labels
from exegete.models.outputs import require_finite_logits
from exegete.training.loop import evaluation
from exegete.training.loop.data import Collator

ROW, GOLD = "row", "gold"
Array = NDArray[Any]


@dataclass(frozen=True)
class TeacherBatch(Batch):
    """A batch with the teacher's answers as labels, and its explanation [B, L], zero at padding."""

    teacher_explanation: Tensor | None = None

    @classmethod
    def from_batch(cls, batch: Batch, teacher_explanation: Tensor) -> Self:
        """The batch with an explanation."""
        return cls(
            **{field.name: getattr(batch, field.name) for field in fields(Batch)},
            teacher_explanation=teacher_explanation,
        )


class RowCollator(Collator):
    """Also says which rows of the dataset a batch is made of."""

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """{"batch", "rows" [B]}; no "rows" for data that is not numbered."""
        numbers = {"rows": torch.tensor([row[ROW] for row in rows])} if ROW in rows[0] else {}
        return super().__call__(rows) | numbers


class TeacherOutputs:
    """K numbers for every position of every row, in a file without a name: memory holds what is being read.

    Nothing of it changes once made, so copies of what refers to it share it.

    Args:
        values: [positions, K], all rows' one after the other, in any order.
        starts: where each row's begin.
        lengths: how many positions each row has.
    """

    def __init__(self, values: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        self.values, self.starts, self.lengths = values, starts, lengths

    def __deepcopy__(self, memory: Any) -> Self:
        return self

    def read(self, rows: Tensor, attended: Tensor) -> Tensor:
        """[B, K, L] on the device of `attended` [B, L], which says where the positions stand; zero at padding.

        Raises:
            ExegeteError: a row has another number of positions here than where the numbers were made.
        """
        found = torch.zeros(*attended.shape, self.values.shape[1])
        real = attended.cpu()
        for place, row in enumerate(rows.tolist()):
            start, length, here = self.starts[row], self.lengths[row], int(real[place].sum())
            if length != here:
                raise ExegeteError(
                    f"the teacher cuts row {row} into {length} positions, the student into {here}: "
                    "give both the same tokenizer, picture size and max_length"
                )
            found[place, real[place]] = torch.from_numpy(np.array(self.values[start : start + length]))
        return found.transpose(1, 2).to(attended.device)


def teacher_outputs(
    teacher: ExplainedModel, data: Dataset, say: Callable[[Batch], Tensor], folder: Path | None = None
) -> TeacherOutputs:
    """`say` [B, K, L] of every row, padding left out.

    `folder`: on whose disk the numbers lie until the process ends; default: that of temporary files.
    """
    starts, lengths, filled, channels = [0] * len(data), [0] * len(data), 0, 0
    with tempfile.TemporaryFile(dir=folder) as file, torch.no_grad():
        for indices, batch in encode_batches(teacher, data):
            values = say(batch).transpose(1, 2).float()
            channels = values.shape[2]
            for place, row in enumerate(indices):
                own = values[place, batch.attended[place]].cpu().numpy()
                starts[row], lengths[row] = filled, len(own)
                filled += len(own)
                file.write(own.tobytes())
        file.flush()
        return TeacherOutputs(np.memmap(file, np.float32, "r", shape=(filled, channels)), starts, lengths)


def encode_batches(model: ExplainedModel, data: Dataset) -> Iterator[tuple[list[int], Batch]]:
    """The data in batches of like length, with their rows' numbers."""
    rows = list(data.select_columns([name for name in ("text", "text_pair", "image") if name in data.column_names]))
    for indices in make_batches(model, rows):
        yield indices, model.encode([rows[index] for index in indices])


@torch.no_grad()
def predict_answers(model: ExplainedModel, data: Dataset) -> Array:
    """A model's answers in the data's order, see `evaluation.compute_predictions`."""
    found: dict[int, Any] = {}
    with model.evaluation_mode():
        for indices, batch in encode_batches(model, data):
            predicted = (
                evaluation.compute_predictions(model, batch, require_finite_logits(model(batch).logits))
                .float()
                .cpu()
                .numpy()
            )
            found |= dict(zip(indices, predicted, strict=True))
    return np.stack([found[index] for index in range(len(data))])


def compare_form(task: str, predicted: Array) -> Array:
    """The answers compared between student and teacher: classes [n], values [n] or spans [n, 2]."""
    if task == "classification":
        classes: Array = predicted.argmax(-1)
        return classes
    return predicted[:, 0] if task == "regression" else predicted.astype(np.int64)


def label_by_teacher(teacher: ExplainedModel, data: Dataset) -> Dataset:
    """The data as a student sees it: the teacher's answers for labels, rows numbered, people's labels as `gold`.

    Labels are numbered as the teacher's outputs. Rationales are left out.

    Raises:
        ExegeteError: a teacher of a task that has no simulatability.
    """
    task = teacher.task.name
    if task == "multi_label":
        raise ExegeteError("students learn one class, a value or a span an example, not several labels at once")
    said = compare_form(task, predict_answers(teacher, data))
    column = "answer" if task == "span" else "label"
    kept = data.select_columns([name for name in ("text", "text_pair", "image") if name in data.column_names])
    if task == "span":
        spans = [[] if start == end else [[int(start), int(end)]] for start, end in said]
        kept = kept.add_column(column, spans, feature=List(List(Value("int32"))))
    else:
        feature = Value("float32") if task == "regression" else ClassLabel(names=list(teacher.labels))
        kept = kept.add_column(column, said.tolist(), feature=feature)
    if column in data.column_names:
        gold = [row[column] for row in renumber_labels(teacher, data)]
        kept = kept.add_column(GOLD, gold, feature=kept.features[column])
    kept = kept.add_column(ROW, list(range(len(kept))))
    kept.info.description = data.info.description
    return kept


def restore_gold(data: Dataset) -> Dataset | None:
    """Taught data with people's labels in their place; None where there are none."""
    column = "answer" if "answer" in data.column_names else "label"
    if GOLD not in data.column_names:
        return None
    return data.remove_columns(column).rename_column(GOLD, column)


def get_teacher_answers(data: Dataset) -> Array:
    """The teacher's answers in taught data, as `compare_form` gives them."""
    if "answer" in data.column_names:
        return np.array([spans[0] if spans else (0, 0) for spans in data["answer"][:]])
    return np.asarray(data["label"][:])
