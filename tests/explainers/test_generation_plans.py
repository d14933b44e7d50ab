"""The work of explaining an answer is told before it is done, from a configuration and a tokenizer alone."""

import re

import pytest
import torch
import transformers as hf

import families
from causal import CAUSAL, causal
from chats import CHAT, chatting
from exegete.cli import main
from exegete.explainers.generated import resolve_unit
from exegete.explainers.gradients.embedding_gradient import count_targets_per_pass
from exegete.explainers.plan import plan_work
from exegete.models.loading.without_weights import count_saved_bytes, load_without_weights
from two_sided import two_sided

WAYS = {
    "saliency": "back from 4 rows at a time",
    "attn_lrp?output=prob": "back from one row at a time",
    "input_x_gradient": "derivatives forward from the units",
    "occlusion": "changed prompts, each once for all rows",
    "attention_rollout": "one pass for all rows",
    "integrated_gradients?n_steps=3&aggregate=l2": "row by row",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A chat model's folder from which the weights were taken."""
    folder, model = tmp_path_factory.mktemp("planned"), chatting(dtype=torch.float32)
    model.model.config.save_pretrained(folder)
    model.processing_class.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("method", "way"), WAYS.items())
def test_the_plan_without_weights_is_that_of_the_model(folder, method, way):
    chosen, unit = resolve_unit(method, "source", {})
    found = [
        plan_work(model, CHAT, chosen, "tokens", unit, 8) for model in (load_without_weights(str(folder)), chatting())
    ]
    assert found[0] == found[1]
    assert found[0].way == way


def test_the_command_reads_no_weights(folder, tmp_path, capsys):
    (tmp_path / "prompt.txt").write_text("{sources}\nwhat is small ?")
    (tmp_path / "one.txt").write_text("a small town")
    command = ["explain", "--task", "generation", "--model", str(folder), "--prompt", str(tmp_path / "prompt.txt")]
    command += ["--source", str(tmp_path / "one.txt"), "--dry-run", "--max-new-tokens", "8", "--target", "tokens"]
    assert main([*command, "--methods", "saliency,occlusion"]) == 0
    first, second, kept = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"saliency: \d+ \+ 8 tokens, 8 rows × 1 units \(source\): .* 8 backward passes \(back .*\)", first
    )
    assert "occlusion" in second
    assert re.fullmatch(r"a forward pass with a backward pass needs \d+ MiB in addition to the weights", kept)
    assert main([*command, "--methods", "occlusion"]) == 0
    assert "keeps" not in capsys.readouterr().out


def test_short_rows_go_back_together_and_long_ones_alone():
    assert [count_targets_per_pass(length) for length in (64, 96, 192, 193, 1056)] == [12, 8, 4, 1, 1]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "t5", "bart"])
def test_a_pass_keeps_what_torch_saves_and_a_mask(tmp_path, family):
    model = (two_sided if family in ("t5", "bart") else causal)(family, torch.float32)
    model.generator.config.save_pretrained(tmp_path)
    families.tokenizer("roberta").save_pretrained(tmp_path)
    prompt, saved = torch.randint(5, 90, (1, 100)), dict[int, torch.Tensor]()
    own = {
        weight.untyped_storage().data_ptr() for weight in (*model.generator.parameters(), *model.generator.buffers())
    }

    def keep(value):
        saved.setdefault(value.untyped_storage().data_ptr(), value)
        return value

    inner, mask = model.generator.requires_grad_(False), torch.zeros(1, 1, 100, 100)
    words = inner.get_input_embeddings().weight[prompt].clone().requires_grad_()
    told = (
        {"decoder_input_ids": prompt[:, :6]}
        if model.is_encoder_decoder
        else {"logits_to_keep": 7, "attention_mask": mask}
    )
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        inner(inputs_embeds=words, use_cache=False, **told)
    expected = sum(each.untyped_storage().nbytes() for place, each in saved.items() if place not in own)
    prompt_tokens = 100 if model.is_encoder_decoder else 94
    share = count_saved_bytes(load_without_weights(str(tmp_path)), prompt_tokens, 6) / expected
    assert 0.98 <= share <= (1.5 if model.is_encoder_decoder else 1.15), share


def test_saved_memory_of_experts_is_unknown(tmp_path):
    hf.AutoConfig.for_model("mixtral", **families.SIZE | CAUSAL["mixtral"]).save_pretrained(tmp_path)
    families.tokenizer("roberta").save_pretrained(tmp_path)
    assert count_saved_bytes(load_without_weights(str(tmp_path)), 24, 6) is None
