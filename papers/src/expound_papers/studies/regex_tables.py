"""REGEX: the paper's tables, and Tables 1 and 3 with other seeds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from expound_papers.studies import regex
from expound_papers.studies.corpora import MOVIES, REVIEWS, SST
from expound_papers.study import Data, Model, Study, Training, choose, register


@register
def regex_table_1(study: Study) -> None:
    """REGEX, Table 1: normalized sufficiency and comprehensiveness in domain and out of it."""
    setup, where = regex.Setup(study), {}
    if study.is_small:
        data = [setup.test, Data("Reviews", REVIEWS, split="all", limit=60, longest={"words": 12})]
        explainers = choose(setup.explainers, *regex.EIGHT)
        study.judge("faithfulness", setup.train_both(), data, explainers, regex.METRICS, limits={"IG": 30})
        where = {"explainer": [*setup.explainers]}
    else:
        families = [*regex.make_families(setup).values()]
        trainings = [training for training, _ in families]
        both = [setup.train("Baseline", data=trainings, **regex.OFF), setup.train("REGEX", data=trainings)]
        for name, some in {"faithfulness": families[:3], "faithfulness on Amazon": families[3:]}.items():
            runs = [each.at(training=training.name) for each in both for training, _ in some]
            study.judge(name, runs, [test for _, test in some], choose(setup.explainers, *regex.SIX), regex.METRICS)
    caption = "Normalized sufficiency and comprehensiveness, models trained on the first and tested on the second"
    setup.add_table("table-1", caption, ["training", "dataset", "recipe"], where=where)
    columns, where = ["training", "dataset", "metric"], where | {"recipe": ["Baseline"]}
    setup.add_table("by-explainer", "The same of the baseline, by explainer", "explainer", columns, where=where)
    how: dict[str, Any] = {"metrics": "f1_macro", "scale": 100, "decimals": 1}
    setup.add_table("full-text", "Macro-F1 on full texts", ["training", "dataset"], "recipe", **how)


@register
def regex_table_2(study: Study) -> None:
    """REGEX, Table 2 and 9: models that see the words alone that an explanation chose (FRESH).

    Of SST and Amazon 20 % of the words are kept, of IMDB 2 % and of Yelp 10 %. The small scale has SST.
    """
    setup, number = regex.Setup(study), 0
    families = {"SST": (setup.training, setup.test)} if study.is_small else regex.make_families(setup)
    supports = [
        setup.train(name, data=[training for training, _ in families.values()], **how)
        for name, how in {"Baseline": regex.OFF, "REGEX": {}}.items()
    ]
    # Models are tested on the test sets of their own family: reviews of two classes, or of Amazon's three.
    tests = dict[str, list[Data]]()
    for name in families:
        tests[name] = [test for other, (_, test) in families.items() if ("Amaz" in other) == ("Amaz" in name)]
    for name, (training, _) in families.items():
        of_family = [each.at(training=training.name) for each in supports]
        study.judge("whole" if name == "SST" else f"whole, of {name}", of_family, tests[name])
    steps = "&n_steps=8" if study.is_small else ""
    specs = {"α∇α": "scaled_attention", "α": "attention_last", "DeepLift": regex.LIFT, "x∇x": "input_x_gradient"}
    specs["IG"] = f"integrated_gradients?baselines=zero{steps}"
    shares: dict[float, list[str]] = {0.2: [], 0.02: [], 0.1: []}
    for name in families:
        shares[{"IMDB": 0.02, "Yelp": 0.1}.get(name, 0.2)].append(name)
    for support, (explainer, spec), share in product(supports, specs.items(), shares):
        if not shares[share]:
            continue
        name = f"FRESH {explainer}, {support.name}" + (f", {100 * share:g} %" if share != 0.2 else "")
        how: dict[str, Any] = {"explainer": spec, "fraction": share, "explained_model": support}
        runs = study.train(name, "fresh", [families[each][0] for each in shares[share]], setup.model, **how)
        for source in shares[share]:
            number += 1
            own = runs.at(training=families[source][0].name)
            study.judge(f"rationales-{number}", own, tests[source], protocol="select_then_predict", **how)
    kept, columns, rows = "words", "metric", ["training", "dataset", "recipe"]
    if study.is_small:
        kept, columns, rows = "20 % of the words", "dataset", ["recipe"]
    caption = f"Macro-F1 on the {kept} that an explanation of the baseline, or of REGEX, puts first"
    how = {"scale": 100, "decimals": 1}
    setup.add_table("table-2", caption, rows, columns, metrics="rationale_f1_macro", **how)
    where = {"recipe": ["Baseline", "REGEX"]}
    setup.add_table("full-text", "Macro-F1 on full texts", rows, columns, metrics="f1_macro", where=where, **how)


def compare_initializations(study: Study, model: Model | None = None) -> None:
    """Explanations of models from different initializations, and of one whose head is untrained."""
    setup = regex.Setup(study, model)
    study.arguments = {**study.arguments, "data_seed": 0}
    study.seeds = 3 if study.is_small else 4
    arguments = {"learning_rate": 0, "max_steps": 1}
    runs = setup.train_both()
    untrained = study.train("Untrained", "baseline", setup.training, setup.model, seeds=[99], arguments=arguments)
    explainers = choose(setup.explainers, *regex.SIX[1:])
    study.judge("kept", [*runs, untrained], setup.test, explainers, keep_attributions=True)
    study.compare("DIT", "kept", regex.TOP)
    study.compare("UIT", "kept", regex.TOP, against=untrained)
    caption = "Jaccard similarity of the top 25 % of the tokens: "
    caption += "with the other initializations (DIT), with the untrained model (UIT)"
    setup.add_table("table-3", caption, metrics=["DIT", "UIT"], where={"recipe": ["Baseline", "REGEX"]})
    for each in runs:
        study.figure(
            f"table-3-{each.name.lower()}", "agreement", f"{each.name}, scaled attention", between="seeds",
            measure=regex.TOP, where={"recipe": each.name, "explainer": "α∇α"},
        )  # fmt: skip


@register
def regex_table_3(study: Study) -> None:
    """REGEX, Table 3: explanations of models from different initializations, and of one whose head is untrained."""
    compare_initializations(study)


@register
def regex_table_8(study: Study) -> None:
    """REGEX, Table 8: as Table 3 with a larger model.

    At small scale the larger model is MiniLM, and the smaller one has three of its layers.
    """
    if not study.is_small:
        compare_initializations(study, Model("encoder", "FacebookAI/roberta-large", max_length=256))
        return
    # Claim, stated before the runs: with six layers, explanations of REGEX are more alike over initializations than
    # with three, by scaled attention.
    setup = regex.Setup(study)
    models = [
        Model("6 layers", setup.model.source, setup.model.max_length),
        Model("3 layers", "${EXPOUND_SHALLOW:-runs/three-layers}", setup.model.max_length),
    ]
    runs = [setup.train("Baseline", model=models, **regex.OFF), setup.train("REGEX", model=models)]
    explainers = choose(setup.explainers, *regex.SIX[1:])
    study.judge("kept", runs, setup.test, explainers, keep_attributions=True)
    study.compare("DIT", "kept", regex.TOP)
    caption = "Jaccard similarity of the top 25 % of the tokens with the other initializations"
    setup.add_table("table-8", caption, ["recipe", "model"], "explainer", metrics="DIT")


def ablate(study: Study) -> regex.Setup:
    """Judge REGEX without its parts, and guided by other teachers. The norm of a saliency is the method's own."""
    setup = regex.Setup(study)
    without: dict[str, Mapping[str, Any]] = {
        "w/o robustness improvement": {"gradient_weight": 0.0, "adversarial_weight": 0.0},
        "w/o virtual adversarial training": {"adversarial_weight": 0.0},
        "w/o input gradient regularization": {"gradient_weight": 0.0},
        "w/o explanation guided training": {"guidance_weight": 0.0},
    }
    if study.is_small:
        # What decides: REGEX without each of its parts, and the baseline.
        runs = [setup.train("REGEX")]
        for name, parameters in without.items():
            if "input gradient" not in name:
                runs.append(setup.train(name, **parameters))
        runs.append(setup.train("Baseline", **regex.OFF))
        how: dict[str, Any] = {"adversarial_weight": 0.0, "guidance_weight": 0.0}
        runs.append(study.train("w/o guidance and adversary", "regex", setup.training, setup.model, **how))
        setup.judge(runs, regex.EIGHT)
        return setup
    runs = [setup.train("REGEX")]
    guided: dict[str, dict[str, Any]] = {
        "Saliency (mean)": {"explainer": "saliency?norm=mean_absolute", "aggregate": "mean"},
        "InputXGrad (mean)": {"explainer": "input_x_gradient", "aggregate": "mean"},
        "DeepLift (mean)": {"explainer": regex.LIFT, "aggregate": "mean"},
        "IG (mean)": {"n_steps": 50, "aggregate": "mean"},
        "Saliency (l2)": {"explainer": "saliency?norm=l2", "aggregate": "mean"},
        "InputXGrad (l2)": {"explainer": "input_x_gradient", "aggregate": "l2"},
        "DeepLift (l2)": {"explainer": regex.LIFT, "aggregate": "l2"},
        "decompx_linear": {"explainer": "decompx_linear"},
    }
    for name, how in guided.items():
        runs.append(study.train(name, "regex", setup.training, setup.model, **how))
    for name, parameters in without.items():
        how = dict(parameters) if "guided" in name else {"n_steps": 50, **parameters}
        runs.append(study.train(name, "regex", setup.training, setup.model, **how))
    setup.judge(runs, regex.SIX)
    return setup


