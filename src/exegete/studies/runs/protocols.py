"""Evaluation protocols: figures of a model on a dataset beyond its performance and its explanations' metrics.

A new protocol is a function and a line in `PROTOCOLS`; a study's judgement names it with its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from datasets import Dataset

from exegete.errors import ExegeteError, unknown
from exegete.metrics.attack import attack
from exegete.models import ExplainedModel, load
from exegete.models.labels import in_model_labels
from exegete.recipes.fresh import rationales
from exegete.studies.runs.performance import performance
from exegete.training.bilevel.students import measured
from exegete.training.bilevel.teacher_outputs import taught


class Protocol(NamedTuple):
    """A function of a model and a dataset that gives figures by name, and whether higher is better of each.

    Its options are keyword arguments; one that is called `seed` gets the run's. An option may be another run's folder.
    """

    run: Callable[..., Mapping[str, float]]
    figures: Mapping[str, bool]


def select_then_predict(
    model: ExplainedModel,
    data: Dataset,
    *,
    support: str,
    explainer: str = "attention_last",
    ratio: float = 0.2,
    contiguous: bool = False,
) -> dict[str, float]:
    """How well a model does that sees the words alone that an explanation of another model chose (FRESH).

    Args:
        model: what predicts, trained by the recipe `fresh`.
        data: texts with labels.
        support: folder of the model that is explained.
        explainer: chooses; as in training, like `ratio` and `contiguous`.
        ratio: share of the words that is kept.
        contiguous: whether they are one stretch.
    """
    cut = rationales(load(support, device=model.device), data, explainer, ratio, contiguous)
    figures, _ = performance(model, cut)
    return {f"rationale_{name}": value for name, value in figures.items()}


def simulates(model: ExplainedModel, data: Dataset, *, teacher: str) -> dict[str, float]:
    """How often a student foretells its teacher, without any explanation (SMaT).

    Args:
        model: the student.
        data: what both are asked; labels do not matter.
        teacher: its folder.
    """
    return {"simulatability": measured(model, taught(load(teacher, device=model.device), data))["simulatability"]}


def attacked(
    model: ExplainedModel, data: Dataset, *, budget: int | None = None, choices: int = 5, seed: int = 0
) -> dict[str, float]:
    """How often swaps of contractions, names, run_refs and numbers change a right answer (see `metrics.attack`).

    Args:
        model: a classifier.
        data: texts with labels.
        budget: texts to try for an example.
        choices: words to try for each stretch.
        seed: of the words.
    """
    report = attack(model, in_model_labels(model, data), budget=budget, choices=choices, seed=seed)
    return {f"attack_{name}": value for name, value in report.figures.items()}


PROTOCOLS: dict[str, Protocol] = {
    "attack": Protocol(
        attacked,
        {
            "attack_successes": False,
            "attack_original_accuracy": True,
            "attack_accuracy_under_attack": True,
            "attack_success_rate": False,
            "attack_perturbed_words": True,
            "attack_words_per_input": True,
            "attack_queries": True,
        },
    ),
    "select_then_predict": Protocol(
        select_then_predict, {"rationale_accuracy": True, "rationale_f1_macro": True, "rationale_pearson": True}
    ),
    "simulatability": Protocol(simulates, {"simulatability": True}),
}


def check_protocol(name: str, options: Mapping[str, Any]) -> None:
    """Raises ExegeteError for an unknown protocol or option, or one that is missing."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    valid = _options(name)
    wrong = next((key for key in options if key not in valid), None)
    if wrong is not None:
        raise unknown(f"option of {name}", wrong, valid)
    missing = [key for key, each in valid.items() if each.default is each.empty and key not in (*options, "seed")]
    if missing:
        raise ExegeteError(f"{name} needs the option {missing[0]!r}")


def with_defaults(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options that a protocol's figures depend on, the seed apart."""
    valid = _options(name)
    return {key: options.get(key, each.default) for key, each in valid.items() if key != "seed"}


def follow(name: str, model: ExplainedModel, data: Dataset, options: Mapping[str, Any], seed: int) -> dict[str, float]:
    """The figures of a protocol.

    Raises:
        ExegeteError: it gives figures that it does not declare.
    """
    protocol = PROTOCOLS[name]
    own = {"seed": seed} if "seed" in _options(name) else {}
    figures = dict(protocol.run(model, data, **{**options, **own}))
    wrong = next((key for key in figures if key not in protocol.figures), None)
    if wrong is not None:
        raise unknown(f"figure of {name}", wrong, protocol.figures)
    return figures


def _options(name: str) -> Mapping[str, inspect.Parameter]:
    return dict(list(inspect.signature(PROTOCOLS[name].run).parameters.items())[2:])
