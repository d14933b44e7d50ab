"""The explorer, walked in Chromium."""

from __future__ import annotations

import json
import re

import pytest
from PIL import Image
from playwright.sync_api import expect

import expound
from browsing import PHONE, fits, served, tab_to, visitor
from expound.serve.explore.service import Explorer
from expound.serve.explore.tasks import OutputScore
from sites import MARKUP, METHODS, SCRIPT, TEXTS, model, site
from small import shared

pytestmark = pytest.mark.browser
FILM = "/explore?text=a+moving+film+about+a+town&method=saliency&method=input_x_gradient"


def card(page, method):
    found = page.locator(f"article[data-method='{method}']:not(.waiting)")
    expect(found).to_be_visible()
    return found


def explain(page):
    """Presses Explain, and waits for the next page."""
    with page.expect_navigation():
        page.get_by_role("button", name="Explain").click()


def values(page):
    """The values of the bars, once all answers have arrived."""
    expect(page.locator("#bars")).not_to_have_attribute("aria-busy", "true")
    return [float(text) for text in page.locator("#bars .value").all_inner_texts()]


@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_a_text_is_explained_by_the_methods_that_were_chosen(open_page, size):
    page = open_page("/explore", admin=True, **({"size": size} if size else {}))
    assert fits(page)
    page.get_by_label("Text", exact=True).fill(TEXTS[0])
    page.locator(".chips input:checked + span").last.click()
    page.locator(".chips span", has_text=re.compile("^LIME$")).click()
    explain(page)
    chosen = page.locator("#answers article").evaluate_all("cards => cards.map(card => card.dataset.method)")
    assert chosen[-1] == "lime"
    for method in chosen:
        assert card(page, method).locator(".words").inner_text() == TEXTS[0]
    expect(page.locator("#arrived")).to_have_text(f"{len(chosen)} of {len(chosen)} explanations have arrived")
    assert page.locator("#bars .name").first.inner_text() == MARKUP
    assert page.locator("#answers script, #answers b[onclick]").count() == 0
    assert SCRIPT in page.locator("#answers").inner_text()
    assert fits(page)
    before = page.locator("#answers").inner_text()
    with page.expect_navigation():
        page.get_by_role("link", name="Permalink").click()
    for method in chosen:
        card(page, method)
    assert page.locator("#answers").inner_text() == before


def test_words_are_deleted_and_put_back_and_the_prediction_follows(open_page):
    page = open_page(FILM, admin=True)
    whole, words = values(page), card(page, "saliency").locator("[data-unit]")
    expect(page.get_by_role("button", name="Restore all")).to_be_hidden()
    with page.expect_response("**/explore/without") as reply:
        words.get_by_text("film").click()
    expect(page.locator("#removed")).to_have_text("without 1 part")
    expect(page.locator("#bars .was")).to_have_count(3)
    before, without = (
        model().probabilities(model().encode([text]))[0].tolist()
        for text in ("a moving film about a town", "a moving about a town")
    )
    assert max(abs(one - other) for one, other in zip(before, without, strict=True)) > 1e-4
    assert [answer["value"] for answer in reply.value.json()] == pytest.approx(without, abs=1e-6)
    assert values(page) == pytest.approx(without, abs=6e-4)
    assert card(page, "input_x_gradient").locator(".gone").inner_text() == "film"
    page.get_by_role("button", name="Restore all").click()
    expect(page.locator("#removed")).to_have_text("")
    assert values(page) == pytest.approx(whole, abs=1.1e-3)


def test_of_many_labels_those_are_shown_that_are_likely_now(open_page, monkeypatch):
    def answers(_, asked, removed=(), stop=None, write=None):
        likely = 11 if removed else 0
        return [OutputScore(f"label {number}", 0.9 if number == likely else number / 1000) for number in range(12)]

    monkeypatch.setattr(Explorer, "predict", answers)
    page = open_page(FILM, admin=True)
    shown, everything = page.locator("#bars li:visible"), page.get_by_role("button", name="Show all 12 labels")
    names = shown.locator(".name")
    assert names.all_inner_texts() == ["label 0", *(f"label {number}" for number in range(11, 4, -1))]
    card(page, "saliency").locator("[data-unit]").get_by_text("film").click()
    expect(names.first).to_have_text("label 11")
    assert [value.inner_text() for value in shown.locator(".value").all()][:2] == ["0.900", "0.010"]
    expect(shown).to_have_count(8)
    everything.click()
    expect(shown).to_have_count(12)
    expect(everything).to_be_hidden()
    page.get_by_role("button", name="Restore all").click()
    expect(names.first).to_have_text("label 0")
    expect(shown).to_have_count(12)


def test_a_server_that_is_gone_is_said_to_be(open_page):
    page = open_page(FILM, admin=True)
    words = card(page, "saliency").locator("[data-unit]")
    page.evaluate("() => { fetch = () => Promise.reject(new TypeError('gone')) }")
    words.get_by_text("film").click()
    expect(page.locator("#removed")).to_have_text("No answer from the server: the bars are unchanged.")