@register
def regex_table_4(study: Study) -> None:
    """REGEX, Table 4: ablations, judged by scaled attention and DeepLift."""
    setup, caption = ablate(study), "Normalized sufficiency and comprehensiveness on SST"
    setup.add_table("table-4", caption, where={"explainer": ["α∇α", "DeepLift"]})


@register
def regex_table_10(study: Study) -> None:
    """REGEX, Table 7 and 10: ablations in full."""
    setup = ablate(study)
    setup.add_table("table-7", "Macro-F1 on SST", "recipe", "metric", metrics="f1_macro", scale=100)
    where = {"explainer": [*setup.explainers]} if study.is_small else {}
    setup.add_table("table-10", "Normalized sufficiency and comprehensiveness on SST", where=where)


@register
def regex_table_6(study: Study) -> None:
    """REGEX, Table 6: an attack by contractions, names, places and numbers."""
    setup = regex.Setup(study)
    if study.is_small:
        # Few words of a sentence can be swapped: as many sentences as there are, of any length.
        data = [Data("Sentences", SST), Data("All reviews", REVIEWS, split="all")]
        runs = setup.train_both()
    else:
        data = [Data("IMDB 400", "hub:stanfordnlp/imdb", limit=400, seed=42)]
        training, _ = regex.make_families(setup)["IMDB"]
        runs = [setup.train("Baseline", data=training, **regex.OFF), setup.train("REGEX", data=training)]
    how: dict[str, Any] = {"budget": 50 if study.is_small else 1000}
    study.judge("attack", runs, data, protocol="attack", **how)
    rows = sorted(regex.ATTACK) if study.is_small else regex.ATTACK
    setup.add_table("table-6", "Attack results", "metric", ["dataset", "recipe"], metrics=rows, decimals=3)
    caption, how = "Share of correct answers that an attack changes", {"metrics": "attack_success_rate", "decimals": 4}
    setup.add_table("by-recipe", caption, ["dataset", "recipe"], "metric", **how)


