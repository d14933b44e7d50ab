"""Trained citations: of models that answer from notes, of classifiers, and of a real language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expound_papers.studies.corpora import MINILM, SNLI, SST
from expound_papers.study import Data, Explainer, Model, Significance, Study, Training, choose, register

KINDS = {"One note": "one hop", "Redundant": "redundant", "Two notes": "two hops"}
LONG: dict[str, Any] = {"max_steps": 1000, "learning_rate": 1e-3, "per_device_train_batch_size": 512}
AT2: dict[str, Any] = {"task": "generation", "unit": "source"}
CITED = "citation:{run}"


def make_notes(study: Study) -> tuple[dict[str, Data], list[Model]]:
    """Return the data and the models of `cite`. Those of small scale answer from notes, one model for each seed."""
    if study.is_small:
        trial, spec = study.scale == "trial", "generated?task=retrieval{}&size=6000"
        notes = Data("lessons", spec.format(""), split="train", limit=160 if trial else 1600)
        others = notes.but("calibration", split="dev", limit=30 if trial else None, seed=1)
        data = [
            notes,
            notes.but("lessons of AT2", limit=40 if trial else 600),
            notes.but("dev", split="dev", limit=200),
            notes.but("questions", split="test", limit=20 if trial else 300),
            *(Data(name, spec.format(f"&kind={kind}"), limit=4 if trial else 40) for name, kind in KINDS.items()),
            notes.but("prompts", split="test", limit=6 if trial else 90),
            others,
            others.but("new prompts", split="test", seed=2 if trial else 1),
        ]
        folder = "${EXPOUND_ANSWERING:-runs/answering}"
        models = [Model("Llama", folder + "/llama-{seed}/model"), Model("GPT-2", folder + "/gpt2-{seed}/model")]
        return {each.name: each for each in data}, models
    hotpot = Data("lessons", "hotpotqa:${EXPOUND_DATA:-data}/hotpotqa", split="train", limit=20000)
    asked = hotpot.but("questions", split="dev", limit=None, rows=(500, 1500))
    data = [
        hotpot,
        hotpot.but("lessons of AT2", limit=2000),
        asked.but("dev", rows=(0, 500)),
        asked,
        Data("One note", "ruler:${EXPOUND_DATA:-data}/ruler", split="dev", limit=500),
        asked.but("Redundant", rows=(1500, 2000)),
        asked.but("Two notes"),
        asked.but("prompts"),
        asked.but("calibration", rows=(2000, 3500), seed=1),
        asked.but("new prompts", rows=(3500, 5000), seed=1),
    ]
    return {each.name: each for each in data}, [Model("Llama", "meta-llama/Llama-3.2-1B-Instruct", max_length=4096)]


@register
def cite(study: Study) -> None:
    """Trained citations.

    Can a model be trained so that a citation of one pass says what happens to its answer when a source goes? The models
    of small scale are made by `expound_papers.answering_model.train_answering_model`, one for each seed.
    """
    study.seeds = 3
    data, models = make_notes(study)
    study.arguments = {"max_steps": 1000, "per_device_train_batch_size": 16, "learning_rate": 1e-4, "bf16": True}
    if study.is_small:
        steps = 10 if study.scale == "trial" else 400
        study.arguments = {"max_steps": steps, "per_device_train_batch_size": 16, "learning_rate": 1e-3}
    notes = Training("notes", data["lessons"], data["dev"])
    few = Training("AT2", data["lessons of AT2"], data["dev"])
    # Every recipe has the same steps, rows and order; "as plain" is the same training without the term.
    frozen = study.train("frozen", None, notes, models)
    plain = study.train("plain", "baseline" if study.is_small else "lora", notes, models)
    rank: dict[str, Any] = {} if study.is_small else {"lora_rank": 16}
    trained = study.train("trained", "cite", notes, models, **rank)
    usual: dict[str, Any] = {"explainer": "decompx_linear?output=logit"}
    first: dict[str, Any] = {"seeds": [0]}
    changes: dict[str, dict[str, Any]] = {
        "trained on logits": usual | first,
        "trained on IxG": {"explainer": "input_x_gradient"} | first,
        "λ 1": {"fidelity_weight": 1.0},
        "4 ablations": {"n_samples": 4} | first,
        "every 4th step": {"interval": 4} | first,
        "LoRA": {"lora_rank": 8} | first,
        "more gone": {"keep_probability": 0.3},
    }
    runs = {name: study.train(name, "cite", notes, models, **how) for name, how in changes.items()}
    at2 = study.train("AT2", "at2", few, models, arguments=LONG, **AT2)
    # 17 · 2048 features of each ablation are 139 kB: 2.2 GB of 2,000 answers, where AT2's 32 ablations would make 8.9.
    of_probe: dict[str, Any] = AT2 | {"explainer": "hidden_state_probe"} | ({} if study.is_small else {"n_samples": 8})
    probe = study.train("probe", "at2", few, models, arguments=LONG, **of_probe)
    explainers: dict[str, Any] = {
        "decompx_linear": "decompx_linear",
        "decompx_linear of the logit": "decompx_linear?output=logit",
        "input_x_gradient": "input_x_gradient",
        "leave one out": "occlusion?output=log_prob",
        "context_cite, 16": "context_cite?n_samples=16",
        "context_cite, 64": "context_cite?n_samples=64",
        "random": "random",
    }
    learned: dict[str, Any] = {
        "AT2 of the frozen model": Explainer("attention_to_source:{run}", at2),
        "probe of the frozen model": Explainer("hidden_state_probe:{run}", probe),
        "citation as saved": Explainer(CITED, trained),
        "citation of λ 1 as saved": Explainer(CITED, runs["λ 1"]),
    }
    order = [*learned, *explainers]
    metrics = {"LDS": "lds?n_samples=64", "ρ with leave-one-out": "lds?ablation=leave_one_out", "AUC": "rationale_auc"}
    questions = [data[name] for name in KINDS]
    judged: list[tuple[str, Any, Mapping[str, Any], dict[str, str]]] = [
        ("citations", [frozen, plain, trained], explainers, metrics),
        ("AT2", frozen, choose(learned, "AT2 of the frozen model"), metrics),
        ("probe", frozen, choose(learned, "probe of the frozen model"), metrics),
        ("small scores 0", trained, choose(learned, "citation as saved"), metrics),
        ("small scores of λ 1 0", runs["λ 1"], choose(learned, "citation of λ 1 as saved"), metrics),
    ]
    names = [each[0] for each in judged] + ["other weights and masks"]
    some = choose(explainers, "decompx_linear", "leave one out", "context_cite, 64")
    judged.append((names[-1], [runs["λ 1"], runs["more gone"]], some, choose(metrics, "LDS")))
    variants = [each for name, each in runs.items() if name not in ("λ 1", "more gone")]
    some = choose(explainers, "decompx_linear", "decompx_linear of the logit", "input_x_gradient")
    judged.append(("variants", variants, some, metrics))
    for name, of, by, what in judged:
        study.judge(name, of, questions, by, what, unit="source")
    study.judge("answers", [frozen, plain, trained, *runs.values()], data["questions"])
    study.judge("drift", [plain, trained], data["prompts"], protocol="drift", original=frozen)
    for error_rate, name in {0.1: "promises of .9", 0.2: "promises of .8"}.items():
        how: dict[str, Any] = {"citation": trained, "calibration": data["calibration"], "error_rate": error_rate}
        study.judge(name, trained, data["new prompts"], protocol="promises", **how)
    fields: dict[str, Any] = {"rows": "recipe", "columns": "model", "decimals": 3}
    where: dict[str, Any] = {"judgement": "answers"}
    study.table("answers", "Accuracy of answers, word for word", metrics="accuracy", where=where, **fields)
    caption = "Agreement with the frozen model on what sources' loss does (Pearson)"
    study.table("drift", caption, metrics="ablation_agreement", **fields)
    where = {"judgement": names, "explainer": order}
    lds: dict[str, Any] = fields | {"rows": ["recipe", "explainer"], "over": "dataset", "where": where}
    study.table("LDS", "LDS of citations, all kinds of questions", metrics="LDS", **lds)
    caption = "Spearman's ρ of citations with what leaving one source out does"
    study.table("leave one out", caption, metrics="ρ with leave-one-out", **lds)
    study.table("AUC", "How often needed notes come before others", metrics="AUC", **lds)
    shown = ["AT2 of the frozen model", "probe of the frozen model", "citation as saved", "citation of λ 1 as saved"]
    shown += ["decompx_linear", "decompx_linear of the logit", "leave one out", "context_cite, 64"]
    how = fields | {
        "rows": ["recipe", "explainer"],
        "columns": ["model", "dataset"],
        "where": where | {"explainer": shown},
    }
    significance = Significance("trained / decompx_linear")
    study.table("kinds", "LDS by kind of question", metrics="LDS", significance=significance, **how)
    study.table(
        "variants", "LDS after other trainings (one seed)", metrics="LDS", **lds | {"where": {"judgement": "variants"}}
    )
    how = fields | {"rows": "judgement", "columns": ["model", "metric"]}
    study.table(
        "promises",
        "Promises, of 1,500 new prompts",
        metrics=["promise_held", "promise_prompts", "promise_share"],
        **how,
    )


@register
def cite_classifiers(study: Study) -> None:
    """Trained citations of words.

    Can a classifier be trained so that one pass says what happens to its answer when words go? Each training begins
    with the same fine-tuned model; "plain" is as many steps on the same rows without the term.
    """
    study.seeds, trial, small = 3, study.scale == "trial", study.is_small
    rate: dict[str, Any] = {"max_steps": 4 if trial else 100 if small else 1000}
    rate |= {"per_device_train_batch_size": 16 if small else 32, "learning_rate": 2e-5 if small else 1e-5}
    study.arguments = rate

    def take(count: int, few: int, all_rows: int | None) -> int | None:
        return few if trial else count if small else all_rows

    data = Data("sst-train", SST, split="train", limit=take(2400, 64, None))
    training = Training("SST", data, data.but("sst-dev", split="dev", limit=take(200, 8, None)))
    pairs = Data("snli-train", SNLI, split="dev" if small else "train", limit=take(2400, 64, 100000))
    dev = pairs.but("snli-dev", split="dev", limit=take(50, 8, 2000), exclude=(pairs,) if small else ())
    on_pairs = Training("SNLI", pairs, dev)
    sources = "${EXPOUND_MODELS:-../shared/models}/minilm-sst2", MINILM
    if not small:
        sources = "textattack/roberta-base-SST-2", "roberta-base"
    tuned, model = (
        Model(name, source, max_length=64) for name, source in zip(("MiniLM-SST2", "MiniLM"), sources, strict=True)
    )
    words: dict[str, Any] = {"unit": "word"}
    runs = [study.train("fine-tuned", None, training, tuned), study.train("plain", "baseline", training, tuned)]
    runs.append(study.train("trained", "cite", training, tuned, **words))
    arguments = {"max_steps": -1, "num_train_epochs": 2, "learning_rate": 5e-5}
    start = study.train("pairs fine-tuned", "baseline", on_pairs, model, seeds=[0], arguments=arguments)
    how: dict[str, Any] = {"seeds": [0], "start": start}
    of_pairs = [start, study.train("pairs plain", "baseline", on_pairs, model, **how)]
    of_pairs.append(study.train("pairs trained", "cite", on_pairs, model, **how, **words))
    explainers = {
        "decompx_linear": "decompx_linear",
        "decompx_linear of the logit": "decompx_linear?output=logit",
        "input_x_gradient": "input_x_gradient",
        "occlusion": "occlusion",
        "context_cite, 64": "context_cite?n_samples=64",
        "random": "random",
    }
    lds = {"LDS": "lds?n_samples=64"}
    study.judge("words", runs, Data("SST2", SST, limit=take(100, 4, 800)), explainers, lds)
    study.judge("pairs' words", of_pairs, Data("SNLI", SNLI, limit=take(100, 4, 800)), explainers, lds)
    study.judge("answers", runs, Data("SST2 whole", SST, limit=take(800, 8, None)))
    study.judge("pairs' answers", of_pairs, Data("SNLI whole", SNLI, limit=take(800, 8, None)))
    shown = [name for name in explainers if "logit" not in name]
    fields: dict[str, Any] = {"columns": "dataset", "decimals": 3}
    rows = ["recipe", "explainer"]
    study.table("LDS", "LDS of words' scores", rows=rows, metrics="LDS", where={"explainer": shown}, **fields)
    where = {"judgement": ["answers", "pairs' answers"]}
    study.table("answers", "Accuracy", rows="recipe", metrics="accuracy", where=where, **fields)


def make_prompts(name: str, file: str, limit: int | None) -> Data:
    """Return prompts that `make_training_prompts.py` wrote."""
    return Data(
        name, f"jsonl:${{EXPOUND_TRAINING_PROMPTS:-runs/training-prompts}}/{file}.jsonl", split="all", limit=limit
    )


@register
def cite_language_model(study: Study) -> None:
    """Trained citations of a real language model.

    Can a chat model learn that a citation of one pass says what happens to its answer when a passage goes? LoRA
    adapters learn from questions on two SQuAD articles; questions on three other articles judge.
    `make_training_prompts.py` writes the prompts.
    """
    # Claims, stated before the runs:
    # 1. After training, the LDS of decompx_linear is at least .05 above that after as many steps of plain LoRA.
    # 2. It is at most .04 below that of context_cite with 64 ablations on the same model.
    # 3. It is at least .05 above AT2's on the frozen model.
    # 4. Accuracy is within .01 of that of plain LoRA.
    # 5. Lower bounds hold as often as stated, within 2 points, on 500 held-out prompts. 6 and 7 repeat 1 and 4 for
    # another start, after a trial of it with a shorter first training.
    # 6. If the model first learns to answer, and its answers are held by the divergence term, training still raises the
    # LDS by .05 over plain LoRA from the same start.
    # 7. Accuracy is then within .01 of that of plain LoRA. A step with the term costs six plain steps, and judging
    # takes as long as training: few, small batches and one seed.
    small = study.is_small
    study.seeds = [0] if small else 3
    study.arguments = {"max_steps": 600, "per_device_train_batch_size": 16, "learning_rate": 3e-4, "bf16": True}
    if small:
        study.arguments = {
            "max_steps": 32,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "bf16": True,
            "use_cpu": True,
        }
    lessons, dev = (
        make_prompts("lessons", "train", 128 if small else None),
        make_prompts("dev", "dev", 12 if small else None),
    )
    training = Training("passages", lessons, dev)
    reading = Training("reading", lessons.but("more lessons", limit=480 if small else None), dev)
    few = Training("AT2", lessons.but("lessons of AT2", limit=60 if small else 300), dev)
    model = Model("SmolLM2-135M", "${EXPOUND_CHAT_MODEL:-runs/smollm2}", max_length=1024)
    # Every training has the same steps, rows and order; "plain" is the same training without the terms.
    frozen = study.train("frozen", None, training, model, seeds=[0])
    plain = study.train("plain", "lora", training, model)
    trained = study.train("trained", "cite", training, model, lora_rank=8, kl_weight=0)
    # The frozen model answers in sentences, which are not the words of SQuAD: this one learns to answer first.
    arguments = {
        "max_steps": 120,
        "per_device_train_batch_size": 4,
        "learning_rate": 2e-4,
        "bf16": True,
        "use_cpu": True,
    }
    reader = study.train("reader", "baseline", reading, model, seeds=[0], arguments=arguments if small else {})
    how: dict[str, Any] = {"start": reader, "seeds": [0, 1] if small else None}
    after = [study.train("plain after reading", "lora", reading, model, **how)]
    after.append(study.train("trained after reading", "cite", reading, model, lora_rank=8, **how))
    at2 = study.train("AT2", "at2", few, model, seeds=[0], arguments=LONG | {"bf16": None}, **AT2)
    explainers: dict[str, Any] = {
        "decompx_linear": "decompx_linear",
        "leave one out": "occlusion?output=log_prob",
        "context_cite, 64": "context_cite?n_samples=64",
        "random": "random",
    }
    saved = {"citation as saved": Explainer(CITED, trained)}
    fitted = {"AT2": Explainer("attention_to_source:{run}", at2), "AT2 with a threshold": Explainer(CITED, at2)}
    metrics, passages = (
        {"LDS": "lds?n_samples=64", "recall": "recall_at_k"},
        make_prompts("Passages", "held-out-once", 100),
    )
    one = choose(explainers, "decompx_linear")
    judged: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "citations of the frozen model": (frozen, explainers),
        "citations": ([plain, trained], one),
        "citations after reading": (after, one),
        "trained citations": (trained, saved | choose(explainers, "context_cite, 64")),
        "AT2": (frozen, fitted),
    }
    for name, (runs, by) in judged.items():
        study.judge(name, runs, passages, by, metrics, unit="source")
    calibration = make_prompts("calibration", "calibration", 150 if small else None)
    new, how = (
        make_prompts("new prompts", "held-out", 500 if small else None),
        {"citation": trained, "calibration": calibration},
    )
    study.judge("promises", trained, new, protocol="promises", error_rate=0.1, **how)
    order = [*fitted, *saved, *explainers]
    fields: dict[str, Any] = {"columns": "metric", "decimals": 3}
    caption, where = "Accuracy of answers, word for word, on 100 held-out questions", {"judgement": [*judged][:3]}
    study.table("answers", caption, rows="recipe", metrics="accuracy", where=where, **fields)
    caption, where = (
        "LDS of citations, and how often the passage with the answer is first",
        {"judgement": [*judged], "explainer": order},
    )
    study.table("LDS", caption, rows=["recipe", "explainer"], metrics=[*metrics], where=where, **fields)
    caption, names = (
        "Promises of .9, of 500 new prompts at the small scale",
        ["promise_held", "promise_prompts", "promise_share"],
    )
    study.table("promises", caption, rows="recipe", metrics=names, **fields)
