"""AML of encoders: Table 1, with one masking model for each metric, and on film reviews."""

from __future__ import annotations

from typing import Any

from expound_papers.studies import aml
from expound_papers.studies.corpora import MOVIES
from expound_papers.study import Data, Explainer, Model, Noisy, Significance, Study, Training, choose, register


def begin_sentences(study: Study) -> aml.Setup:
    """Return the small scale of Table 1.

    Sentences of any length: on short ones the budgets of 1 and 5 % are empty. Masked words get no attention, and λ_a
    grows from 0: with [MASK] embeddings and the paper's start, training can end where all words are kept, or none.
    """
    setup = aml.Setup(study, 3000, 200, 200, length=128, words=None)
    setup.explainers["LIME"] = "lime?n_samples=100"
    return setup


def explain_all_encoders(study: Study) -> None:
    """Explain BERT, RoBERTa and DistilBERT on four corpora, with a masking model for each metric."""
    setup, corpora = aml.Setup(study), aml.make_corpora()
    setup.models.append(Model("RoBERTa", "FacebookAI/roberta-base", max_length=512))
    setup.models.append(Model("DistilBERT", "distilbert/distilbert-base-uncased", max_length=512))
    setup.trainings += [training for training, _ in corpora]
    setup.train_classifiers()
    setup.train_masks(*aml.METRICS)
    solvex = {f"SLVX for {name}": f"solvex?criterion={aml.IDS[name]}" for name in ("Suff", "LO")}
    for training, test in [(setup.trainings[0], setup.test), *corpora]:
        names = [*aml.EXPLAINERS]
        all_explainers = choose(aml.EXPLAINERS, *names[:4]) | solvex | choose(aml.EXPLAINERS, *names[4:])
        if test.name == "IMDB":
            all_explainers = {name: spec for name, spec in aml.EXPLAINERS.items() if name != "SLVX"}
        study.judge(f"{test.name} methods", setup.f.at(training=training.name), test, all_explainers, aml.METRICS)
        for metric, each in setup.masks.items():
            runs = each.at(training=training.name)
            setup.judge_masks(f"{test.name} by {metric}", runs, test, choose(aml.METRICS, metric))
    setup.add_table("table-1", "Faithfulness of explanations", columns=["training", "model", "metric"])


def train_by_metric(study: Study, *metrics: str) -> aml.Setup:
    """Train and judge a masking model for each metric, with three other seeds."""
    setup = begin_sentences(study)
    study.seeds = [45, 46, 48]
    setup.train_classifiers(arguments={"num_train_epochs": 2, "learning_rate": 1e-4})
    setup.train_masks(*metrics, arguments=aml.SHORT, masking="omit", sparsity_warmup=60, **aml.WEIGHTS, **aml.MANY_ROWS)
    for metric, runs in setup.masks.items():
        setup.judge_masks(f"SST2 by {metric}", runs, setup.test, choose(aml.METRICS, metric))
    return setup


@register
def aml_table_1(study: Study) -> None:
    """AML, Table 1: explanations of encoders.

    fAML is chosen by the metric it is reported by. SLVX has a row for each objective; it is not in the paper's IMDB
    rows. F is fine-tuned here; the paper takes checkpoints of the hub.
    """
    if not study.is_small:
        explain_all_encoders(study)
        return
    setup = begin_sentences(study)
    setup.train_classifiers(arguments={"num_train_epochs": 2, "learning_rate": 1e-4})
    (masks,) = setup.train_masks(
        "A-C", arguments=aml.SHORT, masking="omit", sparsity_warmup=60, **aml.WEIGHTS, **aml.MANY_ROWS
    )
    # SLVX takes hundreds of passes an example.
    names = ["SIG", "ALTI", "DCMP", "DXL", *[*aml.EXPLAINERS][4:], aml.NOISY_DCMP]
    study.judge("SST2 methods", setup.f, setup.test, choose(setup.explainers, *names), aml.METRICS)
    setup.judge_masks("SST2 by A-C", masks, setup.test, aml.METRICS)
    setup.add_table(
        "table-1",
        "Faithfulness of explanations; fAML and the best of 11 are chosen by A-C, on the sentence that is judged",
        columns=["training", "model", "metric"], significance=Significance("random"),
    )  # fmt: skip


