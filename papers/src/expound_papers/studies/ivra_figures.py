"""Xie et al. 2024, IvRA: the figures."""

from __future__ import annotations

from typing import Any

from expound_papers.studies.corpora import REVIEWS, SNLI
from expound_papers.studies.ivra import COEFS, IDS, LAST, METRICS, OUTER, POST_HOC, STUDENT, TASKS, Setup
from expound_papers.studies.ivra_tables import list_sets, train_sets
from expound_papers.study import Data, Explainer, Study, Training, choose, register

THREE = ["COMP", "SUFF", "CONS"]


@register
def ivra_fig_3(study: Study) -> None:
    """IvRA, Figure 3: explanations, and what their features, heads and layers weigh."""
    setup, rate = Setup(study, TASKS[:1]), dict[str, Any](lr_multiplier=167)
    runs = [setup.train("SIM softmax", "SIM", rate, 120, normalizer="softmax")]
    runs.append(setup.train("SIM sparsemax", "SIM", rate | COEFS, 120))
    setup.judge("explanations", runs, ["IvRA", "LIME"], ["Important tokens"], keep_attributions=True)
    how: dict[str, Any] = {"show": "mean ± sd", "decimals": None}
    setup.add_table("sparsity", "Share of tokens that matter", "Important tokens", **how)
    caption = "Coefficients, mean over seeds; of features the mean over heads"
    study.figure("fig-3", "coefficients", caption, where={"explainer": "IvRA"})


@register
def ivra_fig_5(study: Study) -> None:
    """IvRA, Figure 5: criteria together against each alone.

    Simulatability is that of a student of each model that learns from the first rows of the model's own training data.
    """
    # At small scale sentiment; no students, and of the combinations those of two criteria that the paper speaks of, and
    # all four.
    setup = Setup(study, TASKS[:1] if study.is_small else TASKS, temperature=0.1)
    names = list_sets(1, 2, 3, 4)
    if study.is_small:
        names = [*list_sets(1), "{SIM, SUFF}", "{COMP, SUFF}", "{COMP, CONS}", "{SUFF, CONS}", *list_sets(4)]
    runs, students = train_sets(setup, names), []
    setup.judge("{}", runs, ["IvRA"], THREE)
    for each in runs if not study.is_small else ():
        how: dict[str, Any] = {"explainer": "interpretable_attention", "student_weight": 1.0, "student_size": 2000}
        data = [*setup.trainings.values()]
        students.append(study.train(f"student of {each.name}", "smat", data, setup.model, teacher=each, **how))
        for task in TASKS:
            name, one = f"{task.lower()}, {students[-1].name}", students[-1].at(training=task)
            study.judge(name, one, setup.data[task], protocol="simulatability", teacher=each)
    of_criteria = {metric: f"{{{metric}}}" for metric in THREE}
    where = {"where": {"recipe": names}, "columns": "metric"}
    gains: dict[str, Any] = {"over": "dataset", "show": "mean", "decimals": 1, "columns": "metric"}
    how = gains | {"gain": of_criteria} | where
    setup.add_table("gains", "Average relative gain over the criterion alone, %", THREE, "recipe", **how)
    setup.add_table("values", "The same models, absolute", THREE, "recipe", show="mean ± sd", **where)
    caption = "Average relative gain, %: criteria together against each alone"
    if students:
        title = "Average relative gain in simulatability over simulatability alone, %"
        how = gains | {
            "gain": {"simulatability": "student of {SIM}"},
            "where": {"recipe": [each.name for each in students]},
        }
        setup.add_table("gains of students", title, "simulatability", "recipe", **how)
    study.figure("fig-5", "heat", caption, table="gains")
    if students:
        study.figure("fig-5-students", "heat", "Average relative gain in simulatability, %", table="gains of students")


@register
def ivra_fig_6(study: Study) -> None:
    """IvRA, Figure 6: losses with coefficients of one kind alone.

    Sentiment; the paper does not say which task.
    """
    setup, names = Setup(study, TASKS[:1], temperature=0.1), dict[str, list[str]]()
    for criterion in IDS:
        for kind in ("feature", "head", "layer", "all"):
            names.setdefault(criterion, []).append(f"{criterion}, {kind}")
            used: dict[str, Any] = {f"learn_{each}s": kind in (each, "all") for each in ("feature", "head", "layer")}
            steps, small = 24, dict[str, Any](lr_multiplier=333 if criterion == "COMP" else 100)
            if criterion == "SIM":
                small, steps = {"lr_multiplier": 167}, 48
            arguments = setup.steps(steps, logging_steps=4)
            setup.train(names[criterion][-1], criterion, small, arguments=arguments, **used)
    rows = [name for each in names.values() for name in each]
    metrics = sorted(f"dev_{each}" for each in IDS.values())
    how: dict[str, Any] = {"columns": "metric", "where": {"recipe": rows}, "show": "mean ± sd", "decimals": 4}
    setup.add_table("fig-6", "Losses on dev at the end of training", metrics, "recipe", **how)
    for criterion, metric in IDS.items():
        how = {"metrics": metric, "where": {"recipe": names[criterion]}}
        study.figure(f"fig-6-{metric}", "history", f"Loss of {metric} in training", **how)


