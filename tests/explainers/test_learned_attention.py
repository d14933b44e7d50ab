"""Explainers with coefficients on attention, against whole L×L matrices and loops."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from entmax import entmax15, sparsemax

from expound import ExpoundError, explainer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.explainers.learned.learned_attention import find_queries, mean_head_logits, normalize_jointly
from expound.explainers.learned.parameterized_attention import ParameterizedAttention
from expound.explainers.learned.sparsemax import short_sparsemax, short_sparsemaxes
from expound.models import Batch, Capture
from families import sweep_others
from small import FAMILIES, alone, shared, small, uneven

WITH_MATRICES = ["bert", "electra", "distilbert", "roberta", "albert", "vit", "gpt2", "llama", "big_bird"]
VARIANTS = {
    "smat": ParameterizedAttention.for_model,
    "smat last": lambda model: ParameterizedAttention.for_model(model, "last"),
    "ivra": InterpretableAttention.for_model,
    "ivra softmax": lambda model: InterpretableAttention.for_model(model, normalizer="softmax", mix="literal"),
    "ivra entmax15": lambda model: InterpretableAttention.for_model(model, normalizer="entmax15"),
    "ivra coefs": lambda model: InterpretableAttention.for_model(model, mix="coefs"),
}
COEFFICIENTS = {
    "smat": ["coefficients"],
    "ivra": ["query_features", "key_features", "head_coefficients", "layer_coefficients"],
}


def draw_coefficients(single, seed=0):
    """The explainer in float64, with coefficients that all differ and are near the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    single.double()
    with torch.no_grad():
        for value in single.state_dict().values():
            value.mul_(1 + 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype))
    return single


def run_model(model, batch):
    return model(batch, capture=Capture(heads=True))


def visible_pairs(model, batch, row):
    """A mask [queries, keys]: True for pairs that a key's mean runs over."""
    real = batch.attended[row]
    pairs = real[:, None] & real[None]
    return pairs.tril() if model.is_decoder else pairs


def mean_by_matrix(matrix, pairs):
    """The mean of each column over the pairs, 0 for keys without any query."""
    return torch.where(pairs, matrix, 0.0).sum(0) / pairs.sum(0).clamp(min=1)


def head_means(model, batch, row):
    """Mean logits [N, H, L] of an example, from whole matrices."""
    outputs, pairs = run_model(model, batch), visible_pairs(model, batch, row)
    layers = []
    for queries, keys in zip(outputs.queries, outputs.keys, strict=True):
        scale = queries.shape[-1] ** -0.5
        heads = zip(queries[row], keys[row], strict=True)
        layers.append(torch.stack([mean_by_matrix(q @ k.T * scale, pairs) for q, k in heads]))
    return torch.stack(layers)


@pytest.mark.parametrize("family", ["modernbert", "mistral", "gemma3_text"])
@torch.no_grad()
def test_in_local_attention_means_are_over_the_queries_whose_window_reaches_the_key(family):
    """The windows of the reference are the positions to which transformers' own eager attention gives weight."""
    model = small(family)
    batch = model.encode(uneven(family, 3))
    outputs = run_model(model, batch)
    found = mean_head_logits(model, batch, outputs)
    model.model.set_attn_implementation("eager")
    is_local = False
    for row, real in enumerate(batch.attended):
        one = alone(model, batch, row)[0].inputs
        weights = model.model(input_ids=one["input_ids"], output_attentions=True).attentions
        for layer, (queries, keys) in enumerate(zip(outputs.queries, outputs.keys, strict=True)):
            pairs = (weights[layer][0] > 0).any(0)
            is_local |= bool(pairs.sum() < visible_pairs(model, batch, row).sum())
            for head, (q, k) in enumerate(zip(queries[row][:, real], keys[row][:, real], strict=True)):
                expected = mean_by_matrix(q @ k.T * outputs.scalings[layer], pairs)
                torch.testing.assert_close(found[row, layer, head, real], expected, rtol=1e-9, atol=1e-11)
    assert is_local
    gaps = torch.eye(4, dtype=torch.bool) | torch.eye(4, dtype=torch.bool).roll(2, 0)
    with pytest.raises(ExpoundError, match="gaps between them"):
        find_queries(gaps[None, None], torch.ones(1, 4, dtype=torch.bool), causal=False)


