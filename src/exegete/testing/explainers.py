"""Contract tests for every explainer; inherit the class and give it one fixture, `explainer`."""

from __future__ import annotations

import torch

from exegete.explainers import Explainer
from exegete.models import ExplainedModel
from exegete.testing.models import alone, texts
from exegete.testing.preserving import PreservingContract


class ExplainerContract(PreservingContract):
    """Contract tests of an attribution method.

    Example:
        class TestMyMethod(ExplainerContract):
            @pytest.fixture
            def explainer(self):
                return MyMethod()
    """

    tolerance = 1e-6

    def test_its_facts_are_told(self, explainer: Explainer) -> None:
        """Id, cost and parameters are there for tables and help texts."""
        assert explainer.name.isidentifier()
        assert explainer.card.cost
        assert all(number >= 0 for number in explainer.passes(10))
        assert type(explainer)(**explainer.params) == explainer

    def test_scores_are_finite_and_zero_outside_content(self, explainer: Explainer, model: ExplainedModel) -> None:
        """One finite score a position; padding and special tokens have none."""
        batch = model.encode(texts())
        scores = explainer.attribute(model, batch).detach()
        assert scores.shape == batch.content.shape
        assert scores.isfinite().all()
        assert not scores[~batch.content].any()
        assert explainer.signed or (scores >= -self.tolerance).all() or explainer.card.family == "control"

    def test_an_example_is_explained_alike_alone_and_in_a_batch(
        self, explainer: Explainer, model: ExplainedModel
    ) -> None:
        """Padding and neighbours change nothing."""
        batch = model.encode(texts())
        together = explainer.attribute(model, batch).detach()
        for row in range(len(batch)):
            single = alone(batch, row)
            scores = explainer.attribute(model, single).detach()[0]
            torch.testing.assert_close(together[row, : single.length], scores, rtol=1e-5, atol=self.tolerance)

    def test_a_graph_is_kept_when_promised_and_not_without_gradients(
        self, explainer: Explainer, model: ExplainedModel
    ) -> None:
        """A differentiable method's scores have a gradient at some weight; under no_grad nothing has."""
        batch = model.encode(texts(2))
        target = torch.tensor([0, 1])
        with torch.no_grad():
            assert not explainer.attribute(model, batch, target).requires_grad
        if explainer.differentiable:
            loss = explainer.attribute(model, batch, target).square().sum()
            found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            assert any(slope is not None and bool(slope.any()) for slope in found)
