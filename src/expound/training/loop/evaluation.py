"""Predictions of a batch, and the usual figures of each task for them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor

from expound.metrics.simulatability import pearson
from expound.models import Batch, ExplainedModel
from expound.models.batch import require_finite_logits
from expound.models.encoding.encode import make_batches
from expound.objectives import task_losses

Array = NDArray[Any]


def compute_predictions(model: ExplainedModel, batch: Batch, logits: Tensor) -> Tensor:
    """Return probabilities [B, C], a regression's values [B, 1], or the characters of answers in the context [B, 2].

    An answer of (0, 0) means that there is no answer. For generated text: the mean log-probability of the response's
    tokens [B, 1].
    """
    if model.task.reads_context:
        return find_answer_characters(batch, predict_answer_positions(model, batch, logits))
    if model.task.is_generated:
        return -task_losses(model, batch, logits)[0][:, None]
    return model.task.probabilities(logits)


@torch.no_grad()
def predict_rows(model: ExplainedModel, rows: Sequence[Mapping[str, Any]]) -> Array:
    """Return the model's predictions for rows, in their order; see `compute_predictions`."""
    rows, predicted = list(rows), dict[int, Any]()
    with model.evaluation_mode():
        for indices in make_batches(model, rows):
            batch = model.encode([rows[index] for index in indices])
            answers = compute_predictions(model, batch, require_finite_logits(model(batch).logits))
            predicted |= zip(indices, answers.float().cpu().numpy(), strict=True)
    return np.stack([predicted[index] for index in range(len(rows))])


def predict_answer_positions(model: ExplainedModel, batch: Batch, logits: Tensor) -> Tensor:
    """Return the best start ≤ end inside the context [B, 2], or twice the position of "no answer"."""
    # The first answerable position, [CLS], is the one for "no answer"; it must not be part of an answer.
    answerable = batch.attended if batch.answerable is None else batch.answerable
    none = answerable.long().argmax(1, keepdim=True).expand(-1, 2)
    inside = answerable.scatter(1, none, False)
    best = model.task.predict(logits, replace(batch, answerable=inside))
    found = inside.any(1) & (model.task.score(logits, best) > model.task.score(logits, none))
    return torch.where(found[:, None], best, none)


def find_answer_characters(batch: Batch, positions: Tensor) -> Tensor:
    """Return the answers' start and end in the characters of the context [B, 2]; (0, 0) for no answer."""
    # Alignments count tokens without padding: subtract the padding of tokenizers that pad on the left.
    padding = (batch.length - batch.attended.sum(1)) * ~batch.attended[:, 0]
    unpadded = (positions - padding[:, None]).tolist()
    characters = []
    for alignment, (first, last) in zip(batch.alignments or (), unpadded, strict=True):
        # A span is (side, start, end): side 1 is the context.
        begin, end = alignment.spans[first], alignment.spans[last]
        answer = (0, 0)
        if begin is not None and end is not None and begin[0] == 1:
            answer = (begin[1], end[2])
        characters.append(answer)
    return torch.tensor(characters, device=positions.device)


def score(task: str, predicted: Array, dataset: Dataset) -> dict[str, float]:
    """Return the task's figures for predictions in the dataset's order (see `compute_predictions`).

    Classification: `accuracy`, and `f1_macro` over the classes that occur. Regression: `pearson` (NaN if either side
    is constant) and `rmse`. Several labels: `f1_macro` at probability ½. Spans: `exact_match` and `f1`, the best over
    a question's answers; both are 1 or 0 for unanswerable questions (Rajpurkar et al. 2018). Generated text:
    `log_prob`, the mean over a response's tokens.
    """
    return SCORES[task](predicted, dataset)


def _compute_macro_f1(labels: Array, predicted: Array) -> float:
    # scikit-learn takes longer to import than everything else here, so it is imported when it is used.
    from sklearn.metrics import f1_score  # noqa: PLC0415

    return float(f1_score(labels, predicted, average="macro", zero_division=0))


def _score_classification(predicted: Array, dataset: Dataset) -> dict[str, float]:
    labels, classes = np.asarray(dataset["label"][:]), predicted.argmax(-1)
    return {
        "accuracy": float((labels == classes).mean()),
        "f1_macro": _compute_macro_f1(labels, classes),
    }


def _score_multi_label(predicted: Array, dataset: Dataset) -> dict[str, float]:
    labels = np.asarray(dataset["label"][:])
    return {"f1_macro": _compute_macro_f1(labels, predicted > 0.5)}


def _score_regression(predicted: Array, dataset: Dataset) -> dict[str, float]:
    labels, values = np.asarray(dataset["label"][:], dtype=np.float64), predicted[:, 0].astype(np.float64)
    return {"pearson": pearson(values, labels), "rmse": float(np.sqrt(((labels - values) ** 2).mean()))}


def _score_spans(predicted: Array, dataset: Dataset) -> dict[str, float]:
    exact, overlap = [], []
    for row, (start, end) in zip(dataset, predicted.astype(int).tolist(), strict=True):
        predicted_words = _normalize_words(row["text_pair"][start:end])
        # An unanswerable question has one right answer: no words.
        right = [_normalize_words(row["text_pair"][a:b]) for a, b in row["answer"]] or [[]]
        exact.append(predicted_words in right)
        overlap.append(max(_word_f1(predicted_words, gold) for gold in right))
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(overlap))}


def _normalize_words(text: str) -> list[str]:
    """Return the words in lower case, without punctuation and English articles, as SQuAD's script compares them."""
    letters = text.lower().translate(dict.fromkeys(map(ord, string.punctuation)))
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


def _word_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return the F1 of two bags of words."""
    if not predicted or not gold:
        return float(predicted == gold)
    return 2 * (Counter(predicted) & Counter(gold)).total() / (len(predicted) + len(gold))


SCORES: dict[str, Callable[[Array, Dataset], dict[str, float]]] = {
    "classification": _score_classification,
    "multi_label": _score_multi_label,
    "regression": _score_regression,
    "span": _score_spans,
    "generation": lambda predicted, _: {"log_prob": float(predicted.mean())},
}
HIGHER_IS_BETTER = {
    "classification": {"accuracy": True, "f1_macro": True},
    "multi_label": {"f1_macro": True},
    "regression": {"pearson": True, "rmse": False},
    "span": {"f1": True, "exact_match": True},
    "generation": {"log_prob": True},
}
"""The figures of each task with their direction; the first chooses the best model by default."""
