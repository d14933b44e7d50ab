"""Examples with a known answer: evidence is planted, one explanation shows it, decoys show something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from expound.data.alignment import split_words
from expound.data.readers.marked import find_marked_units, split_units
from expound.reports.explanations import Explanation
from expound.reports.records import Exchange, Target, Unit
from expound.serve.pictures import encode_png
from expound_people.items import ChangedVersion, StudyItem
from expound_people.kinds import KINDS
from expound_people.protocol.file import KnownPart, Protocol
from expound_people.tables import Item

PLANTED = "planted"
N_DECOYS = 2
SEPARATOR = "\n\n"
SQUARE_PIXELS = 24
"""Width and height in pixels of a square of a generated picture."""
MIN_F1 = 0.5
"""Smallest F1 between marked words and planted evidence with which an answer passes."""


def make_known_item(part: KnownPart, number: int, role: str, plan: Protocol) -> Item:
    """Return the database row of an example with a known answer, with the planted explanation and two decoys.

    If annotators mark sentences, the evidence is extended to whole sentences.
    """
    kind = KINDS[plan.kind]
    example = _make_item(part)
    evidence = _locate_evidence(part)
    explanations: dict[str, Explanation] = {}
    if plan.kind != "highlight":
        explanations = _make_explanations(part, evidence, np.random.default_rng([plan.seed, number]))
    if kind.is_simulation:
        explanations = {PLANTED: explanations[PLANTED]}
    example = replace(example, explanations=explanations, label=part.prediction)
    if kind.has_changes:
        example = replace(example, changed=ChangedVersion((str(part.changed),), str(part.changed_prediction)))
    item = example.to_item(number)
    if plan.main.unit != "word":
        units = split_units(example.texts, plan.main.unit)
        is_evidence = find_marked_units(units, evidence)
        evidence = [[unit.segment, unit.start, unit.end] for unit in compress(units, is_evidence)]
    item.role = role
    item.content = item.content | {"evidence": evidence, "feedback": list(part.feedback)}
    return item


def make_planted_example(part: KnownPart) -> tuple[StudyItem, Explanation]:
    """Return an example and the explanation that shows its evidence, for the instructions."""
    # The seed decides the decoys only, which are not used here.
    explanations = _make_explanations(part, _locate_evidence(part), np.random.default_rng(0))
    return _make_item(part), explanations[PLANTED]


def has_passed(kind: str, item: Item, content: Mapping[str, Any]) -> bool:
    """Return whether an answer in the last phase is the known one."""
    if kind == "rank":
        ranks = dict(content["ranks"])
        planted = ranks.pop(PLANTED)
        # A tie with a decoy does not pass: it would also happen without looking.
        return all(planted < rank for rank in ranks.values())
    if KINDS[kind].is_simulation:
        return bool(content["guess"] == item.model_answer)
    words = split_units(item.content["texts"])
    marked = np.array(find_marked_units(words, content["marks"]))
    evidence = np.array(find_marked_units(words, item.content["evidence"]))
    # F1 >= MIN_F1 without a division, which would be by 0 if nothing is marked.
    return bool(2 * (marked & evidence).sum() >= MIN_F1 * (marked.sum() + evidence.sum()))


def _locate_evidence(part: KnownPart) -> list[list[int]]:
    """Return the marks [segment, start, end] of the evidence in the text; empty for sources and pictures."""
    if part.sources or part.text is None:
        return []
    starts = [part.text.index(evidence) for evidence in part.evidence]
    return [[0, start, start + len(evidence)] for start, evidence in zip(starts, part.evidence, strict=True)]


def _make_item(part: KnownPart) -> StudyItem:
    """Return an example of the text, or of a picture that has grey squares, and a red one as evidence."""
    if part.square is None:
        return StudyItem((str(part.text),), prediction=part.prediction)
    rows, columns = part.grid
    # The seed is the size of the grid, so that a picture is the same whenever it is generated.
    shade = np.random.default_rng([rows, columns]).integers(90, 170, (rows, columns, 1)).repeat(3, 2)
    shade[part.square[0] - 1, part.square[1] - 1] = (205, 40, 40)
    pixels = shade.astype(np.uint8).repeat(SQUARE_PIXELS, 0).repeat(SQUARE_PIXELS, 1)
    return StudyItem((), prediction=part.prediction, picture=encode_png(Image.fromarray(pixels)))


def _make_explanations(
    part: KnownPart, evidence: Sequence[Sequence[int]], generator: np.random.Generator
) -> dict[str, Explanation]:
    """Return the planted explanation and the decoys by name: score 1 on the evidence, or on as many other parts."""
    is_evidence = _find_evidence_parts(part, evidence)
    others, size = generator.permutation(np.flatnonzero(~is_evidence)), int(is_evidence.sum())
    chosen = {PLANTED: np.flatnonzero(is_evidence)}
    for number in range(N_DECOYS):
        # Rotating the same permutation gives disjoint decoys as long as there are enough other parts.
        chosen[f"decoy {number + 1}"] = np.roll(others, -number * size)[:size]
    explanations: dict[str, Explanation] = {}
    for name, places in chosen.items():
        scores = np.zeros(len(is_evidence), dtype=np.float32)
        scores[places] = 1.0
        if part.sources:
            explanations[name] = _make_response_explanation(part, name, scores)
        else:
            explanations[name] = _make_explanation(part, name, scores)
    return explanations


def _find_evidence_parts(part: KnownPart, evidence: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Return a mask of the evidence over the squares of a picture, the sources, or the words of a text."""
    if part.square is not None:
        mask = np.zeros(part.grid, dtype=bool)
        mask[part.square[0] - 1, part.square[1] - 1] = True
        return mask.ravel()
    if part.sources:
        return np.array([name in part.evidence for name in part.sources])
    return np.array(find_marked_units(split_words(str(part.text)), evidence), dtype=bool)


def _make_response_explanation(part: KnownPart, name: str, scores: NDArray[np.float32]) -> Explanation:
    """Return the explanation of a generated answer by its sources; `scores` has one score per source."""
    texts, words = (*part.sources.values(), str(part.text)), split_words(part.prediction)
    # The prompt is the sources and the question, separated by blank lines: these are the characters they begin at.
    starts = [0, *accumulate(len(text) + len(SEPARATOR) for text in texts)]
    exchange = Exchange(
        SEPARATOR.join(texts),
        (*part.sources, "prompt"),
        tuple((start, start + len(text)) for start, text in zip(starts, texts, strict=False)),
        (*("source" for _ in part.sources), "prompt"),
        part.prediction,
        tuple(word.text for word in words),
        tuple((word.start, word.end) for word in words),
    )
    return Explanation(
        targets=(Target(part.prediction, (0, len(words)), 1.0, 0.0),),
        units=tuple(Unit(key, number, 0, len(text)) for number, (key, text) in enumerate(part.sources.items())),
        scores=scores[None],
        unit="source",
        method=name,
        texts=texts,
        exchange=exchange,
        signed=False,
    )


def _make_explanation(part: KnownPart, name: str, scores: NDArray[np.float32]) -> Explanation:
    target = Target(part.prediction, 0, 1.0)
    words = () if part.text is None else split_words(part.text, 0)
    units = [Unit(word.text, 0, word.start, word.end) for word in words] or [Unit("")] * len(scores)
    return Explanation(
        targets=(target,),
        units=tuple(units),
        scores=scores[None],
        unit="word" if words else "patch",
        method=name,
        texts=() if part.text is None else (part.text,),
        prediction=target,
        tokens=tuple(units),
        token_scores=scores[None],
        image_shape=None if part.square is None else part.grid,
        signed=False,
    )
