"""People take part by a protocol in Chromium, from consent to the completion code."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from browsing import DESKTOP, NARROW, fits
from exegete.web.human_study.analysis.bradley_terry import count_wins, fit_bradley_terry
from exegete.web.human_study.exports import run_export
from exegete.web.human_study.participation import load_participations
from exegete.web.human_study.projects import create_project, find_project, invite_annotators
from exegete.web.human_study.protocol.file import KnownPart
from exegete.web.human_study.protocol.known_answers import make_planted_example
from exegete.web.human_study.results import compute_findings, load_answers
from exegete.web.human_study.storage import Storage
from participants import METHODS, link, planned, protocol
from scripted import STRENGTHS, Scripted, too_small
from serving import Killable
from sites import project
from test_browser_access import both

pytestmark = pytest.mark.browser


def said_in(storage):
    """What each person ranked, by the text, as the export of everything tells it; and the people by status."""
    with storage.read_session() as session:
        study = find_project(session, "films")
        raw = json.loads(run_export(session, study, "raw.json")[1])
        texts = {item.number: item.content["texts"][0] for item in study.items}
        flagged = {each.person.name for each in load_participations(session, study) if each.quality.is_careless}
    said, answers = {}, 0
    for person in raw["people"]:
        mine = [each for each in person["answers"] if each["role"] == ""]
        answers += len(mine)
        if person["source"]:
            ranks = {texts[each["example"]]: each["content"]["ranks"] for each in mine}
            assert len(ranks) == len(mine), "an example was answered twice"
            said[person["source"]["PROLIFIC_PID"]] = (person["annotator"] in flagged, person["status"], ranks)
    return said, answers


def test_people_take_part_from_the_link_to_the_code_and_everything_is_kept(browser, address, whole):
    planned(whole, protocol(main="{items: 3, screen: 3, confidence: true}", recruiting="""
  platform: prolific
  complete: {code: C123, redirect: "https://app.prolific.com/submissions/complete?cc=C123"}"""))  # fmt: skip
    people, seen = {}, set()

    def looked(page):
        """Each page of the protocol once, on a phone: its width, its targets, axe-core."""
        kind = page.locator("h1").inner_text().split()[0]
        assert fits(page)
        assert too_small(page) == []
        if kind not in seen:
            seen.add(kind)
            assert both(page) == []
            page.emulate_media(color_scheme="light")

    for number in range(5):
        context = browser.new_context(base_url=address, viewport=DESKTOP if number % 2 else NARROW)
        person = people[f"p{number}"] = Scripted(context, link(number), number, careless=number == 3)
        person.looked = looked if number == 0 else person.looked
        for step in range(30):
            if number == 1 and step == 6:
                person.leave_and_return()
            if number == 2 and step == 7:
                person.withdraw()
                expect(person.page.get_by_role("status")).to_contain_text("You have withdrawn")
                break
            if not person.act():
                expect(person.page.get_by_text("C123", exact=True)).to_be_visible()
                break
        context.close()
    assert {"Consent", "Instructions", "Practice", "Example", "Thank"} <= seen
    said, _ = said_in(whole.studies)
    assert set(said) == {"p0", "p1", "p3", "p4"}
    for name, (flagged, status, ranks) in said.items():
        assert (flagged, status, ranks) == (name == "p3", "complete", people[name].said)
        assert len(ranks) == 3


def test_screens_of_four_explanations_fit_a_small_phone(opened, whole):
    methods = ["saliency", "input_x_gradient", "attention_all", "globenc", "gradient_shap", "random", "occlusion"]
    page = opened(f"/join/{project(whole, methods=methods)['Ada']}", size=NARROW)
    for role in ("button", "link"):
        with page.expect_navigation():
            page.get_by_role(role, name="Begin").click()
    expect(page.locator(".explanation")).to_have_count(4)
    assert fits(page)
    assert too_small(page) == []


@pytest.mark.parametrize("kind", ["rank", "simulate"])
def test_pictures_are_next_to_their_maps_on_a_small_phone(opened, whole, kind):
    case, shown = make_planted_example(KnownPart(square=(3, 5), prediction="a red square"))
    found = replace(case, explanations={"one": shown, "two": shown})
    with whole.studies.write_session() as session:
        made = create_project(session, "squares", [found], kind, labels=["a red square", "none"])
        token = invite_annotators(session, made, ["Ada"])["Ada"]
    page = opened(f"/join/{token}", size=NARROW)
    for role in ("button", "link"):
        with page.expect_navigation():
            page.get_by_role(role, name="Begin").click()
    if kind == "simulate":
        page.get_by_label("none").check()
        with page.expect_navigation():
            page.get_by_role("button", name="Save and continue").click()
    pictures = page.locator(".beside").first.locator(".picture")
    left, right = (pictures.nth(place).bounding_box() for place in (0, 1))
    assert left["x"] + left["width"] <= right["x"]
    assert (left["y"], left["width"]) == (right["y"], right["width"])
    expect(page.get_by_role("img", name="The picture with its important parts coloured").first).to_be_visible()
    assert fits(page)
    assert both(page) == []


@pytest.mark.crowd
@pytest.mark.timeout(3000)
def test_sixty_people_and_a_server_that_is_killed_twice(browser, url):
    count = int(os.environ.get("EXEGETE_CROWD", "60"))
    storage = Storage(url)

    class Made:
        studies = storage

    planned(
        Made, protocol(main="{items: 5, screen: 3, confidence: true}", recruiting="{platform: prolific}"), examples=12
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Killable(url, port)
    careless, returning, leaving = {3, 17, 31}, {5, 12, 25, 38, 44}, 8
    kills = {(count // 3, 1), (2 * count // 3, 8)}  # in the screening, and in the main part
    people, killed = {}, []

    def killed_and_started():
        server.kill()
        server.start()
        killed.append(True)

    try:
        for number in range(count):
            size = DESKTOP if number % 2 else NARROW
            context = browser.new_context(base_url=server.address, viewport=size)
            context.set_default_timeout(60_000)
            person = people[f"p{number}"] = Scripted(context, link(number), number, careless=number in careless)
            for step in range(60):
                if number in returning and step == 6:
                    person.leave_and_return()
                if number == leaving and step == 7:
                    person.withdraw()
                    break
                if not person.act(killed_and_started if (number, step) in kills else None):
                    expect(person.page.get_by_text("Thank you for taking part.")).to_be_visible()
                    break
            context.close()
    finally:
        server.end()
    assert len(killed) == 2
    said, answers = said_in(storage)
    assert set(said) == set(people) - {f"p{leaving}"}
    assert answers == 5 * len(said)
    for name, (flagged, status, ranks) in said.items():
        assert (status, ranks) == ("complete", people[name].said), name
        assert flagged == (int(name[1:]) in careless), name
    with storage.read_session() as session:
        study = find_project(session, "films")
        out = [each.person.id for each in load_participations(session, study) if not each.is_included]
        found = compute_findings(session, study, out)
        kept = load_answers(session, study, out)
    assert [row.method for row in found.strengths] == list(METHODS)
    assert [row.method for row in found.ratings] == list(METHODS)
    fitted = fit_bradley_terry(
        count_wins([each.content["ranks"] for each in kept], [each.annotator_id for each in kept], list(METHODS))
    )
    for one, other in ((0, 1), (1, 2)):
        _, low, high = fitted.interval(np.eye(3)[one] - np.eye(3)[other])
        assert low < STRENGTHS[list(METHODS)[one]] - STRENGTHS[list(METHODS)[other]] < high
        assert low > 0
    storage.close()
