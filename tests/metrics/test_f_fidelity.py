from __future__ import annotations

import pytest
import torch

import expound
import families
from expound.errors import ExpoundError
from expound.explainers.units import number_units
from expound.metrics import metric
from expound.models import ExplainedModel
from expound.testing import MetricContract
from expound.testing.models import random_model
from judged import OneByOne, attribution_for, model_of


def save_model(model, folder):
    model.model.save_pretrained(folder)
    model.processing_class.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Another model of the same outputs, in a folder."""
    other = families.tiny("bert", dtype=torch.float64)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.3)
    return save_model(ExplainedModel(other, families.processor("bert")), tmp_path_factory.mktemp("copy"))


@pytest.mark.parametrize("perturbation", ["mask", "remove"])
def test_f_fidelity_without_sampling_equals_comprehensiveness_of_the_copy(copy, perturbation):
    model, judge = model_of("bert", dtype=torch.float64), expound.load(copy, device="cpu")
    batch = model.encode(families.SENTENCES[:3])
    scores, target = attribution_for(batch).double(), model.predict(batch)
    fidelity = metric(
        "f_fidelity",
        copy=copy,
        removed_fraction=1.0,
        max_fraction=1.0,
        n_samples=1,
        fractions=(0.25, 0.5),
        perturbation=perturbation,
    )
    got = fidelity.evaluate(model, batch, scores)["f_fidelity"]
    unit = number_units(batch, "word")
    for row in range(3):
        answer = OneByOne(judge, batch, row, target, perturbation)
        count = int(unit[row].max()) + 1
        own = [float(scores[row][unit[row] == number].sum()) for number in range(count)]
        order = sorted(range(count), key=lambda number, own=own: -own[number])
        drops = []
        for size in (-(-count // 4), -(-count // 2)):
            removed = [p for p in answer.content if int(unit[row, p]) in order[:size]]
            drops.append(answer(()) - answer(removed))
        assert float(got[row]) == pytest.approx(sum(drops) / 2, abs=1e-6)


def test_at_most_alpha_of_the_top_and_beta_of_all_units_are_removed(copy):
    model = model_of("bert")
    batch = model.encode(families.SENTENCES[:3])
    judge = metric(
        "f_fidelity", copy=copy, fractions=(0.2, 0.4, 1.0), removed_fraction=0.5, max_fraction=0.25, n_samples=6
    )
    ordered = judge.order_units(batch, attribution_for(batch))
    taken = judge.draw_removed(batch, ordered).unflatten(0, (3, 6))
    for row, count in enumerate(ordered.counts.tolist()):
        for budget, part in zip((0.2, 0.4, 1.0), taken[:, :, row], strict=True):
            top = -int(-count * budget // 1)
            expected = min(-(-top // 2), -(-count // 4))
            assert part.sum(1).tolist() == [expected] * 6
            assert (ordered.place[row][part.any(0)] < top).all()
    assert (taken[2, :, :, :].any(0).sum(-1) > taken[2, 0].sum(-1)).all()  # other parts in other draws
    assert torch.equal(judge.draw_removed(batch, ordered), taken.flatten(0, 1))


def test_all_methods_get_the_same_random_draws(copy):
    model = model_of("bert")
    batch = model.encode([families.SENTENCES[0]])
    judge = metric("f_fidelity", copy=copy, fractions=(1.0,))
    both = [judge.draw_removed(batch, judge.order_units(batch, attribution_for(batch, seed))) for seed in (0, 1)]
    assert torch.equal(*both)


def test_a_copy_is_needed_and_must_answer_the_same_labels(copy):
    model = model_of("bert")
    batch = model.encode(families.SENTENCES[:1])
    assert not metric("f_fidelity").supports(model)
    with pytest.raises(ExpoundError, match="needs a copy fine-tuned on random masks"):
        metric("f_fidelity").evaluate(model, batch, attribution_for(batch))
    other = model_of("bert", num_labels=4)
    with pytest.raises(ExpoundError, match="is no copy of the model"):
        metric("f_fidelity", copy=copy).evaluate(other, batch, attribution_for(batch))


class TestContract(MetricContract):
    @pytest.fixture
    def metric(self, tmp_path_factory):
        return expound.metric("f_fidelity", copy=save_model(random_model(1), tmp_path_factory.mktemp("copy")))
