"""The cost of explaining an answer is told before it is explained."""

import re

import pytest
import torch
import transformers as hf
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import expound
import families
from causal import CAUSAL, causal
from chats import CHAT, chatting, tokenizer
from expound.cli import main
from expound.cli.explain import generated
from expound.explainers.plan import count_saved_bytes, plan_work
from expound.explainers.single_pass import count_targets_per_pass
from expound.models.generation.model import GeneratingModel
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
def model():
    """A chat model whose matrix products outweigh everything else, as in real models."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3}
    sizes |= CAUSAL["llama"] | {"max_position_embeddings": 512}
    torch.manual_seed(0)
    inner = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model("llama", **families.SIZE | sizes))
    return GeneratingModel(inner.eval(), tokenizer()).without_checks()


def test_the_plan_says_how_passes_are_organized():
    for method, way in WAYS.items():
        assert plan_work(chatting(), CHAT, method, "tokens", "source", 8).way == way


class CountFlops(TorchDispatchMode):
    """Counts floating point operations; torch's own counter cannot run inside `autograd.grad`."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        count = flop_registry.get(operation._overloadpacket)
        self.total += count(*args, **(kwargs or {}), out_val=result) if count else 0
        return result


def count_flops(run):
    with CountFlops() as counter:
        run()
    return counter.total


METHODS = expound.list_methods()
# Learned methods need a folder, one a ranking model, and one a classifier.
PLANNED = sorted(set(METHODS["name"][~METHODS["learned"]]) - {"llm_ranking", "decompx_classifier"})


@pytest.mark.parametrize("method", PLANNED)
def test_the_planned_cost_is_within_a_factor_of_two_of_the_operations(model, method):
    sources = {f"doc {number}": "a moving film about a small town ." for number in range(1, 5)}
    example = {"prompt": "{sources}", "sources": sources, "response": " the town ."}
    batch = model.encode([example])

    def explain():
        expound.attribute(model, example, [method], "response", unit="source", show_progress=False)

    planned = plan_work(model, example, method, "response", "source", 8).cost
    operations = count_flops(explain)
    with torch.no_grad():
        one_pass = count_flops(lambda: model(batch))
    assert 0.5 <= operations / one_pass / planned <= 2, (operations / one_pass, planned)


def test_the_command_prints_passes_and_time_and_explains_nothing(tmp_path, capsys):
    model = chatting(dtype=torch.float32)
    model.model.save_pretrained(tmp_path / "model")
    model.processing_class.save_pretrained(tmp_path / "model")
    (tmp_path / "prompt.txt").write_text("{sources}\nwhat is small ?")
    (tmp_path / "one.txt").write_text("a small town")
    command = ["explain", "--task", "generation", "--model", str(tmp_path / "model")]
    command += ["--prompt", str(tmp_path / "prompt.txt"), "--source", str(tmp_path / "one.txt"), "--dry-run"]
    command += ["--max-new-tokens", "8", "--target", "tokens"]
    assert main([*command, "--methods", "saliency,occlusion"]) == 0
    first, second, kept = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"saliency: \d+ \+ 8 tokens, 8 rows × 1 units \(source\): .* 8 backward passes \(back .*\), about \d+ s", first
    )
    assert re.match(r"occlusion: .*, about \d+ s$", second)
    assert re.fullmatch(r"a forward pass with a backward pass needs \d+ MiB in addition to the weights", kept)
    assert main([*command, "--methods", "occlusion"]) == 0
    assert "MiB" not in capsys.readouterr().out


def test_a_long_run_is_announced(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(generated, "LONG_RUN", 0.0)
    model = chatting(dtype=torch.float32)
    model.model.save_pretrained(tmp_path)
    model.processing_class.save_pretrained(tmp_path)
    command = ["explain", "what is small ? " * 25, "--task", "generation", "--model", str(tmp_path), "--quiet"]
    assert main([*command, "--response", " the town", "--methods", "value_zeroing", "--raw-prompt"]) == 0
    assert re.search(r"value_zeroing: about \d+ s", capsys.readouterr().err)


def test_short_rows_go_back_together_and_long_ones_alone():
    assert [count_targets_per_pass(length) for length in (64, 96, 192, 193, 1056)] == [12, 8, 4, 1, 1]


def find_saved(node, model):
    """The sizes of the tensors that a graph saves, by their address in memory, without the model's own weights."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.model.parameters(), *model.model.buffers())}
    saved, seen, waiting = {}, set(), [node]
    while waiting:
        current = waiting.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        waiting += [following for following, _ in current.next_functions]
        for name in dir(current):
            value = getattr(current, name) if name.startswith("_saved_") else None
            for tensor in value if isinstance(value, tuple) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in weights:
                    saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return saved


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_saved_bytes_are_those_of_the_graph(family):
    model = (two_sided if family == "t5" else causal)(family, torch.float32)
    model.processing_class = tokenizer()
    example = {"prompt": "a moving film about a small town .", "response": " two women laugh ."}
    batch = model.encode([example])
    saved = count_saved_bytes(model, example)
    # The graph's own nodes hold the tensors: walk them.
    with torch.enable_grad(), model.evaluation_mode():
        logits = model(batch, model.embed(batch).detach().requires_grad_()).logits
    assert saved == pytest.approx(sum(find_saved(logits.grad_fn, model).values()), rel=0.005)
