"""Evaluation protocols: figures of a model on a dataset beyond its performance and its explanations' metrics.

A new protocol is a function and a line in `PROTOCOLS`; a study's judgement names it with its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from exegete.errors import ExegeteError, unknown

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from exegete.models import ExplainedModel


class Protocol(NamedTuple):
    """A function of a model and a dataset that gives figures by name, and whether higher is better of each.

    Its options are keyword arguments; a study may give another run's folder, `{dataset: NAME}` or `{model: NAME}`. What
    is called `seed`, `explainers` or `folder` is given by the run: its seed, the specs of the judgement's explainers,
    a folder to work in. A protocol with explainers gives a row for each `example` and `method`, a spec, instead.
    """

    run: Callable[..., Mapping[str, float] | pd.DataFrame]
    figures: Mapping[str, bool]


GIVEN = ("seed", "explainers", "folder")


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
    from exegete.models import load
    from exegete.recipes.fresh import rationales
    from exegete.studies.runs.performance import performance

    cut = rationales(load(support, device=model.device), data, explainer, ratio, contiguous)
    figures, _ = performance(model, cut)
    return {f"rationale_{name}": value for name, value in figures.items()}


def remove_and_retrain(
    model: ExplainedModel, data: Dataset, *, support: str, explainer: str = "random", ratio: float = 0.5
) -> dict[str, float]:
    """How well a model still does without the words that an explanation of another model chose (ROAR): lower is better.

    Args:
        model: what predicts, trained by the recipe `roar`.
        data: texts with labels.
        support: folder of the model that is explained.
        explainer: chooses; as in training, like `ratio`.
        ratio: share of the words that is taken away.
    """
    from exegete.models import load
    from exegete.recipes.fresh import rationales
    from exegete.studies.runs.performance import performance

    cut = rationales(load(support, device=model.device), data, explainer, ratio, rest=True)
    figures, _ = performance(model, cut)
    return {f"roar_{name}": value for name, value in figures.items()}


def sanity(
    model: ExplainedModel,
    data: Dataset,
    *,
    explainer: str = "integrated_gradients",
    random_labels: str = "",
    absolute: bool = False,
    seed: int = 0,
) -> dict[str, float]:
    """How alike explanations stay when the model loses what it learned: Spearman's ρ, lower is better (Adebayo).

    Args:
        model: trained.
        data: what is explained.
        explainer: any method.
        random_labels: folder of a model trained on shuffled labels, to compare with as well.
        absolute: compare magnitudes.
        seed: of the random weights.
    """
    import numpy as np

    from exegete.explainers import attribute
    from exegete.metrics.sanity import cascade, similarities
    from exegete.models import load

    rows = list(data)
    _, *stages = cascade(model, rows, explainer, absolute=absolute, seed=seed).means
    found = {"sanity_head": stages[0], "sanity_half": stages[len(stages) // 2], "sanity_all": stages[-1]}
    if random_labels:
        known = list(attribute(model, rows, explainer))
        others = attribute(load(random_labels, device=model.device), rows, explainer, [item.target for item in known])
        found["sanity_labels"] = np.nanmean(similarities(known, list(others), absolute=absolute))
    return {name: float(value) for name, value in found.items()}


def simulates(model: ExplainedModel, data: Dataset, *, teacher: str, without: str = "") -> dict[str, float]:
    """How often a student foretells its teacher, without any explanation (SMaT).

    Args:
        model: the student.
        data: what both are asked; labels do not matter.
        teacher: its folder.
        without: folder of a student that was taught without explanations; then also how much of what that one gets
            wrong this one gets right.
    """
    from exegete.metrics.simulatability import simulatability_gain
    from exegete.models import load
    from exegete.training.bilevel.students import measured
    from exegete.training.bilevel.teacher_outputs import taught

    told = taught(load(teacher, device=model.device), data)
    found = {"simulatability": measured(model, told)["simulatability"]}
    if without:
        usual = measured(load(without, device=model.device), told)["simulatability"]
        found["simulatability_gain"] = simulatability_gain(found["simulatability"], usual)
    return found


def students(
    model: ExplainedModel,
    data: Dataset,
    *,
    explainers: Sequence[str],
    pool: Dataset,
    dev: Dataset,
    start: str,
    count: int = 4,
    weight: float | None = None,
    arguments: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    folder: Path,
    seed: int,
) -> pd.DataFrame:
    """How well new students foretell a model that learned from its answers and explanations: a row a student.

    Args:
        model: the teacher.
        data: what students are examined on, without explanations.
        explainers: of the teacher, a group of students each; `none`: students that learn from answers alone.
        pool: what they learn from.
        dev: chooses among a student's epochs, where `arguments` say so.
        start: the model that students start from.
        count: students for each explainer, whose seeds no other seed of the study has.
        weight: β, of the explanations; default: SMaT's.
        arguments: of the Trainer.
        max_length: tokens that a text may have.
        folder: keeps finished students.
        seed: of the run.
    """
    from exegete.training.bilevel.students import Teaching
    from exegete.training.bilevel.students import students as trained_students

    seeds = range(count * seed, count * (seed + 1))
    rows = trained_students(
        start, Teaching(model, weight=weight), pool, dev, data, folder, explainers=explainers, sizes=[len(pool)],
        seeds=seeds, arguments=_quiet(model) | dict(arguments or {}),
        max_length=max_length,
    )  # fmt: skip
    found = rows.rename(columns={"explainer": "method", "seed": "example"})
    return found[["example", "method", "simulatability"]]


def headroom(
    model: ExplainedModel,
    data: Dataset,
    *,
    pool: Dataset,
    dev: Dataset,
    start: str,
    settings: int = 30,
    count: int = 4,
    judged: int = 8,
    spread: float = 2.0,
    weight: float | None = None,
    arguments: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    folder: Path,
) -> dict[str, float]:
    """How much better than untrained coefficients of IvRA's attention the best of many drawn ones teach students.

    Args:
        model: the teacher, which stays what it is.
        data: what the best setting's students are examined on; it chooses nothing.
        pool: what students learn from.
        dev: chooses among settings.
        start: the model that students start from.
        settings: how many are drawn.
        count: students of each.
        judged: new students of the best one, and of the untrained one.
        spread: of the drawn λ and η around 1.
        weight: β, of the explanations; default: SMaT's.
        arguments: of the Trainer.
        max_length: tokens that a text may have.
        folder: keeps finished students.
    """
    from exegete.training import RunOptions
    from exegete.training.bilevel.headroom import Search
    from exegete.training.bilevel.headroom import headroom as found
    from exegete.training.bilevel.students import Teaching

    options = RunOptions(arguments=_quiet(model) | dict(arguments or {}), max_length=max_length)
    teaching = Teaching(model, weight=weight).cutting(max_length)
    search = Search(teaching, start, folder, options, spread, {"normaliser": "softmax"})
    return found(search, pool, dev, data, settings, count, judged)


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
    from exegete.metrics.attack import attack
    from exegete.models.encoding.labels import in_model_labels

    report = attack(model, in_model_labels(model, data), budget=budget, choices=choices, seed=seed)
    return {f"attack_{name}": value for name, value in report.figures.items()}


def supervised(model: ExplainedModel, data: Dataset, *, metric: str = "auc?absolute=false") -> dict[str, float]:
    """How plausible the attention of the layer, and of the head, is that people's rationales of this data choose.

    Args:
        model: the one whose attention is looked at.
        data: texts with rationales; the best is chosen on what it is judged on.
        metric: of plausibility.
    """
    from exegete.metrics import metric as made
    from exegete.studies.runs.best_attention import best_attention

    layer, head = best_attention(model, data, made(metric))
    return {"best_layer": layer, "best_head": head}


def micro_f1(
    model: ExplainedModel, data: Dataset, *, explainers: Sequence[str], k: float | None = None, seed: int
) -> pd.DataFrame:
    """F1 of the first tokens of all texts together against the marked ones: a row a method.

    Args:
        model: what is explained, in its predictions.
        data: texts with rationales; those that nobody looked at do not count.
        explainers: methods.
        k: how many tokens of a text, as in `token_f1`.
        seed: of the run.
    """
    import pandas as pd
    import torch

    from exegete.explainers.attribute_examples import batches
    from exegete.explainers.registry import seeded
    from exegete.metrics.plausibility import TokenF1
    from exegete.models.encoding.labels import in_model_labels

    metric = TokenF1(level="token", k=k)
    rows = [row for row in in_model_labels(model, data) if row["rationale"] is not None]
    if not rows:
        raise ExegeteError("micro_f1 needs texts with rationales, and there are none")
    counts = dict.fromkeys(explainers, (0.0, 0.0))
    for indices in batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        gold = torch.zeros_like(batch.content) if batch.rationale is None else batch.rationale
        for spec, (hits, size) in counts.items():
            scores = seeded(spec, seed).attribute(model, batch).detach()
            right, all_of_both = metric.counts(metric.ranked(batch, gold, scores))
            counts[spec] = (hits + right.sum().item(), size + all_of_both.sum().item())
    found = [{"example": 0, "method": spec, "micro_f1": 2 * hits / size} for spec, (hits, size) in counts.items()]
    return pd.DataFrame(found)


def _quiet(model: ExplainedModel) -> dict[str, Any]:
    """Arguments of the Trainer for students that nothing is chosen or kept of."""
    return {
        "disable_tqdm": True,
        "use_cpu": model.device.type == "cpu",
        "save_strategy": "no",
        "eval_strategy": "no",
        "load_best_model_at_end": False,
    }


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
    "best_attention": Protocol(supervised, {"best_layer": True, "best_head": True}),
    "headroom": Protocol(
        headroom,
        dict.fromkeys(("simulatability", "headroom", "headroom_low", "headroom_high", "headroom_chosen"), True),
    ),
    "select_then_predict": Protocol(
        select_then_predict, {"rationale_accuracy": True, "rationale_f1_macro": True, "rationale_pearson": True}
    ),
    "micro_f1": Protocol(micro_f1, {"micro_f1": True}),
    "roar": Protocol(remove_and_retrain, {"roar_accuracy": False, "roar_f1_macro": False, "roar_pearson": False}),
    "sanity": Protocol(sanity, dict.fromkeys(("sanity_head", "sanity_half", "sanity_all", "sanity_labels"), False)),
    "simulatability": Protocol(simulates, {"simulatability": True, "simulatability_gain": True}),
    "students": Protocol(students, {"simulatability": True}),
}


def check_protocol(name: str, options: Mapping[str, Any]) -> None:
    """Raises ExegeteError for an unknown protocol or option, or one that is missing."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    valid = _options(name)
    wrong = next((key for key in options if key not in valid), None)
    if wrong is not None:
        raise unknown(f"option of {name}", wrong, valid)
    missing = [key for key, each in valid.items() if each.default is each.empty and key not in options]
    if missing:
        raise ExegeteError(f"{name} needs the option {missing[0]!r}")