@torch.no_grad()
def test_untrained_it_is_the_mean_of_all_heads_logits():
    for family in WITH_MATRICES:
        model = shared(family)
        batch = model.encode(uneven(family, 3))
        scores = ParameterizedAttention.for_model(model).double().explain(model, batch, special_tokens=True).scores
        last = (
            ParameterizedAttention.for_model(model, "last").double().explain(model, batch, special_tokens=True).scores
        )
        for row in range(len(batch)):
            means, real = head_means(model, batch, row), batch.attended[row]
            for found, mean in ((scores, means.mean((0, 1))), (last, means[-1].mean(0))):
                expected = torch.zeros(batch.length, dtype=torch.float64)
                expected[real] = torch.softmax(mean[real], 0)
                torch.testing.assert_close(found[row], expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_recorded_scaling_explains_the_attention():
    for family in ["bert", "gpt2", "llama", "vit", "deberta-v2"]:
        model = small(family, pos_att_type=[], relative_attention=False) if family == "deberta-v2" else shared(family)
        batch = model.encode(uneven(family, 1))
        outputs = model(batch, capture=Capture(attentions=True, heads=True))
        parts = zip(outputs.queries, outputs.keys, outputs.scalings, outputs.attentions, strict=True)
        for queries, keys, scaling, attention in parts:
            logits = (queries @ keys.transpose(-1, -2) * scaling).masked_fill(
                ~visible_pairs(model, batch, 0), -torch.inf
            )
            torch.testing.assert_close(logits.softmax(-1), attention, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_scalings_that_differ_from_layer_to_layer():
    model = small("gpt2", scale_attn_by_inverse_layer_idx=True)
    outputs = run_model(model, model.encode(["a film"]))
    assert outputs.scalings == pytest.approx((8**-0.5, 8**-0.5 / 2))
    both = shared("deberta-v2")
    assert run_model(both, both.encode(["a film"])).scalings == pytest.approx((24**-0.5, 24**-0.5))


@torch.no_grad()
def test_one_sparsemax_over_the_heads_of_all_layers():
    single = ParameterizedAttention(2, 4).double()
    single.coefficients.copy_(torch.tensor([[0.9, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.2]]))
    expected = torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.0] * 4], dtype=torch.float64)
    torch.testing.assert_close(single.head_weights(), expected)
    softmax = ParameterizedAttention(2, 4, "softmax")
    softmax.coefficients.copy_(single.coefficients)
    exponentials = np.exp(single.coefficients.numpy())
    np.testing.assert_allclose(softmax.head_weights(), exponentials / exponentials.sum(), rtol=1e-5)
    plain = ParameterizedAttention(2, 4, "none")
    assert torch.equal(plain.head_weights(), torch.full((2, 4), 1 / 8))
    weights = ParameterizedAttention(2, 4, "entmax15").head_weights()
    torch.testing.assert_close(weights, torch.full((2, 4), 1 / 8))


