"""Terms added to Trainer classes of the user's own and of TRL."""

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainingArguments

import expound
import families
from expound import ExplainedModel, ExpoundError
from expound.objectives import Constraint, CrossEntropy
from expound.training import ObjectiveTrainer, TrainingModule
from expound.training.terms import ExplanationTerms, MaskCollator
from runs import ARGUMENTS, bert, difference, load_generated

CLASS_WEIGHTS = torch.tensor([1.0, 3.0])


class WeightedTrainer(Trainer):
    """A user's class with its own loss; it says that the loss is a mean over each batch."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits.float(), labels, CLASS_WEIGHTS, reduction="sum")
        loss = loss / len(labels)
        return (loss, outputs) if return_outputs else loss


def guidance(explainer="attention_last", weight=10.0):
    return expound.objective("rationale_alignment", explainer=explainer, weight=weight)


def rows(count=8):
    """Rows of token ids with a number per token for the rationale."""
    model = bert(num_labels=2)
    examples = []
    for row in [row for row in load_generated(size=120) if row["rationale"]][:count]:
        batch = model.encode([row])
        examples.append(
            {
                "input_ids": batch.inputs["input_ids"][0].tolist(),
                "attention_mask": batch.inputs["attention_mask"][0].tolist(),
                "labels": int(batch.labels[0]),
                "rationale_mask": batch.rationale_mask[0].long().tolist(),
            }
        )
    return Dataset.from_list(examples)


def make(trainer_class, objectives, folder, model=None, data=None, options=None, **changes):
    """A trainer of the class with added objectives, over rows with rationales."""
    model = bert(num_labels=2) if model is None else model
    data = rows() if data is None else data
    given = {"report_to": "none", "save_strategy": "no", "lr_scheduler_type": "constant", "max_steps": 2}
    given |= ARGUMENTS | {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4} | changes
    args = TrainingArguments(output_dir=str(folder), **given)
    added = expound.with_objectives(trainer_class, objectives, **(options or {}))
    return added(model.model, args, train_dataset=data, eval_dataset=data, processing_class=model.processing_class)


def gradients(trainer):
    """The gradients of one training step at the first optimizer step's batches."""
    found = {}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            if not found:
                found.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    trainer.add_callback(Keep())
    trainer.train()
    return found