def with_defaults(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options that a protocol's figures depend on, but those that the run gives."""
    return {key: options.get(key, each.default) for key, each in _options(name).items()}


def explains(name: str | None) -> bool:
    """Whether a protocol gives its figures for each of the judgement's explainers."""
    return name is not None and "explainers" in _given(name)


def follow(
    name: str, model: ExplainedModel, data: Dataset, options: Mapping[str, Any], **given: Any
) -> Mapping[str, float] | pd.DataFrame:
    """The figures of a protocol; `given`: what the run gives, see `Protocol`.

    Raises:
        ExegeteError: it gives figures that it does not declare.
    """
    protocol = PROTOCOLS[name]
    found = protocol.run(model, data, **options, **{key: given[key] for key in _given(name)})
    figures = found if isinstance(found, Mapping) else found.columns.drop(["example", "method"])
    wrong = next((key for key in figures if key not in protocol.figures), None)
    if wrong is not None:
        raise unknown(f"figure of {name}", wrong, protocol.figures)
    return found


def _given(name: str) -> list[str]:
    return [key for key in inspect.signature(PROTOCOLS[name].run).parameters if key in GIVEN]


def _options(name: str) -> dict[str, inspect.Parameter]:
    parameters = list(inspect.signature(PROTOCOLS[name].run).parameters.items())[2:]
    return {key: each for key, each in parameters if key not in GIVEN}
