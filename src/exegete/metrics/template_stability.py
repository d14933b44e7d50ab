"""Template stability: do sources keep their order when the prompt is worded differently?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers import Explainer, attribute
from exegete.metrics.agreement import kendall_tau
from exegete.models.generation.examples import prompt_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.reports.explanations import Explanation

PROMPT = "{prompt}"
TEMPLATES = (
    "Read this carefully.\n{prompt}",
    "You are a helpful assistant.\n\n{prompt}",
    "{prompt}\nAnswer in a few words.",
    "Use only what is written here.\n\n{prompt}",
)
"""Wordings of the same question, around a prompt or the user's last message."""


def template_stability(
    model: GeneratingModel,
    examples: Sequence[Any],
    method: str | Explainer,
    *,
    unit: Granularity = "source",
    templates: Sequence[str] = TEMPLATES,
) -> NDArray[np.float64]:
    """Return how similarly the sources of a response are scored under other wordings of the prompt: [E].

    The value is Kendall's τ between the scores of all units of sources, for the whole response, under the original
    prompt and under each template, averaged over templates. The response stays the same, token by token: the given
    one, or the one generated for the original prompt. NaN for fewer than two units, or if all scores are equal.

    Args:
        model: a language model.
        examples: prompts or chats with sources.
        method: a registry id or an explainer.
        unit: the unit that gets a score inside sources.
        templates: texts that contain `{prompt}` once.

    Raises:
        ExegeteError: no templates, or one without a place for the prompt.
    """
    wrong = [template for template in templates if template.count(PROMPT) != 1]
    if wrong or not templates:
        raise ExegeteError(f"expected templates with one {PROMPT} in each, got {wrong[0] if wrong else 'none'!r:.80}")
    rows = [prompt_to_row(example) for example in examples]
    originals = attribute(model, rows, method, unit=unit)
    changed_rows = []
    for row, item in zip(rows, originals, strict=True):
        # Ids, not text: a text could be tokenized differently after another prompt.
        assert item.exchange is not None
        response = model.tokenizer.convert_tokens_to_ids(list(item.exchange.tokens))
        changed_rows += [_apply_template(row, template) | {"response": response} for template in templates]
    changed = iter(attribute(model, changed_rows, method, unit=unit))
    values = []
    for item in originals:
        scores = _source_scores(item)
        values.append(np.mean([kendall_tau(scores, _source_scores(next(changed))) for _ in templates]))
    return np.asarray(values)


def _apply_template(row: Mapping[str, Any], template: str) -> dict[str, Any]:
    """Return the row with the template around its prompt, or around the user's last message."""
    if row.get("messages") is None:
        return {**row, "prompt": template.replace(PROMPT, row["prompt"])}
    messages = [dict(message) for message in row["messages"]]
    last = [message for message in messages if message["role"] == "user"][-1]
    last["content"] = template.replace(PROMPT, last["content"])
    return {**row, "messages": messages}


def _source_scores(item: Explanation) -> NDArray[np.float32]:
    """Return the scores of the units of sources, summed over the parts of the response: [U]."""
    assert item.exchange is not None
    inside = [item.exchange.is_source[unit.side] for unit in item.units]
    scores: NDArray[np.float32] = item.scores.sum(0)[inside]
    return scores
