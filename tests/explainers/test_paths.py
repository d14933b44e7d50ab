from __future__ import annotations

import numpy as np
import pytest
import torch
from captum.attr import DeepLift, GradientShap

import expound
from expound import Batch
from expound.explainers.gradients.adaptive_path import PathValue, integrate
from expound.explainers.gradients.paths import ScoreOfEmbeddings
from expound.explainers.seeding import example_seeds
from families import SENTENCES, processor, tiny

FAMILIES = ("bert", "llama")
SHORT = ["a moving film", "someone's old camera !"]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return expound.load(tiny(request.param, dtype=torch.float64), processor(request.param))


@pytest.fixture(scope="module")
def bert():
    return expound.load(tiny("bert", dtype=torch.float64), processor("bert"))


@pytest.fixture(scope="module")
def golden_case(golden):
    numbers = np.load(golden / "bert_captum_f64.npz")
    model = expound.load(golden / "bert-tiny", dtype=torch.float64, device="cpu")
    model.config.mask_token_id = 103
    given = {
        name: torch.tensor(numbers[name]) for name in ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    }
    special = torch.isin(given["input_ids"], torch.tensor([0, 101, 102]))
    return model, Batch.from_ids(**given, content=~special), numbers


def class_scores(numbers, name, target):
    return torch.tensor(numbers[name][target]).sum(-1)


