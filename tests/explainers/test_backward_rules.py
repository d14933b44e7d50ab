"""Relevance propagation and gradient modifications: published numbers, and what must hold of them."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.masking_utils import eager_mask

import decomposable
import families
from expound import Batch, explainer
from expound.errors import ExpoundError
from expound.explainers.backward_rules import rules
from expound.explainers.backward_rules.gim import find_baseline_token
from expound.models.generation.model import GeneratingModel
from expound.models.layers import activations
from expound.models.layers.architecture import get_layers
from expound.models.passes import capture, layer_calls
from small import shared, uneven

TARGET = torch.tensor([0, 1, 2])
SPECS = {
    "attnlrp": "attn_lrp",
    "cp_lrp": "cp_lrp",
    "gim": "gim?baseline_id=3",
    "gim_temperature_only": "gim?baseline_id=3&hold_norms=false&share_products=false",
    "gim_norm_only": "gim?baseline_id=3&temperature=1&share_products=false",
    "gim_gradnorm_only": "gim?baseline_id=3&temperature=1&hold_norms=false",
}


def language_model(folder):
    """A decoder that answers with the next token."""
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    decomposable.replace_rms_norms(made)
    return GeneratingModel(made)


@pytest.fixture
def slopes_with_epsilon(monkeypatch):
    """lxt's slope act(x)/(x + 1e-10), which differs from the true one near 0."""
    shifted = {name: lambda x, f=f: f(x) * x / (x + 1e-10) for name, f in activations.SLOPES.items()}
    monkeypatch.setattr(activations, "SLOPES", shifted)


@pytest.mark.real
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.usefixtures("slopes_with_epsilon")
@torch.no_grad()
def test_decoder_scores_equal_published_ones(golden_generation, family, name):
    numbers = {
        k: torch.from_numpy(v) for k, v in np.load(golden_generation / f"{family}-tiny_backward_rules_f64.npz").items()
    }
    model = language_model(golden_generation / f"{family}-tiny")
    method = explainer(SPECS[name], output="logit")
    prompts = [ids[:length] for ids, length in zip(numbers["ids"], numbers["lengths"], strict=True)]
    for k in range(2):
        batch = model.batch(prompts, numbers["targets"][:, k : k + 1])
        scores = method.attribute(model, batch)
        expected = numbers[name][:, k]
        torch.testing.assert_close(scores[batch.content], expected[~expected.isnan()], rtol=1e-9, atol=1e-10)


@pytest.mark.real
@pytest.mark.parametrize("spec", ["attn_lrp", "cp_lrp", "gim"])
@torch.no_grad()
def test_a_contrast_is_the_difference_of_two_tokens(golden_generation, spec):
    model = language_model(golden_generation / "llama-tiny")
    prompt, tokens = [[1, 20, 31, 42, 17], [1, 33, 12]], [[9], [14]]
    first, second = (
        explainer(spec, output="logit").attribute(model, model.batch(prompt, [[t] for t in each]))
        for each in ((9, 14), (50, 51))
    )
    both = explainer(spec).attribute(model, model.batch(prompt, tokens, foil_ids=[[50], [51]]))
    torch.testing.assert_close(both, first - second, rtol=1e-9, atol=1e-11)


@pytest.mark.real
@pytest.mark.parametrize("spec", ["attn_lrp", "cp_lrp", "gim", "generic_attention"])
@torch.no_grad()
def test_span_scores_do_not_depend_on_the_batch(golden_generation, spec):
    model = language_model(golden_generation / "gpt2-tiny")
    examples = ([1, 20, 31, 42, 17], [9, 14, 30]), ([1, 33, 12], [8, 11])
    method = explainer(spec)
    together = method.attribute(model, model.batch(*zip(*examples, strict=True)), (0, 2))
    for scores, (prompt, response) in zip(together, examples, strict=True):
        single = method.attribute(model, model.batch(prompt, response), (0, 2))[0]
        assert single[: len(prompt)].abs().min() > 0 or spec == "generic_attention"
        torch.testing.assert_close(scores[-len(single) :], single, rtol=1e-9, atol=1e-12)


