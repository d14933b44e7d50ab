"""Contract tests for explainers; inherit the class and define one fixture, `explainer`."""

from __future__ import annotations

import pytest
import torch

from expound.errors import ExpoundError
from expound.explainers import Explainer
from expound.models import ExplainedModel
from expound.testing.models import make_examples, select_example, shared_language_model
from expound.testing.no_side_effects import NoSideEffectsContract


class ExplainerContract(NoSideEffectsContract):
    """Contract tests of an explainer, on a small classifier and on responses of two small language models.

    An explainer that does not apply to language models raises an ExpoundError: the contract accepts that.
    `tolerance`: absolute tolerance of comparisons, for subclasses to raise.

    Example:
        class TestMyMethod(ExplainerContract):
            @pytest.fixture
            def explainer(self):
                return MyMethod()
    """

    tolerance = 1e-6

    def test_name_cost_and_parameters_are_complete(self, explainer: Explainer) -> None:
        """The id is an identifier, the card names a cost, and `params` create an equal explainer."""
        assert explainer.name.isidentifier()
        assert explainer.card.cost
        assert all(number >= 0 for number in explainer.passes(10))
        assert type(explainer)(**explainer.params) == explainer

    def test_scores_do_not_depend_on_the_batch(self, explainer: Explainer, model: ExplainedModel) -> None:
        """Scores are [B, L], finite, 0 outside content, at least 0 if unsigned, and equal for an example alone."""
        batch = model.encode(make_examples())
        batch_scores = explainer.attribute(model, batch).detach()
        assert batch_scores.shape == batch.content.shape
        assert batch_scores.isfinite().all()
        assert not batch_scores[~batch.content].any()
        assert explainer.signed or (batch_scores >= -self.tolerance).all() or explainer.card.family == "control"
        for row in range(len(batch)):
            single = select_example(batch, row)
            scores = explainer.attribute(model, single).detach()[0]
            torch.testing.assert_close(batch_scores[row, : single.length], scores, rtol=1e-5, atol=self.tolerance)

    def test_a_differentiable_explainer_has_gradients_except_under_no_grad(
        self, explainer: Explainer, model: ExplainedModel
    ) -> None:
        """Scores of a differentiable explainer have a gradient at some weight; under `no_grad` scores have no graph."""
        batch = model.encode(make_examples(2))
        target = torch.tensor([0, 1])
        with torch.no_grad():
            assert not explainer.attribute(model, batch, target).requires_grad
        if explainer.differentiable:
            loss = explainer.attribute(model, batch, target).square().sum()
            gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            assert any(gradient is not None and bool(gradient.any()) for gradient in gradients)

    @pytest.mark.parametrize("family", ["gpt2", "t5"])
    def test_generated_text_is_explained_or_refused(self, explainer: Explainer, family: str) -> None:
        """For a decoder and an encoder-decoder: scores that do not depend on the batch, or an ExpoundError."""
        language_model, batch = shared_language_model(family)
        try:
            scores = explainer.attribute(language_model, batch).detach()
        except ExpoundError:
            return
        assert scores.shape == batch.content.shape
        assert not scores[~batch.content].any()
        for row in range(len(batch)):
            single = select_example(batch, row)
            expected = explainer.attribute(language_model, single).detach()[0][single.content[0]]
            torch.testing.assert_close(scores[row, batch.content[row]], expected, rtol=1e-5, atol=self.tolerance)

    def test_scores_in_lower_precision_are_finite(self, explainer: Explainer, model: ExplainedModel) -> None:
        """Scores of a model in float32 and bfloat16 are finite."""
        batch = model.encode(make_examples(2))
        for dtype in (torch.float32, torch.bfloat16):
            model.model.to(dtype)
            scores = explainer.attribute(model, batch).detach()
            assert scores.isfinite().all()
            assert not scores[~batch.content].any()

    def test_a_class_out_of_range_is_an_error(self, explainer: Explainer, model: ExplainedModel) -> None:
        """A target beyond the model's classes raises ExpoundError."""
        with pytest.raises(ExpoundError):
            explainer.attribute(model, model.encode(make_examples(1)), len(model.labels))
