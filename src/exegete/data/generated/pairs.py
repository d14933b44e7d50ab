"""Pairs of sentences that differ by one planted word, which decides whether the second follows from the first."""

from __future__ import annotations

from typing import NamedTuple

from exegete.data.generated.dice import Dice
from exegete.data.generated.lexicon import Lexicon

LABELS = ("entailment", "neutral", "contradiction")


class Pair(NamedTuple):
    """Sentences of both sides with the evidence in brackets, and the index of the relation in LABELS."""

    premise: list[str]
    hypothesis: list[str]
    label: int


def pair(dice: Dice, words: Lexicon) -> Pair:
    """The same scene twice, with another quality of the same thing.

    Two words for the same (big, large) entail, opposite poles (big, small) contradict, words for different qualities
    (big, dark) are neutral. Each word is as likely under each label on each side, so that neither side alone tells. In
    some premises (15 %) another sentence gives a quality to a thing that is drawn or spoken of: no evidence.
    """
    label = dice.below(len(LABELS))
    first, second = _qualities(dice, words, LABELS[label])
    thing, other = dice.sample(words.things, 2)
    scene = f"{dice.pick(_OPENINGS)} [{{quality}}] {thing} {dice.pick(words.scenes)} {dice.pick(words.places)}"
    beside = dice.pick(_BESIDE).format(thing=other, quality=dice.pick(_pole(dice, words)))
    filler = dice.pick(words.fillers).format(aspect=dice.pick(words.aspects))
    premise = [scene.format(quality=first), beside if dice.chance() < 0.15 else filler]
    return Pair(dice.sample(premise, 2), [scene.format(quality=second)], label)


def _qualities(dice: Dice, words: Lexicon, relation: str) -> tuple[str, str]:
    quality, other = dice.sample(words.qualities, 2)
    here, there = dice.sample(quality, 2)
    first, same = dice.sample(here, 2)
    if relation == "entailment":
        return first, same
    return first, dice.pick(there if relation == "contradiction" else dice.pick(other))


def _pole(dice: Dice, words: Lexicon) -> tuple[str, str]:
    return dice.pick(dice.pick(words.qualities))


_OPENINGS = ("the", "the same", "one more", "some")
_BESIDE = (
    "the poster has a painted {thing} that is {quality}",
    "somebody talks about the {quality} {thing}",
    "one song is about the {quality} {thing}",
)
FRAMES = (*_OPENINGS, *_BESIDE)
