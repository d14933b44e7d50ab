"""Scorers for Inspect (`inspect_ai`): do answers use the sources that they cite, and what their reasons use?

They need the extra `inspect`.
"""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import numpy as np
from anyio import CapacityLimiter
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, mean, metric, scorer
from inspect_ai.solver import TaskState
from sklearn.metrics import roc_auc_score

from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.metrics.self_consistency import ReasonFinder, find_reason
from expound.metrics.self_consistency import explanation_consistency as measure_consistency
from expound.models.explained import ExplainedModel
from expound.models.loading.load import load
from expound.reports.tables.leaderboard import bootstrap_intervals, draw_resamples
from expound.rewards import CitationParser, find_citations, measure_removal_effects

SEED, N_RESAMPLES = 0, 2000


@metric
def interval() -> Metric:
    """Return the metric "interval": the 95 % bootstrap interval of the mean over samples, as `low` and `high`."""

    def compute(scores: list[SampleScore]) -> dict[str, float]:
        values = np.array([sample.score.as_float() for sample in scores])
        low, high = bootstrap_intervals(values[None, None], draw_resamples(len(values), N_RESAMPLES, SEED))
        return {"low": float(low[0, 0]), "high": float(high[0, 0])}

    return compute


@scorer(metrics=[mean(), interval()])
def citation_use(
    model: ExplainedModel | str, sources: str = "sources", parse: CitationParser = find_citations
) -> Scorer:
    """Return a scorer: the area under the ROC curve of the claimed citations against removal effects.

    Each source is removed from the prompt in turn; its effect is the fall of the answer's log-probability. The score of
    a sample is the probability that a source that the answer cites has a larger effect than one that it does not cite:
    1 if the answer uses what it cites, about .5 if its citations are arbitrary. A sample is left unscored if its answer
    has no text, or cites none or all of its sources. The score's metadata has the cited sources and all effects.

    Args:
        model: the language model that answers, as a folder, a hub name or from `expound.load(…, task="generation")`;
            for answers from an API, another one that reads the same prompt.
        sources: the name in the samples' metadata of the sources: texts, texts by name, or rows with `text`. Each must
            occur once, word for word, in the messages before the answer. Citations count them in this order.
        parse: finds the citations in an answer, see `expound.rewards.find_citations`.

    Raises:
        ExpoundError: the model does not generate; in scoring, a sample without sources or one not in its prompt.
    """
    explained = load(model, task="generation")
    # Inspect scores samples concurrently; one model answers one of them at a time.
    limiter = CapacityLimiter(1)

    async def score(state: TaskState, target: Target) -> Score:
        if sources not in state.metadata:
            raise ExpoundError(f"the metadata of sample {state.sample_id!r} has no {sources!r}")
        prompt, answer = _get_prompt(explained, state), state.output.completion
        arguments = explained, prompt, answer, state.metadata[sources], parse
        cited, effects = await anyio.to_thread.run_sync(measure_removal_effects, *arguments, limiter=limiter)
        facts = {"cited": list(cited), "effects": effects}
        if not 0 < len(cited) < len(effects):
            message = f"the answer cites {'all' if cited else 'none'} of its sources" if effects else "no answer"
            return Score.unscored(reason="undefined", answer=answer, explanation=message, metadata=facts)
        is_cited = [number in cited for number in range(len(effects))]
        return Score(value=float(roc_auc_score(is_cited, effects)), answer=answer, metadata=facts)

    return score


@scorer(metrics=[mean(), interval()])
def explanation_consistency(
    model: ExplainedModel | str,
    method: str = "shapley_sampling",
    unit: UnitName = "sentence",
    find_parts: ReasonFinder = find_reason,
) -> Scorer:
    """Return a scorer: do the answer and the reason that is given for it use the same parts of the prompt? (CC-SHAP)

    The score is that of `expound.metrics.explanation_consistency`, from −1 to 1: self-consistency, not faithfulness. A
    sample is left unscored if its answer has no reason.

    Args:
        model: the language model that answers, see `citation_use`.
        method: the id of a method.
        unit: the units of the prompt.
        find_parts: finds answer and reason in a completion; default: the first sentence, and all others.
    """
    explained = load(model, task="generation")
    limiter = CapacityLimiter(1)

    def measure(prompt: Any, answer: str) -> float:
        if not answer.strip():
            return float("nan")
        row = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
        row |= {"response": answer, "literal": True}
        return float(measure_consistency(explained, [row], method, unit=unit, find_parts=find_parts)[0])

    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion
        value = await anyio.to_thread.run_sync(measure, _get_prompt(explained, state), answer, limiter=limiter)
        if np.isnan(value):
            return Score.unscored(reason="undefined", answer=answer, explanation="the answer has no reason")
        return Score(value=value, answer=answer)

    return score


def _get_prompt(model: ExplainedModel, state: TaskState) -> Any:
    """Return the messages before the answer as a chat, or as a text for a model without a chat template."""
    messages = list(state.messages)
    if messages and messages[-1].role == "assistant":
        messages.pop()
    if getattr(model.tokenizer, "chat_template", None):
        return [{"role": message.role, "content": message.text} for message in messages]
    return "\n\n".join(message.text for message in messages)
