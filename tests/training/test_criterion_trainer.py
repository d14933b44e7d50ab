"""Training for criteria: learning rates, the choice of the epoch, adapters, files, and resuming after a stop."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

import expound
from expound import explainer
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.metrics import metric
from expound.objectives import CrossEntropy, SufficiencyLoss
from expound.recipes import RECIPES
from expound.training import CriterionModule, fine_tune
from expound.training.bilevel.criteria import sum_criteria
from expound.training.loop.training_module import LEARNED_FILE
from families import processor, tiny
from runs import ARGUMENTS, answers, difference, load_generated, pairs, weights
from test_resume import Interrupt

UNJUDGED = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
ADAPTER, COEFFICIENTS = "adapter_model.safetensors", "interpretable_attention/model.safetensors"


def ivra(
    folder, criteria="comprehensiveness", data=None, start="tiny", callbacks=(), arguments=(), lora_rank=None, **options
):
    """Train with the recipe on little data."""
    train, dev = data or (load_generated(size=32), load_generated(split="dev", size=16))
    recipe = RECIPES["ivra"](criteria, **options)
    chosen = ARGUMENTS | {"num_train_epochs": 2, "learning_rate": 1e-3} | dict(arguments)
    return recipe.train(start, train, dev, folder, arguments=chosen, lora_rank=lora_rank, callbacks=callbacks)


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """A folder of a model that is not fine-tuned, with the vocabulary of the generated data."""
    return save_model(tmp_path_factory.mktemp("student"), num_labels=2)


def save_model(folder, kind="bert", **changes):
    tiny(kind, **changes).save_pretrained(folder)
    processor(kind).save_pretrained(folder)
    return str(folder)


def test_the_rate_falls_every_two_epochs_and_coefficients_have_their_own(tmp_path):
    rates = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer, **_):
            rates.append(sorted({round(group["lr"], 12) for group in optimizer.param_groups}))
            decays = {group["weight_decay"] for group in optimizer.param_groups if group["lr"] > 1e-2}
            assert decays <= {0.0}

    more = {"num_train_epochs": 5, "learning_rate": 1e-3, "weight_decay": 0.1} | UNJUDGED
    ivra(tmp_path, callbacks=[Watch()], arguments=more, lr_decay=0.5, lr_multiplier=30.0)
    assert len(rates) == 10
    expected = [0.5 ** (step // 4) for step in range(10)]
    assert rates == [pytest.approx([1e-3 * factor, 3e-2 * factor]) for factor in expected]


def test_a_warm_up_comes_before_the_steps_and_a_schedule_in_their_place(tmp_path):
    def rates(name, **arguments):
        more = {"num_train_epochs": 5, "max_steps": 10} | UNJUDGED | arguments
        history = ivra(tmp_path / name, "consistency", arguments=more, lr_decay=0.5).history
        return [1e3 * entry["learning_rate"] for entry in history if "learning_rate" in entry]

    expected = [min(step / 3, 1.0) * 0.5 ** (step // 4) for step in range(10)]
    assert rates("warm", warmup_steps=3) == pytest.approx(expected)
    for name in ("constant", "linear"):
        found = rates(name, lr_scheduler_type=name)
        assert found == pytest.approx([1.0 if name == "constant" else 1 - step / 10 for step in range(10)])


def test_the_epoch_that_is_best_by_the_criterions_own_metric_on_dev_is_kept(tmp_path):
    dev = load_generated(split="dev", size=24)
    data = load_generated(size=32), dev
    result = ivra(
        tmp_path, "sufficiency,consistency", data, arguments={"num_train_epochs": 3, "save_total_limit": None}
    )
    epochs = [entry for entry in result.history if "eval_criterion" in entry][:3]
    for entry in epochs:
        signed = entry["eval_criterion_consistency"] - entry["eval_criterion_sufficiency"]
        assert entry["eval_criterion"] == pytest.approx(signed)
    best = max(epochs, key=lambda entry: entry["eval_criterion"])
    kept = weights(tmp_path / f"checkpoint-{best['step']}")
    assert difference(kept, weights(tmp_path)) == 0.0
    coefficients = load_file(tmp_path / COEFFICIENTS)
    assert difference(coefficients, load_file(tmp_path / f"checkpoint-{best['step']}" / COEFFICIENTS)) == 0.0
    single = explainer(f"interpretable_attention:{tmp_path}")
    model = expound.load(tmp_path, device="cpu")
    values = []
    judge = metric("aopc_sufficiency", keep_question=True)
    for row in dev:
        batch = model.encode([row])
        values.append(judge.evaluate(model, batch, single.attribute(model, batch))[judge.name])
    assert result.metrics["criterion_sufficiency"] == pytest.approx(float(torch.cat(values).nanmean()), abs=1e-5)


def test_the_sum_of_criteria_turns_signs_and_counts_the_undefined_as_the_worst():
    assert sum_criteria({"comprehensiveness": 0.5, "sufficiency": 0.2}) == pytest.approx(0.3)
    assert sum_criteria({"consistency": float("nan"), "simulatability": 0.75}) == pytest.approx(-0.25)


@pytest.mark.parametrize("make", [pairs, answers])
def test_pairs_and_spans_are_trained_for_all_criteria(make, tmp_path):
    head = "QuestionAnswering" if make is answers else "SequenceClassification"
    start = save_model(tmp_path / "start", head=head, **({"num_labels": 2} if make is answers else {}))
    criteria, data = f"comprehensiveness,sufficiency,consistency,simulatability?student={start}", make(24)
    result = ivra(tmp_path / "run", criteria, (data, data), start, arguments={"num_train_epochs": 1})
    for criterion in ("comprehensiveness", "sufficiency", "consistency", "simulatability"):
        assert f"criterion_{criterion}" in result.metrics
    assert (tmp_path / "run" / COEFFICIENTS).exists()


def test_the_student_learns_and_is_saved_beside_and_stays_out_of_the_model(student, tmp_path):
    result = ivra(tmp_path, f"simulatability?student={student}&student_learning_rate=0.1", start=student)
    beside = load_file(tmp_path / LEARNED_FILE)
    before = load_file(f"{student}/model.safetensors")
    names = [name for name in beside if name.startswith("simulatability_companion.network.explained.model.")]
    moved = [
        name
        for name in names
        if (own := name.partition(".model.")[2]) in before and not torch.equal(beside[name], before[own])
    ]
    assert moved
    assert not any("companion" in name for name in weights(tmp_path))
    assert 0 <= result.metrics["criterion_simulatability"] <= 1


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_decoders_learn_adapters_and_coefficients(kind, tmp_path):
    start = save_model(tmp_path / "start", kind, num_labels=2)
    seen = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, model, **_):
            seen.append([name for name, weight in model.named_parameters() if weight.requires_grad])

    result = ivra(tmp_path / "run", start=start, callbacks=[Watch()], arguments={"learning_rate": 1e-2}, lora_rank=2)
    explained = [name for name in seen[0] if name.startswith("explained.")]
    assert explained
    assert all("lora_" in name or "score" in name for name in explained)
    assert any(name.startswith("learned.") for name in seen[0])
    assert any("lora_B" in name and value.any() for name, value in load_file(tmp_path / "run" / ADAPTER).items())
    model = expound.load(tmp_path / "run", device="cpu")
    batch = model.encode([{"text": "a moving film"}, {"text": "dull"}])
    torch.testing.assert_close(model(batch).logits, result.model.eval()(batch).logits)
    scores = explainer(f"interpretable_attention:{tmp_path / 'run'}").explain(model, batch, special_tokens=True).scores
    torch.testing.assert_close(scores.sum(1), torch.ones(2))


def test_coefficients_can_be_trained_alone(tmp_path):
    start = tiny("bert", num_labels=2)
    start.bert.pooler.requires_grad_(False)
    before = {name: (value.clone(), value.requires_grad) for name, value in start.named_parameters()}
    train, dev = load_generated(size=32), load_generated(split="dev", size=16)
    arguments = ARGUMENTS | {"num_train_epochs": 1, "learning_rate": 1e-2, "load_best_model_at_end": False}
    options = {"processing_class": processor("bert"), "arguments": arguments}
    recipe = RECIPES["ivra"]("comprehensiveness", train_model=False)
    result = recipe.train(start, train, dev, tmp_path / "alone", **options)
    for name, value in start.named_parameters():
        assert torch.equal(value, before[name][0])
        assert value.requires_grad == before[name][1]
    learned = load_file(tmp_path / "alone" / COEFFICIENTS)
    assert all((value != 1).any() for value in learned.values())
    changed = max(float((value - 1).abs().max()) for value in learned.values())
    assert result.metrics["coefficient_change"] == pytest.approx(changed, abs=1e-9)


def test_coefficients_explain_any_model_of_the_same_shape(tmp_path):
    ivra(tmp_path / "run", arguments={"num_train_epochs": 1})
    single = explainer(f"interpretable_attention:{tmp_path / 'run'}")
    other = expound.load(tmp_path / "run", device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    batch = other.encode([{"text": "a great film"}])
    untrained = InterpretableAttention.for_model(other, **{"normalizer": single.normalizer, "mix": single.mix})
    found, usual = (each.explain(other, batch, special_tokens=True).scores for each in (single, untrained))
    torch.testing.assert_close(found.sum(1), torch.ones(1))
    assert not torch.allclose(found, usual)


def test_stopped_and_resumed_it_is_unbroken(student, tmp_path):
    """Model, coefficients, student and rates."""
    options = {"start": student, "lr_decay": 0.5, "lr_multiplier": 30.0, "arguments": {"learning_rate": 1e-3}}
    options |= {"criteria": f"simulatability?student={student},sufficiency"}
    ivra(tmp_path / "whole", **options)
    stopped = ivra(tmp_path / "run", callbacks=[Interrupt(signal.SIGTERM, 3)], **options)
    assert not stopped.finished
    resumed = ivra(tmp_path / "run", **options)
    assert resumed.finished
    assert difference(weights(tmp_path / "whole"), weights(tmp_path / "run")) == 0.0
    for name in (LEARNED_FILE, COEFFICIENTS):
        assert difference(load_file(tmp_path / "whole" / name), load_file(tmp_path / "run" / name)) == 0.0
    record = json.loads((tmp_path / "run" / "expound_run.json").read_text())
    assert "simulatability" in json.dumps(record)


def test_without_a_factor_the_rate_falls_as_in_any_training(tmp_path):
    def terms(start):
        return [CrossEntropy(), SufficiencyLoss(InterpretableAttention.for_model(start))]

    arguments = ARGUMENTS | {"num_train_epochs": 1, "warmup_steps": 0}
    data = load_generated(size=32), load_generated(split="dev", size=16)
    result = fine_tune("tiny", *data, tmp_path, objectives=terms, module=CriterionModule, arguments=arguments)
    rates = [entry["learning_rate"] for entry in result.history if "learning_rate" in entry]
    assert rates[-1] < rates[0]
