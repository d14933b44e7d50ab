"""Pairs of sentences that differ in one word, which decides whether the second follows from the first."""

from __future__ import annotations

from typing import NamedTuple

from expound.data.generated.keyed_random import KeyedRandom
from expound.data.generated.lexicon import Lexicon

LABELS = ("entailment", "neutral", "contradiction")


class Pair(NamedTuple):
    """Sentences of premise and hypothesis with the evidence in brackets, and the index of the relation in LABELS."""

    premise: list[str]
    hypothesis: list[str]
    label: int


def make_pair(rng: KeyedRandom, words: Lexicon) -> Pair:
    """Generate a pair: the same scene twice, with another word for a quality of the same thing.

    Synonyms (big, large) entail, opposite poles (big, small) contradict, different qualities (big, dark) are neutral.
    Each word is equally likely under each label on each side, so that one side alone does not reveal the label. In 15 %
    of the premises another sentence gives a quality to another thing, which is no evidence.
    """
    label = rng.randrange(len(LABELS))
    first, second = _sample_qualities(rng, words, LABELS[label])
    thing, other = rng.sample(words.things, 2)
    scene = f"{rng.choice(_OPENINGS)} [{{quality}}] {thing} {rng.choice(words.scenes)} {rng.choice(words.places)}"
    beside = rng.choice(_BESIDE).format(thing=other, quality=rng.choice(rng.choice(rng.choice(words.qualities))))
    filler = rng.choice(words.fillers).format(aspect=rng.choice(words.aspects))
    premise = [scene.format(quality=first), beside if rng.random() < 0.15 else filler]
    return Pair(rng.sample(premise, 2), [scene.format(quality=second)], label)


def _sample_qualities(rng: KeyedRandom, words: Lexicon, relation: str) -> tuple[str, str]:
    quality, other = rng.sample(words.qualities, 2)
    pole, opposite = rng.sample(quality, 2)
    first, synonym = rng.sample(pole, 2)
    if relation == "entailment":
        return first, synonym
    if relation == "contradiction":
        return first, rng.choice(opposite)
    return first, rng.choice(rng.choice(other))


_OPENINGS = ("the", "the same", "one more", "some")
_BESIDE = (
    "the poster has a painted {thing} that is {quality}",
    "somebody talks about the {quality} {thing}",
    "one song is about the {quality} {thing}",
)
FRAMES = (*_OPENINGS, *_BESIDE)
