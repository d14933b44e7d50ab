"""Encoder-decoders as models: one row for both sides, responses, loading, refusals; the user's model stays as it is."""

import pytest
import torch
import transformers as hf

import expound
import families
from chats import CHAT, TEMPLATE, tokenizer
from expound import Batch, ExpoundError, explainer
from expound.explainers.gradients.paths import sum_scores_forward
from expound.models import Capture
from expound.models.generation.encoder_decoder import EncoderDecoderModel
from expound.testing.no_side_effects import raise_in_hook, simulate_use, snapshot
from models.test_generation import PROMPTS, RESPONSES
from two_sided import NAMES, SMALL, two_sided

ROW = {
    "prompt": "{sources}\n\nwhat is small ?",
    "sources": {"doc 1": "a moving film about a small town", "doc 2": "two women are holding packages"},
    "response": "the town . Two women laugh",
}


@torch.no_grad()
def step_by_step(model, prompt, response):
    """Return the log-probability and the logit of each token, each from a pass over the tokens before it."""
    found = []
    for count, token in enumerate(response):
        decoder = torch.tensor([[*model.decoder_start_ids, *response[:count]]])
        logits = model.generator(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0, -1]
        found.append(torch.stack([logits.log_softmax(-1)[token], logits[token]]))
    return torch.stack(found)


@pytest.mark.parametrize("family", NAMES)
@torch.no_grad()
def test_one_pass_equals_decoding_step_by_step(family):
    model = two_sided(family)
    table = model(model.batch(PROMPTS, RESPONSES)).logits
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        expected = step_by_step(model, prompt, response)
        torch.testing.assert_close(table[row, : len(response)], expected, rtol=1e-9, atol=1e-9)
        assert not table[row, len(response) :].any()


