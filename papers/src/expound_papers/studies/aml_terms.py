"""AML without a term of its loss, and with other weights of the terms: Table 4."""

from __future__ import annotations

from typing import Any

from expound_papers.studies import aml
from expound_papers.studies.aml_encoders import begin_sentences, explain_all_encoders, train_by_metric
from expound_papers.studies.corpora import MOVIES, SST
from expound_papers.study import Data, Model, Study, Training, choose, register


@register
def aml_table_4(study: Study) -> None:
    """AML, Table 4: without a term of the loss.

    Xinv: without inverse masking; Xpred: without preservation of the prediction. The other weights are searched, as for
    all (small scale: aml-weights).
    """
    setup = aml.Setup(study)
    if study.is_small:
        # Of each, the weights that are best in aml-weights; and all terms with those that the other tables have.
        setup.train_classifiers()
        variants: dict[str, tuple[str, str, dict[str, Any]]] = {
            "AML A-C": ("AML", "", {"inverse_weight": 1.0}),
            "Xpred": ("Xpred", "Xpred", {"trials": None, "preservation_weight": 0, "sparsity_weight": 0.03}),
            "Xinv": ("Xinv", "Xinv", {"trials": None, "sparsity_weight": 0.3, "inverse_weight": 0}),
            "λinv .5": ("λinv .5", ", λinv .5", {}),
        }
        for name, (judgement, ending, changes) in variants.items():
            (runs,) = setup.train_masks("A-C", name=name, **aml.WEIGHTS | aml.FEW_ROWS | changes)
            setup.judge_masks(judgement, runs, setup.test, aml.METRICS, ending)
        caption = "Xpred: without the prediction's term, Xinv: without the inverse's; A-C chooses the maps of fAML"
        setup.add_table("table-4", caption)
        return
    # The paper's: emotions and DistilBERT.
    emotions = Data("sst-train", "hub:dair-ai/emotion", split="train")
    setup.trainings = [Training("SST2", emotions, emotions.but("sst-dev", split="validation"))]
    setup.models = [Model("DistilBERT", "distilbert/distilbert-base-uncased", max_length=512)]
    setup.train_classifiers()
    terms: dict[str, dict[str, Any]] = {"AML": {}, "Xpred": {"preservation_weight": 0}, "Xinv": {"inverse_weight": 0}}
    for name, without in terms.items():
        how: dict[str, Any] = without | {"trials": None, "sparsity_weight": 0.5} if without else {}
        for metric, runs in zip(
            ("Suff", "Comp"), setup.train_masks("Suff", "Comp", name=name + " {}", **how), strict=True
        ):
            ending = name if without else ""
            test = emotions.but("SST2", split="test")
            setup.judge_masks(f"{name} {metric}", runs, test, choose(aml.METRICS, metric), ending)
    setup.add_table("table-4", "", metrics=["Suff", "Comp"])


@register
def aml_table_4_metrics(study: Study) -> None:
    """AML, Table 4: one masking model for each metric.

    Xinv: without inverse masking; Xpred: without preservation of the prediction. Each metric has its own masking
    models, as in the paper.
    """
    # Claims, stated before the runs. By each of the two metrics, fAML and pAML of all three terms are better than
    # without the prediction's term, and than without the inverse's. The masking models with all terms are those of
    # aml-table-1-metrics, and the others have the same weights of the terms that are left. Planned were those that are
    # best in aml-weights, which masks by [MASK] embeddings: with its λa .03, the first model without the prediction's
    # term collapsed (it kept everything at step 140), and no other had been trained.
    if not study.is_small:
        explain_all_encoders(study)
        return
    setup = train_by_metric(study, "Suff", "Comp")
    for name, term in {"Xpred": "preservation_weight", "Xinv": "inverse_weight"}.items():
        how: dict[str, Any] = {"masking": "omit", "sparsity_warmup": 60, **aml.WEIGHTS, **aml.MANY_ROWS, term: 0}
        runs = setup.train_masks("Suff", "Comp", name=name + " {}", trials=None, arguments=aml.SHORT, **how)
        for metric, each in zip(("Suff", "Comp"), runs, strict=True):
            setup.judge_masks(f"{name} by {metric}", each, setup.test, choose(aml.METRICS, metric), name)
    caption = "One masking model for each metric, with all terms and without one "
    caption += "(Xpred: the prediction's, Xinv: the inverse's)"
    setup.add_table("metrics", caption, metrics=["Suff", "Comp"])


def train_masks_of_table_1(study: Study) -> tuple[aml.Setup, dict[str, Any]]:
    """Train the classifiers and masking models of Table 1; return their settings, too, for others beside them."""
    setup = begin_sentences(study)
    setup.train_classifiers(arguments={"num_train_epochs": 2, "learning_rate": 1e-4})
    how: dict[str, Any] = {"arguments": aml.SHORT, "masking": "omit", "sparsity_warmup": 60, **aml.WEIGHTS}
    how |= aml.MANY_ROWS
    setup.train_masks("A-C", **how)
    return setup, how


