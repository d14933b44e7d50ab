"""Explanation losses in a training loop of the user's own."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import expound
import families
from expound import Constraint, ExplainedModel, ExpoundError
from expound.objectives import OBJECTIVES, TrainingStep
from expound.training import ObjectiveTrainer, TrainingModule
from expound.training.loop.training_module import Collator
from expound.training.terms import ExplanationTerms
from runs import ARGUMENTS, bert, difference, load_generated, run_in_two_processes

STEPS, RATE = 3, 0.05
PARAMS = {
    "rationale_alignment": {"explainer": "attention_last", "weight": 2.0},
    "attribution_entropy": {"explainer": "input_x_gradient", "weight": 0.3},
    "ablation_fidelity": {"unit": "token"},
    "comprehensiveness": {"explainer": "interpretable_attention?untrained"},
}


def plain_inputs(batch):
    """A batch as the dictionary that a user's own data loader gives."""
    return {
        **{name: batch.inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")},
        "labels": batch.labels,
        "rationale_mask": batch.rationale_mask.long(),
    }


def make_rows_with_rationales(count=12):
    rows = [row for row in load_generated(size=120) if row["rationale"]][:count]
    return load_generated(size=120).select(range(0)).from_list(rows, features=load_generated(size=120).features)


@pytest.fixture(scope="module")
def start():
    """A tiny model in float64 and ten batches for it, as dictionaries."""
    model = bert(num_labels=2, dtype=torch.float64)
    rows = list(make_rows_with_rationales(40))
    collated = [Collator(model)(rows[4 * i : 4 * i + 4])["batch"] for i in range(STEPS)]
    weights = {key: value.clone() for key, value in model.model.state_dict().items()}
    return weights, [plain_inputs(batch) for batch in collated], collated


def make_model(weights):
    model = bert(num_labels=2, dtype=torch.float64)
    model.model.load_state_dict(weights)
    model.model.train()
    return model


def train_in_plain_loop(model, objective, batches, collated, folder, total_steps=None):
    terms = ExplanationTerms(model, [objective], total_steps=total_steps)
    optimizer = torch.optim.SGD(terms.parameters(), lr=RATE)
    for inputs in batches:
        step = terms(inputs)
        step.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_with_accelerate(model, objective, batches, collated, folder):
    accelerator = Accelerator(cpu=True)
    terms = ExplanationTerms(model, [objective])
    terms, optimizer = accelerator.prepare(terms, torch.optim.SGD(terms.parameters(), lr=RATE))
    for inputs in batches:
        accelerator.backward(terms(inputs).loss)
        optimizer.step()
        optimizer.zero_grad()


def arguments(folder, **changes):
    return TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, learning_rate=RATE, optim="sgd", max_grad_norm=0.0, seed=0,
        lr_scheduler_type="constant", report_to="none", save_strategy="no", **ARGUMENTS | changes,
    )  # fmt: skip


def subclass_with_batches(trainer_class, batches):
    """Return a subclass whose training data are these batches in their order."""
    members = {"get_train_dataloader": lambda self: DataLoader(batches, batch_size=None)}
    return type("Given", (trainer_class,), members)


def train_with_added_objectives(model, objective, batches, collated, folder):
    trainer_class = expound.with_objectives(subclass_with_batches(Trainer, batches), [objective])
    trainer_class(model.model, arguments(folder), processing_class=model.processing_class).train()


def train_with_objective_trainer(model, objective, batches, collated, folder):
    inputs = [{"batch": batch} for batch in collated]
    trainer_class = subclass_with_batches(ObjectiveTrainer, inputs)
    module = TrainingModule(model, [expound.objective("cross_entropy"), objective])
    trainer_class(module, arguments(folder)).train()


LOOPS = [train_in_plain_loop, train_with_accelerate, train_with_added_objectives]


@pytest.mark.parametrize(
    ("name", "loop"), families.rotate(sorted(set(OBJECTIVES) - {"cross_entropy", "constraint"}), LOOPS)
)
def test_every_loop_reaches_the_same_weights(name, loop, start, tmp_path):
    weights, batches, collated = start
    trained = []
    for each in (train_with_objective_trainer, loop):
        model = make_model(weights)
        objective = expound.objective(name, model, **PARAMS.get(name, {}))
        each(model, objective, batches, collated, tmp_path)
        trained.append(model.model.state_dict())
    expected, found = trained
    assert max(float((value - weights[key]).abs().max()) for key, value in expected.items()) > 1e-4
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-10)


