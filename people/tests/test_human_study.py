"""A study from invitation to results, for each kind of question."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import select

import expound
from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS
from expound_people import answers
from expound_people.blinding import assign_method, blind_explanations, draw_item_order, make_letter
from expound_people.items import StudyItem, make_items, restore_explanation, select_comparison_items
from expound_people.projects import create_project, find_annotator, find_project, invite_annotators
from expound_people.results import compute_findings, load_answers, pair_guesses
from expound_people.tables import Annotator, AnnotatorAnswer, Item
from sites import METHODS, TEXTS, csrf, model
from studies import annotator, letters, project, rank, site


def read_method_order(made, name, person, place):
    """The methods that an annotator's example shows as A, B, ..., in this order."""
    with made.application.storage.read_session() as session:
        who = session.scalar(select(Annotator).where(Annotator.name == person))
        progress = answers.load_progress(session, who)
        item = answers.get_item(session, progress, place)
        return [each.method for each in answers.make_task(progress, item, progress.next_phase(place)).explanations]


def read_answers(made):
    with made.application.storage.read_session() as session:
        return list(session.scalars(select(AnnotatorAnswer).order_by(AnnotatorAnswer.id)))


def test_rankings_are_stored_by_method_not_by_letter(full_site):
    tokens = project(full_site)
    order = {method: place for place, method in enumerate(METHODS, 1)}
    for person in ("Ada", "Ben"):
        client = annotator(full_site, tokens[person])
        for place in range(1, len(TEXTS) + 1):
            behind = read_method_order(full_site, "first", person, place)
            assert letters(client.get(f"/annotate/{place}")) == ["A", "B", "C", "D"]
            rank(client, place, {letter: order[m] for letter, m in zip("ABCD", behind, strict=True)})
    kept = read_answers(full_site)
    assert len(kept) == 8
    assert all(each.content["ranks"] == order for each in kept)
    assert len({tuple(each.content["order"]) for each in kept}) > 2
    assert all(each.seconds == 2.5 for each in kept)
    with full_site.application.storage.read_session() as session:
        found = compute_findings(session, find_project(session, "first"))
    assert [rating.method for rating in found.ratings] == METHODS
    assert (found.w_examples, found.n_examples, found.w_people) == (pytest.approx(1), 4, pytest.approx(1))


def test_ties_are_allowed_and_missing_ranks_are_reported(full_site):
    tokens = project(full_site)
    client = annotator(full_site, tokens["Ada"])
    partial = rank(client, 1, {"A": 1, "B": 1, "C": 3})
    assert (partial.status_code, "explanation D needs a rank from 1 to 4" in partial.text) == (422, True)
    assert re.search(r'name="rank-C" value="3" required checked', partial.text)
    assert read_answers(full_site) == []
    assert rank(client, 1, {"A": 1, "B": 1, "C": 3, "D": 5}).status_code == 422
    assert rank(client, 1, {"A": 1, "B": 1, "C": 3, "D": 4}).status_code == 200
    assert sorted(read_answers(full_site)[0].content["ranks"].values()) == [1, 1, 3, 4]


def test_the_page_reveals_neither_methods_nor_scores_nor_signs(full_site):
    tokens = project(full_site)
    client = annotator(full_site, tokens["Ada"])
    for address in ("/annotate", "/annotate/1", "/annotate/2"):
        text = client.get(address).text
        assert not any(name in text for name in METHODS)
        assert "data-score" not in text
        assert not re.search(r'class="[un]\d', text)
    assert 'class="p8"' in client.get("/annotate/1").text


def test_orders_are_random_balanced_and_reproducible():
    item = expound.attribute(model(), TEXTS[0], "saliency")[0]
    explanations = dict.fromkeys("wxyz", item)
    first = [
        [each.method for each in blind_explanations(explanations, seed=3, annotator=a, number=n)]
        for a in range(60)
        for n in range(10)
    ]
    again = [
        [each.method for each in blind_explanations(explanations, seed=3, annotator=a, number=n)]
        for a in range(60)
        for n in range(10)
    ]
    assert first == again
    places = np.array([[row.index(name) for name in "wxyz"] for row in first])
    counts = np.stack([np.bincount(places[:, column], minlength=4) for column in range(4)])
    assert counts.sum(1).tolist() == [600] * 4
    assert (abs(counts - 150) < 45).all()  # 4 standard deviations
    assert sorted(draw_item_order(9, seed=1, annotator=5)) == list(range(9))
    assert draw_item_order(9, seed=1, annotator=5) != draw_item_order(9, seed=1, annotator=6)
    table = np.array([[assign_method(4, annotator=a, number=n) for n in range(8)] for a in range(4)])
    assert all(np.bincount(row, minlength=4).tolist() == [2] * 4 for row in table)
    assert all(sorted(column) == [0, 1, 2, 3] for column in table.T)
    assert [make_letter(place) for place in (0, 25, 26)] == ["A", "Z", "A2"]


