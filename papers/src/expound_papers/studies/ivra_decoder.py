"""IvRA on a language model: Tables 9 to 11."""

from __future__ import annotations

from typing import Any

from expound_papers.studies.ivra import POST_HOC, TASKS, UNTRAINED, Setup
from expound_papers.study import Model, Study, register

RATES = {"COMP": 333, "SUFF": 167, "CONS": 100}


@register
def ivra_decoder(study: Study) -> None:
    """IvRA, Tables 9 to 11: a language model with a classifier's head, trained by adapters.

    Sentiment. SmolLM2-135M replaces GPT-2 medium and Llama-2.
    """
    # Claim 14 of the results page, stated before its figures were seen: attention trained for a criterion
    # (comprehensiveness, sufficiency, consistency) is better by it than that of the fine-tuned model, of all layers,
    # and than that of a model trained for as many steps without the criterion. Adapters have ten times the rate
    # of Tables 2 to 4, coefficients the same rate as there.
    source = "${EXPOUND_CHAT_MODEL:-runs/smollm2}" if study.is_small else "openai-community/gpt2-medium"
    model = Model("decoder", source, max_length=256 if study.is_small else 384)
    setup = Setup(study, TASKS[:1], arguments={"bf16": False}, model=model)
    if study.is_small:
        study.seeds = 6
    arguments = setup.steps(24, learning_rate=3e-4)
    data = [*setup.trainings.values()]
    control = study.train("Control", "lora", data, setup.model, start=setup.fine, arguments=arguments)
    setup.judge("post hoc", setup.fine, [*POST_HOC[:2], UNTRAINED], [*RATES])
    setup.judge("control", control, [UNTRAINED], [*RATES])
    for criterion, rate in RATES.items():
        how: dict[str, Any] = {"normalizer": "softmax", "arguments": arguments}
        runs = setup.train(criterion, criterion, {"lr_multiplier": rate / 10}, **how)
        setup.judge(criterion, runs, ["IvRA", UNTRAINED], [criterion])
        if criterion != "CONS":
            # What is due to the model alone.
            setup.judge(f"{criterion}, random", [setup.fine, control, runs], ["Random"], [criterion])
    caption = "A language model as classifier: comprehensiveness, sufficiency (lower is better) and consistency"
    setup.add_table("decoder", caption, [*RATES], columns="metric", labels={"Fine-tuned": ""})