def test_the_term_changes_the_gradient_and_the_mode_of_the_model_stays():
    model = bert(num_labels=2)
    terms = ExplanationTerms(model, [expound.objective("rationale_alignment", explainer="attention_last", weight=10.0)])
    inputs = plain_inputs(Collator(model)(list(make_rows_with_rationales(4)))["batch"])
    for training in (True, False):
        model.model.train(training)
        with torch.set_grad_enabled(training):
            step = terms(inputs)
        assert model.model.training == training
        assert step.loss.requires_grad == training
        expected = step.terms["cross_entropy"] + 10 * step.terms["rationale_alignment"]
        torch.testing.assert_close(step.loss.detach(), expected)
        assert float(step.terms["rationale_alignment"]) > 0


def chats():
    """A language model, and a padded batch of two prompts with responses as SFT's collators make it."""
    tokenizer = families.tokenizer("llama")
    model = expound.load((families.tiny("llama", "CausalLM"), tokenizer), task="generation")
    texts = ["a moving film about a small town", "two women are holding packages in the rain today"]
    inputs = dict(tokenizer(texts, padding=True, padding_side="right", return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    labels[:, :5] = -100
    return model, inputs | {"labels": labels}


def test_language_models_have_the_loss_of_their_responses_and_terms_on_the_prompt():
    model, inputs = chats()
    term = expound.objective("rationale_alignment", explainer="input_x_gradient", target="predicted", weight=2.0)
    mask = torch.zeros_like(inputs["input_ids"])
    mask[:, 2:4] = 1
    step = ExplanationTerms(model, [term])(inputs | {"rationale_mask": mask})
    own = [
        model.model(**{name: value[i : i + 1] for name, value in inputs.items()}).loss for i in range(2)
    ]  # a mean over the tokens of each response
    torch.testing.assert_close(step.terms["cross_entropy"], torch.stack(own).mean().detach())
    ids, real = inputs["input_ids"][0], int(inputs["attention_mask"][0].sum())
    batch = model.batch([ids[:5]], [ids[5:real]], content=[[0, 1, 1, 1, 1]])
    marked = mask[:1, :real].bool()
    batch = replace(batch, rationale_mask=marked, has_rationale=torch.ones(1, dtype=torch.bool))
    # the entropy is over content, which the response is not
    entropy = expound.objective("attribution_entropy", explainer="input_x_gradient")
    first = {name: value[:1] for name, value in (inputs | {"rationale_mask": mask}).items()}
    found = ExplanationTerms(model, [term, entropy])(first).terms
    alone = TrainingStep(model, batch, model(batch, model.embed(batch), term.capture))
    for objective in (term, entropy):
        torch.testing.assert_close(found[objective.name], objective(alone).detach())
    step.loss.backward()
    assert all(weight.grad is not None for weight in model.model.model.layers.parameters())


def classifier_inputs():
    model = bert(num_labels=2)
    model.model.train()
    return model, plain_inputs(Collator(model)(list(make_rows_with_rationales(4)))["batch"])


def gradients(model, objective, inputs):
    ExplanationTerms(model, [objective])(inputs).loss.backward()
    return {name: weight.grad for name, weight in model.model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"cross_entropy", "constraint"}))
def test_autocast_of_the_caller_holds(name):
    model, inputs = classifier_inputs()
    objective = expound.objective(name, model, **PARAMS.get(name, {}))
    full = ExplanationTerms(model, [objective])(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = ExplanationTerms(model, [objective])(inputs)
    half.loss.backward()
    assert half.terms["cross_entropy"] != full.terms["cross_entropy"]
    torch.testing.assert_close(half.terms["cross_entropy"], full.terms["cross_entropy"], atol=0.02, rtol=0)


@pytest.mark.parametrize("explainer", ["attention_last", "input_x_gradient", "alti"])
def test_frozen_layers_get_no_gradient_and_the_others_the_same(explainer):
    guide = expound.objective("rationale_alignment", explainer=explainer, weight=5.0)
    model, inputs = classifier_inputs()
    whole = gradients(model, guide, inputs)
    frozen, _ = classifier_inputs()
    frozen.model.bert.embeddings.requires_grad_(False)
    frozen.model.bert.encoder.layer[0].requires_grad_(False)
    part = gradients(frozen, guide, inputs)
    assert part.keys() == {name for name in whole if "embeddings" not in name and "layer.0" not in name}
    for name, value in part.items():
        torch.testing.assert_close(value, whole[name])


def test_adapters_are_trained_and_the_weights_below_them_stay():
    peft = pytest.importorskip("peft")
    model, inputs = classifier_inputs()
    guide = expound.objective("rationale_alignment", explainer="input_x_gradient", weight=5.0)
    plain = ExplanationTerms(model, [guide])(inputs)
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=2)
    adapted = expound.load((peft.get_peft_model(model.model, config), model.processing_class))
    adapted.model.train()
    terms = ExplanationTerms(adapted, [guide, expound.objective("kl_to_original")])
    step = terms(inputs)
    torch.testing.assert_close(step.terms["rationale_alignment"], plain.terms["rationale_alignment"])
    step.loss.backward()
    trained = {name for name, weight in adapted.model.named_parameters() if weight.grad is not None}
    assert trained
    assert all("lora_" in name or "classifier" in name for name in trained)
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            weight.add_("lora_B" in name)
    assert terms(inputs).terms["kl_to_original"] > 1e-3


