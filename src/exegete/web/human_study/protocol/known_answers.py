"""Examples whose answer is known: evidence is planted, one explanation shows it, others show something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from exegete.data.alignment import split_words
from exegete.data.exchange import Exchange
from exegete.data.marked import find_marked_units, split_units
from exegete.reports.attributions import Attribution
from exegete.reports.generated import GeneratedAttribution
from exegete.web.human_study.blinding import AnyAttribution
from exegete.web.human_study.items import ChangedVersion, StudyItem
from exegete.web.human_study.kinds import KINDS
from exegete.web.human_study.protocol.file import KnownPart, Protocol
from exegete.web.human_study.tables import Item

PLANTED = "planted"
N_DECOYS = 2
SEPARATOR = "\n\n"
SQUARE_PIXELS = 24
"""Pixels of a made picture's squares."""
MIN_F1 = 0.5
"""F1 of marked words with the planted evidence from which a mark passes."""


def make_known_item(part: KnownPart, number: int, role: str, plan: Protocol) -> Item:
    """The example as it is stored, with a planted explanation and two decoys.

    Where people mark sentences, those that the evidence stands in are the evidence.
    """
    case = _make_picture_item(part) if part.text is None else _make_text_item(part, part.text)
    evidence = _locate_evidence(part, case.texts)
    generator = np.random.default_rng([plan.seed, number])
    scored = {} if plan.kind == "highlight" else _make_explanations(part, case, evidence, generator)
    if KINDS[plan.kind].is_simulation:
        scored = {PLANTED: scored[PLANTED]}
    made = replace(case, explanations=scored, label=part.prediction)
    if KINDS[plan.kind].has_changes:
        made = replace(made, changed=ChangedVersion((str(part.changed),), str(part.changed_prediction)))
    item = made.to_item(number)
    units = split_units(case.texts, plan.main.unit)
    if plan.main.unit != "word":
        hit = find_marked_units(units, evidence)
        evidence = [[unit.side, unit.start, unit.end] for unit, true in zip(units, hit, strict=True) if true]
    item.role = role
    item.content = item.content | {"evidence": evidence, "feedback": list(part.feedback)}
    return item


def make_planted_example(part: KnownPart) -> tuple[StudyItem, AnyAttribution]:
    """An example and the explanation that shows its evidence."""
    case = _make_picture_item(part) if part.text is None else _make_text_item(part, part.text)
    every = _make_explanations(part, case, _locate_evidence(part, case.texts), np.random.default_rng(0))
    return case, every[PLANTED]


def has_passed(kind: str, item: Item, content: Mapping[str, Any]) -> bool:
    """Whether an answer (of the last phase) is the known one."""
    if kind == "rank":
        ranks = dict(content["ranks"])
        mine = ranks.pop(PLANTED)
        return all(mine < other for other in ranks.values())
    if KINDS[kind].is_simulation:
        return bool(content["guess"] == item.model_answer)
    words = split_units(item.content["texts"])
    marked, wanted = (np.array(find_marked_units(words, each)) for each in (content["marks"], item.content["evidence"]))
    return bool(2 * (marked & wanted).sum() >= MIN_F1 * (marked.sum() + wanted.sum()))


def _locate_evidence(part: KnownPart, texts: Sequence[str]) -> list[list[int]]:
    if part.sources or not texts:
        return []
    return [[0, texts[0].index(each), texts[0].index(each) + len(each)] for each in part.evidence]


def _make_text_item(part: KnownPart, text: str) -> StudyItem:
    return StudyItem((text,), prediction=part.prediction)


def _make_picture_item(part: KnownPart) -> StudyItem:
    """Grey squares, and a red one where the evidence is."""
    rows, columns = part.grid
    assert part.square is not None
    shade = np.random.default_rng([rows, columns]).integers(90, 170, (rows, columns, 1)).repeat(3, 2)
    shade[part.square[0] - 1, part.square[1] - 1] = (205, 40, 40)
    pixels = shade.astype(np.uint8).repeat(SQUARE_PIXELS, 0).repeat(SQUARE_PIXELS, 1)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return StudyItem((), prediction=part.prediction, picture=buffer.getvalue())


def _make_explanations(
    part: KnownPart, case: StudyItem, evidence: Sequence[Sequence[int]], generator: np.random.Generator
) -> dict[str, AnyAttribution]:
    """Scores 1 where the evidence is, and of decoys as many elsewhere."""
    if part.square is not None:
        rows, columns = part.grid
        wanted = np.arange(rows * columns) == (part.square[0] - 1) * columns + part.square[1] - 1
    elif part.sources:
        wanted = np.array([name in part.evidence for name in part.sources])
    else:
        words = split_words(case.texts[0], 0)
        wanted = np.array([any(w.start < e and b < w.end for _, b, e in evidence) for w in words], dtype=bool)
    elsewhere, size = generator.permutation(np.flatnonzero(~wanted)), int(wanted.sum())
    chosen = {PLANTED: np.flatnonzero(wanted)}
    for number in range(N_DECOYS):  # different ones, as long as there are enough other parts
        chosen[f"decoy {number + 1}"] = np.roll(elsewhere, -number * size)[:size]
    found: dict[str, AnyAttribution] = {}
    for name, places in chosen.items():
        scores = np.zeros(len(wanted), dtype=np.float32)
        scores[places] = 1.0
        found[name] = (
            _make_generated_attribution(part, name, scores)
            if part.sources
            else _make_attribution(part, case, name, scores)
        )
    return found


def _make_generated_attribution(part: KnownPart, name: str, scores: NDArray[np.float32]) -> GeneratedAttribution:
    """An answer that comes from the sources with scores."""
    texts, said = (*part.sources.values(), str(part.text)), split_words(part.prediction)
    starts = [0, *accumulate(len(text) + len(SEPARATOR) for text in texts)]
    return GeneratedAttribution(
        scores=scores[None],
        units=tuple(part.sources),
        unit_spans=tuple((number, 0, len(text)) for number, text in enumerate(part.sources.values())),
        spans=((0, len(said)),),
        log_probs=np.zeros(1, dtype=np.float32),
        exchange=Exchange(
            SEPARATOR.join(texts),
            (*part.sources, "prompt"),
            tuple((start, start + len(text)) for start, text in zip(starts, texts, strict=False)),
            (*(True for _ in part.sources), False),
            part.prediction,
            tuple(word.text for word in said),
            tuple((word.start, word.end) for word in said),
        ),
        unit="source",
        method=name,
        signed=False,
    )


def _make_attribution(part: KnownPart, case: StudyItem, name: str, scores: NDArray[np.float32]) -> Attribution:
    size = len(scores)
    words = [] if part.text is None else split_words(part.text, 0)
    return Attribution(
        tokens=tuple(word.text for word in words) or ("",) * size,
        scores=scores,
        words=tuple(word.text for word in words),
        word_scores=scores if words else np.zeros(0, dtype=np.float32),
        word_spans=tuple((0, word.start, word.end) for word in words),
        texts=case.texts,
        target=0,
        target_label=part.prediction,
        prediction=0,
        prediction_label=part.prediction,
        probability=1.0,
        method=name,
        image_shape=None if part.square is None else part.grid,
        signed=False,
    )