@register
def regex_reviews(study: Study) -> None:
    """REGEX, Table 6: can film reviews be attacked at all?"""
    # Can claim 7 (attacks on REGEX succeed less often) be tested where texts contain much to swap? Only if attacks
    # succeed on the baseline; in the paper they change 11.7 % of its right answers, and 3.2 % of REGEX's.
    # 800 reviews alone teach MiniLM nothing at this length: four plain trainings on them, at rates from 1e-4 to 6e-4,
    # stayed at chance. The baseline therefore starts from a model that was trained on sentences, and learns from the
    # reviews in 100 steps. REGEX was to be trained too; when attacks of 40 queries had changed 0 and 2 of 81 right
    # answers of the first two baselines, its training was stopped. An attack without a limit of queries was started,
    # and stopped for its cost before any figure was seen.
    setup, small = regex.Setup(study), study.is_small
    movies = Data("movies-train", MOVIES, split="train", limit=800 if small else None)
    test = movies.but("Film reviews", split="test", limit=100 if small else None)
    training, sentences, arguments = (
        Training("Film reviews", movies, movies.but("movies-dev", split="val", limit=None)),
        setup.training,
        {},
    )
    if small:
        setup.model = Model("encoder", setup.model.source, max_length=256)
        long: dict[str, Any] = {"longest": {}}
        train, dev = (
            sentences.train.but("sst-train", limit=4000, **long),
            sentences.dev.but("sst-dev", limit=200, **long),
        )
        sentences, arguments = Training("SST", train, dev), {"per_device_train_batch_size": 16}
        study.arguments = {**study.arguments, **regex.ONCE}
    started = study.train("Sentences", "baseline", sentences, setup.model, arguments=arguments)
    runs = setup.train("Baseline", data=training, start=started, **regex.OFF)
    how: dict[str, Any] = {"budget": 40 if small else 1000}
    study.judge("attack", runs, test, protocol="attack", **how)
    setup.add_table(
        "table-6", "Attack results on film reviews", "metric", "recipe", metrics=sorted(regex.ATTACK), decimals=3
    )


