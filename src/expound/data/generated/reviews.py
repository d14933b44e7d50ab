"""Reviews with planted opinions, labeled with a sentiment or a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from expound.data.generated.keyed_random import KeyedRandom
from expound.data.generated.lexicon import DEGREES, Lexicon
from expound.data.generated.marking import count_words

SHORTEST, LONGEST = 8, 35


class Review(NamedTuple):
    """Sentences with the evidence in brackets, and the label."""

    sentences: list[str]
    label: float


def make_sentiment_review(rng: KeyedRandom, words: Lexicon) -> Review:
    """Generate a review with one opinion (a quarter have two that agree); label 0 is negative, 1 positive.

    A quarter of the opinions are negated opposites ("not dull"), whose negation is evidence too. A quarter of the
    reviews have a random opinion about something else, which is no evidence.
    """
    label = rng.randrange(2)
    opinions = []
    for aspect in rng.sample(words.aspects, 1 + (rng.random() < 0.25)):
        opinions.append(_make_polar_sentence(rng, words, aspect, label))
    return Review(_compose_review(rng, words, opinions), label)


def make_scored_review(rng: KeyedRandom, words: Lexicon) -> Review:
    """Generate a review whose label is the mean of one to three opinions, grade (±1, ±2) × degree (0.5, 1, 1.5)."""
    opinions, scores = [], []
    for aspect in rng.sample(words.aspects, 1 + rng.randrange(3)):
        sentence, score = _make_graded_sentence(rng, words, aspect)
        opinions.append(sentence)
        scores.append(score)
    return Review(_compose_review(rng, words, opinions), sum(scores) / len(scores))


def _make_polar_sentence(rng: KeyedRandom, words: Lexicon, aspect: str, label: int) -> str:
    negated = rng.random() < 0.25
    is_positive = (label == 1) != negated
    grades: Mapping[str, float] = words.verbs
    frames: tuple[str, ...] = _NEGATED_VERB if negated else _VERB
    if rng.random() < 0.7:
        grades = words.adjectives
        frames = _NEGATED_ADJECTIVE if negated else _ADJECTIVE
    word = rng.choice([word for word, grade in grades.items() if (grade > 0) == is_positive])
    return rng.choice(frames).format(aspect=aspect, word=word)


def _make_graded_sentence(rng: KeyedRandom, words: Lexicon, aspect: str) -> tuple[str, float]:
    word, grade = rng.choice(list(words.adjectives.items()))
    degree = rng.choice(["", "", *DEGREES])
    evidence = f"{degree} {word}".strip()
    return rng.choice(_ADJECTIVE).format(aspect=aspect, word=evidence), grade * DEGREES.get(degree, 1.0)


def _compose_review(rng: KeyedRandom, words: Lexicon, opinions: list[str]) -> list[str]:
    """Mix opinions with fillers and at most one irrelevant opinion, in random order, to a review of 8 to 35 words."""
    sentences = list(opinions)
    if rng.random() < 0.25:
        word = rng.choice(list(words.adjectives))
        sentences.append(rng.choice(_BESIDE).format(stranger=rng.choice(words.strangers), word=word))
    fillers = [f.format(aspect=rng.choice(words.aspects)) for f in rng.sample(words.fillers, 4)]
    for _ in range(1 + rng.randrange(2)):
        sentences.append(fillers.pop())
    while count_words(sentences) < SHORTEST:
        sentences.append(fillers.pop())
    while count_words(sentences) > LONGEST:
        sentences.pop()
    return rng.sample(sentences, len(sentences))


_ADJECTIVE = (
    "the {aspect} was [{word}]",
    "I found the {aspect} [{word}]",
    "the {aspect} is simply [{word}]",
    "the {aspect} felt [{word}] to me",
    "[{word}] is the word for the {aspect}",
)
_NEGATED_ADJECTIVE = (
    "the {aspect} was [not {word}]",
    "I did [not] find the {aspect} [{word}]",
    "the {aspect} was [never {word}]",
    "the {aspect} did [not] feel [{word}] to me",
)
_VERB = ("the {aspect} [{word}] me", "I was [{word}] by the {aspect}", "the {aspect} [{word}] us all")
_NEGATED_VERB = ("the {aspect} [never {word}] me", "I was [not {word}] by the {aspect}")
_BESIDE = ("the {stranger} was {word}", "the {word} {stranger} came first", "someone called the {stranger} {word}")
FRAMES = (*_ADJECTIVE, *_NEGATED_ADJECTIVE, *_VERB, *_NEGATED_VERB, *_BESIDE)