@register
def aml_any_length(study: Study) -> None:
    """AML, Tables 3 to 5: with the models of Table 1, which learned from sentences of any length.

    Of at most 12 words, as in the other small studies of these tables, the budgets of 1 and 5 % are empty.
    """
    # Claims, stated before the runs: those of Tables 3 to 5. Masks agree better with rationales than ALTI and DecompX;
    # by A-C, fAML and pAML of all three terms are better than without the prediction's term, and than without the
    # inverse's; pAML is faster than DecompX.
    if not study.is_small:
        explain_all_encoders(study)
        return
    setup, how = train_masks_of_table_1(study)
    rows = {"": setup.masks["A-C"]}
    for name, term in {"Xpred": "preservation_weight", "Xinv": "inverse_weight"}.items():
        (rows[name],) = setup.train_masks("A-C", name=name, trials=None, **how | {term: 0})
    for name, runs in rows.items():
        setup.judge_masks(f"{name} by A-C".strip(), runs, setup.test, aml.METRICS, name)
    caption = "A-C with all terms and without one (Xpred: the prediction's, Xinv: the inverse's)"
    setup.add_table("terms", caption, metrics=["A-C"], where={"dataset": ["SST2"]})
    movies, agreement = Data("Movies", MOVIES, limit=60), {"Macro F1": "token_f1?unit=token&k=25"}
    study.judge("agreement", setup.f, movies, choose(setup.explainers, "DXL", "ALTI", "random", "attention"), agreement)
    setup.judge_masks("agreement of masks", rows[""], movies, agreement, limits={"fAML": 15})
    setup.add_table("agreement", "Agreement with rationales", metrics=[*agreement])
    few = setup.test.but("20 sentences", limit=20)
    study.judge("seconds", setup.f, few, choose(setup.explainers, "SIG", "DCMP", "SLVX"), choose(aml.METRICS, "A-C"))
    setup.judge_masks("seconds of masks", rows[""], few, choose(aml.METRICS, "A-C"))
    setup.add_table("seconds", "Seconds a sentence", metrics=["seconds"], where={"dataset": ["20 sentences"]})


@register
def aml_options(study: Study) -> None:
    """AML: what replaces masked words, and other forms of the loss's terms.

    The models of Table 1 beside masking models that differ from them in one option each.
    """
    # Claims, stated before the runs: masking models that omit masked words are better by A-C than those that replace
    # them by [MASK], by random words, by a learned vector, or by the words that a language model predicts; and no other
    # form of a term is better than the paper's.
    if not study.is_small:
        explain_all_encoders(study)
        return
    setup, how = train_masks_of_table_1(study)
    predictor = Model("predictor", "${EXPOUND_MASKED_MODEL:-google-bert/bert-base-uncased}")
    options: dict[str, dict[str, Any]] = {
        "[MASK]": {"masking": "mask"},
        "random words": {"masking": "random"},
        "a learned vector": {"masking": "learned"},
        "predicted words": {"masking": "predicted", "predictor": predictor},
        "inverse: probability": {"inverse_form": "probability"},
        "inverse: negative entropy": {"inverse_form": "negative_entropy"},
        "sparsity: L1": {"sparsity_form": "l1"},
    }
    rows = {"Table 1": setup.masks["A-C"]}
    for name, changes in options.items():
        (rows[name],) = setup.train_masks("A-C", name=name, trials=None, **how | changes)
    for name, runs in rows.items():
        ending = "" if name == "Table 1" else f", {name}"
        setup.judge_masks(f"{name} by A-C", runs, setup.test, aml.METRICS, ending)
    setup.add_table("options", "Faithfulness of masks; A-C chooses the maps of fAML", metrics=["A-S", "A-C"])


@register
def aml_weights(study: Study) -> None:
    """AML: the weights of the terms, with all three and without one.

    A grid for each, judged on sentences of dev that nothing else uses: whoever leaves out a term has the best weights
    of the others.
    """
    setup, small = aml.Setup(study), study.is_small
    study.seeds = [7]
    dev = setup.trainings[0].dev if small else setup.trainings[0].dev.but("sst-dev", rows=(0, 672))
    setup.trainings = [Training("SST2", setup.trainings[0].train, dev)]
    held_out = Data("held out", SST, split="dev", exclude=(dev,))
    if small:
        held_out = held_out.but("held out", limit=60, longest={"words": 12})
    setup.train_classifiers()
    grid = [(0.5, 0.1, 0.5), (0.5, 0.3, 0.5), (0.5, 0.03, 0.5), (1.0, 0.1, 0.5), (0.5, 0.1, 1.0)]
    grid += [(0, 0.1, 0.5), (0, 0.3, 0.5), (0, 0.03, 0.5), (0, 0.1, 1.0)]
    grid += [(0.5, 0.1, 0), (0.5, 0.3, 0), (0.5, 0.03, 0), (1.0, 0.1, 0)]
    runs = []
    for p, a, inv in grid:
        terms = {"λp": p, "λa": a, "λinv": inv}
        weights = " ".join(f"{term} {weight:g}".replace("0.", ".") for term, weight in terms.items() if weight)
        name = f"{'Xpred' if not p else 'Xinv' if not inv else 'all'}, {weights}"
        how: dict[str, Any] = {"preservation_weight": p, "sparsity_weight": a, "inverse_weight": inv, "trials": None}
        how |= aml.FEW_ROWS if small else {"arguments": {}}
        runs += setup.train_masks("A-C", name=name, **how)
    metrics = choose(aml.METRICS, "A-C", "A-S", "Comp", "Suff")
    study.judge("held out", runs, held_out, choose(aml.MASKS, "pAML"), metrics, model=setup.f)
    # Xpred, λa .3 λinv .5 collapsed: it masks all words.
    where = {"recipe": [each.name for each in runs if "Xpred, λa .3" not in each.name]} if small else {}
    study.table(
        "weights", "pAML by the weights of its terms; A-C chooses", rows="recipe", columns="metric",
        metrics=["Suff", "Comp", "A-S", "A-C"], decimals=3, where=where,
    )  # fmt: skip