@pytest.mark.parametrize("name", ["virtual_adversarial", "kl_to_original", "gradient_penalty", "rationale_alignment"])
def test_gradient_checkpointing_changes_no_gradient(name):
    found = {}
    for is_checkpointed in (False, True):
        model, inputs = classifier_inputs()
        if is_checkpointed:
            model.model.gradient_checkpointing_enable()
        found[is_checkpointed] = gradients(model, expound.objective(name), inputs)
    for key, value in found[False].items():
        torch.testing.assert_close(found[True][key], value)


def test_accumulated_gradients_are_those_of_one_large_batch():
    guide = expound.objective("attribution_entropy", explainer="attention_last")
    model, inputs = classifier_inputs()
    whole = gradients(model, guide, inputs)
    parts, _ = classifier_inputs()
    terms = ExplanationTerms(parts, [guide])
    for half in (slice(0, 2), slice(2, 4)):
        (terms({name: value[half] for name, value in inputs.items()}).loss / 2).backward()
    for name, weight in parts.model.named_parameters():
        torch.testing.assert_close(weight.grad, whole[name], atol=1e-6, rtol=1e-4)


def test_a_constraint_takes_the_steps_of_the_trainer(start, tmp_path):
    weights, batches, collated = start
    ends = {}
    for loop in (
        train_with_objective_trainer,
        train_with_added_objectives,
        partial(train_in_plain_loop, total_steps=STEPS),
    ):
        model = make_model(weights)
        constraint = Constraint(expound.objective("rationale_alignment", explainer="attention_last"), bound=0.01)
        loop(model, constraint, batches, collated, tmp_path)
        ends[str(loop)] = torch.cat([constraint.multiplier.value[None], model.model.classifier.weight.flatten()])
    first, *others = ends.values()
    assert abs(float(first[0]) - 1) > 0.01
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-10)
    constant = Constraint(expound.objective("rationale_alignment", explainer="attention_last"), bound=0.01)
    train_in_plain_loop(make_model(weights), constant, batches, collated, tmp_path)
    assert constant.weight != pytest.approx(float(first[0]), abs=0.01)


def test_criteria_of_one_untrained_explainer_train_the_same_one():
    model, inputs = classifier_inputs()
    single = expound.explainer("interpretable_attention?untrained", model)
    criteria = [expound.objective(name, explainer=single) for name in ("comprehensiveness", "sufficiency")]
    terms = ExplanationTerms(model, criteria)
    terms(inputs).loss.backward()
    (learned,) = terms.module.learned.values()
    assert all(weight.grad is not None for weight in learned.parameters())
    assert terms.module.objectives[1].explainer is terms.module.objectives[2].explainer is learned


def test_processes_share_the_gradient_of_one_large_batch(tmp_path):
    run_in_two_processes("ddp_terms.py", tmp_path)
    found = {file.stem: load_file(file) for file in tmp_path.glob("*.safetensors")}
    model, inputs = classifier_inputs()
    entropy = expound.objective("attribution_entropy", explainer="input_x_gradient")
    whole = gradients(model, entropy, inputs)
    for name in ("terms", "trainer"):
        assert difference(found[name], whole) < 1e-5
    bounded = Constraint(entropy, bound=1.0)
    ExplanationTerms(model, [bounded])(inputs)
    for rank in (0, 1):
        torch.testing.assert_close(found[f"multiplier_{rank}"]["value"], bounded.multiplier.square)


