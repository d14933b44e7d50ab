"""Explanation regularization: the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence

from expound_papers.studies import er
from expound_papers.study import Axis, Study, choose, register


def judge_layers(study: Study, names: Sequence[str] = er.SEVEN, on: Sequence[str] = ("SST Dev", "Yelp-50")) -> None:
    """Plausibility layer by layer."""
    setup = er.Setup(study)
    setup.train_all()
    data = setup.pick(*on) if not study.is_small else [setup.data["SST Dev"].but("Part of SST Dev", limit=50)]
    study.judge(
        "layers", setup.train(*names), data, choose(er.EXPLAINERS, "ATT", "ATTR", "ALTI", "DX"),
        choose(er.METRICS, "AUC"), target="label", layers=True, special_tokens=True,
    )  # fmt: skip


def judge_predictors(study: Study) -> None:
    """What could predict how well a model does out of domain."""
    if study.is_small:
        # Customer reviews, which have no rationales.
        setup = er.judge_plausibility(study)
        study.judge("accuracy", setup.train(*er.FIVE), setup.pick("SST Dev", "Reviews"))
    else:
        setup = er.judge_long_texts(study)
        study.judge("accuracy", [*setup.runs.values()], setup.pick("SST Dev", *er.OUT_OF_DOMAIN, "Yelp-50"))


def vary_weight(study: Study, guide: str, bound: float) -> None:
    """Cross-entropy against explanation loss while λ rises; the hyper-parameters are the baseline's."""
    setup = er.Setup(study)
    study.seeds = (4 if guide != "IxG" else 2) if study.is_small else 5
    study.arguments = er.QUICK if study.is_small else {"learning_rate": 3e-5, "num_train_epochs": 25}
    names = []
    for weight in er.WEIGHTS:
        names.append(f"{guide} λ={weight:g}")
        setup.add(names[-1], "er_joint", explainer=er.GUIDES[guide], weight=weight)
    figure = f"fig-{12 if guide == 'IxG' else 5}-{guide.lower()}"
    study.table(
        figure, f"Guided by {guide}: explanation loss and cross-entropy, SST Dev", rows="recipe", columns="metric",
        metrics=["dev_cross_entropy", "dev_rationale_alignment"], where={"recipe": names}, decimals=3, mark_best=False,
    )  # fmt: skip
    study.figure(
        figure, "scatter", f"Guided by {guide}: losses on SST Dev, mean and deviation over seeds", average=True,
        where={"recipe": names}, x=Axis("dev_rationale_alignment", label="explanation loss"),
        y=Axis("dev_cross_entropy", label="cross-entropy"), lines={} if study.is_small else {"bound": bound},
    )  # fmt: skip


@register
def er_fig_2(study: Study) -> None:
    """Explanation regularization, Figure 2: macro-F1 of every seed out of domain."""
    er.judge_accuracy(study)
    where = {"recipe": er.SEVEN[:-1], "dataset": ["Reviews"] if study.is_small else er.OUT_OF_DOMAIN}
    study.figure("fig-2", "seeds", "Macro-F1 of every seed", metrics="f1_macro", where=where)


@register
def er_fig_3(study: Study) -> None:
    """Explanation regularization, Figure 3: agreement of attributions with the baseline's, out of domain."""
    setup = er.judge_long_texts(study)
    study.compare("τ", "plausibility of long texts", against=setup.runs["Baseline"])
    dataset = "Movies" if study.is_small else "Yelp-50"
    study.table(
        "table-fig-3",
        "Mean Kendall's τ with the attributions of baselines, Movies; of a baseline: with those of other seeds",
        rows="recipe", columns="explainer", metrics="τ", where={"dataset": dataset, "recipe": er.SEVEN}, decimals=2,
        mark_best=False,
    )  # fmt: skip
    caption = "Kendall's τ with the baseline's attributions; baseline with baseline is what seeds alone leave"
    study.figure("fig-3", "agreement", caption, against="Baseline", where={"dataset": dataset, "recipe": er.FIVE})


@register
def er_fig_4(study: Study) -> None:
    """Explanation regularization, Figure 4: plausibility by layer, in domain."""
    four = ["Baseline", "ER + ATT", "ER-C + ATT", "ER-C + ATTR"]
    judge_layers(study, four if study.is_small else er.SEVEN, ["SST Dev"])
    study.figure(
        "fig-4", "layers", "AUC by layer, SST Dev", metrics="AUC", where={"explainer": ["ATT", "DX"], "recipe": four}
    )


@register
def er_fig_5(study: Study) -> None:
    """Explanation regularization, Figure 5: cross-entropy against explanation loss."""
    vary_weight(study, "ATT", 0.031)
    vary_weight(study, "ATTR", 0.031)


