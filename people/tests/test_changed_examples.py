"""Counterfactual simulation: people predict the model's answer to a changed version of an example."""

from __future__ import annotations

import json
import re
from io import StringIO

import pandas as pd
import pytest
import torch
from markupsafe import escape

import expound
from expound.errors import ExpoundError
from expound_people.changes import add_changed_versions
from expound_people.exports import run_export
from expound_people.items import StudyItem, make_items
from expound_people.projects import create_project, find_project, invite_annotators
from expound_people.protocol.file import ChangePart, KnownPart, parse_protocol
from expound_people.protocol.known_answers import has_passed, make_known_item
from expound_people.results import compute_findings
from participants import protocol
from sites import TEXTS, csrf, model
from small import small
from studies import annotator


@pytest.fixture(scope="module")
def fickle_model():
    """A model whose answer changes when a word or two are missing."""
    made = small("bert", dtype=torch.float32)
    batch = made.encode([{"text": text} for text in TEXTS])
    with torch.no_grad():
        head = made.model.classifier
        head.weight *= 200
        head.bias -= made(batch).logits.mean(0)
    return made


def examples(explained, texts=TEXTS):
    return make_items([("random", item) for item in expound.attribute(explained, list(texts), "random")])


def answer(explained, text):
    return expound.attribute(explained, text, "random")[0].prediction.text


def test_removed_words_are_gone_and_the_answer_is_the_models(fickle_model):
    for case in add_changed_versions(fickle_model, examples(fickle_model), ChangePart(words=3), seed=1):
        before, after = case.texts[0].split(), case.changed.texts[0].split()
        removed = [word for word, new in case.changed.edits if new == ""]
        rest = iter(before)
        assert all(word in rest for word in after), "what is left stands in its order"
        assert sorted(after + removed) == sorted(before)
        assert len(removed) == 3
        assert case.changed.texts[0] == " ".join(after), "no white space is left over"
        assert case.changed.prediction == answer(fickle_model, case.changed.texts[0])


def test_replaced_words_come_from_other_examples(fickle_model):
    found = add_changed_versions(fickle_model, examples(fickle_model), ChangePart(how="replace", words=2), seed=1)
    for number, case in enumerate(found):
        before, after = case.texts[0].split(), case.changed.texts[0].split()
        assert len(before) == len(after)
        elsewhere = {word for other, text in enumerate(TEXTS) if other != number for word in text.split()}
        assert {new for _, new in case.changed.edits} <= elsewhere
        edits = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert edits == [(old, new) for old, new in case.changed.edits if old != new]
        assert case.changed.prediction == answer(fickle_model, case.changed.texts[0])


def test_changes_are_seeded_and_half_of_the_answers_change_if_possible(fickle_model):
    texts = [f"{text} {end}" for text in TEXTS for end in ("again", "at last", "in the end")]
    given = examples(fickle_model, texts)
    found = add_changed_versions(fickle_model, given, ChangePart(words=4), seed=2)
    assert found == add_changed_versions(fickle_model, given, ChangePart(words=4), seed=2)
    assert found != add_changed_versions(fickle_model, given, ChangePart(words=4), seed=3)
    assert sum(case.changed.prediction != case.prediction for case in found) == 6
    first = add_changed_versions(fickle_model, given, ChangePart(words=4, balanced=False, tries=1), seed=2)
    assert [case.changed for case in first] != [case.changed for case in found]


def test_no_text_of_a_pair_is_left_empty(fickle_model):
    pairs = [StudyItem(("moving film", "a dull plot"), prediction=answer(fickle_model, TEXTS[0]))] * 2
    for case in add_changed_versions(fickle_model, pairs, ChangePart(words=20)):
        assert [len(text.split()) for text in case.changed.texts] == [1, 1]


def test_models_and_texts_that_cannot_be_changed_are_refused(fickle_model):
    with pytest.raises(ExpoundError, match="too few words"):
        add_changed_versions(fickle_model, [StudyItem(("film",), prediction="good")], ChangePart())
    with pytest.raises(ExpoundError, match="give 2 examples or more"):
        add_changed_versions(fickle_model, [StudyItem(("a film",), prediction="good")], ChangePart(how="replace"))
    span = small("bert", "QuestionAnswering")
    with pytest.raises(ExpoundError, match="needs a classifier of texts"):
        add_changed_versions(span, [StudyItem(("a film",), prediction="good")], ChangePart())


