"""Contract tests for every metric; inherit the class and give it one fixture, `metric`."""

from __future__ import annotations

import pytest
import torch

from exegete.explainers import explainer
from exegete.metrics import Metric
from exegete.models import ExplainedModel
from exegete.testing.models import make_examples, random_model, select_example


class MetricContract:
    """Contract tests of a metric.

    Example:
        class TestMyMetric(MetricContract):
            @pytest.fixture
            def metric(self):
                return MyMetric()
    """

    tolerance = 1e-5

    @pytest.fixture
    def model(self) -> ExplainedModel:
        """A small random classifier; override it for metrics that need another."""
        return random_model()

    def test_a_value_an_example_within_the_bounds(self, metric: Metric, model: ExplainedModel) -> None:
        """[B] values under the metric's id, inside what its card says."""
        batch = model.encode(make_examples())
        found = metric.evaluate(model, batch, explainer("random").attribute(model, batch))
        assert metric.name in found
        low, high = metric.card.bounds
        for values in found.values():
            known = values[~values.isnan()]
            assert values.shape == (len(batch),)
            assert low is None or (known >= low - self.tolerance).all()
            assert high is None or (known <= high + self.tolerance).all()

    def test_an_example_is_judged_alike_alone_and_in_a_batch(self, metric: Metric, model: ExplainedModel) -> None:
        """Padding changes nothing, and neighbours only where the metric compares examples with each other."""
        batch = model.encode(make_examples())
        scores = explainer("random").attribute(model, batch)
        together = metric.evaluate(model, batch, scores)[metric.name]
        for row in range(0 if metric.compares_examples else len(batch)):
            single = select_example(batch, row)
            value = metric.evaluate(model, single, scores[row : row + 1, : single.length])[metric.name]
            torch.testing.assert_close(together[row : row + 1], value, rtol=1e-4, atol=self.tolerance, equal_nan=True)
        order = batch.attended.sum(1).argsort()[:2]
        padded = batch.select(order)
        short, columns = padded.trim_padding()
        wide, narrow = (
            metric.evaluate(model, each, scores[order, columns][:, : each.length] if each is short else scores[order])
            for each in (padded, short)
        )
        torch.testing.assert_close(
            wide[metric.name], narrow[metric.name], rtol=1e-4, atol=self.tolerance, equal_nan=True
        )

    def test_scores_that_are_no_numbers_have_no_value(self, metric: Metric, model: ExplainedModel) -> None:
        """NaN in, NaN out, for that example only; the others are judged as they are without it."""
        batch = model.encode(make_examples(3))
        scores = explainer("random").attribute(model, batch)
        broken = scores.clone()
        broken[0, batch.content[0].long().argmax()] = torch.nan
        values = metric.evaluate(model, batch, broken)[metric.name]
        others = metric.evaluate(model, batch.select([1, 2]), scores[1:])[metric.name]
        assert values[0].isnan()
        torch.testing.assert_close(values[1:], others, rtol=1e-4, atol=self.tolerance, equal_nan=True)