@pytest.mark.real
def test_equals_the_published_numbers(golden_case):
    cases_0 = [
        ("deep_lift?rule=captum", "deeplift"),
        ("sequential_integrated_gradients?n_steps=50", "sig50"),
        ("sequential_integrated_gradients", "sig50"),
    ]
    for method, name in cases_0:
        for kind in ["mask", "zero"]:
            for target in [0, 1, 2]:
                model, batch, numbers = golden_case
                scores = expound.explainer(method, baselines=kind).attribute(model, batch, torch.full((6,), target))
                expected = class_scores(numbers, f"{name}_{kind}", target).masked_fill(~batch.content, 0)
                torch.testing.assert_close(scores, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.real
@pytest.mark.parametrize("target", [0, 2])
def test_captum_is_called_with_what_gave_the_published_gradient_shap(golden_case, target):
    """The published draws, put into the formula by hand on our module from embeddings to score."""
    model, batch, numbers = golden_case
    alphas, choice = numbers["gradshap_alphas"][target], numbers["gradshap_choice"][target]
    embeddings = model.embed(batch).detach()
    rows = torch.arange(6).repeat_interleave(8)
    baselines = torch.tensor(numbers["gradshap_baselines"])[torch.tensor(choice)]
    difference = embeddings[rows] - baselines
    points = (baselines + torch.tensor(alphas)[:, None, None] * difference).requires_grad_()
    score = ScoreOfEmbeddings(model, batch.select(rows), torch.full((48,), target))(points)
    (slope,) = torch.autograd.grad(score.sum(), points)
    mean = (slope * difference).sum(-1).view(6, 8, -1).mean(1)
    torch.testing.assert_close(mean, class_scores(numbers, "gradshap", target), atol=1e-7, rtol=1e-6)


def test_sig_is_complete_position_by_position(model):
    batch = model.encode(SHORT)
    target = torch.tensor([0, 2])
    explanation = expound.explainer("sequential_integrated_gradients", n_steps=50).explain(model, batch, target)
    embeddings, reference = model.embed(batch).detach(), model.embed_reference(batch).detach()
    with torch.no_grad():
        whole = model(batch, embeddings).logits.gather(1, target[:, None])[:, 0]
        for row, position in batch.content.nonzero().tolist():
            without = embeddings.clone()
            without[row, position] = reference[row, position]
            drop = whole[row] - model(batch, without).logits[row, target[row]]
            assert abs(float(explanation.scores[row, position] - drop)) < 1e-5
    assert explanation.convergence_delta.abs().max() < 1e-5


def test_sig_from_both_ends_is_the_integral(model):
    batch = model.encode(SHORT)
    target = torch.tensor([0, 2])
    exact = expound.explainer("sequential_integrated_gradients", n_steps="auto").attribute(model, batch, target)
    fine = expound.explainer("sequential_integrated_gradients", n_steps=120).attribute(model, batch, target)
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(exact, fine.detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("family", "baselines"), [("bert", "mask"), ("bert", "zero"), ("llama", "mask")])
def test_adaptive_integrated_gradients_comes_under_its_tolerance(family, baselines):
    model = expound.load(tiny(family, dtype=torch.float64), processor(family))
    batch = model.encode(SENTENCES)
    target = torch.zeros(len(SENTENCES), dtype=torch.long)
    auto = expound.explainer("integrated_gradients", n_steps="auto", tolerance=1e-4, baselines=baselines)
    fine = expound.explainer("integrated_gradients", n_steps=150, baselines=baselines)
    with torch.no_grad():
        ours, truth = auto.explain(model, batch, target), fine.explain(model, batch, target)
    embeddings, reference = model.embed(batch), model.embed_reference(batch, baselines)
    with torch.no_grad():
        rise = (model(batch, embeddings).logits - model(batch, reference).logits)[:, 0]
    assert (ours.convergence_delta.abs() <= 1e-4 * rise.abs()).all()
    torch.testing.assert_close(ours.scores, truth.scores, atol=float(3e-3 * truth.scores.abs().max()), rtol=0.01)


def test_adaptive_integrated_gradients_keeps_a_graph(bert):
    batch = bert.encode(SENTENCES[:2])
    auto = expound.explainer("integrated_gradients", n_steps="auto")
    loss = auto.attribute(bert, batch).pow(2).sum()
    (slope,) = torch.autograd.grad(loss, bert.model.classifier.weight)
    assert slope.abs().max() > 0


def test_adaptive_points_are_evaluated_once_and_placed_where_the_function_bends():
    evaluated: list[tuple[int, float]] = []
    steepness = (2.0, 60.0)

    def evaluate(paths, points):
        evaluated.extend(zip(paths, points, strict=True))
        values = []
        for path, point in zip(paths, points, strict=True):
            height = np.tanh(steepness[path] * (point - 0.2))
            values.append(PathValue(height, steepness[path] * (1 - height**2)))
        return values

    paths = integrate(evaluate, 2, 0.001, 500)
    assert len(evaluated) == len(set(evaluated))
    gentle, sharp = ([point for path, point in evaluated if path == number] for number in (0, 1))
    assert len(gentle) < 12 < len(sharp) < 80
    assert np.mean(np.abs(np.array(sharp) - 0.2) < 0.1) > 0.6
    for path, k in zip(paths, steepness, strict=True):
        weights = path.weights()
        assert abs(sum(weights.values()) - 1) < 1e-12
        integral = sum(w * path.values[point].slope for point, w in weights.items())
        rise = np.tanh(k * 0.8) - np.tanh(-k * 0.2)
        assert abs(integral - rise) <= 0.001 * rise
        assert abs(sum(path.errors()) - (integral - rise)) < 1e-12


def test_adaptive_refinement_stops_at_max_steps():
    noise = np.random.default_rng(0)
    paths = integrate(lambda p, x: [PathValue(float(noise.normal()), 0.0) for _ in p], 1, 1e-9, 40)
    assert 40 <= len(paths[0].values) <= 80


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert"])
def test_captums_rule_of_deep_lift_is_captums(family):
    """DistilBERT's head has a ReLU module, BERT's pooler a Tanh: the rescale rule does something."""
    model = expound.load(tiny(family, dtype=torch.float64), processor(family))
    hf = model.model
    batch = model.encode(["a moving film"])
    reference = model.embed_reference(batch, "pad").detach()

    class Direct(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hf = hf

        def forward(self, embeddings):
            return self.hf(inputs_embeds=embeddings).logits

    model.config.pad_token_id = model.pad_id if family != "gpt2" else None
    embeddings = model.embed(batch).detach().requires_grad_()
    if family == "gpt2":
        direct = ScoreOfEmbeddings(model, batch, torch.tensor([1]))
        expected = DeepLift(direct).attribute(embeddings, reference)
    else:
        expected = DeepLift(Direct()).attribute(embeddings, reference, target=1)
    scores = expound.explainer("deep_lift", baselines="pad", rule="captum").attribute(model, batch, torch.tensor([1]))
    torch.testing.assert_close(scores, expected.detach().sum(-1).masked_fill(~batch.content, 0))
    plain = expound.explainer("input_x_gradient").attribute(model, batch, torch.tensor([1]))
    assert (scores - plain).abs().max() > 1e-6


def test_gradient_shap_is_captums_with_the_examples_own_seed(bert):
    batch = bert.encode(["a moving film about a river"])
    method = expound.explainer("gradient_shap", n_samples=7, stdevs=0.01, seed=3)
    (seed,) = example_seeds(batch, 3)
    embeddings = bert.embed(batch).detach()
    both = torch.cat([bert.embed_reference(batch).detach(), embeddings])

    def direct(points):
        return bert.model(inputs_embeds=points).logits

    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    expected = GradientShap(direct).attribute(embeddings, both, n_samples=7, stdevs=0.01, target=2)
    scores = method.attribute(bert, batch, torch.tensor([2]))
    torch.testing.assert_close(scores, expected.detach().sum(-1).masked_fill(~batch.content, 0))


@pytest.mark.parametrize("method", ["smooth_grad", "gradient_shap", "deep_lift"])
def test_scores_do_not_depend_on_the_batch_and_nothing_is_left_behind(model, method):
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    whole = expound.attribute(model, SENTENCES, method, target=0)
    drawn = torch.rand(()), np.random.random()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert drawn == (torch.rand(()), np.random.random())  # noqa: NPY002
    single = expound.attribute(model, SENTENCES[::-1], method, target=0, batch_size=1)
    for one, other in zip(whole, list(single)[::-1], strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
    assert hooks == sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()
    )


def test_smooth_grad_without_noise_is_saliency_and_with_it_the_mean_gradient(bert):
    batch = bert.encode(SENTENCES[:2])
    target = torch.tensor([0, 1])
    plain = expound.explainer("saliency").attribute(bert, batch, target)
    torch.testing.assert_close(
        expound.explainer("smooth_grad", stdevs=0.0, n_samples=3).attribute(bert, batch, target), plain
    )
    noisy = expound.explainer("smooth_grad", stdevs=0.2, n_samples=2, seed=1)
    (own, _) = example_seeds(batch, 1)
    real = bert.embed(batch).detach()[0, batch.attended[0]]
    alone = bert.encode(SENTENCES[:1])
    gradients_at = []
    for number in range(2):
        drawn = np.random.default_rng(own + number).standard_normal(tuple(real.shape), np.float32)
        point = (real + torch.tensor(drawn) * 0.2 * (real.max() - real.min()))[None].requires_grad_()
        gradients_at += torch.autograd.grad(bert(alone, point).logits[0, 0], point)
    expected = torch.stack(gradients_at).mean(0).norm(dim=-1)[0]
    found = noisy.attribute(bert, batch, target)[0, batch.attended[0]]
    torch.testing.assert_close(found, expected.masked_fill(~alone.content[0], 0))
