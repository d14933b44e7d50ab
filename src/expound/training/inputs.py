"""From the user's own inputs, dictionaries of tensors, to batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel
from expound.models.generation.model import GeneratingModel

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
MASKS = ("content_mask", "rationale_mask")


def require_supported(model: ExplainedModel) -> None:
    """Raise ExpoundError unless the model reads texts and gives a class, a value or a text."""
    if model.modality != "text" or model.task.reads_context or type(model) not in (ExplainedModel, GeneratingModel):
        raise ExpoundError(
            f"explanation terms need a model that classifies or scores texts, or a causal language model, got {model}"
        )
    if any(config.is_prompt_learning for config in getattr(model.model, "peft_config", {}).values()):
        raise ExpoundError("soft prompts add positions that no token explains: use LoRA or another adapter")
    if getattr(model.model, "_compiled_call_impl", None) is not None:
        raise ExpoundError("a compiled model hides what explanations look at: leave out model.compile()")


def read_batch(model: ExplainedModel, inputs: Mapping[str, Any], *, needs_labels: bool) -> Batch:
    """Return inputs as a batch; see `ExplanationTerms.forward`. Labels of another form than the task's are left out.

    Raises:
        ExpoundError: an input is missing, of a wrong shape or out of range.
    """
    missing = [name for name in ("input_ids", "attention_mask") if name not in inputs]
    if needs_labels and "labels" not in inputs:
        missing.append("labels")
    if missing:
        packed = ": batches are padded, not packed (padding_free=False, packing=False)" if "labels" in inputs else ""
        raise ExpoundError(f"the batch lacks {', '.join(missing)}{packed}")
    ids = inputs["input_ids"]
    for name in (*MODEL_INPUTS, *MASKS):
        if name in inputs and inputs[name].shape != ids.shape:
            raise ExpoundError(f"expected {name} of shape {list(ids.shape)}, got {list(inputs[name].shape)}")
    rows = int(getattr(model.embedding, "num_embeddings", ids.max() + 1))
    if int(ids.max()) >= rows:
        raise ExpoundError(f"input_ids go up to {int(ids.max())}, the model has {rows} tokens: use its own tokenizer")
    labels = inputs.get("labels")
    if labels is not None:
        _check_labels(model, ids, labels)
    response = None
    if model.task.is_generated:
        response, labels = _find_response(labels), None
    content = inputs.get("content_mask")
    if content is None:
        special = torch.tensor(sorted(model.special_ids), device=ids.device)
        content = inputs["attention_mask"].bool() & ~torch.isin(ids, special)
        content = content if response is None else content & ~response
    rest = {name: inputs[name] for name in MODEL_INPUTS if name in inputs and name != "input_ids"}
    batch = Batch.from_ids(ids, content=content, response=response, **rest)
    rationale = inputs.get("rationale_mask")
    if rationale is not None:
        annotated = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        batch = replace(batch, rationale_mask=rationale.bool() & batch.content, has_rationale=annotated)
    return replace(batch, labels=labels)


def _check_labels(model: ExplainedModel, ids: Tensor, labels: Tensor) -> None:
    task, shape, classes = model.task, [len(ids)], model.config.num_labels
    if task.is_generated:
        shape = list(ids.shape)
    elif not task.supports("one_target"):
        shape = [len(ids), classes]
    if list(labels.shape) != shape:
        raise ExpoundError(f"expected labels of shape {shape}, got {list(labels.shape)}")
    if task.supports("classes") and labels.is_floating_point():
        raise ExpoundError(f"expected whole numbers from 0 to {classes - 1} as labels, got {labels.dtype}")
    if task.supports("classes") and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ExpoundError(
            f"expected labels from 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}: load the model "
            "with num_labels= of the data"
        )


def _find_response(labels: Tensor | None) -> Tensor:
    """Return the positions [B, L] of the response: the positions with labels."""
    if labels is None:
        raise ExpoundError("the batch lacks labels: the response's ids, and -100 at the prompt and at padding")
    response: Tensor = labels != -100
    if response[:, 0].any():
        raise ExpoundError(
            "a response follows a prompt, and a label at the first token leaves none: set the labels of the prompt to "
            "-100 (TRL: prompt-completion data)"
        )
    if (response[:, 1:] & ~response[:, :-1]).sum(1).ne(1).any():
        raise ExpoundError("expected one response per example, its labels side by side: split chats of several turns")
    return response


class MaskCollator:
    """Pads the masks of examples to their tokens, and leaves all else to another data collator."""

    def __init__(self, collate: Callable[..., Any]) -> None:
        self.collate = collate

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> Any:
        """Return the other collator's batch, with masks [B, L] of the names in `MASKS` that all examples have.

        Raises:
            ExpoundError: a mask does not have as many entries as its example has tokens.
        """
        others, given = [], set(MASKS)
        for example in examples:
            others.append({key: value for key, value in example.items() if key not in MASKS})
            given &= example.keys()
        batch = self.collate(others)
        for name in sorted(given):
            mask = torch.zeros_like(batch["input_ids"])
            for row, example in enumerate(examples):
                ids, values = torch.as_tensor(example["input_ids"]), torch.as_tensor(example[name])
                columns = _find_columns(mask.shape[1], batch["input_ids"][row], ids)
                if columns is None or len(values) != len(ids):
                    raise ExpoundError(
                        f"expected {name} with an entry for each of the {len(ids)} input_ids of a row that is not "
                        f"truncated later, got {len(values)}"
                    )
                mask[row, columns] = values.to(mask)
            batch[name] = mask
        return batch


def _find_columns(length: int, padded: Tensor, ids: Tensor) -> slice | None:
    """Return where a row [L] of `length` has these ids, at its left or its right end; None if it does not."""
    for start in (0, length - len(ids)):
        if start >= 0 and torch.equal(padded[start : start + len(ids)], ids.to(padded)):
            return slice(start, start + len(ids))
    return None
