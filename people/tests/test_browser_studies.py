"""Human studies, from the admin's first click to the exported ranking, by two annotators at once in Chromium."""

from __future__ import annotations

import csv

import pytest
from playwright.sync_api import expect

import expound
from browsing import PHONE, fits, tab_to
from expound_people.projects import find_project
from expound_people.results import load_answers
from sites import METHODS, TEXTS
from studies import project

pytestmark = pytest.mark.browser


def begin(page):
    page.get_by_role("button", name="Begin").click()
    page.get_by_role("link", name="Begin").click()
    page.wait_for_url("**/annotate/*")


def save(page):
    page.get_by_role("button", name="Save and continue").click()


def read_answers(made, name="first"):
    with made.application.storage.read_session() as session:
        return [
            (a.annotator.name, a.item.number, a.phase, a.content)
            for a in load_answers(session, find_project(session, name))
        ]


def test_a_ranking_study_by_two_people_at_once_from_invitation_to_export(open_page, full_site, tmp_path):
    chief = open_page("/studies", admin=True)
    form = chief.locator("form", has_text="New study of a result")
    form.get_by_label("Name").fill("films")
    form.get_by_label("Rank explanations").check()
    form.get_by_label("Examples").fill("3")
    form.get_by_role("button").click()
    chief.get_by_label("Names, one a line").fill("Ada\nBen")
    chief.get_by_role("button", name="Make links").click()
    expect(chief.locator("dd.mono")).to_have_count(2)
    links = chief.locator("dd.mono").all_inner_texts()
    people = {"Ada": open_page(links[0], size=PHONE), "Ben": open_page(links[1])}
    for page in people.values():
        begin(page)
    for example in range(1, 4):
        for name, page in people.items():
            expect(page.get_by_role("heading", name=f"Example {example} of 3")).to_be_visible()
            letters = page.locator(".explanation h2").all_inner_texts()
            assert letters == [f"Explanation {letter}" for letter in "ABCD"]
            assert not any(method in page.content() for method in METHODS)
            assert fits(page)
            ranks = (1, 1, 3, 4) if name == "Ada" else (4, 3, 2, 1)
            for letter, rank in zip("ABCD", ranks, strict=True):
                page.get_by_role("group", name=f"Rank of {letter}").get_by_text(str(rank), exact=True).click()
        for page in people.values():
            save(page)
    for name, page in people.items():
        expect(page.get_by_role("status")).to_have_text(f"All 3 examples are done. Thank you, {name}!")
    chief.get_by_role("link", name="Results").last.click()
    chief.wait_for_url("**/results")
    expect(chief.get_by_text("Rank explanations: 6 answers so far.")).to_be_visible()
    table = chief.get_by_role("region", name="Ratings")
    expect(table.get_by_role("rowheader")).to_have_count(len(METHODS))
    assert sorted(table.get_by_role("rowheader").all_inner_texts()) == sorted(METHODS)
    expect(chief.get_by_text("over 3 examples that several people ranked")).to_be_visible()
    chief.goto("/studies/films")
    with chief.expect_download() as file:
        chief.get_by_role("link", name="All answers (CSV)").click()
    file.value.save_as(tmp_path / "answers.csv")
    rows = list(csv.DictReader((tmp_path / "answers.csv").open()))
    by_place = {(row["annotator"], int(row["position"]), int(row["rank"])) for row in rows}
    assert len(rows) == 2 * 3 * 4
    assert by_place == {("Ada", 1, 1), ("Ada", 2, 1), ("Ada", 3, 3), ("Ada", 4, 4)} | {
        ("Ben", place, 5 - place) for place in range(1, 5)
    }
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_missing_ranks_are_reported_and_a_closed_window_loses_no_answer(open_page, full_site):
    link = f"/join/{project(full_site)['Ada']}"
    page = open_page(link)
    begin(page)
    page.get_by_role("group", name="Rank of A").get_by_text("2", exact=True).click()
    save(page)
    assert page.locator("input:invalid").first.get_attribute("name") == "rank-B"
    for letter in "BCD":
        page.get_by_role("group", name=f"Rank of {letter}").get_by_text("2", exact=True).click()
    save(page)
    expect(page.get_by_role("heading", name="Example 2 of 4")).to_be_visible()
    page.context.close()
    again = open_page(link)
    again.get_by_role("button", name="Begin").or_(again.get_by_role("button", name="Continue")).click()
    expect(again.get_by_role("status")).to_have_text("1 of 4 examples are done, Ada.")
    again.get_by_role("link", name="Continue").click()
    expect(again.get_by_role("heading", name="Example 2 of 4")).to_be_visible()
    assert len(read_answers(full_site)) == 1


def test_explanations_are_ranked_with_the_keyboard_alone(open_page, full_site):
    page = open_page(f"/join/{project(full_site)['Ada']}")
    press = page.keyboard.press

    tab_to(page, "innerText", "Begin")
    press("Enter")
    page.wait_for_url("**/annotate")
    tab_to(page, "innerText", "Begin")
    press("Enter")
    page.wait_for_url("**/annotate/1")
    for rank, letter in enumerate("ABCD", 1):
        tab_to(page, "name", f"rank-{letter}")
        press("Space")
        for _ in range(rank - 1):
            press("ArrowRight")
    tab_to(page, "innerText", "Save and continue")
    press("Enter")
    page.wait_for_url("**/annotate/2")
    content = read_answers(full_site)[0][3]
    assert [content["ranks"][method] for method in content["order"]] == [1, 2, 3, 4]


