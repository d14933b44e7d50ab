"""The texts of people's pages are in the catalog: each in every language, with the same placeholders."""

from __future__ import annotations

import re
from string import Formatter

import pytest

import expound
from expound_people.analysis.quality import ALL_ALIKE, CHECKS_MISSED, TOO_FAST
from expound_people.application import ROOM
from expound_people.blinding import hide_method
from expound_people.exports import EXPORTS
from expound_people.kinds import KINDS
from expound_people.protocol.admission import COMPLETE, FAILED, LATE, SCREENED_OUT, WITHDRAWN
from expound_people.texts import (
    LANGUAGES,
    choose_language,
    load_catalog,
    make_admin_translator,
    make_translator,
)
from sites import TEXTS, model
from studies import project

PAGES = sorted(
    [*ROOM.glob("templates/annotate*.j2"), *ROOM.glob("templates/take*.j2"), ROOM / "templates/join.html.j2"]
)
INNER = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)


def places(text):
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_every_text_has_all_languages_and_the_same_placeholders():
    for key in sorted(load_catalog()):
        found = load_catalog()[key]
        assert set(found) == set(LANGUAGES)
        said = [each if isinstance(each, list) else [each] for each in found.values()]
        assert len({len(each) for each in said}) == 1
        assert all(text.strip() for each in said for text in each)
        assert len({frozenset(places(text)) for each in said for text in each}) == 1 or len(said[0]) > 1


def test_all_texts_of_pages_come_from_the_catalog():
    for path in PAGES:
        source = path.read_text(encoding="utf-8")
        for key in re.findall(r'\bt\("(\w+)"[,)]', source):
            assert key in load_catalog(), key
        shown = re.sub(r"\{% block root %\}.*?\{% endblock %\}|<[^>]*>", " ", source)
        assert set(re.findall(r"[A-Za-z]{3,}", INNER.sub(" ", shown))) <= {"expound"}


ADMIN = [ROOM / f"templates/{name}.html.j2" for name in ("studies", "study", "study_results")]
SAID = re.compile(r'\bsay\("([^"]+)"')


@pytest.mark.parametrize("path", ADMIN, ids=lambda path: path.stem)
def test_all_texts_of_admin_pages_have_a_translation(path):
    source = path.read_text(encoding="utf-8")
    for text in SAID.findall(source):
        assert places(make_admin_translator("de")(text)) == places(text)
    shown = re.sub(r"<[^>]*>", " ", source)
    assert set(re.findall(r"[A-Za-z]{3,}", INNER.sub(" ", shown))) <= {"expound"}
    assert re.findall(r'aria-label="[A-Za-z]', source) == []


@pytest.mark.parametrize("kind", ["rank", "highlight", "simulate"])
def test_admin_pages_follow_the_browsers_language(full_site, chief, kind):
    project(full_site, kind=kind)
    for address, told in (("", "Studien mit Menschen"), ("/first", "Einladen"), ("/first/results", "Noch ist nichts")):
        page = chief.get(f"/studies{address}", headers={"accept-language": "fr, de;q=0.9, en;q=0.8"})
        assert page.status_code == 200
        assert told in page.text
        assert '<html lang="de">' in page.text
        assert told not in chief.get(f"/studies{address}").text
    assert [choose_language(header) for header in ("", "fr", "en-GB,de;q=0.5", "de-AT", "de;q=x,en")] == [
        "en",
        "en",
        "en",
        "de",
        "en",
    ]


def test_titles_and_states_have_german_names():
    named = {kind.title for kind in KINDS.values()} | {export.title for export in EXPORTS.values()}
    named |= {
        COMPLETE,
        SCREENED_OUT,
        FAILED,
        LATE,
        WITHDRAWN,
        TOO_FAST,
        CHECKS_MISSED,
        ALL_ALIKE,
        "under way",
        "flagged",
    }
    assert all(make_admin_translator("de")(text) for text in named)


def test_values_are_put_into_placeholders():
    assert make_translator("de")("example_of", place=2, count=5) == "Beispiel 2 von 5"
    assert make_translator()("save") == "Save and continue"


def test_signed_methods_look_like_unsigned_ones():
    item = expound.attribute(model(), TEXTS[0], "input_x_gradient")[0]
    assert item.signed
    assert (item.scores[0] < 0).any()
    shown = {rule: hide_method(item, "A", rule).scores[0] for rule in ("positive", "absolute", "signed")}
    assert (shown["positive"] == item.scores[0].clip(min=0)).all()
    assert (shown["absolute"] == abs(item.scores[0])).all()
    assert (shown["signed"] == item.scores[0]).all()
    assert (hide_method(item, "A").scores[0] == shown["positive"]).all()
