"""People take part by a protocol in Chromium, from consent to the completion code."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from access import violations_in_both_themes
from browsing import DESKTOP, NARROW, fits
from databases import Killable
from expound_people.analysis.bradley_terry import count_wins, fit_bradley_terry
from expound_people.exports import run_export
from expound_people.participation import load_participations
from expound_people.projects import create_project, find_project, invite_annotators
from expound_people.protocol.file import KnownPart
from expound_people.protocol.known_answers import make_planted_example
from expound_people.results import compute_findings, load_answers
from expound_people.storage import Storage
from forks import find_free_port
from participants import METHODS, create_planted_study, link, protocol
from scripted import STRENGTHS, ScriptedPerson, find_small_targets
from studies import project

pytestmark = pytest.mark.browser


def read_rankings(storage):
    """Each person's flag, status and ranks by text, from the complete export; and the number of answers."""
    with storage.read_session() as session:
        study = find_project(session, "films")
        raw = json.loads(run_export(session, study, "raw.json")[1])
        texts = {item.number: item.content["texts"][0] for item in study.items}
        flagged = {each.person.name for each in load_participations(session, study) if each.quality.is_careless}
    rankings, answers = {}, 0
    for person in raw["people"]:
        mine = [each for each in person["answers"] if each["role"] == ""]
        answers += len(mine)
        if person["source"]:
            ranks = {texts[each["example"]]: each["content"]["ranks"] for each in mine}
            assert len(ranks) == len(mine), "an example was answered twice"
            rankings[person["source"]["PROLIFIC_PID"]] = (person["annotator"] in flagged, person["status"], ranks)
    return rankings, answers


def test_people_take_part_from_the_link_to_the_code_and_everything_is_kept(browser, address, full_site):
    create_planted_study(full_site, protocol(main="{items: 3, screen: 3, confidence: true}", recruiting="""
  platform: prolific
  complete: {code: C123, redirect: "https://app.prolific.com/submissions/complete?cc=C123"}"""))  # fmt: skip
    people, seen = {}, set()

    def check_page(page):
        """Checks each page of the protocol once, on a phone: its width, its targets, and by axe-core."""
        kind = page.locator("h1").inner_text().split()[0]
        assert fits(page)
        assert find_small_targets(page) == []
        if kind not in seen:
            seen.add(kind)
            assert violations_in_both_themes(page) == []
            page.emulate_media(color_scheme="light")

    for number in range(5):
        context = browser.new_context(base_url=address, viewport=DESKTOP if number % 2 else NARROW)
        person = people[f"p{number}"] = ScriptedPerson(context, link(number), number, careless=number == 3)
        person.check_page = check_page if number == 0 else person.check_page
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
    rankings, _ = read_rankings(full_site.application.storage)
    assert set(rankings) == {"p0", "p1", "p3", "p4"}
    for name, (flagged, status, ranks) in rankings.items():
        assert (flagged, status, ranks) == (name == "p3", "complete", people[name].ranked)
        assert len(ranks) == 3


def test_screens_of_four_explanations_fit_a_small_phone(open_page, full_site):
    methods = ["saliency", "input_x_gradient", "attention_all", "globenc", "gradient_shap", "random", "occlusion"]
    page = open_page(f"/join/{project(full_site, methods=methods)['Ada']}", size=NARROW)
    for role in ("button", "link"):
        with page.expect_navigation():
            page.get_by_role(role, name="Begin").click()
    expect(page.locator(".explanation")).to_have_count(4)
    assert fits(page)
    assert find_small_targets(page) == []


@pytest.mark.parametrize("kind", ["rank", "simulate"])
def test_pictures_are_next_to_their_maps_on_a_small_phone(open_page, full_site, kind):
    case, shown = make_planted_example(KnownPart(square=(3, 5), prediction="a red square"))
    found = replace(case, explanations={"one": shown, "two": shown})
    with full_site.application.storage.write_session() as session:
        made = create_project(session, "squares", [found], kind, labels=["a red square", "none"])
        token = invite_annotators(session, made, ["Ada"])["Ada"]
    page = open_page(f"/join/{token}", size=NARROW)
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
    expect(page.get_by_role("img", name="The picture with its important parts colored").first).to_be_visible()
    assert fits(page)
    assert violations_in_both_themes(page) == []


@pytest.mark.crowd
@pytest.mark.timeout(3000)
def test_sixty_people_and_a_server_that_is_killed_twice(browser, url):
    count = int(os.environ.get("EXPOUND_CROWD", "60"))
    storage = Storage(url)

    class StudySite:
        studies = storage

    create_planted_study(
        StudySite,
        protocol(main="{items: 5, screen: 3, confidence: true}", recruiting="{platform: prolific}"),
        examples=12,
    )
    port = find_free_port()
    server = Killable(url, port)
    careless, returning, leaving = {3, 17, 31}, {5, 12, 25, 38, 44}, 8
    kills = {(count // 3, 1), (2 * count // 3, 8)}  # in the screening, and in the main part
    people, killed = {}, []

    def restart_server():
        server.kill()
        server.start()
        killed.append(True)

    try:
        for number in range(count):
            size = DESKTOP if number % 2 else NARROW
            context = browser.new_context(base_url=server.address, viewport=size)
            context.set_default_timeout(60_000)
            person = people[f"p{number}"] = ScriptedPerson(context, link(number), number, careless=number in careless)
            for step in range(60):
                if number in returning and step == 6:
                    person.leave_and_return()
                if number == leaving and step == 7:
                    person.withdraw()
                    break
                if not person.act(restart_server if (number, step) in kills else None):
                    expect(person.page.get_by_text("Thank you for taking part.")).to_be_visible()
                    break
            context.close()
    finally:
        server.end()
    assert len(killed) == 2
    rankings, answers = read_rankings(storage)
    assert set(rankings) == set(people) - {f"p{leaving}"}
    assert answers == 5 * len(rankings)
    for name, (flagged, status, ranks) in rankings.items():
        assert (status, ranks) == ("complete", people[name].ranked), name
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
