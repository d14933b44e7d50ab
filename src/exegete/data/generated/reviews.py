"""Reviews with planted opinions: their sentiment, or their score."""

from __future__ import annotations

from typing import NamedTuple

from exegete.data.generated.dice import Dice
from exegete.data.generated.lexicon import DEGREES, Lexicon
from exegete.data.generated.marking import n_words

SHORTEST, LONGEST = 8, 35


class Review(NamedTuple):
    """Sentences with the evidence in brackets, and what the evidence says."""

    sentences: list[str]
    label: float


def sentiment(dice: Dice, words: Lexicon) -> Review:
    """A review with one opinion, or in a quarter of all two that agree; label 0 is negative, 1 positive.

    A quarter of the opinions is a negated opposite ("not dull"): then the negation is evidence too. Opinions about
    something that is not judged stand in a quarter of the reviews; they are no evidence and fall by chance.
    """
    label = dice.below(2)
    opinions = [_polar(dice, words, aspect, label) for aspect in dice.sample(words.aspects, 1 + (dice.chance() < 0.25))]
    return Review(_composed(dice, words, opinions), label)


def score(dice: Dice, words: Lexicon) -> Review:
    """A review whose label is the mean of its one to three opinions: grade (±1, ±2) times degree (1, 0.5, 1.5)."""
    graded = [_graded(dice, words, aspect) for aspect in dice.sample(words.aspects, 1 + dice.below(3))]
    return Review(_composed(dice, words, [sentence for sentence, _ in graded]), sum(g for _, g in graded) / len(graded))


def _polar(dice: Dice, words: Lexicon, aspect: str, label: int) -> str:
    negated = dice.chance() < 0.25
    wanted = (label == 1) != negated
    if dice.chance() < 0.7:
        word = dice.pick([adjective for adjective, grade in words.adjectives.items() if (grade > 0) == wanted])
        frames: tuple[str, ...] = _NEGATED_ADJECTIVE if negated else _ADJECTIVE
    else:
        word = dice.pick([verb for verb, grade in words.verbs.items() if (grade > 0) == wanted])
        frames = _NEGATED_VERB if negated else _VERB
    return dice.pick(frames).format(aspect=aspect, word=word)


def _graded(dice: Dice, words: Lexicon, aspect: str) -> tuple[str, float]:
    word, grade = dice.pick(list(words.adjectives.items()))
    degree = dice.pick(["", "", *DEGREES])
    evidence = f"{degree} {word}".strip()
    return dice.pick(_ADJECTIVE).format(aspect=aspect, word=evidence), grade * DEGREES.get(degree, 1.0)


def _composed(dice: Dice, words: Lexicon, opinions: list[str]) -> list[str]:
    """The opinions among fillers and at most one opinion that is beside the point, in random order; 8 to 35 words."""
    others = [_beside(dice, words)] if dice.chance() < 0.25 else []
    fillers = [f.format(aspect=dice.pick(words.aspects)) for f in dice.sample(words.fillers, 4)]
    sentences = [*opinions, *others, *(fillers.pop() for _ in range(1 + dice.below(2)))]
    while n_words(sentences) < SHORTEST:
        sentences.append(fillers.pop())
    while n_words(sentences) > LONGEST:
        sentences.pop()
    return dice.sample(sentences, len(sentences))


def _beside(dice: Dice, words: Lexicon) -> str:
    word = dice.pick(list(words.adjectives))
    return dice.pick(_BESIDE).format(stranger=dice.pick(words.strangers), word=word)


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
_BESIDE = (
    "the {stranger} was {word}",
    "the {word} {stranger} came first",
    "someone called the {stranger} {word}",
)
FRAMES = (*_ADJECTIVE, *_NEGATED_ADJECTIVE, *_VERB, *_NEGATED_VERB, *_BESIDE)