@pytest.mark.parametrize("explainer", ["attention_last", "input_x_gradient"])
def test_the_class_keeps_its_own_loss_and_the_terms_are_added_in_one_pass(explainer, tmp_path):
    model, passes = bert(num_labels=2), []
    model.model.bert.register_forward_hook(lambda *_: passes.append(1))
    trainer = make(WeightedTrainer, [guidance(explainer)], tmp_path, model, max_steps=1)
    # The first explanation also finds out which position the head reads.
    expound.attribute(trainer.explained, "a film", explainer)
    passes.clear()
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    other = bert(num_labels=2)
    step = ExplanationTerms(other, [guidance(explainer)])(inputs)
    weighted = torch.nn.functional.cross_entropy(step.logits, inputs["labels"], CLASS_WEIGHTS, reduction="sum") / 4
    plain = torch.nn.functional.cross_entropy(step.logits, inputs["labels"])
    (step.loss - plain + weighted).backward()
    model.model.train()
    loss = trainer.compute_loss(model.model, inputs)
    loss.backward()
    assert len(passes) == 1
    for (name, mine), theirs in zip(other.model.named_parameters(), model.model.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_terms_are_logged_and_evaluated_with_their_gradient_norms(tmp_path):
    trainer = make(Trainer, [guidance()], tmp_path, options={"log_gradient_norms": True}, eval_strategy="steps")
    trainer.train()
    log, evaluated = trainer.state.log_history[0], trainer.state.log_history[1]
    assert log["loss"] == pytest.approx(log["task_loss"] + 10 * log["rationale_alignment"], rel=1e-4)
    assert log["task_loss_gradient_norm"] > 0 < log["rationale_alignment_gradient_norm"]
    assert evaluated["eval_loss"] == pytest.approx(
        evaluated["eval_task_loss"] + 10 * evaluated["eval_rationale_alignment"], rel=1e-4
    )
    # as the norm of the difference that the term's gradient makes
    plain = gradients(make(Trainer, [guidance(weight=0.0)], tmp_path))
    both = gradients(make(Trainer, [guidance()], tmp_path))
    made = torch.nn.utils.get_total_norm([both[name] - plain[name] for name in both])
    assert log["rationale_alignment_gradient_norm"] == pytest.approx(float(made), rel=1e-3)


class DividingTrainer(WeightedTrainer):
    """A class that divides its loss by the batches of a step itself, as losses per token of all batches do."""

    loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        return loss / (self.current_gradient_accumulation_steps if model.training else 1)


@pytest.mark.parametrize("trainer_class", [WeightedTrainer, DividingTrainer])
def test_accumulated_batches_are_one_large_batch(trainer_class, tmp_path):
    data, ends, logged = rows(8), [], []
    for size, parts in ((8, 1), (4, 2)):
        changes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": parts}
        trainer = make(trainer_class, [guidance()], tmp_path, data=data, **changes)
        ends.append(gradients(trainer))
        logged.append(trainer.state.log_history[0])
    assert difference(*ends) < 1e-5
    for name in ("loss", "task_loss", "rationale_alignment"):
        assert logged[0][name] == pytest.approx(logged[1][name], rel=1e-4)


def test_label_smoothing_of_the_class_stays(tmp_path):
    trainer = make(Trainer, [guidance(weight=0.0)], tmp_path, label_smoothing_factor=0.4)
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    loss = trainer.compute_loss(trainer.model, dict(inputs)).detach()
    logits = trainer.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    smooth = torch.nn.functional.cross_entropy(logits, inputs["labels"], label_smoothing=0.4)
    torch.testing.assert_close(loss, smooth.detach())


LEARNING = {
    "explainer": lambda model: [
        expound.objective("comprehensiveness", model, explainer="interpretable_attention?untrained")
    ],
    "multiplier": lambda model: [Constraint(guidance(), bound=0.01, multiplier_learning_rate=0.5)],
}


@pytest.mark.parametrize("what", LEARNING)
def test_what_objectives_learn_is_saved_and_a_resumed_run_is_the_same(what, tmp_path):
    ends = {}
    for name, resume in (("whole", None), ("resumed", True)):
        model = bert(num_labels=2, hidden_dropout_prob=0.1)
        trainer = make(
            Trainer, LEARNING[what](model), tmp_path, model, max_steps=4, save_strategy="steps", save_steps=2,
            learning_rate=0.01,
        )  # fmt: skip
        before = {key: value.clone() for key, value in trainer.module.learned.state_dict().items()}
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2") if resume else None)
        learned = trainer.module.learned.state_dict()
        ends[name] = dict(trainer.model.state_dict()) | learned
        assert difference(before, learned) > 1e-4
        assert not any("expound" in key for key in trainer.model.state_dict())
    assert difference(ends["whole"], ends["resumed"]) == 0
    saved = load_file(tmp_path / "checkpoint-4" / "expound_learned.safetensors")
    assert all(torch.equal(saved[key], ends["whole"][key]) for key in saved)
    assert not any("expound" in key for key in load_file(tmp_path / "checkpoint-4" / "model.safetensors"))


def test_the_model_is_left_as_it_was_also_after_an_error(tmp_path):
    class Broken(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            model(**inputs)
            raise RuntimeError("mine")

    model = bert(num_labels=2)
    base, attention = model.model.bert, model.config._attn_implementation
    trainer = make(Broken, [guidance("input_x_gradient")], tmp_path, model)
    with pytest.raises(RuntimeError, match="mine"):
        trainer.train()
    assert "forward" not in vars(base)
    assert model.config._attn_implementation == attention
    assert not model.model._forward_hooks
    assert not model.embedding._forward_hooks


@pytest.mark.parametrize("side", ["left", "right"])
def test_masks_follow_the_tokens_to_the_side_where_they_are(side):
    tokenizer = families.tokenizer("bert")

    def collate(examples):
        return tokenizer.pad(examples, padding_side=side, return_tensors="pt")

    examples = [{"input_ids": [2, 7, 3], "rationale_mask": [0, 1, 0]}, {"input_ids": [2, 3], "rationale_mask": [1, 0]}]
    mask = MaskCollator(collate)(examples)["rationale_mask"].tolist()
    assert mask == [[0, 1, 0], [0, 1, 0] if side == "left" else [1, 0, 0]]
    with pytest.raises(ExpoundError, match="rationale_mask with an entry for each of the 3 input_ids"):
        MaskCollator(collate)([examples[0] | {"rationale_mask": [1]}, examples[1]])


def test_terms_are_of_the_first_of_several_passes(tmp_path):
    class TwoPasses(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = model(**inputs).loss
            return loss + 0.0 * model(**{name: value.flip(0) for name, value in inputs.items()}).loss

    found = {}
    for trainer_class in (Trainer, TwoPasses):
        trainer = make(trainer_class, [guidance("alti"), expound.objective("attribution_entropy")], tmp_path)
        inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
        found[trainer_class] = trainer.compute_loss(trainer.model, inputs).detach()
    torch.testing.assert_close(*found.values())


def test_half_precision_is_that_of_our_own_trainer(tmp_path):
    data = rows(4)
    objectives = [guidance("alti"), expound.objective("sufficiency")]
    trainer = make(Trainer, objectives, tmp_path, data=data, max_steps=1, bf16=True)
    trainer.train()
    model = bert(num_labels=2)
    found = [row for row in load_generated(size=120) if row["rationale"]][:4]
    module = TrainingModule(model, [CrossEntropy(), *objectives])
    own = ObjectiveTrainer(module, trainer.args, train_dataset=Dataset.from_list(found))
    own.train()
    mine, theirs = trainer.state.log_history[0], own.state.log_history[0]
    for name in ("rationale_alignment", "sufficiency"):
        assert mine[name] == pytest.approx(theirs[name], rel=1e-5)
    assert mine["task_loss"] == pytest.approx(theirs["cross_entropy"], rel=1e-5)


def test_adapters_are_trained_saved_and_resumed(tmp_path):
    peft = pytest.importorskip("peft")
    ends = {}
    for name, resume in (("whole", None), ("resumed", str(tmp_path / "checkpoint-1"))):
        model = bert(num_labels=2)
        config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=2)
        torch.manual_seed(0)
        adapted = expound.load((peft.get_peft_model(model.model, config), model.processing_class))
        terms = [guidance("input_x_gradient"), expound.objective("kl_to_original")]
        settings = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.05}
        trainer = make(Trainer, terms, tmp_path, adapted, **settings)
        trainer.train(resume_from_checkpoint=resume)
        ends[name] = {key: value.clone() for key, value in adapted.model.state_dict().items()}
    assert difference(ends["whole"], ends["resumed"]) == 0
    saved = load_file(tmp_path / "checkpoint-2" / "adapter_model.safetensors")
    assert all("lora_" in key or "classifier" in key for key in saved)
    assert trainer.state.log_history[1]["kl_to_original"] > 1e-6


def test_checkpointed_activations_change_nothing(tmp_path):
    term = [expound.objective("virtual_adversarial"), guidance(), expound.objective("gradient_penalty")]
    plain = gradients(make(Trainer, term, tmp_path))
    checkpointed = gradients(make(Trainer, term, tmp_path, gradient_checkpointing=True))
    assert difference(plain, checkpointed) < 1e-6


def chats():
    texts = [("a moving film about a ", "small town"), ("two women are ", "holding packages in the rain")]
    return Dataset.from_list([{"prompt": prompt, "completion": answer} for prompt, answer in texts * 2])


def test_sft_trainer_trains_responses_with_terms(tmp_path):
    trl = pytest.importorskip("trl")
    model, tokenizer = families.tiny("llama", "CausalLM"), families.tokenizer("llama")
    args = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=3, report_to="none", save_strategy="no", bf16=False, learning_rate=0.01,
        gradient_checkpointing=False, eval_strategy="steps", eval_steps=3, **ARGUMENTS,
    )  # fmt: skip
    entropy = expound.objective("attribution_entropy", explainer="input_x_gradient", weight=0.5)
    added = expound.with_objectives(trl.SFTTrainer, [entropy, expound.objective("kl_to_original")])
    trainer = added(model, args, train_dataset=chats(), eval_dataset=chats(), processing_class=tokenizer)
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    passes = []
    model.model.register_forward_hook(lambda *_: passes.append(1))
    model.train()
    loss = trainer.compute_loss(model, dict(inputs), num_items_in_batch=(inputs["labels"] != -100).sum())
    # TRL computes log-probabilities without logits: the terms must be those of the model's own head
    explained = expound.load((model, tokenizer), task="generation")
    step = ExplanationTerms(explained, [entropy])(inputs)
    own = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=inputs["labels"]).loss
    torch.testing.assert_close(loss, own + 0.5 * step.terms["attribution_entropy"], rtol=1e-4, atol=1e-5)
    trainer.train()
    logs = trainer.state.log_history
    assert logs[0]["kl_to_original"] == pytest.approx(0, abs=1e-5)
    assert logs[2]["kl_to_original"] > 1e-3
    assert logs[0]["attribution_entropy"] != logs[2]["attribution_entropy"]
    assert "eval_attribution_entropy" in logs[3]


