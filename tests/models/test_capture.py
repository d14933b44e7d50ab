"""Captured values of each layer, against transformers' eager attention and the equations of attention."""

import pytest
import torch
import transformers as hf

import families
from expound import Batch, ExpoundError, explainer
from expound.models import Capture, ExplainedModel
from expound.models.layers.architecture import get_layers, get_module
from expound.models.passes.capture import HOOKS, record_attention
from small import FAMILIES, alone, shared, small, uneven

LAYERS = 2
EVERYTHING = Capture(attentions=True, heads=True, hidden_states=True)
FOR_SECOND_DERIVATIVES = {None: (1e-5, 1e-5), "rotations": (1e-5, 1e-4), "norms": (1e-3, 1e-2)}
"""A step and a relative tolerance, by what is in float32."""


def long_texts(family):
    """Return texts that are longer than the local windows of the tiny models (ModernBERT 8, Mistral 6)."""
    return uneven(family) if family == "vit" else [*uneven(family, 2), " ".join(families.SENTENCES[:2])]


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
@torch.no_grad()
def test_as_transformers_eager_gives_them(family):
    model = shared(family)
    changes = {"big_bird": {"attention_type": "original_full"}} | {
        decoder: {"pad_token_id": 0} for decoder in families.DECODERS
    }
    eager = small(family, **changes.get(family, {}))
    if family not in HOOKS:
        eager.model.set_attn_implementation("eager")
    batch = model.encode(uneven(family) if family == "big_bird" else long_texts(family))
    captured = model(batch, capture=EVERYTHING)
    assert len(captured.attentions) == len(captured.keys) == LAYERS == len(captured.hidden_states) - 1
    for row, real in enumerate(batch.attended):
        own, _ = alone(model, batch, row)
        expected = eager.model(**own.inputs, output_attentions=True, output_hidden_states=True)
        for ours, theirs in zip(captured.attentions, expected.attentions, strict=True):
            assert ours.isfinite().all()
            torch.testing.assert_close(ours[row][:, real][:, :, real], theirs[0], rtol=0, atol=1e-6)
        for ours, theirs in zip(captured.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(ours[row, real], theirs[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
@torch.no_grad()
def test_rows_add_up_to_one_and_nothing_goes_to_padding(family):
    model = shared(family)
    batch = model.encode(uneven(family))
    for layer in model(batch, capture=Capture(attentions=True)).attentions:
        rows = layer.sum(-1).transpose(1, 2)[batch.attended]
        torch.testing.assert_close(rows, torch.ones_like(rows))
        to_padding = layer * (~batch.attended)[:, None, None, :] * batch.attended[:, None, :, None]
        assert to_padding.abs().max() == 0


@pytest.mark.parametrize("family", families.sweep_others(name for name in FAMILIES if name != "deberta-v2"))
@torch.no_grad()
def test_attention_is_the_softmax_of_queries_times_keys(family):
    model = shared(family)
    batch = model.encode(uneven(family)[:1])
    captured = model(batch, capture=EVERYTHING)
    heads = zip(captured.attentions, captured.queries, captured.keys, captured.scalings, strict=True)
    for attention, query, key, scaling in heads:
        logits = torch.einsum("bhid,bhjd->bhij", query, key) * scaling
        seen = torch.where(attention > 0, logits, -torch.inf)
        torch.testing.assert_close(seen.softmax(-1), attention, rtol=0, atol=1e-10)
    if family in families.DECODERS:
        assert attention.triu(1).abs().max() == 0


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
@torch.no_grad()
def test_attention_times_values_is_what_the_output_projection_gets(family):
    model = shared(family)
    batch = model.encode(uneven(family))
    mixed = []
    output = families.FAMILIES[family].output
    hooks = [
        get_module(layer, output).register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0]))
        for layer in dict.fromkeys(get_layers(model.model))
    ]
    captured = model(batch, capture=EVERYTHING)
    for hook in hooks:
        hook.remove()
    assert len(mixed) == LAYERS
    for attention, value, expected in zip(captured.attentions, captured.values, mixed, strict=True):
        heads = torch.einsum("bhij,bhjd->bihd", attention, value).flatten(2)
        torch.testing.assert_close(heads[batch.attended], expected.view_as(heads)[batch.attended])


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
@pytest.mark.parametrize(
    "capture",
    [Capture(attentions=True), Capture(heads=True), Capture(hidden_states=True), Capture(differentiable_twice=True)],
    ids=["attentions", "heads", "hidden_states", "twice"],
)
@torch.no_grad()
def test_looking_changes_no_logit_and_records_nothing_else(family, capture):
    model = shared(family)
    batch = model.encode(uneven(family))
    captured = model(batch, capture=capture)
    torch.testing.assert_close(captured.logits, model(batch).logits, rtol=1e-10, atol=1e-12)
    counts = {name: len(getattr(captured, name)) for name in ("attentions", "queries", "keys", "values")}
    assert counts["attentions"] == LAYERS * capture.attentions
    assert counts["queries"] == counts["keys"] == counts["values"] == LAYERS * capture.heads
    assert len(captured.hidden_states) == (LAYERS + 1) * capture.hidden_states