def test_blinded_explanations_have_the_scores_of_the_originals():
    item = expound.attribute(model(), TEXTS[0], "attention_all")[0]
    shown = blind_explanations({"attention_all": item}, seed=0, annotator=1, number=0)[0].attribution
    assert (shown.method, shown.params, shown.layers, shown.signed) == ("A", {}, None, True)
    assert np.array_equal(shown.scores[0], item.scores[0])


def test_an_annotator_can_stop_resume_and_change_answers(full_site):
    tokens = project(full_site)
    client = annotator(full_site, tokens["Ada"])
    assert "0 of 4 examples are done" in client.get("/annotate").text
    after = rank(client, 1, dict.fromkeys("ABCD", 1))
    assert after.url.path == "/annotate/2"
    again = annotator(full_site, tokens["Ada"])
    page = again.get("/annotate")
    assert "1 of 4 examples are done" in page.text
    assert 'href="/annotate/2">Continue' in page.text
    assert 'name="rank-B" value="1" required checked' in again.get("/annotate/1").text
    rank(again, 1, {"A": 2, "B": 1, "C": 3, "D": 4})
    assert [(each.revision, sorted(each.content["ranks"].values())) for each in read_answers(full_site)] == [
        (2, [1, 2, 3, 4])
    ]
    for place in (4, 2):
        assert rank(again, place, dict.fromkeys("ABCD", 1)).url.path == {4: "/annotate/2", 2: "/annotate/3"}[place]
    last = rank(again, 3, dict.fromkeys("ABCD", 1))
    assert last.url.path == "/annotate"
    assert "All 4 examples are done. Thank you, Ada!" in last.text


def test_an_answer_sent_twice_is_kept_once(full_site):
    tokens = project(full_site)
    client = annotator(full_site, tokens["Ada"])
    for _ in range(3):
        rank(client, 1, dict.fromkeys("ABCD", 1))
    assert len(read_answers(full_site)) == 1


def test_signing_out_ends_the_session_and_the_link_opens_it_again(full_site):
    tokens = project(full_site)
    client = annotator(full_site, tokens["Ada"])
    page = client.post("/annotate/leave/now", data={"csrf": csrf(client.get("/annotate"))})
    assert (page.status_code, "You are signed out</h1>" in page.text, "did not work" in page.text) == (200, True, False)
    assert client.get("/annotate").status_code == 403
    assert annotator(full_site, tokens["Ada"]).get("/annotate").status_code == 200


def test_opening_an_invitation_changes_nothing(full_site):
    tokens = project(full_site)
    page = annotator(full_site, tokens["Ben"]).get(f"/join/{tokens['Ada']}")
    assert "Hello, Ada" in page.text
    assert "set-cookie" not in page.headers
    with full_site.application.storage.read_session() as session:
        assert {p.name: p.joined is not None for p in find_project(session, "first").annotators} == {
            "Ada": False,
            "Ben": True,
        }


def mark(client, place, words):
    page = client.get(f"/annotate/{place}")
    numbers = [re.search(rf'value="(\d+)"(?: checked)?><span>{word}</span>', page.text).group(1) for word in words]
    return client.post(f"/annotate/{place}", data={"csrf": csrf(page), "phase": "", "unit": numbers})


def place_of(made, person, text):
    with made.application.storage.read_session() as session:
        progress = answers.load_progress(session, session.scalar(select(Annotator).where(Annotator.name == person)))
        texts = [session.get_one(Item, item).content["texts"][0] for item in progress.items]
        return 1 + texts.index(text)


def test_marked_words_become_spans_of_the_raw_text(full_site):
    tokens = project(full_site, kind="highlight")
    ada, place = annotator(full_site, tokens["Ada"]), place_of(full_site, "Ada", TEXTS[3])
    mark(ada, place, ["great", "acting", "tired"])
    content = read_answers(full_site)[0].content
    assert [TEXTS[3][start:end] for _, start, end in content["marks"]] == ["great acting", "tired"]
    assert "checked><span>tired" in ada.get(f"/annotate/{place}").text
    mark(ada, place, [])
    assert read_answers(full_site)[0].content["marks"] == []
    page = ada.get(f"/annotate/{place}")
    assert ada.post(f"/annotate/{place}", data={"csrf": csrf(page), "phase": "", "unit": "99"}).status_code == 422


