"""The generated corpus: texts whose evidence is known because it was planted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from expound.data.generated.keyed_random import KeyedRandom
from expound.data.generated.lexicon import MARKERS, MARKING, Lexicon, get_lexicon
from expound.data.generated.marking import join_sentences, unmark
from expound.data.generated.pairs import make_pair
from expound.data.generated.reviews import make_scored_review, make_sentiment_review
from expound.errors import ExpoundError

TASKS = ("sentiment", "pairs", "regression")
SENTIMENTS = ("negative", "positive")


def generate_examples(
    task: str, domain: str, split: str, *, size: int, seed: int, shortcut: float = 0.0
) -> Iterator[dict[str, Any]]:
    """Yield canonical rows. Row i depends on task, domain, split, seed and i alone, not on the size.

    `shortcut` is the probability of a sentence with the name of a day that correlates with the label (in a regression
    with its sign) but is no evidence. Without shortcuts the texts are the same except for that sentence.
    """
    words = get_lexicon(domain)
    if not 0 <= shortcut <= 1:
        raise ExpoundError(f"expected a shortcut probability from 0 to 1, got {shortcut}")
    for i in range(size):
        rng = KeyedRandom("example", task, domain, split, seed, i)
        shortcut_rng = KeyedRandom("shortcut", task, domain, split, seed, i)
        if task == "pairs":
            yield _make_pair(rng, shortcut_rng, words, shortcut)
        else:
            yield _make_review(rng, shortcut_rng, words, shortcut, task)


def _make_review(
    rng: KeyedRandom, shortcut_rng: KeyedRandom, words: Lexicon, shortcut: float, task: str
) -> dict[str, Any]:
    review = (make_sentiment_review if task == "sentiment" else make_scored_review)(rng, words)
    _insert_shortcut(review.sentences, int(review.label > 0), shortcut_rng, shortcut)
    text, rationale = unmark(join_sentences(review.sentences))
    return {"text": text, "label": review.label, "rationale": rationale}


def _make_pair(rng: KeyedRandom, shortcut_rng: KeyedRandom, words: Lexicon, shortcut: float) -> dict[str, Any]:
    pair = make_pair(rng, words)
    _insert_shortcut(pair.premise, pair.label, shortcut_rng, shortcut)
    text, rationale = unmark(join_sentences(pair.premise))
    text_pair, rationale_pair = unmark(join_sentences(pair.hypothesis))
    return {
        "text": text,
        "text_pair": text_pair,
        "label": pair.label,
        "rationale": rationale,
        "rationale_pair": rationale_pair,
    }


def _insert_shortcut(sentences: list[str], label: int, shortcut_rng: KeyedRandom, shortcut: float) -> None:
    # both are always drawn, so that the place of a shortcut does not depend on its probability
    position, is_inserted = shortcut_rng.randrange(len(sentences) + 1), shortcut_rng.random() < shortcut
    if is_inserted:
        sentences.insert(position, MARKING.format(marker=MARKERS[label]))
