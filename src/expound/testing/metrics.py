"""Contract tests for metrics; inherit the class and define one fixture, `metric`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from expound.explainers import explainer
from expound.metrics import Metric
from expound.models import ExplainedModel
from expound.testing.models import make_examples, select_example, shared_model


class MetricContract:
    """Contract tests of a metric. `tolerance`: absolute tolerance of comparisons, for subclasses to raise.

    Example:
        class TestMyMetric(MetricContract):
            @pytest.fixture
            def metric(self):
                return MyMetric()
    """

    tolerance = 1e-5

    @pytest.fixture
    def model(self) -> ExplainedModel:
        """A small random classifier that no test changes; override it for metrics that need another."""
        return shared_model()

    def test_each_example_has_a_value_within_the_bounds(self, metric: Metric, model: ExplainedModel) -> None:
        """The result contains [B] values under the metric's id; all values are within the card's bounds, or NaN."""
        batch = model.encode(make_examples())
        results = metric.evaluate(model, batch, explainer("random").attribute(model, batch))
        assert metric.name in results
        low, high = metric.card.bounds
        for values in results.values():
            known = values[~values.isnan()]
            assert values.shape == (len(batch),)
            assert low is None or (known >= low - self.tolerance).all()
            assert high is None or (known <= high + self.tolerance).all()

    def test_values_do_not_depend_on_the_batch(self, metric: Metric, model: ExplainedModel) -> None:
        """Padding changes no value; other examples do only if the metric compares examples."""
        batch = model.encode(make_examples())
        scores = explainer("random").attribute(model, batch)
        batch_values = metric.evaluate(model, batch, scores)[metric.name]
        tolerance: Any = {"rtol": 1e-4, "atol": self.tolerance, "equal_nan": True}
        for row in range(0 if metric.compares_examples else len(batch)):
            single = select_example(batch, row)
            value = metric.evaluate(model, single, scores[row : row + 1, : single.length])[metric.name]
            torch.testing.assert_close(batch_values[row : row + 1], value, **tolerance)
        # the two shortest examples, padded to the longest of the batch and without that padding
        order = batch.attended.sum(1).argsort()[:2]
        padded = batch.select(order)
        trimmed, columns = padded.trim_padding()
        padded_values = metric.evaluate(model, padded, scores[order])[metric.name]
        trimmed_values = metric.evaluate(model, trimmed, scores[order, columns])[metric.name]
        torch.testing.assert_close(padded_values, trimmed_values, **tolerance)

    def test_nan_scores_give_nan_for_their_example_only(self, metric: Metric, model: ExplainedModel) -> None:
        """An example with a NaN score has the value NaN; the others have the values they have without it."""
        batch = model.encode(make_examples(3))
        scores = explainer("random").attribute(model, batch)
        broken = scores.clone()
        broken[0, batch.content[0].long().argmax()] = torch.nan
        values = metric.evaluate(model, batch, broken)[metric.name]
        others = metric.evaluate(model, batch.select([1, 2]), scores[1:])[metric.name]
        assert values[0].isnan()
        torch.testing.assert_close(values[1:], others, rtol=1e-4, atol=self.tolerance, equal_nan=True)
