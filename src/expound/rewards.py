"""Rewards for answers that cite: does the answer need the sources that it cites, and are they enough for it?

`necessity` and `sufficiency` make reward functions for TRL's `GRPOTrainer`. They measure the cited sources' effect on a
language model's probability of the answer; no second model judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.explained import ExplainedModel
from expound.models.generation.model import GeneratingModel
from expound.models.generation.prompt import name_sources
from expound.models.perturbation.run import run_perturbed

NUMBERS = re.compile(r"\[(\d+(?:\s*,\s*\d+)*)\]")


class CitedSource(NamedTuple):
    """A citation in a completion: the number of the source from 0, and the characters [start, end) that cite it."""

    source: int
    start: int
    end: int


CitationParser = Callable[[str], Sequence[CitedSource]]
"""Finds the citations in a completion."""
RewardFunction = Callable[..., list[float]]
"""TRL's reward function: `(prompts, completions, **columns)` gives one reward per completion."""
SourceChooser = Callable[[Sequence[int], int], list[set[int]]]
"""Chooses the sets of sources to keep, given the numbers of the cited ones and how many there are."""


def find_citations(completion: str) -> list[CitedSource]:
    """Return the citations of the form [2] or [1, 3] in a completion. [1] is the first source."""
    found = []
    for match in NUMBERS.finditer(completion):
        for number in match[1].split(","):
            found.append(CitedSource(int(number) - 1, match.start(), match.end()))
    return found


def necessity(
    model: ExplainedModel, *, sources: str = "sources", parse: CitationParser = find_citations
) -> RewardFunction:
    """Return a reward function: how much less likely the answer is without a source that it cites.

    The reward is the fall of the answer's log-probability, in nats per token, when the cited source is removed from the
    prompt; of several cited sources each is removed alone, and the reward is the mean. So it does not pay to cite
    sources that the answer does not need. The answer is the completion without its citations: their tokens are read,
    but their probabilities do not count. An answer that cites none of its sources gets 0, as does a completion without
    an answer.

    Args:
        model: a language model from `expound.load(…, task="generation")`, such as the model in training or its base.
        sources: the column of the dataset with the sources of each prompt: texts, texts by name, or rows with `text`.
            Each must occur once, word for word, in the prompt. Citations count them in the column's order.
        parse: finds the citations in a completion.

    Returns:
        A function for `GRPOTrainer(reward_funcs=…)`. Prompts are texts or chats. It raises ExpoundError if the column
        is missing, or a source is not in its prompt.

    Raises:
        ExpoundError: the model does not generate.
    """
    return _make_reward("necessity", model, sources, parse, lambda cited, n: [set(range(n)) - {one} for one in cited])


def sufficiency(
    model: ExplainedModel, *, sources: str = "sources", parse: CitationParser = find_citations
) -> RewardFunction:
    """Return a reward function: whether the sources that the answer cites are enough for it.

    The reward is the negative of the fall of the answer's log-probability, in nats per token, when all sources but the
    cited ones are removed from the prompt: about 0 if they are enough, less if not. For an answer that cites none of
    its sources, all are removed. An answer that needs no source cannot lose, and one that cites all gets 0:
    combine this reward with `necessity` or with one for right answers. A completion without an answer gets 0.

    Arguments, returned function and errors: see `necessity`.

    Raises:
        ExpoundError: the model does not generate.
    """
    return _make_reward("sufficiency", model, sources, parse, lambda cited, _: [set(cited)], sign=-1)


def measure_removal_effects(
    model: ExplainedModel, prompt: Any, completion: Any, sources: Any, parse: CitationParser = find_citations
) -> tuple[tuple[int, ...], list[float]]:
    """Return the numbers of the sources that a completion cites, and the fall without each source.

    Args:
        model: a language model from `expound.load(…, task="generation")`.
        prompt: a text or a chat that contains the sources.
        completion: the answer, a text or a chat's message in a list.
        sources: the prompt's sources, as in `necessity`.
        parse: finds the citations in a completion.

    Returns:
        The numbers from 0, and the falls of the answer's log-probability, in nats per token; empty without an answer.

    Raises:
        ExpoundError: the model does not generate, or a source is not in the prompt.
    """
    judge, row = _require_generating(model), (prompt, completion, sources)
    return _measure(judge, [row], parse, lambda _, n: [set(range(n)) - {one} for one in range(n)])[0]


def _make_reward(
    name: str, model: ExplainedModel, sources: str, parse: CitationParser, choose_kept: SourceChooser, sign: int = 1
) -> RewardFunction:
    """Return the reward function of this name: the mean fall, times the sign."""
    judge = _require_generating(model)

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        if sources not in columns:
            raise ExpoundError(
                f"the dataset has no column {sources!r} with the sources of the prompts: name it by sources='COLUMN'"
            )
        rows = list(zip(prompts, completions, columns[sources], strict=True))
        return [0.0 + sign * sum(falls) / max(1, len(falls)) for _, falls in _measure(judge, rows, parse, choose_kept)]

    reward.__name__ = name
    return reward


