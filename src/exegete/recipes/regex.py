"""Robust models explain better: a flat loss around the input, and attention that learns from attributions."""

from __future__ import annotations

from typing import Annotated

from exegete.errors import ExegeteError
from exegete.explainers import Explainer, explainer
from exegete.objectives import CrossEntropy, ExplanationGuidedLoss, GradientPenalty, Objective, VirtualAdversarialLoss
from exegete.objectives.teacher import Aggregation
from exegete.objectives.virtual_adversarial import Form
from exegete.recipes.base import Recipe

INTEGRATED = "integrated_gradients"
DEPARTURES = (
    "Trained from scratch, the head has the learning rate of the rest.",
    "The norm of the weights is AdamW's weight decay of 0.01.",
    "Integrated gradients have 8 points a step unless told otherwise; the paper says 50.",
    "Warm-up is 10 % of the steps, which the paper prints as gradient accumulation.",
    "Tokens are masked, not words, by the mask token; attention and teacher share 1 over content.",
    "No tokenisation by spaCy before the model's own.",
)


def regex(
    teacher: Annotated[
        str, "What attention learns from; any id of `exegete methods`. decompx_linear takes one pass instead of points."
    ] = INTEGRATED,
    points: Annotated[int, "Quadrature points of integrated_gradients; the paper has 50."] = 8,
    aggregation: Annotated[
        Aggregation | None, "Of the teacher's embedding dimensions. Default: l2 for the paper's teachers, else mean."
    ] = None,
    mask_ratio: Annotated[float, "Share of a text's tokens that is masked, the least important ones."] = 0.15,
    gradient_weight: Annotated[float, "λ2, of the input gradient's norm; 0 leaves it out."] = 0.01,
    adversarial_weight: Annotated[float, "λ3, of virtual adversarial training; 0 leaves it out."] = 0.5,
    guidance_weight: Annotated[float, "λ4, of attention against the teacher; 0 leaves it out."] = 0.01,
    form: Annotated[Form, "Perturbations inside a radius (literal), or as SMART's code scales them."] = "literal",
    radius: Annotated[float, "ε: how far a perturbation goes in each dimension (literal)."] = 1e-5,
    step_size: Annotated[float, "η, of each step up."] = 1e-3,
    noise: Annotated[float, "σ of the noise that perturbations start from."] = 1e-5,
    ascent_steps: Annotated[int, "Steps up to the worst perturbation."] = 2,
    lifetime: Annotated[
        int, "Epochs for which the teacher's answer about an example is kept; 0: ask it in every step."
    ] = 0,
    share: Annotated[
        float, "Share of each batch on which the three terms are estimated; 0.125: a step costs about 2.2 plain ones."
    ] = 1.0,
) -> Recipe:
    """Train a robust model whose attention follows its own attributions (REGEX).

    Three terms beside the cross-entropy: the norm of its gradient at the input, how far the worst small perturbation
    moves the answer, and attention's distance from a teacher's attribution of the gold label, with and without the
    least important words.

    Example: exegete train regex --teacher decompx_linear --model bert-base-uncased --data sst:data/sst
    --output-dir runs/regex
    """
    terms: tuple[Objective, ...] = (
        GradientPenalty(gradient_weight, share),
        VirtualAdversarialLoss(adversarial_weight, form, ascent_steps, step_size, radius, noise, share),
        ExplanationGuidedLoss(
            make_teacher(teacher, points), mask_ratio, guidance_weight, aggregation, share=share, lifetime=lifetime
        ),
    )
    negative = next((term.name for term in terms if term.weight < 0), None)
    if negative is not None:
        raise ExegeteError(f"the weight of {negative} is at least 0")
    if not 0 < share <= 1:
        raise ExegeteError(f"expected a share of the batch above 0 and up to 1, got {share}")
    return Recipe(
        name="regex",
        paper="Li et al. 2023",
        objectives=(CrossEntropy(), *(term for term in terms if term.weight)),
        arguments={
            "learning_rate": 1e-5,
            "num_train_epochs": 10,
            "per_device_train_batch_size": 32,
            "warmup_steps": 0.1,
            "weight_decay": 0.01,
            "max_grad_norm": 1.0,
            "metric_for_best_model": "f1_macro",
        },
        max_length=256,
        head_rate=10.0,
        departures=DEPARTURES,
    )


def make_teacher(teacher: str | Explainer, points: int) -> Explainer:
    """The teacher; integrated gradients start at zero embeddings and have so many points, unless its id says more."""
    if not isinstance(teacher, str) or teacher.partition("?")[0] != INTEGRATED:
        return explainer(teacher)
    usual = {"n_steps": points, "baselines": "zero"}
    return explainer(teacher, **{name: value for name, value in usual.items() if f"{name}=" not in teacher})
