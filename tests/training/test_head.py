"""A learning rate and a dropout of its own for the head."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import TrainerCallback

import expound
import families
from expound import ExpoundError
from expound.models.passes.layer_calls import find_record
from expound.objectives import CrossEntropy
from expound.recipes import RECIPES
from expound.training import RunOptions, fine_tune
from expound.training.loop.fine_tune import head_activation, head_dropout
from expound.training.loop.lora import add_lora
from expound.training.loop.trainer import set_head_learning_rate
from runs import ARGUMENTS, difference, load_generated, trainer, weights

HEADS = {
    "bert": {"classifier"},
    "distilbert": {"pre_classifier", "classifier"},
    "roberta": {"classifier"},
    "modernbert": {"head", "classifier"},
    "gpt2": {"score"},
    "vit": {"classifier"},
}


def test_the_head_is_everything_outside_the_encoder():
    for family, head in HEADS.items():
        model = families.tiny(family)
        names = {id(weight): name for name, weight in model.named_parameters()}
        optimizer = torch.optim.AdamW(
            [
                {"params": list(model.parameters())[::2], "weight_decay": 0.5},
                {"params": list(model.parameters())[1::2]},
            ],
            lr=0.01,
        )
        set_head_learning_rate(optimizer, model, 7.0)
        groups = [({names[id(weight)] for weight in group["params"]}, group) for group in optimizer.param_groups]
        fast = set().union(*(found for found, group in groups if group["lr"] == pytest.approx(0.07)))
        slow = set().union(*(found for found, group in groups if group["lr"] == 0.01))
        assert {name.split(".")[0] for name in fast} == head
        assert not {name.split(".")[0] for name in slow} & head
        assert sum(len(group["params"]) for _, group in groups) == len(names)
        assert {group["weight_decay"] for _, group in groups} == {0.5, 0.01}


@pytest.mark.parametrize("family", ["roberta", "gpt2"])
def test_the_head_beside_adapters_is_the_head(family):
    model = expound.load(families.tiny(family), families.processor(family))
    add_lora(model)
    names = {id(weight): name for name, weight in model.model.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.SGD([weight for weight in model.model.parameters() if weight.requires_grad], lr=0.01)
    set_head_learning_rate(optimizer, model.model, 7.0)
    slow, fast = ([names[id(weight)] for weight in group["params"]] for group in optimizer.param_groups)
    (head,) = HEADS[family]
    assert all("lora_" in name and f".{head}." not in name for name in slow)
    assert fast
    assert all(f".{head}." in name for name in fast)


def test_a_step_moves_the_head_by_its_multiple_of_the_rate(tmp_path):
    """Adam's first step is the learning rate along the sign of the gradient."""
    model = expound.load(families.tiny("bert"), families.tokenizer("bert"))
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    from runs import sentences

    loop = trainer(tmp_path, model, sentences(), max_steps=1, learning_rate=1e-3, weight_decay=0.0, adam_epsilon=1e-12)
    loop.options = RunOptions(head_lr_multiplier=5.0)
    loop.train()
    moved = {name: (value - before[name]).abs().max().item() for name, value in model.model.state_dict().items()}
    assert moved["classifier.weight"] == pytest.approx(5e-3, rel=1e-2)
    assert moved["bert.encoder.layer.0.output.dense.weight"] == pytest.approx(1e-3, rel=1e-2)


def run(folder, family="bert", **options):
    tiny = families.tiny(family, num_labels=2)
    return fine_tune(
        tiny, load_generated(size=32), load_generated(split="dev", size=16), folder, objectives=[CrossEntropy()],
        processing_class=families.processor(family),
        arguments=ARGUMENTS | {"num_train_epochs": 1, "learning_rate": 1e-3}, **options,
    )  # fmt: skip


def test_the_record_of_a_run_has_the_rate_of_its_head(tmp_path):
    run(tmp_path / "run", head_lr_multiplier=10.0)
    run(tmp_path / "plain")
    assert difference(weights(tmp_path / "run"), weights(tmp_path / "plain")) > 0
    record = json.loads((tmp_path / "run" / "expound_run.json").read_text())
    assert record["config"]["head_lr_multiplier"] == 10.0
    assert "head_lr_multiplier" not in json.loads((tmp_path / "plain" / "expound_run.json").read_text())["config"]


