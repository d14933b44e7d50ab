"""Observation of a forward pass that other code runs, such as a Trainer's own loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture, Outputs, find_predicting_columns, require_response
from expound.models.explained import ExplainedModel
from expound.models.layers.architecture import unwrap_adapter
from expound.models.passes.capture import AttentionRecord, record_attention
from expound.models.state import remove_added_hooks, replace_forward


@dataclass(slots=True)
class ObservedPass:
    """The first pass inside an `observe_pass` block: outputs of the model and of its base model, and what it read."""

    output: Any = None
    base_output: Any = None
    embeddings: Tensor | None = None
    record: AttentionRecord | None = None


@contextmanager
def observe_pass(model: ExplainedModel, capture: Capture) -> Iterator[ObservedPass]:
    """Record what `capture` asks for in the first pass that other code runs inside the block; the model is restored.

    Args:
        model: the model whose Hugging Face model the other code calls.
        capture: what to record.
    """
    whole, base = model.model, unwrap_adapter(model.model).base_model
    observed, run = ObservedPass(), base.forward

    def run_recorded(*args: Any, **kwargs: Any) -> Any:
        if observed.base_output is not None:
            return run(*args, **kwargs)
        with ExitStack() as scope:
            if capture.hidden_states:
                # Asked of the base model only: the user's code does not see states that it did not ask for.
                scope.enter_context(remove_added_hooks(whole))
                kwargs |= {"output_hidden_states": True, "return_dict": True}
            if capture.needs_own_attention:
                observed.record = scope.enter_context(record_attention(whole, capture, last=model.last_attention))
            if capture.embeddings:
                scope.enter_context(_attach_gradient(model.embedding, observed))
            observed.base_output = run(*args, **kwargs)
        return observed.base_output

    def keep_output(module: nn.Module, inputs: Any, output: Any) -> None:
        if observed.output is None:
            observed.output = output

    with model.lock(), replace_forward(base, run_recorded), whole.register_forward_hook(keep_output):
        yield observed


def read_observed(model: ExplainedModel, batch: Batch, observed: ObservedPass, capture: Capture) -> Outputs:
    """Return the outputs of an observed pass.

    Raises:
        ExpoundError: the block did not run the model, or ran it on another batch.
    """
    output = observed.output
    if output is None:
        raise ExpoundError("compute_loss did not call the model that is trained: call `model(**inputs)` in it")
    logits = getattr(output, "logits", None)
    if logits is None:
        output, logits = _run_head(model, batch, observed.base_output)
    if len(logits) != len(batch):
        raise ExpoundError(
            f"compute_loss ran the model on {len(logits)} examples, and the batch has {len(batch)}: explanation terms "
            "need its first pass to be that of the whole batch"
        )
    states = observed.base_output.hidden_states if capture.hidden_states else ()
    recorded = {} if observed.record is None else observed.record.by_name()
    return model.read_outputs(output, batch, capture, observed.embeddings, recorded | {"hidden_states": states})


def _run_head(model: ExplainedModel, batch: Batch, base_output: Any) -> Any:
    """Return the output and the logits of the model's own head on the states of a pass that skipped it."""
    # TRL's trainers compute log-probabilities in tiles, without logits.
    arguments: dict[str, Any] = {"input_ids": batch.inputs["input_ids"], "use_cache": False}
    if "logits_to_keep" in model.forward_parameters:
        arguments["logits_to_keep"] = find_predicting_columns(require_response(batch))
    with replace_forward(unwrap_adapter(model.model).base_model, lambda *_, **__: base_output):
        output = model.model(**arguments)
    return output, output.logits


@contextmanager
def _attach_gradient(layer: nn.Module, observed: ObservedPass) -> Iterator[None]:
    """Let a gradient be taken at the output [B, L, d] of the embedding layer's first call inside the block."""

    def attach(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        # Later calls are of token types, which GPT-2 looks up in the same layer.
        if observed.embeddings is not None:
            return None
        observed.embeddings = output if output.requires_grad else output.detach().requires_grad_()
        return observed.embeddings

    with layer.register_forward_hook(attach):
        yield
