"""AML of decoders: Table 2."""

from __future__ import annotations

from typing import Any

from expound_papers.studies import aml
from expound_papers.studies.corpora import MINILM
from expound_papers.study import Model, Prompt, Significance, Study, choose, register


@register
def aml_table_2(study: Study) -> None:
    """AML, Table 2: explanations of decoders by an encoder.

    As in the paper, decoders are prompted with examples, and for EMR adapters are fine-tuned (with a classification
    head). The prompts are ours. ALTI and DCMP are not for decoders. A language model that ranks the words has a row at
    the small scale.
    """
    if not study.is_small:
        explain_all_decoders(study)
        return
    # SmolLM2-135M is prompted, and MiniLM explains it. Short sentences: a pass of the decoder takes a tenth of a
    # second.
    setup, chat = aml.Setup(study, 1000, 60, 40, words=16), "${EXPOUND_CHAT_MODEL:-runs/smollm2}"
    examples = {"negative": "dull , slow and far too long .", "positive": "a gripping film , and very well acted ."}
    template = "".join(f"Review: {text}\nSentiment: {label}\n\n" for label, text in examples.items())
    prompt = Prompt(template + "Review: {text}\nSentiment:", {"negative": " negative", "positive": " positive"})
    decoder, study.seeds = Model("decoder", chat, max_length=256, prompt=prompt), [42]
    setup.f = study.train("F", None, setup.trainings, decoder)
    (masks,) = setup.train_masks(
        "A-C", model=decoder, backbone=Model("encoder G", MINILM), masking="mask", sparsity_warmup=30, train_rows=240,
        dev_rows=40, arguments=aml.SHORT, **aml.WEIGHTS,
    )  # fmt: skip
    # SIG takes 20 passes a word.
    setup.explainers |= {"LIME": "lime?n_samples=100", "LLM ranking": f"llm_ranking?ranker={chat}"}
    names = ["SLVX", "LIFT", "SHAP", "GXI", "IG", "LIME", "LLM ranking", "random", "attention"]
    study.judge("SST2 methods", setup.f, setup.test, choose(setup.explainers, *names), aml.METRICS)
    study.judge("relevance", setup.f, setup.test, choose(setup.explainers, "DXL"), aml.METRICS)
    setup.judge_masks("SST2 by A-C", masks, setup.test, aml.METRICS)
    caption = (
        "Faithfulness of explanations of a prompted decoder; fAML is chosen by A-C, on the sentence that is judged"
    )
    order = {"explainer": ["fAML", "pAML", *[each for each in aml.EXPLAINERS if each in names], "DXL", "LLM ranking"]}
    setup.add_table("table-2", caption, where=order, significance=Significance("random"))


def explain_all_decoders(study: Study) -> None:
    """Explain Llama 2 and Mistral on four corpora."""
    setup, corpora = aml.Setup(study), aml.make_corpora()
    study.arguments = {"bf16": True}
    examples = {"positive": "a gripping film, and very well acted", "negative": "dull, slow and far too long"}
    template = "".join(f"Text: {text}\nLabel: {label}\n\n" for label, text in examples.items())
    template = f"Is the review positive or negative?\n\n{template}Text: {{text}}\nLabel:"
    prompt = Prompt(template, {"negative": " negative", "positive": " positive"})
    sources = {"Llama2": "meta-llama/Llama-2-7b-hf", "Mistral": "mistralai/Mistral-7B-v0.1"}
    models = [Model(name, source, max_length=512, prompt=prompt) for name, source in sources.items()]
    tuned = [Model(f"{name}, tuned", source, max_length=512) for name, source in sources.items()]
    emotions = corpora[2][0]
    trainings = [setup.trainings[0], corpora[0][0], corpora[1][0]]
    few = {"per_device_train_batch_size": 4}
    fast = few | {"num_train_epochs": 10, "learning_rate": 8e-5, "gradient_accumulation_steps": 5}
    classifiers = setup.f = study.train("F", None, trainings, models)
    how: dict[str, Any] = {"backbone": "FacebookAI/roberta-base", "arguments": fast}
    masks = setup.train_masks(*aml.METRICS, data=trainings, model=models, **how)
    lora = few | {"num_train_epochs": 3, "learning_rate": 2e-4, "gradient_accumulation_steps": 8}
    fine_tuned = setup.f = study.train("F, tuned", "lora", emotions, tuned, arguments=lora)
    tuned_masks = setup.train_masks(*aml.METRICS, name="AML {}, tuned", data=emotions, model=tuned, **how)
    names = ["SIG", "SLVX", "LIFT", "SHAP", "GXI", "IG", "LIME", "random", "attention"]
    for training, test in [(trainings[0], setup.test), *corpora]:
        runs, learned = (fine_tuned, tuned_masks) if training is emotions else (classifiers, masks)
        chosen = choose(aml.EXPLAINERS, *(names[2:] if test.name == "IMDB" else names))
        study.judge(f"{test.name} methods", runs.at(training=training.name), test, chosen, aml.METRICS)
        for metric, each in zip(aml.METRICS, learned, strict=True):
            on_test, name = each.at(training=training.name), f"{test.name} by {metric}"
            setup.judge_masks(name, on_test, test, choose(aml.METRICS, metric), model=runs)
    setup.add_table("table-2", "Faithfulness of explanations of decoders", columns=["training", "model", "metric"])
