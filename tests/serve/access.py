"""Checks of accessibility by axe-core: roles, names, keyboard, and contrast, in the light and in the dark."""

from __future__ import annotations

from importlib.resources import files

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page, rules=RULES):
    """The violations that axe-core finds: each rule with its elements."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate("rules => axe.run({runOnly: rules})", rules)
    return [(each["id"], [node["html"][:120] for node in each["nodes"]][:3]) for each in found["violations"]]


def violations_in_both_themes(page):
    """All violations in the light theme, and those of contrast in the dark one."""
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    return found + violations(page, ["color-contrast"])