def test_reward_trainer_trains_scores_with_terms(tmp_path):
    trl = pytest.importorskip("trl")
    tokenizer = families.tokenizer("llama")
    model = families.tiny("llama", num_labels=1, pad_token_id=tokenizer.pad_token_id)
    data = Dataset.from_list([{"chosen": "a moving film", "rejected": "a tired story about rain"}] * 4)
    args = trl.RewardConfig(
        output_dir=str(tmp_path), max_steps=2, report_to="none", save_strategy="no", bf16=False, learning_rate=0.01,
        gradient_checkpointing=False, eval_strategy="steps", eval_steps=2, **ARGUMENTS,
    )  # fmt: skip
    entropy = expound.objective("attribution_entropy", explainer="input_x_gradient", weight=0.5)
    added = expound.with_objectives(trl.RewardTrainer, [entropy])
    trainer = added(model, args, train_dataset=data, eval_dataset=data, processing_class=tokenizer)
    trainer.train()
    first, second, evaluated = trainer.state.log_history[:3]
    assert first["loss"] == pytest.approx(first["task_loss"] + 0.5 * first["attribution_entropy"], rel=1e-4)
    assert evaluated["eval_task_loss"] < first["task_loss"]
    expected = evaluated["eval_task_loss"] + 0.5 * evaluated["eval_attribution_entropy"]
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=1e-4)
    assert {"accuracy", "margin"} <= set(second)


