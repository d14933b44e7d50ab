"""Methods on encoder-decoders against their equations, plain gradients and loops over what is removed."""

import numpy as np
import pytest
import torch

from explainers.test_generated_text import TARGET, check_padding
from expound import Batch, ExpoundError, explainer
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.models.generation.encoder_decoder import EncoderDecoderModel
from families import sweep_others
from models.test_generation import PROMPTS, RESPONSES
from small import NATIVE, make_explainer
from two_sided import GATED, NAMES, Written, relevance, rollout, shared_two_sided, two_sided

REFUSED = ["value_zeroing", "globenc", "alti", "information_flow", "flash_trace", "decompx", "decompx_classifier"]
METHODS = [name for name in NATIVE if name not in REFUSED]
LINEAR = [
    "input_x_gradient",
    "integrated_gradients?n_steps=4",
    "decompx_linear",
    "attn_lrp",
    "cp_lrp",
    "gim?baseline_id=3",
    "occlusion",
    "shapley_sampling?n_samples=24",
]
WRITTEN = {"bart": {}, "marian": {}, "t5": {}, "gated t5": GATED}


@pytest.fixture(scope="module", params=WRITTEN)
def model(request):
    return two_sided(request.param.split()[-1], **WRITTEN[request.param])


def passes(model, rule="plain"):
    """The written-out passes of the examples, and the summed log-probability of each one's target."""
    written = Written(model.generator)
    for prompt, response, (start, end) in zip(PROMPTS, RESPONSES, TARGET.tolist(), strict=True):
        run = written.run(torch.tensor(prompt), torch.tensor([*model.decoder_start_ids, *response]), rule)
        chances = run.logits.log_softmax(-1)
        yield run, sum(chances[step, response[step]] for step in range(start, end)), list(range(start, end))


def compare(model, scores, expected, tolerance=1e-8):
    """Compares scores [B, L] of the prompts with the expected scores of each."""
    for row, (prompt, own) in enumerate(zip(PROMPTS, expected, strict=True)):
        start = scores.shape[1] - len(prompt) - len(model.decoder_start_ids) - len(RESPONSES[row])
        torch.testing.assert_close(
            scores[row, start : start + len(prompt)], own.detach(), rtol=tolerance, atol=tolerance
        )


