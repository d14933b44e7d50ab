"""Changed versions of a study's examples, whose answers annotators predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from expound.data.alignment import Word
from expound.data.readers.marked import split_units
from expound.errors import ExpoundError
from expound.models import ExplainedModel
from expound.models.encoding.encode import make_batches
from expound_people.items import ChangedVersion, StudyItem
from expound_people.protocol.file import ChangePart


def add_changed_versions(
    model: ExplainedModel, items: Sequence[StudyItem], rule: ChangePart, seed: int = 0
) -> list[StudyItem]:
    """Return the items, each with a changed version and the answer to it by the model, a text classifier.

    Raises:
        ExpoundError: another model, a text with too few words, or no other item whose words could replace its words.
    """
    if not model.task.supports("classes") or model.modality != "text":
        raise ExpoundError(f"a changed example needs a classifier of texts, not {model.task.name} of {model.modality}")
    # Words are drawn at random, without looking at any explanation: a rule that uses the scores of one method would
    # favor it. Each version has a seed of its own, so that `tries` does not change the versions before.
    drafts: list[ChangedVersion] = []
    for number in range(len(items)):
        drafts += [_draw_version(items, number, rule, [seed, number, tried]) for tried in range(rule.tries)]
    # All versions are predicted together, in full batches.
    labels = _predict_labels(model, [draft.texts for draft in drafts])
    versions = [replace(draft, prediction=label) for draft, label in zip(drafts, labels, strict=True)]
    answered = [versions[first : first + rule.tries] for first in range(0, len(versions), rule.tries)]
    if not rule.balanced:
        return [replace(item, changed=versions[0]) for item, versions in zip(items, answered, strict=True)]
    selected = []
    has_changed_answer = _choose_answer_changes(items, answered, seed)
    for item, versions, changes in zip(items, answered, has_changed_answer, strict=True):
        version = next(version for version in versions if (version.prediction != item.prediction) == changes)
        selected.append(replace(item, changed=version))
    return selected


def _choose_answer_changes(
    items: Sequence[StudyItem], answered: Sequence[Sequence[ChangedVersion]], seed: int
) -> list[bool]:
    """Return for each item whether it gets a version that changes the model's answer.

    Items without another version come first, then items are drawn until half of them change. Without this balance, as
    most changes keep the answer, guessing "the same answer" would nearly always be right.
    """
    possible = []
    for item, versions in zip(items, answered, strict=True):
        possible.append([version.prediction != item.prediction for version in versions])
    chosen = [all(changes) for changes in possible]
    for number in np.random.default_rng(seed).permutation(len(items)).tolist():
        if any(possible[number]) and sum(chosen) < len(items) // 2:
            chosen[number] = True
    return chosen


def _draw_version(items: Sequence[StudyItem], number: int, rule: ChangePart, seed: Sequence[int]) -> ChangedVersion:
    """Return a changed version of an item that the model has not answered yet."""
    generator = np.random.default_rng(seed)
    texts = items[number].texts
    words = split_units(texts)
    chosen: list[Word] = []
    for place in generator.permutation(len(words)).tolist():
        remaining = [word for word in words if word.segment == words[place].segment and word not in chosen]
        # The last word of a text is never removed: models cannot be asked about an empty text.
        if len(chosen) < rule.words and (len(remaining) > 1 or rule.how == "replace"):
            chosen.append(words[place])
    if not chosen:
        raise ExpoundError(f"example {number + 1} has too few words to remove any: {texts[0]!r:.60}")
    replacements = [""] * len(chosen)
    if rule.how == "replace":
        others: list[str] = []
        for other, item in enumerate(items):
            if other != number:
                others += [word.text for word in split_units(item.texts)]
        if not others:
            raise ExpoundError("words are replaced by those of other examples: give 2 examples or more")
        replacements = [str(generator.choice(others)) for _ in chosen]
    pairs = zip(chosen, replacements, strict=True)
    edits = dict(sorted(pairs, key=lambda pair: (pair[0].segment, pair[0].start)))
    changed = []
    for segment, text in enumerate(texts):
        changed.append(_apply_edits(text, {word: new for word, new in edits.items() if word.segment == segment}))
    return ChangedVersion(tuple(changed), "", tuple((word.text, new) for word, new in edits.items()))


def _apply_edits(text: str, edits: Mapping[Word, str]) -> str:
    """Replace words of a text; a removed word takes the white space after it with it."""
    # From the end to the beginning, so that the positions of the words before stay valid.
    for word, new in reversed(list(edits.items())):
        end = word.end
        if not new:
            end = len(text) - len(text[word.end :].lstrip())
        text = text[: word.start] + new + text[end:]
    return text if all(edits.values()) else text.rstrip()


def _predict_labels(model: ExplainedModel, texts: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the model's label for each text or pair."""
    rows = [dict(zip(("text", "text_pair"), pair, strict=False)) for pair in texts]
    labels = [""] * len(rows)
    for indices in make_batches(model, rows):
        predicted = model.predict(model.encode([rows[index] for index in indices]))
        for index, label in zip(indices, predicted, strict=True):
            labels[index] = model.labels[int(label)]
    return labels