@pytest.mark.parametrize("family", NAMES)
@torch.no_grad()
def test_generated_responses_are_transformers_own(family):
    model = two_sided(family, torch.float32)
    row = {"prompt": "a small town"}
    (said,) = model.respond([row], max_new_tokens=5, allow_empty=True)
    ids = torch.tensor([families.tokenizer("roberta")("a small town")["input_ids"]])
    own = list(model.decoder_start_ids)
    for _ in range(5):
        own.append(int(model.generator(input_ids=ids, decoder_input_ids=torch.tensor([own])).logits[0, -1].argmax()))
        if own[-1] == model.config.eos_token_id:
            break
    assert said["response"] == own[len(model.decoder_start_ids) :]
    drawn = [model.respond([row], 5, temperature=1.0, seed=seed, allow_empty=True)[0]["response"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    batch = model.encode([said])
    assert batch.inputs["input_ids"][0].tolist() == [*ids[0].tolist(), *own]


def test_both_sides_of_a_text_in_one_row():
    model = two_sided("bart")
    model.generator.generation_config.forced_bos_token_id = 0
    batch = model.encode([ROW, {"prompt": "a film", "response": [50, 51]}])
    tokens = [model.tokenizer.convert_ids_to_tokens(ids[real].tolist()) for ids, real in _rows(batch)]
    assert tokens[1] == ["<s>", "a", "Ġf", "i", "l", "m", "</s>", "</s>", "<s>", *tokens[1][-2:]]
    assert model.decoder_start_ids == (2, 0), "its start, and the first token that is forced"
    ids, real = _rows(batch)[0]
    end = ids[real].tolist().index(2)
    assert ids[real][end + 1 : end + 3].tolist() == [2, 0]
    said = model.tokenizer(text_target=ROW["response"])["input_ids"]
    assert ids[batch.response[0]].tolist() == said[1:-1], "the forced token is no part of the response, nor is the end"
    assert batch.decoder_mask.sum(1).tolist() == (batch.response.sum(1) + 2).tolist()
    assert not (batch.content & batch.decoder_mask).any()
    shown = "".join(t for t, c in zip(tokens[0], batch.content[0][real].tolist(), strict=True) if c)
    assert shown.replace("Ġ", "").startswith("amovingfilm")
    assert "</s>" not in shown
    second = model.tokenizer.decode(ids[batch.unit_of[0] == 1])
    assert second.replace(" ", "") == ROW["sources"]["doc 2"].replace(" ", "")
    assert batch.exchanges[0].response == ROW["response"]


def _rows(batch):
    return list(zip(batch.inputs["input_ids"], batch.attended, strict=True))


def test_chats_go_through_the_template():
    model = EncoderDecoderModel(two_sided("t5", torch.float32).generator, tokenizer(TEMPLATE, "roberta"))
    (found,) = expound.attribute(model, [CHAT], method="occlusion", unit="source", target="sentences")
    assert found.unit_texts == ("doc 1", "doc 2")
    assert found.scores.shape == (2, 2)
    assert len(found.citations(k=1)) == 2


@pytest.mark.parametrize("method", ["input_x_gradient", "occlusion", "cp_lrp"])
def test_units_are_sums_or_removed_as_one_and_foils_differences(method):
    model = two_sided("bart")
    (token,), (source,) = (expound.attribute(model, [ROW], method=method, unit=unit) for unit in ("token", "source"))
    if method != "occlusion":
        inside = [[unit.segment for unit in token.units].count(text) for text in (0, 1)]
        assert inside[0] > 1
        sums = [
            sum(score for score, unit in zip(token.scores[0], token.units, strict=True) if unit.segment == text)
            for text in (0, 1)
        ]
        torch.testing.assert_close(torch.tensor(sums), torch.tensor(source.scores[0].tolist()), rtol=1e-4, atol=1e-5)
    (other,) = expound.attribute(model, [ROW | {"response": "nobody"}], method=method, unit="source")
    (contrast,) = expound.attribute(model, [ROW | {"foil": "nobody"}], method=method, unit="source")
    torch.testing.assert_close(torch.tensor(contrast.scores), torch.tensor(source.scores - other.scores))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_forward_mode_source_sums_equal_backward_mode(family):
    model = two_sided(family)
    batch = model.batch(PROMPTS[0], RESPONSES[1])
    parts = (torch.arange(batch.length) // 3 == torch.arange(3)[:, None])[:, None]
    targets = [torch.tensor([[step, step + 1]]) for step in range(5)]
    for name in ("input_x_gradient", "cp_lrp", "gim?baseline_id=3"):
        single = explainer(name)
        sums = sum_scores_forward(single, model, batch, targets, parts & batch.content)[:, 0]
        each = single.attribute_each(model, batch, torch.stack(targets))[:, 0]
        expected = torch.stack([each.masked_fill(~where, 0).sum(1) for where in parts[:, 0]], 1)
        torch.testing.assert_close(sums, expected, rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_attention_of_both_sides_stands_in_the_row():
    model = two_sided("t5")
    batch = model.batch(PROMPTS, RESPONSES)
    found = model(batch, capture=Capture(attentions=True))
    (encoder, decoder), count = (2, 3), len(PROMPTS[1])
    assert (len(found.attentions), len(found.blocks)) == (decoder, encoder + 2 * decoder)
    model.generator.set_attn_implementation("eager")
    ids, said = torch.tensor([PROMPTS[1]]), torch.tensor([[*model.decoder_start_ids, *RESPONSES[1]]])
    own = model.generator(input_ids=ids, decoder_input_ids=said, output_attentions=True)
    start = batch.length - count - said.shape[1]
    for layer in range(decoder):
        rows = found.attentions[layer][1, :, start + count :]
        torch.testing.assert_close(rows[..., start : start + count], own.cross_attentions[layer][0])
        torch.testing.assert_close(rows[..., start + count :], own.decoder_attentions[layer][0])
        assert not found.attentions[layer][1, :, : start + count].any(), "an encoder's positions read no answer"
    for layer in range(encoder):
        torch.testing.assert_close(found.blocks[layer][1, :, :count, :count], own.encoder_attentions[layer][0])
        placed = model.scatter_attention(batch, found.blocks)[layer][1]
        inside = placed[:, start : start + count, start : start + count]
        torch.testing.assert_close(inside, own.encoder_attentions[layer][0])
        torch.testing.assert_close(placed.sum(), inside.sum())


@pytest.mark.parametrize(
    "method", ["input_x_gradient", "occlusion", "generic_attention", "attn_lrp", "attention_rollout"]
)
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_the_model_is_left_as_it_came(family, method):
    model = two_sided(family, torch.float32)
    simulate_use(model)
    before = snapshot(model)
    batch = model.batch(PROMPTS, RESPONSES)
    explainer(method).attribute(model, batch)
    model.respond([{"prompt": "a film"}], 2)
    assert snapshot(model) == before
    for moment in (1, 4):
        with raise_in_hook(model, RuntimeError, moment):
            before = snapshot(model)
            with pytest.raises(RuntimeError):
                explainer(method).attribute(model, batch)
            assert snapshot(model) == before


def test_wrapping_changes_nothing():
    inner = two_sided("t5", torch.float32).generator.train()
    before, names = inner.config.to_dict(), [name for name, _ in inner.named_modules()]
    kinds = [each.config._attn_implementation for each in (inner, inner.encoder, inner.decoder)]
    model = expound.load(inner, families.tokenizer("roberta"), task="generation")
    assert model.generator is inner
    assert all(module.training for module in inner.modules())
    assert inner.config.to_dict() == before
    assert [name for name, _ in inner.named_modules()] == names
    assert [each.config._attn_implementation for each in (inner, inner.encoder, inner.decoder)] == kinds


def test_a_folder_is_loaded_and_says_what_it_is(tmp_path):
    two_sided("bart", torch.float32).generator.save_pretrained(tmp_path)
    families.tokenizer("roberta").save_pretrained(tmp_path)
    model = expound.load(tmp_path, task="generation", device="cpu")
    assert isinstance(model, EncoderDecoderModel)
    assert "EncoderDecoderModel" in repr(model)
    scores = expound.attribute(model, [ROW], method="input_x_gradient", unit="source")[0].scores
    assert scores.shape == (1, 2)
    with pytest.raises(ExpoundError, match="task='generation'"):
        expound.load(tmp_path, device="cpu")
    with pytest.raises(ExpoundError, match="task='generation'"):
        expound.load(model.generator)


def test_what_cannot_be_said_or_read():
    model = two_sided("bart", torch.float32, max_position_embeddings=20)
    ids = torch.tensor([[5, 6, 2, 50]])
    response = torch.tensor([[False, False, False, True]])
    with pytest.raises(ExpoundError, match="what the decoder reads"):
        model(Batch.from_ids(ids, response=response))
    with pytest.raises(ExpoundError, match="each have at most 20"):
        model.encode([{"prompt": "a film", "response": [50] * 20}])
    with pytest.raises(ExpoundError, match="where the response is"):
        model(Batch.from_ids(ids, decoder_mask=response))
    untied = hf.AutoConfig.for_model("marian", **SMALL["marian"], share_encoder_decoder_embeddings=False)
    with pytest.raises(ExpoundError, match="no word embeddings that encoder and decoder share"):
        EncoderDecoderModel(hf.AutoModelForSeq2SeqLM.from_config(untied))
    fits = model.encode([{"prompt": "a film " * 20, "response": [50] * 15}])
    assert (fits.attended & ~fits.decoder_mask).sum() <= 20
    assert fits.alignments[0].truncated


def test_attributions_keep_a_graph_to_the_weights():
    model = two_sided("t5")
    for method in ("saliency", "generic_attention", "cp_lrp", "attention_last"):
        scores = explainer(method).attribute(model, model.batch(PROMPTS, RESPONSES), (0, 2))
        slopes = torch.autograd.grad(scores.square().sum(), list(model.model.parameters()), allow_unused=True)
        assert any(slope is not None and slope.any() for slope in slopes)