def test_wrong_uses_are_answered_in_one_sentence(tmp_path):
    class Silent(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return sum(p.sum() for p in model.parameters())

    class Halves(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**{name: value[:2] for name, value in inputs.items()}).loss

    model, term = bert(num_labels=2), [guidance()]
    alone = ExplainedModel(model.model)
    short = rows(4).map(lambda row: {"rationale_mask": row["rationale_mask"][:-1]})
    cases = [
        (lambda: expound.with_objectives(torch.nn.Linear, term), "derived from transformers.Trainer"),
        (lambda: expound.with_objectives(Trainer, [expound.objective("cross_entropy")]), "leave out cross_entropy"),
        (lambda: expound.with_objectives(expound.with_objectives(Trainer, term), term), "has objectives already"),
        (lambda: make(Silent, term, tmp_path).train(), r"call `model\(\*\*inputs\)`"),
        (lambda: make(Halves, term, tmp_path).train(), "ran the model on 2 examples, and the batch has 4"),
        (lambda: make(Trainer, term, tmp_path, torch_compile=True), "set torch_compile=False"),
        (lambda: make(Trainer, term, tmp_path, data=short).train(), "rationale_mask with an entry for each"),
        (lambda: make(Trainer, term, tmp_path, alone, per_device_train_batch_size=1).train(), "without a tokenizer"),
    ]
    for use, message in cases:
        with pytest.raises(ExpoundError, match=message):
            use()
