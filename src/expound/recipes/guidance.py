"""Shared by the variants of explanation regularization: names of guides, and values of Ferreira et al. 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

from expound.explainers import Explainer, explainer
from expound.objectives import RationaleAlignment
from expound.objectives.rationale_alignment import Distance, Normalization, Scale
from expound.recipes.registry import GUIDES

# §3.1: AdamW with β₂ .98, no weight decay, no clipping (0 in transformers), warm-up of 10 % of the steps
ARGUMENTS: Mapping[str, Any] = {
    "adam_beta2": 0.98,
    "weight_decay": 0.0,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0.1,
    "max_grad_norm": 0.0,
    "per_device_train_batch_size": 32,
    "logging_strategy": "epoch",
    "metric_for_best_model": "loss",
}
Guide: TypeAlias = Annotated[
    str | Explainer,
    "Guided explainer: attention_last, attention_rollout (or attention, rollout), or any differentiable id.",
]
DistanceOption: TypeAlias = Annotated[Distance, "Distance of an attribution from the rationale."]
NormalizationOption: TypeAlias = Annotated[
    Normalization | None, "Normalization of attributions. Default: sum; with --scale position the paper's."
]
ScaleOption: TypeAlias = Annotated[
    Scale, "Distances are summed over each example (mae: 0 to 2), or averaged over positions as in the paper."
]
SHORT_RUN: Mapping[str, Any] = {"learning_rate": 1e-4, "num_train_epochs": 4, "per_device_train_batch_size": 16}
SHARED_FIELDS: Mapping[str, Any] = {
    "paper": "Ferreira et al. 2024",
    "max_length": 1024,
    "head_dropout": 0.0,
    "head_activation": "tanh",
}
"""Fields of a recipe that are the same for all variants."""
DEPARTURES = (
    "Works with any classification head; its dropout is off, and BigBird's head uses tanh, as in the paper.",
    "Guided attention is taken before its dropout; the authors' code takes it after.",
    "Word embeddings enter the model once; the authors' code adds positions and normalizes twice.",
    "Batches group texts of similar length; a dev figure is the mean over the whole split, not over batch means.",
    "An L2 norm of zero counts as 1e-12.",
)


class GuideValues(NamedTuple):
    """The paper's choices for a guide (§3.3, §3.4): learning rates, epochs and bounds; None: the paper has no bound."""

    joint_rate: float
    joint_epochs: int
    constrained_rate: float
    multiplier_learning_rate: float
    train_bound: float | None
    dev_bound: float | None


DEFAULT_VALUES = GuideValues(3e-5, 25, 3e-5, 1e-1, None, None)
GUIDE_VALUES = {
    "attention_last": GuideValues(2e-5, 25, 2e-5, 5e-2, 0.035, 0.031),
    "attention_rollout": GuideValues(3e-5, 15, 3e-5, 1e-1, 0.030, 0.031),
    "input_x_gradient": GuideValues(2e-5, 25, 2e-5, 1e-1, 0.35, 0.35),
}


def make_guide(guide: str | Explainer) -> Explainer:
    """Return the explainer that is guided, given as an object, a spec, or as `attention`, `rollout` or `ixg`."""
    if not isinstance(guide, str):
        return guide
    name, mark, query = guide.partition("?")
    return explainer(f"{GUIDES.get(name, name)}{mark}{query}")


def make_alignment_term(explainer: str | Explainer, **params: Any) -> tuple[RationaleAlignment, GuideValues]:
    """Return the explanation loss of a guide with these parameters, and the paper's values for the guide."""
    guide = make_guide(explainer)
    return RationaleAlignment(guide, **params), GUIDE_VALUES.get(guide.name, DEFAULT_VALUES)


def trainer_arguments(rate: float, epochs: int, **others: Any) -> dict[str, Any]:
    """Return `arguments` of a short run, and `paper_arguments` with this learning rate and number of epochs.

    `others` are added to both, or replace some.
    """
    return {
        "arguments": {**ARGUMENTS, **others, **SHORT_RUN},
        "paper_arguments": {**ARGUMENTS, **others, "learning_rate": rate, "num_train_epochs": epochs},
    }
