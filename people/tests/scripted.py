"""Scripted people in Chromium: each looks at the page, does what it asks, and records the answers."""

from __future__ import annotations

import numpy as np
from playwright.sync_api import Error, expect

from participants import METHODS

STRENGTHS = {"lime_like": 1.2, "grad_like": 0.0, "noise_like": -1.2}
BY_SIZE = {size: name for name, size in METHODS.items()}
COLoRED = """
sections => sections.map(one => [
  one.querySelector('h2').id.replace('explanation-', ''),
  [...one.querySelectorAll('span')].filter(span => /^p[0-9]/.test(span.className)).map(span => span.textContent.trim()),
])
"""
TARGETS = "a.button, button, summary, .brand, .guess label, .segmented label, .tap, .order li"
SMALL = """
found => found.filter(each => each.getClientRects().length && each.getBoundingClientRect().height < 43.5)
  .map(each => each.outerHTML.slice(0, 90))
"""


class ScriptedPerson:
    """A person who takes part; `ranked` has their ranks by the text of the example and the method."""

    def __init__(self, context, link, number, *, careless=False):
        self.context, self.link, self.careless = context, link, careless
        self.generator = np.random.default_rng([7, number])
        self.ranked, self.check_page = {}, lambda page: None
        self.page = context.new_page()
        self.page.goto(link)
        self.go(lambda: self.page.get_by_role("button", name="Begin").click())

    def go(self, action):
        """Calls an action that loads a page, and waits for that page."""
        with self.page.expect_navigation():
            action()
        expect(self.page.locator("h1")).to_be_visible()

    def form_address(self):
        """The address of the page's form; empty if there is no form."""
        form = self.page.locator("form#answer")
        return form.get_attribute("action").removeprefix("/annotate/") if form.count() else ""

    def leave_and_return(self):
        """Closes the window and follows the link again, on the same device."""
        self.page.close()
        self.page = self.context.new_page()
        self.page.goto(self.link)
        expect(self.page.locator("h1")).to_be_visible()

    def withdraw(self):
        self.page.locator("summary").click()
        self.go(lambda: self.page.get_by_role("button", name="Withdraw").click())

    def act(self, disturb=None):
        """Fills in the page and sends it; returns whether there is more. `disturb` is called right after sending."""
        self.check_page(self.page)
        address = self.form_address()
        if not address:
            more = self.page.get_by_role("link", name="Continue", exact=True)
            if more.count():
                self.go(more.click)
            return bool(more.count()) if self.form_address() == "" else True
        self.fill(address)
        try:
            with self.page.expect_navigation():
                self.page.locator("form#answer button.main").click()
                if disturb is not None:
                    disturb()
        except Error:  # the server was gone when the next page was asked for
            if disturb is None:
                raise
            self.page.goto("/annotate")
        expect(self.page.locator("h1")).to_be_visible()
        return True

    def fill(self, address):
        page = self.page
        if address.startswith("step/"):
            for box in page.locator("input[type=checkbox]").all():
                box.check()
            wanted = page.locator("label:has-text('the best'), label:has-text('fluent')")
            for label in wanted.all():
                label.click()
            for group in page.locator("fieldset.statement").all():
                group.get_by_text("4", exact=True).click()
            return
        shown = dict(page.locator(".explanation").evaluate_all(COLoRED))
        ranks = self.ranks(address, shown)
        for letter, rank in ranks.items():
            page.get_by_role("group", name=f"Rank of {letter}").get_by_text(str(rank), exact=True).click()
        page.get_by_role("group", name="How sure").get_by_text("4").first.click()
        text = page.locator("section[aria-label='The example'] .text").inner_text().strip()
        if text.startswith("example"):
            self.ranked[text] = {BY_SIZE[len(words)]: ranks[letter] for letter, words in shown.items()}

    def ranks(self, address, shown):
        """Ranks by letter: known evidence first, else by planted strengths with noise, as in a Plackett–Luce model."""
        if self.careless and not address.startswith("training"):
            return dict.fromkeys(shown, 1)
        known = {"great", "wonderful", "dull"}
        value = {
            letter: 9.0 if known & set(words) else STRENGTHS.get(BY_SIZE.get(len(words)), -9) + self.generator.gumbel()
            for letter, words in shown.items()
        }
        if any(known & set(words) for words in shown.values()):
            value = {letter: float(bool(known & set(words))) for letter, words in shown.items()}
        return {letter: 1 + sum(other > mine for other in value.values()) for letter, mine in value.items()}


def find_small_targets(page):
    """The elements that can be pressed and are lower than 44 pixels."""
    return page.locator(TARGETS).evaluate_all(SMALL)