@pytest.mark.real
@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.usefixtures("slopes_with_epsilon")
def test_encoder_scores_equal_published_ones(golden, golden_generation, target):
    expected = torch.from_numpy(np.load(golden_generation / "bert-tiny_attnlrp_f64.npz")["attnlrp"])[:, target]
    _, model, batch = decomposable.golden_reference(golden)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            scores = explainer("attn_lrp").attribute(model, batch, [target] * 6).detach()
        torch.testing.assert_close(scores[batch.attended], expected[~expected.isnan()], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_cp_lrp_conserves_the_logit_where_there_are_no_biases(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    explanation = explainer("cp_lrp").explain(model, batch, TARGET)
    score = model.task.score(model(batch).logits, TARGET)
    torch.testing.assert_close(explanation.scores.sum(1), score, rtol=1e-10, atol=1e-12)
    assert explanation.bias.abs().max() < 1e-10


@pytest.mark.parametrize("family", ["bert", "qwen2", "vit"])
def test_cp_lrp_is_decompx_linear_from_the_embeddings(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.no_grad():
        one, other = (
            explainer(spec).explain(model, batch, TARGET) for spec in ("cp_lrp", "decompx_linear?start=embeddings")
        )
    torch.testing.assert_close(one.scores, other.scores, rtol=0, atol=0)
    torch.testing.assert_close(one.bias, other.bias, rtol=0, atol=0)


@pytest.mark.parametrize("family", ["bert", "gpt2", "qwen2"])
def test_baseline_token_scores_zero_at_any_position(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    ids = batch.inputs["input_ids"].clone()
    ids[:, -1] = ids[0, -3] = ids[1, -2] = 7
    scores = explainer("gim?baseline_id=7").attribute(model, Batch.from_ids(ids, batch.attended), TARGET)
    assert not scores[ids == 7].any()
    assert (scores[(ids != 7) & batch.attended] != 0).all()


@pytest.mark.parametrize("family", families.sweep_others(decomposable.FAMILIES))
@torch.no_grad()
def test_without_rules_scores_are_gradient_times_difference(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.enable_grad():
        embeddings = model.embed(batch).detach().requires_grad_()
        score = model.task.score(model(batch, embeddings).logits, TARGET)
        (slope,) = torch.autograd.grad(score.sum(), embeddings)
    start = model.embed_reference(batch) if model.modality == "image" else model.embedding(torch.tensor(9))
    expected = (slope * (embeddings - start)).sum(-1).masked_fill(~batch.content, 0)
    plain = explainer("gim?baseline_id=9&temperature=1&hold_norms=false&share_products=false")
    torch.testing.assert_close(plain.attribute(model, batch, TARGET), expected, rtol=1e-8, atol=1e-10)


@torch.no_grad()
def test_with_relu_and_no_temperature_both_methods_have_one_gradient():
    model = decomposable.model("gpt2", activation_function="relu")
    batch = decomposable.batch(model)
    lrp, gim, warm = (explainer(s).explain(model, batch, TARGET) for s in ("attn_lrp", "gim?temperature=1", "gim"))
    torch.testing.assert_close(lrp.layers, gim.layers, rtol=1e-10, atol=1e-12)
    assert (warm.layers - gim.layers).abs().max() > 1e-4


@torch.no_grad()
def test_the_baseline_is_a_space_or_padding():
    assert find_baseline_token(shared("gpt2")) == shared("gpt2").tokenizer(" ")["input_ids"][0]
    model = shared("bert")
    assert find_baseline_token(model) == model.tokenizer.pad_token_id
    batch = model.encode(uneven("bert", 2))
    expected = explainer("gim", baseline_id=model.tokenizer.pad_token_id).attribute(model, batch, [0, 1])
    torch.testing.assert_close(explainer("gim").attribute(model, batch, [0, 1]), expected, rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["attn_lrp", "cp_lrp", "gim"])
@torch.no_grad()
def test_the_softmax_of_a_probability_keeps_its_derivative(spec):
    model = decomposable.shared_model("bert")
    batch = decomposable.batch(model)
    logits = torch.stack([explainer(spec).attribute(model, batch, [k] * 3) for k in range(3)], 1)
    chances = model.probabilities(batch)
    mean = (chances[..., None] * logits).sum(1)
    expected = chances[:, 1, None] * (logits[:, 1] - mean)
    torch.testing.assert_close(explainer(spec, output="prob").attribute(model, batch, [1] * 3), expected)


def test_a_temperature_is_positive():
    with pytest.raises(ExpoundError, match="above 0"):
        explainer("gim?temperature=0")


@pytest.mark.parametrize("spec", ["decompx_linear", "cp_lrp", "attn_lrp"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma3_text"])
def test_fused_attention_gives_the_scores_of_an_explicit_softmax(family, spec, monkeypatch):
    """With a graph, the softmax is explicit; without one, torch's kernel computes attention with its gradients."""
    model = decomposable.shared_model(family)
    batch, method = decomposable.batch(model), explainer(spec)
    fused = []
    kernel = capture.sdpa_attention_forward
    monkeypatch.setattr(capture, "sdpa_attention_forward", lambda *args, **kw: fused.append(1) or kernel(*args, **kw))
    expected = method.attribute(model, batch, TARGET)
    assert not fused
    with torch.no_grad():
        scores = method.attribute(model, batch, TARGET)
    assert fused
    torch.testing.assert_close(scores, expected.detach(), rtol=1e-9, atol=1e-11)


@pytest.fixture
def calls_of_slopes(monkeypatch):
    """Let all inputs be long, and list how many layers each call of `compute_slopes` went through."""
    counts = []

    def compute(calls, slopes):
        counts.append(len(calls))
        return layer_calls.compute_slopes(calls, slopes)

    monkeypatch.setattr(rules, "compute_slopes", compute)
    return counts


def explain_both_ways(model, method, batch, targets, monkeypatch):
    """The explanation by the first target, and the scores of all, with the whole graph and layer by layer."""
    results = []
    with torch.no_grad(), model.evaluation_mode():
        for most in (1 << 60, 0):
            monkeypatch.setattr(rules, "MOST_WEIGHTS", most)
            rows = [each.scores for each in method.compute(model, batch, targets)]
            results.append((method.explain(model, batch, targets[0]), rows))
    return results


CHAINS = {"llama", "gpt2", "bert", "modernbert"}


@pytest.mark.parametrize(
    "family", families.sweep_others(families.FAMILIES, [*sorted(CHAINS), "albert", "deberta-v2", "vit"])
)
def test_scores_layer_by_layer_are_those_of_the_whole_graph(family, calls_of_slopes, monkeypatch):
    model = shared(family)
    batch = model.encode(uneven(family))
    targets = [torch.tensor([0, 1, 2, 0]), torch.tensor([1, 1, 0, 2])]
    specs = ["decompx_linear"]
    if family in CHAINS:
        specs += ["decompx_linear?start=hidden", "attn_lrp", "cp_lrp", "gim"]
    for spec in specs:
        (whole, rows), (ours, our_rows) = explain_both_ways(model, explainer(spec), batch, targets, monkeypatch)
        pairs = [(ours.scores, whole.scores), (ours.bias, whole.bias), (ours.layers, whole.layers)]
        for one, other in [*pairs, *zip(our_rows, rows, strict=True)]:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        assert torch.equal(ours.logits, whole.logits)
    # ALBERT's one layer runs several times, and DeBERTa's layers share relative positions with gradients.
    if family in CHAINS:
        assert len(calls_of_slopes) == 2 * len(specs)
        assert set(calls_of_slopes) == {len(get_layers(model.model)) - 1}


def test_a_responses_scores_layer_by_layer_are_those_of_the_whole_graph(calls_of_slopes, monkeypatch):
    model = GeneratingModel(families.tiny("llama", "CausalLM", dtype=torch.float64, num_hidden_layers=4))
    ids = torch.arange(5, 45)
    batch = model.batch(ids[:30], ids[30:], unit_of=torch.arange(30) // 10)
    targets = [torch.tensor([[0, 10]]), torch.tensor([[2, 5]])]
    (whole, rows), (ours, our_rows) = explain_both_ways(model, explainer("attn_lrp"), batch, targets, monkeypatch)
    torch.testing.assert_close(ours.scores, whole.scores, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(our_rows, rows, rtol=1e-9, atol=1e-12)
    assert calls_of_slopes == [3, 3]


class Adapter(nn.Module):
    """A bottleneck after a layer, with a function between; `is_held`: its slope is a constant already."""

    def __init__(self, old, function, is_held=False):
        super().__init__()
        torch.manual_seed(1)
        self.old, self.function, self.is_held = old, function, is_held
        self.down, self.up = (nn.Linear(*sizes).double() for sizes in ((32, 8), (8, 32)))

    def forward(self, hidden, residual):
        out = self.old(hidden, residual)
        low = self.down(out)
        active = self.function(low)
        if self.is_held:
            active = low * (active / low).detach()
        return out + self.up(active)


def sharpen(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """An attention function of the user's, as for `AttentionInterface.register`."""
    weights = query @ key.transpose(2, 3) * 1.5
    if attention_mask is not None:
        weights = weights + attention_mask
    return (weights.softmax(-1) @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("sharpen", sharpen)
AttentionMaskInterface.register("sharpen", eager_mask)


def make_own(function, is_held=False):
    """BERT with an attention function and an adapter of the user's."""
    model = decomposable.model("bert")
    model.model.set_attn_implementation("sharpen")
    layer = model.model.bert.encoder.layer[0]
    layer.output = Adapter(layer.output, function, is_held)
    return model


@pytest.mark.parametrize("spec", ["decompx_linear", "cp_lrp", "attn_lrp", "deep_lift?baselines=zero"])
@torch.no_grad()
def test_own_attention_and_adapters_are_explained(spec):
    found = []
    for is_held in (False,) if spec.startswith("deep_lift") else (False, True):
        model = make_own(torch.tanh, is_held)
        batch = decomposable.batch(model)
        explanation = explainer(spec).explain(model, batch, TARGET)
        torch.testing.assert_close(explanation.logits, model(batch).logits, rtol=1e-10, atol=1e-10)
        found.append(explanation.scores)
    torch.testing.assert_close(found[0], found[-1], rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_a_function_without_a_rule_is_named():
    model = make_own(lambda x: x.cumprod(-1))
    with pytest.raises(ExpoundError, match=r"do not explain what 'cumprod' computes in .*layer\.0\.output"):
        explainer("attn_lrp").attribute(model, decomposable.batch(model), TARGET)
