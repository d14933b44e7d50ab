"""Explanation regularization: the paper's tables."""

from __future__ import annotations

from typing import Any

from expound_papers.studies import er
from expound_papers.study import Significance, Study, choose, register


@register
def er_table_2(study: Study) -> None:
    """Explanation regularization, Table 2: macro-F1 in and out of domain."""
    er.judge_accuracy(study)
    where = {"recipe": er.SEVEN}
    if not study.is_small:
        where["dataset"] = ["SST Dev", "SST Test", *er.OUT_OF_DOMAIN]
    er.add_f1_table(study, "table-2", "Macro-F1 in domain (SST) and out of domain", where=where)


@register
def er_table_3(study: Study) -> None:
    """Explanation regularization, Table 3: plausibility in domain."""
    setup = er.judge_plausibility(study)
    caption, where = "AUC of attributions against rationales, SST Dev", {"dataset": ["SST Dev"]}
    how: dict[str, Any] = {"rows": "recipe", "columns": "explainer", "metrics": "AUC", "scale": 100, "decimals": 1}
    how["significance"] = Significance("Baseline")
    if not study.is_small:
        study.table("table-3", caption, where=where | {"recipe": [*er.SEVEN, *er.BOUNDS.values()]}, show="mean", **how)
        return
    four = choose(er.EXPLAINERS, "ATT", "ATTR", "IxG", "ALTI")
    study.judge(
        "with special tokens", setup.take_seeds(range(6)), setup.pick("SST Dev"), four, choose(er.METRICS, "AUC"),
        limits=dict.fromkeys(four, 60), target="label", special_tokens=True,
    )  # fmt: skip
    rows = [*er.SEVEN, "L_expl (I)", *er.SEVERAL_SEEDS]
    study.table(
        "table-3",
        caption,
        where=where | {"judgement": er.PLAUSIBILITY, "recipe": rows},
        show="mean",
        **how,
    )
    caption += "; special tokens keep the scores that they are given"
    rows = [*er.SEVEN, *er.BOUNDS.values(), *er.SEVERAL_SEEDS]
    study.table(
        "table-3-specials", caption, where=where | {"judgement": ["with special tokens"], "recipe": rows}, **how
    )


@register
def er_table_4(study: Study) -> None:
    """Explanation regularization, Table 4: plausibility out of domain."""
    er.judge_long_texts(study)
    rows = [*er.SEVEN, "L_expl (I)", *er.SEVERAL_SEEDS] if study.is_small else [*er.SEVEN, *er.BOUNDS.values()]
    datasets = ["Movies"] if study.is_small else ["Movies", "Yelp-50"]
    study.table(
        "table-4", "AUC of attributions against rationales, out of domain", rows="recipe",
        columns=["dataset", "explainer"], metrics="AUC", show="mean", scale=100, decimals=1,
        where={"dataset": datasets, "explainer": ["ATT", "ATTR", "IxG"], "recipe": rows},
        significance=Significance("Baseline"),
    )  # fmt: skip


@register
def er_table_5(study: Study) -> None:
    """Explanation regularization, Table 5: explanation loss and AUC by what is optimized."""
    er.judge_plausibility(study)
    for guide, alone in er.BOUNDS.items():
        several = f"{alone}, all seeds" if study.is_small and guide != "IxG" else alone
        study.table(
            f"table-5-{guide.lower()}", f"Guided by {guide}: explanation loss and AUC, SST Dev", rows="recipe",
            columns="metric", metrics=["AUC", "dev_rationale_alignment"], decimals=3, mark_best=False,
            show="mean ± sd" if study.is_small else "mean",
            where={"dataset": "SST Dev", "explainer": guide, "recipe": [f"ER + {guide}", f"ER-C + {guide}", several]},
        )  # fmt: skip


@register
def er_table_7(study: Study) -> None:
    """Explanation regularization, Table 7: macro-F1 on Yelp-50.

    At small scale customer reviews stand in for Yelp-50, which is not public as a file.
    """
    er.judge_accuracy(study)
    dataset, name = ("Reviews", "customer reviews") if study.is_small else ("Yelp-50", "Yelp-50")
    er.add_f1_table(study, "table-7", f"Macro-F1 on {name}", where={"recipe": er.SEVEN, "dataset": dataset})


@register
def er_table_9(study: Study) -> None:
    """Explanation regularization, Table 9: AUC, average precision and recall@k."""
    er.judge_long_texts(study)
    datasets = {"sst": "SST Dev", "movies": "Movies", "yelp": "Yelp-50"}
    for name, dataset in [*datasets.items()][: 2 if study.is_small else 3]:
        study.table(
            f"table-9-{name}", f"Attributions against rationales, {dataset}", rows="recipe",
            columns=["metric", "explainer"], metrics=["AUC", "AP", "Recall@k"],
            where={"dataset": dataset, "recipe": er.SEVEN}, scale=100, decimals=1,
        )  # fmt: skip
