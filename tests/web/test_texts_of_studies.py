"""What pages say to people stands in the catalogue: every text in every language, with the same places."""

from __future__ import annotations

import re
from string import Formatter

import pytest

import exegete
from exegete.web.human_study.blind import unnamed
from exegete.web.human_study.texts import LANGUAGES, catalogue, texts
from exegete.web.pages import ROOM
from sites import TEXTS, model

PAGES = sorted(
    [*ROOM.glob("templates/annotate*.j2"), *ROOM.glob("templates/take*.j2"), ROOM / "templates/join.html.j2"]
)
INNER = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)


def places(text):
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("key", sorted(catalogue()))
def test_every_text_is_there_in_every_language_with_the_same_places(key):
    found = catalogue()[key]
    assert set(found) == set(LANGUAGES)
    said = [each if isinstance(each, list) else [each] for each in found.values()]
    assert len({len(each) for each in said}) == 1
    assert all(text.strip() for each in said for text in each)
    assert len({frozenset(places(text)) for each in said for text in each}) == 1 or len(said[0]) > 1


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_say_nothing_but_what_the_catalogue_has(path):
    source = path.read_text(encoding="utf-8")
    for key in re.findall(r'\bt\("(\w+)"[,)]', source):
        assert key in catalogue(), key
    shown = re.sub(r"\{% block root %\}.*?\{% endblock %\}|<[^>]*>", " ", source)
    assert set(re.findall(r"[A-Za-z]{3,}", INNER.sub(" ", shown))) <= {"exegete"}


def test_values_stand_where_their_places_are():
    assert texts("de")("example_of", place=2, count=5) == "Beispiel 2 von 5"
    assert texts()("save") == "Save and go on"


def test_signed_methods_look_like_unsigned_ones():
    item = exegete.attribute(model(), TEXTS[0], "input_x_gradient")[0]
    assert item.signed
    assert (item.word_scores < 0).any()
    shown = {rule: unnamed(item, "A", rule).word_scores for rule in ("positive", "absolute", "signed")}
    assert (shown["positive"] == item.word_scores.clip(min=0)).all()
    assert (shown["absolute"] == abs(item.word_scores)).all()
    assert (shown["signed"] == item.word_scores).all()
    assert (unnamed(item, "A").word_scores == shown["positive"]).all()
