"""Low-rank adapters as an option of every recipe: what they train, continue, share and refuse."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file

import expound
from expound import ExpoundError
from expound.recipes import RECIPES
from expound.training import Simulatability
from expound.training.bilevel.lookahead import Student
from expound.training.loop.lora import add_lora, share_frozen_weights
from families import processor, tiny
from runs import ARGUMENTS, answers, load_generated

QUICK = ARGUMENTS | {"num_train_epochs": 1, "max_steps": 2, "learning_rate": 1e-2}


def save_model(folder, kind="bert", **changes):
    tiny(kind, **changes).save_pretrained(folder)
    processor(kind).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("start"), num_labels=2)


@pytest.fixture(scope="module")
def data():
    return load_generated(size=24), load_generated(split="dev", size=16)


def make_recipes(start):
    """Return every recipe that trains a model, with what is peculiar to it."""
    made = {name: RECIPES[name]() for name in ("er_joint", "er_constrained", "rrr", "regex", "extractor", "custom")}
    made["ivra"] = RECIPES["ivra"](f"simulatability?student={start},comprehensiveness")
    made["smat"] = RECIPES["smat"](teacher=start)
    made["fresh"] = RECIPES["fresh"]("attention_last", explained_model=start)
    return made


def merge(model):
    """Return a copy of a model whose adapters are merged into its weights."""
    return expound.load((copy.deepcopy(model.model).merge_and_unload(), model.processing_class))


def test_every_recipe_trains_adapters_that_explain_as_the_merged_weights_do(start, data, tmp_path):
    texts = ["a gripping and moving film", "dull"]
    for name, recipe in make_recipes(start).items():
        # SMaT's student never starts from its teacher
        begin = save_model(tmp_path / "other", num_labels=2, seed=7) if name == "smat" else start
        result = recipe.train(begin, *data, tmp_path / name, arguments=QUICK, lora_rank=2)
        saved = load_file(tmp_path / name / "adapter_model.safetensors")
        assert any("lora_B" in key and value.any() for key, value in saved.items()), name
        assert all("lora_" in key or "classifier" in key for key in saved), name
        loaded = expound.load(tmp_path / name, device="cpu")
        batch = loaded.encode(texts)
        torch.testing.assert_close(loaded(batch).logits, result.model(batch).logits, msg=name)
    merged = merge(loaded)
    for method in ("attention_last", "input_x_gradient", "integrated_gradients", "decompx_linear", "occlusion"):
        explainer = expound.explainer(method)
        found = explainer.attribute(loaded, batch)
        torch.testing.assert_close(found, explainer.attribute(merged, batch), atol=1e-6, rtol=0, msg=method)


def test_the_masking_model_of_aml_has_adapters_and_is_saved_whole(start, data, tmp_path):
    recipe = RECIPES["aml"](train_rows=8, dev_rows=4)
    recipe.train(start, *data, tmp_path / "run", arguments=QUICK | {"max_steps": 6, "warmup_steps": 0}, lora_rank=2)
    scorer = expound.explainer(f"attributive_masking:{tmp_path / 'run'}")
    before, after = load_file(f"{start}/model.safetensors"), scorer.reader.model.state_dict()
    moved = [name for name, value in after.items() if not torch.equal(before[f"bert.{name}"], value)]
    assert moved
    assert all(".weight" in name and "LayerNorm" not in name and "embeddings" not in name for name in moved)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_span_heads_of_decoders_are_trained_whole_beside_adapters(kind, tmp_path):
    start = save_model(tmp_path / "start", kind, head="QuestionAnswering")
    rows = answers(16)
    for name, recipe in {"lora": RECIPES["lora"](), "ivra": RECIPES["ivra"]("sufficiency")}.items():
        result = recipe.train(start, rows, rows, tmp_path / name, arguments=QUICK, lora_rank=2)
        saved = load_file(tmp_path / name / "adapter_model.safetensors")
        assert any("qa_outputs" in key and "lora_" not in key for key in saved)
        batch = result.model.encode(list(rows.select(range(2))))
        loaded = expound.load(tmp_path / name, device="cpu")
        torch.testing.assert_close(loaded(batch).logits, result.model(batch).logits)
        torch.testing.assert_close(merge(loaded)(batch).logits, loaded(batch).logits, atol=1e-6, rtol=0)


def test_an_adapter_in_a_folder_or_a_model_is_continued_and_this_is_said(start, data, tmp_path, caplog):
    first = RECIPES["lora"](lora_rank=2).train(start, *data, tmp_path / "first", arguments=QUICK)
    before = load_file(tmp_path / "first" / "adapter_model.safetensors")
    given = expound.load(tmp_path / "first", device="cpu")
    for name, model in {"folder": str(tmp_path / "first"), "pair": (given.model, given.processing_class)}.items():
        caplog.clear()
        expound.train(model, data, "er_joint", output_dir=tmp_path / name, args=QUICK)
        assert "continues the adapter 'default' (rank 2)" in caplog.text
        after = load_file(tmp_path / name / "adapter_model.safetensors")
        assert after.keys() == before.keys()
        assert any(not torch.equal(after[key], before[key]) for key in after if "lora_A" in key)
        assert expound.load(tmp_path / name, device="cpu").labels == first.model.labels
    assert not any(weight.requires_grad for weight in given.model.parameters())
    expound.train(str(tmp_path / "first"), data, "lora", output_dir=tmp_path / "second", args=QUICK)
    assert "no adapter of rank 8 is added" in caplog.text
    assert load_file(tmp_path / "second" / "adapter_model.safetensors").keys() == before.keys()


def count_own(model, other):
    """Return the number of weights of a model that are not in the memory of another."""
    known = {weight.data_ptr() for weight in other.model.parameters()}
    return sum(weight.numel() for weight in model.model.parameters() if weight.data_ptr() not in known)


def test_a_student_beside_an_adapted_model_costs_its_adapters_alone(start, data):
    model = expound.load(start, device="cpu")
    add_lora(model, 2)
    recipe = RECIPES["ivra"]([Simulatability(student=start, student_optimizer="adamw")])
    (criterion,) = (each for each in recipe.build_objectives(model, data[0], seed=0) if each.name == "simulatability")
    student = criterion.companion
    assert count_own(student.network.explained, model) < 0.2 * count_own(model, expound.load(start, device="cpu"))
    teacher, pupil = expound.load(start, device="cpu"), expound.load(start, device="cpu")
    add_lora(pupil, 2)
    share_frozen_weights(pupil.model, teacher.model, fixed=True)
    trained = sum(weight.numel() for weight in pupil.model.parameters() if weight.requires_grad)
    assert count_own(pupil, teacher) == trained
    assert len(student.moments) == len(student.trained)
    with student.requiring_gradients() as network:
        assert isinstance(network, Student)
        names = list(network.trainable_weights())
    assert any("lora_A" in name for name in names)
    assert all("lora_" in name or "classifier" in name or name.startswith("explainer.") for name in names)


def test_a_student_starts_from_the_model_below_the_adapters_of_its_teacher(start, data, tmp_path):
    expound.train(start, data, "lora", output_dir=tmp_path / "teacher", args=QUICK)
    teacher = expound.load(tmp_path / "teacher", device="cpu")
    how = {"output_dir": tmp_path / "student", "args": QUICK, "options": {"lora_rank": 2}}
    result = expound.train(start, data, "smat", teacher=teacher, **how)
    weights = [weight.numel() for weight in result.model.model.parameters()]
    assert 0 < count_own(result.model, teacher) < 0.2 * sum(weights)
    with pytest.raises(ExpoundError, match="starts from the teacher itself"):
        expound.train(teacher.model, data, "smat", teacher=teacher, **how)


def test_quantized_weights_train_with_adapters_and_not_without(start, data, tmp_path):
    pytest.importorskip("bitsandbytes")
    model = expound.load(start, device="cpu", dtype="8bit")
    with pytest.raises(ExpoundError, match="are not trained themselves: add adapters by lora_rank"):
        expound.train(model, data, "baseline", output_dir=tmp_path / "whole", args=QUICK)
    result = expound.train(model, data, "er_joint", output_dir=tmp_path / "run", args=QUICK, options={"lora_rank": 2})
    saved = load_file(tmp_path / "run" / "adapter_model.safetensors")
    assert any("lora_B" in key and value.any() for key, value in saved.items())
    assert result.metrics["rationale_alignment"] > 0


def test_what_adapters_cannot_do_is_said(start, data, tmp_path):
    for options, message in (
        ({"lora_rank": 2, "lora_targets": "nothing"}, "no adapters can be added: No modules were targeted"),
        ({"lora_rank": 2, "lora_dropout": 2.0}, "dropout"),
    ):
        with pytest.raises(ExpoundError, match=message):
            expound.train(start, data, "baseline", output_dir=tmp_path, args=QUICK, options=options)