def order(page):
    """The letters in the order of the strip, and the chosen rank of each of A to D."""
    strip = page.locator(".order li").all_inner_texts()
    ranks = page.evaluate("[...'ABCD'].map(letter => document.forms.answer.elements[`rank-${letter}`].value)")
    return "".join(strip), "".join(rank or "-" for rank in ranks)


def middle(page, letter):
    box = page.locator(f".order li[data-letter={letter}]").bounding_box()
    return {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}


def test_explanations_are_ranked_by_dragging_and_ranks_below_say_the_same(open_page, full_site):
    page = open_page(f"/join/{project(full_site)['Ada']}", size=PHONE, has_touch=True)
    begin(page)
    expect(page.locator(".order li")).to_have_count(4)
    assert order(page) == ("ABCD", "----")
    page.locator(".order li").first.click()
    assert order(page) == ("ABCD", "----"), "who only touches a letter has ranked nothing"
    page.mouse.move(*middle(page, "C").values())
    page.mouse.down()
    page.mouse.move(*middle(page, "A").values(), steps=8)
    page.mouse.up()
    assert order(page) == ("CABD", "2314")
    page.get_by_role("group", name="Rank of D").get_by_text("1", exact=True).click()
    page.get_by_role("group", name="Rank of A").get_by_text("4", exact=True).click()
    assert order(page) == ("CDBA", "4311"), "ties are for the ranks below"
    client = page.context.new_cdp_session(page)
    page.locator(".order").scroll_into_view_if_needed()
    start, target = middle(page, "A"), middle(page, "D")
    client.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [start]})
    client.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [target]})
    client.send("Input.dispatchTouchEvent", {"type": "touchCancel", "touchPoints": []})
    expect(page.locator(".dragged")).to_have_count(0)
    assert order(page)[1] == "4311", "a gesture that is broken off changes nothing"
    start, target = middle(page, "A"), middle(page, "D")
    client.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [start]})
    client.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [target]})
    client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(page.locator(".dragged")).to_have_count(0)
    assert order(page) == ("CADB", "2413")
    save(page)
    page.wait_for_url("**/annotate/2")
    content = read_answers(full_site)[0][3]
    assert [content["ranks"][method] for method in content["order"]] == [2, 4, 1, 3]


def test_words_are_marked_by_clicking_drawing_and_keys_and_become_a_corpus(open_page, full_site, tmp_path):
    page = open_page(f"/join/{project(full_site, kind='highlight')['Ada']}")
    begin(page)
    words = page.locator(".mark label")
    text = page.locator(".mark").text_content()
    first, last = (words.nth(place).bounding_box() for place in (1, 3))
    page.mouse.move(first["x"] + 4, first["y"] + 8)
    page.mouse.down()
    page.mouse.move(last["x"] + 4, last["y"] + 8, steps=20)
    page.mouse.up()
    words.nth(2).click()
    words.nth(0).locator("input").focus()
    page.keyboard.press("Space")
    given = [words.nth(place).inner_text() for place in (0, 1, 3)]
    save(page)
    page.wait_for_url("**/annotate/2")
    marks = read_answers(full_site)[0][3]["marks"]
    assert [text[start:end] for _, start, end in marks] == [f"{given[0]} {given[1]}", given[2]]
    chief = open_page("/studies/first", admin=True)
    with chief.expect_download() as file:
        chief.get_by_role("link", name="Corpus with rationales (Parquet)").click()
    file.value.save_as(tmp_path / "corpus.parquet")
    data = expound.load_data(f"parquet:{tmp_path / 'corpus.parquet'}", "all")
    assert dict(zip(data["text"], data["rationale"], strict=True))[text] == [mark[1:] for mark in marks]
    assert data["text"] == TEXTS


def test_people_guess_without_and_with_an_explanation(open_page, full_site):
    page = open_page(f"/join/{project(full_site, kind='simulate')['Ada']}", size=PHONE)
    begin(page)
    assert page.locator(".words").count() == 0
    page.get_by_label("bad").check()
    save(page)
    expect(page.get_by_text("You guessed bad.")).to_be_visible()
    assert page.locator(".words").count() == 1
    assert fits(page)
    page.get_by_label("good").check()
    save(page)
    expect(page.get_by_role("heading", name="Example 2 of 4")).to_be_visible()
    assert [(phase, content["guess"]) for _, _, phase, content in read_answers(full_site)] == [
        ("after", "good"),
        ("before", "bad"),
    ]


def test_a_revoked_invitation_signs_the_annotator_out(open_page, full_site):
    page = open_page(f"/join/{project(full_site)['Ada']}")
    begin(page)
    chief = open_page("/studies/first", admin=True)
    chief.get_by_role("button", name="Revoke the invitation of Ada").click()
    expect(chief.get_by_text("revoked")).to_be_visible()
    assert page.request.get("/annotate/1").status == 403
