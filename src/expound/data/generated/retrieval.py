"""Questions on notes; the notes that an answer needs are known, because the facts were planted there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from expound.data.generated.keyed_random import KeyedRandom

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
    """Notes and a question on them.

    Attributes:
        notes: the texts.
        did: what each person did, according to the notes.
        person: the person whom the question is about.
        needed: the indices of the notes that the answer needs.
    """

    notes: list[str]
    did: dict[str, str]
    person: str
    needed: list[int]

    def answer(self, who: str) -> str:
        """Return what a person did, and what the person did whom they helped, after a space."""
        answer = f" {who} {self.did[who]}."
        verb, rest = self.did[who].split(" ", 1)
        if verb == HELPED:
            answer += f" {rest} {self.did[rest]}."
        return answer


def generate_exchanges(split: str, *, size: int, seed: int, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield rows of prompt, sources, response, evidence and kind. Row i depends on split, seed and i alone.

    The notes say what people did; another note mentions the person of the question without answering it. `evidence`
    names the notes that the answer needs: one; either of two that say the same ("redundant"); or two, the first of
    which leads to the second ("two hops"), with a sentence of the answer for each. `kind`: yield only these rows, a
    third of the split.
    """
    for i in range(size):
        row_kind = KINDS[i % len(KINDS)]
        if kind not in (None, row_kind):
            continue
        scene = _make_scene(KeyedRandom("retrieval", split, seed, i), row_kind)
        yield {
            "prompt": PROMPT.replace("{who}", scene.person),
            "sources": [{"name": f"note {n}", "text": text} for n, text in enumerate(scene.notes, 1)],
            "response": scene.answer(scene.person),
            "evidence": [f"note {n + 1}" for n in scene.needed],
            "kind": row_kind,
        }


def generate_lessons(*, seed: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield without end some notes of a scene, as one text, with questions and answers on every person in them.

    The number of notes varies from one to all: with few of them a model soon learns that answers are in the notes.
    """
    for i in count():
        rng = KeyedRandom("lessons", seed, i)
        scene = _make_scene(rng, KINDS[i % len(KINDS)])
        notes = "\n\n".join(scene.notes[: 1 + rng.randrange(NOTES)])
        questions = []
        for person in rng.sample(list(scene.did), len(scene.did)):
            answer = scene.answer(person)
            is_stated = all(fact.strip(" .") in notes for fact in answer.split(". "))
            if is_stated:
                questions.append((QUESTION.format(who=person), answer))
        if questions:
            yield notes, questions


def get_vocabulary() -> list[str]:
    """Return the words of all notes, questions and answers, sorted."""
    text = " ".join((*PEOPLE, *VERBS, *QUALITIES, *THINGS, HELPED, *WORDINGS, *BESIDE, *FILLERS, QUESTION))
    words = text.lower().replace(".", " ").replace("?", " ").split()
    return sorted({word for word in words if "{" not in word})


def _make_scene(rng: KeyedRandom, kind: str) -> Scene:
    people = rng.sample(PEOPLE, NOTES)
    person, other = people[:2]
    parts = rng.sample(VERBS, NOTES), rng.sample(QUALITIES, NOTES), rng.sample(THINGS, NOTES)
    deeds = list(map(" ".join, zip(*parts, strict=True)))
    hops = {person: deeds[0]}
    if kind == "two hops":
        hops = {person: f"{HELPED} {other}", other: deeds[0]}
    needed = [f"{who} {did}" for who, did in hops.items()]
    if kind == "redundant":
        needed *= 2
    others = dict(zip(people[2 : NOTES + 1 - len(needed)], deeds[1:], strict=False))
    facts = [*needed, *(f"{who} {did}" for who, did in others.items())]
    texts = [rng.choice(WORDINGS).format(fact=fact) for fact in facts]
    texts.append(rng.choice(BESIDE).format(who=person))
    order = rng.sample(range(NOTES), NOTES)
    notes = [_add_filler(rng, texts[n]) for n in order]
    return Scene(notes, hops | others, person, [order.index(n) for n in range(len(needed))])


def _add_filler(rng: KeyedRandom, sentence: str) -> str:
    """Return the sentence, in two of three cases with a filler before or after it."""
    where, filler = rng.randrange(3), rng.choice(FILLERS)
    return (sentence, f"{filler} {sentence}", f"{sentence} {filler}")[where]
