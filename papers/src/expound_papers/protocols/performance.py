"""A model's performance on its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from numpy.typing import NDArray

from expound.models import ExplainedModel
from expound.models.encoding.labels import renumber_labels
from expound.models.generation.model import GeneratingModel
from expound.training.loop import evaluation
from expound.training.loop.data import is_generation_data

PROMPT_COLUMNS = ("prompt", "messages", "sources", "tools", "chat_template_kwargs")


@torch.no_grad()
def evaluate_performance(model: ExplainedModel, data: Dataset) -> tuple[dict[str, float], pd.DataFrame]:
    """Return the task's figures over a dataset, and a frame with the label and the prediction of each example.

    Labels are numbered as in the model; a dataset without labels has no figures. For generated text, `accuracy` is the
    share of responses that the model reproduces exactly.

    Raises:
        ExpoundError: a label that the model does not have.
    """
    rows = renumber_labels(model, data)
    stacked = evaluation.predict_rows(model, rows)
    frame = pd.DataFrame({"example": range(len(rows)), "predicted": list(stacked.reshape(len(rows), -1))})
    if is_generation_data(data):
        right = match_responses(model, rows)
        figures = evaluation.score(model.task.name, stacked, data) | {"accuracy": float(right.mean())}
        return figures, frame.assign(right=right)
    if "answer" in data.column_names:
        return evaluation.score(model.task.name, stacked, data), frame
    labels = [row.get("label") for row in rows]
    if None in labels:
        return {}, frame
    figures = evaluation.score(model.task.name, stacked, Dataset.from_dict({"label": labels}))
    return figures, frame.assign(label=np.asarray(labels))


def match_responses(model: ExplainedModel, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.bool_]:
    """Return whether greedy decoding gives each example's response token for token and then ends [N], bool."""
    expected, prompts = [], []
    for row in rows:
        expected.append(model.tokenizer(row["response"], add_special_tokens=False)["input_ids"])
        prompts.append({name: value for name, value in row.items() if name in PROMPT_COLUMNS})
    # One token more than the longest response, so that a model that does not end there differs.
    limit = 1 + max(map(len, expected), default=0)
    special = model.tokenizer.all_special_ids
    matches = []
    outputs = cast(GeneratingModel, model).respond(prompts, limit, allow_empty=True)
    for output, ids in zip(outputs, expected, strict=True):
        matches.append([id for id in output["response"] if id not in special] == ids)
    return np.array(matches, dtype=bool)
