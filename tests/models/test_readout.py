from __future__ import annotations

import pytest
import torch

import exegete
from exegete.models.families import FAMILIES
from exegete.models.layers.architecture import layers, part
from exegete.models.passes.readout import answer_only
from families import TEXT, examples, processor, tiny


@pytest.mark.parametrize("family", TEXT)
def test_answers_and_gradients_are_the_same_with_less_work(family):
    model = exegete.load(tiny(family, dtype=torch.float64), processor(family))
    batch = model.encode(examples(family, 4))
    embeddings = model.embed(batch).detach().requires_grad_()
    widths = []
    path = FAMILIES[family].after_attention
    modules = [] if path is None else [part(layers(model.model)[-1], "output")]
    hooks = [module.register_forward_hook(lambda m, i, o: widths.append(o.shape[1])) for module in modules]
    found = []
    for scope in (answer_only(model), torch.enable_grad()):
        with model.evaluating(), scope:
            logits = model(batch, embeddings).logits
        found.append((logits, *torch.autograd.grad(logits[:, 1].sum(), embeddings)))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-10)
    assert widths == ([] if path is None else [1, batch.length])


def test_spans_need_every_position():
    model = exegete.load(tiny("bert", "QuestionAnswering", num_labels=2), processor("bert"))
    batch = model.encode([("what is it", "a film about a river")])
    with answer_only(model):
        assert model(batch).logits.shape == (1, 2, batch.length)


def test_a_wrapped_models_layers_are_found():
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(tiny("bert"), peft.LoraConfig(target_modules=["query"], task_type="SEQ_CLS"))
    model = exegete.load(wrapped.eval(), processor("bert"))
    for method in ("integrated_gradients?n_steps=3", "value_zeroing"):
        assert exegete.attribute(model, "a film", method)[0].scores.any()
