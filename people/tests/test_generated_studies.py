"""Generated answers in a study: people see the question, the answer, and its sources as each method shades them."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

import expound
from access import violations_in_both_themes
from browsing import NARROW, fits
from chats import CHAT, SOURCES, chatting
from expound.errors import ExpoundError
from expound_people.blinding import hide_method, shade_sources
from expound_people.items import explain_items, make_items, restore_explanation, select_saved_items
from expound_people.projects import create_project, find_project, invite_annotators
from expound_people.protocol.file import parse_protocol
from expound_people.protocol.known_answers import has_passed
from expound_people.results import compute_findings, load_answers
from expound_people.storage import Storage
from participants import follow_link, protocol, step
from scripted import find_small_targets
from sites import csrf
from studies import annotator, letters, rank

METHODS = ["occlusion", "input_x_gradient", "random"]
OTHER = CHAT | {"sources": {"a": "the cat is here .", "b": "a film", "c": "women laugh"}, "response": " it is long"}


@pytest.fixture(scope="module")
def model():
    return chatting()


@pytest.fixture(scope="module")
def study_items(model):
    """The items of a study: two answers, each explained by all methods."""
    return explain_items(model, [CHAT, OTHER], METHODS)


@pytest.fixture
def study(full_site, study_items):
    with full_site.application.storage.write_session() as session:
        made = create_project(session, "cited", study_items)
        token = invite_annotators(session, made, ["Ada"])["Ada"]
    return full_site, token


def shades(item, rule):
    """The shade of each source, computed by hand: sums over rows and units, the rule, eighths of the largest."""
    by_unit = rule(item.scores.astype(np.float64).sum(0))
    totals = [sum(by_unit[n] for n, unit in enumerate(item.units) if unit.segment == text)
              for text, own in enumerate(item.exchange.is_source) if own]  # fmt: skip
    return [round(8 * total / max(map(abs, totals))) if any(totals) else 0 for total in totals]


@pytest.mark.parametrize("unit", ["source", "word"])
@pytest.mark.parametrize(
    ("show", "rule"), [("positive", lambda x: x.clip(min=0)), ("absolute", abs), ("signed", lambda x: x)]
)
def test_sources_have_the_shade_of_their_scores_under_the_declared_rule(model, unit, show, rule):
    for method in METHODS:
        (item,) = expound.attribute(model, [CHAT], method, unit=unit)
        found = shade_sources(hide_method(item, "A", show))
        assert [source.name for source in found] == list(SOURCES)
        assert ["".join(text for text, _ in source.pieces).strip() for source in found] == [
            text.strip() for text in SOURCES.values()
        ]
        assert [source.level for source in found] == shades(item, rule)
        if show != "signed":
            assert all(level >= 0 for source in found for _, level in source.pieces)


def test_saved_explanations_become_study_items(model, study_items, tmp_path):
    for method in METHODS:
        expound.attribute(model, [CHAT, OTHER], method, unit="source").save(tmp_path / method)
    kept = [(name, item) for name in METHODS for item in expound.Explanations.load(tmp_path / name)]
    assert make_items(kept) == study_items


def test_stored_attributions_are_restored_unchanged(study):
    made, _ = study
    with made.application.storage.read_session() as session:
        items = find_project(session, "cited").items
        kept = {each.method: restore_explanation(each) for each in items[0].explanations}
    (again,) = expound.attribute(chatting(), [CHAT], "occlusion", unit="source")
    assert np.allclose(kept["occlusion"].scores, again.scores, atol=1e-6)
    assert (kept["occlusion"].exchange, kept["occlusion"].units) == (again.exchange, again.units)
    assert items[0].content["prediction"] == CHAT["response"]


def test_annotators_rank_explanations_of_an_answer_blind(study):
    made, token = study
    client = annotator(made, token)
    for place in (1, 2):
        page = client.get(f"/annotate/{place}")
        text = unescape(page.text)
        assert "The model's answer" in text
        assert any(row["response"].strip() in text for row in (CHAT, OTHER))
        assert "what is small ?" in text
        assert not any(method in text for method in METHODS)
        assert not re.search(r'class="[un]\d', text)
        assert letters(page) == ["A", "B", "C"]
        assert rank(client, place, {"A": 1, "B": 2, "C": 3}).status_code == 200
    with made.application.storage.read_session() as session:
        found = find_project(session, "cited")
        assert len(load_answers(session, found)) == 2
        assert {rating.method for rating in compute_findings(session, found).ratings} == set(METHODS)


def test_answers_are_ranked_only_and_by_units_of_one_size(full_site, model, study_items):
    with (
        full_site.application.storage.write_session() as session,
        pytest.raises(ExpoundError, match="choose the kind rank"),
    ):
        create_project(session, "guessed", study_items, "simulate")
    mixed = make_items(
        [(unit, item) for unit in ("source", "word") for item in expound.attribute(model, [CHAT], "random", unit=unit)]
    )
    with (
        full_site.application.storage.write_session() as session,
        pytest.raises(ExpoundError, match=r"\(source, word\)"),
    ):
        create_project(session, "mixed", mixed)


KNOWN = (
    "{text: 'When does the shop open?', evidence: [letter], prediction: It opens at nine., feedback: See the letter., "
    "sources: {letter: The shop opens at nine., memo: The lake is cold., list: Two boats.}}"
)


@pytest.mark.parametrize("good", [True, False])
def test_planted_checks_are_answers_with_sources_too(full_site, study_items, good):
    known = {"training": f"[{KNOWN}]", "instructions": f"{{example: {KNOWN}}}", "attention": f"{{items: [{KNOWN}]}}"}
    text = protocol(main="{items: 2, overlap: 1, screen: 3}", **known)
    with full_site.application.storage.write_session() as session:
        create_project(session, "films", study_items, protocol=text)
    client, _ = follow_link(full_site, 1)
    step(client, "consent", agree=["0", "1"])
    page = unescape(step(client, "screening", english="0").text)
    assert all(told in page for told in ("The shop opens at nine.", "It opens at nine.", "When does the shop open?"))
    assert re.search(r'class="p8">letter</span>', page)
    step(client, "instructions")
    training = client.get("/annotate")
    assert "It opens at nine." in training.text
    right = by_source(training)
    assert sorted(right.values()) == [1, 2, 2]
    assert "That is not the expected answer" in post(client, training, dict.fromkeys(right, 1)).text
    step(client, "comprehension", q0="1")
    met = 0
    while "explanation-A" in (page := client.get("/annotate")).text:
        check = "When does the shop open?" in page.text
        met += check
        post(client, page, by_source(page) if check and good else dict(zip("ABC", "111", strict=True)))
    assert met == 1
    with full_site.application.storage.read_session() as session:
        (person,) = find_project(session, "films").annotators
        (check,) = [answer for answer in person.answers if answer.item.role == "check"]
        assert has_passed("rank", check.item, check.content) is good


def by_source(page):
    """Ranks the explanation that shades the letter first, and all others second."""
    sections = re.findall(r'<section class="card explanation.*?</section>', page.text, re.DOTALL)
    return {
        re.search(r"explanation-(\w+)", each)[1]: 1 if re.search(r'class="p\d">letter<', each) else 2
        for each in sections
    }


def post(client, page, ranks):
    """Sends the form of a ranking page, and returns the next page."""
    address = unescape(re.search(r'<form method="post" action="([^"]*)"', page.text)[1])
    fields = {f"rank-{letter}": str(rank) for letter, rank in ranks.items()}
    return client.post(address, data={"csrf": csrf(page), "phase": "", "seconds": "9", "confidence": "4"} | fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "{items: [" + KNOWN.replace("[letter]", "[paper]") + "]}"}, "evidence that names some of them"),
        (
            {"attention": "{items: [" + KNOWN + "]}", "kind": "simulate", "training": "[]"},
            "sources belong to generated answers",
        ),
    ],
)
def test_inconsistent_planted_sources_are_refused(changes, message):
    with pytest.raises(ExpoundError, match=message):
        parse_protocol(protocol(**changes))


def test_a_study_of_saved_explanations_by_the_command_line(create, model, tmp_path):
    for method in METHODS:
        expound.attribute(model, [CHAT, OTHER], method, unit="source").save(tmp_path / method)
    folders = [part for method in METHODS for part in ("--result", str(tmp_path / method))]
    create("notes", *folders)
    with Storage(f"sqlite:///{tmp_path}/s.db").read_session() as session:
        kept = {each.method: restore_explanation(each) for each in find_project(session, "notes").items[1].explanations}
        assert (set(kept), len(find_project(session, "notes").items)) == (set(METHODS), 2)
        (again,) = expound.attribute(model, [OTHER], "occlusion", unit="source")
        assert np.allclose(kept["occlusion"].scores, again.scores, atol=1e-6)
    with pytest.raises(ExpoundError, match="two saved explanations by occlusion"):
        create("twice", *folders[:2], *folders[:2])


def test_saved_explanations_of_other_texts_are_refused(model):
    one, other = (expound.attribute(model, [row], "occlusion", unit="source")[0] for row in (CHAT, OTHER))
    with pytest.raises(ExpoundError, match="two different texts"):
        select_saved_items([one, replace(other, method="random")], 20)
    again = replace(one, params={"perturbation": "other"})
    assert list(select_saved_items([one, again], 20)[0].explanations) == ["occlusion", "occlusion 2"]


@pytest.mark.browser
def test_an_answers_page_is_open_to_everybody_on_a_small_phone(open_page, study):
    page = open_page(f"/join/{study[1]}", size=NARROW)
    for role in ("button", "link"):
        with page.expect_navigation():
            page.get_by_role(role, name="Begin").click()
    assert page.locator(".explanation .sources dt").first.inner_text().startswith(("doc 1", "a"))
    assert fits(page)
    assert find_small_targets(page) == []
    assert violations_in_both_themes(page) == []
