import pytest
import torch

import decomposable
import families
from decomposable import FAMILIES
from expound.explainers import EXPLAINERS, DecompX, DecompXClassifier, GlobEnc
from expound.explainers.decomposition import components as block
from expound.explainers.decomposition.components import DecompositionRules, decompose_layers
from expound.explainers.decomposition.decompx import make_readout_weights
from expound.explainers.decomposition.trace import trace_examples
from expound.models import ExplainedModel
from expound.models.layers import activations

TARGET = torch.tensor([0, 1, 2])
CLASSIFIER = {
    "default": {},
    "bias_norm": {"bias": "norm"},
    "bias_equal": {"bias": "equal"},
    "bias_abssim": {"bias": "abssim"},
    "bias_cls": {"bias": "first"},
    "bias_dot": {"bias": "dot"},
    "nobias": {"bias": "none"},
    "gelu_la": {"activation": "tangent"},
    "gelu_la_tanh_la": {"activation": "tangent", "head_activation": "tangent"},
    "relu": {"activation": "relu"},
    "nofastffn_noFFN": {"feed_forward": False},
    "biastoken_raw": {"bias": "token"},
}


@pytest.fixture(scope="module")
def reference(golden):
    return decomposable.golden_reference(golden)


@pytest.fixture
def their_slopes(monkeypatch):
    """The authors' f(x)/(x + 1e-12) in place of f(x)/x, so that what is left is rounding."""
    gelu, tanh = torch.nn.functional.gelu, torch.tanh
    monkeypatch.setitem(activations.SLOPES, "gelu", lambda x: gelu(x) / (x + 1e-12))
    monkeypatch.setitem(activations.SLOPES, "tanh", lambda x: tanh(x) / (x + 1e-12))


def compute_contributions(model, batch, method):
    """Contributions [B, K + 1, C]: K padded tokens, then a bias token."""
    rows = make_readout_weights(model, batch, torch.zeros(len(batch), dtype=torch.long))
    found = torch.zeros(len(batch), batch.length + 1, 3, dtype=torch.float64)
    for row, trace in enumerate(trace_examples(model, batch)):
        count = len(trace.positions)
        classes = method.compute_contributions(model, trace, rows[row][:, trace.positions])[0]
        found[row, :count] = classes[:count]
        if len(classes) > count:
            found[row, -1] = classes[-1]
    return found


@pytest.mark.parametrize("name", CLASSIFIER)
def test_classifier_contributions_equal_golden_numbers(reference, their_slopes, name):
    values, model, batch = reference
    expected = torch.tensor(values[f"decompx_c_{name}"])
    with torch.no_grad():
        mine = compute_contributions(model, batch, DecompXClassifier(**CLASSIFIER[name]))
    tolerance = 1e-7 if name == "bias_dot" else 1e-10  # `dot` divides by sums that may be near zero
    torch.testing.assert_close(mine[:, : expected.shape[1]], expected, rtol=0, atol=tolerance)


def test_golden_with_exact_slopes(reference):
    values, model, batch = reference
    with torch.no_grad():
        mine = compute_contributions(model, batch, DecompXClassifier())
    torch.testing.assert_close(mine[:, :-1], torch.tensor(values["decompx_c_default"]), rtol=0, atol=1e-9)
    torch.testing.assert_close(mine.sum(1), torch.tensor(values["logits"]), rtol=0, atol=1e-10)


def test_golden_bias_token_shared_at_the_end(reference, their_slopes):
    values, model, batch = reference
    with torch.no_grad():
        mine = compute_contributions(model, batch, DecompXClassifier(bias="token"))
    own, bias = mine[:, :-1], mine[:, -1]
    inner = (own @ bias[..., None]).abs()
    shared = own + inner / inner.sum(1, keepdim=True) * bias[:, None]
    torch.testing.assert_close(shared, torch.tensor(values["decompx_c_biastoken_absdot"]), rtol=0, atol=1e-10)


def test_golden_lengths(reference, their_slopes):
    values, model, batch = reference
    layers = torch.tensor(values["decompx_agg_norm_layers"][:, :, 0]).transpose(0, 1)
    expected = layers.masked_fill(~batch.attended[:, None], 0)
    with torch.no_grad():
        explanation = DecompX().explain(model, batch, torch.zeros(6).long())
    torch.testing.assert_close(explanation.layers, expected, rtol=0, atol=1e-10)
    last = torch.tensor(values["decompx_agg_norm"][:, 0]).masked_fill(~batch.attended, 0)
    torch.testing.assert_close(explanation.scores, last, rtol=0, atol=1e-10)


def test_golden_components(reference, their_slopes):
    values, model, batch = reference
    for row, trace in enumerate(trace_examples(model, batch)):
        count = len(trace.positions)
        for layer, state in enumerate(decompose_layers(trace, DecompositionRules(), torch.arange(count))):
            lengths = torch.tensor(values["decompx_agg_norm_layers"][layer, row, :count, :count])
            hidden = torch.tensor(values["hidden_states_ref"][layer + 1, row, :count])
            torch.testing.assert_close(state.norm(dim=-1), lengths, rtol=0, atol=1e-10)
            torch.testing.assert_close(state.sum(1), hidden, rtol=0, atol=1e-10)
        first = torch.tensor(values["decompx_agg_vector_cls"][row, :count])
        torch.testing.assert_close(state[0], first, rtol=0, atol=1e-10)