def test_plausibility_is_the_auc_of_marked_words(full_site):
    tokens = project(full_site, kind="highlight")
    with full_site.application.storage.read_session() as session:
        items = {
            item.content["texts"][0]: {e.method: restore_explanation(e) for e in item.explanations}
            for item in find_project(session, "first").items
        }
    for person in ("Ada", "Ben"):
        client = annotator(full_site, tokens[person])
        for text in TEXTS[1:]:
            mark(client, place_of(full_site, person, text), [text.split()[-1]])
    with full_site.application.storage.read_session() as session:
        found = compute_findings(session, find_project(session, "first"))
    for row in found.plausibility:
        scores = [items[text][row.method].scores[0] for text in TEXTS[1:]]
        below = [np.mean((each[:-1] < each[-1]) + 0.5 * (each[:-1] == each[-1])) for each in scores]
        assert row.auc == pytest.approx(np.mean(below))
    areas = [row.auc for row in found.plausibility]
    assert areas == sorted(areas, reverse=True)
    assert [row.examples for row in found.plausibility] == [3] * len(METHODS)
    assert found.f1 == 1.0


def test_the_first_guess_cannot_be_changed_after_the_explanation(full_site):
    tokens = project(full_site, kind="simulate")
    client = annotator(full_site, tokens["Ada"])

    def guess(place, number, phase):
        page = client.get(f"/annotate/{place}")
        return client.post(f"/annotate/{place}", data={"csrf": csrf(page), "phase": phase, "guess": str(number)})

    first = client.get("/annotate/1").text
    assert 'class="p8"' not in first
    assert "predicts" not in first
    page = guess(1, 0, "before")
    assert page.url.path == "/annotate/1"
    assert "You guessed" in page.text
    assert 'class="p8"' in page.text
    assert not any(name in page.text for name in METHODS)
    guess(1, 1, "before")
    assert len(read_answers(full_site)) == 1
    before = read_answers(full_site)[0].content["guess"]
    assert guess(1, 0, "after").url.path == "/annotate/2"
    kept = read_answers(full_site)
    assert [(each.phase, each.content["guess"]) for each in kept] == [("before", before), ("after", before)]
    assert kept[1].content["method"] in METHODS
    assert kept[0].revision == 1
    assert guess(2, 99, "before").status_code == 422
    assert client.post("/annotate/2", data={"csrf": csrf(page), "phase": "other", "guess": "0"}).status_code == 422


def test_annotators_choose_among_all_labels_of_the_model(full_site, chief):
    data = {"csrf": csrf(chief.get("/studies")), "name": "guessed", "source": "reviews", "kind": "simulate"}
    assert chief.post("/studies", data=data).status_code == 200
    with full_site.application.storage.read_session() as session:
        assert find_project(session, "guessed").labels == list(model().labels)
    item = expound.attribute(model(), TEXTS[0], "saliency")[0]
    sure = [
        StudyItem(
            (TEXTS[0],),
            {
                "saliency": replace(
                    item, targets=(item.target._replace(text="good"),), prediction=item.target._replace(text="good")
                )
            },
            None,
            "good",
        )
    ]
    with full_site.application.storage.write_session() as session:
        for labels in ((), ("good",), ("bad", "fair")):
            with pytest.raises(ExpoundError, match="2 labels or more"):
                create_project(session, "sure", sure, "simulate", labels=labels)


def test_a_guess_is_right_when_it_is_the_models_answer(full_site):
    project(full_site, kind="simulate", people=["Ada"])
    with full_site.application.storage.write_session() as session:
        study = find_project(session, "first")
        person = study.annotators[0]
        for item, right in zip(study.items, (True, False, True, True), strict=True):
            prediction = item.content["prediction"]
            for phase, correct in (("before", False), ("after", right)):
                content = {"guess": prediction if correct else "something else", "method": "saliency"}
                session.add(AnnotatorAnswer(annotator_id=person.id, item_id=item.id, phase=phase, content=content))
    with full_site.application.storage.read_session() as session:
        study = find_project(session, "first")
        found = compute_findings(session, study)
        assert [guess.after for guess in pair_guesses(load_answers(session, study))] == [True, False, True, True]
    assert (found.gains[0].before, found.gains[0].after, found.gains[0].gain) == (0.0, 0.75, 0.75)


