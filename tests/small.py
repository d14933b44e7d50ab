"""Small explained models and batches that several test modules share."""

from __future__ import annotations

import functools

import torch

import families
from expound import explainer
from expound.explainers import EXPLAINERS
from expound.models import ExplainedModel

FAMILIES = list(families.FAMILIES)
TEXT = list(families.TEXT)
SPAN_FAMILIES = ["bert", "roberta", "modernbert", "distilbert", "electra", "gpt2"]
PAIRS = [
    ("what is small", "a moving film about a small town and its river"),
    ("who laughs", "the plot is dull, but nobody laughs"),
    ("where is it", "in the rain"),
]


NATIVE = [name for name, kind in EXPLAINERS.items() if kind.card.family not in ("prompted", "learned", "interactions")]
FEW = {
    "integrated_gradients": {"n_steps": 4},
    "smooth_grad": {"n_samples": 3},
    "lime": {"n_samples": 24},
    "kernel_shap": {"n_samples": 24},
    "shapley_sampling": {"n_samples": 24},
    "reagent": {"n_steps": 6},
    "context_cite": {"n_samples": 24, "alpha": 1e-4},
    "solvex": {"beam": 2, "criterion": "comprehensiveness"},
}


def make_explainer(method, **params):
    """The explainer with settings that are small enough for tests."""
    return explainer(method, **FEW.get(method, {}) | params)


def small(family, head="SequenceClassification", dtype=torch.float64, **changes):
    """A fresh tiny model with its processor; weights in float64 let exact claims be tested as such."""
    if head == "QuestionAnswering":
        changes = {"num_labels": 2} | changes
    return ExplainedModel(families.tiny(family, head, dtype=dtype, **changes), families.processor(family))


@functools.cache
def shared(family, head="SequenceClassification", dtype=torch.float64):
    """One such model for all tests that do not change it."""
    return small(family, head, dtype)


def alone(model, batch, row):
    """Example `row` as a batch of one without padding, and its columns in the given batch."""
    return batch.select([row]).trim_padding()


def uneven(family, count=4):
    """Examples of uneven length."""
    return families.examples(family, count)
