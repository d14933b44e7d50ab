"""The explorer answers what the model itself computes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from threading import Event

import pytest

import expound
from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS
from expound.serve.explore.question import Question
from expound.serve.explore.queue import StoppedError
from expound.serve.explore.service import Explorer
from expound.serve.explore.tasks import list_targets
from models.test_token_heads import TEXT, loaded
from sites import METHODS, admin, csrf, model, site
from small import shared, uneven

FILM = Question("tiny", text="an unbelievably moving film", method=("saliency",))


@pytest.fixture(scope="module")
def explorer():
    return Explorer({"tiny": model()})


def probabilities(*example):
    return model().probabilities(model().encode([example if len(example) > 1 else example[0]]))[0].tolist()


def test_predictions_equal_the_models_probabilities(explorer):
    assert [answer.value for answer in explorer.predict(FILM)] == pytest.approx(probabilities(FILM.text), abs=1e-6)
    pair = Question("tiny", text="a film", pair="it moves")
    assert [a.value for a in explorer.predict(pair)] == pytest.approx(probabilities("a film", "it moves"), abs=1e-6)


def test_removing_a_word_predicts_the_text_without_it(explorer):
    found = [answer.value for answer in explorer.predict(FILM, [2])]
    assert found == pytest.approx(probabilities("an unbelievably film"), abs=1e-6)
    pair = Question("tiny", text="a small film", pair="it moves")
    assert [a.value for a in explorer.predict(pair, [1, 3])] == pytest.approx(
        probabilities("a film", "moves"), abs=1e-6
    )


def test_unit_numbers_on_the_page_are_the_numbers_that_are_removed(explorer):
    batch = model().encode([FILM.text])
    words = int(batch.word_of.max()) + 1
    tokens = int(batch.content.sum())
    assert words == 4 < tokens
    word = [a.value for a in explorer.predict(FILM, [1])]
    of_word = (batch.word_of[0, batch.content[0]] == 1).nonzero().flatten().tolist()
    by_token = Question("tiny", text=FILM.text, unit="token")
    assert [a.value for a in explorer.predict(by_token, of_word)] == pytest.approx(word, abs=1e-6)


def test_scores_and_figures_equal_attribute_and_compare(explorer):
    found = explorer.explain(FILM, "integrated_gradients")
    item = expound.attribute(model(), FILM.text, "integrated_gradients")[0]
    assert found.attribution.scores[0] == pytest.approx(item.scores[0])
    judged = expound.compare(model(), [FILM.text], ["integrated_gradients"], ["aopc_comprehensiveness"])
    assert found.figures["Comprehensiveness (AOPC) ↑"] == pytest.approx(judged.results["aopc_comprehensiveness"][0])


def test_the_chosen_target_is_explained_instead_of_the_prediction(explorer):
    for label in ("good", "bad"):
        asked = Question("tiny", text=FILM.text, target=label)
        item = expound.attribute(model(), FILM.text, "input_x_gradient", label)[0]
        assert explorer.explain(asked, "input_x_gradient").attribution.scores == pytest.approx(item.scores)


def test_a_method_that_fails_reports_why_and_others_still_run(tmp_path):
    EXPLAINERS["parameterized_attention"](9, 9).save_pretrained(tmp_path / "learned")
    both = Explorer({"tiny": model()}, [f"parameterized_attention:{tmp_path}/learned", "saliency"])
    wrong, right = (both.explain(FILM, name) for name in both.configured_methods)
    assert "9 layers" in wrong.problem
    assert wrong.attribution is None
    assert right.attribution is not None


def test_learned_methods_in_folders_of_one_name_get_distinct_names(tmp_path):
    specs = []
    for scale in (1.0, 5.0):
        learned = EXPLAINERS["parameterized_attention"].for_model(model())
        learned.coefficients.data[0, 0] = scale
        learned.save_pretrained(tmp_path / f"seed{scale:.0f}" / "teacher_explainer")
        specs.append(f"parameterized_attention:{tmp_path}/seed{scale:.0f}/teacher_explainer")
    both = Explorer({"tiny": model()}, specs)
    assert both.configured_methods == [f"parameterized_attention:seed{seed}/teacher_explainer" for seed in (1, 5)]
    scales = [both.methods[name].coefficients[0, 0].item() for name in both.configured_methods]
    assert scales == [1.0, 5.0]
    assert admin(site(explorer=both)).get(f"/explore/heads/{both.configured_methods[1]}").status_code == 200


def test_a_span_model_answers_with_a_span_of_the_context():
    asked = Question("qa", text="who laughs", pair="nobody laughs at the film")
    spans = Explorer({"qa": shared("bert", "QuestionAnswering")})
    item = expound.attribute(spans.models["qa"], (asked.text, asked.pair), "saliency")[0]
    answer = spans.predict(asked)[0]
    assert (answer.label, answer.value) == (item.prediction.text, pytest.approx(item.target.probability))
    assert list(list_targets(spans.models["qa"], asked)) == ["predicted"]


def test_a_tagged_text_is_explained_in_the_stretch_that_is_chosen():
    tagger = loaded("bert", "TokenClassification")
    explorer, asked = Explorer({"tags": tagger}), Question("tags", text=TEXT)
    rows = tagger.expand_examples([{"text": TEXT}])
    targets = list_targets(tagger, asked)
    assert list(targets) == ["predicted", *(f"{start}-{end}" for start, end in (row["span"] for row in rows))]
    chosen = replace(asked, target=list(targets)[-1])
    item = expound.attribute(tagger, rows[-1:], "saliency")[0]
    assert explorer.explain(chosen, "saliency").attribution.scores == pytest.approx(item.scores)
    expected = tagger.probabilities(tagger.encode(rows[-1:]))[0].tolist()
    assert [score.value for score in explorer.predict(chosen)] == pytest.approx(expected)
    assert "unknown target" in explorer.explain(replace(asked, target="0-999"), "saliency").problem


def test_progress_is_reported_and_a_stop_event_ends_the_work(explorer):
    seen, stop = [], Event()
    explorer.explain(Question("tiny", text="a town in the rain"), "kernel_shap", seen.append)
    assert seen == sorted(seen)
    assert seen[-1] > 0
    stop.set()
    with pytest.raises(StoppedError):
        explorer.explain(Question("tiny", text="another town in the rain"), "kernel_shap", stop=stop)
    assert explorer.explain(Question("tiny", text="another town in the rain"), "saliency").attribution is not None


def test_the_offered_methods_need_only_the_model(explorer):
    assert set(explorer.methods) == {
        name for name, kind in EXPLAINERS.items() if not kind.card.learned and kind.card.family != "prompted"
    }


def test_the_stream_sends_progress_then_each_card_then_end(tmp_path):
    chief = admin(site())
    lines = chief.get("/explore/stream", params={"text": "a film in town", "method": ["lime", "saliency"]}).text
    events = re.findall(r"event: (\w+)\ndata: (.*)\n", lines)
    assert [kind for kind, _ in events][-2:] == ["card", "end"]
    assert [json.loads(data)["method"] for kind, data in events if kind == "card"] == ["lime", "saliency"]
    shares = [json.loads(data)["share"] for kind, data in events if kind == "progress" and "lime" in data]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1


def test_interactions_of_pairs_are_drawn(tmp_path):
    chief = admin(site())
    lines = chief.get("/explore/stream", params={"text": "an unbelievably moving film", "method": ["spex"]}).text
    (card,) = [
        json.loads(data)["html"] for kind, data in re.findall(r"event: (\w+)\ndata: (.*)\n", lines) if kind == "card"
    ]
    assert 0 < card.count("<path class") <= 6  # pairs of four words
    assert "unbelievably – moving: " in card or "moving – film: " in card


def test_a_permalink_opens_the_same_page(tmp_path):
    chief = admin(site())
    asked = {"text": "a & b = <c>\n?", "pair": "ü", "unit": "token", "target": "good", "method": METHODS[:2]}
    page = chief.get("/explore", params=asked)
    link = re.search(r'href="(/explore\?[^"]*)">Permalink', page.text).group(1).replace("&amp;", "&")
    again = chief.get(link)
    assert re.sub("csrf.*?>", "", again.text) == re.sub("csrf.*?>", "", page.text)


def test_examples_match_the_models_modality(tmp_path):
    rows = [{"text": "only a text"}, {"image": uneven("vit", 1)[0]}]
    made = site(explorer=Explorer({"tiny": model(), "vit": shared("vit")}, examples=rows))
    chief = admin(made)
    form = {"csrf": csrf(chief.get("/explore"))}
    assert "only+a+text" in str(chief.post("/explore/example", data=form).url)
    assert "picture=example-1" in str(chief.post("/explore/example", data=form | {"model": "vit"}).url)
    none = admin(site(explorer=Explorer({"vit": shared("vit")}, examples=rows[:1])))
    assert none.post("/explore/example", data={"csrf": csrf(none.get("/explore"))}).status_code == 422


def test_a_learned_explainers_coefficients_are_shown_layer_by_layer(tmp_path):
    learned = EXPLAINERS["parameterized_attention"].for_model(model(), used_layers="last")
    learned.coefficients.data[0, 0] = 3.0
    learned.save_pretrained(tmp_path / "learned")
    spec = f"parameterized_attention:{tmp_path}/learned"
    chief = admin(site(explorer=Explorer({"tiny": model()}, [spec])))
    page = chief.get("/explore/heads/parameterized_attention:learned").text
    assert f"layer {model().config.num_hidden_layers}" in page
    assert "layer 1<" not in page
    assert re.findall(r">(\d\.\d\d)<", page)[:2] == ["1.00", "0.00"]


def test_an_unknown_target_is_refused_before_anything_is_explained(tmp_path):
    page = admin(site()).get("/explore", params={"text": "a film", "target": "nothing"})
    assert (page.status_code, "predicted" in page.text, "waiting" in page.text) == (422, True, False)


def test_an_explorer_without_models_is_refused():
    with pytest.raises(ExpoundError, match="expected a model"):
        Explorer({})
