"""What a person sees on a desktop and on a phone: no text cut off, no word broken, and a legend for the colors."""

from __future__ import annotations

import pytest

import expound
from browsing import DESKTOP, PHONE, fits, served, visitor
from expound.serve import Site
from expound.serve.explore.service import Explorer
from sites import TOKEN

pytestmark = pytest.mark.browser
SIZES = {"desktop": DESKTOP, "phone": PHONE}
BROKEN = """() => {
  const broken = [];
  for (const part of document.querySelectorAll("h1, h2, h3, th, td, button, .chips span, svg text, .legend li")) {
    if (part.closest(".meta")) continue;
    const walk = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      for (const found of node.data.matchAll(/[^\\s…]+/g)) {
        const range = document.createRange();
        range.setStart(node, found.index);
        range.setEnd(node, found.index + found[0].length);
        const tops = new Set([...range.getClientRects()].filter((box) => box.width).map((box) => Math.round(box.top)));
        if (tops.size > 1) broken.push(found[0]);
      }
    }
  }
  return broken;
}"""
CUT = """() => [...document.querySelectorAll("table.sortable td, table.sortable th")].filter((cell) => {
  const box = cell.getBoundingClientRect(), frame = cell.closest(".scroll").getBoundingClientRect();
  return box.right > frame.right + 1 || cell.scrollWidth > cell.clientWidth + 1;
}).length"""


@pytest.fixture(scope="module")
def address(model_folder):
    """A site with the explorer."""
    rows = [{"text": "a moving film about a small town"}]
    explorer = Explorer({"tiny": expound.load(model_folder, device="cpu")}, examples=rows)
    with served(Site(TOKEN, explorer)) as found:
        yield found


@pytest.fixture
def open_page(browser, address):
    with visitor(browser, address) as found:
        yield found


@pytest.fixture(params=SIZES)
def size(request):
    return request.param


def save_screenshot(page, pictures, name, size):
    page.screenshot(path=pictures / f"{name}-{size}.png", full_page=True)


def background(page, selector):
    return page.locator(selector).first.evaluate("part => getComputedStyle(part).backgroundColor")


@pytest.fixture
def report(browser, result, size):
    page = browser.new_page(viewport=SIZES[size])
    page.goto((result / "report.html").as_uri())
    yield page
    page.close()


def test_the_report_fits_and_breaks_no_word(report, pictures, size):
    save_screenshot(report, pictures, "report", size)
    assert fits(report)
    assert report.evaluate(BROKEN) == []
    assert report.evaluate(CUT) == 0


def test_the_report_is_short_and_its_examples_unfold(report, size):
    assert report.evaluate("document.documentElement.scrollHeight") < {"desktop": 9_000, "phone": 12_000}[size]
    shown = report.locator("#examples .views")
    assert shown.count() > 1
    assert sum(each.is_visible() for each in shown.all()) == (size == "desktop")
    report.locator("#examples summary").nth(1).click()
    assert shown.nth(1).is_visible()


def test_the_reports_numbers_are_there_on_a_phone(report, size):
    row = report.locator("table.sortable tbody tr").first
    assert row.locator("td").first.is_visible()
    assert row.locator(".interval").first.is_visible()
    if size == "phone":
        label = row.locator("td").first.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert label.strip('"').startswith("Comprehensiveness (AOPC)")


def test_few_of_twelve_curves_stand_out_and_any_can_be_brought_out(report):
    chart = report.locator(".charts figure").first
    shown = chart.locator("[data-line]:not(.off)")
    assert chart.locator("[data-line]").count() == 12
    before = shown.count()
    assert 2 <= before <= 5
    assert "random" in shown.evaluate_all("lines => lines.map((line) => line.dataset.line)")
    hidden = chart.locator("[data-pick][aria-pressed=false]").first
    hidden.click()
    assert shown.count() == before + 1
    places = shown.locator(".direct").evaluate_all("labels => labels.map((label) => Number(label.getAttribute('y')))")
    assert all(abs(one - other) >= 13.9 for at, one in enumerate(places) for other in places[:at])


def test_random_is_grey_and_unsigned_methods_have_one_hue(report):
    color = report.locator(".charts figure [data-line=random] .line").first.evaluate(
        "line => getComputedStyle(line).stroke.match(/\\d+/g).map(Number)"
    )
    assert max(color) - min(color) < 30
    grounds = report.locator("[data-method=saliency] .text span[title]").evaluate_all(
        "words => words.map((word) => word.className.trim())"
    )
    assert grounds
    assert all(not ground or ground.startswith("u") for ground in grounds)


def test_the_legend_has_the_colors_it_speaks_of(report):
    for letter in "npu":
        assert background(report, f".key .{letter}8") != "rgba(0, 0, 0, 0)"
    assert report.locator(".key .gold").count() in (0, 1)


def test_the_explorer_begins_with_the_best_and_a_second_look(open_page, pictures, size):
    page = open_page("/explore?text=a+moving+film+about+a+small+town", admin=True, size=SIZES[size])
    page.locator("article[data-method=occlusion]:not(.waiting)").wait_for()
    page.locator("article[data-method=decompx_linear]:not(.waiting)").wait_for()
    save_screenshot(page, pictures, "explore", size)
    assert page.locator("#answers article h3").all_inner_texts() == ["Linear DecompX", "Occlusion"]
    assert fits(page)
    assert page.evaluate(BROKEN) == []
