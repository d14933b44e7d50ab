"""The shipped contracts hold for every native method and metric, and catch what breaks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import exegete
from exegete.data.cards import MethodCard
from exegete.explainers import EXPLAINERS, Explainer
from exegete.metrics import METRICS
from exegete.metrics.faithfulness.naopc import Naopc
from exegete.testing import ExplainerContract, MetricContract
from exegete.testing.models import random_model

QUICK = [
    name
    for name, kind in EXPLAINERS.items()
    if not kind.card.learned
    and kind.card.family not in ("prompted", "search", "interactions")
    and name != "shapley_sampling"
]
FEWER = {"integrated_gradients": {"n_steps": 4}, "smooth_grad": {"n_samples": 3}, "gradient_shap": {"n_samples": 3}}
FEWER |= {name: {"n_samples": 40} for name in ("lime", "kernel_shap")}
FEWER |= {name: {"beam": 2, "max_units": 12} for name, kind in METRICS.items() if issubclass(kind, Naopc)}


@pytest.mark.parametrize("name", QUICK)
class TestNativeExplainers(ExplainerContract):
    @pytest.fixture
    def explainer(self, name):
        return exegete.explainer(name, **FEWER.get(name, {}))


@pytest.mark.parametrize("name", [name for name in METRICS if exegete.metric(name).applies(random_model())])
class TestNativeMetrics(MetricContract):
    @pytest.fixture
    def metric(self, name):
        return exegete.metric(name, **FEWER.get(name, {}))


@dataclass(frozen=True)
class Careless(Explainer):
    """Leaves a hook behind, and looks at its neighbours."""

    card: ClassVar = MethodCard(name="careless", family="control", signed=True, cost="F")

    def scores(self, model, batch, target):
        model.model.register_forward_hook(lambda *_: None)
        return torch.full(batch.content.shape, float(batch.length), dtype=torch.float64)


def test_a_careless_method_is_caught():
    contract = ExplainerContract()
    with pytest.raises(AssertionError):
        contract.test_the_model_leaves_as_it_came(Careless(), random_model())
    with pytest.raises(AssertionError):
        contract.test_an_example_is_explained_alike_alone_and_in_a_batch(Careless(), random_model())