def test_golden_in_single_precision(golden, reference):
    values, _, batch = reference
    model = decomposable.golden_model(golden, torch.float32)
    with torch.no_grad():
        mine = compute_contributions(model, batch, DecompXClassifier())
    expected = torch.tensor(values["decompx_c_default"])
    torch.testing.assert_close(mine[:, :-1], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "rules",
    [
        DecompositionRules(),
        DecompositionRules("norm"),
        DecompositionRules("token"),
        DecompositionRules("equal", "tangent"),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
def test_components_add_up_to_the_hidden_states(family, rules):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    for trace in trace_examples(model, batch):
        everywhere = torch.arange(len(trace.positions))
        ends = [state.answer(everywhere) for state in trace.layers]
        for state, hidden in zip(decompose_layers(trace, rules, everywhere), ends, strict=True):
            torch.testing.assert_close(state.sum(1), hidden, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_contributions_add_up_to_the_logits(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.no_grad():
        mine = compute_contributions(model, batch, DecompXClassifier())
        explanation = DecompXClassifier().explain(model, batch, TARGET)
        logits = model(batch).logits
    torch.testing.assert_close(mine.sum(1), logits, rtol=0, atol=1e-10)
    for row, kept in enumerate(batch.attended):
        own = mine[row, : kept.sum(), TARGET[row]]
        torch.testing.assert_close(explanation.scores[row, kept], own, rtol=0, atol=1e-10)
    torch.testing.assert_close(explanation.convergence_delta, torch.zeros(3).double(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", [DecompX, DecompXClassifier])
@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
def test_padding_and_chunks_change_nothing(family, method):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    with torch.no_grad():
        together = method().explain(model, batch, TARGET)
        chunked = method(max_memory=1).explain(model, batch, TARGET)
        torch.testing.assert_close(chunked.scores, together.scores, rtol=0, atol=1e-10)
        for row in range(len(batch)):
            single = method().explain(model, decomposable.alone(model, batch, row), TARGET[row : row + 1])
            torch.testing.assert_close(together.scores[row, batch.attended[row]], single.scores[0], rtol=0, atol=1e-10)


def test_folded_matrix_and_two_projections_equal_single_steps():
    for family in ["bert", "llama", "gpt2"]:
        for bias in ["absdot", "token", "equal", "none"]:
            model = decomposable.shared_model(family)
            state = next(iter(trace_examples(model, decomposable.batch(model)))).layers[0]
            point = torch.randn(4, 32, dtype=torch.float64)
            for count in (7, 300):
                # Each call shares biases in place.
                parts = torch.randn(4, count, 32, dtype=torch.float64)
                with torch.no_grad():
                    found = block.propagate_feed_forward(state.parts, parts.clone(), point, bias, "zero_origin")
                    steps = block._propagate_in_steps(state.parts, parts, point, bias, "zero_origin")
                    expected = block.add_bias(bias, steps, state.parts.out.bias)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_long_inputs_are_run_with_matrices_and_short_ones_without(monkeypatch):
    model, fold = decomposable.shared_model("bert"), block._fold_matrices
    batch = decomposable.batch(model, (100, 10))
    for row, is_folded in ((0, True), (1, False)):
        calls = []
        monkeypatch.setattr(block, "_fold_matrices", lambda *given, calls=calls: calls.append(1) or fold(*given))
        with torch.no_grad():
            compute_contributions(model, decomposable.alone(model, batch, row), DecompXClassifier())
        assert bool(calls) == is_folded
    with torch.no_grad():
        mine = compute_contributions(model, batch, DecompXClassifier())
    with torch.no_grad():
        logits = model(batch).logits
    torch.testing.assert_close(mine.sum(1), logits, rtol=0, atol=1e-10)


def test_without_feed_forwards_and_biases_it_measures_what_globenc_does():
    model = decomposable.shared_model("bert")
    batch = decomposable.batch(model)
    with torch.no_grad():
        one = DecompX(bias="none", feed_forward=False).explain(model, batch, TARGET)
        two = GlobEnc(layers="each").explain(model, batch, TARGET)
    torch.testing.assert_close(one.layers[:, 0], two.layers[:, 0], rtol=0, atol=1e-12)


def test_lengths_with_feed_forwards_differ_from_globenc():
    model = decomposable.shared_model("bert")
    batch = decomposable.batch(model)
    with torch.no_grad():
        one = DecompX().explain(model, batch, TARGET)
        two = GlobEnc(layers="each").explain(model, batch, TARGET)
    assert (one.layers - two.layers).abs().max() > 1e-2


def test_a_bias_token_is_reported_apart():
    model = decomposable.shared_model("bert")
    batch = decomposable.batch(model)
    with torch.no_grad():
        explanation = DecompXClassifier(bias="token").explain(model, batch, TARGET)
        score = model.task.score(model(batch).logits, TARGET)
    torch.testing.assert_close(explanation.scores.sum(1) + explanation.bias, score, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_span_contributions_sum_to_start_plus_end_logit(family):
    model = decomposable.model(family, "QuestionAnswering", num_labels=2)
    batch = decomposable.batch(model)
    target = torch.tensor([[7, 8], [7, 7], [8, 8]]) if model.is_decoder else torch.tensor([[2, 4], [1, 3], [0, 0]])
    with torch.no_grad():
        explanation = DecompXClassifier().explain(model, batch, target)
        score = model.task.score(model(batch).logits, target)
    torch.testing.assert_close(explanation.scores.sum(1), score, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["globenc", "alti", "decompx", "decompx_classifier", "decompx_linear"])
@pytest.mark.parametrize("family", ["bert", "llama", "modernbert"])
def test_half_precision_is_close_to_single(family, method):
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = ExplainedModel(families.tiny(family, dtype=dtype))
        with torch.no_grad():
            found.append(EXPLAINERS[method]().attribute(model, decomposable.batch(model), TARGET).float())
    size = found[0].abs().max()
    torch.testing.assert_close(found[1] / size, found[0] / size, rtol=0, atol=0.1)
