"""Backward rules on architectures that nobody described: scores equal finite differences of a network that is held."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import expound
from expound.models import Capture
from sweep.run_sweep import make_batch
from sweep.tiny_models import build

ZERO_AT_ZERO = {"gelu", "silu", "relu", "tanh", "pow", "square", "erf", "clamp"}
CONSTANT = {"softmax", "sigmoid", "softplus", "exp", "rsqrt"}


class Held(TorchFunctionMode):
    """Records each factor of a pass that the definition holds, and then uses it in passes on other embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple] = []
        self.place: int | None = None
        self.gates: dict[int, Tensor] = {}

    def hold(self, *factors: Tensor) -> tuple:
        if self.place is None:
            self.kept.append(tuple(x.detach() for x in factors))
            return self.kept[-1]
        self.place += 1
        return self.kept[self.place - 1]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.__name__
        depends = [isinstance(x, Tensor) and x.requires_grad for x in args]
        if not any(depends):
            return func(*args, **kwargs)
        if name in CONSTANT:
            return self.hold(func(*args, **kwargs))[0]
        if name in ZERO_AT_ZERO:
            value = func(*args, **kwargs)
            held = args[0] * self.hold(torch.where(args[0] == 0, 0, value / args[0]))[0]
            self.gates[id(held)] = held
            return held
        if name == "topk":
            (chosen,) = self.hold(func(*args, **kwargs).indices)
            return args[0].gather(-1, chosen), chosen
        if name == "rms_norm":
            x = args[0]
            return x * self.hold((x.square().mean(-1, keepdim=True) + kwargs["eps"]).rsqrt())[0] * kwargs["weight"]
        if name == "layer_norm":
            x = args[0]
            scale = self.hold((x.var(-1, correction=0, keepdim=True) + kwargs["eps"]).rsqrt())[0]
            return (x - x.mean(-1, keepdim=True)) * scale * kwargs["weight"] + (
                0 if kwargs["bias"] is None else kwargs["bias"]
            )
        if name == "div" and len(depends) > 1 and depends[1]:
            return func(args[0], self.hold(args[1])[0])
        if name in ("mul", "matmul") and all(depends[:2]):
            is_gate = [id(x) in self.gates for x in args]
            one, other = self.hold(*args)
            if sum(is_gate) == 1:
                return func(one, args[1]) if is_gate[0] else func(args[0], other)
            return (func(one, args[1]) + func(args[0], other)) / 2
        return func(*args, **kwargs)


def compute_by_differences(model, batch, target) -> Tensor:
    """The change of the held network's logit with the length of each embedding, by central differences."""
    # The held network is affine, so steps are as long as the embeddings: some norms compute in float32.
    embeddings, held = model.embed(batch).detach(), Held()

    def run(at: Tensor) -> Tensor:
        held.place = None if not held.kept else 0
        with held:
            logits = model(batch, at.clone().requires_grad_(), Capture(differentiable_twice=True)).logits
        return model.task.logit(logits.detach(), target)[0]

    run(embeddings)
    scores = []
    for place in range(batch.length):
        direction = torch.zeros_like(embeddings)
        direction[:, place] = embeddings[:, place]
        scores.append((run(embeddings + direction) - run(embeddings - direction)) / 2)
    return torch.stack(scores)


@pytest.mark.parametrize(
    ("model_type", "head"),
    [
        *(
            (name, "CausalLM")
            for name in ("granitemoe", "deepseek_v3", "phi", "gptj", "olmo2", "opt", "gemma2", "stablelm")
        ),
        *((name, "SequenceClassification") for name in ("mpnet", "roformer", "gemma2", "qwen3_moe")),
    ],
)
def test_held_factors_equal_finite_differences(model_type, head):
    raw = build(model_type, head)
    for weight in raw.parameters():
        weight.requires_grad_(False)
    model = expound.load(raw, task="generation" if head == "CausalLM" else None)
    batch = make_batch(model, head).select([0]).trim_padding()[0]
    target = model.resolve_target(batch)
    with torch.no_grad():
        found = expound.explainer("cp_lrp", output="logit").explain(model, batch, target, special_tokens=True).scores[0]
    # The reference sees functions, and this activation is written out in several.
    for parent in list(raw.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "NewGELUActivation":
                setattr(parent, name, nn.GELU(approximate="tanh"))
    expected = compute_by_differences(model, batch, target)
    content = batch.content[0] if head == "CausalLM" else batch.attended[0]
    torch.testing.assert_close(found[content], expected[content], rtol=1e-6, atol=1e-6)
