"""The pages of results show the stored numbers."""

from __future__ import annotations

import re
import shutil
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import kendalltau

import expound
from expound.errors import ExpoundError
from expound.serve.browse.listing import PER_PAGE, View, get_example_values, list_examples, parse_view
from expound.serve.browse.stored import open_results
from expound.serve.heatmaps import make_heatmap, make_layer_heatmap
from expound_people.items import select_comparison_items
from expound_people.projects import create_project
from sites import METHODS, TEXTS, admin, model, site


@pytest.fixture(scope="module")
def result(comparison):
    return open_results([comparison])["reviews"]


def test_disagreement_is_one_minus_kendalls_tau(result):
    for example in range(len(TEXTS)):
        items = [result.attributions[example][method] for method in METHODS]
        scores = [abs(item.content_scores) if item.signed else item.content_scores for item in items]
        taus = [kendalltau(one, other).statistic for one, other in combinations(scores, 2)]
        assert result.disagreement[example] == pytest.approx(1 - np.mean(taus))
    assert np.diag(result.agreement) == pytest.approx(1)


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_examples_are_sorted_by_the_metric_of_the_method(result, order):
    view = parse_view(result, {"method": "globenc", "metric": "aopc_sufficiency", "sort": "metric", "order": order})
    frame = result.comparison.results.query("method == 'globenc'").sort_values("aopc_sufficiency")
    expected = frame["example"].tolist()
    assert [line.example for line in list_examples(result, view).rows] == expected[:: 1 if order == "ascending" else -1]


def test_filters_select_matching_examples(result):
    found = list_examples(result, View("saliency", "aopc_sufficiency", text="FILM"))
    assert [TEXTS[line.example] for line in found.rows] == [text for text in TEXTS if "film" in text]
    predictions = {line.prediction for line in list_examples(result, View("saliency", "aopc_sufficiency")).rows}
    one = sorted(predictions)[0]
    chosen = list_examples(result, View("saliency", "aopc_sufficiency", prediction=one)).rows
    assert {line.prediction for line in chosen} == {one}


def test_pages_divide_the_list(result, monkeypatch):
    monkeypatch.setattr("expound.serve.browse.listing.PER_PAGE", 3)
    pages = [list_examples(result, View("saliency", "aopc_sufficiency", page=page)) for page in (1, 2)]
    assert [len(page.rows) for page in pages] == [3, 1]
    assert [(page.count, page.pages) for page in pages] == [(4, 2)] * 2
    assert PER_PAGE == 20


def test_values_of_an_example_are_named_by_metric_titles(result):
    table = get_example_values(result, 2)
    row = result.comparison.results.query("example == 2 and method == 'saliency'")
    assert table.loc["saliency", "Sufficiency (AOPC) ↓"] == row["aopc_sufficiency"].item()


def test_layer_heatmaps_start_with_the_last_layer_and_scale_each_layer(result):
    item = result.attributions[1]["globenc"]
    drawn = make_layer_heatmap(item)
    kept = ~np.asarray(item.special, dtype=bool)
    assert [row[0].text for row in drawn.rows] == [str(n) for n in range(len(item.layers), 0, -1)]
    assert [cell.value for cell in drawn.rows[0][1:]] == pytest.approx(item.layers[-1][kept].tolist())
    assert all(any(cell.shade == "u8" for cell in row) for row in drawn.rows)


def test_the_largest_magnitude_has_the_darkest_shade():
    drawn = make_heatmap(["a", "b"], ["x", "y"], [[1.0, -4.0], [float("nan"), 0.0]], signed=True)
    assert [[cell.shade for cell in row[1:]] for row in drawn.rows] == [["p2", "n8"], ["", ""]]


def test_a_probability_is_shown_with_its_target(tmp_path):
    good, bad = (model().probabilities(model().encode([TEXTS[1]]))[0, label] for label in (1, 2))
    assert good < bad
    expound.compare(model(), [TEXTS[1]], METHODS[:2], ["aopc_sufficiency"], target="good", output_dir=tmp_path / "of")
    made = site(tmp_path, results=[tmp_path / "of"])
    pages = [admin(made).get(f"/browse/of{path}").text for path in ("", "/examples/0")]
    for page in pages:
        shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
        assert f"good ({good:.3f}) " in shown
        assert not re.search(r"bad \(", shown)
    assert "prediction <strong>bad</strong>" in pages[1]
    with pytest.raises(ExpoundError, match="explain good"), made.studies.write_session() as session:
        create_project(session, "other", select_comparison_items(open_results([tmp_path / "of"])["of"].comparison, 1))


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ExpoundError, match="holds no results"):
        open_results([tmp_path])


def test_results_are_found_in_nested_folders(tmp_path, comparison):
    for place in ("runs/judged", "runs/deep/er/other"):
        shutil.copytree(comparison, tmp_path / place)
    (tmp_path / "runs" / "model").mkdir()
    assert list(open_results([tmp_path / "runs"])) == ["other", "judged"]


def test_results_of_one_name_get_distinct_addresses(comparison):
    assert list(open_results([comparison, comparison])) == ["reviews", "reviews-2"]


def test_a_result_without_learned_explainers_has_no_heads(tmp_path, comparison):
    assert admin(site(tmp_path, results=[comparison])).get("/browse/reviews/heads").status_code == 404
