"""Protocols of models trained on the words that another model's explanation kept or removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset

    from expound.models import ExplainedModel


def select_then_predict(
    model: ExplainedModel,
    data: Dataset,
    *,
    explained_model: str,
    explainer: str = "attention_last",
    fraction: float = 0.2,
    contiguous: bool = False,
) -> dict[str, float]:
    """Measure a model that sees only the words that another model's explanation chose (FRESH).

    Args:
        model: the predictor, trained by the recipe `fresh`.
        data: texts with labels.
        explained_model: folder of the explained model.
        explainer: the explainer that chooses words; as in training, like `fraction` and `contiguous`.
        fraction: share of the words that is kept.
        contiguous: whether the words are one contiguous span.
    """
    from expound.models import load
    from expound.recipes.fresh import extract_rationales
    from expound_papers.protocols.performance import evaluate_performance

    cut = extract_rationales(load(explained_model, device=model.device), data, explainer, fraction, contiguous)
    figures, _ = evaluate_performance(model, cut)
    return {f"rationale_{name}": value for name, value in figures.items()}


def remove_and_retrain(
    model: ExplainedModel, data: Dataset, *, explained_model: str, explainer: str = "random", fraction: float = 0.5
) -> dict[str, float]:
    """Measure a model that sees all but the words that another model's explanation chose (ROAR): lower is better.

    Args:
        model: the predictor, trained by the recipe `roar`.
        data: texts with labels.
        explained_model: folder of the explained model.
        explainer: the explainer that chooses words; as in training, like `fraction`.
        fraction: share of the words that is removed.
    """
    from expound.models import load
    from expound.recipes.fresh import extract_rationales
    from expound_papers.protocols.performance import evaluate_performance

    cut = extract_rationales(load(explained_model, device=model.device), data, explainer, fraction, rest=True)
    figures, _ = evaluate_performance(model, cut)
    return {f"roar_{name}": value for name, value in figures.items()}
