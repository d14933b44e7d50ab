"""The shipped contracts hold for every native method and metric, and catch what breaks them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import expound
import families
from expound.data.cards import MethodCard
from expound.explainers import EXPLAINERS, Explainer
from expound.explainers.attributive_masking import AttributiveMasking
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.learned.hidden_state_probe import HiddenStateProbe
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.explainers.learned.rationale_extractor import RationaleExtractor
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.metrics import METRICS
from expound.metrics.faithfulness.naopc import Naopc
from expound.testing import ExplainerContract, MetricContract, NoSideEffectsContract, make_examples, random_model
from small import make_explainer

QUICK = [
    name
    for name, kind in EXPLAINERS.items()
    if not kind.card.learned and kind.card.family not in ("prompted", "search") and name != "shapley_sampling"
]
FEWER = {"integrated_gradients": {"n_steps": 4}, "smooth_grad": {"n_samples": 3}, "gradient_shap": {"n_samples": 3}}
FEWER |= {name: {"n_samples": 40} for name in ("lime", "kernel_shap")}
FEWER |= {"spex": {"unit": "sentence"}, "solvex": {"unit": "sentence", "beam": 2}}
FEWER |= {name: {"beam": 1, "max_units": 11} for name, kind in METRICS.items() if issubclass(kind, Naopc)}


@pytest.mark.parametrize("name", QUICK)
class TestNativeExplainers(ExplainerContract):
    @pytest.fixture
    def explainer(self, name):
        return expound.explainer(name, **FEWER.get(name, {}))


@pytest.mark.parametrize("name", [name for name in METRICS if expound.metric(name).supports(random_model())])
class TestNativeMetrics(MetricContract):
    @pytest.fixture
    def metric(self, name):
        return expound.metric(name, **FEWER.get(name, {}))


LEARNED = {
    "attention_to_source": lambda model: AttentionToSource(*heads(model)).double(),
    "hidden_state_probe": lambda model: HiddenStateProbe.for_model(model).double(),
    "rationale_extractor": lambda model: RationaleExtractor.for_model(model).double(),
    "parameterized_attention": lambda model: ParameterizedAttention.for_model(model).double(),
    "interpretable_attention": lambda model: InterpretableAttention.for_model(model).double(),
    "attributive_masking": lambda model: AttributiveMasking.for_model(model).double(),
    "citation": lambda _: TrainedCitation(make_explainer("input_x_gradient"), "word", threshold=0.2),
}


def heads(model):
    return model.config.num_hidden_layers, model.config.num_attention_heads


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    """The folder of a chat model."""
    folder = tmp_path_factory.mktemp("ranker")
    families.tiny("gpt2", "CausalLM", n_positions=2000).save_pretrained(folder)
    tokenizer = copy.deepcopy(families.tokenizer("gpt2"))
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", [name for name in EXPLAINERS if name not in QUICK])
class TestOtherNativeExplainers(NoSideEffectsContract):
    """Methods that search, learn or ask another model have no side effects."""

    @pytest.fixture
    def explainer(self, name, model, request):
        if name == "llm_ranking":
            return expound.explainer(name, ranker=str(request.getfixturevalue("ranker")))
        return LEARNED[name](model) if name in LEARNED else make_explainer(name, **FEWER.get(name, {}))


@dataclass(frozen=True)
class Careless(Explainer):
    """Leaves a hook behind, and looks at its neighbors."""

    card: ClassVar = MethodCard(name="careless", family="control", signed=True, cost="F")

    def scores(self, model, batch, target):
        model.model.register_forward_hook(lambda *_: None)
        return torch.full(batch.content.shape, float(batch.length), dtype=torch.float64)


def test_a_careless_method_is_caught():
    contract = ExplainerContract()
    with pytest.raises(AssertionError):
        contract.test_the_model_is_unchanged(Careless(), random_model(), make_examples(2))
    with pytest.raises(AssertionError):
        contract.test_scores_do_not_depend_on_the_batch(Careless(), random_model())
