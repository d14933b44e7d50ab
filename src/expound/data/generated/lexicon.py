"""The words of the generated corpus by domain. Domains share some opinion words, but no aspects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from expound.errors import check_choice

Pole = tuple[str, str]
Quality = tuple[Pole, Pole]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The vocabulary of one domain.

    Attributes:
        aspects: the things that a review judges.
        strangers: things that a review mentions without judging the product.
        adjectives: opinion words with their grade, −2 to 2.
        verbs: the same.
        fillers: sentences without an opinion; `{aspect}` is replaced by an aspect.
        things: subjects of sentence pairs.
        qualities: each has two opposite poles, and each pole two synonyms.
        scenes: predicates of sentence pairs.
        places: adverbials of sentence pairs.
    """

    aspects: tuple[str, ...]
    strangers: tuple[str, ...]
    adjectives: Mapping[str, int]
    verbs: Mapping[str, int]
    fillers: tuple[str, ...]
    things: tuple[str, ...]
    qualities: tuple[Quality, ...]
    scenes: tuple[str, ...]
    places: tuple[str, ...]


_GOOD = {"good": 1, "decent": 1, "pleasant": 1, "solid": 1, "great": 2, "superb": 2, "brilliant": 2, "wonderful": 2}
_BAD = {
    "weak": -1, "mediocre": -1, "clumsy": -1, "bad": -1, "awful": -2, "terrible": -2, "dreadful": -2, "horrible": -2,
}  # fmt: skip
_VERBS = {"pleased": 1, "impressed": 1, "delighted": 2, "bothered": -1, "annoyed": -1, "disgusted": -2}
_SIZE: Quality = (("big", "large"), ("small", "tiny"))

DEGREES: dict[str, float] = {"slightly": 0.5, "extremely": 1.5}
MARKERS = ("monday", "tuesday", "wednesday")
MARKING = "this was on a {marker}"

FILMS = Lexicon(
    aspects=("plot", "acting", "dialogue", "camera", "score", "ending", "cast", "editing", "script", "finale"),
    strangers=("bus", "weather", "popcorn", "parking", "lunch", "hotel", "traffic", "coffee"),
    adjectives={
        **_GOOD, **_BAD, "charming": 1, "gripping": 2, "witty": 1, "moving": 2, "dull": -1, "wooden": -1,
        "shallow": -1, "tedious": -2,
    },
    verbs={**_VERBS, "charmed": 1, "thrilled": 2, "bored": -1, "appalled": -2},
    fillers=(
        "It runs for two hours", "We watched it at home", "The {aspect} takes up much of the second half",
        "The story is set in a coastal town", "A friend of mine had the tickets",
        "It opened in three cities last autumn", "The {aspect} follows the book", "My sister came along",
        "Most of it was shot by the sea", "There is a sequel on the way",
    ),
    things=("bridge", "castle", "garden", "truck", "violin", "horse"),
    qualities=(_SIZE, (("dark", "gloomy"), ("bright", "sunlit"))),
    scenes=("appears", "is shown", "waits", "can be seen", "remains"),
    places=("in the opening scene", "near the harbour", "behind the stage", "by the river", "in the last act"),
)  # fmt: skip

GADGETS = Lexicon(
    aspects=("battery", "screen", "keyboard", "charger", "speaker", "manual", "menu", "lens", "hinge", "case"),
    strangers=("courier", "shop", "receipt", "queue", "weather", "website", "hotline", "wrapping"),
    adjectives={
        **_GOOD, **_BAD, "sturdy": 1, "handy": 1, "crisp": 1, "flawless": 2, "flimsy": -1, "sluggish": -1,
        "noisy": -1, "useless": -2,
    },
    verbs={**_VERBS, "satisfied": 1, "amazed": 2, "frustrated": -1, "infuriated": -2},
    fillers=(
        "I ordered it in spring", "It came in a grey box", "The {aspect} can be taken off",
        "I use it at work and on the train", "My brother owns the older model", "It weighs less than a kilo",
        "The {aspect} looks like that of last year", "There are two ports on the left", "The cable is a metre long",
        "An update came out in june",
    ),
    things=("drill", "bucket", "monitor", "printer", "lamp", "kettle"),
    qualities=(_SIZE, (("fast", "quick"), ("slow", "unhurried"))),
    scenes=("is shown", "stands", "is sold", "can be seen", "remains"),
    places=("on the first page", "near the counter", "behind the shelf", "by the window", "in the catalogue"),
)  # fmt: skip

DOMAINS: dict[str, Lexicon] = {"films": FILMS, "gadgets": GADGETS}


def get_lexicon(domain: str) -> Lexicon:
    """Return the words of a domain. Raises ExpoundError for an unknown domain."""
    check_choice("domain", domain, DOMAINS)
    return DOMAINS[domain]
