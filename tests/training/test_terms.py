"""Explanation losses in a training loop of the user's own."""

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import exegete
import families
from exegete import ExegeteError
from exegete.objectives import OBJECTIVES
from exegete.training import ObjectiveTrainer
from exegete.training.loop.data import Collator
from exegete.training.terms import ExplanationTerms
from runs import ARGUMENTS, bert, generated

STEPS, RATE = 10, 0.05
PARAMS = {
    "explanation": {"explainer": "attention_last", "weight": 2.0},
    "attribution_entropy": {"explainer": "input_x_gradient", "weight": 0.3},
    "ablation_fidelity": {"granularity": "token"},
    "comprehensiveness": {"explainer": "interpretable_attention?untrained"},
}


def plain_inputs(batch):
    """A batch as the dictionary that a user's own data loader gives."""
    return {
        **{name: batch.inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")},
        "labels": batch.labels,
        "rationale_mask": batch.rationale_mask.long(),
    }


def with_rationales(count=12):
    rows = [row for row in generated(size=120) if row["rationale"]][:count]
    return generated(size=120).select(range(0)).from_list(rows, features=generated(size=120).features)


@pytest.fixture(scope="module")
def start():
    """A tiny model in float64 and ten batches for it, as dictionaries."""
    model = bert(num_labels=2, dtype=torch.float64)
    rows = list(with_rationales(40))
    collated = [Collator(model)(rows[4 * i : 4 * i + 4])["batch"] for i in range(STEPS)]
    weights = {key: value.clone() for key, value in model.model.state_dict().items()}
    return weights, [plain_inputs(batch) for batch in collated], collated


def fresh(weights):
    model = bert(num_labels=2, dtype=torch.float64)
    model.model.load_state_dict(weights)
    model.model.train()
    return model


def five_lines(model, objective, batches, collated, folder):
    terms = ExplanationTerms(model, [objective])
    optimizer = torch.optim.SGD(terms.parameters(), lr=RATE)
    for inputs in batches:
        step = terms(inputs)
        step.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerate_loop(model, objective, batches, collated, folder):
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


def given_batches(trainer_class, batches):
    """The class with these batches in their order as training data."""
    members = {"get_train_dataloader": lambda self: DataLoader(batches, batch_size=None)}
    return type("Given", (trainer_class,), members)


def added_to_a_trainer(model, objective, batches, collated, folder):
    trainer_class = exegete.with_objectives(given_batches(Trainer, batches), [objective])
    trainer_class(model.model, arguments(folder), processing_class=model.processing_class).train()


def own_trainer(model, objective, batches, collated, folder):
    inputs = [{"batch": batch} for batch in collated]
    trainer_class = given_batches(ObjectiveTrainer, inputs)
    trainer_class(model, arguments(folder), [exegete.objective("cross_entropy"), objective]).train()


LOOPS = [five_lines, accelerate_loop, added_to_a_trainer]


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"cross_entropy"}))
def test_every_loop_reaches_the_same_weights(name, start, tmp_path):
    weights, batches, collated = start
    trained = {}
    for loop in (own_trainer, *LOOPS):
        model = fresh(weights)
        objective = exegete.objective(name, **PARAMS.get(name, {}))
        loop(model, objective, batches, collated, tmp_path)
        trained[loop.__name__] = model.model.state_dict()
    expected = trained.pop("own_trainer")
    assert max(float((value - weights[key]).abs().max()) for key, value in expected.items()) > 1e-4
    for found in trained.values():
        for key, value in found.items():
            torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-10)


def test_the_term_changes_the_gradient_and_the_mode_of_the_model_stays():
    model = bert(num_labels=2)
    terms = ExplanationTerms(model, [exegete.objective("explanation", explainer="attention_last", weight=10.0)])
    inputs = plain_inputs(Collator(model)(list(with_rationales(4)))["batch"])
    for training in (True, False):
        model.model.train(training)
        with torch.set_grad_enabled(training):
            step = terms(inputs)
        assert model.model.training == training
        assert step.loss.requires_grad == training
        expected = step.terms["cross_entropy"] + 10 * step.terms["explanation"]
        torch.testing.assert_close(step.loss.detach(), expected)
        assert float(step.terms["explanation"]) > 0


def test_wrong_uses_are_answered_in_one_sentence():
    model = bert(num_labels=2)
    terms = ExplanationTerms(model, [exegete.objective("explanation", explainer="attention_last")])
    inputs = plain_inputs(Collator(model)(list(with_rationales(4)))["batch"])
    wrong = [
        ({**inputs, "rationale_mask": inputs["rationale_mask"][:, :-1]}, "expected rationale_mask of shape"),
        ({**inputs, "labels": inputs["labels"][:-1]}, r"expected labels of shape \[4\], got \[3\]"),
        ({**inputs, "input_ids": inputs["input_ids"] + 10_000}, "use its own tokenizer"),
        ({key: value for key, value in inputs.items() if key != "labels"}, "the batch lacks labels"),
        ({**inputs, "label": inputs["labels"]}, "unknown input 'label'"),
    ]
    for broken, message in wrong:
        with pytest.raises(ExegeteError, match=message):
            terms(broken)
    chat = exegete.load((families.tiny("llama", "CausalLM"), families.tokenizer("llama")), task="generation")
    with pytest.raises(ExegeteError, match="classifies texts"):
        ExplanationTerms(chat, [])