@register
def ivra_fig_7(study: Study) -> None:
    """IvRA, Figure 7: how many tokens matter."""
    setup = Setup(study, TASKS[:2] if study.is_small else TASKS, temperature=0.1)
    metrics = ["Important tokens"]
    how: dict[str, Any] = {"teacher": setup.fine, "explainer": "learned", "student_size": 5000}
    if study.is_small:
        few = {"optim": "adamw_torch", "learning_rate": 1e-4, "num_train_epochs": 8, "per_device_train_batch_size": 8}
        how |= {"student_size": 100, "meta_learning_rate": 2e-3, "arguments": few}
    smat = study.train("SMaT", "smat", [*setup.trainings.values()], setup.model, **how)
    runs = []
    for criterion, rate in {"COMP": 333, "SUFF": 100}.items():
        for normalizer in ("softmax", "sparsemax"):
            name, small = f"{criterion} {normalizer}", {"lr_multiplier": rate}
            runs.append(setup.train(name, criterion, small, normalizer=normalizer))
    setup.judge("{}, post hoc", setup.fine, POST_HOC, metrics)
    setup.judge("{}, SMaT", smat, ["SMaT"], metrics, model=setup.fine)
    setup.judge("{}, IvRA", runs, ["IvRA"], metrics)
    caption = "AOPC of the share of tokens above 0.1, …, 0.9 of the range"
    setup.add_table("fig-7", caption, metrics, labels={"Fine-tuned": ""})
    study.figure("fig-7", "heat", table="fig-7")


@register
def ivra_fig_8(study: Study) -> None:
    """IvRA, Figure 8: models trained on one dataset, judged on another of the same task.

    The gain of models trained on the other dataset over those that never saw it. The coefficients of the first on
    fine-tuned models of the second stand beside. Simulatability is that of new students of each model, which learn from
    sentences of the dataset that judges.
    """
    others = list[Training]()
    if study.is_small:
        # Customer reviews for SST; no second corpus of entailment is there.
        train = Data("other-sentiment-train", REVIEWS, split="train", limit=600)
        dev = train.but("other-sentiment-dev", split="dev", limit=None, rows=(0, 100))
        pool = train.but("other-sentiment-pool", limit=64)
        tests = {"Sentiment": train.but("Other sentiment", split="test", limit=None, rows=(0, 100))}
    else:
        train = Data("other-sentiment-train", "hub:nyu-mll/glue?config=sst2", split="train")
        dev, pool = (
            train.but("other-sentiment-dev", split="dev", rows=(0, 200)),
            train.but("other-sentiment-pool", rows=(0, 5000)),
        )
        mnli = Data("other-entailment-train", "hub:nyu-mll/glue?config=mnli", split="train")
        matched = mnli.but("other-entailment-dev", split="validation_matched", rows=(0, 2000))
        tests = {"Sentiment": train.but("Other sentiment", split="dev", rows=(200, 872))}
        tests["Entailment"] = matched.but("Other entailment", rows=(2000, 9800))
        others.append(Training("Other entailment", mnli, matched))
    others.insert(0, Training("Other sentiment", train, dev))
    setup = Setup(study, TASKS[: len(tests)], others=others, temperature=0.1)
    rates = {"COMP": 333, "SUFF": 100, "CONS": 100}
    runs = {name: setup.train(f"{name} sparsemax", name, {"lr_multiplier": rate}) for name, rate in rates.items()}
    sentiment = [setup.trainings["Sentiment"], setup.trainings["Other sentiment"]]
    sim = setup.train("SIM sparsemax", "SIM", {"lr_multiplier": 167, **COEFS}, 48, sentiment)
    ivra, metrics = choose(setup.explainers, "IvRA"), choose(METRICS, *THREE)
    for task, test in tests.items():
        both = [each.at(training=name) for each in runs.values() for name in (task, f"Other {task.lower()}")]
        study.judge(task.lower(), both, test, ivra, metrics)
    arguments = {"optim": "sgd", "learning_rate": 5e-3, "num_train_epochs": 20, "per_device_train_batch_size": 64}
    if study.is_small:
        arguments = {
            "optim": "adamw_torch",
            "learning_rate": 1e-4,
            "num_train_epochs": 6,
            "per_device_train_batch_size": 16,
        }
        arguments |= {"lr_scheduler_type": "constant", "warmup_steps": 0, "bf16": True}
    how: dict[str, Any] = {"start": setup.model, "weight": 10.0 if study.is_small else 1.0, "arguments": arguments}
    study.judge("students", sim, tests["Sentiment"], ivra, protocol="students", pool=pool, dev=dev, **how)
    moved = {}
    for name, each in runs.items():
        moved[f"{name} of sentiment"] = Explainer("interpretable_attention:{run}", each.at(training="Sentiment"))
    study.judge("coefficients alone", setup.fine.at(training="Other sentiment"), tests["Sentiment"], moved, metrics)
    names, both_rows = [each.name for each in runs.values()], ["recipe", "training"]
    where: dict[str, Any] = {
        "dataset": "Other sentiment",
        "recipe": names,
        "training": ["Sentiment", "Other sentiment"],
    }
    gain: dict[str, Any] = {"columns": "metric", "show": "mean", "decimals": 1, "where": where}
    values: dict[str, Any] = {"columns": "metric", "show": "mean ± sd"}
    caption = "Gain of models trained on the dataset that judges over those trained on another, %"
    setup.add_table("fig-8-sentiment", caption, THREE, both_rows, gain=dict.fromkeys(THREE, "Sentiment"), **gain)
    shown = where | {"explainer": "IvRA"}
    setup.add_table("fig-8-values", "The same models, absolute", THREE, both_rows, where=shown, **values)
    of_sim: dict[str, Any] = {"where": where | {"recipe": "SIM sparsemax"}}
    how = values | of_sim | {"scale": 100, "decimals": 2}
    caption = "Simulatability of the models trained for it, %"
    setup.add_table("fig-8-simulatability-values", caption, "simulatability", "training", **how)
    how = gain | of_sim | {"gain": {"simulatability": "Sentiment"}}
    setup.add_table("fig-8-simulatability", "The same for simulatability", "simulatability", "training", **how)
    if not study.is_small:
        where = {"dataset": "Other entailment", "recipe": names, "training": ["Entailment", "Other entailment"]}
        how = gain | {"where": where, "gain": dict.fromkeys(THREE, "Entailment")}
        setup.add_table("fig-8-entailment", "The same for entailment", THREE, both_rows, **how)
    caption = "Coefficients learned on another dataset, on a model that was not trained with them"
    how = {"columns": "metric", "where": {"recipe": "Fine-tuned"}}
    study.table("coefficients alone", caption, rows="explainer", metrics=THREE, **how)
    study.figure("fig-8", "heat", table="fig-8-sentiment")


