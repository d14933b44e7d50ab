"""Against numbers that captum, inseq and two-line programs gave for the text of tiny decoders.

The references compute RMSNorm in float64 where transformers' module takes float32, and inseq keeps float32.
"""

import numpy as np
import pytest
import torch

import expound
from expound import explainer

pytestmark = pytest.mark.real
FAMILIES = ["llama-tiny", "gpt2-tiny"]
ROWS = [*range(5), (0, 5)]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model(golden_generation, family):
    return expound.load(golden_generation / family, task="generation", device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def numbers(golden_generation, family):
    def read(name):
        return dict(np.load(golden_generation / f"{family}_{name}.npz"))

    return read


def assert_near(ours, theirs, tolerance):
    """Requires a largest error of `tolerance` relative to the reference's largest number."""
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error <= tolerance, f"{error:.1e}"


def compute_rows(method, model, batch, targets, **params):
    scores = [explainer(method, **params).attribute(model, batch, target)[0] for target in targets]
    return torch.stack(scores).detach().numpy()


@torch.no_grad()
def test_captum_ablation_gradients_and_path_integrals(model, numbers, family):
    theirs = numbers("captum_llm_f64")
    prompt, response = theirs["prompt_ids"], theirs["continuation_ids"]
    whole = model.batch(prompt, response)
    kept = model.batch(prompt, response, content=np.arange(len(prompt)) > 0)
    tolerance = 1e-7 if family == "gpt2-tiny" else 1e-6
    assert_near(model(whole).logits[0, :, 0].numpy(), theirs["log_probs"], tolerance)
    checks = [
        ("gradxact", "input_x_gradient", {}, whole),
        ("ablation_pad_all", "occlusion", {"perturbation": "pad"}, whole),
        ("ablation_unk_skipbos", "occlusion", {"perturbation": "mask"}, kept),
        ("ablation_unk_skipbos_prob", "occlusion", {"perturbation": "mask", "output": "prob"}, kept),
        ("lig50_unk_all", "integrated_gradients", {}, whole),
        ("lig50_pad_all", "integrated_gradients", {"baselines": "pad"}, whole),
        ("lig50_unk_skipbos", "integrated_gradients", {}, kept),
    ]
    for name, method, params, batch in checks:
        ours = compute_rows(method, model, batch, ROWS, **params)[:, batch.content[0].numpy()]
        assert_near(ours, np.concatenate([theirs[f"{name}_token"], theirs[f"{name}_seq"][None]]), tolerance)


@torch.no_grad()
def test_gradients_of_logits_and_their_contrasts(model, numbers, family):
    theirs = numbers("backward_rules_f64")
    prompts = [row[:length] for row, length in zip(theirs["ids"], theirs["lengths"], strict=True)]
    first, second = theirs["targets"].T[..., None]
    batch = model.batch(prompts, first)
    contrast = model.batch(prompts, first, foil_ids=second)
    swapped = model.batch(prompts, second, foil_ids=first)
    tolerance = 1e-13 if family == "gpt2-tiny" else 5e-6
    for inputs, name, method in (
        (batch, "ixg", "input_x_gradient"),
        (batch, "gradnorm_l1", "saliency?norm=mean_absolute"),
        (contrast, "ixg_contrast", "input_x_gradient"),
        (contrast, "gradnorm_l1_contrast", "saliency?norm=mean_absolute"),
    ):
        scores = explainer(method, output="logit").attribute(model, inputs, (0, 1))
        scale = model.config.hidden_size if "gradnorm" in name else 1
        for row, length in enumerate(theirs["lengths"]):
            assert_near(scores[row, -length - 1 : -1].numpy() * scale, theirs[name][row, :length], tolerance)
    ixg = explainer("input_x_gradient", output="logit")
    one, other = (ixg.attribute(model, each, 0) for each in (batch, model.batch(prompts, second)))
    torch.testing.assert_close(ixg.attribute(model, contrast, 0), one - other, rtol=0, atol=2e-6)
    torch.testing.assert_close(ixg.attribute(model, swapped, 0), other - one, rtol=0, atol=2e-6)


@pytest.mark.parametrize("output", ["probability", "logit"])
@torch.no_grad()
def test_inseq_keeps_the_prefix(model, numbers, output):
    theirs = numbers("inseq_f32")
    start, end = theirs["position_range"]
    ids = theirs["target_tokens"]
    count = int(start)
    batch = model.batch(ids[:count], ids[count:], content=np.arange(len(ids)) >= 0)
    name = {"probability": "prob", "logit": "logit"}[output]
    rows = range(int(end - start))
    for method in ("input_x_gradient", "integrated_gradients"):
        if method == "integrated_gradients":  # inseq leaves end-of-sequence tokens, and starts, as they are
            moves = ~np.isin(ids, [model.tokenizer.eos_token_id])
            batch = model.batch(ids[:count], ids[count:], content=moves)
        expected = np.nan_to_num(theirs[f"{method}_{output}_target"]).sum(-1).T
        assert_near(compute_rows(method, model, batch, rows, output=name), expected, 2e-6)
    batch = model.batch(ids[:count], ids[count:], content=np.arange(len(ids)) >= 0)
    absolute = np.abs(np.nan_to_num(theirs[f"saliency_{output}_target"])).mean(-1).T
    assert_near(compute_rows("saliency?norm=mean_absolute", model, batch, rows, output=name), absolute, 2e-6)


@pytest.mark.parametrize("output", ["probability", "logit"])
@torch.no_grad()
def test_inseq_on_an_encoder_and_a_decoder(golden_generation, output):
    theirs = dict(np.load(golden_generation / "bart-tiny_inseq_f32.npz"))
    model = expound.load(golden_generation / "bart-tiny", task="generation", device="cpu", dtype="float64")
    source, target = theirs["source_tokens"], theirs["target_tokens"]
    assert model.decoder_start_ids == (target[0],)
    ids = np.concatenate([source, target[1:]])
    whole = model.batch(source, target[1:], content=np.ones(len(ids), bool))
    moving = model.batch(source, target[1:], content=ids != model.tokenizer.eos_token_id)
    assert_near(model(whole).logits[0, :, 0].exp().numpy(), theirs["probabilities"], 1e-6)
    name = {"probability": "prob", "logit": "logit"}[output]
    for method, batch in (("input_x_gradient", whole), ("saliency", whole), ("integrated_gradients", moving)):
        single = explainer(method, output=name, **({"norm": "mean_absolute"} if method == "saliency" else {}))
        own = [single.explain(model, batch, row, special_tokens=True).scores[0] for row in range(len(target) - 1)]
        each = [np.nan_to_num(theirs[f"{method}_{output}_{side}"]) for side in ("source", "target")]
        expected = np.concatenate([np.abs(a).mean(-1) if method == "saliency" else a.sum(-1) for a in each]).T
        assert_near(torch.stack(own).numpy(), expected, 1e-6)


@pytest.mark.parametrize(("name", "output"), [("logits", "logit"), ("prob", "prob")])
@torch.no_grad()
def test_inseq_contrasts_on_the_answers_own_prefix(model, numbers, name, output):
    theirs = numbers("inseq_f32")
    ids, count = theirs["target_tokens"], int(theirs["position_range"][0])
    foils = theirs["contrast_target_tokens"][count:]
    batch = model.batch(ids[:count], ids[count:], content=np.arange(len(ids)) >= 0, foil_ids=foils)
    expected = np.nan_to_num(theirs[f"input_x_gradient_contrast_{name}_diff"]).sum(-1).T
    ours = compute_rows("input_x_gradient", model, batch, range(len(foils)), output=output)
    assert_near(ours, expected, 2e-6)
    # Equal tokens have equal probabilities, up to the rounding of two sums.
    assert np.abs(ours[1:]).max() < 1e-12
    absolute = np.nan_to_num(np.abs(theirs[f"saliency_contrast_{name}_diff"])).mean(-1).T
    assert_near(
        compute_rows("saliency?norm=mean_absolute", model, batch, range(len(foils)), output=output), absolute, 2e-6
    )


@torch.no_grad()
def test_context_cite_ablations(golden_generation):
    theirs = dict(np.load(golden_generation / "llama-tiny_contextcite_f64.npz"))
    model = expound.load(golden_generation / "llama-tiny", task="generation", device="cpu", dtype="float64")
    prompt, response = theirs["prompt_ids"], theirs["response_ids"]
    unit = unit_of_sources(model, prompt, theirs["sources"])
    batch = model.batch(prompt, response, content=unit >= 0, unit_of=unit)
    masks = torch.from_numpy(theirs["masks"])
    keep = torch.nn.functional.pad(masks, (1, 0), value=True)[:, batch.unit_of[0] + 1][:, None]
    table = model.predict_perturbed(batch, keep)
    assert_near(table[:, 0, :, 0].numpy(), theirs["token_log_probs"], 1e-6)
    assert_near(model(batch).logits[0, :, 0].numpy(), theirs["full_token_log_probs"], 1e-6)


def unit_of_sources(model, prompt, sources):
    """The number of each prompt token's source [P], -1 outside of all sources."""
    unit, start = np.full(len(prompt), -1), 0
    for number, source in enumerate(sources):
        ids = model.tokenizer(str(source), add_special_tokens=False)["input_ids"]
        at = next(i for i in range(start, len(prompt)) if prompt[i : i + len(ids)].tolist() == ids)
        unit[at : at + len(ids)] = number
        start = at + len(ids)
    return unit
