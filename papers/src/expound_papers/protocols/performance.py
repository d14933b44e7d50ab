"""A model's performance on its task."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from datasets import Dataset

from expound.models import ExplainedModel
from expound.models.encoding.labels import renumber_labels
from expound.training.loop import evaluation
from expound.training.loop.data import is_generation_data


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
        right = evaluation.match_responses(model, rows)
        figures = evaluation.score(model.task.name, stacked, data) | {"accuracy": float(right.mean())}
        return figures, frame.assign(right=right)
    if "answer" in data.column_names:
        return evaluation.score(model.task.name, stacked, data), frame
    labels = [row.get("label") for row in rows]
    if None in labels:
        return {}, frame
    figures = evaluation.score(model.task.name, stacked, Dataset.from_dict({"label": labels}))
    return figures, frame.assign(label=np.asarray(labels))