@pytest.mark.parametrize("family", ["llama", "mistral"])
@torch.no_grad()
def test_grouped_heads_are_repeated_for_their_queries(family):
    model = shared(family)
    captured = model(model.encode(uneven(family)), capture=Capture(heads=True))
    for query, *others in zip(captured.queries, captured.keys, captured.values, strict=True):
        for heads in others:
            assert heads.shape == query.shape
            assert torch.equal(heads[:, 0], heads[:, 1])
            assert torch.equal(heads[:, 2], heads[:, 3])
            assert not torch.equal(heads[:, 1], heads[:, 2])


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
def test_second_derivatives(family):
    model = shared(family)
    batch = model.encode(uneven(family, 2))
    embeddings = model.embed(batch).detach().requires_grad_()

    def penalty(at):
        score = model(batch, at, Capture(differentiable_twice=True)).logits[:, 0].sum()
        return torch.autograd.grad(score, at, create_graph=True)[0].square().sum()

    (second,) = torch.autograd.grad(penalty(embeddings), embeddings)
    direction = torch.randn_like(embeddings, generator=torch.Generator().manual_seed(1))
    step, tolerance = FOR_SECOND_DERIVATIVES[families.FAMILIES[family].in_float32]
    numeric = (penalty(embeddings + step * direction) - penalty(embeddings - step * direction)) / (2 * step)
    torch.testing.assert_close((second * direction).sum(), numeric.detach(), rtol=tolerance, atol=1e-9)


def test_block_sparse_attention_has_no_matrix_to_capture():
    # Not a shared model: transformers itself switches one to full attention when it reads a short text.
    model = small("big_bird")
    batch = Batch.from_ids(torch.randint(5, 200, (1, 36), generator=torch.Generator().manual_seed(0)))
    for capture in (Capture(attentions=True), Capture(heads=True)):
        with pytest.raises(ExpoundError, match="block-sparse"):
            model(batch, capture=capture)
    with model.evaluation_mode():
        twice = model(batch, capture=Capture(differentiable_twice=True)).logits
        assert torch.equal(twice, model(batch).logits)


def make_model_of_another_family(family, **changes):
    """Return a tiny random model of a family that other tests do not have, and two examples, one padded."""
    torch.manual_seed(0)
    sizes = families.SIZE | {"pad_token_id": 1, "initializer_range": 0.3} | changes
    config = hf.AutoConfig.for_model(family, **sizes)
    model = ExplainedModel(hf.AutoModelForSequenceClassification.from_config(config).eval())
    mask = torch.tensor([[1] * 9, [1] * 4 + [0] * 5])
    ids = torch.randint(5, 200, mask.shape).where(mask.bool(), 1)
    return model, Batch.from_ids(ids, mask)


