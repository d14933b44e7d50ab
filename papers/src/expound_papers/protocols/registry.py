"""Evaluation protocols: figures of a model on a dataset beyond its performance and its explanations' metrics.

A new protocol is a function in one of the files beside this one and an entry in `PROTOCOLS`; a study's judgement names
it with its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from expound.errors import ExpoundError, check_choice
from expound_papers.protocols import citations, students, trained, words

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from expound.models import ExplainedModel


class EvaluationProtocol(NamedTuple):
    """A protocol: a function of a model and a dataset, and for each of its figures whether higher is better.

    The function's keyword arguments are the protocol's options; a study may give another run's folder,
    `{dataset: NAME}` or `{model: NAME}`. The run itself gives the arguments `seed` (its seed), `explainers` (specs of
    the judgement's explainers) and `folder` (to keep files in). The function returns figures by name; one with
    `explainers` returns a frame with a row for each `example` and `method` (a spec).
    """

    run: Callable[..., Mapping[str, float] | pd.DataFrame]
    figures: Mapping[str, bool]


RUN_ARGUMENTS = ("seed", "explainers", "folder")


PROTOCOLS: dict[str, EvaluationProtocol] = {
    "attack": EvaluationProtocol(
        words.measure_attack,
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
    "best_attention": EvaluationProtocol(words.measure_best_attention, {"best_layer": True, "best_head": True}),
    "drift": EvaluationProtocol(citations.measure_drift, {"ablation_agreement": True}),
    "headroom": EvaluationProtocol(
        students.headroom,
        dict.fromkeys(("simulatability", "headroom", "headroom_low", "headroom_high", "headroom_chosen"), True),
    ),
    "select_then_predict": EvaluationProtocol(
        trained.select_then_predict, {"rationale_accuracy": True, "rationale_f1_macro": True, "rationale_pearson": True}
    ),
    "micro_f1": EvaluationProtocol(words.measure_micro_f1, {"micro_f1": True}),
    "promises": EvaluationProtocol(
        citations.measure_promises, {"promise_held": True, "promise_share": True, "promise_prompts": True}
    ),
    "roar": EvaluationProtocol(
        trained.remove_and_retrain, {"roar_accuracy": False, "roar_f1_macro": False, "roar_pearson": False}
    ),
    "sanity": EvaluationProtocol(
        words.measure_sanity, dict.fromkeys(("sanity_head", "sanity_half", "sanity_all", "sanity_labels"), False)
    ),
    "simulatability": EvaluationProtocol(
        students.measure_simulatability, {"simulatability": True, "simulatability_gain": True}
    ),
    "students": EvaluationProtocol(students.measure_student_simulatability, {"simulatability": True}),
}


def check_protocol(name: str, options: Mapping[str, Any]) -> None:
    """Raise ExpoundError for an unknown protocol or option, or a missing option."""
    check_choice("protocol", name, PROTOCOLS)
    valid = _protocol_options(name)
    for key in options:
        check_choice(f"option of {name}", key, valid)
    for key, each in valid.items():
        if each.default is each.empty and key not in options:
            raise ExpoundError(f"{name} needs the option {key!r}")


def add_default_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a protocol, with defaults, except those that the run gives."""
    return {key: options.get(key, each.default) for key, each in _protocol_options(name).items()}


def uses_explainers(name: str | None) -> bool:
    """Return whether a protocol gives figures for each of the judgement's explainers."""
    return name is not None and "explainers" in _run_arguments(name)


def run_protocol(
    name: str, model: ExplainedModel, data: Dataset, options: Mapping[str, Any], **given: Any
) -> Mapping[str, float] | pd.DataFrame:
    """Run a protocol and return its figures.

    Args:
        name: the protocol's id.
        model: the judged model.
        data: the dataset of the judgement.
        options: the protocol's options.
        given: the arguments that the run gives, see `EvaluationProtocol`.

    Raises:
        ExpoundError: the protocol returns a figure that it does not declare.
    """
    protocol = PROTOCOLS[name]
    arguments = {key: given[key] for key in _run_arguments(name)}
    result = protocol.run(model, data, **options, **arguments)
    figures = result if isinstance(result, Mapping) else result.columns.drop(["example", "method"])
    for key in figures:
        check_choice(f"figure of {name}", key, protocol.figures)
    return result


def _run_arguments(name: str) -> list[str]:
    return [key for key in inspect.signature(PROTOCOLS[name].run).parameters if key in RUN_ARGUMENTS]


def _protocol_options(name: str) -> dict[str, inspect.Parameter]:
    # The first two parameters are the model and the data.
    parameters = list(inspect.signature(PROTOCOLS[name].run).parameters.items())[2:]
    return {key: each for key, each in parameters if key not in RUN_ARGUMENTS}
