"""How good predictions are, in each task's usual figures."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor

from exegete.metrics.simulatability import pearson
from exegete.models import Batch, ExplainedModel
from exegete.models.generation.model import GeneratingModel
from exegete.objectives import task_losses

Array = NDArray[Any]
ASKED = ("prompt", "messages", "sources")


def compute_predictions(model: ExplainedModel, batch: Batch, logits: Tensor) -> Tensor:
    """Probabilities [B, C], values [B, 1], or for spans the answer's characters of the context [B, 2]; (0, 0): none.

    Of generated text the mean log-probability of the response's tokens [B, 1].
    """
    if model.task.name == "span":
        return find_answer_characters(batch, predict_answer_positions(model, batch, logits))
    if model.task.name == "generation":
        return -task_losses(model, batch, logits)[0][:, None]
    return model.task.probabilities(logits)


def predict_answer_positions(model: ExplainedModel, batch: Batch, logits: Tensor) -> Tensor:
    """[B, 2] The best start ≤ end inside the context, or twice the position that stands for "no answer"."""
    answerable = batch.attended if batch.answerable is None else batch.answerable
    none = answerable.long().argmax(1, keepdim=True).expand(-1, 2)
    inside = answerable.scatter(1, none, False)
    best = model.task.predict(logits, replace(batch, answerable=inside))
    found = inside.any(1) & (model.task.score(logits, best) > model.task.score(logits, none))
    return torch.where(found[:, None], best, none)


def find_answer_characters(batch: Batch, positions: Tensor) -> Tensor:
    """[B, 2] Where the answers stand in the characters of the context; (0, 0) for none."""
    starts = (batch.length - batch.attended.sum(1)) * ~batch.attended[:, 0]
    characters = []
    for alignment, (first, last) in zip(batch.alignments or (), (positions - starts[:, None]).tolist(), strict=True):
        begin, end = alignment.spans[first], alignment.spans[last]
        there = begin is not None and end is not None and begin[0] == 1
        characters.append((begin[1], end[2]) if there else (0, 0))
    return torch.tensor(characters, device=positions.device)


def match_responses(model: ExplainedModel, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.bool_]:
    """[N] Whether a generating model, greedily, gives each row's response token for token, and then ends."""
    wanted = [model.tokenizer(row["response"], add_special_tokens=False)["input_ids"] for row in rows]
    asked = [{name: value for name, value in row.items() if name in ASKED} for row in rows]
    said = cast(GeneratingModel, model).respond(asked, 1 + max(map(len, wanted), default=0))
    ends = model.tokenizer.all_special_ids
    given = [[id for id in row["response"] if id not in ends] for row in said]
    return np.array([one == other for one, other in zip(given, wanted, strict=True)], dtype=bool)


def score(task: str, predicted: Array, dataset: Dataset) -> dict[str, float]:
    """The task's figures for predictions in the dataset's order (see `compute_predictions`).

    Classification: `accuracy`, `f1_macro` over the classes that occur. Regression: `pearson` (NaN when either side is
    constant), `rmse`. Several labels: `f1_macro` at probability ½. Spans: `exact_match` and `f1`, the best over the
    answers of a question, both 1 or 0 where there is no answer (Rajpurkar et al. 2018). Generated text: `log_prob` of a
    response's tokens.
    """
    return SCORES[task](predicted, dataset)


def _score_classification(predicted: Array, dataset: Dataset) -> dict[str, float]:
    labels, classes = np.asarray(dataset["label"][:]), predicted.argmax(-1)
    return {
        "accuracy": float((labels == classes).mean()),
        "f1_macro": float(f1_score(labels, classes, average="macro", zero_division=0)),
    }


def _score_multi_label(predicted: Array, dataset: Dataset) -> dict[str, float]:
    labels = np.asarray(dataset["label"][:])
    return {"f1_macro": float(f1_score(labels, predicted > 0.5, average="macro", zero_division=0))}


def _score_regression(predicted: Array, dataset: Dataset) -> dict[str, float]:
    labels, values = np.asarray(dataset["label"][:], dtype=np.float64), predicted[:, 0].astype(np.float64)
    return {"pearson": pearson(values, labels), "rmse": float(np.sqrt(((labels - values) ** 2).mean()))}


def _score_spans(predicted: Array, dataset: Dataset) -> dict[str, float]:
    columns = dataset[:]
    pairs = []
    for context, answers, (start, end) in zip(
        columns["text_pair"], columns["answer"], predicted.astype(int).tolist(), strict=True
    ):
        given = _normalize_words(context[start:end])
        right = [_normalize_words(context[a:b]) for a, b in answers] or [[]]
        pairs.append((max(given == gold for gold in right), max(_word_f1(given, gold) for gold in right)))
    exact, overlap = zip(*pairs, strict=True)
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(overlap))}


def _normalize_words(text: str) -> list[str]:
    """Lower case, without punctuation and English articles."""
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


def _word_f1(given: Sequence[str], gold: Sequence[str]) -> float:
    """F1 of two bags of words."""
    if not given or not gold:
        return float(given == gold)
    return 2 * (Counter(given) & Counter(gold)).total() / (len(given) + len(gold))


def _score_responses(predicted: Array, dataset: Dataset) -> dict[str, float]:
    return {"log_prob": float(predicted.mean())}


SCORES: dict[str, Callable[[Array, Dataset], dict[str, float]]] = {
    "classification": _score_classification,
    "multi_label": _score_multi_label,
    "regression": _score_regression,
    "span": _score_spans,
    "generation": _score_responses,
}
HIGHER_IS_BETTER = {
    "classification": {"accuracy": True, "f1_macro": True},
    "multi_label": {"f1_macro": True},
    "regression": {"pearson": True, "rmse": False},
    "span": {"f1": True, "exact_match": True},
    "generation": {"log_prob": True},
}
"""Of each task's figures; the first chooses the best model unless told otherwise."""