def test_models_without_a_head_and_rates_of_nothing_are_refused():
    model = families.tiny("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ExpoundError, match="positive multiple"):
        set_head_learning_rate(optimizer, model, 0.0)
    with pytest.raises(ExpoundError, match="no head"):
        set_head_learning_rate(optimizer, model.base_model, 2.0)


def test_the_recipe_has_the_papers_ratio():
    recipe = expound.recipe("regex", preset="paper")
    assert recipe.head_lr_multiplier * recipe.arguments["learning_rate"] == pytest.approx(1e-4)


def test_the_heads_dropout_alone_is_another_one_and_comes_back():
    for family in HEADS:
        model = families.tiny(family)
        places = {name: each.p for name, each in model.named_modules() if isinstance(each, torch.nn.Dropout)}
        encoder = f"{model.base_model_prefix}."
        with head_dropout(model, 0.75):
            inside = {name: each.p for name, each in model.named_modules() if isinstance(each, torch.nn.Dropout)}
        assert inside == {name: usual if name.startswith(encoder) else 0.75 for name, usual in places.items()}
        assert {name: each.p for name, each in model.named_modules() if isinstance(each, torch.nn.Dropout)} == places


def test_explanation_regularization_trains_without_dropout_in_the_head(tmp_path):
    seen = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, model, **_):
            seen.append(model.explained.model.dropout.p)

    run(tmp_path, callbacks=[Watch()], head_dropout=RECIPES["er_joint"]().head_dropout)
    assert set(seen) == {0.0}
    assert json.loads((tmp_path / "expound_run.json").read_text())["config"]["head_dropout"] == 0.0
    recipes = [RECIPES[name]() for name in ("er_joint", "er_constrained", "er_bound")]
    assert {(recipe.head_dropout, recipe.head_activation) for recipe in recipes} == {(0.0, "tanh")}


def answer(model, activation):
    """Return a BigBird's logits, and those of its head by hand: dense, activation, output on the first position."""
    head, ids = model.classifier, torch.arange(5, 13)[None]
    hidden = model.base_model(input_ids=ids).last_hidden_state[:, 0]
    return model(input_ids=ids).logits, head.out_proj(activation(head.dense(hidden)))


def test_a_big_bird_has_a_tanh_in_its_head_alone_and_keeps_it_on_disk(tmp_path):
    model = families.tiny("big_bird").eval()
    usual, by_hand = answer(model, lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
    torch.testing.assert_close(usual, by_hand)
    with head_activation(model, "tanh"):
        inside, by_hand = answer(model, torch.tanh)
        model.save_pretrained(tmp_path)
        families.processor("big_bird").save_pretrained(tmp_path)
    torch.testing.assert_close(inside, by_hand)
    assert (inside - usual).abs().max() > 1e-4
    torch.testing.assert_close(answer(model, torch.tanh)[0], usual)
    assert model.config.to_dict().get("head_activation") is None
    loaded = expound.load(tmp_path)
    torch.testing.assert_close(answer(loaded.model, torch.tanh)[0], inside)
    assert find_record(loaded, loaded.encode(["a film about a town"])).head.activation == "tanh"


def test_what_was_trained_with_a_tanh_in_the_head_is_loaded_with_it(tmp_path):
    for family, expected in (("big_bird", "tanh"), ("bert", None)):
        folder = tmp_path / family
        run(folder, family=family, head_activation="tanh")
        record = json.loads((folder / "expound_run.json").read_text())["config"]
        assert record.get("head_activation") == expected
        assert getattr(expound.load(folder).config, "head_activation", None) == expected


def test_a_stop_gives_the_head_its_activation_back():
    model = families.tiny("big_bird")
    with pytest.raises(KeyboardInterrupt), head_activation(model, "tanh"):
        raise KeyboardInterrupt
    assert model.classifier.config is model.config


@pytest.mark.parametrize(("family", "name", "why"), [("bert", "tanh", "leave"), ("big_bird", "cosine", "activation")])
def test_a_head_with_an_activation_of_its_own_and_an_unknown_one_are_refused(family, name, why):
    model = families.tiny(family)
    with pytest.raises(ExpoundError, match=why), head_activation(model, name):
        pass
    assert getattr(model.config, "head_activation", None) is None
