"""Rows of generated text as training takes them: each response is tokens, with the one that ends a text."""

from __future__ import annotations

from datasets import Dataset, List, Value

from exegete.errors import ExegeteError
from exegete.models import ExplainedModel


def are_exchanges(data: Dataset) -> bool:
    """Whether rows are about generated text."""
    return "response" in data.column_names and bool({"prompt", "messages"} & set(data.column_names))


def ended(model: ExplainedModel, data: Dataset) -> Dataset:
    """The rows with responses as ids, each up to the token by which the model ends a text, where it has one.

    Raises:
        ExegeteError: a row without a response.
    """
    if not are_exchanges(data):
        return data
    generation = getattr(model.model, "generation_config", None)
    ends = getattr(generation, "eos_token_id", None)
    end = [ends[0]] if isinstance(ends, list) else [] if ends is None else [int(ends)]
    found = []
    for number, row in enumerate(data):
        if row["response"] is None:
            raise ExegeteError(f"row {number} has no response: leave such rows out of training")
        (exchange,) = model.encode([row], device="cpu").exchanges or ()
        ids = model.tokenizer.convert_tokens_to_ids(list(exchange.tokens))
        found.append(ids if ids[-1:] == end else ids + end)
    return data.remove_columns("response").add_column("response", found, feature=List(Value("int64")))