def test_pages_of_studies_and_results_show_the_current_answers(full_site, chief):
    tokens = project(full_site)
    assert "Nothing to see yet" in chief.get("/studies/first/results").text
    client = annotator(full_site, tokens["Ada"])
    rank(client, 1, {"A": 1, "B": 2, "C": 3, "D": 4})
    page = chief.get("/studies/first/results").text
    assert "TrueSkill" in page
    assert "1-4" in page
    assert "1 of 8 answers" in chief.get("/studies/first").text
    assert "1 answers" in chief.get("/studies").text


def test_a_study_is_created_from_a_result_by_the_form(full_site, chief):
    data = {
        "csrf": csrf(chief.get("/studies")),
        "name": "of reviews",
        "source": "reviews",
        "kind": "rank",
        "limit": "2",
    }
    page = chief.post("/studies", data=data)
    assert page.url.path == "/studies/of reviews"
    assert "2 examples, explained by attention_all, globenc, input_x_gradient, saliency" in page.text
    page = chief.post("/studies/of reviews/invitations", data={"csrf": csrf(page), "names": "Ada\n\n Ben \n"})
    links = re.findall(r"http://127\.0\.0\.1/join/([\w-]{43})", page.text)
    assert len(links) == 2
    assert not re.search(r"/join/[\w-]{43}", chief.get("/studies/of reviews").text)
    assert letters(annotator(full_site, links[0]).get("/annotate/1")) == ["A", "B", "C", "D"]


def test_examples_with_different_methods_are_refused(full_site):
    explained = (("saliency", TEXTS[:2]), ("globenc", TEXTS[:1]))
    found = make_items(
        (method, item) for method, texts in explained for item in expound.attribute(model(), texts, method)
    )
    with full_site.application.storage.write_session() as session:
        with pytest.raises(ExpoundError, match="same methods"):
            create_project(session, "uneven", found)
        with pytest.raises(ExpoundError, match="at least 2 methods"):
            create_project(session, "one", found[1:])
        with pytest.raises(ExpoundError, match="at least one example"):
            create_project(session, "none", [])
        with pytest.raises(ExpoundError, match="texts only"):
            create_project(session, "picture", [StudyItem((), picture=b"x")], "highlight")


def test_a_study_of_a_comparison_has_every_method_of_its_table(tmp_path):
    learned = EXPLAINERS["parameterized_attention"].for_model(model())
    specs = []
    for layer in (0, 1):
        learned.coefficients.data[layer] += 5.0
        learned.save_pretrained(tmp_path / f"seed{layer}" / "teacher_explainer")
        specs.append(f"parameterized_attention:{tmp_path}/seed{layer}/teacher_explainer")
    specs += [f"integrated_gradients?n_steps={steps}" for steps in (2, 3)]
    comparison = expound.compare(model(), TEXTS, specs, ["aopc_sufficiency"])
    found = select_comparison_items(comparison, 2)
    assert [case.texts for case in found] == [(TEXTS[0],), (TEXTS[2],)]
    assert list(found[1].explanations) == [
        "parameterized_attention:seed0/teacher_explainer",
        "parameterized_attention:seed1/teacher_explainer",
        *specs[2:],
    ]
    for place, item in enumerate(found[1].explanations.values()):
        assert item == comparison.attributions[len(TEXTS) * place + 2]


def test_pictures_are_shown_with_their_explanations(tmp_path):
    import torch

    from small import shared, uneven

    made = site(tmp_path, with_model=False)
    vit = shared("vit", dtype=torch.float32)
    rows = [{"image": image} for image in uneven("vit", 3)]
    items = [(m, i) for m in ("saliency", "attention_all") for i in expound.attribute(vit, rows, m)]
    with made.application.storage.write_session() as session:
        create_project(session, "pictures", make_items(items, rows))
    with made.application.storage.write_session() as session:
        token = invite_annotators(session, find_project(session, "pictures"), ["Ada"])["Ada"]
        assert find_annotator(session, token).name == "Ada"
    client = annotator(made, token)
    page = client.get("/annotate/1").text
    assert page.count('src="/annotate/1/picture"') == 1 + 2 * 2, "each map has the picture beside it"
    assert page.count('class="beside"') == 2
    reply = client.get("/annotate/1/picture")
    assert reply.headers["content-type"] == "image/png"
    assert reply.content.startswith(b"\x89PNG")
    assert rank(client, 1, {"A": 1, "B": 1}).url.path == "/annotate/2"
