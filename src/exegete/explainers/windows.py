"""Texts longer than a model: read in windows that overlap, each explained, what overlaps averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from exegete.data.alignment import NO_WORD, Word, align, words_of
from exegete.errors import ExegeteError
from exegete.models import ExplainedModel
from exegete.models.encoding.encode import as_row
from exegete.models.outputs import finite
from exegete.reports.attributions import Attribution

Rows = Sequence[Mapping[str, Any]]
AT_A_TIME = 4
"""Windows a pass where only the answer is asked for."""


def in_windows(
    model: ExplainedModel,
    examples: Sequence[Any],
    target: Any,
    stride: int,
    explain: Callable[[Rows, list[Any]], Sequence[Attribution]],
) -> list[Attribution]:
    """The examples, long texts in windows.

    A text's answer is the mean of its windows' logits, and its target is explained in each. A word's score is the mean
    over the windows that hold it; its words stand for its tokens.

    Args:
        model: what is explained: a model of single texts, with a head for the whole text.
        examples: texts, or rows with `text`.
        target: as in `exegete.attribute`.
        stride: tokens that neighbouring windows share, at most.
        explain: rows and their targets to attributions.

    Raises:
        ExegeteError: pairs, images, generated text, heads that are read at positions; a stride that leaves no room.
    """
    rows = [as_row(example) for example in examples]
    if type(model) is not ExplainedModel or model.task.at_positions or model.modality != "text":
        raise ExegeteError(f"windows are for heads that read a whole text, not for {model.task.name}: leave stride out")
    if any(row.get("text_pair") is not None for row in rows):
        raise ExegeteError("windows are for single texts: leave stride out, or shorten one text of each pair")
    spans = [list(windows(model, str(row["text"]), stride)) for row in rows]
    parts = [
        {**row, "text": row["text"][start:end]} for row, each in zip(rows, spans, strict=True) for start, end in each
    ]
    logits, wanted, answers, first = _logits(model, parts), [], [], 0
    for number, each in enumerate(spans):
        batch, mean = model.encode([parts[first]]), logits[first : first + len(each)].mean(0, keepdim=True)
        first += len(each)
        one = target[number] if isinstance(target, list) else target
        answers.append((model.target(batch, [one] if isinstance(target, list) else one, mean), mean))
        chosen = answers[-1][0][0].tolist()
        wanted += [tuple(chosen) if isinstance(chosen, list) else chosen] * len(each)
    found = iter(explain(parts, wanted))
    pieces = [[next(found) for _ in each] for each in spans]
    return [_whole(model, *each) for each in zip(rows, spans, pieces, answers, range(len(rows)), strict=True)]


def windows(model: ExplainedModel, text: str, stride: int) -> Iterator[tuple[int, int]]:
    """First character and the one behind the last of each window: as many words as the model takes.

    The next window begins with the words of the last `stride` tokens, but one word later at least.
    """
    tokenizer = model.tokenizer
    most = model.max_length - tokenizer.num_special_tokens_to_add()
    if not 0 <= stride < most:
        raise ExegeteError(f"expected a stride from 0 to {most - 1} tokens, fewer than a window's, got {stride}")
    encoded = tokenizer(text, add_special_tokens=False, verbose=False).encodings[0]
    words = words_of(text)
    owners = np.array(align([text], encoded).word_of)
    sizes = np.bincount(owners[owners != NO_WORD], minlength=len(words))
    before = np.concatenate([[0], sizes.cumsum()])
    first = 0
    while first < len(words):
        end = max(first + 1, int(np.searchsorted(before, before[first] + most, "right")) - 1)
        while end > first + 1 and _length(model, text, words[first:end]) > model.max_length:
            end -= 1  # a word at a beginning may have other tokens
        yield words[first].start, words[end - 1].end
        if end == len(words):
            return
        first = max(first + 1, int(np.searchsorted(before, before[end] - stride)))


def _length(model: ExplainedModel, text: str, words: Sequence[Word]) -> int:
    return len(model.tokenizer(text[words[0].start : words[-1].end], verbose=False)["input_ids"])


@torch.no_grad()
def _logits(model: ExplainedModel, rows: Rows) -> torch.Tensor:
    """[N, C], some windows at a time."""
    each = (rows[start : start + AT_A_TIME] for start in range(0, len(rows), AT_A_TIME))
    with model.evaluating():
        return torch.cat([finite(model(model.encode(some)).logits) for some in each])


def _whole(
    model: ExplainedModel,
    row: Mapping[str, Any],
    spans: Sequence[tuple[int, int]],
    pieces: Sequence[Attribution],
    answer: tuple[torch.Tensor, torch.Tensor],
    index: int,
) -> Attribution:
    """A text's explanation from those of its windows; of one window its own."""
    if len(pieces) == 1:
        return replace(pieces[0], index=index)
    target, mean = answer
    words = words_of(str(row["text"]))
    place = {word.start: at for at, word in enumerate(words)}
    total, count = np.zeros(len(words)), np.zeros(len(words))
    for (start, _), piece in zip(spans, pieces, strict=True):
        at = [place[start + begun] for _, begun, _ in piece.word_spans]
        total[at] += piece.word_scores
        count[at] += 1
    scores, names = total / count.clip(min=1), tuple(word.text for word in words)
    predicted = int(model.task.predict(mean, model.encode([row["text"][slice(*spans[0])]]))[0])
    contrast = model.task.is_contrast(target)
    chance = model.task.probability(model.task.probabilities(mean), target[:, 0] if contrast else target)
    return replace(
        pieces[0], tokens=names, scores=scores, special=(), words=names, word_scores=scores,
        word_spans=tuple((0, word.start, word.end) for word in words), texts=(str(row["text"]),),
        prediction=float(chance) if model.task.name == "regression" else predicted,
        prediction_label=model.labels[predicted], probability=float(chance), delta=None, layers=None, pairs=(),
        truncated=False, index=index,
    )  # fmt: skip
