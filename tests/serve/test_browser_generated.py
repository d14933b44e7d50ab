"""The page of a generated answer: pointing at a part of it lights up the prompt."""

from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from explainers.test_generated_attribution import explanation
from expound import Explanations

pytestmark = pytest.mark.browser


def shades(page):
    return page.locator("[data-unit]").evaluate_all("pieces => pieces.map((piece) => piece.className)")


def test_pointing_at_an_answer_lights_up_the_prompt(browser, tmp_path):
    Explanations([explanation(), explanation(signed=False)]).to_html(tmp_path / "page.html")
    page = browser.new_page()
    troubles = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    together, first, second = ["p8", "p3", "p2"], ["p8", "n3", "p1"], ["", "p8", "p1"]
    assert shades(page)[:3] == together
    parts = page.locator("[data-row]")
    parts.nth(0).hover()
    assert shades(page)[:3] == first
    expect(page.locator("[role=status]").nth(0)).to_have_text("It is so.: one +3, three +0.5, two -1")
    parts.nth(1).click()
    page.mouse.move(0, 0)
    assert shades(page)[:3] == second, "a click keeps it"
    expect(parts.nth(1)).to_have_attribute("aria-pressed", "true")
    parts.nth(0).focus()
    assert shades(page)[:3] == first
    page.keyboard.press("Enter")
    parts.nth(2).focus()
    assert shades(page)[:3] == first
    assert shades(page)[3:] == ["u8", "n3", "u1"], "another example's pieces are its own"
    assert not troubles
    page.close()


def test_pointing_at_a_part_shows_what_it_took_from_those_before(browser, tmp_path):
    item = explanation()
    prefix = np.full((2, len(item.exchange.tokens)), np.nan, np.float32)
    prefix[0, 0], prefix[1] = 1.5, [-2, 0, 0, 0, *[np.nan] * (len(item.exchange.tokens) - 4)]
    Explanations([replace(item, response_scores=prefix)]).to_html(tmp_path / "page.html")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    parts = page.locator("[data-row]")
    expect(parts.nth(0)).to_have_class("row")
    parts.nth(1).hover()
    expect(parts.nth(0)).to_have_class("row n8")
    expect(parts.nth(1)).to_have_class("row")
    page.mouse.move(0, 0)
    expect(parts.nth(0)).to_have_class("row")
    page.close()