def compile_model(model):
    return expound.load((torch.compile(model.model), model.processing_class))


def compile_in_place(model):
    model.model.compile()
    return model


def wrap_in_engine(model):
    class Engine(torch.nn.Module):
        """A wrapper like DeepSpeed's, with its own `config`."""

        def __init__(self):
            super().__init__()
            self.module = model.model
            self.config = {"train_batch_size": 4}

    return expound.load((Engine(), model.processing_class))


def add_soft_prompt(model):
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
    return expound.load((peft.get_peft_model(model.model, config), model.processing_class))


def use_changed_inputs(**changes):
    def use():
        model, inputs = classifier_inputs()
        given = {name: value for name, value in (inputs | changes).items() if value is not None}
        guide = expound.objective("rationale_alignment", explainer="attention_last")
        ExplanationTerms(model, [guide])({name: v(inputs) if callable(v) else v for name, v in given.items()})

    return use


def use_changed_model(change, **params):
    def use():
        model, inputs = classifier_inputs()
        objective = expound.objective(
            params.pop("name", "rationale_alignment"), **{"explainer": "attention_last"} | params
        )
        ExplanationTerms(change(model), [objective])(inputs)

    return use


def use_changed_chat(change):
    def use():
        model, inputs = chats()
        ExplanationTerms(model, [])(inputs | {"labels": change(inputs["labels"])})

    return use


def add_gap(labels):
    labels = labels.clone()
    labels[:, 7] = -100
    return labels


def keep_model(model):
    return model


def drop_tokenizer(model):
    return ExplainedModel(model.model)


def learned_constraint():
    model = bert()
    learned = expound.objective("sufficiency", model, explainer="interpretable_attention?untrained")
    ExplanationTerms(model, [Constraint(learned, 1.0)])


WRONG = [
    (use_changed_inputs(rationale_mask=lambda i: i["rationale_mask"][:, 1:]), "expected rationale_mask of shape"),
    (use_changed_inputs(content_mask=lambda i: i["attention_mask"][:2]), "expected content_mask of shape"),
    (use_changed_inputs(labels=lambda i: i["labels"][:-1]), r"expected labels of shape \[4\], got \[3\]"),
    (use_changed_inputs(labels=lambda i: i["labels"] + 5), "expected labels from 0 to 1, got 5 to 6"),
    (use_changed_inputs(labels=lambda i: i["labels"].float()), "expected whole numbers from 0 to 1 as labels"),
    (use_changed_inputs(input_ids=lambda i: i["input_ids"] + 10_000), "use its own tokenizer"),
    (use_changed_inputs(labels=None), "the batch lacks labels"),
    (use_changed_inputs(attention_mask=None), "the batch lacks attention_mask"),
    (use_changed_inputs(label=lambda i: i["labels"]), "unknown input 'label'"),
    (use_changed_model(compile_model), "without torch.compile"),
    (use_changed_model(compile_in_place), r"leave out model.compile\(\)"),
    (use_changed_model(wrap_in_engine), "Engine wraps the model: give the model inside, model.module"),
    (use_changed_model(add_soft_prompt), "use LoRA or another adapter"),
    (use_changed_model(drop_tokenizer), "without a tokenizer"),
    (
        use_changed_model(lambda _: ExplainedModel(families.tiny("bert", "QuestionAnswering"))),
        "classifies or scores texts",
    ),
    (use_changed_model(lambda _: ExplainedModel(families.tiny("vit"))), "classifies or scores texts"),
    (use_changed_model(keep_model, explainer="occlusion"), "is not differentiable"),
    (
        use_changed_model(keep_model, explainer="interpretable_attention"),
        r"interpretable_attention\?untrained to train it",
    ),
    (lambda: ExplanationTerms(bert(), [expound.objective("sufficiency")] * 2), "objectives with different names"),
    (learned_constraint, "it cannot be bounded"),
    (use_changed_chat(lambda labels: labels.clamp(min=0)), "set the labels of the prompt to -100"),
    (use_changed_chat(add_gap), "expected one response per example"),
    (use_changed_chat(lambda labels: labels[:, 0]), "expected labels of shape"),
]


def test_wrong_uses_are_answered_in_one_sentence(monkeypatch):
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    for use, message in WRONG:
        with pytest.raises(ExpoundError, match=message) as raised:
            use()
        assert "\n" not in str(raised.value)