@register
def ivra_fig_9(study: Study) -> None:
    """IvRA, Figure 9: training time against the number of pairs.

    Ten epochs of all; at small scale one.
    """
    setup, small = Setup(study, TASKS[1:2], temperature=0.1), study.is_small
    if small:
        setup.specs["SIM"] = f"{STUDENT}&{OUTER}"
    spec, split = (SNLI, "dev") if small else ("hub:stanfordnlp/snli", "train")
    data = []
    for count in (32, 128, 512) if small else (10, 100, 1000, 10000, 100000):
        pairs = Data(f"pairs-{count}", spec, split=split, limit=count)
        data.append(Training(f"{count} pairs", pairs, setup.data["entailment-dev"]))
    arguments: dict[str, Any] = {"num_train_epochs": 10, "per_device_train_batch_size": 64}
    if small:
        arguments = {"num_train_epochs": 1, "learning_rate": 3e-5, "per_device_train_batch_size": 16, **LAST}
        del arguments["warmup_steps"]
    start, names = setup.fine.at(training="Entailment"), ["Cross-entropy", *IDS]
    how: dict[str, Any] = {"arguments": arguments, "start": start, "seeds": [0]}
    study.train("Cross-entropy", "baseline", data, setup.model, **how)
    for criterion in IDS:
        setup.train(criterion, criterion, {"lr_multiplier": 167 if criterion == "SIM" else 100}, data=data, **how)
    caption, where = "Seconds of training by the number of pairs", {"recipe": names}
    how = {"columns": "training", "where": where, "decimals": 1, "show": "mean ± sd"}
    setup.add_table("seconds", caption, "training_seconds", "recipe", **how)
    study.figure("fig-9", "sweep", caption, over="training", metrics="training_seconds", where=where)


@register
def ivra_fig_10(study: Study) -> None:
    """IvRA, Figure 10: how long an explanation takes.

    Seconds an input, measured where metrics are; N inputs take N times as long.
    """
    setup = Setup(study, TASKS[1:2], temperature=0.1)
    runs = setup.train("SUFF sparsemax", "SUFF", {"lr_multiplier": 100}, seeds=[0])
    setup.judge("explanations", runs, [POST_HOC[0], *POST_HOC[2:], "IvRA"], ["Important tokens"])
    setup.add_table("fig-10", "Seconds an input", "seconds", "explainer", show="mean ± sd", decimals=4)
