"""Which thought led to the answer: a model thinks again from each sentence on, and its answers are compared."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers.attribute_examples import attribute
from expound.explainers.units import list_units
from expound.models.generation.conversation import find_parts
from expound.models.generation.examples import generate_responses, prompt_to_row, show_units
from expound.models.generation.model import GeneratingModel
from expound.reports.explanations import Explanation
from expound.reports.records import Unit
from expound.reports.text import progress_bar

logger = logging.getLogger(__name__)
UNFINISHED = ""
"""The answer of a continuation that is still thinking after `max_new_tokens`, or that has no match of the pattern."""


def resample_thoughts(
    model: GeneratingModel,
    example: Any,
    *,
    n_samples: int = 20,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    pattern: str = "",
    seed: int = 0,
    show_progress: bool | None = None,
) -> Explanation:
    """Return how much each sentence of an answer's thoughts changes the answers that follow (Bogdan et al. 2025).

    The model continues `n_samples` times from before each sentence, and from after the last one: n_samples · (sentences
    + 1) continuations, whose number is logged before they begin. A sentence's score is the Kullback-Leibler divergence
    of the answers without it from those with it; each count of an answer is one more, so that none is zero. A trace of
    thoughts is one of many that the model could have had: a single one says little about the question.

    Args:
        model: a model loaded with `task="generation"`, whose thoughts end with `</think>`.
        example: a prompt or messages, with a response that has thoughts, or without a response.
        n_samples: continuations from each place.
        max_new_tokens: the most tokens of a continuation.
        temperature: of the draws.
        pattern: a regular expression whose last match (its first group, if it has any) is the answer; default: all text
            after the thoughts.
        seed: of the draws.
        show_progress: show a progress bar on stderr; default: if the work takes longer than a second.

    Returns:
        The sentences with their scores; `metadata["answers"]` counts the answers before each sentence and after all.

    Raises:
        ExpoundError: a response without thoughts, or numbers out of range.
    """
    if n_samples < 2 or max_new_tokens < 1 or temperature <= 0:
        raise ExpoundError(
            "resampling needs n_samples of at least 2, max_new_tokens of at least 1 and a temperature above 0, got "
            f"{n_samples}, {max_new_tokens}, {temperature}"
        )
    (row,) = model.respond([example], max_new_tokens, seed=seed)
    (item,) = attribute(model, [row], "random", "response", unit="thought", show_progress=False)
    sentences, starts, ids = _find_places(model, row)
    work = describe_resampling(model, row, n_samples, max_new_tokens)
    logger.info("%s", work)
    answers = list[Counter[str]]()
    with progress_bar(work, len(starts), show_progress) as report:
        for number, start in enumerate(starts):
            drawn = generate_responses(
                model.generator, ids[:start].tolist(), model.pad_id, max_new_tokens, temperature,
                seed + number * n_samples, count=n_samples,
            )  # fmt: skip
            texts = [str(model.tokenizer.decode(each, skip_special_tokens=True)) for each in drawn]
            answers.append(Counter(find_answer(text, pattern) for text in texts))
            report(1)
    unfinished, total = sum(each[UNFINISHED] for each in answers), len(starts) * n_samples
    if 2 * unfinished > total:
        logger.warning(
            "%d of %d continuations have no answer after </think>, which counts as one and the same answer: raise "
            "max_new_tokens, or choose another pattern or a model that was trained to think", unfinished, total,
        )  # fmt: skip
    scores = [measure_divergence(*pair) for pair in pairwise(answers)]
    params = {"n_samples": n_samples, "max_new_tokens": max_new_tokens, "temperature": temperature}
    return replace(
        item,
        units=sentences,
        scores=np.array([scores], dtype=np.float32),
        method="resampling",
        params=params | {"pattern": pattern, "seed": seed},
        signed=False,
        rest=None,
        metadata=item.metadata | {"answers": [dict(each) for each in answers]},
    )


def describe_resampling(model: GeneratingModel, example: Any, n_samples: int, max_new_tokens: int) -> str:
    """Return what resampling an answer's thoughts takes, in words, without running the model.

    Raises:
        ExpoundError: a response without thoughts.
    """
    starts = _find_places(model, prompt_to_row(example))[1]
    total = len(starts) * n_samples
    return f"resampling {len(starts) - 1} sentences: {total} continuations of at most {max_new_tokens} tokens"


def _find_places(model: GeneratingModel, row: Mapping[str, Any]) -> tuple[tuple[Unit, ...], list[int], Tensor]:
    """Return the sentences of a response's thoughts, the positions before each and after the last, and the ids."""
    batch = model.encode([show_units(row, "thought")])
    (exchange,), (alignment,) = batch.exchanges or (), batch.alignments or ()
    units = list_units(batch, "thought")
    # The thoughts of the response are the last text; those of earlier turns are followed by what is known already.
    last = len(alignment.texts) - 1
    sentences = [number for number, unit in enumerate(units.units) if unit.segment == last]
    if exchange.kinds[-1] != "thought" or not sentences:
        raise ExpoundError("the response has no thoughts that end with </think>: there is no sentence to resample")
    starts = [int((units.number == number).nonzero()[0]) for number in sentences]
    starts.append(int((units.number == sentences[-1]).nonzero()[-1]) + 1)
    return tuple(units.units[number] for number in sentences), starts, batch.inputs["input_ids"][0]


def find_answer(text: str, pattern: str) -> str:
    """Return the answer after the thoughts of a continuation, empty if it has none."""
    ends = [part.start for part in find_parts(text) if part.kind == "answer"]
    answer = text[ends[0] :].strip() if ends else UNFINISHED
    if not pattern or not answer:
        return answer
    matches: Sequence[re.Match[str]] = list(re.finditer(pattern, answer))
    if not matches:
        return UNFINISHED
    return str(matches[-1][1 if matches[-1].re.groups else 0])


def measure_divergence(without: Counter[str], given: Counter[str]) -> float:
    """Return the Kullback-Leibler divergence of the answers `without` a sentence from those `given` it."""
    names = sorted({*without, *given})
    first, second = (np.array([counts[name] + 1.0 for name in names]) for counts in (without, given))
    first, second = first / first.sum(), second / second.sum()
    return float((first * np.log(first / second)).sum())
