"""Backward rules on architectures that nobody described: scores equal finite differences of a network that is held."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import expound
from expound.models import Capture
from sweep.held import Held
from sweep.own_models import give_head
from sweep.run_sweep import make_batch
from sweep.tiny_models import build


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


def test_a_constant_of_the_shape_of_hidden_states_is_no_factor_that_depends_on_them():
    found = []
    for double in (lambda states: states * 2, lambda states: states * torch.full_like(states, 2)):
        raw, _ = give_head(
            build("bert", "SequenceClassification"), lambda raw, states, _, f=double: raw.own(f(states).sum(1))
        )
        model = expound.load(raw)
        batch = make_batch(model, "SequenceClassification").select([0]).trim_padding()[0]
        found.append(expound.explainer("cp_lrp").attribute(model, batch, 1))
    torch.testing.assert_close(found[0], found[1])
