"""The teacher's gradient in forward mode, against a graph through the whole inner step and against differences."""

import pytest
import torch
from torch.func import functional_call

from expound import ExpoundError
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.models import Capture
from expound.models.layers.scalar_mix import add_scalar_mix
from expound.training.bilevel.lookahead import explanation_divergence, meta_gradient
from small import shared, small, uneven

RATE, WEIGHT = 0.5, 5.0
CAPTURE = Capture(heads=True, differentiable_twice=True)
LABELS = torch.tensor([0, 2])


class Student(torch.nn.Module):
    """Logits and explanation of one pass, so that weights can be handed over."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.explainer = ParameterizedAttention.for_model(model).double()

    def forward(self, batch):
        outputs = self.model(batch, capture=CAPTURE)
        return outputs.logits, self.explainer.compute(self.model, batch, [LABELS], outputs)[0].scores


class Scene:
    """A teacher, a student, a batch to learn from and one to be judged on."""

    def __init__(self, family, normalizer):
        teacher = shared(family)
        self.student = Student(small(family, initializer_range=0.3))
        self.inner, self.outer = (teacher.encode(uneven(family, 4)[half]) for half in (slice(2), slice(2, 4)))
        self.weights = {
            name: weight for name, weight in self.student.named_parameters() if not name.startswith("explainer")
        }
        self.explainer = ParameterizedAttention.for_model(teacher, normalizer=normalizer).double()
        with torch.no_grad():
            self.explainer.coefficients.add_(torch.linspace(-0.1, 0.1, 8, dtype=torch.float64).view(2, 4))
            outputs = teacher(self.inner, capture=CAPTURE)
            self.kept = self.explainer.head_logits(teacher, self.inner, outputs)

    def explain_with_teacher(self):
        return self.explainer.mix_heads(self.kept, self.inner.attended)

    def step_weights(self, taught, graph):
        """Return the student's weights after the inner step."""
        logits, explanation = functional_call(self.student, self.weights, (self.inner,))
        loss = torch.nn.functional.cross_entropy(logits, LABELS) + WEIGHT * explanation_divergence(taught, explanation)
        slopes = torch.autograd.grad(loss, list(self.weights.values()), create_graph=graph, allow_unused=True)
        pairs = zip(self.weights.items(), slopes, strict=True)
        return {name: weight if slope is None else weight - RATE * slope for (name, weight), slope in pairs}

    def compute_outer_loss(self, weights):
        logits, _ = functional_call(self.student, weights, (self.outer,))
        return torch.nn.functional.cross_entropy(logits, LABELS)

    def forward_mode(self):
        after = {
            name: weight.detach().requires_grad_()
            for name, weight in self.step_weights(self.explain_with_teacher().detach(), False).items()
        }
        slopes = torch.autograd.grad(self.compute_outer_loss(after), list(after.values()), materialize_grads=True)

        def explain(weights):
            return functional_call(self.student, weights, (self.inner,))[1]

        slopes = dict(zip(after, slopes, strict=True))
        (found,) = meta_gradient(
            self.explain_with_teacher(), [self.explainer.coefficients], explain, self.weights, slopes, RATE * WEIGHT
        )
        return found


@pytest.mark.parametrize("normalizer", ["sparsemax", "softmax", "none"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_meta_gradient_equals_double_backward(family, normalizer):
    scene = Scene(family, normalizer)
    loss = scene.compute_outer_loss(scene.step_weights(scene.explain_with_teacher(), True))
    (expected,) = torch.autograd.grad(loss, scene.explainer.coefficients)
    found = scene.forward_mode()
    assert found.abs().max() > 1e-8
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_the_meta_gradient_equals_finite_differences():
    # A student whose head reads all layers.
    scene = Scene("bert", "softmax")
    add_scalar_mix(scene.student.model.model)
    scene.weights |= {f"model.model.{name}": each for name, each in scene.student.model.model.named_parameters()}
    found, ends = scene.forward_mode(), []
    direction = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for size in (1e-4, -1e-4):
        with torch.no_grad():
            scene.explainer.coefficients.add_(direction, alpha=size)
        ends.append(scene.compute_outer_loss(scene.step_weights(scene.explain_with_teacher().detach(), False)).detach())
        with torch.no_grad():
            scene.explainer.coefficients.sub_(direction, alpha=size)
    expected = (ends[0] - ends[1]) / 2e-4
    torch.testing.assert_close((found * direction).sum(), expected, rtol=1e-4, atol=1e-10)


def test_divergence_by_hand_has_the_teacher_first():
    teacher, student = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.75, 0.0]] * 2)
    first = 0.5 * torch.tensor(2.0).log() + 0.5 * torch.tensor(2 / 3).log()
    second = torch.tensor(4.0).log()
    torch.testing.assert_close(explanation_divergence(teacher, student), (first + second) / 2, rtol=1e-5, atol=1e-6)


def test_mismatched_names_and_independent_explanations_are_refused():
    weight, taught = {"w": torch.ones(2)}, torch.full((1, 2), 0.5, requires_grad=True)
    with pytest.raises(ExpoundError, match="without partner: v, w"):
        meta_gradient(taught, [taught], lambda given: given["w"][None], weight, {"v": torch.ones(2)}, 1.0)
    with pytest.raises(ExpoundError, match="does not depend"):
        meta_gradient(taught, [taught], lambda given: torch.full((1, 2), 0.5), weight, weight, 1.0)
