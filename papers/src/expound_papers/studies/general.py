"""Studies of no paper: what recipes do without options, every method under one protocol, and a real language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expound_papers.study import Axis, Data, Model, Runs, Significance, Study, Training, choose, register

MINILM = "${EXPOUND_BACKBONE:-sentence-transformers/all-MiniLM-L6-v2}"
SST = "sst:${EXPOUND_DATA:-data}/sst"
OFF = {"gradient_weight": 0.0, "adversarial_weight": 0.0, "guidance_weight": 0.0}


@register
def defaults(study: Study) -> None:
    """What each recipe does without options.

    Every recipe with its default values on 1,000 sentences, beside as many steps without its terms: the same start,
    data,
    seeds and rule for the best epoch. Judged on test sentences that nothing else uses. AML's page has
    the defaults of aml (aml-defaults.yaml); cite and at2 are on the pages of trained citations; smat takes over an
    hour.
    """
    # Claim, stated before the runs: each recipe changes what it exists for, at accuracy within 2 points of its
    # control's. Accuracy was to be judged on the 250 sentences; 1,000 took their place when er_joint's first seed had
    # run.
    study.seeds = 3
    # For speed on a CPU; the weights stay in float32.
    study.arguments = {"bf16": True} if study.is_small else {}
    train = Data("sst-train", SST, split="train", limit=1000)
    data = Training("SST", train, train.but("sst-dev", split="dev", limit=200))
    test = Data("SST", SST, limit=250, rationales=True)
    model, runs = Model("encoder", MINILM, max_length=128), dict[str, Runs]()

    def train_one(name: str, recipe: str | None = None, **how: Any) -> Runs:
        runs[name] = study.train(name, recipe or name, data, model, **how)
        return runs[name]

    for name in ("er_joint", "er_constrained"):
        train_one(name)
    train_one("er control", "er_joint", weight=0.0)
    train_one("rrr")
    train_one("rrr control", "rrr", weight=0.0)
    train_one("regex")
    train_one("regex control", "regex", **OFF)
    arguments = {"learning_rate": 1e-4, "num_train_epochs": 4, "per_device_train_batch_size": 16}
    fine = train_one("fine-tuned", "baseline", arguments=arguments)
    train_one("ivra comprehensiveness", "ivra", start=fine)
    for name in ("sufficiency", "consistency"):
        train_one(f"ivra {name}", "ivra", start=fine, criteria=name)
    arguments = {"learning_rate": 3e-5, "num_train_epochs": 2, "per_device_train_batch_size": 16, "warmup_steps": 0}
    train_one("ivra control", "baseline", start=fine, arguments=arguments)
    train_one("extractor")
    for name in ("fresh", "roar"):
        first: dict[str, Any] = {} if name == "fresh" else {"explainer": "decompx_linear"}
        train_one(name, explained_model=fine, **first)
        train_one(f"{name} control", name, explained_model=fine, explainer="random")
    explainers = {
        "attention": "attention_last",
        "trained": "interpretable_attention:{run}",
        "untrained": "interpretable_attention?untrained&normalizer=softmax",
        "selected words": "rationale_extractor:{run}",
        "saliency": "saliency",
        "decompx_linear": "decompx_linear",
        "random": "random",
    }
    metrics = {"AUC": "rationale_auc", "comprehensiveness": "aopc_comprehensiveness", "sufficiency": "aopc_sufficiency"}
    metrics["consistency"] = "consistency"
    criteria = [f"ivra {name}" for name in ("comprehensiveness", "sufficiency", "consistency")]
    judged: dict[str, tuple[list[str], list[str], list[str]]] = {
        "guided": (["er_joint", "er_constrained", "er control"], ["attention"], ["AUC"]),
        "robust": (["regex", "regex control"], ["attention"], ["comprehensiveness", "sufficiency"]),
        "criteria": (criteria, ["trained"], [*metrics][1:]),
        "criteria, control": (["ivra control"], ["untrained"], [*metrics][1:]),
        "gradients": (["rrr", "rrr control"], ["saliency"], ["AUC"]),
        "selected": (["extractor"], ["selected words", "decompx_linear", "random"], ["sufficiency"]),
    }
    for name, (names, by, what) in judged.items():
        target = "label" if name == "gradients" else "predicted"
        each = [runs[one] for one in names]
        study.judge(name, each, test, choose(explainers, *by), choose(metrics, *what), target=target)
    for name, recipe, protocol in (("kept words", "fresh", "select_then_predict"), ("left words", "roar", "roar")):
        for ending, explainer in {"": "decompx_linear", " control": "random"}.items():
            how: dict[str, Any] = {"explainer": explainer, "explained_model": fine}
            title = f"{name},{ending}" if ending else name
            study.judge(title, runs[recipe + ending], test, protocol=protocol, **how)
    # More sentences, for differences of a few points in accuracy.
    answers = [
        "er_joint",
        "er_constrained",
        "er control",
        "rrr",
        "rrr control",
        "regex",
        "regex control",
        *criteria,
        "ivra control",
    ]
    study.judge("answers", [runs[name] for name in answers], Data("SST answers", SST, limit=1000))

    def add(
        name: str, caption: str, metrics: Any, where: Any, against: str = "", rows: str = "recipe", **how: Any
    ) -> None:
        fields = {"significance": Significance(against) if against else None, "decimals": 3} | how
        study.table(name, caption, rows=rows, columns="metric", metrics=metrics, where=where, **fields)

    of = {name: {"judgement": name} for name in judged}
    add("guided", "AUC of the guided attention", "AUC", of["guided"], "er control")
    caption = "Attention of models trained with REGEX"
    add("robust", caption, ["comprehensiveness", "sufficiency"], of["robust"], "regex control")
    caption = "Attention trained by a criterion, and untrained on a model trained as long"
    where: dict[str, Any] = {"judgement": ["criteria", "criteria, control"]}
    add("criteria", caption, [*metrics][1:], where, "ivra control")
    add("gradients", "AUC of saliency, whose gradients rrr penalizes", "AUC", of["gradients"], "rrr control")
    caption = "Words that the extractor selects, against other explanations of the same model"
    add("selected", caption, "sufficiency", of["selected"], "random", "explainer")
    how = {"scale": 100, "decimals": 1}
    add("accuracy", "Accuracy on 1,000 sentences of SST Test, %", "accuracy", {"judgement": "answers"}, **how)
    add("kept", "Accuracy on the words that an explanation kept (FRESH), %", "rationale_accuracy", {}, **how)
    add("left", "Accuracy on the words that an explanation left (ROAR), %", "roar_accuracy", {}, **how)
    how = {"metrics": "training_seconds", "decimals": 0, "where": {"recipe": DEFAULTS_ORDER}}
    study.table("cost", "Seconds of a run", rows="recipe", columns="training", **how)


DEFAULTS_ORDER = [
    "er_joint", "er_constrained", "er control", "rrr", "rrr control", "regex", "regex control",
    "ivra comprehensiveness",
    "ivra sufficiency", "ivra consistency", "ivra control", "fine-tuned", "extractor", "fresh", "fresh control", "roar",
    "roar control",
]  # fmt: skip
PASSES = [
    "random", "input_x_gradient", "attention_last", "attention_all", "generic_attention", "flash_trace",
    "decompx_linear",
    "attn_lrp", "gim",
]  # fmt: skip


@register
def language_models(study: Study) -> None:
    """Citations of a real language model.

    Which source does the answer come from? A chat model of 135 million parameters answers questions on passages; only
    prompts whose answer is right are judged. `make_prompts.py` asks the questions and writes the prompts.
    """
    # Claims, stated before the runs:
    # 1. On one passage, the LDS of context_cite with 64 ablations is at least .89.
    # 2. On one passage, the LDS of decompx_linear is at least .79.
    # 3. On one passage, the LDS of leaving one source out is at least .79.
    # 4. On one passage, the LDS of random scores is between −.15 and .15.
    # 5. On one passage, input × gradient is worse than decompx_linear (LDS, Holm).
    # 6. If several facts are needed, decompx_linear is at least .1 below leaving one source out.
    # After claim 6 held: is it the number of facts, or the form of the answer? Stated before those two runs:
    # 7. With two passages needed and answers in their words, the LDS of decompx_linear is at least .6.
    # 8. With one passage needed and the answer yes or no, it is at most .3.
    # On Gemma 3 270M, which completes prompts, stated before its runs:
    # 9. On one passage, the LDS of decompx_linear is at least .7.
    # 10. On one passage, the LDS of leaving one source out is higher than that of decompx_linear.
    # 11. If several facts are needed, decompx_linear is at least .1 below leaving one source out.
    # On smaller units of one passage, SmolLM2, stated before those runs:
    # 12. By sentence, the LDS of decompx_linear is at least .6.
    # 13. By word, the LDS of decompx_linear is at least .1 above that of input × gradient.
    # 14. By word, no method of one or two passes has an LDS of .6.
    count = 100 if study.is_small else 500
    squad = Data("One passage", "jsonl:${EXPOUND_PROMPTS:-runs/prompts}/squad-passages.jsonl", split="all", limit=count)
    facts = squad.but("Several facts", spec="jsonl:${EXPOUND_PROMPTS:-runs/prompts}/strategyqa-facts.jsonl")
    form = [squad.but(name, spec=f"jsonl:${{EXPOUND_PROMPTS:-runs/prompts}}/{file}.jsonl", limit=100)
            for name, file in {"Two passages": "squad-two", "Yes or no": "squad-yes-no"}.items()]  # fmt: skip
    few = [each.but(f"{each.name}, 40", limit=40) for each in (squad, facts)]
    folder = "jsonl:${EXPOUND_GEMMA_PROMPTS:-runs/gemma-prompts}"
    of_gemma = [squad.but("One passage, Gemma", spec=f"{folder}/squad-passages.jsonl", limit=100)]
    of_gemma.append(squad.but("Several facts, Gemma", spec=f"{folder}/strategyqa-facts.jsonl", limit=100))
    models = [
        Model("SmolLM2-135M", "${EXPOUND_CHAT_MODEL:-runs/smollm2}"),
        Model("Gemma 3 270M", "${EXPOUND_BASE_MODEL:-runs/gemma3}"),
    ]
    runs = study.train("As it is", None, None, models)
    smol, gemma = (runs.at(model=each.name) for each in models)
    explainers = {name: name for name in PASSES}
    explainers |= {"leave one out": "occlusion?output=log_prob", "context_cite, 64": "context_cite?n_samples=64"}
    metrics = {
        "LDS": "lds?n_samples=64",
        "recall": "recall_at_k",
        "AUC": "rationale_auc",
        "drop": "topk_drop?k=1",
        "comprehensiveness": "unit_comprehensiveness?perturbation=remove",
        "sufficiency": "unit_sufficiency?perturbation=remove",
    }
    four, removed = choose(metrics, "LDS", "recall", "AUC", "drop"), choose(metrics, "comprehensiveness", "sufficiency")
    study.judge("facts", smol, facts, explainers, four, unit="source")
    study.judge("passages", smol, squad, explainers, four, unit="source")
    some = choose(explainers, "random", "decompx_linear", "attn_lrp", "leave one out", "context_cite, 64")
    study.judge("form", smol, form, some, choose(metrics, "LDS", "recall", "drop"), unit="source")
    study.judge("passages, Gemma", gemma, of_gemma[0], explainers, four, unit="source")
    study.judge("facts, Gemma", gemma, of_gemma[1], explainers, four, unit="source")
    study.judge("removed sources", smol, few, explainers, removed, unit="source")
    three = choose(metrics, "LDS") | removed
    study.judge("sentences", smol, few[0], explainers, three, unit="sentence")
    study.judge("words", smol, few[0], choose(explainers, *PASSES), three, unit="word")

    def add(name: str, caption: str, metrics: Any, decimals: int = 2, **where: str) -> None:
        how: dict[str, Any] = {"show": "mean [95 %]", "decimals": decimals, "where": where}
        study.table(name, caption, rows="explainer", columns="metric", metrics=metrics, **how)

    all_five, three_of = [*four, "seconds"], ["LDS", "recall", "drop"]
    add("passages", "One passage has the answer, three others are of the same article", all_five, judgement="passages")
    add("facts", "The answer needs two facts or more, four others are of other questions", all_five, judgement="facts")
    caption = "Two questions at once, each with its own passage; the right response is given"
    add("two passages", caption, three_of, judgement="form", dataset="Two passages")
    caption = 'Whether an answer is the answer, with one passage; the right "Yes" or "No" is given'
    add("yes or no", caption, three_of, judgement="form", dataset="Yes or no")
    caption = "Gemma 3 270M completes the prompt; one passage has the answer"
    add("passages of Gemma", caption, all_five, judgement="passages, Gemma")
    add("facts of Gemma", "Gemma 3 270M; the answer needs two facts or more", all_five, judgement="facts, Gemma")
    add("sentences", "By sentence; one passage has the answer", [*three], 3, judgement="sentences")
    caption = (
        "What the answer's probability loses without the first sources, or with only them; one passage has the answer"
    )
    add("sources of passages", caption, [*removed], 3, judgement="removed sources", dataset="One passage, 40")
    caption = "The same where the answer needs two facts or more"
    add("sources of facts", caption, [*removed], 3, judgement="removed sources", dataset="Several facts, 40")
    add("words", "By word", [*three], 3, judgement="words")
    where: dict[str, Any] = {"model": "SmolLM2-135M", "judgement": ["passages", "facts", "form"]}
    where["dataset"] = ["One passage", "Several facts", "Two passages", "Yes or no"]
    study.table(
        "differences", "LDS; marked where it differs from decompx_linear's (permutation test over prompts, Holm)",
        rows="explainer", columns="dataset", metrics="LDS", where=where, decimals=2,
        significance=Significance("decompx_linear"),
    )  # fmt: skip
    for name, data in {"passages": squad, "facts": facts}.items():
        study.figure(
            f"cost-{name}", "scatter", f"{data.name}: agreement with ablations against seconds per prompt",
            average=True,
            between="explainers", where={"explainer": [*explainers][1:], "dataset": data.name},
            x=Axis("seconds", label="seconds per prompt on one core"), y=Axis("LDS"),
        )  # fmt: skip


METHODS = {
    name: name for name in (
        "random", "saliency", "input_x_gradient", "smooth_grad", "integrated_gradients",
        "sequential_integrated_gradients",
        "gradient_shap", "deep_lift", "attention_last", "attention_all", "scaled_attention", "attention_rollout",
        "generic_attention", "value_zeroing", "globenc", "alti", "information_flow", "flash_trace", "decompx",
        "decompx_classifier", "decompx_linear", "attn_lrp", "cp_lrp", "gim", "occlusion", "lime", "kernel_shap",
        "shapley_sampling", "context_cite", "reagent", "solvex",
    )
}  # fmt: skip
METHODS |= {
    "smooth_grad": "smooth_grad?n_samples=10", "integrated_gradients": "integrated_gradients?n_steps=10",
    "sequential_integrated_gradients": "sequential_integrated_gradients?n_steps=3",
    "deep_lift": "deep_lift?rule=captum",
    "lime": "lime?n_samples=40", "kernel_shap": "kernel_shap?n_samples=40", "reagent": "reagent?n_steps=30",
    "shapley_sampling": "shapley_sampling?n_samples=40", "solvex": "solvex?beam=1",
}  # fmt: skip
FEWER = [name for name in METHODS if name not in ("sequential_integrated_gradients", "solvex")]
# At 512 tokens, what needs a pass a word costs minutes an example: sentences are taken away instead.
SLOW = ["smooth_grad", "gradient_shap", "value_zeroing", "decompx", "decompx_classifier", "occlusion", *FEWER[-5:]]
STRETCHES = {
    "A-C": "aopc_comprehensiveness", "A-S": "aopc_sufficiency", "NAOPC-C": "naopc_comprehensiveness?max_units=6",
    "NAOPC-S": "naopc_sufficiency?max_units=6",
}  # fmt: skip
SOFT = {
    "soft-C": "soft_comprehensiveness?fraction=0.5&n_samples=2",
    "soft-S": "soft_sufficiency?fraction=0.5&n_samples=2",
}
OTHERS = {
    "deletion": "deletion_auc?max_units=6", "insertion": "insertion_auc?max_units=6",
    "flip": "decision_flip?max_units=6",
    "LDS": "lds?max_units=6",
}  # fmt: skip


@register
def methods(study: Study) -> None:
    """Every method under one protocol.

    All methods that need no training on four models and three kinds of text. Metrics on stretches cut a text into six
    parts of nearly equal length, so that the limits of NAOPC are exact.
    """
    small, folder = study.is_small, Path(__file__).parent
    study.arguments = {"bf16": True} if small else {}
    sst = Data("sst-train", SST, split="train", limit=4000)
    dev = sst.but("sst-dev", split="dev", limit=100)
    snli = Data("snli-train", "snli:${EXPOUND_DATA:-data}/snli", split="dev", limit=2400)
    films = Data("movies-train", "eraser:${EXPOUND_DATA:-data}/movies", split="train", limit=64)
    on_sst, on_parts = Training("SST", sst, dev), Training("SST parts", sst.but("part of sst-train", limit=640), dev)
    on_pairs = Training("SNLI", snli, snli.but("snli-dev", limit=50, exclude=(snli,)))
    on_films = Training("Movies", films, films.but("movies-dev", split="val", limit=8))
    few, some = (
        sst.but("Some of SST2", split="test", limit=20),
        sst.but("SST2", split="test", limit=60 if small else 400),
    )
    pairs, movies = (
        snli.but("SNLI", split="test", limit=20 if small else 400),
        films.but("Movies", split="test", limit=5 if small else 100),
    )
    tuned = Model("MiniLM-SST2", "${EXPOUND_MODELS:-../shared/models}/minilm-sst2", max_length=512)
    minilm = Model("MiniLM", MINILM, max_length=64)
    decoders = [
        Model(name, str(folder / f"{name.lower().replace('-', '')}-classifier.json"), max_length=64)
        for name in ("GPT-2", "Llama")
    ]

    def train(name: str, data: Training, model: Any, epochs: int = 1, rate: float = 2e-5, **how: Any) -> Runs:
        arguments = {"num_train_epochs": epochs, "learning_rate": rate} | how.pop("more", {})
        return study.train(name, "baseline", data, model, arguments=arguments if small else {}, **how)

    # F-fidelity asks a copy of each model that was trained further on texts with random words masked.
    masked: dict[str, Any] = {"options": {"masked_share": 1.0}}
    narrow: dict[str, Any] = {"more": {"per_device_train_batch_size": 4}}
    single: dict[str, Any] = {"more": {"bf16": False}}
    decoder = train("Decoder", on_sst, decoders, 4, 2e-3, **single)
    as_it_is = study.train("As it is", None, on_parts, tuned)
    copies = [train("Copy as it is", on_parts, tuned, **masked)]
    pair = train("Pair", on_pairs, minilm, 4, 2e-4)
    long = train("Long", on_films, tuned, **narrow)
    copies.append(train("Copy of Pair", on_pairs, minilm, start=pair, **masked))
    copies.append(train("Copy of Long", on_films, tuned, start=long, **masked, **narrow))
    copies.append(train("Copy of Decoder", on_sst, decoders, 1, 3e-4, start=decoder, **masked, **single))
    names = ["F as it is", "F of pairs", "F of long texts", "F of decoders"]
    fidelity = {}
    for name, each in zip(names, copies, strict=True):
        draws = 1 if "long" in name else 2
        fidelity[name] = {name: f"f_fidelity?copy={each}&fractions=0.1,0.3,0.5&n_samples={draws}"}
    end, auc = SOFT | OTHERS, {"AUC": "rationale_auc"}
    limits = {"sequential_integrated_gradients": 20, "solvex": 20}
    study.judge("decoders", decoder, some, METHODS, STRETCHES | fidelity["F of decoders"] | end | auc, limits=limits)
    study.judge("sentences", as_it_is, few, choose(METHODS, *FEWER), STRETCHES | fidelity["F as it is"] | end | auc)
    published = {
        "soft-C as published": "soft_comprehensiveness?n_samples=2",
        "soft-S as published": "soft_sufficiency?n_samples=2",
    }
    order = ["soft-C", "soft-C as published", "soft-S", "soft-S as published"]
    study.judge("two soft forms", as_it_is, few, choose(METHODS, *FEWER), choose(SOFT | published, *order))
    study.judge("pairs", pair, pairs, choose(METHODS, *FEWER), STRETCHES | fidelity["F of pairs"] | end)
    by = choose(METHODS, *(name for name in FEWER if name not in SLOW)) | {
        "occlusion of sentences": "occlusion?unit=sentence"
    }
    study.judge("long texts", long, movies, by, STRETCHES | fidelity["F of long texts"] | end | auc)

    def add(name: str, caption: str, metrics: Any, **how: Any) -> None:
        study.table(
            name, caption, rows="explainer", columns="metric", metrics=metrics, show="mean [95 %]", decimals=2, **how
        )

    shown: dict[str, tuple[str, str, dict[str, Any]]] = {
        "sentences": ("MiniLM, SST sentences", "F as it is", {}),
        "pairs": ("MiniLM, SNLI pairs", "F of pairs", {}),
        "long texts": ("MiniLM, Movies, 512 tokens", "F of long texts", {}),
        "GPT-2": (
            "A GPT-2-like classifier, SST sentences",
            "F of decoders",
            {"judgement": "decoders", "model": "GPT-2"},
        ),
        "Llama": (
            "A Llama-like classifier, SST sentences",
            "F of decoders",
            {"judgement": "decoders", "model": "Llama"},
        ),
    }
    for name, (caption, copy, chosen) in shown.items():
        columns = [*STRETCHES, copy, *SOFT, *([] if name == "pairs" else ["AUC"]), "seconds"]
        add(name, caption, columns, labels={copy: "F-fidelity ↑"}, where=chosen or {"judgement": name})
        if name == "sentences":
            title = "MiniLM, SST sentences: soft metrics with and without a fixed share of kept input"
            add("two soft forms", title, [*SOFT, *published], where={"judgement": "two soft forms"})
    where: dict[str, Any] = {
        "recipe": ["As it is", "Pair", "Long", "Decoder"],
        "model": ["MiniLM-SST2", "MiniLM", "GPT-2", "Llama"],
    }
    how: dict[str, Any] = {"where": where, "decimals": 2}
    caption = "Accuracy of the models on the texts that are explained"
    study.table("accuracy", caption, rows=["model", "dataset"], columns="metric", metrics="accuracy", **how)
    how = {"between": "metrics", "metrics": [*STRETCHES, *SOFT, *OTHERS, "AUC"]}
    study.figure("agreement", "agreement", "Kendall's τ between metrics over methods", **how)
    how = {
        "between": "metrics",
        "metrics": ["F of decoders", "A-C", "A-S", "NAOPC-C", "soft-C", "deletion", "LDS", "AUC"],
    }
    how["where"] = {"judgement": "decoders"}
    study.figure("agreement with F-fidelity", "agreement", "Kendall's τ with F-fidelity, decoders", **how)
