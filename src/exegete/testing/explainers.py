"""Contract tests for every explainer; inherit the class and give it one fixture, `explainer`."""

from __future__ import annotations

import pytest
import torch

from exegete.errors import ExegeteError
from exegete.explainers import Explainer
from exegete.models import ExplainedModel
from exegete.testing.models import make_examples, random_language_model, select_example
from exegete.testing.no_side_effects import NoSideEffectsContract


class ExplainerContract(NoSideEffectsContract):
    """Contract tests of an attribution method, on a small classifier and on what two language models say.

    A method that does not apply to a model raises an ExegeteError that says so: the contract takes that as an answer.

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
        batch = model.encode(make_examples())
        scores = explainer.attribute(model, batch).detach()
        assert scores.shape == batch.content.shape
        assert scores.isfinite().all()
        assert not scores[~batch.content].any()
        assert explainer.signed or (scores >= -self.tolerance).all() or explainer.card.family == "control"

    def test_an_example_is_explained_alike_alone_and_in_a_batch(
        self, explainer: Explainer, model: ExplainedModel
    ) -> None:
        """Padding and neighbours change nothing."""
        batch = model.encode(make_examples())
        together = explainer.attribute(model, batch).detach()
        for row in range(len(batch)):
            single = select_example(batch, row)
            scores = explainer.attribute(model, single).detach()[0]
            torch.testing.assert_close(together[row, : single.length], scores, rtol=1e-5, atol=self.tolerance)

    def test_a_graph_is_kept_when_promised_and_not_without_gradients(
        self, explainer: Explainer, model: ExplainedModel
    ) -> None:
        """A differentiable method's scores have a gradient at some weight; under no_grad nothing has."""
        batch = model.encode(make_examples(2))
        target = torch.tensor([0, 1])
        with torch.no_grad():
            assert not explainer.attribute(model, batch, target).requires_grad
        if explainer.differentiable:
            loss = explainer.attribute(model, batch, target).square().sum()
            found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            assert any(slope is not None and bool(slope.any()) for slope in found)

    @pytest.mark.parametrize("family", ["gpt2", "t5"])
    def test_generated_text_is_explained_or_refused(self, explainer: Explainer, family: str) -> None:
        """Of a decoder and of an encoder with one: finite scores, the same alone and padded, or an ExegeteError."""
        speaker, batch = random_language_model(family)
        try:
            scores = explainer.attribute(speaker, batch).detach()
        except ExegeteError:
            return
        assert scores.shape == batch.content.shape
        assert not scores[~batch.content].any()
        for row in range(len(batch)):
            single = select_example(batch, row)
            expected = explainer.attribute(speaker, single).detach()[0][single.content[0]]
            torch.testing.assert_close(scores[row, batch.content[row]], expected, rtol=1e-5, atol=self.tolerance)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_other_data_types_are_explained(
        self, explainer: Explainer, model: ExplainedModel, dtype: torch.dtype
    ) -> None:
        """Scores of a model in single or half precision are finite numbers, too."""
        model.model.to(dtype)
        batch = model.encode(make_examples(2))
        scores = explainer.attribute(model, batch).detach()
        assert scores.isfinite().all()
        assert not scores[~batch.content].any()

    def test_a_class_that_is_not_there_is_an_error(self, explainer: Explainer, model: ExplainedModel) -> None:
        """A target out of range is refused in a sentence."""
        with pytest.raises(ExegeteError):
            explainer.attribute(model, model.encode(make_examples(1)), len(model.labels))
