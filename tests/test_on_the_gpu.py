"""A CUDA device gives the results of the CPU, in every method and in training."""

import pytest
import torch

import expound
from expound.models.state import avoid_cudnn_attention
from expound.recipes import RECIPES
from small import NATIVE, make_explainer, small, uneven

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
DRAWN = {"random", "gradient_shap", "smooth_grad", "lime", "kernel_shap", "shapley_sampling"}
FAMILIES = ["bert", "roberta", "modernbert", "deberta-v2", "gpt2", "mistral", "vit"]


@pytest.mark.parametrize("method", [name for name in NATIVE if name not in DRAWN])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_cpu(family, method):
    here, there = small(family), small(family).to("cuda")
    batch = here.encode(uneven(family, 3))
    try:
        expected = make_explainer(method).attribute(here, batch).detach()
    except expound.ExpoundError as error:
        with pytest.raises(expound.ExpoundError, match=str(error)[:30].replace("(", ".").replace("[", ".")):
            make_explainer(method).attribute(there, batch.to("cuda"))
        return
    found = make_explainer(method).attribute(there, batch.to("cuda")).detach()
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", sorted(DRAWN))
def test_what_is_drawn_is_drawn_again(method):
    model = small("bert").to("cuda")
    batch = model.encode(uneven("bert", 3))
    first, second = (make_explainer(method).attribute(model, batch).detach() for _ in range(2))
    assert torch.equal(first, second)
    assert first[batch.content].isfinite().all()


@pytest.mark.parametrize(
    "method", ["attention_rollout", "input_x_gradient", "integrated_gradients", "occlusion", "alti"]
)
def test_half_precision_keeps_the_order(method):
    exact, half = small("bert", dtype=torch.float32).to("cuda"), small("bert", dtype=torch.bfloat16).to("cuda")
    batch = exact.encode(uneven("bert", 1))
    target = exact.predict(batch)
    pair = [make_explainer(method).attribute(model, batch, target)[batch.content].float() for model in (exact, half)]
    assert torch.corrcoef(torch.stack(pair))[0, 1] > 0.9


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "fresh"])
def test_every_recipe_trains_in_mixed_precision(name, tmp_path):
    train, dev = (expound.load_data("generated?size=96", split) for split in ("train", "dev"))
    settings = {"num_train_epochs": 2, "bf16": True, "disable_tqdm": True}
    result = RECIPES[name]().train("tiny", train, dev, tmp_path / "run", arguments=settings)
    assert next(result.model.parameters()).device.type == "cuda"
    assert result.metrics["loss"] == result.metrics["loss"]


def test_no_pass_uses_the_attention_of_cudnn():
    # With a mask, the gradient of cuDNN's kernel is NaN at 64 modulo 128 tokens if all logits are low (torch 2.11).
    model, seen = small("llama", dtype=torch.bfloat16).to("cuda"), []
    batch = model.encode(uneven("llama", 3))
    handle = model.embedding.register_forward_hook(lambda *given: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    make_explainer("input_x_gradient").attribute(model, batch)
    handle.remove()
    assert not any(seen)
    assert seen
    assert torch.backends.cuda.cudnn_sdp_enabled() == was_enabled
    query, key, value = (torch.randn(1, 1, 192, 64, device="cuda", dtype=torch.bfloat16) * 0.1 for _ in range(3))
    query[..., 0], key[..., 0] = 1.0, -960.0
    query.requires_grad_()
    mask = torch.ones(192, 192, dtype=torch.bool, device="cuda").tril()[None, None]
    with avoid_cudnn_attention(query.device):
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    mixed.sum().backward()
    assert query.grad.isfinite().all()
