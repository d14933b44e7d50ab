"""Every page under axe-core: roles, names, keyboard, and a contrast of 4.5 to 1, in the light and in the dark."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from access import violations, violations_in_both_themes
from browsing import NARROW, fits
from expound_people.items import StudyItem
from expound_people.origin import describe_origin
from expound_people.projects import create_project
from sites import model
from studies import project

pytestmark = pytest.mark.browser
ADMIN = {
    "ask": "/explore",
    "answers": "/explore?text=a+moving+film&pair=it+moves&method=saliency&method=lime&method=attention_all",
    "studies": "/studies",
    "a study": "/studies/first",
    "its results": "/studies/first/results",
    "a study of marks": "/studies/marked",
}


@pytest.mark.parametrize("path", ADMIN.values(), ids=list(ADMIN))
def test_the_admins_pages_are_open_to_everybody(open_page, full_site, path):
    project(full_site)
    if path.endswith("marked"):
        made = StudyItem(("a film",), label="bad", marks={"Ada": ((0, 2, 6),)})
        with full_site.application.storage.write_session() as session:
            create_project(
                session,
                "marked",
                [made],
                "highlight",
                origin=describe_origin({"old": model()}, {}, "csv:x.csv", [made]),
            )
    page = open_page(path, admin=True, reduced_motion="reduce")
    expect(page.locator(".waiting")).to_have_count(0)
    if page.locator("[data-unit]").count() and "explore" in path:
        page.locator("[data-unit]").first.click()
    folds = page.locator("details:not([open]) > summary")
    for _ in range(folds.count()):
        folds.first.click()
    assert violations_in_both_themes(page) == []
    page.set_viewport_size(NARROW)
    assert fits(page)


@pytest.mark.parametrize("kind", ["rank", "highlight", "simulate", "counterfactual"])
def test_the_annotators_pages_are_open_to_everybody(open_page, full_site, kind):
    page = open_page(f"/join/{project(full_site, kind=kind)['Ada']}", size=NARROW)
    # The pages before the first text are the same for all kinds.
    if kind == "rank":
        assert violations_in_both_themes(page) == []
        page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/annotate")
    if kind == "rank":
        assert violations_in_both_themes(page) == []
        page.emulate_media(color_scheme="light")
    page.get_by_role("link", name="Begin").click()
    page.wait_for_url("**/annotate/1")
    page.locator("input[type=radio] + span, input[type=radio], .mark label").first.click()
    assert violations_in_both_themes(page) == []
    assert fits(page)
    if kind in ("simulate", "counterfactual"):
        page.get_by_role("button", name="Save and continue").click()
        expect(page.locator(".words")).to_have_count(1)
        assert violations_in_both_themes(page) == []


def test_the_tool_sees_a_text_that_is_too_faint(open_page):
    page = open_page("/sign-in")
    assert violations_in_both_themes(page) == []
    page.emulate_media(color_scheme="light")
    page.evaluate("document.querySelector('h1').style.color = '#999'")
    assert [rule for rule, _ in violations(page)] == ["color-contrast"]