@register
def regex_seeds(study: Study) -> None:
    """REGEX: ten other seeds, without a choice of the epoch."""
    # Claims, stated before any figure was looked at: with REGEX, explanations are more comprehensive and more
    # sufficient than with the same training without its terms (claims 1a, 1b), and those of different initializations
    # are more alike (claim 4); λ4 = .01 has better sufficiency than λ4 = 3 (claim 6). With three seeds, where 100 dev
    # sentences chose one of two epochs, all of these are undecided. Here the last epoch is kept, and integrated
    # gradients are judged on all sentences. At λ4 = .01 the gradient of guidance is a two-hundredth of the task's, so
    # claims 1a, 1b and 4 are also tested at λ4 = 3. Stated after those were decided, and before the runs: without
    # robustness improvement, explanations are less comprehensive and less sufficient than without explanation guided
    # training (claim 5, undecided with three seeds).
    setup = regex.Setup(study)
    study.seeds = [*range(10, 20)] if study.is_small else 10
    study.arguments = {
        **study.arguments,
        "load_best_model_at_end": False,
        **({"bf16": False} if study.is_small else {}),
    }
    runs = [*setup.train_both(), setup.train("REGEX, λ4 = 3", guidance_weight=3.0)]
    runs.append(setup.train("w/o robustness improvement", gradient_weight=0.0, adversarial_weight=0.0))
    runs.append(setup.train("w/o explanation guided training", guidance_weight=0.0))
    setup.judge(runs, ["RAND", "α∇α", "α", "x∇x", "IG"], few=False, keep_attributions=True)
    study.compare("DIT", "faithfulness", regex.TOP)
    setup.add_table("faithfulness", "Faithfulness on SST, ten seeds")
    caption = "Jaccard similarity of the top 25 % of the tokens with the other initializations"
    setup.add_table("initializations", caption, "recipe", "explainer", metrics="DIT")


@register
def regex_any_length(study: Study) -> None:
    """REGEX, Tables 1 and 3: sentences of any length, and the perturbations of SMART's code.

    Of at most 12 words, the budgets of 1, 5 and 10 % are the same tokens in half of the sentences of the other studies.
    """
    # Claims, stated before the runs: on sentences of any length, too, REGEX's explanations are more comprehensive and
    # more sufficient than those of the same training without its terms, and those of different initializations are more
    # alike (1a, 1b and 4, by scaled attention). With the perturbations of SMART's code, which are as long as an
    # embedding, they are no more comprehensive than with the printed ones (ours).
    # Three more seeds of the two rows of claims 1a and 1b were planned when the figures of the first three were known;
    # attributions of these are compared where they were made.
    setup = regex.Setup(study, longest=None)
    study.arguments = {**study.arguments, "load_best_model_at_end": False}
    seeds = 6 if study.is_small else None
    both = [setup.train("Baseline", seeds=seeds, **regex.OFF), setup.train("REGEX", seeds=seeds)]
    runs = [each.at(seed=seed) for each in both for seed in each.seeds[: 3 if study.is_small else None]]
    more = [each.at(seed=seed) for each in both for seed in each.seeds[3:] if study.is_small]
    runs.append(setup.train("REGEX, λ4 = 3", guidance_weight=3.0))
    runs.append(setup.train("REGEX, perturbations of SMART", form="smart", radius=1e-5))
    setup.judge(runs, regex.SIX, keep_attributions=True)
    if more:
        study.judge("more seeds", more, setup.test, choose(setup.explainers, "RAND", "α∇α", "α"), regex.METRICS)
    study.compare("DIT", "faithfulness", regex.TOP)
    setup.add_table("faithfulness", "Normalized sufficiency and comprehensiveness on SST, sentences of any length")
    caption = "Jaccard similarity of the top 25 % of the tokens with the other initializations"
    setup.add_table("initializations", caption, "recipe", "explainer", metrics="DIT")