def test_annotators_predict_changed_answers_and_the_gain_is_computed(full_site, fickle_model):
    made = add_changed_versions(fickle_model, examples(fickle_model), ChangePart(words=4))
    assert sum(case.changed.prediction != case.prediction for case in made) == 2
    with full_site.application.storage.write_session() as session:
        tokens = invite_annotators(
            session, create_project(session, "first", made, "counterfactual", labels=fickle_model.labels), ["Ada"]
        )
    with full_site.application.storage.read_session() as session:
        items = {item.content["changed"]["texts"][0]: item for item in find_project(session, "first").items}
    client = annotator(full_site, tokens["Ada"])
    rights = []
    for place in range(1, len(TEXTS) + 1):
        page = client.get(f"/annotate/{place}")
        assert 'class="text words"' not in page.text
        (item,) = (item for text, item in items.items() if str(escape(text)) in page.text)
        labels = re.findall(r'name="guess" value="(\d)" required[^>]*>([^<]*)<', page.text)
        number = {name: value for value, name in labels}
        assert f"The model predicts <strong>{item.content['prediction']}</strong>" in page.text
        wrong = next(label for label in fickle_model.labels if label != item.model_answer)
        guesses = (wrong, item.model_answer) if place < 4 else (item.model_answer, wrong)
        rights.append([guess == item.model_answer for guess in guesses])
        for phase, guess in zip(("before", "after"), guesses, strict=True):
            sent = {"csrf": csrf(page), "phase": phase, "seconds": "3", "guess": number[guess]}
            page = client.post(f"/annotate/{place}", data=sent)
            if phase == "before":
                assert 'class="text words"' in page.text
                assert f"The model predicts <strong>{item.content['prediction']}</strong>" in page.text
    with full_site.application.storage.read_session() as session:
        study = find_project(session, "first")
        found = compute_findings(session, study)
        gain = sum(row.gain * row.guesses for row in found.gains) / sum(row.guesses for row in found.gains)
        table = pd.read_csv(StringIO(run_export(session, study, "answers.csv")[1].decode()))
        told = run_export(session, study, "methods.md")[1].decode()
        numbers = json.loads(run_export(session, study, "results.json")[1])
    assert gain == pytest.approx(sum(after - before for before, after in rights) / 4)
    assert [json.loads(text)[0] for text in table["changed"]] == [
        next(text for text, item in items.items() if item.number == number) for number in table["example"]
    ]
    assert set(table["changed_prediction"]) == {item.model_answer for item in items.values()}
    assert "3 words, drawn by chance (seed 0), were removed" in told
    assert "The model's answer differs in 2 of 4." in told
    assert {row["method"] for row in numbers["simulation"]} == set(table["method"].dropna())


def test_a_protocol_declares_the_rule_and_known_answers_are_of_changed_texts(full_site):
    text = protocol("counterfactual", change="{how: replace, words: 1, balanced: false}", attention="{items: []}")
    with pytest.raises(ExpoundError, match="known examples need a text, 'changed' and 'changed_prediction'"):
        parse_protocol(text)
    planned = text.replace(
        "evidence: [dull],", "evidence: [dull], changed: the plot is long, changed_prediction: good,"
    )
    plan = parse_protocol(planned)
    assert (plan.change.how, plan.change.words, plan.change.balanced) == ("replace", 1, False)
    item = make_known_item(plan.training[0], 3, "training", plan)
    assert [has_passed("counterfactual", item, {"guess": guess}) for guess in ("good", "bad")] == [True, False]
    found = add_changed_versions(model(), examples(model()), plan.change, plan.seed)
    with (
        full_site.application.storage.write_session() as session,
        pytest.raises(ExpoundError, match="unknown answer of the model 'good'"),
    ):
        create_project(session, "films", found, labels=["bad", "fair"], protocol=planned)
    bare = [StudyItem(case.texts, case.explanations, prediction=case.prediction) for case in found]
    with (
        full_site.application.storage.write_session() as session,
        pytest.raises(ExpoundError, match="make this study of --model and --data"),
    ):
        create_project(session, "others", bare, labels=["bad", "good"], protocol=planned)


def test_evidence_of_known_examples_is_the_one_that_is_planted():
    part = KnownPart(text="Long. It is dull!", evidence=["dull"], prediction="bad")
    plan = parse_protocol(protocol("highlight", main="{unit: sentence}"))
    item = make_known_item(part, 0, "check", plan)
    assert item.content["evidence"] == [[0, 6, 17]]
    assert [has_passed("highlight", item, {"marks": each}) for each in ([[0, 6, 17]], [[0, 0, 5]])] == [True, False]
