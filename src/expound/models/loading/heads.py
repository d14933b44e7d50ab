"""The auto class that loads a checkpoint with its head, and refusals of heads that are not explained."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Pipeline,
)

from expound.errors import ExpoundError
from expound.models.layers.scalar_mix import PREFIX

CAUSAL = {"prompt": "--template and --labels", "generation": "--task generation"}
"""Tasks of causal language models, with the options of commands that choose them."""
SIMILARITY = "similarity"
HEADS: dict[str, Any] = {
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
    "ForImageClassification": AutoModelForImageClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForMaskedLM": AutoModelForMaskedLM,
    "ForMultipleChoice": AutoModelForMultipleChoice,
}
INSTEAD = {
    "ForConditionalGeneration": "it is explained in what it says: task='generation'",
    "ForCTC": "audio is not explained: transcribe it, and explain the text",
    "ForAudioClassification": "audio is not explained: transcribe it, and explain the text",
    "ForPreTraining": "save its masked head alone, as AutoModelForMaskedLM does",
    "ForNextSentencePrediction": "fine-tune a classifier of pairs: expound train baseline",
}
"""Advice for heads that are not explained."""


def choose_loader(name: str, config: Any, task: str | None, *, has_adapter: bool, trust_remote_code: bool) -> Any:
    """Return the auto class that loads the checkpoint for the task, or with its own head.

    Raises:
        ExpoundError: a head that is not explained, or not for this task; a class whose code is not at hand.
    """
    architecture = (config.architectures or [config.model_type])[0].removeprefix(PREFIX)
    if config.is_encoder_decoder and (task != "generation" or architecture.endswith(tuple(HEADS))):
        raise ExpoundError(
            f"{name} holds {architecture:.80}, an encoder with a decoder: those are explained in what they say "
            "(task='generation'), by a language modeling head"
        )
    is_known = hasattr(transformers, architecture) or (trust_remote_code and getattr(config, "auto_map", None))
    # transformers would load the weights into its own class for the model type, which may read them in another way.
    if config.architectures and not is_known and task != SIMILARITY:
        raise ExpoundError(
            f"{name} holds {architecture:.80}, a class that transformers does not have: load the model by your own "
            "class and give it (on the command line as --model MODULE:NAME), or save its code with it "
            "(register_for_auto_class) and set trust_remote_code, in Python"
        )
    # transformers would load a classifier as a language model whose head has no weights.
    if task in CAUSAL and architecture.endswith(tuple(set(HEADS) - {"ForMaskedLM"})):
        own_head = "a classifier" if architecture.endswith("Classification") else "a model with a head of its own"
        raise ExpoundError(
            f"{name} holds {architecture:.80}, {own_head}, which generates no text: explain it without {CAUSAL[task]} "
            f"(task={task!r})"
        )
    loaders = {SIMILARITY: AutoModel} | dict.fromkeys(CAUSAL, AutoModelForCausalLM)
    if config.is_encoder_decoder:
        loaders["generation"] = AutoModelForSeq2SeqLM
    elif (
        type(config) not in AutoModelForCausalLM._model_mapping
        and type(config) in AutoModelForImageTextToText._model_mapping
    ):
        # Models of images and texts are explained in what they say about a text.
        loaders["generation"] = AutoModelForImageTextToText
    return loaders[task] if task in loaders else _choose_head(name, config, has_adapter=has_adapter)


def _choose_head(name: str, config: Any, *, has_adapter: bool) -> Any:
    """Return the auto class that loads the checkpoint with its head."""
    architecture = (config.architectures or ["none"])[0].removeprefix(PREFIX)
    for suffix, head in HEADS.items():
        # Code beside the weights says itself which class has which head.
        if head.__name__ in (getattr(config, "auto_map", None) or {}):
            return head
        if architecture.endswith(suffix):
            # Looked up by name: `CONFIG_MAPPING.values()` imports the configurations of all models, in seconds.
            is_own = config.model_type in CONFIG_MAPPING and CONFIG_MAPPING[config.model_type] is type(config)
            if is_own and type(config) not in head._model_mapping:
                raise ExpoundError(
                    f"{name} holds {architecture:.80}, which reads more than a text, as a table or an image: that is "
                    "not explained"
                )
            return head
    # An adapter of a model without a head comes with a classifier's head.
    if has_adapter:
        return AutoModelForSequenceClassification
    for suffix, hint in INSTEAD.items():
        if architecture.endswith(suffix):
            raise ExpoundError(f"{name} holds {architecture:.80}, whose head is not explained: {hint}")
    raise ExpoundError(
        f"{name} holds {architecture:.80}, which has no classification head; expected "
        + ", ".join(f"…{suffix}" for suffix in HEADS)
        + ". Fine-tune it first: expound train baseline; or take a causal language model as it is, as a classifier "
        "(task='prompt') or for what it says (task='generation')"
    )


def choose_pipeline_task(model: Any, task: str | None) -> str | None:
    """Return the task whose probabilities a pipeline gives by its `function_to_apply`; without one, the given task."""
    applied = model._postprocess_params.get("function_to_apply") if isinstance(model, Pipeline) else None
    name = str(getattr(applied, "value", applied)).lower()
    if task is not None or applied is None:
        return task
    if name not in ("softmax", "sigmoid"):
        raise ExpoundError(
            f"the pipeline's function_to_apply={name!r} gives no probabilities: leave it out, and explain logits with "
            "the output 'logit'"
        )
    return "classification" if name == "softmax" else "multi_label"
