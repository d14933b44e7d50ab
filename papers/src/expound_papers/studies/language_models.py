"""Citations of a real language model."""

from __future__ import annotations

from typing import Any

from expound_papers.study import Axis, Data, Model, Significance, Study, choose, register

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