@register
def aml_table_1_metrics(study: Study) -> None:
    """AML, Table 1: one masking model for each metric.

    As in the paper, each metric has its own masking model: it chooses the epoch and the refined maps. Three other
    seeds.
    """
    # Claims, stated before the runs. By each metric, fAML is the best of all methods (paper: in most cases), and better
    # than the best of 11 noisy maps of DecompX that the same metric chooses. pAML is better than random and attention.
    # For their cost, what was planned was cut before any figure was seen: 400 sentences and four seeds to those of
    # Table 1, and the five metrics to three; Table 1 itself has a masking model for A-C. Seed 47 was planned, too: its
    # masks collapsed at step 140 (they kept everything). Seed 48 replaces it, before any figure was seen.
    if not study.is_small:
        explain_all_encoders(study)
        return
    setup = train_by_metric(study, "Suff", "LO", "Comp")
    names = ["DCMP", "LIFT", "SHAP", "IG", "LIME", "random", "attention"]
    study.judge("SST2 methods", setup.f, setup.test, choose(setup.explainers, *names), aml.METRICS)
    for metric in setup.masks:
        noisy = {f"noisy, by {metric}": Explainer("decompx_classifier", noisy=Noisy(aml.METRICS[metric]))}
        study.judge(f"noisy, by {metric}", setup.f, setup.test, noisy, choose(aml.METRICS, metric))
    caption = "Faithfulness, one masking model for each metric; "
    caption += "fAML and noisy maps are chosen by the metric, on the sentence that is judged"
    setup.add_table("metrics", caption, metrics=[*setup.masks])


@register
def aml_movies(study: Study) -> None:
    """AML on film reviews.

    A masking model that was trained on film reviews, for a classifier of film reviews, both as far as the model reads.
    """
    # Claims, stated before the runs, with the numbers of the results page. On reviews of 256 tokens, as on sentences:
    # by A-C, pAML is better than random words and attention (1), fAML is better than DecompX and LIME (4) and than the
    # best of 11 noisy maps of DecompX, which are chosen in the same way (4b). Masks trained on reviews agree better
    # with rationales than ALTI and DecompX (5). 60 reviews and IG were planned; for their cost they were cut to 40 and
    # to DeepLIFT before any figure was seen. 800 reviews alone teach MiniLM too little at this length: F starts from a
    # model that was trained on sentences.
    setup, small = aml.Setup(study, 4000, 200, length=256, words=None), study.is_small
    limits = {"train": 800, "val": 100, "test": 40} if small else dict.fromkeys(("train", "val", "test"))
    names = {"train": "movies-train", "val": "movies-dev", "test": "Movies"}
    data = [Data(name, MOVIES, split=split, limit=limits[split]) for split, name in names.items()]
    once: dict[str, Any] = {"num_train_epochs": 1, "learning_rate": 5e-5, "per_device_train_batch_size": 16}
    once |= {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    started = study.train("Sentences", "baseline", setup.trainings, setup.models, arguments=once if small else {})
    setup.trainings = [Training("Movies", data[0], data[1])]
    setup.train_classifiers(start=started, arguments=once | {"per_device_train_batch_size": 8} if small else {})
    # The settings of Table 1, but smaller batches, and λ_a has its whole weight from the first step (the default).
    how: dict[str, Any] = {
        "arguments": aml.SHORT | {"num_train_epochs": 2, "per_device_train_batch_size": 8},
        **aml.WEIGHTS,
    }
    how |= {"masking": "omit", "train_rows": 800, "dev_rows": 60}
    (masks,) = setup.train_masks("A-C", **(how if small else {}))
    explainers: dict[str, Any] = (
        aml.EXPLAINERS | choose(aml.SMALL, "DXL", aml.NOISY_DXL) | ({"LIME": "lime?n_samples=100"} if small else {})
    )
    chosen = choose(explainers, "DXL", "LIFT", "LIME", "ALTI", "attention", "random", aml.NOISY_DXL)
    metrics = aml.METRICS | {"Token F1": "token_f1?unit=token&k=25"}
    study.judge("methods", setup.f, data[2], chosen, metrics)
    setup.judge_masks("masking", masks, data[2], metrics)
    study.judge("accuracy", setup.f, data[2])
    caption = "Film reviews; fAML and the best of 11 are chosen by A-C, on the review that is judged"
    setup.add_table("movies", caption, metrics=[*metrics])
    fields: dict[str, Any] = {"metrics": "accuracy", "where": {"recipe": "F"}, "decimals": 3}
    study.table("accuracy", "Right answers on film reviews", rows="recipe", columns="dataset", **fields)