OUTSIDE = [("mpnet", {}), ("roformer", {}), ("falcon", {}), ("falcon", {"alibi": True})]
"""Families whose attention does not go through transformers' interface, in any version that is supported."""


@pytest.mark.parametrize(("family", "changes"), [*OUTSIDE, ("gptj", {"rotary_dim": 4})])
def test_second_derivatives_have_the_models_own_attention(family, changes):
    model, batch = make_model_of_another_family(family, **changes)
    before = model.config._attn_implementation
    twice = model(batch, capture=Capture(differentiable_twice=True)).logits
    torch.testing.assert_close(twice, model(batch).logits, rtol=1e-5, atol=1e-6)
    scores = explainer("input_x_gradient").attribute(model, batch)
    with torch.no_grad():
        torch.testing.assert_close(scores, explainer("input_x_gradient").attribute(model, batch), rtol=1e-4, atol=1e-6)
    (second,) = torch.autograd.grad(scores.square().sum(), model.embedding.weight)
    assert second.abs().sum() > 0
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(("family", "changes"), OUTSIDE)
def test_attention_outside_the_interface_is_not_captured(family, changes):
    model, batch = make_model_of_another_family(family, **changes)
    before = model.config._attn_implementation
    for capture in (Capture(attentions=True), Capture(heads=True)):
        with pytest.raises(ExpoundError, match="interface"):
            model(batch, capture=capture)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_soft_caps_and_sinks_are_part_of_the_weights(family):
    changes = {
        "gemma2": {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 1},
        "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    }[family]
    model, batch = make_model_of_another_family(family, num_key_value_heads=2, head_dim=8, sliding_window=6, **changes)
    plain = model(batch)
    for capture in (Capture(heads=True), Capture(differentiable_twice=True), Capture(attentions=True)):
        captured = model(batch, capture=capture)
        torch.testing.assert_close(captured.logits, plain.logits, rtol=1e-6, atol=1e-7)
    for row, real in enumerate(batch.attended):
        own, _ = alone(model, batch, row)
        expected = model.model(**own.inputs, output_attentions=True).attentions
        for ours, theirs in zip(captured.attentions, expected, strict=True):
            torch.testing.assert_close(ours[row][:, real][:, :, real], theirs[0], rtol=0, atol=1e-6)


@torch.no_grad()
def test_numbers_for_distances_are_added_and_sinks_refused():
    model = shared("bert")
    layer = model.model.bert.encoder.layer[0].attention.self
    hidden = torch.zeros(1, 3, 32, dtype=torch.float64)
    bias = torch.randn(1, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with record_attention(model.model, Capture(attentions=True)) as record:
        mixed = layer(hidden, position_bias=bias)[0]
    plain = layer.query(hidden).view(1, 3, 4, 8).transpose(1, 2) @ layer.key(hidden).view(1, 3, 4, 8).permute(
        0, 2, 3, 1
    )
    torch.testing.assert_close(record.attentions[0], (plain / 8**0.5 + bias).softmax(-1))
    with record_attention(model.model, Capture()):
        torch.testing.assert_close(layer(hidden, position_bias=bias)[0], mixed)
    with record_attention(model.model, Capture(attentions=True)), pytest.raises(ExpoundError, match="sinks"):
        layer(hidden, sinks=bias)


def test_a_pass_in_which_nothing_was_dispatched_is_no_answer():
    model = shared("bert")
    with pytest.raises(ExpoundError, match="cannot be captured"), record_attention(model.model, Capture()):
        pass


def test_both_wishes_together():
    assert Capture(attentions=True) | Capture(heads=True) == Capture(attentions=True, heads=True)
    assert (Capture(hidden_states=True) | Capture(differentiable_twice=True)).needs_own_attention
    assert not Capture(hidden_states=True).needs_own_attention
