"""Every method that needs no training, under one protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expound_papers.studies.corpora import MINILM, MOVIES, SNLI, SST
from expound_papers.study import Data, Model, Runs, Study, Training, choose, register

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
REMOVAL = {
    "A-C, deleted": "aopc_comprehensiveness", "A-C, replaced": "aopc_comprehensiveness?perturbation=mask",
    "A-S, deleted": "aopc_sufficiency", "A-S, replaced": "aopc_sufficiency?perturbation=mask",
}  # fmt: skip
TUNED = Model("MiniLM-SST2", "${EXPOUND_MODELS:-../shared/models}/minilm-sst2", max_length=512)


def make_sst(study: Study) -> tuple[Training, Training, Data]:
    """Return sentences to train decoders, a part of them, and the sentences that are explained."""
    study.arguments = {"bf16": True} if study.is_small else {}
    sst = Data("sst-train", SST, split="train", limit=4000)
    dev = sst.but("sst-dev", split="dev", limit=100)
    on_parts = Training("SST parts", sst.but("part of sst-train", limit=640), dev)
    return Training("SST", sst, dev), on_parts, sst.but("SST2", split="test", limit=60 if study.is_small else 400)


def train_decoders(study: Study, data: Training) -> Runs:
    """Train classifiers like GPT-2 and Llama."""
    decoders, folder = [], Path(__file__).parent
    for name in ("GPT-2", "Llama"):
        config = str(folder / f"{name.lower().replace('-', '')}-classifier.json")
        decoders.append(Model(name, config, max_length=64))
    arguments = {"num_train_epochs": 4, "learning_rate": 2e-3, "bf16": False} if study.is_small else {}
    return study.train("Decoder", "baseline", data, decoders, arguments=arguments)


@register
def removal(study: Study) -> None:
    """Does the verdict on a method depend on how words are removed?"""
    # Claims, stated before the runs: on each model, the best method by comprehensiveness is the same, or tied with the
    # best, whether words are deleted or replaced by [MASK] (decoders: by the unknown or end-of-text token) (1), and the
    # same methods are significantly better than random (2).
    on_sst, on_parts, some = make_sst(study)
    names = [
        "random", "saliency", "input_x_gradient", "integrated_gradients", "attention_last", "attention_all",
        "scaled_attention", "attention_rollout", "globenc", "alti", "decompx_linear", "occlusion",
    ]  # fmt: skip
    decoders = train_decoders(study, on_sst)
    runs = {"MiniLM-SST2": study.train("As it is", None, on_parts, TUNED)}
    runs |= {name: decoders.at(model=name) for name in ("Llama", "GPT-2")}
    for name, each in runs.items():
        # Not run: its rules refused this model, whose token types they took for words.
        some_names = [method for method in names if (name, method) != ("GPT-2", "decompx_linear")]
        study.judge(f"removal, {name}", each, some, choose(METHODS, *some_names), REMOVAL)
    for name in runs:
        how: dict[str, Any] = {"show": "mean [95 %]", "decimals": 2, "where": {"model": name}}
        study.table(name, f"{name}, SST", rows="explainer", columns="metric", metrics=[*REMOVAL], **how)


@register
def methods(study: Study) -> None:
    """Every method under one protocol.

    All methods that need no training on four models and three kinds of text. Metrics on stretches cut a text into six
    parts of nearly equal length, so that the limits of NAOPC are exact.
    """
    small, (on_sst, on_parts, some) = study.is_small, make_sst(study)
    snli = Data("snli-train", SNLI, split="dev", limit=2400)
    films = Data("movies-train", MOVIES, split="train", limit=64)
    on_pairs = Training("SNLI", snli, snli.but("snli-dev", limit=50, exclude=(snli,)))
    on_films = Training("Movies", films, films.but("movies-dev", split="val", limit=8))
    few, tuned = some.but("Some of SST2", limit=20), TUNED
    pairs, movies = (
        snli.but("SNLI", split="test", limit=20 if small else 400),
        films.but("Movies", split="test", limit=5 if small else 100),
    )
    minilm = Model("MiniLM", MINILM, max_length=64)

    def train(name: str, data: Training, model: Any, epochs: int = 1, rate: float = 2e-5, **how: Any) -> Runs:
        arguments = {"num_train_epochs": epochs, "learning_rate": rate} | how.pop("more", {})
        return study.train(name, "baseline", data, model, arguments=arguments if small else {}, **how)

    # F-fidelity asks a copy of each model that was trained further on texts with random words masked.
    masked: dict[str, Any] = {"options": {"masked_share": 1.0}}
    narrow: dict[str, Any] = {"more": {"per_device_train_batch_size": 4}}
    single: dict[str, Any] = {"more": {"bf16": False}}
    decoder = train_decoders(study, on_sst)
    as_it_is = study.train("As it is", None, on_parts, tuned)
    copies = [train("Copy as it is", on_parts, tuned, **masked)]
    pair = train("Pair", on_pairs, minilm, 4, 2e-4)
    long = train("Long", on_films, tuned, **narrow)
    copies.append(train("Copy of Pair", on_pairs, minilm, start=pair, **masked))
    copies.append(train("Copy of Long", on_films, tuned, start=long, **masked, **narrow))
    copies.append(
        train("Copy of Decoder", on_sst, [*decoder.models.values()], 1, 3e-4, start=decoder, **masked, **single)
    )
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