@register
def er_fig_6(study: Study) -> None:
    """Explanation regularization, Figure 6: predictors of macro-F1 out of domain."""
    judge_predictors(study)
    where, accuracy = {"recipe": er.FIVE}, Axis("f1_macro", "SST Dev")
    explainer, dataset, other = (
        ("ALTI", "Reviews", "customer reviews") if study.is_small else ("DX-C", "Movies", "Movies")
    )
    caption = f"In-domain macro-F1 and AUC ({explainer}) against macro-F1 on {other}"
    x, y = [accuracy, Axis("AUC", "SST Dev", explainer)], Axis("f1_macro", dataset)
    study.figure("fig-6-in-domain", "scatter", caption, where=where, x=x, y=y)
    for name in () if study.is_small else ("Movies", "Yelp-50"):
        caption = f"AUC (IxG) on {name} against macro-F1 on {name}"
        x, y = [Axis("AUC", name, "IxG")], Axis("f1_macro", name)
        study.figure(f"fig-6-{name.lower()}", "scatter", caption, where=where, x=x, y=y)


@register
def er_fig_8(study: Study) -> None:
    """Explanation regularization, Figure 8: faithfulness of attribution techniques on the baseline."""
    setup, how = er.Setup(study), "rounding=er&fractions=0.01,0.2,0.4,0.6,0.8,1.0"
    metrics = {kind: f"normalized_{kind}?{how}" for kind in ("sufficiency", "comprehensiveness")}
    data = setup.data["SST Dev"]
    if study.is_small:
        # Every budget is a pass of its own over every explainer's inputs: a part of the sentences.
        data = data.but("Part of SST Dev", limit=75)
    # The input that says nothing is that of special tokens alone; the paper has zero embeddings of the reduced length.
    study.judge("faithfulness", setup.train("Baseline"), data, er.EXPLAINERS, metrics)
    caption = "Normalized sufficiency and comprehensiveness on the baseline, mean over the six budgets"
    study.table("table-fig-8", caption, rows="explainer", columns="metric", metrics=[*metrics], decimals=2)
    caption = "Normalized sufficiency and comprehensiveness of the top x %, SST Dev"
    study.figure("fig-8", "curves", caption, metrics=[*metrics])


@register
def er_fig_9(study: Study) -> None:
    """Explanation regularization, Figure 9: agreement of attributions with the baseline's."""
    # Attributions are compared while they are kept: those of the first three seeds, and of the last five, among
    # themselves. Five were added, with those of Table 3, when claims 11 and 12 were undecided with three.
    setup = er.judge_plausibility(study, seeds=[*range(3), *er.LAST_SEEDS] if study.is_small else 3)
    study.compare("τ", er.PLAUSIBILITY if study.is_small else "plausibility", against=setup.runs["Baseline"])
    study.table(
        "table-fig-9",
        "Mean Kendall's τ with the attributions of baselines, SST Dev; of a baseline: with those of other seeds",
        rows="recipe", columns="explainer", metrics="τ", where={"recipe": er.SEVEN}, decimals=2, mark_best=False,
    )  # fmt: skip
    caption = "Mean Kendall's τ with the baseline's attributions"
    study.figure("fig-9", "agreement", caption, against="Baseline", where={"recipe": er.SEVEN})


@register
def er_fig_10(study: Study) -> None:
    """Explanation regularization, Figure 10: agreement between attribution techniques."""
    er.judge_plausibility(study)
    caption = "Mean Kendall's τ between attribution techniques"
    study.figure("fig-10", "agreement", caption, between="explainers", where={"recipe": er.SEVEN})


@register
def er_fig_11(study: Study) -> None:
    """Explanation regularization, Figure 11: macro-F1 of every seed, constrained models."""
    er.judge_accuracy(study)
    where = {"recipe": ["Baseline", "ER-C + ATT", "ER-C + ATTR", "ER-C + IxG"]}
    study.figure("fig-11", "seeds", "Macro-F1 of every seed", metrics="f1_macro", where=where)


@register
def er_fig_12(study: Study) -> None:
    """Explanation regularization, Figure 12: cross-entropy against explanation loss."""
    vary_weight(study, "IxG", 0.35)


@register
def er_fig_13(study: Study) -> None:
    """Explanation regularization, Figure 13: plausibility by layer."""
    judge_layers(study)
    study.figure("fig-13", "layers", "AUC by layer", metrics="AUC")


@register
def er_fig_14(study: Study) -> None:
    """Explanation regularization, Figure 14: in-domain measurements against macro-F1 out of domain."""
    judge_predictors(study)
    last = "ALTI" if study.is_small else "DX-C"
    x = [Axis("f1_macro", "SST Dev"), *(Axis("AUC", "SST Dev", each) for each in ("ATT", "ATTR", last))]
    x += [Axis("AP", "SST Dev", last), Axis("Recall@k", "SST Dev", last)]
    y = [Axis("f1_macro", name) for name in (["Reviews"] if study.is_small else er.OUT_OF_DOMAIN)]
    caption = "In-domain measurements against macro-F1 out of domain, every seed"
    study.figure("fig-14", "scatter", caption, where={"recipe": er.FIVE}, x=x, y=y)
