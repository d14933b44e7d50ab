"""Results, browsed in Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import expound
from browsing import PHONE, fits, served, visitor
from expound.explainers.registry import make_titles
from sites import METHODS, TEXTS, model, site

TITLES = make_titles(METHODS)
pytestmark = pytest.mark.browser


@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_a_result_is_sorted_filtered_and_followed_to_an_example(open_page, size):
    page = open_page("/browse", admin=True, **({"size": size} if size else {}))
    page.get_by_role("link", name="reviews").click()
    page.wait_for_url("**/browse/reviews")
    assert fits(page)
    rows = page.locator("table.sortable tbody th")
    column = page.get_by_role("button", name="Comprehensiveness (AOPC)")
    column.click()
    best_first = rows.all_inner_texts()
    expect(page.locator("th[aria-sort=descending]")).to_have_count(1)
    column.click()
    assert rows.all_inner_texts() == best_first[::-1]
    assert sorted(best_first) == sorted(TITLES.values())
    page.get_by_label("Method", exact=True).select_option("saliency")
    page.get_by_label("Contains").fill("packages")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("1 example, as Saliency explains them.")).to_be_visible()
    expect(page.locator(".snippet")).to_have_text(TEXTS[2])
    page.locator("tbody td a").click()
    page.wait_for_url("**/examples/2?*")
    assert page.locator("article h2").all_inner_texts() == [TITLES[method] for method in METHODS]
    page.get_by_role("article").filter(has_text="GlobEnc").get_by_text("Layer by layer").click()
    expect(page.get_by_role("region", name="GlobEnc, layers by tokens")).to_be_visible()
    assert fits(page)


def test_worst_best_and_most_disputed_examples_are_one_click_away(open_page):
    page = open_page("/browse/reviews?method=saliency", admin=True)

    def column(place):
        return [float(text) for text in page.locator(f".table tbody td:nth-child({place})").all_inner_texts()]

    page.get_by_role("link", name="Worst of Saliency").click()
    page.wait_for_url("**order=ascending*")
    worst = column(5)
    assert worst == sorted(worst)
    page.get_by_role("link", name="Best of Saliency").click()
    page.wait_for_url("**order=descending*")
    assert column(5) == worst[::-1]
    page.get_by_role("link", name="Most disagreement").click()
    page.wait_for_url("**sort=disagreement*")
    assert column(6) == sorted(column(6), reverse=True)


def test_a_long_name_of_a_method_fits_a_phone(browser, tmp_path):
    name = "parameterised_attention:/somewhere/far/away/in/a/folder/with/a/long/name/seed0/teacher_explainer"
    expound.compare(model(), TEXTS[:1], {name: "saliency"}, ["aopc_sufficiency"], output_dir=tmp_path / "long")
    made = site(tmp_path, results=[tmp_path / "long"])
    with served(made) as address, visitor(browser, address) as open_page:
        for path in ("/browse/long", "/browse/long/examples/0"):
            assert fits(open_page(path, admin=True, size={"width": 360, "height": 740}))
    made.studies.close()


def test_the_report_opens_in_its_own_sandbox(open_page):
    page = open_page("/browse/reviews", admin=True)
    page.get_by_role("link", name="Written report").click()
    page.wait_for_url("**/report")
    page.get_by_role("button", name="Comprehensiveness (AOPC)").click()
    expect(page.locator("th[aria-sort]")).to_have_count(1)
    assert page.evaluate("origin") == "null"