def test_the_strongest_words_go_first(open_page):
    page = open_page(FILM, admin=True)
    found = card(page, "input_x_gradient")
    scores = found.locator("[data-unit]").evaluate_all(
        "parts => parts.map(part => [part.dataset.score, part.innerText])"
    )
    found.get_by_label("Remove the strongest").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#removed")).to_have_text("without 2 parts")
    best = sorted(scores, key=lambda pair: -float(pair[0]))[:2]
    assert set(found.locator(".gone").all_inner_texts()) == {word for _, word in best}


def test_the_keyboard_alone_asks_walks_over_words_and_deletes(open_page):
    page = open_page("/explore", admin=True)
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press("Enter")
    tab_to(page, "id", "text")
    page.keyboard.type("a moving film")
    tab_to(page, "innerText", "Explain")
    with page.expect_navigation():
        press("Enter")
    expect(page.locator(".waiting")).to_have_count(0)
    tab_to(page, "innerText", "a")
    press("ArrowRight")
    assert re.match(r"moving: -?\d", page.locator("#pointed").inner_text())
    press("Space")
    expect(page.locator("#removed")).to_have_text("without 1 part")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    press("Tab")
    assert page.evaluate("document.activeElement.type") == "range"


def test_hovering_tells_a_words_value_and_tokens_replace_words(open_page):
    page = open_page(FILM.replace("moving", "unbelievable"), admin=True)
    part = card(page, "input_x_gradient").locator("[data-unit]").nth(1)
    part.hover()
    expect(page.locator("#pointed")).to_contain_text("unbelievable: ")
    words = card(page, "saliency").locator("[data-unit]").count()
    page.get_by_label("Unit").select_option("token")
    page.get_by_label("Explain").select_option("good")
    explain(page)
    found = card(page, "saliency")
    assert found.locator("[data-unit]").count() > words
    assert "explains good" in found.inner_text()


def test_exports_are_the_page_the_numbers_and_the_picture(open_page, tmp_path):
    page = open_page(FILM, admin=True)
    card(page, "input_x_gradient")
    for kind in ("HTML", "JSON", "PNG"):
        with page.expect_download() as found:
            page.get_by_role("link", name=f"Export {kind}").click()
        found.value.save_as(tmp_path / kind)
    assert [each["method"] for each in json.loads((tmp_path / "JSON").read_text())] == ["saliency", "input_x_gradient"]
    assert "<span" in (tmp_path / "HTML").read_text()
    assert Image.open(tmp_path / "PNG").width > 300


def test_pictures_come_from_files_and_their_patches_are_deleted(browser, tmp_path):
    made = site(explorer=Explorer({"tiny": model(), "vit": shared("vit")}, METHODS[:2]))
    Image.new("RGB", (300, 200), "teal").save(tmp_path / "picture.png")
    with served(made) as address, visitor(browser, address) as open_page:
        page = open_page("/explore", admin=True, size=PHONE)
        page.get_by_label("Model").select_option("vit")
        explain(page)
        page.get_by_label("Choose a picture").set_input_files(tmp_path / "picture.png")
        page.get_by_role("button", name="Upload").click()
        patches = card(page, "input_x_gradient").locator("[data-unit]")
        assert patches.first.get_attribute("aria-label").startswith("row 1, column 1: ")
        patches.nth(3).click()
        expect(page.locator("#removed")).to_have_text("without 1 part")
        assert page.locator(".picture img").first.evaluate("picture => picture.naturalWidth") > 0
        assert fits(page)


def test_corrected_words_are_saved_as_rows_that_a_training_reads(open_page, tmp_path):
    text = "\U0001f3ac a moving film , but the plot is dull"
    page = open_page("/explore", admin=True)
    for saved in (TEXTS[1], text, text):
        page.get_by_label("Text", exact=True).fill(saved)
        explain(page)
        found = card(page, "occlusion")
        words = found.locator("[data-unit]")
        strong = found.locator("[data-unit][class^=p]").count()
        found.get_by_role("button", name="Correct the words").click()
        assert found.locator("[aria-pressed=true][data-unit]").count() == strong
        for word in words.all():
            is_evidence = word.inner_text() in ("moving", "film", "dull")
            if is_evidence != (word.get_attribute("aria-pressed") == "true"):
                word.click()
        expect(page.locator("#removed")).to_have_text("")
        found.get_by_label("Label").select_option("good")
        found.get_by_role("button", name="Save the row").click()
    expect(page.locator("#marks [role=status]")).to_have_text("2 rows are saved")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download marks.jsonl").click()
    download.value.save_as(tmp_path / "marks.jsonl")
    rows = {row["text"]: row for row in expound.load_data(f"jsonl:{tmp_path / 'marks.jsonl'}", "all")}
    assert [text[start:end] for start, end in rows[text]["rationale"]] == ["moving film", "dull"]
    assert [TEXTS[1][start:end] for start, end in rows[TEXTS[1]]["rationale"]] == ["dull"]
    assert page.locator("#marks code").inner_text().startswith("expound train er_joint --model ")
    assert fits(page)
    page.get_by_role("button", name="Delete them").click()
    expect(page.locator("#marks")).to_be_hidden()