@torch.no_grad()
def test_a_single_head_explains_alone():
    model = shared("bert")
    batch = model.encode(uneven("bert", 1))
    single = ParameterizedAttention.for_model(model).double()
    single.coefficients.zero_()[1, 2] = 1.0
    expected = torch.softmax(head_means(model, batch, 0)[1, 2], 0)
    torch.testing.assert_close(
        single.explain(model, batch, special_tokens=True).scores[0], expected, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", sweep_others(FAMILIES))
@torch.no_grad()
def test_a_distribution_over_real_positions_that_padding_does_not_change(family, variant):
    model = shared(family)
    batch = model.encode(uneven(family, 3))
    single = draw_coefficients(VARIANTS[variant](model))
    scores = single.explain(model, batch, special_tokens=True).scores
    assert (scores >= 0).all()
    assert not scores[~batch.attended].any()
    torch.testing.assert_close(scores.sum(1), torch.ones(len(batch), dtype=scores.dtype))
    inside = single.attribute(model, batch)
    assert torch.equal(inside, scores * batch.content)
    tolerance = 1e-6 if family == "modernbert" else 1e-10
    for row in range(len(batch)):
        own, columns = alone(model, batch, row)
        torch.testing.assert_close(
            scores[row, columns],
            single.explain(model, own, special_tokens=True).scores[0],
            rtol=tolerance,
            atol=tolerance,
        )


@torch.no_grad()
def test_padding_on_either_side_of_a_decoder_does_not_enter_means():
    model = shared("gpt2")
    ids = torch.randint(5, 200, (1, 6), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1)
    batch = Batch.from_ids(padded, torch.arange(9)[None] < 6)
    for make in VARIANTS.values():
        single = draw_coefficients(make(model))
        scores = single.attribute(model, batch, 0)
        alone_scores = single.attribute(model, Batch.from_ids(ids), 0)
        torch.testing.assert_close(scores[:, :6], alone_scores, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_half_precision_states_are_summed_in_float32(dtype):
    model = shared("bert", dtype=dtype)
    batch = model.encode(uneven("bert", 2))
    for make in VARIANTS.values():
        scores = make(model).explain(model, batch, special_tokens=True).scores
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores.sum(1), torch.ones(2), rtol=1e-5, atol=1e-5)


def normalize(norm, values):
    """NORM of a flat list of numbers."""
    kinds = {"sparsemax": sparsemax, "softmax": torch.softmax, "entmax15": entmax15}
    return kinds[norm](torch.stack(values), -1)


def scores_by_loops(single, model, batch, row):
    """IvRA of an example, `literal` or `per_head`, number by number."""
    outputs, norm = run_model(model, batch), single.normalizer
    per_head = single.mix == "per_head"
    real = batch.attended[row].nonzero().flatten().tolist()
    places = [p for p in real if single.special_tokens or batch.content[row, p]]
    layers = []
    for layer in range(single.n_layers):
        grid = []
        for head in range(single.n_heads):
            q, k = outputs.queries[layer][row, head], outputs.keys[layer][row, head]
            for m in places:
                key = normalize(norm, list(single.key_features[layer, head] * k[m]))
                who = [n for n in real if n >= m or not model.is_decoder]
                dots = [normalize(norm, list(single.query_features[layer, head] * q[n])) @ key for n in who]
                grid.append(single.scales[0] * single.head_coefficients[layer, head] * sum(dots) / len(who))
        layers.append(single.scales[1] * single.layer_coefficients[layer] * mix_rows(norm, grid, len(places), per_head))
    found = torch.zeros(batch.length, dtype=torch.float64)
    found[places] = mix_rows(norm, list(torch.cat(layers)), len(places), per_head)
    return found


def mix_rows(norm, values, length, per_head):
    """One distribution of rows of `length` numbers: NORM over all and the sum, or NORM over each row and the mean."""
    if not per_head:
        return normalize(norm, values).view(-1, length).sum(0)
    rows = [normalize(norm, values[start : start + length]) for start in range(0, len(values), length)]
    return torch.stack(rows).mean(0)


@pytest.mark.parametrize(
    ("family", "norm", "special_tokens"),
    [(family, norm, True) for family in ("bert", "gpt2", "llama") for norm in ("sparsemax", "softmax", "entmax15")]
    + [("bert", "sparsemax", False), ("llama", "softmax", False)],
)
@torch.no_grad()
def test_literal_and_per_head_mix_against_loops(family, norm, special_tokens):
    model = shared(family)
    batch = model.encode(["a moving film", "great"])
    options = {"normalizer": norm, "scales": (3.0, 2.0), "special_tokens": special_tokens}
    for mix in ("literal", "per_head"):
        single = draw_coefficients(InterpretableAttention.for_model(model, mix=mix, **options))
        scores = single.explain(model, batch, special_tokens=True).scores
        torch.testing.assert_close(scores.sum(1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)
        for row in range(len(batch)):
            torch.testing.assert_close(scores[row], scores_by_loops(single, model, batch, row), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "vit"])
@torch.no_grad()
def test_untrained_coefficients_mix_as_the_parameterized_attention(family):
    model = shared(family)
    batch = model.encode(uneven(family, 2))
    expected = ParameterizedAttention.for_model(model).double().attribute(model, batch)
    for norm in ("sparsemax", "softmax"):
        single = InterpretableAttention.for_model(model, normalizer=norm, mix="coefs").double()
        torch.testing.assert_close(single.attribute(model, batch), expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_coefficients_on_logits_by_hand():
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    single = draw_coefficients(InterpretableAttention.for_model(model, mix="coefs"))
    outputs = run_model(model, batch)
    for row in range(len(batch)):
        real = batch.attended[row]
        mixed = torch.zeros(int(real.sum()), dtype=torch.float64)
        for layer, weight in enumerate(sparsemax(single.layer_coefficients, -1)):
            for head, share in enumerate(sparsemax(single.head_coefficients[layer], -1)):
                q = single.query_features[layer, head] * outputs.queries[layer][row, head][real]
                k = single.key_features[layer, head] * outputs.keys[layer][row, head][real]
                mixed += weight * share * (q @ k.T).mean(0) * 8**-0.5
        found = single.explain(model, batch, special_tokens=True).scores[row, real]
        torch.testing.assert_close(found, mixed.softmax(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "made",
    [
        lambda model, **own: InterpretableAttention.for_model(model, normalizer="softmax", **own),
        ParameterizedAttention.for_model,
    ],
)
@torch.no_grad()
def test_without_special_tokens_scores_sum_to_one_over_content(made):
    model = shared("bert")
    batch = model.encode(uneven("bert", 3))
    whole, inside = draw_coefficients(made(model)), draw_coefficients(made(model, special_tokens=False))
    expected = whole.attribute(model, batch)
    found = inside.explain(model, batch, special_tokens=True).scores
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=1e-10, atol=1e-12)
    empty = Batch.from_ids(batch.inputs["input_ids"], batch.attended, content=torch.zeros_like(batch.content))
    torch.testing.assert_close(
        inside.explain(model, empty, special_tokens=True).scores,
        whole.explain(model, batch, special_tokens=True).scores,
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("ivra")])
@torch.no_grad()
def test_autocast_does_not_reduce_precision(variant):
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    single = draw_coefficients(VARIANTS[variant](model)).float()
    outputs = run_model(model, batch)
    outputs = dataclasses.replace(
        outputs,
        queries=tuple(layer.float() for layer in outputs.queries),
        keys=tuple(layer.float() for layer in outputs.keys),
    )
    target = torch.tensor([0, 1])
    expected = single.compute(model, batch, [target], outputs)[0].scores
    with torch.autocast("cpu", torch.bfloat16):
        found = single.compute(model, batch, [target], outputs)[0].scores
    assert torch.equal(found, expected)


@torch.no_grad()
def test_literal_softmax_is_nearly_uniform_until_calibrated():
    model = shared("bert")
    batch = model.encode(uneven("bert", 3))

    def peak(single):
        scores = single.explain(model, batch, special_tokens=True).scores
        return (scores.max(1).values * batch.attended.sum(1)).max()

    softmax = InterpretableAttention.for_model(model, normalizer="softmax", mix="literal").double()
    assert peak(softmax) < 1.01
    softmax.calibrate(model, batch)
    assert peak(softmax) > 1.1
    assert peak(InterpretableAttention.for_model(model).double()) > 1.01
    assert InterpretableAttention(2, 4, 8, normalizer="softmax").mix == "coefs"
    with pytest.raises(ExpoundError, match="no scales to calibrate"):
        InterpretableAttention.for_model(model, mix="coefs").calibrate(model, batch)


def test_one_normalizer_over_the_grid_by_hand():
    grid = torch.tensor([[[1.0, 0.2, 9.0], [0.6, 0.0, 9.0]]])
    found = normalize_jointly("sparsemax", grid, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, 0.0]]))  # 0.7 of the first head, 0.3 of the second


