"""Finding stretches of a text that can be swapped, and their replacements (after CheckList, Ribeiro et al. 2020)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from expound.data.generated.keyed_random import KeyedRandom
from expound.data.swaps import lists
from expound.errors import ExpoundError, check_choice

Pattern = re.Pattern[str]
_CLITIC = re.compile(r"n't|'(?:s|re|ve|ll|m)")
_APART = re.compile(r"\w (?:n['’]t|['’](?:s|re|ve|ll|d|m))\b")
PAIRS = (*lists.NEGATIONS, *((f"{word} {verb}", f"{word}{clitic}") for word, verb, clitic in lists.PRONOUNS))


class Swap(NamedTuple):
    """Characters `start` to `end` of a text, and the `choices` that can replace them."""

    kind: str
    start: int
    end: int
    choices: tuple[str, ...]


def find_swaps(text: str, *, kinds: Sequence[str] | None = None, choices: int = 5, seed: int = 0) -> list[Swap]:
    """Find all swaps in a text, from left to right. Of overlapping stretches the longest is kept.

    `contraction`: expanded ("don't" → "do not", also "do n't" of tokenized text) or contracted, as the text writes its
    own contractions. `name`: a first name becomes another one that is given to the same people, a surname another
    surname. `place`: a city becomes a city, a country a country. `number`: digits become a number within 20 %, a number
    in words a neighboring one.

    Names and places are those in `swaps/lists.py`. They must begin with a capital letter unless the whole text is in
    lower case. Numbers have the digits 0 to 9 and are not part of a word, a date, a fraction or a decimal. Texts in
    other scripts have few swaps.

    Args:
        text: any text.
        kinds: some of `KINDS`; default: all.
        choices: maximum number of choices per stretch, sampled by (seed, text, position).
        seed: random seed of the samples.

    Raises:
        ExpoundError: an unknown kind, or `choices` below 1.
    """
    for kind in kinds or ():
        check_choice("kind of swap", kind, KINDS)
    if choices < 1:
        raise ExpoundError(f"choices is at least 1, got {choices}")
    candidates: list[Swap] = []
    for kind, find in KINDS.items():
        if kinds is None or kind in kinds:
            candidates += [Swap(kind, *stretch) for stretch in find(text)]
    kept, is_taken = list[Swap](), np.zeros(len(text), dtype=bool)
    # the longest first, so that a name within a longer name is not swapped
    for swap in sorted(candidates, key=lambda swap: (swap.start - swap.end, swap.start)):
        if not is_taken[swap.start : swap.end].any():
            is_taken[swap.start : swap.end] = True
            kept.append(_sample_choices(swap, text, choices, seed))
    return sorted(kept, key=lambda swap: swap.start)


def apply_swaps(text: str, swaps: Sequence[Swap], replacements: Mapping[int, str]) -> str:
    """Return the text with some of its swaps replaced; `replacements` are by the number of the swap."""
    # from right to left, so that the positions of earlier swaps stay valid
    for number in sorted(replacements, reverse=True):
        text = text[: swaps[number].start] + replacements[number] + text[swaps[number].end :]
    return text


Stretch = tuple[int, int, tuple[str, ...]]


def _sample_choices(swap: Swap, text: str, count: int, seed: int) -> Swap:
    if len(swap.choices) <= count:
        return swap
    return swap._replace(choices=tuple(KeyedRandom("swap", seed, text, swap.start).sample(swap.choices, count)))


def _find_listed(text: str, *, words_of: Sequence[Sequence[str]]) -> Iterator[Stretch]:
    """Yield every word of the lists in the text, with the other words of its list in the same case."""
    lower = text == text.lower()
    for words in words_of:
        for match in _match_any(words, lower).finditer(text):
            spelt = match.group()
            if not lower or spelt not in lists.WORDS:
                yield *match.span(), _match_cases(spelt, [word for word in words if word.lower() != spelt.lower()])


def _find_numbers(text: str) -> Iterator[Stretch]:
    for match in re.finditer(r"(?<![\w.,:/-])[0-9]{1,9}(?!\w|[.,:/-]\w)", text):
        value = int(match.group())
        far = max(1, value // 5)
        near = [value + step for step in range(-far, far + 1) if step and value + step > 0]
        if len(near) > 40:
            near = near[:: len(near) // 40]
        yield *match.span(), tuple(map(str, near))
    for row in (lists.NUMBERS, lists.TENS):
        for match in _match_any(row, any_case=True).finditer(text):
            place = row.index(match.group().lower())
            near_words = row[max(0, place - 2) : place] + row[place + 1 : place + 3]
            yield *match.span(), _match_cases(match.group(), near_words)


def _find_contractions(text: str) -> Iterator[Stretch]:
    """Yield contractions with their full form, and full forms with their contraction, as the text writes its own."""
    gap = " " if _APART.search(text) else ""
    quote = "’" if "’" in text and "'" not in text else "'"
    for full, short in PAIRS:
        expanded = "cannot" if full == "can not" else full
        for match in _match_contracted(short).finditer(text):
            yield *match.span(), _match_cases(match.group(), [expanded])
        clitic = _CLITIC.sub(lambda clitic: gap + clitic.group().replace("'", quote), short)
        for match in _match_full(full).finditer(text):
            yield *match.span(), _match_cases(match.group(), [clitic])


KINDS: Mapping[str, Callable[[str], Iterator[Stretch]]] = {
    "contraction": _find_contractions,
    "name": partial(_find_listed, words_of=(lists.WOMEN, lists.MEN, lists.SURNAMES)),
    "place": partial(_find_listed, words_of=(lists.CITIES, lists.COUNTRIES)),
    "number": _find_numbers,
}


@cache
def _match_any(words: Sequence[str], any_case: bool = False) -> Pattern:
    """Return a pattern of any of the words, as written or in capitals; with `any_case` in any case."""
    forms, flags = list(words), re.NOFLAG
    if any_case:
        flags = re.IGNORECASE
    else:
        forms += map(str.upper, words)
    longest = sorted(map(re.escape, forms), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(longest)})(?![\w-])", flags)


@cache
def _match_contracted(short: str) -> Pattern:
    """Return a pattern of a contraction in any case, with or without a space before the clitic."""
    # in "it's been" and "it's got" the clitic is "has", not "is"
    spelt = _CLITIC.sub(lambda clitic: r"\s?" + clitic.group().replace("'", "['’]"), short)
    return re.compile(rf"(?<!\w){spelt}(?!\w)(?!\s(?:been|got|had)\b)", re.IGNORECASE)


@cache
def _match_full(full: str) -> Pattern:
    """Return a pattern of a full form in any case that a word follows: "yes, it is" has no contraction."""
    return re.compile(rf"(?<!\w){full.replace(' ', chr(92) + 's')}(?=\s+\w)", re.IGNORECASE)


def _match_cases(model: str, words: Iterable[str]) -> tuple[str, ...]:
    """Return the words in the case of the model word: upper, lower, or unchanged but for the first letter."""
    if len(model) > 1 and model.isupper():
        return tuple(map(str.upper, words))
    if model.islower():
        return tuple(map(str.lower, words))
    if model[:1].isupper():
        return tuple(word[:1].upper() + word[1:] for word in words)
    return tuple(words)
