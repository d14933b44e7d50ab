"""Generated answers in a study: people see what was asked, the answer, and its sources as each method shades them."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest

import exegete
from browsing import NARROW, fits
from chats import CHAT, SOURCES, chatting
from exegete.errors import ExegeteError
from exegete.web.human_study.blind import unnamed
from exegete.web.human_study.cases import cases, explained, restored
from exegete.web.human_study.projects import create, find, invite
from exegete.web.human_study.results import answers_of, findings
from exegete.web.human_study.sources import shown_sources
from scripted import too_small
from sites import annotator, letters, rank
from test_browser_access import both

METHODS = ["occlusion", "input_x_gradient", "random"]
OTHER = CHAT | {"sources": {"a": "the cat is here .", "b": "a film", "c": "women laugh"}, "response": " it is long"}


@pytest.fixture(scope="module")
def model():
    return chatting()


@pytest.fixture(scope="module")
def answered(model):
    """The answers as every method explains them."""
    return explained(model, [CHAT, OTHER], METHODS)


@pytest.fixture
def study(whole, answered):
    with whole.studies.writing() as session:
        made = create(session, "cited", answered)
        token = invite(session, made, ["Ada"])["Ada"]
    return whole, token


def shades(item, rule):
    """The shade of each source by arithmetic alone: sums over rows and units, the rule, eighths of the largest."""
    by_unit = rule(item.scores.astype(np.float64).sum(0))
    totals = [sum(by_unit[n] for n, span in enumerate(item.unit_spans) if span[0] == text)
              for text, own in enumerate(item.exchange.is_source) if own]  # fmt: skip
    return [round(8 * total / max(map(abs, totals))) if any(totals) else 0 for total in totals]


@pytest.mark.parametrize("unit", ["source", "word"])
@pytest.mark.parametrize(
    ("show", "rule"), [("positive", lambda x: x.clip(min=0)), ("absolute", abs), ("signed", lambda x: x)]
)
def test_sources_have_the_shade_of_their_scores_under_the_declared_rule(model, unit, show, rule):
    for method in METHODS:
        (item,) = exegete.attribute(model, [CHAT], method, unit=unit)
        found = shown_sources(unnamed(item, "A", show))
        assert [source.name for source in found] == list(SOURCES)
        assert ["".join(text for text, _ in source.pieces).strip() for source in found] == [
            text.strip() for text in SOURCES.values()
        ]
        assert [source.level for source in found] == shades(item, rule)
        if show != "signed":
            assert all(level >= 0 for source in found for _, level in source.pieces)


def test_saved_explanations_are_cases_too(model, answered, tmp_path):
    for method in METHODS:
        exegete.attribute(model, [CHAT, OTHER], method, unit="source").save(tmp_path / method)
    saved = [(name, item) for name in METHODS for item in exegete.Attributions.load(tmp_path / name)]
    assert cases(saved) == answered


def test_what_is_kept_is_the_attribution_itself(study):
    made, _ = study
    with made.studies.reading() as session:
        items = find(session, "cited").items
        kept = {each.method: restored(each) for each in items[0].explanations}
    (again,) = exegete.attribute(chatting(), [CHAT], "occlusion", unit="source")
    assert np.allclose(kept["occlusion"].scores, again.scores, atol=1e-6)
    assert (kept["occlusion"].exchange, kept["occlusion"].units) == (again.exchange, again.units)
    assert items[0].content["prediction"] == CHAT["response"]


def test_people_rank_the_sources_of_an_answer_without_a_method_in_sight(study):
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
    with made.studies.reading() as session:
        found = find(session, "cited")
        assert len(answers_of(session, found)) == 2
        assert {rating.method for rating in findings(session, found).ratings} == set(METHODS)


def test_answers_are_ranked_only_and_by_units_of_one_size(whole, model, answered):
    with whole.studies.writing() as session, pytest.raises(ExegeteError, match="choose the kind rank"):
        create(session, "guessed", answered, "simulate")
    mixed = cases(
        [(unit, item) for unit in ("source", "word") for item in exegete.attribute(model, [CHAT], "random", unit=unit)]
    )
    with whole.studies.writing() as session, pytest.raises(ExegeteError, match=r"\(source, word\)"):
        create(session, "mixed", mixed)


@pytest.mark.browser
def test_an_answers_page_is_open_to_everybody_on_a_small_phone(opened, study):
    page = opened(f"/join/{study[1]}", size=NARROW)
    for role in ("button", "link"):
        with page.expect_navigation():
            page.get_by_role(role, name="Begin").click()
    assert page.locator(".explanation .sources dt").first.inner_text().startswith(("doc 1", "a"))
    assert fits(page)
    assert too_small(page) == []
    assert both(page) == []