def weigh_scores(single, model, batch):
    scores = single.attribute(model, batch, torch.tensor([0, 1]))
    return (scores * torch.linspace(-1, 1, scores.shape[1], dtype=scores.dtype)).sum()


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "smat last"])
def test_every_coefficient_and_the_model_get_a_gradient(variant):
    model = small("bert")
    batch = model.encode(uneven("bert", 2))
    single = draw_coefficients(VARIANTS[variant](model))
    weigh_scores(single, model, batch).backward()
    for name in COEFFICIENTS[variant.partition(" ")[0]]:
        slope = getattr(single, name).grad
        assert slope.isfinite().all()
        assert slope.flatten(1).any(1).all() if slope.dim() > 1 else slope.all(), name
    assert model.model.bert.encoder.layer[0].attention.self.query.weight.grad.any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_finite_differences(variant):
    model = shared("bert")
    batch = model.encode(["a film", "great acting"])
    single = draw_coefficients(VARIANTS[variant](model))
    names, values = zip(*single.named_parameters(), strict=True)
    outputs = run_model(model, batch)
    outputs = dataclasses.replace(
        outputs,
        queries=tuple(layer.detach()[:, :, :3] for layer in outputs.queries),
        keys=tuple(layer.detach()[:, :, :3] for layer in outputs.keys),
    )
    short = Batch.from_ids(batch.inputs["input_ids"][:, :3])

    class Scores(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.single = single

        def forward(self):
            return self.single.compute(model, short, [torch.tensor([0, 1])], outputs)[0].scores

    module = Scores()

    def scores(*given):
        changed = {f"single.{name}": value for name, value in zip(names, given, strict=True)}
        return torch.func.functional_call(module, changed, ())

    given = tuple(value.detach().clone().requires_grad_() for value in values)
    assert torch.autograd.gradcheck(scores, given, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize(
    ("switch", "names"),
    [
        ("learn_features", {"query_features", "key_features"}),
        ("learn_heads", {"head_coefficients"}),
        ("learn_layers", {"layer_coefficients"}),
    ],
)
@torch.no_grad()
def test_each_kind_of_coefficients_can_be_switched_off(switch, names):
    single = InterpretableAttention(2, 4, 8, **{switch: False})
    assert {name for name, _ in single.named_parameters()} == set(COEFFICIENTS["ivra"]) - names
    model = shared("bert")
    batch = model.encode(uneven("bert", 1))
    whole = InterpretableAttention(2, 4, 8)
    assert torch.equal(single.attribute(model, batch), whole.attribute(model, batch))


@torch.no_grad()
def test_a_pass_of_a_training_step_serves():
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    for make in VARIANTS.values():
        single = draw_coefficients(make(model))
        (found,) = single.compute(model, batch, [torch.tensor([0, 1])], run_model(model, batch))
        torch.testing.assert_close(
            found.scores, single.explain(model, batch, special_tokens=True).scores, rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_saved_and_loaded_it_is_the_same(variant, tmp_path):
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    single = draw_coefficients(VARIANTS[variant](model))
    single.save_pretrained(tmp_path / "saved")
    again = explainer(f"{single.name}:{tmp_path / 'saved'}")
    assert type(again) is type(single)
    assert again.params == single.params
    assert torch.equal(again.attribute(model, batch), single.attribute(model, batch))
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["config.json", "model.safetensors"]


def test_what_cannot_be_loaded_says_why(tmp_path):
    ParameterizedAttention(2, 4).save_pretrained(tmp_path)
    with pytest.raises(ExpoundError, match=r"expected a saved interpretable_attention in .*, got parameterized"):
        InterpretableAttention.from_pretrained(tmp_path)
    with pytest.raises(ExpoundError, match="expected a folder with a saved parameterized_attention"):
        explainer(f"parameterized_attention:{tmp_path / 'absent'}")
    with pytest.raises(ExpoundError, match="give the folder it was saved in"):
        explainer("parameterized_attention")
    config = json.loads((tmp_path / "config.json").read_text())
    for changed, message in (
        ({"n_heads": 5}, "size mismatch"),
        ({"heads": 4}, "heads"),
        ({"normalizer": "sparse"}, "unknown normalizer"),
        ({"n_layers": "2"}, "can be loaded"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(ExpoundError, match=message):
            ParameterizedAttention.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ExpoundError, match="can be loaded"):
        ParameterizedAttention.from_pretrained(tmp_path)


def test_models_of_another_shape_are_refused():
    model = shared("bert")
    batch = model.encode(["a film"])
    for single, message in (
        (ParameterizedAttention(3, 4), "for 3 layers of 4 heads, the model has 2 layers of 4 heads"),
        (ParameterizedAttention(2, 8), "for 2 layers of 8 heads, the model has 2 layers of 4 heads"),
        (InterpretableAttention(2, 4, 16), "heads of 16 features, the model's have 8"),
    ):
        with pytest.raises(ExpoundError, match=message):
            single.attribute(model, batch)


def test_wrong_choices():
    cases = [
        ({"n_layers": 0}, "at least 1 layer"),
        ({"normalizer": "sparse"}, "unknown normalizer"),
        ({"mix": "coef"}, "Did you mean 'coefs'"),
        ({"scales": (1.0,)}, "two positive"),
        ({"scales": (1.0, 0.0)}, "two positive"),
    ]
    for options, message in cases:
        with pytest.raises(ExpoundError, match=message):
            InterpretableAttention(**({"n_layers": 2, "n_heads": 4, "head_dim": 8} | options))
        with pytest.raises(ExpoundError, match="all, last"):
            ParameterizedAttention(2, 4, used_layers="first")


def test_short_sparsemax_equals_the_sorted_one():
    for scale in [0.0, 0.1, 3.0, 1e4]:
        for dtype in [torch.float32, torch.float64]:
            torch.manual_seed(0)
            values = scale * torch.randn(40, 3, 32, dtype=dtype)
            values[0, 0, :5] = values[0, 0].max()
            close = {"atol": 20 * torch.finfo(dtype).eps, "rtol": 1e-5}
            for axis in (-1, 1):
                torch.testing.assert_close(short_sparsemax(values, axis), sparsemax(values, axis), **close)
            found = short_sparsemax(values)
            torch.testing.assert_close(found.sum(-1), torch.ones(40, 3, dtype=dtype), **close)
            one, other = values.clone().requires_grad_(), values.clone().requires_grad_()
            weights = torch.randn_like(values)
            for leaf, method in ((one, short_sparsemax), (other, sparsemax)):
                (method(leaf, -1) * weights).sum().backward()
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparsemax_of_several_tensors_with_rows_that_take_many_steps(dtype):
    torch.manual_seed(1)
    stairs = torch.linspace(0.0, -0.99, 12, dtype=dtype).cumsum(0) / 6
    ties = torch.zeros(12, dtype=dtype)
    masked = torch.tensor([0.2, 0.1, *[-1e9] * 10], dtype=dtype)
    rows = torch.stack([stairs, ties, ties + 3e4, masked, stairs.roll(5) - 2])
    several = [rows, torch.randn(4, 5, 12, dtype=dtype), torch.rand(1, 12, dtype=dtype) * 1e-3]
    for values, found in zip(several, short_sparsemaxes(several), strict=True):
        torch.testing.assert_close(found, sparsemax(values, -1), atol=20 * torch.finfo(dtype).eps, rtol=1e-5)
        assert torch.equal(found > 0, sparsemax(values, -1) > 0)


def test_nan_rows_stay_nan_and_do_not_change_other_rows():
    rows = torch.randn(4, 8)
    broken = rows.clone()
    broken[1, 3] = torch.nan
    found = short_sparsemax(broken)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2, 3]], sparsemax(rows, -1)[[0, 2, 3]])


def test_short_sparsemax_has_first_and_second_derivatives():
    values = torch.tensor([[0.3, 0.1, -0.4, 0.25], [2.0, -1.0, 0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(short_sparsemax, values)
    assert torch.autograd.gradgradcheck(short_sparsemax, values)
