"""Contract tests for objectives; inherit the class and define one fixture, `objective`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from expound.data.provenance import to_json_value
from expound.errors import ExpoundError
from expound.models import Batch, ExplainedModel
from expound.objectives import Objective, StepContext, TrainingStep
from expound.testing.models import make_examples, random_model, replace_layer_norms, select_example
from expound.testing.no_side_effects import find_changes, snapshot
from expound.training.loop.training_module import TrainingModule

TRAINING, EVALUATION = StepContext(), StepContext(training=False)


class ObjectiveContract:
    """Contract tests of a term of a training loss. `tolerance`: absolute tolerance, for subclasses to raise.

    Example:
        class TestMyObjective(ObjectiveContract):
            @pytest.fixture
            def objective(self):
                return MyObjective()
    """

    tolerance = 1e-6

    @pytest.fixture
    def model(self) -> ExplainedModel:
        """A small random classifier in float64; override it for objectives that need another model."""
        return random_model()

    def test_name_weight_and_parameters_are_valid(self, objective: Objective) -> None:
        """The name is an identifier, the weight at least 0, the share in (0, 1], and parameters are plain values."""
        assert objective.name.isidentifier()
        assert objective.weight >= 0
        assert 0 < objective.batch_fraction <= 1
        assert json.dumps(to_json_value(objective.params))

    def test_the_gradient_is_the_derivative(self, objective: Objective, model: ExplainedModel) -> None:
        """The gradient agrees with finite differences; one that is an estimate has to exist and be finite."""
        batch = model.encode(make_examples(2))
        if objective.exact_gradient:
            point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
            assert torch.autograd.gradcheck(
                _term_along_directions(model, objective, batch), (point,), atol=1e-6, rtol=1e-4
            )
            return
        compute_term(model, objective, batch).backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert any(gradient.any() for gradient in gradients)

    def test_the_term_of_a_batch_is_the_mean_over_its_examples(
        self, objective: Objective, model: ExplainedModel
    ) -> None:
        """Examples are weighted by `size`; objectives that are not `separable` are excepted."""
        batch = model.encode(make_examples())
        batch_term = compute_term(model, objective, batch, EVALUATION)
        assert batch_term.shape == ()
        if not objective.separable:
            return
        rows = [select_example(batch, row) for row in range(len(batch))]
        sizes = torch.stack([objective.size(row) for row in rows]).double()
        terms = torch.stack([compute_term(model, objective, row, EVALUATION) for row in rows])
        torch.testing.assert_close(objective.size(batch).double(), sizes.sum())
        expected = (terms * sizes).sum() / sizes.sum()
        torch.testing.assert_close(batch_term, expected, rtol=1e-5, atol=self.tolerance)

    def test_examples_without_rationale_do_not_count(self, objective: Objective, model: ExplainedModel) -> None:
        """Without rationales the term is finite; if no example counts, the term and its gradient are 0."""
        rows = [row | {"rationale": None} for row in make_examples(2)]
        for batch in (model.encode(rows), model.encode([*rows, *make_examples(1)])):
            model.zero_grad()
            value = compute_term(model, objective, batch)
            assert value.isfinite()
            if value.requires_grad:
                value.backward()
            assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())
            if not objective.size(batch):
                assert value == 0
                assert not any(weight.grad is not None and weight.grad.any() for weight in model.parameters())

    def test_nan_weights_give_no_finite_term(self, objective: Objective, model: ExplainedModel) -> None:
        """A model with NaN weights gives a NaN term or an ExpoundError, never a number that looks like success."""
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(torch.nan)
        batch = model.eval().encode(make_examples())
        embeddings = model.embed_with_gradient(batch, keep_graph=True)
        outputs = model(batch, embeddings, objective.capture)
        try:
            value = objective(TrainingStep(model, batch, outputs))
        except ExpoundError:
            return
        assert not value.isfinite()

    def test_random_numbers_come_from_the_step(self, objective: Objective, model: ExplainedModel) -> None:
        """The term depends on the step and not on torch's global generator, and changes neither it nor the model."""
        batch, values = model.eval().encode(make_examples()), []
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = snapshot(model)
            values.append(compute_term(model, objective, batch).detach())
            assert find_changes(before, model) == []
        torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)


def compute_term(model: ExplainedModel, objective: Objective, batch: Batch, context: StepContext = TRAINING) -> Tensor:
    """Return the unweighted term [] of a training step, without dropout."""
    module = TrainingModule(model, [objective]).eval()
    value: Tensor = module(batch, context)["terms"][0]
    return value


def _term_along_directions(model: ExplainedModel, objective: Objective, batch: Batch) -> Callable[[Tensor], Tensor]:
    """Return the term as a function of steps [3] along three random directions in the space of all weights."""
    # three directions instead of every weight: finite differences take two passes for each
    replace_layer_norms(model)
    module = TrainingModule(model, [objective]).eval()
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    directions = {}
    for name, weight in weights.items():
        directions[name] = 0.1 * torch.randn(3, *weight.shape, generator=generator, dtype=weight.dtype)

    def term_at(point: Tensor) -> Tensor:
        moved = {name: weight + torch.tensordot(point, directions[name], 1) for name, weight in weights.items()}
        terms: Tensor = torch.func.functional_call(module, moved, (batch, TRAINING))["terms"]
        return terms

    return term_at
