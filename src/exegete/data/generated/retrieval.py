"""Questions on notes: which of them an answer needs is known, because it was planted there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any, NamedTuple

from exegete.data.generated.keyed_random import KeyedRandom

KINDS = ("one hop", "redundant", "two hops")
NOTES = 6
PEOPLE = (
    *("Ada", "Boris", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Irina", "Jonas", "Karin", "Leo"),
    *("Maria", "Nora", "Otto", "Paula", "Robert", "Sofia", "Theo", "Vera"),
)
VERBS = (
    *("painted", "sold", "found", "lost", "bought", "repaired", "wanted", "carried", "counted", "cleaned"),
    *("borrowed", "stole", "drew", "moved", "hid", "broke"),
)
QUALITIES = (
    *("green", "old", "heavy", "broken", "silver", "wooden", "cheap", "round", "empty", "tiny", "yellow", "foreign"),
    *("rusty", "strange", "famous", "soft"),
)
THINGS = (
    *("doors", "horses", "clocks", "boats", "lamps", "books", "chairs", "coins", "bottles", "stamps", "maps"),
    *("ladders", "carpets", "violins", "engines", "bells"),
)
HELPED = "helped"
WORDINGS = ("{fact}.", "Today {fact}.", "{fact} today.")
BESIDE = ("They know {who} well.", "Nobody spoke with {who}.", "This was read by {who}.")
FILLERS = ("It rained all day.", "The letter came late.", "Lunch was cold.", "The sun is out.")
QUESTION = "What did {who} do?"
PROMPT = "{sources}\n\n" + QUESTION


class Scene(NamedTuple):
    """Notes, what they say that people `did`, who is `asked` about, and the numbers of the notes that this needs."""

    notes: list[str]
    did: dict[str, str]
    asked: str
    needed: list[int]

    def answer(self, who: str) -> str:
        """The deed of somebody, and that of the one who was helped, after the space that parts it from the question."""
        (first, last), facts = self.did[who].split(" ", 1), [who]
        if first == HELPED:
            facts.append(last)
        return " " + " ".join(f"{one} {self.did[one]}." for one in facts)


def generate_exchanges(split: str, *, size: int, seed: int, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Rows of prompt, sources, response, evidence and kind; row i depends on split, seed and i alone.

    The notes say what people did, and mention beside the point whom the question is about. `evidence` names the notes
    that the answer needs: one; two that say the same ("redundant"); or two of which the first leads to the second ("two
    hops"), and then the answer has a sentence for each. `kind`: only these rows, a third of the split.
    """
    for i in range(size):
        own = KINDS[i % len(KINDS)]
        if kind not in (None, own):
            continue
        scene = _make_scene(KeyedRandom("retrieval", split, seed, i), own)
        yield {
            "prompt": PROMPT.replace("{who}", scene.asked),
            "sources": [{"name": f"note {n}", "text": text} for n, text in enumerate(scene.notes, 1)],
            "response": scene.answer(scene.asked),
            "evidence": [f"note {n + 1}" for n in scene.needed],
            "kind": own,
        }


def generate_lessons(*, seed: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Some of the notes of a scene, as one text, and questions with answers for all who did something there; no end.

    Scenes have from one note to all of them: with few it is soon learnt that answers stand in the notes.
    """
    for i in count():
        scene = _make_scene(rng := KeyedRandom("lessons", seed, i), KINDS[i % len(KINDS)])
        notes = "\n\n".join(scene.notes[: 1 + rng.randrange(NOTES)])
        known = {who: scene.answer(who) for who in rng.sample(list(scene.did), len(scene.did))}
        asked = [(QUESTION.format(who=who), said) for who, said in known.items() if _is_stated(notes, said)]
        if asked:
            yield notes, asked


def _is_stated(notes: str, answer: str) -> bool:
    return all(fact.strip(" .") in notes for fact in answer.split(". "))


def get_vocabulary() -> list[str]:
    """Every word of the notes, questions and answers, sorted."""
    phrases = (*PEOPLE, *VERBS, *QUALITIES, *THINGS, HELPED, *WORDINGS, *BESIDE, *FILLERS, QUESTION)
    words = chain.from_iterable(phrase.lower().replace(".", " ").replace("?", " ").split() for phrase in phrases)
    return sorted({word for word in words if "{" not in word})


def _make_scene(rng: KeyedRandom, kind: str) -> Scene:
    people, deeds = rng.sample(PEOPLE, NOTES), _sample_deeds(rng)
    asked, other = people[:2]
    hops = {asked: f"{HELPED} {other}", other: deeds[0]} if kind == "two hops" else {asked: deeds[0]}
    needed = [f"{who} {did}" for who, did in hops.items()] * (2 if kind == "redundant" else 1)
    others = dict(zip(people[2 : NOTES + 1 - len(needed)], deeds[1:], strict=False))
    facts = [*needed, *(f"{who} {did}" for who, did in others.items())]
    texts = [rng.choice(WORDINGS).format(fact=fact) for fact in facts] + [rng.choice(BESIDE).format(who=asked)]
    order = rng.sample(range(NOTES), NOTES)
    notes = [_add_filler(rng, texts[n]) for n in order]
    return Scene(notes, hops | others, asked, [order.index(n) for n in range(len(needed))])


def _sample_deeds(rng: KeyedRandom) -> list[str]:
    """Deeds of people, no word of them twice."""
    parts = (rng.sample(words, NOTES) for words in (VERBS, QUALITIES, THINGS))
    return [" ".join(words) for words in zip(*parts, strict=True)]


def _add_filler(rng: KeyedRandom, sentence: str) -> str:
    """The sentence, mostly with another one before or after it that says nothing."""
    where, filler = rng.randrange(3), rng.choice(FILLERS)
    return (sentence, f"{filler} {sentence}", f"{sentence} {filler}")[where]
