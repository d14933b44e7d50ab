"""People mark whole sentences in Chromium: by pointer, by keys, on a phone; and what they mark is training data."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import expound
from access import violations_in_both_themes
from browsing import NARROW, fits, tab_to
from expound_people.items import StudyItem
from expound_people.projects import create_project, find_project
from expound_people.results import compute_findings, load_answers
from scripted import find_small_targets

pytestmark = pytest.mark.browser
TEXT = "It rained all day. The film was dull, and far too long for us!\nNobody laughed. A second line ends it."
SENTENCES = [
    "It rained all day.",
    "The film was dull, and far too long for us!",
    "Nobody laughed.",
    "A second line ends it.",
]
PROTOCOL = """
title: Sentences
kind: highlight
consent: {text: We study reasons., agree: [I take part.]}
attention: {items: [{text: "Well. It is dull! So.", evidence: [dull], prediction: bad}]}
main: {unit: sentence}
thanks: Thank you.
"""


@pytest.fixture
def study(full_site):
    with full_site.application.storage.write_session() as session:
        create_project(session, "lines", [StudyItem((TEXT,), label="bad")], protocol=PROTOCOL)
    return full_site


def open_first_example(open_page, **options):
    """Takes part up to the first example, and returns its page."""
    page = open_page("/take/lines", **options)
    for name in ("Begin", "I agree", "I have read"):
        if name == "I agree":
            page.get_by_label("I take part.").check()
        with page.expect_navigation():
            page.get_by_role("button", name=name).click()
    expect(page.get_by_role("heading", name="Example 1 of 2")).to_be_visible()
    return page


def send_marks(page):
    with page.expect_navigation():
        page.get_by_role("button", name="Save and continue").click()


def boxes(page):
    return page.get_by_role("checkbox").evaluate_all("found => found.map(one => one.closest('label').textContent)")


def test_sentences_are_marked_with_keys_pointer_and_finger_and_are_read_by_training(open_page, study):
    page = open_first_example(open_page, size=NARROW)
    assert fits(page)
    assert find_small_targets(page) == []
    assert violations_in_both_themes(page) == []
    for _ in range(2):
        if boxes(page) == SENTENCES:
            tab_to(page, "value", "1")
            page.keyboard.press("Space")
            expect(page.get_by_role("checkbox", name=SENTENCES[1])).to_be_checked()
            page.get_by_text(SENTENCES[2]).click()
            page.get_by_text(SENTENCES[0]).click()
            page.get_by_text(SENTENCES[0]).click()
            expect(page.get_by_role("checkbox", name=SENTENCES[0])).not_to_be_checked()
        else:
            assert boxes(page) == ["Well.", "It is dull!", "So."]
            page.get_by_text("It is dull!").click()
        send_marks(page)
    expect(page.get_by_text("Thank you.")).to_be_visible()
    with study.application.storage.read_session() as session:
        found = find_project(session, "lines")
        (said,) = load_answers(session, found)
        assert [TEXT[start:end] for _, start, end in said.content["marks"]] == ["\n".join(SENTENCES[1:3])]
        assert compute_findings(session, found).answers == 1
    path = study.application.storage.engine.url.database
    data = expound.load_data(f"study:{path}?name=lines", "all")
    assert [TEXT[start:end] for start, end in data["rationale"][0]] == ["\n".join(SENTENCES[1:3])]
