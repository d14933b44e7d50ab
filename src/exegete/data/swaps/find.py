"""Which stretches of a text can be swapped, and for what (after CheckList, Ribeiro et al. 2020)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from exegete.data.generated.keyed_random import KeyedRandom
from exegete.data.swaps import lists
from exegete.errors import ExegeteError, unknown

Pattern = re.Pattern[str]
_CLITIC = re.compile(r"n't|'(?:s|re|ve|ll|m)")
_APART = re.compile(r"\w (?:n['’]t|['’](?:s|re|ve|ll|d|m))\b")
PAIRS = (*lists.NEGATIONS, *((f"{word} {verb}", f"{word}{clitic}") for word, verb, clitic in lists.PRONOUNS))


class Swap(NamedTuple):
    """Characters `start` to `end` of a text, which can become any of the `choices`."""

    kind: str
    start: int
    end: int
    choices: tuple[str, ...]


def find_swaps(text: str, *, kinds: Sequence[str] | None = None, choices: int = 5, seed: int = 0) -> list[Swap]:
    """Finds all swaps in a text, from left to right; stretches do not overlap, the longer one wins.

    `contraction`: expanded ("don't" → "do not", also "do n't" of tokenised text) or contracted, as the text writes its
    own contractions. `name`: a first name becomes another one that is given to the same people, a surname another
    surname. `place`: a city becomes a city, a country a country. `number`: digits become a number within 20 %, a number
    in words a neighbouring one.

    Names and places are those of short lists (`swaps/lists.py`); they begin with a capital, unless the whole text has
    none. Only the digits 0 to 9 are numbers, and none that is part of a word, a date, a fraction or a decimal. Texts in
    other scripts have few swaps or none, and then the list is empty.

    Args:
        text: any text.
        kinds: some of `KINDS`; default: all.
        choices: at most so many for each stretch, drawn by (seed, text, place).
        seed: of the draws.

    Raises:
        ExegeteError: an unknown kind, or no choices.
    """
    wrong = next((kind for kind in kinds or () if kind not in KINDS), None)
    if wrong is not None:
        raise unknown("kind of swap", wrong, KINDS)
    if choices < 1:
        raise ExegeteError(f"choices is at least 1, got {choices}")
    every = [Swap(kind, *found) for kind in KINDS if kinds is None or kind in kinds for found in KINDS[kind](text)]
    kept: list[Swap] = []
    for swap in sorted(every, key=lambda one: (one.start - one.end, one.start)):
        if all(swap.end <= other.start or other.end <= swap.start for other in kept):
            kept.append(swap)
    return [_sample_choices(swap, text, choices, seed) for swap in sorted(kept, key=lambda one: one.start)]


def apply_swaps(text: str, found: Sequence[Swap], chosen: Mapping[int, str]) -> str:
    """The text with the chosen words in the place of some of its swaps, by their number."""
    for number in sorted(chosen, reverse=True):
        text = text[: found[number].start] + chosen[number] + text[found[number].end :]
    return text


Stretch = tuple[int, int, tuple[str, ...]]


def _sample_choices(swap: Swap, text: str, count: int, seed: int) -> Swap:
    if len(swap.choices) <= count:
        return swap
    return swap._replace(choices=tuple(KeyedRandom("swap", seed, text, swap.start).sample(swap.choices, count)))


def _find_names(text: str) -> Iterator[Stretch]:
    for names in (lists.WOMEN, lists.MEN, lists.SURNAMES):
        yield from _find_listed(text, names)


def _find_places(text: str) -> Iterator[Stretch]:
    for places in (lists.CITIES, lists.COUNTRIES):
        yield from _find_listed(text, places)


def _find_listed(text: str, words: Sequence[str]) -> Iterator[Stretch]:
    """Every word of the list in the text, and all the others of the list in its spelling."""
    lower = text == text.lower()
    for match in _match_any(words, lower).finditer(text):
        spelt = match.group()
        if lower and spelt in lists.WORDS:
            continue
        others = (word for word in words if word.lower() != spelt.lower())
        yield *match.span(), tuple(_match_case(spelt, word) for word in others)


def _find_numbers(text: str) -> Iterator[Stretch]:
    for match in re.finditer(r"(?<![\w.,:/-])[0-9]{1,9}(?!\w|[.,:/-]\w)", text):
        value = int(match.group())
        far = max(1, value // 5)
        near = [value + step for step in range(-far, far + 1) if step and value + step > 0]
        spread = near if len(near) <= 40 else near[:: len(near) // 40]
        yield *match.span(), tuple(str(number) for number in spread)
    for row in (lists.NUMBERS, lists.TENS):
        for match in _match_any(row, any_case=True).finditer(text):
            place = row.index(match.group().lower())
            near_words = row[max(0, place - 2) : place] + row[place + 1 : place + 3]
            yield *match.span(), tuple(_match_case(match.group(), word) for word in near_words)


def _find_contractions(text: str) -> Iterator[Stretch]:
    """Contractions in full, and what is in full contracted, in one word or in two as the text has it elsewhere."""
    gap = " " if _APART.search(text) else ""
    quote = "’" if "’" in text and "'" not in text else "'"
    for full, short in PAIRS:
        for match in _match_contracted(short).finditer(text):
            yield *match.span(), (_match_case(match.group(), "cannot" if full == "can not" else full),)
        clitic = _CLITIC.sub(lambda found: gap + found.group().replace("'", quote), short)
        for match in _match_full(full).finditer(text):
            yield *match.span(), (_match_case(match.group(), clitic),)


KINDS: Mapping[str, Callable[[str], Iterator[Stretch]]] = {
    "contraction": _find_contractions,
    "name": _find_names,
    "place": _find_places,
    "number": _find_numbers,
}


@cache
def _match_any(words: Sequence[str], any_case: bool = False) -> Pattern:
    """Any of the words alone, as it is written, in capitals, or with `any_case` in any way."""
    forms = words if any_case else [*words, *(word.upper() for word in words)]
    longest = sorted(map(re.escape, forms), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(longest)})(?![\w-])", re.IGNORECASE if any_case else 0)


@cache
def _match_contracted(short: str) -> Pattern:
    """In any case, with a space before the clitic or none; "it's been" and "it's got" are no "it is"."""
    spelt = _CLITIC.sub(lambda clitic: r"\s?" + clitic.group().replace("'", "['’]"), short)
    return re.compile(rf"(?<!\w){spelt}(?!\w)(?!\s(?:been|got|had)\b)", re.IGNORECASE)


@cache
def _match_full(full: str) -> Pattern:
    """In any case, with a word after it: nobody says "yes, it's"."""
    return re.compile(rf"(?<!\w){full.replace(' ', chr(92) + 's')}(?=\s+\w)", re.IGNORECASE)


def _match_case(model: str, word: str) -> str:
    """The word in the model's case: all capitals, all small, or as it is with the model's first letter."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    if model.islower():
        return word.lower()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word