@torch.no_grad()
def test_the_written_out_pass_is_the_model_s(model):
    table = model(model.batch(PROMPTS, RESPONSES)).logits
    with torch.enable_grad():
        for row, (run, score, steps) in enumerate(passes(model)):
            torch.testing.assert_close(table[row, steps, 0].sum(), score.detach(), rtol=1e-9, atol=1e-9)
            own = run.logits.detach()[range(len(RESPONSES[row])), RESPONSES[row]]
            torch.testing.assert_close(table[row, : len(own), 1], own, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp", "gim", "input_x_gradient", "saliency"])
@torch.no_grad()
def test_gradients_and_backward_rules(model, method):
    rule = method if method in ("attn_lrp", "cp_lrp", "gim") else "plain"
    base, expected = (model.embedding(torch.tensor(3)) if method == "gim" else 0), []
    with torch.enable_grad():
        for run, score, _ in passes(model, rule):
            slope = torch.autograd.grad(score, run.source)[0]
            expected.append(slope.norm(dim=-1) if method == "saliency" else (slope * (run.source - base)).sum(-1))
    single = explainer(method, **({"baseline_id": 3} if method == "gim" else {}))
    batch = model.batch(PROMPTS, RESPONSES)
    compare(model, single.attribute(model, batch, TARGET), expected)
    with torch.enable_grad():
        compare(model, single.attribute(model, batch, TARGET).detach(), expected)


@torch.no_grad()
def test_attention_methods(model):
    batch, generator = model.batch(PROMPTS, RESPONSES), torch.Generator().manual_seed(0)
    learned = AttentionToSource.for_model(model)
    learned.coefficients.copy_(torch.randn(learned.coefficients.shape, generator=generator))
    assert tuple(learned.coefficients.shape) == model.attention_shape
    weights = learned.coefficients.double()
    expected = {name: [] for name in ("last", "all", "scaled", "learned", "rollout", "generic")}
    with torch.enable_grad():
        for run, score, rows in passes(model):
            cross = torch.stack([a.detach()[:, rows].mean(1) for _, a in run.decoder])  # [N, H, S]
            slope = torch.autograd.grad(score, run.decoder[-1][1], retain_graph=True)[0][:, rows].mean(1)
            found = (cross[-1].mean(0), cross.mean((0, 1)), cross[-1].mean(0) * slope.mean(0))
            found = (*found, torch.einsum("nh,nhs->s", weights, cross), rollout(run, rows), relevance(run, score, rows))
            for name, own in zip(expected, found, strict=True):
                expected[name].append(own)
    ids = ("attention_last", "attention_all", "scaled_attention", "", "attention_rollout", "generic_attention")
    for (name, own), method in zip(expected.items(), ids, strict=True):
        single = explainer(method) if method else learned
        compare(model, single.attribute(model, batch, TARGET), own, 1e-6 if name == "learned" else 1e-8)


@torch.no_grad()
def test_relevance_adds_up_where_there_are_no_biases():
    model = two_sided("t5")
    batch = model.batch(PROMPTS, RESPONSES)
    for method in ("cp_lrp", "decompx_linear"):
        found = explainer(method, output="logit").explain(model, batch, 0, special_tokens=True)
        logit = model(batch).logits[:, 0, 1]
        torch.testing.assert_close(found.scores.masked_fill(~batch.attended, 0).sum(1), logit, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.bias, torch.zeros_like(logit), atol=1e-9, rtol=0)


# The contract of every explainer asks T5.
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", sweep_others(["bart", "t5"], ["bart"]))
@torch.no_grad()
def test_scores_do_not_depend_on_the_batch(family, method):
    model = shared_two_sided(family)
    check_padding(model, make_explainer(method), make_right_padded_batch(model))


def make_right_padded_batch(model):
    """The examples as ids, with padding on the right."""
    rows = [torch.tensor([*p, *model.decoder_start_ids, *r]) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    step, ends = torch.arange(ids.shape[1]), torch.tensor([len(row) for row in rows])[:, None]
    behind = torch.tensor([len(prompt) for prompt in PROMPTS])[:, None]
    response = (step >= behind + len(model.decoder_start_ids)) & (step < ends)
    return Batch.from_ids(ids, step < ends, response=response, decoder_mask=(step >= behind) & (step < ends))


@pytest.mark.parametrize("method", REFUSED)
def test_decomposition_methods_refuse_encoder_decoders(method):
    model = shared_two_sided("bart")
    with pytest.raises(ExpoundError, match="take a method of gradients, backward rules, attention or perturbation"):
        explainer(method).attribute(model, model.batch(PROMPTS, RESPONSES))


@pytest.mark.parametrize("method", LINEAR)
@torch.no_grad()
def test_tokens_add_up_to_the_span_and_a_contrast_is_a_difference(method):
    model = shared_two_sided("t5")
    batch, single = model.batch(PROMPTS[1], RESPONSES[1]), explainer(method, output="logit" if "?" in method else None)
    rows = torch.cat([single.attribute(model, batch, token) for token in range(1, 4)])
    torch.testing.assert_close(rows.sum(0), single.attribute(model, batch, (1, 4))[0], rtol=1e-9, atol=1e-10)
    each = single.attribute_each(model, batch, torch.tensor([[[token, token + 1]] for token in range(1, 4)]))
    torch.testing.assert_close(each[:, 0], rows, rtol=1e-9, atol=1e-10)
    single = explainer(method, output="logit")
    one, other = (single.attribute(model, model.batch(PROMPTS[0], [token]), 0) for token in (50, 99))
    contrast = single.attribute(model, model.batch(PROMPTS[0], [50], foil_ids=[99]), 0)
    torch.testing.assert_close(contrast, one - other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("family", NAMES)
@torch.no_grad()
def test_removal_is_a_loop_over_shorter_prompts(family):
    model = two_sided(family)
    everything = [[True] * (len(p) + len(r)) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    unit = [[-1, 0, 0, 0, 2, 2, 1, 1, 1], [0, 0, 1], [5, 5, 5, 5, 5, 5]]
    batch = model.batch(PROMPTS, RESPONSES, everything, unit_of=unit)
    scores = explainer("occlusion?perturbation=remove", unit="source").attribute(model, batch)
    for row, (prompt, response, numbers) in enumerate(zip(PROMPTS, RESPONSES, unit, strict=True)):
        own = scores[row, batch.attended[row]].numpy()
        whole = log_probability(model, prompt, response)
        for number in {number for number in numbers if number >= 0}:
            left = [token for token, one in zip(prompt, numbers, strict=True) if one != number]
            drop = whole - log_probability(model, left or [model.mask_id], response)
            here = own[: len(numbers)][np.array(numbers) == number]
            np.testing.assert_allclose(here, drop / len(here), rtol=1e-8)
        assert not own[len(prompt) :].any()
    keep = torch.rand(6, *batch.content.shape, generator=torch.Generator().manual_seed(0)) > 0.5
    found = model.task.score_removal(model.predict_perturbed(batch, keep, "mask"), model.resolve_target(batch))
    for kept, values in zip(keep, found, strict=True):
        for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
            stay = kept[row, batch.attended[row]].tolist()
            left = [token if one else model.mask_id for token, one in zip(prompt, stay, strict=False)]
            np.testing.assert_allclose(values[row], log_probability(model, left, response), rtol=1e-8)


@torch.no_grad()
def log_probability(model, prompt, response):
    """The response's log-probability, from a pass of the Hugging Face model alone."""
    decoder = torch.tensor([[*model.decoder_start_ids, *response]])
    logits = model.generator(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[
        0, len(model.decoder_start_ids) - 1 :
    ]
    return float(logits.log_softmax(-1)[range(len(response)), response].sum())


@torch.no_grad()
def test_adapters_and_half_precision():
    peft = pytest.importorskip("peft")
    plain = two_sided("t5")
    config = peft.LoraConfig(target_modules=["q", "v"], r=2, init_lora_weights=False, task_type="SEQ_2_SEQ_LM")
    adapted = EncoderDecoderModel(peft.get_peft_model(two_sided("t5").generator, config).eval(), plain.processing_class)
    batch = adapted.batch(PROMPTS, RESPONSES)
    for method in ("input_x_gradient", "generic_attention", "attn_lrp", "occlusion"):
        ours, before = (explainer(method).attribute(model, batch) for model in (adapted, plain))
        assert (ours - before).abs().max() > 1e-3
        with adapted.generator.disable_adapter():
            torch.testing.assert_close(explainer(method).attribute(adapted, batch), before)
    half = two_sided("bart", torch.bfloat16)
    for method in ("saliency", "occlusion", "attention_rollout", "cp_lrp"):
        assert explainer(method).attribute(half, batch).isfinite().all()