def _require_generating(model: ExplainedModel) -> GeneratingModel:
    if not isinstance(model, GeneratingModel):
        raise ExpoundError(f"rewards need a model from expound.load(…, task='generation'), got {type(model).__name__}")
    return model


def _measure(
    model: GeneratingModel, rows: Sequence[tuple[Any, Any, Any]], parse: CitationParser, choose_kept: SourceChooser
) -> list[tuple[tuple[int, ...], list[float]]]:
    """Return what each answer cites, and how much less likely it is, per token, with only the sources of each set.

    All rows are scored together. A completion without an answer has no falls.
    """
    found: list[tuple[tuple[int, ...], list[float]]] = [((), []) for _ in rows]
    examples = {}
    for number, (prompt, completion, sources) in enumerate(rows):
        example = _make_example(model, prompt, completion, sources, number)
        if example["response"]:
            examples[number] = example
    if not examples:
        return found
    batch = model.encode(list(examples.values()))
    assert batch.exchanges is not None
    is_answer = torch.zeros(len(batch), max(len(each.tokens) for each in batch.exchanges), dtype=torch.bool)
    kept: list[list[set[int]]] = []
    for row, (number, exchange) in enumerate(zip(examples, batch.exchanges, strict=True)):
        citations = parse(exchange.response)
        # A citation of a source that does not exist is not a part of the answer either.
        for place, (start, end) in enumerate(exchange.token_spans):
            is_cited = any(start < citation.end and end > citation.start for citation in citations)
            is_answer[row, place] = bool(exchange.response[start:end].strip()) and not is_cited
        # The units of a batch are numbered in the order of the prompt.
        order = [exchange.sources.index(name) for name in examples[number]["sources"]]
        cited = tuple(dict.fromkeys(each.source for each in citations if 0 <= each.source < len(order)))
        sets = choose_kept(cited, len(order)) if is_answer[row].any() else []
        kept.append([{order[source] for source in each} for each in sets])
        found[number] = (cited, [])
    falls = _score_falls(model, batch, is_answer.to(batch.device), kept)
    for number, sets, values in zip(examples, kept, falls.T.tolist(), strict=True):
        found[number][1].extend(values[: len(sets)])
    return found


def _score_falls(model: GeneratingModel, batch: Batch, is_answer: Tensor, kept: Sequence[Sequence[set[int]]]) -> Tensor:
    """Return the falls [N, B] of the mean log-probability of `is_answer` [B, R] with only the sets of units `kept`.

    N is the largest number of sets of a row; rows with fewer have zeros in the others.
    """
    assert batch.unit_of is not None
    # Set 0, and the sets that a row lacks, keep everything: equal inputs are run once.
    present = torch.ones(1 + max(map(len, kept)), len(batch), int(batch.unit_of.max()) + 1, dtype=torch.bool)
    for row, sets in enumerate(kept):
        for number, units in enumerate(sets, 1):
            present[number, row] = False
            present[number, row, list(units)] = True
    row_of = torch.arange(len(batch), device=batch.device)[:, None]
    keep = present.to(batch.device)[:, row_of, batch.unit_of.clamp(min=0)] | (batch.unit_of < 0)
    # [N, B, R, 2]: log-probability and logit of each response token
    log_probs = run_perturbed(model, batch, keep, "remove")[..., 0]
    means = log_probs.where(is_answer, 0.0).sum(-1) / is_answer.sum(-1).clamp(min=1)
    return means[0] - means[1:]


def _make_example(model: GeneratingModel, prompt: Any, completion: Any, sources: Any, number: int) -> dict[str, Any]:
    """Return a row of the library whose response is the completion's tokens, none for white space.

    Raises ExpoundError for a source that does not occur once in the prompt, and a chat that the assistant ends.
    """
    named = name_sources(sources)
    if not named:
        raise ExpoundError(f"prompt {number} has no sources")
    text = prompt if isinstance(prompt, str) else "\n".join(str(message.get("content")) for message in prompt)
    for name, source in named.items():
        if (count := text.count(source.strip())) != 1:
            raise ExpoundError(f"the text of {name!r} must occur once in prompt {number}, it occurs {count} times")
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        raise ExpoundError(f"prompt {number} ends with the assistant's message: give the prompt as text instead")
    answer = completion if isinstance(completion, str) else "".join(str(each.get("content")) for each in completion)
    # Tokens of the answer alone, as they were generated: read after the prompt, white space could join the prompt's.
    ids = model.tokenizer(answer, add_special_tokens=False)["input_ids"] if answer.strip() else []
    row = {"prompt": prompt} if isinstance(prompt, str) else {"messages": [dict(message) for message in prompt]}
    return row | {"sources": named, "response": ids}
