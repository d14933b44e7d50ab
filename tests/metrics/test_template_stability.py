"""Sources' scores under other words around the prompt."""

import numpy as np
import pytest
from scipy.stats import kendalltau

import exegete
from chats import CHAT, chatting
from exegete.errors import ExegeteError
from exegete.metrics.template_stability import TEMPLATES, template_stability

SOURCES = {"a": "a moving film", "b": "two women laugh", "c": "the plot is dull", "d": "it is simply long"}
ROW = {"prompt": "{sources}\nwhat is small ?", "sources": SOURCES, "response": " the town ."}


@pytest.fixture(scope="module")
def model():
    return chatting()


def test_template_stability_equals_the_correlation_by_hand(model):
    def scores(prompt):
        (found,) = exegete.attribute(model, [ROW | {"prompt": prompt}], "occlusion", unit="source")
        return found.to_pandas()[list(SOURCES)].to_numpy()[0]

    plain = scores(ROW["prompt"])
    each = [
        kendalltau(plain, scores(template.replace("{prompt}", ROW["prompt"]))).statistic for template in TEMPLATES[:2]
    ]
    found = template_stability(model, [ROW], "occlusion", templates=TEMPLATES[:2])
    np.testing.assert_allclose(found, [np.mean(each)], atol=1e-12)
    assert abs(found[0]) < 1


def test_chats_and_generated_responses_and_the_prompt_itself(model):
    chat = CHAT | {"sources": SOURCES}
    asked = [{name: value for name, value in chat.items() if name != "response"}, chat]
    assert template_stability(model, asked, "saliency", templates=["{prompt}"]).tolist() == [1.0, 1.0]
    found = template_stability(model, asked, "saliency", unit="word")
    assert ((found > 0) & (found < 1)).all()


def test_template_stability_of_one_source_is_nan(model):
    row = ROW | {"sources": {"a": "a moving film"}}
    assert np.isnan(template_stability(model, [row], "saliency")).all()


@pytest.mark.parametrize("templates", [[], ["read"], ["{prompt} {prompt}"]])
def test_templates_without_a_place_are_refused(model, templates):
    with pytest.raises(ExegeteError, match=r"expected templates with one \{prompt\} in each"):
        template_stability(model, [ROW], "saliency", templates=templates)
