"""Whether sources keep their order when a prompt says the same in other words."""

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
from exegete.reports.generated import GeneratedAttribution

PROMPT = "{prompt}"
TEMPLATES = (
    "Read this carefully.\n{prompt}",
    "You are a helpful assistant.\n\n{prompt}",
    "{prompt}\nAnswer in a few words.",
    "Use only what is written here.\n\n{prompt}",
)
"""Ways to ask the same, around a prompt or the user's last message."""


def template_stability(
    model: GeneratingModel,
    examples: Sequence[Any],
    method: str | Explainer,
    *,
    unit: Granularity = "source",
    templates: Sequence[str] = TEMPLATES,
) -> NDArray[np.float64]:
    """How alike the sources of a response are scored when other words stand around the prompt: one value an example.

    Kendall's τ of the scores of all units in sources, for the whole response, between the prompt as it is and each
    template with the prompt in its place; mean over templates. The response stays the same, token by token: the one
    that is given, or that the prompt as it is gets. NaN where there are fewer than two units, or all scores are equal.

    Args:
        model: a language model that explains what it says.
        examples: prompts or chats with sources.
        method: a registry id or an explainer.
        unit: what gets a score inside sources.
        templates: texts with `{prompt}` in them.

    Raises:
        ExegeteError: no templates, or one without a place for the prompt.
    """
    wrong = next((each for each in templates if each.count(PROMPT) != 1), None)
    if wrong is not None or not templates:
        raise ExegeteError(f"expected templates with one {PROMPT} in each, got {wrong if templates else 'none'!r:.80}")
    rows = [prompt_to_row(example) for example in examples]
    plain = attribute(model, rows, method, unit=unit)
    said = [model.tokenizer.convert_tokens_to_ids(list(item.exchange.tokens)) for item in plain]
    asked = [
        _apply_template(row, each) | {"response": ids}
        for row, ids in zip(rows, said, strict=True)
        for each in templates
    ]
    others = iter(attribute(model, asked, method, unit=unit))
    return np.asarray([np.mean([_correlate_sources(item, next(others)) for _ in templates]) for item in plain])


def _apply_template(row: Mapping[str, Any], template: str) -> dict[str, Any]:
    """The row with a template around its prompt, or around what the user said last."""
    if row.get("messages") is None:
        return {**row, "prompt": template.replace(PROMPT, row["prompt"])}
    last = max(number for number, each in enumerate(row["messages"]) if each["role"] == "user")
    messages = [dict(each) for each in row["messages"]]
    messages[last]["content"] = template.replace(PROMPT, messages[last]["content"])
    return {**row, "messages": messages}


def _correlate_sources(one: GeneratedAttribution, other: GeneratedAttribution) -> float:
    return kendall_tau(*(_source_scores(item) for item in (one, other)))


def _source_scores(item: GeneratedAttribution) -> NDArray[np.float32]:
    inside = [item.exchange.is_source[text] for text, *_ in item.unit_spans]
    scores: NDArray[np.float32] = item.scores.sum(0)[inside]
    return scores
