"""Agreement of AML with rationales, and its seconds: Tables 3 and 5."""

from __future__ import annotations

from typing import Any

from expound_papers.studies import aml
from expound_papers.studies.corpora import MOVIES
from expound_papers.study import Data, Model, Study, choose, register


@register
def aml_table_3(study: Study) -> None:
    """AML, Table 3: agreement with human rationales.

    Macro F1: a mean over the reviews, of the first 25 tokens; micro: of all reviews together. fAML and pAML are chosen
    by A-C on sentences.
    """
    # At small scale reviews as far as the model reads, explained by what was trained on sentences. DecompX takes a
    # minute a review, its linear form half a second, and they rank alike on sentences.
    setup, metrics = aml.Setup(study), {"Macro F1": "token_f1?unit=token&k=25"}
    movies = Data("Movies", MOVIES, limit=60 if study.is_small else None)
    names = (
        ["DXL", "ALTI", "IG", "random", "attention"]
        if study.is_small
        else ["DCMP", "SIG", "ALTI", "IG", "random", "attention"]
    )
    explainers, limits = choose(setup.explainers, *names), {"IG": 15, "fAML": 15} if study.is_small else {}
    setup.train_classifiers()
    (masks,) = setup.train_masks("A-C", **(aml.WEIGHTS | aml.FEW_ROWS if study.is_small else {}))
    study.judge("methods", setup.f, movies, explainers, metrics, limits=choose(limits, *[*limits][:1]))
    setup.judge_masks("masking", masks, movies, metrics, limits=choose(limits, *[*limits][1:]))
    columns = ["Macro F1"]
    if not study.is_small:
        columns.append("micro_f1")
        how: dict[str, Any] = {"protocol": "micro_f1", "k": 25}
        study.judge("methods, micro", setup.f, movies, explainers, **how)
        setup.judge_masks("masking, micro", masks, movies, {}, **how)
    setup.add_table("table-3", "", metrics=columns, labels={"micro_f1": "Micro F1"})


@register
def aml_table_5(study: Study) -> None:
    """AML, Table 5: seconds an example.

    On the machine that runs the study; fAML with the metric that judges its maps.
    """
    setup, metrics = aml.Setup(study, test=20), choose(aml.METRICS, "A-C")
    beams = (10,) if study.is_small else (10, 50, 100)
    explainers = choose(aml.EXPLAINERS, "SIG", "DCMP")
    explainers |= {f"SLVX-beamsize-{beam}": f"solvex?beam={beam}&criterion=comprehensiveness" for beam in beams}
    corpora = [("", setup.trainings[0], setup.test)]
    if not study.is_small:
        setup.models = [Model("RoBERTa", "FacebookAI/roberta-base", max_length=512)]
        training, test = aml.make_imdb(15)
        setup.trainings.append(training)
        corpora = [("", setup.trainings[0], setup.test.but("SST2", limit=50)), ("IMDB ", training, test)]
    setup.train_classifiers()
    (masks,) = setup.train_masks("A-C", **(aml.WEIGHTS | aml.FEW_ROWS if study.is_small else {}))
    for prefix, training, test in corpora:
        study.judge(f"{prefix}methods", setup.f.at(training=training.name), test, explainers, metrics)
        setup.judge_masks(f"{prefix}masking", masks.at(training=training.name), test, metrics)
    setup.add_table("table-5", "", columns="dataset", metrics=["seconds"])
