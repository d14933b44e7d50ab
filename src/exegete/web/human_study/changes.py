"""Changed versions of a study's examples, whose answers people foretell: the rule knows nothing of any explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from exegete.data.alignment import Word
from exegete.data.marked import split_units
from exegete.errors import ExegeteError
from exegete.explainers.attribute_examples import make_batches
from exegete.models import ExplainedModel
from exegete.web.human_study.items import ChangedVersion, StudyItem
from exegete.web.human_study.protocol.file import ChangePart


class ChangedTexts(NamedTuple):
    """Texts with words taken out of them, and each of these with what stands in its place, if anything."""

    texts: tuple[str, ...]
    edits: tuple[tuple[str, str], ...]


def add_changed_versions(
    model: ExplainedModel, cases: Sequence[StudyItem], rule: ChangePart, seed: int = 0
) -> list[StudyItem]:
    """The examples, each with a changed version and the model's answer to it.

    Version number t of example n is drawn by (seed, n, t), and the examples that get another answer by the seed.

    Args:
        model: a classifier of texts.
        cases: at least one; two where words are replaced by those of other examples.
        rule: how, and how much.
        seed: of all draws.

    Raises:
        ExegeteError: another model; a text whose words cannot be removed without leaving it empty.
    """
    if model.task.name != "classification" or model.modality != "text":
        raise ExegeteError(f"a changed example needs a classifier of texts, not {model.task.name} of {model.modality}")
    drawn = [[_draw_version(cases, n, rule, [seed, n, t]) for t in range(rule.tries)] for n in range(len(cases))]
    every = iter(_predict_labels(model, [version.texts for versions in drawn for version in versions]))
    answered = [
        [ChangedVersion(version.texts, next(every), version.edits) for version in versions] for versions in drawn
    ]
    if not rule.balanced:
        return [replace(case, changed=versions[0]) for case, versions in zip(cases, answered, strict=True)]
    turned = _choose_answer_changes(cases, answered, seed)
    return [
        replace(case, changed=next(each for each in versions if (each.prediction != case.prediction) == turn))
        for case, versions, turn in zip(cases, answered, turned, strict=True)
    ]


def _choose_answer_changes(
    cases: Sequence[StudyItem], answered: Sequence[Sequence[ChangedVersion]], seed: int
) -> list[bool]:
    """Which examples get a version that changes the answer: those that have no other, and drawn ones up to half."""
    changes = [
        [each.prediction != case.prediction for each in versions]
        for case, versions in zip(cases, answered, strict=True)
    ]
    turned = [all(each) for each in changes]
    for number in np.random.default_rng(seed).permutation(len(cases)).tolist():
        turned[number] = turned[number] or (any(changes[number]) and sum(turned) < len(cases) // 2)
    return turned


def _draw_version(cases: Sequence[StudyItem], number: int, rule: ChangePart, seed: Sequence[int]) -> ChangedTexts:
    generator = np.random.default_rng(seed)
    texts = cases[number].texts
    words = split_units(texts)
    chosen: list[Word] = []
    for place in generator.permutation(len(words)).tolist():
        left = [word for word in words if word.side == words[place].side and word not in chosen]
        if len(chosen) < rule.words and (len(left) > 1 or rule.how == "replace"):
            chosen.append(words[place])
    if not chosen:
        raise ExegeteError(f"example {number + 1} has too few words to remove any: {texts[0]!r:.60}")
    others = [word.text for other, case in enumerate(cases) if other != number for word in split_units(case.texts)]
    if rule.how == "replace" and not others:
        raise ExegeteError("words are replaced by those of other examples: give 2 examples or more")
    put = [str(generator.choice(others)) if rule.how == "replace" else "" for _ in chosen]
    edits = dict(sorted(zip(chosen, put, strict=True), key=lambda each: (each[0].side, each[0].start)))
    changed = tuple(
        _apply_edits(text, {word: new for word, new in edits.items() if word.side == side})
        for side, text in enumerate(texts)
    )
    return ChangedTexts(changed, tuple((word.text, new) for word, new in edits.items()))


def _apply_edits(text: str, edits: Mapping[Word, str]) -> str:
    """The text with these words replaced; where nothing takes a word's place, the white space behind it goes, too."""
    for word, new in reversed(list(edits.items())):
        end = word.end if new else len(text) - len(text[word.end :].lstrip())
        text = text[: word.start] + new + text[end:]
    return text if all(edits.values()) else text.rstrip()


def _predict_labels(model: ExplainedModel, texts: Sequence[tuple[str, ...]]) -> list[str]:
    """The model's label for each text or pair."""
    rows = [dict(zip(("text", "text_pair"), each, strict=False)) for each in texts]
    found: dict[int, str] = {}
    for indices in make_batches(model, rows):
        predicted = model.predict(model.encode([rows[index] for index in indices]))
        found |= zip(indices, (model.labels[int(each)] for each in predicted), strict=True)
    return [found[index] for index in range(len(rows))]
