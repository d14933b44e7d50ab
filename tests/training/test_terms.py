"""Explanation losses in a plain PyTorch loop: equal to the trainer's, and clear about wrong uses."""

import pytest
import torch

import exegete
import families
from exegete import ExegeteError
from exegete.objectives import OBJECTIVES
from exegete.training.loop.data import Collator
from exegete.training.terms import ExplanationTerms
from runs import bert, generated, trainer

PARAMS = {
    "explanation": {"explainer": "attention_last", "weight": 2.0},
    "attribution_entropy": {"explainer": "input_x_gradient", "weight": 0.3},
}
SECOND_MODEL = {"kl_to_original", "ablation_fidelity", "clustering_consistency", "cross_entropy"}
"""Objectives that need another model or generated text, and the task's own loss."""


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


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - SECOND_MODEL))
def test_a_plain_loop_and_the_trainer_reach_the_same_weights(name, tmp_path, monkeypatch):
    data = with_rationales()
    batches = []
    collate = Collator.__call__
    monkeypatch.setattr(Collator, "__call__", lambda self, rows: batches.append(collate(self, rows)) or batches[-1])
    start = bert(num_labels=2, dtype=torch.float64)
    weights = {key: value.clone() for key, value in start.model.state_dict().items()}
    objective = exegete.objective(name, **PARAMS.get(name, {}))
    steps = {"max_steps": 3, "learning_rate": 0.05, "optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0}
    run = trainer(
        tmp_path, start, data, objectives=(exegete.objective("cross_entropy"), objective), eval_strategy="no",
        **steps | {"per_device_train_batch_size": 4},
    )  # fmt: skip
    run.train()
    trained = start.model.state_dict()

    own = bert(num_labels=2, dtype=torch.float64)
    own.model.load_state_dict(weights)
    own.model.train()
    terms = ExplanationTerms(own, [objective], seed=run.args.seed)
    optimizer = torch.optim.SGD(own.model.parameters(), lr=0.05)
    for collated in batches[:3]:
        step = terms(plain_inputs(collated["batch"]))
        step.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert {"cross_entropy", objective.name} == set(step.terms)
    for key, value in own.model.state_dict().items():
        torch.testing.assert_close(value, trained[key], rtol=0, atol=1e-10)
    moved = max(float((value - weights[key]).abs().max()) for key, value in trained.items())
    assert moved > 1e-4


def test_the_term_changes_the_gradient_and_the_mode_of_the_model_stays():
    model = bert(num_labels=2)
    terms = ExplanationTerms(model, [exegete.objective("explanation", explainer="attention_last", weight=10.0)])
    inputs = plain_inputs(Collator(model)(list(with_rationales(4)))["batch"])
    for training in (True, False):
        model.model.train(training)
        step = terms(inputs)
        assert model.model.training == training
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
